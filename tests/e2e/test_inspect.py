#!/usr/bin/env python3
"""Questions about plans: --explain, --diff and --sweep, against plans that are made without them.

    tests/e2e/test_inspect.py [--full] [PART...]
"""
import json
import os
import pty
import re
import sys

import harness as h

GPT = "models/gpt.xml"
SMALL = [GPT, "--preset", "gpt2", "--cluster", "dgx-a100", "--gpus", 8]


def mpplan(*args, **kwargs):
    return h.run([h.MPPLAN, *args], cwd=h.ROOT, limited=True, **kwargs)


def good(*args, **kwargs):
    p = mpplan(*args, **kwargs)
    if p.returncode != 0:
        raise h.Failure(f"mpplan {' '.join(map(str, args))}: {p.returncode}\n{p.stderr}")
    return p.stdout


def asked(*args):
    return json.loads(good(*args, "--json"))


def refused(what, needle, *args):
    p = mpplan(*args)
    h.check(p.returncode == 2 and needle in p.stderr and p.stderr.count("\n") == 1 and not p.stdout, what,
            f"{p.returncode}: {p.stderr}{p.stdout[:200]}")


# ---- --explain ----

TENSORS = ["wte.weight", "wpe.weight", "ln_f.weight", "h.0.attn.c_attn.weight", "h.3.mlp.c_fc.weight", "h.11.mlp.c_proj.bias",
           "inputs", "tensor:h.3.res1", "tensor:h.5.attn.attention", "tensor:h.7.mlp.c_proj.product"]
MORE_TENSORS = ["targets", "tensor:h.0.ln_1", "tensor:h.2.mlp.gelu", "tensor:h.4.attn.q", "tensor:lm_head", "h.9.ln_2.bias",
                "h.6.mlp.c_fc.weight.grad", "tensor:embd", "h.*.mlp.c_proj.weight", "tensor:h.8.ln_2.rstd"]
OPS = ["h.3.mlp.c_fc", "h.*.attn.c_attn", "lm_head", "h.3.mlp.c_fc.grad_x"]


def promises(options, names, least_alternatives, read=()):
    """The chosen alternative takes least, and each is what --fix then gives. READ: how the plan is read, not searched for."""
    seen = 0
    for name in names:
        a = asked(*options, *read, "--explain", name)
        rows = a["alternatives"]
        h.check(rows[0]["chosen"] and sum(r["chosen"] for r in rows) == 1, f"{name}: one is chosen, the first", rows)
        h.check(rows[0]["step_s"] == a["step_s"], f"{name}: what is chosen is the plan's")
        h.check((rows[0]["fix"] is None) == bool(read), f"{name}: a plan that was searched can be had again", rows[0]["fix"])
        h.check(all(r["step_s"] >= rows[0]["step_s"] or "event by event" in r["why"] for r in rows if r["fits"]), f"{name}: the chosen one takes least",
                [(r["what"], r.get("step_s")) for r in rows])
        h.check(a.get("more_at_least_s", 1e9) >= rows[0]["step_s"], f"{name}: what is not listed takes no less")
        for r in rows[1:]:
            seen += 1
            h.check(r["why"], f"{name}, {r['what']}: what would have to change")
            p = mpplan(*without_fix(options), "--fix", r["fix"], "--predict", "--json")
            if not r["fits"]:
                h.check(p.returncode == 2, f"{name}, {r['what']}: what does not fit is refused", p.stderr)
                continue
            step = json.loads(p.stdout)["step_s"] if p.returncode == 0 else float("nan")
            h.check(abs(step - r["step_s"]) <= 1e-3 * r["step_s"], f"{name}, {r['what']}: --fix gives what was promised",
                    f"{step} instead of {r['step_s']}: --fix {r['fix']} {p.stderr}")
    h.check(seen >= least_alternatives, "there were alternatives", seen)


def without_fix(options):
    """An alternative's own list has the pins that were given too."""
    return options[:options.index("--fix")] if "--fix" in options else options


def explain_tensors():
    good(*SMALL, "-o", h.TMP / "gpt2")
    promises(SMALL, TENSORS[:2], 2)
    promises(SMALL, TENSORS[2:], 15, () if h.FULL else ("--from-plan", h.TMP / "gpt2" / "plan.json"))
    if h.FULL:
        promises(SMALL, MORE_TENSORS, 15)


