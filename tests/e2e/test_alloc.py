#!/usr/bin/env python3
"""Memory that runs out in mpplan: every allocation in turn fails, once or from there on. It ends as it would have, or with
status 3 and one line; what it was to write is there whole or not at all; under ASan nothing leaks.

    test_alloc.py [NAME]     a sample
    test_alloc.py --full     every call of the small model, and more of the others
"""
import collections
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import harness as h

OUT_OF_MEMORY = 3
SANITIZED = "ASAN_OPTIONS" in os.environ
# tests/fail_alloc.c takes glibc's allocator; under ASan it has to be ASan's, so that leaks are seen.
FORWARD = [f"-D__libc_{f}=__interceptor_{f}" for f in ("malloc", "calloc", "realloc", "memalign")]


def build_library():
    lib = h.TMP / "fail_alloc.so"
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O2", "-o", lib, h.ROOT / "tests" / "fail_alloc.c"]
    if SANITIZED:
        asan = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
        command += [*FORWARD, asan]
    h.must(h.run([*command, "-ldl"]))
    return lib


LIBRARY = None


def run(args, **settings):
    env = {"LD_PRELOAD": str(LIBRARY), "FAIL_ALLOC_MAIN": "1"}
    env.update({f"FAIL_ALLOC_{k}": str(v) for k, v in settings.items()})
    if SANITIZED:
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=1:exitcode=99"
    return h.mpplan(*args, env=env, timeout_s=60)


def fault(p, whole, status, folder, out, same):
    """What is wrong with the run P, or None. WHOLE is how it ends with memory, out of (stdout, files). Unless SAME, another
    plan is as good."""
    errors = [line for line in p.stderr.splitlines() if "error: " in line]
    said = sum(line.startswith("error: out of memory while ") for line in errors)
    if p.returncode not in (status, OUT_OF_MEMORY):
        return f"exit status {p.returncode}"
    if p.returncode == OUT_OF_MEMORY and (said != 1 or errors[-1] != p.stderr.splitlines()[-1]):
        return "does not end with one line"
    if p.returncode == OUT_OF_MEMORY and status == 0 and len(errors) != 1:
        return "calls the input wrong"
    if p.returncode == status and p.stdout != whole[0] and same:
        return "prints something else"
    files = h.tree(out) if out.exists() else None
    if files and not same and sorted(files) == sorted(whole[1]):
        files = whole[1]
    if files not in (None, whole[1]) or (p.returncode == 0 and files != whole[1]):
        return f"half of a plan: {sorted(files or {})[:4]}"
    left = sorted(x.name for x in folder.iterdir() if x != out and x.name != "out") if folder.exists() else []
    return f"leaves {left}" if left else None


