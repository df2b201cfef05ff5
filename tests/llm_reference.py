#!/usr/bin/env python3
"""Compares `tilewright generate` with stock llama.cpp on random files of every tensor type and architecture.

    pip install -r tests/requirements-llm.txt
    python3 tests/llm_reference.py target/release/tilewright
    python3 tests/llm_reference.py target/release/tilewright --types Q4_K,F16 --architectures gemma3,phi3
    python3 tests/llm_reference.py --self          llama.cpp against the f64 reference alone

For each architecture (tests/llm/architectures.py) and type a small GGUF file is written; three
programs read it: llama.cpp (package xllamacpp), tilewright, and a reference in f64 on the
dequantised weights (tests/llm/reference.py). Required:

  greedy   the same 64 tokens after a prompt of 320, or a first difference where llama.cpp's own two best
           logits are closer than its distance from the reference (the largest of the
           prompt and of that row);
  top-1    the same best token at every position of the prompt, ties as above aside;
  KL       mean KL divergence of the softmax from the reference's at most 1.1 times llama.cpp's. Of files with experts
           rounding makes either program choose others for some tokens: the mean is over the three quarters of
           the positions that diverge least, of three prompts, and those that diverge by more than five times
           llama.cpp's median are at most half as many more, and 8.

`--perplexity FILE.gguf TEXT` compares the perplexity of a text instead (within 0.5 %).
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parent / "llm"))
import architectures  # noqa: E402
import llamacpp  # noqa: E402
import reference  # noqa: E402

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
         "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"]
# Of 48 positions the mean divergence varies by a fifth from one set of weights to the next, of 320 by a twelfth.
PROMPT, GENERATED = 320, 64
# Below this a divergence is rounding of f32 logits, in llama.cpp's and anyone's.
KL_FLOOR = 1e-9


def log_softmax(logits):
    logits = numpy.asarray(logits, numpy.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def divergences(truth, logits):
    """KL divergence of each row of logits from the reference's, in nats."""
    p, q = log_softmax(truth), log_softmax(logits)
    return (numpy.exp(p) * (p - q)).sum(-1)


