#!/usr/bin/env python3
"""What plans are: forms that come out by themselves, equal input gives equal bytes, code as short for 96 layers as for 2,
another solver finds the same optimum, memory is what was promised."""
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import harness as h
from test_errors import small_cluster

GPT, BERT, MLP = "models/gpt.xml", "models/bert.xml", "models/mlp.xml"
GPT_PRESETS = re.findall(r'<preset name="([\w.-]+)"', (h.ROOT / GPT).read_text())
# Wide layers, few samples: splitting weights is worth it.
WIDE = dict(layers=2, hidden=1024, heads=16, vocab=512, seq=64, positions=64, batch=4, clip_norm=0)
# Narrow layers, many samples.
NARROW = dict(layers=2, hidden=32, heads=2, vocab=64, seq=16, positions=16, batch=512)


# ---- forms that come out ----

def activation_reductions(p, phase):
    """{layer: reductions per micro-batch}; a reduce-scatter and an all-gather of equal bytes count as one."""
    layers = {}
    for c in p.collectives():
        if c["phase"] == phase and c["layer"] is not None and c["role"] == "activation" and c["bytes"] > 1024:
            layers.setdefault(c["layer"], []).append(c)
    out = {}
    for layer, cs in layers.items():
        whole = sum(c["per_micro_batch"] for c in cs if c["kind"] == "all-reduce")
        scattered = sum(c["per_micro_batch"] for c in cs if c["kind"] == "reduce-scatter")
        out[layer] = whole + scattered
    return out


def test_tensor_parallel():
    p = h.plan(GPT, gpus=4, D=WIDE)
    h.check(p.contraction_splits("heads") and p.contraction_splits("ffn"), "wide GPT: heads and MLP are split", p.summary())
    for phase in ("forward", "backward"):
        n = activation_reductions(p, phase)
        h.check(len(n) == 2 and all(x == 2 for x in n.values()), f"wide GPT: 2 reductions per layer {phase}", n)
    p = h.plan(GPT, gpus=4, D=WIDE, fix="tp=4,vocab_parallel=true,sequence_parallel=false,zero=0")
    for phase in ("forward", "backward"):
        n = activation_reductions(p, phase)
        kinds = {c["kind"] for c in p.collectives() if c["phase"] == phase and c["layer"] is not None and c["role"] == "activation"
                 and c["bytes"] > 1024}
        h.check(all(x == 2 for x in n.values()) and kinds == {"all-reduce"}, f"splits pinned off: plain all-reduces {phase}",
                f"{n} {kinds}")
    h.check(not p.residual_split("seq"), "splits pinned off: the residual stream is whole")


def test_data_parallel():
    p = h.plan(GPT, gpus=4, D=NARROW)
    h.check(p.axis_splits("batch") and not p.contraction_splits("heads") and not p.contraction_splits("ffn"),
            "narrow GPT: data parallelism alone", p.summary())
    large = [c for c in p.collectives() if c["bytes"] > 256]
    h.check(large and all(c["count"] == 1 for c in large), "narrow GPT: everything travels once per step",
            [c for c in large if c["count"] != 1][:3])
    h.check(not any(activation_reductions(p, phase) for phase in ("forward", "backward")), "narrow GPT: no activations travel")


def test_memory_forces():
    d = dict(layers=4, hidden=256, heads=4, vocab=512, seq=16, positions=16, batch=16)
    free = h.plan(GPT, gpus=4, D=d, fix="dp=4,zero=0")
    m = free.memory
    h.check(not free.states_split(None) and not free.parameters_split(None), "zero=0: nothing is split", free.summary())
    for zero, phase, per_step in ((0, "update", 1), (1, "update", 1), (2, "backward", 2), (3, "backward", 2)):
        p = h.plan(GPT, gpus=4, D=d, fix=f"dp=4,zero={zero},micro_batches=2")
        scattered = {(c["phase"], c["count"]) for c in p.collectives() if c["role"] == "gradient" and c["kind"] == "reduce-scatter"}
        h.check(scattered == ({(phase, per_step)} if zero else set()), f"zero={zero}: when gradients are scattered", scattered)
    for what, room, shows in (
            ("no room for replicated states", m["arena_bytes"] - 0.3 * m["optimizer"], lambda p: p.states_split(None)),
            ("no room for replicated parameters", 0.9 * m["parameters"] + 0.25 * m["optimizer"],
             lambda p: p.states_split(None) and p.parameters_split(None))):
        p = h.plan(GPT, gpus=4, D=d, fix="dp=4", cluster=small_cluster(int(room)))
        h.check(shows(p), f"{what}: they are split", p.summary())
        h.check(p.memory["arena_bytes"] <= room, f"{what}: the arena fits", f"{p.memory['arena_bytes']} in {room}")


def test_uneven():
    d = dict(layers=1, hidden=40, heads=5, vocab=50257, seq=16, positions=16, batch=4)
    runs = []
    for n, fix in ((1, None), (4, None), (4, "tp=4,vocab_parallel=true")):
        p = h.plan(GPT, gpus=n, D=d, fix=fix)
        runs.append(p.train(data="synthetic", steps=3, seed=5).losses)
        p.remove()
    for losses in runs[1:]:
        h.close("vocabulary of 50,257 and 5 heads on 4 devices", losses, runs[0], 2e-5)
    h.check(len(runs[0]) == 3, "vocabulary of 50,257 and 5 heads train")
    d = dict(layers=2, hidden=32, heads=2, vocab=64, seq=30, positions=30, batch=4, pdrop=0.1)
    runs = []
    for n, fix in ((1, None), (4, "mesh=4,shard:wpe=seq/a,shard:h.*.ln_1=seq/a,shard:h.*.mlp.c_fc=seq/a"), (4, "tp=4,sequence_parallel=true")):
        p = h.plan(GPT, gpus=n, D=d, fix=fix)
        runs.append(p.train(data="synthetic", steps=3, seed=5, mpi=n > 1 and "tp" in fix).losses)
        p.remove()
    for losses in runs[1:]:
        h.close("a sequence of 30 on 4 devices", losses, runs[0], 2e-5)