def explain_mesh():
    options = [GPT, "-D", "layers=2", "--cluster", "dgx-a100", "--gpus", 8, "--fix", "dp=2,tp=4"]
    promises(options, ["h.1.mlp.c_fc.weight", "wte.weight", "tensor:h.0.res1", "h.0.attn.c_attn"], 6)
    if h.FULL:
        promises([GPT, "--preset", "gpt2", "--cluster", "dgx-a100", "--gpus", 16, "--fix", "dp=4,tp=4"], TENSORS + OPS, 30)


def explain_ops():
    promises(SMALL, OPS if h.FULL else OPS[1:2], 4)


def explain_stages():
    """Of a pipeline: stages, schedule, meshes and micro-batches are held."""
    options = [GPT, "--preset", "tiny", "--gpus", 4, "--cluster", "dgx-a100", "--fix", "pp=2,micro_batches=4"]
    promises(options, ["h.0.mlp.c_fc.weight", "h.3.mlp.c_fc", "stage1"], 2)
    unlike = [GPT, "--preset", "tiny", "-D", "layers=3", "--gpus", 4, "--cluster", "dgx-a100"]  # held, another of the close plans is taken
    a = asked(*unlike, "--fix", "pp=2", "--explain", "h.2.attn.c_proj.weight.new")
    chosen = a["alternatives"][0]
    for fix, what in ((chosen["fix"], "the chosen one's pins give the plan"), (a["held"], "what is held gives it, or that is said")):
        step = asked(*unlike, "--fix", fix, "--predict")["step_s"]
        h.check(abs(step - a["step_s"]) <= 1e-6 * step or (fix == a["held"] and a["apart"] and step > a["step_s"]), what, (fix, step, a["step_s"], a["apart"]))
    h.check(a["apart"] is not None, "and here it is said", a["held"])
    host = [GPT, "--preset", "tiny", "-D", "layers=3", "--gpus", 4]
    rows = asked(*host, "--fix", "pp=2", "--explain", "h.1.ln_2.grad_weight")["alternatives"]
    simulated = [asked(*host, "--fix", r["fix"], "--predict")["simulated_s"] for r in rows]
    said = ["event by event" in (r["why"] or "") for r in rows]
    h.check(said == [r["step_s"] < rows[0]["step_s"] and s > simulated[0] for r, s in zip(rows, simulated)] and any(said),
            "an alternative that takes less by the sum alone says so", (rows, simulated))


def explain_layer():
    a = asked(GPT, "-D", "layers=2", "--cluster", "dgx-a100", "--gpus", 8, "--explain", "h.1")
    promises([GPT, "-D", "layers=2", "--cluster", "dgx-a100", "--gpus", 8, "--fix", "dp=2,tp=4"], ["h.1"], 1)
    names = [r["name"] for r in a["parts"]]
    h.check(a["kind"] == "layer" and "h.1.mlp.c_fc" in names and "h.1.attn.c_proj.weight" in names, "a layer's parts", names)
    h.check(all(r["runner_up"]["step_s"] >= a["step_s"] for r in a["parts"] if r.get("runner_up", {}).get("fits")), "runners-up take no less")
    one = asked(GPT, "-D", "layers=2", "--cluster", "dgx-a100", "--gpus", 8, "--explain", "h.1.mlp.c_fc")["alternatives"][1]
    row = a["parts"][names.index("h.1.mlp.c_fc")]["runner_up"]
    h.check((row["what"], row["step_s"]) == (one["what"], one["step_s"]), "a layer's runner-up is the op's best alternative", (row, one))


def explain_words():
    text = good(*SMALL, "--explain", "h.3.mlp.c_fc", env={"COLUMNS": "100"})
    h.check("chosen: batch over data (8)" in text and "ffn over data (8)" in text and "--fix" in text, "an op in words", text)
    h.check(max(map(len, text.splitlines())) <= 100 and "\033" not in text, "no wider than the screen, no colour in a pipe")
    narrow = good(GPT, "--preset", "tiny", "--gpus", 2, "--explain", "h.0.mlp.c_fc", env={"COLUMNS": "40"})
    h.check(all(len(l) <= 40 or " " not in l.strip() for l in narrow.splitlines()) and "copies: " in narrow,
            "where no line of the table fits, its cells are below each other", narrow)
    one = good(GPT, "--preset", "tiny", "--explain", "wte.weight")
    h.check("there is no other way" in one, "one device leaves no choice", one)
    refused("a misspelt name", 'did you mean "h.3.mlp.c_fc"?', GPT, "--preset", "tiny", "--explain", "h.3.mlp.c_fcc")
    refused("things that are unlike", "unlike dimensions", GPT, "--preset", "tiny", "--explain", "h.*.weight")
    refused("a stage too many", "1 stage", GPT, "--preset", "tiny", "--explain", "stage1")
    refused("an answer and a directory", "-o", GPT, "--preset", "tiny", "--explain", "h.0", "-o", h.TMP / "none")