def usual(divergence):
    """Mean of the three quarters that are smallest."""
    return float(numpy.sort(divergence)[: len(divergence) * 3 // 4].mean())


def centred(row):
    row = numpy.asarray(row, numpy.float64)
    return row - row.mean()


def is_tie(theirs, distance):
    """Whether llama.cpp's two best logits of a row are closer than that."""
    second, best = numpy.partition(theirs, -2)[-2:]
    return best - second < distance


def tilewright(cli, path, prompt, count, folder, extra=()):
    """Prompt logits and tokens of `tilewright generate`; a message instead where it fails."""
    out = pathlib.Path(folder) / "logits.npy"
    out.unlink(missing_ok=True)
    command = [cli, "generate", str(path), "--prompt-tokens", ",".join(map(str, prompt)), "-n", str(count),
               "--temp", "0", "--ignore-eos", "--logits", str(out), "--format", "json", *extra]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or ["no message"]
        return None, f"exit status {run.returncode}: {lines[-1][:300]}"
    result = json.loads(run.stdout)
    if result["prompt_tokens"] != prompt:
        return None, f"prompt_tokens {result['prompt_tokens'][:8]}.. are not the ids given"
    return numpy.load(out), result["tokens"]


def first_difference(ours, theirs):
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)


def judge(a, values, prompt, theirs, ours, more):
    """(failures, figures) of one file; theirs: prompt logits, tokens, rows; ours: prompt logits, tokens; more: of
    further prompts the ids, their logits and ours.
    """
    their_logits, their_tokens, their_rows = theirs
    our_logits, our_tokens = ours
    truth = reference.logits(a, values, prompt)
    failures = []
    if our_logits.shape != their_logits.shape or our_logits.dtype != numpy.float32:
        return [f"logits {our_logits.dtype} {our_logits.shape}, not f32 {their_logits.shape}"], {}
    if not numpy.isfinite(our_logits).all():
        return ["logits are not finite"], {}
    rows_theirs, rows_ours = divergences(truth, their_logits), divergences(truth, our_logits)
    if a.experts:
        for ids, theirs_more, ours_more in more:
            exact = reference.logits(a, values, ids)
            rows_theirs = numpy.append(rows_theirs, divergences(exact, theirs_more))
            rows_ours = numpy.append(rows_ours, divergences(exact, ours_more))
        far = 5 * numpy.median(rows_theirs) + KL_FLOOR
        far_theirs, far_ours = int((rows_theirs > far).sum()), int((rows_ours > far).sum())
        if far_ours > 1.5 * far_theirs + 8:
            failures.append(f"{far_ours} positions far from the reference, llama.cpp's {far_theirs}")
    if a.alone:
        kl = float(rows_ours.mean())
        return [f"KL {kl:.2e}, more than {a.alone}"] if kl > a.alone else [], {"kl": kl}
    mean = usual if a.experts else lambda rows: float(rows.mean())
    kl_theirs, kl_ours = mean(rows_theirs), mean(rows_ours)
    if kl_ours > 1.1 * kl_theirs + KL_FLOOR:
        failures.append(f"KL {kl_ours:.2e}, llama.cpp's {kl_theirs:.2e}")
    distance = max(numpy.abs(centred(row) - centred(t)).max() for row, t in zip(their_logits, truth))
    best = our_logits.argmax(-1)
    differing = [i for i in range(len(prompt)) if best[i] != their_logits[i].argmax()]
    wrong = [i for i in differing if not is_tie(their_logits[i], distance)]
    if wrong:
        failures.append(f"top-1 differs at {len(wrong)} of {len(prompt)} positions, first {wrong[0]}")
    ties = len(differing) - len(wrong)
    at = first_difference(our_tokens, their_tokens)
    if len(our_tokens) != GENERATED:
        failures.append(f"{len(our_tokens)} tokens, not {GENERATED}")
    elif at is not None:
        exact = reference.logits(a, values, [*prompt, *their_tokens[:at]])[-1]
        distance = max(distance, numpy.abs(centred(their_rows[at]) - centred(exact)).max())
        if is_tie(their_rows[at], distance):
            ties += 1
        else:
            failures.append(f"greedy token {at} is {our_tokens[at]}, llama.cpp's {their_tokens[at]}")
    figures = {"kl": kl_ours, "kl_llama": kl_theirs, "same_tokens": GENERATED if at is None else at, "ties": ties,
               "largest": float(numpy.abs(our_logits - truth).max()),
               "largest_llama": float(numpy.abs(their_logits - truth).max())}
    return failures, figures


def check_file(options, folder, a, kind):
    """Makes one file and judges it; returns whether all is well."""
    path = pathlib.Path(options.keep or folder) / f"{a.name}-{kind.name}.gguf"
    values = architectures.write(path, a, kind, llamacpp.quantise)
    draw = numpy.random.default_rng(11)
    prompt = [1, *map(int, draw.integers(259, architectures.VOCAB, PROMPT - 1))]
    try:
        model = llamacpp.Model(path, architectures.VOCAB)
    except RuntimeError as error:
        print(f"FAIL {a.name:18} {kind.name:7} {error}", flush=True)
        return False
    theirs = model.greedy(prompt, GENERATED)
    more = []
    for _ in range(2 if a.experts else 0):
        ids = [1, *map(int, draw.integers(259, architectures.VOCAB, PROMPT - 1))]
        model.clear()
        logits = model.eval(ids)
        more.append((ids, logits, logits if options.self else tilewright(options.cli, path, ids, 0, folder, options.extra)[0]))
    model.close()
    if options.self:
        ours = theirs[0], theirs[1]
    else:
        logits, tokens = tilewright(options.cli, path, prompt, GENERATED, folder, options.extra)
        if logits is None:
            print(f"FAIL {a.name:18} {kind.name:7} {tokens}", flush=True)
            return False
        ours = logits, tokens
    failures, figures = judge(a, values, prompt, theirs, ours, more)
    if options.self and figures["kl_llama"] > 0.02:
        failures.append("llama.cpp is far from the reference")
    text = " ".join(f"{k} {v:.2e}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
    print(f"{'FAIL' if failures else 'ok  '} {a.name:18} {kind.name:7} {'; '.join(failures) + ' | ' if failures else ''}{text}",
          flush=True)
    if not options.keep:
        path.unlink()
    return not failures


def check_perplexity(options, folder, path, text):
    """Compares the perplexity of windows of 256 tokens of a text."""
    fields = gguf.GGUFReader(path).fields
    vocab = len(fields["tokenizer.ggml.tokens"].data)
    bos = int(fields["tokenizer.ggml.bos_token_id"].parts[-1][0])
    model = llamacpp.Model(path, vocab)
    ids = model.tokenize(pathlib.Path(text).read_text(encoding="utf-8"), special=False)
    losses = {"llama.cpp": 0.0, "tilewright": 0.0}
    windows = [ids[i : i + 255] for i in range(0, min(len(ids), options.tokens) - 254, 255)]
    for window in windows:
        prompt = [bos, *window]
        model.clear()
        logits = {"llama.cpp": model.eval(prompt)}
        logits["tilewright"], message = tilewright(options.cli, path, prompt, 0, folder, options.extra)
        if logits["tilewright"] is None:
            print(f"FAIL {path}: {message}")
            return False
        for name, rows in logits.items():
            losses[name] -= log_softmax(rows[:-1])[numpy.arange(len(window)), window].mean() / len(windows)
    ours, theirs = math.exp(losses["tilewright"]), math.exp(losses["llama.cpp"])
    good = abs(ours / theirs - 1) <= 0.005
    print(f"{'ok  ' if good else 'FAIL'} {path}: perplexity {ours:.4f}, llama.cpp's {theirs:.4f} ({ours / theirs - 1:+.3%}), "
          f"{len(windows)} windows of 256 tokens")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cli", nargs="?", help="the tilewright program")
    parser.add_argument("--types", default=",".join(TYPES), help="tensor types, comma-separated")
    parser.add_argument("--architectures", default=",".join(architectures.ARCHITECTURES), help="comma-separated")
    parser.add_argument("--self", action="store_true", help="judge llama.cpp by the reference; no tilewright")
    parser.add_argument("--keep", metavar="DIR", help="write the files there and keep them")
    parser.add_argument("--perplexity", nargs=2, metavar=("GGUF", "TEXT"), help="compare the perplexity of a text")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the text for --perplexity")
    parser.add_argument("--extra", type=lambda s: s.split(), default=[], help="more arguments for tilewright generate")
    options = parser.parse_args()
    if not options.cli and not options.self:
        parser.error("name the tilewright program, or --self")
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.perplexity:
            return 0 if check_perplexity(options, folder, *options.perplexity) else 1
        results = []
        for name in options.architectures.split(","):
            for kind in options.types.split(","):
                a, kind = architectures.ARCHITECTURES[name], gguf.GGMLQuantizationType[kind]
                results.append(check_file(options, folder, a, kind))
    print(f"{sum(results)} of {len(results)} files as llama.cpp has them")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
