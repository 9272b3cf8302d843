#!/usr/bin/env python3
"""Which plans of the models here are proven optimal, on dgx-a100, of one stage, every mesh and number of micro-batches.

    tests/bench/bench_optimal.py [--limit CPU_S] [--gpus N[,N...]] [--alone] [NAME...]

One row per preset and number of devices: nodes of the chosen mesh's program, those that presolve leaves to the pairwise solver
(-: it was not called: prices and elimination proved the optimum or came near enough), GLPK's rows and columns, CPU seconds of
the whole run, and the gap proven over everything searched. --alone: a program whose gap is not closed is exported and
given to --solve-iopddl for as long, which works on it until it is proven. "program proven": that of the chosen mesh is; its plan did not
fit once laid out, so that it was solved in less room, and the gap is to the bound of all the room.
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
PRESETS = [("mlp", "tiny"), ("mlp", "wide"), ("bert", "base"), ("bert", "large")] + [
    ("gpt", p) for p in ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-1.3b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")]
PROVEN = 1e-9


def run(arguments, limit_s):
    """Its result and CPU seconds; limited to LIMIT_S of them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    p = subprocess.run([MPPLAN, *map(str, arguments)], capture_output=True, text=True,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return p, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def why(p, limit_s):
    """A run that brought no plan, in a few words."""
    if p.returncode < 0:
        return f"no plan within {limit_s} CPU s"
    errors = [line for line in p.stderr.splitlines() if "error" in line]
    return (errors or ["no message"])[0][:110]


def alone(arguments, plan, folder, limit_s):
    """The chosen mesh's program by itself: what --solve-iopddl says of it."""
    mesh = "x".join(str(a["size"]) for a in plan["stages"][0]["mesh"])
    fix = f"pp=1,mesh={mesh},micro_batches={plan['micro_batches']}"
    p, _ = run([*arguments, "--fix", fix, "--export-iopddl", folder], limit_s)
    files = sorted(Path(folder).glob("*.json"))
    if len(files) != 1:
        return f"alone: {why(p, limit_s)}"
    p, seconds = run(["--solve-iopddl", files[0], "--time-limit", limit_s], 2 * limit_s)
    presolved = re.search(r"^presolved +(.*), \d+ times", p.stderr, re.M)
    last = re.search(r"^(optimal[^:]*|feasible|interrupted):.*gap ([\d.]+) %", p.stderr, re.M)
    if not last:
        return f"alone: {why(p, 2 * limit_s)}, {seconds:.1f} s"
    return f"alone: {last[1]}, gap {last[2]} %, {seconds:.1f} s; presolve leaves {presolved[1] if presolved else '?'}"


def row(model, preset, gpus, limit_s, with_alone):
    """Prints it. Was the chosen program proven optimal? None: there is none."""
    arguments = [ROOT / "models" / f"{model}.xml", "--preset", preset, "--gpus", gpus, "--cluster", "dgx-a100"]
    name = f"{model} {preset}"
    with tempfile.TemporaryDirectory() as folder:
        stats_file = Path(folder) / "stats.json"
        p, seconds = run([*arguments, "--fix", "pp=1,recompute=none", "--export-iopddl", f"{folder}/all", "--stats", stats_file, "-o", f"{folder}/plan"], limit_s)
        if p.returncode != 0:
            print(f"{name:18} {gpus:5}  {why(p, limit_s)} ({seconds:.1f} s)", flush=True)
            return None
        stats = json.loads(stats_file.read_text())
        plan = json.loads((Path(folder) / "plan" / "plan.json").read_text())
        proven = plan.get("solver", {}).get("gap", 1) <= PROVEN
        verdict = "not proven" if not proven else "proven" if stats["gap"] <= PROVEN else "program proven"
        more = alone(arguments, plan, f"{folder}/problems", limit_s) if with_alone and not proven else ""
    print(f"{name:18} {gpus:5} {plan['micro_batches']:4} {stats['solver_nodes']:6} {stats['solver_nodes_reduced'] or '-':>9} "
          f"{stats['glpk_rows']:6} x {stats['glpk_cols']:<6} {seconds:7.2f} {stats['gap']:9.4%}  "
          f"{verdict} {more}".rstrip(), flush=True)
    return proven


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds of one run")
    parser.add_argument("--gpus", default="8,64,256,1024")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("names", nargs="*", help="presets")
    o = parser.parse_args()
    cases = [(m, p) for m, p in PRESETS if not o.names or p in o.names]
    if not cases:
        parser.error(f"there is no such preset here; there are {', '.join(p for _, p in PRESETS)}")
    print(f"{'model':18} {'gpus':>5} {'K':>4} {'nodes':>6} {'presolved':>9} {'rows':>6} x {'cols':6} {'CPU s':>7} {'gap':>9}")
    results = [row(m, p, int(n), o.limit, o.alone) for m, p in cases for n in o.gpus.split(",")]
    print(f"{len(results)} runs: {results.count(True)} proven optimal, {results.count(False)} with a gap, {results.count(None)} without a plan")
    return 0


if __name__ == "__main__":
    sys.exit(main())
