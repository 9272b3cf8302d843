#!/usr/bin/env python3
"""Trainers as processes that meet over TCP, without MPI.

Losses have the bits of those of threads; checkpoints are the same; whatever keeps ranks from coming together, or takes one away,
ends all of them with one message and the right exit status. By default two plans; --full: more.
"""
import os
import re
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import harness as h
import test_equivalence as eq

sys.path.insert(0, str(h.ROOT / "tests"))
from tcp_job import TcpJob, free_port  # noqa: E402

PLANS = [  # --fix on 4 devices, of the sample
    ("dp=2,tp=2,zero=3", True),
    ("pp=2,dp=2,schedule=1f1b,micro_batches=2", True),
    ("dp=4", False),
    ("tp=4,sequence_parallel=true", False),
    ("dp=4,zero=1", False),
    ("pp=4,schedule=gpipe,micro_batches=4", False),
]
PATIENCE_S = 300  # for what takes a few seconds where nothing else runs


def one_error(job, codes, code, word, what, each=False):
    """All ranks end with CODE, and one line tells of WORD; EACH: all ranks see it, before they know each other."""
    said = job.errors()
    if each and len(said) == len(codes):
        said = sorted(set(said))
    h.check(set(codes.values()) == {code}, f"{what}: exit status", f"{codes} {said}")
    h.check(len(said) == 1 and re.search(word, said[0]), f"{what}: one message", said or job.err)


class Trainer:
    """A plan of 4 devices."""

    def __init__(self, fix):
        m = eq.gpt2_tiny()
        d, setting_fix, runs = m.settings["C"]
        self.plan = h.plan(m.model, gpus=4, preset=m.preset, D={**m.base, **d}, fix=",".join([fix, *setting_fix])).build()
        self.command = [self.plan.dir / "trainer", "--data", f"npy:{runs[0][1]}", "--init", m.weights, "--seed", "1", "--threads", "1"]

    def alone(self, *args):
        return h.must(h.run([*self.command, *args]))

    def job(self, *args, **kwargs):
        return TcpJob(4, [*self.command, *args], **kwargs)


def losses(path):
    return re.findall(r'"loss": ?([^,]*)', path.read_text())


def same_as_threads(fix, **kwargs):
    t = Trainer(fix)
    a, b, n = h.TMP / "threads.jsonl", h.TMP / "tcp.jsonl", "5"
    t.alone("--steps", n, "--metrics", a)
    job = t.job("--steps", n, "--metrics", b, **kwargs)
    codes = job.end()
    h.check(set(codes.values()) == {0} and "over TCP" in job.out[0], f"{fix}: runs", f"{codes} {job.err} {job.out[0][:200]}")
    h.check(len(losses(a)) == 5 and losses(a) == losses(b), f"{fix}: bits of threads", f"{losses(a)} {losses(b)}")
    return t


def checkpoints(t):
    """Processes go on with what threads saved, by a file; what both save is the same."""
    a, b, file = h.TMP / "saved_a", h.TMP / "saved_b", h.TMP / "meeting"
    t.alone("--steps", "2", "--save", a)
    t.alone("--steps", "2", "--save", b)
    t.alone("--steps", "4", "--resume", a, "--save", a)
    job = t.job("--steps", "4", "--resume", b, "--save", b, file=file)
    h.check(set(job.end().values()) == {0} and "continuing from step 2" in job.out[0], "processes continue threads", job.err)
    h.check(h.tree(a / "step-4") == h.tree(b / "step-4"), "the same checkpoint")
    h.check(not file.exists(), "the file is removed")


def stop(t):
    """SIGTERM to one rank saves and stops all."""
    folder = h.TMP / "stopped"
    job = t.job("--steps", "100000000", "--save", folder)
    wait_for_steps(job)
    job.processes[2].send_signal(signal.SIGTERM)
    codes = job.end()
    h.check(len(set(codes.values())) == 1 and -9 not in codes.values() and list(folder.glob("step-*")), "SIGTERM to one rank",
            f"{codes} {job.err} {job.out[0][-300:]}")