def test_small_models():
    """The models at the edges of the dialect train to the losses of one device on three."""
    for model in sorted((h.ROOT / "tests" / "data" / "models").glob("*.xml")):
        plans = [h.plan(model.relative_to(h.ROOT), gpus=n) for n in (1, 3)]
        alone, three = (p.train(steps=4, seed=5) for p in plans)
        h.check(len(alone.losses) == 4 and len(set(alone.losses)) > 1, f"small models: {model.name} trains", alone.losses)
        h.close(f"small models: {model.name} on three devices", three.losses, alone.losses, 1e-5)
        for p in plans:
            p.remove()


# ---- micro-batches ----

MEANS = """<model name="means" version="1">
  <params> <dim name="batch" value="8" role="batch"/> <dim name="n" value="5"/> </params>
  <inputs> <input name="x" type="f32" shape="batch, n"/> <input name="y" type="f32" shape="batch, n"/> </inputs>
  <graph>
    <Linear name="a" in="x" units="n"/> <Sub name="d" in="a y"/> <Mul name="square" in="d d"/>
    <ReduceMean name="loss" axes="0, 1" keepdims="false"/>
  </graph>
  <training loss="loss"> <batch micro="auto"/> <optimizer type="adamw" lr="0.01"/> </training>
</model>
"""

def test_micro_batches():
    """The same losses from any number of them: labels that don't count, tables of few rows, prologues, gathered weights."""
    rng = np.random.default_rng(11)
    arrays = {k: rng.integers(0, n, (3, 4, 16)).astype(np.int32) for k, n in (("input_ids", 128), ("token_type_ids", 2), ("labels", 128))}
    arrays["labels"][rng.random(arrays["labels"].shape) < 0.6] = -100
    data = f"npy:{h.npy_dir(arrays)}"
    runs = []
    for n, fix, mpi in ((1, None, False), (1, "micro_batches=2", False), (2, "dp=2,micro_batches=2", False), (2, "tp=2,micro_batches=4", True),
                        (2, "dp=2,zero=2,micro_batches=2", True)):
        p = h.plan(BERT, preset="tiny", gpus=n, fix=fix, D=dict(optimizer="adamw"))
        runs.append(p.train(data=data, steps=3, seed=5, mpi=mpi).losses)
        h.close(f"bert on {n}, {fix}{', MPI' if mpi else ''}: losses as in one micro-batch", runs[-1], runs[0], 2e-5)
        p.remove()
    h.check(len(runs[0]) == 3 and runs[0][2] != runs[0][0], "bert trains", runs[0])
    d = dict(layers=3, hidden=32, heads=2, vocab=64, seq=16, positions=16, batch=8)
    runs = [h.plan(GPT, D=d).train(data="synthetic", steps=3, seed=5).losses]
    p = h.plan(GPT, gpus=2, D=d, fix="dp=2,zero=3,micro_batches=4")
    split = [t for t in p.stage["parameters"] if t["rest"]]
    for t in split:
        t["kept"] = True
    kept = h.TMP / "kept.json"
    kept.write_text(json.dumps(p.json))
    q = h.plan(GPT, gpus=2, D=d, extra=["--from-plan", kept])
    gathered = [c for c in q.collectives() if c["kind"] == "all-gather" and c["role"] == "parameter" and c["layer"] is not None]
    h.check(split and gathered and all(c["count"] == 1 for c in gathered), "kept weights are gathered once per step",
            [(c["of"], c["count"]) for c in gathered][:4])
    for what, x in (("split", p), ("kept", q)):
        h.close(f"weights {what} over 2 devices, 4 micro-batches", x.train(data="synthetic", steps=3, seed=5).losses, runs[0], 2e-5)
    model = h.TMP / "means.xml"
    model.write_text(MEANS)
    runs = []
    for n, fix in ((1, None), (1, "micro_batches=4"), (3, "micro_batches=2")):
        p = h.plan(model, gpus=n, fix=fix)
        runs.append(p.train(data="synthetic", steps=3, seed=5).losses)
        h.close(f"a mean over the batch on {n}, {fix}", runs[-1], runs[0], 2e-5)
        p.remove()


# ---- equal input, equal bytes ----

