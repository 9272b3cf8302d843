#!/usr/bin/env python3
"""Under sanitizers: mpplan with all models and forms of output (MPPLAN built with AddressSanitizer and
UndefinedBehaviorSanitizer), trainers compiled so, and trainers whose ranks are threads under ThreadSanitizer.

    MPPLAN=build/asan/mpplan tests/e2e/test_sanitized.py            all
    tests/e2e/test_sanitized.py races                               trainers alone: any mpplan will do
"""
import re
import sys

import harness as h
from test_errors import small_cluster

BASE = "-O1 -g -std=c17 -D_GNU_SOURCE -fno-omit-frame-pointer"
MEMORY = f"{BASE} -fsanitize=address,undefined -fno-sanitize-recover=undefined"
THREADS = f"{BASE} -fsanitize=thread"
# OpenBLAS and MPI are not instrumented, and keep memory to the end.
ENV = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
       "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
GPT, BERT, MLP = "models/gpt.xml", "models/bert.xml", "models/mlp.xml"


def test_models():
    for model, presets in (("gpt", None), ("bert", None), ("mlp", None)):
        text = (h.ROOT / "models" / f"{model}.xml").read_text()
        for preset in re.findall(r'<preset name="([\w.-]+)"', text):
            cluster, n = ("dgx-a100", 64) if re.search("6.7b|13b|17b|175b|8.3b", preset) else (None, 4)
            for extra in ((), ("--dump-after", "fuse")):
                p = h.mpplan(*h.arguments(f"models/{model}.xml", gpus=n, preset=preset, cluster=cluster, extra=extra), timeout_s=900)
                h.check(p.returncode == 0, f"{model} {preset} {extra}", p.stderr[-2000:])
    for n in (1, 2, 3, 5, 7, 8):
        p = h.plan("models/gpt.xml", preset="tiny", gpus=n, extra=["--dump-ilp", h.TMP / "ilp", "--stats", h.TMP / "stats"])
        q = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", gpus=n), "--from-plan", p.dir / "plan.json")
        h.check(q.returncode == 0, f"gpt tiny on {n}, from its plan", q.stderr[-2000:])
    p = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", gpus=2, cluster=small_cluster("1MiB")))
    h.check(p.returncode == 2, "a model that does not fit", p.stderr[-2000:])
    for fewest in (["gpt2-xl", "--cluster", "p3.16xlarge"], ["gpt2-medium", "--cluster", "dgx1-v100"]): # programs of many hubs
        p = h.mpplan(h.ROOT / "models" / "gpt.xml", "--preset", *fewest, "--min-gpus", "--predict", timeout_s=900, env=ENV)
        h.check(p.returncode == 0, f"the fewest devices for {fewest[0]}", p.stderr[-2000:])
    h.check(h.mpplan("--print-schema").returncode == 0 and h.mpplan("--help").returncode == 0, "--print-schema, --help")


def sanitized(what, flags, p, resume=False, team=False, **options):
    """Build and train; once more from the checkpoint with RESUME. TEAM: with several threads to a rank."""
    p.build(f"CFLAGS={flags}", f"LDFLAGS={flags}", *([] if team else ["OPENMP="]))
    save = h.TMP / f"checkpoint{p.dir.name}"
    options = dict(options, seed=1, env=ENV, allow_failure=True, timeout_s=900)
    r = p.train(steps=2, save=save, dump_grads=h.TMP / "grads.safetensors", **options)
    h.check(r.process.returncode == 0 and len(r.losses) == 2, what, r.err[-3000:])
    if resume:
        r = p.train(steps=3, resume=save, **options)
        h.check(r.process.returncode == 0 and len(r.losses) == 1, f"{what}, resumed", r.err[-3000:])
    p.remove()


def test_trainers():
    """Every form of plan and every source of data at least once."""
    tokens = h.TMP / "tokens.bin"
    tokens.write_bytes(bytes(i * 7 % 256 if i % 2 == 0 else 0 for i in range(4000)))
    for model, n, fix, d, options in (
            (GPT, 1, None, {}, {}), (GPT, 3, None, dict(pdrop=0.1), {}), (GPT, 8, "mesh=2x2x2", {}, {}),
            (GPT, 4, "dp=4,zero=3,micro_batches=2", {}, {}), (GPT, 4, "tp=4,sequence_parallel=true", {}, {}), (GPT, 7, None, {}, {}),
            (GPT, 2, "dp=2,micro_batches=4", {}, dict(data=f"tokens:{tokens}", resume=True)),
            (GPT, 3, "tp=3,vocab_parallel=true", {}, {}), (GPT, 4, "dp=2,tp=2", {}, dict(mpi=True, resume=True)),
            (BERT, 4, None, dict(padding_mask=True), {}), (BERT, 2, "micro_batches=2", {}, {}), (MLP, 3, None, {}, {})):
        what = f"{model} on {n}, {fix}{', MPI' if 'mpi' in options else ''}"
        p = h.plan(model, preset="tiny", gpus=n, fix=fix, D=d)
        h.guarded(what, sanitized, what, MEMORY, p, **{"data": "synthetic", **options})


def test_races():
    """Ranks as threads: no access that another thread may meet, under each kind of plan."""
    for model, n, fix, d, options in (
            (GPT, 4, "dp=4", dict(pdrop=0.1), dict(resume=True)), (GPT, 4, "tp=4", {}, {}), (GPT, 4, "dp=2,tp=2", {}, dict(resume=True)),
            (GPT, 4, "dp=4,zero=3,micro_batches=2", {}, {}), (GPT, 8, "mesh=2x2x2", {}, {}), (GPT, 3, "tp=3,vocab_parallel=true", {}, {}),
            (GPT, 4, "tp=4,sequence_parallel=true", {}, {}), (BERT, 4, "dp=2,micro_batches=2", {}, {}),
            (GPT, 1, None, dict(hidden=128), dict(team=True, threads=3)), (BERT, 2, "dp=2", dict(hidden=128), dict(team=True, threads=2))):
        what = f"races of {model} on {n}, {fix}{', teams' if 'team' in options else ''}"
        p = h.plan(model, preset="tiny", gpus=n, fix=fix, D=d)
        h.guarded(what, sanitized, what, THREADS, p, data="synthetic", **options)


TESTS = {"models": test_models, "trainers": test_trainers, "races": test_races}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
