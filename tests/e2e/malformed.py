"""Tables of malformed input: what a row is and what must hold of each.

    ROWS = [Row("cut header", lambda f: [trainer(), "--init", wrote(f, "w.safetensors", raw[:7])], r"w\\.safetensors: .*short")]
    for row in ROWS:
        check_row(row)

Every row must end with its exit status and one line that says what is wrong (and where, with `at`), in text that a
terminal can show, without much time or memory, and without leaving anything that it began to write.
"""
import os
import re
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import harness as h

SANITIZED = "ASAN_OPTIONS" in os.environ
MOST_KIB = 600 << 10                   # resident
MOST_S = 20                            # of processor time: an order above what any row takes
MOST_BYTES = 4000                      # of a message


@dataclass
class Row:
    name: str
    make: Callable[[Path], list]       # writes its files into the folder that it is given; returns the command
    says: str                          # a regular expression that stderr must match
    at: Optional[tuple] = None         # (file name, line) that the error blames
    status: tuple = (2,)
    errors: int = 1                    # lines that say "error:"
    leaves: tuple = ()                 # names that the command may leave in the folder, besides those of make


def wrote(folder, name, content):
    """Write text or bytes to NAME in FOLDER and return its path."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def run_limited(command, cwd, timeout_s=120):
    """The process's exit status, stderr as bytes, processor seconds and peak KiB; (None, ...) when it did not end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        def limit():
            if not SANITIZED:
                resource.setrlimit(resource.RLIMIT_AS, (h.MPPLAN_BYTES, h.MPPLAN_BYTES))
        p = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
                             start_new_session=True, preexec_fn=limit)
        end = time.monotonic() + timeout_s
        while True:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.killpg(p.pid, 9)
                os.wait4(p.pid, 0)
                p.returncode = -9
                return None, b"", timeout_s, 0
            time.sleep(0.003)
        p.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return p.returncode, err.read(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def check_row(row):
    folder = Path(tempfile.mkdtemp(prefix="row", dir=h.TMP))
    command = row.make(folder)
    before = {p.relative_to(folder) for p in folder.rglob("*")}
    status, raw, cpu_s, peak_kib = run_limited(command, folder)
    name = f"malformed: {row.name}"
    if not h.check(status is not None, f"{name}: ends", f"{' '.join(map(str, command))[:300]} ran on"):
        return
    said = raw.decode(errors="replace")
    h.check(status in row.status, f"{name}: exit status {row.status[0]}", f"{status}\n{said[:1000]}")
    h.check(re.search(row.says, said, re.I), f"{name}: says {row.says!r}", said[:1000])
    lines = [line for line in said.split("\n") if line and not line.startswith("    ")]
    errors = [line for line in lines if re.search(r"(^|: )error: ", line)]
    h.check(len(errors) == row.errors and len(lines) == len(errors), f"{name}: {row.errors} line(s) of error", said[:2000])
    shown = not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said) and "\ufffd" not in said and len(said) <= MOST_BYTES * row.errors
    h.check(shown, f"{name}: a message that a terminal can show", repr(said[:600]))
    if row.at:
        blamed = [line for line in errors if re.match(rf"(.*/)?{re.escape(row.at[0])}:{row.at[1]}: error: ", line)]
        h.check(blamed, f"{name}: blames {row.at[0]}:{row.at[1]}", said[:1000])
    left = {p.relative_to(folder) for p in folder.rglob("*")} - before - {Path(x) for x in row.leaves}
    h.check(not left, f"{name}: leaves nothing", sorted(map(str, left))[:5])
    if not SANITIZED:
        h.check(cpu_s <= MOST_S and peak_kib <= MOST_KIB, f"{name}: bounded", f"{cpu_s:.1f} s, {peak_kib >> 10} MiB")
