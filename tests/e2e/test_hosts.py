#!/usr/bin/env python3
"""Jobs over several hosts, and jobs that lose a part of themselves.

Four network namespaces, joined by a bridge in a fifth, stand for four hosts: each has a name and an address of its own,
and what runs in it reaches the others over TCP only. Eight ranks over MPI compute what one device computes; a host that
is cut off, a killed, stopped or unlaunched rank end the whole job, everywhere, with one message. Without the right to make
namespaces that part is skipped.

    test_hosts.py [-v] [--full] [losses] [cut] [killed] [stopped] [launcher] [start] [save]
"""
import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness as h
from test_equivalence import gpt2_tiny

N_HOSTS, SLOTS = 4, 2
PIPELINE = "pp=4,tp=2,schedule=1f1b,micro_batches=4"  # a stage on each host
STEPS = r"^step ([2-9]|\d\d+)/"  # steps that take no time share a line
NAME = "mpplan"  # namespaces are mpplanPIDhN, so that those of a dead test can be told
# What mpirun says when it could not start its daemons on the other hosts: no rank has run then.
NOT_STARTED = r"unable to complete a TCP connection|unable to reliably start one or more daemons"
REACH = """import errno, socket, sys, time
left, end = set(sys.argv[1:]), time.monotonic() + 30
while left and time.monotonic() < end:
    for address in sorted(left):
        s = socket.socket()
        s.settimeout(1)
        if s.connect_ex((address, 1)) in (0, errno.ECONNREFUSED):  # somebody answers
            left.discard(address)
        s.close()
    time.sleep(0.05 if left else 0)
sys.exit(f"cannot reach {' '.join(sorted(left))}" if left else 0)
"""
LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def ip(*args, check=True):
    return subprocess.run(["ip", *map(str, args)], check=check, capture_output=True, text=True)


class Hosts:
    """The namespaces; a script that starts a command in one of them stands in for ssh."""

    def __init__(self):
        self.prefix = f"{NAME}{os.getpid()}h"
        self.folder = Path(tempfile.mkdtemp(dir=h.TMP))
        self.switch = self.prefix + "0"
        atexit.register(self.remove)
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for n in range(1, N_HOSTS + 1):
            space = self.space(n)
            ip("netns", "add", space)
            ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{n}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{n}", "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        self.agent = self.folder / "agent.sh"
        self.agent.write_text("#!/bin/sh\n# agent.sh ADDRESS COMMAND...: run COMMAND on the host of that address\n"
                              "n=${1##*.}\nshift\n"
                              f"exec ip netns exec {self.prefix}$n unshare --uts sh -c "
                              f"\"hostname {self.host('$n')}; exec sh -c \\\"\\$1\\\"\" sh \"$*\"\n")
        self.agent.chmod(0o755)
        self.hostfile = self.folder / "hosts"
        self.hostfile.write_text("".join(f"{self.address(n)} slots={SLOTS}\n" for n in range(1, N_HOSTS + 1)))

        self.settle()

    def settle(self):
        """Wait until every host is answered by every other: fresh links and bridges take a moment."""
        for n in range(1, N_HOSTS + 1):
            others = [self.address(k) for k in range(1, N_HOSTS + 1) if k != n]
            p = ip("netns", "exec", self.space(n), sys.executable, "-c", REACH, *others, check=False)
            if p.returncode:
                raise h.Failure(f"host {n}: {p.stderr.strip()}")

    def space(self, n):
        return f"{self.prefix}{n}"

    def host(self, n):
        return f"host{n}-{os.getpid()}"

    @staticmethod
    def address(n):
        return f"10.77.0.{n}"

    def mpirun(self, *command, on=1):
        """The command line that starts COMMAND as 8 ranks, mpirun itself on host ON."""
        network = f"{self.address(0)}/24"
        return ["ip", "netns", "exec", self.space(on), "unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh",
                self.host(on), *LAUNCH, "--hostfile", self.hostfile, "--mca", "plm_rsh_agent", self.agent, "--mca", "btl",
                "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "btl_tcp_if_include", network,
                "--mca", "oob_tcp_if_include", network, "-n", N_HOSTS * SLOTS, *command]

    def link(self, n, state, inside=False):
        """Set the cable of host N up or down, at the switch or at the host."""
        if inside:
            ip("-n", self.space(n), "link", "set", "eth0", state)
        else:
            ip("-n", self.switch, "link", "set", f"port{n}", state)
        if state == "up":
            self.settle()

    def remove(self):
        remove_spaces(self.prefix)


