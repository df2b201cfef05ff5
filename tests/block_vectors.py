#!/usr/bin/env python3
"""Writes tests/data/blocks.bin: blocks of random bytes of each block-quantised type, and the f32 values
that the Python package `gguf` (of the llama.cpp project; 0.19 here) says they have, or llama.cpp itself. Then 8 blocks
of random values, and what its quantiser of Q8_0 makes of them.

Also kernels/src/template/block/grids.bin: the points of the grids that types of one to three bits index.

    python3 tests/block_vectors.py        # needs tests/requirements-llm.txt
"""
import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "llm"))
import llamacpp  # noqa: E402, F401 (types that are newer than the package)

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
         "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"]
# Where the f16 numbers of a block are.
HALVES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64]}

rng = np.random.default_rng(5)
out = b""
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = 512 // elements
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES.get(name, [0]):
        scale = rng.standard_normal(count).astype(np.float16)
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(count, 2)
    if name == "IQ1_M":
        # Four bits of the scale above each word of others.
        bits = rng.standard_normal(count).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> (4 * i) & 15) << 4
    if name == "TQ1_0":
        # The digits of five numbers, as the quantiser writes them.
        for at in range(52):
            digits = 5 if at < 48 else 4
            q = rng.integers(0, 3**digits, count) * 3 ** (5 - digits)
            blocks[:, at] = (q * 256 + 242) // 243
    if name == "TQ2_0":
        blocks[:, :64] &= 0xAA  # 0 or 2
        blocks[:, :32] >>= 1  # 0 or 1
    if name == "MXFP4":
        # An exponent alone, of which the two least have subnormal scales.
        blocks[:, 0] = [0, 1, 2, *range(118, 118 + count - 3)]
    values = gguf.dequantize(blocks, kind).astype("<f4")
    assert values.size == 512 and np.isfinite(values).all()
    out += blocks.tobytes() + values.tobytes()
x = rng.standard_normal((8, 32)).astype("<f4")
x[3] = 0
x[4] = np.round(x[4] * 4) / 4
out += x.tobytes() + gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0).tobytes()
pathlib.Path(__file__).with_name("data").joinpath("blocks.bin").write_bytes(out)

points = b""
for name in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]:
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    index = np.stack([np.searchsorted(np.array(kind.grid_map), row) for row in grid]).astype(np.uint16)
    bits = 16 // grid.shape[1]
    points += (index << (bits * np.arange(grid.shape[1], dtype=np.uint16))).sum(1).astype("<u2").tobytes()
root = pathlib.Path(__file__).resolve().parent.parent
root.joinpath("kernels/src/template/block/grids.bin").write_bytes(points)
