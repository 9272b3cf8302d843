#!/usr/bin/env python3
"""What --overlap gains and costs: the table of docs/planner.md.

    tests/bench/bench_overlap.py [PRESET...]

For each model and cluster the default's plan and that of --overlap: predicted time of a step with collectives beside kernels, what is
proven, and CPU seconds of planning.
"""
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
# preset, devices, cluster, batch
ROWS = [("gpt2", 4, "a100-pcie", 64), ("gpt2-xl", 8, "dgx-a100", 32), ("gpt2-xl", 8, "dgx-a100", 512), ("gpt2-xl", 16, "p3.16xlarge", 64),
        ("gpt3-1.3b", 8, "a100-pcie", 32), ("gpt3-2.7b", 8, "dgx-a100-40", 64), ("gpt3-6.7b", 64, "dgx-a100", 64),
        ("gpt3-6.7b", 64, "p4d.24xlarge", 512), ("gpt3-13b", 64, "dgx-a100", 256), ("gpt3-175b", 1024, "dgx-a100", 1536)]


def cpu_s():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def predict(preset, gpus, cluster, batch, *more):
    before = cpu_s()
    p = subprocess.run([MPPLAN, str(ROOT / "models" / "gpt.xml"), "--preset", preset, "--gpus", str(gpus), "--cluster", cluster, "--batch", str(batch),
                        "--precision", "bf16", "--predict", "--json", *more], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(p.stderr)
    return json.loads(p.stdout), cpu_s() - before


def words(x):
    """The plan in short: axes of the first stage's mesh, stages, micro-batches."""
    mesh = " x ".join(f"{a['axis']} {a['size']}" for a in x["stages"][0]["mesh"] if a["size"] > 1) or "1"
    chunks = f" x {x['interleave']}" if x["interleave"] > 1 else ""
    return f"pp {x['pp']}{chunks}, {mesh}, {x['micro_batches']} mb"


def main():
    print("| model | devices | batch | default's plan | its step | plan of `--overlap` | its step | faster | proven within | CPU s, default | `--overlap` |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if sys.argv[1:] and row[0] not in sys.argv[1:]:
            continue
        plain, plain_cpu_s = predict(*row)
        counted, counted_cpu_s = predict(*row, "--overlap")
        a, b, bound = plain["overlapped_s"], counted["overlapped_s"], counted["overlap_bound_s"]
        print(f"| {row[0]} | {row[1]} {row[2]} | {row[3]} | {words(plain)} | {a:.4g} s | {words(counted)} | {b:.4g} s | {100 * (a / b - 1):.1f} % | "
              f"{100 * (b / bound - 1):.1f} % | {plain_cpu_s:.1f} | {counted_cpu_s:.1f} |", flush=True)


main()
