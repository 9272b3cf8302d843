#!/usr/bin/env python3
"""Memory that runs out in trainers: every allocation of a small run in turn fails. The trainer ends as it would have, with
the same numbers, or with status 1 and one line that says so; what it was to write is there whole or not at all.

    test_alloc_trainer.py            a sample of the allocations
    test_alloc_trainer.py --full     all of them, alone and with all later ones; then under ASan, where nothing may leak
"""
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

import harness as h

# Their own calls are not counted: OpenBLAS asks again and again for its buffers, for ever; libgomp, which some BLAS need,
# ends the process with a line of its own.
SKIP = "libopenblas,libgomp,libgfortran,libblas"
# ASan takes no refusal where it asks libc for a thread's stack: of libc's calls only some are counted then.
ONLY_ASAN = "trainer,ld-linux,opendir,fopen,fdopen,asprintf,glob,qsort"
RUNS = 20            # of a scenario, spread evenly over its allocations
TIMEOUT_S = 60
ASAN = "-O1 -g -std=c17 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
ASAN_ENV = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=1:exitcode=99:handle_sigbus=0", "UBSAN_OPTIONS": "halt_on_error=1",
            "FAIL_ALLOC_ONLY": ONLY_ASAN}
# fail_alloc.c takes glibc's allocator; under ASan it has to be ASan's, so that leaks are seen.
FORWARD = [f"-D__libc_{f}=__interceptor_{f}" for f in ("malloc", "calloc", "realloc", "memalign")]


def build_library(asan=False):
    library = h.TMP / f"fail_alloc{'_asan' if asan else ''}.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-o", library, h.ROOT / "tests" / "fail_alloc.c", "-ldl"]
    if asan:
        command += [*FORWARD, h.must(h.run(["cc", "-print-file-name=libasan.so"])).stdout.strip()]
    h.must(h.run(command))
    return library


def failing(command, library, at, env, keep=False):
    """COMMAND with allocation AT failing (0: none), and all after it where KEEP; the process and how many calls it made."""
    count = h.TMP / "alloc-count"
    count.unlink(missing_ok=True)
    p = h.run(command, TIMEOUT_S, {"LD_PRELOAD": str(library), "FAIL_ALLOC_AT": str(at), "FAIL_ALLOC_KEEP": str(int(keep)),
                                   "FAIL_ALLOC_MAIN": "1", "FAIL_ALLOC_SKIP": SKIP, "FAIL_ALLOC_COUNT": str(count), **env})
    return p, struct.unpack("=qqq", count.read_bytes()[:24])[0]


def fault(p, ground):
    """What is wrong with a run, or None."""
    lines = p.stderr.splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    if p.returncode not in (0, 1):
        return f"exit status {p.returncode}"
    if p.returncode and (len(said) != 1 or "out of memory" not in said[0]):
        return "does not say in one line that memory ran out"
    if any(not line.startswith(("error: ", "note: ")) for line in lines):
        return "prints something else"
    return ground.fault(p.returncode)


