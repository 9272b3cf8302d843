#!/usr/bin/env python3
"""What `mpplan --solve-iopddl` has found after 1, 5, 20 and 60 CPU seconds, on contest problems in a folder.

    tests/bench/bench_anytime.py FOLDER [NAME...] [--at 1,5,20,60] [--quick] [--save FOLDER]

FOLDER holds NAME.json or NAME.json.gz; names are A, K, M and R if none are given. Each problem is solved once; after the
last of the times (--quick: 1 and 2) mpplan gets SIGTERM and answers with its best.
Checked: incumbents never get worse, bounds never fall or pass them, the answer fits and costs what is said (in whole numbers,
evaluated here), and the process never holds 2 GiB. Exit status 1 if one of these fails.
"""
import argparse
import gzip
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
POLL_S = 0.05
MOST_BYTES = 2 << 30
FORBIDDEN = 10**18
PROGRESS = re.compile(r"^ *[0-9.]+ s  bound (-?\d+)(?:  best (\d+))?")
VERDICT = re.compile(r"^(optimal.*|feasible|interrupted): cost (\d+), bound (\d+)")


def evaluate(problem, choice):
    """Cost and peak bytes; None in place of a cost that is forbidden."""
    nodes, edges = problem["nodes"], problem["edges"]
    terms = [costs[k] for costs, k in zip(nodes["costs"], choice, strict=True)]
    for (a, b), costs in zip(edges["nodes"], edges["costs"], strict=True):
        terms.append(costs[choice[a] * len(nodes["costs"][b]) + choice[b]])
    changes = {}
    for (begin, end), bytes_of, k in zip(nodes["intervals"], nodes["usages"], choice, strict=True):
        if begin < end:
            changes[begin] = changes.get(begin, 0) + bytes_of[k]
            changes[end] = changes.get(end, 0) - bytes_of[k]
    now = peak = 0
    for time in sorted(changes):
        now += changes[time]
        peak = max(peak, now)
    return (None if max(terms, default=0) >= FORBIDDEN else sum(terms)), peak


def cpu_seconds(pid):
    """User and system time of a child that has not been waited for (proc(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def most_bytes(pid):
    """The most memory it has held until now; 0 once it has ended. (wait4's figure would count this process, before exec.)"""
    m = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(m[1]) << 10 if m else 0


def follow(p, most_s):
    """(CPU seconds when it came, text) of each line on P's stderr, P's peak bytes; P gets SIGTERM after MOST_S."""
    lines, rest, stopped, peak_bytes = [], b"", False, 0
    while True:
        ready = select.select([p.stderr], [], [], POLL_S)[0]
        now = cpu_seconds(p.pid)
        peak_bytes = max(peak_bytes, most_bytes(p.pid))
        if now >= most_s and not stopped:
            p.send_signal(signal.SIGTERM)
            stopped = True
        if not ready:
            continue
        data = os.read(p.stderr.fileno(), 1 << 16)
        if not data:
            return lines, peak_bytes
        *whole, rest = (rest + data).split(b"\n")
        lines += [(now, line.decode()) for line in whole]


def run(path, most_s):
    """The answer, (seconds, bound, best or None) of each line of progress, the verdict's words, CPU seconds, peak bytes."""
    with tempfile.TemporaryFile("w+") as out:
        p = subprocess.Popen([MPPLAN, "--solve-iopddl", str(path)], stdout=out, stderr=subprocess.PIPE)
        lines, peak_bytes = follow(p, most_s)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if p.returncode != 0:
            sys.exit(f"{path}: exit status {p.returncode}: {' '.join(text for _, text in lines[-3:])}")
        steps = [(at, int(m[1]), m[2] and int(m[2])) for at, m in ((at, PROGRESS.match(text)) for at, text in lines) if m]
        verdict = next(m for m in (VERDICT.match(text) for _, text in reversed(lines)) if m)
        return json.loads(out.read()), steps, verdict, usage.ru_utime + usage.ru_stime, peak_bytes


def faults_of(problem, choice, steps, verdict, peak_bytes):
    best = [b for _, _, b in steps if b is not None]
    bounds = [bound for _, bound, _ in steps]
    cost, bytes_used = evaluate(problem, choice)
    if not best or best != sorted(best, reverse=True):
        yield "an incumbent got worse"
    if bounds != sorted(bounds) or (best and bounds[-1] > best[-1]):
        yield "a bound fell, or passed the answer"
    if cost is None or cost != int(verdict[2]) or best[-1:] != [cost]:
        yield f"the answer costs {cost}, mpplan says {verdict[2]}, its progress {best[-1:]}"
    if bytes_used > problem["usage_limit"]:
        yield f"the answer takes {bytes_used} bytes of {problem['usage_limit']}"
    if peak_bytes >= MOST_BYTES:
        yield f"peak memory {peak_bytes >> 20} MiB"


def problem_file(folder, name):
    for path in (folder / f"{name}.json", folder / f"{name}.json.gz"):
        if path.exists():
            return path
    sys.exit(f"{folder}: neither {name}.json nor {name}.json.gz")


def row_of(name, times, steps, verdict, cpu_s, peak_bytes):
    row = f"{name:8}"
    for at in times[:-1]:
        best = [b for seconds, _, b in steps if b is not None and seconds <= at]
        row += f"{best[-1] if best else '-':>16}"
    cost, bound = int(verdict[2]), int(verdict[3])
    return row + (f"{cost:>16}{bound:>16}{100 * (cost - bound) / max(cost, 1):>8.3f}%{cpu_s:>8.1f} s"
                  f"{peak_bytes >> 20:>6} MiB  {verdict[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=["A", "K", "M", "R"])
    parser.add_argument("--at", default="1,5,20,60", help="CPU seconds, ascending")
    parser.add_argument("--quick", action="store_true", help="--at 1,2")
    parser.add_argument("--save", type=Path, help="a folder for the answers, NAME.txt each")
    args = parser.parse_args()
    times = [1.0, 2.0] if args.quick else [float(x) for x in args.at.split(",")]
    if times != sorted(times) or times[0] <= 0:
        parser.error("--at wants positive times in ascending order")
    failed = False
    print(f"{'':8}" + "".join(f"{f'{t:g} s':>16}" for t in times) + f"{'bound':>16}{'gap':>9}{'CPU':>10}{'peak':>10}")
    for name in args.names:
        path = problem_file(args.folder, name)
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as f:
            problem = json.load(f)
        problem = problem.get("problem", problem)
        choice, steps, verdict, cpu_s, peak_bytes = run(path, times[-1])
        print(row_of(name, times, steps, verdict, cpu_s, peak_bytes), flush=True)
        if args.save:
            args.save.mkdir(parents=True, exist_ok=True)
            (args.save / f"{name}.txt").write_text(f"{choice}\n")
        for fault in faults_of(problem, choice, steps, verdict, peak_bytes):
            failed = True
            print(f"{name}: {fault}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
