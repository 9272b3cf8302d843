#!/usr/bin/env python3
"""run.sh and run.sbatch start trainers: the latter on a Slurm of one machine, made for the test.

slurmctld, slurmd and munged of Debian's packages run with a configuration, state and logs of their own in a temporary folder.
The node has 8 CPUs and 8 GPUs by its configuration. Without those programs, or the right to start them (root), that part is
skipped.
"""
import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness as h

NEEDED = ["munged", "slurmctld", "slurmd", "sbatch", "scontrol"]
OPTIONS = ["--data", "synthetic", "--steps", "4", "--seed", "1"]


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mpplan-slurm-", dir="/tmp"))  # sockets have short names
        self.daemons = []
        atexit.register(self.remove)
        os.chmod(self.folder, 0o755)
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.socket = self.folder / "munge" / "socket"
        self.write_configuration()
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **h.MPI_ENV}

    def write_configuration(self):
        controller, node = free_ports(2)
        host = socket.gethostname().split(".")[0]
        f = self.folder
        (f / "slurm.conf").write_text(f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={self.socket}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={f}/state
SlurmdSpoolDir={f}/spool
SlurmctldPidFile={f}/slurmctld.pid
SlurmdPidFile={f}/slurmd.pid
SlurmctldLogFile={f}/slurmctld.log
SlurmdLogFile={f}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        for i in range(8):
            (f / f"gpu{i}").touch()
        (f / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={f}/gpu[0-7]\n")
        (f / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start(self):
        m = self.folder / "munge"
        self.daemon(["munged", "--foreground", "--force", f"--key-file={m}/key", f"--socket={self.socket}",
                     f"--pid-file={m}/pid", f"--log-file={m}/log", f"--seed-file={m}/seed", "--num-threads=2"])
        self.wait(lambda: self.socket.exists(), "munged")
        self.daemon(["slurmctld", "-D", "-i"])
        self.daemon(["slurmd", "-D"])
        self.wait(lambda: re.search(r"State=IDLE\s", self.run("scontrol", "show", "nodes").stdout), "the node")

    def daemon(self, command):
        log = open(self.folder / f"{command[0]}.out", "w")
        self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             env=dict(os.environ, **self.env)))

    def wait(self, ready, what, timeout_s=60):
        until = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > until or any(d.poll() is not None for d in self.daemons):
                logs = "\n".join(f"{p.name}: {p.read_text()[-600:]}" for p in sorted(self.folder.glob("*.log")))
                raise h.Failure(f"{what} does not start\n{logs}")
            time.sleep(0.2)

    def run(self, *command, timeout_s=60, env=None):
        return h.run(command, timeout_s, env={**self.env, **(env or {})})

    def batch(self, script, *args, env=None, cwd=None, timeout_s=240):
        """Submit and wait: exit status, output."""
        out = self.folder / "job.out"
        p = h.run(["sbatch", "--wait", f"--output={out}", script, *args], timeout_s, env={**self.env, **(env or {})}, cwd=cwd)
        return p.returncode, (out.read_text() if out.exists() else "") + p.stderr

    def remove(self):
        for d in reversed(self.daemons):
            if d.poll() is None:
                d.terminate()
            try:
                d.wait(10)
            except subprocess.TimeoutExpired:
                d.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def header(p):
    """What the script asks Slurm for."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", (p.dir / "run.sbatch").read_text(), re.M))


def losses(text):
    return [float(x) for x in re.findall(r"^step \d+/\d+\s+loss (\S+)", text, re.M)]


def build(p):
    """The objects that any start shares; the trainer itself is the script's to make."""
    p.build()
    (p.dir / "trainer").unlink()
    return {"RUNTIME_BUILD": str(h.shared_runtime())}


def test_script():
    """Threads: the script builds what is missing and passes its arguments on."""
    p = h.plan("models/gpt.xml", gpus=4, preset="tiny", fix="pp=2,tp=2,schedule=1f1b,micro_batches=4")
    env = build(p)
    made = h.run([p.dir / "run.sh", *OPTIONS], 300, env=env, cwd="/")
    h.check(made.returncode == 0 and len(losses(made.stdout)) == 4 and "over threads" in made.stdout, "run.sh trains", made.stderr)
    stamp = (p.dir / "trainer").stat().st_mtime_ns
    wrong = h.run([p.dir / "run.sh", "--stepz", "4"], 60)
    h.check(wrong.returncode == 2 and "--stepz" in wrong.stderr, "run.sh passes options and exit statuses on", wrong.stderr)
    h.check((p.dir / "trainer").stat().st_mtime_ns == stamp, "run.sh builds once")
    other = h.run([p.dir / "run.sh", *OPTIONS], 60, env={**env, "BACKEND": "abacus"}, cwd="/")
    h.check(other.returncode != 0 and "BACKEND=abacus" in other.stderr and not other.stdout, "a trainer for another BACKEND is not run", other.stderr + other.stdout)
    return p, losses(made.stdout)


def test_header():
    """Nodes, processes and GPUs are the plan's."""
    for cluster, gpus, fix, want in (
            ("dgx-a100", 16, "pp=2,tp=8,schedule=1f1b,micro_batches=4", {"nodes": "2", "ntasks": "16", "ntasks-per-node": "8", "gpus-per-node": "8"}),
            ("dgx1-v100", 4, None, {"nodes": "1", "ntasks": "4", "ntasks-per-node": "4", "gpus-per-node": "4"}),
            (None, 3, None, {"nodes": "1", "ntasks": "3", "ntasks-per-node": "3", "cpus-per-task": "1"})):
        p = h.plan("models/gpt.xml", gpus=gpus, cluster=cluster, preset="tiny", fix=fix)
        got = header(p)
        h.check(got.pop("job-name", "") == "gpt" and got == want, f"run.sbatch for {gpus} devices of {cluster}", got)
        h.check(os.access(p.dir / "run.sbatch", os.X_OK) and os.access(p.dir / "run.sh", os.X_OK), "scripts can be run")
        p.remove()


def test_slurm(p, expected):
    missing = [c for c in NEEDED if not shutil.which(c)]
    if missing or os.getuid() != 0:
        h.skip(f"Slurm: {', '.join(missing) + ' missing' if missing else 'needs root'}")
        return
    slurm = Slurm()
    slurm.start()
    env = build(p)
    code, text = slurm.batch(p.dir / "run.sbatch", *OPTIONS, env=env, cwd="/")
    h.check(code == 0 and "over MPI" in text, "sbatch run.sbatch trains over MPI", text[-800:])
    h.close("losses under Slurm", losses(text), expected, 2e-5)
    code, text = slurm.batch(p.dir / "run.sbatch", "--stepz", env=env)
    h.check(code != 0 and "--stepz" in text, "a failure is the job's", f"{code} {text[-400:]}")
    job = slurm.run("sbatch", "--hold", "--parsable", p.dir / "run.sbatch").stdout.strip()
    shown = slurm.run("scontrol", "show", "job", job).stdout
    h.check("NumNodes=1" in shown and "NumTasks=4" in shown, "the job has the plan's processes", shown)
    slurm.run("scancel", job)
    gpu = h.plan("models/gpt.xml", gpus=4, cluster="dgx1-v100", preset="tiny", fix="pp=2,dp=2,schedule=gpipe,micro_batches=2")
    code, text = slurm.batch(gpu.dir / "run.sbatch", *OPTIONS, env=build(gpu))
    h.check(code == 0, "a plan for GPUs asks for GPUs and gets them", text[-800:])
    h.close("losses of the plan for GPUs", losses(text), expected, 2e-5)


def main():
    made = []
    h.guarded("run.sh", lambda: made.append(test_script()))
    h.guarded("run.sbatch", test_header)
    if made:
        h.guarded("Slurm", test_slurm, *made[0])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
