#!/usr/bin/env python3
"""Measures every figure that the pages show, on this machine, by one command.

    cargo build --release
    python3 -m venv venv && venv/bin/pip install -r benches/peers/requirements.txt
    venv/bin/python benches/peers/figures.py --out figures          # some hours; nothing else should run
    venv/bin/python benches/peers/figures.py --list                 # what there is
    venv/bin/python benches/peers/figures.py --only nets int8       # some of it
    venv/bin/python benches/peers/figures.py --quick                # whether it works, in minutes: no figures
    venv/bin/python benches/peers/figures.py --write                # also into the pages

`figures.md` in the folder has all of them, with machine, versions, date, and the command of each; `NAME.md`,
`.csv`, `.json` and `.svg` have what single ones give. Seeds are fixed in the scripts that are called. What
cannot be measured here (a package or a device is missing) is said, and left out.

With --write, what stands between `<!-- figures: NAME -->` and `<!-- end of figures -->` in the README and in
docs is replaced, with a line that says where and when it was measured, and with its plot. --quick does not write.
"""

import argparse
import csv
import datetime
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ["onnxruntime", "openvino", "ncnn", "ai-edge-litert", "torch", "numpy", "llama-cpp-python", "xllamacpp"]
PEER = ["onnxruntime"]
LLAMA = ["llama_cpp"]
NAMES = {
    "resnet8": "ResNet8 (MLPerf Tiny's shapes)", "ds_cnn": "DS-CNN", "mobilenetv1_025_96": "MobileNetV1 0.25 at 96",
    "autoencoder": "autoencoder", "mobilenetv1_224": "MobileNetV1 at 224", "mobilenetv2_224": "MobileNetV2 at 224",
    "mobilenetv3_small_224": "MobileNetV3 small at 224", "efficientnet_b0_224": "EfficientNet-B0 at 224",
    "resnet18_224": "ResNet18 at 224", "squeezenet11_224": "SqueezeNet 1.1 at 224",
    "tinyyolov2_416": "Tiny YOLOv2 at 416",
}
END = "<!-- end of figures -->"


class Figure:
    """A figure: its name, what it shows, modules that it needs, its command and a shorter one to try it."""

    def __init__(self, name, title, command, quick=None, needs=(), isa=None, instead=None):
        self.name, self.title, self.needs, self.isa = name, title, needs, isa
        self.command, self.quick, self.instead = command, quick or command, instead

    def line(self, quick=False):
        """The command as people write it."""
        words = ["python3" if word == "PYTHON" else word for word in (self.quick if quick else self.command)]
        before = f"TILEWRIGHT_ISA={self.isa} " if self.isa else ""
        return before + " ".join(words)


def versus(what, title, *more, name=None, quick=("--only", "resnet8"), threads=("1",)):
    command = ["PYTHON", "benches/peers/versus.py", "--what", what, "--threads", *threads]
    short = [*command, "--rounds", "1", "--budget", "0.02", "--no-check", *quick]
    return Figure(name or what, title, [*command, *more], short, PEER)


def llm(what, title, *more):
    command = ["PYTHON", "benches/peers/llm.py", "--what", what]
    return Figure(f"llm-{what}", title, [*command, *more],
                  [*command, "--shapes", "110m", "--types", "q8_0", "--rounds", "1"], LLAMA)


def embedded(isa):
    command = ["target/release/tilewright", "bench", "--threads", "1"]
    return Figure(f"embedded-{isa}", f"The embedded network on its picture, one thread, {isa}", command,
                  [*command, "--time", "0.2"], isa=isa)


def bench(name, title, *command):
    return Figure(name, title, ["cargo", "bench", *command])


FIGURES = [
    versus("nets", "Networks in f32 against other runtimes, one and two threads", threads=("1", "2")),
    versus("int8", "Networks in int8 against other runtimes, one thread"),
    versus("layers", "Layers in f32 against other runtimes, one thread", quick=("--only", "64x56x56")),
    versus("tiny", "What a call costs", quick=()),
    versus("load", "Loading", "--rounds", "15"),
    versus("gemm", "Products of f32", quick=("--only", "128")),
    versus("gemm-int8", "Products of bytes", quick=("--only", "128")),
    versus("gemm-bf16", "Products of bf16", quick=("--only", "128")),
    llm("speed", "Language models against llama.cpp"),
    llm("context", "Language models with a long context", "--types", "q8_0"),
    llm("start", "From the start to the first token", "--types", "q4_0"),
    *map(embedded, ["avx512", "avx2", "neon", "scalar"]),
    Figure("conv3x3", "3 x 3 convolutions by the definition, share of the peak",
           ["cargo", "bench", "-p", "tilewright-kernels", "--bench", "kernels", "--", "table", "conv3x3_direct"]),
    Figure("roofline", "Kernels under the roofline of a core",
           ["target/release/tilewright", "bench", "--kernels", "--roofline", "OUT.svg"],
           ["target/release/tilewright", "bench", "--kernels", "3x3", "--time", "0.2", "--roofline", "OUT.svg"]),
    # Writes its table into docs/c.md by itself.
    Figure("c-libraries", "What C libraries add to a program", ["cargo", "xtask", "capi", "--sizes"]),
    bench("pool", "What sharing work among threads costs", "--bench", "pool"),
    bench("opencl", "OpenCL", "--bench", "opencl"),
    bench("rknn", "The NPU's adapter", "--bench", "rknn"),
    Figure("plugins", "The plug-in in llama.cpp",
           ["PYTHON", "tests/ggml_plugins.py", "target/release", "--bench", "TILEWRIGHT"], needs=["xllamacpp"]),
]