def wait_for_steps(job):
    while job.processes[0].poll() is None and "\nstep " not in job.said(0)[0]:
        time.sleep(0.02)


def wait_until(is_so):
    end_s = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.05)
    return bool(is_so())


def wait_for_notes(job, words):
    """WORDS: {rank: what a note of it says}."""
    return wait_until(lambda: all(re.search(f"note: rank {rank} on .*{word}", job.said(rank)[1]) for rank, word in words.items()))


def killed(t, rank):
    job = t.job("--steps", "100000000")
    wait_for_steps(job)
    job.processes[rank].kill()
    codes = job.end()
    del codes[rank]
    one_error(job, codes, 1, f"rank {rank} on .* has ended without a word", f"rank {rank} is killed")


def stopped(t, rank, number):
    """By a signal that nothing obeys: the others learn of it, and one message says so."""
    name, what = number.name, f"{number.name} to rank {rank} without --save"
    job = t.job("--steps", "100000000")
    wait_for_steps(job)
    job.processes[rank].send_signal(number)
    codes = job.end()
    said = [line for err in job.err.values() for line in err.splitlines() if line]
    words = rf"error: rank {rank} on .* was stopped by {name}: the job ends" if rank else f"stopped by {name}; nothing is saved without --save"
    h.check(codes.pop(rank) == -number and set(codes.values()) == {128 + number}, f"{what}: exit status", f"{codes} {said}")
    h.check(len(said) == 1 and re.fullmatch(words, said[0]), f"{what}: one message", said)


def rank_0_missing(t):
    one_error(job := t.job("--timeout", "1", ranks=[2]), job.end(), 1, "rank 0 has not answered at MASTER_ADDR=127.0.0.1", "rank 0 is missing")


def unlike(t):
    one_error(job := t.job("--steps", "3", own={2: ["--lr", "0.5"]}), job.end(), 2, "rank 2 on .* another --lr than rank 0", "another rate")
    one_error(job := t.job("--steps", "x"), job.end(), 2, "--steps", "a wrong option")
    one_error(job := t.job("--steps", "3", "--metrics", "/dev/full"), job.end(), 1, "/dev/full", "rank 0 alone fails")
    job = t.job("--steps", "3", env={None: {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}}, ranks=[0, 1, 2])
    one_error(job, job.end(), 2, "the plan is for 4 devices, but WORLD_SIZE is 3", "too few", each=True)


def wrong_variables(t):
    pipe = h.TMP / "pipe"
    os.mkfifo(pipe)
    for rank, env, word in ((0, {"MASTER_PORT": "x"}, 'MASTER_PORT is to be a whole number from 1 to 65535, not "x"'),
                            (1, {"MASTER_ADDR": None}, "MASTER_ADDR is not set"), (2, {"RANK": "4"}, "RANK is 4 where WORLD_SIZE is 4"),
                            (0, {"RANK": "-1"}, "RANK is to be"),
                            (0, {"RANK": "4096"}, 'RANK is to be a whole number from 0 to 4095, not "4096"'), (3, {"LOCAL_RANK": "y"}, "LOCAL_RANK is to be"),
                            (0, {"WORLD_SIZE": "4x"}, "WORLD_SIZE is to be"), (0, {"MPP_RENDEZVOUS": "http://x"}, "MPP_RENDEZVOUS is to be"),
                            (1, {"MPP_RENDEZVOUS": "file:///nowhere/at/all"}, "/nowhere/at/"),
                            (0, {"MASTER_ADDR": "no..host"}, "MASTER_ADDR=no..host"), (1, {"RANK": None}, "RANK is not set"),
                            (1, {"WORLD_SIZE": None}, "WORLD_SIZE is not set"), (3, {"WORLD_SIZE": "5"}, "WORLD_SIZE is 5"),
                            (1, {"MPP_RENDEZVOUS": f"file://{pipe}"}, "is no regular file")):
        job = t.job(ranks=[rank], env={rank: env})
        one_error(job, job.end(), 2, re.escape(word), f"{env}")