def test_determinism():
    for model, kw in ((GPT, dict(preset="tiny", gpus=4)), (BERT, dict(preset="tiny", gpus=3)),
                      (GPT, dict(preset="tiny", gpus=8, fix="mesh=2x2x2,dp=2")), (MLP, dict(preset="tiny", gpus=2)),
                      (GPT, dict(preset="gpt2", cluster="dgx-a100", gpus=8))):
        what = f"{model} {kw}"
        a = h.plan(model, **kw)
        elsewhere = h.TMP / "some" / "where"
        elsewhere.mkdir(parents=True, exist_ok=True)
        out = elsewhere / "p"
        h.must(h.mpplan(*h.arguments(model, **kw), "-o", "p", cwd=elsewhere))
        h.check(h.tree(a.dir) == h.tree(out), f"{what}: two runs give the same directory", differing(a.dir, out))
        q = h.must(h.mpplan(*h.arguments(model, **{k: v for k, v in kw.items() if k != "fix"}), "--from-plan", a.dir / "plan.json",
                            "-o", "q", cwd=elsewhere))
        h.check(h.tree(a.dir) == h.tree(elsewhere / "q"), f"{what}: --from-plan gives the same directory",
                differing(a.dir, elsewhere / "q"))
        h.check(q.stdout.strip(), f"{what}: the report is printed too")
        check_emitted(what, a)
        shutil.rmtree(elsewhere)
        a.remove()


def differing(a, b):
    a, b = h.tree(a), h.tree(b)
    return [k for k in sorted(set(a) | set(b)) if a.get(k) != b.get(k)]


def own_code(p):
    """{name: text} of what is emitted for this plan, without the runtime's sources."""
    return {k: v.decode() for k, v in h.tree(p.dir).items() if not k.startswith("runtime/") and k.endswith((".c", ".h", "Makefile"))}


def check_emitted(what, p):
    for name, text in own_code(p).items():
        text = re.sub(r"/usr/(local/cuda|lib/\*|include)/", "", text)  # where toolkits are looked for
        found = re.search(r"(?<![\w./*])/(home|root|tmp|usr|opt|work|var)/|__DATE__|__TIME__|\b20\d\d-\d\d-\d\d\b|0x7f[0-9a-f]{6,}",
                          text)
        h.check(not found, f"{what}: {name} has no absolute path, date or address", found and found.group(0))
    for name in ("plan.json", "graph.ir", "report.txt", "report.html"):
        text = (p.dir / name).read_text()
        h.check(str(h.ROOT) not in text and str(h.TMP) not in text, f"{what}: {name} has no absolute path")


def test_short_code():
    cases = [dict(preset="tiny", gpus=8, fix="dp=2,tp=4"), dict(preset="gpt2", gpus=8, cluster="dgx-a100", fix="dp=8,micro_batches=8"),
             dict(preset="tiny", gpus=4, fix="pp=1")]
    for kw in cases:
        lines = {}
        for layers in (2, 96):
            p = h.plan(GPT, D=dict(layers=layers), **kw)
            lines[layers] = sum(t.count("\n") for t in own_code(p).values())
            h.check((p.dir / "plan.json").stat().st_size < 2**20, f"{kw}, {layers} layers: plan.json is below 1 MB")
            p.remove()
        h.check(lines[96] <= 1.05 * lines[2], f"{kw}: 96 layers take as many lines as 2", lines)


