"""ONNX files of one operator each, or of a few that belong together, at sizes that networks have."""

import numpy as np

from models import Graph

# A feature map, tokens, and scores of attention.
MAP, TOKENS, SCORES = (1, 64, 56, 56), (1, 196, 384), (1, 8, 196, 196)

UNARY = ["Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Atan", "Tanh", "Sigmoid", "Erf", "Floor",
         "Ceil", "Round", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid", "HardSwish",
         "Mish", "ThresholdedRelu", "Sign"]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Less", "Equal"]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"]
AXES = {"last": [3], "map": [2, 3], "channels": [1], "all": [0, 1, 2, 3]}
# Windows of convolutions that `layers` of models.py does not have: channels, height and width, channels of the result, what else.
WINDOWS = {
    "conv1x7": ((64, 28, 28), 64, dict(kernel=(1, 7))),
    "conv7x1": ((64, 28, 28), 64, dict(kernel=(7, 1))),
    "conv7x7s2": ((3, 224, 224), 64, dict(kernel=7, stride=2)),
    "patches4": ((3, 224, 224), 96, dict(kernel=4, stride=4, pads=[0] * 4)),
    "patches16": ((3, 224, 224), 192, dict(kernel=16, stride=16, pads=[0] * 4)),
    "groups32": ((256, 28, 28), 256, dict(groups=32)),
    "depthwise5s2": ((64, 56, 56), 64, dict(kernel=5, stride=2, groups=64)),
    "depthwise7": ((96, 56, 56), 96, dict(kernel=7, groups=96)),
    "depthwise31": ((64, 28, 28), 64, dict(kernel=31, groups=64)),
}


def maps(shape):
    return shape[:2] + (shape[2] * 2, shape[3] * 2)


def silu(g):
    return g.activate("x", "silu")


def quick_gelu(g):
    shape = g.shape["x"]
    gate = g.op("Sigmoid", [g.op("Mul", ["x", g.constant(1.702)], shape)], shape)
    return g.op("Mul", ["x", gate], shape)


def norm(g, square_of):
    """Layer or RMS norm of its parts."""
    shape = g.shape["x"]
    mean = shape[:-1] + (1,)
    x = "x"
    if square_of == "centred":
        x = g.op("Sub", ["x", g.op("ReduceMean", ["x", g.integers([-1])], mean)], shape)
    square = g.op("Mul", [x, x], shape)
    variance = g.op("ReduceMean", [square, g.integers([-1])], mean)
    root = g.op("Sqrt", [g.op("Add", [variance, g.constant(1e-5)], mean)], mean)
    y = g.op("Div", [x, root], shape)
    return g.op("Mul", [y, g.weights(shape[-1:], 1)], shape)


def integers(kind):
    """Integers of 64 bits and the same with the other sign."""
    def build(g):
        shape = g.shape["x"]
        x = g.op("Cast", ["x"], shape, to=7)
        return g.op("Cast", [g.op(kind, [x, g.op("Neg", [x], shape)], shape)], shape, to=1)
    return build


def attention(g):
    """Heads of queries, keys and values that lie behind each other."""
    heads, rows, size = g.shape["x"][1] // 3, *g.shape["x"][2:]
    shape = (1, heads, rows, size)
    part = [g.op("Slice", ["x", g.integers([i * heads]), g.integers([(i + 1) * heads]), g.integers([1])], shape)
            for i in range(3)]
    keys = g.op("Transpose", [part[1]], (1, heads, size, rows), perm=[0, 1, 3, 2])
    scores = g.op("MatMul", [part[0], keys], (1, heads, rows, rows))
    scores = g.op("Mul", [scores, g.constant(size ** -0.5)], (1, heads, rows, rows))
    weights = g.op("Softmax", [scores], (1, heads, rows, rows), axis=-1)
    return g.op("MatMul", [weights, part[2]], shape)


def pad(mode):
    return lambda g: g.op("Pad", ["x", g.integers([0, 0, 3, 3, 0, 0, 3, 3])], (1, 64, 62, 62), mode=mode)


def resize(mode, **attributes):
    return lambda g: g.op("Resize", ["x", "", g.constant([1, 1, 2, 2])], maps(g.shape["x"]), mode=mode, **attributes)


