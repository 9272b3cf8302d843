#!/usr/bin/env python3
"""Plans for other programs: plan.json against its schema, the predicted trace beside a trainer's, Graphviz, Megatron-LM's arguments."""
import copy
import json
import re
import shutil
import sys

import harness as h

GPT = "models/gpt.xml"
KINDS = {  # every kind of plan.json that there is
    "one device": dict(model="models/mlp.xml", preset="tiny"),
    "one stage": dict(model=GPT, preset="tiny", gpus=4),
    "several axes": dict(model=GPT, preset="tiny", gpus=8, fix="dp=2,tp=4,zero=3,sequence_parallel=true"),
    "1F1B": dict(model=GPT, preset="tiny", gpus=4, fix="pp=2,tp=2,schedule=1f1b"),
    "GPipe": dict(model=GPT, preset="tiny", gpus=4, fix="pp=4,schedule=gpipe,micro_batches=4"),
    "interleaved": dict(model=GPT, preset="tiny", gpus=4, fix="pp=2,interleave=2,dp=2,micro_batches=4"),
    "recomputation": dict(model=GPT, preset="tiny", gpus=2, fix="recompute=full"),
    "uneven stages": dict(model=GPT, preset="tiny", gpus=3, fix="pp=3"),
    "16 bits": dict(model=GPT, preset="gpt2-medium", gpus=8, cluster="dgx-a100", extra=["--precision", "bf16"]),
    "many nodes": dict(model=GPT, preset="gpt3-175b", gpus=1024, cluster="dgx-a100", fix="tp=8,pp=16,recompute=full",
                       extra=["--precision", "bf16"]),
    "ended early": dict(model=GPT, preset="gpt2", gpus=8, cluster="dgx-a100"),
    "masked": dict(model="models/bert.xml", preset="tiny", gpus=2),
}
made = {}


def ended_early():
    """With as much time as this machine needs to find a plan, but not to end the search."""
    limit_s = 0.05
    while True:
        try:
            return h.plan(**KINDS["ended early"], extra=["--time-limit", limit_s])
        except h.Failure as e:
            if "stopped before it found a plan" not in str(e) or limit_s > 30:
                raise
            limit_s *= 1.4


def plan(kind):
    if kind not in made:
        made[kind] = ended_early() if kind == "ended early" else h.plan(**KINDS[kind])
    return made[kind]


def export(p, what):
    return h.must(h.mpplan("--export", what, p.dir)).stdout


# ---- plan.json ----

def broken(good):
    """Copies of a plan with one fault each."""
    def edit(change):
        bad = copy.deepcopy(good)
        change(bad)
        return bad
    yield "no version", edit(lambda x: x.pop("plan_version"))
    yield "a key too many", edit(lambda x: x.update(speed=1))
    yield "a batch of none", edit(lambda x: x.update(batch=0))
    yield "another schedule", edit(lambda x: x["schedule"].update(kind="zero bubble"))
    yield "a split of a number", edit(lambda x: x["stages"][0]["ops"][0]["split"].update(data=3))
    yield "layers misspelt", edit(lambda x: x["stages"][0]["ops"][0].update(layers="0..3"))
    yield "a phase misspelt", edit(lambda x: x["stages"][0]["ops"][0].update(phase="froward"))
    yield "no places", edit(lambda x: x["stages"][0].update(places=[]))
    yield "bytes as text", edit(lambda x: x["stages"][0]["places"][0]["memory"].update(arena_bytes="1"))


def schema():
    printed = h.must(h.mpplan("--print-plan-schema")).stdout
    h.check(printed == (h.ROOT / "docs" / "plan.schema.json").read_text(), "--print-plan-schema is docs/plan.schema.json")
    one = plan("one stage")
    if h.schema_faults(one.json) is None:
        return h.skip("plan.json against its schema: no python3-jsonschema")
    import jsonschema
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))
    for kind in KINDS:
        faults = h.schema_faults(plan(kind).json)  # h.plan has looked, too
        h.check(faults == [], f"{kind}: plan.json fits its schema", faults)
    ended = plan("ended early")
    h.check("stopped" in ended.json and "the search was stopped by --time-limit" in ended.report, "a search that was ended says so, also where it had no bound yet", ended.report[:400])
    for what, bad in broken(one.json):
        h.check(h.schema_faults(bad), f"the schema refuses {what}")
    words = re.findall(r"^\| `(\w+)`", (h.ROOT / "docs" / "plan.md").read_text(), re.M)
    known = set(re.findall(r'"(\w+)": \{', printed))
    h.check(len(words) > 20 and {"plan_version", "places", "split"} <= known, "keys of the page and of the schema are there")


# ---- the trace ----