def seen_by_all(t):
    """What all ranks can see is told by each, at once."""
    here = {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None}
    for env, word in (({"MASTER_ADDR": "no..host"}, "MASTER_ADDR=no..host"),
                      ({"MASTER_ADDR": "no..host", **here}, "MASTER_ADDR=no..host"),
                      ({"MASTER_ADDR": "203.0.113.9"}, "MASTER_ADDR=203.0.113.9 is no address of this machine, on which all ranks are"),
                      ({"MPP_RENDEZVOUS": "file:///proc/mpplan-meeting"}, "/proc/mpplan-meeting cannot be written"),
                      ({"MPP_RENDEZVOUS": f"file://{h.TMP}/{'x' * 300}"}, "x cannot be written: File name too long")):
        job = t.job(env={None: env})
        one_error(job, job.end(), 2, re.escape(word), f"{env}", each=True)


class Other:
    """Another program on a port: says ANSWER to whoever comes, and ends the connection; None: says nothing, ever."""

    def __init__(self, answer, host="127.0.0.1"):
        self.socket, self.answer, self.kept = socket.create_server((host, 0)), answer, []
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                s, _ = self.socket.accept()
            except OSError:
                return
            self.kept.append(s)
            if self.answer is not None:
                try:
                    s.sendall(self.answer)
                    s.shutdown(socket.SHUT_WR)
                except OSError:
                    pass


def port_taken(t):
    """Rank 0 sees it, the others by what answers there. Returns what ends the test: it waits for some seconds."""
    begun = []
    for answer, env in ((b"HTTP/1.0 400 Bad Request\r\n" + b"\r\n" * 1000, {"LOCAL_WORLD_SIZE": None, "LOCAL_RANK": None}), (b"", {})):
        other = Other(answer)
        begun.append((answer, other, t.job(port=other.port, env={None: env}, ranks=[0, 3])))

    def end():
        for answer, other, job in begun:
            codes = job.end()
            other.socket.close()
            said = job.errors()
            h.check(set(codes.values()) == {2} and len(said) == 2, f"a port that is taken, {answer[:4]}", f"{codes} {said}")
            h.check(all(f"MASTER_PORT {other.port}" in s and "is in use" in s for s in said), "each says so", said)

    return end


def translated(t):
    """Rank 0 is not at MASTER_ADDR as it sees it, but the others reach it."""
    job = t.job("--steps", "1", env={None: {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None}, 0: {"MASTER_ADDR": "203.0.113.9"}})
    h.check(set(job.end().values()) == {0}, "an address that is translated", job.err)
    h.check("note: MASTER_ADDR=203.0.113.9 is no address of this machine" in job.err[0], "rank 0 notes it", job.err[0])


def patience(t, pool):
    """None waits longer than its own --timeout and 5 s, however patient the others are. Returns what ends the test."""
    mixed = t.job(ranks=[0, 1], own={0: ["--timeout", "6000"], 1: ["--timeout", "6000"], 3: ["--timeout", "8"]})
    alone = t.job("--timeout", "2", ranks=[0])
    other = Other(None)
    silent = t.job("--timeout", "3", port=other.port, ranks=[1])

    def last_comes():
        noted = wait_for_notes(mixed, {0: "s for ranks 2 to 3 of 4\n"})
        mixed.start(3)
        return noted

    last = pool.submit(last_comes)

    def end():
        h.check(last.result(), "rank 0 notes for whom it waits", mixed.said(0))
        one_error(mixed, mixed.end(), 1, "rank 2 of 4 has not come to rank 0 .* for 8 s, but 0 to 1, 3 have", "the least patient of all")
        one_error(alone, alone.end(), 1, "ranks 1 to 3 of 4 have not come to rank 0 .* for 2 s, but 0 has", "rank 0 alone")
        one_error(silent, silent.end(), 1, "rank 0 has not answered .* for 3 s: what is there does not answer", "a silent port")
        other.socket.close()

    return end


def preloaded(name, text):
    """Variables that put functions of C before the system's."""
    source, library = h.TMP / f"{name}.c", h.TMP / f"{name}.so"
    source.write_text("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <sys/socket.h>\n" + text)
    h.must(h.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]))
    return {"LD_PRELOAD": str(library)}


