"""GGUF files with random weights in the shapes of known language models, for measuring speed."""

import pathlib
import sys

import gguf
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/llm"))
import llamacpp  # noqa: E402 (quantises what the gguf package cannot, and knows types that are newer than that)

# The shapes of Llama-3.2-1B, of a Llama of 110 million parameters, and, but for their vocabularies, of Qwen3.5-0.8B and
# Gemma-4-E2B; of Qwen3-30B-A3B, GPT-OSS-20B and GLM-4.7-Flash the vocabulary and the layers are fewer.
SHAPES = {
    "1b": dict(width=2048, layers=16, heads=32, kv_heads=8, hidden=8192, vocab=128256, tied=True, base=500000.0),
    "110m": dict(width=768, layers=12, heads=12, kv_heads=12, hidden=2048, vocab=32000, tied=False, base=10000.0),
    "qwen35": dict(arch="qwen35", width=1024, layers=24, heads=8, kv_heads=2, head=256, rotated=64, hidden=3584,
                   vocab=32000, tied=True, base=1e7, attends=4, memories=16, memory=128, taps=4),
    "gemma4": dict(arch="gemma4", width=1536, layers=35, heads=8, kv_heads=1, head=256, hidden=6144, vocab=32000,
                   tied=True, base=1e6, attends=5, far_head=512, window=512, sharing=20, layer_width=256),
    "gemma3n": dict(arch="gemma3n", width=2048, layers=30, heads=8, kv_heads=2, head=256, hidden=8192, vocab=32000,
                    tied=True, base=1e6, attends=5, window=512, sharing=10, layer_width=256, streams=4, thin=64),
    "experts": dict(arch="qwen3moe", width=2048, layers=6, heads=32, kv_heads=4, head=128, hidden=6144, vocab=32000,
                    tied=True, base=1e6, experts=128, used=8, inside=768),
    "gpt-oss": dict(arch="gpt-oss", width=2880, layers=4, heads=64, kv_heads=8, head=64, hidden=2880, vocab=32000,
                    tied=False, base=150000.0, experts=32, used=4, inside=2880, window=128, biased=True),
    "latent": dict(arch="deepseek2", width=2048, layers=5, heads=20, kv_heads=1, head=256, rotated=64, hidden=10240,
                   vocab=32000, tied=False, base=1e6, rank=512, query_rank=768, still=192, experts=64, used=4, inside=1536,
                   dense=1),
}
MIXES = ["q4_k_m", "q5_k_m"]
# Rows that are drawn; a larger matrix repeats them. Speed does not depend on the values.
DRAWN = 1024


def _quantised(kind, rows):
    if kind in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        return gguf.quants.quantize(rows, kind)
    return llamacpp.quantise(kind.value, rows)


def _kind(kind, name, layer, layers):
    """The type of a matrix in a file of a kind: Q4_K_M and Q5_K_M have Q6_K where it matters more."""
    base = kind.removesuffix("_m").upper()
    if kind not in MIXES:
        return gguf.GGMLQuantizationType[kind.upper()]
    eighth = layers // 8
    more = layer is not None and (layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2)
    fine = name == "output" or (more and name in ("attn_v", "ffn_down"))
    return gguf.GGMLQuantizationType["Q6_K" if fine else base]


