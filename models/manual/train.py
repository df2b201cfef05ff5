"""Trains the network of model.py on the tokens of prepare.py, for a given time.

Matrices are trained with Muon (momentum, orthogonalised by Newton-Schulz), embeddings
and norms with Adam; bf16 autocast; the rate is constant and then falls linearly to zero.
The schedule follows the clock, so that the training ends in time on a busy machine; a
moving average of the weights is what is kept (`average.pt`, written every few minutes).
"""

import argparse
import ctypes
import json
import math
import pathlib
import time

import numpy
import torch
from torch.nn import functional

from model import Shape, Manual


def orthogonal(g, steps=5):
    """The nearest orthogonal matrices to a stack [n, rows, columns], rows <= columns, roughly."""
    x = g.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.float()


class Muon:
    """Momentum whose steps are orthogonal matrices; fused matrices are taken apart, equal ones stacked."""

    def __init__(self, parts, momentum=0.95, decay=0.02):
        """parts: (parameter, first row, end row)."""
        self.momentum, self.decay = momentum, decay
        self.buffers = {}
        self.groups = {}
        for parameter, first, end in parts:
            columns = parameter.shape[1]
            self.groups.setdefault(tuple(sorted((end - first, columns))), []).append((parameter, first, end))
            self.buffers[parameter] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, rate):
        for parameter, buffer in self.buffers.items():
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            parameter.grad.lerp_(buffer, self.momentum)
            parameter.mul_(1 - rate * self.decay)
        for parts in self.groups.values():
            turned = [p.shape[1] < end - first for p, first, end in parts]
            stack = [p.grad[first:end] for p, first, end in parts]
            stack = orthogonal(torch.stack([g.T if t else g for g, t in zip(stack, turned)]))
            for (p, first, end), t, change in zip(parts, turned, stack):
                rows, columns = end - first, p.shape[1]
                p[first:end].sub_(change.T if t else change, alpha=rate * max(1, rows / columns) ** 0.5)


def muon_parts(model):
    shape = model.shape
    kv = shape.kv_heads * shape.width // shape.heads
    for layer in model.layers:
        ends = (0, shape.width, shape.width + kv, shape.width + 2 * kv)
        yield from ((layer.attn_qkv.weight, a, b) for a, b in zip(ends, ends[1:]))
        yield layer.attn_output.weight, 0, shape.width
        yield layer.ffn_gate_up.weight, 0, shape.hidden
        yield layer.ffn_gate_up.weight, shape.hidden, 2 * shape.hidden
        yield layer.ffn_down.weight, 0, shape.width


class Windows:
    """Random windows of the tokens; half of them begin with `bos` at a paragraph."""

    def __init__(self, tokens, newline, length, seed):
        self.tokens, self.length = tokens.astype(numpy.int64), length
        at = tokens == newline
        starts = numpy.flatnonzero(at[:-1] & at[1:]) + 2
        self.starts = starts[starts < len(tokens) - length - 1]
        self.draw = numpy.random.default_rng(seed)

    def batch(self, n):
        rows = []
        for i in range(n):
            if i % 2:
                start = self.draw.choice(self.starts)
                rows.append(numpy.concatenate(([0], self.tokens[start : start + self.length])))
            else:
                start = self.draw.integers(len(self.tokens) - self.length - 1)
                rows.append(self.tokens[start : start + self.length + 1])
        batch = torch.from_numpy(numpy.stack(rows))
        return batch[:, :-1], batch[:, 1:]


