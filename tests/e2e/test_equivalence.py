#!/usr/bin/env python3
"""Trainers compute what independent references compute, on any number of devices and under any plan.

Losses of 10 steps and the gradients of step 0 against float64 PyTorch (tests/data/reference) for gpt2-tiny, gpt2-deep
and bert-tiny: on 1, 2, 3, 4, 7 and 8 devices with the planner's own plan, and with pinned plans that must hold the
split they name; threads and MPI. Of every plan also: no contraction is left unsplit unless the plan lists it, and the
arena is what the plan says. A sample by default, everything with --full.
"""
import json
import sys
from fnmatch import fnmatch

import numpy as np

import harness as h

DEVICES = [1, 2, 3, 4, 7, 8]
GRADIENT_TOLERANCE = 1e-4


class Model:
    """A reference folder: how mpplan is asked for it, its runs (name -> -D and expected losses), its data."""

    def __init__(self, folder, model, preset, inputs, tolerance):
        self.folder, self.model, self.preset, self.tolerance = folder, model, preset, tolerance
        self.expected = json.loads((h.REFERENCE / folder / "expected.json").read_text())
        self.arrays = {i: np.load(h.REFERENCE / folder / f"{i}.npy") for i in inputs}
        self.weights = h.REFERENCE / folder / "model.safetensors"
        self.gradients = h.read_safetensors(h.REFERENCE / folder / "grads.safetensors")
        self.fresh = h.npy_dir(self.arrays)
        self.fixed = h.npy_dir({k: v[:1] for k, v in self.arrays.items()})
        self.settings = {}  # name -> (-D, --fix, [(run, data, losses)])
        self.base = {}
        self.grad_norms = self.lrs = None


def gpt2_tiny():
    m = Model("gpt2-tiny", "models/gpt.xml", "tiny", ["inputs", "targets"], 2e-5)
    variants = {"A": ("A_wd0", {}), "B": ("B_wd0.01_all", {"weight_decay": 0.01, "weight_decay_1d": 0.01}),
                "C": ("C_wd0.1_2d_clip1", {"weight_decay": 0.1, "clip_norm": 1})}
    for name, (key, d) in variants.items():
        m.settings[name] = (d, [], [(data, getattr(m, data), m.expected[f"{key}_{data}batch{'es' if data == 'fresh' else ''}"]
                                     ["losses_torch_f64"]) for data in ("fresh", "fixed")])
    m.grad_norms = [m.expected["step0_gradnorm_total"]["torch_f64"]
                    if isinstance(m.expected["step0_gradnorm_total"], dict) else m.expected["step0_gradnorm_total"]]
    return m


def gpt2_deep():
    m = Model("gpt2-deep", "models/gpt.xml", None, ["inputs", "targets"], 1e-5)
    m.base = dict(layers=12, hidden=64, heads=8, vocab=384, seq=32, positions=32, batch=48, pdrop=0, lr=1e-3, beta1=0.9,
                  beta2=0.95, epsilon=1e-8, weight_decay=0.1, weight_decay_1d=0, clip_norm=1, schedule="cosine",
                  warmup_steps=2, total_steps=10, final_lr=1e-4)
    runs = m.expected["runs"]
    m.settings["cosine"] = ({}, [], [("cosine", m.fresh, runs["cosine"]["losses_f64"])])
    m.settings["accum16"] = ({}, ["micro_batches=16"], [("accum16", m.fresh, runs["cosine_accum16x3"]["losses_f64"])])
    m.grad_norms, m.lrs = runs["cosine"]["grad_norm_f64"], runs["cosine"]["lr_per_step"]
    return m


def bert_tiny():
    m = Model("bert-tiny", "models/bert.xml", "tiny", ["input_ids", "token_type_ids", "labels"], 1e-4)
    settings = {
        "sgd": ("sgd_lr0.05", dict(optimizer="sgd", lr=0.05, weight_decay=0, weight_decay_1d=0)),
        "momentum": ("sgdmom_lr0.05_m0.9_wd1e-4",
                     dict(optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4, weight_decay_1d=1e-4)),
        "adamw": ("adamw_lr1e-3_wd0.01", {}),
        "adamw_eps": ("adamw_lr1e-3_wd0.01_eps1e-5", dict(epsilon=1e-5)),
    }
    for name, (key, d) in settings.items():
        m.settings[name] = (d, [], [(name, m.fresh, m.expected["optimizers"][key]["losses_f64"])])
    return m


