"""Pictures and what models/textline/prepare.py makes of them, for tests/line_image.rs.

usage: python make.py   (needs numpy and Pillow with FreeType; writes *.png and *.npy here)
"""
import pathlib
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "models" / "textline"))
import prepare  # noqa: E402


def text(size, words, points, paper, ink, at=(12, 8), mode="L"):
    picture = Image.new(mode, size, paper)
    ImageDraw.Draw(picture).text(at, words, fill=ink, font=ImageFont.load_default(points))
    return picture


def noisy(picture, sigma):
    rng = np.random.default_rng(5)
    values = np.asarray(picture).astype(float)
    return Image.fromarray(np.clip(values + rng.normal(0, sigma, values.shape), 0, 255).astype(np.uint8))


two = text((240, 60), "second line, qpgy", 20, 250, 30, at=(10, 20))
ImageDraw.Draw(two).text((10, -13), "neighbour gypq", fill=30, font=ImageFont.load_default(20))

CASES = {
    "plain": text((220, 40), "Plain text 123", 22, 255, 0),
    "inverse_noise": noisy(text((200, 36), "light on dark", 18, 40, 200), 9),
    "colour": noisy(text((210, 44), "red on green", 24, (60, 150, 90), (190, 40, 30), mode="RGB"), 6),
    "alpha": text((180, 40), "alpha", 28, (0, 0, 0, 0), (20, 20, 120, 230), mode="RGBA"),
    "slope": noisy(text((300, 60), "a sloping line of text", 20, 230, 60, at=(20, 16)).rotate(
        2.5, Image.BILINEAR, fillcolor=230), 4),
    "slope_down": text((300, 60), "another sloping line", 20, 20, 180, at=(20, 16)).rotate(
        -3, Image.BILINEAR, fillcolor=20),
    "neighbour": two,
    "faint": noisy(text((260, 50), "low contrast", 26, 150, 128), 2),
    "small_on_sheet": text((600, 400), "a small line", 14, 255, 0, at=(300, 200)),
    "tall": text((400, 120), "Large", 90, 255, 10, at=(30, 6)),
    "close": text((196, 64), "Large", 90, 255, 10, at=(0, -30)),
    "drift": Image.fromarray(np.clip(np.asarray(text((500, 40), "paper that grows darker to the right", 24, 250, 40),
        float) - np.linspace(0, 90, 500), 0, 255).astype(np.uint8)),
    "salt": Image.fromarray(np.where(np.random.default_rng(3).random((40, 260)) < 0.02, 255,
        np.asarray(text((260, 40), "salt noise", 26, 120, 60))).astype(np.uint8)),
    "shade": Image.fromarray(np.clip(np.asarray(text((300, 48), "darker towards the foot", 22, 240, 30),
        float) - np.linspace(0, 80, 48)[:, None], 0, 255).astype(np.uint8)),
    "shadow": Image.fromarray(np.clip(np.asarray(noisy(text((420, 60), "a shadow deeper than ink", 24, 210, 170), 3),
        float) - 45 - 45 * np.tanh((np.arange(420) - 200 - np.arange(60)[:, None] / 2) / 50), 0, 255).astype(np.uint8)),
    "shadow_inverse": Image.fromarray(np.clip(np.asarray(noisy(text((420, 60), "light ink in a shadow", 24, 120, 165), 3),
        float) * (0.75 - 0.25 * np.tanh((np.arange(420) - 150) / 40)), 0, 255).astype(np.uint8)),
    "mostly_ink": noisy(text((150, 46), "WMH", 62, 200, 90, at=(2, -8)), 12),
    "accents": text((260, 60), "ÅÉÎ ñ ü — jÿ", 34, 255, 0, at=(10, 8)),
    "coloured_paper": noisy(text((210, 44), "blue on beige", 24, (225, 205, 160), (40, 60, 150), mode="RGB"), 9),
    "blank": Image.new("L", (40, 30), 128),
}
for name, picture in CASES.items():
    picture.save(HERE / f"{name}.png", optimize=True)
    line = prepare.prepare(Image.open(HERE / f"{name}.png"))
    np.save(HERE / f"{name}.npy", line)
    print(name, line.shape)
