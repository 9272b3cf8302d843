#!/usr/bin/env python3
"""Trainers that are killed, stopped, or meet a full disk, and go on: the losses are those of a run that nothing disturbed,
bit for bit under the same plan, within 2e-5 under others. A failure prints the seed; MPP_RESUME_SEED=N repeats it."""
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness as h

FLAGS = "-O1 -g -std=c17 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"

SEED = int(os.environ.get("MPP_RESUME_SEED", random.SystemRandom().randrange(10**6)))
EVERY, KEEP, STEPS = 10, 3, 200
LONG = 600  # steps of a job that must still run when it is told to stop
KILLS = dict(threads=50, mpi=20, plans=20, stages=20) if h.FULL else dict(threads=10, mpi=4, plans=6, stages=4)
PIPELINE = "pp=2,dp=2,zero=1,schedule=1f1b,micro_batches=4"
MODEL = dict(layers=2, hidden=32, heads=4, vocab=256, seq=16, positions=16, batch=24, pdrop=0.1, lr=1e-3, schedule="cosine",
             warmup_steps=10, total_steps=STEPS)
DATA = f"text:{h.ROOT / 'LICENSE'}"
STOPPED = re.compile(r"^stopped by (\w+) after step (\d+); saved (\S+)$", re.M)
plans, losses = {}, {}


def plan(gpus, fix=None, flags=(), **changes):
    """The test's model, saved every few steps, planned and built once per set of arguments."""
    key = (gpus, fix, flags, tuple(changes.items()))
    if key not in plans:
        xml = h.TMP / "model.xml"
        text = (h.ROOT / "models" / "gpt.xml").read_text()
        xml.write_text(re.sub(r"<checkpoint .*?/>", f'<checkpoint every="{EVERY}" keep="{KEEP}"/>', text))
        plans[key] = h.plan(xml, gpus=gpus, fix=fix, D={**MODEL, **changes}).build(*flags)
    return plans[key]


def whole(p, mpi=False, steps=STEPS):
    """Losses of the run that nothing disturbs, and its seconds."""
    key = (p.dir, mpi, steps)
    if key not in losses:
        begun = time.monotonic()
        losses[key] = p.train(mpi=mpi, data=DATA, steps=steps, save=h.TMP / f"whole{len(losses)}").losses, time.monotonic() - begun
        h.check(len(losses[key][0]) == steps, "the whole run ends", len(losses[key][0]))
    return losses[key]


def children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                pass
    return sorted(found)


class Job:
    """A running trainer, its checkpoints in FOLDER beside its metrics; it goes on with what it finds there."""

    def __init__(self, p, folder, mpi=False, steps=STEPS, resume=None, env=None, limit=None):
        self.folder, self.mpi, self.metrics = folder, mpi, folder.with_suffix(".jsonl")
        command = [p.dir / "trainer", "--data", DATA, "--steps", steps, "--save", folder, "--resume", resume or folder, "--metrics",
                   self.metrics]
        if mpi:
            command = [*h.MPIRUN, "-n", p.devices, *command]
        self.out = open(h.TMP / "out", "w+")
        self.err = open(h.TMP / "err", "w+")
        set_limit = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        env={**os.environ, **(h.MPI_ENV if mpi else {}), **(env or {})}, preexec_fn=set_limit,
                                        start_new_session=True)

    def running(self):
        return self.process.poll() is None

    def ranks(self):
        return children(self.process.pid) if self.mpi else [self.process.pid]

    def wait_for(self, condition, timeout_s=60):
        """Until CONDITION holds or the trainer has ended."""
        end = time.monotonic() + timeout_s
        while self.running() and not condition() and time.monotonic() < end:
            time.sleep(0.0005)
        return self.running()

    def wait_for_steps(self, more=1):
        """Until it has done MORE steps and said so in its metrics."""
        path = Path(self.out.name)
        started = self.wait_for(lambda: b"\nstep " in path.read_bytes())  # before, the metrics are those of the run before
        if started:
            target = count_lines(self.metrics) + more - 1
            self.wait_for(lambda: count_lines(self.metrics) >= target)

    def end(self, timeout_s=120):
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
            h.check(False, f"{self.folder.name}: ends within {timeout_s} s")
        self.out.seek(0)
        self.err.seek(0)
        self.said, self.complained = self.out.read(), self.err.read()
        self.out.close()
        self.err.close()
        return code

    def rows(self):
        """Whole lines of the metrics."""
        return [json.loads(x) for x in self.metrics.read_text().splitlines(True) if x.endswith("\n")] if self.metrics.exists() else []


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def errors(text):
    return [x for x in text.splitlines() if x.startswith("error:")]


