"""ONNX files to measure: single layers and whole nets, NCHW, batch 1, f32, seeded weights."""

import json
import os
import zlib

import numpy as np
from onnx import TensorProto, checker, helper, load, numpy_helper, save

# 3x3, stride 1, same padding: input channels, height = width, output channels.
CONV3 = [(16, 48, 16), (32, 24, 32), (32, 48, 32), (64, 24, 64), (128, 12, 128), (16, 48, 32),
         (32, 24, 64), (64, 12, 128), (128, 6, 256), (128, 24, 128), (256, 12, 256),
         (512, 12, 512), (1024, 6, 1024), (32, 208, 64), (64, 104, 128), (128, 52, 256),
         (256, 26, 512), (512, 13, 1024)]
POINTWISE = [(64, 56, 128), (256, 14, 512), (512, 14, 512)]
DEPTHWISE = [(32, 112), (128, 56), (512, 14)]
# Channels, size, window, stride, padding.
MAX_POOL = [(64, 112, 2, 2, 0), (64, 112, 3, 2, 1)]
ADD_RELU = [(64, 56), (256, 14)]


class Graph:
    """Builds one graph; methods return the name of their result and know its shape."""

    def __init__(self, name, shape):
        self.name, self.shape = name, {"x": tuple(shape)}
        self.nodes, self.constants, self.macs, self.opset = [], [], 0, 13
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def constant(self, values, dtype=np.float32):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def integers(self, values):
        return self.constant(values, np.int64)

    def weights(self, shape, fan_in):
        values = self.random.standard_normal(shape) * (2.0 / fan_in) ** 0.5
        return self.constant(values)

    def op(self, kind, inputs, shape, **attributes):
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=out, **attributes))
        self.shape[out] = tuple(shape)
        return out

    def activate(self, x, activation):
        shape = self.shape[x]
        if activation == "relu":
            return self.op("Relu", [x], shape)
        if activation == "relu6":
            return self.op("Clip", [x, self.constant(0), self.constant(6)], shape)
        if activation == "leaky":
            return self.op("LeakyRelu", [x], shape, alpha=0.1)
        if activation in ("sigmoid", "silu"):
            y = self.op("Sigmoid", [x], shape)
        elif activation in ("hard_sigmoid", "hard_swish"):
            y = self.op("HardSigmoid", [x], shape, alpha=1 / 6)
        else:
            return x
        return y if "sigmoid" in activation else self.op("Mul", [x, y], shape)

    def window(self, x, kernel, stride, pads):
        _, _, h, w = self.shape[x]
        return [(size + pads[i] + pads[i + 2] - kernel[i]) // stride + 1
                for i, size in enumerate((h, w))]

    def conv(self, x, channels, kernel=3, stride=1, groups=1, activation="relu", pads=None):
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = [kernel[0] // 2, kernel[1] // 2] * 2 if pads is None else pads
        c_in = self.shape[x][1]
        h, w = self.window(x, kernel, stride, pads)
        fan_in = c_in // groups * kernel[0] * kernel[1]
        self.macs += channels * h * w * fan_in
        inputs = [x, self.weights((channels, c_in // groups, *kernel), fan_in),
                  self.constant(self.random.standard_normal(channels) * 0.1)]
        y = self.op("Conv", inputs, (1, channels, h, w), kernel_shape=kernel,
                    strides=[stride] * 2, pads=pads, group=groups)
        return self.activate(y, activation)

    def depthwise(self, x, stride=1, activation="relu", kernel=3):
        channels = self.shape[x][1]
        return self.conv(x, channels, kernel, stride, channels, activation)

    def excite(self, x, squeezed, activations):
        """Channels times what two dense layers make of their means (squeeze and excitation)."""
        channels = self.shape[x][1]
        y = self.op("GlobalAveragePool", [x], (1, channels, 1, 1))
        y = self.conv(y, squeezed, 1, activation=activations[0])
        y = self.conv(y, channels, 1, activation=activations[1])
        return self.op("Mul", [x, y], self.shape[x])

    def max_pool(self, x, kernel, stride, pads=(0, 0, 0, 0)):
        h, w = self.window(x, (kernel, kernel), stride, pads)
        return self.op("MaxPool", [x], (1, self.shape[x][1], h, w), kernel_shape=[kernel] * 2,
                       strides=[stride] * 2, pads=list(pads))

    def pool_all(self, x):
        channels = self.shape[x][1]
        pooled = self.op("GlobalAveragePool", [x], (1, channels, 1, 1))
        return self.op("Flatten", [pooled], (1, channels), axis=1)

    def dense(self, x, columns, activation=None):
        rows = self.shape[x][1]
        self.macs += rows * columns
        inputs = [x, self.weights((columns, rows), rows),
                  self.constant(self.random.standard_normal(columns) * 0.1)]
        y = self.op("Gemm", inputs, (1, columns), transB=1)
        return self.activate(y, activation)

    def add(self, a, b, activation=None):
        return self.activate(self.op("Add", [a, b], self.shape[a]), activation)

    def softmax(self, x):
        return self.op("Softmax", [x], self.shape[x], axis=1)

    def save(self, folder, y):
        """Writes the file with `y` as its output, and returns its row of the list."""
        self.nodes[-1].output[0] = "y"
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, self.name, [value("x", TensorProto.FLOAT, self.shape["x"])],
            [value("y", TensorProto.FLOAT, self.shape[y])], self.constants)
        domains = sorted({"", *(node.domain for node in self.nodes)})
        opsets = [helper.make_opsetid(domain, 1 if domain else self.opset) for domain in domains]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 8
        checker.check_model(model)
        path = os.path.join(folder, self.name + ".onnx")
        save(model, path)
        return {"name": self.name, "file": path, "macs": self.macs}


def layers():
    """Each single layer and its output."""
    def conv(kind, c_in, size, c_out, kernel, groups=1):
        graph = Graph(f"{kind}_{c_in}x{size}_{c_out}", (1, c_in, size, size))
        return graph, graph.conv("x", c_out, kernel, groups=groups, activation=None)

    for c_in, size, c_out in CONV3:
        yield conv("conv3x3", c_in, size, c_out, 3)
    for c_in, size, c_out in POINTWISE:
        yield conv("pointwise", c_in, size, c_out, 1)
    for channels, size in DEPTHWISE:
        yield conv("depthwise", channels, size, channels, 3, channels)
    for channels, size, kernel, stride, pad in MAX_POOL:
        graph = Graph(f"maxpool{kernel}s{stride}_{channels}x{size}", (1, channels, size, size))
        yield graph, graph.max_pool("x", kernel, stride, [pad] * 4)
    for channels, size in ADD_RELU:
        shape = (1, channels, size, size)
        graph = Graph(f"addrelu_{channels}x{size}", shape)
        other = graph.constant(graph.random.standard_normal(shape))
        graph.shape[other] = shape
        yield graph, graph.add("x", other, "relu")


def residual(g, x, channels, stride):
    y = g.conv(x, channels, 3, stride)
    y = g.conv(y, channels, 3, activation=None)
    if stride != 1 or g.shape[x][1] != channels:
        x = g.conv(x, channels, 1, stride, activation=None)
    return g.add(y, x, "relu")


def resnet8(g):
    x = g.conv("x", 16)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        x = residual(g, x, channels, stride)
    return g.softmax(g.dense(g.pool_all(x), 10))


def resnet18(g):
    x = g.max_pool(g.conv("x", 64, 7, 2), 3, 2, (1, 1, 1, 1))
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                             (512, 1)):
        x = residual(g, x, channels, stride)
    return g.dense(g.pool_all(x), 1000)


def ds_cnn(g):
    x = g.conv("x", 64, (10, 4), 2, pads=[4, 1, 5, 1])
    for _ in range(4):
        x = g.conv(g.depthwise(x), 64, 1)
    return g.softmax(g.dense(g.pool_all(x), 12))


def mobilenet1(g, width=1.0, classes=1000):
    x = g.conv("x", int(32 * width), 3, 2)
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    blocks += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    for channels, stride in blocks:
        x = g.conv(g.depthwise(x, stride), int(channels * width), 1)
    return g.softmax(g.dense(g.pool_all(x), classes))


def mobilenet2(g):
    x = g.conv("x", 32, 3, 2, activation="relu6")
    for expand, channels, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2),
                                            (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                                            (6, 320, 1, 1)):
        for i in range(count):
            step, c_in, y = stride if i == 0 else 1, g.shape[x][1], x
            if expand > 1:
                y = g.conv(y, c_in * expand, 1, activation="relu6")
            y = g.conv(g.depthwise(y, step, "relu6"), channels, 1, activation=None)
            x = g.add(y, x) if step == 1 and c_in == channels else y
    return g.dense(g.pool_all(g.conv(x, 1280, 1, activation="relu6")), 1000)


