#!/usr/bin/env python3
"""Is the plan as good as the best of the whole grid of Megatron-style plans? (docs/quality.md)

    tests/bench/bench_grid.py [-v] [--grid FILE] [--laid-out] [NAME...]   all rows, or those named: 1.7B ... 1008B, alpa-350M ... alpa-39B


For each configuration of Megatron's table 1 (Narayanan et al., SC21; plans from its repository, examples/sc21/run_table_1.sh)
and of Alpa's GPT series (Zheng et al., OSDI 22; plans from its repository, benchmark/alpa/suite_auto_gpt.py): the predicted
step time of the published plan, of the best point of the grid, and of the plan that mpplan finds without pins, all by the
same cost model. Prints two Markdown tables. Exit status 1 where a plan is slower than the grid's best. The grids of the larger
rows take many minutes: --grid keeps what was found in FILE, and takes it from there the next time, which is only right while
prices stay as they are. The search counts bytes as its programs do; with --laid-out mpplan itself is asked, too, which lays the
memory out and plans again with less room where that does not fit, of its own plan and of the grid's best point. -v prints what bench_grid says. BENCH_GRID names another bench_grid.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
BENCH = os.environ.get("BENCH_GRID", str(ROOT / "build" / "tests" / "bench_grid"))
CHUNKS = 0.02                          # most that the messages of chunks may add to a point's price
SLACK = 0.001                          # stages are solved to this gap, ours as well as the grid's

# name, hidden, layers, heads, GPUs, batch, then the published plan: dp, tp, pp, micro-batch, interleave
MEGATRON = [
    ("1.7B", 2304, 24, 24, 32, 512, 32, 1, 1, 16, 1),
    ("3.6B", 3072, 30, 32, 64, 512, 32, 2, 1, 16, 1),
    ("7.5B", 4096, 36, 32, 128, 512, 32, 4, 1, 16, 1),
    ("18.4B", 6144, 40, 48, 256, 1024, 32, 8, 1, 8, 1),
    ("39.1B", 8192, 48, 64, 512, 1536, 32, 8, 2, 4, 1),
    ("76.1B", 10240, 60, 80, 1024, 1792, 32, 8, 4, 2, 3),
    ("145.6B", 12288, 80, 96, 1536, 2304, 24, 8, 8, 2, 2),
    ("310.1B", 16384, 96, 128, 1920, 2160, 15, 8, 16, 1, 2),
    ("529.6B", 20480, 105, 128, 2520, 2520, 9, 8, 35, 1, 3),
    ("1008B", 25600, 128, 160, 3072, 3072, 6, 8, 64, 1, 1),
]
# name, hidden, layers, heads, GPUs, micro-batches, (dp, tp, pp) or layers x devices of each stage (all of them split the batch)
ALPA = [
    ("alpa-350M", 1024, 24, 16, 1, 512, (1, 1, 1)),
    ("alpa-760M", 1536, 24, 16, 2, 128, (1, 1, 2)),
    ("alpa-1.3B", 2048, 24, 32, 4, 128, (2, 1, 2)),
    ("alpa-2.6B", 2560, 32, 32, 8, 128, "8x2,8x2,16x4"),
    ("alpa-6.7B", 4096, 32, 32, 16, 64, (2, 4, 2)),
    ("alpa-15B", 5120, 48, 40, 32, 128, (2, 4, 4)),
    ("alpa-39B", 8192, 48, 64, 64, 1024, (1, 4, 16)),
]


def model(hidden, layers, heads, seq, batch):
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "vocab": 51200, "seq": seq, "positions": seq, "batch": batch}
    return [x for name, value in sizes.items() for x in ("-D", f"{name}={value}")]


def rows():
    """Name, GPUs, the published plan in words, bench_grid's arguments."""
    for name, hidden, layers, heads, gpus, batch, dp, tp, pp, b, v in MEGATRON:
        fix = f"dp={dp},tp={tp},pp={pp},micro_batch={b},interleave={v},recompute=full,zero=0,sequence_parallel=false"
        yield (name, gpus, f"dp {dp}, tp {tp}, pp {pp}, micro-batch {b}" + (f", interleave {v}" if v > 1 else "") + ", full",
               [str(ROOT / "models" / "gpt.xml"), *model(hidden, layers, heads, 2048, batch), "--precision", "fp16",
                "--cluster", "dgx-a100", "--gpus", str(gpus), "--fix", fix])
    for name, hidden, layers, heads, gpus, k, plan in ALPA:
        if isinstance(plan, str):
            words, first = f"stages of {plan.replace(',', ', ').replace('x', ' layers on ')}", ["--stages", plan]
            fix = f"tp=1,micro_batches={k},recompute=full"
        else:
            dp, tp, pp = plan
            words, first = f"dp {dp}, tp {tp}, pp {pp}", []
            fix = f"dp={dp},tp={tp},pp={pp},micro_batches={k},recompute=full"
        yield (name, gpus, f"{words}, {k} micro-batches, full",
               [*first, str(ROOT / "models" / "gpt.xml"), *model(hidden, layers, heads, 1024, 1024), "--precision", "fp16",
                "--cluster", "p3.16xlarge", "--gpus", str(gpus), "--fix", fix])


def point_words(p):
    if p is None:
        return "none fits"
    zero = {"2021": "", "2022": ", 2022", "free": ", free"}[p["flavour"]]
    return (f"dp {p['dp']}, tp {p['tp']}, pp {p['pp']}, micro-batch {p['micro_batch']}"
            + (f", interleave {p['chunks']}" if p["chunks"] > 1 else "") + f", {p['recompute']}{zero}")


