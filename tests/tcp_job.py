"""Starts the processes of a job that meets over TCP, as a launcher does.

    job = TcpJob(4, ["plan/trainer", "--steps", "3"])      # 4 processes, on a port that is free, or by FILE
    codes = job.end()                                       # exit statuses; what they said: job.out[rank], job.err[rank]
"""
import os
import socket
import subprocess
import tempfile

LAUNCHERS = ("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "MPP_RENDEZVOUS")


held = []


def free_port(family=socket.AF_INET, host="127.0.0.1"):
    """A port that stays free until this process ends: a socket holds it that does not listen. Only one that may share it (SO_REUSEADDR,
    which trainers ask for) can listen there; whatever else asks for any port gets others."""
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, 0))
    held.append(s)
    return s.getsockname()[1]


def variables(rank, n, address="127.0.0.1", port=None, file=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    env.update(RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(n))
    env.update({"MPP_RENDEZVOUS": f"file://{file}"} if file else {"MASTER_ADDR": address, "MASTER_PORT": str(port)})
    return env


class TcpJob:
    """OWN: {rank: arguments} added for one rank; ENV: {rank: variables} of one rank (None: unset); RANKS: only these, for now."""

    def __init__(self, n, command, address="127.0.0.1", port=None, file=None, own={}, env={}, ranks=None):
        self.n, self.command, self.own, self.env = n, command, own, env
        self.address, self.port, self.file = address, port or free_port(), file
        self.processes, self.out, self.err, self.files = {}, {}, {}, {}
        for rank in range(n) if ranks is None else ranks:
            self.start(rank)

    def start(self, rank):
        env = variables(rank, self.n, self.address, self.port, self.file)
        for name, value in {**self.env.get(None, {}), **self.env.get(rank, {})}.items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        out, err = self.files[rank] = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        command = [str(c) for c in [*self.command, *self.own.get(rank, [])]]
        self.processes[rank] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def said(self, rank):
        """On stdout and stderr, so far."""
        texts = []
        for f in self.files[rank]:
            texts.append(os.pread(f.fileno(), 1 << 22, 0).decode(errors="replace"))
        return texts

    def end(self, timeout_s=300):
        """Waits for all; those still there after TIMEOUT_S are killed, and their status is -9."""
        codes = {}
        for rank, p in self.processes.items():
            try:
                codes[rank] = p.wait(timeout_s)
            except subprocess.TimeoutExpired:
                p.kill()
                codes[rank] = p.wait()
        for rank in self.processes:
            self.out[rank], self.err[rank] = self.said(rank)
        return codes

    def errors(self):
        return [line for rank in sorted(self.err) for line in self.err[rank].splitlines() if line.startswith("error:")]