CATEGORIES = {"compute", "update", "collective", "message", "wait", "rest", "kernel"}  # docs/exports.md
SHARED = re.compile(r"(step \d+|begin|prologue \d+|(forward|backward) \d+( of chunk \d+)?|update|report|(send|receive) \S+|"
                    r"(all-reduce|all-gather|reduce-scatter|all-to-all) over (all ranks|\S+ \d+( x \S+ \d+)*)|sums of gradients|"
                    r"sum over stages|wait)$")


def spans(trace, pid):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]


def nested(events):
    """Is every event inside the ones that are open when it begins? Times to a nanosecond."""
    stack, slack = [], 1.1e-3
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1] <= e["ts"] + slack:
            stack.pop()
        if stack and e["ts"] + e["dur"] > stack[-1] + slack:
            return False
        stack.append(e["ts"] + e["dur"])
    return True


def check_trace(kind, p, t):
    places = {x["stage"]: (x, s) for s in p.json["stages"] for x in s["places"]}
    said = h.check
    events = t["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    said(names == {i: f"stage {i}" for i in places}, f"{kind}: a process for each stage", names)
    said({e["ph"] for e in events} == {"X", "M", "C"}, f"{kind}: kinds of events")
    said(all(isinstance(e["ts"], float) and e["dur"] >= 0 and e["cat"] in CATEGORIES for e in events if e["ph"] == "X"), f"{kind}: fields")
    odd = [e["name"] for e in events if e["ph"] == "X" and e["cat"] != "kernel" and not SHARED.match(e["name"])]
    said(not odd, f"{kind}: names as trainers give them", odd[:3])
    end = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    said(abs(end - p.json["simulated_ps"] * 1e-6) < 1e-3, f"{kind}: the step ends when the simulation says", end)
    shown = t["otherData"]["micro_batches_shown"]
    for i, (place, stage) in places.items():
        own = spans(t, i)
        passes = [e for e in own if re.match("forward|backward", e["name"])]
        said({e["tid"] for e in own} == {place["first_device"]}, f"{kind}: the first rank of stage {i}")
        said(len(passes) == 2 * shown * p.json["schedule"]["chunks"], f"{kind}: passes of stage {i}", len(passes))
        said(nested(own), f"{kind}: events of stage {i} are nested or apart")
        waits = sum(e["dur"] for e in own if e["name"] == "wait")
        busy = sum(e["dur"] for e in passes) + sum(e["dur"] for e in own if e["name"] == "update") - waits
        want = shown * (place["forward_ps"] + place["backward_ps"]) + place["once_ps"]
        said(abs(busy - want * 1e-6) < 1e-6 * want * 1e-6 + 1e-3, f"{kind}: what stage {i} is busy with", (busy, want * 1e-6))
        if t["otherData"]["inside_passes"] == "all":
            for c in stage["collectives"]:
                axes = " x ".join(f"{a['axis']} {a['size']}" for a in stage["mesh"] if a["axis"] in c["axes"])
                name = f"{c['kind']} over {axes}" if c["axes"] else c["kind"]
                got = [e for e in own if e["name"].startswith(name) and e["args"]["bytes"] == c["bytes"]]
                said(len(got) > 0, f"{kind}: {name} of {c['bytes']} bytes is in stage {i}")


def trace():
    for kind in ("one device", "one stage", "several axes", "1F1B", "GPipe", "interleaved", "many nodes"):
        check_trace(kind, plan(kind), json.loads(export(plan(kind), "trace")))
    p = plan("one stage")
    h.check(export(p, "trace") == export(p, "trace"), "the same bytes again")
    out = h.TMP / "t.json"
    h.check(h.mpplan("--export", "trace", p.dir, "-o", out).returncode == 0 and out.read_text() == export(p, "trace"), "-o")


def both_traces():
    """Laid side by side: what a trainer records has the processes, and for the first rank the passes, of the predicted one."""
    p = plan("1F1B")
    path = h.TMP / "profile.json"
    p.train(data="synthetic", steps=2, profile=path)
    seen, foretold = json.loads(path.read_text()), json.loads(export(p, "trace"))
    odd = [e["name"] for e in seen["traceEvents"] if e["ph"] == "X" and not SHARED.match(e["name"])]
    h.check(not odd, "a trainer's events have the names that the predicted ones have", odd[:3])
    for i in range(2):
        names = {e["name"]: e["cat"] for e in spans(foretold, i) if e["cat"] != "kernel"}
        rank = min(e["tid"] for e in spans(seen, i))
        real = {e["name"]: e["cat"] for e in spans(seen, i) if e["tid"] == rank}
        h.check({e["tid"] for e in spans(foretold, i)} == {rank}, f"the thread of stage {i} is its first rank")
        missing = [n for n in names if n not in real and not n.startswith("step")]
        h.check(not missing, f"all that is foretold of stage {i} is seen", missing)
        h.check(all(real[n] == names[n] for n in names if n in real), f"with the same categories in stage {i}")
        bytes_of = lambda t, r: sorted({(e["name"], e["args"]["bytes"]) for e in spans(t, i) if e["tid"] == r and e["cat"] == "collective"
                                        and "bytes" in e.get("args", {}) and " over data" not in e["name"] and "stages" not in e["name"]
                                        and "all ranks" not in e["name"]})
        h.check(set(bytes_of(foretold, rank)) <= set(bytes_of(seen, rank)), f"collectives of stage {i} have the bytes that were foretold",
                (bytes_of(foretold, rank), bytes_of(seen, rank)))


# ---- Graphviz ----

def dot():
    for kind in ("one device", "several axes", "1F1B", "interleaved", "uneven stages", "many nodes", "masked"):
        p = plan(kind)
        text = export(p, "dot")
        nodes = re.findall(r'^ *(s\d+_p\d+_\d+) \[label="([^"\\]*)', text, re.M)
        known = {n for n, _ in nodes} | set(re.findall(r"^ *(s\d+_p\d+_\d+_c\d+) \[", text, re.M))
        ends = re.findall(r"^ *(s\S+) -> (s\S+) \[", text, re.M)
        h.check(len(known) == len(re.findall(r"^ *s\d+_p\d+_\d+(?:_c\d+)? \[label", text, re.M)), f"{kind}: each node stands once")
        h.check(ends and all(a in known and b in known for a, b in ends), f"{kind}: edges join nodes that are there")
        for stage in p.json["stages"]:
            missing = [o["op"] for o in stage["ops"] if o["phase"] == "forward" and o["op"] not in {n for _, n in nodes}
                       and "Accumulate" != o["kind"] and not re.search(r"\.-?\d+\.", o["op"])]
            h.check(not missing, f"{kind}: every kernel of forward is drawn", missing[:4])
        h.check(text.count("{") == text.count("}"), f"{kind}: brackets")
        h.check(len(text) < 120000, f"{kind}: what repeats stands once", len(text))
        if shutil.which("dot"):
            picture = h.TMP / "g.dot"
            picture.write_text(text)
            drawn = h.run(["dot", "-Tsvg", picture], timeout_s=120)
            h.check(drawn.returncode == 0 and drawn.stderr == "" and drawn.stdout.count("<g id=\"node") == len(known), f"{kind}: Graphviz draws all",
                    drawn.stderr[:300])
    if not shutil.which("dot"):
        h.skip("drawing with Graphviz: no dot")


# ---- Megatron-LM ----

def arguments(text):
    body = text.split("MEGATRON_ARGS=(\n")[1].split("\n)")[0]
    return dict((a.strip() + " ").split(" ", 1) for a in body.split("\n"))


def notes(text):
    return [line for line in text.split("\n") if line.startswith("#  - ")]


def start_it(text):
    """A script of two nodes, with a torchrun that tells how it is called: what it wants is said at its top, and when it is not there."""
    stand_in = h.TMP / "bin" / "torchrun"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\necho "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n')
    stand_in.chmod(0o755)
    script = h.TMP / "train.sh"
    script.write_text(text)
    top = text.split("MEGATRON_ARGS")[0]
    h.check(all(word in top for word in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "pretrain_gpt.py")), "what it wants from outside is at its top", top)
    env = {"PATH": f"{stand_in.parent}:/usr/bin:/bin"}
    for given, missing in ({}, "NODE_RANK"), ({"NODE_RANK": "1"}, "MASTER_ADDR"):
        r = h.run(["bash", script], env={**env, **given})
        h.check(r.returncode != 0 and missing in r.stderr and r.stdout == "", f"without {missing} it says so", r.stderr)
    r = h.run(["bash", script, "--lr", "1"], env={**env, "NODE_RANK": "1", "MASTER_ADDR": "here"})
    want = "1 --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr here --master_port 29500 pretrain_gpt.py --tensor-model-parallel-size 4 "
    h.check(r.stdout.startswith(want) and r.stdout.endswith(" --lr 1\n"), "how it starts", r.stdout)


