#!/usr/bin/env python3
"""`mpplan --calibrate`: the file loads, its figures are a machine's, plans are made with it; nothing is left behind when it
cannot be made or is stopped."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import harness as h

QUICK = ["--seconds", "2"]
RUNTIME = {"RUNTIME_BUILD": str(h.shared_runtime(("MPI=0",)))}


def scratch(name):
    """A folder for temporary files, to see that none stays."""
    folder = h.TMP / name
    folder.mkdir()
    return folder, {**RUNTIME, "TMPDIR": str(folder)}


def figures(path):
    root = ElementTree.parse(path).getroot()
    return root, {e.tag: e.attrib for e in root.iter()}


def test_file():
    tmp, env = scratch("tmp")
    path = h.TMP / "here.xml"
    p = h.mpplan("--calibrate", path, *QUICK, env=env, timeout_s=600)
    if not h.check(p.returncode == 0, "a calibration", p.stderr):
        return
    h.check("products" in p.stdout and "all-reduce" in p.stdout, "what was found is said", p.stdout)
    h.check(not list(tmp.iterdir()), "no temporary folder stays", list(tmp.iterdir()))
    h.check([x.name for x in h.TMP.glob("here*")] == ["here.xml"], "one file", list(h.TMP.glob("here*")))
    root, f = figures(path)
    h.check(root.tag == "cluster" and root.find("device") is not None and root.find("shared") is not None, "a cluster with a device")
    for tag in ("cluster", "device", "memory", "peak", "kernel", "gemm", "shared", "protocol"):
        h.check(f[tag].get("source", "").startswith("measured by --calibrate on "), f"<{tag}> says where it is from", f[tag])
    h.check(1e8 < float(f["peak"]["flops_per_s"]) < 1e13, "a core's peak", f["peak"])
    h.check(1e8 < float(f["memory"]["bytes_per_s"]) < 1e13, "a core's memory", f["memory"])
    h.check(1e7 < float(f["shared"]["bytes_per_s"]) < 1e13, "an all-reduce", f["shared"])
    h.check(0 < float(f["kernel"]["launch_s"]) < 1e-3, "a kernel's start", f["kernel"])
    h.check(int(f["shared"]["cores"]) == len(os.sched_getaffinity(0)), "the cores there are", f["shared"])
    times = [float(x.get("bytes")) / float(x.get("efficiency")) for x in root.iter("point")]
    h.check(times == sorted(times) and len(times) >= 3, "larger passes take longer", times)
    check_plans(path, int(f["shared"]["cores"]))


def check_plans(path, cores):
    """More devices than cores take turns: the same step gets no faster."""
    plan = h.plan("models/gpt.xml", preset="tiny", gpus=2, cluster=path)
    h.check(len(plan.train(data="synthetic", steps=2).losses) == 2, "a trainer planned with it runs")
    step = {}
    for n in (1, cores, 4 * cores):
        p = h.must(h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", gpus=n, cluster=path, fix=f"dp={n}", batch=8 * cores),
                            "--predict", "--json"))
        step[n] = float(re.search(r'"step_s": ([0-9.e+-]+)', p.stdout)[1])
    h.check(step[4 * cores] >= step[cores], "threads share cores", step)
    h.check(0.5 * step[cores] < step[1] < 1.5 * step[cores], "one device has all cores", step)
    text = path.read_text()
    for wrong, message in (('cores="0"', "cores"), ('cores="2.5"', "cores")):
        bad = h.TMP / "bad.xml"
        bad.write_text(re.sub(r'cores="\d+"', wrong, text))
        p = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", cluster=bad))
        h.check(p.returncode == 2 and re.search(rf"bad\.xml:\d+: error: .*{message}", p.stderr), f"{wrong} is refused", p.stderr)


def refused(what, want, status, args, env, path, old=None):
    p = h.mpplan("--calibrate", path, *args, env=env, timeout_s=600)
    h.check(p.returncode == status and re.search(want, p.stderr) and p.stderr.count("\n") == 1, what, f"{p.returncode} {p.stderr}")
    h.check(path.read_text() == old if old else not path.exists(), f"{what}: no file, or the old one")
    h.check(not list(path.parent.glob(path.name + ".*")), f"{what}: nothing beside it")


def test_refused():
    tmp, env = scratch("tmp-refused")
    tools = h.TMP / "tools"
    tools.mkdir()
    path = h.TMP / "none.xml"
    refused("without make", r"^error: cannot run make: .*install make", 2, QUICK, {**env, "PATH": str(tools)}, path)
    refused("without a compiler", r"^error: the measuring program does not build: .*CC names another", 2, QUICK,
            {**env, "CC": "no-such-compiler", "RUNTIME_BUILD": "build"}, path)
    cblas = h.TMP / "no-blas"
    cblas.mkdir()
    (cblas / "cblas.h").write_text('#error "cblas.h is not there"\n')
    refused("without a BLAS", r"^error: no BLAS .*libopenblas-dev", 2, QUICK,
            {**env, "BLAS_CFLAGS": f"-I{cblas}", "RUNTIME_BUILD": "build"}, path)
    refused("a folder that is not there", r"^\S+/x\.xml: error: cannot write: No such file", 2, QUICK, env, h.TMP / "nowhere" / "x.xml")
    refused("no temporary folder", r"^error: cannot make a temporary folder in .*TMPDIR", 1, QUICK,
            {**env, "TMPDIR": "/nonexistent"}, path)
    path.write_text("old")
    refused("beside other options", r"^error: --calibrate goes with --seconds alone, not with --gpus", 2, ["--gpus", "2"], env,
            path, old="old")
    refused("with a limit that it cannot keep", r"^error: --time-limit is for searches; --calibrate measures for --seconds S", 2,
            ["--time-limit", "8"], env, path, old="old")
    h.check(not list(tmp.iterdir()), "no temporary folder stays", list(tmp.iterdir()))


def test_stopped():
    tmp, env = scratch("tmp-stopped")
    for number, after in ((signal.SIGINT, "build"), (signal.SIGTERM, "measured")):
        path = h.TMP / f"stopped-{number}.xml"
        p = subprocess.Popen([h.MPPLAN, "--calibrate", path, "--seconds", "60"], env={**os.environ, **env}, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        limit = time.monotonic() + 300
        while time.monotonic() < limit and p.poll() is None and not list(tmp.glob(f"*/{after}*")):
            time.sleep(0.05)
        p.send_signal(number)
        out, err = p.communicate(timeout=60)
        h.check(p.returncode == 128 + number, f"{number.name} ends it", f"{p.returncode} {err}")
        h.check(err == f"error: stopped by {number.name}\n", f"{number.name}: one line", err)
        h.check(not path.exists() and not list(h.TMP.glob(path.name + ".*")), f"{number.name}: no file")
        h.check(not list(tmp.iterdir()), f"{number.name}: no temporary folder", list(tmp.iterdir()))
        left = [x for x in Path("/proc").glob("[0-9]*/exe") if str(tmp) in link_of(x)]
        h.check(not left, f"{number.name}: nothing goes on", left)


def link_of(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


TESTS = {"file": test_file, "refused": test_refused, "stopped": test_stopped}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
