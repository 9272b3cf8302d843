#!/usr/bin/env python3
"""gcc's own report, for AVX2 with the Makefile's flags: the loops of plans and of the runtime that are marked as
independent become vector code, each in one pass."""
import re
import shutil
import subprocess
import sys

import harness as h

FLAGS = ["-O3", "-march=x86-64-v3", "-std=c17", "-D_GNU_SOURCE", "-fno-math-errno", "-fno-trapping-math", "-fopenmp",
         "-fopt-info-vec-optimized", "-I.", "-Iruntime", "-c", "-o", "/dev/null"]
MARK = re.compile(r"^\s*(MPP_IVDEP|MPP_PARALLEL_SIMD\(.*\)|#pragma omp simd.*)$")
PLANS = (("gpt", {}), ("gpt", dict(pdrop=0.1)), ("bert", {}), ("mlp", {}))


def blas_flags():
    p = subprocess.run(["pkg-config", "--cflags", "openblas"], capture_output=True, text=True)
    return p.stdout.split()


def marked_loops(path):
    """Number of the `for` line and the text of each marked loop of a file, up to its last line."""
    lines = path.read_text().split("\n")
    for i, line in enumerate(lines):
        if not MARK.match(line):
            continue
        indent = len(lines[i + 1]) - len(lines[i + 1].lstrip())
        end = i + 2
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
            end += 1
        yield i + 2, "\n".join(lines[i + 1:end])


def check_file(folder, name):
    p = subprocess.run(["gcc", *FLAGS, *blas_flags(), name], cwd=folder, capture_output=True, text=True)
    h.check(p.returncode == 0, f"{name} compiles", p.stderr[-1000:])
    found = {int(n) for n in re.findall(re.escape(name) + r":(\d+):\d+: optimized: +loop vectorized", p.stderr)}
    loops = list(marked_loops(folder / name))
    for line, text in loops:
        # gcc names the line of the loop, or that of a statement in it
        h.check(any(line - 1 <= n <= line + text.count("\n") for n in found), f"{name}:{line} is vectorised", text[:400])
    return len(loops)


def test_plans():
    for model, d in PLANS:
        p = h.plan(f"models/{model}.xml", preset="tiny", gpus=1, D=d)
        h.check(check_file(p.dir, "kernels.c") > 0, f"{model} has marked loops")
        p.remove()


def test_runtime():
    n = 0
    for path in sorted((h.ROOT / "runtime" / "host").glob("kernels_*.c")):
        n += check_file(h.ROOT / "runtime", f"host/{path.name}")
    h.check(n > 10, "the runtime has marked loops")


TESTS = {"plans": test_plans, "runtime": test_runtime}

if __name__ == "__main__":
    if shutil.which("gcc") is None or subprocess.run(["gcc", *FLAGS, "-x", "c", "-"], input="", text=True).returncode != 0:
        print("skipped: gcc for x86-64 is not here")
        sys.exit(h.finish())
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
