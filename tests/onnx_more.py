"""Operators of `com.microsoft` of diffusion models, older ones, and new ones of language models."""

import math

import numpy as np

from onnx_cases import case, floats, ints, number, results


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / 2 ** 0.5))


def group_norm(x, gamma, beta, groups, silu, epsilon):
    """Of pictures whose channels come last."""
    n, h, w, c = x.shape
    rows = x.astype(np.float64).reshape(n, h * w, groups, c // groups)
    mean, var = rows.mean((1, 3), keepdims=True), rows.var((1, 3), keepdims=True)
    y = ((rows - mean) / np.sqrt(var + epsilon)).reshape(x.shape) * gamma + beta
    return (y / (1 + np.exp(-y)) if silu else y).astype(np.float32)


def diffusion():
    x, bias, skip = floats(2, 6, 8), floats(8), floats(2, 6, 8)
    yield case("BiasAdd", [x, skip, bias], inputs=2, order=[0, 2, 1], want=[x + bias + skip])
    y = (x + bias).astype(np.float64)
    yield case("BiasSplitGelu", [x, bias], want=[(y[..., :4] * gelu(y[..., 4:])).astype(np.float32)])
    x, gamma, beta, bias = floats(2, 5, 6, 12), floats(12), floats(12), floats(12)
    for last in (0, 1):
        order = lambda a: a if last else np.ascontiguousarray(a.transpose(0, 3, 1, 2))
        for silu in (0, 1):
            more = dict(activation=silu, groups=3, epsilon=1e-5, channels_last=last)
            yield case("GroupNorm", [order(x), gamma, beta], want=[order(group_norm(x, gamma, beta, 3, silu, 1e-5))],
                       name=f"GroupNorm {last} {silu}", **more)
            for skip in (floats(2, 5, 6, 12), floats(2, 12), floats(2, 1, 1, 12)):
                total = x + (skip.reshape(2, 1, 1, 12) if skip.ndim == 2 else skip) + bias
                yield case("SkipGroupNorm", [order(x), skip if skip.ndim == 2 else order(skip), gamma, beta, bias],
                           inputs=2, outputs=2, order=[0, 2, 3, 1, 4], name=f"SkipGroupNorm {last} {silu} {skip.shape}",
                           want=[order(group_norm(total, gamma, beta, 3, silu, 1e-5)), order(total)], **more)
    plain = floats(2, 4, 7, 6), floats(8, 2, 3, 3), floats(8)
    given = case("Conv", plain, domain="", pads=[1, 0, 1, 1], strides=[2, 1], group=2)
    want = results(given)[0].transpose(0, 2, 3, 1)
    last = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in plain[:2]]
    yield case("NhwcConv", [*last, plain[2]], pads=[1, 0, 1, 1], strides=[2, 1], group=2, want=[want])


def older():
    yield case("TransposeMatMul", [floats(2, 8, 3), floats(2, 5, 8)], transA=1, transB=1, alpha=0.5)
    yield case("ExpandDims", [floats(2, 3), ints(-2)])
    yield case("ExpandDims", [floats(2, 3), ints(0)], name="ExpandDims in front")
    yield case("Inverse", [floats(2, 3, 4, 4) + 4 * np.eye(4, dtype=np.float32)])
    yield case("GatherND", [floats(3, 4, 5), ints([[0, 1], [2, 3]], np.int64)])
    yield case("Trilu", [floats(2, 4, 5), number(1, np.int64)], upper=0)
    yield case("Pad", [floats(2, 3), ints([1, 0, 2, 1], np.int64), number(0.5)])
    yield case("Pad", [floats(5, 4), ints([1, 0, 2, 1], np.int64)], mode="reflect", name="Pad by reflection")
    yield case("Range", [number(1.0), number(4.0)], inputs=0)
    yield case("Range", [ints(1), ints(9), ints(3)], inputs=0, name="Range of integers")
    sums = ints([[1, 2, 3], [4, 5, 7]]), ints([1], np.int64)
    yield case("ReduceLogSum", sums, domain="", name="ReduceLogSum of integers")
    rows = [floats(3, 8).astype(np.float64), floats(8).astype(np.float64)]
    yield case("LayerNormalization", rows, outputs=3, domain="", name="LayerNormalization of doubles")
    for size, sizes in ((7, (2, 8, 5)), (14, (19, 2, 4))):
        for to in sizes:
            line = np.arange(size, dtype=np.float32)[None, None]
            for rounding in ("round_prefer_ceil", "round_prefer_floor"):
                for mode in ("asymmetric", "half_pixel"):
                    yield case("Resize", [line, ints([1, 1, to], np.int64)], order=[0, None, None, 1], domain="",
                               nearest_mode=rounding, coordinate_transformation_mode=mode,
                               name=f"Resize {size} to {to} {rounding} {mode}")
    for mode in ("bilinear", "nearest", "bicubic"):
        yield case("GridSample", [floats(2, 3, 5, 6), floats(2, 4, 3, 2) / 2], mode=mode, name=f"GridSample {mode}")
    for metric in ("euclidean", "sqeuclidean"):
        yield case("CDist", [floats(4, 6), floats(5, 6)], metric=metric, name=f"CDist {metric}")
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.2, 0.5, 1.1, 0.3], [0.3, 0.3, 0.3, 0.3]], np.float32)
    for size in ([4, 5], [1, 3], [50, 1]):
        yield case("CropAndResize", [floats(2, 3, 9, 7), boxes, ints([0, 1, 1, 0]), ints(size)], inputs=3,
                   extrapolation_value=0.5, name=f"CropAndResize {size}")
    yield case("SimplifiedLayerNormalization", [floats(2, 3, 8), floats(8)], outputs=2, domain="", epsilon=1e-5)


