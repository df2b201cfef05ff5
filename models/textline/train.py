"""Trains the text-line network on the pool that render.py writes (CPU is enough).

    python train.py --pool POOL --out RUN --until 09:55

New chunks of the pool are picked up while it grows.  The learning rate follows a
cosine over the given time, so that the run ends when it should; with --phase it
follows a part of the cosine, so that one schedule can span several runs.
"""
import argparse
import copy
import datetime
import glob
import math
import os
import random
import threading
import queue
import time

import numpy as np
import torch
import torch.distributed as dist

from charset import CLASSES, encode, greedy
from model import HEIGHT, TextLine
from render import Renderer
from prepare import prepare


class Pool:
    """Prepared lines in memory, read from the chunks as they appear."""

    def __init__(self, folder):
        self.folder = folder
        self.seen = set()
        self.lines, self.labels = [], []

    def refresh(self):
        for path in sorted(glob.glob(os.path.join(self.folder, "chunk-*.npz"))):
            if path in self.seen:
                continue
            self.seen.add(path)
            with np.load(path) as chunk:
                pixels, widths, texts = chunk["pixels"], chunk["widths"], chunk["texts"]
            ends = np.cumsum(widths)
            for end, width, text in zip(ends, widths, texts):
                self.lines.append(pixels[:, end - width:end])
                self.labels.append(np.array(encode(str(text)), np.int32))


