#!/usr/bin/env python3
"""Loads tilewright's plug-ins into stock llama.cpp and compares what it computes with and without them.

    pip install -r tests/requirements-llm.txt
    cargo build --release -p tilewright-ggml-cpu -p tilewright-ggml-rknn -p tilewright-rknn-emulator
    python3 tests/ggml_plugins.py target/release
    python3 tests/ggml_plugins.py target/release --gguf model.gguf --plugins cpu

For each plug-in a process of its own loads it by `ggml_backend_load` into the llama.cpp that the package
xllamacpp (or llama-cpp-python, if that is there instead) carries. Required:

  variable  it is found by GGML_BACKEND_PATH, too;
  products  every case of a sweep of MUL_MAT that the device claims has a normalised error of at most 5e-4
            against ggml's CPU backend (the bound of its own tests); a minimum is claimed;
  greedy    files of the architecture llama, of each type, have the same greedy tokens after a prompt as
            without the plug-in, or a first difference where llama.cpp's two best logits are closer than the
            plug-in's distance from it; and the plug-in computed products meanwhile;
  itself    over many prompts of the embedded model (Q8_0), whose activations llama.cpp rounds to 8 bits, logits
            are no further from llama.cpp's than its own are from its own when it reads the prompt in single tokens
            (and a tenth): how many prompts have the same tokens is printed for both;
  refusal   a ggml that is not one (no symbols) is refused without harm.

The NPU's plug-in gets the emulator, and once more with faults: the tokens must be the same then, too. Its library is
tested in a process of its own before the first use, and not again; one that ends that process is refused.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import gguf
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parent / "llm"))

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLUGINS = {"cpu": ("TILEWRIGHT", "libggml_tilewright.so"), "rknn": ("RKNN", "libggml_tilewright_rknn.so")}
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
         "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"]
PROMPT, GENERATED = 64, 48
BOUND = 5e-4
# Prompts of the embedded model that are compared with llama.cpp in two ways of its own, and how much further logits
# may be than it is from itself.
PROMPTS, FURTHER = 24, 1.1
TEXT = "The program reads a model and the inputs that it is given, and prints what the model makes of them. " * 8
# Fewest cases of the sweep that a device must claim, so that nothing passes by declining.
CLAIMED = {"cpu": 180, "rknn": 50}
FAULTS = ["run:every=3:rc=-1", "run:nth=5:wrong=zero", "create_mem:after=9:null", "run:nth=4:dead"]


def set_threads(library, name, threads):
    """What llama.cpp does with its option for threads."""
    for function in ("ggml_backend_reg_by_name", "ggml_backend_reg_get_proc_address", "ggml_backend_init_by_name"):
        getattr(library, function).restype = ctypes.c_void_p
    reg = ctypes.c_void_p(library.ggml_backend_reg_by_name(name.encode()))
    found = library.ggml_backend_reg_get_proc_address(reg, b"ggml_backend_set_n_threads")
    backend = ctypes.c_void_p(library.ggml_backend_init_by_name(name.encode(), None))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(found)(backend, threads)
    library.ggml_backend_free(backend)


class Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(library, path):
    """Loads a plug-in; its registration, or None."""
    library.ggml_backend_load.restype = ctypes.c_void_p
    return library.ggml_backend_load(os.fspath(path).encode())


class Ggml:
    """What of ggml's C interface products need."""

    def __init__(self, library):
        self.library = library
        for name in ("ggml_init", "ggml_new_tensor_4d", "ggml_permute", "ggml_mul_mat", "ggml_new_graph",
                     "ggml_backend_alloc_ctx_tensors", "ggml_backend_init_by_name", "ggml_backend_get_device"):
            getattr(library, name).restype = ctypes.c_void_p
        for name in ("ggml_backend_supports_op",):
            getattr(library, name).restype = ctypes.c_bool
        library.ggml_nbytes.restype = ctypes.c_size_t
        library.ggml_nelements.restype = ctypes.c_int64

    def backend(self, name):
        found = self.library.ggml_backend_init_by_name(name.encode(), None)
        if not found:
            raise SystemExit(f"error: llama.cpp has no device {name}")
        return ctypes.c_void_p(found)

    def product(self, backend, case, w, x, times=None):
        """The result of a case on a backend, f32; None where it does not claim it. Seconds of runs go to `times`."""
        lib = self.library
        kind, m, n, k, batch, repeat, order = case
        ctx = ctypes.c_void_p(lib.ggml_init(Params(1 << 20, None, True)))
        i64 = ctypes.c_int64
        tensor = lambda kind, ne: ctypes.c_void_p(lib.ggml_new_tensor_4d(ctx, kind, *(i64(e) for e in ne)))
        ne_w, ne_x = [k, m, *batch], [k, n, batch[0] * repeat[0], batch[1] * repeat[1]]
        a_leaf = tensor(kind, [ne_w[i] for i in order])
        b_leaf = tensor(0, [ne_x[i] for i in order])
        a, b = a_leaf, b_leaf
        if order != (0, 1, 2, 3):
            # A leaf whose extents are ne[order[i]], seen with extents ne.
            inverse = [order.index(i) for i in range(4)]
            places = [ctypes.c_int(order[i]) for i in range(4)]
            assert [order[i] for i in inverse] == [0, 1, 2, 3]
            a = ctypes.c_void_p(lib.ggml_permute(ctx, a_leaf, *places))
            b = ctypes.c_void_p(lib.ggml_permute(ctx, b_leaf, *places))
        y = ctypes.c_void_p(lib.ggml_mul_mat(ctx, a, b))
        buffer = ctypes.c_void_p(lib.ggml_backend_alloc_ctx_tensors(ctx, backend))
        try:
            if not lib.ggml_backend_supports_op(backend, y):
                return None
            for t, data in ((a_leaf, w), (b_leaf, x)):
                assert lib.ggml_nbytes(t) == data.nbytes, (case, lib.ggml_nbytes(t), data.nbytes)
                lib.ggml_backend_tensor_set(t, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
                                            ctypes.c_size_t(data.nbytes))
            graph = ctypes.c_void_p(lib.ggml_new_graph(ctx))
            lib.ggml_build_forward_expand(graph, y)
            status = lib.ggml_backend_graph_compute(backend, graph)
            if status:
                raise SystemExit(f"error: {case}: graph_compute: status {status}")
            for _ in range(0 if times is None else 15):
                begin = time.perf_counter()
                lib.ggml_backend_graph_compute(backend, graph)
                times.append(time.perf_counter() - begin)
            out = numpy.full(lib.ggml_nelements(y), numpy.nan, numpy.float32)
            lib.ggml_backend_tensor_get(y, out.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
                                        ctypes.c_size_t(out.nbytes))
            return out
        finally:
            lib.ggml_backend_buffer_free(buffer)
            lib.ggml_free(ctx)


