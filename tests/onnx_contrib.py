#!/usr/bin/env python3
"""Compares operators that the ONNX node tests lack with another runtime.

    pip install onnx onnxruntime numpy
    python tests/onnx_contrib.py target/release/tilewright

Operators of `com.microsoft`, and quantised ones with constant weights (which run on other code than
those of the node tests, whose weights are inputs). Floats are equal within 1e-5 of the largest
value, integers within one step. Exit status 0: all are.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def octets(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def number(value, dtype=np.float32):
    return np.array(value, dtype)


def case(op, operands, outputs=1, domain="com.microsoft", inputs=1, name=None, order=None, **attributes):
    """One node: its first `inputs` operands are inputs of the network, the others constants. `order` is that in
    which the node has them."""
    return dict(op=op, operands=operands, outputs=outputs, domain=domain, inputs=inputs,
                name=name or op, order=order or range(len(operands)), attributes=attributes)


def nbits(bits, with_zeros, n=5, k=48, block=16):
    blocks = k // block
    zeros = [octets(n * -(-blocks * bits // 8))] if with_zeros else []
    operands = [floats(3, k), octets(n, blocks, block * bits // 8), abs(floats(n * blocks)), *zeros]
    return case("MatMulNBits", operands, K=k, N=n, bits=bits, block_size=block,
                name=f"MatMulNBits {bits} {with_zeros}")


def cases():
    u8, i8 = np.uint8, np.int8
    s, z = number, lambda v, t=u8: number(v, t)
    x = lambda *shape: octets(*shape)
    w = lambda *shape: octets(*shape, dtype=i8)
    pool = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    yield case("BiasGelu", [floats(2, 8), floats(8)])
    yield case("FastGelu", [floats(2, 8), floats(8)])
    yield case("FastGelu", [floats(2, 8)], name="FastGelu without bias")
    yield case("Gelu", [floats(2, 8)])
    yield case("QuickGelu", [floats(2, 8)], alpha=1.5)
    yield case("FusedMatMul", [floats(2, 8, 3), floats(2, 5, 8)], transA=1, transB=1, alpha=0.5)
    yield case("FusedGemm", [floats(4, 3), floats(4, 5), floats(5)], transA=1, alpha=2.0,
               activation="LeakyRelu", activation_alpha=0.2)
    yield case("FusedConv", [floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4)], activation="Relu")
    yield case("FusedConv", [floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4), floats(1, 4, 6, 6)],
               activation="Relu", pads=[1, 1, 1, 1], name="FusedConv with a sum")
    yield case("FusedConv", [floats(1, 3, 6, 6), floats(4, 3, 3, 3)], activation="Clip",
               activation_params=[-0.5, 0.5], name="FusedConv with bounds")
    for bits in (4, 8):
        yield nbits(bits, False)
        yield nbits(bits, True)
    for op in ("QLinearAdd", "QLinearMul"):
        yield case(op, [x(2, 3, 4), s(0.02), z(120), x(2, 3, 4), s(0.03), z(130), s(0.05), z(128)])
    yield case("QLinearAdd", [w(2, 20, 4), s(0.02), z(-3, i8), w(20, 1), s(0.03), z(5, i8), s(0.05),
                              z(0, i8)], name="QLinearAdd of i8")
    yield case("QLinearSigmoid", [x(40), s(0.05), z(128), s(1 / 256), z(0)])
    yield case("QLinearLeakyRelu", [x(40), s(0.05), z(128), s(0.04), z(100)], alpha=0.1)
    for axis, opset in ((-1, 13), (1, 11)):
        yield case("QLinearSoftmax", [x(2, 5, 7), s(0.05), z(128), s(1 / 256), z(0)], axis=axis, opset=opset,
                   name=f"QLinearSoftmax of opset {opset}")
    for name, kind in (("u8", x), ("i8", w)):
        yield case("MaxPool", [kind(1, 20, 7, 7)], domain="", name=f"MaxPool of {name}", **pool)
    yield case("QLinearGlobalAveragePool", [x(1, 20, 5, 5), s(0.05), z(128), s(0.03), z(110)],
               channels_last=0)
    yield case("QLinearAveragePool", [x(1, 20, 7, 7), s(0.05), z(128), s(0.03), z(110)], **pool)
    yield case("QLinearConcat", [s(0.04), z(100), x(2, 3), s(0.05), z(128), x(2, 4), s(0.04), z(100)],
               axis=1, inputs=0)
    for kind, weights in (("u8", x), ("i8", w)):
        t = u8 if kind == "u8" else i8
        yield case("QLinearMatMul", [x(3, 70), s(0.02), z(120), weights(70, 33), s(0.01), z(3, t),
                                     s(0.4), z(128)], domain="", name=f"QLinearMatMul {kind}")
        yield case("QLinearConv", [x(1, 20, 9, 9), s(0.02), z(120), weights(18, 20, 3, 3), s(0.01),
                                   z(0, t), s(0.9), z(128), octets(18, dtype=np.int8).astype(np.int32)],
                   domain="", name=f"QLinearConv {kind}", pads=[1, 1, 1, 1])
        yield case("MatMulInteger", [x(2, 3, 70), weights(70, 33), z(7), z(3, t)], domain="",
                   name=f"MatMulInteger {kind}")
        yield case("ConvInteger", [x(1, 3, 9, 9), weights(5, 3, 3, 3), z(7), z(0, t)], domain="",
                   name=f"ConvInteger {kind}", strides=[2, 2])
    # A zero point that is known only in a run.
    for name, sizes, more in (("", ([1, 3, 9, 9], [5, 3, 3, 3]), dict(pads=[1, 0, 1, 2], strides=[2, 1])),
                                     (" of one dimension", ([2, 4, 11], [6, 2, 3]), dict(pads=[2, 1], group=2)),
                                     (" without padding", ([1, 3, 8, 8], [4, 3, 4, 4]), dict(strides=[4, 4]))):
        a, b = sizes
        yield case("ConvInteger", [x(*a), z(7), w(*b)], domain="", inputs=2, order=[0, 2, 1],
                   name=f"ConvInteger, free zero point{name}", **more)
    yield case("MatMulInteger", [x(2, 3, 70), z(9), w(70, 33)], domain="", inputs=2, order=[0, 2, 1],
               name="MatMulInteger, free zero point")
    scales = abs(floats(18)) / 50
    yield case("QLinearConv", [x(1, 20, 9, 9), s(0.02), z(120), w(18, 20, 3, 3), scales,
                               np.zeros(18, i8), s(0.9), z(128)], domain="",
               name="QLinearConv per channel")
    yield case("QLinearConv", [x(1, 32, 9, 9), s(0.02), z(120), w(32, 1, 3, 3), s(0.01), z(0, i8),
                               s(0.2), z(128)], domain="", group=32, pads=[1, 1, 1, 1],
               name="QLinearConv depthwise")
    bias = octets(33, dtype=i8).astype(np.int32)
    yield case("QGemm", [x(3, 70), s(0.02), z(120), w(33, 70), abs(floats(33)) / 50, np.zeros(33, i8), bias,
                         s(0.4), z(128)], transB=1, alpha=0.5)
    yield case("QGemm", [x(3, 70), s(0.02), z(120), x(70, 33), s(0.01), z(3), bias, s(0.4), z(128)], alpha=1.0,
               name="QGemm u8")
    yield case("QGemm", [x(70, 3), s(0.02), z(120), w(70, 33), s(0.01), z(0, i8)], transA=1, alpha=1.0,
               name="QGemm to floats")
    yield case("QGemm", [x(3, 70), s(0.02), z(120), w(33, 70), s(0.01), z(0, i8), bias, s(0.4), z(128)], inputs=4,
               transB=1, alpha=2.0, name="QGemm of two inputs")
    yield case("MatMulIntegerToFloat", [x(3, 70), w(70, 33), s(0.02), abs(floats(33)), z(120),
                                        np.zeros(33, i8), floats(33)])
    yield case("DynamicQuantizeMatMul", [floats(3, 70), w(70, 33), s(0.02), z(0, i8), floats(33)])
    yield case("DynamicQuantizeMatMul", [floats(3, 70), x(70, 33), abs(floats(33)) / 50,
                                         octets(33)], name="DynamicQuantizeMatMul per column")
    yield case("SkipLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8),
                                          floats(8)], inputs=2, epsilon=1e-5)
    yield case("SkipLayerNormalization", [floats(2, 3, 8), floats(3, 8), floats(8)], inputs=2,
               outputs=4, name="SkipLayerNormalization with its sum")
    yield case("SkipSimplifiedLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8)],
               inputs=2, outputs=4)


def model(given):
    """A model of one node; outputs that a runtime may leave out are left out."""
    names = [f"x{i}" for i in range(len(given["operands"]))]
    kinds = {a.dtype: helper.np_dtype_to_tensor_dtype(a.dtype) for a in given["operands"]}
    info = [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape)
            for n, a in zip(names, given["operands"])]
    outputs = ["y"] + [""] * (given["outputs"] - 2) + ["z"] * (given["outputs"] > 1)
    node = helper.make_node(given["op"], [names[i] for i in given["order"]], outputs, domain=given["domain"],
                            **given["attributes"])
    constants = [numpy_helper.from_array(a, n) for n, a in zip(names, given["operands"])]
    count = given["inputs"]
    results = [helper.make_empty_tensor_value_info(n) for n in outputs if n]
    graph = helper.make_graph([node], "case", info[:count], results, constants[count:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(given, program, root):
    """What is wrong; None if nothing is."""
    m, count = model(given), given["inputs"]
    feeds = {f"x{i}": a for i, a in enumerate(given["operands"][:count])}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(m.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    want = session.run(None, feeds)
    for result, value in zip(m.graph.output, want):
        result.CopyFrom(helper.make_tensor_value_info(
            result.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    data = root / "cases" / "0"
    data.mkdir(parents=True)
    (root / "model.onnx").write_bytes(m.SerializeToString())
    for i, a in enumerate(feeds.values()):
        np.save(data / f"input_{i}.npy", a)
    done = subprocess.run([program, "batch", root / "model.onnx", "--cases", root / "cases",
                           "--format", "json", "--threads", "1"], capture_output=True, check=False)
    if done.returncode != 0:
        text = json.loads(done.stdout)["cases"][0]["message"] if done.stdout else done.stderr.decode()
        return text.strip()
    for i, value in enumerate(want):
        have = np.load(data / f"output_{i}.npy")
        if (have.dtype, have.shape) != (value.dtype, value.shape):
            return f"output {i} is {have.dtype}{have.shape}, not {value.dtype}{value.shape}"
        apart = np.abs(have.astype(np.float64) - value.astype(np.float64)).max(initial=0)
        exact = have.dtype.itemsize > 1 and have.dtype.kind in "iu"
        allowed = 1e-5 * np.abs(value).max() if have.dtype.kind == "f" else 0 if exact else 1
        if not apart <= allowed:
            return f"output {i} is up to {apart} apart, of at most {allowed}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the program tilewright")
    program, bad, total = pathlib.Path(parser.parse_args().program).resolve(), 0, 0
    for given in cases():
        with tempfile.TemporaryDirectory() as folder:
            problem = run(given, program, pathlib.Path(folder))
        total, bad = total + 1, bad + (problem is not None)
        print(f"{given['name']:40} {problem or 'ok'}")
    print(f"operators beside onnxruntime {onnxruntime.__version__}: {total - bad} of {total} agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
