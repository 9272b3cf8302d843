"""What the end-to-end tests share: run mpplan, build and start trainers, read what they write, count checks.

    import harness as h
    p = h.plan("models/gpt.xml", gpus=4, preset="tiny", D={"layers": 2}, fix="dp=4")   # h.Plan
    r = p.train(data="synthetic", steps=3)                                             # h.Run
    h.close("loss", r.losses, expected, 2e-5)
    sys.exit(h.finish())

All output lies in a temporary folder that finish() removes. Trainers share the compiled runtime.
"""
import atexit
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MPPLAN = os.environ.get("MPPLAN", str(ROOT / "build" / "mpplan"))
REFERENCE = ROOT / "tests" / "data" / "reference"
FULL = "--full" in sys.argv
VERBOSE = "-v" in sys.argv or FULL
TMP = Path(tempfile.mkdtemp(prefix="mpplan-test-"))
atexit.register(shutil.rmtree, TMP, ignore_errors=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would what is started here

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# One machine, any user, containers without ptrace rights; ranks that wait must not starve those that work.
MPI_ENV = {"OMPI_MCA_btl": "self,vader", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}

passed = failed = skipped = 0


# ---- counting ----

def check(ok, what, detail=""):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print(f"FAILED: {what}" + (f": {detail}" if detail != "" else ""), flush=True)
    return bool(ok)


def skip(what):
    global skipped
    skipped += 1
    print(f"skipped: {what}", flush=True)


def close(what, got, expected, tolerance):
    """Largest absolute difference of two lists of numbers."""
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    if got.shape != expected.shape:
        return check(False, what, f"{got.size} values instead of {expected.size}")
    worst = float(np.max(np.abs(got - expected))) if got.size else 0.0
    return check(worst <= tolerance, what, f"off by {worst:.3g}, {tolerance:g} allowed")


def guarded(what, fn, *args, **kwargs):
    """Run FN; an exception is a failure and ends only this part."""
    begun = time.monotonic()
    try:
        fn(*args, **kwargs)
    except Failure as e:
        check(False, what, e)
    except Exception:
        check(False, what, traceback.format_exc())
    if VERBOSE or time.monotonic() - begun > 20:
        print(f"{what}: {time.monotonic() - begun:.1f} s", flush=True)


def only(names):
    """Arguments that are no options name the parts to run."""
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    return [n for n in names if not wanted or any(w in n for w in wanted)]


def finish():
    more = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{more}")
    return 1 if failed or not passed else 0


class Failure(Exception):
    """Something needed did not happen; the message says what was run and what it said."""


MPPLAN_BYTES = 6 << 30  # address space of one mpplan, so that one that runs wild ends alone


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MPPLAN_BYTES, MPPLAN_BYTES))


def run(command, timeout_s=300, env=None, cwd=None, limited=False):
    command = [str(c) for c in command]
    p = subprocess.Popen(command, cwd=cwd, env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                         start_new_session=True, preexec_fn=limit_memory if limited else None)
    try:
        out, err = p.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, 9)
        out, err = p.communicate()
        raise Failure(f"{' '.join(command)}: no end after {timeout_s} s\n{out[-2000:]}{err[-2000:]}") from None
    return subprocess.CompletedProcess(command, p.returncode, out, err)


def must(p):
    if p.returncode != 0:
        raise Failure(f"{' '.join(p.args)}: exit status {p.returncode}\n{p.stdout[-800:]}{p.stderr[:1200]}")
    return p


# ---- mpplan ----