def remove_spaces(prefix):
    """End everything that runs in namespaces of that prefix, and them."""
    listed = ip("netns", "list", check=False).stdout.split("\n")
    for space in (line.split()[0] for line in listed if line.startswith(prefix)):
        for pid in ip("netns", "pids", space, check=False).stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        ip("netns", "del", space, check=False)


def remove_leftovers():
    for line in ip("netns", "list", check=False).stdout.split("\n"):
        m = re.match(rf"{NAME}(\d+)h", line)
        if m and not os.path.exists(f"/proc/{m.group(1)}"):
            remove_spaces(m.group(0))


def make_hosts():
    """Hosts, or None where this machine does not let us."""
    missing = [tool for tool in ("ip", "unshare", "mpirun") if shutil.which(tool) is None]
    why = f"no {', '.join(missing)}" if missing else "needs root" if os.geteuid() != 0 else None
    if why is None:
        remove_leftovers()
        try:
            return Hosts()
        except subprocess.CalledProcessError as e:
            why = f"{' '.join(e.cmd)}: {e.stderr.strip()}"
    h.skip(f"hosts as network namespaces: {why}")
    return None


# ---- jobs ----

class Job:
    """A job that runs until something happens to it."""

    def __init__(self, command, env=None):
        self.err = tempfile.TemporaryFile("w+", dir=h.TMP)
        self.mark = f"MPPLAN_TEST_JOB={os.getpid()}.{id(self)}"  # in the environment of all its processes
        name, value = self.mark.split("=")
        command = [str(c) for c in command]
        at = max(i for i, c in enumerate(command) if c == "-n")
        command[at:at] = ["-x", name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.err, stdin=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {}), name: value}, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.out = ""
        atexit.register(self.stop)

    def members(self, rank=None):
        """Processes of the job that still run; RANK: the trainer of that rank."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                running = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            except OSError:
                continue
            if self.mark in environment and running and (rank is None or f"OMPI_COMM_WORLD_RANK={rank}" in environment):
                found.append(int(pid))
        return found

    def read(self):
        self.out += (self.process.stdout.read() or b"").decode(errors="replace")
        return self.out

    def wait_for(self, what, timeout_s=90):
        end = time.monotonic() + timeout_s
        while not re.search(what, self.read(), re.M):
            if time.monotonic() > end or self.process.poll() is not None:
                raise h.Failure(f"no {what!r} within {timeout_s} s: {self.out[-500:]} {self.said()[-2000:]}")
            time.sleep(0.05)
        return self

    def kill(self, rank, number=signal.SIGKILL):
        pids = self.members(rank)
        if not pids:
            raise h.Failure(f"rank {rank} does not run")
        os.kill(pids[0], number)

    def said(self):
        self.err.seek(0)
        return self.err.read()

    def end(self, what, within_s, word=None, beside=()):
        """All its processes are gone within so many seconds; one message holds WORD. BESIDE: other processes that must go."""
        begun = time.monotonic()
        left = lambda: self.process.poll() is None or self.members() or any(os.path.exists(f"/proc/{p}") for p in beside)
        while left() and time.monotonic() - begun < within_s:
            self.read()
            time.sleep(0.1)
        took = time.monotonic() - begun
        h.check(not left(), f"{what}: all processes end within {within_s} s", f"left: {self.members()} {self.said()[-2000:]}")
        h.check(self.process.poll() != 0, f"{what}: exit status", self.process.poll())
        if word is not None:
            lines = [line for line in self.said().splitlines() if re.match(r"error: |mpirun noticed that process", line)]
            h.check(len(lines) == 1 and re.search(word, lines[0]), f"{what}: one message that says so", self.said()[-3000:])
        if h.VERBOSE:
            print(f"{what}: {took:.1f} s")
        self.stop()

    def stop(self):
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def orteds(hosts):
    """Processes in all namespaces but host 1's."""
    return [int(p) for n in range(2, N_HOSTS + 1) for p in ip("netns", "pids", hosts.space(n)).stdout.split()]


