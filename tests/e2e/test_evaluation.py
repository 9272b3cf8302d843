#!/usr/bin/env python3
"""--eval: the loss on other data is that of a training step without dropout and without a step, the same under every plan, on
threads and MPI, in 16 bits too; and training goes on as if it had not been asked for. --profile of emitted trainers."""
import json
import sys

import harness as h
from traces import Trace, one_f_one_b

GPT, BERT = h.ROOT / "models" / "gpt.xml", h.ROOT / "models" / "bert.xml"


def evaluated(run):
    return [m["eval_loss"] for m in run.rows if "eval_loss" in m]


def same_batches():
    """At rate 0 and without dropout, steps of the same samples have the losses of their evaluation."""
    p = h.plan(GPT, preset="tiny")
    trained = p.train(data="synthetic", steps=3, seed=0, lr=0).losses
    asked = evaluated(p.train(data="synthetic", steps=1, seed=0, lr=0, eval="synthetic", eval_steps=3))
    h.check(len(asked) == 1 and abs(asked[0] - sum(trained) / 3) < 1e-6, "evaluation is the mean of its batches", f"{asked} {trained}")
    p.remove()


def plans(model, preset, rows, tolerance, **kwargs):
    first = None
    for gpus, fix, mpi in rows:
        p = h.plan(model, preset=preset, gpus=gpus, fix=fix, **kwargs)
        options = dict(data="synthetic", steps=4, seed=5, mpi=mpi)
        plain = p.train(**options).losses
        run = p.train(eval="synthetic", eval_every=2, eval_steps=2, **options)
        name = f"{preset} {gpus} {fix}"
        h.check(run.losses == plain, f"{name}: training is as without", f"{run.losses} {plain}")
        got = evaluated(run)
        first = first or got
        h.check(len(got) == 2 and all(abs(a - b) < tolerance for a, b in zip(got, first)), f"{name}: the loss on other data",
                f"{got} {first}")
        p.remove()


def profile():
    p = h.plan(GPT, preset="tiny", gpus=4, fix="pp=2,dp=2,schedule=1f1b,micro_batches=4")
    out = p.dir / "trace.json"
    run = p.train(data="synthetic", steps=3, profile=out)
    events = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    passes = {(e["tid"], e["name"]) for e in events if e["cat"] == "compute"}
    h.check(passes == {(r, f"{w} {m}") for r in range(4) for w in ("forward", "backward") for m in range(4)}, "every pass is traced")
    h.check("what the plan expects" in run.out and "x all-reduce over data 2" in run.out, "the plan stands beside", run.out)
    h.check("all-reduce over data 2 (seen" not in run.out, "collectives are as many as planned", run.out)
    h.check("x receive" in run.out and "(seen" not in run.out, "messages too, those of the shared weight's gradient among them", run.out)
    late = h.run([p.dir / "trainer", "--data", "synthetic", "--steps", "3", "--profile", "/proc/x"])
    h.check(late.returncode == 2 and "/proc/x: " in late.stderr and "step " not in late.stdout, "where no trace can be: refused before the first step",
            late.stdout[-300:] + late.stderr)
    h.check(not out.with_name(out.name + ".part").exists(), "no part of a trace stays")
    none = h.run([p.dir / "trainer", "--data", "synthetic", "--steps", "0", "--profile", p.dir / "none.json"])
    h.check(none.returncode == 0 and "no step was taken" in none.stderr and not (p.dir / "none.json").exists(), "no step has no profile",
            none.stderr)
    wrong = h.run([p.dir / "trainer", "--data", "synthetic", "--eval", "txt:x", "--steps", "1"])
    h.check(wrong.returncode == 2 and '--eval "txt:x" is none of' in wrong.stderr, "a fault of --eval names --eval", wrong.stderr)
    p.remove()


def schedule():
    """1F1B as its trace shows it: the order of the passes, and what is in flight."""
    stages, n = 4, 8
    p = h.plan(GPT, preset="tiny", gpus=stages, fix=f"pp={stages},schedule=1f1b,micro_batches={n}")
    out = p.dir / "trace.json"
    p.train(data="synthetic", steps=2, profile=out)
    trace = Trace(out, stages)
    h.check(len(trace.steps) == 2, "the last two steps are there", len(trace.steps))
    for i in range(stages):
        h.check(trace.in_flight[i] == min(stages - i, n), f"stage {i}: in flight", trace.in_flight[i])
        for step in trace.steps:
            passes = step[i]["passes"]
            h.check([q[:2] for q in passes] == one_f_one_b(i, stages, n), f"stage {i}: the order of its passes", passes)
            h.check(all(0 < q.cpu <= 1.1 * q.seconds for q in passes), f"stage {i}: its passes took time of a core", passes)
    p.remove()


h.guarded("same batches", same_batches)
h.guarded("dropout", plans, GPT, "tiny", [(1, None, False), (2, "dp=2,zero=3,micro_batches=2", False),
                                         (4, "dp=2,pp=2,schedule=1f1b,micro_batches=4", True), (2, "tp=2,vocab_parallel=true", False)],
          2e-5, D={"pdrop": "0.2"})
h.guarded("masked labels", plans, BERT, "tiny", [(1, None, False), (3, "pp=3,schedule=gpipe,micro_batches=4", False)], 1e-4)
h.guarded("16 bits", plans, GPT, "tiny", [(1, None, False), (2, "pp=2,schedule=1f1b,micro_batches=4", False)], 2e-3,
          extra=["--precision", "bf16"])
h.guarded("profile", profile)
h.guarded("schedule", schedule)
sys.exit(h.finish())