def record(plan, kind, name, layer):
    """plan.json's record of NAME ("h.*.x") that has LAYER."""
    def has(layers):
        ends = [[int(x) for x in part.split("-")] for part in layers.split(",")]
        return any(e[0] <= layer <= e[-1] for e in ends)
    found = [r for r in plan["stages"][0][kind] if name in (r.get("op"), r.get("name")) and ("layers" not in r or has(r["layers"]))]
    return found[0] if found else {}


def pins():
    """rest:, split:, whole and partial bind what they say, and nothing else."""
    out = h.TMP / "pins"
    good(GPT, "-D", "layers=2", "--cluster", "dgx-a100", "--gpus", 8, "-o", out, "--fix",
         "pp=1,mesh=8,rest:h.1.mlp.c_fc.weight=ffn/0,split:h.1.mlp.c_proj=ffn/0,shard:h.0.res1=whole/0,shard:h.0.attn.c_proj.product=partial/0")
    plan = json.loads((out / "plan.json").read_text())
    axis = plan["stages"][0]["mesh"][0]["axis"]
    rest = record(plan, "parameters", "h.*.mlp.c_fc.weight", 1)
    h.check(rest["rest"] == {axis: "ffn"} and record(plan, "parameters", "h.*.mlp.c_fc.weight", 0)["rest"] != {axis: "ffn"}, "rest: one weight rests so", rest)
    read = record(plan, "ops", "h.*.mlp.c_fc", 1)
    h.check(read["split"] == {axis: "batch"}, "how it is read is free", read)
    h.check(record(plan, "ops", "h.*.mlp.c_proj", 1)["split"] == {axis: "ffn"} and record(plan, "ops", "h.*.mlp.c_proj", 0)["split"] != {axis: "ffn"},
            "split: one op is split so")
    h.check("partial over" in record(plan, "ops", "h.*.attn.c_proj", 0)["out"][0], "partial: made so", record(plan, "ops", "h.*.attn.c_proj", 0))
    tiny = [GPT, "--preset", "tiny", "--gpus", 4, "--fix"]
    refused("an op that is none", 'did you mean "h.0.mlp.c_fc"', *tiny, "split:h.0.mlp.cfc=ffn/0")
    refused("a dimension that an op has not", '"ffn"', *tiny, "split:h.0.mlp.c_fc=fn/0")
    refused("a pin without an axis", "rest:GLOB=dimension/axis", *tiny, "rest:wte.weight=vocab")


# ---- --diff ----

def plans():
    made = {}
    for name, fix in (("tp8", "tp=8"), ("dp8", "dp=8"), ("pp2", "pp=2,dp=4"), ("four", "dp=8,micro_batches=4,zero=1")):
        made[name] = h.TMP / name
        if not made[name].exists():
            good(GPT, "-D", "layers=4", "--cluster", "dgx-a100", "--gpus", 8, "--fix", fix, "-o", made[name])
    return made


def by_plan(path):
    """Seconds of each kind of collective, and of all, as plan.json has them."""
    plan = json.loads((path / "plan.json").read_text())
    kinds = {}
    for c in plan["stages"][0]["collectives"]:
        key = (c["kind"], "+".join(c["axes"]))
        kinds[key] = kinds.get(key, 0) + c["cost_ps"] * c["per_step"] * 1e-12
    return plan, kinds


def diff_collectives():
    made = plans()
    d = asked("--diff", made["tp8"], made["dp8"])
    for side, name in (("a", "tp8"), ("b", "dp8")):
        plan, kinds = by_plan(made[name])
        total = sum(x[f"{side}_s"] for x in d["collectives"] + d["other_work"])
        h.check(abs(total - d[side]["step_s"]) < 1e-11 * total, f"{name}: the rows add up to a step", (total, d[side]["step_s"]))
        h.check(abs(d[side]["step_s"] - plan["objective_ps"] * 1e-12) < 1e-11, f"{name}: a step is plan.json's")
        listed = {}
        for x in d["collectives"]:
            if x[f"{side}_count"]:
                kind, axes = x["what"].split(" over ")
                key = (kind, axes.split(" ")[0])
                listed[key] = listed.get(key, 0) + x[f"{side}_s"]
        h.check(listed.keys() == kinds.keys() and all(abs(listed[k] - kinds[k]) <= 1e-9 * kinds[k] for k in kinds),
                f"{name}: collectives by kind and axes are plan.json's", (listed, kinds))
    names = {x["what"] for x in d["collectives"] if (x["a_s"] > 0) != (x["b_s"] > 0)}
    h.check("all-reduce over data (8)" in names and "all-gather over model (8)" in names, "collectives that only one has are named", names)
    h.check(d["faster"] == "b" and d["because"] and "less in" in d["because"][0], "why one is faster", d["because"])
    kernels = {(x["a"], x["b"]): x["of"] for x in d["decisions"] if x["what"] == "kernels"}
    h.check(any("h.*.mlp.c_fc" in names for (a, b), names in kernels.items() if "ffn over model (8)" == a and "batch over data (8)" == b),
            "kernels that are split otherwise", kernels)