def saved_steps(folder):
    return sorted(int(x.name[5:]) for x in folder.glob("step-*")) if folder.exists() else []


def check_folder(folder, what, newest_before):
    """Whatever is called step-N is complete, and the newest never gets older."""
    steps = saved_steps(folder)
    for n in steps:
        at = folder / f"step-{n}"
        state = json.loads((at / "state.json").read_text())
        sizes = {name: (at / name).stat().st_size for name in state["files"]}
        h.check(state["step"] == n and sizes == {k: v["bytes"] for k, v in state["files"].items()}, f"{what}: step-{n} is whole", sizes)
    newest = max(steps, default=0)
    h.check(newest >= newest_before and len(steps) <= KEEP + 1, f"{what}: checkpoints", f"{steps}, before {newest_before}")
    return newest


def check_end(job, expected, what, tolerance=0.0):
    """The run has ended: one line per step, the losses expected, nothing unfinished in the folder."""
    rows = job.rows()
    h.check([r["step"] for r in rows] == list(range(1, len(expected) + 1)), f"{what}: one line per step", len(rows))
    got = [r["loss"] for r in rows]
    if tolerance:
        h.close(what, got, expected, tolerance)
    else:
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), None)
        h.check(got == expected, f"{what}: equal bit for bit", f"step {at + 1}: {got[at]} {expected[at]}" if at is not None else "")
    last = len(expected)
    steps = sorted({last, *range(EVERY, last + 1, EVERY)})[-KEEP:]
    names = sorted(x.name for x in job.folder.iterdir())
    h.check(names == sorted(f"step-{n}" for n in steps), f"{what}: the newest {KEEP} stay and nothing else", names)


def kill(job, rng, how, steps, step_s):
    """SIGKILL one rank, all, or mpirun: while it starts, within so many STEPS, or at a save. Who it was; None if it had ended."""
    if how == "start":
        time.sleep(rng.uniform(0, 0.3))
    else:
        job.wait_for_steps(rng.randint(1, steps))
        time.sleep(rng.uniform(0, step_s))
    if how == "save":
        job.wait_for(lambda: any(job.folder.glob(".part-*")))
    if not job.running():
        return None
    ranks = job.ranks()
    who = rng.choice(["one rank", "all ranks", "mpirun"]) if job.mpi and ranks else "the trainer"
    victims = [rng.choice(ranks)] if who == "one rank" else ranks if who == "all ranks" else [job.process.pid]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return who


