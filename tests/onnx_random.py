#!/usr/bin/env python3
"""Networks drawn by chance, of the operators and patterns that exporters write, against another runtime.

    pip install -r tests/requirements.txt
    python3 tests/onnx_random.py target/release/tilewright                 the first 300 of either kind
    python3 tests/onnx_random.py target/release/tilewright --first 300 --count 5000 --threads 2

Each number names a network: pictures, rows or vectors that go through convolutions with what usually follows them,
pools, norms, attention, changes of shape, and whatever else has operands that fit. Every second one is computed with
bytes: what is between its operators is quantised and dequantised, and so are weights. The other runtime computes what
is expected, with none of its rewrites, as it goes along. Numbers may differ by 1e-4 of the largest, and by ten times
what an input that differs by 1e-6 of itself would change; of bytes a few may be one off, which can grow, in few elements far.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

SHAPES = [(1, 3, 16, 16), (1, 8, 14, 14), (2, 4, 9, 11), (1, 16, 28, 28), (1, 32, 7, 7), (1, 12, 1, 40), (1, 10, 64),
          (2, 7, 32), (1, 24, 13, 13), (1, 20, 20, 16), (3, 16), (1, 64, 5, 5), (1, 33, 12, 10), (1, 48, 8, 8)]
# Only those that have no steps: next to one, what is rounded otherwise is something else.
FUNCTIONS = ["Relu", "Relu", "Relu", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Selu",
             "Softplus", "Softsign", "Mish", "Erf", "Abs", "Neg", "Exp", "Gelu", "Clip", "PRelu"]


def computed(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


class Network:
    def __init__(self, number):
        self.draw, self.noise = random.Random(number), np.random.default_rng(number)
        self.nodes, self.constants, self.values, self.names = [], {}, {}, 0
        self.opset = self.draw.choice([15, 17, 18, 20, 21])
        for _ in range(self.draw.choice([1, 1, 2])):
            self.values[self.name()] = self.noise.standard_normal(self.draw.choice(SHAPES)).astype(np.float32)
        self.inputs = list(self.values)

    def name(self):
        self.names += 1
        return f"t{self.names}"

    def constant(self, value, dtype=np.float32):
        name = self.name()
        self.constants[name] = np.array(value, dtype, order="C")
        return name

    def ints(self, *values):
        return self.constant(values, np.int64)

    def weights(self, *shape):
        scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
        return self.constant(self.noise.standard_normal(shape) / scale)

    def vector(self, *shape):
        return self.constant(self.noise.standard_normal(shape) / 2)

    def model(self, nodes, inputs, outputs):
        used = {i for node in nodes for i in node.input}
        info = lambda name, a: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in used]
        graph = helper.make_graph(nodes, "drawn", [info(n, self.values[n]) for n in inputs],
                                  [helper.make_empty_tensor_value_info(o) for o in outputs], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def add(self, op, operands, outputs=1, **attributes):
        """The names of its results, or `None` where an operand is missing or does not fit, or a result is of no use."""
        if None in operands:
            return None
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, operands, names, **attributes)
        feeds = {i: self.values[i] for i in operands if i in self.values}
        try:
            results = computed(self.model([node], feeds, names), feeds)
        except Exception:  # Whatever the runtime has to say about operands that do not fit.
            return None
        for y in results:
            real = y.dtype == np.float32
            if not 0 < y.size <= 400_000 or y.ndim > 6 or real and not np.abs(y).max(initial=0) < 1e4:
                return None
        self.nodes.append(node)
        self.values.update(zip(names, results))
        return names[0] if outputs == 1 else names

    def any(self, fits=lambda a: True):
        """A tensor that fits, more often a late one; `None` if none does."""
        found = [n for n, a in self.values.items() if a.dtype == np.float32 and fits(a)]
        return self.draw.choice(found[-4:] if self.draw.random() < 0.7 else found) if found else None

    def shape(self, name):
        return self.values[name].shape

    def picture(self):
        return self.any(lambda a: a.ndim == 4)

    def step(self):
        steps = [self.conv] * 6 + [self.function] * 4 + [self.pair] * 5 + [self.product] * 3 + [self.moved] * 5
        x = self.draw.choice(steps + [self.pool, self.pool, self.transposed, self.residual, self.excited, self.shuffled,
                                      self.gated, self.normed, self.attention, self.reduced, self.joined, self.parts,
                                      self.padded, self.resized, self.chosen, self.softmax, self.selected])()
        if x and self.draw.random() < 0.3:
            self.function(x)

    def function(self, x=None):
        op, x = self.draw.choice(FUNCTIONS), x or self.any()
        more = {"alpha": self.draw.choice([0.01, 0.1, 0.2])} if op in ("LeakyRelu", "Elu") else {}
        if op == "Gelu":
            more["approximate"] = self.draw.choice(["none", "tanh"])
        rank = len(self.shape(x))
        slopes = lambda: self.vector(*self.draw.choice([[1], [self.shape(x)[1]] + [1] * (rank - 2)]))
        limits = lambda: [self.constant(v) for v in self.draw.choice([[0.0, 6.0], [-1.0, 1.0], [-0.3]])]
        operands = limits() if op == "Clip" else [slopes()] if op == "PRelu" and rank > 1 else []
        return self.add(op, [x, *operands], **more)

    def conv(self):
        x = self.any(lambda a: a.ndim in (3, 4) and a.shape[1] <= 200)
        if not x:
            return None
        c, rank = self.shape(x)[1], len(self.shape(x)) - 2
        window = [self.draw.choice([1, 1, 2, 3, 3, 4, 5, 7]) for _ in range(rank)]
        if self.draw.random() < 0.7:
            window = window[:1] * rank
        groups = self.draw.choice([g for g in (1, 1, 1, 2, 4, 8, c) if c % g == 0])
        k = groups * (self.draw.choice([1, 1, 2]) if groups == c else self.draw.choice([1, 2, 4, 8, 5, 12]))
        dilation = self.draw.choice([1, 1, 1, 1, 2])
        pads = [(w - 1) * dilation // 2 for w in window] * 2
        if self.draw.random() < 0.3:
            pads = [self.draw.randint(0, min(2, w - 1)) for w in window * 2]
        bias = [self.vector(k)] if self.draw.random() < 0.6 else []
        y = self.add("Conv", [x, self.weights(k, c // groups, *window), *bias], group=groups, pads=pads,
                     strides=[self.draw.choice([1, 1, 1, 2, 3])] * rank, dilations=[dilation] * rank)
        if y and self.draw.random() < 0.25:
            scales = [self.vector(k) for _ in range(3)] + [self.constant(self.noise.random(k) + 0.5)]
            y = self.add("BatchNormalization", [y, *scales])
        if y and self.draw.random() < 0.5:
            y = self.function(y)
        return self.pair(y) if y and self.draw.random() < 0.2 else y

    def transposed(self):
        x = self.any(lambda a: a.ndim == 4 and a.shape[2] < 40)
        if not x:
            return None
        c, k, stride = self.shape(x)[1], self.draw.choice([1, 2, 4, 8]), self.draw.choice([1, 2, 2, 3])
        window, groups = self.draw.choice([2, 3, 4, 5]), self.draw.choice([g for g in (1, 1, 2, c) if c % g == 0])
        bias = [self.vector(k * groups)] if self.draw.random() < 0.6 else []
        return self.add("ConvTranspose", [x, self.weights(c, k, window, window), *bias], group=groups,
                        strides=[stride] * 2, pads=[self.draw.randint(0, min(2, window - 1))] * 4,
                        output_padding=[self.draw.randint(0, stride - 1)] * 2)

    def pair(self, x=None):
        x = x or self.any()
        shape, op = self.shape(x), self.draw.choice(["Add", "Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Div", "Pow"])
        if op == "Pow":
            return self.add(op, [self.add("Abs", [x]), self.constant(self.draw.choice([2.0, 3.0, 0.5]))])
        extents = [d if self.draw.random() < 0.6 else 1 for d in shape]
        if len(shape) > 1 and self.draw.random() < 0.4:
            extents = [1, shape[1]] + [1] * (len(shape) - 2)
        while extents and extents[0] == 1 and self.draw.random() < 0.5:
            extents = extents[1:]
        other = self.vector(*extents)
        if op == "Div":
            return self.add(op, [x, self.constant(np.abs(self.constants[other]) + 0.5)])
        if self.draw.random() < 0.5:
            other = self.any(lambda a: np.prod(np.maximum((1,) * len(shape), shape)) >= a.size and a.ndim <= len(shape)
                             and all(d in (1, s) for d, s in zip(a.shape[::-1], shape[::-1]))) or other
        return self.add(op, [x, other] if self.draw.random() < 0.7 else [other, x])

    def residual(self):
        x = self.any(lambda a: a.ndim == 4 and a.shape[1] <= 128)
        if not x:
            return None
        c = self.shape(x)[1]
        y = self.add("Conv", [x, self.weights(c, c, 3, 3), self.vector(c)], pads=[1] * 4)
        y = self.function(y) if y and self.draw.random() < 0.4 else y
        return self.add("Add", [y, x] if self.draw.random() < 0.5 else [x, y])

    def means(self, x, axes):
        if self.opset >= 18:
            return self.add("ReduceMean", [x, self.ints(*axes)])
        return self.add("ReduceMean", [x], axes=axes)

    def excited(self):
        """Channels weighed by what they are on average."""
        x = self.picture()
        if not x:
            return None
        c = self.shape(x)[1]
        few = max(1, c // 2)
        y = self.add("GlobalAveragePool", [x]) if self.draw.random() < 0.6 else self.means(x, [2, 3])
        y = self.add("Relu", [self.add("Conv", [y, self.weights(few, c, 1, 1), self.vector(few)])])
        y = self.add("Conv", [y, self.weights(c, few, 1, 1), self.vector(c)])
        return self.add("Mul", [x, self.add(self.draw.choice(["Sigmoid", "HardSigmoid"]), [y])])

    def shuffled(self):
        x = self.picture()
        if not x:
            return None
        (n, c, h, w), groups = self.shape(x), self.draw.choice([2, 3, 4])
        y = self.add("Reshape", [x, self.ints(n, groups, c // groups, h, w)])
        return self.add("Reshape", [self.add("Transpose", [y], perm=[0, 2, 1, 3, 4]), self.ints(n, c, h, w)])

    def gated(self):
        """SiLU and its like, and GELU, of their parts."""
        x, kind = self.any(), self.draw.choice(["Sigmoid", "HardSigmoid", "Tanh", "Erf"])
        if kind != "Erf":
            return self.add("Mul", [x, self.add(kind, [x])])
        y = self.add("Add", [self.add("Erf", [self.add("Div", [x, self.constant(2 ** 0.5)])]), self.constant(1.0)])
        if self.draw.random() < 0.5:
            return self.add("Mul", [self.add("Mul", [x, y]), self.constant(0.5)])
        return self.add("Mul", [self.add("Mul", [x, self.constant(0.5)]), y])

    def normed(self):
        kind = self.draw.choice(["rows", "rows", "parts", "InstanceNormalization", "LRN", "LpNormalization"])
        if kind in ("rows", "parts"):
            x = self.any(lambda a: a.ndim > 1 and a.shape[-1] > 3)
            if not x:
                return None
            d = self.shape(x)[-1]
            if kind == "rows":
                return self.add("LayerNormalization", [x, self.vector(d), self.vector(d)])
            y = self.add("Sub", [x, self.means(x, [-1])])
            square = self.add("Pow", [y, self.constant(2.0)])
            spread = self.add("Add", [square and self.means(square, [-1]), self.constant(1e-3)])
            y = self.add("Div", [y, self.add("Sqrt", [spread])])
            return self.add("Add", [self.add("Mul", [y, self.vector(d)]), self.vector(d)])
        x = self.any(lambda a: a.ndim == 4 and a.shape[2] * a.shape[3] > 8 and a.std() > 1e-2)
        if not x:
            return None
        if kind == "InstanceNormalization":
            return self.add(kind, [x, self.vector(self.shape(x)[1]), self.vector(self.shape(x)[1])], epsilon=1e-2)
        return self.add(kind, [x], **({"size": 3} if kind == "LRN" else {"axis": 1}))

    def pool(self):
        x, op = self.picture(), self.draw.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
        if not x or op[0] == "G":
            return self.add(op, [x])
        window = self.draw.choice([[2, 2], [3, 3], [2, 3], [5, 5], [1, 3]])
        pads = [self.draw.randint(0, min(1, w - 1)) for w in window] * 2
        if any(d + 2 * p < w for d, p, w in zip(self.shape(x)[2:], pads, window)):
            return None
        more = {"count_include_pad": self.draw.choice([0, 1])} if op == "AveragePool" else {}
        return self.add(op, [x], kernel_shape=window, pads=pads, strides=[self.draw.choice([1, 2, 2, 3])] * 2,
                        ceil_mode=self.draw.choice([0, 0, 1]), **more)

    def reduced(self):
        x = self.any(lambda a: a.ndim > 1)
        rank = len(self.shape(x)) if x else 0
        axes = sorted(self.draw.sample(range(rank), self.draw.randint(1, rank))) if rank else []
        op = self.draw.choice(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"])
        keep = {"keepdims": self.draw.choice([0, 1])}
        return self.add(op, [x, self.ints(*axes)], **keep) if self.opset >= 18 else self.add(op, [x], axes=axes, **keep)

    def joined(self):
        x = self.any(lambda a: a.ndim > 0)
        axis = self.draw.randrange(len(self.shape(x)))
        rest = lambda shape: (len(shape), shape[:axis], shape[axis + 1:])
        others = [self.any(lambda a: rest(a.shape) == rest(self.shape(x))) for _ in range(self.draw.choice([1, 1, 2]))]
        return self.add("Concat", [x, *others], axis=axis)

    def parts(self):
        x = self.any(lambda a: a.ndim > 0 and max(a.shape) > 1)
        if not x:
            return None
        axis = self.draw.choice([i for i, d in enumerate(self.shape(x)) if d > 1])
        d = self.shape(x)[axis]
        if self.draw.random() < 0.5:
            first = d // 2 if d % 2 == 0 else self.draw.randint(1, d - 1)
            pieces = self.add("Split", [x, self.ints(first, d - first)], 2, axis=axis)
            return self.draw.choice(pieces) if pieces else None
        begin, end, step = self.draw.choice([(1, 2 ** 31, 1), (0, -1, 1), (0, 2 ** 31, 2), (-1, -(2 ** 31), -1)])
        return self.add("Slice", [x, *map(self.ints, (begin, end, axis, step))])

    def padded(self):
        x, mode = self.any(lambda a: a.ndim > 0), self.draw.choice(["constant", "constant", "reflect", "edge"])
        pads = [self.draw.randint(0, 2) if self.draw.random() < 0.5 else 0 for _ in 2 * self.shape(x)]
        y = self.add("Pad", [x, self.ints(*pads)], mode=mode)
        if y and len(pads) == 8 and self.shape(y)[1] <= 128:
            return self.add("Conv", [y, self.weights(8, self.shape(y)[1], 3, 3)])
        return y

    def resized(self):
        x = self.picture()
        if not x:
            return None
        mode, at = self.draw.choice(["linear", "linear", "cubic", "nearest"]), self.draw.choice(["half_pixel", "align_corners"])
        if mode == "nearest":
            return self.add("Resize", [x, "", self.constant([1.0, 1.0, 2.0, 2.0])], mode=mode, nearest_mode="floor",
                            coordinate_transformation_mode="asymmetric")
        sizes = self.ints(*self.shape(x)[:2], self.draw.randint(1, 30), self.draw.randint(1, 30))
        return self.add("Resize", [x, "", "", sizes], mode=mode, coordinate_transformation_mode=at)

    def moved(self):
        x, kind = self.any(lambda a: a.ndim > 1), self.draw.choice(["perm", "perm", "shape", "flat", "depth", "axis"])
        if not x:
            return None
        shape = list(self.shape(x))
        if kind == "perm":
            perm = self.draw.sample(range(len(shape)), len(shape))
            usual = [[0, 2, 3, 1], [0, 3, 1, 2], [0, 2, 1, 3], [0, 1, 3, 2]]
            return self.add("Transpose", [x], perm=self.draw.choice(usual + [perm]) if len(shape) == 4 else perm)
        if kind == "flat":
            rows = self.ints(0, 0, -1) if len(shape) == 4 and self.draw.random() < 0.6 else self.ints(shape[0], -1)
            return self.add("Reshape", [x, rows])
        if kind == "depth":
            op = self.draw.choice(["DepthToSpace", "SpaceToDepth"])
            return self.add(op, [x], blocksize=self.draw.choice([2, 2, 3]))
        if kind == "axis":
            return self.add("Unsqueeze", [x, self.ints(self.draw.randint(0, len(shape)))])
        extents, left = [], int(np.prod(shape))
        for _ in range(self.draw.randint(1, 3)):
            extents.append(self.draw.choice([d for d in range(1, min(left, 64) + 1) if left % d == 0]))
            left //= extents[-1]
        return self.add("Reshape", [x, self.ints(*extents, -1)])

    def chosen(self):
        x = self.any(lambda a: a.ndim > 0)
        axis = self.draw.randrange(len(self.shape(x)))
        d = self.shape(x)[axis]
        index = self.noise.integers(-d, d, self.draw.choice([(), (1,), (3,), (2, 2)]))
        return self.add("Gather", [x, self.constant(index, np.int64)], axis=axis)

    def softmax(self):
        x = self.any(lambda a: a.ndim > 0)
        return self.add(self.draw.choice(["Softmax", "Softmax", "LogSoftmax"]), [x],
                        axis=self.draw.randrange(-len(self.shape(x)), len(self.shape(x))))

    def selected(self):
        x = self.draw.choice(self.inputs)
        positive = self.add("Greater", [x, self.constant(0.0)])
        return self.add("Where", [positive, x, self.constant(self.draw.choice([0.0, -1.0]))])

    def product(self):
        x = self.any(lambda a: a.ndim > 1 and a.shape[-1] <= 2000)
        if not x:
            return None
        k, n, rank = self.shape(x)[-1], self.draw.choice([1, 3, 8, 16, 33, 64]), len(self.shape(x))
        if rank == 2 and self.draw.random() < 0.5:
            turned = self.draw.choice([0, 1])
            w = self.weights(n, k) if turned else self.constant(self.constants[self.weights(n, k)].T)
            return self.add("Gemm", [x, w, self.vector(n)], transB=turned, alpha=self.draw.choice([1.0, 0.5]))
        y = self.add("MatMul", [x, self.constant(self.constants[self.weights(n, k)].T)])
        return self.add("Add", [y, self.vector(n)]) if self.draw.random() < 0.6 else y

    def attention(self):
        x = self.any(lambda a: a.ndim == 3 and a.shape[2] % 4 == 0 and a.shape[2] <= 256 and a.shape[1] <= 200)
        if not x:
            return None
        (n, rows, d), heads = self.shape(x), self.draw.choice([1, 2, 4])
        def head(perm):
            y = self.add("Add", [self.add("MatMul", [x, self.weights(d, d)]), self.vector(d)])
            return self.add("Transpose", [self.add("Reshape", [y, self.ints(0, -1, heads, d // heads)])], perm=perm)
        scores = self.add("MatMul", [head([0, 2, 1, 3]), head([0, 2, 3, 1])])
        scores = self.add("Mul", [scores, self.constant((d // heads) ** -0.5)])
        if self.draw.random() < 0.5:
            scores = self.add("Add", [scores, self.constant(np.where(self.noise.random((n, 1, 1, rows)) < 0.2, -1e4, 0))])
        y = self.add("MatMul", [self.add("Softmax", [scores], axis=-1), head([0, 2, 1, 3])])
        y = self.add("Reshape", [self.add("Transpose", [y], perm=[0, 2, 1, 3]), self.ints(n, rows, d)])
        return self.add("Add", [self.add("MatMul", [y, self.weights(d, d)]), x])

    def quantised(self):
        """All nodes, with bytes between those that give floats; which of the names are bytes as numbers again."""
        nodes, named, signed = [], {}, self.draw.random() < 0.3
        def through(name):
            low, high = min(0.0, self.values[name].min()), max(0.0, self.values[name].max())
            span = 2 * max(-low, high) if signed else high - low
            scale = self.constant(max(span / 254, 1e-6))
            zero = np.int8(0) if signed else np.uint8(min(255, round(-low / float(self.constants[scale]))))
            zero, q, named[name] = self.constant(zero, zero.dtype), self.name(), self.name()
            nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [q]))
            nodes.append(helper.make_node("DequantizeLinear", [q, scale, zero], [named[name]]))
        def weights(name, axis):
            w = self.constants[name]
            largest = np.abs(w).max(axis=tuple(i for i in range(w.ndim) if i != axis), keepdims=True)
            scale = np.maximum(largest / 127, 1e-8).astype(np.float32)
            y, zeros = self.name(), np.zeros(w.shape[axis])
            operands = [self.constant(np.round(w / scale), np.int8), self.constant(scale.reshape(-1)),
                        self.constant(zeros, np.int8)]
            nodes.append(helper.make_node("DequantizeLinear", operands, [y], axis=axis))
            return y
        for name in self.inputs:
            through(name)
        for node in self.nodes:
            operands = [named.get(i, i) for i in node.input]
            if node.op_type in ("Conv", "MatMul", "Gemm") and operands[1] in self.constants:
                turned = any(a.name == "transB" and a.i for a in node.attribute)
                axis = 0 if node.op_type == "Conv" or turned else self.constants[operands[1]].ndim - 1
                operands[1] = weights(operands[1], axis)
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(operands)
            nodes.append(copy)
            for y in node.output:
                if self.values[y].dtype == np.float32:
                    through(y)
        return nodes, named

    def close(self, y, expected, model, place):
        """Whether a result is what it should be, by the measure of the head of this file."""
        largest = max(1e-3, np.abs(expected).max())
        if np.all(np.abs(y - expected) <= 1e-4 * largest):
            return True
        moved = {n: self.values[n] * np.float32(1 + 1e-6) for n in self.inputs}
        change = np.abs(computed(model, moved)[place] - expected)
        return np.all(np.abs(y - expected) <= 1e-4 * largest + 10 * change.max())


def tried(number, program, threads, folder):
    """What is wrong with a network, or nothing; the number of its nodes."""
    net = Network(number)
    for _ in range(net.draw.randint(2, 14)):
        net.step()
    if not net.nodes:
        return "", 0
    nodes, named = net.quantised() if number % 2 else (net.nodes, {})
    used = {i for node in net.nodes for i in node.input}
    outputs = [y for node in net.nodes for y in node.output if y not in used or net.draw.random() < 0.06]
    outputs = [named.get(y, y) for y in outputs]
    model = net.model(nodes, net.inputs, outputs)
    try:
        results = computed(model, {n: net.values[n] for n in net.inputs})
    except Exception:  # A few it refuses as a whole, for what it thinks shapes will be.
        return "", 0
    onnx.save(model, folder / "net.onnx")
    command = [program, "run", folder / "net.onnx", "--threads", str(threads), "--output-dir", folder / "out"]
    for name in net.inputs:
        np.save(folder / f"{name}.npy", net.values[name])
        command += ["--input", f"{name}={folder / name}.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip(), len(nodes)
    wrong = []
    for place, expected in enumerate(results):
        name = outputs[place]
        y = np.load(folder / "out" / f"{name}.npy")
        if (y.shape, y.dtype) != (expected.shape, expected.dtype):
            wrong.append(f"{name} is {y.dtype} {y.shape}, expected {expected.dtype} {expected.shape}")
        elif expected.dtype != np.float32 or not np.isfinite(expected).all():
            if not np.array_equal(y, expected, equal_nan=expected.dtype == np.float32):
                wrong.append(f"{name} differs")
        elif named:
            off = np.abs(y - expected) / max(1e-3, np.abs(expected).max())
            if not ((off > 0.08).mean() < 0.005 and off.mean() < 0.006):
                wrong.append(f"{name} is off by {off.max():.3f}, on average {off.mean():.4f}")
        elif not net.close(y, expected, model, place):
            wrong.append(f"{name} is off by {np.abs(y - expected).max():.2e} of {np.abs(expected).max():.2e}")
    return "; ".join(wrong), len(nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where networks that are wrong go")
    given = parser.parse_args()
    nodes, wrong = 0, 0
    for number in range(given.first, given.first + given.count):
        with tempfile.TemporaryDirectory() as folder:
            message, some = tried(number, given.program, given.threads, Path(folder))
            nodes += some
            if message:
                wrong += 1
                print(f"network {number}: {message}", flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    shutil.move(Path(folder, "net.onnx"), given.keep / f"{number}.onnx")
    print(f"{given.count} networks of {nodes} nodes, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