# ---- pinned plans: devices, --fix, and what plan.json must then show ----

def batch_only(p):
    return p.axis_splits("batch") and not any(p.axis_splits(d) for d in ("heads", "ffn", "vocab"))


PINS = {
    "dp": (4, "dp=4,zero=0", batch_only),
    "tp": (4, "tp=4", lambda p: p.contraction_splits("heads") and p.contraction_splits("ffn")),
    "uneven tp": (3, "tp=3,shard:h.*.attn.c_attn.weight=heads/model",
                  lambda p: p.contraction_splits("heads") and p.contraction_splits("ffn")),
    "vocabulary": (2, "tp=2,vocab_parallel=true", lambda p: p.contraction_splits("vocab") and p.rests_split("vocab")),
    "zero 1": (4, "dp=4,zero=1", lambda p: p.states_split("data") and not p.parameters_split("data")),
    "zero 2": (4, "dp=4,zero=2", lambda p: p.states_split("data") and not p.parameters_split("data")),
    "zero 3": (4, "dp=4,zero=3", lambda p: p.states_split("data") and p.parameters_split("data")),
    "sequence": (4, "tp=4,sequence_parallel=true", lambda p: p.residual_split("seq")),
    "2x2": (4, "dp=2,tp=2", lambda p: p.axis_splits("batch") and p.contraction_splits("heads")),
    "2x2x2": (8, "mesh=2x2x2,dp=2,zero=2", lambda p: len(p.axes) == 3 and p.all_axes_used()),
    "micro-batches": (2, "dp=2,micro_batches=16", lambda p: p.json["micro_batches"] == 16),
}


# What BERT calls its tensors, and what makes so small a model use three axes.
BERT_PINS = {
    "uneven tp": "tp=3,shard:*.attention.self.query.weight=heads/model",
    "2x2x2": "mesh=2x2x2,dp=2,zero=2,shard:*.query.weight=heads/b,shard:*.intermediate.dense.weight=ffn/c",
}


def pins_of(m):
    """Not every pin fits every model: 4 samples or 8 have no 16 micro-batches."""
    batch = next(iter(m.arrays.values())).shape[1]
    for name, (devices, fix, shows) in PINS.items():
        if name == "micro-batches" and batch % 16:
            continue
        yield name, devices, BERT_PINS.get(name, fix) if m.folder == "bert-tiny" else fix, shows


# ---- checks ----

def check_gradients(what, m, path):
    got = h.read_safetensors(path)
    if not h.check(sorted(got) == sorted(m.gradients), f"{what}: the gradients' names",
                   sorted(set(got) ^ set(m.gradients))[:6]):
        return
    for name, want in m.gradients.items():
        have = got[name]
        if not h.check(have.shape == want.shape, f"{what}: shape of {name}", f"{have.shape}, not {want.shape}"):
            continue
        if fnmatch(name, "*.key.bias"):
            continue  # truly zero: softmax does not see a shift of all scores
        if fnmatch(name, "*.c_attn.bias"):
            third = want.size // 3
            have, want = np.delete(have.ravel(), np.s_[third:2 * third]), np.delete(want.ravel(), np.s_[third:2 * third])
        error = h.relative_l2(have, want)
        h.check(error <= GRADIENT_TOLERANCE, f"{what}: gradient of {name}", f"relative error {error:.3g}")


def check_plan(what, p, pinned):
    n = p.devices
    if n > 1 and not pinned and p.json["schedule"]["kind"] == "accumulate":
        extra = [c for c in p.unsplit_contractions() if c not in p.listed_unsplit()]
        h.check(not extra, f"{what}: contractions that nothing splits are listed", extra[:4])
    arena, bound = p.memory["arena_bytes"], p.memory["live_bound_bytes"]
    h.check(0 < bound <= arena <= 1.1 * bound + 4096, f"{what}: arena of {arena} bytes, bound {bound}")
    h.check(f"{arena:,}" in p.report or str(arena) in p.report or "arena" in p.report, f"{what}: the report names the arena")


