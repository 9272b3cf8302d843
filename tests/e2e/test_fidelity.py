#!/usr/bin/env python3
"""Predictions beside published measurements: the benchmarks' limits on a sample of rows, and the collectives' groups."""
import csv
import random
import subprocess
import sys

import harness as h

sys.path.insert(0, str(h.ROOT / "tests" / "bench"))
import bench_fidelity as b

SAMPLE = 40                            # of vTrain's single-node rows; a seeded choice
# Percent. Of a sample somewhat more than of all rows (bench_fidelity.py has the limits of all).
LIMITS = {"megatron2020_v100": 12, "megatron2020_a100": 12, "megatron2020_a100_dp": 12, "megatron_v1_dgx2h": 12,
          "vtrain_single": 9}


def test_runs():
    with open(b.DATA, newline="") as f:
        table = list(csv.DictReader(f))
    for name, limit in LIMITS.items():
        rows = [r for r in table if r["set"] == name]
        if len(rows) > SAMPLE:
            rows = random.Random(1).sample(rows, SAMPLE)
        errors, measured, predicted = [], [], []
        for row in rows:
            seconds, said = b.predict(row)
            if h.check(seconds is not None, f"{name} {row['id']} is predicted", said):
                measured.append(float(row["iter_time_s"]))
                predicted.append(seconds)
                errors.append(abs(seconds / measured[-1] - 1))
        mape = 100 * sum(errors) / len(errors)
        h.check(mape <= limit, f"{name}: mean error within {limit} %", f"{mape:.2f} %")
        h.check(b.spearman(predicted, measured) > 0.9, f"{name}: in the measured order", b.spearman(predicted, measured))


def test_skipped():
    with open(b.DATA, newline="") as f:
        reasons = {b.why_not(r) for r in csv.DictReader(f)}
    h.check(reasons == {None, "CNN", "Transformer-XL", "configuration incomplete"}, "rows that are skipped", reasons)


def test_collectives():
    p = subprocess.run([sys.executable, str(h.ROOT / "tests" / "bench" / "bench_collective_model.py")], capture_output=True, text=True)
    if "No such file" in p.stderr:
        h.skip("cost_query is not built")
        return
    h.check(p.returncode == 0 and "6 of 6 groups within 15%" in p.stdout, "collectives: groups within 15 %", p.stdout[-300:] + p.stderr[-300:])


TESTS = {"runs": test_runs, "skipped": test_skipped, "collectives": test_collectives}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
