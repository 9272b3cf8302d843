"""What CUDA trainers tell: memory beside the arena, what NVML knows, TF32; and what `make BACKEND=cuda` says is missing. Parts of
test_cuda.py."""
import os
import re
import shutil

import harness as h

# A management library that knows of one process on the second GPU, which draws 250 W. Both versions of a call that drivers have.
NVML = r"""
#include <string.h>
struct process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };
static int entered;
int nvmlInit_v2(void) { entered++; return 0; }
int nvmlShutdown(void) { entered--; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) { *out = strcmp(bus, "0000:01:00.0") ? 0 : &entered; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *n, struct process *out)
{
    if (device != 0 && *n > 0)
        out[0] = (struct process){1, 10200000000ull, ~0u, ~0u};
    *n = device != 0;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 250400; return entered == 1 ? 0 : 999; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = 1410; return type == 1 ? 0 : 2; }
"""


def beside(run):
    """What the trainer says that it holds beside the arena, and what the plan counts, in MB; the whole line."""
    m = re.search(r"beside its arena a GPU holds at most ([\d.]+) MB of the trainer's; the plan counts ([\d.]+) MB.*", run.out)
    return (float(m[1]), float(m[2]), m[0]) if m else (None, None, run.out[-400:])


def check_beside(what, run):
    held, counted, line = beside(run)
    h.check(held is not None and 0 < held <= counted and "not enough" not in line, f"{what}: beside the arena no more than planned", line)


