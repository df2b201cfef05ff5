"""Writes the averaged weights of train.py as a GGUF file: architecture llama, matrices in Q8_0, norms in F32."""

import argparse
import json
import pathlib

import gguf
import torch

from model import Shape

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def vocabulary(writer, path):
    """The vocabulary of prepare.py: byte-level BPE, GPT-2's splitting rule, bos 0 and eos 1."""
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control, control] + [normal] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def matrices(weights, shape):
    """Tensors by the names of GGUF; the fused ones taken apart."""
    kv = shape.kv_heads * shape.width // shape.heads
    yield "token_embd.weight", weights["token_embd.weight"]
    yield "output_norm.weight", weights["output_norm.weight"]
    for i in range(shape.layers):
        def layer(name):
            return weights[f"layers.{i}.{name}.weight"]

        parts = {name: layer(name) for name in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")}
        parts["attn_q"], parts["attn_k"], parts["attn_v"] = layer("attn_qkv").split((shape.width, kv, kv))
        parts["ffn_gate"], parts["ffn_up"] = layer("ffn_gate_up").chunk(2)
        yield from ((f"blk.{i}.{name}.weight", value) for name, value in parts.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--weights", type=pathlib.Path, required=True, help="average.pt of train.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the GGUF file")
    options = parser.parse_args()
    saved = torch.load(options.weights)
    shape = Shape(**saved["shape"])
    writer = gguf.GGUFWriter(options.out, "llama")
    writer.add_name("manual")
    writer.add_description("Writes like a software manual. Trained on the documentation of Python, PostgreSQL, "
                           "Django and debmake as packaged by Debian; see models/manual/README.md of tilewright.")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab)
    vocabulary(writer, options.data / "vocab.json")
    for name, value in matrices(saved["weights"], shape):
        value = value.float().numpy()
        if value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{options.out}: {options.out.stat().st_size} bytes, {saved['seen']} tokens seen")


if __name__ == "__main__":
    main()
