#!/usr/bin/env python3
"""The host runtime under mpirun.

usage: runtime_mpi.py COLLECTIVES_TEST TRAINER_TEST TRANSFERS_TEST PIPELINE_TEST   (all built with MPP_WITH_MPI)

Collectives on 2, 4 and 8 processes; the trainer test's program over MPI against threads: the same losses,
checkpoints that either continues, one message and the right exit status when something is wrong. The same for
transfers between stages, whole and in small messages, and for hand-written pipelines.
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


def transfers(test):
    """(processes, which pipeline and draw, elements of a message)"""
    for n, which, most in ((2, 0, 0), (4, 0, 0), (4, 13, 3), (4, 26, 1), (5, 12, 0), (8, 0, 7), (8, 1, 0), (8, 14, 0), (8, 15, 2)):
        run = mpirun(n, test, str(which), str(most))
        expect(run.returncode == 0 and ", 0 failed" in run.stdout, f"transfers of {n} {which} {most}", run.stdout + run.stderr)


def pipelines(test, folder):
    """Plans of test_runtime_pipeline.c by number."""
    at = lambda name: os.path.join(folder, name)
    base = ["--data", "synthetic", "--seed", "7"]
    for plan, n in ((3, 4), (6, 8), (7, 8), (10, 8), (12, 5)):
        name = f"plan={plan}"
        alone = subprocess.run([test, name, *base, "--metrics", at("t"), "--save", at(f"t{plan}")], capture_output=True, text=True,
                               timeout=120)
        run = mpirun(n, test, name, *base, "--metrics", at("m"), "--save", at(f"m{plan}"), "--dump-grads", at("g"))
        expect(alone.returncode == 0 and run.returncode == 0, f"{name} runs", alone.stderr + run.stderr)
        a, b = losses(at("t")), losses(at("m"))
        expect(len(a) == len(b) == 8 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b)), f"{name}: losses", f"{a} {b}")
        again = mpirun(n, test, name, *base, "--metrics", at("m"))
        expect(again.returncode == 0 and losses(at("m")) == b, f"{name}: two runs have the same bits", again.stderr)
    run = mpirun(8, test, "plan=6", *base, "--profile", at("trace.json"))
    with open(at("trace.json")) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    for name in ("forward 3", "backward 0", "send h", "receive h", "wait", "update", "step 8", "all-reduce over data 4"):
        expect(any(e["name"] == name for e in events), f"a trace has {name}", run.stderr)
    passes = {(e["tid"], e["name"]): e for e in events if e["cat"] == "compute" and e["ts"] < min(
        x["ts"] for x in events if x["name"] == "step 8")}
    late = [m for m in range(4) if passes[0, f"forward {m}"]["ts"] > passes[6, f"forward {m}"]["ts"] + passes[6, f"forward {m}"]["dur"]]
    expect(not late and "profile of step 8" in run.stdout, "its clocks agree", run.stdout)
    run = mpirun(4, test, "plan=3", "--data", "synthetic", "--resume", at("m10"), "--steps", "9", "--save", at("m10"))
    expect(run.returncode == 0 and "step 9/9" in run.stdout, "a plan of 4 goes on with a checkpoint of 8", run.stderr)
    run = subprocess.run([test, "plan=0", "--data", "synthetic", "--resume", at("m10"), "--steps", "10"], capture_output=True,
                         text=True, timeout=120)
    expect(run.returncode == 0 and "step 10/10" in run.stdout, "and so does one device", run.stderr)
    for rank in (0, 3, 7):
        run = mpirun(8, "-x", f"FAILING_RANK={rank}", test, "plan=6", *base)
        said = errors(run.stderr)
        expect(run.returncode == 2 and said == [f"error: rank {rank} fails, as this test wants"], f"rank {rank} fails", run.stderr)
    run = mpirun(4, "-x", "FAILING_RANK=2", "-x", "FAILING_HOW=2", test, "plan=3", *base, "--timeout", "1")
    said = errors(run.stderr)
    expect(run.returncode == 1 and len(said) == 1 and "--timeout sets how long" in said[0], "a rank that waits for nothing", run.stderr)


def kill_one(which, *command):
    """A killed rank ends the job."""
    job = subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", *command, "--data", "synthetic", "--steps",
                            "1000000000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for line in job.stdout:
        if line.startswith(b"step "):
            break
    os.kill(int(children(job.pid)[which]), 9)
    try:
        expect(job.wait(timeout=10) != 0, f"killed rank {which}: the job ends")
    except subprocess.TimeoutExpired:
        job.kill()
        expect(False, f"killed rank {which}: the job ends within 10 s")


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
    collectives, trainer, transfers_test, pipeline = sys.argv[1:5]
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

        transfers(transfers_test)
        pipelines(pipeline, folder)
        kill_one(-1, "4", trainer)
        kill_one(-1, "4", pipeline, "plan=3")
        kill_one(0, "4", pipeline, "plan=3")

    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
