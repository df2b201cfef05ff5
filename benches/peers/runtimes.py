"""Other runtimes behind one interface: `RUNTIMES[name](path, feed, threads)` gives a function that
runs the model once on the array `feed` (NCHW) and returns its output as NCHW. Raises if the runtime
is missing or does not take the model."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))


def onnxruntime(path, feed, threads, optimized=True):
    import onnxruntime as ort
    options = ort.SessionOptions()
    if not optimized:
        # Operator by operator as the file has them: of quantised nets numbers, not products of bytes that saturate.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: feed}
    return lambda: session.run(None, feeds)[0]


def openvino(path, feed, threads):
    import openvino as ov
    core = ov.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(feed))
    output = request.get_output_tensor(0)

    def run():
        request.infer()
        return output.data
    return run


def ncnn(path, feed, threads):
    import ncnn as lib
    folder = tempfile.mkdtemp()
    try:
        # The converter writes beside the file it reads.
        shutil.copy(path, os.path.join(folder, "m.onnx"))
        converter = os.path.join(os.path.dirname(sys.executable), "pnnx")
        shape = ",".join(map(str, feed.shape))
        subprocess.run([converter if os.path.exists(converter) else "pnnx", "m.onnx",
                        f"inputshape=[{shape}]", "fp16=0"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        net = lib.Net()
        net.opt.num_threads = threads
        for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic",
                       "use_bf16_storage"):
            setattr(net.opt, option, False)
        if net.load_param(os.path.join(folder, "m.ncnn.param")) != 0:
            raise RuntimeError("ncnn does not take the converted model")
        net.load_model(os.path.join(folder, "m.ncnn.bin"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    image = lib.Mat(np.ascontiguousarray(feed[0]))

    def run():
        extractor = net.create_extractor()
        extractor.input("in0", image)
        code, out = extractor.extract("out0")
        if code != 0:
            raise RuntimeError("ncnn failed")
        return np.array(out, copy=False)[None]
    return run


def torch_module(model):
    """The model as a torch module: the few operators that the nets here use."""
    import torch
    import torch.nn.functional as F
    constants = {c.name: numpy_helper.to_array(c).copy() for c in model.graph.initializer}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in constants.items():
                parameter = torch.nn.Parameter(torch.from_numpy(value), requires_grad=False)
                self.register_parameter(name, parameter)

        def forward(self, x):
            values = dict(self.named_parameters())
            values[model.graph.input[0].name] = x
            for node in model.graph.node:
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                inputs = [values[name] for name in node.input]
                values[node.output[0]] = step(node.op_type, inputs, attributes)
            return values[model.graph.output[0].name]

    def padded(x, attributes, fill):
        top, left, bottom, right = attributes.get("pads", [0] * 4)
        if (top, left) == (bottom, right):
            return x, (top, left)
        return F.pad(x, (left, right, top, bottom), value=fill), (0, 0)

    def step(kind, inputs, a):
        if kind == "Conv":
            x, pad = padded(inputs[0], a, 0.0)
            return F.conv2d(x, inputs[1], inputs[2], a["strides"], pad, 1, a["group"])
        if kind == "MaxPool":
            x, pad = padded(inputs[0], a, float("-inf"))
            return F.max_pool2d(x, a["kernel_shape"], a["strides"], pad)
        if kind == "Gemm":
            return F.linear(*inputs)
        simple = {
            "Relu": lambda x: F.relu(x),
            "Clip": lambda x, low, high: F.hardtanh(x, float(low), float(high)),
            "LeakyRelu": lambda x: F.leaky_relu(x, a["alpha"]),
            "Add": lambda x, y: x + y,
            "GlobalAveragePool": lambda x: F.adaptive_avg_pool2d(x, 1),
            "Flatten": lambda x: torch.flatten(x, 1),
            "Concat": lambda *parts: torch.cat(parts, a.get("axis")),
            "Softmax": lambda x: F.softmax(x, a.get("axis")),
        }
        return simple[kind](*inputs)
    return Net().eval()


def torch(path, feed, threads, last=False):
    import torch as lib
    lib.set_num_threads(threads)
    module, x = torch_module(onnx.load(path)), lib.from_numpy(feed)
    if last:
        if x.dim() != 4:
            raise NotImplementedError("not a picture")
        x = x.to(memory_format=lib.channels_last)
        module = module.to(memory_format=lib.channels_last)
    with lib.inference_mode():
        traced = lib.jit.freeze(lib.jit.trace(module, x))
        if not last:
            traced = lib.jit.optimize_for_inference(traced)

    def run():
        with lib.inference_mode():
            return traced(x).numpy()
    return run


def torch_nhwc(path, feed, threads):
    return torch(path, feed, threads, last=True)


class TfLite:
    """Rewrites an ONNX model of the nets here as a TFLite file, NHWC."""

    def __init__(self, model):
        from ai_edge_litert import schema_py_generated as schema
        self.s = schema
        self.buffers, self.tensors, self.operators, self.codes = [schema.BufferT()], [], [], []
        graph = model.graph
        self.constants = {c.name: numpy_helper.to_array(c) for c in graph.initializer}
        shape = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
        self.values = {graph.input[0].name: self.tensor(self.order(shape))}
        first = self.values[graph.input[0].name]
        nodes, fused = list(graph.node), set()
        for i, node in enumerate(nodes):
            if i not in fused:
                out = node.output[0]
                activation = schema.ActivationFunctionType.NONE
                users = [j for j, other in enumerate(nodes) if out in other.input]
                if node.op_type in ("Conv", "Gemm", "Add") and len(users) == 1:
                    follower = nodes[users[0]]
                    known = {"Relu": "RELU", "Clip": "RELU6"}.get(follower.op_type)
                    if known:
                        activation = getattr(schema.ActivationFunctionType, known)
                        out = follower.output[0]
                        fused.add(users[0])
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                self.values[out] = getattr(self, node.op_type)(node, attributes, activation)
        self.io = first, self.values[graph.output[0].name]

    @staticmethod
    def order(shape):
        return [shape[0], shape[2], shape[3], shape[1]] if len(shape) == 4 else list(shape)

    def tensor(self, shape, data=None):
        t = self.s.TensorT()
        t.name, t.shape, t.buffer = f"t{len(self.tensors)}".encode(), np.array(shape, np.int32), 0
        t.type = self.s.TensorType.FLOAT32
        if data is not None:
            if data.dtype == np.int32:
                t.type = self.s.TensorType.INT32
            buffer = self.s.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.buffers.append(buffer)
            t.buffer = len(self.buffers) - 1
        self.tensors.append(t)
        return len(self.tensors) - 1

    def constant(self, values):
        return self.tensor(values.shape, values)

    def shape(self, tensor):
        return [int(n) for n in self.tensors[tensor].shape]

    def op(self, code, inputs, shape, kind=None, **options):
        """Adds an operator with the options `kind`; returns its result."""
        code = getattr(self.s.BuiltinOperator, code)
        if code not in self.codes:
            self.codes.append(code)
        o = self.s.OperatorT()
        out = self.tensor(shape)
        o.opcodeIndex = self.codes.index(code)
        o.inputs, o.outputs = np.array(inputs, np.int32), np.array([out], np.int32)
        if kind:
            o.builtinOptionsType = getattr(self.s.BuiltinOptions, kind)
            o.builtinOptions = getattr(self.s, kind + "T")()
            for name, value in options.items():
                setattr(o.builtinOptions, name, value)
        self.operators.append(o)
        return out

    def window(self, x, a, fill=0.0):
        """Input, padding mode and output size of a window operator; pads where SAME does not fit."""
        kernel, stride = a["kernel_shape"], a["strides"]
        pads = a.get("pads", [0] * 4)
        n, h, w, c = self.shape(x)
        size = [(d + pads[i] + pads[i + 2] - kernel[i]) // stride[i] + 1
                for i, d in enumerate((h, w))]
        total = [max((size[i] - 1) * stride[i] + kernel[i] - d, 0) for i, d in enumerate((h, w))]
        same = all(-(-d // stride[i]) == size[i] and pads[i] == total[i] // 2
                   and pads[i] + pads[i + 2] == total[i] for i, d in enumerate((h, w)))
        if not any(pads):
            return x, self.s.Padding.VALID, size
        if same:
            return x, self.s.Padding.SAME, size
        amounts = np.array([[0, 0], [pads[0], pads[2]], [pads[1], pads[3]], [0, 0]], np.int32)
        shape = [n, h + pads[0] + pads[2], w + pads[1] + pads[3], c]
        if fill == 0.0:
            x = self.op("PAD", [x, self.constant(amounts)], shape, "PadOptions")
        else:
            value = self.constant(np.array([fill], np.float32))
            x = self.op("PADV2", [x, self.constant(amounts), value], shape, "PadV2Options")
        return x, self.s.Padding.VALID, size

    def Conv(self, node, a, activation):
        x, padding, (h, w) = self.window(self.values[node.input[0]], a)
        weights, bias = self.constants[node.input[1]], self.constants[node.input[2]]
        options = dict(padding=padding, strideH=a["strides"][0], strideW=a["strides"][1],
                       dilationHFactor=1, dilationWFactor=1, fusedActivationFunction=activation)
        shape = [1, h, w, weights.shape[0]]
        if a["group"] > 1:
            inputs = [x, self.constant(weights.transpose(1, 2, 3, 0).copy()), self.constant(bias)]
            return self.op("DEPTHWISE_CONV_2D", inputs, shape, "DepthwiseConv2DOptions",
                           depthMultiplier=1, **options)
        inputs = [x, self.constant(weights.transpose(0, 2, 3, 1).copy()), self.constant(bias)]
        return self.op("CONV_2D", inputs, shape, "Conv2DOptions", **options)

    def MaxPool(self, node, a, activation):
        lowest = float(np.finfo(np.float32).min)
        x, padding, (h, w) = self.window(self.values[node.input[0]], a, lowest)
        return self.op("MAX_POOL_2D", [x], [1, h, w, self.shape(x)[3]], "Pool2DOptions",
                       padding=padding, strideH=a["strides"][0], strideW=a["strides"][1],
                       filterHeight=a["kernel_shape"][0], filterWidth=a["kernel_shape"][1],
                       fusedActivationFunction=activation)

    def Gemm(self, node, a, activation):
        weights, bias = self.constants[node.input[1]], self.constants[node.input[2]]
        inputs = [self.values[node.input[0]], self.constant(weights), self.constant(bias)]
        return self.op("FULLY_CONNECTED", inputs, [1, weights.shape[0]], "FullyConnectedOptions",
                       fusedActivationFunction=activation)

    def Add(self, node, a, activation):
        inputs = [self.values[name] if name in self.values else
                  self.constant(self.constants[name].transpose(0, 2, 3, 1).copy())
                  for name in node.input]
        return self.op("ADD", inputs, self.shape(inputs[0]), "AddOptions",
                       fusedActivationFunction=activation)

    def Relu(self, node, a, activation):
        x = self.values[node.input[0]]
        return self.op("RELU", [x], self.shape(x))

    def LeakyRelu(self, node, a, activation):
        x = self.values[node.input[0]]
        return self.op("LEAKY_RELU", [x], self.shape(x), "LeakyReluOptions", alpha=a["alpha"])

    def GlobalAveragePool(self, node, a, activation):
        x = self.values[node.input[0]]
        axes = self.constant(np.array([1, 2], np.int32))
        return self.op("MEAN", [x, axes], [1, 1, 1, self.shape(x)[3]], "ReducerOptions",
                       keepDims=True)

    def Flatten(self, node, a, activation):
        x = self.values[node.input[0]]
        shape = np.array([1, int(np.prod(self.shape(x)))], np.int32)
        return self.op("RESHAPE", [x, self.constant(shape)], shape, "ReshapeOptions",
                       newShape=shape)

    def Softmax(self, node, a, activation):
        x = self.values[node.input[0]]
        return self.op("SOFTMAX", [x], self.shape(x), "SoftmaxOptions", beta=1.0)

    def Concat(self, node, a, activation):
        inputs = [self.values[name] for name in node.input]
        shape = self.shape(inputs[0])[:3] + [sum(self.shape(x)[3] for x in inputs)]
        return self.op("CONCATENATION", inputs, shape, "ConcatenationOptions", axis=3,
                       fusedActivationFunction=activation)

    def bytes(self):
        import flatbuffers
        graph, model = self.s.SubGraphT(), self.s.ModelT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = [np.array([io], np.int32) for io in self.io]
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        model.operatorCodes = []
        for code in self.codes:
            entry = self.s.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), 1
            model.operatorCodes.append(entry)
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def litert(path, feed, threads):
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(model_content=TfLite(onnx.load(path)).bytes(), num_threads=threads)
    interpreter.allocate_tensors()
    picture = feed.ndim == 4
    value = np.ascontiguousarray(feed.transpose(0, 2, 3, 1)) if picture else feed
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value)
    output = interpreter.get_output_details()[0]["index"]

    def run():
        interpreter.invoke()
        # No copy: it is not part of what others do either.
        out = interpreter.tensor(output)()
        return out.transpose(0, 3, 1, 2) if out.ndim == 4 else out
    return run


class Crate:
    """A network in a process of `rust/`, which times its runs itself."""

    program = None

    def __init__(self, name, path, feed, threads):
        if Crate.program is None:
            target = os.environ.get("TILEWRIGHT_CRATES") or os.path.join(HERE, "cache", "crates")
            command = ["cargo", "build", "--release", "--quiet", "--features", "nets", "--bin", "nets",
                       "--manifest-path", os.path.join(HERE, "rust", "Cargo.toml"), "--target-dir", target]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            Crate.program = os.path.join(target, "release", "nets")
        self.folder = tempfile.TemporaryDirectory()
        given = os.path.join(self.folder.name, "input")
        np.ascontiguousarray(feed, np.float32).tofile(given)
        self.process = subprocess.Popen([Crate.program, name, path, given, str(threads)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read().strip())
        return line

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def __call__(self):
        out = os.path.join(self.folder.name, "output")
        self.ask(f"run {out}")
        return np.fromfile(out, np.float32)

    def times(self, budget):
        """Microseconds of its runs."""
        return [float(time) for time in self.ask(f"time {budget}").split()]

    def __del__(self):
        if getattr(self, "process", None):
            self.process.kill()
            self.process.communicate()


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino, "ncnn": ncnn, "litert": litert,
            "torch": torch, "torch_nhwc": torch_nhwc, "tract": functools.partial(Crate, "tract"),
            "rten": functools.partial(Crate, "rten")}
