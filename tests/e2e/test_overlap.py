#!/usr/bin/env python3
"""--overlap: the plan that takes least with collectives beside kernels, and what the figures of any plan say of it.

What is hidden is part of what was begun, no longer than the kernels that hide it, and taken off the step; no plan is below the
bound of a search that counts it; the plan is never slower so than without the option. --full: more models.
"""
import json
import re
import sys

import harness as h

BESIDE = 0.15  # what kernels lose of a collective's time: costmodel.h

# Where the plan becomes another one, and where it stays.
CASES = [("gpt2", 4, "a100-pcie", 64), ("gpt2-xl", 8, "dgx-a100", 32), ("gpt3-1.3b", 8, "a100-pcie", 32)]
FULL_CASES = [("gpt2-xl", 16, "p3.16xlarge", 64), ("gpt3-6.7b", 64, "dgx-a100", 64), ("gpt3-2.7b", 8, "dgx-a100-40", 64),
              ("gpt3-13b", 64, "dgx-a100", 256), ("gpt3-6.7b", 64, "p4d.24xlarge", 512)]


def predict(what, *arguments):
    p = h.mpplan("models/gpt.xml", *arguments, "--predict", "--json")
    return json.loads(p.stdout) if h.check(p.returncode == 0, f"{what}: planned", p.stderr) else None


def check_figures(what, x):
    """The figures of any prediction."""
    b = x["micro_batches"]
    for i, s in enumerate(x["stages"]):
        o = s["overlap"]
        h.check(0 <= o["gradient_sums_hidden_s"] <= o["gradient_sums_s"] * (1 + 1e-12), f"{what}, stage {i}: hidden sums are some of those that were begun", o)
        h.check(0 <= o["weight_gathers_hidden_s"] <= o["weight_gathers_s"] * (1 + 1e-12), f"{what}, stage {i}: so are gathers", o)
        h.check(o["gradient_sums_hidden_s"] <= s["backward_s"], f"{what}, stage {i}: no more is hidden than the last backward pass takes", o)
        h.check(o["weight_gathers_hidden_s"] <= b * (s["forward_s"] + s["backward_s"]), f"{what}, stage {i}: nor than all passes take", o)
        h.check(o["gradient_sums_s"] <= s["predicted"]["gradient_comm_s"] * (1 + 1e-9), f"{what}, stage {i}: sums that are begun are sums of gradients", o)
        h.check(o["weight_gathers_s"] <= s["predicted"]["parameter_comm_s"] * (1 + 1e-9), f"{what}, stage {i}: gathers that are begun are of parameters", o)
    if x["pp"] == 1:
        o = x["stages"][0]["overlap"]
        h.close(f"{what}: the step less what is hidden", x["overlapped_s"],
                x["step_s"] - (1 - BESIDE) * (o["gradient_sums_hidden_s"] + o["weight_gathers_hidden_s"]), 1e-9)
    h.check(x["overlapped_s"] <= x["step_s"], f"{what}: no step is longer for what goes on beside", (x["overlapped_s"], x["step_s"]))


def check_case(preset, gpus, cluster, batch):
    what = f"{preset} on {gpus} of {cluster}"
    arguments = ["--preset", preset, "--gpus", gpus, "--cluster", cluster, "--batch", batch, "--precision", "bf16"]
    plain, counted = predict(what, *arguments), predict(what + ", --overlap", *arguments, "--overlap")
    if not plain or not counted:
        return
    check_figures(what, plain)
    check_figures(what + ", --overlap", counted)
    h.check("overlap_bound_s" not in plain, f"{what}: a search that counts nothing of it proves nothing of it")
    h.check(counted["overlapped_s"] <= plain["overlapped_s"], f"{what}: the plan is no slower than the one without --overlap",
            (counted["overlapped_s"], plain["overlapped_s"]))
    for x in (plain, counted):
        h.check(0 < counted["overlap_bound_s"] <= x["overlapped_s"] * (1 + 1e-9), f"{what}: no plan is below the bound", (counted["overlap_bound_s"], x["overlapped_s"]))
    h.check(counted["step_s"] >= plain["bound_s"], f"{what}: nor, one after the other, below that of the other search", (counted["step_s"], plain["bound_s"]))
    h.check(counted["bound_s"] <= plain["bound_s"] * (1 + 1e-12), f"{what}: what was proven one after the other stays", (counted["bound_s"], plain["bound_s"]))
    if preset == "gpt3-1.3b":
        h.check(counted["overlapped_s"] < 0.9 * plain["overlapped_s"], f"{what}: over slow links it pays to hide", (counted["overlapped_s"], plain["overlapped_s"]))


