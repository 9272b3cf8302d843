"""Plans that benchmarks measure beside what mpplan predicts of them."""
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench_machine import clean_environment

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))


def run(command, **kwargs):
    p = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)
    if p.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}: exit status {p.returncode}\n{p.stdout[-500:]}{p.stderr[-1500:]}")
    return p


class Case:
    """A plan of models/gpt.xml with that preset and those sizes, in FOLDER: predicted, built, measured."""

    def __init__(self, folder, cluster, preset, sizes, gpus, fix):
        self.gpus, self.fix, self.dir = gpus, fix, folder / f"{gpus}-{fix.replace(',', '-') or 'pick'}"
        options = ["--preset", preset, *(f"-D{k}={v}" for k, v in sizes.items()), "--gpus", gpus, "--cluster", cluster]
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