def cases():
    """Products: type, rows of weights, rows of activations, sums, batches of weights, repeats, order."""
    kinds = [gguf.GGMLQuantizationType[name].value for name in TYPES]
    plain = (0, 1, 2, 3)
    for kind in kinds:
        for n in (1, 2, 3, 8, 9, 17, 64):
            yield kind, 64, n, 256, (1, 1), (1, 1), plain
        yield kind, 67, 33, 512, (1, 1), (1, 1), plain
        for batch, repeat in (((2, 1), (1, 1)), ((2, 1), (2, 1)), ((3, 2), (1, 2)), ((1, 2), (3, 2))):
            yield kind, 16, 16, 256, batch, repeat, plain
    for kind in (0, 1):
        for order in ((0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1)):
            for n in (1, 8, 16):
                yield kind, 16, n, 256, (2, 3), (1, 1), order
        for m, n, k in ((1, 1, 1), (129, 7, 65), (128, 45, 64), (1056, 1, 193), (45, 128, 67), (40, 20, 8256)):
            yield kind, m, n, k, (1, 1), (1, 1), plain
    for m, n, k in ((4128, 20, 64), (96, 530, 64)):
        yield 1, m, n, k, (1, 1), (1, 1), plain


def sweep(library, quantise, name):
    """Compares all products with those of the CPU; returns claimed, all, the worst error and failures."""
    ggml = Ggml(library)
    device, cpu = ggml.backend(name), ggml.backend("CPU")
    library.ggml_backend_cpu_set_n_threads(cpu, ctypes.c_int(1))
    draw = numpy.random.default_rng(5)
    claimed, total, worst, failures = 0, 0, 0.0, []
    for case in cases():
        kind, m, n, k, batch, repeat, _ = case
        rows = m * batch[0] * batch[1]
        values = draw.uniform(-1, 1, (rows, k)).astype(numpy.float32)
        w = quantise(kind, values).reshape(-1)
        x = draw.uniform(-1, 1, n * batch[0] * batch[1] * repeat[0] * repeat[1] * k).astype(numpy.float32)
        total += 1
        found = ggml.product(device, case, w, x)
        if found is None:
            continue
        claimed += 1
        expected = ggml.product(cpu, case, w, x).astype(numpy.float64)
        error = float(((found - expected) ** 2).sum() / max((expected**2).sum(), 1e-30))
        worst = max(worst, error)
        # What is not a number is not within the bound.
        if not error <= BOUND:
            failures.append(f"{case}: normalised error {error}")
    return {"claimed": claimed, "total": total, "worst": worst, "failures": failures}


