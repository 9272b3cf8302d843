#!/usr/bin/env python3
"""Steps in bf16 and fp16: their losses follow those of fp32, whatever the plan, device count and transport; a step whose
gradients overflow is skipped and the scale of the loss recovers; masters are what checkpoints hold, and a resumed run goes
on bit for bit."""
import re
import sys

import numpy as np

import harness as h

STEPS = 50
FOLLOW = 0.02    # of the loss, against fp32
SPREAD = 2e-3    # between plans, absolute: rounding to 8 or 11 bits in another order of sums; the largest seen is 1.1e-3
WEIGHTS = h.REFERENCE / "gpt2-tiny" / "model.safetensors"

# Device count, --fix, and the transports
PLANS = [
    (1, None, ("threads",)), (2, None, ("threads",)), (4, None, ("threads",)), (4, "dp=2,tp=2", ("threads", "mpi")),
    (4, "dp=4,zero=3", ("threads",)), (4, "dp=4,zero=1", ("threads",)), (4, "tp=4,sequence_parallel=true", ("threads",)),
    (3, "tp=3,shard:h.*.attn.c_attn.weight=heads/model", ("threads",)), (2, "tp=2,vocab_parallel=true", ("threads",)),
    (2, "dp=2,micro_batches=4", ("threads",)),
]
QUICK = {"bf16": (0, 3, 4, 7), "fp16": (0, 6, 8)}


def data():
    arrays = {i: np.load(h.REFERENCE / "gpt2-tiny" / f"{i}.npy") for i in ("inputs", "targets")}
    return h.npy_dir(arrays), h.npy_dir({k: v[:1] for k, v in arrays.items()})


FRESH, FIXED = data()


def plan(precision, gpus=1, fix=None, model="models/gpt.xml", preset="tiny", D=None, extra=()):
    return h.plan(model, gpus=gpus, preset=preset, fix=fix, D=D, extra=("--precision", precision, *extra))


def train(p, steps=STEPS, source=FRESH, **options):
    return p.train(data=f"npy:{source}", init=WEIGHTS, steps=steps, seed=1, **options)