def sweep(what, args, status=0, samples=40, same=True, writes=True, **settings):
    """Let SAMPLES allocations of mpplan ARGS fail, evenly spread, each alone and with all after it."""
    folder = h.TMP / what.replace(" ", "-")
    out = folder / "deep" / "plan"
    args = [*args, "-o", out] if writes else [*args]
    count = h.TMP / "count"
    count.unlink(missing_ok=True)
    p = run(args, COUNT=count, **settings)
    if not h.check(p.returncode == status, f"{what}: status {status} with memory", p.stderr[-500:]):
        return
    whole = (p.stdout, h.tree(out) if out.exists() else None)
    n = struct.unpack("3q", count.read_bytes())[0]
    h.check(n > 20, f"{what}: allocations are counted", n)
    ends, step = collections.Counter(), max(1, n // samples)
    for keep in (0, 1):
        for at in range(1 + (step // 2 if keep else 0), n + 1, step):
            shutil.rmtree(folder, ignore_errors=True)
            p = run(args, AT=at, KEEP=keep, **settings)
            wrong = fault(p, whole, status, folder / "deep", out, same)
            h.check(not wrong, f"{what}: allocation {at} of {n} fails{' and all after it' if keep else ''}",
                    f"{wrong}\n{p.stderr[-800:]}")
            ends[p.returncode] += 1
    h.check(ends[OUT_OF_MEMORY] > 0 or "ONLY" in settings, f"{what}: runs out of memory", dict(ends))
    shutil.rmtree(folder, ignore_errors=True)


MLP = ["models/mlp.xml", "--preset", "tiny", "--gpus", "2"]
GPT = ["models/gpt.xml", "--preset", "tiny", "--gpus", "4"]
TIGHT = """<cluster name="tight" devices_per_node="any" nodes="1">
  <device name="small">
    <memory bytes="%d" usable="1" bytes_per_s="27e9"/>
    <peak precision="f32" flops_per_s="118e9"/>
    <kernel launch_s="3e-7" vector_efficiency="0.2"/>
    <gemm efficiency="0.9" half_m="14" half_n="5" half_k="10"/>
  </device>
  <shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>
  <protocol name="shared" base_s="26e-6" step_s="6e-6" efficiency="1"/>
</cluster>
"""


def files(args):
    return [str(h.ROOT / a) if a.startswith("models/") else a for a in args]


def test_plan():
    sweep("a plan", files(MLP), samples=10**9 if h.FULL else 60)
    sweep("a larger plan", files(GPT), samples=1000 if h.FULL else 20)


def test_options():
    sweep("pins", files([*GPT, "--fix", "dp=2,tp=2"]), samples=400 if h.FULL else 10)
    sweep("a cluster", files(["models/gpt.xml", "--preset", "gpt2", "--gpus", "8", "--cluster", "dgx-a100"]),
          samples=200 if h.FULL else 10)


def test_glpk():
    """Memory of the device is short, so prices are asked of GLPK, which would abort where an allocation fails."""
    for n_bytes, status, what in ((16000, 0, "little memory"), (9000, 2, "too little memory")):
        cluster = h.TMP / f"tight{n_bytes}.xml"
        cluster.write_text(TIGHT % n_bytes)
        args = [*files(MLP), "--cluster", cluster]
        sweep(what, args, status, samples=300 if h.FULL else 12, same=False)
        sweep(f"{what} in GLPK", args, status, samples=1500 if h.FULL else 12, same=False, ONLY="libglpk")
    solver = Path(os.environ.get("MPP_BUILD", h.ROOT / "build")) / "tests" / "test_solver"
    if SANITIZED or not solver.exists():
        return
    for at in range(1, 700_000, 10_000) if h.FULL else (80, 4_000, 400_000):  # branch and cut, over and over
        env = {"LD_PRELOAD": str(LIBRARY), "FAIL_ALLOC_MAIN": "1", "FAIL_ALLOC_ONLY": "libglpk", "FAIL_ALLOC_AT": str(at),
               "FAIL_ALLOC_KEEP": str(at // 40 % 2)}
        p = h.run([solver], env=env, timeout_s=300)
        h.check(p.returncode in (0, 1) and " passed, " in p.stdout, f"the solver's tests when allocation {at} of GLPK fails",
                f"{p.returncode} {p.stderr[-300:]}")


def test_plan_read():
    made = h.plan("models/gpt.xml", gpus=4, preset="tiny")
    text = (made.dir / "plan.json").read_text()
    cut, changed = h.TMP / "cut.json", h.TMP / "changed.json"
    cut.write_text(text[:len(text) // 2])
    changed.write_text(text.replace('"split"', '"splat"', 3))
    samples = 1000 if h.FULL else 15
    sweep("a plan read back", files([*GPT, "--from-plan", str(made.dir / "plan.json")]), samples=samples)
    sweep("a plan cut off", files([*GPT, "--from-plan", str(cut)]), status=2, samples=samples)
    sweep("a plan of nonsense", files([*GPT, "--from-plan", str(changed)]), status=2, samples=samples)


def test_questions():
    samples = 400 if h.FULL else 10
    sweep("what an op could be", files([*MLP, "--explain", "first.weight"]), samples=samples, writes=False)
    sweep("what does not exist", files([*MLP, "--explain", "nothing"]), status=2, samples=samples, writes=False)
    sweep("a sweep", files([*MLP, "--sweep", "batch=8,16", "--json"]), samples=samples, writes=False)
    made = [h.plan("models/mlp.xml", gpus=2, preset="tiny", fix=fix).dir for fix in ("dp=2", "tp=2")]
    sweep("two plans", ["--diff", *made], samples=samples, writes=False)


def test_mistakes():
    sweep("a wrong preset", files(["models/mlp.xml", "--preset", "tyny"]), status=2, samples=10**9 if h.FULL else 25)
    many = h.TMP / "many.xml"
    many.write_text((h.ROOT / "models" / "gpt.xml").read_text().replace("<Linear ", "<Linnear ").replace("/>", "/>", 1))
    sweep("a model with many mistakes", [str(many), "--preset", "tiny"], status=2, samples=400 if h.FULL else 15)
    sweep("pins that match nothing", files([*MLP, "--fix", "shard:nothing.*=batch/a"]), status=2,
          samples=400 if h.FULL else 10)


def test_limit():
    """A limit on the address space, as `ulimit -v` sets it: from one that is too low to one that suffices."""
    if SANITIZED:
        return                    # ASan reserves terabytes
    import resource
    args = [h.MPPLAN, h.ROOT / "models" / "gpt.xml", "--preset", "gpt3-175b", "--gpus", "64", "--cluster", "dgx-a100"]
    ends = collections.Counter()
    for mib in (56, 64, 80, 100, 2000):
        out = h.TMP / "limited" / "plan"
        p = subprocess.run([str(a) for a in [*args, "-o", out]], capture_output=True, text=True, timeout=120,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
        if p.returncode == 127:
            continue              # not even the libraries could be loaded
        ends[p.returncode] += 1
        h.check(p.returncode in (0, OUT_OF_MEMORY), f"{mib} MiB: status 0 or 3", f"{p.returncode} {p.stderr[-300:]}")
        h.check(out.exists() == (p.returncode == 0), f"{mib} MiB: a plan or none")
        h.check(p.returncode == 0 or len(p.stderr.splitlines()) == 1, f"{mib} MiB: one line", p.stderr[-300:])
        shutil.rmtree(out.parent, ignore_errors=True)
    h.check(ends[0] > 0 and ends[OUT_OF_MEMORY] > 0, "limits: some suffice, some do not", dict(ends))


if __name__ == "__main__":
    LIBRARY = build_library()
    for name in h.only(["plan", "options", "glpk", "plan_read", "questions", "mistakes", "limit"]):
        h.guarded(name, globals()[f"test_{name}"])
    sys.exit(h.finish())
