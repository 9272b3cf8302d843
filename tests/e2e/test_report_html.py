#!/usr/bin/env python3
"""report.html: the page's figures are plan.json's, nothing in a name is markup, equal input gives equal bytes; and in a headless
Chromium: no error, what is drawn says what the plan says, hints, zoom, search and the tree work, by mouse and keyboard."""
import base64
import json
import os
import re
import shutil
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import harness as h
from test_errors import small_cluster

GPT = "models/gpt.xml"
MAX_BYTES = 3 << 20
# Where --full leaves screenshots for people to look at.
SHOTS = os.environ.get("MPP_SCREENSHOTS")


def make(name, *args):
    """mpplan with ARGS into TMP/NAME; the folder."""
    out = h.TMP / name
    h.must(h.run([h.MPPLAN, *args, "-o", out], timeout_s=600, cwd=h.ROOT))
    return out


class Page(HTMLParser):
    """The elements of a page, what its JSON holds, and all its texts."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.text, self.raw, self.open, self.tags, self.links = "", {}, [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        self.data = json.loads(self.raw["plan"])

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "action", "data") and not (v or "").startswith("#")]
        if tag in ("script", "style"):
            self.open = [attrs.get("id", tag)]

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.open = []

    def handle_data(self, data):
        if self.open:
            self.raw[self.open[0]] = self.raw.get(self.open[0], "") + data
        else:
            self.text += data


def totals(blocks):
    return sum(n * sum(piece[1] for piece in pieces) for n, _, _, pieces in blocks)


def run_events(runs):
    """Every event of a stage's runs: (what, chunk, micro-batch, begin, time)."""
    for n, period, micro, events in runs:
        for k in range(n):
            for what, chunk, mb, begin, length in events:
                yield what, chunk, mb + k * micro, begin + k * period, length


def check_claim(name, plan, text):
    """How much slower the plan is at most, as TEXT has it: a part of the fastest one's time, rounded up to three digits."""
    said = re.search(r"[Pp]roven (?:the fastest|at most ([\d.]+) % slower)", " ".join(text.split()))
    counts = "overlap_bound_ps" in plan
    ps, bound_ps = (plan["overlapped_ps"], plan["overlap_bound_ps"]) if counts else (plan["objective_ps"], plan["bound_ps"])
    slower = 100 * (ps / bound_ps - 1) if bound_ps > 0 else None
    h.check(counts == ("collectives beside kernels counted" in " ".join(text.split())), f"{name}: what the claim counts")
    h.check(bool(said) == (slower is not None) and (not said or abs(float(said[1] or 0) - slower) <= 0.01 + 0.005 * slower),
            f"{name}: how much slower at most", f"{said and said[0]}, {slower}")


