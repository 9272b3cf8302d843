#!/usr/bin/env python3
"""What no event orders is done in the worst order: tests/cuda with MPP_SHIM_STREAMS=late and early.

The runtime's tests and whole trainers hold in both orders, to the bit; and of every wait for an event, and every record of one, in
runtime/cuda a test in one of the orders notices that it is gone. By default one suite and one trainer, and the waits between the
streams of a rank; --full: all.
"""
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

import harness as h
import test_cuda as cuda
import test_equivalence as eq

BUILD = Path(os.environ.get("MPP_BUILD", h.ROOT / "build"))
ORDERS = ("late", "early")
PATIENCE_S = 900
TIMES = ("step_s", "tokens_per_s")


# ---- the runtime's tests ----

SUITES = [("conformance_ranks",), ("transfers", "1")] + ([("collectives",)] if h.FULL else [])


def run_suite(program, arguments, order, patience_s=PATIENCE_S):
    """(did it pass? what it said last)"""
    try:
        p = h.run([program, *arguments], patience_s, {"MPP_SHIM_STREAMS": order, "OPENBLAS_NUM_THREADS": "1"}, cwd=h.ROOT)
    except h.Failure as e:
        return False, str(e)[-300:]
    return p.returncode == 0 and re.search(r"^\d+ passed, 0 failed$", p.stdout, re.M) is not None, (p.stdout + p.stderr)[-300:]


def suites():
    """How long the slowest took, in seconds."""
    longest = 0
    for name, *arguments in SUITES:
        for order in ORDERS:
            begun = time.monotonic()
            ok, said = run_suite(BUILD / "tests" / "cuda" / f"cuda_{name}", arguments, order)
            longest = max(longest, time.monotonic() - begun)
            h.check(ok, f"cuda_{name}, {order}", said)
    return longest


# ---- trainers ----

PLANS = [  # model, setting, devices, --fix, environment
    (cuda.TINY, "C", 2, "dp=2,zero=3", {}),
    (cuda.TINY, "C", 4, "dp=2,tp=2", {}),
    (cuda.TINY, "B", 4, "dp=4,zero=3", {}),
    (cuda.TINY, "C", 4, "dp=4,zero=1", {}),
    (cuda.TINY, "C", 2, "dp=2,micro_batches=4", {}),
    (cuda.TINY, "C", 2, "pp=2,schedule=1f1b,micro_batches=2", {}),
    (cuda.TINY, "C", 4, "pp=2,tp=2,schedule=interleaved,interleave=2,micro_batches=4", {}),
    (cuda.DEEP, "cosine", 4, "pp=2,dp=2,schedule=1f1b,micro_batches=6,recompute=full", {}),
    (cuda.TINY, "C", 4, "dp=2,tp=2", cuda.GRAPHS),
    (cuda.TINY, "C", 4, "dp=4,zero=3", cuda.GRAPHS),
    (cuda.TINY, "C", 2, "pp=2,schedule=1f1b,micro_batches=2", cuda.GRAPHS),
]


def steps(run):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in run.rows]


def trainer(m, setting, devices, fix, env):
    """The losses of the reference, and all that is told of every step to the bit as where streams work in the call."""
    what = f"{m.folder} {setting}, {devices} ranks, {fix}{', graphs' if env else ''}"
    p = cuda.plan(m, devices, fix, setting)
    cuda.build(p)
    name, data, losses = m.settings[setting][2][0]
    n = 4 if h.FULL else 3
    env = {**env, "OPENBLAS_NUM_THREADS": "1"}
    options = dict(data=f"npy:{data}", init=m.weights, steps=n, seed=1, timeout_s=PATIENCE_S)
    plain = p.train(env=env, **options)
    h.close(f"{what}: losses", plain.losses, losses[:n], m.tolerance)
    for order in ORDERS:
        run = p.train(env={**env, "MPP_SHIM_STREAMS": order}, **options)
        h.check(steps(run) == steps(plain) and len(run.rows) == n, f"{what}, {order}: the same bits", f"{steps(run)} {steps(plain)}")
    p.remove()


def trainers():
    models = {m.folder: m for m in (eq.gpt2_tiny(), eq.gpt2_deep())}
    for folder, setting, devices, fix, env in PLANS if h.FULL else PLANS[:1]:
        h.guarded(f"{folder} {fix}", trainer, models[folder], setting, devices, fix, env)


def failures():
    """A rank that fails ends the job, whatever its streams hold."""
    p = h.plan("models/gpt.xml", gpus=4, preset="tiny", fix="pp=2,dp=2,schedule=1f1b,micro_batches=4")
    cuda.build(p)
    for order in ORDERS:
        run = p.train(data="synthetic", steps=2, env={"MPP_SHIM_STREAMS": order, "MPP_SHIM_MEMORY": "170000000"}, allow_failure=True,
                      metrics=False, timeout_s=PATIENCE_S)
        h.check(run.process.returncode == 1 and "out of memory" in run.err, f"out of memory, {order}: the job ends",
                f"status {run.process.returncode}: {run.err[-300:]}")
    p.remove()


