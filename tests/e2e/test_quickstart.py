#!/usr/bin/env python3
"""Training as a user does it: the quickstart's model on text, every data format, checkpoints, metrics."""
import re
import sys

import numpy as np

import harness as h

FIELDS = ["step", "loss", "grad_norm", "lr", "step_s", "tokens_per_s"]
LICENSE = h.ROOT / "LICENSE"
plans = {}


def tiny(gpus):
    """gpt tiny with 2 layers, planned and built once per number of devices."""
    if gpus not in plans:
        plans[gpus] = h.plan("models/gpt.xml", preset="tiny", D=dict(layers=2), gpus=gpus).build()
    return plans[gpus]


def test_quickstart():
    p = h.plan("models/gpt.xml", preset="bytes", gpus=4)
    report = (p.dir / "report.txt").read_text()
    h.check(p.report.strip().endswith(report.strip()[-200:]), "the report is printed and kept")
    for word in ("mesh", "memory", "step", "split", "gap"):
        h.check(word in report.lower(), f"the report tells of {word}")
    run = p.train(data=f"text:{LICENSE}", steps=40, seed=1, timeout_s=400)
    h.check(len(run.losses) == 40 and run.losses[-1] < run.losses[0] - 1, "the loss falls on text", f"{run.losses[:1]} {run.losses[-1:]}")
    h.check(abs(run.losses[0] - np.log(256)) < 0.5, "the first loss is that of guessing", run.losses[0])
    h.check("loss" in run.out and "tokens/s" in run.out, "progress is shown", run.out[-300:])


def test_metrics():
    p = tiny(2)
    run = p.train(data="synthetic", steps=5, seed=3)
    h.check([r["step"] for r in run.rows] == [1, 2, 3, 4, 5], "one line per step, from 1", run.rows)
    h.check(all(list(r) == FIELDS for r in run.rows), "the fields of a line", run.rows[:1])
    h.check(all(r["step_s"] > 0 and abs(r["tokens_per_s"] * r["step_s"] / 512 - 1) < 1e-3 for r in run.rows), "tokens per second")
    h.check(all(abs(r["lr"] - 3e-4) < 1e-9 for r in run.rows), "the model file's learning rate", run.rows[:1])
    again = p.train(data="synthetic", steps=5, seed=3)
    h.check(run.losses == again.losses, "two runs give the same losses", f"{run.losses} {again.losses}")
    other = p.train(data="synthetic", steps=5, seed=4)
    h.check(run.losses != other.losses, "another seed gives others")
    lr = p.train(data="synthetic", steps=2, seed=3, lr=0.01)
    h.check(abs(lr.rows[0]["lr"] - 0.01) < 1e-8, "--lr", lr.rows)
    h.check(lr.losses[0] == run.losses[0] and lr.losses[1] != run.losses[1], "--lr changes the update")
    schedule = h.plan("models/gpt.xml", preset="tiny", gpus=2,
                      D=dict(layers=1, schedule="linear", warmup_steps=2, total_steps=6, lr=1e-3, final_lr=2e-4))
    got = [r["lr"] for r in schedule.train(data="synthetic", steps=7, seed=3).rows]
    h.close("linear schedule with warm-up", got, [5e-4, 1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4], 1e-9)


def test_formats():
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, 512, 5000).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    folder = h.TMP / "shards"
    folder.mkdir()
    (folder / "a.bin").write_bytes(header.tobytes() + tokens[:3000].tobytes()[:0] + tokens.tobytes())
    (folder / "raw.u16").write_bytes(tokens.tobytes())
    header[:3] = 20240801, 1, len(tokens)
    (folder / "wide.u32").write_bytes(header.tobytes() + tokens.astype(np.uint32).tobytes())
    losses = {}
    for name, data in (("llm.c shard", f"tokens:{folder}/a.bin"), ("raw u16", f"tokens:{folder}/raw.u16"), ("u32 shard", f"tokens:{folder}/wide.u32"),
                       ("text", f"text:{LICENSE}"), ("synthetic", "synthetic")):
        a, b = (tiny(n).train(data=data, steps=4, seed=2).losses for n in (1, 3))
        losses[name] = a
        h.close(f"{name}: 1 and 3 devices read the same samples", b, a, 2e-5)
    h.check(losses["llm.c shard"] == losses["raw u16"] == losses["u32 shard"], "the same tokens in three formats", losses)
    inputs, targets = rng.integers(0, 512, (20, 64)).astype(np.int32), rng.integers(0, 512, (20, 64)).astype(np.int64)
    samples = tiny(2).train(data=f"npy:{h.npy_dir(dict(inputs=inputs, targets=targets))}", steps=4, seed=2).losses
    wrapped = np.arange(32) % 20  # samples wrap within a batch
    batches = {k: v[wrapped].reshape(4, 8, 64) for k, v in (("inputs", inputs), ("targets", targets))}
    h.check(samples == tiny(2).train(data=f"npy:{h.npy_dir(batches)}", steps=4, seed=2).losses, "npy: samples in order, wrapping")
    bert = h.plan("models/bert.xml", preset="tiny", gpus=2, D=dict(vocab=256))
    masked = bert.train(data=f"text:{LICENSE}", steps=3, seed=2).losses
    h.check(len(masked) == 3 and all(3 < x < 8 for x in masked), "BERT masks text", masked)
    one = h.plan("models/bert.xml", preset="tiny", gpus=1, D=dict(vocab=256)).train(data=f"text:{LICENSE}", steps=3, seed=2)
    h.close("BERT masks the same tokens on 1 and 2 devices", masked, one.losses, 2e-5)


