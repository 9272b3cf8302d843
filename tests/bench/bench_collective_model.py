#!/usr/bin/env python3
"""The cost model's collectives beside measured ones (tests/data/validation/collectives_measured.csv).

    tests/bench/bench_collective_model.py [-v]

Prints the median error per machine, collective and number of nodes. Groups of at least three rows that have a time (or a size
and a bandwidth) and a machine count for "most groups within 15 %"; the exit status tells. -v also prints every row.
"""
import csv
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "validation" / "collectives_measured.csv"
QUERY = os.environ.get("COST_QUERY", str(Path(os.environ.get("MPP_BUILD", ROOT / "build")) / "tests" / "cost_query"))
LIMIT = 0.15
# Machine: built-in cluster, and where a row does not say them, GPUs of a node and nodes (0, 0: it must say).
MACHINES = {
    "8xA100 NVSwitch": ("dgx-a100", 8, 1), "8xV100 hybrid cube mesh": ("dgx1-v100", 8, 1),
    "8-GPU NVLink node": ("dgx-a100", 8, 1), "AWS p4d.24xlarge": ("p4d.24xlarge", 0, 0),
    "2x HGX A100, 4x200Gb CX6": ("hgx-a100-4nic", 8, 2), "2 nodes, 4x200Gb IB": ("hgx-a100-4nic", 8, 2),
    "NVSwitch 1 node": ("dgx-h100", 8, 1), "8x H200 1 node": ("dgx-h200", 8, 1),
    "PCIe Gen4 (1 node)": ("a100-pcie", 8, 1), "NVLink2 V100 (1 node)": ("dgx2", 16, 1),
    "NVLink3 A100 (1 node)": ("dgx-a100", 8, 1), "NVLink4 SHARP H100 (1 node)": ("dgx-h100", 8, 1),
    "DGX A100 8x200Gb": ("dgx-a100", 8, 8), "DGX H100 8x400Gb": ("dgx-h100", 8, 8),
    "DGX H100 8x400Gb + SHARP": ("dgx-h100-sharp", 8, 8), "DGX-1 multi-node, 4x EDR": ("dgx1-v100", 8, 2),
    "p3dn.24xlarge EFA 100Gb": ("p3dn.24xlarge", 8, 2),
    "4-node example run": ("hgx-a100-4nic", 8, 4),
}
UNNAMED = {"4-node example run"}       # its hardware is not stated; 4 NICs of 200 Gb/s fit
COLLECTIVES = {"allreduce": "all_reduce", "all2all": "all_to_all", "allgather/reducescatter": "all_gather"}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text):
    """Bytes; of a range its beginning; "large" is 8 GB."""
    if text == "large":
        return 8e9
    m = re.match(r"(\d+)([KMG]?)", text)
    return float(m[1]) * UNITS[m[2]] if m else None


def number(text):
    m = re.fullmatch(r"[\d.]+", text)
    return float(text) if m else None


def traffic(collective, n):
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    return {"all_reduce": 2 * (n - 1) / n}.get(collective, (n - 1) / n)


def usable(row):
    """What to ask the model about ROW, or None."""
    name, _, remark = row["collective"].partition(" (")
    size = size_of(row["size_bytes"])
    if row["machine"] not in MACHINES or name not in COLLECTIVES or size is None:
        return None
    cluster, per, nodes = MACHINES[row["machine"]]
    n = int(row["n_gpus"]) if row["n_gpus"].isdigit() else per * nodes
    value, bandwidth, collective = number(row["time_us"]), number(row["busbw_GBps"]), COLLECTIVES[name]
    if remark or value is None:        # the time is then a latency, or absent
        if bandwidth is None:
            return None
        value = size / (bandwidth * 1e3) * (1 if remark else traffic(collective, n))
    return {"row": row, "cluster": cluster, "n": n, "collective": collective, "size": size, "measured_us": value,
            "group": (row["machine"], collective, row["n_nodes"] if row["n_nodes"].isdigit() else str(nodes))}


def ask(rows):
    lines = [f"cluster {r['cluster']} {max(r['n'], 2)}\n{r['collective']} {r['n']} 1 {r['size']:.0f}\n" for r in rows]
    p = subprocess.run([QUERY], input="".join(lines), capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"{QUERY}: {p.stderr.strip()}")
    for r, line in zip(rows, p.stdout.split()):
        r["modelled_us"] = float(line)
        r["error"] = r["modelled_us"] / r["measured_us"] - 1


def main():
    verbose = "-v" in sys.argv[1:]
    rows, skipped, groups = [], defaultdict(int), defaultdict(list)
    with open(DATA, newline="") as f:
        for row in csv.DictReader(f):
            use = usable(row)
            if use:
                rows.append(use)
            else:
                skipped[row["machine"] or row["source"][:40]] += 1
    ask(rows)
    for r in rows:
        groups[r["group"]].append(r)
        if verbose:
            print(f"{r['row']['machine'][:28]:28} {r['collective']:10} {r['n']:4} {r['size']:14.0f} measured {r['measured_us']:12.1f} us, "
                  f"modelled {r['modelled_us']:12.1f}, {r['error']:+7.1%}")
    counted = within = 0
    print(f"{'machine':30} {'collective':14} nodes  rows  median error  median bias")
    for (machine, collective, nodes), members in groups.items():
        median = statistics.median(abs(r["error"]) for r in members)
        bias = statistics.median(r["error"] for r in members)
        counts = len(members) >= 3 and machine not in UNNAMED
        counted += counts
        within += counts and median <= LIMIT
        print(f"{machine:30} {collective:14} {nodes:>5} {len(members):5} {median:13.1%} {bias:+12.1%}"
              f"{'' if counts else '  (not counted)'}{'  over 15 %' if counts and median > LIMIT else ''}")
    print("skipped: " + ", ".join(f"{m} {n}" for m, n in sorted(skipped.items())))
    print(f"{within} of {counted} groups within {LIMIT:.0%}")
    return 0 if 2 * within > counted else 1


if __name__ == "__main__":
    sys.exit(main())
