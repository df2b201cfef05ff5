"""Operators of `com.microsoft` on integers with scales, their attention, and what the other runtime has no code for
on the CPU, which is compared with the definition in NumPy."""

import numpy as np
from onnx import TensorProto

from onnx_cases import RNG, case, floats, ints, narrow, number, octets, results

U8, I8 = np.uint8, np.int8

# Twelfths, and quantiles of the normal distribution (Dettmers et al., "QLoRA", appendix E).
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3])
NF4 = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1])


def attention():
    op, heads = "QAttention", dict(num_heads=2)
    x, bias, scale, zero = octets(2, 5, 8), floats(24), number(0.02), number(120, U8)
    flags = ints([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    for kind, dtype in (("u8", U8), ("i8", I8)):
        w = octets(8, 24, dtype=dtype)
        yield case(op, [x, w, bias, scale, number(0.01), zero, number(3, dtype)], order=[0, 1, 2, 3, 4, None, 5, 6],
                   **heads, name=f"QAttention of {kind}")
        yield case(op, [x, w, bias, scale, abs(floats(24)) / 50, zero, octets(24, dtype=dtype)],
                   order=[0, 1, 2, 3, 4, None, 5, 6], **heads, name=f"QAttention of {kind} by column")
        yield case(op, [x, scale, zero, w, bias, abs(floats(24)) / 50, np.zeros(24, dtype)], inputs=3,
                   order=[0, 3, 4, 1, 5, None, 2, 6], unidirectional=1, **heads,
                   name=f"QAttention of {kind}, free zero point")
        yield case(op, [x, w, bias, scale, number(0.01)], scale=0.3, **heads, name=f"QAttention of {kind} without zero")
    w = octets(8, 24, dtype=I8)
    for name, mask in (("lengths", ints([3, 5])), ("ends and starts", ints([3, 5, 1, 2])), ("keys", flags),
                       ("pairs", (RNG.random((2, 5, 5)) < 0.6).astype(np.int32)), ("nothing", ints([[1]]))):
        yield case(op, [x, mask, w, bias, scale, number(0.01), zero, number(0, I8)], inputs=2,
                   order=[0, 2, 3, 4, 5, 1, 6, 7], mask_filter_value=-1000.0, **heads, name=f"QAttention, mask of {name}")
    past = floats(2, 2, 2, 3, 4)
    yield case(op, [x, past, ints([[0] + [1] * 7, [1] * 6 + [0] * 2]), w, bias, scale, number(0.01), zero, number(0, I8)],
               inputs=3, outputs=2, order=[0, 3, 4, 5, 6, 2, 7, 8, 1], unidirectional=1, **heads,
               name="QAttention after a past")


def masks():
    """Of forms that the other runtime has on other devices only, beside one that it has."""
    x, w, b = floats(2, 5, 8) / 2, floats(8, 24) / 2, floats(24)
    past, every = floats(2, 2, 2, 3, 4), (RNG.random((2, 1, 12, 12)) < 0.6).astype(np.int32)
    op, order = "Attention", [0, 2, 3, 1]
    plain = [x, np.ascontiguousarray(every[:, 0, :5, :5]), w, b]
    yield case(op, [x, every, w, b], inputs=2, order=order, num_heads=2, name="Attention, mask of all positions",
               want=results(case(op, plain, inputs=2, order=order, num_heads=2)))
    plain = [x, past, np.ascontiguousarray(every[:, 0, 3:8, :8]), w, b]
    after = dict(inputs=3, outputs=2, order=[0, 3, 4, 2, 1], num_heads=2, unidirectional=1)
    yield case(op, [x, past, every, w, b], **after, name="Attention, mask of all positions and a past",
               want=results(case(op, plain, **after)))
    begins = ints([3, 5, 0, 5, 10, 0, 3, 8])
    yield case(op, [x, begins, w, b], inputs=2, order=order, num_heads=2, name="Attention, lengths and begins",
               want=results(case(op, [x, ints([3, 5]), w, b], inputs=2, order=order, num_heads=2)))
    op, q, kv, bias = "MultiHeadAttention", floats(2, 5, 2, 3, 4), floats(2, 7, 2, 2, 4), floats(24)
    parts = [np.ascontiguousarray(q[:, :, :, i]).reshape(2, 5, 8) for i in range(3)]
    yield case(op, [q, bias], order=[0, None, None, 1], num_heads=2, name="MultiHeadAttention, packed",
               want=results(case(op, [*parts, bias], inputs=3, num_heads=2)))
    both = [np.ascontiguousarray(kv[:, :, :, i]).reshape(2, 7, 8) for i in range(2)]
    yield case(op, [parts[0], kv], inputs=2, num_heads=2, name="MultiHeadAttention, packed keys and values",
               want=results(case(op, [parts[0], *both], inputs=3, num_heads=2)))
    yield case(op, [*parts, floats(1, 1, 5, 5)], inputs=4, order=[0, 1, 2, None, None, 3], num_heads=2,
               name="MultiHeadAttention, one bias for all")


def tables():
    op = "GatherBlockQuantized"
    at = ints([[0, 8, -3], [5, 5, 1]], np.int64)
    for bits in (2, 4, 8):
        for zeros in (False, True):
            rows, blocks, block = 9, 3, 16
            data, scales = octets(rows, blocks * block * bits // 8), floats(rows, blocks)
            more = [octets(rows, -(-blocks * bits // 8))] if zeros else []
            yield case(op, [at, data, scales, *more], order=[1, 0, *range(2, 3 + zeros)], bits=bits, block_size=block,
                       gather_axis=0, quantize_axis=1, name=f"GatherBlockQuantized {bits} {zeros}")
    yield case(op, [ints(4), octets(9, 3, 16), floats(9, 3, 2)], order=[1, 0, 2], bits=4, block_size=16, gather_axis=0,
               quantize_axis=2, name="GatherBlockQuantized of blocks of rows")
    yield case(op, [at, octets(9, 8), floats(9, 1)], order=[1, 0, 2], bits=4, block_size=16, gather_axis=0, quantize_axis=1,
               name="GatherBlockQuantized, a block for each row")
    for signed, kind in ((True, TensorProto.INT4), (False, TensorProto.UINT4)):
        low, high = (-8, 8) if signed else (0, 16)
        numbers = lambda *shape: RNG.integers(low, high, shape).astype(I8 if signed else U8)
        for gather, axis, zeros in ((0, 1, False), (0, 1, True), (1, 0, True), (0, 2, True)):
            shape = [40, 33, 20]
            blocks = [-(-n // 16) if i == axis else n for i, n in enumerate(shape)]
            small = [(numbers(*shape), kind), floats(*blocks)] + [(numbers(*blocks), kind)] * zeros
            yield case(op, [at, *small], order=[1, 0, *range(2, 3 + zeros)], block_size=16, gather_axis=gather,
                       quantize_axis=axis, name=f"GatherBlockQuantized, {'u' * (not signed)}int4 {gather} {axis} {zeros}")


def products():
    n, k = 5, 48
    for quant in (0, 1):
        w, scales = octets(n * k // 2), abs(floats(-(-n * k // 32)))
        for trans in (0, 1):
            x, want = floats(3, k if trans else n), None
            if not trans:
                # The other runtime reads the weights in another order there than its text says.
                codes = np.stack([w >> 4, w & 15], 1).flatten()
                real = NF4[codes] if quant else FP4[codes & 7] / 12 * np.where(codes > 7, -1, 1)
                want = [(x @ (real * scales.repeat(32)[:n * k]).reshape(n, k)).astype(np.float32)]
            yield case("MatMulBnb4", [x, w, scales], K=k, N=n, block_size=32, quant_type=quant, transB=trans, want=want,
                       name=f"MatMulBnb4 {quant} {trans}")
    for bits in (2, 4, 8):
        block, blocks = 16, 3
        w, scales = octets(n, blocks, block * bits // 8), abs(floats(n * blocks))
        packed = octets(n * -(-blocks * bits // 8))
        groups = RNG.integers(0, blocks, k).astype(np.int32)
        for name, zeros in (("", None), (" and zeros", packed), (" and zeros of floats", floats(n, blocks))):
            given = [floats(3, k), w, scales] + ([zeros] if zeros is not None else []) + [groups]
            order = [0, 1, 2, 3, 4] if zeros is not None else [0, 1, 2, None, 3]
            split = np.unpackbits(w.reshape(n, -1, 1), axis=2, bitorder="little").reshape(n, k, bits)
            number = (split * 2 ** np.arange(bits)).sum(2)
            each = np.full((n, blocks), 2 ** (bits - 1))
            if zeros is packed:
                each = np.unpackbits(zeros.reshape(n, -1, 1), axis=2, bitorder="little").reshape(n, -1, bits)
                each = (each * 2 ** np.arange(bits)).sum(2)[:, :blocks]
            elif zeros is not None:
                each = zeros
            real = (number - each[:, groups]) * scales.reshape(n, blocks)[:, groups]
            yield case("MatMulNBits", given, order=order, K=k, N=n, bits=bits, block_size=block,
                       want=[(given[0].astype(np.float64) @ real.T).astype(np.float32)],
                       name=f"MatMulNBits {bits}, groups{name}")
    yield case("MatMulInteger16", [RNG.integers(-999, 999, (3, 7)).astype(np.int16),
                                   RNG.integers(-999, 999, (7, 5)).astype(np.int16)])


def networks():
    x, s, z = octets, number, lambda v, t=U8: number(v, t)
    pool = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for kind, dtype in (("u8", U8), ("i8", I8)):
        yield case("NhwcMaxPool", [x(1, 7, 7, 20, dtype=dtype)], **pool, name=f"NhwcMaxPool of {kind}")
        yield case("QLinearWhere", [RNG.random((2, 1, 4)) < 0.5, x(2, 3, 4, dtype=dtype), x(3, 4, dtype=dtype), s(0.02),
                                    z(7, dtype), s(0.03), z(9, dtype), s(0.04), z(3, dtype)],
                   order=[0, 1, 3, 4, 2, 5, 6, 7, 8], inputs=3, name=f"QLinearWhere of {kind}")
    for last in (0, 1):
        shape = [1, 7, 7, 20] if last else [1, 20, 7, 7]
        conv = [x(*shape), s(0.02), z(120), narrow(18, 10, 3, 3), abs(floats(18)) / 50, np.zeros(18, I8), s(0.9),
                z(128), octets(18, dtype=I8).astype(np.int32)]
        yield case("QLinearConv", conv, group=2, channels_last=last, pads=[1, 0, 1, 2], name=f"QLinearConv {last}")
        yield case("QLinearAveragePool", [x(*shape), s(0.05), z(128), s(0.03), z(110)], channels_last=last, **pool,
                   name=f"QLinearAveragePool {last}")
        yield case("QLinearGlobalAveragePool", [x(*shape), s(0.05), z(128), s(0.03), z(110)], channels_last=last,
                   name=f"QLinearGlobalAveragePool {last}")
    data = x(2, 3, 4, 5)
    mean = (data.astype(np.float64) - 120).mean((1, 3), keepdims=True) * 0.02 / 0.01 + 100
    yield case("QLinearReduceMean", [data, s(0.02), z(120), s(0.01), z(100)], axes=[1, -1], keepdims=1,
               want=[np.clip(np.rint(mean), 0, 255).astype(U8)])
    ids, segments, mask = ints([[1, 2, 8], [0, 3, 3]]), ints([[0, 0, 1], [1, 0, 0]]), ints([[1, 1, 0], [1, 1, 1]])
    tables = [x(9, 8), x(7, 8), x(2, 8), x(8), x(8)]
    scales, zeros = [s(v) for v in (0.02, 0.01, 0.03, 0.02, 0.01)], [z(v) for v in (120, 130, 100, 20, 128)]
    op = "QEmbedLayerNormalization"
    yield case(op, [ids, segments, mask, *tables, *scales, *zeros], inputs=3, outputs=["y", "m"], epsilon=1e-5,
               order=[0, 1, 3, 4, 5, 6, 7, 2, *range(8, 18)])


def cases():
    yield from attention()
    yield from masks()
    yield from tables()
    yield from products()
    yield from networks()
