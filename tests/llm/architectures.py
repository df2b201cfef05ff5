"""Small random GGUF files of every architecture, and what the reference must know of each."""

import dataclasses
import math

import gguf
import numpy

WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, VOCAB, CONTEXT = 256, 4, 2, 64, 512, 331, 512
# Elements inside an expert.
EXPERT = 256
# Elements of a key or value of the delta rule, and of a value of Mamba-2.
DELTA = 64
VALUE = 32


@dataclasses.dataclass
class Architecture:
    """One architecture as its papers and configurations describe it; defaults are Llama's."""

    name: str
    arch: str = "llama"
    layers: int = 2
    heads: int = HEADS
    # Several heads of queries share one of keys and values.
    grouped: bool = True
    tied: bool = False
    # Rotary positions: neighbouring pairs, or the first half with the second.
    neighbours: bool = True
    rotated: int = HEAD
    base: float = 10000.0
    window_base: float = 0.0
    factors: str = ""
    scaling: str = ""
    factor: float = 1.0
    original: int = 0
    # YaRN's factor of rotated elements is over what it would be for so many times the logarithm.
    log_multiplier: float = 0.0
    # Queries grow by so much times the logarithm of how often a position has passed the context of the training.
    temperature: float = 0.0
    attention_factor: float = 1.0
    bias: bool = False
    # All other matrices of layers, too, have biases; so have logits.
    biased: bool = False
    biased_logits: bool = False
    head_norms: bool = False
    # Of all heads as one vector; after the heads have turned.
    joint_norms: bool = False
    late_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    layer_norm: bool = False
    norm_bias: bool = True
    # The feed-forward network reads what attention reads, or the same sum through a norm of its own.
    parallel: bool = False
    own_norm: bool = False
    fused: bool = False
    # A feed-forward network without a gate, and what it goes through: "gelu", "square" of what is positive.
    plain: str = ""
    # Positions have vectors that are added to those of the tokens.
    placed: bool = False
    gelu: bool = False
    scaled_embeddings: bool = False
    window: int = 0
    # Of `pattern` layers the last attends to everything, the others to the window; 0: all to the window.
    pattern: int = 0
    # It is the first of them.
    first: bool = False
    # Positions of layers with the window are not scaled.
    plain_window: bool = False
    # Layers without the window have heads of so many elements, so many heads of keys and values, and frequencies with
    # divisors ("half": those of the slower half so large that they do not turn).
    far_head: int = 0
    far_kv_heads: int = 0
    # Values are normalised without a weight; in layers without the window they are the keys before their norm.
    value_norms: bool = False
    far_keys_only: bool = False
    # The last layers attend to what those before have kept, and have a wider feed-forward network.
    sharing: int = 0
    # Elements of the vectors that a token has for each layer.
    layer_embedding: int = 0
    # Streams of vectors, of which each layer computes one, and how many layers have sparse gates.
    streams: int = 0
    sparse: int = 0
    # Each layer's result is multiplied with a number.
    layer_scales: bool = False
    # Layers from this one on have experts in place of a feed-forward network, of which a token goes through `used`, with
    # shares of all or of those alone, and perhaps one beside them for all tokens, with a gate or without.
    experts: int = 0
    used: int = 2
    expert_layers: int = 0
    whole_shares: bool = True
    sigmoid: bool = False
    shared: bool = False
    # Shares are multiplied with a number; the one for all tokens is as many as that.
    share_scale: float = 1.0
    shared_count: int = 0
    # Experts have no gate, and square what is positive.
    squaring: bool = False
    # Their gates and other halves are clamped, and their matrices have biases.
    clamped: bool = False
    # Their gates are rectified, and the router reads what the block is given.
    rectified: bool = False
    early_router: bool = False
    # Heads have a score that takes its part of softmax, without a value.
    sinks: bool = False
    # They are chosen by shares plus numbers of their own.
    corrected: bool = False
    # Experts beside the network of a layer, with norms of their own, and gate and other rows in one matrix.
    beside: bool = False
    shared_gate: bool = False
    # Layers without the window turn nothing.
    still: bool = False
    # Layers that convolve along the positions, with so many taps, in place of attending.
    convolving: tuple = ()
    taps: int = 0
    # Layers that remember by the gated delta rule or by that of Mamba-2, with so many heads of values and of keys.
    remembering: tuple = ()
    mamba: bool = False
    # They attend as well, and their norm before the feed-forward network has a short name; results are not normalised.
    both: bool = False
    delta_heads: int = 0
    delta_key_heads: int = 0
    # Layers that only feed forward, of which the others do nothing; each layer has one norm.
    feeding: tuple = ()
    # Keys and values come from one vector per token of so many elements, queries perhaps from another one; of a head's
    # keys `rotated` elements more than `HEAD` turn. Older files have keys and values of all heads in one matrix.
    latent: int = 0
    latent_queries: int = 0
    decompressed: bool = False
    # There is a matrix for gates of what heads attend to, and one for queries, keys and values.
    gate_matrix: bool = False
    fused_heads: bool = False
    # Experts are of the `groups_used` groups that have the largest sums of two.
    groups: int = 1
    groups_used: int = 1
    # Queries have gates behind each head; the norm before the feed-forward network has another name.
    gated: bool = False
    ffn_norm: str = "ffn_norm"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0
    # As the file has it; a divisor of logits in some architectures.
    logit_scale: float = 1.0
    # Norms before the last matrices of attention and feed-forward network, whose gate squares what is positive if
    # `squaring`; matrices have scales in tensors of their own.
    sub_norms: bool = False
    matrix_scales: bool = False
    # The packaged llama.cpp computes another function: largest divergence from the reference.
    alone: float = 0.0
    divides_logits: bool = False
    attention_cap: float = 0.0
    final_cap: float = 0.0
    epsilon: float = 1e-5

    def attends(self, layer):
        return layer not in self.convolving and layer not in self.feeding and (self.both or layer not in self.remembering)

    def head(self, layer):
        return self.far_head if self.far_head and not self.windowed(layer) else HEAD

    def kv_heads(self, layer):
        if not self.grouped:
            return self.heads
        return self.far_kv_heads if self.far_kv_heads and not self.windowed(layer) else KV_HEADS

    def hidden(self, layer):
        return HIDDEN * 2 if self.shares(layer) and not self.streams else HIDDEN

    def feeds(self, layer):
        return not self.feeding or layer in self.feeding

    def has_experts(self, layer):
        return self.experts > 0 and layer >= self.expert_layers

    def shares(self, layer):
        return layer >= self.layers - self.sharing

    def source(self, layer):
        """The layer whose keys and values a layer attends to."""
        if not self.shares(layer):
            return layer
        return max(i for i in range(self.layers - self.sharing) if self.windowed(i) == self.windowed(layer))

    @property
    def last_norm(self):
        return "token_embd_norm" if self.convolving else "output_norm"

    def windowed(self, layer):
        wide = 0 if self.first else self.pattern - 1
        return self.window > 0 and (self.pattern == 0 or layer % self.pattern != wide)


