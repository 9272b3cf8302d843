#!/usr/bin/env python3
"""Does the planner know this machine? Pinned one-stage plans on 2 and 4 devices: predicted and measured step times.

    tests/bench/bench_calibrated.py                       calibrates first, about 15 minutes on 2 cores
    tests/bench/bench_calibrated.py --cluster here.xml    with a file of `mpplan --calibrate`
    tests/bench/bench_calibrated.py --quick               one short round: does it run

Measured are two figures of a step: by the clock, the lower quartile of all steps; and in CPU seconds of the whole process, over
the cores that its devices have, which other processes' work touches little. Goals are judged by the clock where others used
less than 0.15 cores meanwhile, else by CPU seconds, which leave out the time in which a device waits asleep. Plans are run
in turns, round after round. Goals: Spearman's rank correlation at least 0.9 over all plans; what the planner picks without
pins within 10 % of the best measured plan of as many devices.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench_machine import clean_environment, watched

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
BUSY = 0.15  # cores used by others from which on the clock judges nothing
SIZES = dict(layers=4, hidden=192, heads=8, vocab=1024, seq=32, positions=32, batch=16)
PLANS = {
    2: ["", "dp=2", "dp=2,zero=3", "dp=2,micro_batches=2", "dp=2,micro_batches=8", "dp=2,zero=3,micro_batches=4",
        "dp=2,zero=3,micro_batches=8", "tp=2", "tp=2,sequence_parallel=true", "tp=2,micro_batches=4", "tp=2,micro_batches=16"],
    4: ["", "dp=4", "dp=4,zero=3", "dp=4,micro_batches=4", "dp=4,zero=3,micro_batches=4", "dp=2,tp=2", "dp=2,tp=2,zero=3",
        "dp=2,tp=2,micro_batches=4", "dp=2,tp=2,zero=3,micro_batches=8", "tp=4", "tp=4,sequence_parallel=true",
        "tp=4,micro_batches=8"],
}


def run(command, **kwargs):
    p = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)
    if p.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}: exit status {p.returncode}\n{p.stdout[-500:]}{p.stderr[-1500:]}")
    return p


def ranks(x):
    """Places in order, equal values sharing the mean of theirs."""
    x = np.asarray(x)
    return np.array([(x < v).sum() + ((x == v).sum() - 1) / 2 for v in x])


def spearman(a, b):
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


class Case:
    def __init__(self, folder, cluster, gpus, fix):
        self.gpus, self.fix, self.dir = gpus, fix, folder / f"{gpus}-{fix.replace(',', '-') or 'pick'}"
        options = ["--preset", "tiny", *(f"-D{k}={v}" for k, v in SIZES.items()), "--gpus", gpus, "--cluster", cluster]
        options += ["--fix", fix] if fix else []
        model = ROOT / "models" / "gpt.xml"
        self.predicted = json.loads(run([MPPLAN, model, *options, "--predict", "--json"]).stdout)["step_s"]
        run([MPPLAN, model, *options, "-o", self.dir])
        run(["make", "-C", self.dir, "MPI=0", f"RUNTIME_BUILD={folder / 'runtime'}"])
        self.clock, self.cpu = [], []

    def train(self, steps):
        metrics = self.dir / "metrics.jsonl"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run([self.dir / "trainer", "--data", "synthetic", "--steps", steps, "--metrics", metrics], env=clean_environment())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [json.loads(line)["step_s"] for line in metrics.read_text().splitlines()][-steps:]
        metrics.unlink()
        return rows, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def measure(self, steps):
        """What two runs differ by, so that starting and ending count nothing."""
        _, short = self.train(2)
        rows, long = self.train(steps + 2)
        self.clock += rows[2:]
        self.cpu.append((long - short) / steps / min(self.gpus, os.cpu_count()))

    def measured(self, by_clock):
        return float(np.quantile(self.clock, 0.25)) if by_clock else statistics.median(self.cpu)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 1, 2
    with tempfile.TemporaryDirectory(prefix="mpplan-bench-") as folder:
        folder = Path(folder)
        cluster = args.cluster
        if not cluster:
            cluster = folder / "here.xml"
            print(run([MPPLAN, "--calibrate", cluster, "--time-limit", 3 if args.quick else 30]).stdout, end="")
        cases = [Case(folder, cluster, gpus, fix) for gpus, fixes in PLANS.items() for fix in fixes]
        others = watched(lambda: [case.measure(args.steps) for _ in range(args.rounds) for case in cases])
        by_clock = others < BUSY
        print(f"others used {others:.2f} cores meanwhile: judged by {'the clock' if by_clock else 'CPU seconds'}\n")
        print("| devices | pins | predicted, ms | measured, CPU ms | by the clock, ms |\n|---|---|---|---|---|")
        for c in cases:
            print(f"| {c.gpus} | {c.fix or '(the pick)'} | {1e3 * c.predicted:.1f} | {1e3 * c.measured(False):.1f} | {1e3 * c.measured(True):.1f} |")
        report(cases, by_clock)


def report(cases, by_clock):
    pinned = [c for c in cases if c.fix]
    rho = spearman([c.predicted for c in pinned], [c.measured(by_clock) for c in pinned])
    print(f"\nSpearman {rho:.3f} over {len(pinned)} pinned plans (goal 0.9)")
    for gpus in PLANS:
        mine = [c for c in cases if c.gpus == gpus]
        best = min(mine, key=lambda c: c.measured(by_clock))
        pick = next(c for c in mine if not c.fix)
        print(f"{gpus} devices: rank correlation {spearman([c.predicted for c in mine], [c.measured(by_clock) for c in mine]):.3f}; "
              f"the pick takes {100 * (pick.measured(by_clock) / best.measured(by_clock) - 1):.1f} % more than the best, "
              f"{best.fix or 'itself'} (goal 10 %)")


main()