def without_ipv6(t):
    """Beside a rank 0 on the loopback the others listen for other machines all the same, by IPv4."""
    env = preloaded("no_ipv6", "int socket(int family, int type, int protocol)\n{\n"
                    "    int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, \"socket\");\n"
                    "    errno = EAFNOSUPPORT;\n    return family == AF_INET6 ? -1 : real(family, type, protocol);\n}\n")
    job = t.job("--timeout", "60", ranks=[0, 1], address="2130706433",  # 127.0.0.1, but no rank is told so
                env={None: {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None, **env}})
    places = set()
    while job.processes[1].poll() is None and not places:
        places = {p for p, inode in listening() if inode in sockets(job.processes[1].pid)}
        time.sleep(0.02)
    for p in job.processes.values():
        p.kill()
    job.end()
    h.check(places == {"00000000"}, "rank 1 listens at all addresses", places)


def failing(name):
    """Variables of a rank 0 that cannot listen, and a file: while it is there the rank does not end."""
    hold = h.TMP / f"{name}.hold"
    hold.touch()
    env = preloaded(name, "#include <stdlib.h>\n#include <time.h>\n#include <unistd.h>\n"
                    "int listen(int fd, int n)\n{\n    errno = ENOBUFS;\n    return -1 + 0 * (fd + n);\n}\n"
                    "int nanosleep(const struct timespec *t, struct timespec *left)\n{\n"
                    "    struct timespec little = {0 * (t == left), 20000000};\n"
                    "    while (access(getenv(\"HOLD\"), F_OK) == 0)\n        clock_nanosleep(CLOCK_MONOTONIC, 0, &little, NULL);\n"
                    "    return 0;\n}\n")
    return {**env, "HOLD": str(hold)}, hold


def told_by_file(t, pool):
    """Why rank 0 cannot listen stands in the file for some seconds, for those that look there. Returns what ends the test."""
    env, hold = failing("told")
    file, others = h.TMP / "telling", [1, 2, 3]
    job = t.job(file=file, ranks=others, env={None: {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None}, 0: env},  # so that all write notes
                own={rank: ["--timeout", "6000"] for rank in others})

    def fail():
        noted = wait_for_notes(job, {rank: "the file is not there" for rank in others})
        job.start(0)
        wait_until(lambda: all(job.processes[rank].poll() is not None for rank in others))
        hold.unlink()
        return noted

    failed = pool.submit(fail)

    def end():
        h.check(failed.result(), "the others note that they wait")
        one_error(job, job.end(), 1, "rank 0 on .* cannot listen: No buffer space", "a rank 0 that cannot listen")
        h.check(not file.exists(), "the file is removed")

    return end


def started_again(t, pool):
    """A job of whose rank 0 the file says that it failed is started again, before that rank 0 has ended. Returns what ends the test."""
    env, hold = failing("again")
    file = h.TMP / "again"
    old = t.job(file=file, ranks=[0], env={0: env})

    def begin():
        wait_until(file.exists)
        job = t.job("--steps", "1", "--timeout", "6000", file=file, ranks=[1, 2])
        noted = wait_for_notes(job, {1: "a rank 0 failed before this rank was there: rank 0 on .* cannot listen"})
        job.start(0)
        noted = wait_for_notes(job, {0: "s for rank 3 of 4\n"}) and noted
        hold.unlink()
        codes = old.end()
        job.start(3)
        return job, noted, codes

    begun = pool.submit(begin)

    def end():
        job, noted, codes = begun.result()
        h.check(noted and codes == {0: 1}, "an old failure, and a new rank 0", f"{codes} {job.said(1)} {job.said(0)}")
        h.check(set(job.end().values()) == {0} and not file.exists(), "what was started again runs", job.err)

    return end


def listening():
    """(address, inode) of all sockets of IPv4 that listen."""
    rows = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
    return [(row[1].split(":")[0], row[9]) for row in rows if row[3] == "0A"]


def sockets(pid):
    inodes = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
    except OSError:
        pass
    return inodes