def check_links():
    """Slower links leave more exposed; at the end the backward pass hides as much as it takes."""
    text = (h.ROOT / "costmodel" / "clusters" / "a100-pcie.xml").read_text()
    arguments = ["--preset", "gpt2", "--gpus", "4", "--batch", "64", "--precision", "bf16", "--fix", "dp=4,pp=1,micro_batches=1,zero=0"]
    exposed, slow = [], None
    for factor in [100, 1, 0.1]:
        path = h.TMP / f"links{factor}.xml"
        path.write_text(scale_links(text, factor))
        x = predict(f"links of {factor}", *arguments, "--cluster", path)
        if not x:
            return
        check_figures(f"links of {factor}", x)
        o = x["stages"][0]["overlap"]
        exposed.append(o["gradient_sums_s"] - o["gradient_sums_hidden_s"])
        slow = x
    h.check(exposed[0] < exposed[1] < exposed[2], "slower links leave more exposed", exposed)
    o, backward_s = slow["stages"][0]["overlap"], slow["stages"][0]["backward_s"]
    h.check(0.5 * backward_s < o["gradient_sums_hidden_s"] <= backward_s, "where sums take longer than the backward pass it hides as much as it takes",
            (o, backward_s))


def scale_links(text, factor):
    return re.sub(r'bytes_per_s="([0-9.e]+)"', lambda m: f'bytes_per_s="{float(m[1]) * factor:.6g}"', text)


def check_stopped():
    """A search that is stopped says so, and still counts what was asked for; so early that it has no plan it says that."""
    arguments = ["models/gpt.xml", "--preset", "gpt3-6.7b", "--gpus", 64, "--cluster", "p4d.24xlarge", "--batch", 512, "--precision", "bf16", "--overlap"]
    for limit_s in (1, 4):
        what = f"within {limit_s} s"
        p = h.mpplan(*arguments, "--time-limit", limit_s, "--predict", "--json")
        if p.returncode != 0:
            h.check("stopped before it found a plan" in p.stderr, f"{what}: no plan yet", p.stderr)
            continue
        x = json.loads(p.stdout)
        h.check(x.get("stopped") == "--time-limit" and 0 <= x["overlap_bound_s"] <= x["overlapped_s"] * (1 + 1e-9), f"{what}: stopped, its bound holds", x)
        check_figures(what, x)
        p = h.mpplan(*arguments, "--time-limit", limit_s, "--predict")
        h.check("--overlap looks" not in p.stdout, f"{what}: nobody who asked is told to ask", p.stdout[:500])


def check_directory():
    """A plan directory keeps what was proven; its reports are the same again."""
    arguments = ["models/gpt.xml", "--preset", "gpt2-xl", "--gpus", 8, "--cluster", "dgx-a100", "--batch", 32, "--precision", "bf16", "--overlap"]
    out = h.TMP / "plan"
    p = h.mpplan(*arguments, "-o", out)
    if not h.check(p.returncode == 0, "a plan is written", p.stderr):
        return
    plan, report = json.loads((out / "plan.json").read_text()), (out / "report.txt").read_text()
    h.check(0 < plan["overlap_bound_ps"] <= plan["overlapped_ps"] <= plan["objective_ps"], "plan.json has its time and bound")
    h.check("collectives beside kernels counted" in " ".join(report.split()), "the report says what its time counts", report[:600])
    p = h.mpplan("--report", out)
    h.check(p.returncode == 0 and (out / "report.txt").read_text() == report, "--report writes the same again", p.stderr)
    plan["overlap_bound_ps"] = "soon"
    (out / "plan.json").write_text(json.dumps(plan))
    p = h.mpplan("--report", out)
    h.check(p.returncode == 2 and "overlap_bound_ps" in p.stderr, "a bound that is no number is refused", p.stderr)


def check_nothing(what, *arguments):
    """Nothing goes on beside kernels there: the option changes nothing."""
    a, b = (predict(what, "--preset", "tiny", *arguments, *more) for more in ([], ["--overlap"]))
    h.check(a == b and a is not None and a["overlapped_s"] == a["step_s"], f"{what} nothing changes", (a, b))


def main():
    for case in CASES + (FULL_CASES if h.FULL else []):
        h.guarded(str(case), check_case, *case)
    h.guarded("links", check_links)
    h.guarded("stopped", check_stopped)
    h.guarded("directory", check_directory)
    h.guarded("host", check_nothing, "on a host", "--gpus", 4)
    h.guarded("alone", check_nothing, "on one GPU", "--gpus", 1, "--cluster", "dgx-a100")
    sys.exit(h.finish())


main()