def augment(line, rng, noise):
    """Cheap changes on the fly, so that a line used twice is not the same twice."""
    x = line.astype(np.float32) * (1 / 255)
    if rng.random() < 0.6:                                   # stretch along the line
        width = x.shape[1]
        wide = max(8, int(width * rng.uniform(0.88, 1.15)) // 4 * 4)
        at = np.linspace(0, width - 1, wide, dtype=np.float32)
        left = np.minimum(at.astype(np.int32), width - 2)
        part = at - left
        x = x[:, left] * (1 - part) + x[:, left + 1] * part
    if rng.random() < 0.5:                                   # up or down by a row
        shift = rng.choice((-2, -1, -1, 1, 1, 2))
        moved = np.zeros_like(x)
        if shift > 0:
            moved[shift:] = x[:-shift]
        else:
            moved[:shift] = x[-shift:]
        x = moved
    if rng.random() < 0.2:                                   # lean left or right
        height, width = x.shape
        shift = rng.uniform(-0.2, 0.2) * (np.arange(height, dtype=np.float32)[:, None] - height / 2)
        at = np.clip(np.arange(width, dtype=np.float32)[None, :] + shift, 0, width - 1.001)
        left = at.astype(np.int32)
        part, rows = at - left, np.arange(height)[:, None]
        x = x[rows, left] * (1 - part) + x[rows, left + 1] * part
    if rng.random() < 0.15:                                  # thicker or thinner stems
        beside = x.copy()
        beside[:, 1:] = x[:, :-1]
        other = np.maximum(x, beside) if rng.random() < 0.6 else np.minimum(x, beside)
        x = x + (other - x) * np.float32(rng.uniform(0.2, 0.7))
    if rng.random() < 0.3:                                   # lighter or heavier
        x = x ** rng.uniform(0.7, 1.4)
    if rng.random() < 0.2:
        x = np.clip(x * rng.uniform(0.7, 1.2), 0, 1)
    if rng.random() < 0.15:                                  # shading that was not evened out
        at = np.linspace(0, rng.uniform(0.5, 6), x.shape[1], dtype=np.float32) + rng.uniform(0, 6)
        down = np.linspace(-1, 1, x.shape[0], dtype=np.float32)[:, None] * rng.uniform(-1, 1)
        shade = (np.sin(at)[None, :] + down) * rng.uniform(0.03, 0.2)
        x = np.clip(x + shade * (1 - x), 0, 1)
    if rng.random() < 0.25:
        x = np.clip(x + noise.standard_normal(x.shape, np.float32) * rng.uniform(0.02, 0.1), 0, 1)
    return x


def batches(pool, columns, rng, noise, longest):
    """Endless batches of about `columns` columns, lines of similar width together."""
    while True:
        count = len(pool.lines)
        chosen = [i for i in (rng.randrange(count) for _ in range(4096))
                  if pool.lines[i].shape[1] <= longest()]
        chosen.sort(key=lambda i: pool.lines[i].shape[1] * rng.uniform(0.9, 1.1))
        groups, group, widest = [], [], 0
        for i in chosen:
            width = pool.lines[i].shape[1]
            if group and max(widest, width) * (len(group) + 1) > columns:
                groups.append(group)
                group, widest = [], 0
            group.append(i)
            widest = max(widest, width)
        rng.shuffle(groups)
        for group in groups:
            lines, labels = [], []
            for i in group:
                line = augment(pool.lines[i], rng, noise)
                label = pool.labels[i]
                doubled = int((label[1:] == label[:-1]).sum())
                if line.shape[1] // 2 < len(label) + doubled:
                    continue
                lines.append(line)
                labels.append(label)
            if not lines:
                continue
            width = (max(a.shape[1] for a in lines) + 31) // 32 * 32
            x = np.zeros((len(lines), 1, HEIGHT, width), np.float32)
            for k, line in enumerate(lines):
                x[k, 0, :, :line.shape[1]] = line
            yield (torch.from_numpy(x), torch.tensor([a.shape[1] for a in lines]),
                   torch.from_numpy(np.concatenate(labels)), torch.tensor([len(b) for b in labels]))


def in_background(generator, depth=6):
    """Runs a generator in a thread."""
    ready = queue.Queue(depth)

    def work():
        for item in generator:
            ready.put(item)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


def line_mask(widths, total):
    """[n,1,1,total/4]: 1 on the columns of each line, 0 on its padding."""
    at = torch.arange(total // 4)[None, :]
    return (at < ((widths + 3) // 4)[:, None]).float()[:, None, None, :]


def distance(a, b):
    """Edit distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def character_error_rate(model, lines):
    """CER in per cent over [(input, text)]."""
    model.eval()
    wrong = total = 0
    with torch.inference_mode():
        for x, text in lines:
            wrong += distance(greedy(model(x)[0].numpy()), text)
            total += len(text)
    return 100.0 * wrong / total


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--start", help="weights to start from (the schedule starts anew)")
    parser.add_argument("--until", help="HH:MM, the clock time the run ends")
    parser.add_argument("--minutes", type=float, default=90, help="length of the run without --until")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--phase", type=float, nargs=2, default=(0.0, 1.0), metavar=("FROM", "TO"),
                        help="the part of the cosine that this run follows")
    parser.add_argument("--freeze", type=float, default=0.65,
                        help="phase from which the statistics of batch normalisation stay as they are")
    parser.add_argument("--columns", type=int, default=6144, help="columns of a worker's batch")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--check", type=float, default=600, help="seconds between error rates")
    args = parser.parse_args()
    args.begin = time.time()
    args.end = args.begin + 60 * args.minutes
    if args.until:
        hour, minute = map(int, args.until.split(":"))
        args.end = datetime.datetime.now().replace(hour=hour, minute=minute, second=0).timestamp()
    return args


def average_gradients(model, workers):
    """One all-reduce of all gradients; every worker ends with their mean."""
    gradients = [p.grad for p in model.parameters()]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= workers
    at = 0
    for g in gradients:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()


def follow(average, model, keep):
    """Moving average of the weights and of the normalisation statistics."""
    with torch.no_grad():
        for a, b in zip(average.state_dict().values(), model.state_dict().values()):
            if a.dtype.is_floating_point:
                a.lerp_(b, 1 - keep)
            else:
                a.copy_(b)


def freeze(model, average):
    """Batch normalisation by the averaged statistics from now on, as in use."""
    for a, b in zip(average.modules(), model.modules()):
        if isinstance(b, torch.nn.BatchNorm2d):
            for kept, now in ((a.running_mean, b.running_mean), (a.running_var, b.running_var)):
                now.copy_(kept)
                dist.broadcast(now, 0)            # only the first worker has the average
            b.eval()


def train(rank, args):
    """One worker: the same weights everywhere, each its own lines."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(args.out) + "/meeting",
                            rank=rank, world_size=args.workers)
    rng, noise = random.Random(rank), np.random.default_rng(rank)
    pool = Pool(args.pool)
    pool.refresh()
    model = TextLine(CLASSES).to(memory_format=torch.channels_last)
    if args.start:
        model.load_state_dict(torch.load(args.start))
    average = copy.deepcopy(model)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.02},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), fused=True)
    ctc = torch.nn.CTCLoss(reduction="sum", zero_infinity=True)

    watched = {}
    if rank == 0:      # progress on the held-out families; nothing is chosen by it
        for sort, seed in (("clean", 501), ("damaged", 502)):
            renderer = Renderer(args.cache, seed, test=True)
            drawn = (renderer.draw(sort == "damaged") for _ in range(250))
            watched[sort] = [(torch.from_numpy(prepare(p)), text) for _, text, _, _, p in drawn]
        print(sum(p.numel() for p in model.parameters()), "parameters,", len(pool.lines), "lines", flush=True)

    def check():
        figures = {k: round(character_error_rate(average, v), 3) for k, v in watched.items()}
        print("held-out CER %", figures, flush=True)
        torch.save(average.state_dict(), os.path.join(args.out, "average.pt"))
        torch.save(model.state_dict(), os.path.join(args.out, "last.pt"))

    step = seen_lines = 0
    frozen = False
    model.train()

    def longest():     # short lines first
        return 1600 if args.start or step >= 2500 else 500 if step >= 1000 else 260

    shown = checked = refreshed = time.time()
    loss_sum = chars_sum = 0.0
    clock = torch.zeros(1, dtype=torch.float64)
    for x, widths, targets, lengths in in_background(batches(pool, args.columns, rng, noise, longest)):
        clock[0] = time.time()
        dist.broadcast(clock, 0)                      # so that all stop at the same step
        now = clock.item()
        if now >= args.end:
            break
        start, end = args.phase
        done = start + (end - start) * (now - args.begin) / (args.end - args.begin)
        rate = args.rate * min(1.0, (step + 1) / 300) * (0.502 + 0.5 * math.cos(math.pi * done))
        for group in optimiser.param_groups:
            group["lr"] = rate
        if done < args.freeze:
            model.train()
        elif not frozen:
            frozen = True
            freeze(model, average)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x, line_mask(widths, x.shape[3]))
        scores = logits.float().log_softmax(2).transpose(0, 1)
        loss = ctc(scores, targets, (widths + 3) // 4 * 2, lengths) / lengths.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model, args.workers)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        if torch.isfinite(norm):
            optimiser.step()
        step += 1
        if now - refreshed > 60:
            pool.refresh()
            refreshed = now
        if rank:
            continue
        follow(average, model, min(0.999, (step + 1) / (step + 20)))
        seen_lines += len(widths) * args.workers
        loss_sum += loss.item() * int(lengths.sum())
        chars_sum += int(lengths.sum())
        if now - shown > 30:
            print(f"{(now - args.begin) / 60:6.1f} min  step {step}  lines {seen_lines}  pool {len(pool.lines)}  "
                  f"rate {rate:.5f}  loss per character {loss_sum / chars_sum:.4f}", flush=True)
            shown, loss_sum, chars_sum = now, 0.0, 0.0
        if now - checked > args.check:
            checked = now
            check()
    if rank == 0:
        check()


def main():
    args = parse()
    os.makedirs(args.out, exist_ok=True)
    meeting = os.path.join(args.out, "meeting")
    if os.path.exists(meeting):
        os.remove(meeting)
    torch.multiprocessing.spawn(train, (args,), nprocs=args.workers)


if __name__ == "__main__":
    main()
