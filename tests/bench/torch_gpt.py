#!/usr/bin/env python3
"""The training step of models/gpt.xml in PyTorch, for bench_trainer.py: the same model, loss, clipping and AdamW.

    tests/bench/torch_gpt.py --config CONFIG.json --steps 5 --threads 1

CONFIG holds the sizes and hyperparameters, the weights (safetensors, published GPT-2 names) and the folder of
inputs.npy and targets.npy, [batches, batch, seq]. Prints one JSON object: seconds and loss of every step, and which
version, BLAS and kernels ran. Needs numpy and torch 1.12 or later.
"""
import argparse
import json
import math
import struct
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["heads"]
        self.c_attn = nn.Linear(c["hidden"], 3 * c["hidden"])
        self.c_proj = nn.Linear(c["hidden"], c["hidden"])
        self.fused = hasattr(F, "scaled_dot_product_attention")
        if not self.fused:
            mask = torch.full((c["seq"], c["seq"]), -math.inf).triu(1)
            self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        batch, seq, hidden = x.shape
        q, k, v = (y.view(batch, seq, self.heads, hidden // self.heads).transpose(1, 2)
                   for y in self.c_attn(x).split(hidden, dim=2))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # scale and mask in the product: one pass less over the scores
            n, d = batch * self.heads, hidden // self.heads
            q, k, v = (t.reshape(n, seq, d) for t in (q, k, v))
            scores = torch.baddbmm(self.mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(d))
            y = torch.bmm(scores.softmax(-1), v).view(batch, self.heads, seq, d)
        return self.c_proj(y.transpose(1, 2).reshape(batch, seq, hidden))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c["hidden"], 4 * c["hidden"])
        self.c_proj = nn.Linear(4 * c["hidden"], c["hidden"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c["hidden"], eps=1e-5)
        self.attn = Attention(c)
        self.ln_2 = nn.LayerNorm(c["hidden"], eps=1e-5)
        self.mlp = Mlp(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab"], c["hidden"])
        self.wpe = nn.Embedding(c["positions"], c["hidden"])
        self.h = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.ln_f = nn.LayerNorm(c["hidden"], eps=1e-5)
        self.register_buffer("place", torch.arange(c["seq"]), persistent=False)

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe(self.place)
        for layer in self.h:
            x = layer(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the output is tied to the token table
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load(model, path):
    """Weights of PATH; matrices of linear layers are stored [in, out]."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        table, body = json.loads(file.read(size)), np.frombuffer(file.read(), np.uint8)
    with torch.no_grad():
        for name, p in model.named_parameters():
            begin, end = table[name]["data_offsets"]
            a = np.frombuffer(body[begin:end], np.float32).reshape(table[name]["shape"])
            linear = a.ndim == 2 and not name.startswith(("wte", "wpe"))
            p.copy_(torch.from_numpy(np.array(a.T if linear else a)))


def make_optimizer(model, c):
    """AdamW with decay on matrices only; fused where this PyTorch has it on the CPU, else as PyTorch does it by default."""
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": c["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    settings = dict(lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["epsilon"])
    try:
        return "fused", torch.optim.AdamW(groups, **settings, fused=True)
    except (TypeError, RuntimeError, ValueError):
        pass
    return "plain", torch.optim.AdamW(groups, **settings)


def libraries():
    """The BLAS and OpenMP libraries of this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    return sorted(p for p in paths if any(w in p.split("/")[-1] for w in ("blas", "mkl", "gomp", "iomp")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", choices=["auto", "plain"], default="auto")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    args = parser.parse_args()
    c = json.load(open(args.config))
    torch.set_num_threads(args.threads)
    model = Gpt(c)
    load(model, c["weights"])
    kind, optimizer = make_optimizer(model, c)
    if args.optimizer == "plain":
        kind, optimizer = "plain", torch.optim.AdamW(optimizer.param_groups, foreach=False)
    step_model = torch.compile(model) if args.compile else model
    inputs, targets = (torch.from_numpy(np.load(f"{c['data']}/{n}.npy").astype(np.int64)) for n in ("inputs", "targets"))
    seconds, losses = [], []
    for step in range(args.steps):
        begun = time.monotonic()
        loss = step_model(inputs[step % len(inputs)], targets[step % len(inputs)])
        loss.backward()
        if c["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), c["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.monotonic() - begun)
    print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "optimizer": kind,
                      "attention": "fused" if model.h[0].attn.fused else "products", "compiled": args.compile,
                      "libraries": libraries(), "step_s": seconds, "loss": losses}))


if __name__ == "__main__":
    main()
