#!/usr/bin/env python3
"""Compares torchvision's networks for other tasks than classifying with onnxruntime: boxes, key points, masks,
optical flow, video.

    python3 -m venv venv && venv/bin/pip install -r tests/named_networks.txt
    cargo build --release
    venv/bin/python tests/vision_tasks.py target/release/tilewright
    venv/bin/python tests/vision_tasks.py target/release/tilewright --only boxes --times 2

Weights are random, seeded. Shapes inside of those that find boxes depend on what they compute, so they run in
stages. With random weights many scores are nearly equal, and which come first depends on the last bits: of
what such a net finds, the sorted scores are compared.

Right is: an output differs by at most 1e-4 of its largest value. `--times` runs both in turns, for so many seconds
each on one thread, and gives the fastest run of each.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnxruntime
import torch
import torchvision
from torch import nn

BOUND = 1e-4
MODELS = torchvision.models


class Found(nn.Module):
    """What a detector finds in one picture; scores come first."""

    def __init__(self, make, **options):
        super().__init__()
        self.net = make(weights=None, weights_backbone=None, **options)

    def forward(self, x):
        found = self.net([x])[0]
        return found["scores"], found["boxes"], found["labels"]


class Flow(nn.Module):
    """The last of a few steps of optical flow."""

    def __init__(self):
        super().__init__()
        self.net = MODELS.optical_flow.raft_small(weights=None)

    def forward(self, first, second):
        return self.net(first, second, num_flow_updates=4)[-1]


class Classes(nn.Module):
    """Scores of classes for each pixel."""

    def __init__(self, make):
        super().__init__()
        self.net = make(weights=None, weights_backbone=None)

    def forward(self, x):
        return self.net(x)["out"]


# What makes a net, shapes of its inputs, and whether only the sorted first output is compared.
NETS = {
    "boxes-mobilenet": (
        lambda: Found(MODELS.detection.fasterrcnn_mobilenet_v3_large_320_fpn, box_score_thresh=0.0),
        [(3, 320, 320)], True),
    "boxes-keypoints": (
        lambda: Found(MODELS.detection.keypointrcnn_resnet50_fpn, min_size=256, max_size=256, box_score_thresh=0.0),
        [(3, 256, 256)], True),
    "boxes-ssd": (lambda: Found(MODELS.detection.ssd300_vgg16), [(3, 300, 300)], True),
    "classes-lraspp": (lambda: Classes(MODELS.segmentation.lraspp_mobilenet_v3_large), [(1, 3, 256, 256)], False),
    "flow-raft": (Flow, [(1, 3, 128, 160)] * 2, False),
    "video-r3d": (lambda: MODELS.video.r3d_18(weights=None), [(1, 3, 8, 112, 112)], False),
    "video-swin": (lambda: MODELS.video.swin3d_t(weights=None), [(1, 3, 8, 112, 112)], False),
}


def export(make, inputs, path):
    torch.manual_seed(0)
    net = make().eval()
    with torch.no_grad():
        torch.onnx.export(net, tuple(map(torch.from_numpy, inputs.values())), str(path), input_names=list(inputs),
                          dynamo=False, opset_version=17)


def ours(binary, path, inputs, folder):
    """The outputs that tilewright computes, by name, or what it says."""
    given = []
    for name, value in inputs.items():
        np.save(folder / f"{name}.npy", value)
        given += ["--input", f"{name}={folder / name}.npy"]
    out = folder / "out"
    done = subprocess.run([binary, "run", str(path), *given, "--output-dir", str(out)], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    return {file.stem: np.load(file) for file in out.glob("*.npy")}


def difference(got, wanted, as_set):
    """As a share of the largest value; infinite for another number of elements."""
    if as_set:
        got, wanted = np.sort(got, axis=None), np.sort(wanted, axis=None)
    if got.shape != wanted.shape:
        return float("inf")
    return float(np.abs(got - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-30))


def times(binary, path, session, inputs, seconds):
    """The fastest run of onnxruntime and of tilewright, in milliseconds."""
    best = [float("inf")] * 2
    for _ in range(2):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter()
            session.run(None, inputs)
            best[0] = min(best[0], 1e3 * (time.perf_counter() - start))
        done = subprocess.run([binary, "bench", str(path), "-t", "1", "--time", str(seconds), "--format", "json"],
                              capture_output=True, text=True, check=True)
        best[1] = min(best[1], float(re.search(r'"min_us": ?([\d.]+)', done.stdout)[1]) / 1e3)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the program tilewright")
    parser.add_argument("--only", default="", help="nets whose names contain this")
    parser.add_argument("--times", type=float, metavar="SECONDS", help="time both, too")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    wrong = 0
    for name, (make, shapes, as_set) in NETS.items():
        if options.only not in name:
            continue
        random = np.random.default_rng(1)
        inputs = {f"x{i}": random.random(shape, dtype=np.float32) for i, shape in enumerate(shapes)}
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            path = folder / "net.onnx"
            export(make, inputs, path)
            session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
            first = session.get_outputs()[0].name
            wanted = session.run([first], inputs)[0]
            got = ours(options.binary, path, inputs, folder)
            if isinstance(got, str):
                wrong += 1
                print(f"{name}: WRONG: {got}", flush=True)
                continue
            off = difference(got[re.sub(r"[^\w.-]", "_", first)], wanted, as_set)
            wrong += off > BOUND
            line = f"{name}: {'WRONG' if off > BOUND else 'ok'}: {wanted.size} numbers, off by {off:.1e}"
            if options.times:
                theirs, mine = times(options.binary, path, session, inputs, options.times)
                line += f"; onnxruntime {theirs:.1f} ms, tilewright {mine:.1f} ms, {theirs / mine:.2f}"
            print(line, flush=True)
    print("vision tasks:", f"{wrong} wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