def said(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def generation():
    """The processor's family and model, as x86 numbers them: names like `AMD EPYC` are those of several."""
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    numbers = [re.search(rf"^{name}\s*: (\d+)$", text, re.M) for name in ("cpu family", "model")]
    return " (family {}, model {})".format(*(n[1] for n in numbers)) if all(numbers) else ""


def machine(program):
    """What is measured, where, when: lines of a table, and all of it in one."""
    found = json.loads(said(str(program), "doctor", "--format", "json") or "{}")
    cpu = found.get("cpu", {})
    name = cpu.get("name") if isinstance(cpu, dict) else cpu
    packages = []
    for package in PACKAGES:
        try:
            packages.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    rows = {
        "processor": (name or platform.processor() or platform.machine()) + generation(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "tilewright": f"{said(str(program), '--version').split()[-1]}, commit {said('git', 'rev-parse', '--short', 'HEAD')}",
        "compiler": " ".join(said("rustc", "--version").split()[:2]),
        "packages": ", ".join(packages) or "none",
        "date": datetime.date.today().isoformat(),
    }
    load = os.getloadavg()[0]
    if load > 0.5:
        rows["other work"] = f"load {load:.1f} at the start: figures are disturbed"
    line = f"{rows['processor']}, {rows['date']}, tilewright {rows['tilewright']}"
    return rows, line


def missing(figure, program):
    """What a figure needs and is not here."""
    lacks = [f"the package of {module}" for module in figure.needs if importlib.util.find_spec(module) is None]
    if figure.isa:
        listed = json.loads(said(str(program), "doctor", "--format", "json") or "{}")
        if figure.isa not in listed.get("isas", []):
            lacks.append(f"the instruction set {figure.isa}")
    return lacks


def measure(figure, options, folder):
    """The text of a figure, or what went wrong."""
    base = folder / figure.name
    command = [sys.executable if word == "PYTHON" else word.replace("OUT", str(base))
               for word in (figure.quick if options.quick else figure.command)]
    script = any(word.endswith(("versus.py", "llm.py")) for word in command)
    if script:
        command += ["--out", str(base), "--program", str(options.program)]
        command += ["--work", str(options.work.resolve())] if options.work else []
    if command[0] == "target/release/tilewright":
        command[0] = str(options.program)
    environment = dict(os.environ, TILEWRIGHT_TUNE_TABLE="off")
    environment.pop("TILEWRIGHT_ISA", None)
    if figure.isa:
        environment["TILEWRIGHT_ISA"] = figure.isa
    with open(f"{base}.log", "w", encoding="utf-8") as log:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    if done.returncode:
        return None, f"`{figure.line(options.quick)}` ended with {done.returncode}: see {base}.log"
    table = base.with_suffix(".md")
    if script and table.exists():
        return table.read_text(), None
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip()
    return (f"```text\n{text}\n```\n", None) if text else (None, f"`{figure.line(options.quick)}` printed nothing")


def ratios(path, threads):
    """Of a file of `versus.py`: name of a net, time of the fastest peer over ours."""
    times = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["threads"] == threads and (row["output"] == "ok" or row["runtime"] == "tilewright"):
                times.setdefault(row["name"], {})[row["runtime"]] = float(row["median_us"])
    found = {}
    for name, of in times.items():
        ours = of.pop("tilewright", None)
        if ours and of:
            found[name] = min(of.values()) / ours
    return found


def against_peers(folder):
    """The README's table, of two others."""
    columns = {}
    for title, name, threads in [("f32", "nets", "1"), ("f32, two threads", "nets", "2"), ("int8", "int8", "1")]:
        path = folder / f"{name}.csv"
        found = ratios(path, threads) if path.exists() else {}
        columns[title] = {re.sub(r"[_-]?int8$", "", net): value for net, value in found.items()}
    if not columns["f32"]:
        return None

    def row(head, cells):
        return f"| {head} | " + " | ".join(f"{value:.2f}" if value else "-" for value in cells) + " |"

    lines = ["| times as fast as the fastest peer | " + " | ".join(columns) + " |", "|---|---|---|---|"]
    for net in columns["f32"]:
        lines.append(row(NAMES.get(net, net), [of.get(net) for of in columns.values()]))
    means = [math.exp(sum(map(math.log, of.values())) / len(of)) if of else None for of in columns.values()]
    return "\n".join([*lines, row("geometric mean", means)]) + "\n"


def replaced(text, name, body):
    """A page with what stands at the places of a figure replaced; `None` if it has none."""
    begin = f"<!-- figures: {name} -->\n"
    if begin not in text:
        return None
    head, rest = text.split(begin, 1)
    if END not in rest:
        sys.exit(f"no {END} behind {begin.strip()}")
    return head + begin + body + rest[rest.index(END):]


def write(name, body, plot=None):
    """Puts a figure, with its plot in `docs/figures`, into the pages that have a place for it."""
    pages = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        shown = body
        if plot:
            folder = "figures" if page.parent.name == "docs" else "docs/figures"
            shown += f"\n![{name}]({folder}/{name}.svg)\n"
        text = replaced(page.read_text(encoding="utf-8"), name, shown)
        if text is not None:
            if plot:
                (ROOT / "docs/figures").mkdir(exist_ok=True)
                shutil.copyfile(plot, ROOT / f"docs/figures/{name}.svg")
            page.write_text(text, encoding="utf-8")
            pages.append(str(page.relative_to(ROOT)))
    return pages


def self_test():
    page = f"a\n<!-- figures: x -->\nold\n{END}\nb\n"
    assert replaced(page, "x", "new\n") == f"a\n<!-- figures: x -->\nnew\n{END}\nb\n"
    assert replaced(page, "y", "new\n") is None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        head = "name,threads,runtime,median_us,output\n"
        (folder / "nets.csv").write_text(head + "resnet8,1,a,30,ok\nresnet8,1,b,10,off\nresnet8,1,tilewright,20,ok\n")
        assert against_peers(folder).splitlines()[2] == "| ResNet8 (MLPerf Tiny's shapes) | 1.50 | - | - |"
    known = {figure.name for figure in FIGURES} | {"peers"}
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"<!-- figures: (\S+) -->", path.read_text(encoding="utf-8")):
            assert name in known, f"{path}: there is no figure {name}"
    assert len(known) == len(FIGURES) + 1, "two figures have one name"
    print("the places in the pages are known")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"), help="folder for the results")
    parser.add_argument("--only", nargs="+", default=[], help="names of figures; without it all")
    parser.add_argument("--list", action="store_true", help="names and commands, nothing measured")
    parser.add_argument("--quick", action="store_true", help="short runs that show whether all works")
    parser.add_argument("--write", action="store_true", help="replace the figures in the pages")
    parser.add_argument("--self-test", action="store_true", help="check this program and the places in the pages")
    parser.add_argument("--work", type=pathlib.Path, help="folder for the files that scripts make; without it theirs")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tilewright")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    names = [figure.name for figure in FIGURES]
    for name in options.only:
        if name not in names:
            parser.error(f"there is no figure {name}: {', '.join(names)}")
    chosen = [figure for figure in FIGURES if not options.only or figure.name in options.only]
    if options.list:
        for figure in chosen:
            print(f"{figure.name:16} {figure.line()}")
        return None
    options.program = options.program.resolve()
    if not options.program.exists():
        parser.error(f"there is no {options.program}: cargo build --release, or --program")
    if options.write and options.quick:
        parser.error("--quick gives no figures to write")
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows, line = machine(options.program)
    lines = ["# Figures", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]
    if options.quick:
        lines += ["**Runs were cut short: these are no figures.**", ""]
    measured, failed = 0, []
    for figure in chosen:
        lacks = missing(figure, options.program)
        begin = time.monotonic()
        text, wrong = (None, f"needs {', '.join(lacks)}") if lacks else measure(figure, options, folder)
        lines += [f"## {figure.title}", ""]
        if wrong:
            lines += [f"Not measured: {wrong}.", ""]
            print(f"{figure.name:16} not measured: {wrong}", flush=True)
            failed += [] if lacks else [figure.name]
            continue
        measured += 1
        lines += [f"`{figure.line(options.quick)}`", "", text]
        print(f"{figure.name:16} {time.monotonic() - begin:.0f} s", flush=True)
        if options.write:
            body = f"{text}\n`{figure.line()}`: {line}.\n"
            plot = folder / f"{figure.name}.svg"
            for page in write(figure.name, body, plot if plot.exists() else None):
                print(f"{'':16} written into {page}")
        # As soon as there is something: a later one may take an hour, or fail.
        (folder / "figures.md").write_text("\n".join(lines), encoding="utf-8")
    together = against_peers(folder)
    if together and options.write:
        for page in write("peers", f"{together}\n`python3 benches/peers/figures.py --only nets int8`: {line}.\n"):
            print(f"{'peers':16} written into {page}")
    (folder / "figures.md").write_text("\n".join(lines), encoding="utf-8")
    print(f"{measured} of {len(chosen)} measured; {folder / 'figures.md'}")
    sys.exit(1 if failed or not measured else 0)


if __name__ == "__main__":
    main()
