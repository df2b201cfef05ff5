"""Texts to render: sentences of Debian's documentation, word lists, and made-up
numbers, prices, dates, addresses, code and symbol strings.

One paragraph or word in twenty (by its CRC) is never used in training: texts of
the held-out set come only from these.
"""
import glob
import gzip
import html
import os
import random
import re
import zlib

from charset import CHARSET, normalise

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "da", "sv", "nb", "fi", "ca")
WORD_LISTS = ("american-english", "british-english", "ngerman", "french", "spanish",
              "italian", "portuguese", "dutch", "danish", "swedish", "bokmaal",
              "catalan", "irish", "faroese")
# Packages whose English manual pages are read; the translated ones are Debian's.
MANUALS = ("manpages", "manpages-dev", "git-man", "dpkg", "dpkg-dev", "apt", "bash", "coreutils", "tar",
           "grep", "findutils", "util-linux", "passwd", "systemd", "man-db", "debconf", "procps", "e2fsprogs")
MAX_PER_LANGUAGE = 40000
ALLOWED = set(CHARSET)
ACCENTED = [c for c in CHARSET if c.isalpha() and ord(c) > 0x7F]
ACCENTS = {b: [c for c in ACCENTED if c in cs] for b, cs in {
    "a": "àáâãäåæª", "c": "ç", "e": "èéêë", "i": "ìíîï", "n": "ñ", "o": "òóôõöøº",
    "u": "ùúûü", "y": "ýÿ", "s": "ß", "d": "ð", "t": "þ", "A": "ÀÁÂÃÄÅÆ", "C": "Ç",
    "E": "ÈÉÊË", "I": "ÌÍÎÏ", "N": "Ñ", "O": "ÒÓÔÕÖØ", "U": "ÙÚÛÜ", "Y": "Ý",
    "D": "Ð", "T": "Þ", "m": "µ"}.items()}
SIGNS = [c for c in CHARSET if not c.isalnum() and c != " "]
RARE = [c for c in CHARSET if ord(c) > 0x7F]


def held_out(item):
    return zlib.crc32(item.encode()) % 20 == 0


# ---------------------------------------------------------------- sources

