"""Texts of Debian's documentation packages -> plain text, vocabulary, token files.

Fetches the packages named in apt-texts.txt by name (`apt-get download`, nothing is
installed), takes the running text out of their HTML pages, leaves one page in
forty (by CRC of its name) to the held-out set, trains a byte-level BPE vocabulary
on the rest and writes

    OUT/pages/{train,heldout}.txt   the pages, each after a line \\f<package>/<page>
    OUT/vocab.json                  the vocabulary (Hugging Face tokenizers' format)
    OUT/{train,heldout}.npy         tokens, u16: bos page eos bos page eos ...
"""

import argparse
import pathlib
import re
import subprocess
import zlib
from html.parser import HTMLParser

import numpy
import tokenizers

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<|begin|>", "<|end|>"
BREAKS = {"p", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "div", "pre", "tr", "table",
          "ul", "ol", "dl", "blockquote", "section", "br"}
SKIPPED_TAGS = {"script", "style", "nav", "head", "form", "footer", "button", "svg", "table"}
SKIPPED_CLASSES = {"headerlink", "navheader", "navfooter", "sphinxsidebar", "related", "footer", "toc",
                   "toctree-wrapper", "contents", "viewcode-link", "indextable", "linenos", "copyright",
                   "releaseinfo", "deprecated-removed", "edit-on-github", "nav"}
SKIPPED_IDS = {"hd", "ft", "sidebar"}
# Indices, changelogs, pages that are mostly lists of names, translations.
SKIPPED_PAGES = re.compile(
    r"genindex|modindex|/releases/\d+\.\d+\.|search|contents|changelog|/changes|/_modules/|bookindex|biblio|release-1|release-prior"
    r"|features|sql-keywords|errcodes|/sunos|acronyms|/about\.|license|copyright|opensearch|glibc-errno"
    r"|unicode_data|/apndx|legalnotice|\.(de|ja|zh-cn|zh-tw|pt|fr|it|es|ru)\."
)
VOID = {"br", "img", "hr", "input", "link", "meta", "col", "area", "wbr", "source"}


class Page(HTMLParser):
    """The running text of a page: paragraphs and listings, an empty line between."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.blocks, self.text = [], []
        self.skip, self.pre, self.stack = 0, 0, []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        classes = set((attrs.get("class") or "").split())
        if tag in BREAKS:
            self.flush()
        if tag in VOID:
            return
        skipped = tag in SKIPPED_TAGS or bool(classes & SKIPPED_CLASSES) or attrs.get("id") in SKIPPED_IDS
        self.stack.append((tag, skipped))
        self.skip += skipped
        self.pre += tag == "pre"

    def handle_endtag(self, tag):
        if not any(open_tag == tag for open_tag, _ in self.stack):
            return
        if tag in BREAKS:
            self.flush()
        while self.stack:
            open_tag, skipped = self.stack.pop()
            self.skip -= skipped
            self.pre -= open_tag == "pre"
            if open_tag == tag:
                return

    def handle_data(self, data):
        if not self.skip:
            self.text.append(data if self.pre else re.sub(r"\s+", " ", data))

    def flush(self):
        text = "".join(self.text)
        self.text = []
        if not text.strip():
            return
        lines = [line.rstrip() for line in text.strip("\n").split("\n")]
        self.blocks.append("\n".join(lines) if self.pre else re.sub(r" +", " ", text).strip())


def page_text(html):
    """Text of one HTML page, or "" where there is hardly any prose."""
    body = re.search(r'<(div|main|article|section)[^>]*role="main".*', html, re.S)
    page = Page()
    page.feed(body.group(0) if body else html)
    page.close()
    page.flush()
    text = "\n\n".join(page.blocks)
    for odd, plain in (("\u00a0", " "), ("\u00b6", ""), ("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'),
                       ("\u201d", '"'), ("\u2014", " - "), ("\u2013", "-"), ("\u2026", "..."), ("\u00ad", "")):
        text = text.replace(odd, plain)
    text = "".join(c for c in text if ord(c) < 0x250 or c == "\n")
    return text if len(text) > 600 else ""


def pages(root):
    """(name, text) of every page of the unpacked packages, in order of names."""
    seen = set()
    for path in sorted(root.rglob("*.html")):
        name = str(path.relative_to(root))
        if path.is_symlink() or SKIPPED_PAGES.search(name.replace(".html", ".")):
            continue
        text = page_text(path.read_text(encoding="utf-8", errors="ignore"))
        digest = zlib.crc32(text.encode())
        if text and digest not in seen:
            seen.add(digest)
            yield name, text


def fetch(out):
    """Downloads and unpacks the packages of apt-texts.txt into OUT/unpacked/<package>."""
    for package in (HERE / "apt-texts.txt").read_text().split():
        target = out / "unpacked" / package
        if target.exists():
            continue
        debs = out / "debs" / package
        debs.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=debs, check=True)
        subprocess.run(["dpkg", "-x", next(debs.glob("*.deb")), target], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for everything this script makes")
    parser.add_argument("--vocab", type=int, default=2048, help="size of the vocabulary")
    parser.add_argument("--keep-vocab", action="store_true", help="use OUT/vocab.json as it is")
    options = parser.parse_args()
    fetch(options.out)

    parts = {"train": [], "heldout": []}
    for name, text in pages(options.out / "unpacked"):
        part = "heldout" if zlib.crc32(name.encode()) % 40 == 0 else "train"
        parts[part].append((name, text))
    (options.out / "pages").mkdir(exist_ok=True)
    for part, found in parts.items():
        content = "".join(f"\f{name}\n{text}\n" for name, text in found)
        (options.out / "pages" / f"{part}.txt").write_text(content, encoding="utf-8")

    path = options.out / "vocab.json"
    if options.keep_vocab:
        vocabulary = tokenizers.Tokenizer.from_file(str(path))
    else:
        vocabulary = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
        vocabulary.train_from_iterator((text for _, text in parts["train"]), vocab_size=options.vocab,
                                       min_frequency=2, special_tokens=[BOS, EOS], show_progress=False)
        vocabulary.save(str(path))
    for part, found in parts.items():
        ids = []
        for _, text in found:
            ids += [0, *vocabulary.encode(text).ids, 1]
        numpy.save(options.out / f"{part}.npy", numpy.array(ids, dtype=numpy.uint16))
        characters = sum(len(text) for _, text in found)
        print(f"{part}: {len(found)} pages, {characters} characters, {len(ids)} tokens")


if __name__ == "__main__":
    main()
