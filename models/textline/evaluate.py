"""Character error rates of the exported file, by onnxruntime.

    python evaluate.py --heldout heldout            (the committed pictures)
    python evaluate.py --generate 2000              (a large fresh sample)
"""
import argparse
import csv
import os
from collections import Counter, defaultdict

import onnxruntime
from PIL import Image

from charset import greedy
from prepare import prepare


def align(truth, read):
    """Edit operations as (expected, read) pairs, "" for a missing or extra one."""
    rows = [list(range(len(read) + 1))]
    for i, a in enumerate(truth, 1):
        row = [i]
        for j, b in enumerate(read, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b)))
        rows.append(row)
    i, j, edits = len(truth), len(read), []
    while i or j:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (truth[i - 1] != read[j - 1]):
            i, j = i - 1, j - 1
            if truth[i] != read[j]:
                edits.append((truth[i], read[j]))
        elif i and rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
            edits.append((truth[i], ""))
        else:
            j -= 1
            edits.append(("", read[j]))
    return edits


def committed(folder):
    with open(os.path.join(folder, "labels.tsv"), encoding="utf-8", newline="") as f:
        for name, sort, text in csv.reader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield sort, "all", text, Image.open(os.path.join(folder, name))


def generated(cache, count, seed):
    from render import Renderer
    for sort in ("clean", "damaged"):
        renderer = Renderer(cache, seed + (sort == "damaged"), test=True)
        for _ in range(count):
            kind, text, face, _, picture = renderer.draw(damaged=sort == "damaged")
            yield sort, kind + "\t" + face["family"], text, picture


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="textline.onnx")
    parser.add_argument("--heldout", help="folder of pictures and labels.tsv")
    parser.add_argument("--generate", type=int, default=0, help="lines of each sort")
    parser.add_argument("--seed", type=int, default=7001)
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--details", action="store_true", help="by kind and family, confusions, misread lines")
    args = parser.parse_args()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    wrong, total, lines, perfect = Counter(), Counter(), Counter(), Counter()
    parts = defaultdict(lambda: [0, 0])
    confusions = Counter()
    source = committed(args.heldout) if args.heldout else generated(args.cache, args.generate, args.seed)
    for sort, labels, text, picture in source:
        read = greedy(session.run(None, {"image": prepare(picture)})[0][0]).strip()
        edits = align(text, read)
        wrong[sort] += len(edits)
        total[sort] += len(text)
        lines[sort] += 1
        perfect[sort] += not edits
        confusions.update(edits)
        for label in labels.split("\t"):
            parts[sort, label][0] += len(edits)
            parts[sort, label][1] += len(text)
        if args.details and edits:
            print(f"  {sort} {labels!r}\n    {text}\n    {read}")
    for sort in lines:
        print(f"{sort}: {lines[sort]} lines, {total[sort]} characters, CER {100 * wrong[sort] / total[sort]:.3f} %, "
              f"{100 * perfect[sort] / lines[sort]:.1f} % of the lines without error")
    if args.details:
        for (sort, label), (w, t) in sorted(parts.items()):
            print(f"  {sort:8} {label:24} {100 * w / t:6.2f} % of {t}")
        print(" ".join(f"{a or '∅'}→{b or '∅'}:{n}" for (a, b), n in confusions.most_common(40)))


if __name__ == "__main__":
    main()