def test_warnings():
    """What is emitted compiles without warnings, with both compilers; the last one's arena is larger than an int."""
    for model, kw in ((GPT, dict(preset="tiny", D=dict(layers=2), gpus=4)), (BERT, dict(preset="tiny", gpus=3, D=dict(padding_mask=True, pdrop=0.1))),
                      (MLP, dict(preset="tiny", gpus=8)), (GPT, dict(preset="gpt2", gpus=1, D=dict(batch=4, seq=256)))):
        p = h.plan(model, **kw)
        for compiler in ("gcc", "clang"):
            if not shutil.which(compiler):
                h.skip(f"{compiler} is not installed")
                continue
            for source in sorted(p.dir.glob("*.c")):
                q = h.run([compiler, "-std=c17", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-c", "-o", p.dir / "checked.o", f"-I{p.dir}/runtime", f"-I{p.dir}", source])
                h.check(q.returncode == 0, f"{model} {kw}: {source.name} under {compiler} -Wall -Wextra -Werror", q.stderr[:800])


# ---- the solver against cbc ----

def cbc_objective(path, seconds):
    try:
        p = h.run(["cbc", path, "sec", str(seconds), "ratio", "0", "allow", "0", "solve"], seconds + 5)
    except h.Failure:
        return None
    if "Stopped on time" in p.stdout:
        return None
    m = re.search(r"^Objective value:\s+(\S+)", p.stdout, re.M) or re.search(r"Optimal - objective value (\S+)", p.stdout)
    if not m:
        raise h.Failure(f"cbc {path}: {p.stdout[-600:]}")
    return float(m.group(1))


def check_cbc(what, file, seconds, timeout_s=300, most_bytes=None, **kw):
    """cbc's optimum of FILE is the plan's: anywhere in the plan's gap, and the plan's objective where FILE is below MOST_BYTES,
    which is where memory leaves the gap 0."""
    folder = h.TMP / "ilp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = kw.pop("model")
    p = h.plan(model, timeout_s=timeout_s, extra=["--dump-ilp", folder], **kw)
    path = folder / file
    if not h.check(path.exists(), f"{what}: {file} is there"):
        return
    if most_bytes:
        h.check(path.stat().st_size <= most_bytes, f"{what}: {file} is small", path.stat().st_size)
    got = cbc_objective(path, seconds)
    if got is None:
        h.skip(f"{what}: cbc had no proof after {seconds} s")
        return
    objective, bound = p.objective()
    slack = 1e-6 * objective + 1
    least = objective if most_bytes else bound
    h.check(least - slack <= got <= objective + slack, f"{what}: cbc finds the optimum", f"cbc {got:.0f}, plan {bound:.0f} to {objective:.0f}")
    p.remove()


def test_dump():
    folder = h.TMP / "new"
    p = h.mpplan(*h.arguments(MLP, preset="tiny", gpus=2, extra=["--dump-ilp", folder]))
    h.check(p.returncode == 0 and (folder / "full.lp").exists(), "--dump-ilp makes its folder", p.stderr[-300:])


def iopddl_cost(path, choice):
    """What CHOICE costs in the problem at PATH, and the bytes that are too many at its fullest time."""
    q = json.loads(path.read_text())["problem"]
    nodes, edges = q["nodes"], q["edges"]
    cost = sum(c[k] for c, k in zip(nodes["costs"], choice))
    cost += sum(t[choice[a] * len(nodes["costs"][b]) + choice[b]] for (a, b), t in zip(edges["nodes"], edges["costs"]))
    change = {}
    for (begin, end), usage, k in zip(nodes["intervals"], nodes["usages"], choice):
        if begin < end:
            change[begin] = change.get(begin, 0) + usage[k]
            change[end] = change.get(end, 0) - usage[k]
    live = most = 0
    for t in sorted(change):
        live += change[t]
        most = max(most, live)
    return cost, max(0, most - q["usage_limit"])


def check_export(what, bound_by_memory, **kw):
    """The best of the exported problems' optima is the plan's; the answers are added up here."""
    folder = h.TMP / "problems"
    shutil.rmtree(folder, ignore_errors=True)
    p = h.plan(extra=["--export-iopddl", folder], **kw)
    files, best, tight = sorted(folder.glob("*.json")), None, False
    h.check(files and all(f.with_suffix(".txt").exists() for f in files), f"{what}: each problem has its names", files)
    for f in files:
        r = h.mpplan("--solve-iopddl", f)
        if r.returncode == 2 and "error" in r.stderr:
            tight = True          # nothing fits on this mesh
            continue
        cost, over = iopddl_cost(f, json.loads(r.stdout))
        limit = json.loads(f.read_text())["problem"]["usage_limit"]
        peak = int(re.search(r"peak (\d+) bytes", r.stderr)[1])
        tight = tight or peak > 0.9 * limit
        h.check(r.returncode == 0 and re.search(r"^optimal\b", r.stderr, re.M) and over == 0, f"{what}: {f.name} is solved", r.stderr[-300:])
        best = cost if best is None or cost < best else best
    objective, bound = p.objective()
    h.check(best == objective == bound, f"{what}: the exported problems' optimum is the plan's", f"{best}, plan {bound} to {objective}")
    h.check(tight or not bound_by_memory, f"{what}: memory decides")
    again = h.plan(**kw)
    same = [{k: v for k, v in x.json.items() if k not in ("bound_ps", "gap", "solver", "runners_up")} for x in (again, p)]
    h.check(same[0] == same[1], f"{what}: exporting changes no plan")
    p.remove()
    again.remove()


def test_export():
    d = dict(layers=2)
    for n in (1, 2, 4):
        h.guarded(f"export on {n}", check_export, f"export, gpt on {n}", False, model=GPT, preset="tiny", D=d, gpus=n)
    d = dict(layers=1)
    room = 0.75 * h.plan(GPT, preset="tiny", D=d, gpus=2).memory["arena_bytes"]
    h.guarded("export, little memory", check_export, "export, little memory", True, model=GPT, preset="tiny", D=d, gpus=2,
              cluster=small_cluster(int(room)))
    h.guarded("export mlp", check_export, "export, mlp on 4", False, model=MLP, preset="tiny", gpus=4)


def test_cbc_full():
    if not shutil.which("cbc"):
        return h.skip("cbc is not installed")
    cases = [("gpt 1 layer", dict(model=GPT, preset="tiny", D=dict(layers=1))), ("gpt 2 layers", dict(model=GPT, preset="tiny", D=dict(layers=2))),
             ("mlp", dict(model=MLP, preset="tiny")), ("bert 2 layers", dict(model=BERT, preset="tiny")),
             ("gpt 4 layers", dict(model=GPT, preset="tiny"))]
    for what, kw in cases if h.FULL else cases[:3]:
        for n in (4, 8):
            h.guarded(f"full LP, {what} on {n}", check_cbc, f"full LP, {what} on {n}", "full.lp", 600 if h.FULL else 60, gpus=n, **kw)


# Devices and micro-batches where a preset fits without memory deciding anything; 8 devices and the planner's own for the others.
ROOMY = {"gpt3-6.7b": (64, 16), "gpt3-13b": (128, 64), "megatron-8.3b": (64, 32), "turing-nlg-17b": (128, 32),
         "gpt3-175b": (1024, 512), "opt-175b": (1024, 256)}


def test_cbc_reduced():
    if not shutil.which("cbc"):
        return h.skip("cbc is not installed")
    cases = [(GPT, p) for p in GPT_PRESETS] + [(BERT, p) for p in ("tiny", "base", "large")] + [(MLP, p) for p in ("tiny", "wide")]
    few = {"tiny", "gpt2", "gpt2-xl", "base", "wide", "megatron-8.3b", "gpt3-175b"}
    for model, preset in cases:
        if not h.FULL and preset not in few:
            continue
        gpus, micro_batches = ROOMY.get(preset, (8, None))
        fix = f"micro_batches={micro_batches}" if micro_batches else None
        for n in (4, 8, 64) if preset == "tiny" else (gpus,):
            what = f"reduced LP, {model} {preset} on {n}"
            h.guarded(what, check_cbc, what, "reduced.lp", 60, model=model, preset=preset, cluster="dgx-a100", gpus=n, fix=fix,
                      most_bytes=200_000)
    d = dict(layers=2, hidden=256, heads=4, vocab=512, seq=16, positions=16, batch=16)
    m = h.plan(GPT, gpus=4, D=d, fix="dp=4,zero=0").memory
    for share in (0.1, 0.3):
        what = f"reduced LP, no room for {share} of the states"
        room = int(m["arena_bytes"] - share * m["optimizer"])
        h.guarded(what, check_cbc, what, "reduced.lp", 60, model=GPT, gpus=4, D=d, fix="dp=4", cluster=small_cluster(room))


# ---- planning quickly, with a small gap ----

def test_speed():
    for what, limit_s, gap, kw in (("gpt2 on 8 A100", 1, 0.001, dict(preset="gpt2", gpus=8, cluster="dgx-a100")),
                                   ("gpt2 on 8 cores", 1, 0.001, dict(preset="gpt2", gpus=8)),
                                   ("gpt3-175b on 64 A100", 10, 0.3, dict(preset="gpt3-175b", gpus=64, cluster="dgx-a100", extra=["--precision", "bf16"]))):
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        p = h.plan(GPT, timeout_s=600, **kw)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
        print(f"{what}: {seconds:.2f} s of CPU time, gap {p.gap():.3%}", flush=True)
        h.check(p.gap() <= gap, f"{what}: a gap of at most {gap:.1%}", p.gap())
        h.check(seconds <= 5 * limit_s, f"{what}: planned within five times {limit_s} s of CPU time", seconds)
        p.remove()


# ---- memory ----

def resident_bytes(run):
    m = re.search(r"peak resident memory of the process ([\d.]+) (kB|MB|GB)", run.out)
    return float(m.group(1)) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[m.group(2)] if m else None


def test_resident():
    """Peak memory of a rank stays below arena + data + 15 % + 64 MiB."""
    d = dict(layers=6, hidden=384, heads=6, vocab=8192, seq=64, positions=64, batch=8)
    for n, mpi in ((1, False), (2, False), (2, True), (4, False)):
        p = h.plan(GPT, gpus=n, D=d)
        run = p.train(mpi=mpi, data="synthetic", steps=2, seed=1, timeout_s=200)
        peak, arena = resident_bytes(run), p.memory["arena_bytes"]
        ranks = 1 if mpi else n
        data = 8 * 64 * 4 * 2
        allowed = ranks * ((arena + data) * 1.15 + 64 * 2**20)
        what = f"resident memory on {n} devices{', MPI' if mpi else ''}"
        h.check(peak is not None and peak <= allowed, what, f"{peak} bytes, {allowed:.0f} allowed, arena {arena}")
        h.check(all(a == arena for a in run.arena_bytes) and run.arena_bytes, f"{what}: arena as planned", f"{run.arena_bytes} {arena}")
        h.check(arena <= 1.1 * p.memory["live_bound_bytes"], f"{what}: arena within 1.1 x the live bound", p.memory)
        p.remove()


# ---- several stages, predictions ----

def test_interleaved():
    """What is decided of neighbouring layers is decided of the chunks: 8 % more where sums of gradients are not."""
    steps = []
    for v in (1, 2):
        fix = f"dp=2,tp=2,pp=4,micro_batches=16,recompute=none,interleave={v}"
        p = h.mpplan(h.ROOT / GPT, "--preset", "gpt2-xl", "--gpus", "16", "--cluster", "dgx-a100", "--precision", "bf16", "--fix", fix, "--predict", "--json")
        h.check(p.returncode == 0, f"interleave={v}: planned", p.stderr[-500:])
        steps.append(json.loads(p.stdout)["step_s"])
    h.check(steps[1] < 1.06 * steps[0], "interleaved stages take as long as others, but for the last", steps)


def predicted(*args):
    p = h.mpplan(h.ROOT / GPT, "--preset", "tiny", "-D", "layers=4", *args, "--predict", "--json")
    h.check(p.returncode == 0, f"--predict --json {args}", p.stderr[-500:])
    return json.loads(p.stdout)


def check_report(what, text):
    """No line is wider than 100 columns, no word of the table of stages is lost, and one number is not said twice."""
    wide = [line for line in text.split("\n") if len(line) > 100]
    h.check(not wide, f"{what}: a report of 100 columns", wide[:3])
    sizes = re.search(r"arena ([0-9,]+) bytes per device; no arena of this\s+program\s+can\s+be (below ([0-9,]+)|smaller)", text)
    h.check(sizes and sizes.group(1) != sizes.group(3), f"{what}: the arena beside the least there can be", sizes and sizes.group(0))


def test_wide_report():
    """Many stages, each with something wide to say: numbers stay in their columns, words are broken."""
    p = h.plan(GPT, preset="tiny", D=dict(layers=32), gpus=16, cluster="dgx-a100", batch=16,
               fix="pp=4,dp=2,tp=2,interleave=2,schedule=interleaved,micro_batches=4")
    check_report("many stages", p.report)
    lines = p.report.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.lstrip().startswith("stage "))
    table = lines[begin + 1:lines.index("", begin)]
    words = " ".join(line[lines[begin].index("layers"):lines[begin].index("devices")] for line in table)
    layers = sum((list(range(int(a), int(b) + 1)) for a, b in re.findall(r"h\.(\d+) +\.\. +h\.(\d+)", words)), [])
    h.check(sorted(layers) == list(range(32)), "the table's layers: each once", words)
    rows = [line for line in table if line[2:3].isdigit()]
    h.check(len(rows) > 1 and len({len(line) for line in rows}) == 1, "rows end in one column", rows[:3])
    h.check(re.search(r"mesh data 2 x model 2, recompute none; times", " ".join(p.report.split())), "what all stages share is said above the table", lines[6:9])


def test_stages():
    for fix, schedule in (("pp=2,schedule=1f1b,micro_batches=4", "1F1B"), ("pp=2,interleave=2,micro_batches=4,recompute=full", "interleaved 1F1B")):
        out = h.TMP / f"stages-{schedule[:4]}"
        args = [h.ROOT / GPT, "--preset", "tiny", "-D", "layers=4", "--gpus", "4"]
        p = h.mpplan(*args, "--fix", fix, "-o", out)
        h.check(p.returncode == 0 and p.stderr == "", f"{fix}: nothing is missing", p.stderr[-500:])
        names = {f.name for f in out.iterdir()}
        wanted = {"Makefile", "stage0.c", "stage1.c", "graph.ir", "plan.json", "report.html", "report.txt"}
        h.check(wanted <= names, f"{fix}: a trainer and the plan's reports", names)
        check_report(fix, (out / "report.txt").read_text())
        plan = json.loads((out / "plan.json").read_text())
        places = sorted((x for s in plan["stages"] for x in s["places"]), key=lambda x: x["stage"])
        h.check([x["stage"] for x in places] == [0, 1] and plan["schedule"]["kind"] == schedule, f"{fix}: the stages", places)
        h.check(places[1]["first_layer"] == places[0]["last_layer"] + 1 and places[1]["first_device"] > 0, f"{fix}: in order", places)
        before = h.tree(out)
        p = h.mpplan(*args, "--from-plan", out / "plan.json", "-o", out)
        h.check(p.returncode == 0 and h.tree(out) == before, f"{fix}: read back, the same bytes", p.stderr[-500:])
        j = predicted("--gpus", "4", "--fix", fix)
        h.check(j["pp"] == 2 and round(j["step_s"] * 1e12) == plan["objective_ps"], f"{fix}: predicted as planned", j["step_s"])
        h.check(j["memory"]["arena_bytes"] == max(x["memory"]["arena_bytes"] for x in places), f"{fix}: memory of the fullest", j["memory"])
        h.check(abs(sum(j["predicted"].values()) - j["step_s"]) < 1e-9 * j["step_s"], f"{fix}: the parts make the step", j["predicted"])


def test_around():
    """What goes from the last stage to the first one's next part has no price, which the report says: it is that of its neighbours'."""
    for interleave in (2, 1):
        p = h.plan(GPT, preset="tiny", D=dict(layers=4), gpus=4, cluster="dgx-a100", fix=f"pp=2,dp=2,interleave={interleave},micro_batches=4")
        said = re.search(r"in no time of this report: what stage 1 sends to the next parts of stage 0, about ([\d.]+) us a step, and the gradients "
                         r"of it, about ([\d.]+) us", " ".join(p.report.split()))
        h.check((said is not None) == (interleave > 1), f"interleave {interleave}: messages around are told", p.report)
        if said:
            received = [c for s in p.json["stages"] for c in s["collectives"] if c["kind"] == "receive" and c["of"] and c["phase"] == "forward"]
            cost = {c["cost_ps"] for c in received if c["cost_ps"] > 0}
            h.check(len(cost) == 1 and abs(float(said[1]) / (4 * cost.pop() * 1e-6) - 1) < 0.01, "as the messages between neighbours", (said[0], received))


def test_predict():
    plan = h.plan(GPT, preset="tiny", D=dict(layers=4), gpus=4)
    j = predicted("--gpus", "4")
    h.check(round(j["step_s"] * 1e12) == plan.json["objective_ps"], "--predict: the plan's time", j["step_s"])
    h.check(j["memory"] == {**plan.memory, "gaps": j["memory"]["gaps"]}, "--predict: the plan's memory", j["memory"])
    kinds = [v for k, v in j["memory"].items() if k not in ("arena_bytes", "live_bound_bytes")]
    h.check(sum(kinds) == j["memory"]["arena_bytes"], "--predict: kinds of memory make the arena", j["memory"])
    h.check(j["dp"] * j["tp"] == 4 and j["pp"] == 1, "--predict: the plan in short", j)
    again = predicted("--gpus", "4")
    h.check(again == j, "--predict: the same again")
    h.check("beside" not in j and "beside" not in plan.stage["places"][0], "hosts have nothing beside the arena", j)


def test_beside():
    """What GPUs hold beside the arena is in plan.json, --predict --json and the report, the same; plans without it are read."""
    gpus = dict(gpus=4, cluster="dgx-a100", fix="pp=2,dp=2,micro_batches=4")
    plan = h.plan(GPT, preset="tiny", D=dict(layers=4), **gpus)
    places = [x for s in plan.json["stages"] for x in s["places"]]
    j = predicted("--gpus", "4", "--cluster", "dgx-a100", "--fix", gpus["fix"])
    h.check([s["beside"] for s in j["stages"]] == [x["beside"] for x in sorted(places, key=lambda x: x["stage"])], "--predict: as in plan.json", j)
    for b in [x["beside"] for x in places]:
        h.check(b["own_bytes"] == b["workspace"] + b["kernels"] + b["packing"] + b["messages"], "parts make own_bytes", b)
        h.check(b["bytes"] == b["own_bytes"] + b["nccl"] + b["context"] and b["nccl"] > 0 < b["context"], "parts make bytes", b)
    fullest = max(places, key=lambda x: x["memory"]["arena_bytes"])
    h.check(j["beside"] in [x["beside"] for x in places if x["memory"]["arena_bytes"] == fullest["memory"]["arena_bytes"]], "of the fullest", j)
    said = re.search(r"beside the arena at most ([\d.]+) (\w+):", plan.report)
    unit = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    h.check(said and abs(float(said[1]) * unit[said[2]] / j["beside"]["bytes"] - 1) < 0.01, "the report says it", said and said[0])
    older = h.TMP / "older.json"
    text = re.sub(r'"beside": \{[^}]*\}, ', "", (plan.dir / "plan.json").read_text())
    older.write_text(text)
    p = h.mpplan(*h.arguments(GPT, preset="tiny", D=dict(layers=4), gpus=4, cluster="dgx-a100"), "--from-plan", older, "-o", h.TMP / "from-older")
    h.check("beside" not in text and p.returncode == 0, "a plan without it is read", p.stderr)
    h.check(h.tree(h.TMP / "from-older") == h.tree(plan.dir), "and gives the same directory")


def test_hidden():
    """What kernels hide of sums and gathers that begin early: some, not more than there is; nothing where nothing is claimed."""
    def seconds(text):
        value, unit = text.split()
        return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]

    def ask(*more, layers=4):
        args = [h.ROOT / GPT, "--preset", "gpt2", "-D", f"layers={layers}", "-D", "batch=64", "--predict", *more]
        text = " ".join(h.must(h.mpplan(*args)).stdout.split())
        found = {what: (seconds(hidden), seconds(of)) for hidden, of, what in re.findall(
            r"about ([\d.]+ \w+) of ([\d.]+ \w+) \(\d+ %\) of (gradient sums|weight gathers)", text)}
        return found, json.loads(h.must(h.mpplan(*args, "--json")).stdout)["predicted"] if found else None

    gpus = ["--cluster", "dgx-a100", "--gpus", "8"]
    for fix, kind, field in (("dp=8,zero=0", "gradient sums", "gradient_comm_s"), ("dp=8,zero=3", "weight gathers", "parameter_comm_s")):
        found, time = ask(*gpus, "--fix", fix)
        if h.check(kind in found, f"{fix}: it says what is hidden", found):
            hidden, of = found[kind]
            h.check(0 < hidden <= of <= 1.01 * time[field], f"{fix}: {kind}", (found, time))
    h.check(not ask(*gpus, "--fix", "dp=8,zero=0", "--kernels", "unfused")[0], "unfused kernels hide nothing")
    h.check(not ask("--gpus", "2", "--fix", "dp=2")[0], "within a host nothing is claimed")
    hosts = h.TMP / "hosts.xml"
    hosts.write_text('<cluster name="hosts" device="cpu-core" devices_per_node="2" nodes="2"><shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>'
                     '<network nics="1" bytes_per_s="1e9" latency_s="2e-5"/><protocol name="p" base_s="2e-5" step_s="6e-6"/></cluster>')
    between = ["--cluster", str(hosts), "--gpus", "4", "--fix"]
    first, _ = ask(*between, "dp=4,zero=3", layers=2)  # c_fc.weight is [hidden, ffn]
    second, _ = ask(*between, "dp=4,zero=3,rest:h.*.mlp.c_fc.weight=ffn/data", layers=2)
    if h.check("weight gathers" in first and "weight gathers" in second, "between hosts some is hidden", (first, second)):
        (a, all_a), (b, all_b) = first["weight gathers"], second["weight gathers"]
        h.check(0 < b < a <= all_a and b <= all_b < all_a, "parts that do not lie side by side are gathered at once", (first, second))


