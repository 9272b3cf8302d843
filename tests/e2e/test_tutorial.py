#!/usr/bin/env python3
"""docs/tutorial.md and the report in README.md, followed to the letter: files are saved, commands run in order in an empty folder, and the lines shown are printed."""
import os
import re
import shutil
import sys

import harness as h

PAGE = h.ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.M | re.S)


def blocks():
    """(kind, file, text, line) of each."""
    text = PAGE.read_text()
    return [(m[1], m[2], m[3], text[:m.start()].count("\n") + 1) for m in BLOCK.finditer(text)]


def pattern(line):
    return re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\s*$")


def missing(shown, printed):
    """The first line SHOWN that is not among those PRINTED in its place; None: all are. A line of "..." skips any number."""
    at, skip = 0, False
    for line in shown:
        if line.strip() == "...":
            skip = True
            continue
        want = pattern(line)
        found = next((k for k in range(at, len(printed)) if want.match(printed[k])), None) if skip else at
        if found is None or found >= len(printed) or not want.match(printed[found]):
            return f"{line!r} in place of {printed[at:at + 3]}"
        at, skip = found + 1, False
    return None if skip or not [x for x in printed[at:] if x.strip()] else f"more is printed: {printed[at:at + 2]}"


def follow(folder):
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "mpplan").symlink_to(h.MPPLAN)
    (folder / "bin" / "python3").symlink_to(shutil.which(sys.executable))
    work = folder / "work"
    work.mkdir()
    printed, ran = None, 0
    for kind, file, text, line in blocks():
        if kind == "sh":
            p = h.run(["bash", "-c", f"export RUNTIME_BUILD={h.shared_runtime()}; set -e; {'' if 'wrong.xml' in text else 'set -o pipefail; '}{text}"], env=env, cwd=work)
            printed = (p.stdout + p.stderr).split("\n")
            ran += 1
            h.check(p.returncode == (2 if "wrong.xml" in text else 0), f"line {line}: the commands succeed", f"{p.returncode}: {p.stderr[-400:]}")
        elif kind == "text":
            h.check(printed is not None, f"line {line}: shown after a command")
            wrong = missing(text.rstrip("\n").split("\n"), printed or [])
            h.check(wrong is None, f"line {line}: what is shown is printed", wrong)
            printed = None
        else:
            h.check(file != "", f"line {line}: the block has a file name", kind)
            (work / file).write_text(text)
    h.check(ran >= 12, "the page has its commands", ran)
    return work


def comparison():
    """The comparison itself notices what differs."""
    h.check(missing(["a", "b 0.1..."], ["a", "b 0.123"]) is None, "a line with dots")
    h.check(missing(["a", "...", "c"], ["a", "x", "y", "c"]) is None, "lines left out")
    for shown, printed in ((["a"], ["b"]), (["a", "..."], ["b", "a"]), (["a", "...", "c"], ["a", "b"]), (["a"], ["a", "b"]), (["a 0.2..."], ["a 0.1"])):
        h.check(missing(shown, printed) is not None, f"{shown} is not {printed}")


def tutorial():
    work = follow(h.TMP / "tutorial")
    plan = h.Plan(work / "plan")
    h.check(plan.axes == {"model": 2}, "the plan that the page explains", plan.axes)
    h.check((work / "ckpt" / "step-220" / "state.json").exists(), "a trained checkpoint is there")
    weights = h.read_safetensors(work / "ckpt" / "step-220" / "model.safetensors")
    h.check(weights["mix.weight"].shape == (512, 128), "with the concat's width")


def readme():
    """The report that README.md shows is what the command above it prints."""
    text = (h.ROOT / "README.md").read_text()
    m = re.search(r"`build/mpplan (models/gpt\.xml [^`]*)`:\n\n((?: {4}.*\n|\n)+)", text)
    if not h.check(m is not None, "README.md shows a report"):
        return
    shown = [line[4:] for line in m[2].rstrip("\n").split("\n")]
    p = h.must(h.mpplan(*m[1].split(), cwd=h.ROOT))
    wrong = missing(shown, p.stdout.split("\n"))
    h.check(wrong is None and len(shown) > 20, "README.md: what is shown is printed", wrong)


def main():
    parts = {"readme": readme, "comparison": comparison, "tutorial": tutorial}
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