def child(options):
    """What the process with a plug-in does: prints one object."""
    import llamacpp

    result = {}
    if options.load:
        result["loaded"] = load(llamacpp.LIBRARY, options.load) is not None
    if options.load_all:
        llamacpp.LIBRARY.ggml_backend_load_all()
        llamacpp.LIBRARY.ggml_backend_dev_by_name.restype = ctypes.c_void_p
        result["loaded"] = llamacpp.LIBRARY.ggml_backend_dev_by_name(options.load_all.encode()) is not None
    if options.sweep:
        result["sweep"] = sweep(llamacpp.LIBRARY, llamacpp.quantise, options.sweep)
    if options.bench:
        set_threads(llamacpp.LIBRARY, options.bench, 1)
        result["bench"] = bench(llamacpp.LIBRARY, llamacpp.quantise, options.bench)
    if options.prompts:
        result["prompts"] = many(llamacpp, options)
    files = []
    for path in options.files:
        vocab = len(gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].data)
        model = llamacpp.Model(path, vocab, threads=options.threads)
        # A model that knows a language is asked in it.
        ids = model.tokenize(TEXT)[:PROMPT] if vocab > 300 and "manual" in path else prompt(vocab)
        begin = time.monotonic()
        logits, tokens, rows = model.greedy(ids, options.count)
        spent = time.monotonic() - begin
        model.close()
        numpy.savez(f"{options.out}-{len(files)}.npz", logits=logits, rows=numpy.array(rows))
        files.append({"tokens": tokens, "seconds": spent})
    print(json.dumps({**result, "files": files}))


def many(llamacpp, options):
    """Greedy tokens after many prompts of a text that never changes; their logits go to a file."""
    path, batch = options.prompts, 1 if options.single else PROMPT
    words = re.findall(r"[A-Za-z,.]+", (ROOT / "LICENSE-APACHE").read_text())
    text, size = " ".join(words), 6 * PROMPT
    model = llamacpp.Model(path, len(gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].data), options.threads)
    whole = model.eval
    model.eval = lambda ids: numpy.concatenate([whole(ids[i : i + batch]) for i in range(0, len(ids), batch)])
    found = [model.greedy(model.tokenize(text[i * size :][:size])[:PROMPT], options.count)[:2] for i in range(PROMPTS)]
    model.close()
    numpy.savez(options.out, *(logits for logits, _ in found))
    return [tokens for _, tokens in found]


