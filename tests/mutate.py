#!/usr/bin/env python3
"""Plausible mistakes put into the code one at a time, to see that the tests notice.

    tests/mutate.py                 every mutation of mutations.py: apply, build, run the suites that should fail
    tests/mutate.py decay overlap   only mutations whose name contains one of these words
    tests/mutate.py --expected      run only the suites a mutation names, not the rest where those pass
    tests/mutate.py --list          print the list

Works on a copy of the tree in a temporary folder. The named suites must pass there first, without a mutation. Of each
mutation the output says CAUGHT by the first suite that failed, or SURVIVED, which counts as failed; so do a mutation
that does not compile and one whose text is no longer in the code. A suite that does not end counts as one that noticed.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutations import MUTATIONS
from run import E2E

ROOT = Path(__file__).resolve().parent.parent
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed", re.M)
SLOW = ["planner_exhaustive", "planner", "plan", "emit"]     # unit tests that come last
TIMEOUT_S = 900
BROKEN = "the compiler"


def say(*text):
    print(*text, flush=True)


def copy_tree(to):
    """What git knows, and new files that it does not ignore, as they are now."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def descendants(pid):
    """Processes that PID started, and those that they did."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


class Lab:
    """The copy, its build folder, and its suites."""

    def __init__(self, folder):
        self.tree = folder / "tree"
        self.build = folder / "build"
        self.seconds = {}     # per suite that passed without a mutation
        self.tree.mkdir()
        copy_tree(self.tree)
        # A mutation may leave a variable unused; that is not how it should be noticed.
        self.must(["meson", "setup", self.build, self.tree, "-Dwerror=false"])
        text = subprocess.run(["meson", "introspect", self.build, "--tests"], check=True, capture_output=True, text=True).stdout
        self.unit = {t["name"]: t for t in json.loads(text)}

    def must(self, command):
        p = self.call(command)
        if p.returncode != 0:
            sys.exit(f"{' '.join(str(c) for c in command)}:\n{p.stdout[-3000:]}")

    def call(self, command):
        return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", stdin=subprocess.DEVNULL)

    def ninja(self, suite):
        """Builds what SUITE needs."""
        name = suite.partition(":")[0]
        programs = self.unit[name]["cmd"] if name in self.unit else [str(self.build / "mpplan")]
        paths = [os.path.normpath(self.tree / c) for c in programs]
        targets = [os.path.relpath(c, self.build) for c in paths if c.startswith(str(self.build) + "/")]
        return ["ninja", "-j2", "-C", self.build, *targets]

    def suites(self):
        quick = [s for s in self.unit if s not in SLOW]
        return quick + [s for s in reversed(SLOW) if s in self.unit] + E2E

    def passes(self, suite):
        """Does SUITE pass? Its name may end in ":WORDS", the parts of an end-to-end suite."""
        name, _, part = suite.partition(":")
        env = dict(os.environ, MPPLAN=str(self.build / "mpplan"), MPP_BUILD=str(self.build))
        if name in self.unit:
            command, env = self.unit[name]["cmd"], {**env, **self.unit[name].get("env", {})}
        else:
            command = [sys.executable, f"tests/e2e/test_{name}.py", *([part] if part else [])]
        limit_s = min(TIMEOUT_S, 60 + 10 * self.seconds.get(suite, TIMEOUT_S))
        begun = time.monotonic()
        p = subprocess.Popen([str(c) for c in command], cwd=self.tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            out, _ = p.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            for pid in [p.pid, *descendants(p.pid)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            p.communicate()
            return False
        found = COUNTS.findall(out)
        ok = p.returncode == 0 and bool(found) and int(found[-1][0]) > 0 and int(found[-1][1]) == 0
        if ok:
            self.seconds.setdefault(suite, time.monotonic() - begun)
        return ok

    def first_failing(self, suites):
        """Builds what each needs before it runs."""
        for suite in suites:
            if self.call(self.ninja(suite)).returncode != 0:
                return BROKEN
            if not self.passes(suite):
                return suite
        return None

    def judge(self, m, expected_only):
        """Who noticed M: (name of a suite or None, remark)."""
        path = self.tree / m.file
        text = path.read_text()
        path.write_text(text.replace(m.old, m.new))
        try:
            suite = self.first_failing(list(m.suites) if expected_only else [*m.suites, *(s for s in self.suites() if s not in m.suites)])
        finally:
            path.write_text(text)
        if suite == BROKEN:
            return None, "does not compile"
        if suite and suite not in self.seconds and not expected_only and self.first_failing([suite]):
            return None, f"{suite} fails without a mutation too"
        return suite, ""


def stale(m):
    """Why M cannot be applied, or None."""
    path = ROOT / m.file
    if not path.is_file():
        return f"{m.file} is not there"
    text = path.read_text()
    if text.count(m.old) != 1:
        return f"its text stands {text.count(m.old)} times in {m.file}, not once"
    return None


def check_table(passed, failed):
    """docs/testing.md lists the mutations that there are."""
    text = (ROOT / "docs" / "testing.md").read_text()
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| `[\w/.]+` \|", text, re.M)
    wrong = sorted(set(listed) ^ {m.name for m in MUTATIONS})
    if wrong or len(listed) != len(set(listed)):
        say(f"FAILED: docs/testing.md and mutations.py differ: {', '.join(wrong)}")
        return passed, failed + 1
    return passed + 1, failed


def main():
    parser = argparse.ArgumentParser(usage="tests/mutate.py [--expected] [--list] [NAME...]")
    parser.add_argument("--expected", action="store_true", help="only the suites that a mutation names")
    parser.add_argument("--list", action="store_true", help="print the mutations")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    wanted = [m for m in MUTATIONS if not args.names or any(n in m.name for n in args.names)]
    if args.list:
        for m in wanted:
            say(f"{m.name}: {m.file}: {stale(m) or m.what} [{', '.join(m.suites)}]")
        return 0
    passed, failed = check_table(0, 0) if not args.names else (0, 0)
    for m in list(wanted):
        why = stale(m)
        if why:
            say(f"FAILED: {m.name}: {why}")
            failed += 1
            wanted.remove(m)
    with tempfile.TemporaryDirectory(prefix="mpplan-mutate-") as folder:
        lab = Lab(Path(folder))
        begun = time.monotonic()
        for suite in dict.fromkeys(s for m in wanted for s in m.suites):
            if lab.first_failing([suite]):
                say(f"FAILED: {suite} fails without a mutation")
                failed += 1
                wanted = [m for m in wanted if suite not in m.suites]
        say(f"the suites pass without a mutation ({time.monotonic() - begun:.0f} s)")
        for m in wanted:
            begun = time.monotonic()
            suite, remark = lab.judge(m, args.expected)
            passed += suite is not None
            failed += suite is None
            verdict = f"CAUGHT by {suite}" if suite else f"FAILED: {remark}" if remark else "SURVIVED"
            say(f"{m.name}: {verdict} ({time.monotonic() - begun:.0f} s){'' if suite else ': ' + m.what}")
    say(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