def check_run(what, m, p, run, losses, transport):
    h.close(f"{what}: losses", run.losses, losses, m.tolerance)
    h.check(run.transport.lower().startswith(transport), f"{what}: the transport", run.transport)
    h.check(set(run.arena_bytes) == set(p.arenas), f"{what}: arenas as planned", f"{run.arena_bytes}, planned {p.arenas}")
    norms = m.grad_norms or []
    got = [row["grad_norm"] for row in run.rows[:len(norms)]]
    h.check(all(row["grad_norm"] is not None for row in run.rows), f"{what}: every step has a gradient norm, also one that clips nothing", run.rows[:1])
    if norms:
        h.check(got and all(a is not None and abs(a - b) <= 1e-4 * b for a, b in zip(got, norms)), f"{what}: gradient norms", f"{got} not {norms}")
    if m.lrs:
        h.close(f"{what}: learning rates", [row["lr"] for row in run.rows], m.lrs, 1e-9)


def one_plan(label, m, devices, setting, fix="", shows=None, transports=("threads",), all_data=False):
    d, setting_fix, runs = m.settings[setting]
    fixes = [f for f in [fix, *setting_fix] if f]
    what = f"{m.folder} {setting}, {label}"
    p = h.plan(m.model, gpus=devices, preset=m.preset, D={**m.base, **d}, fix=",".join(fixes) or None)
    h.check(p.devices == devices, f"{what}: devices", p.devices)
    if shows:
        h.check(shows(p), f"{what}: plan.json shows the split", p.summary())
    check_plan(what, p, bool(fix))
    for i, (name, data, losses) in enumerate(runs if all_data else runs[:1]):
        for transport in transports:
            at = f"{what}, {name}, {transport}"
            dump = {"dump_grads": h.TMP / "grads.safetensors"} if i == 0 else {}
            run = p.train(mpi=transport == "mpi", data=f"npy:{data}", init=m.weights, steps=10, seed=1, **dump)
            check_run(at, m, p, run, losses, transport)
            if dump:
                check_gradients(at, m, dump["dump_grads"])
    p.remove()


def sample(models):
    """Each device count, pin, setting and transport at least once: about 35 trainers."""
    tiny, deep, bert = (models[k] for k in ("gpt2-tiny", "gpt2-deep", "bert-tiny"))
    both = ("threads", "mpi")
    for s in tiny.settings:
        yield "1 device", tiny, 1, s, "", None, ("threads",), True
    for s in bert.settings:
        yield "1 device", bert, 1, s
    yield "1 device", deep, 1, "cosine"
    yield "1 device", deep, 1, "accum16"
    for n, s, t in ((2, "C", both), (3, "B", ("threads",)), (4, "A", both), (7, "C", ("threads",)), (8, "B", both)):
        yield f"{n} devices", tiny, n, s, "", None, t
    for n, s, t in ((2, "adamw", ("threads",)), (3, "momentum", both), (4, "sgd", ("threads",)), (7, "adamw_eps", both),
                    (8, "momentum", ("threads",))):
        yield f"{n} devices", bert, n, s, "", None, t
    for n, s in ((3, "cosine"), (8, "accum16")):
        yield f"{n} devices", deep, n, s
    settings = list(tiny.settings)
    for i, (name, n, fix, shows) in enumerate(pins_of(tiny)):
        yield name, tiny, n, settings[i % 3], fix, shows, both if name in ("2x2", "zero 3") else ("threads",)
    for name in ("sequence", "zero 3", "vocabulary"):
        n, fix, shows = PINS[name]
        yield name, bert, n, "momentum", fix, shows
    n, fix, shows = PINS["micro-batches"]
    yield "micro-batches", deep, n, "cosine", fix, shows, both


def everything(models):
    for m in models.values():
        for s in m.settings:
            for n in DEVICES:
                yield f"{n} devices", m, n, s, "", None, ("threads", "mpi"), True
            for name, n, fix, shows in pins_of(m):
                if s == "accum16" and "micro_batches" in fix:
                    continue
                if s == "accum16" and "dp=4" in fix:      # a micro-batch has 3 samples
                    n, fix = 3, fix.replace("dp=4", "dp=3")
                if m.folder == "bert-tiny" and s == "sgd" and "zero=" in fix:
                    shows = None                          # no momentum: there is no optimiser state to split
                yield name, m, n, s, fix, shows, ("threads", "mpi"), True


def main():
    models = {m.folder: m for m in (gpt2_tiny(), gpt2_deep(), bert_tiny())}
    for label, m, devices, setting, *rest in (everything if h.FULL else sample)(models):
        what = f"{m.folder} {setting}, {label}"
        if h.only([what]):
            h.guarded(what, one_plan, label, m, devices, setting, *rest)
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
