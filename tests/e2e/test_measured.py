#!/usr/bin/env python3
"""Measured beside planned: --report --profile, and --recalibrate."""
import json
import re
import sys

import harness as h
from test_report_html import Page, Shown, browser

GPT = "models/gpt.xml"


def trace_of(p, change=None, name="trace.json"):
    """The predicted trace of P, as if it were a trainer's, CHANGEd."""
    t = json.loads(h.must(h.mpplan("--export", "trace", p.dir)).stdout)
    if change:
        change(t)
    path = h.TMP / name
    path.write_text(json.dumps(t))
    return path


def report(p, trace, *more):
    r = h.must(h.mpplan("--report", p.dir, "--profile", trace, *more))
    return r, Page(p.dir / "report.html").data["measured"]


def stretch(factor_of):
    """Each event lasts FACTOR_OF(event) times as long, what it holds moves along; everything of a stage stays in order."""
    def change(t):
        for pid in {e["pid"] for e in t["traceEvents"]}:
            events = [e for e in t["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]
            events.sort(key=lambda e: (e["ts"], -e["dur"]))

            def lay(i, begin):
                """Event I from BEGIN on; returns the next event and the end."""
                e = events[i]
                end, at, k = e["ts"] + e["dur"], begin, i + 1
                covered = 0.0
                while k < len(events) and events[k]["ts"] + events[k]["dur"] <= end + 2e-3 and events[k]["ts"] < end - 1e-9:
                    inner = events[k]["dur"]
                    k, at = lay(k, at)
                    covered += inner
                own = max(0.0, e["dur"] - covered) * factor_of(e)
                e["ts"], e["dur"] = begin, at + own - begin
                return k, begin + e["dur"]
            lay(0, 0.0)
    return change


def same():
    """What was foretold, measured: nothing is off."""
    for what, p in (("one stage", h.plan(GPT, preset="tiny", gpus=4, fix="dp=2,tp=2,zero=3")),
                    ("stages", h.plan(GPT, preset="tiny", gpus=4, fix="pp=2,tp=2,schedule=1f1b"))):
        r, m = report(p, trace_of(p))
        h.check(m["misses"] == [] and "nothing is off" in r.stdout, f"{what}: no misses", m["misses"])
        off = [row for row in m["rows"] if abs(row[4] - row[3]) > 1e-6 * row[3] + 1e-9 * len(m["rows"])]
        h.check(m["rows"] and not off, f"{what}: every row is as planned", off[:3])
        h.check(abs(m["step_s"] - m["planned_step_s"]) < 1e-9, f"{what}: the step", (m["step_s"], m["planned_step_s"]))
        h.check(len(m["passes"]) == len(p.ranges) * (2 * p.json["micro_batches"] + 1), f"{what}: passes are drawn", len(m["passes"]))
        h.check("measured beside planned" in (p.dir / "report.txt").read_text(), f"{what}: report.txt says it, too")
        h.must(h.mpplan("--report", p.dir))
        h.check("measured" not in Page(p.dir / "report.html").data and "measured beside" not in (p.dir / "report.txt").read_text(),
                f"{what}: without --profile it is gone again")


def scaled():
    """Kernels, and one kind of collective, that take longer than planned are named and measured."""
    p = h.plan(GPT, preset="tiny", gpus=4, fix="tp=4")
    factor = lambda e: 1.5 if e["cat"] == "kernel" else 40 if e["name"].startswith("all-reduce") else 1
    trace = trace_of(p, stretch(factor), "slow.json")
    r, m = report(p, trace)
    for stage, kind, name, planned, seen in m["rows"]:
        want = 40 if " all-reduce " in name else 1.5 if kind < 2 else 1
        h.check(planned == 0 or abs(seen / planned - want) < 2e-3 * want, f"{name}: times {want}", (planned, seen))
    h.check(m["misses"] and "all-reduce" in m["misses"][0] and "40.0 times as long" in m["misses"][0], "the largest miss", m["misses"][:1])
    sizes = [abs(next(r for r in m["rows"] if miss.startswith(r[2]))[4] - next(r for r in m["rows"] if miss.startswith(r[2]))[3]) for miss in m["misses"]]
    h.check(sizes == sorted(sizes, reverse=True), "misses are sorted", sizes)
    h.check(all(miss in r.stdout for miss in m["misses"]), "the terminal names them, too")


def trainer():
    """A trainer's own trace: rows agree with the table that the trainer prints."""
    p = h.plan(GPT, preset="tiny", gpus=2, fix="dp=2")
    trace = h.TMP / "real.json"
    run = p.train(data="synthetic", steps=3, profile=trace)
    _, m = report(p, trace)
    h.check(m["step"] == 3 and m["ranks"] == 2, "the last step, all ranks", (m["step"], m["ranks"]))
    stage = re.search(r"^ +0 +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", run.out, re.M)
    forward, backward, update, collectives = (float(stage[i]) for i in (2, 3, 4, 5))
    row = lambda test: 1e3 * sum(r[4] for r in m["rows"] if test(r))
    h.check(abs(row(lambda r: r[1] == 0) - forward - backward) < 0.01, "kernels", (row(lambda r: r[1] == 0), forward + backward))
    h.check(abs(row(lambda r: r[1] == 1) - update) < 0.01, "update", (row(lambda r: r[1] == 1), update))
    h.check(abs(row(lambda r: r[1] == 2) - collectives) < 0.01, "collectives", (row(lambda r: r[1] == 2), collectives))
    h.check(abs(1e3 * m["wait_s"][0] - float(stage[7])) < 0.01, "waits", (m["wait_s"], stage[7]))
    planned = sum(c["per_step"] * c["cost_ps"] for c in p.stage["collectives"]) * 1e-12
    h.check(abs(sum(r[3] for r in m["rows"] if r[1] == 2) - planned) < 1e-9, "all that was planned is there")
    seen = [r for r in m["rows"] if r[1] == 2 and r[4] > 0]
    h.check(seen and all(r[3] > 0 for r in seen if " over data" in r[2]), "each collective finds its row", seen[:3])
    return p, trace


# ---- recalibration ----

def predicted(model, cluster, gpus, **kwargs):
    return json.loads(h.must(h.mpplan(*h.arguments(model, gpus=gpus, cluster=cluster, **kwargs), "--predict", "--json")).stdout)


def round_trip():
    """A cluster that is measured as planned is written as it is: for every one that is built in, the same predictions."""
    names = re.findall(r"<cluster name=\"([^\"]+)\"", "".join(f.read_text() for f in sorted((h.ROOT / "costmodel" / "clusters").glob("*.xml"))))
    h.check(len(names) > 10, "clusters", names)
    for name in names:
        gpus = 2 if name == "host" else 8
        p = h.plan("models/mlp.xml", preset="wide", gpus=gpus, cluster=name, fix="tp=2")
        out = h.TMP / f"{name}.xml"
        report(p, trace_of(p), "--recalibrate", out)
        key = lambda x: {k: v for k, v in x.items() if k != "pins"}
        for n in (gpus, 2 * gpus) if name not in ("host", "t4-box") else (gpus, 4):
            before = h.mpplan(*h.arguments("models/mlp.xml", preset="wide", gpus=n, cluster=name), "--predict", "--json")
            after = h.mpplan(*h.arguments("models/mlp.xml", preset="wide", gpus=n, cluster=out), "--predict", "--json")
            h.check(before.returncode == after.returncode and before.stdout == after.stdout, f"{name}: {n} devices predict the same", after.stderr[:200])


def factors():
    """What was measured k times as long is planned so by the cluster that is written."""
    p = h.plan(GPT, preset="gpt2", gpus=8, cluster="dgx-a100", batch=64, fix="dp=4,tp=2")
    kernels = trace_of(p, stretch(lambda e: 1.3 if e["cat"] == "kernel" else 1), "k.json")
    both = trace_of(p, stretch(lambda e: 1.3 if e["cat"] == "kernel" else 2 if e["cat"] == "collective" else 1), "kc.json")
    for trace, want in ((kernels, 1), (both, 2)):
        out = h.TMP / "fit.xml"
        r, m = report(p, trace, "--recalibrate", out)
        said = re.search(r"kernels x ([\d.]+), latencies x ([\d.]+), bytes x ([\d.]+)", out.read_text())
        got = [float(x) for x in said.groups()]
        h.check(abs(got[0] - 1.3) < 0.005 and all(abs(g - want) < 0.02 * want for g in got[1:]), f"factors 1.3 and {want}", got)
        after = json.loads(h.must(h.mpplan(*h.arguments(GPT, preset="gpt2", gpus=8, cluster=out, batch=64), "--from-plan", p.dir / "plan.json",
                                           "--predict", "--json")).stdout)
        h.check(abs(after["step_s"] / m["step_s"] - 1) < 0.02, "the plan is then foretold as it was measured", (after["step_s"], m["step_s"]))
        h.check("plan with it by --cluster" in r.stderr, "it says what changed", r.stderr)


# ---- mistakes, and the page ----

def mistakes():
    p, q = h.plan("models/mlp.xml", preset="tiny", gpus=2), h.plan("models/mlp.xml", preset="tiny", gpus=2, fix="pp=2")
    other = trace_of(q, name="other.json")
    empty, cut, text = h.TMP / "empty.json", h.TMP / "cut.json", h.TMP / "text.json"
    empty.write_text('{"traceEvents": []}')
    cut.write_text(other.read_text()[:400])
    text.write_text("not a trace")
    nosteps = trace_of(p, lambda t: t.update(traceEvents=[e for e in t["traceEvents"] if not e["name"].startswith("step")]), "nosteps.json")
    strange = trace_of(p, lambda t: t["traceEvents"][4].update(tid=-4), "strange.json")
    for args, words in (([p.dir, other], "trace of another plan"), ([q.dir, trace_of(p)], "trace of another plan"), ([p.dir, empty], "trace of another plan"),
                        ([p.dir, cut], "ends too early"), ([p.dir, text], "not JSON"), ([p.dir, h.TMP / "none.json"], "cannot read the trace"),
                        ([p.dir, h.TMP], "not a file"), ([p.dir, nosteps], "no whole step"), ([p.dir, strange], "sensible time")):
        before = (p.dir / "report.html").read_bytes()
        r = h.mpplan("--report", args[0], "--profile", args[1])
        h.check(r.returncode == 2 and words in r.stderr and r.stderr.count("\n") == 1 and r.stdout == "", f"--profile: {words}", r.stderr)
        h.check((p.dir / "report.html").read_bytes() == before, f"--profile: {words}: the report stays")
    for args, words in ((["--profile", "x"], "--profile goes with --report"), (["--report", p.dir, "--recalibrate", "x.xml"], "--recalibrate wants")):
        r = h.mpplan(*args)
        h.check(r.returncode == 2 and words in r.stderr, words, r.stderr)
    r = h.mpplan("--report", p.dir, "--profile", trace_of(p), "--recalibrate", h.TMP / "no" / "x.xml")
    h.check(r.returncode == 2 and "cannot write" in r.stderr, "--recalibrate: no folder", r.stderr)
    idle = trace_of(p, lambda t: t.update(traceEvents=[e for e in t["traceEvents"] if e["name"].startswith("step")]), "idle.json")
    r = h.mpplan("--report", p.dir, "--profile", idle, "--recalibrate", h.TMP / "idle.xml")
    h.check(r.returncode == 2 and "cannot recalibrate" in r.stderr and not (h.TMP / "idle.xml").exists(),
            "--recalibrate: a trace without kernels", r.stderr)
    strange = trace_of(p, lambda t: t["traceEvents"].extend([dict(e, name="receive \x1b[31m", cat="message", dur=e["dur"] / 2)
                                                            for e in t["traceEvents"] if e["name"] == "update"]), "odd\x1b[31m.json")
    r = h.mpplan("--report", p.dir, "--profile", strange)
    h.check(r.returncode == 0 and "receive \\x1b[31m" in r.stdout and "\x1b" not in r.stdout + (p.dir / "report.txt").read_text(),
            "--profile: escapes in a trace's names stay words", r.stdout + r.stderr)


def page():
    driver = browser()
    if not driver:
        return h.skip("the page with a profile: no chromium, chromedriver or selenium")
    try:
        p = h.plan(GPT, preset="tiny", gpus=4, fix="pp=2,dp=2,schedule=1f1b")
        trace = trace_of(p, stretch(lambda e: 3 if e["cat"] in ("collective", "kernel") else 1), "page.json")
        _, m = report(p, trace)
        for width in (1280, 400):
            shown = Shown(driver, "measured", p.dir, width)
            shown.check(not shown.js("return document.getElementById('measured').hidden"), "the section is there")
            shown.check(shown.js("return [...document.querySelectorAll('#misses li')].map(x => x.textContent)") == m["misses"], "misses are named")
            rows = shown.js("return document.querySelectorAll('#measured-table tbody tr').length")
            shown.check(rows == sum(1 for r in m["rows"] if r[3] > 0 or r[4] > 0), "every row", rows)
            bars = shown.js("return document.querySelectorAll('#measured-passes svg').length")
            shown.check(bars == 4, "planned and measured passes of two stages", bars)
            marks = shown.js("return document.querySelectorAll('#measured-passes svg:last-of-type rect').length")
            shown.check(marks > 4, "passes are drawn", marks)
            shown.check(shown.js("return document.documentElement.scrollWidth <= window.innerWidth + 1"), "nothing is wider than the window")
            shown.shot("measured")
            shown.quiet()
        h.must(h.mpplan("--report", p.dir))
        shown = Shown(driver, "not measured", p.dir)
        shown.check(shown.js("return document.getElementById('measured').hidden"), "the section is hidden without a profile")
        shown.quiet()
    finally:
        driver.quit()


def main():
    parts = {"same": same, "scaled": scaled, "trainer": trainer, "round": round_trip, "factors": factors, "mistakes": mistakes, "page": page}
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