class Plans:
    """What the parts train, made once."""

    def __init__(self):
        self.model = gpt2_tiny()
        self.made = {}

    def get(self, gpus, fix=None):
        if (gpus, fix) not in self.made:
            self.made[gpus, fix] = h.plan("models/gpt.xml", preset="tiny", gpus=gpus, D=self.model.settings["A"][0], fix=fix).build()
        return self.made[gpus, fix]

    def command(self, gpus, *more, steps=1000000, fix=None):
        return [self.get(gpus, fix).dir / "trainer", "--data", f"npy:{self.model.fresh}", "--init", self.model.weights, "--steps",
                steps, *more]


def local(n, *command):
    return [*LAUNCH, "-n", n, *command]


def once_more(hosts, said, attempt):
    """Did mpirun fail to start its daemons, for the first time?"""
    if attempt > 0 or not re.search(NOT_STARTED, said):
        return False
    print("mpirun could not start its daemons on the other hosts: once more", flush=True)
    hosts.settle()
    return True


def start(hosts, command):
    """COMMAND over the hosts, which trains."""
    for attempt in range(2):
        job = Job(hosts.mpirun(*command))
        try:
            return job.wait_for(STEPS)
        except h.Failure:
            if not once_more(hosts, job.said(), attempt):
                raise
            job.stop()


def complete(hosts, command):
    """The same to its end."""
    for attempt in range(2):
        p = h.run(hosts.mpirun(*command))
        if p.returncode == 0 or not once_more(hosts, p.stderr, attempt):
            return h.must(p)


# ---- parts ----

def test_losses(hosts, plans):
    same_losses(hosts, plans, None)
    same_losses(hosts, plans, PIPELINE)


def same_losses(hosts, plans, fix):
    data, expected = plans.model.settings["A"][2][0][1:]
    plan, what = plans.get(N_HOSTS * SLOTS, fix), f"8 ranks on 4 hosts, {fix or 'one stage'}"
    options = dict(data=f"npy:{data}", init=plans.model.weights, steps=len(expected))
    threads = plan.train(**options)
    runs = []
    for i in range(2):
        metrics = h.TMP / f"hosts{i}.jsonl"
        p = complete(hosts, plans.command(8, "--metrics", metrics, steps=len(expected), fix=fix))
        runs.append(h.Run(p, metrics))
    h.close(f"{what}: losses of one device", runs[0].losses, expected, plans.model.tolerance)
    h.close(f"{what}: losses of 8 threads", runs[0].losses, threads.losses, plans.model.tolerance)
    h.check(runs[0].transport == "MPI", f"{what}: it ran over MPI", runs[0].out)
    h.check(runs[0].losses == runs[1].losses, f"{what}: two runs over hosts have the same bits", f"{runs[0].losses} {runs[1].losses}")
    h.check("note:" not in runs[0].err, f"{what}: every rank reaches those that watch", runs[0].err)
    if h.VERBOSE:
        print("the bits of threads" + ("" if runs[0].losses == threads.losses else " differ"))


def cut(hosts, plans, n, inside, fix=None):
    what = f"host {n} cut off at {'its' if inside else 'the switch’s'} end, {fix or 'one stage'}"
    job = start(hosts, plans.command(8, fix=fix))
    beside = orteds(hosts)
    h.check(len(beside) >= 6, f"{what}: there are processes on the other hosts", beside)
    hosts.link(n, "down", inside)
    try:
        lost = SLOTS * (n - 1) if n > 1 else SLOTS
        job.end(what, 30, rf"rank ({lost}|{lost + 1}) on {hosts.host(n if n > 1 else 2)} does not answer any more", beside)
    finally:
        hosts.link(n, "up", inside)
        job.stop()