def inverted(g, x, wide, channels, kernel, stride, activation, squeezed, gates):
    """An inverted residual block, with squeeze and excitation where `squeezed` is not 0."""
    c_in, y = g.shape[x][1], x
    if wide > c_in:
        y = g.conv(y, wide, 1, activation=activation)
    y = g.depthwise(y, stride, activation, kernel)
    y = g.excite(y, squeezed, gates) if squeezed else y
    y = g.conv(y, channels, 1, activation=None)
    return g.add(y, x) if stride == 1 and c_in == channels else y


def mobilenet3_small(g):
    x = g.conv("x", 16, 3, 2, activation="hard_swish")
    gates = ("relu", "hard_sigmoid")
    for kernel, wide, channels, squeezed, stride in (
            (3, 16, 16, 8, 2), (3, 72, 24, 0, 2), (3, 88, 24, 0, 1), (5, 96, 40, 24, 2),
            (5, 240, 40, 64, 1), (5, 240, 40, 64, 1), (5, 120, 48, 32, 1), (5, 144, 48, 40, 1),
            (5, 288, 96, 72, 2), (5, 576, 96, 144, 1), (5, 576, 96, 144, 1)):
        activation = "relu" if kernel == 3 else "hard_swish"
        x = inverted(g, x, wide, channels, kernel, stride, activation, squeezed, gates)
    x = g.pool_all(g.conv(x, 576, 1, activation="hard_swish"))
    return g.dense(g.dense(x, 1024, "hard_swish"), 1000)