def check_data(name, folder):
    """The page's figures against plan.json, and what must hold among them."""
    page, plan = Page(folder / "report.html"), json.loads((folder / "plan.json").read_text())
    d = page.data
    p, s = d["plan"], d["strings"]
    h.check(len(page.source.encode()) < MAX_BYTES, f"{name}: below 3 MB", len(page.source))
    h.check(not page.links and "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page.raw["script"]), f"{name}: needs no network", page.links[:3])
    for key in ("objective_ps", "bound_ps", "simulated_ps", "overlapped_ps", "overlap_bound_ps"):
        h.check(p[key] == plan.get(key, 0), f"{name}: {key}", f"{p[key]} {plan.get(key)}")
    h.check(abs(p["gap"] - plan["gap"]) <= 1e-11 * plan["gap"], f"{name}: gap", f"{p['gap']} {plan['gap']}")
    check_claim(f"{name}, report.txt", plan, (folder / "report.txt").read_text())
    same = {k: v for k, v in p["predicted"].items() if abs(v - plan["predicted"][k]) > 1e-11 * abs(v)}
    h.check(not same, f"{name}: predicted", same)
    h.check([(o["what"], o["time_ps"]) for o in p["others"]] == [(o["what"], o["time_ps"]) for o in plan["runners_up"]], f"{name}: runners-up")
    places = {q["stage"]: (q, x) for x in plan["stages"] for q in x["places"]}
    h.check(len(d["stages"]) == len(places), f"{name}: all stages")
    for i, stage in enumerate(d["stages"]):
        place, program = places[i][0], d["programs"][stage["program"]]
        for key in ("first_device", "in_flight", "forward_ps", "backward_ps", "once_ps"):
            h.check(stage[key] == place[key], f"{name}: stage {i}: {key}", f"{stage[key]} {place[key]}")
        memory = stage["memory"]
        h.check({k: v for k, v in memory.items() if k != "gaps"} == place["memory"], f"{name}: stage {i}: memory")
        h.check(sum(v for k, v in memory.items() if k not in ("arena_bytes", "live_bound_bytes")) == memory["arena_bytes"],
                f"{name}: stage {i}: kinds of memory add up")
        h.check([(a["axis"], a["size"]) for a in program["mesh"]] == [(a["axis"], a["size"]) for a in places[i][1]["mesh"]], f"{name}: stage {i}: mesh")
        parts = [totals(b) for b in program["parts"]]
        h.check([parts[0], parts[1], parts[2] + parts[3], parts[3]] == [stage[k] for k in ("forward_ps", "backward_ps", "once_ps", "update_ps")],
                f"{name}: stage {i}: pieces add up to its times", f"{parts} {stage['forward_ps']} {stage['backward_ps']} {stage['once_ps']}")
        ours = sorted((s[c[2]], s[c[5]], c[7], c[1] * c[8], c[9]) for c in program["collectives"])
        theirs = sorted((c["kind"], c["role"], c["bytes"], c["per_step"], c["cost_ps"]) for c in places[i][1]["collectives"])
        total = lambda rows: sum(r[3] * r[4] for r in rows)
        h.check(total(ours) == total(theirs) and {r[:3] for r in ours} == {r[:3] for r in theirs}, f"{name}: stage {i}: collectives")
    check_schedule(name, d, plan)
    check_figures(name, d)
    return page, plan


def check_schedule(name, d, plan):
    v, b, schedule = d["plan"]["chunks"], d["plan"]["micro_batches"], d["schedule"]
    if schedule["micro_batches"] == b:
        h.check(schedule["end_ps"] == plan["simulated_ps"], f"{name}: the schedule drawn ends when the simulated one does")
    for i, runs in enumerate(schedule["stages"]):
        events, t = list(run_events(runs)), d["stages"][i]
        n = schedule["micro_batches"]
        for what, whole in ((0, t["forward_ps"]), (1, t["backward_ps"])):
            own = [e for e in events if e[0] == what]
            h.check(sorted(e[1:3] for e in own) == [(c, m) for c in range(v) for m in range(n)], f"{name}: stage {i}: each micro-batch once")
            h.check(sum(e[4] for e in own) == n * whole, f"{name}: stage {i}: they take what they take")
        h.check(all(a[3] + a[4] <= e[3] for a, e in zip(events, events[1:])), f"{name}: stage {i}: one after the other")
        h.check(len(runs) < 400, f"{name}: stage {i}: what repeats stands once", len(runs))


def check_figures(name, d):
    """Every figure of a built-in file has a source; the device's are among them."""
    s = d["strings"]
    bare = [s[f[3]] for f in d["figures"] if not s[f[4]]]
    h.check(d["figures"] and not bare, f"{name}: figures have sources", bare[:3])
    h.check(any(s[f[2]] == "memory" and "bytes " in s[f[3]] for f in d["figures"]), f"{name}: the device's memory is among the figures")


EVIL = '</script><script>alert("1")</script> &amp; \'"` \\ \u2028 <b>schön</b> \U0001f600'


def test_names():
    """A name that tries everything stays a name, in the title, the data and the text for browsers without scripts."""
    from xml.sax.saxutils import quoteattr
    model = h.TMP / "evil.xml"
    text = (h.ROOT / "models" / "mlp.xml").read_text()
    name = re.search(r'<model[^>]*\bname="([^"]*)"', text).group(1)
    model.write_text(text.replace(f'name="{name}"', f"name={quoteattr(EVIL)}", 1), encoding="utf-8")
    p = h.run([h.MPPLAN, model, "-o", h.TMP / "evil"], cwd=h.ROOT)
    if not h.check(p.returncode == 0, "a model of any name is planned", p.stderr[-300:]):
        return None
    page = Page(h.TMP / "evil" / "report.html")
    h.check(page.data["model"]["name"] == EVIL, "its name is whole", repr(page.data["model"]["name"]))
    h.check(page.tags.count("script") == 2 and "b" not in page.tags and EVIL.split(" \u2028")[0] in page.text, "and no markup")
    h.check(not re.search("[<>&]", page.raw["plan"]), "nothing of the data could be markup")
    h.check("\u2028" not in page.source.split("<script")[1], "no line separator in the data")
    return h.TMP / "evil"


def test_bytes(tiny):
    again = make("tiny-again", GPT, "--preset", "tiny", "--gpus", "2")
    h.check((tiny / "report.html").read_bytes() == (again / "report.html").read_bytes(), "equal input, equal bytes")
    copy = h.TMP / "models-copy"
    shutil.copytree(h.ROOT / "models", copy)
    moved = make("tiny-moved", copy / "gpt.xml", "--preset", "tiny", "--gpus", "2")
    h.check((tiny / "report.html").read_bytes() == (moved / "report.html").read_bytes(), "and none of the folder that the model lies in")


def test_again(folders):
    """--report writes the reports of a plan directory again, from its graph and plan alone."""
    for name, (folder, *_) in folders.items():
        if name not in ("tiny", "stages", "mesh"):
            continue
        copy = h.TMP / f"{name}-again-from-plan"
        copy.mkdir()
        for file in ("graph.ir", "plan.json"):
            shutil.copy(folder / file, copy)
        p = h.run([h.MPPLAN, "--report", copy])
        h.check(p.returncode == 0, f"--report of {name}", p.stderr[-300:])
        for file in ("report.html", "report.txt"):
            h.check((copy / file).exists() and (copy / file).read_bytes() == (folder / file).read_bytes(), f"--report of {name}: the same {file}")
        h.check(str(h.ROOT) not in (folder / "graph.ir").read_text(), f"{name}: graph.ir has no absolute path")


def test_own_cluster():
    """A cluster file of the user's: its figures are there, its folders are not, and --report takes it along."""
    file = small_cluster(1 << 30)
    folder = make("own-cluster", GPT, "--preset", "tiny", "--gpus", "2", "--cluster", file)
    page = Page(folder / "report.html")
    before = page.source
    h.check(any(page.data["strings"][f[0]] == Path(file).name for f in page.data["figures"]), "figures of a cluster file")
    h.check(str(Path(file).parent) not in before + (folder / "graph.ir").read_text(), "its folder stays out")
    p = h.run([h.MPPLAN, "--report", folder])
    h.check(p.returncode == 2 and "no cluster is called" in p.stderr, "--report wants the file", p.stderr[-200:])
    (folder / "report.txt").rename(folder / "kept.txt")
    (folder / "report.txt").mkdir()
    p = h.run([h.MPPLAN, "--report", folder, "--cluster", file])
    h.check(p.returncode == 2 and "report.txt: error: cannot write" in p.stderr, "--report where it cannot write: status 2, as with -o", f"{p.returncode} {p.stderr[-200:]}")
    (folder / "report.txt").rmdir()
    (folder / "kept.txt").rename(folder / "report.txt")
    h.must(h.run([h.MPPLAN, "--report", folder, "--cluster", file]))
    h.check((folder / "report.html").read_text() == before, "and writes the same with it")


OTHERS = [{"what": "pp 2, 2 x (data 1), 8 micro-batches", "why": "bubble 12 % instead of 4 %", "time_ps": 1.25}, {"what": "data 2 </td>", "why": "", "time_ps": 1.5},
          {"what": "as fast but for rounding", "why": "", "time_ps": 0.9999}]


def test_others(tiny):
    """Runners-up as plan.json keeps them."""
    folder = h.TMP / "others"
    shutil.copytree(tiny, folder)
    plan = json.loads((folder / "plan.json").read_text())
    plan["runners_up"] = [dict(o, time_ps=int(o["time_ps"] * plan["objective_ps"])) for o in OTHERS]
    (folder / "plan.json").write_text(json.dumps(plan))
    h.must(h.run([h.MPPLAN, "--report", folder]))
    page = Page(folder / "report.html")
    text = (folder / "report.txt").read_text()
    h.check(all(f"{more} %  {o['what']}" in text for more, o in zip(("+25.0", "+50.0", " 0.0"), OTHERS)), "runners-up are in the text", text)
    h.check([o["time_ps"] for o in page.data["plan"]["others"]] == [o["time_ps"] for o in plan["runners_up"]], "runners-up are in the page")
    return folder


def test_again_wrong(tiny):
    bad = h.TMP / "bad"
    bad.mkdir()

    def refused(what, words, *args):
        p = h.run([h.MPPLAN, "--report", bad, *args], timeout_s=60)
        h.check(p.returncode == 2 and words in p.stderr and "error:" in p.stderr, f"--report of {what}", f"{p.returncode} {p.stderr[-300:]}")
        h.check(not (bad / "report.html").exists(), f"--report of {what}: nothing is written")

    refused("an empty folder", "graph.ir")
    graph, plan = (tiny / "graph.ir").read_text(), (tiny / "plan.json").read_text()
    (bad / "graph.ir").write_text(graph)
    refused("a folder without a plan", "plan.json")
    (bad / "plan.json").write_text(plan)
    (bad / "graph.ir").write_text(graph.replace("#: devices 2\n", ""))
    refused("a graph that does not say for how many devices", "devices")
    (bad / "graph.ir").write_text(graph[:len(graph) // 2])
    refused("half a graph", "graph.ir")
    without = [line for line in graph.splitlines(True) if not line.startswith("op loss.total ")]
    (bad / "graph.ir").write_text("".join(without))
    line = 1 + next(i for i, text in enumerate(without) if text.startswith("value loss.total ") or " loss.total " in text)
    refused("a graph without an op", f"graph.ir:{line}: error: loss.total has not a producer")
    (bad / "graph.ir").write_text(graph[:graph.index("\nop ") + 1])
    p = h.run([h.MPPLAN, "--report", bad])
    h.check(p.returncode == 2 and p.stderr.count("error:") == 1, "--report of a graph without ops: one fault", p.stderr[-600:])
    (bad / "graph.ir").write_text(graph.replace("#: cluster host", "#: cluster nowhere"))
    refused("a cluster that is not built in", "nowhere")
    (bad / "graph.ir").write_text(graph.replace("#: model gpt", "#: model other"))
    refused("the plan of another model", "other")
    (bad / "graph.ir").write_text(graph)
    refused("a plan beside other options", "--report goes with", "--gpus", "2")


# ---- in a browser ----

def browser():
    """A headless Chromium, or None."""
    driver = shutil.which("chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        return None
    if not driver or not shutil.which("chromium"):
        return None
    options = Options()
    for arg in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={h.TMP}/browser"):
        options.add_argument(arg)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(driver), options=options)


class Shown:
    """A page in the browser."""

    def __init__(self, driver, name, folder, width=1280):
        self.driver, self.name = driver, f"{name} at {width}"
        self.size(width, 900)
        driver.get((folder / "report.html").as_uri())
        self.wait(lambda: self.js("return document.documentElement.dataset.drawn") == "all", "all is drawn")

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def js(self, text, *args):
        return self.driver.execute_script(text, *args)

    def wait(self, condition, what, timeout_s=20):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if condition():
                return h.check(True, f"{self.name}: {what}")
            time.sleep(0.02)
        return h.check(False, f"{self.name}: {what}")

    def check(self, ok, what, detail=""):
        return h.check(ok, f"{self.name}: {what}", detail)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent", selector)

    def key(self, key, selector=None):
        """A key, to SELECTOR where there is one, else to what has the focus."""
        if selector:
            self.js("document.querySelector(arguments[0]).focus()", selector)
        codes = {"ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39, "ArrowLeft": 37, "Enter": 13, "Home": 36, "End": 35}
        event = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "text": "\r" if key == "Enter" else key if len(key) == 1 else ""}
        for kind in ("keyDown", "keyUp"):
            self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", dict(event, type=kind))

    def hover(self, x, y):
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def box(self, selector):
        """Where it is on the screen, scrolled to the middle."""
        return self.js("""const e = document.querySelector(arguments[0]);
            document.documentElement.style.scrollBehavior = "auto";
            e.scrollIntoView({block: "center"});
            const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height];""", selector)

    def quiet(self):
        said = [m["message"] for m in self.driver.get_log("browser")]
        self.check(not said, "nothing in the console", said[:3])

    def shot(self, label):
        if not SHOTS:
            return
        width = self.js("return window.innerWidth")
        self.size(width, min(self.js("return document.documentElement.scrollHeight"), 8000))
        time.sleep(0.3)
        png = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        (Path(SHOTS) / f"{label}-{width}.png").write_bytes(base64.b64decode(png))
        self.size(width, 900)


def check_numbers(page, plan):
    """What the page says in figures, as plan.json has it."""
    for key, text in (("objective", plan["objective_ps"]), ("bound", plan["bound_ps"]), ("simulated", plan["simulated_ps"])):
        page.check(page.text(f"#{key}") == f"{text:,} ps", f"{key} is shown", page.text(f"#{key}"))
    check_claim(page.name, plan, page.text("#claim"))
    shown = page.text("#figure-step")
    value, unit = shown.split()
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
    step_s = 1e-12 * plan["overlapped_ps"] if "overlap_bound_ps" in plan else plan["predicted"]["step_s"]
    page.check(abs(float(value.replace(",", "")) * scale / step_s - 1) < 0.005, "the step's time is shown", shown)
    page.check(page.js("return document.querySelectorAll('#gantt .lanename').length") == len([1 for x in plan["stages"] for _ in x["places"]]),
               "a lane per stage")
    twice = page.js("""return [...document.querySelectorAll('figcaption, #memory p')].map(e => e.textContent).filter(t =>
        (x => x.length !== new Set(x).size)(t.match(/[0-9.]+ [KMGT]?i?B/g) || []))""")
    page.check(not twice, "no caption says one number of bytes twice", twice)
    rows = page.js("return [...document.querySelectorAll('#time-table tbody tr')].map(r => r.cells[1].textContent)")
    page.check(len(rows) == len([v for k, v in plan["predicted"].items() if k != "step_s" and v > 1e-12]), "where the time goes, part by part", rows)
    page.check(page.js("return [...document.querySelectorAll('body *')].every(e => !/\\[object|undefined|NaN/.test([...e.childNodes].filter(n => n.nodeType === 3 &&"
                       " e.tagName !== 'SCRIPT').map(n => n.data).join(' ')))"), "every text is one")


def check_gantt(page):
    x, y, w, height = page.box("#gantt")
    page.hover(x + w * 0.4, y + 30)
    page.check(not page.js("return document.getElementById('tip').hidden") and "stage 0" in page.text("#tip"), "a hint on the chart", page.text("#tip"))
    view = lambda: [float(v) for v in page.js("const g = document.getElementById('gantt'); return [g.dataset.from, g.dataset.to]")]
    whole = view()
    page.js("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    near = view()
    page.check(abs((near[1] - near[0]) * 2 - (whole[1] - whole[0])) < 4, "the button zooms", near)
    page.key("+", "#gantt")
    page.check(view()[1] - view()[0] < near[1] - near[0], "a key zooms", view())
    page.key("0", "#gantt")
    page.check(view() == whole, "and shows all again", view())
    page.key("Home")
    page.key("ArrowRight")
    said = page.text("#gantt-said")
    page.check("stage 0" in said and "holds activations" in said, "the keyboard walks over the chart and it is said", said)
    page.js("document.querySelector('[aria-label=\"Show one micro-batch\"]').click()")
    one = view()
    page.check(one[1] - one[0] <= whole[1] - whole[0], "one micro-batch", one)
    page.check(page.js("return document.querySelectorAll('#gantt rect').length") < 6000, "few elements")
    page.key("0", "#gantt")


def check_tree(page, data):
    rows = "return document.querySelectorAll('.treerow').length"
    before = page.js(rows)
    page.js("""for (let i = 0; i < 6; i++)
        for (const r of document.querySelectorAll('.treerow[aria-expanded="false"]')) r.querySelector('.t-name').click();""")
    opened = page.js(rows)
    page.check(opened > before, "the tree opens", f"{before} {opened}")
    labels = set(page.js("return [...document.querySelectorAll('.treerow')].map(r => r.dataset.path)"))
    names = {data["strings"][t[2]] for p in data["programs"] for t in p["tensors"] if t[3] == 2}
    away = lambda n: re.sub(r"\*[+-]\d+", "*", n)
    page.check({away(n) for n in names} <= {re.sub(r"\.\(of [^)]*\)", "", x) for x in labels}, "every weight is in the tree",
               sorted(names - labels)[:4])
    page.js("for (const r of [...document.querySelectorAll('.treerow[aria-expanded=\"true\"]')].reverse()) r.querySelector('.t-name').click()")
    page.check(page.js(rows) == before, "and closes again", page.js(rows))
    if len(data["stages"]) == 1:
        stage, b = data["stages"][0], data["plan"]["micro_batches"]
        local = sum((b if k < 2 else 1) * n * piece[1] for k, part in enumerate(data["programs"][0]["parts"]) for n, _, _, pieces in part
                    for piece in pieces if piece[0] == 5)
        busy = b * (stage["forward_ps"] + stage["backward_ps"]) + stage["once_ps"]
        summed = page.js("return tree.root.ps") + local
        page.check(abs(summed / busy - 1) < 1e-6, "the tree's times add up to the step", f"{summed} {busy}")
    page.js("document.querySelector('.treerow[aria-expanded]').focus()")
    path = page.js("return document.activeElement.dataset.path")
    page.key("ArrowRight")
    page.check(page.js("return document.activeElement.getAttribute('aria-expanded')") == "true", "by keyboard too")
    page.key("ArrowDown")
    page.check(page.js("return document.activeElement.getAttribute('aria-level')") == "2", "down to its first child")
    page.key("ArrowLeft")
    page.check(page.js("return document.activeElement.dataset.path") == path, "and up to its parent")
    page.key("ArrowLeft")


def check_search(page, word, wanted):
    page.key("/", "main")
    page.check(page.js("return document.activeElement.id") == "search", "/ goes to the search")
    page.js("const s = document.getElementById('search'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))", word)
    found = page.js("return [...document.querySelectorAll('#found [role=option]')].map(e => e.textContent)")
    page.check(any(wanted in f for f in found), f"the search finds {word}", found[:3])
    page.key("ArrowDown")
    page.key("Enter")
    page.check(page.js("return document.getElementById('found').hidden && document.activeElement.closest('main') !== null"), "and shows it where it stands")
    page.js("const s = document.getElementById('search'); s.value = 'no such thing at all'; s.dispatchEvent(new Event('input'))")
    page.check(page.text("#found") == "nothing found", "and says when there is nothing")
    page.js("const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); s.blur()")


def check_print(page):
    """On paper nothing is folded, and nothing is left open on the screen."""
    opened = "return [...document.querySelectorAll('details')].filter(d => d.open).length"
    before, total = page.js(opened), page.js("return document.querySelectorAll('details').length")
    page.js("dispatchEvent(new Event('beforeprint'))")
    page.check(page.js(opened) == total > 0, "all is open on paper")
    page.js("dispatchEvent(new Event('afterprint'))")
    page.check(page.js(opened) == before, "and as it was afterwards")


def check_access(page):
    """What a screen reader needs: names, one main heading, table headers, an order of headings."""
    nameless = page.js("""return [...document.querySelectorAll('button, input, select, svg[role], section')].filter(e => !e.closest('[aria-hidden]') && !(e.getAttribute('aria-label')
        || e.getAttribute('aria-labelledby') || e.textContent.trim() || document.querySelector(`label[for="${e.id}"]`) || e.closest('label'))).map(e => e.outerHTML.slice(0, 80))""")
    page.check(not nameless, "everything has a name", nameless[:3])
    page.check(page.js("return document.querySelectorAll('h1').length") == 1 and page.js("return document.documentElement.lang") == "en", "one heading, a language")
    page.check(page.js("return [...document.querySelectorAll('.cards')].every(e => e.clientWidth >= 860 || e.scrollWidth <= e.clientWidth)"),
               "tables with reasons are no wider than a narrow screen")
    page.check(page.js("return [...document.querySelectorAll('table')].every(t => t.caption && t.tHead && [...t.tHead.rows[0].cells].every(c => c.scope === 'col'))"),
               "tables have captions and heads")


def show(driver, name, folder, page, plan, width):
    shown = Shown(driver, name, folder, width)
    painted = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    shown.wait(lambda: shown.js(painted) is not None, "it is painted")
    paint = shown.js(painted)
    shown.check(shown.js("return document.documentElement.scrollWidth") <= width, "nothing is wider than the screen")
    check_numbers(shown, plan)
    check_access(shown)
    shown.shot(name)
    if width > 1000:
        check_gantt(shown)
        check_tree(shown, page.data)
        check_print(shown)
        check_search(shown, *(("c_attn weight", "c_attn.weight") if "gpt" in str(plan["model"]) else ("weight", "weight")))
    shown.quiet()
    return paint


def main():
    plans = {"tiny": [GPT, "--preset", "tiny", "--gpus", "2"],
             "one": [GPT, "--preset", "tiny"],
             "stages": [GPT, "--preset", "gpt2", "--gpus", "8", "--cluster", "dgx-a100", "--fix", "pp=4"],
             "mesh": [GPT, "--preset", "gpt2-medium", "--gpus", "8", "--cluster", "dgx1-v100", "--fix", "dp=4,tp=2"],
             "overlap": [GPT, "--preset", "gpt2", "--gpus", "4", "--cluster", "a100-pcie", "--batch", "64", "--precision", "bf16", "--overlap"],
             "largest": [GPT, "--preset", "gpt3-175b", "--gpus", "1024", "--cluster", "dgx-a100", "--fix", "pp=8", "--precision", "bf16"]}
    made = {}
    for name in h.only(plans):
        def one(name=name):
            folder = make(name, *plans[name])
            made[name] = (folder, *check_data(name, folder))
        h.guarded(name, one)
    evil, others = [], []
    if h.only(["names"]):
        h.guarded("names", lambda: evil.append(test_names()))
    if "tiny" in made:
        h.guarded("bytes", test_bytes, made["tiny"][0])
        h.guarded("again, wrong", test_again_wrong, made["tiny"][0])
        h.guarded("runners-up", lambda: others.append(test_others(made["tiny"][0])))
    h.guarded("again", test_again, made)
    if h.only(["cluster"]):
        h.guarded("cluster", test_own_cluster)
    driver = browser()
    if not driver:
        h.skip("pages in a browser: no chromium, chromium-driver or python3-selenium here")
        return h.finish()
    try:
        for name, (folder, page, plan) in made.items():
            for width in (1280, 400):
                def both(name=name, folder=folder, page=page, plan=plan, width=width):
                    paint = show(driver, name, folder, page, plan, width)
                    print(f"{name} at {width}: first paint after {paint:.0f} ms, {len(page.source) // 1024} KiB", flush=True)
                h.guarded(f"{name} at {width}", both)
        if others:
            def compared():
                shown = Shown(driver, "others", others[0])
                rows = shown.js("return [...document.querySelectorAll('#others-table tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
                shown.check([r[0] for r in rows] == ["+25.0 %", "+50.0 %", "0.0 %"] and [r[3] for r in rows] == [o["what"] for o in OTHERS], "each runner-up", rows)
                shown.shot("others")
                shown.quiet()
            h.guarded("runners-up in a browser", compared)
        if evil and evil[0]:
            def quietly():
                shown = Shown(driver, "evil", evil[0])
                shown.check(shown.text("h1").startswith(EVIL[:60]), "the name is shown as it is", shown.text("h1"))
                shown.quiet()
            h.guarded("evil", quietly)
    finally:
        driver.quit()
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
