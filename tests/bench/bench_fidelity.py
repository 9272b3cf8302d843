#!/usr/bin/env python3
"""Predicted beside measured seconds per step of published training runs (tests/data/validation/measured.csv).

    tests/bench/bench_fidelity.py [-v] [--rows FILE.csv] [SET...]

Each usable row is asked for once as `mpplan MODEL --fix ... --predict --json --kernels unfused`; nothing else is known of it.
Prints per source (column `set`) the mean absolute percentage error, the bias and Spearman's rank correlation, then what was
skipped and why. Of vTrain's rows, half of the single-node ones (a seeded choice) were used to fit constants: the halves are
reported apart. -v prints every row, --rows writes them. Exit status 1 where an error is over its limit or a usable row failed.
"""
import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "validation" / "measured.csv"
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
TEMPORARY = tempfile.TemporaryDirectory()
SEED = 5                               # of the half of vtrain_single that constants were fitted to
LIMITS = {"vtrain_single": 7, "vtrain_multi": 8, "megatron2020_v100": 12, "megatron2020_a100": 12, "megatron2020_a100_dp": 12,
          "megatron_v1_dgx2h": 12}     # percent
CLUSTERS = (                           # beginning of the machine's name, memory of its GPUs or "", built-in cluster
    ("8xA100 NVSwitch node", "", "hgx-a100-4nic"), ("DGX-2", "", "dgx2"), ("DGX A100", "40", "dgx-a100-40"),
    ("DGX A100", "", "dgx-a100"), ("DGX-1 V100", "16", "dgx1-v100-16"), ("DGX-1 V100", "", "dgx1-v100"))


def cluster_of(row):
    for name, memory, cluster in CLUSTERS:
        if row["machine"].startswith(name) and memory in ("", row["gpu_mem_gb"]):
            return cluster
    return None


def why_not(row):
    """Why ROW cannot be asked for, or None."""
    if row["model_family"] == "CNN":
        return "CNN"
    if row["model_family"] == "Transformer-XL":
        return "Transformer-XL"
    if row["config_complete"] != "1":
        return "configuration incomplete"
    if cluster_of(row) is None:
        return f"no cluster for {row['machine']}"
    return None


def tf32_file(cluster):
    """CLUSTER with a device whose f32 products run as TF32, as NVIDIA's containers of 2020 set A100s up."""
    folder = ROOT / "costmodel"
    text = (folder / "clusters" / f"{cluster}.xml").read_text()
    name = re.search(r' device="([^"]*)"', text)[1]
    device = (folder / "devices" / f"{name}.xml").read_text()
    tf32 = re.search(r'<peak precision="tf32" flops_per_s="([^"]*)"', device)[1]
    device = re.sub(r'<peak precision="tf32".*\n', "", device)
    device = re.sub(r'(<peak precision="f32" flops_per_s=)"[^"]*"', rf'\1"{tf32}"', device)
    path = Path(TEMPORARY.name) / f"{cluster}-tf32.xml"
    path.write_text(text.replace(f' device="{name}"', "", 1).replace(">\n", ">\n" + device, 1))
    return str(path)