GEMMA = dict(tied=True, neighbours=False, gelu=True, scaled_embeddings=True, epsilon=1e-6)
ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("llama"),
        Architecture("llama3", tied=True, base=500000.0, factors="llama3", factor=8.0, original=128),
        Architecture("llama-linear", scaling="linear", factor=4.0),
        Architecture("smollm", tied=True, heads=6),
        # Converters write Mistral as `llama`, and llama.cpp knows no window there.
        Architecture("mistral", base=1e6),
        Architecture("qwen2", "qwen2", tied=True, neighbours=False, base=1e6, bias=True, epsilon=1e-6),
        Architecture("qwen2-yarn", "qwen2", neighbours=False, bias=True, scaling="yarn", factor=4.0, original=64),
        Architecture("qwen3", "qwen3", heads=8, neighbours=False, base=1e6, head_norms=True, epsilon=1e-6),
        Architecture("gemma", "gemma", **GEMMA),
        Architecture("gemma2", "gemma2", **GEMMA, post_norms=True, window=24, pattern=2, attention_cap=50.0,
                     final_cap=30.0),
        Architecture("gemma3", "gemma3", **GEMMA, layers=6, post_norms=True, head_norms=True, window=24, pattern=6,
                     base=1e6, window_base=1e4),
        Architecture("gemma4", "gemma4", **GEMMA, layers=4, post_norms=True, head_norms=True, window=24, pattern=2,
                     base=1e6, window_base=1e4, final_cap=30.0, attention_scale=1.0, far_head=128, far_kv_heads=1,
                     far_keys_only=True, value_norms=True, layer_scales=True, factors="half"),
        Architecture("gemma4-small", "gemma4", **GEMMA, layers=6, post_norms=True, head_norms=True, window=24, pattern=2,
                     base=1e6, window_base=1e4, final_cap=30.0, attention_scale=1.0, far_head=128, value_norms=True,
                     layer_scales=True, factors="half", sharing=2, layer_embedding=32),
        Architecture("gemma4-experts", "gemma4", **GEMMA, layers=4, post_norms=True, head_norms=True, window=24, pattern=2,
                     base=1e6, window_base=1e4, final_cap=30.0, attention_scale=1.0, far_head=128, far_kv_heads=1,
                     far_keys_only=True, value_norms=True, layer_scales=True, factors="half", experts=8, beside=True),
        Architecture("gemma3n", "gemma3n", **GEMMA, layers=23, post_norms=True, head_norms=True, window=24, pattern=5,
                     base=1e6, window_base=1e4, final_cap=30.0, attention_scale=1.0, value_norms=True, sharing=3,
                     layer_embedding=256, streams=4, sparse=10),
        Architecture("mixtral", experts=4),
        Architecture("qwen3moe", "qwen3moe", heads=8, neighbours=False, base=1e6, head_norms=True, epsilon=1e-6, experts=8,
                     used=3),
        Architecture("smallthinker", "smallthinker", layers=5, neighbours=False, base=1.5e6, window=4096, pattern=4,
                     first=True, still=True, experts=8, used=3, rectified=True, early_router=True),
        Architecture("smallthinker-small", "smallthinker", neighbours=False, base=1.5e6, experts=8, used=3, sigmoid=True,
                     rectified=True, early_router=True),
        Architecture("olmoe", "olmoe", neighbours=False, head_norms=True, joint_norms=True, far_kv_heads=4, experts=8,
                     whole_shares=False),
        Architecture("granitemoe", "granitemoe", tied=True, embedding_scale=1.5, residual_scale=0.6, attention_scale=0.2,
                     logit_scale=1.6, divides_logits=True, experts=8, shared=True),
        Architecture("lfm2moe", "lfm2moe", layers=4, tied=True, neighbours=False, base=1e6, head_norms=True,
                     convolving=(0, 2), taps=3, experts=8, expert_layers=1, sigmoid=True),
        Architecture("qwen35moe", "qwen35moe", layers=2, neighbours=False, rotated=16, base=1e7, head_norms=True,
                     epsilon=1e-6, gated=True, ffn_norm="post_attention_norm", remembering=(0,), taps=4,
                     delta_heads=4, delta_key_heads=2, experts=8, shared=True, shared_gate=True),
        Architecture("gpt-oss", "gpt-oss", layers=3, heads=8, neighbours=False, base=150000.0, bias=True, biased=True,
                     ffn_norm="post_attention_norm", window=24, pattern=2, scaling="yarn", factor=32.0, original=64,
                     experts=8, clamped=True, sinks=True),
        Architecture("phi3", "phi3", neighbours=False, fused=True),
        Architecture("phi3-longrope", "phi3", neighbours=False, fused=True, factors="phi3", original=128,
                     attention_factor=1.19),
        Architecture("stablelm", "stablelm", neighbours=False, rotated=16, layer_norm=True),
        Architecture("stablelm-parallel", "stablelm", neighbours=False, rotated=16, layer_norm=True, parallel=True,
                     head_norms=True),
        Architecture("granite", "granite", tied=True, embedding_scale=1.5, residual_scale=0.6, attention_scale=0.2,
                     logit_scale=1.6, divides_logits=True),
        Architecture("minicpm", "minicpm", embedding_scale=1.5, residual_scale=0.7, logit_scale=0.8,
                     divides_logits=True),
        Architecture("mistral3", "mistral3", base=1e6, scaling="yarn", factor=16.0, original=16, log_multiplier=1.0,
                     temperature=0.5),
        Architecture("mistral3-plain", "mistral3", tied=True, base=1e6, scaling="yarn", factor=4.0, original=64),
        Architecture("olmo2", "olmo2", neighbours=False, head_norms=True, joint_norms=True, pre_norms=False,
                     post_norms=True, base=5e5, epsilon=1e-6),
        Architecture("olmo3", "olmo2", layers=4, neighbours=False, head_norms=True, joint_norms=True, pre_norms=False,
                     post_norms=True, base=5e5, epsilon=1e-6, window=24, pattern=4, plain_window=True, scaling="yarn",
                     factor=8.0, original=64),
        Architecture("ernie4_5", "ernie4_5", tied=True, base=5e5),
        Architecture("hunyuan-dense", "hunyuan-dense", tied=True, neighbours=False, head_norms=True, late_norms=True),
        Architecture("exaone4", "exaone4", tied=True, neighbours=False, head_norms=True, pre_norms=False,
                     post_norms=True, base=1e6, factors="llama3", factor=16.0, original=128),
        Architecture("internlm2", "internlm2", base=1e6),
        Architecture("cohere2", "cohere2", tied=True, layers=4, layer_norm=True, norm_bias=False, parallel=True,
                     window=24, pattern=4, still=True, base=5e4, logit_scale=0.5),
        Architecture("lfm2", "lfm2", layers=5, tied=True, neighbours=False, base=1e6, head_norms=True,
                     convolving=(0, 2, 4), taps=3),
        Architecture("lfm2-attention-last", "lfm2", layers=3, tied=True, neighbours=False, base=1e6, head_norms=True,
                     convolving=(0, 1), taps=3),
        Architecture("qwen35", "qwen35", layers=4, tied=True, neighbours=False, rotated=16, base=1e7, head_norms=True,
                     epsilon=1e-6, gated=True, ffn_norm="post_attention_norm", remembering=(0, 1, 2), taps=4,
                     delta_heads=4, delta_key_heads=2),
        Architecture("qwen35-memory-last", "qwen35", layers=3, neighbours=False, rotated=16, base=1e7, head_norms=True,
                     epsilon=1e-6, gated=True, ffn_norm="post_attention_norm", remembering=(0, 2), taps=4,
                     delta_heads=2, delta_key_heads=2),
        Architecture("granitehybrid", "granitehybrid", layers=4, tied=True, embedding_scale=1.5, residual_scale=0.6,
                     attention_scale=0.2, logit_scale=1.6, divides_logits=True, still=True, remembering=(0, 1, 3), mamba=True,
                     taps=4, delta_heads=16, delta_key_heads=1),
        Architecture("granitehybrid-experts", "granitehybrid", layers=3, tied=True, embedding_scale=1.5,
                     residual_scale=0.6, attention_scale=0.2, logit_scale=1.6, divides_logits=True, remembering=(0, 1),
                     mamba=True, taps=4, delta_heads=16, delta_key_heads=2, experts=8, shared=True),
        Architecture("falcon-h1", "falcon-h1", neighbours=False, base=1e11, remembering=(0, 1), mamba=True, both=True,
                     taps=4, delta_heads=16, delta_key_heads=2),
        Architecture("arcee", "arcee", plain="square"),
        Architecture("chatglm", "chatglm", fused=True, bias=True, rotated=32),
        Architecture("ernie4_5-moe", "ernie4_5-moe", layers=3, tied=True, base=5e5, experts=8, expert_layers=1,
                     shared=True, corrected=True),
        Architecture("exaone", "exaone", neighbours=False, base=1e6, factors="llama3", factor=8.0, original=128),
        Architecture("glm4", "glm4", fused=True, rotated=32, post_norms=True),
        Architecture("gpt2", "gpt2", tied=True, layer_norm=True, bias=True, biased=True, fused=True, plain="gelu",
                     placed=True, still=True, grouped=False),
        Architecture("gptneox", "gptneox", neighbours=False, rotated=16, layer_norm=True, bias=True, biased=True, fused=True,
                     plain="gelu", parallel=True, own_norm=True, grouped=False),
        Architecture("gptneox-one-after-the-other", "gptneox", neighbours=False, rotated=16, layer_norm=True, bias=True,
                     biased=True, fused=True, plain="gelu", grouped=False),
        # llama.cpp takes models of 27 layers alone for such as make queries without a short vector.
        Architecture("afmoe", "afmoe", layers=4, neighbours=False, head_norms=True, post_norms=True, scaled_embeddings=True,
                     window=24, pattern=4, still=True, gate_matrix=True, experts=8, expert_layers=3, sigmoid=True, shared=True,
                     shared_count=1, share_scale=1.5),
        Architecture("bailingmoe", "bailingmoe", experts=8, used=3, shared=True, shared_count=2, whole_shares=False),
        Architecture("bailingmoe2", "bailingmoe2", neighbours=False, rotated=32, fused_heads=True, head_norms=True,
                     experts=16, used=3, expert_layers=1, groups=4, groups_used=2, sigmoid=True, shared=True, shared_count=1,
                     share_scale=2.5),
        Architecture("deepseek", "deepseek", experts=8, used=3, expert_layers=1, shared=True, shared_count=2,
                     whole_shares=False),
        Architecture("minicpm3", "minicpm3", layers=3, neighbours=False, rotated=32, latent=64, latent_queries=64,
                     decompressed=True, factors="phi3", original=128, embedding_scale=12.0,
                     residual_scale=1.4 / math.sqrt(3)),
        Architecture("deepseek2", "deepseek2", layers=27, rotated=32, latent=64, experts=8, used=3, expert_layers=25,
                     shared=True, shared_count=2, whole_shares=False),
        Architecture("deepseek2-yarn", "deepseek2", layers=2, rotated=32, latent=96, latent_queries=160, experts=8,
                     expert_layers=1, shared=True, shared_count=2, sigmoid=True, share_scale=1.7, scaling="yarn",
                     factor=8.0, original=64, log_multiplier=0.0707),
        Architecture("deepseek2-decompressed", "deepseek2", layers=2, rotated=32, latent=64, latent_queries=64,
                     decompressed=True, experts=8, used=1, expert_layers=1, shared=True, shared_count=1, whole_shares=False, scaling="yarn", factor=4.0,
                     original=64, log_multiplier=0.1),
        Architecture("nemotron_h", "nemotron_h", layers=5, still=True, remembering=(0, 3), mamba=True, taps=4,
                     delta_heads=16, delta_key_heads=2, plain="square", feeding=(1, 4)),
        Architecture("nemotron_h_moe", "nemotron_h_moe", layers=4, still=True, remembering=(0,), mamba=True, taps=4,
                     delta_heads=16, delta_key_heads=2, squaring=True, feeding=(1, 2), experts=8, sigmoid=True,
                     shared=True, shared_count=1, share_scale=2.5),
        Architecture("bitnet", "bitnet", tied=True, neighbours=False, sub_norms=True, matrix_scales=True),
        Architecture("bitnet-squared", "bitnet", tied=True, neighbours=False, sub_norms=True, squaring=True, base=5e5,
                     alone=0.01),
        Architecture("nemotron", "nemotron", neighbours=False, rotated=32, layer_norm=True, plain="square"),
        Architecture("phi2", "phi2", neighbours=False, rotated=32, layer_norm=True, bias=True, biased=True,
                     biased_logits=True, plain="gelu", parallel=True, grouped=False),
        Architecture("qwen2moe", "qwen2moe", neighbours=False, base=1e6, bias=True, epsilon=1e-6, experts=8, used=3,
                     whole_shares=False, shared=True, shared_gate=True),
        Architecture("starcoder2", "starcoder2", neighbours=False, layer_norm=True, bias=True, biased=True, plain="gelu",
                     base=1e5),
        Architecture("starcoder", "starcoder", tied=True, layer_norm=True, bias=True, biased=True, fused=True, plain="gelu",
                     placed=True, still=True),
        Architecture("falcon", "falcon", neighbours=False, layer_norm=True, fused=True, plain="gelu", parallel=True),
        Architecture("command-r", "command-r", tied=True, layer_norm=True, norm_bias=False, parallel=True, base=8e6,
                     logit_scale=0.5),
        Architecture("seed_oss", "seed_oss", neighbours=False, bias=True, base=1e7, ffn_norm="post_attention_norm"),
        Architecture("mamba2", "mamba2", layers=3, tied=True, still=True, remembering=(0, 1, 2), mamba=True, taps=4,
                     delta_heads=16, delta_key_heads=2, feeding=(-1,)),
        Architecture("qwen2vl", "qwen2vl", neighbours=False, base=1e6, bias=True, epsilon=1e-6),
        Architecture("qwen3vl", "qwen3vl", neighbours=False, base=5e6, head_norms=True, epsilon=1e-6),
    )
}