def strangers(t):
    """Whoever is no rank is sent away; two processes of one rank, or a second job on the port, are told so."""
    port, ended = free_port(), threading.Event()

    def talk():
        while not ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as s:
                    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    s.settimeout(0.2)
                    s.recv(1)
            except OSError:
                time.sleep(0.05)

    job = t.job("--steps", "2", port=port, ranks=[0, 1])
    thread = threading.Thread(target=talk)
    thread.start()
    silent = None
    while silent is None and job.processes[0].poll() is None:
        try:
            silent = socket.create_connection(("127.0.0.1", port), 1)
        except OSError:
            time.sleep(0.05)
    second = t.job(port=port, ranks=[0])
    one_error(second, second.end(), 2, f"MASTER_PORT {port} is in use", "a second job on the port")
    twice = t.job("--timeout", "60", port=port, ranks=[1])  # whichever of the two comes later
    while job.processes[1].poll() is None and twice.processes[1].poll() is None:
        time.sleep(0.02)
    other = t.job("--steps", "2", port=port, ranks=[2, 3])
    codes = {**job.end(), "twice": twice.end()[1], **other.end()}
    ended.set()
    thread.join()
    silent.close()
    said = job.errors() + twice.errors() + other.errors()
    h.check(sorted([codes[1], codes["twice"]]) == [0, 2] and codes[0] == codes[2] == codes[3] == 0, "strangers do not matter", f"{codes} {said}")
    h.check(len(said) == 1 and "rank 1 on" in said[0] and "is there twice" in said[0], "one rank twice", said)


def stale_file(t):
    """A file of a job that was killed does not matter; that of one that comes together does."""
    file = h.TMP / "stale"
    killed = t.job(file=file, ranks=[0])
    while not file.exists() and killed.processes[0].poll() is None:
        time.sleep(0.02)
    second = t.job(file=file, ranks=[0])
    one_error(second, second.end(), 2, "another job is coming together", "a second job by the file")
    killed.processes[0].kill()
    killed.end()
    h.check(file.exists(), "the file stays")
    job = t.job("--steps", "2", file=file)
    h.check(set(job.end().values()) == {0} and not file.exists(), "an old file is replaced", job.err)


def names(t):
    """Hosts by name, IPv6, and the ports beside the one that torchrun keeps."""
    cases = [("localhost", {})]
    try:
        cases.append(("::1", {"port": free_port(socket.AF_INET6, "::1")}))
    except OSError:
        h.skip("no IPv6 here")
    for address, more in cases:
        job = t.job("--steps", "1", address=address, **more)
        h.check(set(job.end().values()) == {0}, address, job.err)
    with socket.socket() as agent:  # torchrun's own
        agent.bind(("127.0.0.1", 0))
        agent.listen()
        job = t.job("--steps", "1", port=agent.getsockname()[1],
                    env={None: {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}})
        h.check(set(job.end().values()) == {0}, "beside torchrun's agent", job.err)


def main():
    t = None
    for fix, sample in PLANS:
        if sample or h.FULL:
            t = same_as_threads(fix)
    lone = t.job("--timeout", "20", ranks=[1])
    pool = ThreadPoolExecutor()  # while the rest goes on
    ends = [port_taken(t), *(part(t, pool) for part in (patience, told_by_file, started_again))]
    for part in h.only(["checkpoints", "stop", "rank_0_missing", "unlike", "wrong_variables", "seen_by_all", "translated",
                        "without_ipv6", "strangers", "stale_file", "names"]):
        h.guarded(part, globals()[part], t)
    for rank, number in ((2, signal.SIGTERM), (0, signal.SIGINT)):
        h.guarded(f"kill {rank}", killed, t, rank)
        h.guarded(f"stop {rank}", stopped, t, rank, number)
    for end in ends:
        h.guarded("what went on meanwhile", end)
    one_error(lone, lone.end(), 1, "rank 0 has not answered at MASTER_ADDR=127.0.0.1", "no rank 0")
    h.check(re.search(r"note: rank 1 on \S+ has waited \d+ s for rank 0 at MASTER_ADDR=127.0.0.1 \(127.0.0.1 port \d+\): Connection refused",
                      lone.err[1]), "a rank notes that it waits", lone.err[1])


main()
sys.exit(h.finish())