def itself(plugin, built, folder, environment, options):
    """Whether logits are as close to llama.cpp's as llama.cpp's, in another way, are to themselves."""
    common = ["--threads", options.threads, "--count", options.count, "--prompts", ROOT / "models/manual/manual.gguf"]
    ways = {"whole": [], "single": ["--single"], "plug-in": ["--load", built / PLUGINS[plugin][1]]}
    tokens, logits = {}, {}
    for way, more in ways.items():
        out = folder / f"{way}.npz"
        tokens[way] = run([*more, "--out", out, *common], environment if way == "plug-in" else ())[0]["prompts"]
        logits[way] = numpy.concatenate([rows.ravel() for rows in numpy.load(out).values()])
    of = lambda way: float(numpy.sqrt(((logits[way] - logits["whole"]) ** 2).mean() / logits["whole"].var()))
    same = lambda way: sum(a == b for a, b in zip(tokens[way], tokens["whole"]))
    fine = 0 < of("plug-in") <= FURTHER * of("single") and len(tokens["plug-in"]) == PROMPTS
    print(f"{'ok  ' if fine else 'FAIL'} {plugin:5} {same('plug-in')} of {PROMPTS} prompts have the same {options.count} "
          f"tokens, llama.cpp with itself {same('single')}; logits {of('plug-in'):.2e} and {of('single'):.2e} apart",
          flush=True)
    return fine


