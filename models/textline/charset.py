"""The classes of the network: 0 is the CTC blank, class i is CHARSET[i - 1]."""
import re

CHARSET = (
    "".join(map(chr, range(0x20, 0x7F)))
    + "".join(chr(c) for c in range(0xA1, 0x100) if c != 0xAD)
    + "‘’‚“”„–—…•€‹›")
CLASSES = len(CHARSET) + 1
INDEX = {c: i + 1 for i, c in enumerate(CHARSET)}


def normalise(text):
    """No-break spaces to spaces, runs of white space to one, none at the ends."""
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ").replace("\u202f", " ")).strip()


def encode(text):
    return [INDEX[c] for c in text]


def greedy(logits):
    """Best path of one line: logits [T, classes] -> text."""
    best = logits.argmax(axis=-1)
    text, last = [], 0
    for c in best:
        if c != last and c != 0:
            text.append(CHARSET[int(c) - 1])
        last = c
    return "".join(text)
