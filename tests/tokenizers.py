#!/usr/bin/env python3
"""Tokens of random texts, compared with stock llama.cpp (package xllamacpp).

usage: tokenizers.py TILEWRIGHT VOCABULARY.gguf [--pre NAME]... [--texts N]
       tokenizers.py TILEWRIGHT --gemma4

The vocabulary gets small random weights, because this tokenizes with whole models; with --pre it is cut in
other ways too. With --gemma4 it is a small one of that kind, whose merges are made here. Texts are made of words, marks and white space of many scripts. For ways of cutting
that are known to differ (DIFFERENT), differences are shown but not counted.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "llm"))
import llamacpp  # noqa: E402

WORDS = ["Hello", "world", "I'm", "they'LL", "WE'VE", "don't", "it'S", "naïve", "café", "Straße", "ЖИЗНЬ",
         "Привет", "漢字", "かな", "カタカナ", "한국어", "नमस्ते", "สวัสดี", "עברית", "العربية", "🦙", "👩‍👩‍👧",
         "e\u0301a\u0308", "x=1;", "a.b(c)", "http://a.b/c?d=e&f", "#include <x>", "def f(x):", "\t", "\n",
         "\n\n", "\r\n", " ", "  ", "   ", "     ", "123", "1234567", "3.14159", "½", "—", "“quoted”", "…",
         "...", "!!!", "$5", "€10", "a_b", "__init__", "CamelCaseWord", "ALLCAPS", "\u00a0", "\u2003",
         "\u3000", "'s", "'S", "'re", "<|im_end|>", "<s>", "</s>", "ΑΒΓ", "0a1b2c", "«x»", "、。", "１２３", "|",
         "`code`", "~~", "^^", "(x|y)"]
# llama.cpp approximates the classes of capital letters and marks in the first three patterns, and in the others
# takes white space beyond ASCII for one character. Of BERT's vocabularies it decomposes Hangul to first letters.
# What stands before a number it leaves with its first digits in "afmoe" and "tiny_aya", where the models' own
# tokenizers cut both apart.
DIFFERENT = {"tekken", "gpt-4o", "llama4", "deepseek-llm", "deepseek-coder", "afmoe", "tiny_aya"}


def merges_of(texts, count):
    """Tokens and pairs of the commonest neighbours in texts, as BPE over characters finds them."""
    words = collections.Counter(re.sub("(?<=.) ", "\n ", text) for text in texts)
    words = [(list(w.replace(" ", "\u2581")), n) for text, n in words.items() for w in text.split("\n") if w]
    tokens = sorted({c for w, _ in words for c in w})
    # A character without a token, whose pairs have one, and two without any.
    tokens = [t for t in tokens if t not in "\u00e9\u0416\U0001f999"]
    pairs = [("\n", "\n"), ("\n\n", "\n"), ("\u00e9", "s")]
    tokens += ["\n", "\n\n", "\n\n\n", "\u00e9s", "\u2581\u2581"]
    for _ in range(count):
        found = collections.Counter()
        for w, n in words:
            for pair in zip(w, w[1:]):
                found[pair] += n
        if not found:
            break
        pair = max(found, key=lambda p: (found[p], p))
        pairs.append(pair)
        # Some results are no tokens.
        tokens += ["".join(pair)] * (len(pairs) % 11 != 0)
        for w, _ in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == pair:
                    w[i : i + 2] = ["".join(pair)]
                i += 1
    return list(dict.fromkeys(tokens)), list(dict.fromkeys(pairs))


def gemma4(out):
    """A vocabulary of this kind, as its converter writes them."""
    rng = random.Random(3)
    # llama.cpp finds tokens that end a turn in what users write if merges make them.
    words = [word for word in WORDS if "im_end" not in word]
    texts = ["".join(rng.choice(words) + rng.choice(["", " ", " ", "  "]) for _ in range(9)) for _ in range(400)]
    tokens, pairs = merges_of(texts, 900)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>"]
    user = ["<|channel>", "<channel|>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([*special, *user, *bytes_, *tokens])
    writer.add_token_scores([-1000.0] * (len(special) + len(user) + 256) + [-float(i) for i in range(len(tokens))])
    writer.add_token_types([3] * len(special) + [4] * len(user) + [6] * 256 + [1] * len(tokens))
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(source, out, pre):
    """The vocabulary of `source` in a model of one small layer."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    count, dim = len(reader.fields["tokenizer.ggml.tokens"].data), 32
    writer.add_context_length(4096)
    writer.add_embedding_length(dim)
    writer.add_block_count(1)
    writer.add_feed_forward_length(dim)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(count)
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            texts = field.types[1] == gguf.GGUFValueType.STRING
            writer.add_array(key, [bytes(field.parts[i]) for i in field.data] if texts else list(field.contents()))
        else:
            value = pre if pre and key == "tokenizer.ggml.pre" else field.contents()
            writer.add_key_value(key, value, field.types[0])
    rng = np.random.default_rng(0)
    for name in ["attn_norm", "ffn_norm"]:
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(dim, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        writer.add_tensor(f"blk.0.{name}.weight", rng.normal(0, 0.1, (dim, dim)).astype(np.float16))
    writer.add_tensor("token_embd.weight", rng.normal(0, 0.1, (count, dim)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("vocabulary", nargs="?")
    parser.add_argument("--gemma4", action="store_true")
    parser.add_argument("--pre", action="append", default=[])
    parser.add_argument("--texts", type=int, default=300)
    options = parser.parse_args()
    rng = random.Random(5)
    texts = ["".join(rng.choice(WORDS) + rng.choice(["", " ", " ", "  ", "\n"]) for _ in range(rng.randint(1, 12)))
             for _ in range(options.texts)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "m.gguf")
        if options.gemma4:
            options.vocabulary = os.path.join(folder, "v.gguf")
            gemma4(options.vocabulary)
        for pre in options.pre or [None]:
            make(options.vocabulary, model, pre)
            peer = llamacpp.Model(model, vocab=0)
            differ = 0
            for text in texts:
                expected = peer.tokenize(text, special=False)
                run = subprocess.run([options.program, "tokenize", model, "-", "--no-special", "--format", "json"],
                                     input=text.encode(), capture_output=True)
                found = json.loads(run.stdout)["tokens"] if run.returncode == 0 else run.stderr.decode()
                if found != expected:
                    differ += 1
                    if differ <= 3:
                        print(f"  {text!r}\n    found    {found}\n    expected {expected}")
            peer.close()
            print(f"{pre or 'own way of cutting'}: {len(texts) - differ} of {len(texts)} texts equal")
            wrong += differ if pre not in DIFFERENT else 0
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