def worst(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def follow(precision):
    """Every plan follows fp32 on one device, and all agree among themselves."""
    wanted = train(plan("fp32")).losses
    chosen = range(len(PLANS)) if h.FULL else QUICK[precision]
    first = None
    for gpus, fix, transports in (PLANS[i] for i in chosen):
        p = plan(precision, gpus, fix)
        for transport in transports:
            what = f"{precision}, {gpus} devices, {fix or 'auto'}, {transport}"
            run = train(p, mpi=transport == "mpi")
            off = float(np.max(np.abs(np.array(run.losses) / np.array(wanted) - 1)))
            h.check(len(run.losses) == STEPS and off <= FOLLOW, f"{what}: the loss follows fp32", f"off by {100 * off:.3g} %")
            h.check(worst(run.losses, wanted) > 0, f"{what}: not the same numbers as fp32")
            first = first or run.losses
            h.close(f"{what}: as on one device", run.losses, first, SPREAD)
            h.check(all(a == p.memory["arena_bytes"] for a in run.arena_bytes), f"{what}: arena as planned", run.arena_bytes)
            if h.VERBOSE:
                print(f"{what}: {100 * off:.3f} % off fp32, {worst(run.losses, first):.2g} off one device")
        p.remove()


def gradients(precision):
    """The dumped gradients are those of the loss itself, f32, near the float64 reference."""
    want = h.read_safetensors(h.REFERENCE / "gpt2-tiny" / "grads.safetensors")
    path = h.TMP / "grads.safetensors"
    train(plan(precision, 2, "dp=2"), steps=0, dump_grads=path)
    got = h.read_safetensors(path)
    h.check(sorted(got) == sorted(want), f"{precision}: the gradients' names")
    for name, x in want.items():
        if name.endswith("c_attn.bias"):
            continue  # a third of it is truly zero
        off = h.relative_l2(got[name], x)
        h.check(got[name].dtype == np.float32 and off <= (0.05 if precision == "bf16" else 0.01), f"{precision}: gradient of {name}",
                f"relative error {off:.3g}")


def resume(precision):
    """Checkpoints hold f32 masters; the same plan goes on bit for bit, others and fp32 nearly."""
    p = plan(precision, 2, "dp=2,zero=2")
    folder = h.TMP / f"ckpt-{precision}"
    whole = train(p, steps=12).losses
    first = train(p, steps=6, save=folder).losses
    h.check(first == whole[:6], f"{precision}: a run is repeated bit for bit")
    saved = h.read_safetensors(folder / "step-6" / "model.safetensors")
    h.check(all(x.dtype == np.float32 for x in saved.values()), f"{precision}: what is saved is f32")
    low = sum(np.count_nonzero(x.view(np.uint32) & (0xffff if precision == "bf16" else 0x1fff)) for x in saved.values())
    h.check(low > 0.5 * sum(x.size for x in saved.values()), f"{precision}: masters have more digits than what is computed with")
    state = h.read_safetensors(folder / "step-6" / "optimizer.safetensors")
    h.check(("loss_scale" in state) == (precision == "fp16"), f"{precision}: the scale is saved where there is one")
    again = p.train(data=f"npy:{FRESH}", resume=folder, steps=12)
    h.check(again.losses == whole[6:], f"{precision}: resumed, bit for bit", f"{again.losses} {whole[6:]}")
    other = plan(precision, 4, "dp=2,tp=2").train(data=f"npy:{FRESH}", resume=folder, steps=12)
    h.close(f"{precision}: resumed under another plan", other.losses, whole[6:], SPREAD)
    wide = plan("fp32", 1).train("--init", folder / "step-6" / "model.safetensors", data=f"npy:{FIXED}", steps=1)
    own = p.train("--init", folder / "step-6" / "model.safetensors", data=f"npy:{FIXED}", steps=1)
    h.close(f"{precision}: fp32 goes on from its masters", wide.losses, own.losses, 0.02)


def skipped(run):
    return [row["skipped_steps"] for row in run.rows]


def scales_are(what, run, wanted):
    got = [row["loss_scale"] for row in run.rows]
    h.check(np.allclose(got, wanted, rtol=1e-8, atol=0), what, got)


def first_skips(what, run, scale):
    """How many steps are skipped from the first on; every skipped step halves the scale. (One more may come later: the scale
    that is left is the largest that fits.)"""
    counts = skipped(run)
    n = next((i for i, c in enumerate(counts) if c != i + 1), len(counts))
    h.check(0 < n < 30, f"{what}: some steps are skipped", counts)
    scales_are(f"{what}: each halves the scale", run, [scale / 2 ** (counts[i - 1] if i else 0) for i in range(len(counts))])
    h.check(run.losses[:n + 1] == [run.losses[0]] * (n + 1), f"{what}: a skipped step changes no weight", run.losses[:n + 1])
    h.check(all(row["grad_norm"] is None for row in run.rows[:n]), f"{what}: no norm is reported of what overflowed")
    return n


def overflow(mpi):
    """--loss-scale makes the first steps' gradients overflow: they change nothing, the scale halves, and training goes on as
    if they had not been."""
    p = plan("fp16", 2, "dp=2,zero=1")
    what = "over MPI" if mpi else "threads"
    plain = train(p, steps=6, source=FIXED, mpi=mpi).losses
    run = train(p, steps=40, source=FIXED, mpi=mpi, loss_scale=2.0 ** 40)
    n = first_skips(what, run, 2.0 ** 40)
    h.close(f"{what}: then as without", run.losses[n:n + 6], plain, SPREAD)


def overflow_later():
    """A scale that is too large in the middle of a run, after a checkpoint."""
    p = plan("fp16", 2, "tp=2")
    folder = h.TMP / "later"
    whole = train(p, steps=12, source=FIXED).losses
    train(p, steps=6, source=FIXED, save=folder)
    run = p.train(data=f"npy:{FIXED}", resume=folder, steps=40, loss_scale=2.0 ** 38, save=folder)
    n = first_skips("later", run, 2.0 ** 38)
    h.close("later: then as without", run.losses[n:n + 6], whole[6:], SPREAD)
    counts = skipped(run)
    good = next(i for i in range(34) if counts[-1 - i] != (counts[-2 - i] if i < 33 else 0))
    state = h.read_safetensors(folder / "step-40" / "optimizer.safetensors")
    h.check(float(state["loss_scale.skipped_steps"][0]) == counts[-1] and float(state["loss_scale.good_steps"][0]) == good,
            "later: the counts are saved", ({k: v for k, v in state.items() if k.startswith("loss_scale")}, counts))
    tail = p.train(data=f"npy:{FIXED}", resume=folder, steps=41)
    h.check(skipped(tail)[0] in (counts[-1], counts[-1] + 1), "later: and taken up again", tail.rows)
    scales_are("later: the scale too", tail, [2.0 ** (38 - counts[-1])])


def with_precision(text):
    path = h.TMP / "model.xml"
    path.write_text(re.sub(r"<precision .*?/>", text, (h.ROOT / "models" / "gpt.xml").read_text()))
    return path


def settings():
    """The model file's own setting; growth; a fixed scale; the option overrides."""
    dynamic = with_precision('<precision compute="f16" loss_scale_every="3"/>')
    run = train(h.plan(dynamic, preset="tiny"), steps=10)
    scales_are("three good steps double the scale", run, [65536.0 * 2 ** (i // 3) for i in range(10)])
    fixed = with_precision('<precision compute="f16" loss_scale="1024" loss_scale_every="2"/>')
    p = h.plan(fixed, preset="tiny")
    scales_are("a fixed scale stays", train(p, steps=6), [1024.0] * 6)
    run = train(p, steps=4, loss_scale=2.0 ** 60)
    scales_are("and is not halved", run, [2.0 ** 60] * 4)
    h.check(skipped(run) == [1, 2, 3, 4], "though steps are skipped", run.rows)
    bf16 = train(h.plan(fixed, preset="tiny", extra=("--precision", "bf16")), steps=2)
    h.check("loss_scale" not in bf16.rows[0], "the option overrides the file; bf16 needs no scale", bf16.rows[0])
    wide = h.plan(fixed, preset="tiny", extra=("--precision=fp32",))
    h.check(not re.search(r"bf16|f16", (wide.dir / "stage0.c").read_text()), "fp32 leaves nothing of it")


def models():
    """BERT with masks, a perceptron on f32 inputs, dropout; on two devices as on one."""
    bert = {i: np.load(h.REFERENCE / "bert-tiny" / f"{i}.npy") for i in ("input_ids", "token_type_ids", "labels")}
    for precision in ("bf16", "fp16") if h.FULL else ("bf16",):
        runs = []
        for gpus, kind, fix in ((1, "fp32", None), (1, precision, None), (3, precision, None), (2, precision, "tp=2")):
            p = plan(kind, gpus, fix, "models/bert.xml", "tiny")
            runs.append(p.train(data=f"npy:{h.npy_dir(bert)}", init=h.REFERENCE / "bert-tiny" / "model.safetensors", steps=10).losses)
        for r in runs[1:]:
            h.check(float(np.max(np.abs(np.array(r) / np.array(runs[0]) - 1))) <= FOLLOW, f"bert, {precision}: follows fp32", r)
            h.close(f"bert, {precision}: plans agree", r, runs[1], SPREAD)
        runs = [plan(kind, gpus, None, "models/mlp.xml", None).train(data="synthetic", steps=20).losses
                for gpus, kind in ((1, "fp32"), (1, precision), (2, precision))]
        for r in runs[1:]:
            h.check(float(np.max(np.abs(np.array(r) / np.array(runs[0]) - 1))) <= FOLLOW, f"mlp, {precision}: follows fp32", (r, runs[0]))
        runs = [plan(kind, gpus, fix, D=dict(pdrop=0.2)).train(data="synthetic", steps=6).losses
                for gpus, kind, fix in ((1, "fp32", None), (1, precision, None), (4, precision, "dp=2,tp=2"))]
        for r in runs[1:]:
            h.close(f"dropout, {precision}: the same elements are dropped", r, runs[0], 0.02)


def wrong():
    """What users get wrong: one line, exit status 2."""
    for args, words in ((("--precision", "fp8"), "none of fp32, bf16, fp16"), (("--precision",), "wants a value"),
                        (("--precision=",), "none of fp32")):
        p = h.mpplan(*h.arguments("models/gpt.xml", preset="tiny", extra=args))
        h.check(p.returncode == 2 and words in p.stderr and p.stderr.count("error:") == 1, f"mpplan {' '.join(args)}", p.stderr)
    for text, words in (('<precision compute="fp8"/>', "fp8"), ('<precision compute="bf16" params="bf16"/>', "always in f32"),
                        ('<precision compute="f16" loss_scale="-1"/>', "at least 0")):
        p = h.mpplan(*h.arguments(with_precision(text), preset="tiny"))
        h.check(p.returncode == 2 and words in p.stderr and "model.xml:" in p.stderr, text, p.stderr)
    for precision, value, words in (("bf16", "8", "does not scale the loss"), ("fp16", "0", "above 0"), ("fp16", "nan", "above 0"),
                                    ("fp16", "-4", "above 0"), ("fp16", "1e99", "above 0"), ("fp16", "x", "above 0")):
        run = plan(precision).train(data="synthetic", steps=1, loss_scale=value, allow_failure=True, metrics=False)
        h.check(run.process.returncode == 2 and words in run.err and run.err.count("error:") == 1, f"--loss-scale {value}, {precision}",
                run.err)


def same_plan():
    """The same input gives the same bytes, and plan.json with --precision the same directory."""
    a, b = plan("fp16", 4), plan("fp16", 4)
    h.check(h.tree(a.dir) == h.tree(b.dir), "fp16: equal bytes")
    c = h.plan("models/gpt.xml", gpus=4, preset="tiny", extra=("--precision", "fp16", "--from-plan", a.dir / "plan.json"))
    h.check(h.tree(a.dir) == h.tree(c.dir), "fp16: --from-plan rebuilds it")
    p = h.mpplan(*h.arguments("models/gpt.xml", gpus=4, preset="tiny", extra=("--from-plan", a.dir / "plan.json")))
    h.check(p.returncode == 2 and "plan for --precision f16, not f32" in p.stderr, "a plan of another precision", p.stderr)
    text = (a.dir / "stage0.c").read_text()
    h.check("mpp_gemm_half(r, MPP_TYPE_F16, MPP_TYPE_F16" in text and "mpp_gemm_half(r, MPP_TYPE_F16, MPP_TYPE_F32" in text,
            "products are in 16 bits, gradients of weights in f32")
    h.check("mpp_gemm_gelu_half(r, MPP_TYPE_F16" in text and "mpp_gemm_add" not in text.replace("mpp_gemm_add_half(r, MPP_TYPE_F16", ""),
            "so is what follows them")
    h.check(a.json["precision"] == "f16" and a.memory["parameters"] > 0, "plan.json says so, and accounts for the weights")


def main():
    parts = {"follow bf16": (follow, "bf16"), "follow fp16": (follow, "fp16"), "gradients bf16": (gradients, "bf16"),
             "gradients fp16": (gradients, "fp16"), "resume bf16": (resume, "bf16"), "resume fp16": (resume, "fp16"),
             "overflow": (overflow, False), "overflow mpi": (overflow, True), "overflow later": (overflow_later,),
             "settings": (settings,), "models": (models,), "wrong": (wrong,), "same plan": (same_plan,)}
    for name in h.only(parts):
        h.guarded(name, *parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
