#!/usr/bin/env python3
"""Malformed and hostile input, one row each (malformed.py says what must hold): model files and includes, cluster and
device files, plan.json, options and pins; malformed_data.py has what trainers read. Then names that end in C and make."""
import gzip
import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path

import harness as h
import malformed_data
from malformed import Row, check_row, wrote

MLP = (h.ROOT / "models" / "mlp.xml").read_text()
OUT = ["-o", "out"]
MISSING = (1, 2)                       # the system's fault or the user's


def mpplan(*args):
    return [h.MPPLAN, *args, *OUT]


# ---- model files ----

def edit(old, new, base=MLP):
    """BASE with OLD replaced once, and the line where it stood."""
    assert base.count(old) >= 1, old
    at = base.index(old)
    return base[:at] + new + base[at + len(old):], base[:at].count("\n") + 1


def model(name, content, says, line=None, args=("--preset", "tiny"), **kw):
    """CONTENT: bytes, a text, or what edit() returns; LINE: 0 for none."""
    if isinstance(content, tuple):
        content, line = content[0], content[1] if line is None else line
    return Row(f"model, {name}", lambda f: mpplan(wrote(f, "m.xml", content), *args), says, ("m.xml", line) if line else None, **kw)


def graph(ops, inputs='<input name="x" type="f32" shape="batch, 4"/>', params="", blocks="", loss="loss"):
    """A small model on few lines; the ops begin on line 5."""
    return (f'<model name="m" version="1"><params><dim name="batch" value="8" role="batch"/>{params}<preset name="tiny"/></params>\n{blocks}\n'
            f'<inputs>{inputs}</inputs>\n<graph>\n{ops}</graph>\n'
            f'<training loss="{loss}"><optimizer type="sgd" lr="0.1"/></training></model>\n')


LOSS = '<MeanSquaredErrorLoss name="loss" in="x x"/>'
LINEAR = '<Linear name="a" in="x" units="4"/>'
IDS = '<input name="x" type="f32" shape="batch, 4"/><input name="i" type="i32" shape="batch" {}/>'
VOCAB = '<dim name="vocab" value="256"/>'
TAIL = f'{LINEAR}<MeanSquaredErrorLoss name="loss" in="a x"/>'
DTD = '<?xml version="1.0"?>\n<!DOCTYPE model [{}]>\n'
BODY = MLP[MLP.index("<model"):]
LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "lol"}">' for i in range(10))


def included(name, href, says, files=None, line=2, at="m.xml", prepare=None, **kw):
    """A model on whose second line stands an include of HREF."""
    def make(folder):
        for path, text in (files or {}).items():
            wrote(folder, path, text)
        if prepare:
            prepare(folder)
        text = graph(TAIL).replace("><params", f'>\n<include href="{href}"/><params', 1)
        return mpplan(wrote(folder, "m.xml", text))
    return Row(f"include, {name}", make, says, (at, line) if line else None, **kw)


def library(content):
    return f'<library version="1">{content}</library>\n'


NESTED = {f"l{i}.xml": library(f'<include href="l{i + 1}.xml"/>') for i in range(12)}
BLOCK = '<block name="b"><Linear name="a" units="4"/></block>'