def test_one_stage_beside_pipelines():
    """A pipeline that is shorter by the formula but longer event by event is no reason to forget a plan of one stage."""
    args = [h.ROOT / GPT, *(f"-D{x}" for x in ("layers=12", "hidden=1024", "heads=8", "batch=8", "seq=256")),
            "--gpus", "16", "--cluster", "p3.16xlarge", "--predict", "--json"]
    free, one = (json.loads(h.must(h.mpplan(*args, *fix)).stdout) for fix in ([], ["--fix", "pp=1"]))
    h.check(free["simulated_s"] <= 1.0001 * one["simulated_s"], "no plan is longer than the best of one stage, simulated",
            f"{free['simulated_s']} s in {free['pp']} stages, {one['simulated_s']} s in one")


def test_stopped():
    """A search that is ended before its time gives the best plan so far, and says so."""
    large = [h.ROOT / "models" / "gpt.xml", "--preset", "gpt3-175b", "--gpus", "64", "--cluster", "dgx-a100", "--predict", "--json"]
    p = h.mpplan(*large, "--time-limit", "1")
    told = json.loads(p.stdout).get("stopped") == "--time-limit" if p.returncode == 0 else "stopped before it found a plan" in p.stderr
    h.check(told, "--time-limit: marked", p.stderr[-300:])
    for _ in range(3):  # on a busy machine a search may end before it hears the signal
        out, status = interrupted(large)
        if json.loads(out).get("stopped"):
            break
    h.check(status == 0 and json.loads(out).get("stopped") == "Ctrl-C", "Ctrl-C: the best plan so far, marked", out[-200:])