def experts():
    hidden, inner, count = 8, 6, 4
    for tokens in (1, 2, 9):
        for kind in ("relu", "gelu", "silu", "identity", "swiglu"):
            wide = 2 * inner if kind == "swiglu" else inner
            more = dict(swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.5)
            given = [floats(tokens, hidden), floats(tokens, count), floats(count, wide, hidden) / 2, floats(count, wide),
                     floats(count, hidden, inner) / 2, floats(count, hidden)]
            yield case("MoE", given, inputs=2, k=2, activation_type=kind, normalize_routing_weights=tokens % 2,
                       name=f"MoE {kind} {tokens}", **(more if kind == "swiglu" else {}))
    x, scores = floats(3, 2, hidden), floats(6, count)
    w1, w2, w3 = floats(count, inner, hidden) / 2, floats(count, hidden, inner) / 2, floats(count, inner, hidden) / 2
    yield case("MoE", [x, scores, w1, w2], inputs=2, order=[0, 1, 2, None, 3], activation_type="relu", k=1,
               name="MoE of one expert")
    rows = x.reshape(6, hidden).astype(np.float64)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    keep = shares >= np.sort(shares, 1)[:, -2:-1]
    gate = np.einsum("th,eih->tei", rows, w1)
    y = np.einsum("tei,ehi->teh", gate / (1 + np.exp(-gate)) * np.einsum("th,eih->tei", rows, w3), w2)
    want = (y * (shares * keep)[:, :, None]).sum(1).reshape(x.shape).astype(np.float32)
    for name, kind in (("silu", dict(activation_type="silu")), ("swiglu", dict(activation_type="swiglu", swiglu_fusion=0))):
        yield case("MoE", [x, scores, w1, w2, w3], inputs=2, order=[0, 1, 2, None, 3, None, 4], k=2, want=[want],
                   name=f"MoE, {name} of two layers", **kind)


def recurrences():
    """Of language models that keep a state of one size."""
    q, k, v = floats(2, 5, 16), floats(2, 5, 16), floats(2, 5, 8)
    state, decay, beta = floats(2, 2, 8, 4), -abs(floats(2, 5, 2)), abs(floats(2, 5, 2)) / 4
    heads = dict(q_num_heads=2, kv_num_heads=2)
    for rule, more in (("linear", []), ("gated", [decay]), ("delta", [None, beta]), ("gated_delta", [decay, beta])):
        there = [a for a in more if a is not None]
        places = iter(range(4, 6))
        yield case("LinearAttention", [q, k / 4, v, state, *there], 2, inputs=3, update_rule=rule, **heads,
                   order=[0, 1, 2, 3, *[None if a is None else next(places) for a in more]],
                   name=f"LinearAttention {rule}")
    for kind in ("none", "silu"):
        yield case("CausalConvWithState", [floats(2, 6, 5), floats(2, 6, 3), floats(6, 1, 4), floats(6)], 2, inputs=2,
                   order=[0, 2, 3, 1], activation=kind, name=f"CausalConvWithState {kind}")


def cases():
    yield from diffusion()
    yield from older()
    yield from experts()
    yield from recurrences()