def prompt(vocab):
    draw = numpy.random.default_rng(11)
    return [1, *map(int, draw.integers(min(259, vocab // 2), vocab, PROMPT - 1))]


def run(arguments, environment=()):
    """Runs this file as a child; its object, its standard error."""
    done = subprocess.run([sys.executable, __file__, "--child", *map(str, arguments)], capture_output=True, text=True,
                          timeout=900, env={**os.environ, **dict(environment)})
    if done.returncode:
        raise SystemExit(f"error: {arguments}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def same(theirs, ours, folder, index, count):
    """Whether tokens are the same, or differ at a tie; and a text about it."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
    data = [numpy.load(folder / f"{who}-{index}.npz") for who in ("theirs", "ours")]
    distance = float(numpy.abs(data[0]["logits"] - data[1]["logits"]).max())
    if len(ours) != count or not numpy.isfinite(data[1]["logits"]).all():
        return False, "too few tokens or no numbers"
    if distance == 0:
        return False, "the plug-in had no part in it: the logits are the same bits"
    if at is None:
        return True, f"{count} tokens the same, logits within {distance:.2e}"
    second, best = numpy.partition(data[0]["rows"][at], -2)[-2:]
    if best - second < distance:
        return True, f"{at} tokens the same, then a tie of {best - second:.2e}, logits within {distance:.2e}"
    return False, f"token {at} is {ours[at]}, not {theirs[at]}; {best - second:.2e} apart, logits within {distance:.2e}"


def compare(plugin, built, files, folder, environment, options):
    """Greedy tokens of files with and without a plug-in; whether all are the same."""
    common = ["--threads", options.threads, "--count", options.count, *files]
    theirs, _ = run(["--out", folder / "theirs", *common])
    with_plugin = ["--load", built / PLUGINS[plugin][1], "--out", folder / "ours"]
    ours, said = run([*with_plugin, *common], environment)
    if not ours["loaded"]:
        raise SystemExit(f"error: the plug-in is refused\n{said[-2000:]}")
    good = True
    for i, path in enumerate(files):
        fine, text = same(theirs["files"][i]["tokens"], ours["files"][i]["tokens"], folder, i, options.count)
        times = theirs["files"][i]["seconds"], ours["files"][i]["seconds"]
        print(f"{'ok  ' if fine else 'FAIL'} {plugin:5} {pathlib.Path(path).name:24} {text}; {times[0]:.1f} s without, "
              f"{times[1]:.1f} s with", flush=True)
        good &= fine
    return good, said


def emulator(built, *more):
    lines = {"TILEWRIGHT_RKNN_LIB": str(built / "librknnrt.so"), "TILEWRIGHT_RKNN_CHIP": "rk3588",
             "TILEWRIGHT_RKNN_EMULATOR": "1", "TILEWRIGHT_RKNN_MIN_ROWS": "16"}
    return {**lines, **dict(more)}


def self_test(built, folder):
    """Whether the NPU's library is tested once, and refused where that fails."""
    plugin, passed = ["--load", built / PLUGINS["rknn"][1]], "has passed its self-test"
    good = True
    for fault, loaded, heard in [("run:crash", False, "before its first use"), ("run:nth=3:wrong=nan", False, "wrong row"),
                                 ("", True, passed), ("run:crash", True, "")]:
        environment = emulator(built, ("RKNN_EMU_FAULT", fault), ("XDG_CACHE_HOME", str(folder / "cache")))
        found, said = run(plugin, environment)
        fine = found["loaded"] == loaded and heard in said and (bool(heard) or passed not in said)
        print(f"{'ok  ' if fine else 'FAIL'} rknn  self-test with the fault `{fault}`: "
              f"{said.strip()[-150:] or 'not repeated'}", flush=True)
        good &= fine
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("built", nargs="?", help="the folder with the plug-ins and the emulator")
    parser.add_argument("--plugins", default="cpu,rknn", help="comma-separated")
    parser.add_argument("--gguf", action="append", default=[], help="a file to compare instead of random ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=GENERATED)
    parser.add_argument("--trace", action="store_true", help="print what the plug-ins say")
    parser.add_argument("--bench", help="DEVICE (TILEWRIGHT): time products there and on ggml's CPU backend instead")
    for hidden in ("--load", "--load-all", "--sweep", "--out", "--prompts"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        # The first argument of a child is a file, too.
        options.files = [f for f in [options.built, *options.files] if f]
        return child(options)
    if not options.built:
        parser.error("name the folder with the plug-ins")
    built = pathlib.Path(options.built).resolve()
    good = True
    if options.bench:
        file = next(file for name, file in PLUGINS.values() if name == options.bench)
        found, _ = run(["--load", built / file, "--bench", options.bench], emulator(built))
        print("type  rows  plug-in us  ggml us   2048 x 2048 weights, one thread each, least of 15")
        for kind, rows, ours, theirs in found["bench"]:
            print(f"{kind:5} {rows:4} {ours:11.0f} {theirs:8.0f}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for plugin in options.plugins.split(","):
            name, file = PLUGINS[plugin]
            # Also products of one row, which are left to ggml by themselves.
            environment = {"TILEWRIGHT_GGML_MIN_ROWS": "1"}
            if plugin == "rknn":
                good &= self_test(built, folder)
                environment = emulator(built, ("XDG_CACHE_HOME", str(folder / "cache")))
            variable = {**environment, "GGML_BACKEND_PATH": str(built / file)}
            found, said = run(["--load-all", name], variable)
            print(f"{'ok  ' if found['loaded'] else 'FAIL'} {plugin:5} is loaded by GGML_BACKEND_PATH", flush=True)
            good &= found["loaded"]
            found, said = run(["--load", built / file, "--sweep", name], environment)
            if not found["loaded"]:
                raise SystemExit(f"error: {file} is refused\n{said[-2000:]}")
            about = found["sweep"]
            fine = not about["failures"] and about["claimed"] >= CLAIMED[plugin]
            print(f"{'ok  ' if fine else 'FAIL'} {plugin:5} MUL_MAT: {about['claimed']} of {about['total']} products are "
                  f"claimed, worst normalised error {about['worst']:.1e}", flush=True)
            for failure in about["failures"][:8]:
                print("     ", failure)
            good &= fine
            files = options.gguf or write_files(folder, plugin)
            fine, said = compare(plugin, built, files, folder, environment, options)
            good &= fine & itself(plugin, built, folder, environment, options)
            if options.trace:
                print(said)
            if plugin == "rknn":
                for fault in FAULTS:
                    print(f"     with the fault {fault}")
                    fine, said = compare(plugin, built, files[:1], folder,
                                         {**environment, "RKNN_EMU_FAULT": fault}, options)
                    heard = "the CPU computes instead" in said
                    if not heard:
                        print("FAIL rknn  the fault was not met")
                    good &= fine and heard
        good &= refused(built, options.plugins.split(","))
    print("plug-ins agree with llama.cpp" if good else "FAILED")
    return 0 if good else 1


def refused(built, plugins):
    """A process without ggml, and for the NPU a machine without one: null, and a reason."""
    good = True
    for plugin in plugins:
        path = built / PLUGINS[plugin][1]
        script = ("import ctypes, sys\nlib = ctypes.CDLL(sys.argv[1])\nlib.ggml_backend_init.restype = ctypes.c_void_p\n"
                  "print(lib.ggml_backend_init())")
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
        fine = done.returncode == 0 and done.stdout.strip() == "None" and "is not used: " in done.stderr
        print(f"{'ok  ' if fine else 'FAIL'} {plugin:5} a process without ggml: {done.stderr.strip()[:150]}")
        good &= fine
    if "rknn" in plugins:
        found, said = run(["--load", built / PLUGINS["rknn"][1]], {"TILEWRIGHT_RKNN_CHIP": "", "TILEWRIGHT_RKNN_LIB": ""})
        fine = not found["loaded"] and "is not used: " in said
        line = next((line for line in said.splitlines() if "is not used: " in line), said)
        print(f"{'ok  ' if fine else 'FAIL'} rknn  a machine without NPU: {line.strip()[:150]}")
        good &= fine
    return good


def bench(library, quantise, name):
    """Microseconds of products on a backend and on ggml's CPU backend, one thread each."""
    ggml = Ggml(library)
    result = []
    for kind in ("F16", "Q8_0", "Q4_K"):
        kind = gguf.GGMLQuantizationType[kind]
        m, k = 2048, 2048
        draw = numpy.random.default_rng(5)
        w = quantise(kind.value, draw.uniform(-1, 1, (m, k)).astype(numpy.float32)).reshape(-1)
        for n in (1, 4, 16, 64, 256):
            x = draw.uniform(-1, 1, n * k).astype(numpy.float32)
            case = (kind.value, m, n, k, (1, 1), (1, 1), (0, 1, 2, 3))
            line = [kind.name, n]
            for backend in (name, "CPU"):
                backend = ggml.backend(backend)
                library.ggml_backend_cpu_set_n_threads(backend, ctypes.c_int(1)) if line[2:] else None
                times = []
                if ggml.product(backend, case, w, x, times) is None:
                    break
                line.append(min(times) * 1e6)
                library.ggml_backend_free(backend)
            else:
                result.append(line)
    return result


def write_files(folder, plugin):
    """The embedded model, and small files with random weights of each type that the plug-in is for."""
    import architectures
    import llamacpp

    files = [str(pathlib.Path(__file__).parent.parent / "models/manual/manual.gguf")]
    for name in TYPES if plugin == "cpu" else ["F16", "Q8_0", "Q4_0", "Q4_K"]:
        path = folder / f"llama-{name}.gguf"
        if not path.exists():
            architectures.write(path, architectures.ARCHITECTURES["llama"], gguf.GGMLQuantizationType[name],
                                llamacpp.quantise)
        files.append(str(path))
    return files


if __name__ == "__main__":
    sys.exit(main())
