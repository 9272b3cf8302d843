#!/usr/bin/env python3
"""Weights and tokens that all contenders of bench_trainer.py read; needs numpy.

    tests/bench/bench_inputs.py weights FILE.safetensors '{"layers": 12, ...}'
    tests/bench/bench_inputs.py tokens FOLDER '{"batch": 4, "seq": 64, "vocab": 50257}'
"""
import json
import math
import os
import struct
import sys

import numpy as np

BATCHES = 4  # step i reads batch i mod 4


def shapes(c):
    """Published names, shapes and standard deviations of GPT-2's weights."""
    h, deep = c["hidden"], 0.02 / math.sqrt(2 * c["layers"])
    yield "wte.weight", (c["vocab"], h), 0.02
    yield "wpe.weight", (c["positions"], h), 0.02
    for i in range(c["layers"]):
        for norm in ("ln_1", "ln_2"):
            yield f"h.{i}.{norm}.weight", (h,), None
            yield f"h.{i}.{norm}.bias", (h,), 0
        for name, shape, std in (("attn.c_attn", (h, 3 * h), 0.02), ("attn.c_proj", (h, h), deep),
                                 ("mlp.c_fc", (h, 4 * h), 0.02), ("mlp.c_proj", (4 * h, h), deep)):
            yield f"h.{i}.{name}.weight", shape, std
            yield f"h.{i}.{name}.bias", (shape[1],), 0
    yield "ln_f.weight", (h,), None
    yield "ln_f.bias", (h,), 0


def write_weights(path, c):
    rng = np.random.default_rng(1)
    table, at = {}, 0
    for name, shape, _ in shapes(c):
        size = 4 * math.prod(shape)
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, shape, std in shapes(c):
            if std is None:
                values = np.ones(shape, np.float32)
            else:
                values = rng.standard_normal(shape, np.float32) * np.float32(std)
            file.write(values.tobytes())


def write_tokens(folder, c):
    os.makedirs(folder, exist_ok=True)
    stream = np.random.default_rng(2).integers(0, c["vocab"], (BATCHES, c["batch"], c["seq"] + 1), np.int32)
    np.save(f"{folder}/inputs.npy", np.ascontiguousarray(stream[..., :-1]))
    np.save(f"{folder}/targets.npy", np.ascontiguousarray(stream[..., 1:]))


if __name__ == "__main__":
    {"weights": write_weights, "tokens": write_tokens}[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))