MODELS = [
    # entities, DTDs and encodings
    model("billion laughs", DTD.format(LAUGHS) + BODY.replace('name="mlp"', 'name="&l9;"'), "DOCTYPE", 2),
    model("laughs of a parameter entity", DTD.format('<!ENTITY % a "x"><!ENTITY % b "%a;%a;">%b;') + BODY, "DOCTYPE", 2),
    model("external entity", DTD.format('<!ENTITY e SYSTEM "file:///etc/passwd">') + BODY.replace('name="mlp"', 'name="&e;"'), "DOCTYPE", 2),
    model("external DTD", '<!DOCTYPE model SYSTEM "http://127.0.0.1:9/x.dtd">\n' + BODY, "DOCTYPE", 1),
    model("entity that is not declared", edit('name="last"', 'name="&last;"'), "last"),
    model("character of zero", edit('name="last"', 'name="&#0;"'), "xmlChar|char"),
    model("UTF-16", MLP.encode("utf-16"), "UTF-16.*UTF-8", 1),
    model("UTF-16 without a mark", MLP.encode("utf-16-be"), "UTF-16.*UTF-8", 1),
    model("UTF-32", MLP.encode("utf-32"), "UTF-16 or UTF-32", 1),
    model("an encoding of its own", MLP.replace('encoding="UTF-8"', 'encoding="UTF-7"', 1), 'encoding "UTF-7".*UTF-8', 1),
    model("EBCDIC by name", MLP.replace('encoding="UTF-8"', 'encoding="IBM037"', 1), 'encoding "IBM037"', 1),
    model("bytes that are no UTF-8", MLP.encode().replace(b'"last"', b'"l\xe4st"', 1), "UTF-8", edit('"last"', "")[1]),
    model("a zero byte", MLP.encode().replace(b'"last"', b'"l\0st"', 1), "zero byte", edit('"last"', "")[1]),
    model("a control character", edit('name="last"', 'name="la\x1bst"'), "xmlChar|char"),
    model("a mark inside", edit("<graph>", "<graph>\ufeff"), "text|\ufeff"),
    # the form
    model("empty", b"", "empty", 0),
    model("white space only", b" \n\n \n", "document is empty|start tag|empty"),
    model("binary", bytes(range(1, 256)) * 40, r"m\.xml.*error"),
    model("cut in a tag", MLP[:MLP.index("<optimizer") + 20], "m.xml"),
    model("cut in a comment", MLP[:200] + "<!-- ", "comment|document|m.xml"),
    model("text after the end", MLP + "<model/>\n", "extra content|document", MLP.count("\n") + 1),
    model("two of an attribute", edit('<Linear name="last"', '<Linear name="last" name="last"'), "name.*redefined|duplicate|twice"),
    model("tags that cross", edit("</graph>", "</training></graph>"), "mismatch|graph"),
    model("text in an element", edit("<graph>", "<graph>hello"), "text.*hello"),
    model("CDATA", edit("<graph>", "<graph><![CDATA[x]]>"), "text"),
    model("elements nested 100,000 deep", graph("<if test='true'>" * 100000 + "</if>" * 100000), "nested over 256|depth"),
    model("an element of 100,000 attributes", edit("<Relu/>", "<Relu " + " ".join(f'a{i}="1"' for i in range(100000)) + "/>"),
          "over 1000 attributes"),
    model("a name of a megabyte", edit("<Relu/>", "<R" + "e" * 10**6 + "/>"), "name|long"),
    model("a value of a megabyte", edit('units="out"', f'units="{"9" * 10**6}"'), "over 4096 characters"),
    model("another root", b"<plan/>\n", "root element is <plan>", 1),
    model("namespaces", MLP.replace("<model ", '<m:model xmlns:m="urn:x" ', 1).replace("</model>", "</m:model>"), "m:model"),
    model("a later version", edit('version="1">', 'version="2">'), 'version="2".*reads version 1'),
    model("an unknown element", edit("<graph>", "<graph><foo/>"), "no element <foo>"),
    model("an unknown section", edit("<inputs>", "<outputs/><inputs>"), "no element <outputs>"),
    model("a second section", edit("<training", "<graph><Relu/></graph><training"), "second <graph>"),
    model("sections out of order", edit("</model>", "<params/></model>"), "<params> must come before"
          , errors=2),
    model("children of an op", edit("<Relu/>", "<Relu><Relu/></Relu>"), "no child elements"),
    # numbers
    model("a count of 1e9", MLP, "between 0 and 20000.*999999999", edit("<repeat", "")[1], ("--preset", "tiny", "-D", "layers=1000000000")),
    model("loops in loops", graph('<repeat count="10000"><repeat count="10000"><Relu/></repeat></repeat>' + TAIL), "over (20000|100000)"),
    model("loops around nothing", graph('<repeat count="10000">' * 30 + "</repeat>" * 30 + TAIL), "over 100000 steps"),
    model("calls that double", graph('<call block="b0"/>' + TAIL, blocks="".join(
        f'<block name="b{i}"><call block="b{i + 1}"/><call block="b{i + 1}"/></block>' for i in range(30)) +
        '<block name="b30"><Relu/></block>'), "over (20000|100000)"),
    model("a name that doubles", graph("".join(f'<repeat name="{"n" * 200}" count="12">' for _ in range(30)) + "<Relu/>" +
                                       "</repeat>" * 30 + TAIL), "256 MiB|over 100000|over 20000"),
    model("long expressions in a loop", graph(f'<repeat count="10000"><if test="{"1+" * 2000}1 == 0"><Relu/></if></repeat>' + TAIL),
          "256 MiB"),
    model("a dimension of 2^62", edit('name="in"     value="64"', 'name="in" value="4611686018427387904"'), "between 1 and 2.40", args=()),
    model("a dimension beyond 64 bits", edit('name="in"     value="64"', 'name="in" value="9223372036854775808"'), "too large", args=()),
    model("a dimension of 0", edit('name="in"     value="64"', 'name="in" value="0"'), "between 1 and 2.40, not 0", args=()),
    model("a dimension below 0", edit('name="in"     value="64"', 'name="in" value="-64"'), "not -64", args=()),
    model("a dimension of 1.5", edit('name="in"     value="64"', 'name="in" value="1.5"'), "whole number", args=()),
    model("a product that overflows", edit('units="out"', 'units="hidden*4611686018427387904"'), "overflows 64 bits"),
    model("sizes whose product overflows", edit('shape="batch, out"', 'shape="batch, 1099511627776, 1099511627776"'), "over 2.62"),
    model("too many elements", edit('shape="batch, out"', 'shape="batch, 1099511627776, 100000"'), "too many elements|2.56"),
    model("1000 dimensions", edit('shape="batch, out"', 'shape="batch' + ", 1" * 1000 + '"'), "too many dimensions"),
    model("division by zero", edit('units="out"', 'units="out/(hidden-hidden)"'), "division by zero"),
    model("remainder of zero", edit('units="out"', 'units="out % 0"'), "division by zero"),
    model("a square root below 0", edit('lr="lr"', 'lr="sqrt(-1)"'), "not finite"),
    model("an exponent beyond doubles", edit('lr="lr"', 'lr="1e999"'), "too large"),
    model("not a number", edit('lr="lr"', 'lr="nan"'), '"nan"'),
    model("infinite", edit('lr="lr"', 'lr="inf"'), '"inf"'),
    model("hexadecimal", edit('units="out"', 'units="0x10"'), "bad number"),
    model("a rate below 0", edit('lr="lr"', 'lr="-0.1"'), "at least 0"),
    model("beta of 1", edit('beta1="beta1"', 'beta1="1"'), "below 1"),
    model("parentheses 10,000 deep", edit('units="out"', f'units="{"(" * 2000}1{")" * 2000}"'), "nested over 64"),
    model("signs 4,000 deep", edit('units="out"', f'units="{"-" * 4000}1"'), "nested over 64"),
    model("operator without operand", edit('units="out"', 'units="out *"'), "missing at the end"),
    model("an assignment", edit('test="layers >= 1"', 'test="layers = 1"'), "=="),
    model("a string that is open", edit('test="layers >= 1"', "test=\"layers == 'x\""), "closing"),
    model("words for numbers", edit('units="out"', 'units="\'many\'"'), "whole number"),
    model("a micro-batch that does not divide", edit('micro="auto"', 'micro="7"'), "does not divide"),
    # ids and labels
    model("ids beyond their table", graph('<Embedding name="e" in="i" num_embeddings="64" embedding_dim="4"/>' + LOSS.replace("x x", "e x"),
                                          IDS.format('limit="vocab"'), VOCAB), r'input "i" has a limit of 256, but Embedding "e" \(.*m.xml:5\) has 64 rows', 3),
    model("labels beyond the classes", graph(LINEAR.replace('"4"', '"96"') + '<SoftmaxCrossEntropyLoss name="loss" in="a i"/>',
                                             IDS.format('limit="vocab"'), VOCAB), r'limit of 256, but SoftmaxCross.*"loss".*has 96 classes', 3),
    model("ids beyond the table of a loop", graph('<repeat name="r" count="3"><Embedding name="e" in="i" num_embeddings="64" embedding_dim="4"/>'
                                                  '</repeat>' + LOSS, IDS.format('limit="vocab"'), VOCAB), "has 64 rows", 3),
    # names and wiring
    model("a name with a slash", edit('name="last"', 'name="../../x"'), "not a name"),
    model("a name with a quote", edit('name="last"', "name='la\"st'"), "not a name"),
    model("a name with a newline", edit('name="last"', 'name="la&#10;st"'), "not a name"),
    model("a name for a shell", edit('name="last"', 'name="$(rm)"'), "not a name"),
    model("a name with a percent sign", edit('name="last"', 'name="%s%n"'), "not a name"),
    model("a name that ends a comment", edit('name="last"', 'name="x*/"'), "not a name"),
    model("an empty name", edit('name="last"', 'name=""'), "not a name"),
    model("a name of 300 letters", edit('name="last"', f'name="{"a" * 300}"'), "at most 256"),
    model("an input with a space", edit('name="x" type', 'name="x y" type'), "not a name for an input"),
    model("an attribute with an escape", edit("<Relu/>", '<Relu a="&#10;"/>'), 'no attribute "a"'),
    model("a value with a newline and a bell", edit('type="f32" shape="batch, in"', 'type="&#10;&#9;f" shape="batch, in"'), r"\\n"),
    model("a model's name with a newline", edit('name="mlp"', 'name="a&#10;b"'), r'model.s name \("a\\nb"\) holds a control'),
    model("a model's name of 300 letters", edit('name="mlp"', f'name="{"a" * 300}"'), "over 256"),
    model("a preset's name with a bell", edit('name="wide"', 'name="a&#127;b"'), "preset's name.*control"),
    model("two inputs of a name", edit('name="y" type', 'name="x" type'), "second input"),
    model("two parameters of a name", edit('<param name="lr"', '<param name="beta1"'), "second .beta1", edit('name="beta1"', "")[1]),
    model("two presets of a name", edit('name="wide"', 'name="tiny"'), "second preset"),
    model("two blocks of a name", graph(TAIL, blocks=BLOCK + "\n" + BLOCK), "second block", 3),
    model("a block that calls itself", graph('<call block="b"/>' + TAIL, blocks='<block name="b"><call block="b"/></block>'), "within itself"),
    model("blocks that call each other", graph('<call block="b"/>' + TAIL, blocks='<block name="b"><call block="c"/></block>'
                                               '<block name="c"><call block="b"/></block>'), "within itself"),
    model("1,001 presets", edit("<preset", "".join(f'<preset name="p{i}"/>' for i in range(1001)) + "<preset"), "over 1000 <preset>"),
    model("40,000 parameters", edit("<preset", "".join(f'<dim name="d{i}" value="1"/>' for i in range(40000)) + "<preset"), "over 1000 <dim>"),
    model("10,000 arguments", graph('<call block="b"/>' + TAIL, blocks='<block name="b">' + "".join(
        f'<arg name="a{i}" type="int" default="1"/>' for i in range(10000)) + "<Relu/></block>"), "over 64 <arg>"),
    model("10,000 operands", edit('in="last y"', f'in="{"last " * 10000}"'), "over 1000 values"),
    model("100,000 unknown elements", graph("<foo/>\n" * 100000), "no element <foo>", 5, errors=20),
    model("20,000 values that are not there", graph('<Add in="nothing nowhere"/>\n' * 20000 + TAIL), 'no value "nothing"', 5, errors=20),
    model("a loss that is an input", graph(TAIL, loss="x"), "is an input"),
    model("no ops", graph(""), "no op", errors=1),
    # files
    Row("model, a directory", lambda f: mpplan(f), "directory"),
    Row("model, /dev/zero", lambda f: mpplan("/dev/zero"), "not a regular file"),
    Row("model, a pipe", lambda f: (os.mkfifo(f / "pipe"), mpplan(f / "pipe"))[1], "not a regular file"),
    Row("model, a name with a newline and an escape", lambda f: mpplan(f / "a\n\x1b[31m.xml"), r"\\n\\x1b", status=MISSING),
    Row("model, a loop of links", lambda f: (os.symlink("m.xml", f / "m.xml"), mpplan(f / "m.xml"))[1], "symbolic links", status=MISSING),
    Row("model, 65 MiB", lambda f: (os.truncate(wrote(f, "m.xml", MLP), 65 << 20), mpplan(f / "m.xml"))[1], "over 64 MiB"),
    Row("model, 63 MiB of zeros", lambda f: (os.truncate(wrote(f, "m.xml", MLP), 63 << 20), mpplan(f / "m.xml"))[1], "zero byte"),
    Row("model, a path of 5,000 letters", lambda f: mpplan("a" * 5000), "too long", status=MISSING),
]

