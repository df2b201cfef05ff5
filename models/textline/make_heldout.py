"""Writes the committed held-out set (raw pictures and their texts) and the sample.

    python make_heldout.py --out heldout --sample sample.png

The set is the first 160 clean and 160 damaged lines of the seeded generator, in
the held-out font families and with held-out texts, as they come: nothing is
chosen.  prepared.tsv holds what prepare() makes of each picture (width of the
input and its mean), to check a port against.  The sample is a line of PT Serif,
a held-out family, on cream paper.
"""
import argparse
import os

from PIL import Image, ImageDraw, ImageFont

from fonts import faces
from prepare import prepare
from render import Renderer

SAMPLE = "“Déjà vu” on small machines: 100 % tilewright, 0 € cloud."


def make_sample(path, cache):
    face = next(f for f in faces(cache) if f["family"] == "PT Serif" and f["style"] == "Regular")
    font = ImageFont.truetype(face["path"], 27)
    left, top, right, bottom = font.getbbox(SAMPLE, anchor="ls")
    picture = Image.new("RGB", (right - left + 32, bottom - top + 28), (248, 243, 230))
    ImageDraw.Draw(picture).text((16 - left, 14 - top), SAMPLE, (43, 37, 56), font, anchor="ls")
    picture.quantize(64).save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="heldout")
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--count", type=int, default=160, help="lines of each sort")
    parser.add_argument("--sample", default="sample.png")
    args = parser.parse_args()
    make_sample(args.sample, args.cache)
    os.makedirs(args.out, exist_ok=True)
    rows, prepared = [], []
    for sort, seed in (("clean", 20260801), ("damaged", 20260802)):
        renderer = Renderer(args.cache, seed, test=True)
        for i in range(args.count):
            _, text, _, _, picture = renderer.draw(damaged=sort == "damaged")
            name = f"{sort}-{i:03d}.png"
            picture.save(os.path.join(args.out, name), optimize=True)
            rows.append(f"{name}\t{sort}\t{text}\n")
            line = prepare(picture)
            prepared.append(f"{name}\t{line.shape[3]}\t{line.mean(dtype='f8'):.5f}\n")
    with open(os.path.join(args.out, "labels.tsv"), "w", encoding="utf-8") as f:
        f.writelines(rows)
    with open(os.path.join(args.out, "prepared.tsv"), "w", encoding="utf-8") as f:
        f.writelines(prepared)


if __name__ == "__main__":
    main()