def product(columns):
    return lambda g: g.op("MatMul", ["x", g.weights((g.shape["x"][-1], columns), 1)],
                          g.shape["x"][:-1] + (columns,))


def reduced(shape, axes):
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


def cases():
    """Names, shapes of the input, and what is done with it."""
    for op in UNARY:
        yield op.lower(), MAP, lambda g, op=op: g.op(op, ["x"], MAP)
    for op in BINARY:
        yield f"{op.lower()}_channels", MAP, lambda g, op=op: g.op(op, ["x", g.weights((64, 1, 1), 1)], MAP)
        yield f"{op.lower()}_map", MAP, lambda g, op=op: g.op(op, ["x", g.weights(MAP, 1)], MAP)
    for op in REDUCTIONS:
        for name, axes in AXES.items():
            yield f"reduce_{op.lower()}_{name}", MAP, lambda g, op=op, axes=axes: g.op(
                "Reduce" + op, ["x", g.integers(axes)], reduced(MAP, axes))
    yield "silu", MAP, silu
    yield "quick_gelu", MAP, quick_gelu
    yield "layer_norm", TOKENS, lambda g: norm(g, "centred")
    yield "layer_norm_short", (1, 3136, 32), lambda g: norm(g, "centred")
    yield "rms_norm", TOKENS, lambda g: norm(g, "x")
    yield "lrn", MAP, lambda g: g.op("LRN", ["x"], MAP, size=5)
    for name, shape, axis in (("scores", SCORES, -1), ("short", (8400, 4, 16), -1), ("channels", (1, 21, 128, 128), 1),
                              ("classes", (1, 1000), -1)):
        yield f"softmax_{name}", shape, lambda g, axis=axis: g.op("Softmax", ["x"], g.shape["x"], axis=axis)
    for heads, rows, size in ((3, 197, 64), (4, 197, 32), (48, 49, 32), (2, 730, 32), (6, 1214, 64)):
        yield f"attention_{heads}x{rows}x{size}", (1, 3 * heads, rows, size), attention
    for rows, k, columns in ((197, 192, 768), (197, 768, 192), (784, 64, 256), (128, 384, 1536), (1, 1280, 1000)):
        yield f"product_{rows}x{k}x{columns}", (1, rows, k), product(columns)
    for name, ((c, h, w), channels, rest) in WINDOWS.items():
        yield name, (1, c, h, w), lambda g, k=channels, rest=rest: g.conv("x", k, activation=None, **rest)
    for mode in ("constant", "reflect", "edge"):
        yield f"pad_{mode}", MAP, pad(mode)
    yield "resize_nearest", (1, 64, 28, 28), resize("nearest", nearest_mode="floor",
                                                     coordinate_transformation_mode="asymmetric")
    yield "resize_linear", (1, 64, 28, 28), resize("linear")
    yield "resize_cubic", (1, 64, 28, 28), resize("cubic")
    yield "to_pixels", MAP, lambda g: g.op("Transpose", ["x"], (1, 56, 56, 64), perm=[0, 2, 3, 1])
    yield "heads", (1, 196, 12, 64), lambda g: g.op("Transpose", ["x"], (1, 12, 196, 64), perm=[0, 2, 1, 3])
    yield "depth_to_space", MAP, lambda g: g.op("DepthToSpace", ["x"], (1, 16, 112, 112), blocksize=2)
    yield "space_to_depth", MAP, lambda g: g.op("SpaceToDepth", ["x"], (1, 256, 28, 28), blocksize=2)
    for kind in ("Less", "Equal", "Max"):
        yield f"{kind.lower()}_integers", SCORES, integers(kind)
    yield "cumsum", (256, 4096), lambda g: g.op("CumSum", ["x", g.integers(0)], (256, 4096))


def operators():
    """Each and its output."""
    for name, shape, build in cases():
        graph = Graph("op_" + name, shape)
        graph.opset = 18
        y = build(graph)
        if graph.nodes[-1].op_type in ("Less", "Equal"):
            y = graph.op("Cast", [y], graph.shape[y], to=1)
        yield graph, y
