#!/usr/bin/env python3
"""Builds, runs every test and ends with one line: "N passed, N failed[, N skipped]".

    tests/run.py            what continuous integration runs
    tests/run.py --full     all matrices, clang, everything that can be under ASan, UBSan and TSan, fuzzing, mutations
    tests/run.py NAME...    only the suites whose name contains one of NAME

Suites, in order: house (rules of the code), those that run beside each other, the other unit tests that tests/meson.build
registers, the other tests/e2e/test_*.py.
Each prints its own "N passed, N failed"; one that prints none, or ends badly without a failure, counts as failed.
"""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.M)
E2E = ["cuda", "streams", "vectorised", "calibrate", "fidelity", "quality", "errors", "malformed", "plans", "time_limit", "overlap", "alloc", "alloc_trainer",
       "outdir", "report_html", "inspect", "exports", "measured", "tutorial", "options", "quickstart", "resume", "precision", "equivalence",
       "pipelines", "evaluation", "tcp", "slurm", "hosts"]
# Of one thread each, without a look at the clock, and nothing that is compiled: they run beside each other, the longest first.
BESIDE = ["alloc", "plan", "planner_exhaustive", "twolevel", "inspect", "malformed", "errors", "report_html", "emit", "fidelity", "exports",
          "outdir", "stages", "autodiff", "quality", "overlap", "planner", "ops"]
TIMEOUT_S = {"unit": 900, "e2e": 1500}


def python():
    """A Python 3 that has numpy: this one, or Debian's."""
    for exe in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([exe, "-c", "import numpy"], capture_output=True).returncode == 0:
            return exe
    sys.exit("tests/run.py needs a python3 with numpy (apt-get install python3-numpy)")


def follow(command, timeout_s, env, cwd, show):
    """Runs COMMAND; SHOW gets each line as it comes. Returns (exit status, output, was it killed after TIMEOUT_S)."""
    process = subprocess.Popen([str(c) for c in command], cwd=cwd, env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    expired = threading.Event()

    def expire():
        expired.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, expire)
    timer.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        show(line)
    process.wait()
    timer.cancel()
    return process.returncode, "".join(lines), expired.is_set()