def interrupted(arguments):
    """What mpplan prints when Ctrl-C comes as soon as it shows how far it is; its exit status."""
    watched, terminal = pty.openpty()
    p = subprocess.Popen([str(x) for x in (h.MPPLAN, *arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    seen = ""
    while "micro-batches" not in seen and p.poll() is None:
        seen += os.read(watched, 4096).decode(errors="replace")
    h.check("micro-batches" in seen, "progress: shown after a while", seen[-200:])
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=120)
    os.close(watched)
    return out, p.returncode


def test_compilers():
    """mpplan built by another compiler writes the same bytes: nothing hangs on the order in which arguments are worked out."""
    other = "clang"
    if not h.FULL:
        return
    if shutil.which(other) is None:
        h.skip("clang is not installed")
        return
    folder = h.TMP / "clang"
    h.must(h.run(["meson", "setup", folder, h.ROOT], env={"CC": other}))
    h.must(h.run(["ninja", "-C", folder, "mpplan"], timeout_s=1200))
    for args in (["gpt.xml", "--preset", "gpt2", "--gpus", "8"], ["bert.xml", "--preset", "base", "--gpus", "4"],
                 ["gpt.xml", "--preset", "tiny", "--gpus", "4", "--fix", "pp=2,interleave=2"],
                 ["gpt.xml", "--preset", "gpt3-175b", "--gpus", "3072", "--cluster", "dgx-a100"]):
        trees = []
        for program in (h.MPPLAN, folder / "mpplan"):
            out = h.TMP / "compilers"
            h.must(h.run([program, h.ROOT / "models" / args[0], *args[1:], "-o", out], timeout_s=600))
            trees.append(h.tree(out))
            shutil.rmtree(out)
        differ = sorted(k for k in set(trees[0]) | set(trees[1]) if trees[0].get(k) != trees[1].get(k))
        h.check(not differ, f"{' '.join(args)}: the same bytes from {other}", differ)
        h.check(len(trees[0]["plan.json"]) < 1 << 20, f"{' '.join(args)}: plan.json is less than a megabyte", len(trees[0]["plan.json"]))


def test_min_gpus():
    cluster = small_cluster("6MiB")
    args = [h.ROOT / GPT, "--preset", "tiny", "--cluster", cluster]
    p = h.mpplan(*args, "--min-gpus", "--predict")
    m = re.match(r"fits on (\d+) devices of small at least; on (\d+) (no plan that fits was found|none can: [a-z' ]+ too large)\n", p.stdout)
    h.check(p.returncode == 0 and m, "--min-gpus: a number", p.stdout[:300] + p.stderr[-500:])
    if m:
        n = int(m.group(1))
        h.check(int(m.group(2)) == n - 1, "--min-gpus: what is known of one less", m.group(0))
        h.check(n > 1 and h.mpplan(*args, "--gpus", str(n)).returncode == 0, f"--min-gpus: it fits on {n}")
        h.check(h.mpplan(*args, "--gpus", str(n - 1)).returncode == 2, f"--min-gpus: it does not fit on {n - 1}")
        p = h.mpplan(*args, "--min-gpus", "--predict", "--json")
        h.check(p.returncode == 0 and json.loads(p.stdout)["devices"] == n, "--min-gpus --json: the devices", p.stdout[:300])
    p = h.mpplan(*args[:3], "--cluster", small_cluster("16KiB"), "--min-gpus")
    h.check(p.returncode == 2 and "fits on no number of devices" in p.stderr, "--min-gpus: no number is enough", p.stderr[-500:])
    for fix, words in (("pp=1000", "the model has only 6 layers"), ("pp=2,interleave=50", "the model has only 6 layers"),
                       ("micro_batches=7", "does not divide the batch")):
        p = h.mpplan(*args, "--min-gpus", "--fix", fix)
        h.check(p.returncode == 2 and words in p.stderr and p.stderr.count("\n") == 1, f"--min-gpus --fix {fix}: what no devices help", p.stderr[-500:])


def test_told_splits():
    """Pins of splits that want more samples than micro-batches have that save most memory: that these have no plan proves nothing."""
    for fix in ("zero=1,pp=2", "tp=2,pp=2", "micro_batch=2,pp=2", "dp=4,pp=2", "mesh=4x1,pp=2"):
        p = h.mpplan(h.ROOT / GPT, "--preset", "tiny", "-D", "layers=10", "-D", "batch=4", "--gpus", "8", "--cluster", "dgx-a100",
                     "--fix", f"{fix},recompute=full", "--predict", "--json")
        h.check(p.returncode == 0 and json.loads(p.stdout)["pp"] == 2, f"--fix {fix}: a plan", p.stderr[-500:])


TESTS = {"tensor parallel": test_tensor_parallel, "data parallel": test_data_parallel, "memory forces": test_memory_forces,
         "uneven": test_uneven, "small models": test_small_models,
         "micro-batches": test_micro_batches, "determinism": test_determinism, "short code": test_short_code, "warnings": test_warnings,
         "stages": test_stages, "wide report": test_wide_report, "interleaved": test_interleaved, "around": test_around, "predict": test_predict, "beside": test_beside, "hidden": test_hidden, "one stage": test_one_stage_beside_pipelines, "min gpus": test_min_gpus, "told splits": test_told_splits, "stopped": test_stopped, "compilers": test_compilers, "dump": test_dump, "export": test_export, "cbc full": test_cbc_full, "cbc reduced": test_cbc_reduced, "speed": test_speed, "resident": test_resident}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