def efficientnet_b0(g):
    x = g.conv("x", 32, 3, 2, activation="silu")
    for expand, channels, count, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3),
                                                    (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                                                    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
                                                    (6, 320, 1, 1, 3)):
        for i in range(count):
            c_in, step = g.shape[x][1], stride if i == 0 else 1
            x = inverted(g, x, c_in * expand, channels, kernel, step, "silu", c_in // 4,
                         ("silu", "sigmoid"))
    return g.dense(g.pool_all(g.conv(x, 1280, 1, activation="silu")), 1000)


def squeezenet(g):
    def fire(x, squeeze, expand):
        s = g.conv(x, squeeze, 1)
        a, b = g.conv(s, expand, 1), g.conv(s, expand, 3)
        return g.op("Concat", [a, b], (1, 2 * expand, *g.shape[a][2:]), axis=1)

    def pool(x):
        odd = (g.shape[x][2] - 3) % 2
        return g.max_pool(x, 3, 2, (0, 0, odd, odd))

    x = pool(g.conv("x", 64, 3, 2, pads=[0] * 4))
    x = pool(fire(fire(x, 16, 64), 16, 64))
    x = pool(fire(fire(x, 32, 128), 32, 128))
    x = fire(fire(fire(fire(x, 48, 192), 48, 192), 64, 256), 64, 256)
    return g.pool_all(g.conv(x, 1000, 1))


def tiny_yolo2(g):
    x = "x"
    for i, channels in enumerate((16, 32, 64, 128, 256, 512)):
        x = g.conv(x, channels, activation="leaky")
        x = g.max_pool(x, 2, 2) if i < 5 else g.max_pool(x, 2, 1, (0, 0, 1, 1))
    x = g.conv(g.conv(x, 1024, activation="leaky"), 1024, activation="leaky")
    return g.conv(x, 125, 1, activation=None)


def autoencoder(g):
    x = "x"
    for width in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = g.dense(x, width, "relu")
    return g.dense(x, 640)