def diff_pipeline():
    made = plans()
    d = asked("--diff", made["dp8"], made["pp2"])
    for side in "ab":
        total = sum(x[f"{side}_s"] for x in d["collectives"] + d["other_work"])
        h.check(abs(total - d[side]["step_s"]) < 1e-11 * total, f"{side}: the rows add up to a step", (total, d[side]["step_s"]))
    h.check(any("waiting" in x["what"] and x["b_s"] > 0 and x["a_s"] == 0 for x in d["other_work"]), "the bubble is a row", d["other_work"])
    d = asked("--diff", made["dp8"], made["four"])
    h.check({"what": "micro-batches", "a": "1", "b": "4"} in d["settings"], "settings that differ", d["settings"])
    h.check(not any("waiting" in x["what"] for x in d["other_work"]), "one stage waits for nobody", d["other_work"])
    same = asked("--diff", made["dp8"], made["dp8"])
    h.check(same["faster"] is None and not same["decisions"] and not same["because"], "a plan does not differ from itself", same["decisions"])


def diff_models():
    """Plans of models that differ in size alone, or in what a sample is."""
    for name, model in (("four layers", [GPT, "-D", "layers=4"]), ("two", [GPT, "-D", "layers=2"]), ("mlp", ["models/mlp.xml"])):
        good(*model, "--preset", "tiny", "-o", h.TMP / name)
    text = good("--diff", h.TMP / "four layers", h.TMP / "two")
    h.check("different models" in text and "parameters" in text, "models of one name and different sizes", text)
    text = good("--diff", h.TMP / "two", h.TMP / "mlp")
    h.check("different models" in text and "tokens or samples per second" in text, "a model of no tokens", text)
    same = good("--diff", h.TMP / "two", h.TMP / "two")
    h.check("different" not in same and "split alike" in same, "a plan beside itself", same)


def diff_words():
    made = plans()
    text = good("--diff", made["tp8"], made["dp8"], env={"COLUMNS": "110"})
    h.check(re.search(r"B is [\d.]+ times as fast", text) and "collectives of a step" in text and "memory of the fullest" in text, "in words", text)
    h.check(max(map(len, text.splitlines()[3:])) <= 110, "no wider than the screen")
    h.check(not re.search(r"0\.\d+ ns", text), "what takes next to nothing has no row", text)
    refused("one directory", "two plan directories", "--diff", made["tp8"])
    p = mpplan("--diff", made["tp8"], h.TMP)
    h.check(p.returncode == 2 and "graph.ir" in p.stderr, "no plan directory", p.stderr)
    refused("a diff of a search", "--gpus", "--diff", made["tp8"], made["dp8"], "--gpus", 4)


# ---- --sweep ----

def sweep_gpus():
    """gpt2-xl on 1 to 64 devices: what does not fit is marked, the rest is what plans of their own give."""
    d = asked(GPT, "--preset", "gpt2-xl", "--cluster", "host", "--sweep", "gpus=1,2,4,8,16,32,64", "--price", 1.5)
    h.check([r["values"]["gpus"] for r in d["runs"]] == "1 2 4 8 16 32 64".split(), "a run for each")
    first, rest = d["runs"][0], d["runs"][1:]
    h.check(not first["fits"] and "does not fit" in first["why"] and first["needs_bytes"] > first["usable_bytes"], "what does not fit is marked", first)
    h.check(all(r["fits"] and r["memory_bytes"] <= r["usable_bytes"] for r in rest), "the rest fits")
    h.check(all(abs(r["cost_per_million_tokens"] - 1.5 * r["devices"] / 3600 / r["tokens_per_s"] * 1e6) < 1e-9 for r in rest), "cost per token")
    one = json.loads(good(GPT, "--preset", "gpt2-xl", "--cluster", "host", "--gpus", 4, "--predict", "--json"))
    row = d["runs"][2]
    h.check(abs(one["step_s"] - row["step_s"]) < 1e-9 * one["step_s"] and one["memory"]["arena_bytes"] == row["memory_bytes"]
            and abs(one["tokens_per_s"] - row["tokens_per_s"]) < 1e-6 * one["tokens_per_s"], "as one plan", (one["step_s"], row))


