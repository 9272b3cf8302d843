#!/usr/bin/env python3
"""The place of a plan: whole or untouched, whatever ends mpplan: signals, a full disk, places that cannot be written,
other processes that write there too."""
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness as h

INPUT, SYSTEM = 2, 1
MLP = [h.ROOT / "models" / "mlp.xml", "--preset", "tiny", "--gpus", "2"]
LARGE = [h.ROOT / "models" / "gpt.xml", "--preset", "gpt3-175b", "--gpus", "64", "--cluster", "dgx-a100"]  # seconds
TEMPORARY = ".mpplan-tmp-"


def fresh():
    fresh.n = getattr(fresh, "n", 0) + 1
    folder = h.TMP / f"place{fresh.n}"
    folder.mkdir()
    return folder


def names(folder):
    return sorted(x.name for x in Path(folder).iterdir())


def fails(what, p, status, *words):
    errors = [line for line in p.stderr.splitlines() if "error: " in line]
    h.check(p.returncode == status, f"{what}: exit status {status}", f"{p.returncode} {p.stderr[-300:]}")
    h.check(len(errors) == 1 and len(p.stderr.splitlines()) == 1, f"{what}: one line", p.stderr[-300:])
    h.check(all(w in p.stderr for w in words), f"{what}: says {words}", p.stderr[-300:])


def start(args, **kwargs):
    return subprocess.Popen([str(a) for a in [h.MPPLAN, *args]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, **kwargs)


def done(p, timeout_s=120):
    out, err = p.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(p.args, p.returncode, out, err)


# ---- places ----

def test_places():
    here = fresh()
    h.must(h.mpplan(*MLP, "-o", here / "a" / "b" / "plan"))
    h.check("plan.json" in names(here / "a" / "b" / "plan"), "folders above are made")
    h.check(names(here / "a" / "b") == ["plan"], "nothing besides is left", names(here / "a" / "b"))
    h.check((here / "a" / "b" / "plan").stat().st_mode & 0o777 == 0o777 & ~umask(), "the plan is open to those the umask names")
    p = h.mpplan(*MLP, "--fix", "dp=3", "-o", here / "c" / "d" / "plan")
    h.check(p.returncode == INPUT and names(here) == ["a"], "folders that were made go when there is no plan", names(here))

    (here / "file").write_text("mine")
    fails("a file", h.mpplan(*MLP, "-o", here / "file"), INPUT, "not a directory", "-o")
    h.check((here / "file").read_text() == "mine", "a file: is kept")
    fails("below a file", h.mpplan(*MLP, "-o", here / "file" / "x"), INPUT, "Not a directory")
    (here / "dangling").symlink_to("nowhere")
    fails("a dangling link", h.mpplan(*MLP, "-o", here / "dangling"), INPUT, "link", "-o")
    (here / "foreign").mkdir()
    (here / "foreign" / "thesis").write_text("mine")
    fails("a foreign folder", h.mpplan(*MLP, "-o", here / "foreign"), INPUT, "holds no plan.json", "-o")
    h.check(names(here / "foreign") == ["thesis"], "a foreign folder: is kept")
    fails("no name", h.mpplan(*MLP, "-o", ""), INPUT, "-o")
    fails("too long a name", h.mpplan(*MLP, "-o", here / ("x" * 300)), INPUT, "too long")

    (here / "link").symlink_to("a/b/plan")
    (here / "a" / "b" / "plan" / "ckpt").mkdir()
    h.must(h.mpplan(*MLP, "-o", f"{here}/link/"))
    h.check((here / "link").is_symlink() and "ckpt" in names(here / "link"), "through a link, what the user keeps stays")
    for spelled in ("new/", "newer/.", "./newest//"):
        h.must(h.mpplan(*MLP, "-o", spelled, cwd=here))
    h.check({"new", "newer", "newest"} <= set(names(here)), "slashes at the end", names(here))


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_read_only():
    """As another user where root runs the test: root may write anywhere."""
    here = fresh()
    here.chmod(0o555)
    if os.access(here, os.W_OK):
        h.TMP.chmod(0o755)
        reachable = subprocess.run([h.MPPLAN, "--version"], user=65534, capture_output=True) if os.getuid() == 0 else None
        if reachable is None or reachable.returncode != 0:
            return h.skip("a read-only folder: this user may write anywhere, another cannot run mpplan")
    p = subprocess.run([str(a) for a in [h.MPPLAN, *MLP, "-o", here / "x" / "plan"]], capture_output=True, text=True,
                       user=65534 if os.getuid() == 0 else None)
    if "cannot read" in p.stderr:
        return h.skip("a read-only folder: another user cannot read the models")
    fails("a read-only folder", p, INPUT, "Permission denied")
    here.chmod(0o755)
    h.check(names(here) == [], "a read-only folder: nothing is left")


# ---- output that cannot be written ----

def limited(args, n_bytes):
    return subprocess.run([str(a) for a in [h.MPPLAN, *args]], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes)))