NETS = {
    "resnet8": ((1, 3, 32, 32), resnet8),
    "ds_cnn": ((1, 1, 49, 10), ds_cnn),
    "mobilenetv1_025_96": ((1, 3, 96, 96), lambda g: mobilenet1(g, 0.25, 2)),
    "autoencoder": ((1, 640), autoencoder),
    "mobilenetv1_224": ((1, 3, 224, 224), mobilenet1),
    "mobilenetv2_224": ((1, 3, 224, 224), mobilenet2),
    "mobilenetv3_small_224": ((1, 3, 224, 224), mobilenet3_small),
    "efficientnet_b0_224": ((1, 3, 224, 224), efficientnet_b0),
    "resnet18_224": ((1, 3, 224, 224), resnet18),
    "squeezenet11_224": ((1, 3, 224, 224), squeezenet),
    "tinyyolov2_416": ((1, 3, 416, 416), tiny_yolo2),
}


def nets():
    """Each net and its output."""
    for name, (shape, build) in NETS.items():
        graph = Graph(name, shape)
        yield graph, build(graph)


def chain(g):
    """A hundred operators of eight numbers each; every one reads the two results before it, so that none
    can be joined to another."""
    before, x = "x", "x"
    for i in range(100):
        before, x = x, g.op(("Add", "Max", "Sub", "Min")[i % 4], [before, x], g.shape["x"])
    return x


TINY = {
    "chain_of_100": ((1, 1, 8), chain),
    "dense_1000": ((1, 16), lambda g: g.dense(g.dense("x", 32, "relu"), 14)),
}


def tiny():
    """Networks so small that a call costs more than its arithmetic."""
    for name, (shape, build_one) in TINY.items():
        graph = Graph(name, shape)
        yield graph, build_one(graph)


def few_bits(g, accuracy, hidden=8192, layers=4, block=32):
    """Products of a language model of a billion parameters by weights of four bits."""
    x = "x"
    for i in range(2 * layers):
        rows, k = g.shape[x]
        n = hidden if i % 2 == 0 else g.shape["x"][1]
        packed = g.random.integers(0, 256, (n, k // block, block // 2), dtype=np.uint8)
        scales = g.constant(g.random.uniform(0.5, 1.5, n * (k // block)) / (4.6 * k**0.5))
        g.constants.append(numpy_helper.from_array(packed, f"packed{i}"))
        g.macs += rows * k * n
        x = g.op("MatMulNBits", [x, f"packed{i}", scales], (rows, n), domain="com.microsoft", K=k, N=n, bits=4,
                 block_size=block, accuracy_level=accuracy)
    return x


def bits():
    """A token, and a prompt of 128, with activations that stay floats, and that may be rounded to bytes."""
    for accuracy, name in ((0, "f32"), (4, "int8")):
        for rows in (1, 128):
            graph = Graph(f"bits_{name}_{rows}", (rows, 2048))
            yield graph, few_bits(graph, accuracy)


def quantized(row):
    """The net of a row with bytes between its operators (QuantizeLinear, DequantizeLinear), as
    onnxruntime's static quantiser makes it of eight random inputs: u8 activations, i8 weights with a
    scale per channel."""
    from onnxruntime import quantization as q
    path = row["file"].replace(".onnx", "_int8.onnx")
    shape = [d.dim_value for d in
             load(row["file"]).graph.input[0].type.tensor_type.shape.dim]

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            random = np.random.default_rng(0)
            samples = [random.standard_normal(shape).astype(np.float32) for _ in range(8)]
            self.samples = iter([{"x": x} for x in samples])

        def get_next(self):
            return next(self.samples, None)

    q.quantize_static(row["file"], path, Reader(), quant_format=q.QuantFormat.QDQ,
                      per_channel=True, activation_type=q.QuantType.QUInt8,
                      weight_type=q.QuantType.QInt8)
    return {**row, "name": row["name"] + "_int8", "file": path}


def build(what, folder, only=""):
    """Writes the files of `what` ("layers", "operators", "nets", "tiny", "bits" or "int8") whose names contain
    `only`."""
    from operators import operators
    os.makedirs(folder, exist_ok=True)
    pairs = {"layers": layers, "operators": operators, "tiny": tiny, "bits": bits}.get(what, nets)()
    rows = [graph.save(folder, y) for graph, y in pairs if only in graph.name]
    if what == "int8":
        rows = [quantized(row) for row in rows]
    with open(os.path.join(folder, what + ".json"), "w") as file:
        json.dump(rows, file, indent=1)
    return rows