class Tally:
    def __init__(self, full):
        self.passed = self.failed = self.skipped = 0
        self.full = full
        self.bad = []
        self.start = time.monotonic()
        self.lock = threading.Lock()

    def add(self, name, passed, failed, skipped, seconds):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        if failed:
            self.bad.append(name)
        more = f", {skipped} skipped" if skipped else ""
        print(f"== {name}: {passed} passed, {failed} failed{more} ({seconds:.0f} s)", flush=True)

    def run(self, name, command, timeout_s, env=None, cwd=ROOT, beside=False):
        """Run COMMAND, passing its output on, and add the last counts that it prints. BESIDE: others run too, so the output is
        passed on at the end."""
        begun = time.monotonic()
        shown = [f"-- {name}\n"]

        def show(line):
            if line and not COUNTS.match(line):
                shown.append("   " + line)
            if not beside:
                print("".join(shown), end="", flush=True)
                shown.clear()

        show("")
        status, text, killed = follow(command, timeout_s, env, cwd, show)
        found = COUNTS.findall(text)
        passed, failed, skipped = (int(x or 0) for x in found[-1]) if found else (0, 0, 0)
        none = not found or passed + failed + skipped == 0
        if killed:
            shown.append(f"   {name}: stopped after {timeout_s} s\n")
        elif none:
            shown.append(f"   {name}: printed no counts (exit status {status})\n")
        elif status != 0 and failed == 0:
            shown.append(f"   {name}: exit status {status}\n")
        if killed or none or (status != 0 and failed == 0):
            failed += 1
        with self.lock:
            print("".join(shown), end="")
            self.add(name, passed, failed, skipped, time.monotonic() - begun)

    def run_beside(self, suites):
        """Runs SUITES, each the arguments of run(), two at a time where there are two cores."""
        lanes = min(2, len(os.sched_getaffinity(0)))
        with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
            for done in [pool.submit(self.run, *suite, beside=lanes > 1) for suite in suites]:
                done.result()

    def step(self, name, command, env=None):
        """A command that must succeed; its output is shown only if it does not. It counts as one check."""
        begun = time.monotonic()
        p = subprocess.run([str(c) for c in command], cwd=ROOT, env=dict(os.environ, **(env or {})),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace")
        if p.returncode != 0:
            print("   " + "\n   ".join(p.stdout.splitlines()[-60:]))
        self.add(name, int(p.returncode == 0), int(p.returncode != 0), 0, time.monotonic() - begun)
        return p.returncode == 0

    def finish(self):
        print(f"{time.monotonic() - self.start:.0f} s", end="")
        print(f"; failed: {', '.join(self.bad)}" if self.bad else "")
        more = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {self.failed} failed{more}")
        return 1 if self.failed or not self.passed else 0


def build(tally, folder, options=(), env=None):
    """Configure FOLDER once, then build it."""
    name = f"build {folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder}"
    if not (folder / "build.ninja").exists():
        if not tally.step(f"{name}: meson", ["meson", "setup", folder, *options], env):
            return False
    return tally.step(name, ["ninja", "-C", folder], env)


def unit_tests(tally, folder, label, env=None):
    """The unit tests of FOLDER, each the arguments of Tally.run."""
    p = subprocess.run(["meson", "introspect", str(folder), "--tests"], capture_output=True, text=True)
    tests = json.loads(p.stdout) if p.returncode == 0 else []
    if not tests:
        tally.add(f"{label} unit tests", 0, 1, 0, 0)
    return [(f"{label}{t['name']}", t["cmd"], max(t.get("timeout") or 0, TIMEOUT_S["unit"]), {**t.get("env", {}), **(env or {})},
             t.get("workdir") or ROOT) for t in tests]


def run_all(tally, suites):
    for suite in suites:
        tally.run(*suite)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="whole matrices, clang, sanitizers")
    parser.add_argument("names", nargs="*", help="only suites whose name contains one of these")
    args = parser.parse_args()
    wanted = lambda name: not args.names or any(n in name for n in args.names)
    tally = Tally(args.full)
    py = python()
    gcc = ROOT / os.environ.get("BUILD_DIR", "build")
    extra = ["--full"] if args.full else []

    built = build(tally, gcc)
    if wanted("house"):  # it looks into the libraries too
        tally.run("house", [py, "tests/house.py"], TIMEOUT_S["unit"], {"MPP_BUILD": str(gcc)})
    if not built:
        return tally.finish()
    env = {"MPPLAN": str(gcc / "mpplan"), "MPP_BUILD": str(gcc)}
    suites = unit_tests(tally, gcc, "")
    suites += [(name, [py, f"tests/e2e/test_{name}.py", *extra], TIMEOUT_S["e2e"] * (8 if args.full else 1), env) for name in E2E]
    suites = [s for s in suites if wanted(s[0])]
    tally.run_beside(sorted((s for s in suites if s[0] in BESIDE), key=lambda s: BESIDE.index(s[0])))
    run_all(tally, [s for s in suites if s[0] not in BESIDE])
    if args.full:
        tensor_cores = gcc / "tests" / "cuda" / "cuda_attention_mma"
        if wanted("cuda_attention_mma") and tensor_cores.exists():
            tally.run("cuda_attention_mma, all sizes", [tensor_cores], 4 * TIMEOUT_S["unit"], {"MPP_TEST_FULL": "1"})
        clang = {"CC": "clang"}
        if wanted("clang") and build(tally, gcc / "clang", ["-Dwerror=true"], clang):
            run_all(tally, unit_tests(tally, gcc / "clang", "clang "))
        asan = gcc / "asan"
        # Sanitizers make gcc warn where nothing is wrong.
        options = ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dwerror=false"]
        if wanted("asan") and build(tally, asan, options):
            strict = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=1"}
            run_all(tally, unit_tests(tally, asan, "asan ", strict))
            for suite in ("errors", "malformed"):
                tally.run(f"asan {suite}", [py, f"tests/e2e/test_{suite}.py"], 2 * TIMEOUT_S["e2e"],
                          {**env, **strict, "MPPLAN": str(asan / "mpplan")})
            tally.run("asan alloc", [py, "tests/e2e/test_alloc.py"], TIMEOUT_S["e2e"],
                      {**env, **strict, "MPPLAN": str(asan / "mpplan")})
            tally.run("asan models", [py, "tests/e2e/test_sanitized.py"], 2 * TIMEOUT_S["e2e"],
                      {**env, **strict, "MPPLAN": str(asan / "mpplan")})
        tsan = gcc / "tsan"
        if wanted("tsan") and build(tally, tsan, ["-Db_sanitize=thread", "-Db_lundef=false", "-Dwerror=false"]):
            # OpenBLAS is not instrumented; jobs that hang or fail end with threads that are stuck
            strict = {"TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
            run_all(tally, [s for s in unit_tests(tally, tsan, "tsan ", strict) if "runtime_" in s[0] and "mpi" not in s[0]])
        if wanted("mutations"):
            tally.run("mutations", [py, "tests/mutate.py"], 8 * TIMEOUT_S["e2e"])
        if wanted("fuzz"):
            tally.run("fuzz", [py, "tests/fuzz/run.py", "60"], 3 * TIMEOUT_S["e2e"], {"BUILD_DIR": str(gcc)})
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
