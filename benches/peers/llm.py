#!/usr/bin/env python3
"""`tilewright bench` and llama.cpp in turns on the same GGUF files: a table.

    pip install -r benches/peers/requirements-llm.txt
    benches/peers/llm.py                                 1B shape, one thread: pp512 and tg64
    benches/peers/llm.py --shapes 1b 110m --threads 1 2 --out results
    benches/peers/llm.py --shapes qwen35         layers that remember in matrices (gated delta networks)
    benches/peers/llm.py --shapes gemma4         layers that share keys and values, and have vectors of their own
    benches/peers/llm.py --shapes gemma3n        several streams of vectors from layer to layer
    benches/peers/llm.py --shapes experts        of 128 experts a token goes through 8
    benches/peers/llm.py --what context --types q8_0     decode behind 4,096 tokens
    benches/peers/llm.py --what start --types q4_0       to the first token of a 20-token prompt; peak memory

Files of random weights are made on first use (5.8 GB for the first two shapes, in --work). llama.cpp is that of the
package llama-cpp-python, which pip builds for this machine:

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python

For a lower instruction set, give --isa to tilewright and --peer-python a Python whose llama.cpp was
built for the same one (CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON").

Beside each speed stands a plain loop over memory, timed before and after it in the same run:
`read` is the rate, `share` the bytes of all weights a token needs times tokens/s, over that rate.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

READ_BYTES = 1 << 30
READ_LOOP = """
#include <stddef.h>
#include <stdint.h>
uint64_t sweep(const uint64_t *p, size_t n) {
    uint64_t a[16] = {0}, all = 0; /* More than the compiler keeps in registers would be slower than memory. */
    for (size_t i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++) a[j] |= p[i + j];
    for (int j = 0; j < 16; j++) all |= a[j];
    return all;
}
"""


class ReadLoop:
    """Reads of 1 GiB by `threads` threads, each its own part; C where there is a compiler, else numpy."""

    def __init__(self):
        import numpy
        self.data = numpy.ones(READ_BYTES // 8, numpy.uint64)
        self.sweep = lambda part: numpy.bitwise_or.reduce(part)
        with tempfile.TemporaryDirectory() as folder:
            source, library = os.path.join(folder, "sweep.c"), os.path.join(folder, "sweep.so")
            with open(source, "w") as file:
                file.write(READ_LOOP)
            command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                return
            compiled = ctypes.CDLL(library).sweep
            compiled.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            self.sweep = lambda part: compiled(part.ctypes.data, len(part))

    def rate(self, threads, runs=5):
        """Median GB/s."""
        size, rates = len(self.data) // threads // 64 * 64, []
        for _ in range(runs):
            parts = [self.data[i * size : (i + 1) * size] for i in range(threads)]
            workers = [threading.Thread(target=self.sweep, args=(part,)) for part in parts]
            start = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            rates.append(size * threads * 8 / (time.perf_counter() - start) / 1e9)
        return statistics.median(rates)


def peer(options):
    """Runs in a process of its own (--peer): llama.cpp on one file, an object with its speeds."""
    import llama_cpp as L
    log = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(log, ctypes.c_void_p(0))
    L.llama_backend_init()
    start = time.perf_counter()
    parameters = L.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = L.llama_model_load_from_file(options.peer.encode(), parameters)
    if not model:
        sys.exit(f"llama.cpp does not load {options.peer}")
    context = L.llama_context_default_params()
    context.n_ctx, context.n_batch, context.n_ubatch = options.depth + 1024, 512, 512
    context.n_threads = context.n_threads_batch = options.threads[0]
    context = L.llama_init_from_model(model, context)
    memory, vocabulary = L.llama_get_memory(context), L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))

    def decode(count):
        tokens = (L.llama_token * count)(*((7919 * i + 300) % (vocabulary - 300) + 300 for i in range(count)))
        if L.llama_decode(context, L.llama_batch_get_one(tokens, count)):
            sys.exit("llama_decode failed")
        L.llama_synchronize(context)

    if options.what == "start":
        decode(options.prompt)
        L.llama_get_logits_ith(context, -1)
        print(json.dumps({"first_token_s": time.perf_counter() - start}))
        return

    def generate():
        for _ in range(64):
            decode(1)

    def rate(count, run):
        times = []
        while len(times) < 4:
            L.llama_memory_seq_rm(memory, 0, options.depth, -1)
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return count / statistics.median(times[1:])

    for _ in range(options.depth // 512):
        decode(512)
    result = {"pp": rate(512, lambda: decode(512))} if options.what == "speed" else {}
    print(json.dumps(result | {"tg": rate(64, generate), "system": L.llama_print_system_info().decode()}))


def run_peer(options, path, threads, depth):
    command = [options.peer_python, os.path.abspath(__file__), "--peer", str(path), "--threads", str(threads),
               "--depth", str(depth), "--what", options.what, "--prompt", str(options.prompt)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"llama.cpp: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment(options):
    return dict(os.environ, TILEWRIGHT_ISA=options.isa) if options.isa else None


def run_ours(options, path, threads, depth):
    command = [options.program, "bench", str(path), "--threads", str(threads), "--format", "json", "--time", "0",
               "--depth", str(depth), "--prompt-length", "512" if options.what == "speed" else "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(options))
    if done.returncode:
        sys.exit(f"tilewright: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    speeds = {"tg": found["tg"]["64"]}
    if options.what == "speed":
        speeds["pp"] = found["pp"]["512"]
    return speeds


def measure(options, loop, path, threads, depth):
    """Median speeds of both by kind, and the median rate of the read loop around them."""
    ours, theirs, reads = {}, {}, [loop.rate(threads)]
    for _ in range(options.rounds):
        for into, run in ((ours, run_ours), (theirs, run_peer)):
            found = run(options, path, threads, depth)
            for kind in ("pp", "tg"):
                if kind in found:
                    into.setdefault(kind, []).append(found[kind])
            reads.append(loop.rate(threads))
    middle = {k: statistics.median(v) for k, v in ours.items()}, {k: statistics.median(v) for k, v in theirs.items()}
    return *middle, statistics.median(reads)


def speeds(options):
    """Rows of pp512 and tg64."""
    import llm_files
    loop = ReadLoop()
    for shape in options.shapes:
        for kind in options.types:
            path = llm_files.ready(options.work, shape, kind)
            for threads in options.threads:
                ours, theirs, read = measure(options, loop, path, threads, 0)
                share = llm_files.bytes_per_token(path) / 1e9 / read
                yield {"model": f"{shape} {kind}", "threads": threads, "pp512": ours["pp"],
                       "pp512 llama.cpp": theirs["pp"], "pp ratio": ours["pp"] / theirs["pp"], "tg64": ours["tg"],
                       "tg64 llama.cpp": theirs["tg"], "tg ratio": ours["tg"] / theirs["tg"], "read GB/s": read,
                       "tg share": share * ours["tg"], "tg share llama.cpp": share * theirs["tg"]}


def contexts(options):
    """Rows of tg64 at the beginning and behind 4,096 tokens, and what the bytes of the cache explain."""
    import llm_files
    loop = ReadLoop()
    for shape in options.shapes:
        s = llm_files.SHAPES[shape]
        attending = sum(not llm_files.remembers(s, layer) for layer in range(s["layers"]))
        cache = 2 * 2 * attending * s["kv_heads"] * llm_files.head_size(s) * 4096
        for kind in options.types:
            path = llm_files.ready(options.work, shape, kind)
            weights = llm_files.bytes_per_token(path)
            for threads in options.threads:
                near = measure(options, loop, path, threads, 0)
                far = measure(options, loop, path, threads, 4096)
                yield {"model": f"{shape} {kind}", "threads": threads, "tg64 at 0": near[0]["tg"],
                       "at 4096": far[0]["tg"], "llama.cpp at 0": near[1]["tg"], "llama.cpp at 4096": far[1]["tg"],
                       "slower": near[0]["tg"] / far[0]["tg"], "bytes": (weights + cache) / weights,
                       "read GB/s": far[2], "share at 4096": (weights + cache) / 1e9 * far[0]["tg"] / far[2]}


def peak_memory(command, environment):
    """Most bytes that a command has at a time, those of mapped files included. A process counts what its parent had when
    it was started, so a small one starts it."""
    code = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
    return int(subprocess.run([sys.executable, "-c", code, *command], env=environment, check=True,
                              capture_output=True, text=True).stdout)


def starts(options):
    """Rows of the time from start to the first token, page cache warm, and tilewright's peak memory over eight."""
    import llm_files
    for shape in options.shapes:
        for kind in options.types:
            path = llm_files.ready(options.work, shape, kind)
            path.read_bytes()
            for threads in options.threads:
                ours, theirs = [], []
                command = [options.program, "generate", str(path), "--prompt-tokens",
                           ",".join(str(300 + 37 * i) for i in range(options.prompt)), "-n", "1", "--temp", "0",
                           "--ignore-eos", "--threads", str(threads), "--format", "json"]
                for _ in range(options.rounds):
                    begin = time.perf_counter()
                    if subprocess.call(command, stdout=subprocess.DEVNULL, env=environment(options)):
                        sys.exit("tilewright generate failed")
                    ours.append(time.perf_counter() - begin)
                    theirs.append(run_peer(options, path, threads, 0)["first_token_s"])
                peak = peak_memory([*command[:command.index("-n") + 1], "8", *command[command.index("-n") + 2:]],
                                   environment(options))
                ours, theirs = statistics.median(ours), statistics.median(theirs)
                yield {"model": f"{shape} {kind}", "threads": threads, "first token s": ours,
                       "llama.cpp s": theirs, "times llama.cpp's": ours / theirs,
                       "peak over file": peak / path.stat().st_size}


