"""Renders lines of text as pictures: clean ones and damaged ones.

    python render.py --out POOL --chunks 100 --first 0     (training pool)
"""
import argparse
import io
import math
import os
import random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from fonts import Fonts
from prepare import prepare
from text import Texts

CHUNK = 1000
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class Renderer:
    """Draws (kind, text, picture) with one seeded stream of random numbers."""

    def __init__(self, cache, seed, test=False):
        self.rng = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.texts = Texts(cache, seed + 1, test)
        self.fonts = Fonts(cache, random.Random(seed + 2), test)
        self.test = test
        self.opened = {}

    def draw(self, damaged):
        """One line: (kind, text, face, size, PIL picture)."""
        r = self.rng
        low, high = (12, 60) if self.test else (10, 62)
        while True:
            face = self.fonts.draw()
            kind, text = self.texts.draw()
            if not set(text) <= set(face["chars"]):
                continue
            if kind == "random" and r.random() < 0.7:      # no context tells these apart
                text = text.replace("I", "").replace("l", "").replace("|", "").strip()
                text = " ".join(text.split())
                if not text:
                    continue
            size = int(round(math.exp(r.uniform(math.log(low), math.log(high)))))
            cover = self._cover(text, face, size, damaged)
            if cover is None:
                continue
            return kind, text, face, size, self._picture(cover, size, damaged)

    # ------------------------------------------------------------ the letters

    def _font(self, face, size, layout):
        key = face["path"], size, layout
        if key not in self.opened:
            if len(self.opened) > 400:
                self.opened.clear()
            self.opened[key] = ImageFont.truetype(face["path"], size, layout_engine=layout)
        return self.opened[key]

    def _cover(self, text, face, size, damaged):
        """Ink cover 0..255 as an "L" picture, or "RGB" for sub-pixel rendering."""
        r = self.rng
        style = r.random()
        scale = 2 if style < 0.3 and size < 40 else 1
        fringe = style > 0.96 and size < 24
        if fringe:
            scale = 3
        layout = ImageFont.Layout.RAQM if r.random() < 0.6 else ImageFont.Layout.BASIC
        font = self._font(face, size * scale, layout)
        tracking = 0.0
        if damaged and r.random() < 0.3:
            tracking = r.uniform(0.02, 0.3) if r.random() < 0.6 else -r.uniform(0.01, 0.06)
        elif r.random() < 0.06:
            tracking = r.uniform(-0.01, 0.12)
        # Few of the training fonts set words as tightly as some of the others do.
        space = r.uniform(0.5, 0.95) if not self.test and r.random() < 0.15 else 1.0

        left, top, right, bottom = font.getbbox(text, anchor="ls")
        if right - left < 2 or bottom - top < 2:
            return None
        em = size * scale
        steps = None
        if tracking or space < 1:
            gap = min(font.getlength(" "), max(0.12 * em, space * font.getlength(" ")))
            steps = np.cumsum([0.0] + [(gap if c == " " else font.getlength(c)) + tracking * em for c in text])
            right = max(right, int(steps[-1]) + em // 2)
        u = r.random()
        if u < 0.25:
            pads = [r.randint(1, 3) * scale for _ in range(4)]
        elif u < 0.85:
            pads = [int(r.uniform(0.05, 0.6) * em) for _ in range(4)]
        else:
            pads = [int(r.uniform(0.3, 2.0) * em) for _ in range(4)]
        if damaged and r.random() < 0.08:      # cut close: the outermost pixels may go
            pads[1] = pads[3] = -1
        x = pads[0] - left
        base = pads[1] - top
        width, height = pads[0] + right - left + pads[2], pads[1] + bottom - top + pads[3]
        if height < 2:                         # a lone dash, cut close
            return None
        cover = Image.new("L", (width, height), 0)
        pen = ImageDraw.Draw(cover)
        if style < 0.36 and style >= 0.3 and size < 32:
            pen.fontmode = "1"
        if steps is None:
            pen.text((x, base), text, 255, font, anchor="ls")
        else:
            for c, step in zip(text, steps):
                pen.text((x + int(round(step)), base), c, 255, font, anchor="ls")
        if damaged:
            extra = Image.new("L", cover.size, 0)
            self._company(ImageDraw.Draw(extra), font, em, x, base, top, bottom, right - left, width, height)
            cover = ImageChops.lighter(cover, extra)
        if fringe:
            return self._subpixels(cover)
        if scale > 1:
            cover = cover.resize((max(1, width // scale), max(1, height // scale)), Image.BOX)
        return cover

    def _company(self, pen, font, em, x, base, top, bottom, long, width, height):
        """Underline, light strike-through, a little of a neighbouring line, a frame."""
        r = self.rng
        u = r.random()
        if u < 0.1:
            thick = max(1, int(r.uniform(0.03, 0.09) * em))
            y = base + int(r.uniform(0.06, 0.22) * em)
            pen.rectangle((x - r.randint(0, em // 2), y, x + long, y + thick - 1), fill=r.randint(140, 255))
        elif u < 0.13:
            y = base - int(r.uniform(0.2, 0.36) * em)
            pen.line((x, y, x + long, y + r.randint(-2, 2)), fill=r.randint(40, 110), width=max(1, em // 24))
        u = r.random()
        if u < 0.2:
            shown = r.uniform(0.04, 0.22) * em        # of the neighbour's ink
            text = self.texts.draw(longest=r.randint(10, 60))[1]
            box = font.getbbox(text, anchor="ls")
            offset = x + r.randint(-em, em)
            if u < 0.1:
                y = int(shown) - box[3]
                if y + box[3] < base + top - 0.06 * em:
                    pen.text((offset, y), text, 255, font, anchor="ls")
            else:
                y = height - int(shown) - box[1]
                if y + box[1] > base + bottom + 0.06 * em:
                    pen.text((offset, y), text, 255, font, anchor="ls")
        elif u < 0.23:
            y = r.choice((0, height - 1))
            pen.line((0, y, width, y), fill=r.randint(100, 255), width=1)

    @staticmethod
    def _subpixels(cover):
        """Three-fold width -> RGB with the usual five-tap filter."""
        a = np.asarray(cover, np.float32)
        height, width = a.shape[0] // 3, a.shape[1] // 3
        if height < 1 or width < 1:
            return None
        a = a[:height * 3, :width * 3].reshape(height, 3, width * 3).mean(axis=1)
        p = np.pad(a, ((0, 0), (2, 2)))
        n = width * 3
        a = (p[:, :n] + 2 * p[:, 1:n + 1] + 3 * p[:, 2:n + 2] + 2 * p[:, 3:n + 3] + p[:, 4:n + 4]) / 9
        return Image.fromarray(a.reshape(height, width, 3).astype(np.uint8))

    # ------------------------------------------------------------ the picture

    def _picture(self, cover, size, damaged):
        r = self.rng
        strong = r.sample(("warp", "weight", "light", "texture", "blur", "noise", "salt", "rescale",
                           "jpeg", "contrast"), min(r.choice((1, 2, 2, 3, 3, 4)), 2 if size < 16 else 3 if size < 24 else 4)
                          ) if damaged else ()
        if "warp" in strong:
            cover = self._warp(cover, size)
        ink = np.asarray(cover, np.float32) * (1 / 255)
        if "weight" in strong:
            ink = self._weight(ink, size)
        picture = self._colours(ink, "contrast" in strong, damaged)
        contrast = self.contrast
        if "light" in strong:
            picture = self._light(picture)
        if "texture" in strong:
            picture = self._texture(picture, contrast)
        picture = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
        if "blur" in strong:
            picture = self._blur(picture, size)
        if "rescale" in strong:
            picture = self._rescale(picture, size)
        if "noise" in strong or "salt" in strong:
            a = np.asarray(picture, np.float32)
            if "noise" in strong:
                sigma = r.uniform(0.03, min(0.17, 0.006 * size)) * contrast
                a = a + self.noise.standard_normal(a.shape, np.float32) * sigma
            a = np.clip(a, 0, 255).astype(np.uint8)
            if "salt" in strong:
                specks = self.noise.random(a.shape[:2], np.float32)
                p = r.uniform(0.0005, 0.006)
                middle, reach = float(np.median(a)), contrast * r.uniform(0.7, 1.3)
                a[specks < p] = max(0, int(middle - reach))
                a[specks > 1 - p] = min(255, int(middle + reach))
            picture = Image.fromarray(a)
        if "jpeg" in strong:
            quality = r.randint(20, 60) if size >= 18 else r.randint(35, 70)
            kept = io.BytesIO()
            picture.save(kept, "JPEG", quality=quality)
            picture = Image.open(kept)
            picture.load()
        return picture

    def _warp(self, cover, size):
        """Rotation up to 3 degrees, shear, a slight perspective."""
        r = self.rng
        width, height = cover.size
        angle = math.radians(r.uniform(-3, 3)) if r.random() < 0.75 else 0.0
        lean = r.uniform(-0.18, 0.18) if r.random() < 0.4 else 0.0
        extra = int(abs(math.sin(angle)) * width) + 2
        out_w, out_h = width + int(abs(lean) * height) + 4, height + extra
        cx, cy, ox, oy = width / 2, height / 2, out_w / 2, out_h / 2
        cos, sin = math.cos(angle), math.sin(angle)
        a, b = cos, -sin - lean
        d, e = sin, cos
        bend = r.uniform(-0.12, 0.12) / max(width, 12 * height) if r.random() < 0.25 else 0.0
        g = bend
        coefficients = (a + g * cx, b, cx - a * ox - b * oy - g * cx * ox,
                        d + g * cy, e, cy - d * ox - e * oy - g * cy * ox, g, 0.0)
        scale = 1 - g * ox
        coefficients = tuple(c / scale for c in coefficients)
        return cover.transform((out_w, out_h), Image.PERSPECTIVE, coefficients, Image.BILINEAR)

    def _weight(self, ink, size):
        """Heavier or thinner strokes."""
        r = self.rng
        if size >= 30 and r.random() < 0.5:
            image = Image.fromarray((ink * 255).astype(np.uint8))
            kind = ImageFilter.MaxFilter if r.random() < 0.6 else ImageFilter.MinFilter
            other = np.asarray(image.filter(kind(3)), np.float32) * (1 / 255)
            t = r.uniform(0.3, 1.0) if kind is ImageFilter.MaxFilter else r.uniform(0.2, 0.6)
            return ink + t * (other - ink)
        return ink ** r.choice((r.uniform(0.45, 0.9), r.uniform(1.1, 1.7)))

    def _colours(self, ink, low_contrast, damaged):
        """Ink on paper in grey or colour, dark on light or light on dark.

        Damaged colours differ in lightness, too: nothing else outlives a strong JPEG.
        """
        r = self.rng
        low, high = (28, 70) if low_contrast else (90, 255)
        coloured = ink.ndim == 3 or r.random() < 0.22
        for _ in range(50):
            if coloured:
                paper = np.array([r.randint(0, 255) for _ in range(3)], np.float32)
                tone = np.array([r.randint(0, 255) for _ in range(3)], np.float32)
                if r.random() < 0.6:            # tinted paper, dark ink
                    paper = 255 - np.array([r.uniform(0, 60) for _ in range(3)], np.float32)
                    tone *= 0.45
                if low_contrast:
                    tone = paper + (tone - paper) * r.uniform(0.1, 0.5)
                self.contrast = float(np.abs(paper - tone).max())
                if damaged and abs(float((paper - tone) @ LUMA)) < low:
                    continue
            else:
                if r.random() < 0.5:
                    paper, tone = r.randint(225, 255), r.randint(0, 60)
                else:
                    paper, tone = r.randint(0, 255), r.randint(0, 255)
                if low_contrast:
                    tone = paper + r.choice((-1, 1)) * r.randint(low, high)
                    if not 0 <= tone <= 255:
                        continue
                if paper < tone and r.random() < 0.4:
                    paper, tone = tone, paper
                self.contrast = abs(paper - tone)
            if low <= self.contrast <= high:
                break
        else:
            coloured, paper, tone, self.contrast = False, 255, 0, 255
            if ink.ndim == 3:
                ink = ink.mean(axis=2)
        if coloured and ink.ndim == 2:
            ink = ink[:, :, None]
        return paper + (tone - paper) * ink

    def _light(self, picture):
        """Uneven illumination: a ramp, or a soft shadow edge."""
        r = self.rng
        height, width = picture.shape[:2]
        x = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
        y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
        depth = r.uniform(0.08, 0.3 if self.test else 0.45)
        if r.random() < 0.6:
            direction = r.uniform(-math.pi, math.pi)
            field = math.cos(direction) * x + math.sin(direction) * y * 0.5
        else:
            field = np.tanh((x - r.uniform(-0.8, 0.8) + 0.1 * y) * r.uniform(2, 8))
        factor = 1 - depth * (0.5 + 0.5 * field)
        return picture * (factor if picture.ndim == 2 else factor[:, :, None])

    def _texture(self, picture, contrast):
        """Paper: soft blotches and fine grain."""
        r = self.rng
        height, width = picture.shape[:2]
        cell = r.choice((2, 3, 6, 12, 24))
        grid = self.noise.standard_normal((height // cell + 2, width // cell + 2), np.float32)
        field = np.asarray(Image.fromarray(grid).resize((width, height), Image.BICUBIC))
        field = field * r.uniform(0.02, 0.11) * contrast
        return picture + (field if picture.ndim == 2 else field[:, :, None])

    def _blur(self, picture, size):
        r = self.rng
        if r.random() < 0.7:
            return picture.filter(ImageFilter.GaussianBlur(r.uniform(0.25, 0.045 * max(size, 14))))
        length = max(2, int(round(r.uniform(0.04, 0.12) * size)))
        a = np.asarray(picture, np.float32)
        axis = 1 if r.random() < 0.7 else 0
        padded = np.pad(a, [(length // 2, length - 1 - length // 2) if i == axis else (0, 0)
                            for i in range(a.ndim)], mode="edge")
        total = 0
        for i in range(length):
            total = total + (padded[:, i:i + a.shape[1]] if axis else padded[i:i + a.shape[0]])
        return Image.fromarray((total / length).astype(np.uint8))

    def _rescale(self, picture, size):
        """Down and up again, or only down or up."""
        r = self.rng
        width, height = picture.size
        lowest = min(1.0, 11 / size)
        factor = r.uniform(max(0.4, lowest), 1.0)
        small = (max(4, int(width * factor)), max(4, int(height * factor)))
        method = r.choice((Image.BILINEAR, Image.BICUBIC, Image.NEAREST if factor > 0.8 and size >= 24 else Image.BOX))
        picture = picture.resize(small, method)
        if r.random() < 0.6:
            picture = picture.resize((width, height), r.choice((Image.BILINEAR, Image.BICUBIC)))
        elif r.random() < 0.5 and size < 30:
            picture = picture.resize((small[0] * 2, small[1] * 2), r.choice((Image.BILINEAR, Image.NEAREST)))
        return picture


def make_chunk(renderer, count):
    """`count` prepared lines: uint8 [32, sum of widths], the widths, the texts."""
    lines, texts = [], []
    r = renderer.rng
    while len(lines) < count:
        _, text, _, _, picture = renderer.draw(damaged=r.random() < 0.6)
        jitter = (r.uniform(-0.05, 0.08), r.uniform(-0.05, 0.08)) if r.random() < 0.5 else (0.0, 0.0)
        line = prepare(picture, jitter)[0, 0]
        if line.shape[1] > 1600 or line.shape[1] // 2 < 2 * len(text) + 1:
            continue
        lines.append((line * 255 + 0.5).astype(np.uint8))
        texts.append(text)
    return np.concatenate(lines, axis=1), [a.shape[1] for a in lines], texts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder of the pool")
    parser.add_argument("--cache", default="cache", help="folder of the font list and texts")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=100)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    renderer = Renderer(args.cache, seed=1000 + args.first)
    for i in range(args.first, args.first + args.chunks):
        pixels, widths, texts = make_chunk(renderer, CHUNK)
        part = os.path.join(args.out, f"part-{i}.npz")
        np.savez(part, pixels=pixels, widths=np.array(widths), texts=np.array(texts))
        os.rename(part, os.path.join(args.out, f"chunk-{i:05d}.npz"))


if __name__ == "__main__":
    main()