def sweep(what, command, ground, library, env, runs):
    """COMMAND once for each of RUNS allocations, evenly spread, that fails alone; half as often with all after it."""
    ground.clean()
    p, calls = failing(command, library, 0, env)
    if not h.check(fault(p, ground) is None and p.returncode == 0 and calls > 20, f"alloc: {what}: runs with memory",
                   f"{calls} {fault(p, ground)} {p.stderr[-500:]}"):
        return
    ends, bad = [], 0
    for keep, step in ((False, max(1, calls // runs)), (True, max(1, 2 * calls // runs))):
        for at in range(1 + keep * (step // 2), calls + 1, step):
            ground.clean()
            name = f"alloc: {what}: allocation {at} of {calls} fails{' and all after it' if keep else ''}"
            try:
                p, _ = failing(command, library, at, env, keep)
                ends.append(p.returncode)
                wrong = fault(p, ground)
                bad += not h.check(not wrong, name, f"{wrong}; {p.stderr[-1500:]}")
            except h.Failure as e:
                bad += not h.check(False, name, str(e)[-800:])
            if bad >= 10:
                return
    h.check(1 in ends, f"alloc: {what}: runs out of memory", sorted(set(ends)))


# ---- trainers ----

class Ground:
    """A trainer, and the folder that its runs write to."""

    def __init__(self, plan, folder):
        self.plan, self.folder = plan, Path(folder)
        self.out, self.metrics, self.grads = self.folder / "out", self.folder / "m.jsonl", self.folder / "g.safetensors"
        self.expected = None

    def command(self, *options, steps=2):
        return [self.plan.dir / "trainer", "--steps", steps, "--seed", "7", "--save", self.out, "--metrics", self.metrics, *options]

    def clean(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def tensors(self):
        """What the run left, without times: bytes of all files of weights, and losses."""
        files = {str(p.relative_to(self.folder)): p.read_bytes() for p in sorted(self.folder.rglob("*.safetensors"))}
        losses = re.findall(rb'"loss": ([^,]*)', self.metrics.read_bytes()) if self.metrics.exists() else []
        return files, losses

    def fault(self, status):
        """What is wrong with what a run left, or None."""
        names = [str(p.relative_to(self.folder)) for p in self.folder.rglob("*")]
        if any(re.search(r"\.part|\.old|\.tmp", n) for n in names):
            return f"half-written: {names}"
        for step in self.out.glob("step-*"):
            if sorted(p.name for p in step.iterdir()) != ["model.safetensors", "optimizer.safetensors", "state.json"]:
                return f"{step.name} is not whole: {names}"
        if status != 0:
            return None
        if self.expected is None:
            self.expected = self.tensors()
        return None if self.tensors() == self.expected else f"says that all went well, but left something else: {names}"


def data_files():
    """Options of --data, by kind."""
    text = h.TMP / "alloc.txt"
    text.write_bytes(bytes(range(32, 127)) * 20)
    for i in range(3):
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, 500
        (h.TMP / f"alloc{i}.bin").write_bytes(header.tobytes() + (np.arange(500, dtype=np.uint16) % 512).tobytes())
    folder = h.npy_dir({"inputs": np.arange(16 * 64, dtype=np.int32).reshape(16, 64) % 512, "targets": np.ones((16, 64), np.int64)})
    return {"text": f"text:{text}", "tokens": f"tokens:{h.TMP}/alloc?.bin", "npy": f"npy:{folder}"}


def weight_index(folder):
    """The weights of a checkpoint as two files and their index."""
    weights = h.read_safetensors(folder / "model.safetensors")
    names = list(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        h.write_safetensors(h.TMP / file, {n: weights[n] for n in part})
    path = h.TMP / "alloc.index.json"
    path.write_text('{"metadata": {}, "weight_map": {' + ", ".join(f'"{n}": "{f}"' for f, part in parts.items() for n in part) + "}}")
    return path


def trainer_runs(p, data):
    """(name, options) of the runs of a plan; SAVED is its checkpoint."""
    saved = h.TMP / f"alloc-saved-{p.devices}"
    p.train(data="synthetic", steps=1, seed=7, save=saved)
    yield "synthetic", ["--data", "synthetic"]
    yield "resume", ["--data", "synthetic", "--resume", saved]
    yield "index, gradients", ["--data", data["text"], "--init", weight_index(saved / "step-1"), "--dump-grads", "GRADS"]
    yield "init, tokens", ["--data", data["tokens"], "--init", saved / "step-1" / "model.safetensors"]
    yield "npy", ["--data", data["npy"]]


def sweep_all(library, runs, env=None, make_args=()):
    data = data_files()
    for devices in (1, 2):
        p = h.plan("models/gpt.xml", preset="tiny", D={"layers": 1}, gpus=devices).build(*make_args)
        for name, options in trainer_runs(p, data):
            ground = Ground(p, h.TMP / "alloc-ground")
            options = [ground.grads if x == "GRADS" else x for x in options]
            sweep(f"trainer on {devices}, {name}", ground.command(*options), ground, library, env or {}, runs)
        p.remove()


def test_trainers():
    sweep_all(build_library(), 10**9 if h.FULL else RUNS)


def test_leaks():
    if h.FULL:
        sweep_all(build_library(asan=True), RUNS, ASAN_ENV, [f"CFLAGS={ASAN}", f"LDFLAGS={ASAN}"])


TESTS = {"trainers": test_trainers, "leaks": test_leaks}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
