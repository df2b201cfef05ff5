"""The font faces of Debian's packages: which are used, which are held out."""
import glob
import json
import os
import re
from collections import defaultdict

import numpy as np
from fontTools.ttLib import TTFont
from PIL import ImageFont

from charset import CHARSET

FOLDERS = ("/usr/share/fonts", "/usr/share/texlive/texmf-dist/fonts")

# Families never seen in training, with everything derived from them (Carlito is
# Lato; Cochineal is Crimson).
HELD_OUT = re.compile(
    r"^(lato|carlito|merriweather|ibm plex|pt (sans|serif|mono)|caladea|crimson|cochineal"
    r"|inconsolata|montserrat|vollkorn|cantarell)", re.I)

# Not ordinary text: symbols, small capitals, scripts, display and broken faces.
EXCLUDED = re.compile(
    r"( SC$|small ?caps|cinzel|bebas|keyboard|unicode$|acathist|fetamont|^drm|^frm$|shafarik|miama|cyklop"
    r"|d050000l|standard symbols|dingb|math|logix|keyfont|monoisome|modak|romande adf (script|style)|archiv0"
    r"|^step$|^unpilgi|^ungungseo|^almendra|alternates|punk|emoji|symbol|fontawesome|gotu|^ae[bmps]|decorative"
    r"|mezenets|monomakh|^nanum(brush|pen)|upright|classical serif|clara|^aboensis|missaali"
    r"|^qt(?!agate|ancient|avanti|basker|bodini$|bookmann|caslan$|euro|friz|future$|garom|helvetcnd|howardtype$|korrin"
    r"|lettergoth|oldgoudy|optimum|palatine|pristine|schoolcentury|techtone|vaga|weise|kooper))", re.I)
BAD_STYLE = re.compile(
    r"(thin|hairline|extra-?light|ultra-?light|smcp|caps|[-_. ]sc\b|unicase|swash|outline|inline|shadow|initials"
    r"|smallcap|reverse|expert|semiserif|two$|eight$|four$)", re.I)
COMMON = re.compile(
    r"^(liberation|arimo|tinos|cousine|nimbus|free(sans|serif|mono)|dejavu|roboto|open sans|noto (sans|serif)$|noto sans mono"
    r"|droid|source|tex gyre|fira|inter|raleway|ubuntu|libre|eb garamond|p052|c059|urw|gothic|courier|hack|jetbrains)", re.I)


def _family(path):
    font = TTFont(path, lazy=True, fontNumber=0)
    names = font["name"]
    family = names.getDebugName(16) or names.getDebugName(1) or ""
    style = names.getDebugName(17) or names.getDebugName(2) or ""
    return family, style, set(font.getBestCmap() or {})


def _bitmap(font, char, size):
    mask = font.getmask(char, mode="L")
    if 0 in mask.size:
        return None
    box = mask.getbbox()
    return mask if box is None else mask.crop(box).resize((size, size))


def _small_capitals(font):
    """Are lower-case letters scaled capitals?"""
    same = 0
    for c in "abdegr":
        low, up = _bitmap(font, c, 24), _bitmap(font, c.upper(), 24)
        if low is None or up is None:
            return True
        a, b = (np.array(m, np.float32).reshape(24, 24) > 127 for m in (low, up))
        same += (a & b).sum() > 0.8 * (a | b).sum()
    return same >= 4


def _scan(path):
    """One face's record, or None when it is of no use."""
    try:
        family, style, cmap = _family(path)
        name = os.path.basename(path)
        if EXCLUDED.search(family) or BAD_STYLE.search(style) or BAD_STYLE.search(name):
            return None
        if not cmap.issuperset(range(0x20, 0x7F)):
            return None
        font = ImageFont.truetype(path, 40)
        if _small_capitals(font):
            return None
        chars = "".join(c for c in CHARSET if ord(c) in cmap and (c == " " or font.getmask(c).getbbox()))
        missing = font.getmask("\uffff")
        notdef = bytes(missing)
        chars = "".join(c for c in chars if c == " " or bytes(font.getmask(c)) != notdef)
    except Exception:                 # unreadable or odd files are simply left out
        return None
    if len(chars) < 180:
        return None
    return {"path": path, "family": family, "style": style, "chars": chars}


def faces(cache):
    """All usable faces; the scan is kept in the folder `cache`."""
    kept = os.path.join(cache, "fonts.json")
    if not os.path.exists(kept):
        os.makedirs(cache, exist_ok=True)
        found = []
        for folder in FOLDERS:
            for path in sorted(glob.glob(folder + "/**/*.[to]tf", recursive=True)):
                record = _scan(path)
                if record:
                    found.append(record)
        with open(kept, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=0)
    with open(kept, encoding="utf-8") as f:
        return json.load(f)


class Fonts:
    """Draws faces: a family first (well-known ones more often), then a face."""

    def __init__(self, cache, rng, test=False):
        self.rng = rng
        families = defaultdict(list)
        for face in faces(cache):
            if bool(HELD_OUT.search(face["family"])) == test:
                families[face["family"]].append(face)
        self.names = sorted(families)
        self.families = families
        self.weights = [5 if COMMON.search(n) and not test else 1 for n in self.names]

    def draw(self):
        return self.rng.choice(self.families[self.rng.choices(self.names, self.weights)[0]])