def killed_often(name, n_kills, next_plan, expected, seconds, mpi=False, steps=STEPS, tolerance=0.0):
    """Kills and goes on until N_KILLS have struck; where a run gets through before, another begins."""
    rng = random.Random(f"{SEED}{name}")
    done, chain, newest, resumed = 0, 0, 0, 0
    while done < n_kills:
        folder = h.TMP / f"{name}{chain}"
        job = Job(next_plan(), folder, mpi, steps)
        how = rng.choices(["training", "save", "start"], [5, 3, 1])[0]
        who = kill(job, rng, how, max(EVERY * 3 // 2, 2 * steps // n_kills), 2 * seconds / steps)
        what = f"{name}, seed {SEED}, kill {done + 1} ({who}, {how})"
        code = job.end()
        resumed += "continuing from step" in job.said
        if who is None:
            h.check(code == 0, f"{what}: runs through", job.complained[:500])
            check_end(job, expected, what, tolerance)
            chain, newest = chain + 1, 0
            continue
        done += 1
        h.check(not errors(job.complained) or job.mpi, f"{what}: no error before", job.complained[-500:])
        rows = job.rows()
        h.check(all(abs(r["loss"] - expected[r["step"] - 1]) <= tolerance for r in rows), f"{what}: losses until then")
        newest = check_folder(folder, what, newest)
    job = Job(next_plan(), folder, mpi, steps)
    h.check(job.end() == 0, f"{name}, seed {SEED}: the last run ends", job.complained[-1000:])
    check_end(job, expected, f"{name}, seed {SEED}", tolerance)
    h.check(resumed >= n_kills // 3, f"{name}, seed {SEED}: most runs went on from a checkpoint", resumed)


def test_threads():
    p = plan(2)
    expected, seconds = whole(p)
    killed_often("threads", KILLS["threads"], lambda: p, expected, seconds)


def test_mpi():
    if shutil.which("mpirun") is None:
        return h.skip("no mpirun: kills of ranks")
    p = plan(2)
    expected, seconds = whole(p, mpi=True)
    killed_often("mpi", KILLS["mpi"], lambda: p, expected, seconds, mpi=True)


def test_stages():
    """Pipelines: threads and, where there is mpirun, processes."""
    p = plan(4, PIPELINE)
    for mpi in (False, True) if shutil.which("mpirun") else (False,):
        expected, seconds = whole(p, mpi, steps=100)
        killed_often(f"stages{'_mpi' if mpi else ''}", KILLS["stages"] // 2, lambda: p, expected, seconds, mpi, steps=100)


def test_plans():
    """Every resume under another plan and number of devices."""
    which = [(1, None), (4, PIPELINE), (2, None), (3, None), (4, "dp=2,tp=2"), (8, None)] + ([(2, "dp=2"), (4, "dp=4,zero=3"), (8, "dp=4,tp=2")] if h.FULL else [])
    steps, turn = 120, [0]
    expected, seconds = whole(plan(1), steps=steps)

    def next_plan():
        turn[0] += 1
        return plan(*which[turn[0] % len(which)])

    killed_often("plans", KILLS["plans"], next_plan, expected, seconds, steps=steps, tolerance=2e-5)


# ---- signals ----

def check_stop(job, number, what):
    code = job.end()
    found = STOPPED.findall(job.said)
    ok = h.check(code == 128 + number and len(found) == 1, f"{what}: status and line", f"{code} {job.said[-300:]}{job.complained[-500:]}")
    if ok:
        name, step, path = found[0]
        h.check(name == signal.Signals(number).name and path == f"{job.folder}/step-{step}", f"{what}: the line", found)
        h.check(saved_steps(job.folder)[-1] == int(step) == len(job.rows()), f"{what}: it stops where it says", found)


def test_stop():
    rng = random.Random(SEED)
    p = plan(2)
    expected, seconds = whole(p, steps=LONG)
    folder = h.TMP / "stop"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        job = Job(p, folder, steps=LONG)
        job.wait_for_steps()
        time.sleep(rng.uniform(0, seconds / 24))
        os.kill(job.process.pid, number)
        check_stop(job, number, f"threads, seed {SEED}, {number.name}")
    job = Job(p, folder, steps=LONG)
    h.check(job.end() == 0, "a stopped run goes on", job.complained)
    got = job.rows()
    h.check([r["loss"] for r in got] == expected, "and repeats the losses", len(got))

    job = Job(p, h.TMP / "usr1", steps=LONG)
    job.wait_for_steps(3)
    os.kill(job.process.pid, signal.SIGUSR1)
    h.check(job.end() == 0 and re.search(r"^asked by SIGUSR1 after step \d+; saved \S+/step-\d+$", job.said, re.M), "SIGUSR1", job.said[-300:])
    h.check([r["loss"] for r in job.rows()] == expected, "saving in between changes nothing")


def test_stop_mpi():
    if shutil.which("mpirun") is None:
        return h.skip("no mpirun: signals to ranks")
    rng = random.Random(SEED)
    p = plan(2)
    expected, seconds = whole(p, mpi=True, steps=LONG)
    folder = h.TMP / "stop_mpi"
    for number, where in ((signal.SIGTERM, "one rank"), (signal.SIGUSR2, "mpirun"), (signal.SIGUSR1, "mpirun")):
        what = f"MPI, seed {SEED}, {number.name} to {where}"
        job = Job(p, folder, mpi=True, steps=LONG)
        job.wait_for_steps()
        time.sleep(rng.uniform(0, seconds / 24))
        os.kill(rng.choice(job.ranks()) if where == "one rank" else job.process.pid, number)
        if number != signal.SIGUSR1:
            check_stop(job, number, what)
        else:
            h.check(job.end() == 0 and len(re.findall("^asked by SIGUSR1", job.said, re.M)) == 1, what, job.said[-300:])
    rows = job.rows()
    h.check([r["loss"] for r in rows] == expected, f"MPI, seed {SEED}: stopped and resumed, the losses are the same", len(rows))
    line, steps = list(h.MPIRUN), saved_steps(folder)[-2:]  # a file system that shows rank 1 a newer step than rank 0
    for rank in range(2):
        seen = h.TMP / f"seen{rank}"
        for n in steps[:rank + 1]:
            shutil.copytree(folder / f"step-{n}", seen / "saved" / f"step-{n}")
        line += ["-n", "1", "-wdir", seen, p.dir / "trainer", "--data", DATA, "--steps", LONG, "--resume", "saved", "--metrics",
                 h.TMP / "two.jsonl", ":"]
    r = h.run(line[:-1], 120, h.MPI_ENV)
    h.check(r.returncode == 0, "ranks that see different folders start", r.stderr)
    got = [json.loads(x)["loss"] for x in (h.TMP / "two.jsonl").read_text().splitlines()]
    h.check(r.returncode == 0 and f"continuing from step {steps[0]}" in r.stdout and got == expected[steps[0]:], "all ranks begin where rank 0 does",
            r.stderr[-800:])


def test_stop_at_once():
    """Without --save, and by a second signal while the first cannot be obeyed: the metrics' reader reads nothing."""
    p = plan(1)
    fifo = h.TMP / "fifo"
    os.mkfifo(fifo)
    for save in (True, False):
        command = [p.dir / "trainer", "--data", DATA, "--steps", 10**6, "--metrics", fifo]
        if save:
            command += ["--save", h.TMP / "never"]
        pipe = os.open(fifo, os.O_RDWR)
        fcntl.fcntl(pipe, 1031, 4096)  # F_SETPIPE_SZ
        os.write(pipe, bytes(4090))    # no room for a line of metrics
        job = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not job.stdout.readline().startswith("step ") and job.poll() is None:
            pass
        time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        if save:
            time.sleep(1.5)
            h.check(job.poll() is None, "the first signal waits for the step", job.poll())
            job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=60)
        os.close(pipe)
        want = "again; nothing more is saved" if save else "nothing is saved without --save"
        h.check(job.returncode == -signal.SIGTERM and want in err and len(err.strip().splitlines()) == 1,
                f"{'a second signal' if save else 'without --save a signal'} ends it at once", f"{job.returncode} {err}")


# ---- damage ----

def refused(job, code, text, what):
    got = job.end()
    said = errors(job.complained)
    h.check(got == code and len(said) == 1 and re.search(text, said[0]), what, f"{got} {job.complained[-600:]}")


def test_damage():
    p = plan(2)
    expected, _ = whole(p)
    good = h.TMP / "good"
    job = Job(p, good)
    h.check(job.end() == 0 and "good holds no checkpoint yet" in job.complained, "a run to damage, begun by the command that resumes",
            job.complained)
    check_end(job, expected, "a run to damage")
    newest, second = (good / f"step-{n}" for n in saved_steps(good)[:-3:-1])

    def damaged(name, change):
        folder = h.TMP / name
        shutil.copytree(good, folder)
        shutil.copy(good.with_suffix(".jsonl"), folder.with_suffix(".jsonl"))
        change(folder / newest.name)
        return folder

    def truncate(step):
        os.truncate(step / "model.safetensors", (step / "model.safetensors").stat().st_size - 4096)

    def flip(step):
        with open(step / "optimizer.safetensors", "r+b") as f:
            f.seek(-1000, 2)
            byte = f.read(1)
            f.seek(-1000, 2)
            f.write(bytes([byte[0] ^ 1]))

    for name, change, word in (("truncated", truncate, "model.safetensors"), ("missing", lambda s: (s / "optimizer.safetensors").unlink(), "optimizer"),
                               ("no_state", lambda s: (s / "state.json").unlink(), "state.json"),
                               ("torn_state", lambda s: os.truncate(s / "state.json", 40), "state.json")):
        folder = damaged(name, change)
        job = Job(p, folder)
        code = job.end()
        note = [x for x in job.complained.splitlines() if x.startswith("note:")]
        h.check(code == 0 and len(note) == 1 and word in note[0] and f"going back to {second.name}" in note[0], f"{name}: it falls back",
                f"{code} {job.complained}")
        h.check(f"continuing from step {second.name[5:]}" in job.said, f"{name}: it says so", job.said[:400])
        check_end(job, expected, f"{name}, resumed")
        change(folder / newest.name)
        refused(Job(p, folder, resume=folder / newest.name), 2, word, f"{name}, and named: refused")
    folder = damaged("flipped", flip)
    refused(Job(p, folder), 2, r"optimizer\.safetensors: damaged", "one bit: refused")
    job = Job(p, folder, resume=folder / second.name)
    h.check(job.end() == 0, "the older one named: it goes on", job.complained)
    check_end(job, expected, "an older one, named")
    folder = damaged("all", lambda s: [truncate(x) for x in s.parent.glob("step-*")])
    refused(Job(p, folder), 2, "model.safetensors: damaged", "all damaged: refused, not begun anew")


def test_differences():
    """What is told when a run goes on otherwise, and which samples it reads with another batch."""
    p, half = plan(1, pdrop=0), plan(1, pdrop=0, batch=12)
    arguments = dict(data=DATA, lr=0)
    expected = p.train(steps=4, **arguments).losses
    at = h.TMP / "differs"
    p.train(steps=2, save=at, **arguments)
    r = half.train(steps=6, resume=at, save=h.TMP / "halved", **arguments)
    h.check("batch 24; this run goes on with 12" in r.err, "another batch is told", r.err)
    pairs = [(a + b) / 2 for a, b in zip(r.losses[::2], r.losses[1::2])]
    h.close("another batch goes on with the next sample", pairs, expected[2:], 1e-5)
    state = json.loads((h.TMP / "halved" / "step-6" / "state.json").read_text())
    h.check(state["samples"] == 96, "samples are counted", state)
    r = p.train(steps=4, resume=h.TMP / "halved", data="synthetic", lr=1e-4)
    for text in ("data", "lr 0", "0.0001", "batch 12"):
        h.check(text in r.err, f"told: {text}", r.err)
    r = p.train(steps=4, resume=at, **arguments)
    h.check(r.err == "" and r.losses == expected[2:], "without a difference nothing is told", r.err)
    r = p.train(steps=4, resume=at, lr=0)
    h.check(f"goes on with the checkpoint's, {DATA}" in r.err and r.losses == expected[2:], "without --data it reads the checkpoint's", r.err)
    r = plan(1, weight_decay=0.3, heads=2).train(steps=3, resume=at, **arguments)
    h.check("weight_decay 0.1, pdrop 0, heads 4; this run goes on with 0.3, 0.1, 2\n" in r.err, "other settings of the model are told", r.err)
    for changes, name in (({"layers": 1}, "model"), ({"optimizer": "sgd"}, "optimizer")):
        r = plan(1, pdrop=0, **changes).train(steps=3, resume=at, allow_failure=True, metrics=False, **arguments)
        h.check(r.process.returncode == 2 and re.search(rf"^error: .*/{name}\.safetensors: of another model or optimiser: \d+ tensors", r.err, re.M),
                f"{changes}: refused, and not for damage", r.err)
    weights, begun = at / "step-2" / "model.safetensors", h.TMP / "begun"
    want = p.train(steps=3, data=DATA, init=weights).losses
    for steps in (1, 3):
        r = p.train(steps=steps, data=DATA, init=weights, save=begun, resume=begun, metrics=h.TMP / "begun.jsonl")
    h.check(r.losses == want, "--init begins, --resume goes on", f"{r.losses} {want}")


def mounted(options):
    """A small tmpfs, or None where one may not be mounted."""
    at = h.TMP / f"mount{options.replace('=', '')}"
    at.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], capture_output=True)
    return at if mount.returncode == 0 else None


def test_full_disk():
    p = plan(2)
    expected, _ = whole(p)
    folder = h.TMP / "limited"
    job = Job(p, folder)
    job.wait_for(lambda: len(saved_steps(folder)) >= 2)
    os.kill(job.process.pid, signal.SIGTERM)
    h.check(job.end() == 143, "a run to go on with", job.complained)
    before = sorted(folder.iterdir())
    refused(Job(p, folder, limit=200000), 1, "File too large", "a limit of file sizes: one message")
    h.check(sorted(folder.iterdir()) == before, "and the checkpoints are as before", sorted(folder.iterdir()))
    job = Job(p, folder)
    h.check(job.end() == 0, "which are then resumed", job.complained)
    check_end(job, expected, "after a limit")
    (h.TMP / "file").write_text("")
    refused(Job(p, h.TMP / "file"), 2, "file", "a file where the folder should be")
    refused(Job(p, h.TMP / "file" / "below"), 2, "file", "a file above the folder")
    small = mounted("size=1m")
    if small is None:
        return h.skip("no right to mount: a full disk, a read-only one")
    try:
        refused(Job(p, small / "ck"), 1, "No space left", "a full disk: one message")
        steps = saved_steps(small / "ck")
        h.check(len(steps) == 2 and len(list((small / "ck").iterdir())) == 2, "what was saved stays, and nothing else", steps)
        shutil.copytree(small / "ck", h.TMP / "rescued")
        shutil.copy(small / "ck.jsonl", h.TMP / "rescued.jsonl")
        job = Job(p, h.TMP / "rescued")
        h.check(job.end() == 0 and f"continuing from step {steps[-1]}" in job.said, "and is resumed from", job.complained)
        check_end(job, expected, "after a full disk")
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        refused(Job(p, small / "ck"), 2, "Read-only", "a read-only disk")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_sanitized():
    """Killed, resumed, stopped and resumed under AddressSanitizer, UndefinedBehaviorSanitizer and their search for leaks."""
    if not h.FULL:
        return
    p = plan(2, flags=(f"CFLAGS={FLAGS}", f"LDFLAGS={FLAGS}", "OPENMP="))
    env = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1"}
    folder = h.TMP / "sanitized"
    job = Job(p, folder, env=env)
    job.wait_for(lambda: saved_steps(folder))
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    job = Job(p, folder, env=env)
    job.wait_for_steps()
    os.kill(job.process.pid, signal.SIGTERM)
    check_stop(job, signal.SIGTERM, "sanitized")
    h.check("Sanitizer" not in job.complained, "sanitized: nothing found", job.complained[:3000])
    job = Job(p, folder, env=env)
    h.check(job.end(600) == 0 and "Sanitizer" not in job.complained, "sanitized: resumed to the end", job.complained[:3000])
    h.check(len(job.rows()) == STEPS, "sanitized: one line per step")


TESTS = {"threads": test_threads, "mpi": test_mpi, "stages": test_stages, "plans": test_plans, "stop": test_stop, "stop_mpi": test_stop_mpi,
         "stop_at_once": test_stop_at_once, "damage": test_damage, "differences": test_differences, "full_disk": test_full_disk,
         "sanitized": test_sanitized}

if __name__ == "__main__":
    print(f"seed {SEED}")
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
