#!/usr/bin/env python3
"""Compares what networks from Ultralytics' exporter find with what the package's `predict` finds in the same file.

    pip install numpy onnx onnxruntime onnxslim pillow torch torchvision ultralytics
    cargo build --release
    python tests/detectors.py target/release/tilewright [NAME...]

Weights are random; means and deviations of normalisations are those of the pictures, so that things are found.
Pictures have the network's size, or need a border and nothing else: scaled ones differ by the way they are scaled.
Exit status 0: of 100 things that `predict` has found at least 99 are there, with score and edges (corners, key
points) within TOLERANCE, and masks of which at most 1 of 100 pixels differ; the others are such as overlap a better
one by all but what is allowed. `predict` stops at 300 things, drops those whose mask is empty, and of turned boxes also
drops what overlaps a dropped one, so that there may be more of ours. Networks of halves are left out: they are computed
in f32 here.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["YOLO_AUTOINSTALL"] = "False"

import numpy as np
import torch
from PIL import Image
from ultralytics import RTDETR, YOLO

SIZE = 320
# Pixels, and hundredths of a score.
TOLERANCE = 0.2
MOST_MISSING = 0.01
# Name, description of the network, options of the exporter; END: no suppression, the best are chosen inside.
END = "end2end"
KINDS = [
    ("yolov5n", "yolov5n.yaml", {}),
    ("yolov8n", "yolov8n.yaml", {}),
    ("yolov8n-dynamic", "yolov8n.yaml", {"dynamic": True}),
    ("yolov8n-nms", "yolov8n.yaml", {"nms": True}),
    ("yolov8n-seg", "yolov8n-seg.yaml", {}),
    ("yolov8n-seg-nms", "yolov8n-seg.yaml", {"nms": True}),
    ("yolov8n-pose", "yolov8n-pose.yaml", {}),
    ("yolov8n-pose-nms", "yolov8n-pose.yaml", {"nms": True}),
    ("yolov10n", "yolov10n.yaml", {END: True}),
    ("yolo11n", "yolo11n.yaml", {}),
    ("yolo11n-obb", "yolo11n-obb.yaml", {}),
    ("yolo11n-obb-nms", "yolo11n-obb.yaml", {"nms": True}),
    ("yolo12n", "yolo12n.yaml", {}),
    ("yolo26n", "yolo26n.yaml", {END: True}),
    ("yolo26n-seg", "yolo26n-seg.yaml", {END: True}),
    ("yolo26n-pose", "yolo26n-pose.yaml", {END: True}),
    ("yolo26n-obb", "yolo26n-obb.yaml", {END: True}),
    ("rtdetr-l", "rtdetr-l.yaml", {}),
]


def scene(generator, width, height):
    """Rectangles of random colours with noise."""
    picture = np.zeros((height, width, 3), np.float32)
    for _ in range(30):
        x, y = generator.integers(0, width), generator.integers(0, height)
        w, h = generator.integers(10, width // 2), generator.integers(10, height // 2)
        picture[y : y + h, x : x + w] = generator.integers(0, 255, 3)
    noisy = picture + generator.normal(0, 3, picture.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def export(kind, description, options, pictures, folder):
    """The file of a network whose activations are normalised for the pictures."""
    torch.manual_seed(0)
    detector = RTDETR if "rtdetr" in kind else YOLO
    network = detector(description)
    head = network.model.model[-1]
    samples = [np.asarray(p.resize((SIZE, SIZE)), np.float32).transpose(2, 0, 1) / 255 for p in pictures]
    batch = torch.from_numpy(np.stack(samples))
    with torch.no_grad():
        if detector is YOLO:
            for module in network.model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = 1.0
            network.model.train()
            network.model(torch.cat([batch, batch.flip(2), batch.flip(3)]))
            network.model.eval()
            for name in ("cv3", "one2one_cv3"):
                for branch in getattr(head, name, None) or []:
                    branch[-1].weight.mul_(2)
                    branch[-1].bias.fill_(-3.5)
        else:
            for layer in head.dec_score_head:
                layer.weight.mul_(3)
    options = dict(options)
    if options.pop(END, False):
        head.end2end = True
    made = network.export(format="onnx", imgsz=SIZE, **options)
    path = folder / f"{kind}.onnx"
    shutil.move(made, path)
    return detector, path


def same_corners(found, wanted):
    """The greatest distance of corners, from whichever the order begins."""
    turns = [np.roll(order, k, 0) for order in (found, found[::-1]) for k in range(4)]
    return min(np.abs(turn - wanted).max() for turn in turns)


def pixels(mask):
    """Of uncompressed run lengths."""
    rows, columns = mask["size"]
    flags = np.arange(len(mask["counts"])) % 2 == 1
    return np.repeat(flags, mask["counts"]).reshape(columns, rows).T


def compare(result, found):
    """Why things that `predict` has found are missing."""
    height, width = result.orig_shape
    boxes = result.boxes if result.obb is None else result.obb
    shapes = boxes.xyxy.numpy() if result.obb is None else boxes.xyxyxyxy.numpy()
    problems = []
    for i, (kind, score) in enumerate(zip(boxes.cls.tolist(), boxes.conf.tolist())):
        reasons = []
        for thing in (t for t in found if t["class"] == int(kind)):
            if result.obb is None:
                away = np.abs(np.array(thing["box"]) - shapes[i]).max()
            else:
                away = same_corners(np.array(thing["corners"]), shapes[i])
            if max(away, abs(thing["score"] - score) * 100) > TOLERANCE:
                continue
            reasons.append("")
            if result.keypoints is not None:
                points = np.array(thing["keypoints"])
                # `predict` cuts points off at the edges, and has none whose score is below one half.
                sure = points[:, 2] >= 0.5
                near = np.clip(points[:, :2], 0, [width, height]) - result.keypoints.xy[i].numpy()
                if np.abs(near[sure]).max(initial=0) > TOLERANCE:
                    reasons[-1] = "key points"
            if result.masks is not None:
                wanted, own = result.masks.data[i].numpy() > 0.5, pixels(thing["mask"])
                # Masks there have the input's size: the picture is in the middle.
                top, left = ((np.array(wanted.shape) - own.shape) // 2).tolist()
                wanted = wanted[top : top + height, left : left + width]
                if (wanted != own).sum() > 0.01 * max(wanted.sum(), 100):
                    reasons[-1] = "mask"
        if "" not in reasons:
            problems.append(f"{int(kind)} {score:.3f} {shapes[i].tolist()}: {reasons or 'missing'}")
    return len(shapes), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="kinds of networks; all of them if there is none")
    args = parser.parse_args()
    program = args.program.resolve()
    unknown = set(args.names) - {kind for kind, *_ in KINDS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    generator = np.random.default_rng(3)
    pictures = [scene(generator, SIZE, SIZE), scene(generator, SIZE, 200)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.chdir(folder)
        for i, picture in enumerate(pictures):
            picture.save(f"{i}.png")
        for kind, description, options in KINDS:
            if args.names and kind not in args.names:
                continue
            detector, path = export(kind, description, options, pictures, folder)
            for i in range(len(pictures)):
                result = detector(path).predict(f"{i}.png", imgsz=SIZE, conf=0.25, rect=False, verbose=False)[0]
                ran = subprocess.run(
                    [program, "run", path, "--input", f"{i}.png", "--format", "json"], capture_output=True, text=True
                )
                if ran.returncode != 0:
                    count, problems = 0, [ran.stderr.strip()]
                else:
                    count, problems = compare(result.cpu(), json.loads(ran.stdout).get("detections", []))
                failed += count == 0 or len(problems) > MOST_MISSING * count
                verdict = "same" if not problems else f"{len(problems)} are not there"
                print(f"{kind:20} picture {i}: {count} things, {verdict}", *problems[:3], sep="\n    ", flush=True)
    print(f"{failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
