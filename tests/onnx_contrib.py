#!/usr/bin/env python3
"""Compares operators that the ONNX node tests lack with another runtime.

    pip install onnx onnxruntime numpy
    python tests/onnx_contrib.py target/release/tilewright [--filter QAttention]

Operators of `com.microsoft` and `ai.onnx.ml`, and quantised ones with constant weights (which run on other code
than those of the node tests, whose weights are inputs). What the other runtime has no code for on the CPU is
compared with its definition in NumPy. Floats are equal within 1e-5 of the largest
value, integers within one step. Exit status 0: all are.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from itertools import chain

import numpy as np
import onnxruntime
from onnx import helper

import onnx_ml
import onnx_more
import onnx_quantised
from onnx_cases import RNG, case, floats, ints, model, narrow, number, octets, results


def dynamic_lstm(directions, columns):
    """With bytes for weights, beside an LSTM with the weights that they stand for: the other runtime also rounds
    what they are multiplied with."""
    time, batch, wide, hidden = 5, 2, 6, 8
    scales = (directions, 4 * hidden) if columns else (directions,)
    weights, exact = [], []
    for rows in (wide, hidden):
        w, scale, zero = octets(directions, rows, 4 * hidden), abs(floats(*scales)) / 200, octets(*scales)
        spread = lambda a: a.astype(np.float32).reshape(directions, 1, -1)
        exact.append(np.ascontiguousarray(((w.astype(np.float32) - spread(zero)) * spread(scale)).transpose(0, 2, 1)))
        weights.append((w, scale, zero))
    (w, ws, wz), (r, rs, rz) = weights
    x, b = floats(time, batch, wide), floats(directions, 8 * hidden)
    more = dict(hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward")
    return case("DynamicQuantizeLSTM", [x, w, r, b, ws, wz, rs, rz], 3, order=[0, 1, 2, 3, *[None] * 4, 4, 5, 6, 7],
                beside=case("LSTM", [x, *exact, b], 3, "", **more), **more,
                name=f"DynamicQuantizeLSTM, {directions} directions, by columns: {columns}")


def nbits(bits, with_zeros, n=5, k=48, block=16, accuracy=0, rows=(3,), bias=False):
    """With an accuracy of 4, of numbers that bytes hold exactly: runtimes round by blocks of their own."""
    blocks = -(-k // block)
    zeros = [octets(n * -(-blocks * bits // 8))] if with_zeros else []
    x, scales = floats(*rows, k), abs(floats(n * blocks))
    if accuracy == 4:
        x = RNG.integers(-127, 128, x.shape).astype(np.float32)
        x[..., ::32] = 127
        scales = (2.0 ** RNG.integers(-4, 3, scales.shape)).astype(np.float32)
    operands = [x, octets(n, blocks, block * bits // 8), scales, *zeros]
    order = [*range(len(operands))]
    if bias:
        operands.append(floats(n))
        order += [None] * (5 - len(order)) + [len(operands) - 1]
    return case("MatMulNBits", operands, K=k, N=n, bits=bits, block_size=block, accuracy_level=accuracy, order=order,
                name=f"MatMulNBits {bits} {with_zeros} of {block}, accuracy {accuracy}, {rows}, bias {bias}")


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
    for batch in ((1, 0), (0, 1), (1, 1)):
        for trans in ((0, 0), (1, 1)):
            # What becomes [2, 3, 4, 8] and [2, 3, 8, 5], the first dimension being moved behind the batch's.
            a, b = ([2, 3, 4, 8], [2, 3, 8, 5])
            dims = [d[:-2] + d[:-3:-1] if t else d for d, t in zip((a, b), trans)]
            dims = [d[-2:-1] + d[:-2] + d[-1:] if t else d for d, t in zip(dims, batch)]
            yield case("FusedMatMul", [floats(*dims[0]), floats(*dims[1])], transBatchA=batch[0], transBatchB=batch[1],
                       transA=trans[0], transB=trans[1], name=f"FusedMatMul batch {batch} {trans}")
    for directions in (1, 2):
        for columns in (False, True):
            yield dynamic_lstm(directions, columns)
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
    for accuracy in (0, 4):
        for with_zeros in (False, True):
            yield nbits(4, with_zeros, 19, 256, 32, accuracy, (1,))
            yield nbits(4, with_zeros, 40, 384, 128, accuracy, (2, 9), True)
            yield nbits(8, with_zeros, 19, 256, 64, accuracy, (7,))
        # The last block of a row is half full.
        yield nbits(4, False, 5, 96, 64, accuracy, (2, 1, 3), True)
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
    for kind, weights, columns in (("u8", x, x), ("i8", w, narrow)):
        t = u8 if kind == "u8" else i8
        yield case("QLinearMatMul", [x(3, 70), s(0.02), z(120), columns(70, 33), s(0.01), z(3, t),
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
    yield case("QGemm", [x(3, 70), s(0.02), z(120), narrow(33, 70), s(0.01), z(0, i8), bias, s(0.4), z(128)], inputs=4,
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


def embeddings():
    """Words, positions and segments, gamma and beta, after the identifiers."""
    op, tables = "EmbedLayerNormalization", [floats(9, 8), floats(7, 8), floats(2, 8), floats(8), floats(8)]
    ids, segments, mask = ints([[1, 2, 8], [0, 3, 3]]), ints([[0, 0, 1], [1, 0, 0]]), ints([[1, 1, 0], [1, 2, 1]])
    yield case(op, [ids, segments, *tables], inputs=2, outputs=2)
    yield case(op, [ids, segments, mask, *tables], inputs=3, outputs=["y", "m"], order=[0, 1, 3, 4, 5, 6, 7, 2],
               epsilon=1e-5, name="EmbedLayerNormalization with a mask")
    yield case(op, [ids, *tables], inputs=1, outputs=["y", "m"], order=[0, None, 1, 2, 3, 4, 5],
               name="EmbedLayerNormalization of one segment")
    yield case(op, [ids, ints([[3, 1, 2]]), *tables[:2], *tables[3:]], inputs=2, outputs=["y", "m", "s"],
               order=[0, None, 2, 3, None, 4, 5, None, 1], name="EmbedLayerNormalization of positions")


def attentions():
    x, w, b = floats(2, 5, 8) / 2, floats(8, 24) / 2, floats(24)
    past = floats(2, 2, 2, 3, 4)
    op = "Attention"
    yield case(op, [x, w, b], num_heads=2)
    yield case(op, [x, w, b], num_heads=4, scale=0.3, unidirectional=1, name="Attention in one direction")
    yield case(op, [x, floats(8, 20) / 2, floats(20)], num_heads=2, qkv_hidden_sizes=[8, 8, 4],
               name="Attention with narrow values")
    yield case(op, [x, past, w, b], inputs=2, outputs=2, order=[0, 2, 3, None, 1], num_heads=2, unidirectional=1,
               name="Attention after a past")
    yield case(op, [x, floats(1, 2, 5, 5), w, b], inputs=2, order=[0, 2, 3, None, None, 1], num_heads=2,
               name="Attention with a bias of scores")
    flags = ints([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    for name, mask in (("lengths", ints([3, 5])), ("ends and starts", ints([3, 5, 1, 2])), ("keys", flags),
                       ("pairs", (RNG.random((2, 5, 5)) < 0.6).astype(np.int32))):
        for one_way in (0, 1):
            yield case(op, [x, mask, w, b], inputs=2, order=[0, 2, 3, 1], num_heads=2, unidirectional=one_way,
                       name=f"Attention, mask of {name}, {one_way}")
    yield case(op, [x, flags, w, b], inputs=2, order=[0, 2, 3, 1], num_heads=2, mask_filter_value=-2.0,
               name="Attention, weak mask")
    yield case(op, [x, past, ints([[0] + [1] * 7, [1] * 6 + [0] * 2]), w, b], inputs=3, outputs=2,
               order=[0, 3, 4, 2, 1], num_heads=2, name="Attention, mask of keys and a past")


def heads():
    q, k, v, b = floats(2, 5, 8), floats(2, 7, 8), floats(2, 7, 8), floats(24)
    op, past = "MultiHeadAttention", [floats(2, 2, 3, 4), floats(2, 2, 3, 4)]
    kept, flags = ["y", "k", "v"], ints([[0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
    yield case(op, [q, k, v, b], inputs=3, num_heads=2)
    yield case(op, [q, k, floats(2, 7, 4)], inputs=3, num_heads=2, scale=0.3, name="MultiHeadAttention, narrow values")
    yield case(op, [q, floats(2, 2, 7, 4), floats(2, 2, 7, 4), b], inputs=3, outputs=kept, num_heads=2,
               name="MultiHeadAttention of keys by head")
    for name, mask in (("lengths", ints([3, 7])), ("keys", flags),
                       ("pairs", (RNG.random((2, 5, 7)) < 0.6).astype(np.int32))):
        yield case(op, [q, k, v, mask], inputs=4, order=[0, 1, 2, None, 3], num_heads=2,
                   name=f"MultiHeadAttention, mask of {name}")
    yield case(op, [q, k, v, floats(2, 1, 5, 7)], inputs=4, order=[0, 1, 2, None, None, 3], num_heads=2,
               name="MultiHeadAttention, bias of scores")
    own = [q, floats(2, 5, 8), floats(2, 5, 8)]
    yield case(op, [*own, flags[:, :5], b], inputs=4, order=[0, 1, 2, 4, 3], num_heads=2, unidirectional=1,
               name="MultiHeadAttention in one direction")
    yield case(op, [*own, *past, b], inputs=5, outputs=kept, order=[0, 1, 2, 5, None, None, 3, 4], num_heads=2,
               unidirectional=1, name="MultiHeadAttention after a past")
    yield case(op, [*own, *past, np.tile(flags, 2)[:, :8]], inputs=6, outputs=kept, num_heads=2,
               order=[0, 1, 2, None, 5, None, 3, 4], name="MultiHeadAttention, mask of keys and a past")


def rotations():
    op, at = "RotaryEmbedding", ints([[0, 3, 4], [5, 2, 1]], np.int64)
    for interleaved in (0, 1):
        whole, part, kind = [floats(6, 8), floats(6, 8)], [floats(6, 4), floats(6, 4)], dict(interleaved=interleaved)
        yield case(op, [floats(2, 3, 32), at, *whole], inputs=2, **kind, name=f"RotaryEmbedding {interleaved}")
        yield case(op, [floats(2, 2, 3, 16), ints([2], np.int64), *whole], inputs=2, **kind,
                   name=f"RotaryEmbedding by head {interleaved}")
        yield case(op, [floats(2, 3, 32), at, *part], inputs=2, num_heads=2, rotary_embedding_dim=8, **kind,
                   name=f"RotaryEmbedding of a part {interleaved}")


def grouped():
    op, kept = "GroupQueryAttention", ["y", "k", "v"]
    plain = dict(num_heads=4, kv_num_heads=2)
    tables = [floats(16, 8), floats(16, 8)]
    # New tokens, tokens that the cache has room for, the last token's number of each text, tokens in all.
    for name, tokens, room, last, total, more in (
            ("of a text", 5, 0, [4, 4], 5, {}), ("of texts of two lengths", 5, 0, [4, 2], 5, {}),
            ("into a cache", 5, 9, [4, 2], 5, {}), ("in a window", 5, 0, [4, 4], 5, dict(local_window_size=3)),
            ("of both directions", 5, 0, [4, 4], 5, dict(causal=0)), ("with a cap", 5, 0, [4, 4], 5, dict(softcap=2.0)),
            ("of a token", 1, 5, [5, 5], 6, {}), ("of tokens at two places", 1, 5, [5, 3], 6, {}),
            ("of a token in a window", 1, 5, [5, 3], 6, dict(local_window_size=3, scale=0.2)),
            ("of a token into a cache", 1, 9, [5, 3], 6, {}), ("of more tokens", 3, 5, [7], 8, {}),
            ("of more tokens in a window", 3, 5, [7], 8, dict(local_window_size=2))):
        n = len(last)
        cache = [floats(n, 2, room, 16), floats(n, 2, room, 16)]
        lengths = [ints(last), ints(total)]
        q, k, v = floats(n, tokens, 64), floats(n, tokens, 32), floats(n, tokens, 32)
        yield case(op, [q, k, v, *cache, *lengths], inputs=7, outputs=kept, **plain, **more,
                   name=f"GroupQueryAttention {name}")
        yield case(op, [floats(n, tokens, 128), *cache, *lengths, *tables], inputs=5, outputs=kept, **plain, **more,
                   order=[0, None, None, 1, 2, 3, 4, 5, 6], do_rotary=1, rotary_interleaved=n - 1,
                   name=f"GroupQueryAttention {name}, turned")
    yield case(op, [floats(2, 3, 64), floats(2, 3, 32), floats(2, 3, 32), floats(2, 2, 4, 16), floats(2, 2, 4, 16),
                    ints([2, 2]), ints(3), floats(1, 4, 3, 3)], inputs=8, outputs=kept,
               order=[0, 1, 2, 3, 4, 5, 6, None, None, None, 7], **plain, name="GroupQueryAttention, bias of scores")
    yield case(op, [floats(1, 3, 64), floats(1, 3, 32), floats(1, 3, 32), ints([2]), ints(3)], inputs=5, outputs=kept,
               order=[0, 1, 2, None, None, 3, 4], **plain, name="GroupQueryAttention without a cache")


def run(given, program, root):
    """What is wrong; None if nothing is."""
    m, count = model(given), given["inputs"]
    feeds = {f"x{i}": a for i, a in enumerate(given["operands"][:count])}
    try:
        want = given["want"] or results(given["beside"] or given, feeds)
    except Exception as e:  # It has no common class of its errors.
        return f"the other runtime: {str(e)[:300]}"
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
        if value.dtype == object:  # Texts.
            if have.dtype.kind != "U" or have.tolist() != value.tolist():
                return f"output {i} is {have.dtype}{have.tolist()}, not {value.tolist()}"
            continue
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
    parser.add_argument("--filter", default="", help="only cases whose name matches")
    args = parser.parse_args()
    program, bad, total = pathlib.Path(args.program).resolve(), 0, 0
    for given in chain(cases(), embeddings(), attentions(), heads(), rotations(), grouped(),
                       onnx_quantised.cases(), onnx_more.cases(), onnx_ml.cases()):
        if not re.search(args.filter, given["name"]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            problem = run(given, program, pathlib.Path(folder))
        total, bad = total + 1, bad + (problem is not None)
        print(f"{given['name']:40} {problem or 'ok'}")
    print(f"operators beside onnxruntime {onnxruntime.__version__}: {total - bad} of {total} agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