def write(path, shape, kind):
    """Writes `path`, a model of random weights with a vocabulary of made-up words."""
    s, draw = SHAPES[shape], numpy.random.default_rng(1)
    writer, head = gguf.GGUFWriter(path, s.get("arch", "llama")), head_size(s)
    writer.add_name(f"random {shape}")
    writer.add_context_length(8192)
    writer.add_embedding_length(s["width"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length([hidden(s, i) for i in range(s["layers"])] if "sharing" in s else s["hidden"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(s.get("far_head", s.get("rotated", head)))
    writer.add_rope_freq_base(s["base"])
    writer.add_vocab_size(s["vocab"])
    if "memories" in s:
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_rope_dimension_sections([s["rotated"] // 4, s["rotated"] // 8, s["rotated"] // 8, 0])
        writer.add_ssm_conv_kernel(s["taps"])
        writer.add_ssm_state_size(s["memory"])
        writer.add_ssm_inner_size(s["memories"] * s["memory"])
        writer.add_ssm_time_step_rank(s["memories"])
        writer.add_ssm_group_count(s["memories"])
        writer.add_full_attention_interval(s["attends"])
    if "sharing" in s:
        writer.add_key_length(s.get("far_head", head))
        writer.add_value_length(s.get("far_head", head))
        if "far_head" in s:
            writer.add_key_length_swa(head)
            writer.add_value_length_swa(head)
            writer.add_rope_dimension_count_swa(head)
        writer.add_rope_freq_base_swa(1e4)
        writer.add_sliding_window(s["window"])
        writer.add_sliding_window_pattern([(i + 1) % s["attends"] != 0 for i in range(s["layers"])])
        writer.add_shared_kv_layers(s["sharing"])
        writer.add_embedding_length_per_layer_input(s["layer_width"])
        writer.add_final_logit_softcapping(30.0)
    if "streams" in s:
        writer.add_altup_num_inputs(s["streams"])
        writer.add_altup_active_idx(0)
        # A twentieth of the gates of the first third of the layers.
        sparse = [1.6448536 if i < s["layers"] // 3 else float("-inf") for i in range(s["layers"])]
        writer.add_activation_sparsity_scale(sparse)
    if "window" in s and "sharing" not in s:
        writer.add_sliding_window(s["window"])
    if "rank" in s:
        writer.add_kv_lora_rank(s["rank"])
        writer.add_q_lora_rank(s["query_rank"])
        writer.add_key_length_mla(head)
        writer.add_value_length_mla(head)
        writer.add_leading_dense_block_count(s["dense"])
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.8)
        writer.add_expert_weights_norm(True)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "experts" in s:
        writer.add_key_length(s["rank"] + s["rotated"] if "rank" in s else head)
        writer.add_value_length(s.get("rank", head))
        writer.add_expert_count(s["experts"])
        writer.add_expert_used_count(s["used"])
        writer.add_expert_feed_forward_length(s["inside"])
    writer.add_tokenizer_model("llama")
    words = s["vocab"] - 259
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256)),
                           *(b"\xe2\x96\x81w%d" % i for i in range(words))])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(words)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name, rows, columns, layer=None):
        # A tied embedding is the output matrix too, and has its type.
        role = "output" if name == "token_embd" and s["tied"] else name
        kind_ = _kind(kind, role, layer, s["layers"])
        tile = draw.standard_normal((min(rows, DRAWN), columns), numpy.float32) * numpy.float32(columns**-0.5)
        data = _quantised(kind_, tile)
        data = numpy.concatenate([data] * -(-rows // len(data)))[:rows]
        prefix = "" if layer is None else f"blk.{layer}."
        writer.add_tensor(f"{prefix}{name}.weight", data, raw_dtype=kind_)

    def experts(name, count, rows, columns, layer):
        kind_ = _kind(kind, name, layer, s["layers"])
        tile = draw.standard_normal((min(rows, DRAWN), columns), numpy.float32) * numpy.float32(columns**-0.5)
        data = _quantised(kind_, tile)
        data = numpy.concatenate([data] * -(-count * rows // len(data)))[: count * rows]
        writer.add_tensor(f"blk.{layer}.{name}.weight", data.reshape(count, rows, -1), raw_dtype=kind_)

    def vector(name, values, layer):
        writer.add_tensor(f"blk.{layer}.{name}", numpy.asarray(values, numpy.float32))

    gates = 2 if "memories" in s else 1
    matrix("token_embd", s["vocab"], s["width"])
    if not s["tied"]:
        matrix("output", s["vocab"], s["width"])
    writer.add_tensor("output_norm.weight", numpy.ones(s["width"], numpy.float32))
    inputs = s.get("layer_width", 0)
    if inputs:
        matrix("per_layer_token_embd", s["vocab"], s["layers"] * inputs)
        matrix("per_layer_model_proj", s["layers"] * inputs, s["width"])
        writer.add_tensor("per_layer_proj_norm.weight", numpy.ones(inputs, numpy.float32))
        if "far_head" in s:
            writer.add_tensor("rope_freqs.weight", numpy.ones(s["far_head"] // 2, numpy.float32))
    if "streams" in s:
        # These are small, and converters leave them as they are.
        others = draw.standard_normal((s["streams"] - 1, s["width"], s["width"]), numpy.float32) * s["width"] ** -0.5
        for name in ("altup_proj", "altup_unembd_proj"):
            writer.add_tensor(f"{name}.weight", others.astype(numpy.float16))
    for i in range(s["layers"]):
        size = s["far_head"] if "far_head" in s and (i + 1) % s["attends"] == 0 else head
        shares = i >= s["layers"] - s.get("sharing", 0)
        q, kv = s["heads"] * size, s["kv_heads"] * size
        biased = s.get("biased", False)
        norms = ["attn_norm", "post_attention_norm" if "memories" in s or biased else "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm", "post_norm"] if inputs else []
        for name in norms:
            vector(f"{name}.weight", numpy.ones(s["width"]), i)
        if remembers(s, i):
            memories, inner = s["memories"], s["memories"] * s["memory"]
            matrices = [("attn_qkv", 3 * inner, s["width"]), ("attn_gate", inner, s["width"]),
                        ("ssm_alpha", memories, s["width"]), ("ssm_beta", memories, s["width"]),
                        ("ssm_out", s["width"], inner)]
            vector("ssm_conv1d.weight", draw.standard_normal((3 * inner, s["taps"])) / s["taps"], i)
            vector("ssm_dt.bias", draw.standard_normal(memories), i)
            vector("ssm_a", -numpy.exp(draw.standard_normal(memories)), i)
            vector("ssm_norm.weight", numpy.ones(s["memory"]), i)
        elif "rank" in s:
            rank, still, turns = s["rank"], s["still"], s["rotated"]
            matrices = [("attn_q_a", s["query_rank"], s["width"]), ("attn_q_b", q, s["query_rank"]),
                        ("attn_kv_a_mqa", rank + turns, s["width"]), ("attn_output", s["width"], q)]
            vector("attn_q_a_norm.weight", numpy.ones(s["query_rank"]), i)
            vector("attn_kv_a_norm.weight", numpy.ones(rank), i)
            experts("attn_k_b", s["heads"], rank, still, i)
            experts("attn_v_b", s["heads"], head, rank, i)
        else:
            kept = [] if shares and "streams" not in s else [("attn_k", kv, s["width"]), ("attn_v", kv, s["width"])]
            matrices = [("attn_q", gates * q, s["width"]), *kept, ("attn_output", s["width"], q)]
            normed = "memories" in s or inputs or "experts" in s and not biased
            for name, rows in (("q", q), ("k", kv), ("v", kv), ("output", s["width"])) if biased else ():
                vector(f"attn_{name}.bias", draw.standard_normal(rows), i)
            if biased:
                vector("attn_sinks.weight", draw.standard_normal(s["heads"]), i)
            for name in ("attn_q_norm", "attn_k_norm") if normed else ():
                # Where nothing divides the scores, norms make them small.
                vector(f"{name}.weight", numpy.full(size, 0.3 if inputs else 1.0), i)
        for name, rows, columns in matrices:
            matrix(name, rows, columns, i)
        if "experts" in s and i >= s.get("dense", 0):
            writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight",
                              draw.standard_normal((s["experts"], s["width"]), numpy.float32) * s["width"] ** -0.5)
            for name, rows, columns in (("gate", s["inside"], s["width"]), ("up", s["inside"], s["width"]),
                                        ("down", s["width"], s["inside"])):
                experts(f"ffn_{name}_exps", s["experts"], rows, columns, i)
                if biased:
                    vector(f"ffn_{name}_exps.bias", draw.standard_normal((s["experts"], rows)), i)
                if "rank" in s:
                    matrix(f"ffn_{name}_shexp", rows, columns, i)
            if biased:
                vector("ffn_gate_inp.bias", draw.standard_normal(s["experts"]), i)
            continue
        if "streams" in s:
            n, thin = s["streams"], s["thin"]
            for name, rows, columns in (("altup_router", n, s["width"]), ("altup_predict_coef", n * n, n),
                                        ("altup_correct_coef", n, n), ("laurel_l", thin, s["width"]),
                                        ("laurel_r", s["width"], thin)):
                values = draw.standard_normal((rows, columns), numpy.float32) * 0.1 * columns**-0.5
                writer.add_tensor(f"blk.{i}.{name}.weight", values.astype(numpy.float16 if columns > n else numpy.float32))
            for name in ("altup_router_norm", "altup_correct_scale", "laurel_post_norm"):
                vector(f"{name}.weight", numpy.ones(s["width"]), i)
        wide = hidden(s, i)
        matrices = [("ffn_gate", wide, s["width"]), ("ffn_up", wide, s["width"]), ("ffn_down", s["width"], wide)]
        matrices += [("inp_gate", inputs, s["width"]), ("proj", s["width"], inputs)] if inputs else []
        for name, rows, columns in matrices:
            matrix(name, rows, columns, i)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_size(s):
    """Elements of a head of a shape."""
    return s.get("head", s["width"] // s["heads"])


def hidden(s, layer):
    """Elements inside the feed-forward network of a layer: in Gemma 4 twice as many where it has no keys and values."""
    return s["hidden"] * 2 if "far_head" in s and layer >= s["layers"] - s.get("sharing", 0) else s["hidden"]


def remembers(s, layer):
    """Whether a layer of a shape has a matrix per head in place of keys and values."""
    return "memories" in s and (layer + 1) % s["attends"] != 0


def ready(folder, shape, kind):
    """The path of a file, made on first use."""
    path = pathlib.Path(folder) / f"{shape}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        write(unfinished, shape, kind)
        unfinished.rename(path)
    return path


def bytes_per_token(path):
    """Bytes of weights that one generated token reads: all but those of which it looks up a row."""
    found = gguf.GGUFReader(path).tensors
    untied = any(t.name == "output.weight" for t in found)
    looked_up = {"per_layer_token_embd.weight", *(["token_embd.weight"] if untied else [])}
    fields = gguf.GGUFReader(path).fields
    share = {f: next((int(v.parts[-1][0]) for k, v in fields.items() if k.endswith(f".expert_{f}count")), 1)
             for f in ("", "used_")}
    used = lambda t: share["used_"] / share[""] if t.name.endswith("_exps.weight") else 1  # noqa: E731
    return int(sum(t.n_bytes * used(t) for t in found if t.name not in looked_up))