def plan_words(p):
    if p is None:
        return "none found"
    parts = "; ".join((f"{s['times']} x " if s["times"] > 1 else "") + f"({s['mesh']}, {s['recompute']})" for s in p["stages"])
    return (f"pp {p['pp']}, " if p["pp"] > 1 else "") + (f"interleave {p['chunks']}, " if p["chunks"] > 1 else "") \
        + f"{p['micro_batches']} micro-batch{'es' if p['micro_batches'] > 1 else ''}, {parts}"


def seconds(x):
    return "does not fit" if x is None else f"{x:.5g}"


def best_point(r):
    """The fastest plan among those pinned as a point of the grid: all points whose price is below it were planned. The price of
    a point leaves out what chunks of interleaved stages send each other."""
    return r["check"]["fastest"]


def faults(r):
    """What is wrong with answer R, in words."""
    out = []
    step = min(r["ours"]["step_s"], r.get("laid_out_s") or float("inf")) if r["ours"] else float("inf")
    others = {"the grid's best point": best_point(r),
              "the published plan": {"step_s": r["published_s"]} if "published_s" in r else None}
    for what, p in others.items():
        if p and step > p["step_s"] * (1 + SLACK):
            out.append(f"ours takes {step:.6g} s, {what} {p['step_s']:.6g} s")
    if r.get("laid_out_s", 0) is None:
        out.append("mpplan finds no plan that fits once it is laid out")
    elif (r.get("grid_laid_out_s") or float("inf")) * (1 + SLACK) < r.get("laid_out_s", 0):
        out.append(f"laid out ours takes {r['laid_out_s']:.6g} s, the grid's best point {r['grid_laid_out_s']:.6g} s")
    if r["check"]["most_above"] > CHUNKS:
        out.append(f"a point of the grid takes {100 * r['check']['most_above']:.2f} % more as a plan with its pins")
    if r["check"]["wrongly_passed_over"]:
        out.append(f"{r['check']['wrongly_passed_over']} of the points that were passed over are better than the best")
    return out


def ask(arguments):
    p = subprocess.run([BENCH, *arguments], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(p.stderr or f"{BENCH} ended with status {p.returncode}")
    return json.loads(p.stdout)


def pins_of(p):
    """A point of the grid as --fix."""
    pins = dict(dp=p["dp"], tp=p["tp"], pp=p["pp"], micro_batch=p["micro_batch"], recompute=p["recompute"])
    if p["pp"] > 1:
        pins["interleave" if p["chunks"] > 1 else "schedule"] = p["chunks"] if p["chunks"] > 1 else "1f1b"
    if p["flavour"] != "free" and p["dp"] > 1:
        pins["zero"] = 0 if p["flavour"] == "2021" else 1
    if p["flavour"] != "free" and p["tp"] > 1:
        pins.update(sequence_parallel="false" if p["flavour"] == "2021" else "true", vocab_parallel="true")
    return ",".join(f"{k}={v}" for k, v in pins.items())


def laid_out(arguments, pins):
    """Seconds of the plan that mpplan prints with these pins; None: it finds none."""
    first = 2 if arguments[0] == "--stages" else 0
    fix = arguments.index("--fix")
    p = subprocess.run([MPPLAN, *arguments[first:fix], "--fix", pins, "--predict", "--json"], capture_output=True, text=True)
    return json.loads(p.stdout)["step_s"] if p.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-v", action="store_true", dest="verbose")
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--laid-out", action="store_true")
    options = parser.parse_args()
    unknown = [n for n in options.names if n not in {r[0] for r in rows()}]
    if unknown:
        print(f"there is no row {unknown[0]}; there are {', '.join(r[0] for r in rows())}", file=sys.stderr)
        return 2
    kept = json.loads(options.grid.read_text()) if options.grid and options.grid.exists() else {}
    print("| model | GPUs | published | grid | ours | grid laid out | ours laid out | faster than the grid | than published | CPU s | gap | "
          "points: priced, passed over, no plan |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    plans = []
    worse = 0
    for name, gpus, words, arguments in rows():
        if options.names and name not in options.names:
            continue
        r = {**kept[name], **ask(["--ours", *arguments])} if name in kept else ask(arguments)
        if options.laid_out and r["ours"]:
            kind = {"1F1B": "schedule=1f1b", "interleaved 1F1B": "schedule=interleaved"}.get(r["ours"]["schedule"], "pp=1")
            r["laid_out_s"] = laid_out(arguments, kind)
            r["grid_laid_out_s"] = laid_out(arguments, pins_of(best_point(r))) if best_point(r) else None
        if options.grid:
            kept[name] = r
            options.grid.write_text(json.dumps(kept, indent=1) + "\n")
        if options.verbose:
            print(name, json.dumps(r), file=sys.stderr, flush=True)
        best, wrong = best_point(r), faults(r)
        ours = r["ours"]
        step, published = ours and ours["step_s"], r.get("published_s")
        percent = lambda x: "" if not x or not step else f"{100 * (x / step - 1):.1f} %"  # noqa: E731
        worse += len(wrong)
        for what in wrong:
            print(f"{name}: {what}", file=sys.stderr, flush=True)
        gap = f"{100 * (1 - ours['bound_s'] / step):.1f} %" if step else ""
        cells = [name, gpus, seconds(published), seconds(best and best["step_s"]), seconds(step),
                 *(seconds(r[x]) if x in r else "" for x in ("grid_laid_out_s", "laid_out_s")), percent(best and best["step_s"]), percent(published),
                 f"{ours['cpu_s']:.1f}" if ours else "", gap, f"{r['points']}: {r['priced']}, {r['dominated']}, {r['none']}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        plans.append(f"| {name} | {words} | {point_words(best)} | {plan_words(ours)} |")
    print("\n| model | published | best of the grid | ours |\n|---|---|---|---|")
    print("\n".join(plans))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