def nvml(p, report):
    """A run of P (two ranks, built) where NVML is, in TF32 and with --profile; and one that memory does not suffice for."""
    folder = h.TMP / "nvml"
    folder.mkdir(exist_ok=True)
    (folder / "nvml.c").write_text(NVML)
    h.must(h.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"]))
    env = {"LD_LIBRARY_PATH": str(folder), "MPP_TF32": "1", "MPP_SHIM_REPORT": str(report)}
    run = p.train(data="synthetic", steps=1, env=env, profile=h.TMP / "trace.json")
    h.check("note: rank 1, GPU 1 (processor standing in for GPU 1) is not free: pid 1 holds 10.2 GB" in run.err
            and run.err.count("is not free") == 1, "NVML: others are named", run.err[:400])
    h.check("; GPU 0: 250 W, 1410 MHz" in run.out, "NVML: power and clock with --profile", run.out[-300:])
    h.check("products of f32 in TF32" in run.out, "TF32: it is said", run.out[:300])
    rows = report.read_text()
    h.check("cublasLtMatmul_tf32" in rows and "cublasLtMatmul_f32" not in rows, "TF32: all products of f32", rows[:300])
    check_beside("NVML", run)
    arena = p.arenas[0]
    poor = p.train(data="synthetic", steps=1, env={**env, "MPP_SHIM_MEMORY": str(arena + (34 << 20))}, allow_failure=True, metrics=False)
    line = next((x for x in poor.err.splitlines() if x.startswith("error:")), "")
    h.check(poor.process.returncode == 1 and f"the plan's report counts an arena of {arena} bytes" in line and "beside it" in line
            and re.search(r"of \d+ bytes \([^)]*\) where \d+ bytes", line), "out of memory: wanted, free, planned", poor.err[:600])


# ---- the planner's budget ----

LAB = """<cluster name="lab" devices_per_node="1" channels="4">
  <device name="g" arch="sm_80">
    <memory bytes="{bytes}" usable="1" context_bytes="50000000" bytes_per_s="1e12"/>
    <peak precision="f32" flops_per_s="1e13"/>
    <kernel launch_s="5e-6"/>
    <gemm efficiency="0.8" half_k="5"/>
  </device>
  <pcie bytes_per_s="12e9" total_bytes_per_s="40e9"/>
  <protocol name="ring" algorithm="ring" base_s="2e-5" step_s="1e-6"/>
</cluster>
"""


def on_memory(size):
    """The arena and what lies beside it of gpt tiny on a GPU with SIZE bytes, all of them usable; None, None: nothing fits."""
    lab = h.TMP / "lab.xml"
    lab.write_text(LAB.format(bytes=size))
    out = h.TMP / "lab"
    shutil.rmtree(out, ignore_errors=True)
    p = h.mpplan(*h.arguments("models/gpt.xml", gpus=1, preset="tiny", cluster=lab), "-o", out)
    if p.returncode == 2:
        return None, None
    h.must(p)
    told = re.search(r"\.arena_bytes = (\d+).*\.beside_bytes = (\d+)", (out / "stage0_tables.c").read_text(), re.S)
    return int(told[1]), int(told[2]) + 50000000


def budget():
    """What lies beside the arena takes room from it where the reserve has none."""
    arena, beside = on_memory(1 << 30)
    report = re.sub(r"\s+", " ", (h.TMP / "lab" / "report.txt").read_text())
    h.check("beside the arena at most" in report and "the driver's context about 47.7 MiB" in report, "the report has what lies beside", report[-900:])
    same, _ = on_memory(arena + beside)
    h.check(same == arena, "memory for the arena and what lies beside it is enough", (same, arena))
    less, near = on_memory(arena + beside - 65536)
    h.check(less is None or less + near <= arena + beside - 65536, "with less the arena gets smaller, or nothing fits", (less, arena))


# ---- make ----

TOOLKIT = {"bin/nvcc": None, "include/cublasLt.h": "", "lib64/libcublasLt.so": "", "include/nccl.h": "", "lib64/libnccl.so": ""}


def toolkit(folder, version, codes, without=()):
    """A folder that looks like a CUDA toolkit to make."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in TOOLKIT.items():
        if name in without:
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        nvcc = f'#!/bin/sh\ncase $1 in --list-gpu-code) echo "{codes}";; *) echo "release {version}, V{version}";; esac\n'
        (folder / name).write_text(nvcc if text is None else text)
    os.chmod(folder / "bin/nvcc", 0o755)


def make_says(what, p, words, *flags, version="13.0", codes="sm_75 sm_80 sm_90", without=(), fails=True):
    toolkit(h.TMP / "toolkit", version, codes, without)
    made = h.run(["make", "-n", "-s", "-C", p.dir, "BACKEND=cuda", f"CUDA_HOME={h.TMP}/toolkit", "GPU_HERE=", "MPI=0", *flags])
    text = made.stdout + made.stderr
    lines = [x for x in text.splitlines() if "***" in x or "BACKEND=cuda:" in x]
    h.check((made.returncode != 0) == fails and len(lines) >= 1 and all(w in " ".join(lines) for w in words), f"make: {what}", text[-600:])


def makefile(p):
    """P: a plan for a cluster of V100."""
    make_says("a toolkit too new for the plan's GPUs", p, ["built for sm_70, the plan's V100", "CUDA 13.0", "11.8 to 12.9"])
    make_says("one that has them", p, ["no GPU is here, so it is built for sm_70, the plan's V100"], version="12.9", codes="sm_60 sm_70 sm_80",
              fails=False)
    make_says("sm_60 asked for", p, ["CUDA_ARCH=sm_60", "sm_75 sm_80 sm_90", "11.8 to 12.9"], "CUDA_ARCH=sm_60")
    make_says("an architecture that is none", p, ["CUDA_ARCH=sm_99", "name one of these"], "CUDA_ARCH=sm_99")
    for name, words in {"include/cublasLt.h": "cuBLAS (cublasLt.h)", "lib64/libcublasLt.so": "cuBLAS (libcublasLt.so)",
                        "include/nccl.h": "NCCL (nccl.h)", "lib64/libnccl.so": "NCCL (libnccl.so)"}.items():
        system = [*h.Path("/usr/include").glob("nccl.h"), *h.Path("/usr/lib").glob("*/libnccl.so*"), *h.Path("/usr/lib").glob("*/libcublasLt.so*")]
        if not any(s.name.startswith(h.Path(name).name) for s in system):
            make_says(f"{name} is missing", p, [words], "CUDA_ARCH=sm_80", without=(name,))