def sweep_keys():
    d = asked(GPT, "--preset", "tiny", "--gpus", 2, "--sweep", "precision=fp32,bf16", "--sweep", "seq=32,64")
    h.check([tuple(r["values"].values()) for r in d["runs"]] == [("f32", "32"), ("f32", "64"), ("bf16", "32"), ("bf16", "64")], "all with all",
            [r["values"] for r in d["runs"]])
    d = asked(GPT, "--preset", "tiny", "--gpus", 4, "--fix", "dp=4", "--sweep", "batch=3,8")
    h.check(not d["runs"][0]["fits"] and "--fix" in d["runs"][0]["why"] and d["runs"][1]["fits"] and d["runs"][1]["batch"] == 8, "batches", d)
    d = asked(GPT, "--preset", "tiny", "--gpus", 4, "--sweep", "cluster=dgx-a100,dgx1-v100")
    h.check(len({r["step_s"] for r in d["runs"]}) == 2, "clusters")
    text = good(GPT, "--preset", "tiny", "--sweep", "gpus=1,2", "--price", 2, env={"COLUMNS": "80"})
    h.check("cost/1M tokens" in text and "##" in text and "most throughput: gpus 2" in text, "table and chart", text)
    h.check(max(map(len, text.splitlines())) <= 84, "about as wide as the screen", text)


def sweep_errors():
    tiny = [GPT, "--preset", "tiny"]
    refused("a near key", 'did you mean "gpus"?', *tiny, "--sweep", "gpu=1,2")
    refused("a near dimension", 'did you mean "seq"?', *tiny, "--sweep", "sqe=1")
    refused("no values", "gpus=1,2,4", *tiny, "--sweep", "gpus=")
    refused("a value that is none", "whole numbers", *tiny, "--sweep", "gpus=1,two")
    refused("a precision that is none", "bf16", *tiny, "--sweep", "precision=fp33")
    refused("an unknown cluster", "dgx", *tiny, "--sweep", "cluster=dgx-a10")
    refused("one key twice", "twice", *tiny, "--sweep", "gpus=1", "--sweep", "gpus=2")
    refused("a value that is told too", "exclude each other", *tiny, "--gpus", 2, "--sweep", "gpus=1,2")
    refused("a dimension that is told too", "exclude each other", *tiny, "-D", "seq=32", "--sweep", "seq=32,64")
    refused("a price alone", "--sweep", *tiny, "--price", 2)
    refused("a price of nothing", "--price", *tiny, "--sweep", "gpus=1", "--price", 0)


# ---- terminals ----

def colours():
    """Colour on a terminal only, and not where NO_COLOR is set."""
    def on_terminal(env):
        master, slave = pty.openpty()
        import subprocess
        p = subprocess.Popen([h.MPPLAN, GPT, "--preset", "tiny", "--sweep", "gpus=1"], cwd=h.ROOT, stdout=slave, stderr=subprocess.DEVNULL,
                             env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **env})
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            text += part
        p.wait()
        os.close(master)
        return text
    h.check(b"\033[" in on_terminal({}), "colour on a terminal")
    h.check(b"\033[" not in on_terminal({"NO_COLOR": "1"}), "NO_COLOR is honoured")
    h.check(b"\033[" not in on_terminal({"TERM": "dumb"}), "a dumb terminal has none")


PARTS = {"explain_tensors": explain_tensors, "explain_mesh": explain_mesh, "explain_ops": explain_ops, "explain_stages": explain_stages,
         "explain_layer": explain_layer, "pins": pins, "explain_words": explain_words, "diff_collectives": diff_collectives, "diff_pipeline": diff_pipeline,
         "diff_models": diff_models, "diff_words": diff_words, "sweep_gpus": sweep_gpus, "sweep_keys": sweep_keys, "sweep_errors": sweep_errors, "colours": colours}

if __name__ == "__main__":
    for part in h.only(PARTS):
        h.guarded(part, PARTS[part])
    sys.exit(h.finish())
