#!/usr/bin/env python3
"""Tokens of random texts, compared with stock llama.cpp (package xllamacpp).

usage: tokenizers.py TILEWRIGHT VOCABULARY.gguf [--pre NAME]... [--texts N]

The vocabulary gets small random weights, because this tokenizes with whole models; with --pre it is cut in
other ways too. Texts are made of words, marks and white space of many scripts. For ways of cutting
that are known to differ (DIFFERENT), differences are shown but not counted.
"""
import argparse
import json
import os
import pathlib
import random
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
DIFFERENT = {"tekken", "gpt-4o", "llama4", "deepseek-llm", "deepseek-coder"}


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
    parser.add_argument("vocabulary")
    parser.add_argument("--pre", action="append", default=[])
    parser.add_argument("--texts", type=int, default=300)
    options = parser.parse_args()
    rng = random.Random(5)
    texts = ["".join(rng.choice(WORDS) + rng.choice(["", " ", " ", "  ", "\n"]) for _ in range(rng.randint(1, 12)))
             for _ in range(options.texts)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "m.gguf")
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