def frequency_factors(a):
    """Divisors of the frequencies that a file stores as a tensor, [rotated / 2]."""
    if a.factors == "half":
        return numpy.where(numpy.arange(a.far_head // 2) < a.far_head // 4, 1.0, 1e30)
    if a.factors == "llama3":
        wave = 2 * math.pi * a.base ** (2 * numpy.arange(a.rotated // 2) / a.rotated)
        smooth = numpy.clip((a.original / wave - 1) / (4 - 1), 0, 1)
        return 1 / ((1 - smooth) / a.factor + smooth)
    return 1 + numpy.arange(a.rotated // 2) * 0.37


def tensors(a, seed):
    """Names and f32 values, scaled so that attention is sharp and logits differ by several units."""
    draw = numpy.random.default_rng(seed)

    def matrix(rows, columns, gain=1.0):
        return (draw.standard_normal((rows, columns)) * gain / math.sqrt(columns)).astype(numpy.float32)

    def stack(count, rows, columns, gain=1.0):
        return numpy.stack([matrix(rows, columns, gain) for _ in range(count)])

    def vector(n, middle=1.0, spread=0.2):
        return (middle + spread * draw.standard_normal(n)).astype(numpy.float32)

    def norm(name, n):
        yield name + ".weight", vector(n)
        if a.layer_norm and a.norm_bias:
            yield name + ".bias", vector(n, 0.0)

    # Large embeddings would drown the layers, and with tied ones every token would repeat itself.
    gain = (6.0 if a.value_norms else 12.0) if a.scaled_embeddings else 1.5
    if a.streams:
        # Layers take the place of what was, and many of them would make of any rounding another text.
        gain = 0.3
    yield "token_embd.weight", matrix(VOCAB, WIDTH, 3.0)
    if not a.tied:
        yield "output.weight", matrix(VOCAB, WIDTH, 3.0)
    if a.biased_logits:
        yield "output.bias", vector(VOCAB, 0.0)
    if a.placed:
        yield "position_embd.weight", matrix(CONTEXT, WIDTH, 3.0)
    yield from norm(a.last_norm, WIDTH)
    if a.layer_embedding:
        yield "per_layer_token_embd.weight", matrix(VOCAB, a.layers * a.layer_embedding, 3.0)
        yield "per_layer_model_proj.weight", matrix(a.layers * a.layer_embedding, WIDTH)
        yield "per_layer_proj_norm.weight", vector(a.layer_embedding)
    if a.streams:
        for name in ("altup_proj", "altup_unembd_proj"):
            yield name + ".weight", stack(a.streams - 1, WIDTH, WIDTH)
    if a.factors in ("llama3", "half"):
        yield "rope_freqs.weight", frequency_factors(a).astype(numpy.float32)
    if a.factors == "phi3":
        yield "rope_factors_short.weight", numpy.ones(a.rotated // 2, numpy.float32)
        yield "rope_factors_long.weight", frequency_factors(a).astype(numpy.float32)
    for i in range(a.layers):
        b, head, hidden = f"blk.{i}.", a.head(i), a.hidden(i)
        q, kv = a.heads * head, a.kv_heads(i) * head
        if a.pre_norms:
            yield from norm(b + "attn_norm", WIDTH)
        if a.latent and a.attends(i):
            rank, key = a.latent, HEAD + a.rotated
            if a.latent_queries:
                yield b + "attn_q_a.weight", matrix(a.latent_queries, WIDTH)
                yield b + "attn_q_a_norm.weight", vector(a.latent_queries)
                yield b + "attn_q_b.weight", matrix(a.heads * key, a.latent_queries, 1.4)
            else:
                yield b + "attn_q.weight", matrix(a.heads * key, WIDTH, 1.4)
            yield b + "attn_kv_a_mqa.weight", matrix(rank + a.rotated, WIDTH, 1.4)
            yield b + "attn_kv_a_norm.weight", vector(rank)
            if a.decompressed:
                yield b + "attn_kv_b.weight", matrix(a.heads * 2 * HEAD, rank, 1.4)
            else:
                yield b + "attn_k_b.weight", stack(a.heads, rank, HEAD, 1.4 * math.sqrt(HEAD / rank))
                yield b + "attn_v_b.weight", stack(a.heads, HEAD, rank)
        elif i in a.remembering and a.mamba:
            keys, values, heads = a.delta_key_heads * DELTA, a.delta_heads * VALUE, a.delta_heads
            yield b + "ssm_in.weight", matrix(2 * values + 2 * keys + heads, WIDTH, 1.4)
            yield b + "ssm_conv1d.weight", matrix(values + 2 * keys, a.taps, 1.0)
            yield b + "ssm_conv1d.bias", vector(values + 2 * keys, 0.0)
            yield b + "ssm_dt.bias", vector(heads, -1.0)
            yield b + "ssm_a", -numpy.exp(vector(heads, -1.0, 1.0))[:, None]
            yield b + "ssm_d", vector(heads)[:, None]
            if not a.both:
                yield b + "ssm_norm.weight", vector((a.delta_key_heads, values // a.delta_key_heads))
            yield b + "ssm_out.weight", matrix(WIDTH, values, 0.4 * gain)
        elif i in a.remembering:
            keys, values = a.delta_key_heads * DELTA, a.delta_heads * DELTA
            yield b + "attn_qkv.weight", matrix(2 * keys + values, WIDTH, 1.4)
            yield b + "attn_gate.weight", matrix(values, WIDTH)
            yield b + "ssm_conv1d.weight", matrix(2 * keys + values, a.taps, 1.0)
            yield b + "ssm_beta.weight", matrix(a.delta_heads, WIDTH)
            yield b + "ssm_alpha.weight", matrix(a.delta_heads, WIDTH)
            yield b + "ssm_dt.bias", vector(a.delta_heads, 0.5)
            yield b + "ssm_a", -numpy.exp(vector(a.delta_heads, -2.0, 1.0))
            yield b + "ssm_norm.weight", vector(DELTA)
            yield b + "ssm_out.weight", matrix(WIDTH, values, 0.4 * gain)
        elif i in a.convolving:
            yield b + "shortconv.in_proj.weight", matrix(3 * WIDTH, WIDTH, 1.4)
            yield b + "shortconv.conv.weight", matrix(WIDTH, a.taps, 1.0)
            yield b + "shortconv.out_proj.weight", matrix(WIDTH, WIDTH, gain)
        if a.latent:
            pass
        elif a.attends(i) and (a.fused or a.fused_heads):
            yield b + "attn_qkv.weight", matrix(q + 2 * kv, WIDTH, 1.4)
            if a.bias:
                yield b + "attn_qkv.bias", vector(q + 2 * kv, 0.0)
        elif a.attends(i):
            for part, rows, sharp in (("q", q, 1.4), ("k", kv, 1.4), ("v", kv, 1.0)):
                if part != "q" and a.shares(i) and not a.streams or part == "v" and a.far_keys_only and not a.windowed(i):
                    continue
                yield f"{b}attn_{part}.weight", matrix(rows * 2 if a.gated and part == "q" else rows, WIDTH, sharp)
                if a.bias:
                    yield f"{b}attn_{part}.bias", vector(rows, 0.0)
        if a.gate_matrix and a.attends(i):
            yield b + "attn_gate.weight", matrix(q, WIDTH)
        if a.head_norms and a.attends(i):
            # StableLM has one LayerNorm weight a head, the others one RMS weight for all.
            shape = (lambda heads: (heads, head)) if a.layer_norm else (lambda heads: (head,))
            if a.joint_norms:
                shape = lambda heads: (heads * HEAD,)  # noqa: E731
            # Where nothing divides the scores, norms make them smaller.
            sharp = 0.3 if a.value_norms else 1.4
            yield b + "attn_q_norm.weight", vector(shape(a.heads), sharp)
            # Files of Gemma 3n have what is not read, too.
            if not a.shares(i) or a.streams:
                yield b + "attn_k_norm.weight", vector(shape(a.kv_heads(i)), sharp)
        if a.attends(i):
            yield b + "attn_output.weight", matrix(WIDTH, q, gain)
            if a.biased:
                yield b + "attn_output.bias", vector(WIDTH, 0.0)
        if a.sinks:
            yield b + "attn_sinks.weight", vector(a.heads, 1.0, 2.0)
        if a.post_norms:
            yield b + "post_attention_norm.weight", vector(WIDTH, gain)
            yield b + "post_ffw_norm.weight", vector(WIDTH, gain)
        if not a.feeds(i):
            continue
        if a.feeding:
            pass
        elif a.both:
            yield b + a.ffn_norm, vector(WIDTH)
        elif (a.own_norm or not a.parallel) and a.pre_norms:
            yield from norm(b + a.ffn_norm, WIDTH)
        if a.has_experts(i):
            # Sharp, so that rounding seldom makes it choose others of more than a small share; but not so that shares
            # of what is not normalised are all 1.
            yield b + "ffn_gate_inp.weight", matrix(a.experts, WIDTH, 1.0 if a.early_router and a.sigmoid else 6.0)
            if a.clamped:
                # Some of what goes in is beyond what it is clamped to.
                yield b + "ffn_gate_inp.bias", vector(a.experts, 0.0)
                for part, n, spread in (("gate", EXPERT, 4.0), ("up", EXPERT, 4.0), ("down", WIDTH, 0.2)):
                    yield f"{b}ffn_{part}_exps.bias", vector((a.experts, n), 0.0, spread)
            if a.sigmoid and not a.early_router or a.corrected:
                yield b + "exp_probs_b.bias", vector(a.experts, 0.0)
            if a.beside:
                yield b + "ffn_gate_inp.scale", vector(WIDTH, math.sqrt(WIDTH))
                yield b + "ffn_down_exps.scale", vector(a.experts)
                for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                    yield f"{b}{name}.weight", vector(WIDTH)
                yield b + "ffn_gate_up_exps.weight", stack(a.experts, 2 * EXPERT, WIDTH, 1.2)
            else:
                if not a.squaring:
                    yield b + "ffn_gate_exps.weight", stack(a.experts, EXPERT, WIDTH, 1.2)
                yield b + "ffn_up_exps.weight", stack(a.experts, EXPERT, WIDTH, 1.2)
            yield b + "ffn_down_exps.weight", stack(a.experts, WIDTH, EXPERT, 0.6 * gain)
            if a.shared:
                inside = EXPERT * a.shared_count or HIDDEN
                if not a.squaring:
                    yield b + "ffn_gate_shexp.weight", matrix(inside, WIDTH, 1.2)
                yield b + "ffn_up_shexp.weight", matrix(inside, WIDTH, 1.2)
                yield b + "ffn_down_shexp.weight", matrix(WIDTH, inside, 0.6 * gain)
            if a.shared_gate:
                yield b + "ffn_gate_inp_shexp.weight", vector(WIDTH, 0.0, 1.0 / math.sqrt(WIDTH))
            if not a.beside:
                continue
        if a.plain:
            yield b + "ffn_up.weight", matrix(hidden, WIDTH, 1.2)
        elif a.fused:
            yield b + "ffn_up.weight", matrix(2 * HIDDEN, WIDTH, 1.2)
        else:
            yield b + "ffn_gate.weight", matrix(hidden, WIDTH, 1.2)
            yield b + "ffn_up.weight", matrix(hidden, WIDTH, 1.2)
        yield b + "ffn_down.weight", matrix(WIDTH, hidden, gain)
        if a.biased:
            yield b + "ffn_up.bias", vector(hidden, 0.0)
            yield b + "ffn_down.bias", vector(WIDTH, 0.0)
        if a.layer_embedding:
            yield b + "inp_gate.weight", matrix(a.layer_embedding, WIDTH, 0.2)
            yield b + "proj.weight", matrix(WIDTH, a.layer_embedding)
            yield b + "post_norm.weight", vector(WIDTH, gain)
        if a.streams:
            n, rank = a.streams, 64
            yield b + "altup_router.weight", matrix(n, WIDTH, WIDTH)
            yield b + "altup_router_norm.weight", vector(WIDTH)
            yield b + "altup_predict_coef.weight", matrix(n * n, n, 0.1)
            yield b + "altup_correct_coef.weight", matrix(n, n, 0.3)
            yield b + "altup_correct_scale.weight", vector(WIDTH)
            yield b + "laurel_l.weight", matrix(rank, WIDTH)
            yield b + "laurel_r.weight", matrix(WIDTH, rank)
            yield b + "laurel_post_norm.weight", vector(WIDTH, gain)
        if a.layer_scales:
            yield b + "layer_output_scale.weight", vector(1, 0.7)
        if a.sub_norms:
            yield b + "attn_sub_norm.weight", vector(q)
            yield b + "ffn_sub_norm.weight", vector(hidden)
        if a.matrix_scales:
            for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                yield f"{b}{part}.scale", vector(1, 0.8)


def _vocabulary(writer):
    bytes_ = [b"<0x%02X>" % i for i in range(256)]
    words = [b"\xe2\x96\x81w%d" % i for i in range(VOCAB - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *bytes_, *words])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(words))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _parameters(writer, a):
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(a.layers)
    # These have no other number for it.
    plain = EXPERT if a.name in ("mixtral", "olmoe", "granitemoe", "granitehybrid-experts") else HIDDEN
    if a.feeding:
        writer.add_feed_forward_length([HIDDEN if a.feeds(i) else 0 for i in range(a.layers)])
    else:
        writer.add_feed_forward_length([a.hidden(i) for i in range(a.layers)] if a.sharing else plain)
    if a.sub_norms and a.squaring:
        writer.add_string(f"{a.arch}.hidden_activation", "relu2")
    writer.add_head_count(a.heads if any(map(a.attends, range(a.layers))) else 0)
    if a.convolving:
        writer.add_head_count_kv([0 if i in a.convolving else KV_HEADS for i in range(a.layers)])
        writer.add_shortconv_l_cache(a.taps)
    elif a.mamba:
        writer.add_head_count_kv([KV_HEADS if a.attends(i) else 0 for i in range(a.layers)])
    elif a.far_kv_heads:
        writer.add_head_count_kv([a.kv_heads(i) for i in range(a.layers)])
    else:
        writer.add_head_count_kv(a.kv_heads(0) if not a.latent else a.heads if a.decompressed else 1)
    if a.latent:
        writer.add_kv_lora_rank(a.latent)
        if a.latent_queries:
            writer.add_q_lora_rank(a.latent_queries)
        if not a.decompressed:
            writer.add_key_length_mla(HEAD + a.rotated)
            writer.add_value_length_mla(HEAD)
    if a.remembering:
        writer.add_ssm_conv_kernel(a.taps)
        writer.add_ssm_state_size(DELTA)
        writer.add_ssm_inner_size(a.delta_heads * (VALUE if a.mamba else DELTA))
        writer.add_ssm_time_step_rank(a.delta_heads)
        writer.add_ssm_group_count(a.delta_key_heads)
        if not a.mamba:
            writer.add_full_attention_interval(next(i + 1 for i in range(a.layers) if i not in a.remembering))
    if a.experts:
        writer.add_expert_count(a.experts)
        writer.add_expert_used_count(a.used)
        writer.add_expert_feed_forward_length(EXPERT)
        writer.add_leading_dense_block_count(a.expert_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if a.sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
        if a.arch == "ernie4_5-moe":
            writer.add_interleave_moe_layer_step(1)
        if a.shared_count:
            writer.add_expert_shared_count(a.shared_count)
        if a.shared and (not a.shared_count or a.squaring):
            writer.add_expert_shared_feed_forward_length(EXPERT * a.shared_count or HIDDEN)
        if a.groups > 1:
            writer.add_expert_group_count(a.groups)
            writer.add_expert_group_used_count(a.groups_used)
        if a.shared_count:
            writer.add_expert_weights_norm(a.whole_shares)
            writer.add_expert_weights_scale(a.share_scale)
        if a.squaring:
            writer.add_expert_group_count(1)
            writer.add_expert_group_used_count(1)
    key, value = (HEAD + a.rotated, HEAD) if a.decompressed else (a.latent + a.rotated, a.latent)
    writer.add_key_length(key if a.latent else a.far_head or HEAD)
    writer.add_value_length(value if a.latent else a.far_head or HEAD)
    if a.arch == "gemma4":
        writer.add_key_length_swa(HEAD)
        writer.add_value_length_swa(HEAD)
        writer.add_rope_dimension_count_swa(a.rotated)
    if a.arch in ("gemma4", "gemma3n"):
        writer.add_rope_freq_base_swa(a.window_base)
        writer.add_sliding_window_pattern([a.windowed(i) for i in range(a.layers)])
        writer.add_shared_kv_layers(a.sharing)
        writer.add_embedding_length_per_layer_input(a.layer_embedding)
    if a.streams:
        writer.add_altup_num_inputs(a.streams)
        writer.add_altup_active_idx(0)
        writer.add_activation_sparsity_scale([1.6448533535003662] * a.sparse + [-math.inf] * (a.layers - a.sparse))
    (writer.add_layer_norm_eps if a.layer_norm else writer.add_layer_norm_rms_eps)(a.epsilon)
    if a.feeding:
        writer.add_layer_norm_eps(a.epsilon)
    writer.add_rope_dimension_count(a.far_head or a.rotated)
    writer.add_rope_freq_base(a.base)
    writer.add_vocab_size(VOCAB)
    if a.scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(a.scaling))
        writer.add_rope_scaling_factor(a.factor)
    if a.scaling == "yarn" or a.factors == "phi3":
        writer.add_rope_scaling_orig_ctx_len(a.original)
    if a.log_multiplier:
        writer.add_rope_scaling_yarn_log_mul(a.log_multiplier)
    if a.temperature:
        writer.add_attn_temperature_scale(a.temperature)
    if a.factors == "phi3":
        writer.add_rope_scaling_attn_factors(a.attention_factor)
    if a.window:
        writer.add_sliding_window(a.window)
    if a.attention_cap:
        writer.add_attn_logit_softcapping(a.attention_cap)
    if a.final_cap:
        writer.add_final_logit_softcapping(a.final_cap)
    if a.layer_norm:
        writer.add_parallel_residual(a.parallel)
    if a.attention_scale and not a.value_norms:
        writer.add_attention_scale(a.attention_scale)
    for add, scale in ((writer.add_embedding_scale, a.embedding_scale), (writer.add_logit_scale, a.logit_scale),
                       (writer.add_residual_scale, a.residual_scale)):
        if scale != 1:
            add(scale)
    if a.arch == "granitehybrid":
        writer.add_rope_scaling_finetuned(not a.still)
    if a.arch.endswith("vl") or a.remembering and not a.mamba:
        writer.add_rope_dimension_sections([a.rotated // 4, a.rotated // 8, a.rotated // 8, 0])


def write(path, a, kind, quantise, seed=7):
    """Writes a file with all matrices in `kind`; returns the values it holds as f64, by name."""
    writer = gguf.GGUFWriter(path, a.arch)
    # llama.cpp treats vocabularies by the model's name ("phi-3" must have certain tokens): a neutral one.
    writer.add_name("random weights")
    _parameters(writer, a)
    _vocabulary(writer)
    values = {}
    for name, value in tensors(a, seed):
        if min(value.shape[-1], value.ndim) == 1 or "norm" in name or "conv" in name and "proj" not in name or "gate_inp" in name or "_coef" in name or "position" in name or name.endswith(".bias") or kind.name == "F32":
            writer.add_tensor(name, value)
        elif kind.name == "F16":
            value = value.astype(numpy.float16)
            writer.add_tensor(name, value)
        else:
            # Rows that are not whole blocks take a smaller block, as in files found in the wild.
            fits = value.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            stored = kind if fits else gguf.GGMLQuantizationType.Q8_0
            data = quantise(stored.value, value.reshape(-1, value.shape[-1])).reshape(*value.shape[:-1], -1)
            writer.add_tensor(name, data, raw_dtype=stored)
            value = gguf.quants.dequantize(data, stored)
        values[name] = numpy.asarray(value, numpy.float64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
