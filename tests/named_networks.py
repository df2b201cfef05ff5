#!/usr/bin/env python3
"""Compares networks that people know by name with onnxruntime, in float and in bytes.

    python3 -m venv venv && venv/bin/pip install -r tests/named_networks.txt
    cargo build --release
    venv/bin/python tests/named_networks.py target/release/tilewright
    venv/bin/python tests/named_networks.py target/release/tilewright --only yolo --slow 5
    venv/bin/python tests/named_networks.py target/release/tilewright --markdown docs/models.md

The architectures are torchvision's, or written here in torch (YOLOv3-tiny, YOLOv8n, U-Net), with seeded
random weights and batch norms that saw random pictures. Both exporters of torch.onnx write them;
onnxruntime's static quantiser makes versions in bytes, with QuantizeLinear and DequantizeLinear between
operators (qdq) and of operators on bytes (qop).

Right is: a float output differs by at most 1e-4 of its largest value (from onnxruntime without its graph
optimisations, where these change the result: those of 1.31 pad a MaxPool behind a Pad of zeros with the
least number, in YOLOv3-tiny). An output in bytes is at most one
of its 256 steps apart; or, in a deep net, where one step early on becomes many, no further than
onnxruntime is from itself with and without its graph optimisations.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import torchvision
from onnxruntime import quantization
from torch import nn

BOUND = 1e-4
STEPS = 255
EXPORTERS = {
    "script": {"dynamo": False, "opset_version": 17},
    "dynamo": {"dynamo": True, "external_data": False, "verbose": False},
}


class Unit(nn.Sequential):
    """Convolution, batch norm, activation."""

    def __init__(self, c_in, c_out, kernel=1, stride=1, activation=nn.SiLU):
        conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out), activation())


class Yolo3Tiny(nn.Module):
    """Two scales of boxes; the coarse one is upsampled into the fine one."""

    def __init__(self):
        super().__init__()

        def unit(*sizes):
            return Unit(*sizes, activation=lambda: nn.LeakyReLU(0.1))

        trunk = [unit(3, 16, 3)]
        for c in (16, 32, 64, 128):
            trunk += [nn.MaxPool2d(2), unit(c, 2 * c, 3)]
        self.trunk = nn.Sequential(*trunk)
        self.last = nn.Sequential(nn.MaxPool2d(2), unit(256, 512, 3), nn.ZeroPad2d((0, 1, 0, 1)),
                                  nn.MaxPool2d(2, 1), unit(512, 1024, 3), unit(1024, 256))
        self.coarse = nn.Sequential(unit(256, 512, 3), nn.Conv2d(512, 255, 1))
        self.up = nn.Sequential(unit(256, 128), nn.Upsample(scale_factor=2))
        self.fine = nn.Sequential(unit(384, 256, 3), nn.Conv2d(256, 255, 1))

    def forward(self, x):
        a = self.trunk(x)
        b = self.last(a)
        return self.coarse(b), self.fine(torch.cat((self.up(b), a), 1))


class Bottleneck(nn.Module):
    def __init__(self, c, shortcut):
        super().__init__()
        self.a, self.b, self.shortcut = Unit(c, c, 3), Unit(c, c, 3), shortcut

    def forward(self, x):
        y = self.b(self.a(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Half of the channels go through bottlenecks; all that is on the way is joined."""

    def __init__(self, c_in, c_out, count, shortcut=True):
        super().__init__()
        self.first, self.last = Unit(c_in, c_out), Unit((2 + count) * c_out // 2, c_out)
        self.inner = nn.ModuleList(Bottleneck(c_out // 2, shortcut) for _ in range(count))

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for inner in self.inner:
            parts.append(inner(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Sppf(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.first, self.last, self.pool = Unit(c, c // 2), Unit(2 * c, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo8n(nn.Module):
    """Boxes as distributions of distances to their sides, decoded as the exported file has it."""

    def __init__(self, classes=80, bins=16):
        super().__init__()
        self.classes, self.bins, widths = classes, bins, (64, 128, 256)
        self.down3 = nn.Sequential(Unit(3, 16, 3, 2), Unit(16, 32, 3, 2), C2f(32, 32, 1),
                                   Unit(32, 64, 3, 2), C2f(64, 64, 2))
        self.down4 = nn.Sequential(Unit(64, 128, 3, 2), C2f(128, 128, 2))
        self.down5 = nn.Sequential(Unit(128, 256, 3, 2), C2f(256, 256, 1), Sppf(256))
        self.up = nn.Upsample(scale_factor=2)
        self.up4, self.up3 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
        self.to4, self.to5 = Unit(64, 64, 3, 2), Unit(128, 128, 3, 2)
        self.out4, self.out5 = C2f(192, 128, 1, False), C2f(384, 256, 1, False)

        def head(c, width, out):
            return nn.Sequential(Unit(c, width, 3), Unit(width, width, 3), nn.Conv2d(width, out, 1))

        self.boxes = nn.ModuleList(head(c, 64, 4 * bins) for c in widths)
        self.kinds = nn.ModuleList(head(c, 80, classes) for c in widths)

    def forward(self, x):
        p3 = self.down3(x)
        p4 = self.down4(p3)
        p5 = self.down5(p4)
        n4 = self.up4(torch.cat((self.up(p5), p4), 1))
        n3 = self.up3(torch.cat((self.up(n4), p3), 1))
        o4 = self.out4(torch.cat((self.to4(n3), n4), 1))
        o5 = self.out5(torch.cat((self.to5(o4), p5), 1))
        boxes, kinds, centres, strides = [], [], [], []
        for y, box, kind, stride in zip((n3, o4, o5), self.boxes, self.kinds, (8, 16, 32)):
            h, w = y.shape[2:]
            boxes.append(box(y).flatten(2))
            kinds.append(kind(y).flatten(2))
            across, down = torch.arange(w) + 0.5, torch.arange(h) + 0.5
            grid = torch.meshgrid(down, across, indexing="ij")
            centres.append(torch.stack((grid[1], grid[0])).flatten(1))
            strides.append(torch.full((1, h * w), float(stride)))
        boxes = torch.cat(boxes, 2)
        boxes = boxes.view(boxes.shape[0], 4, self.bins, -1).transpose(1, 2).softmax(1)
        weights = torch.arange(self.bins, dtype=torch.float32).view(1, -1, 1, 1)
        near, far = (boxes * weights).sum(1).chunk(2, 1)
        centres, strides = torch.cat(centres, 1), torch.cat(strides, 1)
        low, high = centres - near, centres + far
        boxes = torch.cat(((low + high) / 2, high - low), 1) * strides
        return torch.cat((boxes, torch.cat(kinds, 2).sigmoid()), 1)


class Unet(nn.Module):
    def __init__(self, width=32, depth=4, classes=2):
        super().__init__()

        def pair(c_in, c_out):
            return nn.Sequential(Unit(c_in, c_out, 3, 1, nn.ReLU), Unit(c_out, c_out, 3, 1, nn.ReLU))

        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in reversed(widths[:-1]))
        self.join = nn.ModuleList(pair(2 * c, c) for c in reversed(widths[:-1]))
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

    def forward(self, x):
        levels = [self.down[0](x)]
        for down in self.down[1:]:
            levels.append(down(self.pool(levels[-1])))
        x = levels.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat((levels.pop(), up(x)), 1))
        return self.last(x)


MODELS = torchvision.models
NETS = {
    "mobilenet-v3-small": (MODELS.mobilenet_v3_small, 224),
    "mobilenet-v3-large": (MODELS.mobilenet_v3_large, 224),
    "resnet50": (MODELS.resnet50, 224),
    "shufflenet-v2": (MODELS.shufflenet_v2_x1_0, 224),
    "efficientnet-b0": (MODELS.efficientnet_b0, 224),
    "yolov3-tiny": (Yolo3Tiny, 416),
    "yolov8n": (Yolo8n, 640),
    "unet": (Unet, 256),
}


def trained(make, size):
    """The net, with batch norms that keep its numbers near 1."""
    torch.manual_seed(0)
    net = make()
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.2)
    net.train()
    with torch.no_grad():
        net(torch.randn(4, 3, max(64, size // 4 // 32 * 32), max(64, size // 4 // 32 * 32)))
    return net.eval()


class Samples(quantization.CalibrationDataReader):
    def __init__(self, size):
        random = np.random.default_rng(1)
        self.left = [random.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(3)]

    def get_next(self):
        return {"image": self.left.pop()} if self.left else None


def quantized(path, size, form):
    """The net of a file in bytes, in another file."""
    out = path.with_name(f"{path.stem}-{form}.onnx")
    prepared = path.with_name(f"{path.stem}-prepared.onnx")
    quantization.quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    kind = quantization.QuantFormat.QDQ if form == "qdq" else quantization.QuantFormat.QOperator
    quantization.quantize_static(
        str(prepared), str(out), Samples(size), quant_format=kind, per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8)
    prepared.unlink()
    return out


def files(options, folder):
    """Name, path, size of the picture, whether in bytes."""
    for name, (make, size) in NETS.items():
        if options.only not in name:
            continue
        net = trained(make, size)
        for exporter in options.exporters:
            path = folder / f"{name}-{exporter}.onnx"
            if not path.exists():
                torch.onnx.export(net, (torch.randn(1, 3, size, size),), str(path), input_names=["image"],
                                  **EXPORTERS[exporter])
            yield path.stem, path, size, False
            if exporter == options.exporters[0]:
                for form in options.forms:
                    made = path.with_name(f"{path.stem}-{form}.onnx")
                    yield made.stem, made if made.exists() else quantized(path, size, form), size, True


def peer(path, feed, optimise=True):
    """The outputs that onnxruntime computes, by name."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    if not optimise:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"image": feed})))


def ours(options, path, feed, folder):
    """The outputs that tilewright computes, by name, or what it says."""
    np.save(folder / "image.npy", feed)
    out = folder / "out"
    done = subprocess.run([options.binary, "run", str(path), "--input", f"image={folder / 'image.npy'}",
                           "--output-dir", str(out)], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    return {file.stem: np.load(file) for file in out.glob("*.npy")}


def difference(a, b):
    """The largest difference as a share of the largest value, over all outputs."""
    worst = 0.0
    for name, wanted in b.items():
        if name not in a or a[name].shape != wanted.shape:
            return math.inf
        off = np.abs(a[name].astype(np.float64) - wanted).max() / max(np.abs(wanted).max(), 1e-30)
        worst = max(worst, float(off))
    return worst


def verdict(options, path, size, in_bytes, folder):
    """Whether the outputs are right, and a line about it."""
    feed = np.random.default_rng(2).standard_normal((1, 3, size, size)).astype(np.float32)
    got = ours(options, path, feed, folder)
    if isinstance(got, str):
        return False, got
    wanted = peer(path, feed)
    off = difference(got, wanted)
    if not in_bytes and off <= BOUND:
        return True, f"off by {off:.1e}"
    plain = peer(path, feed, optimise=False)
    if not in_bytes:
        own, rest = difference(got, plain), f"off by {off:.1e} with its graph optimisations"
        return own <= BOUND, f"off by {own:.1e}; {rest}"
    own = difference(plain, wanted)
    off = min(off, difference(got, plain))
    # A step is at least this share of the largest value.
    return off <= max(1.01 / STEPS, own), f"off by {off * STEPS:.2f} steps; onnxruntime from itself {own * STEPS:.2f}"


def slowest(options, path):
    """Lines about the operators that take longest."""
    done = subprocess.run([options.binary, "explain", str(path), "--measure", "--threads", "1", "--format", "json"],
                          capture_output=True, text=True)
    if done.returncode:
        return [done.stderr.strip()]
    found = json.loads(done.stdout)
    nodes = sorted(found["nodes"], key=lambda n: -n.get("measured_us", 0))[: options.slow]
    lines = [f"    {sum(n.get('measured_us', 0) for n in found['nodes']):9.0f} us in all"]
    for n in nodes:
        why = n.get("why_not_faster") or ""
        lines.append(f"    {n.get('measured_us', 0):9.0f} us  {n['op']:14} {n['kernel']:34} {n['shape']!s:20} {why}")
    return lines


BEGIN = "<!-- made by tests/named_networks.py --markdown -->\n"
END = "<!-- end of the networks -->\n"


def write(page, rows):
    """Puts the table into the page, in place of the one that was there."""
    head, rest = page.read_text().split(BEGIN)
    _, tail = rest.split(END)
    versions = f"torch {torch.__version__.split('+')[0]}, onnxruntime {onnxruntime.__version__}"
    lines = [f"Compared with {versions}.\n", "| file | right | how near |", "|---|---|---|"]
    lines += [f"| {name} | {'yes' if fine else 'no'} | {line} |" for name, fine, line in rows]
    page.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + tail)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the program, such as target/release/tilewright")
    parser.add_argument("--only", default="", help="networks whose names contain this")
    parser.add_argument("--exporters", nargs="+", choices=EXPORTERS, default=list(EXPORTERS))
    parser.add_argument("--forms", nargs="*", choices=["qdq", "qop"], default=["qdq", "qop"],
                        help="versions in bytes")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="list the N slowest operators of each")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the files there, and use those that are there")
    parser.add_argument("--markdown", metavar="FILE", type=pathlib.Path, help="write the table into this page")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    right = total = 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        kept = pathlib.Path(options.keep or folder)
        kept.mkdir(parents=True, exist_ok=True)
        for name, path, size, in_bytes in files(options, kept):
            fine, line = verdict(options, path, size, in_bytes, folder)
            right, total = right + fine, total + 1
            rows.append((name, fine, line))
            print(f"{'right' if fine else 'WRONG'}  {name:34} {line}", flush=True)
            if options.slow:
                print(*slowest(options, path), sep="\n", flush=True)
    if options.markdown:
        write(options.markdown, rows)
    print(f"{right} of {total} networks as onnxruntime")
    sys.exit(0 if right == total and total else 1)


if __name__ == "__main__":
    main()