def test_padding():
    """With a mask, what stands in masked places changes nothing."""
    rng = np.random.default_rng(3)
    p = h.plan("models/bert.xml", preset="tiny", gpus=2, D=dict(padding_mask=True))
    arrays = {k: rng.integers(0, n, (2, 4, 16)).astype(np.int32) for k, n in (("input_ids", 128), ("token_type_ids", 2), ("labels", 128))}
    mask = np.ones((2, 4, 16), np.int32)
    mask[:, :, 11:] = 0
    arrays["labels"][:, :, 11:] = -100
    arrays["attention_mask"] = mask
    a = p.train(data=f"npy:{h.npy_dir(arrays)}", steps=4, seed=2).losses
    arrays["input_ids"][:, :, 11:] = rng.integers(0, 128, (2, 4, 5))
    b = p.train(data=f"npy:{h.npy_dir(arrays)}", steps=4, seed=2).losses
    h.close("masked tokens change nothing", b, a, 1e-6)


def test_dropout():
    """Dropout draws the same numbers under every plan."""
    losses = []
    for n, fix in ((1, None), (4, "dp=4"), (4, "tp=4"), (2, "micro_batches=4"), (4, "dp=2,tp=2")):
        p = h.plan("models/gpt.xml", preset="tiny", gpus=n, fix=fix, D=dict(layers=1, pdrop=0.2))
        losses.append(p.train(data="synthetic", steps=4, seed=9).losses)
        h.close(f"dropout on {n} devices, {fix}", losses[-1], losses[0], 2e-5)


def test_checkpoints():
    for n, mpi in ((1, False), (2, False), (2, True)):
        p, at = tiny(n), h.TMP / f"save{n}{mpi}"
        what = f"{n} devices{', MPI' if mpi else ''}"
        whole = p.train(mpi=mpi, data="synthetic", steps=8, seed=6).losses
        metrics = h.TMP / f"metrics{n}{mpi}.jsonl"
        p.train(mpi=mpi, data="synthetic", steps=4, seed=6, save=at, metrics=metrics)
        r = p.train(mpi=mpi, data="synthetic", steps=8, resume=at, metrics=metrics, save=at)
        h.check(r.losses == whole, f"{what}: stopping and resuming changes nothing", f"{r.losses} {whole}")
        for m in (1, 3, 4):
            r = tiny(m).train(data="synthetic", steps=8, resume=at / "step-4")
            h.close(f"{what}, resumed on {m}", r.losses, whole[4:], 2e-5)
        names = sorted(x.name for x in at.iterdir())
        h.check(names == ["step-4", "step-8"], f"{what}: checkpoints are kept", names)
    one, two = (h.read_safetensors(h.TMP / f"save{n}False" / "step-8" / "model.safetensors") for n in (1, 2))
    reference = h.read_safetensors(h.REFERENCE / "gpt2-tiny" / "model.safetensors")
    shapes = {k: v.shape for k, v in reference.items() if not re.match(r"h\.[23]\.", k)}
    h.check({k: v.shape for k, v in one.items()} == shapes, "checkpoints hold published names and shapes",
            sorted(set(one) ^ set(shapes))[:5])
    h.check(all(h.relative_l2(two[k], one[k]) < 1e-4 for k in one if "c_attn.bias" not in k), "1 and 2 devices reach the same weights")
    init = tiny(3).train(data="synthetic", steps=1, seed=6, init=h.TMP / "save1False" / "step-8" / "model.safetensors")
    h.check(len(init.losses) == 1, "a checkpoint's weights serve as --init")


TESTS = {"quickstart": test_quickstart, "metrics": test_metrics, "formats": test_formats, "padding": test_padding,
         "dropout": test_dropout, "checkpoints": test_checkpoints}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
