#!/usr/bin/env python3
"""What only a GPU can show; started by run.sh (README.md)."""
import json
import os
import re
import shutil
import statistics
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

REHEARSE = "--rehearse" in sys.argv

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
SHARED = h.TMP / "runtime"


def build(p):
    """The trainer of P, for this machine's GPUs."""
    if REHEARSE:
        cuda.build(p)
        return
    SHARED.mkdir(exist_ok=True)
    for s in (p.dir / "runtime").rglob("*"):
        os.utime(s, (0, 0))
    home = [f"CUDA_HOME={Path(cuda.NVCC).resolve().parent.parent}"] if cuda.NVCC else []
    h.must(h.run(["make", "-s", "-j4", "-C", p.dir, "BACKEND=cuda", f"CUDA_ARCH={ARCH}", f"RUNTIME_BUILD={SHARED}", "MPI=0", *home], 600))


# ---- parts ----

def reference(m, setting, devices, fix):
    what = f"{m.folder} {setting}, {devices} GPUs, {fix or 'auto'}"
    p = cuda.plan(m, devices, fix, setting)
    build(p)
    _, data, losses = m.settings[setting][2][0]
    grads = h.TMP / "grads.safetensors"
    steps = 2 if REHEARSE else 10
    run = p.train(data=f"npy:{data}", init=m.weights, steps=steps, seed=1, dump_grads=grads)
    h.check(len(run.losses) == steps, f"{what}: all steps", len(run.losses))
    h.close(f"{what}: losses", run.losses, losses[:len(run.losses)], m.tolerance)
    eq.check_gradients(what, m, grads)
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


def memory():
    tool = shutil.which("compute-sanitizer") or (str(Path(cuda.NVCC).with_name("compute-sanitizer")) if cuda.NVCC else "")
    if REHEARSE or not Path(tool).exists():
        h.skip("compute-sanitizer is not here")
        return
    for kind in ("memcheck", "racecheck"):
        p = h.plan("models/gpt.xml", gpus=1, preset="tiny", D={"layers": 1})
        build(p)
        run = h.run([tool, "--tool", kind, "--error-exitcode", "9", p.dir / "trainer", "--data", "synthetic", "--steps", "1"], 200)
        h.check(run.returncode == 0, f"compute-sanitizer {kind}", (run.stdout + run.stderr)[-1500:])
        p.remove()


# ---- the table ----

def peak(kind):
    """FLOP/s of this GPU in the table of devices; None: it is not there."""
    words = re.split(r"[\s-]+", GPUS[0].split(",")[0])
    for path in sorted((h.ROOT / "costmodel" / "devices").glob("*.xml")):
        root = ET.parse(path).getroot()
        if root.get("name", "").split("-")[0] in words:
            for p in root.iter("peak"):
                if p.get("precision") == {"f32": "tf32"}.get(kind, kind):
                    return float(p.get("flops_per_s"))
    return None


def row(what, step_s, tokens, flops_per_token, kind, n):
    top = peak(kind)
    used = f"{100 * tokens * flops_per_token / step_s / n / top:5.1f} %" if top else "      -"
    print(f"   {what:44} {1e3 * step_s:9.2f} ms {tokens / step_s:11,.0f} tokens/s {used}", flush=True)


def bench_one(preset, batch, kind):
    n = len(GPUS)
    sizes = {"gpt2": (12, 768, 12), "gpt2-xl": (48, 1600, 25), "tiny": (4, 128, 4)}[preset]
    vocab, seq = (512, 64) if preset == "tiny" else (50257, 1024)
    p = h.plan("models/gpt.xml", gpus=n, preset=preset, batch=batch * n, timeout_s=300,
               extra=("--precision", {"f32": "fp32"}.get(kind, kind)))
    build(p)
    run = p.train(data="synthetic", steps=3 if REHEARSE else 12, init="random")
    layers, hidden, heads = sizes
    parameters = 12 * layers * hidden * hidden + vocab * hidden
    flops = 6 * parameters + 12 * layers * hidden * seq
    step_s = statistics.median(r["step_s"] for r in run.rows[len(run.rows) // 3:])
    row(f"mpplan, {preset}, {kind}, {n} GPUs, batch {batch * n}", step_s, batch * n * seq, flops, kind, n)
    h.check(all(r["loss"] == r["loss"] for r in run.rows), f"bench {preset} {kind}: losses are numbers")
    p.remove()
    for compiled in ([], ["--compile"]):
        t = h.run([sys.executable, h.ROOT / "tests/gpu/torch_step.py", "--layers", layers, "--hidden", hidden, "--heads", heads, "--vocab",
                   vocab, "--seq", seq, "--batch", batch, "--precision", kind, "--device", "cpu" if REHEARSE else "cuda", *compiled], 240)
        if t.returncode != 0:
            h.skip(f"PyTorch{' compiled' if compiled else ''}: {t.stderr.strip().splitlines()[-1][:120] if t.stderr.strip() else 'no'}")
            continue
        out = json.loads(t.stdout.splitlines()[-1])
        step_s = statistics.median(out["step_s"][len(out["step_s"]) // 3:])
        row(f"PyTorch {out['version']}, {'compiled' if compiled else 'eager'}, {kind}, 1 GPU, batch {batch}", step_s, batch * seq, flops,
            kind, 1)


def bench():
    print(f"   {len(GPUS)} x {GPUS[0]}; one step, the median of the later ones")
    for preset, batch, kind in [("tiny", 4, "f32")] if REHEARSE else [("gpt2", 8, "bf16"), ("gpt2", 8, "f32"), ("gpt2-xl", 4, "bf16")]:
        h.guarded(f"bench {preset} {kind}", bench_one, preset, batch, kind)


def main():
    if not GPUS:
        print("no GPU is here (nvidia-smi lists none): nothing is tested; --rehearse tests this script")
        return 1
    if not REHEARSE and cuda.NVCC is None:
        print("nvcc is not here: install the CUDA toolkit, 11.8 or later")
        return 1
    parts = {"references": references, "memory": memory, "bench": bench}
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
