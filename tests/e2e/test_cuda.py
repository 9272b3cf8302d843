#!/usr/bin/env python3
"""The CUDA trainers of plans, on a machine without a GPU: built against tests/cuda, which runs their kernels on processors, they
compute what the references compute; where nvcc is they also compile and link for GPUs, and say what is missing.

By default one plan of each kind; --full: more plans, all architectures, AddressSanitizer and both orders of threads for all.
"""
import hashlib
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

import cuda_told as told
import fused_bytes
import harness as h
import test_equivalence as eq
import test_hosts as hosts
import test_precision as precision

sys.path.insert(0, str(h.ROOT / "tests"))
from tcp_job import TcpJob  # noqa: E402

SHIM = h.ROOT / "tests" / "cuda"
NVCC = next((p for p in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc", *sorted(map(str, Path("/usr/local").glob("cuda-*/bin/nvcc"))))
             if p and Path(p).exists()), None)
FOLLOW = precision.FOLLOW
SPREAD = precision.SPREAD
PATIENCE_S = 3000 if h.FULL else 300  # for a run


# ---- building ----

def sources():
    return sorted(p for folder in ("runtime", "tests/cuda") for p in (h.ROOT / folder).rglob("*") if p.is_file())


def build(p, *flags):
    """The trainer of P against the shim; plans share the compiled runtime, whose folder is returned."""
    flags = [f for f in flags if f]
    text = "".join(f"{s.relative_to(h.ROOT)}{s.read_text()}" for s in sources()) + " ".join(flags)
    shared = Path(os.environ.get("MPP_BUILD", h.ROOT / "build")) / "trainer-runtime" / ("cuda-" + hashlib.sha256(text.encode()).hexdigest()[:12])
    shared.mkdir(parents=True, exist_ok=True)
    for s in (p.dir / "runtime").rglob("*"):
        os.utime(s, (0, 0))  # older than what is shared, whose name tells the content
    make(p, shared, *(flags or ["CFLAGS=-O1"]))
    return shared


def make(p, runtime, *flags):
    h.must(h.run(["make", "-s", "-j2", "-C", p.dir, "BACKEND=cuda", f"CUDA_SHIM={SHIM}", f"RUNTIME_BUILD={runtime}", "MPI=0", *flags], 600))


def plan(model, devices, fix="", setting=None, **kwargs):
    d, setting_fix, _ = model.settings[setting] if setting else ({}, [], [])
    fixes = ",".join(f for f in [fix, *setting_fix] if f)
    return h.plan(model.model, gpus=devices, preset=model.preset, D={**model.base, **d}, fix=fixes or None, **kwargs)


# ---- the references, on the shim ----

