#!/usr/bin/env python3
"""With MPPLAN built under AddressSanitizer and UndefinedBehaviorSanitizer: all models and forms of output, and trainers
that are themselves compiled so."""
import re
import sys

import harness as h
from test_errors import small_cluster

FLAGS = "-O1 -g -std=c17 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
ENV = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}


def test_models():
    for model, presets in (("gpt", None), ("bert", None), ("mlp", None)):
        text = (h.ROOT / "models" / f"{model}.xml").read_text()
        for preset in re.findall(r'<preset name="([\w.-]+)"', text):
            cluster, n = ("dgx-a100", 64) if re.search("13b|17b|175b|8.3b", preset) else (None, 4)
            for extra in ((), ("--dump-after", "fuse")):
                p = h.mpplan(*h.arguments(f"models/{model}.xml", gpus=n, preset=preset, cluster=cluster, extra=extra), timeout_s=900)
                h.check(p.returncode == 0, f"{model} {preset} {extra}", p.stderr[-2000:])
    for n in (1, 2, 3, 5, 7, 8):
        p = h.plan("models/gpt.xml", preset="tiny", gpus=n, extra=["--dump-ilp", h.TMP / "ilp", "--stats", h.TMP / "stats"])
        q = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", gpus=n), "--from-plan", p.dir / "plan.json")
        h.check(q.returncode == 0, f"gpt tiny on {n}, from its plan", q.stderr[-2000:])
    p = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", gpus=2, cluster=small_cluster("1MiB")))
    h.check(p.returncode == 2, "a model that does not fit", p.stderr[-2000:])
    h.check(h.mpplan("--print-schema").returncode == 0 and h.mpplan("--help").returncode == 0, "--print-schema, --help")


def test_trainers():
    for model, n, fix, d in (("gpt", 1, None, {}), ("gpt", 3, None, dict(pdrop=0.1)), ("gpt", 8, "mesh=2x2x2", {}),
                             ("gpt", 4, "dp=4,zero=3", {}), ("gpt", 4, "tp=4,sequence_parallel=true", {}), ("gpt", 7, None, {}),
                             ("gpt", 2, "micro_batches=4", {}), ("bert", 4, None, dict(padding_mask=True)), ("mlp", 3, None, {})):
        what = f"{model} on {n}, {fix}"
        p = h.plan(f"models/{model}.xml", preset="tiny", gpus=n, fix=fix, D=d)
        p.build(f"CFLAGS={FLAGS}", f"LDFLAGS={FLAGS}")
        r = p.train(data="synthetic", steps=2, seed=1, env=ENV, allow_failure=True, timeout_s=600, save=h.TMP / "checkpoint",
                    dump_grads=h.TMP / "grads.safetensors")
        h.check(r.process.returncode == 0 and len(r.losses) == 2, what, r.err[-3000:])
        p.remove()


TESTS = {"models": test_models, "trainers": test_trainers}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
