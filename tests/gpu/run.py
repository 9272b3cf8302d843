#!/usr/bin/env python3
"""What only a GPU can show; started by run.sh (README.md). Each part is a process of its own, with a time limit of its own: what
fails or hangs there ends nothing else."""
import hashlib
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

REHEARSE = "--rehearse" in sys.argv
ALL_S = 470  # of all parts together
END = float(os.environ.get("MPP_GPU_END", "inf"))  # of this part, by time.time()

import harness as h  # noqa: E402
import test_cuda as cuda  # noqa: E402
import test_equivalence as eq  # noqa: E402
import test_precision as precision  # noqa: E402


def gpus():
    """Names of the GPUs of this machine."""
    if REHEARSE:
        return ["none: a processor stands in"] * 2
    if shutil.which("nvidia-smi") is None:
        return []
    p = h.run(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"])
    return [line.strip() for line in p.stdout.splitlines() if line.strip()] if p.returncode == 0 else []


GPUS = gpus()
ARCH = next((f"sm_{m[1]}{m[2]}" for m in [re.search(r"(\d+)\.(\d+)$", GPUS[0])] if m), "sm_80") if GPUS else "sm_80"
JOBS = f"-j{min(os.cpu_count() or 1, 8)}"
MMA = {"MPP_ATTENTION": "mma"} if int(ARCH[3:]) >= 80 else None  # attention on tensor cores; None: this GPU has none for it
VERIFIED = "no GPU: rehearsed, not verified" if REHEARSE else f"verified on {GPUS[0]}" if GPUS else ""

plain_run = h.run


def run_in_time(command, timeout_s=300, *args, **kwargs):
    """As the harness's, but no longer than the part may take."""
    left = END - time.time()
    if left < 2:
        raise h.Failure(f"no time is left for {Path(str(command[0])).name}")
    return plain_run(command, min(timeout_s, left), *args, **kwargs)


h.run = run_in_time


def shared():
    """Where all plans find the compiled runtime, also in a later run; its name tells what it was compiled from."""
    text = "".join(f"{s.relative_to(h.ROOT)}{s.read_text()}" for s in cuda.sources()) + ARCH
    folder = Path(os.environ.get("MPP_BUILD", h.ROOT / "build")) / "trainer-runtime" / ("gpu-" + hashlib.sha256(text.encode()).hexdigest()[:12])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def flags():
    """Of make, for this machine's GPUs."""
    home = [f"CUDA_HOME={Path(cuda.NVCC).resolve().parent.parent}"] if cuda.NVCC else []
    if REHEARSE:
        return ["BACKEND=cuda", f"CUDA_SHIM={cuda.SHIM}", "MPI=0", "CFLAGS=-O1"]
    return ["BACKEND=cuda", f"CUDA_ARCH={ARCH}", "MPI=0", *home]


def build(p, *more):
    """The trainer of P; returns the folder of the compiled runtime."""
    if REHEARSE:
        return cuda.build(p)
    folder = shared()
    for s in (p.dir / "runtime").rglob("*"):
        os.utime(s, (0, 0))
    h.must(h.run(["make", "-s", JOBS, "-C", p.dir, f"RUNTIME_BUILD={folder}", *flags(), *more], 600))
    return folder


# ---- parts ----

def compile_all():
    """The runtime, which all parts use."""
    p = h.plan("models/gpt.xml", gpus=1, preset="tiny")
    build(p)
    h.check((p.dir / "trainer").exists(), "the runtime compiles and links")
    p.remove()


def make_variable(p, name):
    made = h.must(h.run(["make", "-s", "-C", p.dir, *flags(), f"--eval=show: ; @echo '$({name})'", "show"]))
    return made.stdout.split()


def conformance():
    """The runtime's unit tests, written for the host's kernels, on the GPU's."""
    p = h.plan("models/gpt.xml", gpus=1, preset="tiny")
    library = h.TMP / "libmpp_rt.a"
    built = build(p)
    h.must(h.run(["ar", "rcs", library, *sorted((built / "runtime").rglob("*.o")), *sorted((built / "shim").glob("*.o"))]))
    jansson = h.run(["pkg-config", "--cflags", "--libs", "jansson"]).stdout.split() or ["-ljansson"]
    compiler = ["cc", "-std=gnu17", "-O2", *make_variable(p, "BACKEND_FLAGS"), "-I.", "-Iruntime", "-Itests"]
    libraries = [library, *make_variable(p, "BACKEND_LIBS"), *make_variable(p, "BLAS_LIBS"), *jansson, "-lpthread", "-lm", "-lstdc++"]
    sources = {name: f"tests/test_runtime_{name}.c" for name in ("kernels", "table", "attention", "half", "conformance")}
    if MMA:
        sources["attention_mma"] = "tests/cuda/test_attention_mma.c"
    else:
        h.skip(f"attention on tensor cores: it takes sm_80, this is {ARCH}")
    for name, source in sources.items():
        program = h.TMP / name
        made = h.run([*compiler, "-DMPP_CONFORMANCE_GPU", "-include", "tests/cuda/conformance.h", "-c", source, "-o",
                      program.with_suffix(".o")], cwd=h.ROOT)
        if h.check(made.returncode == 0, f"conformance of {name}: compiles", made.stderr[:800]):
            made = h.run([*compiler, "-o", program, program.with_suffix(".o"), "tests/cuda/conformance.c", "tests/gpu/conformance_gpu.c",
                          "-Wl,--wrap=cudaMalloc", "-Wl,--wrap=mpp_all_reduce", *libraries], cwd=h.ROOT)
            if h.check(made.returncode == 0, f"conformance of {name}: links", made.stderr[:800]):
                conform(name, program)
    h.skip("collectives, transfers, pipeline: their ranks are threads of one GPU, which NCCL does not take; see references")
    p.remove()


def conform(name, program):
    for env in [{"MPP_TEST_MANAGED": "0"}, {"MPP_TEST_MANAGED": "1"}] if REHEARSE and name == "attention" else [{}]:
        run = h.run([program], 60, env)
        last = re.search(r"(\d+) passed, (\d+) failed", run.stdout)
        ok = h.check(run.returncode == 0 and last and int(last[1]) > 0, f"conformance of {name}", (run.stdout + run.stderr)[-1200:])
        told = f"; attention on tensor cores, its kernels: {VERIFIED}" if ok and name == "attention_mma" else ""
        print(f"   {name}: {last[0] if last else 'no result'}{told}", flush=True)


def reference(m, setting, devices, fix):
    what = f"{m.folder} {setting}, {devices} GPUs, {fix or 'auto'}"
    p = cuda.plan(m, devices, fix, setting)
    build(p)
    _, data, losses = m.settings[setting][2][0]
    grads = h.TMP / "grads.safetensors"
    steps = 3 if REHEARSE else 10
    run = p.train(data=f"npy:{data}", init=m.weights, steps=steps, seed=1, dump_grads=grads)
    h.check(len(run.losses) == steps, f"{what}: all steps", len(run.losses))
    h.close(f"{what}: losses", run.losses, losses[:len(run.losses)], m.tolerance)
    eq.check_gradients(what, m, grads)
    again = p.train(data=f"npy:{data}", init=m.weights, steps=steps, seed=1, env=cuda.GRAPHS)
    cuda.same_steps(f"{what}, graphs", again, run)
    p.remove()


def references():
    models = {m.folder: m for m in (eq.gpt2_tiny(), eq.gpt2_deep(), eq.bert_tiny())}
    for folder, setting, devices, fix, sample in [(cuda.TINY, "A", 1, "", True), *cuda.PLANS]:
        if devices > len(GPUS):
            h.skip(f"{folder} {setting} {fix}: {devices} GPUs, here are {len(GPUS)}")
        elif sample or not REHEARSE:
            h.guarded(f"{folder} {setting} {fix}", reference, models[folder], setting, devices, fix)
    for kind in ("bf16", "fp16"):
        h.guarded(kind, follow, kind, 3 if REHEARSE else 50)


def follow(kind, steps):
    """The losses follow those of fp32 on the host."""
    wide = precision.train(precision.plan("fp32"), steps=steps).losses
    p = precision.plan(kind, 1, "")
    build(p)
    got = precision.train(p, steps=steps).losses
    off = max(abs(x / y - 1) for x, y in zip(got, wide))
    h.check(len(got) == steps and off <= precision.FOLLOW, f"{kind} follows fp32", f"off by {100 * off:.3g} %")
    if MMA:
        follow_mma(kind, p, wide, got)
    p.remove()


def follow_mma(kind, p, wide, without):
    """The same on tensor cores: other bits, losses as near; with graphs the same bits again."""
    what, steps = f"{kind}, attention on tensor cores", len(without)
    run = precision.train(p, steps=steps, env=MMA)
    off = max(abs(x / y - 1) for x, y in zip(run.losses, wide))
    ok = h.check("on tensor cores" in run.out and run.losses != without, f"{what}: it runs", run.out[:200])
    ok = h.check(len(run.losses) == steps and off <= precision.FOLLOW, f"{what}: follows fp32", f"off by {100 * off:.3g} %") and ok
    ok = h.close(f"{what}: as without", run.losses, without, precision.SPREAD) and ok
    cuda.same_steps(f"{what}, graphs", precision.train(p, steps=steps, env={**MMA, **cuda.GRAPHS}), run)
    if ok:
        print(f"   {what}, a trainer's losses: {VERIFIED}", flush=True)


def memory():
    tool = shutil.which("compute-sanitizer") or (str(Path(cuda.NVCC).with_name("compute-sanitizer")) if cuda.NVCC else "")
    if REHEARSE or not Path(tool).exists():
        h.skip("compute-sanitizer is not here")
        return
    for what, extra, env in [("", (), {}), (", attention on tensor cores", ("--precision", "bf16"), MMA)]:
        if env is None or END - time.time() < 15:
            h.skip(f"compute-sanitizer{what}: {'it takes sm_80' if env is None else 'no time is left'}")
            continue
        p = h.plan("models/gpt.xml", gpus=1, preset="tiny", D={"layers": 1}, extra=extra)
        build(p)
        for kind in ("memcheck", "racecheck"):
            run = h.run([tool, "--tool", kind, "--error-exitcode", "9", p.dir / "trainer", "--data", "synthetic", "--steps", "1"], 200, env)
            h.check(run.returncode == 0, f"compute-sanitizer {kind}{what}", (run.stdout + run.stderr)[-1500:])
        p.remove()


# ---- the table ----

def device():
    """This GPU in the table of devices, of several the one that has more of its name; None: it is not there."""
    words = [w.lower() for w in re.split(r"[\s-]+", GPUS[0].split(",")[0])]
    found = []
    for path in sorted((h.ROOT / "costmodel" / "devices").glob("*.xml")):
        root = ET.parse(path).getroot()
        names = [w.lower() for w in root.get("name", "").split("-")]
        if names[0] in words:
            found.append((-sum(n in words for n in names), path.name, root))
    return min(found, key=lambda x: x[:2])[2] if found else None


def peak(kind):
    """FLOP/s of this GPU in the table of devices; None: it is not there."""
    root = device()
    peaks = {p.get("precision"): float(p.get("flops_per_s")) for p in root.iter("peak")} if root is not None else {}
    return peaks.get(kind)


def row(what, step_s, tokens, flops_per_token, kind, n):
    top = peak(kind)
    used = f"{100 * tokens * flops_per_token / step_s / n / top:5.1f} %" if top else "      -"
    print(f"   {what:64} {1e3 * step_s:9.2f} ms {tokens / step_s:11,.0f} tokens/s {used}", flush=True)


def torch_row(compiled, sizes, seq, vocab, batch, kind, flops):
    layers, hidden, heads = sizes
    what = f"PyTorch {'compiled' if compiled else 'eager'}"
    if END - time.time() < 15:
        h.skip(f"{what}, {hidden} wide, {kind}: no time is left")
        return
    if importlib.util.find_spec("torch") is None:
        h.skip(f"{what}, {hidden} wide, {kind}: no PyTorch for {sys.executable}")
        return
    try:
        t = h.run([sys.executable, h.ROOT / "tests/gpu/torch_step.py", "--layers", layers, "--hidden", hidden, "--heads", heads, "--vocab",
                   vocab, "--seq", seq, "--batch", batch, "--precision", kind, "--device", "cpu" if REHEARSE else "cuda",
                   *(["--compile"] if compiled else [])], 60)
    except h.Failure as e:
        h.skip(f"{what}, {hidden} wide, {kind}: {str(e).splitlines()[0][-60:]}")
        return
    if t.returncode != 0:
        h.skip(f"{what}: {t.stderr.strip().splitlines()[-1][:120] if t.stderr.strip() else 'no'}")
        return
    out = json.loads(t.stdout.splitlines()[-1])
    step_s = statistics.median(out["step_s"][len(out["step_s"]) // 3:])
    row(f"PyTorch {out['version']}, {'compiled' if compiled else 'eager'}, {kind}, 1 GPU, batch {batch}", step_s, batch * seq, flops, kind, 1)


SIZES = {"gpt2": (12, 768, 12), "gpt2-xl": (48, 1600, 25), "tiny": (4, 128, 4)}  # layers, hidden, heads


def workload(preset):
    """(vocabulary, length, FLOPs of a token) of PRESET."""
    (layers, hidden, _), (vocab, seq) = SIZES[preset], (512, 64) if preset == "tiny" else (50257, 1024)
    return vocab, seq, 6 * (12 * layers * hidden * hidden + vocab * hidden) + 12 * layers * hidden * seq


def bench_one(preset, batch, kind):
    """Rows of mpplan's trainer. What no time is left for is skipped, and does not take those that are there along."""
    n = len(GPUS)
    _, seq, flops = workload(preset)
    p = h.plan("models/gpt.xml", gpus=n, preset=preset, batch=batch * n, timeout_s=100,
               extra=("--precision", {"tf32": "fp32"}.get(kind, kind)))
    build(p)
    environment = {"MPP_TF32": "1" if kind == "tf32" else "0", "MPP_GRAPHS": "0", "MPP_ATTENTION": ""}
    runs, mma = {}, ", attention on tensor cores"
    for what, env in [("", {}), (", graphs", cuda.GRAPHS), *([(mma, MMA)] if MMA and kind == "bf16" else [])]:
        if runs and END - time.time() < 15:
            h.skip(f"mpplan{what}, {preset}, {kind}: no time is left")
            continue
        run = runs[what] = p.train(data="synthetic", steps=3 if REHEARSE else 12, init="random", env={**environment, **env})
        step_s = statistics.median(r["step_s"] for r in run.rows[len(run.rows) // 3:])
        row(f"mpplan{what}, {preset}, {kind}, {n} GPUs, batch {batch * n}", step_s, batch * n * seq, flops, kind, n)
        h.check(all(r["loss"] == r["loss"] for r in run.rows), f"bench {preset} {kind}{what}: losses are numbers")
        h.check(("on tensor cores" in run.out) == (what == mma), f"bench {preset} {kind}{what}: as asked", run.out[:200])
    if ", graphs" in runs:
        cuda.same_steps(f"bench {preset} {kind}, graphs", runs[", graphs"], runs[""])
    told = re.search(r"beside its arena.*", runs[""].out)
    print(f"   {told[0] if told else ''}", flush=True)
    p.remove()


def bench():
    print(f"   {len(GPUS)} x {GPUS[0]}; one step, the median of the later ones")
    cases = [("tiny", 4, "bf16"), ("tiny", 4, "tf32")] if REHEARSE else [("gpt2", 8, "bf16"), ("gpt2-xl", 4, "bf16"), ("gpt2", 8, "tf32")]
    for preset, batch, kind in cases:
        h.guarded(f"bench {preset} {kind}", bench_one, preset, batch, kind)
    for compiled in (False, True): # compiling takes longest
        for preset, batch, kind in cases:
            vocab, seq, flops = workload(preset)
            h.guarded(f"bench {preset} {kind}, PyTorch", torch_row, compiled, SIZES[preset], seq, vocab, batch, kind, flops)


# ---- bandwidth of fused kernels ----

def measured(p, *kernel_flags):
    """{kernel: (launches, ms, bytes)} of the emitted kernels of P, built with KERNEL_FLAGS (runtime/cuda/measure.cuh)."""
    report = h.TMP / "kernels.txt"
    report.unlink(missing_ok=True)
    if REHEARSE: # no clock of a GPU: what is counted on the processor
        cuda.build(p)
        p.train(data="synthetic", steps=1, init="random", env={"MPP_SHIM_REPORT": str(report)})
        rows = [line.split(" ", 6) for line in report.read_text().splitlines()]
        return {k: (int(n), 0.0, float(read) + float(written)) for n, read, written, *_, k in rows if k.strip("(").startswith("fused")}
    for old in (p.dir / "build" / "cuda" / "kernels.o", p.dir / "trainer"):
        old.unlink(missing_ok=True)
    build(p, f"KERNEL_FLAGS={' '.join(kernel_flags)}")
    p.train(data="synthetic", steps=5, init="random", env={"MPP_KERNELS": str(report), "MPP_GRAPHS": "0"})
    rows = [line.split(" ", 3) for line in report.read_text().splitlines()]
    return {k: (int(n), float(ms), float(b)) for n, ms, b, k in rows}


def memory_rate():
    """Bytes per second of this GPU's memory in the table of devices; None: it is not there."""
    root = device()
    return float(root.find("memory").get("bytes_per_s")) if root is not None else None


def bandwidth():
    """Of each fused kernel of a few layers of GPT-2: bytes that it reads and writes over its time, operands read by many threads left out."""
    size = {"layers": 1, "hidden": 128} if REHEARSE else {"layers": 2}
    p = h.plan("models/gpt.xml", gpus=1, preset="tiny" if REHEARSE else "gpt2", D=size, batch=8,
               extra=() if REHEARSE else ("--precision", "bf16"))
    times = measured(p, "-DMPP_MEASURE_KERNELS")
    counts = measured(p, "-DMPP_MEASURE_KERNELS", "-DMPP_COUNT_BYTES")
    top = memory_rate()
    total_ms = total_bytes = 0
    for kernel, (launches, ms, _) in sorted(times.items(), key=lambda x: -x[1][1]):
        moved = counts[kernel][2] if kernel in counts else 0
        total_ms, total_bytes = total_ms + ms, total_bytes + moved
        rate = f"{moved / ms / 1e6:8.0f} GB/s" if ms > 0 else "       - GB/s"
        share = f"{100 * moved / (ms / 1e3) / top:5.1f} %" if top and ms > 0 else "     -"
        print(f"   {kernel.strip('()'):44} {launches:5} x {1e3 * ms / launches:9.1f} us {moved / launches / 1e6:9.2f} MB {rate} {share}", flush=True)
    h.check(len(times) > 3 and set(times) == set(counts) and total_bytes > 0, "bandwidth: fused kernels were measured", sorted(times)[:5])
    if total_ms > 0:
        print(f"   all: {total_bytes / total_ms / 1e6:.0f} GB/s{f', {100 * total_bytes / (total_ms / 1e3) / top:.1f} % of the memory' if top else ''}")
    p.remove()


# ---- all parts ----

PARTS = {"build": (compile_all, 100), "conformance": (conformance, 70), "references": (references, 70), "bench": (bench, 150),
         "bandwidth": (bandwidth, 40), "memory": (memory, 40)} # and seconds


def one_part(name, end_s):
    """Runs part NAME as a process of its own; what it printed last: (passed, failed, skipped)."""
    limit = min(PARTS[name][1] * (6 if REHEARSE else 1), end_s - time.time())
    if limit < 5:
        print(f"FAILED: {name}: no time is left")
        return 0, 1, 0
    env = dict(os.environ, MPP_GPU_END=str(time.time() + limit))
    child = subprocess.Popen([sys.executable, __file__, f"--part={name}", *[a for a in sys.argv[1:] if a.startswith("-")]], env=env,
                             stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    done = None
    killed = []
    alarm = threading.Timer(limit + 10, lambda: (killed.append(1), os.killpg(child.pid, 9)))
    alarm.start()
    for line in child.stdout:
        done = re.fullmatch(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\n", line) or done
        if not re.match(r"\d+ passed, \d+ failed", line):
            print(line, end="", flush=True)
    child.wait()
    alarm.cancel()
    if killed or done is None:
        print(f"FAILED: {name}: {f'no end after {limit:.0f} s' if killed else f'ended with status {child.returncode}'}")
        return (int(done[1]), int(done[2]) + 1, int(done[3] or 0)) if done else (0, 1, 0)
    return int(done[1]), int(done[2]), int(done[3] or 0)


def main():
    part = next((a[7:] for a in sys.argv if a.startswith("--part=")), None)
    if not GPUS:
        print("no GPU is here (nvidia-smi lists none): nothing is tested; --rehearse tests this script")
        return 1
    if not REHEARSE and cuda.NVCC is None:
        print("nvcc is not here: install the CUDA toolkit, 11.8 or later")
        return 1
    if part is not None:
        h.guarded(part, PARTS[part][0])
        return h.finish()
    begun, sums = float(os.environ.get("MPP_GPU_BEGUN", time.time())), [0, 0, 0]
    for name in h.only(PARTS):
        print(f"{name}:", flush=True)
        since = time.time()
        sums = [a + b for a, b in zip(sums, one_part(name, begun + ALL_S * (6 if REHEARSE else 1)))]
        print(f"   {time.time() - since:.0f} s", flush=True)
    print(f"{sums[0]} passed, {sums[1]} failed" + (f", {sums[2]} skipped" if sums[2] else ""))
    return 1 if sums[1] or not sums[0] else 0


if __name__ == "__main__":
    sys.exit(main())