def test_full():
    here = fresh()
    fails("files of 1 KiB", limited([*MLP, "-o", here / "sub" / "plan"], 1024), SYSTEM, "cannot write", "too large")
    h.check(names(here) == [], "files of 1 KiB: nothing is left", names(here))
    old = h.plan("models/mlp.xml", gpus=2, preset="tiny", out=here / "plan")
    before, before_names = h.tree(old.dir), names(old.dir)
    fails("over an old plan", limited([*MLP, "-D", "layers=3", "-o", old.dir], 1024), SYSTEM, "cannot write")
    h.check(h.tree(old.dir) == before and names(here) == ["plan"], "an old plan is untouched")
    for size in (1024, 60 << 10):  # the first report is too large, the second
        for name in ("report.txt", "report.html"):
            (old.dir / name).write_text("mine")
        fails(f"--report in files of {size} bytes", limited(["--report", old.dir], size), SYSTEM, "cannot write")
        h.check([(old.dir / name).read_text() for name in ("report.txt", "report.html")] == ["mine", "mine"], "old reports are untouched")
        h.check(names(old.dir) == sorted(before_names), "and nothing is beside them", names(old.dir))
    (old.dir / "report.txt").chmod(0o640)
    h.must(h.mpplan("--report", old.dir))
    h.check(h.tree(old.dir) == before and (old.dir / "report.txt").stat().st_mode & 0o777 == 0o640, "--report: both are there again, with the rights they had")
    fails("an LP file", limited([*MLP, "--dump-ilp", here / "ilp"], 1024), SYSTEM, "cannot write")
    h.check(not (here / "ilp").exists() or names(here / "ilp") == [], "no part of an LP file is left")
    fails("a stage problem", limited([*MLP, "--export-iopddl", here / "problems"], 1024), SYSTEM, "cannot write a stage problem", "too large")
    h.check(names(here / "problems") == [], "no part of a stage problem is left", names(here / "problems"))
    (here / "file").write_text("")
    for option in ("--dump-ilp", "--export-iopddl"):
        for name in ("file", "file/x"):
            fails(f"{option} {name}", h.mpplan(*MLP, option, here / name), INPUT, "is not a directory", f"choose another for {option}")
    h.check((here / "file").read_text() == "", "a file where a folder is meant is kept")
    stats = here / "stats.json"
    fails("statistics", limited([*MLP, "--stats", stats], 16), SYSTEM, "cannot write")
    h.check(not stats.exists(), "no part of the statistics is left")
    disk = fresh()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk],
                                          capture_output=True).returncode != 0:
        return h.skip("a full disk: cannot mount one")
    try:
        p = h.mpplan(*MLP, "-o", disk / "plan")
        fails("a full disk", p, SYSTEM, "cannot write", "No space left")
        h.check(names(disk) == [], "a full disk: nothing is left", names(disk))
        (disk / "mine").write_bytes(bytes(60 << 10))
        fails("no room at all", h.mpplan(*MLP, "-o", disk / "plan"), SYSTEM, "No space left")
        h.check(names(disk) == ["mine"], "no room at all: nothing is left", names(disk))
    finally:
        subprocess.run(["umount", disk])


def test_standard_output():
    here = fresh()
    for what, redirect in (("a full device", ">/dev/full"), ("closed", ">&-"), ("a pipe nobody reads", "| true")):
        if what.startswith("a pipe"):
            end = '{ sleep 0.3; "$@"; echo $? >&3; } 3>&2 2>/dev/null | true'
        else:
            end = f'"$@" {redirect}; echo "$?" >&2'
        p = h.run(["sh", "-c", end, "sh", h.MPPLAN, *MLP, "-o", here / "plan"])
        h.check(p.stderr.strip().endswith(str(SYSTEM)), f"standard output {what}: exit status 1", p.stderr)
        h.check("plan.json" in names(here / "plan"), f"standard output {what}: the plan is there")
        h.check(names(here) == ["plan"], f"standard output {what}: nothing else", names(here))
    p = h.run(["sh", "-c", '"$@" 2>&-', "sh", h.MPPLAN, *MLP, "-o", here / "plan"])
    h.check(p.returncode == 0, "closed standard error is no error", p.returncode)
    p = h.run(["sh", "-c", '"$@" 2>&-', "sh", h.MPPLAN, *MLP, "--gpus", "x", "-o", here / "plan"])
    h.check(p.returncode == INPUT, "with standard error closed an error is still one", p.returncode)


