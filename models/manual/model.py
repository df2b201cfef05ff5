"""The network: a Llama (RMS norm, rotary positions, grouped-query attention, SwiGLU, tied embeddings)."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass
class Shape:
    """Sizes; all widths are multiples of 256, so that every block format of GGUF applies."""

    vocab: int = 2048
    width: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 512
    context: int = 512
    rope_base: float = 10000.0
    epsilon: float = 1e-5


class Norm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.epsilon)


def rotate(x, cos, sin):
    """Rotary positions, neighbouring pairs (`LLAMA_ROPE_TYPE_NORM`); x is [.., length, head]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape, self.head = shape, shape.width // shape.heads
        kv = shape.kv_heads * self.head
        self.attn_norm = Norm(shape.width, shape.epsilon)
        self.attn_qkv = nn.Linear(shape.width, shape.width + 2 * kv, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, shape.epsilon)
        self.ffn_gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.ffn_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x, cos, sin):
        shape, (batch, length, _) = self.shape, x.shape
        kv = shape.kv_heads * self.head
        q, k, v = self.attn_qkv(self.attn_norm(x)).split((shape.width, kv, kv), -1)
        q, k, v = (t.view(batch, length, -1, self.head).transpose(1, 2) for t in (q, k, v))
        group = shape.heads // shape.kv_heads
        k = rotate(k, cos, sin).repeat_interleave(group, 1)
        v = v.repeat_interleave(group, 1)
        # Written out: at this length it takes half the time of torch's fused attention on a CPU.
        scores = rotate(q, cos, sin) * self.head**-0.5 @ k.mT
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill_(future, -1e4).softmax(-1) @ v
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.ffn_gate_up(self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn_down(functional.silu(gate) * up)


class Manual(nn.Module):
    """Tokens [batch, length] -> hidden states; `logits` multiplies by the embeddings."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.epsilon)
        head = shape.width // shape.heads
        frequency = shape.rope_base ** (-torch.arange(0, head, 2).float() / head)
        angle = torch.arange(shape.context).float()[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        nn.init.normal_(self.token_embd.weight, std=0.04)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name != "token_embd.weight":
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual else weight.shape[1] ** -0.5)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        x = x.to(dtype)
        cos, sin = self.cos[:length].to(dtype), self.sin[:length].to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output_norm(x)

    def logits(self, tokens):
        return functional.linear(self(tokens), self.token_embd.weight).float()
