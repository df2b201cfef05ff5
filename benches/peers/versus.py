#!/usr/bin/env python3
"""tilewright against other runtimes on the same files, in turns: a table and a plot.

Examples:
  versus.py --what layers --threads 1 --out results
  versus.py --what layers --only conv3x3 --rounds 5
  versus.py --what operators --peers onnxruntime openvino --rounds 2
  versus.py --what nets --threads 1 2
  versus.py --what int8 --peers onnxruntime openvino
  versus.py --what bits --threads 1 2
  versus.py --what load --rounds 15
  versus.py --what gemm --peers onnxruntime openvino
  versus.py --what gemm-int8
  versus.py --what gemm-bf16 --only 1024
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings

import numpy as np

import models
from runtimes import RUNTIMES

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "tilewright"

# Products m x k x n.
GEMM = [(n, n, n) for n in (128, 256, 512, 768, 1024, 2048)]
GEMM += [(m, n, n) for n in (2048, 4096) for m in (1, 4, 32)]
# Of the same sizes, those that kernels of bytes and bf16 are measured with.
NARROW = [(n, n, n) for n in (128, 256, 512, 1024, 2048)]

# A pause before each measurement: threads of other runtimes go on spinning for a while.
PAUSE = 0.05

# Largest difference of outputs, relative to the largest value; that of bytes is a few of 256 steps.
TOLERANCE = {"int8": 0.05, "bits": 0.1}
USUAL_TOLERANCE = 1e-3
# Other runtimes' sums of products of bytes saturate on AVX2. That is what people run, so it counts.
SATURATING = {"int8": 0.25}


def measure(run, budget):
    """Times of calls, after two that do not count."""
    time.sleep(PAUSE)
    if hasattr(run, "times"):
        return run.times(budget)
    for _ in range(2):
        run()
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 5000):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def tilewright(options, arguments):
    """The object that a command of the program prints."""
    time.sleep(PAUSE)
    command = [options.program, *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[:200])
    return json.loads(done.stdout)


def our_output(options, path, feed, threads, folder):
    """What tilewright computes, for the comparison with the others."""
    np.save(os.path.join(folder, "feed.npy"), feed)
    out = os.path.join(folder, "out")
    tilewright(options, ["run", path, "--input", os.path.join(folder, "feed.npy"),
                         "--output-dir", out, "--threads", str(threads)])
    return np.load(os.path.join(out, "y.npy"))


def feed_of(path):
    import onnx
    value = onnx.load(path, load_external_data=False).graph.input[0]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def off(output, reference, tolerance):
    """Whether an output is another than the reference, or NaN elsewhere."""
    output, reference = output.reshape(-1), reference.reshape(-1)
    if output.size != reference.size:
        return True
    defined = ~np.isnan(reference)
    if (np.isnan(output) == defined).any():
        return True
    output, reference = output[defined], reference[defined]
    error = np.abs(output - reference).max(initial=0) / (np.abs(reference).max(initial=0) + 1e-12)
    return not error <= tolerance


def definition(path, feed, threads):
    """What the operators of a file give one by one; `None` where nothing computes that."""
    try:
        return np.array(RUNTIMES["onnxruntime"](path, feed, threads, optimized=False)(), np.float32)
    except Exception as e:
        print(f"  compared with the first runtime: {type(e).__name__}: {str(e)[:120]}", file=sys.stderr)
        return None


def compare_file(options, name, path, threads, folder):
    """Median microseconds by runtime, and the runtimes whose output is off."""
    feed = feed_of(path)
    runs, wrong = {}, set()
    reference = definition(path, feed, threads) if options.check else None
    tolerance = TOLERANCE.get(options.what, USUAL_TOLERANCE)
    for peer in options.peers:
        try:
            runs[peer] = RUNTIMES[peer](path, feed, threads)
            output = np.array(runs[peer](), np.float32)
        except Exception as e:
            print(f"  {peer} left out: {type(e).__name__}: {str(e)[:120]}", file=sys.stderr)
            runs.pop(peer, None)
            continue
        if options.check:
            if reference is None:
                reference = output
            elif off(output, reference, SATURATING.get(options.what, tolerance)):
                wrong.add(peer)
    ours = our_output(options, path, feed, threads, folder) if reference is not None else None
    if ours is not None and off(ours, reference, tolerance):
        wrong.add(OURS)
    times = {peer: [] for peer in [*runs, OURS]}
    for _ in range(options.rounds):
        for peer, run in runs.items():
            if peer.startswith("torch"):
                import torch
                torch.set_num_threads(threads)
            times[peer] += measure(run, options.budget)
        bench = ["bench", path, "--threads", str(threads), "--time", str(options.budget)]
        times[OURS].append(tilewright(options, bench)["median_us"])
    return {peer: statistics.median(t) for peer, t in times.items()}, wrong


def compare_files(options, what):
    folder = options.work
    for row in models.build(what, os.path.join(folder, what), options.only):
        for threads in options.threads:
            times, wrong = compare_file(options, row["name"], row["file"], threads, folder)
            yield row["name"], threads, times, wrong


# Loads a net as the peers' users do, and prints the milliseconds; what is imported does not count.
SESSION = """
import sys, time
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(sys.argv[2]), 1
options.log_severity_level = 3
start = time.perf_counter()
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print((time.perf_counter() - start) * 1e3)
"""


def compare_loading(options):
    """Microseconds from a file to a net that can run: loading, planning and packing against the creation
    of a session, each time in a process that has done nothing before."""
    for row in models.build("nets", os.path.join(options.work, "nets"), options.only):
        for threads in options.threads:
            times = {"onnxruntime": [], OURS: []}
            for _ in range(options.rounds):
                command = [sys.executable, "-c", SESSION, row["file"], str(threads)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                times["onnxruntime"].append(float(done.stdout) * 1e3)
                bench = ["bench", row["file"], "--threads", str(threads), "--time", "0.001"]
                times[OURS].append(tilewright(options, bench)["load_ms"] * 1e3)
            yield (row["name"], threads, {p: statistics.median(t) for p, t in times.items()}, set())


def product(path, m, k, n):
    """An ONNX file with one product of a constant B."""
    from onnx import TensorProto, helper, numpy_helper, save
    b = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "b"], ["y"])], "product",
        [value("x", TensorProto.FLOAT, [m, k])], [value("y", TensorProto.FLOAT, [m, n])],
        [numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    save(model, path)
    return b


def gemm_peers(options, path, m, k, n, b, threads):
    feed = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    runs = {}
    for peer in ("onnxruntime", "openvino"):
        if peer in options.peers:
            try:
                runs[peer] = RUNTIMES[peer](path, feed, threads)
            except ImportError:
                pass
    out = np.empty((m, n), np.float32)
    runs["numpy"] = lambda: np.matmul(feed, b, out=out)
    if "torch" in options.peers:
        try:
            import torch
            torch.set_num_threads(threads)
            x, y, z = torch.from_numpy(feed), torch.from_numpy(b), torch.empty(m, n)
            runs["torch"] = lambda: torch.mm(x, y, out=z)
        except ImportError:
            pass
    return runs


def crates(options, sizes):
    """Times of the Rust crates, by crate and size; nothing without cargo."""
    manifest = os.path.join(HERE, "rust", "Cargo.toml")
    target = os.path.join(options.work, "crates")
    command = ["cargo", "run", "--release", "--quiet", "--manifest-path", manifest, "--target-dir",
               target, "--", str(options.budget), *("x".join(map(str, s)) for s in sizes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"  crates left out: {e}", file=sys.stderr)
        return {}
    times = {}
    for line in done.stdout.splitlines():
        crate, size, micros = line.split()
        times.setdefault(size, {}).setdefault(crate, []).append(float(micros))
    return times


def compare_gemm(options):
    sizes = [s for s in GEMM if options.only in "x".join(map(str, s))]
    for threads in options.threads:
        if threads != 1:
            print("  products are measured on one thread only", file=sys.stderr)
            continue
        for m, k, n in sizes:
            size = f"{m}x{k}x{n}"
            path = os.path.join(options.work, f"product_{size}.onnx")
            runs = gemm_peers(options, path, m, k, n, product(path, m, k, n), threads)
            times = {peer: [] for peer in [*runs, OURS]}
            for _ in range(options.rounds):
                for peer, run in runs.items():
                    times[peer] += measure(run, options.budget)
                for crate, found in crates(options, [(m, k, n)]).get(size, {}).items():
                    times.setdefault(crate, []).extend(found)
                # The file, as the peers run it: through a session, with all that belongs to it.
                bench = ["bench", path, "--threads", "1", "--time", str(options.budget)]
                times[OURS].append(tilewright(options, bench)["median_us"])
            os.remove(path)
            yield size, threads, {p: statistics.median(t) for p, t in times.items() if t}, set()


def byte_product(path, m, k, n):
    """An ONNX file with one product of `u8` and a constant `i8` in `i32`; B."""
    from onnx import TensorProto, helper, numpy_helper, save
    b = np.random.default_rng(0).integers(-128, 128, (k, n), np.int8)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "b"], ["y"])], "product",
        [value("x", TensorProto.UINT8, [m, k])], [value("y", TensorProto.INT32, [m, n])],
        [numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    save(model, path)
    return b


def narrow_peers(options, path, m, k, n):
    """Runtimes that multiply bytes or bf16; torch packs B in every call, as its interface asks."""
    runs = {}
    if options.what == "gemm-int8":
        b = byte_product(path, m, k, n)
        if "onnxruntime" in options.peers:
            try:
                feed = np.random.default_rng(1).integers(0, 256, (m, k), np.uint8)
                runs["onnxruntime"] = RUNTIMES["onnxruntime"](path, feed, 1)
            except ImportError:
                pass
    if "torch" in options.peers:
        try:
            import torch
            torch.set_num_threads(1)
            if options.what == "gemm-int8":
                x = torch.randint(-128, 128, (m, k), dtype=torch.int8)
                y = torch.from_numpy(b)
                runs["torch"] = lambda: torch._int_mm(x, y)
            else:
                x, y, z = (torch.randn(s).to(torch.bfloat16) for s in ((m, k), (k, n), (m, n)))
                runs["torch"] = lambda: torch.mm(x, y, out=z)
        except ImportError:
            pass
    return runs


def compare_narrow(options):
    """Products of bytes through a session, of bf16 by our kernel alone: no ONNX file has them."""
    for m, k, n in NARROW:
        size = f"{m}x{k}x{n}"
        if options.only not in size:
            continue
        path = os.path.join(options.work, f"product_{size}_{options.what}.onnx")
        runs = narrow_peers(options, path, m, k, n)
        times = {peer: [] for peer in [*runs, OURS]}
        for _ in range(options.rounds):
            for peer, run in runs.items():
                times[peer] += measure(run, options.budget)
            if options.what == "gemm-int8":
                bench = ["bench", path, "--threads", "1", "--time", str(options.budget)]
                times[OURS].append(tilewright(options, bench)["median_us"])
            else:
                found = tilewright(options, ["bench", "--kernels", f"matmul_bf16/{size}/"])
                times[OURS].append(found["kernels"][0]["median_us"])
        if os.path.exists(path):
            os.remove(path)
        yield size, 1, {p: statistics.median(t) for p, t in times.items() if t}, set()


def ratio(times, wrong):
    """The fastest peer and its time over ours."""
    peers = {p: t for p, t in times.items() if p != OURS and p not in wrong}
    if not peers or OURS not in times:
        return "-", None
    best = min(peers, key=peers.get)
    return best, peers[best] / times[OURS]


def table(rows, peers):
    """The table in Markdown."""
    lines = ["| | threads | " + " | ".join(peers) + " | tilewright | fastest peer | ratio |",
             "|---" * (len(peers) + 5) + "|"]
    for name, threads, times, wrong in rows:
        def cell(peer):
            if peer not in times:
                return "-"
            text = f"{times[peer]:.1f}"
            return f"({text})" if peer in wrong else text
        best, q = ratio(times, wrong)
        cells = [name, str(threads), *map(cell, peers), cell(OURS), best, f"{q:.2f}" if q else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(rows, title):
    """Ratios as bars, in SVG; the line is where the fastest peer is."""
    bars = [(f"{name}, {threads} thr.", *ratio(times, wrong))
            for name, threads, times, wrong in rows]
    bars = [bar for bar in bars if bar[2]]
    most = max([bar[2] for bar in bars] + [1.5])
    left, width, step = 230, 520, 22
    height = 60 + step * len(bars)
    scale = width / most
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 140} {height}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="12" y="24" font-size="15">{title}</text>']
    for i, (name, best, q) in enumerate(bars):
        y = 44 + step * i
        colour = "#009e73" if q >= 1 else "#d55e00"
        out.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{name}</text>'
                   f'<rect x="{left}" y="{y}" width="{q * scale:.1f}" height="15" fill="{colour}"/>'
                   f'<text x="{left + q * scale + 6:.1f}" y="{y + 11}">{q:.2f} ({best})</text>')
    one = left + scale
    out.append(f'<line x1="{one:.1f}" y1="38" x2="{one:.1f}" y2="{height - 8}" stroke="black"/>')
    return "\n".join(out) + "\n</svg>\n"


def write(options, rows):
    peers = list(dict.fromkeys(p for _, _, times, _ in rows for p in times if p != OURS))
    text = table(rows, peers)
    ratios = [q for q in (ratio(times, wrong)[1] for _, _, times, wrong in rows) if q]
    summary = "nothing to compare with"
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        summary = (f"time of the fastest peer over ours: geometric mean {mean:.2f}, least "
                   f"{min(ratios):.2f}, ahead on {sum(q > 1 for q in ratios)} of {len(ratios)}")
    with open(options.out + ".md", "w") as file:
        file.write(f"Median microseconds, {options.rounds} rounds.\n\n{text}\n{summary}\n")
    with open(options.out + ".csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "threads", "runtime", "median_us", "output"])
        for name, threads, times, wrong in rows:
            for peer, micros in times.items():
                state = "off" if peer in wrong else "ok"
                writer.writerow([name, threads, peer, f"{micros:.3f}", state])
    with open(options.out + ".svg", "w") as file:
        file.write(plot(rows, "Time of the fastest peer over tilewright's"))
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="layers",
                        choices=["layers", "operators", "nets", "tiny", "int8", "bits", "load", "gemm",
                                 "gemm-int8", "gemm-bf16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--peers", nargs="*", default=list(RUNTIMES), choices=list(RUNTIMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.2,
                        help="seconds per runtime and round")
    parser.add_argument("--program", default=os.path.join(HERE, "../../target/release/tilewright"))
    parser.add_argument("--work", default=os.path.join(HERE, "cache"), help="folder for the files")
    parser.add_argument("--out", help="name of the results, without extension")
    parser.add_argument("--no-check", dest="check", action="store_false",
                        help="do not compare outputs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    options.program = os.path.abspath(options.program)
    if not os.path.exists(options.program):
        parser.error(f"there is no {options.program}: cargo build --release, or --program")
    if options.what in ("int8", "bits"):
        # The others do not read such files.
        options.peers = [p for p in options.peers if p in ("onnxruntime", "openvino")]
    options.work = os.path.abspath(options.work)
    os.makedirs(options.work, exist_ok=True)
    os.environ["TILEWRIGHT_CRATES"] = os.path.join(options.work, "crates")
    options.out = options.out or os.path.join(options.work, f"versus_{options.what}")
    if "OMP_NUM_THREADS" not in os.environ:
        # Libraries look here when they are loaded, so this begins again.
        # Products are measured on one thread.
        most = 1 if options.what.startswith("gemm") else max(options.threads)
        for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = str(most)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    rows = []
    if options.what == "gemm":
        found = compare_gemm(options)
    elif options.what == "load":
        found = compare_loading(options)
    elif options.what.startswith("gemm-"):
        found = compare_narrow(options)
    else:
        found = compare_files(options, options.what)
    for name, threads, times, wrong in found:
        rows.append((name, threads, times, wrong))
        best, q = ratio(times, wrong)
        ours = times.get(OURS, math.nan)
        print(f"{name:28} {threads} thr.  {best:12} {times.get(best, math.nan):10.1f} us  "
              f"{OURS} {ours:10.1f} us  {q or math.nan:5.2f}"
              + (f"  output off: {', '.join(sorted(wrong))}" if wrong else ""), flush=True)
    if not rows:
        sys.exit("nothing measured")
    print(write(options, rows))
    print(f"wrote {options.out}.md, .csv, .svg")


if __name__ == "__main__":
    main()
