"""Perplexity of an exported file on the held-out pages, a few completions, in f32 (weights dequantised)."""

import argparse
import json
import math
import pathlib

import gguf
import numpy
import torch
from torch.nn import functional

from model import Manual, Shape


def load(path):
    """The network with the weights of a GGUF file."""
    reader = gguf.GGUFReader(path)
    values = {t.name: torch.from_numpy(numpy.array(gguf.quants.dequantize(t.data, t.tensor_type), numpy.float32))
              for t in reader.tensors}

    def number(key):
        return reader.fields["llama." + key].contents()

    shape = Shape(vocab=len(values["token_embd.weight"]), width=number("embedding_length"),
                  layers=number("block_count"), heads=number("attention.head_count"),
                  kv_heads=number("attention.head_count_kv"), hidden=number("feed_forward_length"),
                  context=number("context_length"), rope_base=number("rope.freq_base"),
                  epsilon=number("attention.layer_norm_rms_epsilon"))
    weights = {name: values[name] for name in ("token_embd.weight", "output_norm.weight")}
    for i in range(shape.layers):
        def layer(*names):
            return torch.cat([values[f"blk.{i}.{name}.weight"] for name in names])

        parts = {"attn_qkv": layer("attn_q", "attn_k", "attn_v"), "ffn_gate_up": layer("ffn_gate", "ffn_up")}
        parts |= {name: layer(name) for name in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")}
        weights |= {f"layers.{i}.{name}.weight": value for name, value in parts.items()}
    model = Manual(shape)
    model.load_state_dict(weights)
    return model.eval()


def held_out(model, tokens, length):
    """Total loss in nats of all tokens, in windows of `length` that begin with bos."""
    total = 0.0
    for i in range(0, len(tokens), length - 1):
        window = numpy.concatenate(([0], tokens[i : i + length - 1]))
        logits = model.logits(torch.from_numpy(window)[None])[0, :-1]
        total += functional.cross_entropy(logits, torch.from_numpy(window[1:]), reduction="sum").item()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--length", type=int, default=256, help="tokens a window")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(options.gguf)
    tokens = numpy.load(options.data / "heldout.npy").astype(numpy.int64)
    pages = (options.data / "pages" / "heldout.txt").read_text(encoding="utf-8").split("\f")[1:]
    size = sum(len(page.split("\n", 1)[1][:-1].encode()) for page in pages)
    pieces = len(json.loads((options.data / "vocab.json").read_text(encoding="utf-8"))["model"]["vocab"])
    with torch.no_grad():
        loss = held_out(model, tokens, options.length)
    print(f"{len(tokens)} tokens of {size} bytes, vocabulary {pieces}: perplexity a token "
          f"{math.exp(loss / len(tokens)):.2f}, {loss / math.log(2) / size:.3f} bits a byte")


if __name__ == "__main__":
    main()