INCLUDES = [
    included("missing", "none.xml", "cannot find"),
    included("above the folder", "../../../../../../../../etc/passwd", "outside"),
    included("absolute", "/etc/passwd", "relative path"),
    included("of the network", "http://127.0.0.1:9/x.xml", "relative path"),
    included("of a file URL", "file:///etc/passwd", "relative path"),
    included("a link that leads out", "link.xml", "outside", prepare=lambda f: os.symlink("/etc/passwd", f / "link.xml")),
    included("a folder that leads out", "up/passwd", "outside", prepare=lambda f: os.symlink("/etc", f / "up")),
    included("a device behind a link", "zero.xml", "outside", prepare=lambda f: os.symlink("/dev/zero", f / "zero.xml")),
    included("a directory", "folder", "directory", prepare=lambda f: (f / "folder").mkdir()),
    included("a pipe", "pipe.xml", "not a regular file", prepare=lambda f: os.mkfifo(f / "pipe.xml")),
    included("itself", "m.xml", "loop"),
    included("a loop of two", "a.xml", "loop", {"a.xml": library('\n<include href="b.xml"/>'), "b.xml": library('\n<include href="a.xml"/>')},
             2, "b.xml"),
    included("12 deep", "l0.xml", "over 8 deep", NESTED, 1, "l7.xml"),
    included("empty", "e.xml", "empty", {"e.xml": ""}, 0),
    included("a model", "o.xml", "holds a <library>", {"o.xml": graph(TAIL)}, 1, "o.xml"),
    included("cut", "c.xml", "c.xml", {"c.xml": library(BLOCK)[:-20]}, 0),
    included("with a DOCTYPE", "d.xml", "DOCTYPE", {"d.xml": DTD.format("") + library(BLOCK)}, 2, "d.xml"),
    included("an empty href", "", "relative path"),
    included("an href with an escape", "&#127;[2J", r"\\x7f"),
    Row("include, one that is missing is no second fault of its blocks", lambda f: mpplan(wrote(f, "m.xml", graph(
        '<call name="c" block="mlp"/><call name="d" block="mlp"/>' + TAIL).replace("><params", '>\n<include href="none.xml"/><params', 1))),
        "cannot find", ("m.xml", 2)),
    Row("include, a misspelt block is no second fault of its calls", lambda f: mpplan(wrote(f, "m.xml", graph(
        '<call block="b"/>' + TAIL, blocks=BLOCK.replace("block", "blok")))), "no element <blok>", ("m.xml", 2)),
]


# ---- clusters and devices ----

CLUSTER = '''<cluster name="c" devices_per_node="4" nodes="2" source="s">
  <device name="d">
    <memory bytes="16GiB" usable="1" bytes_per_s="27e9"/>
    <peak precision="f32" flops_per_s="118e9"/>
    <kernel launch_s="3e-7" vector_efficiency="0.2"/>
    <gemm efficiency="0.9" half_m="14" half_n="5" half_k="10"/>
  </device>
  <shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>
  <network nics="1" bytes_per_s="1e9" latency_s="1e-6"/>
  <protocol name="p" base_s="26e-6" step_s="6e-6"/>
</cluster>
'''
SWITCH = '<switch><rate devices="2" bytes_per_s="1e9"/></switch>'


def cluster(name, content, says, line=None, gpus="4", **kw):
    if isinstance(content, tuple):
        content, line = content[0], content[1] if line is None else line
    return Row(f"cluster, {name}", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--preset", "tiny", "--gpus", gpus, "--cluster",
                                                    wrote(f, "c.xml", content)), says, ("c.xml", line) if line else None, **kw)


def in_cluster(old, new):
    return edit(old, new, CLUSTER)


