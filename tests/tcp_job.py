"""Starts the processes of a job that meets over TCP, as a launcher does.

    job = TcpJob(4, ["plan/trainer", "--steps", "3"])      # 4 processes, on a port that is free, or by FILE
    codes = job.end(60)                                     # exit statuses; what they said: job.out[rank], job.err[rank]
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
    """OWN: {rank: arguments} added for one rank; ENV: {rank: variables} of one rank (None: unset); RANKS: only these."""

    def __init__(self, n, command, address="127.0.0.1", port=None, file=None, own={}, env={}, ranks=None):
        self.port = port or free_port()
        self.processes, self.out, self.err, self.files = {}, {}, {}, {}
        for rank in range(n) if ranks is None else ranks:
            e = variables(rank, n, address, self.port, file)
            for name, value in {**env.get(None, {}), **env.get(rank, {})}.items():
                e.pop(name, None)
                if value is not None:
                    e[name] = value
            out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            self.files[rank] = out, err
            self.processes[rank] = subprocess.Popen([str(c) for c in [*command, *own.get(rank, [])]], env=e, stdin=subprocess.DEVNULL,
                                                    stdout=out, stderr=err)

    def said(self, rank):
        """On stdout and stderr, so far."""
        texts = []
        for f in self.files[rank]:
            texts.append(os.pread(f.fileno(), 1 << 22, 0).decode(errors="replace"))
        return texts

    def end(self, timeout_s=120):
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