def arguments(model, gpus=None, preset=None, D=None, fix=None, batch=None, cluster=None, extra=()):
    a = [str(ROOT / model) if str(model).startswith("models/") else str(model)]
    for option, value in (("--gpus", gpus), ("--preset", preset), ("--batch", batch), ("--cluster", cluster)):
        if value is not None:
            a += [option, str(value)]
    for name, value in (D or {}).items():
        a += ["-D", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    for f in [fix] if isinstance(fix, str) else fix or []:
        a += ["--fix", f]
    return a + [str(x) for x in extra]


def mpplan(*args, timeout_s=300, env=None, cwd=None):
    return run([MPPLAN, *args], timeout_s, env, cwd, limited="ASAN_OPTIONS" not in os.environ)  # ASan reserves terabytes


n_plans = 0


def plan(model, timeout_s=120, out=None, **kwargs):
    """Plan into a fresh directory; Failure if mpplan fails."""
    global n_plans
    n_plans += 1
    out = Path(out or TMP / f"plan{n_plans}")
    begun = time.monotonic()
    p = must(mpplan(*arguments(model, **kwargs), "-o", out, timeout_s=timeout_s))
    return Plan(out, p, time.monotonic() - begun)


def tree(folder):
    """{path: bytes} of all files below FOLDER."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def schema_faults(plan):
    """What docs/plan.schema.json says against a plan.json; None without python3-jsonschema."""
    try:
        import jsonschema
    except ImportError:
        return None
    if not hasattr(schema_faults, "validator"):
        schema = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
        schema_faults.validator = jsonschema.Draft202012Validator(schema)
    return [f"{e.json_path}: {e.message[:200]}" for e in schema_faults.validator.iter_errors(plan)]


class Plan:
    def __init__(self, folder, process=None, seconds=0.0):
        self.dir, self.seconds = Path(folder), seconds
        self.report = process.stdout if process else ""
        self.json = json.loads((self.dir / "plan.json").read_text())
        faults = schema_faults(self.json)
        if faults:
            raise Failure(f"{self.dir}/plan.json does not fit docs/plan.schema.json: {faults[:3]}")

    def build(self, *make_args):
        if not (self.dir / "trainer").exists() or make_args:
            for source in (self.dir / "runtime").rglob("*"):
                os.utime(source, (0, 0))  # older than what is shared, whose name tells the content
            must(run(["make", "-s", "-j2", "-C", self.dir, f"RUNTIME_BUILD={shared_runtime(make_args)}", *make_args], 600))
        return self

    def train(self, *args, mpi=False, timeout_s=300, env=None, metrics=True, allow_failure=False, **options):
        """Start the trainer; keyword arguments become --options (underscores become dashes). METRICS: a path, or False."""
        self.build()
        command = [self.dir / "trainer", *args]
        if metrics:
            options["metrics"] = tempfile.mkstemp(suffix=".jsonl", dir=TMP)[1] if metrics is True else metrics
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), value]
        if mpi:
            command = [*MPIRUN, "-n", str(self.devices), *command]
        p = run(command, timeout_s, {**(MPI_ENV if mpi else {}), **(env or {})})
        if not allow_failure:
            must(p)
        return Run(p, Path(options["metrics"]) if metrics else None)

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- plan.json, read in one place: docs/plan.md ----

    @property
    def stage(self):
        return self.json["stages"][0]

    @property
    def ranges(self):
        """How many devices each stage has, in pipeline order."""
        places = [(place["stage"], s["devices"]) for s in self.json["stages"] for place in s["places"]]
        return [n for _, n in sorted(places)]

    @property
    def arenas(self):
        """Bytes of a device of each stage."""
        places = [(place["stage"], place["memory"]["arena_bytes"]) for s in self.json["stages"] for place in s["places"]]
        return [n for _, n in sorted(places)]

    @property
    def devices(self):
        return sum(self.ranges)

    @property
    def axes(self):
        return {a["axis"]: a["size"] for a in self.stage["mesh"]}

    @property
    def memory(self):
        return self.stage["places"][0]["memory"]

    def ops(self, phase=None, cls=None):
        return [o for o in self.stage["ops"] if phase in (None, o["phase"]) and cls in (None, o["class"])]

    def axis_splits(self, dimension):
        """Forward ops that an axis splits along DIMENSION."""
        return [o["op"] for o in self.ops("forward") if dimension in o["split"].values()]

    def contraction_splits(self, dimension):
        return [o["op"] for o in self.ops("forward", "contraction") if dimension in o["split"].values()]

    def rests_split(self, dimension):
        return [t["name"] for t in self.stage["parameters"] if dimension in t["rest"].values()]

    def residual_split(self, dimension):
        """Norms, which stand on the residual stream, that an axis splits along DIMENSION."""
        return [o["op"] for o in self.ops("forward") if "Norm" in o["kind"] and dimension in o["split"].values()]

    def parameters_split(self, axis):
        """Parameters that rest split over AXIS (None: any)."""
        return [t["name"] for t in self.stage["parameters"] if (axis in t["rest"] if axis else t["rest"])]

    def states_split(self, axis):
        """Parameters whose optimiser state lies split over AXIS (None: any)."""
        return [t["name"] for t in self.stage["parameters"]
                if any(f"/{a}" in t.get("state", "") for a in ([axis] if axis else self.axes))]

    def all_axes_used(self):
        return set(self.axes) <= {a for o in self.ops("forward") for a in o["split"]}

    def unsplit_contractions(self):
        return [o["op"] for o in self.ops(cls="contraction") if not o["split"]]

    def listed_unsplit(self):
        """As templates: h.3.attn -> h.*.attn."""
        return [re.sub(r"\.\d+\.", ".*.", name) for name in self.stage["unsplit"]]

    def collectives(self):
        """Each collective of each layer once: the record's fields, with layer (None: of none) and per_micro_batch."""
        out = []
        for c in self.stage["collectives"]:
            layers = [None]
            if c.get("layers"):
                spans = [[int(x) for x in part.split("-")] for part in c["layers"].split(",")]
                layers = [i for s in spans for i in range(s[0], s[-1] + 1)]
            for layer in layers:
                times = c["times"] // len(layers)
                out += [dict(c, layer=layer, per_micro_batch=c["count"] / self.json["micro_batches"])] * times
        return out

    def objective(self):
        """Of the integer program of the chosen mesh, and its bound, in picoseconds."""
        return self.json["solver"]["objective_ps"], self.json["solver"]["bound_ps"]

    def gap(self):
        return self.json["gap"]

    def summary(self):
        """Short enough for a message."""
        lines = [f"mesh {self.axes}, {self.json['micro_batches']} micro-batches"]
        lines += [f"{o['phase'][:1]} {o['op']} {o['split']}" for o in self.ops("forward", "contraction")]
        lines += [f"{t['name']} {t['resting']} state {t.get('state')}" for t in self.stage["parameters"][:6]]
        return "\n    ".join(lines)


def shared_runtime(make_args=()):
    """Where trainers keep the compiled runtime: one folder per set of flags, outside TMP so that suites share it."""
    text = "".join(p.name + p.read_text() for p in sorted((ROOT / "runtime").rglob("*")) if p.is_file()) + " ".join(make_args)
    base = Path(os.environ.get("MPP_BUILD", ROOT / "build"))
    folder = base / "trainer-runtime" / hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Run:
    def __init__(self, process, metrics):
        self.process, self.out, self.err = process, process.stdout, process.stderr
        self.rows = []
        if metrics and metrics.exists():
            self.rows = [json.loads(line) for line in metrics.read_text().splitlines()]

    @property
    def losses(self):
        return [row["loss"] for row in self.rows]

    @property
    def arena_bytes(self):
        """Of a rank of each stage, as printed."""
        m = re.findall(r"arena (\d+) bytes", self.out)
        return [int(x) for x in m]

    @property
    def transport(self):
        m = re.search(r" over (\w+)[ ,]", self.out)
        return m.group(1) if m else ""


# ---- files ----

NP_TYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "F16": np.float16}


def read_safetensors(path):
    raw = Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + a:8 + n + b], NP_TYPES[t["dtype"]]).reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    names = {np.dtype(v): k for k, v in NP_TYPES.items()}
    header, at, blobs = {}, 0, []
    for name, x in tensors.items():
        x = np.ascontiguousarray(x)
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
        blobs.append(x.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def npy_dir(arrays):
    """A folder of NAME.npy files."""
    folder = Path(tempfile.mkdtemp(prefix="npy", dir=TMP))
    for name, x in arrays.items():
        np.save(folder / f"{name}.npy", x)
    return folder


def relative_l2(a, b):
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    norm = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / norm) if norm else float(np.linalg.norm(a))