def test_cut(hosts, plans):
    cut(hosts, plans, 3, False)
    cut(hosts, plans, 2, False, PIPELINE)
    if h.FULL:
        cut(hosts, plans, 4, True)
        cut(hosts, plans, 1, False)  # that of rank 0 and mpirun


def test_killed(hosts, plans):
    for rank in (1, 0) if h.FULL else (1,):
        job = Job(local(2, *plans.command(2))).wait_for(STEPS)
        job.kill(rank)
        job.end(f"rank {rank} killed on one machine", 10, rf"rank {rank}\b")
    if hosts is not None:
        job = start(hosts, plans.command(8))
        job.kill(5)
        job.end("rank 5 killed on host 3", 30, r"rank 5\b", orteds(hosts))


def test_stopped(hosts, plans):
    for rank in (1, 0):
        job = Job(local(2, *plans.command(2, "--timeout", 3))).wait_for(STEPS)
        job.kill(rank, signal.SIGSTOP)
        job.end(f"rank {rank} stopped", 30, rf"rank {rank} on .* has not moved for 3 s.*--timeout")
    job = Job(local(2, *plans.command(2, "--timeout", 30))).wait_for(STEPS)
    job.kill(1, signal.SIGSTOP)
    time.sleep(4)
    job.kill(1, signal.SIGCONT)
    seen = len(re.findall("^step", job.read(), re.M))
    job.wait_for(rf"(?s)(^step.*?){{{seen + 2}}}")
    h.check(job.process.poll() is None and "error:" not in job.said(), "a rank that was stopped for a while goes on", job.said())
    job.stop()


def test_launcher(hosts, plans):
    job = Job(local(2, *plans.command(2))).wait_for(STEPS)
    job.process.kill()
    job.end("mpirun killed", 10)


def test_start(hosts, plans):
    """A rank that never comes: killed before MPI has started."""
    script = h.TMP / "late.sh"
    script.write_text('#!/bin/sh\nif [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then\n    echo late\n    exec sleep 1000\nfi\nexec "$@"\n')
    script.chmod(0o755)
    job = Job(local(2, script, *plans.command(2, "--timeout", 3))).wait_for("^late")
    job.end("a rank that does not start", 30, "MPI has not started for 3 s")
    job = Job(local(2, script, *plans.command(2))).wait_for("^late")
    job.kill(1)
    job.end("a rank killed while it starts", 10, r"rank 1\b")


def test_save(hosts, plans):
    """Ranks killed while checkpoints are written; the folder then still holds a whole one."""
    folder = h.TMP / "saved"
    text = (h.ROOT / "models" / "gpt.xml").read_text().replace('every="1000"', 'every="1"')
    model = h.TMP / "saving.xml"
    model.write_text(text)
    plan = h.plan(model, preset="tiny", gpus=2, D=plans.model.settings["A"][0]).build()
    command = [plan.dir / "trainer", *plans.command(2, "--save", folder)[1:]]
    job = Job(local(2, *command)).wait_for(STEPS)
    job.kill(1)
    job.end("a rank killed while saving", 10, r"rank 1\b")
    last = max(int(p.name[5:]) for p in folder.glob("step-*"))
    p = h.must(h.run([*command[:1], "--data", f"npy:{plans.model.fresh}", "--resume", folder, "--steps", last + 1]))
    h.check(f"continuing from step {last}" in p.stdout, "the newest checkpoint is whole", p.stdout)


TESTS = {"losses": test_losses, "cut": test_cut, "killed": test_killed, "stopped": test_stopped, "launcher": test_launcher,
         "start": test_start, "save": test_save}

if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        h.skip("mpirun is not installed")
        sys.exit(h.finish())
    the_hosts, the_plans = make_hosts(), Plans()
    for name in h.only(TESTS):
        if the_hosts is not None or name not in ("losses", "cut"):
            h.guarded(name, TESTS[name], the_hosts, the_plans)
    sys.exit(h.finish() if h.passed + h.failed else 0 * h.finish())