def _man_paragraphs(path):
    with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as f:
        source = f.read(200000)
    block = []
    for line in source.split("\n"):
        if line.startswith((".", "'")) or not line.strip():
            if block:
                yield " ".join(block)
            block = []
            continue
        line = re.sub(r"\\f(\[.*?\]|\(..|.)|\\s[-+]?\d|\\[&/,|^]|\\$", "", line)
        line = line.replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\(bu", "•")
        line = line.replace(r"\(cq", "’").replace(r"\(oq", "‘").replace(r"\(lq", "“")
        line = line.replace(r"\(rq", "”").replace(r"\(em", "—").replace(r"\(en", "–")
        line = line.replace(r"\e", "").replace(r"\ ", " ").replace(r"\~", " ")
        if "\\" not in line:
            block.append(line)


def _html_paragraphs(path):
    with open(path, encoding="utf-8", errors="ignore") as f:
        source = f.read()
    for part in re.findall(r"<(?:p|li|dd|h\d|title|td)[ >].*?</(?:p|li|dd|h\d|title|td)>",
                           source, re.S):
        yield html.unescape(re.sub(r"<[^>]*>", "", part[part.index(">") + 1:] if part[2] in " >"
                                   else part))


def _manuals(language):
    """Paths of the manual pages of one language."""
    if language != "en":
        return glob.glob(f"/usr/share/man/{language}*/man[1-8]/*.gz")
    paths = []
    for package in MANUALS:
        for listing in glob.glob(f"/var/lib/dpkg/info/{package}.list") + \
                glob.glob(f"/var/lib/dpkg/info/{package}:*.list"):
            with open(listing, encoding="utf-8") as f:
                paths += re.findall(r"^/usr/share/man/man[1-8]/.*\.gz$", f.read(), re.M)
    return [p for p in paths if os.path.exists(p)]


def _files(language):
    """Documentation of one language, in a fixed order."""
    html_patterns = (
        f"/usr/share/doc/debian-handbook/html/{language}*/*.html",
        f"/usr/share/doc/installation-guide-amd64/{language}/*.html",
        f"/usr/share/debian-reference/*.{language}.html",
        f"/usr/share/developers-reference/{'' if language == 'en' else language + '/'}*.html",
        f"/usr/share/doc/developers-reference*{language}*/html/*.html",
        f"/usr/share/doc/maint-guide*/html/*{language}*.html",
        f"/usr/share/doc/debian/FAQ/{'' if language == 'en' else language + '/'}*.html",
        f"/usr/share/doc/debian-edu-doc-{language}/**/*.html",
        f"/usr/share/doc/aptitude/html/{language}/*.html")
    for pattern in html_patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            yield _html_paragraphs, path
    paths = sorted(_manuals(language))
    random.Random(0).shuffle(paths)
    for path in paths:
        yield _man_paragraphs, path


def build_corpus(cache):
    """Paragraphs by language and the word lists; kept in the folder `cache`."""
    os.makedirs(cache, exist_ok=True)
    paragraphs, words = {}, {}
    for language in LANGUAGES:
        kept = os.path.join(cache, f"text-{language}.txt")
        if not os.path.exists(kept):
            found = {}
            for reader, path in _files(language):
                for p in reader(path):
                    p = normalise(p)
                    letters = sum(c.isalpha() for c in p)
                    if 12 <= len(p) <= 2000 and letters * 3 >= len(p) * 2 and ALLOWED.issuperset(p):
                        found[p] = None
                if len(found) >= MAX_PER_LANGUAGE:
                    break
            with open(kept, "w", encoding="utf-8") as f:
                f.write("\n".join(found))
        with open(kept, encoding="utf-8") as f:
            paragraphs[language] = f.read().split("\n")
    for name in WORD_LISTS:
        with open(f"/usr/share/dict/{name}", encoding="utf-8", errors="ignore") as f:
            words[name] = [w for w in f.read().split() if ALLOWED.issuperset(w)]
    return paragraphs, words


# ---------------------------------------------------------------- generators

class Texts:
    """Draws line texts. `test` chooses the held-out part and the natural mix."""

    # kind: (share in training, share in the held-out set)
    MIX = {"sentence": (34, 46), "words": (16, 16), "number": (12, 14), "address": (7, 8),
           "code": (6, 5), "accents": (9, 4), "signs": (6, 3), "random": (7, 1),
           "short": (3, 3)}

    def __init__(self, cache, seed, test=False):
        self.rng = random.Random(seed)
        self.test = test
        paragraphs, words = build_corpus(cache)
        self.paragraphs = {k: [p for p in v if held_out(p) == test]
                           for k, v in paragraphs.items()}
        self.paragraphs = {k: v for k, v in self.paragraphs.items() if v}
        self.words = {k: [w for w in v if held_out(w) == test] for k, v in words.items()}
        self.kinds = list(self.MIX)
        self.shares = [self.MIX[k][1 if test else 0] for k in self.kinds]

    def draw(self, longest=None):
        """(kind, text)"""
        while True:
            kind = self.rng.choices(self.kinds, self.shares)[0]
            text = normalise(getattr(self, "_" + kind)(longest or self._length()))
            if kind not in ("random",):
                text = self._dress(text, kind)
            text = normalise(text)
            # The held-out set has no lines of signs alone.
            if text and ALLOWED.issuperset(text) and (not self.test or any(c.isalnum() for c in text)):
                return kind, text

    def _length(self):
        r = self.rng
        return r.randint(*r.choice(((4, 16), (12, 36), (12, 36), (20, 50), (35, 72))))

    def _sentence(self, longest):
        language = "en" if self.rng.random() < 0.3 else self.rng.choice(list(self.paragraphs))
        words = self.rng.choice(self.paragraphs[language]).split(" ")
        start = 0 if self.rng.random() < 0.3 else self.rng.randrange(max(1, len(words) - 4))
        line = words[start][:longest]
        for w in words[start + 1:]:
            if len(line) + 1 + len(w) > longest:
                break
            line += " " + w
        return line

    def _word(self):
        return self.rng.choice(self.words[self.rng.choice(WORD_LISTS)])

    def _words(self, longest):
        r = self.rng
        line = self._word()[:longest]
        while True:
            w = self._word()
            if r.random() < 0.15:
                w = w.capitalize()
            if r.random() < 0.04:
                w = w.upper()
            line_next = line + r.choices((" ", ", ", ". ", "; ", ": ", "-", " – ", "/", " & ", "! ", "? "),
                                         (70, 9, 5, 2, 2, 3, 2, 1, 1, 2, 2))[0] + w
            if len(line_next) > longest:
                return line + (r.choice(".!?:,;…") if r.random() < 0.25 else "")
            line = line_next

    def _digits(self, n):
        return "".join(self.rng.choice("0123456789") for _ in range(n))

    def _one_number(self):
        r = self.rng
        d = self._digits
        whole = str(r.randint(1, 10 ** r.randint(1, 6)))
        grouped = f"{int(whole):,}"
        cents = d(2)
        sep = r.choice((",", "."))
        amount = r.choice((whole + sep + cents, grouped + "." + cents,
                           grouped.replace(",", ".") + "," + cents,
                           grouped.replace(",", " ") + "," + cents, whole, grouped,
                           grouped.replace(",", "’") + "." + cents))
        day, month, year = r.randint(1, 31), r.randint(1, 12), r.randint(1900, 2039)
        return r.choice((
            lambda: amount + r.choice((" €", "€", " EUR", " $", " CHF", " kr", " £", " USD", ",-", " ¢", " ¥")),
            lambda: r.choice(("€ ", "€", "$", "£", "¥", "US$ ", "CHF ", "EUR ", "kr. ", "Fr. ")) + amount,
            lambda: amount,
            lambda: r.choice(("-", "+", "±", "−", "~", "<", ">", "= ", "≈"))[:1].replace("−", "–").replace("≈", "~") + amount,
            lambda: f"{day:02d}.{month:02d}.{year}", lambda: f"{year}-{month:02d}-{day:02d}",
            lambda: f"{day}/{month}/{year % 100:02d}", lambda: f"{month}/{day}/{year}",
            lambda: f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}" + r.choice(("", ":" + d(2), " Uhr", " h", " am", " PM")),
            lambda: amount + r.choice((" %", "%", " ‰")).replace("‰", "%"),
            lambda: f"+{r.randint(1, 99)} {d(2)} {d(3)} {d(2)} {d(2)}", lambda: f"({d(3)}) {d(3)}-{d(4)}",
            lambda: f"0{d(3)}/{d(6)}", lambda: d(r.randint(1, 13)),
            lambda: f"{r.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{r.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{d(2)} {d(4)} {d(4)} {d(4)}",
            lambda: f"v{r.randint(0, 20)}.{r.randint(0, 99)}.{r.randint(0, 30)}", lambda: f"{d(3)}.{d(3)}.{d(2)}.{d(3)}",
            lambda: amount + r.choice((" kg", " g", " km", " cm", " mm", " m²", " m³", " l", " ml", " °C", " °F", " µm",
                                       " kWh", " MB", " GiB", "px", " pcs", " Stk.", " x", " ×")),
            lambda: f"{r.randint(1, 999)} × {r.randint(1, 999)}" + r.choice(("", " × " + d(2))) + r.choice(("", " cm", " mm", " px")),
            lambda: f"{r.randint(1, 99)} {r.choice('+-–×÷*/=<>±')} {r.randint(1, 99)} = {r.randint(1, 999)}",
            lambda: r.choice(("¼", "½", "¾", "1½", "2¼", "3¾", "10²", "x²", "y³", "n¹", "5°", "45°", "§ 12", "§ 3", "No. 7",
                              "N° 5", "Nº 8", "1ª", "2º", "#1", "#42", "¶ 4", "± 0", "µ = 3", "¬x")),
            lambda: f"{year}–{year + r.randint(1, 9)}", lambda: f"§ {r.randint(1, 999)} Abs. {r.randint(1, 9)}",
            lambda: f"{r.randint(1, 400)}-{r.randint(1, 900)}", lambda: f"{r.randint(1, 12)}. {self._word()}",
            lambda: "MCMLXXXIV XXIII VIII IX XIV III II IV VI".split()[r.randrange(9)]))()

    def _number(self, longest):
        r = self.rng
        parts = []
        while True:
            w = self._one_number() if r.random() < 0.65 or not parts else self._word()
            if r.random() < 0.12:
                w = r.choice(("Total", "TOTAL", "Summe", "Tel.", "Fax:", "Art.-Nr.", "Date:", "Invoice", "Rechnung Nr.",
                              "Prix", "Total TTC", "MwSt.", "VAT", "Qty", "No.", "ISBN", "p.", "pp.", "Preis:", "SUBTOTAL",
                              "Order", "IBAN", "ID", "Ref.", "TVA", "Precio", "Kg")) + r.choice((" ", ": ")) + w
            parts.append(w)
            if len(" ".join(parts)) > longest and len(parts) > 1:
                parts.pop()
                break
            if len(" ".join(parts)) > longest or r.random() < 0.3:
                break
        return r.choice((" ", " ", " ", ", ", " | ", " / ", "; ", " - ", " · ", " • ")).join(parts)

    def _plain_word(self):
        w = self.rng.choice(self.words[self.rng.choice(("american-english", "british-english"))])
        return re.sub(r"[^a-z]", "", w.lower()) or "a"

    def _address(self, longest):
        r = self.rng
        w = self._plain_word
        tld = r.choice(("com", "org", "net", "de", "fr", "io", "es", "it", "co.uk", "eu", "info", "ch", "at", "nl", "dk", "se"))
        host = r.choice((w() + w(), w(), w() + "-" + w(), "www." + w(), "docs." + w()))
        path = "".join(r.choice(("/", "/", "/", "-", "_")) + r.choice((w(), w(), self._digits(r.randint(1, 4)), w().capitalize()))
                       for _ in range(r.randint(0, 3))).lstrip("-_")
        path = path if path.startswith("/") or not path else "/" + path
        query = r.choice(("", "", "", f"?{w()}={self._digits(2)}", f"?q={w()}&{w()[:2]}={w()}", f"#{w()}", ".html", "/", ".pdf",
                          "?id=" + self._digits(5), "%20" + w()))
        text = r.choice((
            f"https://{host}.{tld}{path}{query}", f"http://{host}.{tld}{path}", f"www.{w()}.{tld}{path}", f"{host}.{tld}{path}",
            f"{w()}.{w()}@{host}.{tld}", f"{w()}{self._digits(2)}@{host}.{tld}", f"{w()}_{w()}@{host}.{tld}",
            f"E-Mail: {w()}@{host}.{tld}", f"@{w()}_{w()}", f"#{w()}{w().capitalize()}", f"/usr/{w()}/{w()}{path}",
            f"C:\\{w().capitalize()}\\{w()}.{w()[:3]}", f"~/{w()}/.{w()}", f"ftp://{host}.{tld}", f"ssh {w()}@{host}.{tld}",
            f"<{w()}@{host}.{tld}>", f"Web: {host}.{tld}"))
        return text[:longest] if len(text) > longest + 20 else text

    def _code(self, longest):
        r = self.rng
        w = self._plain_word
        n = r.randint(0, 999)
        text = r.choice((
            lambda: f"{w()}_{w()}({w()}, {n});", lambda: f"if ({w()} == {n} && !{w()}) {{", lambda: f"let {w()}: [{w()}; {n}] = {w()}?;",
            lambda: f"{w()}[{n % 10}] = {w()}->{w()};", lambda: f"$ {w()} --{w()}={n} | {w()} -{w()[0]}", lambda: f"# {w()} {w()}",
            lambda: f"{w()}.{w()}({w()!r})", lambda: f"<{w()} {w()}=\"{n}\">{w()}</{w()}>", lambda: f"{w().upper()}_{w().upper()}={n}",
            lambda: f"{w()}{w().capitalize()}() {{ return {w()} % {n}; }}", lambda: f"// {w()} {w()} {w()}",
            lambda: f"{{\"{w()}\": {n}, \"{w()}\": \"{w()}\"}}", lambda: f"0x{r.randrange(1 << 32):08X}", lambda: f"{r.randrange(1 << 44):x}",
            lambda: f"{w()} += {n} * ({w()} - {n}) / 2", lambda: f"^[a-z{n % 10}]+\\.{w()}$", lambda: f"`{w()}` ~{n} @{w()} \\{w()}",
            lambda: f"[{n}] {w()}: {w()} ({w()})", lambda: f"{w()} <= {n} || {w()} >= -{n}", lambda: f"* {w()}: \"{w()} {w()}\"",
            lambda: f"for {w()[0]} in 0..{n} {{ {w()}(); }}", lambda: f"{w()}::{w()}<{w().capitalize()}>"))()
        return text[:longest] if len(text) > longest + 20 else text

    def _accents(self, longest):
        """Words whose letters are swapped for accented ones now and then."""
        r = self.rng
        line = self._words(longest)
        if r.random() < 0.35:
            line = line.upper()
        out = []
        for c in line:
            if c in ACCENTS and r.random() < 0.25:
                c = r.choice(ACCENTS[c])
            elif c.isalpha() and r.random() < 0.02:
                c = r.choice(ACCENTED)
            out.append(c)
        return "".join(out)

    def _signs(self, longest):
        """Words and numbers between signs of all kinds."""
        r = self.rng
        pairs = ("()", "[]", "{}", "<>", "‹›", "«»", "“”", "„“", "‚‘", "‘’", "\"\"", "''", "»«", "¿?", "¡!", "**", "||", "__", "„”")
        parts = []
        while len(" ".join(parts)) < longest:
            w = self._word() if r.random() < 0.6 else self._one_number()
            kind = r.random()
            if kind < 0.45:
                a, b = r.choice(pairs)
                w = a + w + b
            elif kind < 0.65:
                w = r.choice(SIGNS) + w
            elif kind < 0.8:
                w = w + r.choice(SIGNS)
            elif kind < 0.9:
                w = r.choice(("•", "–", "—", "*", "·", "+", "-", "→"))[0].replace("→", "»") + " " + w
            else:
                w = w + " " + r.choice(("©", "®", "¤", "¦", "§", "¶", "¬", "¯", "°", "´", "¨", "¸", "×", "÷", "=", "+", "&", "|", "~", "^", "…"))
            parts.append(w)
        return " ".join(parts)

    def _random(self, longest):
        """Characters of all classes, the rare ones included."""
        r = self.rng
        longest = min(longest, 28)
        pool = r.choice((CHARSET, RARE, ACCENTED, CHARSET[:95], SIGNS))
        out = []
        while len(out) < longest:
            out += [r.choice(pool) for _ in range(r.randint(1, 8))]
            if r.random() < 0.6:
                out += [" "] + list(self._word()[:8]) + ([" "] if r.random() < 0.5 else [])
            else:
                out.append(" ")
        return "".join(out[:longest])

    def _short(self, longest):
        r = self.rng
        if not self.test and r.random() < 0.25:
            return r.choice(CHARSET[1:]) if r.random() < 0.5 else r.choice("-–—.,:;!?*+=&%@#$€§©/()•…0123456789")
        return r.choice((lambda: self._word()[:6], lambda: self._digits(r.randint(1, 4)),
                         lambda: r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + r.choice(("", ".", ")", self._digits(1))),
                         lambda: self._word().upper()[:5], lambda: self._word().capitalize() + r.choice((":", "!", "?", ""))))()

    def _dress(self, text, kind):
        """Capitals and typographic quotes, dashes and ellipses."""
        r = self.rng
        u = r.random()
        if kind in ("sentence", "words", "short", "accents"):
            if u < 0.09:
                text = text.upper().replace("ẞ", "SS")
            elif u < 0.16:
                text = " ".join(w[:1].upper() + w[1:] for w in text.split(" "))
            elif u < 0.19:
                text = text.lower()
        if kind in ("sentence", "words") and r.random() < 0.5:
            text = text.replace("'", "’").replace("...", "…").replace(" - ", r.choice((" – ", " — ", "—")))
            a, b = r.choice(("“”", "„“", "«»", "‘’", "‚‘", "”“", "»«", "‹›"))[:2]
            if text.count('"') == 2:
                text = text.replace('"', a, 1).replace('"', b)
            elif r.random() < 0.16:
                words = text.split(" ")
                i = r.randrange(len(words))
                j = min(len(words), i + r.randint(1, 4))
                words[i] = a + words[i]
                words[j - 1] += b
                text = " ".join(words)
        return text