# ---- signals ----

def test_signals():
    here = fresh()
    old = h.plan("models/mlp.xml", gpus=2, preset="tiny", out=here / "plan")
    before = h.tree(old.dir)
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for delay_s in (0.05, 0.3, 0.8):
            for place in (here / "plan", here / "sub" / "new"):
                p = start([*LARGE, "-o", place])
                time.sleep(delay_s)
                p.send_signal(sig)
                p = done(p)
                if p.returncode == 0:  # it had ended, on a fast machine
                    shutil.rmtree(here / "sub", ignore_errors=True)
                    before = h.tree(h.plan("models/mlp.xml", gpus=2, preset="tiny", out=here / "plan").dir)
                if p.returncode == 0 or (p.returncode == -sig and not p.stderr):
                    continue      # or not begun, on a slow one
                what = f"{sig.name} after {delay_s} s"
                fails(what, p, 128 + sig, "stopped by " + sig.name)
                h.check(names(here) == ["plan"] and h.tree(old.dir) == before, f"{what}: nothing has changed", names(here))
    # a signal at any time while files are written: a plan or none
    for i in range(12):
        p = start([*MLP, "-o", here / "sub" / "new"])
        time.sleep(0.004 * i)
        p.terminate()
        p = done(p)
        h.check(p.returncode in (0, 143, -15), f"SIGTERM after {4 * i} ms: status 0 or 143", p.returncode)
        new = here / "sub" / "new"
        whole = not new.exists() or {"plan.json", "stage0.c", "Makefile", "runtime"} <= set(names(new))
        h.check(whole and not list(here.rglob(f"*{TEMPORARY}*")), f"SIGTERM after {4 * i} ms: a plan or none")


def test_killed():
    """What a killed process leaves goes with the next run; what a living one uses stays."""
    here = fresh()
    (here / f"plan{TEMPORARY}abcdef" / "runtime").mkdir(parents=True)
    (here / f"plan{TEMPORARY}abcdef" / "runtime" / "x.c").write_text("half")
    (here / f"plan{TEMPORARY}abcdefg").mkdir()
    (here / f"other{TEMPORARY}abcdef").mkdir()
    used = here / f"plan{TEMPORARY}ghijkl"
    used.mkdir()
    import fcntl
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    h.must(h.mpplan(*MLP, "-o", here / "plan"))
    want = sorted([f"other{TEMPORARY}abcdef", "plan", f"plan{TEMPORARY}abcdefg", used.name])
    h.check(names(here) == want, "what was left behind goes, what is in use or not ours stays", names(here))
    os.close(lock)
    inside = here / "plan" / f"{TEMPORARY}abcdef"
    inside.mkdir()
    h.must(h.mpplan(*MLP, "-o", here / "plan"))
    h.check(not inside.exists(), "also inside the plan")
    only = here / "empty"
    (only / f"{TEMPORARY}abcdef").mkdir(parents=True)
    h.must(h.mpplan(*MLP, "-o", only))
    h.check("plan.json" in names(only), "and it does not make an empty folder a foreign one")
    for i in range(15):
        p = start([*MLP, "-o", here / "killed"])
        time.sleep(0.003 * i)
        p.kill()
        p.communicate()
    h.must(h.mpplan(*MLP, "-o", here / "killed"))
    left = [n for n in names(here) if n.startswith("killed" + TEMPORARY)]
    h.check(not left and not list((here / "killed").glob(f"{TEMPORARY}*")), "after kills at any time", left)


def test_together():
    """Several processes, one place: the plan of one of them, whole."""
    one = {h.plan("models/mlp.xml", gpus=g, preset="tiny").dir: g for g in (1, 2)}
    trees = [h.tree(d) for d in one]
    for place in ("new", "deep/new", "old"):
        here = fresh()
        if place == "old":
            h.plan("models/mlp.xml", gpus=4, preset="tiny", out=here / place)
        running = [start([*MLP, "--gpus", 1 + k % 2, "-o", here / place]) for k in range(6)]
        ends = [done(p) for p in running]
        h.check(all(p.returncode == 0 for p in ends), f"{place}: all end well", [p.stderr for p in ends if p.returncode])
        h.check(h.tree(here / place) in trees, f"{place}: the plan is that of one of them")
        h.check(names(here) == [place.split("/")[0]], f"{place}: nothing besides", names(here))


if __name__ == "__main__":
    for name in h.only(["places", "read_only", "full", "standard_output", "signals", "killed", "together"]):
        h.guarded(name, globals()[f"test_{name}"])
    sys.exit(h.finish())
