#!/usr/bin/env python3
"""Pipelines compute what one device computes: several stages, equal and unequal ones, under every schedule.

Losses of 10 steps and the gradients of step 0 against float64 PyTorch (tests/data/reference) for gpt2-deep, gpt2-tiny and
bert-tiny, on 2 to 8 devices: 2 to 8 stages that divide the layers or do not, with data and tensor parallelism inside, GPipe,
1F1B and interleaved, 1 to 48 micro-batches, each recomputation, device ranges of different sizes; threads and MPI. Also:
two runs of one plan have the same bits, dropout is that of the one-device run, a plan's code is the same each time. A
sample by default, all rows with --full.
"""
import json
import re
import sys

import harness as h
import test_equivalence as eq

THREADS, BOTH = ("threads",), ("threads", "mpi")

# model, devices, --fix, transports; SAMPLE rows run by default. A pin `ranges=1+3` is made of two plans (spliced).
SAMPLE = True
ROWS = [
    # ---- gpt2-deep: 12 layers and both ends, 48 samples, clipped norm, tied embedding
    ("deep", 2, "pp=2,schedule=gpipe,micro_batches=1", THREADS),
    ("deep", 2, "pp=2,schedule=1f1b,micro_batches=2", BOTH, SAMPLE),
    ("deep", 2, "pp=2,schedule=1f1b,micro_batches=48,recompute=selective", THREADS),
    ("deep", 2, "pp=2,schedule=gpipe,micro_batches=12,recompute=full", BOTH),
    ("deep", 3, "pp=3,schedule=1f1b,micro_batches=4,recompute=selective", THREADS),
    ("deep", 3, "pp=3,schedule=gpipe,micro_batches=3", BOTH),
    ("deep", 4, "pp=4,schedule=1f1b,micro_batches=8", BOTH, SAMPLE),
    ("deep", 4, "pp=4,schedule=gpipe,micro_batches=8,recompute=full", THREADS),
    ("deep", 4, "pp=4,schedule=1f1b,micro_batches=3", THREADS),
    ("deep", 4, "pp=2,tp=2,schedule=1f1b,micro_batches=4", BOTH),
    ("deep", 4, "pp=2,dp=2,schedule=1f1b,micro_batches=6,recompute=full", THREADS, SAMPLE),
    ("deep", 4, "pp=2,dp=2,zero=3,schedule=gpipe,micro_batches=4", THREADS),
    ("deep", 4, "ranges=1+3,inside=dp,schedule=1f1b,micro_batches=8", BOTH, SAMPLE),
    ("deep", 5, "pp=5,schedule=1f1b,micro_batches=12", THREADS, SAMPLE),
    ("deep", 6, "pp=6,schedule=1f1b,micro_batches=48", BOTH),
    ("deep", 6, "pp=6,schedule=gpipe,micro_batches=24,recompute=full", THREADS),
    ("deep", 6, "pp=3,tp=2,schedule=1f1b,micro_batches=16,recompute=selective", THREADS),
    ("deep", 6, "pp=3,dp=2,schedule=gpipe,micro_batches=6", BOTH),
    ("deep", 6, "pp=2,dp=3,schedule=1f1b,micro_batches=8", THREADS),
    ("deep", 6, "pp=2,tp=3,schedule=1f1b,micro_batches=2", THREADS),
    ("deep", 7, "pp=7,schedule=1f1b,micro_batches=16", THREADS),
    ("deep", 8, "pp=8,schedule=1f1b,micro_batches=24", BOTH),
    ("deep", 8, "pp=4,tp=2,schedule=1f1b,micro_batches=16", THREADS),
    ("deep", 8, "pp=4,dp=2,schedule=1f1b,micro_batches=12,recompute=full", BOTH),
    ("deep", 8, "pp=2,dp=2,tp=2,schedule=1f1b,micro_batches=6", BOTH, SAMPLE),
    ("deep", 8, "pp=2,tp=4,sequence_parallel=true,schedule=gpipe,micro_batches=3", THREADS),
    ("deep", 8, "pp=2,dp=4,zero=2,schedule=1f1b,micro_batches=4", THREADS),
    ("deep", 4, "ranges=3+1,inside=tp,schedule=1f1b,micro_batches=4", THREADS),
    ("deep", 8, "ranges=2+4+2,inside=tp,schedule=1f1b,micro_batches=6", BOTH),
    ("deep", 8, "ranges=4+1+1+2,inside=dp,schedule=gpipe,micro_batches=8,recompute=selective", THREADS),
    ("deep", 2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4", BOTH, SAMPLE),
    ("deep", 2, "pp=2,schedule=interleaved,interleave=3,micro_batches=8", THREADS),
    ("deep", 3, "pp=3,schedule=interleaved,interleave=2,micro_batches=12,recompute=selective", THREADS),
    ("deep", 4, "pp=2,tp=2,schedule=interleaved,interleave=2,micro_batches=6,recompute=full", THREADS),
    ("deep", 4, "pp=4,schedule=interleaved,interleave=3,micro_batches=16", BOTH),
    ("deep", 6, "pp=6,schedule=interleaved,interleave=2,micro_batches=48", THREADS),
    ("deep", 8, "pp=2,dp=2,tp=2,schedule=interleaved,interleave=3,micro_batches=8", BOTH),
    # ---- gpt2-tiny: 4 layers, 8 samples
    ("tiny", 2, "pp=2,schedule=1f1b,micro_batches=4", THREADS),
    ("tiny", 3, "pp=3,schedule=1f1b,micro_batches=8", BOTH),
    ("tiny", 4, "pp=4,schedule=gpipe,micro_batches=4", THREADS),
    ("tiny", 4, "pp=2,tp=2,vocab_parallel=true,schedule=1f1b,micro_batches=2", BOTH, SAMPLE),
    ("tiny", 6, "pp=3,dp=2,schedule=1f1b,micro_batches=4,recompute=full", THREADS),
    ("tiny", 8, "pp=4,tp=2,schedule=1f1b,micro_batches=8", THREADS),
    ("tiny", 4, "pp=2,tp=2,vocab_parallel=true,schedule=interleaved,interleave=2,micro_batches=4", THREADS),
    # ---- bert-tiny: masked labels, whose number the prologue counts; token types
    ("bert", 2, "pp=2,schedule=1f1b,micro_batches=2", BOTH, SAMPLE),
    ("bert", 2, "pp=2,schedule=gpipe,micro_batches=4,recompute=full", THREADS),
    ("bert", 3, "pp=3,schedule=1f1b,micro_batches=4", THREADS),
    ("bert", 4, "pp=2,tp=2,schedule=1f1b,micro_batches=2,recompute=selective", THREADS),
    ("bert", 4, "pp=2,dp=2,schedule=1f1b,micro_batches=2", BOTH),
    ("bert", 3, "ranges=1+2,inside=tp,schedule=gpipe,micro_batches=2", THREADS),
]


def pins(fix):
    return dict(p.split("=", 1) for p in fix.split(","))


# ---- device ranges of different sizes: stages of plans with equal ranges, put together ----

def copy_stage(plan, number):
    """Stage NUMBER of a plan.json as an object of its own."""
    for s in plan["stages"]:
        for place in s["places"]:
            if place["stage"] == number:
                return dict(s, places=[dict(place)])
    raise h.Failure(f"no stage {number}")


def spliced(m, what, d, fix):
    """A plan with ranges like 1+3, as --from-plan reads it: stage i comes from a plan of equal ranges as large as its own, split
    as inside= says."""
    rest = dict(pins(fix))
    sizes = [int(x) for x in rest.pop("ranges").split("+")]
    inside = rest.pop("inside")
    common = ",".join(f"{k}={v}" for k, v in rest.items())
    made, stages, first, layer = {}, [], 0, 0
    for i, n in enumerate(sizes):
        if n not in made:
            split = f"dp={n},tp=1" if inside == "dp" else f"dp=1,tp={n}"
            made[n] = h.plan(m.model, gpus=n * len(sizes), preset=m.preset, D=d, fix=f"pp={len(sizes)},{split},{common}")
        s = copy_stage(made[n].json, i)
        place = s["places"][0]
        if place["first_layer"] != layer:
            raise h.Failure(f"{what}: the plans to splice cut layers at different places")
        place["first_device"] = first
        first += n
        layer = place["last_layer"] + 1
        stages.append(s)
    for p in made.values():
        p.remove()
    path = h.TMP / "spliced.json"
    path.write_text(json.dumps(dict(next(iter(made.values())).json, stages=stages), indent=1))
    return h.plan(m.model, gpus=sum(sizes), preset=m.preset, D=d, extra=["--from-plan", path])


# ---- what a plan must show ----

def check_plan(what, p, devices, fix):
    want = pins(fix)
    sizes = [int(x) for x in want["ranges"].split("+")] if "ranges" in want else [devices // int(want["pp"])] * int(want["pp"])
    kinds = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "interleaved 1F1B"}
    h.check(p.ranges == sizes, f"{what}: devices of stages", p.ranges)
    h.check(p.json["schedule"]["kind"] == kinds[want["schedule"]], f"{what}: schedule", p.json["schedule"])
    h.check(p.json["micro_batches"] == int(want["micro_batches"]), f"{what}: micro-batches", p.json["micro_batches"])
    h.check({s["recompute"] for s in p.json["stages"]} == {want.get("recompute", "none")}, f"{what}: recomputation")
    h.check(p.json["schedule"]["chunks"] == int(want.get("interleave", 1)), f"{what}: chunks", p.json["schedule"])


def check_run(what, m, p, run, losses, transport):
    h.close(f"{what}: losses", run.losses, losses, m.tolerance)
    h.check(run.transport.lower().startswith(transport), f"{what}: the transport", run.transport)
    h.check(run.arena_bytes == p.arenas, f"{what}: arenas as planned", f"{run.arena_bytes}, planned {p.arenas}")
    norms = m.grad_norms or []
    got = [row["grad_norm"] for row in run.rows[:len(norms)]]
    if norms:
        h.check(got and all(a is not None and abs(a - b) <= 1e-4 * b for a, b in zip(got, norms)), f"{what}: gradient norms", f"{got} not {norms}")
    if m.lrs:
        h.close(f"{what}: learning rates", [row["lr"] for row in run.rows], m.lrs, 1e-9)


def one_plan(what, m, setting, devices, fix, transports):
    d, _, runs = m.settings[setting]
    _, data, losses = runs[0]
    d = {**m.base, **d}
    if "ranges" in fix:
        p = spliced(m, what, d, fix)
    else:
        p = h.plan(m.model, gpus=devices, preset=m.preset, D=d, fix=fix)
    check_plan(what, p, devices, fix)
    for transport in transports:
        at, grads = f"{what}, {transport}", h.TMP / "grads.safetensors"
        run = p.train(mpi=transport == "mpi", data=f"npy:{data}", init=m.weights, steps=10, seed=1, dump_grads=grads)
        check_run(at, m, p, run, losses, transport)
        eq.check_gradients(at, m, grads)
    if len(transports) > 1:
        check_again(what, p, dict(data=f"npy:{data}", init=m.weights, steps=10, seed=1))
    p.remove()


def check_again(what, p, options):
    """Two runs of a plan: the same losses and weights, to the bit."""
    saves = [h.TMP / "again0", h.TMP / "again1"]
    runs = [p.train(save=s, **options) for s in saves]
    h.check(runs[0].losses == runs[1].losses and len(runs[0].losses) == 10, f"{what}: losses of two runs have the same bits")
    trees = [{k: v for k, v in h.tree(s).items() if k.endswith(".safetensors")} for s in saves]
    h.check(trees[0] and trees[0] == trees[1], f"{what}: weights of two runs have the same bits")
    for s in saves:
        h.shutil.rmtree(s)


def test_dropout():
    """Dropout depends on no plan: stages, micro-batches, recomputation."""
    d = dict(layers=4, hidden=32, heads=4, ffn=64, vocab=64, seq=16, positions=16, batch=8, pdrop=0.2)
    options = dict(data="synthetic", steps=5, seed=3)
    alone = h.plan("models/gpt.xml", gpus=1, preset="tiny", D=d)
    losses = alone.train(**options).losses
    for devices, fix in ((3, "pp=3,schedule=1f1b,micro_batches=4"), (4, "pp=2,dp=2,schedule=1f1b,micro_batches=2,recompute=full"),
                         (2, "pp=2,schedule=gpipe,micro_batches=4,recompute=selective"),
                         (2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4,recompute=full")):
        p = h.plan("models/gpt.xml", gpus=devices, preset="tiny", D=d, fix=fix)
        h.close(f"dropout, {fix}", p.train(**options).losses, losses, 2e-5)
        p.remove()
    alone.remove()


def test_half():
    """16-bit steps: the same micro-batches on one device and in stages; a scale that overflows skips the step in all stages."""
    weights, data = h.REFERENCE / "gpt2-tiny" / "model.safetensors", h.npy_dir({i: eq.np.load(h.REFERENCE / "gpt2-tiny" / f"{i}.npy")
                                                                                 for i in ("inputs", "targets")})
    options = dict(data=f"npy:{data}", init=weights, seed=1)
    for precision in ("bf16", "fp16"):
        extra, runs = ("--precision", precision), []
        for devices, fix in ((1, "micro_batches=4"), (3, "pp=3,schedule=1f1b,micro_batches=4"),
                             (2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4"),
                             (4, "pp=2,dp=2,zero=2,schedule=gpipe,micro_batches=4,recompute=full")):
            p = h.plan("models/gpt.xml", gpus=devices, preset="tiny", fix=fix, extra=extra)
            runs.append(p.train(steps=10, **options).losses)
            h.close(f"{precision}, {fix}: as on one device", runs[-1], runs[0], 2e-3)
            if precision == "fp16" and devices == 3:
                run = p.train(steps=30, loss_scale=2.0 ** 40, **options)
                n = next((i for i, row in enumerate(run.rows) if row["skipped_steps"] != i + 1), 30)
                h.check(0 < n < 30 and run.rows[n]["loss_scale"] == 2.0 ** (40 - n), f"{precision}, {fix}: overflows are skipped everywhere", run.rows[:n + 1])
            p.remove()


def test_resume():
    """What a pipeline saves, any plan resumes: the same one to the bit, others nearly."""
    d = dict(layers=4, hidden=32, heads=4, ffn=64, vocab=64, seq=16, positions=16, batch=8, pdrop=0.1, clip_norm=1)
    plans = {fix: h.plan("models/gpt.xml", gpus=devices, preset="tiny", D=d, fix=fix)
             for devices, fix in ((4, "pp=2,dp=2,zero=1,schedule=1f1b,micro_batches=4"), (1, "micro_batches=1"), (6, "pp=3,tp=2,schedule=gpipe,micro_batches=2"))}
    first = next(iter(plans.values()))
    whole = first.train(data="synthetic", seed=2, steps=12).losses
    for begun, p in plans.items():
        folder = h.TMP / "saved"
        p.train(data="synthetic", seed=2, steps=6, save=folder)
        for fix, q in plans.items():
            got = q.train(data="synthetic", steps=12, resume=folder).losses
            same = got == whole[6:] if begun == fix and p is first else True
            h.check(same, f"{fix}: resumed to the bit", f"{got} not {whole[6:]}")
            h.close(f"{fix}: resumed from {begun}", got, whole[6:], 2e-5)
        h.shutil.rmtree(folder)
    for p in plans.values():
        p.remove()


def test_mlp():
    """A model without repeats, whose inputs are f32."""
    runs = []
    for devices, fix in ((1, None), (2, "pp=2,schedule=1f1b,micro_batches=4"), (3, "pp=3,schedule=gpipe,micro_batches=2")):
        p = h.plan("models/mlp.xml", gpus=devices, fix=fix)
        runs.append(p.train(data="synthetic", seed=5, steps=8).losses)
        h.close(f"mlp, {fix or 'one device'}", runs[-1], runs[0], 2e-5)
        p.remove()


SMALL = """<cluster name="small" devices_per_node="any" nodes="1" source="the host, with devices of 256 MiB">
  <device name="cpu-256" source="as cpu-core">
    <memory bytes="256MiB" usable="1" bytes_per_s="27e9" source="as cpu-core"/>
    <peak precision="f64" flops_per_s="59e9" source="as cpu-core"/> <peak precision="f32" flops_per_s="118e9" source="as cpu-core"/>
    <kernel launch_s="3e-7" vector_efficiency="0.2" source="as cpu-core"/>
    <gemm efficiency="0.9" half_m="14" half_n="5" half_k="10" source="as cpu-core"/>
  </device>
  <shared bytes_per_s="7e9" total_bytes_per_s="56e9" source="as host"/>
  <protocol name="shared" base_s="26e-6" step_s="6e-6" efficiency="1" source="as host"/>
</cluster>
"""
PEAK = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(f"process of {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss} KiB", flush=True)
sys.exit(code)
"""


def test_memory():
    """A gigabyte of weights and optimiser state trains on 8 devices of 256 MiB: no process takes more than 20 % above that."""
    if not h.FULL:
        return
    cluster, peak = h.TMP / "small.xml", h.TMP / "peak.py"
    cluster.write_text(SMALL)
    peak.write_text(PEAK)
    d = dict(layers=11, hidden=768, heads=12, vocab=16384, seq=32, positions=32, batch=16, pdrop=0)
    options = ["--data", "synthetic", "--steps", 2, "--seed", 1, "--metrics"]
    alone = h.plan("models/gpt.xml", gpus=1, D=d)
    h.check(alone.memory["parameters"] + alone.memory["optimizer"] >= 1 << 30, "a gigabyte of state", alone.memory)
    losses = alone.train(data="synthetic", steps=2, seed=1).losses
    alone.remove()
    refused = h.mpplan(*h.arguments("models/gpt.xml", gpus=4, cluster=cluster, D=d))
    h.check(refused.returncode == 2 and "no plan fits" in refused.stderr, "it does not fit on 4 devices", refused.stderr)
    for fix in (None, "pp=4,schedule=1f1b"):
        p, metrics = h.plan("models/gpt.xml", gpus=8, cluster=cluster, D=d, fix=fix).build(), h.TMP / "memory.jsonl"
        run = h.Run(h.must(h.run([*h.MPIRUN, "-n", 8, sys.executable, peak, p.dir / "trainer", *options, metrics], 600, h.MPI_ENV)), metrics)
        kib = [int(x) for x in re.findall(r"process of (\d+) KiB", run.out)]
        h.check(len(kib) == 8 and max(kib) <= 1.2 * 256 * 1024, f"memory, {fix or 'the own plan'}: bounded", kib)
        h.close(f"memory, {fix or 'the own plan'}: losses of one device", run.losses, losses, 2e-5)
        p.remove()


def test_same_code():
    """Equal input, equal bytes; and plan.json gives the same directory again."""
    for fix in ("schedule=1f1b,micro_batches=4", "schedule=interleaved,interleave=2,micro_batches=4"):
        a, b = (h.plan("models/gpt.xml", gpus=4, preset="tiny", fix=f"pp=2,tp=2,{fix}") for _ in range(2))
        h.check(h.tree(a.dir) == h.tree(b.dir), f"{fix}: a pipeline's plan is the same each time")
        c = h.plan("models/gpt.xml", gpus=4, preset="tiny", extra=["--from-plan", a.dir / "plan.json"])
        trees = [{k: v for k, v in h.tree(x.dir).items() if not k.startswith("report")} for x in (a, c)]
        h.check(trees[0] == trees[1], f"{fix}: plan.json of a pipeline gives the same directory again",
                [k for k in trees[0] if trees[0][k] != trees[1].get(k)])
        for p in (a, b, c):
            p.remove()


def main():
    models = {"tiny": (eq.gpt2_tiny(), "C"), "deep": (eq.gpt2_deep(), "cosine"), "bert": (eq.bert_tiny(), "adamw")}
    for name, devices, fix, transports, *sample in ROWS:
        what = f"{name}, {devices} devices, {fix}"
        if (h.FULL or sample or any(not a.startswith("-") for a in sys.argv[1:])) and h.only([what]):
            h.guarded(what, one_plan, what, *models[name], devices, fix, transports)
    for test in (test_dropout, test_half, test_resume, test_mlp, test_memory, test_same_code):
        if h.only([test.__name__]):
            h.guarded(test.__name__, test)
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
