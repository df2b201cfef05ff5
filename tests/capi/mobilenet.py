"""Writes MobileNetV1 (1.0, 224 x 224, batch norm folded) with random weights: mobilenet.py FILE.onnx

For measuring how long a program takes from loading it to its first result: `start FILE.onnx`, which
`cargo xtask capi --sizes` builds. Howard et al., MobileNets, 2017, table 1.
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

nodes, weights = [], []
rng = np.random.default_rng(1)


def constant(name, shape, scale):
    value = (rng.standard_normal(shape) * scale).astype(np.float32)
    weights.append(numpy_helper.from_array(value, name))
    return name


def conv(x, c_in, c_out, kernel, stride, groups):
    i = len(nodes)
    scale = (2.0 / (c_in // groups * kernel * kernel)) ** 0.5
    w = constant(f"w{i}", (c_out, c_in // groups, kernel, kernel), scale)
    b = constant(f"b{i}", (c_out,), 0.1)
    # As TensorFlow pads: where the stride is 2, at the end only.
    pads = [0] * 4 if kernel == 1 else [1] * 4 if stride == 1 else [0, 0, 1, 1]
    nodes.append(helper.make_node("Conv", [x, w, b], [f"c{i}"], kernel_shape=[kernel] * 2,
                                  strides=[stride] * 2, pads=pads, group=groups))
    nodes.append(helper.make_node("Clip", [f"c{i}", "zero", "six"], [f"r{i}"]))
    return f"r{i}"


weights.append(numpy_helper.from_array(np.float32(0), "zero"))
weights.append(numpy_helper.from_array(np.float32(6), "six"))
x, channels = conv("x", 3, 32, 3, 2, 1), 32
for stride, c_out in [(1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)] + 5 * [(1, 512)] + \
        [(2, 1024), (1, 1024)]:
    x = conv(x, channels, channels, 3, stride, channels)
    x, channels = conv(x, channels, c_out, 1, 1, 1), c_out
nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"]))
nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
constant("classes", (1024, 1000), 0.03)
constant("bias", (1000,), 0.1)
nodes.append(helper.make_node("Gemm", ["flat", "classes", "bias"], ["logits"]))
nodes.append(helper.make_node("Softmax", ["logits"], ["y"]))
graph = helper.make_graph(
    nodes, "mobilenet_v1",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1000])], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
onnx.checker.check_model(model)
onnx.save(model, sys.argv[1])