def megatron():
    documented = {line.split()[0] for line in (h.ROOT / "tests/data/megatron/arguments.txt").read_text().split("\n") if line.startswith("--")}
    for kind in KINDS:
        text = export(plan(kind), "megatron")
        wrong = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - documented - {"--nproc_per_node", "--nnodes"}
        wrong -= {"--node_rank", "--master_addr", "--master_port", "--nproc", "--node", "--master"}  # torchrun's
        h.check(not wrong, f"{kind}: documented names", wrong)
        checked = h.run(["bash", "-n", "-c", text])
        h.check(checked.returncode == 0, f"{kind}: a script", checked.stderr)
    exact = h.plan(GPT, preset="gpt2-medium", gpus=16, cluster="dgx-a100", D={"vocab": 50304, "positions": 1024},
                   fix="dp=2,tp=4,pp=2,zero=0,sequence_parallel=true,vocab_parallel=true,recompute=selective,schedule=1f1b,micro_batch=4",
                   batch=64, extra=["--precision", "fp16"])
    text = export(exact, "megatron")
    want = {"--tensor-model-parallel-size": "4", "--pipeline-model-parallel-size": "2", "--sequence-parallel": "", "--micro-batch-size": "4",
            "--global-batch-size": "64", "--recompute-granularity": "selective", "--fp16": "", "--num-layers": "24", "--hidden-size": "1024",
            "--ffn-hidden-size": "4096", "--num-attention-heads": "16", "--seq-length": "1024", "--max-position-embeddings": "1024",
            "--attention-dropout": "0", "--hidden-dropout": "0", "--optimizer": "adam"}
    got = {k: v.strip() for k, v in arguments(text).items()}
    layout = got.pop("--pipeline-model-parallel-layout", "'Et*12|t*12L'")
    h.check(re.fullmatch(r"'Et\*(\d+)\|t\*(\d+)L'", layout) and sum(map(int, re.findall(r"\d+", layout))) == 24, "its layers", layout)
    h.check(got == want, "a plan of Megatron's kind: all of it", {k: (got.get(k), want.get(k)) for k in {*got, *want} if got.get(k) != want.get(k)})
    h.check(notes(text) == [], "and nothing is left out", notes(text))
    start_it(text)
    for what, kwargs, wanted in (
            ("ZeRO-1", dict(gpus=8, fix="dp=8,zero=1"), {"--use-distributed-optimizer": ""}),
            ("ZeRO-2", dict(gpus=8, fix="dp=8,zero=2"), {"--data-parallel-sharding-strategy": "optim_grads", "--use-megatron-fsdp": ""}),
            ("ZeRO-3", dict(gpus=8, fix="dp=8,zero=3"), {"--data-parallel-sharding-strategy": "optim_grads_params"}),
            ("all recomputed", dict(gpus=8, fix="dp=8,recompute=full"), {"--recompute-granularity": "full", "--recompute-num-layers": "1"})):
        text = export(h.plan(GPT, preset="gpt2", cluster="dgx-a100", batch=64, **kwargs), "megatron")
        got = arguments(text)
        h.check("CUDA_DEVICE_MAX_CONNECTIONS" not in text, f"{what}: only tensor parallelism wants its kernels in one queue")
        h.check("square_sum" not in text, f"{what}: sums of squares are no disagreement", notes(text))
        h.check(all(got.get(k, "").strip() == v and k in got for k, v in wanted.items()), what, got)
    got = arguments(export(plan("interleaved"), "megatron"))
    h.check(got["--num-virtual-stages-per-pipeline-rank"].strip() == "2", "interleaved stages")
    uneven = export(plan("uneven stages"), "megatron")
    layout = arguments(uneven).get("--pipeline-model-parallel-layout", "")
    layers = sum(int(n or 1) for n in re.findall(r"t(?:\*(\d+))?", layout))
    h.check(layout.count("|") == 2 and layout.startswith("'E") and layout.strip().endswith("L'") and layers == 4, "uneven stages", layout)
    for kind, word in (("GPipe", "the schedule is GPipe"), ("one device", "no attention"), ("16 bits", None)):
        said = notes(export(plan(kind), "megatron"))
        h.check(any(word in n for n in said) if word else True, f"{kind}: what cannot be said is listed", said)


# ---- mistakes ----

def mistakes():
    p = plan("one device")
    for args, words in ((["--export", "pdf", p.dir], 'none of trace|dot|megatron'), (["--export", "dot"], "wants a plan directory"),
                        (["--export", "dot", h.TMP / "nowhere"], "graph.ir: error: cannot read"),
                        (["--export", "dot", p.dir, "--gpus", "4"], "the directory says the rest"),
                        (["--export", "trace", p.dir, "-o", h.TMP / "no" / "t.json"], "t.json: error: cannot write")):
        r = h.mpplan(*args)
        h.check(r.returncode == 2 and words in r.stderr and r.stdout == "" and r.stderr.count("\n") == 1, f"--export: {words}", r.stderr)
    for kind in ("trace", "dot", "megatron"):
        r = h.mpplan("--export", kind, p.dir, "-o", "/dev/full")
        h.check(r.returncode == 1 and r.stderr.startswith("/dev/full: error: cannot write") and r.stderr.count("\n") == 1,
                f"--export {kind}: a full disk, and where", r.stderr)


def main():
    parts = {"schema": schema, "trace": trace, "both": both_traces, "dot": dot, "megatron": megatron, "mistakes": mistakes}
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