def table(rows):
    """Markdown."""
    def cell(value):
        return value if isinstance(value, str) else f"{value:.{0 if isinstance(value, int) else 2}f}"

    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(cell(v) for v in row.values()) + " |" for row in rows]
    for kind in ("pp ratio", "tg ratio"):
        if kind in rows[0]:
            mean = math.exp(statistics.fmean(math.log(row[kind]) for row in rows))
            lines.append(f"\n{kind}, geometric mean: {mean:.2f}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--what", choices=["speed", "context", "start"], default="speed")
    parser.add_argument("--shapes", nargs="+", default=["1b"],
                        choices=["1b", "110m", "qwen35", "gemma4", "experts", "gpt-oss", "latent", "gemma3n"])
    parser.add_argument("--types", nargs="+", default=["q8_0", "q4_0", "q4_k_m", "f16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--isa", help="instruction set for tilewright, by TILEWRIGHT_ISA")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python whose llama.cpp is measured")
    parser.add_argument("--program", default=str(here.parent.parent / "target/release/tilewright"))
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "tilewright-llm"),
                        help="folder for the files")
    parser.add_argument("--out", help="name of the results (.md and .json), without extension")
    parser.add_argument("--prompt", type=int, default=20, help="tokens of the prompt for --what start")
    parser.add_argument("--make-only", action="store_true", help="make the files and measure nothing")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--depth", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options)
    if options.make_only:
        import llm_files
        for shape in options.shapes:
            for kind in options.types:
                print(llm_files.ready(options.work, shape, kind))
        return None
    rows = []
    for row in {"speed": speeds, "context": contexts, "start": starts}[options.what](options):
        rows.append(row)
        print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items()), flush=True)
    print(table(rows))
    if options.out:
        pathlib.Path(options.out + ".md").write_text(table(rows))
        pathlib.Path(options.out + ".json").write_text(json.dumps(rows, indent=1))
    return None


if __name__ == "__main__":
    main()
