#!/usr/bin/env python3
"""The training step of models/gpt.xml in PyTorch on a GPU, with random weights, for tests/gpu/run.py.

    tests/gpu/torch_step.py --layers 12 --hidden 768 --heads 12 --vocab 50257 --seq 1024 --batch 8 --precision bf16 --compile

Prints one JSON object: the version and the seconds of each step.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import torch_gpt  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "hidden", "heads", "vocab", "seq", "batch"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--precision", choices=["f32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    a = parser.parse_args()
    c = dict(vars(a), positions=a.seq, lr=1e-4, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
    torch.backends.cuda.matmul.allow_tf32 = a.precision == "tf32"
    model = torch_gpt.Gpt(c).to(a.device)
    _, optimizer = torch_gpt.make_optimizer(model, c)
    step_model = torch.compile(model) if a.compile else model
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1), device=a.device)
    seconds = []
    for _ in range(a.steps):
        begun = time.monotonic()
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            loss = step_model(tokens[:, :-1], tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.monotonic() - begun)
    print(json.dumps({"version": torch.__version__, "step_s": seconds}))


if __name__ == "__main__":
    main()