# ---- a test of the tests ----

UNDONE = """#include "cuda/cuda_internal.h"
static inline cudaError_t undone_cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { (void)s, (void)e, (void)f; return cudaSuccess; }
static inline cudaError_t undone_cudaEventRecord(cudaEvent_t e, cudaStream_t s) { (void)e, (void)s; return cudaSuccess; }
static inline void undone_mpp_cuda_await(struct mpp_rank *r, cudaEvent_t e, enum mpp_wait k, int w) { (void)r, (void)e, (void)k, (void)w; }
"""
CALL = re.compile(r"^[ \t]+(?:MPP_CUDA_CHECK\(r, (?=cuda))?((cudaStreamWaitEvent|cudaEventRecord|mpp_cuda_await)\(.*?\))\)?;$", re.M)
ANY = re.compile(r"^[ \t]+.*\b(cudaStreamWaitEvent|cudaEventRecord|mpp_cuda_await)\(", re.M)
EXCUSED = {  # (file, call): why nothing can show it
    ("marks.c", "cudaEventRecord(mark->event, r->device->compute)"): "a mark tells who watches how far the GPU is; nothing waits for it",
    ("transfers.c", "cudaEventRecord(ring->left[place], r->device->compute)"): "the compute stream would wait for itself",
}
DEFAULT = ("groups.c", "collectives.c")  # the waits between the two streams of a rank


def calls():
    """(path, where the call begins in its text, name, the call), of all sources of runtime/cuda."""
    for path in sorted((h.ROOT / "runtime" / "cuda").glob("*.c")):
        text = path.read_text()
        found = list(CALL.finditer(text))
        h.check(len(found) == len(ANY.findall(text)), f"removed: all calls of {path.name} are found", len(found))
        for m in found:
            yield path, m.start(1), m.group(2), m.group(1)


def object_of(path, text):
    """TEXT compiled as PATH is for the runtime's tests."""
    entry = next(e for e in json.loads((BUILD / "compile_commands.json").read_text())
                 if "tests/cuda/libmpp_rt_cuda" in e["output"] and (Path(e["directory"]) / e["file"]).resolve() == path)
    source, out, header = h.TMP / path.name, h.TMP / f"{path.stem}.o", h.TMP / "undone.h"
    source.write_text(text)
    header.write_text(UNDONE)
    command = [str(source) if a == entry["file"] else str(out) if a == entry["output"] else a for a in shlex.split(entry["command"])]
    if "-MF" in command:
        command[command.index("-MF") + 1] = str(h.TMP / "undone.d")
    h.must(h.run([*command, "-w", "-include", header], cwd=entry["directory"]))
    return out


def link(name, out):
    """The test NAME with OUT in the place of the library's own."""
    target = f"tests/cuda/cuda_{name}"
    lines = h.must(h.run(["ninja", "-C", BUILD, "-t", "commands", target])).stdout.splitlines()
    command = shlex.split(lines[-1])
    program = h.TMP / f"cuda_{name}"
    command[command.index("-o") + 1] = str(program)
    command.insert(next(i for i, a in enumerate(command) if a.endswith(".o")), str(out))
    h.must(h.run(command, cwd=BUILD))
    return program


def shows(what, out, patience_s):
    """Does a test fail, end badly or hang for many times as long as it takes?"""
    for name, *arguments in SUITES[:2]:
        program = link(name, out)
        for order in ORDERS:
            ok, _ = run_suite(program, arguments, order, patience_s)
            if not ok:
                if h.VERBOSE:
                    print(f"{what}: cuda_{name}, {order}", flush=True)
                return True
    return False


def removed():
    """As long as what is whole passes, what is not must not."""
    before = h.failed
    patience_s = min(PATIENCE_S, 30 + 20 * suites())
    if h.failed > before:
        return
    found = list(calls())
    excused = {(path.name, call) for path, _, _, call in found} & set(EXCUSED)
    h.check(len(found) >= 10, "removed: calls are found", len(found))
    h.check(excused == set(EXCUSED), "removed: what is excused is there", set(EXCUSED) - excused)
    for path, at, name, call in found:
        if (path.name, call) in EXCUSED or not (h.FULL or path.name in DEFAULT and name != "cudaEventRecord"):
            continue
        text = path.read_text()
        out = object_of(path, text[:at] + "undone_" + text[at:])
        what = f"removed: {path.name}, line {text.count(chr(10), 0, at) + 1}: {call}"
        h.check(shows(what, out, patience_s), f"{what}: it shows")


def main():
    parts = {"trainers": trainers, "removed": removed}
    if h.FULL:
        parts["failures"] = failures
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