def heldout_loss(model, tokens, length, rows):
    """Mean loss (nats a token) over `rows` windows spread over the held-out tokens."""
    total = 0.0
    step = (len(tokens) - length - 1) // rows
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for i in range(0, rows, 8):
            batch = torch.from_numpy(numpy.stack([tokens[j * step : j * step + length + 1] for j in range(i, i + 8)]))
            logits = model.logits(batch[:, :-1])
            total += functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item() * 8
    return total / rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for average.pt and state.pt")
    parser.add_argument("--minutes", type=float, default=80, help="clock time of the whole training")
    parser.add_argument("--batch", type=int, default=16, help="windows a step")
    parser.add_argument("--length", type=int, default=256, help="tokens a window")
    parser.add_argument("--rate", type=float, default=0.02, help="Muon's rate")
    parser.add_argument("--adam-rate", type=float, default=0.003, help="rate of embeddings and norms")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="go on from state.pt")
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many steps (to measure)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    torch.set_num_threads(1)
    # Keep freed memory: glibc would map and clear fresh pages for every large tensor (a sixth of the time).
    glibc = ctypes.CDLL(None)
    glibc.mallopt(-4, 0)  # M_MMAP_MAX
    glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    pieces = json.loads((options.data / "vocab.json").read_text())["model"]["vocab"]
    shape = Shape(vocab=len(pieces), hidden=options.hidden, layers=options.layers)
    model = Manual(shape)
    count = sum(p.numel() for p in model.parameters())
    train = Windows(numpy.load(options.data / "train.npy"), pieces["\u010a"], options.length, 5)
    heldout = numpy.load(options.data / "heldout.npy").astype(numpy.int64)
    muon = Muon(list(muon_parts(model)))
    others = [p for p in model.parameters() if p not in muon.buffers]
    adam = torch.optim.AdamW(others, lr=options.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    step, seen, before = 0, 0, 0.0
    if options.resume:
        state = torch.load(options.out / "state.pt")
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        for buffer, saved in zip(muon.buffers.values(), state["muon"]):
            buffer.copy_(saved)
        average, step, seen, before = state["average"], state["step"], state["seen"], state["seconds"]
        train.draw = numpy.random.default_rng(step)
    print(f"{count} parameters, {len(train.tokens)} tokens", flush=True)

    start = time.monotonic() - before
    saved = reported = time.monotonic()
    loss_sum, loss_count = 0.0, 0
    while True:
        done = (time.monotonic() - start) / (options.minutes * 60)
        last = done >= 1 or step >= options.steps
        now = time.monotonic()
        if last or now - saved > 180:
            state = {"model": model.state_dict(), "adam": adam.state_dict(), "muon": list(muon.buffers.values()),
                     "average": average, "step": step, "seen": seen, "seconds": now - start}
            for name, content in (("state.pt", state), ("average.pt", {"shape": vars(shape), "weights": average,
                                                                        "seen": seen, "seconds": now - start})):
                torch.save(content, options.out / (name + ".new"))
                (options.out / (name + ".new")).replace(options.out / name)
            saved = now
            copy = Manual(shape)
            copy.load_state_dict(average, strict=False)
            print(f"  average at {seen} tokens: held-out loss {heldout_loss(copy, heldout, options.length, 64):.4f}",
                  flush=True)
        if last:
            break
        warm = min(1.0, (step + 1) / 60)
        fall = min(1.0, (1 - done) / 0.6)
        tokens, targets = train.batch(options.batch)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model(tokens)
            logits = functional.linear(hidden, model.token_embd.weight)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        muon.step(options.rate * warm * fall)
        for group in adam.param_groups:
            group["lr"] = options.adam_rate * warm * fall
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        seen += tokens.numel()
        keep = min(0.995, step / (step + 20))
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].lerp_(p, 1 - keep)
        loss_sum, loss_count = loss_sum + loss.item(), loss_count + 1
        if now - reported > 20:
            mean = loss_sum / loss_count
            speed = loss_count * tokens.numel() / (now - reported)
            print(f"{done:6.1%} step {step} seen {seen} loss {mean:.4f} (perplexity {math.exp(mean):.2f}) "
                  f"{speed:.0f} tokens/s", flush=True)
            reported, loss_sum, loss_count = now, 0.0, 0


if __name__ == "__main__":
    main()
