#!/usr/bin/env python3
"""Plans are no worse than the best of the whole grid of Megatron-style plans, nor than the published ones (docs/quality.md).

The small rows of tests/bench/bench_grid.py; --full: those that take minutes as well.
"""
import importlib.util
import os
import sys
from pathlib import Path

import harness as h

BUILD = Path(os.environ.get("MPP_BUILD", Path(h.MPPLAN).parent))
ROWS = ["alpa-350M", "alpa-760M", "alpa-1.3B"]
FULL_ROWS = ["3.6B", "7.5B", "alpa-2.6B", "alpa-6.7B"]


def load():
    spec = importlib.util.spec_from_file_location("bench_grid", h.ROOT / "tests" / "bench" / "bench_grid.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BENCH = str(BUILD / "tests" / "bench_grid")
    return module


def check_row(bench, name, arguments):
    r = bench.ask(arguments)
    h.check(r["ours"] is not None, f"{name}: a plan is found")
    h.check(bench.best_point(r) is not None, f"{name}: some point of the grid fits")
    h.check(r["points"] == r["priced"] + r["dominated"] + r["none"] and r["priced"] > 0, f"{name}: every point is accounted for", r)
    h.check(r["check"]["plans"] > 10, f"{name}: points are planned again with their pins", r["check"])
    for what in bench.faults(r):
        h.check(False, name, what)
    h.check(r["ours"]["bound_s"] <= r["ours"]["step_s"], f"{name}: no plan is below its bound", r["ours"])


def main():
    bench = load()
    for name, _, _, arguments in bench.rows():
        if name in ROWS + (FULL_ROWS if h.FULL else []):
            h.guarded(name, check_row, bench, name, arguments)
    sys.exit(h.finish())


main()