SHARED = '<shared bytes_per_s="7e9" total_bytes_per_s="56e9"/>'
CLUSTERS = [
    cluster("empty", "", "empty", 0),
    cluster("cut", CLUSTER[:300], "c.xml"),
    cluster("a model", MLP, "expected <cluster>, found <model>"),
    cluster("an entity bomb", DTD.format(LAUGHS) + CLUSTER, "DOCTYPE", 2),
    cluster("a device file", CLUSTER[CLUSTER.index("<device"):CLUSTER.index("</device>") + 9], "expected <cluster>", 1),
    cluster("an unknown attribute", in_cluster('nodes="2"', 'nods="2"'), 'no attribute "nods".*nodes'),
    cluster("an unknown element", in_cluster("<network", "<net"), "<net>", errors=1),
    cluster("no device", (CLUSTER.replace('<device name="d">', "<!--").replace("</device>", "-->"), 1), "needs the attribute .device. or a"),
    cluster("a device that is not known", CLUSTER.replace('name="c"', 'name="c" device="A1000"').replace('<device name="d">', "<!--").replace(
        "</device>", "-->"), 'no device is called "A1000"', 1),
    cluster("two devices", in_cluster("  <shared", '<device name="e"><memory bytes="1" bytes_per_s="1"/></device><shared'), "second <device>"),
    cluster("bytes below 0", in_cluster('bytes="16GiB"', 'bytes="-16GiB"'), "above zero"),
    cluster("bytes without end", in_cluster('bytes="16GiB"', 'bytes="1e400"'), "too large"),
    cluster("bytes beyond 64 bits", in_cluster('bytes="16GiB"', 'bytes="16777216TiB"'), "too large"),
    cluster("not a number", in_cluster('bytes_per_s="27e9"', 'bytes_per_s="nan"'), "not a number"),
    cluster("infinite", in_cluster('bytes_per_s="27e9"', 'bytes_per_s="inf"'), "not a number"),
    cluster("hexadecimal", in_cluster('bytes_per_s="27e9"', 'bytes_per_s="0x1p30"'), "not a number"),
    cluster("a wrong unit", in_cluster('bytes="16GiB"', 'bytes="16GB"'), "not a number of bytes"),
    cluster("a share over 1", in_cluster('usable="1"', 'usable="1.01"'), "at most 1"),
    cluster("no memory", (CLUSTER.replace("<memory", "<!--", 1).replace('bytes_per_s="27e9"/>', "-->", 1), 2), "needs a <memory>"),
    cluster("no peak", (CLUSTER.replace("<peak", "<!--", 1).replace('118e9"/>', "-->", 1), 2), "needs a <peak"),
    cluster("two peaks", in_cluster("    <kernel", '<peak precision="f32" flops_per_s="1e9"/><kernel'), "second <peak"),
    cluster("a precision that is not known", in_cluster('precision="f32"', 'precision="f31"'), "f31.*f32", errors=2),
    cluster("0 devices per node", in_cluster('devices_per_node="4"', 'devices_per_node="0"'), "from 1 to 65536"),
    cluster("2^40 devices per node", in_cluster('devices_per_node="4"', 'devices_per_node="1099511627776"'), "from 1 to 65536"),
    cluster("a negative bandwidth", in_cluster('<shared bytes_per_s="7e9"', '<shared bytes_per_s="-7e9"'), "above zero"),
    cluster("a rate of nothing", in_cluster('<shared bytes_per_s="7e9"', '<shared bytes_per_s="1e-9"'), "at least 1e6 per second"),
    cluster("operations that take years", in_cluster('flops_per_s="118e9"', 'flops_per_s="2"'), "at least 1e6 per second"),
    cluster("a message that takes a day", in_cluster('step_s="6e-6"', 'step_s="65536"'), "at most 1 second"),
    cluster("a launch of two seconds", in_cluster('launch_s="3e-7"', 'launch_s="2"'), "at most 1 second"),
    cluster("0 nodes", in_cluster('nodes="2"', 'nodes="0"'), "from 1 to 65536"),
    cluster("10 million GPUs", (CLUSTER.replace(' nodes="2"', ""), 1), "10000000 devices of c; a cluster has 1 to 65536", gpus="10000000"),
    cluster("10 million GPUs per node", in_cluster('devices_per_node="4"', 'devices_per_node="10000000"'), "from 1 to 65536"),
    cluster("a link to a GPU that is not there", (CLUSTER.replace(SHARED, '<mesh link_bytes_per_s="1e9">\n' + '<row links="0 1 1 1 2"/>\n' * 4 +
                                                                  '</mesh><pcie bytes_per_s="1e9"/>'), 9),
            "device 0 to device 4; the node has devices 0 to 3"),
    cluster("an algorithm that is not known", in_cluster('<protocol name="p"', '<protocol name="p" algorithm="mesh"'), "none of ring, tree"),
    cluster("a tuning that is not known", in_cluster('nodes="2"', 'nodes="2" tuning="nccl-ampre"'), 'mean "nccl-ampere"', 1),
    cluster("no ring", in_cluster('<protocol name="p"', '<protocol name="p" algorithm="tree"')[0], "whose algorithm is ring", 1),
    cluster("tiles without units", in_cluster('half_k="10"/>', 'half_k="10"><tile m="64" n="64"/></gemm>'), "both units and a <tile>"),
    cluster("1e9 nodes", in_cluster('nodes="2"', 'nodes="1000000000"'), "from 1 to 65536"),
    cluster("more devices than it has", CLUSTER, "9 devices, but c has 8", 1, gpus="9"),
    cluster("two nodes without a network", (CLUSTER.replace("<network", "<!--", 1).replace('latency_s="1e-6"/>', "-->", 1), 1),
            "no <network>", gpus="8"),
    cluster("two kinds of links", in_cluster(SHARED, SHARED + SWITCH), "more than one way", 1),
    cluster("a switch without rates", in_cluster(SHARED, "<switch/>"), "needs a <rate>"),
    cluster("rates that descend", in_cluster(SHARED, '<switch><rate devices="4" bytes_per_s="1e9"/><rate devices="2" bytes_per_s="1e9"/></switch>'),
            "rates ascend"),
    cluster("a mesh with too few rows", in_cluster(SHARED, '<mesh link_bytes_per_s="1e9"><row links="0 1 1 1"/></mesh><pcie bytes_per_s="1e9"/>'),
            "has 1 rows"),
    cluster("a mesh with huge counts", in_cluster(SHARED, '<mesh link_bytes_per_s="1e9">' + '<row links="0 99999999999 1 1"/>' * 4 +
                                                  '</mesh><pcie bytes_per_s="1e9"/>'), "more than 30 links"),
    cluster("no protocol", (CLUSTER.replace("<protocol", "<!--", 1).replace('6e-6"/>\n</', "-->\n</", 1), 1), "needs a <protocol>"),
    cluster("100 protocols", in_cluster("  <protocol", '<protocol name="q" base_s="1" step_s="1"/>' * 100 + "<protocol"), "more than \\d+ <protocol>"),
    cluster("a value with an escape", in_cluster('bytes="16GiB"', 'bytes="&#127;&#10;"'), r"\\x7f\\n"),
    cluster("a name with a newline", in_cluster('name="c"', 'name="c&#10;x"'), "control character"),
    Row("cluster, /dev/zero", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--cluster", "/dev/zero"), "not a regular file"),
    Row("cluster, a directory", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--cluster", f"{f}/"), "directory"),
    Row("cluster, an empty name", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--cluster", ""), "no cluster is called"),
]


# ---- plan.json ----

PLAN_ARGS = ["--preset", "tiny", "-D", "layers=3", "--gpus", "4"]


@lru_cache(None)
def good_plan():
    p = h.plan("models/mlp.xml", preset="tiny", D={"layers": 3}, gpus=4, fix="dp=2,tp=2")
    return (p.dir / "plan.json").read_text()


def plan(name, change, says, line=False, **kw):
    """CHANGE takes the good plan's text (or, where it is called that, its JSON) and returns what is written."""
    def make(folder):
        text = good_plan()
        if change.__code__.co_varnames[0] == "j":
            j = json.loads(text)
            change(j)
            text = json.dumps(j)
        else:
            text = change(text)
        return mpplan(h.ROOT / "models" / "mlp.xml", *PLAN_ARGS, "--from-plan", wrote(folder, "p.json", text))
    return Row(f"plan.json, {name}", make, says, ("p.json", line) if line else None, **kw)


@lru_cache(None)
def good_pipeline():
    """plan.json of several stages."""
    p = h.plan("models/mlp.xml", preset="tiny", D={"layers": 3}, gpus=4, fix="pp=2,micro_batches=4,schedule=1f1b")
    return (p.dir / "plan.json").read_text()


def pipeline(name, old, new, says):
    """What the pattern OLD finds in the plan of several stages becomes NEW; the line where it stands is to blame."""
    class Line:
        def __format__(self, spec):
            text = good_pipeline()
            return str(text[:re.search(old, text).start()].count("\n") + 1)
        __str__ = __repr__ = lambda self: self.__format__("")

    def make(folder):
        text = good_pipeline()
        changed = re.sub(old, new, text, count=1)
        assert changed != text, old
        return mpplan(h.ROOT / "models" / "mlp.xml", *PLAN_ARGS, "--from-plan", wrote(folder, "p.json", changed))
    return Row(f"plan.json of stages, {name}", make, says, ("p.json", Line()))


def line_in(needle):
    """The line of NEEDLE in the good plan, once that exists."""
    class Line:
        def __format__(self, spec):
            text = good_plan()
            return str(text[:text.index(needle)].count("\n") + 1)
        __str__ = __repr__ = lambda self: self.__format__("")
    return Line()


def stage(j):
    return j["stages"][0]


def put(o, key, value):
    o[key] = value


def op_named(j, name):
    return next(o for o in stage(j)["ops"] if o["op"] == name)


def layered(j):
    return next(o for o in stage(j)["ops"] if "layers" in o and o["split"])


PLANS = [
    plan("empty", lambda t: "", "empty"),
    plan("a mark only", lambda t: "\ufeff", "p.json"),
    plan("UTF-16", lambda t: t.encode("utf-16"), "not JSON"),
    plan("bytes that are no UTF-8", lambda t: t.encode().replace(b'"mlp"', b'"ml\xff"', 1), "not JSON.*0xff"),
    plan("a zero byte", lambda t: t.encode().replace(b'"mlp"', b'"ml\0"', 1), "not JSON"),
    plan("cut", lambda t: t[:len(t) // 2], "not JSON"),
    plan("bytes after the end", lambda t: t + "{}", "not JSON.*end of file"),
    plan("a repeated key", lambda t: t.replace('"model":', '"model": "x", "model":', 1), "duplicate"),
    plan("arrays nested 100,000 deep", lambda t: "[" * 100000, "not JSON.*depth"),
    plan("a number beyond 64 bits", lambda t: re.sub(r'"batch": \d+', '"batch": 99999999999999999999', t), "too big integer"),
    plan("a number beyond doubles", lambda t: re.sub(r'"batch": \d+', '"batch": 1e999', t), "real number overflow"),
    plan("NaN", lambda t: re.sub(r'"batch": \d+', '"batch": NaN', t), "not JSON"),
    plan("a batch below 0", lambda j: put(j, "batch", -16), "whole number .batch. from 1"),
    plan("another batch", lambda j: put(j, "batch", 2**62), "batch of 4611686018427387904, not 16"),
    plan("micro-batches that do not divide", lambda j: put(j, "micro_batches", 3), "do not divide"),
    plan("two stages", lambda j: j["stages"].append(j["stages"][0]), "accumulate. is that of one stage; there are 2"),
    plan("one stage twice", lambda j: (j["stages"].append(j["stages"][0]), put(j, "schedule", {"kind": "1F1B", "chunks": 1})),
         "want an array .layers."),
    plan("no places", lambda j: put(stage(j), "places", []), "wants an array .places."),
    plan("a place of another stage", lambda j: put(stage(j)["places"][0], "stage", 1), "whole number .stage. from 0 to 0"),
    plan("a place with a misspelt key", lambda j: put(stage(j)["places"][0], "frist_device", 0), "unknown key .frist_device.*first_device"),
    plan("a stage that begins elsewhere", lambda j: put(stage(j)["places"][0], "first_device", 2), "begins at device 2"),
    plan("a stage with a misspelt key", lambda j: put(stage(j), "opps", []), "unknown key .opps.*ops"),
    plan("a schedule as in version 1", lambda j: put(j, "schedule", "accumulate"), "wants an object .schedule."),
    plan("a schedule that there is not", lambda j: put(j, "schedule", {"kind": "1F1C", "chunks": 1}), "no schedule .1F1C..*did you mean .1F1B."),
    plan("a schedule of more stages", lambda j: put(j, "schedule", {"kind": "1F1B", "chunks": 1}), "one stage is .accumulate."),
    plan("recomputation without layers", lambda j: put(stage(j), "recompute", "full"), "want an array .layers."),
    pipeline("a stage that skips a layer", r'(?<=\{"stage": 1, )"first_device": (\d+), "first_layer": \d+', r'"first_device": \1, "first_layer": 0',
             "stage 1 begins with layer 0; the one before ends with"),
    pipeline("devices of two stages", r'(?<=\{"stage": 1, )"first_device": \d+', '"first_device": 0', "stage 1 begins at device 0; the one before"),
    pipeline("a stage that stands twice", r'\{"stage": 1', '{"stage": 0', "stage 0 stands twice"),
    pipeline("chunks that the schedule has not", r'"chunks": 1', '"chunks": 3', "cannot run 2 stages of 3 chunks"),
    pipeline("no chunks", r'"chunks": 1', '"chunks": 0', "whole number .chunks. from 1"),
    pipeline("a schedule that there is not", r'"kind": "1F1B"', '"kind": "2F2B"', "no schedule .2F2B."),
    pipeline("micro-batches that do not divide", r'"micro_batches": 4', '"micro_batches": 3', "do not divide"),
    pipeline("a mesh of other devices", r'"size": \d+', '"size": 4096', "the mesh has 4096 devices"),
    pipeline("a mesh of a fraction", r'"size": \d+', '"size": 0.5', "whole number .size."),
    pipeline("layers that fall", r'(?<="first": 1\},\n  )\{(.*)"first": 2', r'{\1"first": 1', "must rise"),
    pipeline("recomputation of another kind", r'"recompute": "none"', '"recompute": "half"', "none, selective or full"),
    pipeline("a solver of few words", r'"solver": \{"status": "optimal", ', '"solver": {', "wants a string .status."),
    pipeline("no solver", r'"solver": \{.*\}', '"solver": null', "wants an object .solver."),
    plan("recomputation of another kind", lambda j: put(stage(j), "recompute", "half"), "none, selective or full"),
    plan("layers that do not rise", lambda j: put(j, "layers", [{"name": "a", "first": 0}, {"name": "b", "first": 0}]), "rise from 0"),
    plan("more layers than the step has", lambda j: put(j, "layers", [{"name": "a", "first": k} for k in range(999)]), "array of 1 to"),
    plan("layers that no stage has", lambda j: put(j, "layers", [{"name": "a", "first": 0}, {"name": "b", "first": 1}]), "wants a whole number .first_layer.", errors=2),
    plan("a stage that is a number", lambda j: put(j, "stages", [7]), "stage is no object"),
    plan("an unknown version", lambda j: put(j, "plan_version", "9"), "version .9."),
    plan("the version before", lambda j: put(j, "plan_version", "1"), "version .1.; this program reads version 2; plan again"),
    plan("a name with an escape", lambda j: put(j, "pins", "\x1b[2J"), "control characters"),
    plan("four axes", lambda j: put(stage(j), "mesh", [{"axis": a, "size": 1} for a in "abcd"]), "one to three axes"),
    plan("a mesh of 2^62 devices", lambda j: put(stage(j), "mesh", [{"axis": "a", "size": 2**62}]), "from 1 to 65536"),
    plan("a mesh of other devices", lambda j: put(stage(j)["mesh"][0], "size", 4), "8 devices, but there are 4"),
    plan("two axes of a name", lambda j: put(stage(j)["mesh"][1], "axis", stage(j)["mesh"][0]["axis"]), "two axes"),
    plan("an axis for a shell", lambda j: put(stage(j)["mesh"][0], "axis", "$(rm)"), r"letters, digits"),
    plan("an axis of 100 letters", lambda j: put(stage(j)["mesh"][0], "axis", "a" * 100), "over 32 characters"),
    plan("an axis that is renamed only there", lambda j: put(stage(j)["mesh"][0], "axis", "dataa"), 'no axis "data".*did you mean "dataa"'),
    plan("an op that is not there", lambda j: put(op_named(j, "first"), "op", "frist"), 'no "frist".*did you mean "first"'),
    plan("an op twice", lambda j: stage(j)["ops"].append(op_named(j, "first")), '"first" stands twice'),
    plan("an op that is missing", lambda j: stage(j)["ops"].remove(op_named(j, "first")), 'no record of op "first"'),
    plan("a record that is a string", lambda j: stage(j)["ops"].insert(0, "x"), r"ops\[0\] wants a string"),
    plan("a split of a dimension that is not there", lambda j: put(op_named(j, "first")["split"], "data", "hiden"), "no dimension .hiden."),
    plan("a split that is a number", lambda j: put(op_named(j, "first")["split"], "data", 3), "wants a dimension's name"),
    plan("a split without a split", lambda j: op_named(j, "first").pop("split"), "wants an object .split."),
    plan("a misspelt key", lambda j: put(stage(j)["parameters"][0], "kepd", True), 'unknown key "kepd".*kept'),
    plan("layers that are all wrong in one way", lambda j: put(layered(j), "split", {"data": "nothing"}), "no dimension .nothing."),
    plan("layers without end", lambda j: put(layered(j), "layers", "0-99999"), 'there is no "layer.2|stands twice', errors=2),
    plan("layers backwards", lambda j: put(layered(j), "layers", "3-1"), "not a list of layers"),
    plan("layers beyond integers", lambda j: put(layered(j), "layers", "0-99999999999999999999"), "not a list of layers"),
    plan("the line of a record", lambda t: t.replace('"op": "last"', '"op": "lsat"', 1), 'no "lsat"', line_in('"op": "last"')),
    Row("plan.json, /dev/zero", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--from-plan", "/dev/zero"), "not a regular file"),
    Row("plan.json, a pipe", lambda f: (os.mkfifo(f / "pipe"), mpplan(h.ROOT / "models" / "mlp.xml", "--from-plan", "pipe"))[1],
        "not a regular file"),
    Row("plan.json, a directory", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--from-plan", f), "directory"),
    Row("plan.json, 17 MiB", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--from-plan", wrote(f, "p.json", "[" + "0," * (17 << 19))),
        "over 16 MiB"),
    Row("plan.json, 8 million numbers", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--from-plan", wrote(
        f, "p.json", '{"a": [' + "0," * (7 << 20) + "0]}")), "no plan"),
]


# ---- options and pins ----

def options(name, args, says, gpus="4", **kw):
    return Row(f"options, {name}", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--preset", "tiny", "--gpus", gpus, *args), says, **kw)


def fix(value, says, **kw):
    return options(f"--fix {value[:40]}", ["--fix", value], says, **kw)


def contest(name, content, says, line=None):
    """A contest problem whose text is CONTENT, or what CONTENT makes of a path."""
    def make(folder):
        path = folder / "p.json"
        content(path) if callable(content) else path.write_text(content)
        return [h.MPPLAN, "--solve-iopddl", path]
    return Row(f"contest, {name}", make, says, **({"at": ("p.json", line)} if line else {}))


def problem(intervals="[[0,2],[1,3]]", costs="[[1,5],[2]]", usages="[[7,1],[8]]", ends="[[0,1]]", tables="[[3,4]]", limit="20"):
    return (f'{{"problem":{{"nodes":{{"intervals":{intervals},\n"costs":{costs},\n"usages":{usages}}},\n'
            f'"edges":{{"nodes":{ends},"costs":{tables}}},"usage_limit":{limit}}}}}')


CONTEST = [
    contest("empty", "", "ends too early", 1),
    contest("cut", problem()[:60], "ends too early"),
    contest("a folder", lambda p: p.mkdir(), "not a file"),
    contest("a pipe", os.mkfifo, "not a file"),
    contest("UTF-16", lambda p: p.write_bytes(problem().encode("utf-16")), "no valid JSON", 1),
    contest("gzip cut short", lambda p: p.write_bytes(gzip.compress(problem().encode())[:-12]), "cannot be read"),
    contest("trailing bytes", problem() + "x", "no valid JSON"),
    contest("NaN", problem(costs="[[1,NaN],[2]]"), "no valid JSON", 2),
    contest("a fraction", problem(costs="[[1,5],[2.5]]"), "2.5 is no whole number", 2),
    contest("beyond 64 bits", problem(costs="[[1,9223372036854775808],[2]]"), "does not fit 64 bits", 2),
    contest("a negative usage", problem(usages="[[7,-1],[8]]"), "-1 is negative", 3),
    contest("an interval that ends before it begins", problem(intervals="[[2,0],[1,3]]"), "ends before it begins"),
    contest("a time of 1e18", problem(intervals="[[0,1000000000000000000],[1,3]]"), "is past"),
    contest("a usage too few", problem(usages="[[7],[8]]"), "node 0 has 2 costs and 1 usages"),
    contest("a node without strategies", problem(costs="[[],[2]]", usages="[[],[8]]"), "has 0 strategies"),
    contest("an edge to node 1e9", problem(ends="[[0,1000000000]]"), "names node 1000000000, but there are 2"),
    contest("an edge's table too short", problem(tables="[[3]]"), "edge 0 has 1 costs; its nodes have 2 x 1"),
    contest("no limit", problem().replace("usage_limit", "usage"), "problem.usage_limit is missing"),
    contest("costs twice", problem().replace('"usages"', '"costs"'), "nodes.costs stands twice", 3),
    contest("a list in a list in a list", problem(costs="[[[1],5],[2]]"), "must be a list of lists of numbers", 2),
]

OPTIONS = [
    options("an empty option", [""], "two model files|no option", errors=1),
    options("an unknown option with an escape", ["--\x1b[2J"], r"no option --\\x1b"),
    options("-D of nothing", ["-D", "=3"], "name=value"),
    options("-D of an injection", ["-D", "hidden=1;rm"], 'unexpected ";"'),
    options("-D of 5,000 characters", ["-D", "hidden=" + "1+" * 2500 + "1"], "over 4096 characters"),
    options("300 -D", [x for _ in range(300) for x in ("-D", "hidden=32")], "more than 256", errors=20),
    options("a batch of 2^62", ["--batch", str(2**62)], "between 1 and 2.40"),
    options("a batch beyond 64 bits", ["--batch", "9" * 30], "whole number"),
    options("a number with a sign", ["--batch", "+8"], "whole number"),
    options("a number with a letter", ["--batch", "8x"], "whole number"),
    options("an empty number", ["--batch="], "whole number"),
    options("a preset with a newline", ["--preset", "a\nb"], r"a\\nb"),
    options("an empty preset", ["--preset", ""], 'no preset ""'),
    Row("options, an output that is empty", lambda f: [*mpplan(h.ROOT / "models" / "mlp.xml")[:-1], ""], "empty"),
    Row("options, statistics nobody can write", lambda f: [*mpplan(h.ROOT / "models" / "mlp.xml", "--preset", "tiny")[:-2], "--stats",
                                                           "/proc/x"], "cannot write", status=MISSING),
    options("statistics in a folder that is not there", ["--stats", "none/s.json"], "none/s.json: error: cannot write", status=MISSING),
    options("statistics in a folder's place", ["--stats", "/"], "/: error: cannot write", status=MISSING),
    options("a plan without a name", ["--from-plan", ""], '--from-plan "": the name is empty; give a file'),
    options("statistics without a name", ["--stats="], '--stats "": the name is empty; give a file'),
    options("programs without a name", ["--dump-ilp", ""], '--dump-ilp "": the name is empty; give a directory'),
    Row("options, a calibration without a name", lambda f: [h.MPPLAN, "--calibrate", ""], '--calibrate "": the name is empty; give a file'),
    Row("options, a model without a name", lambda f: [h.MPPLAN, ""], "model file's name is empty"),
    Row("options, a step of weeks", lambda f: mpplan(h.ROOT / "models" / "gpt.xml", "--preset", "gpt2", "--batch", "16777216"),
        r"a step takes more than \d+ days on 1 x cpu-core.*--gpus"),
    Row("options, the largest batch", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--batch", "2147483647"),
        r"a step takes more than \d+ days? on 1 x cpu-core.*--batch"),
    Row("options, the largest batch of what would not fit", lambda f: mpplan(h.ROOT / "models" / "gpt.xml", "--preset", "tiny", "--batch", "2147483647"),
        r"a step takes more than \d+ days on 1 x cpu-core.*--batch"),
    Row("options, the largest batch on GPUs", lambda f: mpplan(h.ROOT / "models" / "mlp.xml", "--batch", "2147483647", "--cluster", "dgx-a100", "--gpus", "4"),
        r"a step takes more than \d+ days on 4 x A100.*--batch"),
    fix("dp=2,dp=4", "dp stands twice"),
    fix("dp=2,,tp=2", "has no value"),
    fix("dp=", "whole number from 1"),
    fix("dp=2147483649", "whole number from 1"),
    fix("mesh=2xx2", "a mesh of one to three axes"),
    fix("mesh=2x2x1x1", "a mesh of one to three axes"),
    fix("mesh=65536x65536x65536", "281474976710656 devices, but there are 4"),
    fix("zero=4", "0, 1, 2 or 3"),
    fix("micro_batch=4611686018427387903", "does not divide"),
    fix("micro_batches=9223372036854775807", "whole number from 1"),
    fix("shard:=hidden/model", "wants shard:GLOB"),
    fix("shard:layer.*=hidden", "wants shard:GLOB"),
    fix("shard:layer.*=hidden/modle", 'axis "modle".*did you mean "model"'),
    fix("shard:layer.*=hiden/model", 'dimension "hiden".*hidden'),
    fix("shard:\x1b[2J*=hidden/model", r"\\x1b"),
    fix(",".join("shard:layer.*=hidden/model" for _ in range(70)), "more than 64", errors=6),
    fix("shard:" + "*a" * 5000 + "=hidden/model", "no tensor matches"),
    Row("options, a misspelt axis is said where memory is tight too", lambda f: mpplan(
        h.ROOT / "models" / "mlp.xml", "--preset", "wide", "-D", "hidden=400000", "--gpus", "4", "--fix", "shard:layer.*=hidden/modle"),
        'axis "modle"'),
]


# ---- names that go on ----

HOSTILE = ["int", "a*/b", "a\"b", "a\\b", "$(touch pwned)", "%s%n", "a'b", "a`b", "a??/b", "é", "a$b", "a#b", "<b>", "??/"]


def test_names():
    """Whatever a name holds, the trainer is made of it and says no more than it should."""
    for i, word in enumerate(HOSTILE):
        safe = word.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;").replace("\t", "&#9;")
        quoted = safe.replace("'", "&apos;")
        text = graph(f'<call block="{quoted}"/>\n<repeat name="while" count="2"><Linear name="for" units="int"/></repeat>'
                     f'<MeanSquaredErrorLoss name="return" in="%while.1.for default"/>'.replace("%while", "while"),
                     inputs='<input name="struct" type="f32" shape="batch, 4"/><input name="default" type="f32" '
                     'shape="batch, \'' + quoted.replace("&apos;", "") + '\' == \'\' ? 8 : 8"/>',
                     params=f'<dim name="int" value="8"/><preset name="{quoted}"/>',
                     blocks=f'<block name="{quoted}"><Linear name="errno" in="struct" units="int"/><Relu name="stdin"/></block>', loss="return")
        text = text.replace('name="m"', f'name="{quoted}"', 1).replace(
            "</training>", f'</training><data><dataset format="tokens" path="{quoted}"/></data>', 1)
        folder = h.TMP / f"names{i}"
        folder.mkdir()
        path = wrote(folder, "m.xml" if "/" in word else f"m{word}.xml", text)
        p = h.mpplan(path, "--preset", word, "--gpus", "2", "-o", folder / "out", cwd=folder)
        if not h.check(p.returncode == 0, f"names: {word!r} plans", p.stderr[-800:]):
            continue
        h.check(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", p.stdout + (folder / "out" / "report.txt").read_text()),
                f"names: {word!r}: a report that a terminal can show", repr(p.stdout[:300]))
        json.loads((folder / "out" / "plan.json").read_text())
        made = h.run(["make", "-s", "-C", folder / "out", f"RUNTIME_BUILD={h.shared_runtime(())}", "build/plan.o", "build/stage0.o", "build/stage0_tables.o",
                      "build/kernels.o", "CFLAGS=-O0 -trigraphs"], 300, cwd=folder)
        h.check(made.returncode == 0 and not made.stderr, f"names: {word!r}: the trainer compiles", made.stderr[-1500:])
        h.check(not list(folder.rglob("pwned")), f"names: {word!r}: nothing is run")
        again = h.mpplan(path, "--preset", word, "--gpus", "2", "--from-plan", folder / "out" / "plan.json", "-o", folder / "again", cwd=folder)
        h.check(again.returncode == 0 and h.tree(folder / "again") == {k: v for k, v in h.tree(folder / "out").items() if
                                                                     not k.startswith("build/")},
                f"names: {word!r}: its plan.json is read back", again.stderr[-500:])


# What emitted code says itself, C's own words and macros of its headers.
WORDS = """dim layer r p t i later main at plan stage0 stage0_forward plan_state mpp_gemm GROUP_MODEL n4 f_1 MPP_OK NULL EOF errno
stdin NAN INFINITY bool int32_t size_t _Bool __attribute__ asm loss grad_norm valid exit memcpy environ BUFSIZ M_PI offsetof
isnan I complex and xor nullptr constexpr sa_handler st_atime major""".split()


def test_words():
    """Ops, inputs, dimensions and loops called as the emitted code's own words are."""
    for k, words in enumerate((WORDS[::2], WORDS[1::2])):
        dims = "".join(f'<dim name="{w}" value="{2 * i + 8}"/>' for i, w in enumerate(words))
        inputs = "".join(f'<input name="{w}" type="f32" shape="batch, {w}"/>' for w in words[:4])
        ops = "".join(f'<Linear name="{w}" units="{w}"/><Relu/>' for w in words[4:])
        body = "".join(f'<Linear name="{w}" units="8"/><Tanh/>' for w in words)
        text = graph(f'<Linear name="begin" in="{words[0]}" units="8"/>{ops}<Linear name="end" units="8"/>'
                     f'<repeat name="layer_" count="3">{body}</repeat><MeanSquaredErrorLoss name="ls" in="layer_ {words[0]}"/>',
                     inputs=inputs, params=dims, loss="ls")
        folder = h.TMP / f"words{k}"
        p = h.mpplan(wrote(h.TMP, f"words{k}.xml", text), "--gpus", "2", "--fix", "tp=2", "-o", folder)
        if not h.check(p.returncode == 0, f"words {k}: planned", p.stderr[-800:]):
            continue
        made = h.run(["make", "-s", "-C", folder, f"RUNTIME_BUILD={h.shared_runtime(())}", "build/plan.o", "build/stage0.o", "build/stage0_tables.o",
                      "build/kernels.o", "CFLAGS=-O0"], 300)
        h.check(made.returncode == 0 and not made.stderr, f"words {k}: the trainer compiles", made.stderr[-1500:])


def test_pins():
    """A pin of the model file is said in the report, and what it does not leave with its line."""
    text = MLP.replace("</model>", '<planning><shard match="last.weight" dim="out" axis="model"/></planning></model>')
    path, line = wrote(h.TMP, "pins.xml", text), MLP[:MLP.index("</model>")].count("\n") + 1
    for fixed, says in ((None, "pinned by the model file to shard:last.weight=out/model (gap"),
                        ("dp=2", "pinned to dp=2 and by the model file to shard:last.weight=out/model (gap")):
        out = h.TMP / f"pins-{fixed}"
        p = h.mpplan(path, "--preset", "tiny", "--gpus", "4", *(["--fix", fixed] if fixed else []), "-o", out)
        report = " ".join((out / "report.txt").read_text().split()) if p.returncode == 0 else p.stderr
        h.check(says in report, f"pins: a report with --fix {fixed}", report[:800])
    p = h.mpplan(path, "--preset", "tiny", "--gpus", "4", "--fix", "dp=4", "-o", h.TMP / "pins-out")
    want = f'pins.xml:{line}: error: <shard match="last.weight">: no mesh of 4 devices that --fix leaves has an axis "model"; there is "data"\n'
    h.check(p.returncode == 2 and p.stderr.endswith(want), "pins: an axis that --fix leaves no room for", p.stderr)


def test_folders():
    """-o makes the folders above, and a failure takes away what was made."""
    tiny = [h.ROOT / "models" / "mlp.xml", "--preset", "tiny"]
    top = h.TMP / "made"
    p = h.mpplan(*tiny, "-o", top / "a" / "b")
    h.check(p.returncode == 0 and (top / "a" / "b" / "plan.json").exists(), "folders: -o makes the folders above", p.stderr[-300:])
    p = h.mpplan(*tiny, "--gpus", "2", "--fix", "dp=3", "-o", h.TMP / "failed" / "a" / "b")
    h.check(p.returncode == 2 and not (h.TMP / "failed").exists(), "folders: a failure leaves none of them", p.stderr[-300:])
    (h.TMP / "kept" / "mine").mkdir(parents=True)
    p = h.mpplan(*tiny, "--gpus", "2", "--fix", "dp=3", "-o", h.TMP / "kept" / "mine" / "a" / "b")
    h.check(p.returncode == 2 and (h.TMP / "kept" / "mine").exists() and not (h.TMP / "kept" / "mine" / "a").exists(),
            "folders: a failure keeps what was there", p.stderr[-300:])


def table(rows):
    def test():
        for row in rows:
            h.guarded(row.name, check_row, row)
    return test


TESTS = {"models": table(MODELS), "includes": table(INCLUDES), "clusters": table(CLUSTERS), "plans": table(PLANS),
         "options": table(OPTIONS), "contest": table(CONTEST), "names": test_names, "words": test_words, "pins": test_pins, "folders": test_folders, "data": table(malformed_data.ROWS)}

if __name__ == "__main__":
    for name in h.only(TESTS):
        h.guarded(name, TESTS[name])
    sys.exit(h.finish())