def arguments(row):
    tp, heads = int(row["tp"]), row["heads"]
    cluster = cluster_of(row)
    if row["precision"] == "tf32":
        cluster = tf32_file(cluster)
    bert = row["model_family"] == "BERT"
    vocab = int(row["vocab"])
    multiple = 8 if bert else 128 * tp  # as BERT's scripts and Megatron pad it
    vocab = -(-vocab // multiple) * multiple
    defines = {"layers": row["layers"], "hidden": row["hidden"], "heads": heads, "ffn": row["ffn"], "seq": row["seq"],
               "positions": row["seq"], "vocab": vocab, "batch": row["global_batch"], "pdrop": 0.1}
    pins = [f"dp={row['dp']}", f"tp={tp}", f"pp={row['pp']}", f"micro_batch={row['micro_batch']}", f"recompute={row['recompute']}",
            f"sequence_parallel={'true' if row['seq_parallel'] == '1' else 'false'}", f"zero={row['zero'] or 0}"]
    if row["vpp"] not in ("", "1"):
        pins.append(f"interleave={row['vpp']}")
    elif row["pp"] != "1":
        pins.append("schedule=1f1b")
    if tp > 1:
        pins.append("vocab_parallel=true")
    out = [MPPLAN, str(ROOT / "models" / ("bert.xml" if bert else "gpt.xml"))]
    for name, value in defines.items():
        out += ["-D", f"{name}={value}"]
    out += ["--cluster", cluster, "--gpus", row["n_gpus"], "--fix", ",".join(pins), "--kernels", "unfused", "--predict",
            "--json"]
    return out + (["--precision", row["precision"]] if row["precision"] in ("fp16", "bf16") else [])


def predict(row):
    """Seconds of a step, or the first line of what mpplan says instead."""
    p = subprocess.run(arguments(row), capture_output=True, text=True)
    if p.returncode != 0:
        said = [line for line in p.stderr.splitlines() if "error" in line] or p.stderr.splitlines() or [f"status {p.returncode}"]
        return None, said[0]
    return json.loads(p.stdout)["step_s"], None


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    out, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            out[order[k]] = (i + j) / 2
        i = j + 1
    return out


def spearman(a, b):
    if len(a) < 3:
        return float("nan")
    ra, rb = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    cov = sum((x - mean) * (y - mean) for x, y in zip(ra, rb))
    var = (sum((x - mean) ** 2 for x in ra) * sum((y - mean) ** 2 for y in rb)) ** 0.5
    return cov / var if var > 0 else float("nan")


def summary(name, rows, limit=None):
    """One line; whether it is within its limit."""
    errors = [r["predicted"] / r["measured"] - 1 for r in rows]
    mape = 100 * sum(abs(e) for e in errors) / len(errors)
    bias = 100 * sum(errors) / len(errors)
    rho = spearman([r["predicted"] for r in rows], [r["measured"] for r in rows])
    over = limit is not None and mape > limit
    print(f"{name:34} {len(rows):5} {mape:8.2f} {bias:+8.2f} {100 * max(map(abs, errors)):8.1f} {rho:9.3f}"
          f"{'' if limit is None else f'   limit {limit}'}{'  OVER' if over else ''}")
    return not over


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("sets", nargs="*")
    parser.add_argument("-v", action="store_true", dest="verbose")
    parser.add_argument("--rows")
    options = parser.parse_args()
    with open(DATA, newline="") as f:
        table = list(csv.DictReader(f))
    known = list(dict.fromkeys(r["set"] for r in table))
    unknown = [s for s in options.sets if s not in known]
    if unknown:
        print(f"there is no set {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    single = [r["id"] for r in table if r["set"] == "vtrain_single"]
    random.Random(SEED).shuffle(single)
    fitted = set(single[:len(single) // 2])

    groups, skipped, failed, good = defaultdict(list), defaultdict(int), [], True
    for row in table:
        if options.sets and row["set"] not in options.sets:
            continue
        reason = why_not(row)
        if reason:
            skipped[row["set"], reason] += 1
            continue
        seconds, said = predict(row)
        if seconds is None:
            failed.append((row, said))
            continue
        r = {"id": row["id"], "set": row["set"], "measured": float(row["iter_time_s"]), "predicted": seconds}
        groups[row["set"]].append(r)
        if options.verbose:
            print(f"{row['set']:22} {row['id']:>5} {row['model']:>10} dp {row['dp']:>3} tp {row['tp']:>2} pp {row['pp']:>2} "
                  f"micro-batch {row['micro_batch']:>3}  measured {r['measured']:9.4f} predicted {seconds:9.4f} "
                  f"{seconds / r['measured'] - 1:+7.1%}", flush=True)
    print(f"{'set':34} {'rows':>5} {'MAPE %':>8} {'bias %':>8} {'most %':>8} {'Spearman':>9}")
    for name, rows in groups.items():
        good &= summary(name, rows, LIMITS.get(name))
        if name == "vtrain_single":
            for what, half in (("fitted half", [r for r in rows if r["id"] in fitted]),
                               ("other half", [r for r in rows if r["id"] not in fitted])):
                if half:
                    summary(f"  {what}", half)
    for (name, reason), n in skipped.items():
        print(f"skipped: {name}: {n} rows: {reason}")
    for row, said in failed:
        print(f"failed: {row['set']} {row['id']}: {said}")
    if options.rows:
        with open(options.rows, "w", newline="") as f:
            writer = csv.DictWriter(f, ["set", "id", "measured", "predicted"])
            writer.writeheader()
            writer.writerows(r for rows in groups.values() for r in rows)
    return 0 if good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
