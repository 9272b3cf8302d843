#!/usr/bin/env python3
"""What users get wrong: a message with file:line where there is one and a hint, exit status 2, nothing half-written."""
import json
import random
import re
import sys
from pathlib import Path

import numpy as np

import harness as h

MLP = (h.ROOT / "models" / "mlp.xml").read_text()
STATUS_INPUT = 2
MISSING = (1, STATUS_INPUT)  # a file that cannot be read: the system's fault or the user's
n_files = 0


def write(text, name=None):
    global n_files
    n_files += 1
    folder = h.TMP / f"model{n_files}"
    folder.mkdir()
    path = folder / (name or "model.xml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def edited(old, new, base=MLP):
    """BASE with OLD replaced once, and the number of the line where it stands."""
    assert base.count(old) >= 1, old
    at = base.index(old)
    return base[:at] + new + base[at + len(old):], base[:at].count("\n") + 1


def bad(what, args, *needles, at=None, status=(STATUS_INPUT,), out=None):
    """mpplan ARGS must fail with a STATUS, say all NEEDLES (regular expressions), blame AT and write nothing."""
    target = Path(out) if out else h.TMP / f"out{n_files}-{random.randrange(10**9)}"
    p = h.mpplan(*args, *(["-o", target] if out is not False else []))
    said = p.stdout + p.stderr
    h.check(p.returncode in status, f"{what}: exit status {status[-1]}", f"{p.returncode}\n{said[-800:]}")
    h.check("error" in p.stderr, f"{what}: says error on stderr", said[-300:])
    for needle in needles:
        h.check(re.search(needle, said, re.I | re.S), f"{what}: says {needle!r}", said[-800:])
    if at:
        h.check(re.search(rf"^{re.escape(str(at[0]))}:{at[1]}: error: ", p.stderr, re.M), f"{what}: blames {at[0].name}:{at[1]}",
                p.stderr[-500:])
    if out is not False:
        left = [x.name for x in target.parent.glob(target.name + "*")] if target.parent.is_dir() else []
        h.check(not left or out, f"{what}: writes nothing", left)
    h.check(len([x for x in h.TMP.glob("*.tmp-*")]) == 0, f"{what}: leaves no temporary folder")
    return p


def bad_model(what, old, new, *needles, line=None, base=MLP, **kw):
    text, at = edited(old, new, base)
    path = write(text)
    return bad(what, [path, "--preset", "tiny"], *needles, at=(path, line or at), **kw)


# ---- model files ----

def test_models():
    bad_model("unknown op", "<Relu/>", "<Rellu/>", "Rellu", "did you mean.*Relu")
    bad_model("unknown attribute", '<Linear name="last" units="out"/>', '<Linear name="last" unit="out"/>', "unit",
              'did you mean.*"units"')
    bad_model("misspelt element", "<training loss", "<trainning loss", "trainning", 'did you mean.*training',
              base=MLP.replace("</training>", "</trainning>"))
    bad_model("wrong value of an attribute", '<MeanSquaredErrorLoss name="loss" in="last y"/>',
              '<MeanSquaredErrorLoss name="loss" in="last y" reduction="meen"/>', "reduction|meen")
    p = bad_model("shape conflict", 'shape="batch, out"', 'shape="batch, hidden"', "out", "hidden",
                  line=MLP[:MLP.index("<MeanSquaredErrorLoss")].count("\n") + 1)
    h.check(re.search(r"\b4\b.*\b32\b|\b32\b.*\b4\b", p.stderr, re.S), "shape conflict: both extents", p.stderr)
    bad_model("unknown value", 'in="last y"', 'in="lastt y"', "lastt", "last")
    bad_model("unknown name in an expression", 'units="out"/>', 'units="outt"/>', "outt", "out")
    bad_model("unknown optimizer", '"sgd"', '"sgdd"', "sgdd", line=MLP[:MLP.index("<optimizer")].count("\n") + 1)
    bad_model("no batch dimension", ' role="batch"', "", "role=.batch.", line=MLP[:MLP.index("<params>")].count("\n") + 1)
    bad_model("requirement", 'test="layers >= 1"', 'test="layers >= 7"', "at least one hidden layer", "layers")
    bad_model("division by zero", 'units="out"/>', 'units="out/0"/>', "0")
    bad_model("loss that is no value", 'loss="loss"', 'loss="los"', "los")
    bad_model("two ops of one name", '<Linear name="last"', '<Linear name="first"', "first", line=None)
    bad_model("DOCTYPE", "<model name", '<!DOCTYPE model [<!ENTITY a "b">]>\n<model name', "DOCTYPE")
    bad_model("too many ops", 'count="layers - 1"', 'count="99999999"', "between 0 and 20000")
    bad_model("huge dimension", 'in="8"', 'in="9000000000000"', '"in"')


def test_files():
    bad("no such file", [h.TMP / "nothing.xml"], "nothing.xml", status=MISSING)
    for what, text in (("empty file", b""), ("no XML", b"hello\n"), ("cut XML", MLP.encode()[:900]),
                       ("binary", bytes(range(256)) * 8), ("another root", b"<plan/>\n"), ("net", b"<net name='x'/>\n")):
        path = write(text)
        p = bad(what, [path])
        h.check(str(path) in p.stderr, f"{what}: names the file", p.stderr[-300:])
    # includes: a loop, a missing file, one outside the folder
    a = write('<library version="1"><include href="model.xml"/><block name="b"><Relu/></block></library>', "b.xml")
    text, line = edited("  <params>", '  <include href="b.xml"/>\n  <params>')
    (a.parent / "model.xml").write_text(text)
    bad("cyclic include", [a.parent / "model.xml"], "loop|cycl")
    (a.parent / "b.xml").write_text('<library version="1"><include href="c.xml"/></library>')
    (a.parent / "c.xml").write_text('<library version="1">\n<include href="b.xml"/></library>')
    bad("cyclic include of libraries", [a.parent / "model.xml"], "loop|cycl", at=(a.parent / "c.xml", 2))
    for href in ("missing.xml", "../../../etc/passwd", "/etc/passwd"):
        text, line = edited("  <params>", f'  <include href="{href}"/>\n  <params>')
        path = write(text)
        bad(f"include of {href}", [path], re.escape(href), at=(path, line))



def test_options():
    gpt = h.ROOT / "models" / "gpt.xml"
    tiny = [gpt, "--preset", "tiny"]
    bad("-D of an unknown name", [*tiny, "-D", "layerz=3"], "layerz", "did you mean.*layers")
    bad("-D without a value", [*tiny, "-D", "layers"], "name=value")
    bad("-D of a wrong type", [*tiny, "-D", "layers=many"], "layers")
    bad("-D that no requirement allows", [*tiny, "-D", "heads=3"], "multiple of heads")
    bad("unknown preset", [gpt, "--preset", "gpt2-xxl"], "gpt2-xxl", "gpt2-xl")
    for n in ("0", "-1", "two", "1.5", "99999999999999999999"):
        bad(f"--gpus {n}", [*tiny, "--gpus", n], "--gpus", "whole number|at least 1|at most|devices")
    bad("too many devices", [*tiny, "--gpus", "70000"], "65,?536|devices")
    bad("unknown option", [*tiny, "--gpu", "2"], "--gpu", "did you mean.*--gpus")
    bad("option without a value", [*tiny, "--gpus"], "--gpus.*value", out=False)
    bad("two models", [gpt, gpt], "two model files")
    bad("no model", [], "no model file")
    bad("--batch 0", [*tiny, "--batch", "0"], "--batch")
    bad("unknown cluster", [*tiny, "--cluster", "dgx-a1000"], "dgx-a1000", "dgx-a100")
    bad("cluster file that is missing", [*tiny, "--cluster", "./none.xml"], "none.xml", status=MISSING)
    bad("--kernels of an unknown kind", [*tiny, "--kernels", "unfusd"], "unfusd", "did you mean.*unfused", out=False)
    bad("--kernels unfused with -o", [*tiny, "--kernels", "unfused"], "--kernels unfused and -o exclude each other")
    bad("--predict with -o", [*tiny, "--predict"], "--predict and -o exclude each other")
    bad("--json alone", [*tiny, "--json"], "--json goes with --predict", out=False)
    bad("--predict with a value", [*tiny, "--predict=yes"], "takes no value", out=False)
    bad("--min-gpus with --gpus", [*tiny, "--min-gpus", "--gpus", "4"], "--min-gpus and --gpus exclude each other")
    bad("--seconds alone", [*tiny, "--seconds", "3"], "--seconds goes with --calibrate")
    bad("--time-limit 0", [*tiny, "--time-limit", "0"], "seconds, more than 0")
    bad("--overlap with --from-plan", [*tiny, "--from-plan", "p.json", "--overlap"], "--from-plan and --overlap exclude each other")
    bad("--overlap with --sweep", [*tiny, "--sweep", "gpus=1,2", "--overlap"], "--sweep and --overlap exclude each other: questions count", out=False)
    bad("--overlap with --kernels unfused", [*tiny, "--kernels", "unfused", "--overlap"], "--overlap and --kernels unfused exclude each other")
    bad("--time-limit with --from-plan", [*tiny, "--from-plan", "p.json", "--time-limit", "5"], "--from-plan and --time-limit exclude each other")
    bad("--export-iopddl with --from-plan", [*tiny, "--from-plan", "p.json", "--export-iopddl", h.TMP / "x"], "--from-plan and --export-iopddl exclude each other")
    bad("--export-iopddl with --solve-iopddl", ["--solve-iopddl", "p.json", "--export-iopddl", h.TMP / "x"], "--solve-iopddl goes with --time-limit alone, not with --export-iopddl", out=False)
    for pin in ("pp=2", "recompute=full", "schedule=gpipe"):
        bad(f"--export-iopddl with {pin}", [*tiny, "--gpus", "2", "--fix", pin, "--export-iopddl", h.TMP / "x"], "--export-iopddl writes the problems of plans of one stage")
    bad("--export-iopddl without a value", [*tiny, "--export-iopddl"], "--export-iopddl.*value", out=False)
    bad("--min-gpus with --from-plan", [*tiny, "--from-plan", "p.json", "--min-gpus"], "--from-plan and --min-gpus exclude each other")
    bad("--dump-after of an unknown pass", [*tiny, "--dump-after", "fusion"], "fusion", "fuse")


def test_outputs():
    tiny = [h.ROOT / "models" / "gpt.xml", "--preset", "tiny"]
    file = write("keep me", "file")
    bad("output is a file", [*tiny], "directory", out=file)
    h.check(file.read_text() == "keep me", "output is a file: it is unchanged")
    bad("output below a file", [*tiny], "cannot write", out=file / "plan")
    bad("output where nobody can write", [*tiny], "cannot write", out="/proc/plan")
    folder = h.TMP / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    bad("output holds something else", [*tiny], "not empty", out=folder)
    h.check(h.tree(folder) == {"notes.txt": b"mine"}, "output holds something else: unchanged")
    p = h.plan("models/mlp.xml", preset="tiny", gpus=2)
    (p.dir / "mine.txt").write_text("mine")
    before = h.tree(p.dir)
    bad("a failed run over a plan", [h.ROOT / "models/mlp.xml", "--preset", "tiny", "--fix", "dp=3", "--gpus", "2"], "dp",
        out=p.dir)
    h.check(h.tree(p.dir) == before, "a failed run over a plan leaves it as it was")
    h.plan("models/mlp.xml", preset="tiny", gpus=2, out=p.dir)
    h.check(h.tree(p.dir) == before, "planning again over a plan gives the same and keeps what is not its own")


def test_pins():
    tiny = [h.ROOT / "models" / "gpt.xml", "--preset", "tiny", "--gpus", "4"]
    for fix, *needles in (("dq=2", "dq", "dp"), ("dp=3", "dp", "4"), ("dp=0", "dp"), ("dp=two", "dp"), ("dp", "value|="),
                          ("dp=2,tp=4", "8", "4"), ("mesh=2x3", "mesh", "6|4"), ("mesh=2x2x1x1", "mesh"), ("zero=4", "zero"),
                          ("zero=-1", "zero"), ("sequence_parallel=maybe", "true or false"),
                          ("pp=0", "pp"), ("pp=5", "more stages than the 4 devices"), ("pp=2147483647", "1 to 65536"),
                          ("pp=2,mesh=2x2", "8 devices in all stages together, but there are 4"), ("dp=2,tp=2,pp=2", "makes 8 devices"),
                          ("dp=4,pp=2", "wants 8 devices"), ("interleave=2,pp=1", "nothing to interleave"),
                          ("interleave=2,schedule=1f1b", "interleave"), ("recompute=half", "none, selective or full"),
                          ("schedule=2f2b", "1f1b, gpipe or interleaved"), ("pp=4,interleave=9", "36 parts"),
                          ("pp=4,interleave=2,micro_batches=2", "a multiple of the stages"),
                          ("micro_batches=3", "micro_batches", "8"), ("micro_batch=5", "micro_batch"),
                          ("shard:nothing.*=hidden/model", "nothing"), ("shard:h.*=hiden/model", "hiden|hidden"),
                          ("shard:h.0.mlp=hidden", "shard"), ("shard:*.c_fc.weight=ffn/nosuchaxis", "axis")):
        bad(f"--fix {fix}", [*tiny, "--fix", fix], *needles)


    layers = [h.ROOT / "models" / "gpt.xml", "--preset", "tiny", "-D", "layers=8"]
    for gpus, fix, needle in (
            ("4", "pp=2,interleave=3", "8 do not divide among 2 stages of 3 parts"),
            ("4", "pp=2,interleave=2,micro_batch=8", "multiple of the 2 stages as number of micro-batches"),
            ("5", "pp=2,interleave=2", "equally many devices, and 5 do not divide among 2 stages"),
            ("1", "schedule=interleaved", "two stages at least, and 1 device makes one"),
            ("3", "interleave=2,micro_batches=4", "multiple of the 3 stages as number of micro-batches"),
            ("20", "pp=3", "20 devices do not divide evenly among 3 stages"),
            ("2", "schedule=interleaved,interleave=5", "want 10 layers at least, and there are 8")):
        p = bad(f"--fix {fix} on {gpus}", [*layers, "--gpus", gpus, "--fix", fix], re.escape(needle))
        h.check(p.stderr.count("\n") == 1 and " or " not in p.stderr, f"--fix {fix} on {gpus}: one cause", p.stderr)


def small_cluster(memory):
    return write(f'''<cluster name="small" devices_per_node="any" nodes="1" source="a test">
  <device name="small">
    <memory bytes="{memory}" usable="1" bytes_per_s="27e9"/>
    <peak precision="f32" flops_per_s="118e9"/>
    <kernel launch_s="3e-7" vector_efficiency="0.2"/>
    <gemm efficiency="0.9" half_m="14" half_n="5" half_k="10"/>
  </device>
  <shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>
  <protocol name="shared" base_s="26e-6" step_s="6e-6"/>
</cluster>
''', "cluster.xml")


def test_infeasible():
    cluster = small_cluster("2MiB")
    tiny = [h.ROOT / "models" / "gpt.xml", "--preset", "tiny", "--gpus", "2", "--cluster", cluster]
    p = bad("no memory for the model", tiny, r"\d+(\.\d+)? ?(bytes|[kMG]i?B)", "parameters|gradients|optimizer|activations")
    said = p.stderr + p.stdout
    h.check(re.search(r"--gpus (\d+)|(\d+) (more )?(gpus|devices)|micro_batches|zero=", said), "no memory: suggests a way out", said)
    # a suggested number of devices must work
    m = re.search(r"--gpus (\d+)", said)
    if m:
        p = h.mpplan(*tiny[:3], "--gpus", m.group(1), *tiny[5:])
        h.check(p.returncode == 0, f"no memory: the suggested --gpus {m.group(1)} fits", p.stderr[-500:])
    text = cluster.read_text()
    for what, old, new, needle in (("unknown element", "<shared", "<shard", "shard"),
                                   ("no bytes", 'bytes="2MiB"', "", "bytes"),
                                   ("negative", ' bytes_per_s="7e9"', ' bytes_per_s="-7e9"', "bytes_per_s"),
                                   ("no way to join", '<shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>', "", "joined")):
        path = write(text.replace(old, new), "cluster.xml")
        p = bad(f"cluster file: {what}", [*tiny[:5], "--cluster", path], needle)
        h.check(re.search(rf"^{re.escape(str(path))}:\d+: error: ", p.stderr, re.M), f"cluster file: {what}: blames a line", p.stderr)


# ---- plan.json ----

def places(x, path=()):
    """Every (container, key) of a JSON value."""
    for k, v in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield x, k, (*path, k)
        yield from places(v, (*path, k))


def test_stages_edited(path):
    args = [h.ROOT / "models" / "gpt.xml", "--preset", "tiny", "-D", "layers=6", "--gpus", "2"]
    p = h.plan("models/gpt.xml", preset="tiny", D={"layers": 6}, gpus=2, fix="pp=2,schedule=1f1b,micro_batches=4,recompute=none")
    text = (p.dir / "plan.json").read_text()
    path.write_text(text.replace('"1F1B"', '"interleaved 1F1B"'))
    bad("plan.json: interleaved, one chunk", [*args, "--from-plan", path], "at least 2 chunks of each stage",
        at=(path, line_of(text, '"1F1B"')))
    test_places_of_faults(args, text, path, (["layers", 1, "first"],), (["layers", 1],))
    plan = json.loads(text)
    places = sorted((x for s in plan["stages"] for x in s["places"]), key=lambda x: x["stage"])
    cut = places[0]["last_layer"]
    del plan["layers"][cut + 1]   # so the first stage's last layer is longer, and what it decides is another stage's
    places[1]["last_layer"] -= 1
    path.write_text(json.dumps(plan, indent=1))
    q = bad("plan.json: a layer cut out", [*args, "--from-plan", path], "edited.json:")
    h.check(q.stderr.count("error:") == 1, "plan.json: a layer cut out: one cause", q.stderr)


def test_places_of_faults(args, text, path, without, no_objects):
    """What lacks a key is named with the line where it begins; an entry that is no object is one message at its line."""
    def changed(where, change):
        plan = at = json.loads(text)
        for key in where[:-1]:
            at = at[key]
        change(at, where[-1])
        return json.dumps(plan, indent=1)

    def refused(what, wrote, line, needle):
        path.write_text(wrote)
        q = bad(what, [*args, "--from-plan", path], needle, at=(path, line))
        h.check(q.stderr.count("error:") == 1, f"{what}: one message", q.stderr)

    def mark(at, _):
        rest = dict(at)
        at.clear()
        at.update({"#here": 0, **rest})

    for where in without:
        refused(f"plan.json: no {where}", changed(where, lambda at, key: at.pop(key)), line_of(changed(where, mark), '"#here"') - 1, f'"{where[-1]}"')
    for where in no_objects:
        for wrong in (3, "x", None, []):
            put = lambda x: lambda at, key: at.__setitem__(key, x)
            refused(f"plan.json: {where} {wrong}", changed(where, put(wrong)), line_of(changed(where, put("#here")), '"#here"'), "is no object")


def line_of(text, what):
    return text[:text.index(what)].count("\n") + 1


def test_plans_edited():
    model = h.ROOT / "models" / "gpt.xml"
    args = [model, "--preset", "tiny", "-D", "layers=2", "--gpus", "4"]
    p = h.plan("models/gpt.xml", preset="tiny", D={"layers": 2}, gpus=4)
    text = (p.dir / "plan.json").read_text()
    path = h.TMP / "edited.json"
    for what, content in (("empty", ""), ("cut", text[:len(text) // 2]), ("an array", "[]"), ("an empty object", "{}"),
                          ("a number", "3"), ("binary", "\0\1\2"), ("a repeated key", '{"a": 1, "a": 2}')):
        path.write_text(content)
        q = bad(f"plan.json: {what}", [*args, "--from-plan", path])
        h.check("edited.json" in q.stderr, f"plan.json: {what}: names the file", q.stderr[-300:])
    bad("plan.json: missing", [*args, "--from-plan", h.TMP / "none.json"], "none.json", status=MISSING)
    path.write_text(text)
    bad("plan.json of another model", [model, "--preset", "tiny", "-D", "layers=3", "--gpus", "4", "--from-plan", path],
        "edited.json")
    bad("plan.json of another number of devices", [*args[:-1], "2", "--from-plan", path], "edited.json")
    bad("plan.json of another batch", [*args, "--batch", "64", "--from-plan", path], "edited.json")
    test_stages_edited(path)
    test_places_of_faults(args, text, path, (["batch"], ["plan_version"], ["stages"], ["solver"], ["solver", "status"], ["schedule", "kind"], ["stages", 0, "mesh"],
                                             ["stages", 0, "mesh", 0, "size"], ["stages", 0, "places", 0, "stage"]), (["stages", 0, "mesh", 0],))
    # any edit is refused with a message or gives a plan; none is a crash
    rng = random.Random(1)
    n_places = len(list(places(json.loads(text))))
    values = [None, True, -1, 0, 3, 10**18, 1.5, "", "x", [], {}, ["data", "data"]]
    for i in range(40 if not h.FULL else 400):
        edited_json = json.loads(text)
        container, key, where = list(places(edited_json))[rng.randrange(n_places)]
        if rng.random() < 0.3:
            del container[key]
            change = "deleted"
        else:
            container[key] = rng.choice(values)
            change = json.dumps(container[key])
        path.write_text(json.dumps(edited_json))
        q = h.mpplan(*args, "--from-plan", path, "-o", h.TMP / "edited-plan")
        name = f"plan.json: {'.'.join(map(str, where))} {change}"
        h.check(q.returncode in (0, STATUS_INPUT), f"{name}: exit status 0 or 2", f"{q.returncode} {q.stderr[-600:]}")
        if q.returncode:
            h.check("error" in q.stderr, f"{name}: says why", q.stderr[-300:])


def test_fuzz():
    """Damaged model files: a message or a plan, never a crash."""
    rng = random.Random(2)
    for base, preset in (((h.ROOT / "models/gpt.xml").read_bytes(), "tiny"), (MLP.encode(), "tiny")):
        for i in range(30 if not h.FULL else 300):
            b = bytearray(base)
            for _ in range(rng.randrange(1, 4)):
                at, n = rng.randrange(len(b)), rng.randrange(1, 30)
                kind = rng.randrange(4)
                if kind == 0:
                    del b[at:at + n]
                elif kind == 1:
                    b[at:at] = b[rng.randrange(len(b)):][:n]
                elif kind == 2:
                    b[at] = rng.randrange(256)
                else:
                    b[at:at] = rng.choice([b"<", b"&lt;", b"%x", b"*", b"-1", b"/0", b"999999999999", b'"', b"]]>", b"<!--"])
            path = h.TMP / "fuzz.xml"
            path.write_bytes(bytes(b))
            p = h.mpplan(path, "--preset", preset, "--dump-after", "fuse", timeout_s=60)
            if not h.check(p.returncode in (0, STATUS_INPUT) and (p.returncode == 0 or "error" in p.stderr),
                           f"damaged file {i}", f"{p.returncode} {p.stderr[-600:]}"):
                (h.ROOT / "build" / f"fuzz-{preset}-{i}.xml").write_bytes(bytes(b))


# ---- the trainer ----

def bad_run(p, what, *needles, args=(), mpi=False, status=STATUS_INPUT, **options):
    r = p.train(*args, mpi=mpi, metrics=False, allow_failure=True, timeout_s=60, **options)
    h.check(r.process.returncode == status, f"trainer, {what}: exit status {status}", f"{r.process.returncode} {r.err[-500:]}")
    lines = [line for line in r.err.splitlines() if line.startswith("error:")]
    h.check(len(lines) == 1, f"trainer, {what}: one message", r.err[-600:])
    for needle in needles:
        h.check(re.search(needle, r.err, re.I), f"trainer, {what}: says {needle!r}", r.err[-500:])


def test_full_output(p):
    """Standard output that cannot be written: the run comes to its end, and its status and one message say so."""
    trainer, full = p.dir / "trainer", ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    run = [*full, trainer, "--data", "synthetic", "--steps", "2"]
    for what, command in ("a run", run), ("--help", [*full, trainer, "--help"]), ("a run under MPI", [*h.MPIRUN, "-n", "2", *run]):
        r = h.run(command, 60, h.MPI_ENV)
        errors = [line for line in r.stderr.splitlines() if line.startswith("error:")]
        h.check(r.returncode == 1 and errors == ["error: cannot write to standard output: No space left on device"], f"trainer, {what} onto a full disk",
                f"{r.returncode} {r.stderr[-500:]}")


def test_trainer_options():
    p = h.plan("models/gpt.xml", preset="tiny", D={"layers": 1}, gpus=2)
    p.build()
    bad_run(p, "unknown option", "--step", "--steps", args=["--step", "3"])
    bad_run(p, "stray word", "train", args=["train"])
    for name, value in (("steps", "ten"), ("steps", "-1"), ("seed", "x"), ("lr", "fast"), ("lr", "-1"), ("lr", "nan")):
        bad_run(p, f"--{name} {value}", f"--{name}", **{name: value})
    bad_run(p, "option without a value", "--steps", args=["--steps"])
    bad_run(p, "unknown data", "text|npy", data="txt:x")
    bad_run(p, "data that is missing", "none.txt", data="text:none.txt")
    bad_run(p, "no shard matches", "nothing", data=f"tokens:{h.TMP}/nothing*")
    bad_run(p, "no such folder", "nothing", data=f"npy:{h.TMP}/nothing")
    bad_run(p, "--init and --resume", "--resume", data="synthetic", init="a", resume="b")
    bad_run(p, "--init that is missing", "none.safetensors", data="synthetic", init=h.TMP / "none.safetensors")
    bad_run(p, "--resume of nothing", "no checkpoint|state.json|No such", data="synthetic", resume=h.TMP / "none")
    test_data(p)
    test_weights(p)
    test_full_output(p)
    r = h.run([*h.MPIRUN, "-n", "3", p.dir / "trainer", "--data", "synthetic", "--steps", "1"], 60, h.MPI_ENV)
    h.check(r.returncode == STATUS_INPUT and "3" in r.stderr and "2" in r.stderr, "trainer, wrong number of processes",
            f"{r.returncode} {r.stderr[-500:]}")
    bad_run(p, "wrong data under MPI", "nothing", mpi=True, data=f"npy:{h.TMP}/nothing")


def test_started_unlike():
    """Processes of one job that run other plans, with other options or on other data: refused before they wait for each other."""
    p, other = (h.plan("models/gpt.xml", preset="tiny", D={"layers": 2}, gpus=2, fix=fix).build() for fix in ("dp=2", "pp=2"))
    for name, text in (("here", "x" * 500), ("there", "x" * 400)):
        wrote = h.TMP / name / "book.txt"
        wrote.parent.mkdir()
        wrote.write_text(text)
    run = [p.dir / "trainer", "--steps", "1"]
    for what, first, second, *needles in (
            ("another plan", run, [other.dir / "trainer", "--steps", "1"], "rank 1 on .* runs another plan than rank 0"),
            ("other steps", run, [*run[:2], "2"], "rank 1 on .* another --steps than rank 0"),
            ("another seed", [*run, "--seed", "3"], run, "another --seed"), ("a rate of its own", run, [*run, "--lr", "1"], "another --lr"),
            ("a save of its own", run, [*run, "--save", h.TMP / "unlike"], "another --save"),
            ("a trace of its own", [*run, "--profile", h.TMP / "trace.json"], run, "another --profile"),
            ("other data", ["-wdir", h.TMP / "here", *run, "--data", "text:book.txt"],
             ["-wdir", h.TMP / "there", *run, "--data", "text:book.txt"], "finds more or less in the files of --data than rank 0"),
            ("options that one refuses", run, [*run[:2], "x"], '--steps takes a whole number.*"x"')):
        part = [[*c[:2], "-n", "1", *c[2:]] if c[0] == "-wdir" else ["-n", "1", *c] for c in (first, second)]
        r = h.run([*h.MPIRUN, *part[0], ":", *part[1]], 60, h.MPI_ENV)
        lines = [line for line in r.stderr.splitlines() if line.startswith("error:")]
        h.check(r.returncode == STATUS_INPUT and len(lines) == 1, f"started unlike, {what}: one error", f"{r.returncode} {r.stderr[-600:]}")
        for needle in needles:
            h.check(re.search(needle, r.stderr), f"started unlike, {what}: says {needle!r}", r.stderr[:500])
        h.check(not (h.TMP / "unlike").exists() and not (h.TMP / "trace.json").exists(), f"started unlike, {what}: writes nothing")


def test_data(p):
    good = {"inputs": np.zeros((2, 8, 64), np.int32), "targets": np.zeros((2, 8, 64), np.int32)}
    high, low = good["inputs"].copy(), good["inputs"].copy()
    high[1, 3, 5], low[0, 0, 0] = 512, -1
    for what, change, needle in (
            ("ids past the vocabulary", {"inputs": high}, "512"), ("negative ids", {"inputs": low}, "-1"),
            ("wrong shape", {"inputs": np.zeros((2, 8, 63), np.int32)}, "63"),
            ("wrong number of dimensions", {"inputs": np.zeros(64, np.int32)}, "shape"),
            ("floats for ids", {"inputs": np.zeros((2, 8, 64), np.float32)}, "f4"),
            ("Fortran order", {"inputs": np.asfortranarray(np.zeros((2, 8, 64), np.int32))}, "Fortran"),
            ("no samples", {"inputs": np.zeros((0, 8, 64), np.int32)}, "inputs"),
            ("an array is missing", {"targets": None}, "targets")):
        folder = h.npy_dir({k: v for k, v in {**good, **change}.items() if v is not None})
        bad_run(p, what, next(iter(change)), needle, data=f"npy:{folder}", steps=2)
    folder = h.npy_dir(good)
    raw = (folder / "inputs.npy").read_bytes()
    for what, content in (("cut array", raw[:-5]), ("cut header", raw[:40]), ("empty array", b""), ("no array", b"x" * 500),
                          ("header that lies", raw.replace(b"(2, 8, 64)", b"(9, 8, 64)"))):
        (folder / "inputs.npy").write_bytes(content)
        bad_run(p, what, "inputs.npy", data=f"npy:{folder}", steps=1)
    shard = h.TMP / "shard.bin"
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 1000
    tokens = np.full(1000, 600, np.uint16)
    for what, content, needle in (
            ("shard with a wrong count", header.tobytes() + tokens.tobytes()[:-4], "1000"),
            ("tokens past the vocabulary", header.tobytes() + tokens.tobytes(), "600"),
            ("odd number of bytes", bytes(2001), "odd"), ("shard that is too short", bytes(20), "shard.bin"),
            ("empty shard", b"", "shard.bin")):
        shard.write_bytes(content)
        bad_run(p, what, needle, data=f"tokens:{shard}", steps=1)
    short = h.TMP / "short.txt"
    short.write_text("too short")
    bad_run(p, "text shorter than a window", "short.txt", data=f"text:{short}", steps=1)


def test_weights(p):
    saved = h.TMP / "saved"
    p.train(data="synthetic", steps=1, save=saved)
    path = saved / "step-1" / "model.safetensors"
    good = h.read_safetensors(path)
    name = "h.0.attn.c_attn.weight"
    file = h.TMP / "weights.safetensors"
    for what, change, needle in (("tensor is missing", {name: None}, name), ("wrong shape", {name: good[name][:, :5]}, name),
                                 ("wrong type", {name: good[name].astype(np.int64)}, "I64")):
        h.write_safetensors(file, {k: v for k, v in {**good, **change}.items() if v is not None})
        bad_run(p, f"weights: {what}", re.escape(needle), "weights.safetensors", data="synthetic", steps=1, init=file)
    raw = path.read_bytes()
    for what, content in (("cut", raw[:-4]), ("longer", raw + b"1234"), ("empty", b""), ("header too long", b"\xff" * 8 + raw[8:]),
                          ("no JSON", raw[:8] + b"[" + raw[9:])):
        file.write_bytes(content)
        bad_run(p, f"weights: {what}", "weights.safetensors", data="synthetic", steps=1, init=file)


TESTS = {"models": test_models, "files": test_files, "options": test_options, "outputs": test_outputs, "pins": test_pins,
         "infeasible": test_infeasible, "plans edited": test_plans_edited, "fuzz": test_fuzz, "trainer": test_trainer_options,
         "started unlike": test_started_unlike}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
