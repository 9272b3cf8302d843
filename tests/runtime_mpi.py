#!/usr/bin/env python3
"""The host runtime under mpirun.

usage: runtime_mpi.py COLLECTIVES_TEST TRAINER_TEST   (both built with MPP_WITH_MPI)

Collectives on 2, 4 and 8 processes; the trainer test's program over MPI against threads: the same losses,
checkpoints that either continues, one message and the right exit status when something is wrong.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

passed = failed = 0


def expect(ok, what, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("failed:", what, detail, file=sys.stderr)


def mpirun(n, *command):
    line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n), *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def losses(path):
    with open(path) as lines:
        return [json.loads(line)["loss"] for line in lines]


def errors(text):
    return [line for line in text.splitlines() if line.startswith("error:")]


def children(pid):
    """Processes that PID started, from /proc."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if entry.isdigit() and parent == pid:
            found.append(entry)
    return sorted(found, key=int)


def main():
    collectives, trainer = sys.argv[1:3]
    if shutil.which("mpirun") is None:
        print("0 passed, 0 failed (no mpirun)")
        return 0
    for n in (2, 4, 8):
        run = mpirun(n, collectives)
        expect(run.returncode == 0 and ", 0 failed" in run.stdout, f"collectives on {n}", run.stdout + run.stderr)
        whole = run.stdout
        run = mpirun(n, "-x", "MPP_OVERLAP=1", collectives)  # as if every group spanned hosts
        expect(run.returncode == 0 and run.stdout == whole, f"sums beside work on {n}", run.stdout + run.stderr)
        run = mpirun(n, collectives, "7")  # as if counts past 7 were too large for one call
        expect(run.returncode == 0 and run.stdout == whole, f"collectives in pieces on {n}", run.stdout + run.stderr)

    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        base = ["--data", "synthetic", "--seed", "3"]
        alone = subprocess.run([trainer, *base, "--metrics", at("threads.jsonl"), "--save", at("threads")],
                               capture_output=True, text=True, timeout=120)
        run = mpirun(4, trainer, *base, "--metrics", at("mpi.jsonl"), "--save", at("mpi"), "--dump-grads", at("g"))
        expect(alone.returncode == 0 and run.returncode == 0, "both run", alone.stderr + run.stderr)
        a, b = losses(at("threads.jsonl")), losses(at("mpi.jsonl"))
        expect(len(a) == len(b) == 12 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b)), "equal losses", f"{a} {b}")
        expect("over MPI" in run.stdout and os.path.getsize(at("g")) > 0, "it says MPI", run.stdout)

        run = mpirun(2, trainer, *base, "--resume", at("threads"), "--save", at("threads"), "--steps", "15")
        expect(run.returncode == 0 and os.path.isdir(at("threads/step-15")), "MPI continues threads", run.stderr)
        run = subprocess.run([trainer, *base, "--resume", at("threads"), "--steps", "16"], capture_output=True, text=True,
                             timeout=120)
        expect(run.returncode == 0 and "step 16/16" in run.stdout, "threads continue MPI", run.stderr)

        for n, options, word, code in ((3, base, "MPI started 3", 2), (4, ["--data", "npy:/nowhere"], "/nowhere", 2),
                                       (4, ["--dat", "x"], "--data", 2), (4, [*base, "--init", "/nowhere"], "/nowhere", 2),
                                       (4, [*base, "--save", "/proc/nowhere"], "/proc", 2),
                                       (4, [*base, "--metrics", "/dev/full"], "/dev/full", 1)):
            run = mpirun(n, trainer, *options)
            said = errors(run.stderr)
            expect(run.returncode == code and len(said) == 1 and word in said[0], f"error of {options}", run.stderr)

        job = subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", trainer, *base, "--steps",
                                "1000000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in job.stdout:
            if line.startswith(b"step "):
                break
        ranks = children(job.pid)
        os.kill(int(ranks[-1]), 9)
        try:
            expect(job.wait(timeout=10) != 0, "a killed rank ends the job")
        except subprocess.TimeoutExpired:
            job.kill()
            expect(False, "a killed rank ends the job within 10 s")

    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