TINY, DEEP, BERT = "gpt2-tiny", "gpt2-deep", "bert-tiny"
PLANS = [  # model, setting, devices, --fix, of the sample
    (TINY, "C", 4, "dp=2,tp=2", True),
    (TINY, "B", 4, "dp=4,zero=3", True),
    (TINY, "A", 2, "tp=2,vocab_parallel=true", True),
    (TINY, "C", 2, "pp=2,schedule=1f1b,micro_batches=2", True),
    (BERT, "momentum", 2, "tp=2", True),
    (TINY, "C", 4, "dp=4,zero=1", False),
    (TINY, "C", 2, "", False),
    (TINY, "B", 4, "", False),
    (TINY, "B", 4, "tp=4,sequence_parallel=true", False),
    (TINY, "A", 3, "tp=3,shard:h.*.attn.c_attn.weight=heads/model", False),
    (TINY, "C", 2, "dp=2,micro_batches=4", False),
    (DEEP, "cosine", 1, "", False),
    (DEEP, "accum16", 2, "", False),
    (DEEP, "cosine", 2, "pp=2,schedule=1f1b,micro_batches=2", False),
    (DEEP, "cosine", 4, "pp=2,dp=2,schedule=1f1b,micro_batches=6,recompute=full", False),
    (DEEP, "cosine", 4, "pp=2,tp=2,schedule=1f1b,micro_batches=4", False),
    (DEEP, "cosine", 4, "pp=4,schedule=gpipe,micro_batches=8", False),
    (DEEP, "cosine", 2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4", False),
    (TINY, "C", 4, "pp=2,tp=2,schedule=interleaved,interleave=2,micro_batches=4", False),
    (BERT, "adamw", 1, "", False),
    (BERT, "adamw", 4, "dp=2,tp=2", False),
    (BERT, "adamw_eps", 4, "dp=4,zero=2", False),
]


def reference(m, setting, devices, fix, orders):
    what = f"{m.folder} {setting}, {devices} ranks, {fix or 'auto'}"
    p = plan(m, devices, fix, setting)
    build(p)
    name, data, losses = m.settings[setting][2][0]
    for order in orders:
        dump = {"dump_grads": h.TMP / "grads.safetensors"} if order == orders[0] else {}
        run = p.train(data=f"npy:{data}", init=m.weights, steps=10 if h.FULL else 3, seed=1, env={"MPP_SHIM_ORDER": order},
                      timeout_s=PATIENCE_S, **dump)
        h.close(f"{what}, {order}: losses", run.losses, losses[:len(run.losses)], m.tolerance)
        h.check(len(run.losses) == (10 if h.FULL else 3), f"{what}, {order}: all steps", len(run.losses))
        h.check("standing in for GPU" in run.out, f"{what}: runs on the shim", run.out[:200])
        told.check_beside(f"{what}, {order}", run)
        if dump:
            eq.check_gradients(what, m, dump["dump_grads"])
    if "pp=" in fix:
        again = p.train(data=f"npy:{data}", init=m.weights, steps=len(run.losses), seed=1, env=GRAPHS)
        same_steps(f"{what}, graphs", again, run)
    p.remove()


def references():
    models = {m.folder: m for m in (eq.gpt2_tiny(), eq.gpt2_deep(), eq.bert_tiny())}
    for i, (folder, setting, devices, fix, sample) in enumerate(PLANS):
        if sample or h.FULL:
            orders = ("forward", "backward") if h.FULL or i == 0 else ("forward",)
            h.guarded(f"{folder} {setting} {fix}", reference, models[folder], setting, devices, fix, orders)


def epilogues():
    """What follows a product is cuBLASLt's epilogue, GELU where asked for; where it has none, a kernel, and the losses are the same but for
    rounding."""
    m = eq.gpt2_tiny()
    p = plan(m, 1, "", "C")
    build(p)
    name, data, losses = m.settings["C"][2][0]
    path = h.TMP / "epilogues.txt"
    layers, steps = 4, 2
    passes = layers * steps * p.json["micro_batches"]
    for what, env, wanted in (("bias", {}, (3, 0, 1)), ("and GELU", {"MPP_GELU_EPILOGUE": "1"}, (2, 1, 0)), ("refused", {"MPP_SHIM_EPILOGUES": "0"}, (0, 0, 3))):
        path.unlink(missing_ok=True)
        run = p.train(data=f"npy:{data}", init=m.weights, steps=steps, seed=1, env={"MPP_SHIM_REPORT": str(path), **env}, timeout_s=PATIENCE_S)
        h.close(f"epilogues, {what}: losses", run.losses, losses[:steps], m.tolerance)
        rows = {line.split(" ", 6)[6]: int(line.split(" ", 1)[0]) for line in path.read_text().splitlines()}
        got = (rows.get("cublasLtMatmul_f32_bias", 0), rows.get("cublasLtMatmul_f32_gelu", 0), sum(n for kernel, n in rows.items() if "epilogue_kernel" in kernel))
        h.check(got == tuple(n * passes for n in wanted), f"epilogues, {what}: launches", f"{got}, {passes} layers' passes")
    p.remove()


# ---- CUDA graphs ----

GRAPHS = {"MPP_GRAPHS": "1"}
TIMES = ("step_s", "tokens_per_s")


def same_steps(what, run, plain):
    """All that is told of every step is the same, to the bit, but for times; graphs were made, in the memory that the plan counts."""
    def steps(r):
        return [{k: v for k, v in row.items() if k not in TIMES} for row in r.rows]
    h.check("CUDA graphs" in run.out and "CUDA graphs" not in plain.out, f"{what}: as asked", run.out[:200])
    h.check(steps(run) == steps(plain) and len(plain.rows) > 2, f"{what}: the same bits", f"{steps(run)} {steps(plain)}")
    told.check_beside(what, run)


DROPS = {"pdrop": 0.1, "clip_norm": 0.5, "weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2, "total_steps": 9}
GRAPH_PLANS = [  # model, devices, --fix, -D, more
    ("gpt", 1, "", DROPS, ()),
    ("gpt", 2, "dp=2,micro_batches=4", DROPS, ()),
    ("gpt", 4, "dp=2,tp=2", DROPS, ()),
    ("gpt", 4, "dp=4,zero=3", DROPS, ()),
    ("gpt", 2, "tp=2,vocab_parallel=true", DROPS, ("--precision", "bf16")),
    ("gpt", 2, "pp=2,schedule=1f1b,micro_batches=4", DROPS, ()),
    ("gpt", 4, "pp=2,dp=2,schedule=interleaved,micro_batches=4", DROPS, ()),
    ("gpt", 4, "pp=2,tp=2,schedule=gpipe,micro_batches=2", DROPS, ()),
    ("bert", 2, "dp=2,zero=1", {"optimizer": "sgd", "momentum": 0.9}, ()),
    ("bert", 1, "", {"optimizer": "sgd", "momentum": 0}, ()),
]


def with_and_without(what, p, steps, **options):
    alone = {"OPENBLAS_NUM_THREADS": "1"}  # ranks are threads already
    plain, run = (p.train(steps=steps, seed=3, env={**alone, **env}, **options) for env in ({}, GRAPHS))
    same_steps(what, run, plain)
    return run


def graphs():
    for model, devices, fix, d, extra in GRAPH_PLANS:
        p = h.plan(f"models/{model}.xml", gpus=devices, preset="tiny", fix=fix or None, D=d, extra=extra)
        build(p)
        what = f"graphs, {model}, {devices} ranks, {fix or 'auto'}"
        h.guarded(what, with_and_without, what, p, 5, data="synthetic")
        p.remove()


def graphs_overflow():
    """Steps that are skipped, before and after the graphs are made."""
    p = precision.plan("fp16", 2, "dp=2,zero=1", D={"pdrop": 0.1})
    build(p)
    run = with_and_without("graphs, fp16", p, 14, data=f"npy:{precision.FIXED}", init=precision.WEIGHTS, loss_scale=2.0 ** 32)
    skipped = precision.skipped(run)
    h.check(2 < skipped[-1] < 14, "graphs, fp16: some steps are skipped", skipped)


def graphs_evaluation():
    """Between steps that are graphs come passes that are not, a checkpoint and one more run from it."""
    p = h.plan("models/gpt.xml", gpus=2, preset="tiny", fix="dp=2,zero=1", D=DROPS)
    build(p)
    options = dict(data="synthetic", eval="synthetic", eval_every=2, eval_steps=2)
    whole = with_and_without("graphs, evaluation", p, 6, **options)
    h.check(sum("eval_loss" in row for row in whole.rows) == 3, "graphs, evaluation: it took place", whole.rows)
    p.train(steps=3, seed=3, save=h.TMP / "graphs", env=GRAPHS, dump_grads=h.TMP / "graphs.safetensors", **options)
    rest = p.train(steps=6, resume=h.TMP / "graphs", env=GRAPHS, **options)
    h.check(rest.losses == whole.losses[3:], "graphs, resumed: the same bits", f"{rest.losses} {whole.losses[3:]}")
    traced = p.train(steps=4, seed=3, profile=h.TMP / "graphs.json", env=GRAPHS, **options)
    h.check(traced.losses == whole.losses[:4], "graphs, profile: the same bits", f"{traced.losses} {whole.losses[:4]}")
    measured = p.train(data="synthetic", steps=1, env={**GRAPHS, "MPP_KERNELS": str(h.TMP / "kernels.txt")})
    h.check("CUDA graphs" not in measured.out, "graphs: none where kernels are measured", measured.out[:200])
    p.remove()


def graphs_baked():
    """What changes from step to step, were it left in a graph, shows: the step that dropout draws from, the rate, the factors."""
    marks = {"launch.cuh": "now.kept = kept != NULL ? &kept->step : NULL;",
             "kernels_optimizer.cu": "lr.kept = kept != NULL ? &kept->lr : NULL;",
             "kernels_optimizer.cu ": "return kept != NULL ? &kept->factors : NULL;"}
    p = h.plan("models/gpt.xml", gpus=1, preset="tiny", D=DROPS)
    right = build(p)
    plain = p.train(data="synthetic", steps=5, seed=3)
    for number, (name, mark) in enumerate(marks.items()):
        source = p.dir / "runtime" / "cuda" / name.strip()
        text = source.read_text()
        if not h.check(text.count(mark) == 1, f"baked: {mark}", text.count(mark)):
            continue
        source.write_text(text.replace(mark, mark.replace("kept != NULL", "false")))
        shutil.copytree(right, p.dir / f"baked{number}")
        make(p, f"baked{number}", "CFLAGS=-O1")
        run = p.train(data="synthetic", steps=5, seed=3, env=GRAPHS)
        h.check(run.losses[:2] == plain.losses[:2] and run.losses[3:] != plain.losses[3:], f"baked: {mark} shows",
                f"{run.losses} {plain.losses}")
        source.write_text(text)
    p.remove()


# ---- 16 bits ----

def follow(kind, devices, fix, steps):
    """The losses follow those of fp32 on the host, and are near those of the same plan there."""
    p = precision.plan(kind, devices, fix)
    wide = precision.train(precision.plan("fp32"), steps=steps).losses
    host = precision.train(p, steps=steps).losses
    os.remove(p.dir / "trainer")
    build(p)
    run = precision.train(p, steps=steps, timeout_s=PATIENCE_S)
    got = run.losses
    off = float(np.max(np.abs(np.array(got) / np.array(wide) - 1)))
    h.check(len(got) == steps and off <= FOLLOW, f"{kind}, {devices} ranks, {fix}: follows fp32", f"off by {100 * off:.3g} %")
    h.close(f"{kind}, {devices} ranks, {fix}: as on the host", got, host, SPREAD)
    told.check_beside(f"{kind}, {devices} ranks, {fix}", run)
    tensor_cores(f"{kind}, {devices} ranks, {fix}, attention on tensor cores", p, run, steps)


def tensor_cores(what, p, without, steps):
    """Where MPP_ATTENTION=mma asks for them and they are there: other bits, the same losses nearly; else it is said, and all is as without."""
    mma, old = (precision.train(p, steps=n, timeout_s=PATIENCE_S, env={"MPP_ATTENTION": "mma", "MPP_SHIM_ARCH": arch})
                for n, arch in ((steps, "80"), (1, "75")))
    h.check("attention of bf16 and fp16 on tensor cores" in mma.out and mma.losses != without.losses, f"{what}: it runs", mma.out[:300])
    h.close(f"{what}: as without", mma.losses, without.losses, SPREAD)
    h.check("attention without tensor cores (MPP_ATTENTION=mma takes a GPU, and CUDA_ARCH, of sm_80 or later), batch" in old.out and old.losses == without.losses[:1], f"{what}: not before sm_80", old.out[:300])
    h.check("tensor cores" not in without.out, f"{what}: off unless asked for", without.out[:300])


# ---- beside the host's trainer ----

SMALL = dict(layers=4, hidden=32, heads=4, ffn=64, vocab=64, seq=16, positions=16, batch=8, pdrop=0.2, clip_norm=1)


def evaluated(run):
    return [row["eval_loss"] for row in run.rows if "eval_loss" in row]


def beside_host():
    """With dropout: the losses, also on other data, and the weights are those of one device on the host; what either saves the other
    goes on with."""
    small = lambda devices, fix: h.plan("models/gpt.xml", gpus=devices, preset="tiny", D=SMALL, fix=fix)
    options = dict(data="synthetic", seed=3, eval="synthetic", eval_every=2, eval_steps=2, timeout_s=PATIENCE_S)
    saved = lambda what: h.read_safetensors(h.TMP / what / "step-6" / "model.safetensors")
    host = small(1, None)
    wanted = host.train(steps=6, save=h.TMP / "host", **options)
    host.train(steps=3, save=h.TMP / "host-half", **options)
    for i, (devices, fix) in enumerate(((1, None), (4, "dp=2,tp=2"), (4, "dp=4,zero=3,micro_batches=2"),
                                        (2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4,recompute=full"))):
        what, p = f"beside the host, {fix or 'one device'}", small(devices, fix)
        build(p)
        run = p.train(steps=6, save=h.TMP / f"cuda{i}", **options)
        h.close(f"{what}: losses", run.losses, wanted.losses, 2e-5)
        h.check(len(evaluated(run)) == 3, f"{what}: evaluations", run.rows)
        h.close(f"{what}: on other data", evaluated(run), evaluated(wanted), 2e-5)
        weights, others = saved(f"cuda{i}"), saved("host")
        off = max(h.relative_l2(weights[name], x) for name, x in others.items())
        h.check(sorted(weights) == sorted(others) and off < 2e-3, f"{what}: weights", off)
        h.close(f"{what}: goes on with the host's", p.train(resume=h.TMP / "host-half", steps=6, **options).losses, wanted.losses[3:], 2e-5)
        p.train(steps=3, save=h.TMP / f"half{i}", **options)
        h.close(f"{what}: the host goes on", host.train(resume=h.TMP / f"half{i}", steps=6, **options).losses, wanted.losses[3:], 2e-5)
        p.remove()


def processes():
    """Each rank in a process of its own: the same losses; a rank that is killed, or stopped, ends the job with one message."""
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        h.skip("no MPI: CUDA trainers run as threads only")
        return
    m = eq.gpt2_tiny()
    name, data, losses = m.settings["C"][2][0]
    for fix in ("pp=2,tp=2,schedule=interleaved,interleave=2,micro_batches=4", "dp=2,tp=2"):
        p = plan(m, 4, fix, "C")
        build(p, "CFLAGS=-O1", "MPI=1")
        run = p.train(data=f"npy:{data}", init=m.weights, steps=3, seed=1, mpi=True, timeout_s=PATIENCE_S)
        h.close(f"processes, {fix}: losses", run.losses, losses[:3], m.tolerance)
        h.check(run.transport == "MPI" and "standing in for GPU" in run.out, f"processes, {fix}: over MPI, on the shim", run.out[:300])
    run = p.train(data="synthetic", steps=1, mpi=True, env={"MPP_SHIM_DEVICES": "3"}, allow_failure=True, metrics=False)
    h.check(run.process.returncode != 0 and "rank 3: " in run.err and "has 3 GPUs for 4 ranks" in run.err, "processes: too few GPUs", run.err)
    command = [*h.MPIRUN, "-n", "4", p.dir / "trainer", "--data", "synthetic", "--steps", "1000000"]
    for rank in (0, 2):
        job = hosts.Job(command, h.MPI_ENV).wait_for("^step 2", PATIENCE_S)
        job.kill(rank)
        job.end(f"processes: rank {rank} killed", 60, rf"rank {rank}\b")
    job = hosts.Job([*command, "--timeout", "20"], h.MPI_ENV).wait_for("^step 2", PATIENCE_S)
    job.kill(3, signal.SIGSTOP)
    job.end("processes: rank 3 stopped", 120, r"rank 3 on .* has not moved for 20 s while others wait for it \(rank \d in .*--timeout")


def overflow():
    """Steps whose gradients overflow are skipped, the scale of the loss halves, and training goes on as if they had not been."""
    p = precision.plan("fp16", 2, "dp=2,zero=1")
    build(p)
    plain = precision.train(p, steps=4, source=precision.FIXED).losses
    run = precision.train(p, steps=14, source=precision.FIXED, loss_scale=2.0 ** 32)
    n = precision.first_skips("overflow", run, 2.0 ** 32)
    h.check(n + 2 <= 14, "overflow: steps are left", n)
    h.close("overflow: then as without", run.losses[n:n + 4], plain[:14 - n], SPREAD)


# ---- a test of the tests ----

def broken_barrier():
    """A kernel that lost a barrier computes something else, or hangs: the references show it."""
    m = eq.gpt2_tiny()
    p = plan(m, 1, "", "A")
    shutil.copytree(build(p), p.dir / "broken")
    source = p.dir / "runtime" / "cuda" / "kernels_attention.cu"
    text = source.read_text()
    mark = "        load_tile<TYPE>(v, h.stride, v0, v_end, d0, n, v_tile);\n        __syncthreads();\n"
    if not h.check(text.count(mark) == 1, "broken barrier: there is one to remove"):
        return
    source.write_text(text.replace(mark, mark.replace("        __syncthreads();\n", "")))
    make(p, "broken", "CFLAGS=-O1")
    name, data, losses = m.settings["A"][2][0]
    for order in ("forward", "backward"):
        run = p.train(data=f"npy:{data}", init=m.weights, steps=2, seed=1, env={"MPP_SHIM_ORDER": order}, allow_failure=True)
        same = len(run.losses) == 2 and all(x is not None and abs(x - y) <= m.tolerance for x, y in zip(run.losses, losses))
        h.check(not same, f"broken barrier, {order}: it shows", run.losses)
    p.remove()


def sanitized(fix, devices):
    """The whole trainer under AddressSanitizer: no kernel reads or writes outside of what is there."""
    m = eq.gpt2_tiny()
    p = plan(m, devices, fix, "C")
    build(p, "CFLAGS=-O1 -g -fsanitize=address -fno-omit-frame-pointer")
    name, data, losses = m.settings["C"][2][0]
    for order, env in (("forward", {}), ("backward", {}), ("forward", GRAPHS)):
        run = p.train(data=f"npy:{data}", init=m.weights, steps=3, seed=1, env={"ASAN_OPTIONS": "detect_leaks=0", "MPP_SHIM_ORDER": order, **env},
                      allow_failure=True, timeout_s=PATIENCE_S)
        what = f"sanitized, {devices} ranks, {order}{', graphs' if env else ''}"
        h.check(run.process.returncode == 0 and "AddressSanitizer" not in run.err, what, run.err[:800])
        h.close(f"{what}: losses", run.losses, losses[:3], m.tolerance)
    p.remove()


# ---- bytes ----

BYTES = [  # beside gpt: by default?, what, model, preset, -D, --fix, further options
    (True, "bert", "models/bert.xml", "tiny"),
    (True, "mlp", "models/mlp.xml", "tiny"),
    (True, "gpt in bf16", "models/gpt.xml", "tiny", {"layers": 2}, None, ("--precision", "bf16")),
    (False, "gpt, two micro-batches", "models/gpt.xml", "tiny", {"layers": 2}, "micro_batches=2"),
    (False, "gpt of odd sizes", "models/gpt.xml", "tiny", {"layers": 2, "hidden": 132, "vocab": 509}, None, ("--precision", "bf16")),
    (False, "gpt with dropout", "models/gpt.xml", "tiny", {"layers": 2, "pdrop": 0.1}),
    (False, "bert with dropout", "models/bert.xml", "tiny", {"pdrop": 0.1}, "micro_batches=2"),
]


def counted(p):
    """What each kernel of a step of P moved; the trainer must be there."""
    path = h.TMP / "bytes.txt"
    path.unlink(missing_ok=True)
    p.train(data="synthetic", steps=1, seed=1, metrics=False, env={"MPP_SHIM_REPORT": str(path)})
    h.check("cublasLtMatmul_tf32" not in path.read_text(), "f32 means f32 unless TF32 is asked for")
    return fused_bytes.report(path)


def bytes_moved(what, model, preset, D=None, fix=None, extra=()):
    """Each emitted kernel reads each input once and writes each output once."""
    p = h.plan(model, gpus=1, preset=preset, D=D, fix=fix, extra=extra)
    shared = build(p)
    calls = fused_bytes.calls(p, p.json["micro_batches"])
    names = fused_bytes.functions(p)
    faults = fused_bytes.faults(p, calls, counted(p))
    for name in sorted(set(names) | set(faults)):
        h.check(name not in faults, f"bytes of {what}: {name}", faults.get(name))
    return p, shared, calls


def bytes_of_gpt():
    p, shared, calls = bytes_moved("gpt", "models/gpt.xml", "tiny", D={"layers": 2})
    for where, says, found in fused_bytes.documented(p, calls, (h.ROOT / "docs" / "kernels.md").read_text()):
        h.check(says == found, f"docs/kernels.md: {where}", f"says {says}, it is {found}")
    # a test of the test
    source = p.dir / "kernels.cu"
    text = broken = source.read_text()
    for name, pointer in (("fused_add_reduce_sum", "a"), ("fused_add", "b"), ("fused_gelu_grad_reduce_sum", "b")):
        broken = twice(broken, name, pointer)
    source.write_text(broken)
    make(p, shared, "CFLAGS=-O1")
    faults = fused_bytes.faults(p, calls, counted(p))
    h.check(set(faults) == {"fused_add_reduce_sum", "fused_add", "fused_gelu_grad_reduce_sum"}, "bytes: what is read twice shows", faults)
    past = text.replace("mpp_write_pack<W>(y, i * cols + j0, to_y);", "y[i * cols + j0] = 0;", 1)
    h.check(past != text and fused_bytes.uncounted(past), "bytes: accesses that nothing counts show")
    p.remove()


def twice(text, function, pointer):
    """The kernel of FUNCTION with one more access to POINTER."""
    at = text.index(f"void {function}_kernel(")
    read = re.search(rf"const (\S+ W>|\S+) (from_{pointer})( = mpp_read\w*<W>\({pointer}, .*?\);)", text[at:])
    line = read.group()
    return text[:at] + text[at:].replace(line, f"{line} const {read.group(1)} again{read.group(3)} (void)again;", 1)


# ---- what is said where something is missing ----

def says(what, p, env, *words, status=1):
    run = p.train(data="synthetic", steps=1, env=env, allow_failure=True, metrics=False)
    err = [line for line in run.err.splitlines() if line.startswith("error:")]
    h.check(run.process.returncode == status and len(err) == 1 and all(w in err[0] for w in words), f"errors: {what}",
            f"status {run.process.returncode}: {run.err[:400]}")


def places(p):
    """Processes without LOCAL_RANK take the GPUs of their machine by their number among its ranks."""
    command = [p.dir / "trainer", "--data", "synthetic", "--steps", "1"]
    env = {None: {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None, "MPP_SHIM_DEVICES": "1", "OPENBLAS_NUM_THREADS": "1"}}
    machine = ["unshare", "--uts", "sh", "-c", 'hostname "machine$RANK" && exec "$@"', "sh"]
    if shutil.which("unshare") and h.run([*machine, "true"], env={"RANK": "0"}).returncode == 0:
        job = TcpJob(2, [*machine, *command], env=env)
        h.check(set(job.end(PATIENCE_S).values()) == {0}, "places: two machines with a GPU each", job.err)
    else:
        h.skip("places of ranks on several machines: unshare --uts takes root")
    job = TcpJob(2, command, env=env)
    codes, said = job.end(PATIENCE_S), job.errors()
    h.check(set(codes.values()) == {1} and len(said) == 1 and f"rank 1: {os.uname().nodename[:63]} has 1 GPU for 2 ranks" in said[0],
            "places: more ranks than GPUs", f"{codes} {said}")


def errors():
    p = h.plan("models/gpt.xml", gpus=2, preset="tiny", fix="dp=2")
    build(p)
    places(p)
    says("no driver", p, {"MPP_SHIM_DRIVER": "0"}, "no NVIDIA driver")
    says("an old driver", p, {"MPP_SHIM_DRIVER": "12040"}, "CUDA 12.4", "CUDA 13.0", "update the driver")
    says("no GPU", p, {"MPP_SHIM_DEVICES": "0"}, "no GPU")
    says("too few GPUs", p, {"MPP_SHIM_DEVICES": "1"}, "1 GPU for 2 ranks")
    says("out of memory", p, {"MPP_SHIM_MEMORY": "50000000"}, "out of memory", "bytes", "free")
    told.nvml(p, h.TMP / "products.txt")
    empty = {"PATH": h.TMP / "nothing"}
    os.makedirs(h.TMP / "nothing", exist_ok=True)
    for tool in ("make", "sh", "bash", "sed", "gcc", "cc"):
        if shutil.which(tool) and not (h.TMP / "nothing" / tool).exists():
            os.symlink(shutil.which(tool), h.TMP / "nothing" / tool)
    made = h.run(["make", "-C", p.dir, "BACKEND=cuda", "CUDA_HOME=" if not NVCC else f"CUDA_HOME={h.TMP}/nowhere", "MPI=0"],
                 env={"PATH": str(empty["PATH"])})
    h.check(made.returncode != 0 and "CUDA_HOME=DIR" in made.stderr and ("nvcc" in made.stderr), "errors: no nvcc", made.stderr[:400])
    host = h.run(["make", "-s", "-C", p.dir, "-n", "BACKEND=host", "MPI=0"], env={"PATH": os.environ["PATH"]})
    h.check(host.returncode == 0, "errors: the host's build does not mind", host.stderr[:400])
    p.remove()
    p = h.plan("models/gpt.xml", gpus=2, preset="tiny", fix="dp=2", cluster="dgx1-v100")
    told.makefile(p)
    p.remove()


# ---- nvcc ----

def compiles(arch, model, preset, devices, fix, extra=()):
    p = h.plan(model, gpus=devices, preset=preset, fix=fix, extra=extra)
    home = str(Path(NVCC).resolve().parent.parent)
    made = h.run(["make", "-s", "-j2", "-C", p.dir, "BACKEND=cuda", f"CUDA_ARCH={arch}", f"CUDA_HOME={home}", "MPI=0"], 1200)
    what = " ".join(["nvcc,", arch, model, preset, fix, *extra])
    h.check(made.returncode == 0 and "warning" not in made.stdout + made.stderr, f"{what}: compiles and links without a warning",
            (made.stdout + made.stderr)[-1500:])
    if made.returncode == 0 and not Path("/dev/nvidia0").exists():
        says(f"{what}: without a driver", p, {}, "no NVIDIA driver")
    p.remove()


def nvcc():
    if NVCC is None:
        h.skip("nvcc is not here: nothing is compiled for GPUs")
        return
    for arch in ("sm_75", "sm_80", "sm_90"):
        compiles(arch, "models/gpt.xml", "tiny", 4, "dp=2,tp=2")
        compiles(arch, "models/bert.xml", "tiny", 2, "tp=2")
        compiles(arch, "models/gpt.xml", "tiny", 2, "dp=2", ("--precision", "bf16"))
        compiles(arch, "models/mlp.xml", "tiny", 2, "dp=2")
        compiles(arch, "models/gpt.xml", "tiny", 2, "pp=2", ("--precision", "fp16"))


def main():
    parts = {"references": references, "epilogues": epilogues, "bf16": lambda: follow("bf16", 2, "dp=2", 50 if h.FULL else 3), "overflow": overflow,
             "barrier": broken_barrier, "bytes": bytes_of_gpt, "errors": errors, "budget": told.budget}
    for default, what, *arguments in BYTES:
        if default or h.FULL:
            parts[f"bytes of {what}"] = lambda what=what, arguments=arguments: bytes_moved(what, *arguments)[0].remove()
    if h.FULL:
        parts["fp16"] = lambda: follow("fp16", 4, "dp=2,tp=2", 50)
        parts.update({"graphs": graphs, "graphs, skipped steps": graphs_overflow, "graphs, evaluation": graphs_evaluation,
                      "graphs, what varies": graphs_baked})
        parts["sanitized 1"] = lambda: sanitized("", 1)
        parts["sanitized 4"] = lambda: sanitized("dp=2,tp=2", 4)
        parts["beside"] = beside_host
        parts["processes"] = processes
        parts["nvcc"] = nvcc
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
