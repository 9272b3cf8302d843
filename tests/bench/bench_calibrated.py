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
import tempfile
from pathlib import Path

import numpy as np

from bench_machine import watched
from bench_plans import MPPLAN, Case, run

BUSY = 0.15  # cores used by others from which on the clock judges nothing
SIZES = dict(layers=4, hidden=192, heads=8, vocab=1024, seq=32, positions=32, batch=16)
PLANS = {
    2: ["", "dp=2", "dp=2,zero=3", "dp=2,micro_batches=2", "dp=2,micro_batches=8", "dp=2,zero=3,micro_batches=4",
        "dp=2,zero=3,micro_batches=8", "tp=2", "tp=2,sequence_parallel=true", "tp=2,micro_batches=4", "tp=2,micro_batches=16"],
    4: ["", "dp=4", "dp=4,zero=3", "dp=4,micro_batches=4", "dp=4,zero=3,micro_batches=4", "dp=2,tp=2", "dp=2,tp=2,zero=3",
        "dp=2,tp=2,micro_batches=4", "dp=2,tp=2,zero=3,micro_batches=8", "tp=4", "tp=4,sequence_parallel=true",
        "tp=4,micro_batches=8"],
}


def ranks(x):
    """Places in order, equal values sharing the mean of theirs."""
    x = np.asarray(x)
    return np.array([(x < v).sum() + ((x == v).sum() - 1) / 2 for v in x])


def spearman(a, b):
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


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
            print(run([MPPLAN, "--calibrate", cluster, "--seconds", 3 if args.quick else 30]).stdout, end="")
        cases = [Case(folder, cluster, "tiny", SIZES, gpus, fix) for gpus, fixes in PLANS.items() for fix in fixes]
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


if __name__ == "__main__":
    main()
