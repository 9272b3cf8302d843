#!/usr/bin/env python3
"""How long planning takes: medians of a few runs, with the parts from --stats.

    tests/bench/bench_planning.py [RUNS] [NAME...]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
CASES = {  # name: arguments, the most seconds it may take
    "tiny-4": (["--preset", "tiny", "--gpus", "4"], None),
    "gpt2-8": (["--preset", "gpt2", "--gpus", "8", "--cluster", "dgx-a100"], 1),
    "gpt2-8-host": (["--preset", "gpt2", "--gpus", "8"], 1),
    "gpt2-xl-8": (["--preset", "gpt2-xl", "--gpus", "8", "--cluster", "dgx-a100"], None),
    "gpt3-13b-64": (["--preset", "gpt3-13b", "--gpus", "64", "--cluster", "dgx-a100"], None),
    "bert-large-8": (["--preset", "large", "--gpus", "8", "--cluster", "dgx-a100", "--precision", "bf16"], 1),
    **{f"gpt3-175b-{n}-bf16": (["--preset", "gpt3-175b", "--gpus", str(n), "--cluster", "dgx-a100", "--precision", "bf16"], 10)
       for n in (64, 1024, 3072)},
    **{f"layers-{n}": (["--preset", "gpt3-175b", "-D", f"layers={n}", "--gpus", "64", "--cluster", "dgx-a100", "--precision", "bf16",
                        "--fix", "recompute=full"], None) for n in (12, 96, 384, 960)},
    "gpt3-175b-64": (["--preset", "gpt3-175b", "--gpus", "64", "--cluster", "dgx-a100"], 10),
}


def once(model, arguments, folder):
    stats = Path(folder) / "stats.json"
    begun = time.monotonic()
    p = subprocess.run([MPPLAN, str(ROOT / "models" / model), *arguments, "--predict", "--stats", str(stats)],
                       capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if p.returncode != 0:
        return None, p.stderr.strip().splitlines()[:3]
    return seconds, json.loads(stats.read_text())


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 5
    names = [a for a in sys.argv[1:] if not a.isdigit()] or list(CASES)
    unknown = [n for n in names if n not in CASES]
    if unknown or runs < 1:
        print(f"there is no case {unknown[0]}; there are {', '.join(CASES)}" if unknown else "RUNS counts from 1", file=sys.stderr)
        return 2
    late = 0
    print(f"{'case':16} {'median s':>9} {'read':>7} {'plan':>7} {'lower':>7} {'emit':>7} {'gap':>9}  nodes")
    for name in names:
        arguments, limit_s = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            results = [once("bert.xml" if name.startswith("bert") else "gpt.xml", arguments, folder) for _ in range(runs)]
        if any(seconds is None for seconds, _ in results):
            print(f"{name:16} failed: {next(s for t, s in results if t is None)}")
            late += 1
            continue
        part = lambda key: statistics.median(s[key] for _, s in results)
        median = statistics.median(t for t, _ in results)
        over = limit_s is not None and median > limit_s
        late += over
        print(f"{name:16} {median:9.3f} {part('read_s'):7.3f} {part('plan_s'):7.3f} {part('lower_s'):7.3f} {part('emit_s'):7.3f} "
              f"{part('gap'):9.4%}  {results[0][1]['solver_nodes']}{f'  over {limit_s} s' if over else ''}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
