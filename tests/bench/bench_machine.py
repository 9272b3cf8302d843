"""What bench_trainer.py knows of the machine: its sgemm and memory rates, who else uses it, which PyTorch it has."""
import glob
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS")


def clean_environment():
    """This environment without what steers the BLAS; mpirun may run as root."""
    env = {k: v for k, v in os.environ.items() if k not in UNSET}
    return dict(env, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


# ---- the model's matrix products ---------------------------------------------------------------

def model_products(case):
    """{label: (argument of peak.c, times a step, FLOPs of one)}: three products for every linear layer."""
    tokens, h = case["batch"] * case["seq"], case["hidden"]
    layers = [("c_attn", h, 3 * h, case["layers"], False), ("attn.c_proj", h, h, case["layers"], False),
              ("c_fc", h, 4 * h, case["layers"], False), ("mlp.c_proj", 4 * h, h, case["layers"], False),
              ("lm_head", h, case["vocab"], 1, True)]
    out = {}
    for name, n_in, n_out, times, tied in layers:  # the tied weight is [out, in], the others [in, out]
        flops = 2.0 * tokens * n_in * n_out
        forms = [("y", "N", "T" if tied else "N", tokens, n_out, n_in), ("dx", "N", "N" if tied else "T", tokens, n_in, n_out),
                 ("dw", "T", "N", *((n_out, n_in) if tied else (n_in, n_out)), tokens)]
        for form, a, b, m, n, k in forms:
            label = f"{name}.{form}"
            out[label] = (f"{label},{a},{b},{m},{n},{k}", times, flops)
    return out


def matrix_flops(case):
    """Linear layers, and attention's two products forward and four backward over the causal half."""
    linear = sum(n * flops for _, n, flops in model_products(case).values())
    attention = case["layers"] * 6 * 2.0 * case["batch"] * case["hidden"] * case["seq"] * (case["seq"] + 1) / 2
    return linear + attention


# ---- rates -------------------------------------------------------------------------------------

class Peak:
    """peak.c, built once against the BLAS that trainers use."""

    def __init__(self, folder, make=()):
        self.program = Path(folder) / "peak"
        given = dict(word.split("=", 1) for word in make if "=" in word)
        flags = lambda what: subprocess.run(["pkg-config", what, "openblas"], capture_output=True, text=True).stdout.split()
        command = [given.get("CC", "gcc"), "-O3", "-march=native", "-std=c17", "-D_GNU_SOURCE", *flags("--cflags"),
                   str(HERE / "peak.c"), "-o", str(self.program), *(flags("--libs") or ["-lopenblas"])]
        p = subprocess.run(command, capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {p.returncode}:\n{p.stderr}")
        linked = subprocess.run(["ldd", str(self.program)], capture_output=True, text=True).stdout
        paths = [os.path.realpath(line.split()[2]) for line in linked.splitlines() if "openblas" in line.split(" ")[0]]
        self.library = paths[0].rsplit("/", 1)[-1] if paths else "unknown BLAS"

    def start(self, threads, products, seconds):
        env = dict(clean_environment(), OPENBLAS_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
        command = [str(self.program), str(seconds), *(argument for argument, _, _ in products.values())]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def finish(self, process):
        out = process.communicate()[0]
        if process.returncode != 0:
            sys.exit(f"peak ended with {process.returncode}")
        return json.loads(out)

    def measure(self, threads, products, seconds=0.1):
        return self.finish(self.start(threads, products, seconds))

    def measure_pair(self, products, seconds=0.3):
        """What two processes of one thread make at once, over what one makes: square products."""
        few = dict(list(products.items())[:0])
        one = self.measure(1, few, seconds)["square_flops_per_s"]
        both = [self.start(1, few, seconds) for _ in range(2)]
        return sum(self.finish(p)["square_flops_per_s"] for p in both) / one


# ---- others on the machine ---------------------------------------------------------------------

def cpu_seconds():
    """Busy core-seconds of the whole machine since it started, time taken by its host included."""
    with open("/proc/stat") as file:
        words = [int(w) for w in file.readline().split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def watched(work):
    """Run WORK; cores that others used meanwhile."""
    begun, cpu, own = time.monotonic(), cpu_seconds(), own_seconds()
    work()
    return max(0.0, (cpu_seconds() - cpu - (own_seconds() - own)) / (time.monotonic() - begun))


def busy_share(seconds):
    return watched(lambda: time.sleep(seconds))


def describe_machine():
    name = "unknown processor"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


# ---- PyTorch -----------------------------------------------------------------------------------

PROBE = """
import torch
print(torch.__version__)
print(any("libblas.so.3" in line for line in open("/proc/self/maps")))
"""


def probe(python):
    try:
        p = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
    except OSError:
        return None
    return p.stdout.split() if p.returncode == 0 else None


def torch_contenders(pythons):
    """[{label, python, env}]: each Python that has torch; where it takes the system's BLAS, with each OpenBLAS there is."""
    if pythons == ["none"]:
        return []
    out = []
    for python in pythons or ["/usr/bin/python3"]:
        found = probe(python)
        if found is None:
            if pythons:
                sys.exit(f"{python} has no torch")
            continue
        version, system_blas = found[0], found[1] == "True"
        folders = sorted(glob.glob("/usr/lib/*/openblas-*/libblas.so.3")) if system_blas else []
        for path in folders:
            folder = os.path.dirname(path)
            out.append({"label": f"PyTorch {version}, {os.path.basename(folder)}", "python": python,
                        "env": {"LD_LIBRARY_PATH": folder}})
        if not folders:
            out.append({"label": f"PyTorch {version}", "python": python, "env": {}})
    return out
