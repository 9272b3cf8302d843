"""Malformed input of trainers: weights, arrays, token shards, text, checkpoints, options; rows as in malformed.py.

    python3 tests/e2e/malformed_data.py [-v] [WORD...]     the table alone, or the rows whose names hold a WORD
"""
import functools
import json
import os
import re
import struct
import sys

import numpy as np

import harness as h
from malformed import SANITIZED, Row, check_row, wrote

ASAN = "-O1 -g -std=c17 -D_GNU_SOURCE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
ESCAPE = "\x1b[31mred\x1b]0;title\x07"  # what a terminal would act on


# ---- trainers ----

@functools.lru_cache(None)
def plan(kind):
    """gpt: tokens, on two devices; mlp: floats, on one."""
    options = {"gpt": dict(D={"layers": 1}, gpus=2), "mlp": dict(gpus=1)}[kind]
    return h.plan(f"models/{kind}.xml", preset="tiny", **options).build(*([f"CFLAGS={ASAN}", f"LDFLAGS={ASAN}"] if SANITIZED else []))


def run(kind, *options):
    """The command: synthetic data and one step unless it says otherwise."""
    options = [str(x) for x in options]
    given = {x.split("=")[0] for x in options}
    more = [] if "--data" in given else ["--data", "synthetic"]
    more += [] if "--steps" in given else ["--steps", "1"]
    return [plan(kind).dir / "trainer", *more, *options]


def under_mpi(make):
    """The same command, each device a process."""
    def mpi(folder):
        environment = [f"{k}={v}" for k, v in {**h.MPI_ENV, **({"ASAN_OPTIONS": "detect_leaks=0"} if SANITIZED else {})}.items()]
        return ["env", *environment, *h.MPIRUN, "-q", "-n", "2", *make(folder)]
    return mpi


# ---- weights ----

@functools.lru_cache(None)
def saved():
    """A checkpoint of gpt: {name: bytes} of its files."""
    folder = h.TMP / "malformed-saved"
    plan("gpt").train(data="synthetic", steps=1, save=folder)
    return {p.name: p.read_bytes() for p in (folder / "step-1").iterdir()}


def header_of(raw):
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def with_header(text, data):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text + data


def weights(change):
    """A row's command: --init with the saved weights, their (header, data) or bytes changed."""
    def make(folder):
        raw = saved()["model.safetensors"]
        header, data = header_of(raw)
        return run("gpt", "--init", wrote(folder, "w.safetensors", change(header, data)), "--save", folder / "out",
                   "--metrics", folder / "m.jsonl")
    return make


def raw_weights(content):
    return weights(lambda header, data: content)


def edited(**fields):
    """The first tensor's fields replaced."""
    def change(header, data):
        name = next(n for n in header if n != "__metadata__")
        return with_header(json.dumps({**header, name: {**header[name], **fields}}), data)
    return weights(change)


def text_edited(edit):
    return weights(lambda header, data: with_header(edit(json.dumps(header)), data))


ONE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
W = r"w\.safetensors: .*"


def number_at(value, dtype="<f4", tensor="h.0.attn.c_attn.weight", element=1234):
    def change(header, data):
        begin = header[tensor]["data_offsets"][0] + 4 * element
        return with_header(json.dumps(header), data[:begin] + np.array([value], dtype).tobytes() + data[begin + 4:])
    return weights(change)


def without(header, data, *names):
    arrays, at, kept = {}, 0, b""
    for name, t in header.items():
        if name not in names:
            a, b = t["data_offsets"]
            arrays[name] = {**t, "data_offsets": [at, at + b - a]}
            at, kept = at + b - a, kept + data[a:b]
    return with_header(json.dumps(arrays), kept)


def widened(header, data):
    """All of F64, one of which no float holds."""
    out, blobs, at = {}, [], 0
    for name, t in header.items():
        a, b = t["data_offsets"]
        x = np.frombuffer(data[a:b], np.float32).astype(np.float64)
        if name == "ln_f.weight":
            x[3] = 1e300
        out[name] = {**t, "dtype": "F64", "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
        blobs.append(x.tobytes())
    return with_header(json.dumps(out), b"".join(blobs))


WEIGHTS = [
    Row("weights: empty", raw_weights(b""), W + "too short.*0 bytes"),
    Row("weights: seven bytes", raw_weights(b"\x08" + bytes(6)), W + "too short.*7 bytes"),
    Row("weights: cut header", weights(lambda h_, d: with_header(json.dumps(h_), d)[:100]), W + ".*cut short.*claim a header"),
    Row("weights: header of 1e18 bytes", raw_weights(struct.pack("<Q", 10**18) + b"{}" + bytes(64)), W + ".*1000000000000000000 bytes"),
    Row("weights: header of 2^64 - 1 bytes", raw_weights(b"\xff" * 8 + b"{}"), W + ".*18446744073709551615 bytes"),
    Row("weights: another kind of file", raw_weights(b"PK\x03\x04" + bytes(200)), W + "not a safetensors file"),
    Row("weights: no JSON", raw_weights(with_header("hello there", b"")), W + "byte 8: the header is not a JSON object"),
    Row("weights: a list", raw_weights(with_header("[1, 2]", b"")), W + "byte 8: .*not a JSON object"),
    Row("weights: a space in front", text_edited(lambda t: " " + t), W + "byte 8: .*not a JSON object"),
    Row("weights: cut JSON", text_edited(lambda t: t[:-9]), W + r"byte \d+: "),
    Row("weights: text behind the JSON", text_edited(lambda t: t + " x"), W + r"byte \d+: the end should come"),
    Row("weights: trailing comma", text_edited(lambda t: t[:-1] + ",}"), W + r"byte \d+: a string should come"),
    Row("weights: NaN for an offset", text_edited(lambda t: re.sub(r'"data_offsets": \[\d+', '"data_offsets": [NaN', t, 1)),
        W + "byte .*whole number"),
    Row("weights: a fraction for an offset", edited(data_offsets=[0.0, 8.0]), W + "byte .*whole number"),
    Row("weights: text for an offset", edited(data_offsets=["0", "8"]), W + "byte .*whole number"),
    Row("weights: offset of 1e30", text_edited(lambda t: re.sub(r'"data_offsets": \[\d+', '"data_offsets": [1' + "0" * 30, t, 1)),
        W + "byte .*past 64 bits"),
    Row("weights: negative offsets", edited(data_offsets=[-8, 0]), W + ".*offsets -8 to 0 do not fit"),
    Row("weights: offsets backwards", edited(data_offsets=[64, 0]), W + ".*offsets 64 to 0 do not fit"),
    Row("weights: offsets at both ends of int64", edited(data_offsets=[-2**63, 2**63 - 1]), W + ".*do not fit"),
    Row("weights: offsets past the end", edited(dtype="U8", shape=[2**40], data_offsets=[0, 2**40]), W + ".*(begins at|take)"),
    Row("weights: one offset", edited(data_offsets=[0]), W + ".*data_offsets hold 1 numbers"),
    Row("weights: no offsets", text_edited(lambda t: t.replace('"data_offsets"', '"data_offset"', 1)), W + ".*has no data_offsets"),
    Row("weights: overlapping tensors", raw_weights(with_header(
        f'{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}}}', bytes(8))),
        W + 'tensor "b" begins at byte 4 of the data, not at 8'),
    Row("weights: a hole", raw_weights(with_header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8))),
        W + 'tensor "a" begins at byte 4 of the data, not at 0'),
    Row("weights: trailing bytes", weights(lambda h_, d: with_header(json.dumps(h_), d + b"1234")), W + "its tensors take"),
    Row("weights: data cut short", weights(lambda h_, d: with_header(json.dumps(h_), d[:-4])), W + "its tensors take"),
    Row("weights: unknown dtype", edited(dtype="Q4_K"), W + "byte .*dtype Q4_K is not supported; store it as"),
    Row("weights: number for a dtype", edited(dtype=4), W + "byte .*string"),
    Row("weights: integers", edited(dtype="I32"), W + ".*is I32; F32, F16, BF16 or F64 is needed"),
    Row("weights: wrong shape", edited(shape=[1, *[64] * 0]), W + ".*do not fit its shape"),
    Row("weights: dimensions exchanged", weights(lambda h_, d: with_header(json.dumps(
        {n: ({**t, "shape": t["shape"][::-1]} if n == "h.0.attn.c_attn.weight" else t) for n, t in h_.items()}), d)),
        W + r'.*"h\.0\.attn\.c_attn\.weight" has shape \[.*but the model\'s has \['),
    Row("weights: negative dimension", edited(shape=[-2, -1]), W + "byte .*dimension 0 is -2, no count"),
    Row("weights: dimensions whose product overflows", edited(shape=[2**32, 2**32]), W + "byte .*its shape overflows"),
    Row("weights: bytes that overflow", edited(dtype="F64", shape=[2**61 + 1], data_offsets=[0, 8]), W + ".*do not fit"),
    Row("weights: 100 dimensions", edited(shape=[1] * 100), W + "byte .*more than 64 dimensions"),
    Row("weights: number for a shape", edited(shape=4), W + "byte .*list"),
    Row("weights: number for a tensor", raw_weights(with_header('{"a":5}', b"")), W + "byte 13: an object { should come"),
    Row("weights: null for a tensor", raw_weights(with_header('{"a":null}', b"")), W + "byte 13: an object { should come"),
    Row("weights: tensor twice", raw_weights(with_header(f'{{"a":{ONE},"a":{ONE.replace("[0,4]", "[4,8]")}}}', bytes(8))),
        W + 'two tensors are called "a"'),
    Row("weights: dtype twice", raw_weights(with_header('{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4))),
        W + "byte .*dtype occurs twice"),
    Row("weights: metadata that is no text", raw_weights(with_header('{"__metadata__":{"step":1}}', b"")), W + "byte .*string"),
    Row("weights: metadata that is a list", raw_weights(with_header('{"__metadata__":[]}', b"")), W + "byte .*object"),
    Row("weights: a thousand lists in each other", raw_weights(with_header('{"a":{"x":' + "[" * 1000 + "]" * 1000 + "}}", b"")),
        W + "byte .*nested deeper than 64"),
    Row("weights: nine million lists in each other", raw_weights(with_header('{"a":{"x":' + "[" * 9_000_000 + "}}", b"")),
        W + "byte .*nested deeper than 64"),
    Row("weights: a million empty objects", raw_weights(with_header('{"a":' + "{}," * 1_000_000 + "}", b"")), W + "byte .*has no dtype"),
    Row("weights: NUL in a name", raw_weights(with_header('{"a\\u0000b":' + ONE + "}", bytes(4))), W + "byte .*NUL"),
    Row("weights: line end in a name", raw_weights(with_header('{"a\\nb":' + ONE + "}", bytes(8))), W + "its tensors take 4"),
    Row("weights: raw line end in a name", raw_weights(with_header('{"a\nb":' + ONE + "}", bytes(4))), W + "byte .*holds the byte 0x0a"),
    Row("weights: escape sequences in a name", raw_weights(with_header(
        '{"\\u001b[31mred\\u001b]0;title\\u0007":' + ONE.replace("F32", "F33") + "}", bytes(4))), W + r".*\\x1b\[31mred"),
    Row("weights: bidirectional marks in a name", raw_weights(with_header('{"a\\u202eb":' + ONE.replace("F32", "F33") + "}", bytes(4))),
        W + r".*a\\xe2\\x80\\xaeb"),
    Row("weights: no UTF-8", raw_weights(with_header(b'{"a\xff":' + ONE.encode() + b"}", bytes(4))), W + "byte .*0xff"),
    Row("weights: half of a surrogate pair", raw_weights(with_header('{"\\ud83d":' + ONE + "}", bytes(4))), W + "byte .*wrong escape"),
    Row("weights: name of a megabyte", raw_weights(with_header('{"' + "n" * 10**6 + '":' + ONE.replace("F32", "F33") + "}", bytes(4))),
        W + "byte .*n{80}\".*not supported"),
    Row("weights: tensor is missing", weights(lambda h_, d: without(h_, d, "h.0.ln_1.weight")), W + r"lacks 1 of .*h\.0\.ln_1\.weight"),
    Row("weights: no tensors", raw_weights(with_header("{}", b"")), W + "lacks .* of the model's"),
    Row("weights: NaN among them", number_at(np.nan), W + r'tensor "h\.0\.attn\.c_attn\.weight": element 1234 is NaN'),
    Row("weights: infinity among them", number_at(-np.inf), W + ".*element 1234 is -infinite"),
    Row("weights: F64 that no float holds", weights(widened), W + r'tensor "ln_f\.weight": element 3 is infinite'),
    Row("weights: a folder", lambda f: run("gpt", "--init", f), "a folder, not a file"),
    Row("weights: a pipe", lambda f: (os.mkfifo(f / "w.safetensors"), run("gpt", "--init", f / "w.safetensors"))[1], W + "not a file"),
    Row("weights: /dev/zero", lambda f: run("gpt", "--init", "/dev/zero"), "/dev/zero: not a file"),
    Row("weights: links in a circle", lambda f: (os.symlink("w", f / "v"), os.symlink("v", f / "w"), run("gpt", "--init", f / "w"))[2],
        "/w: .*symbolic links"),
    Row("weights: below a file", lambda f: run("gpt", "--init", wrote(f, "a", "x") / "w.safetensors"), "a/w.safetensors: Not a directory"),
    Row("weights: a path of 5000 letters", lambda f: run("gpt", "--init", "w" * 5000), "www.*name too long|www.*\\.\\.\\."),
    Row("weights: a path with escape sequences", lambda f: run("gpt", "--init", f / ESCAPE), r"\\x1b\[31mred.*No such file"),
    Row("weights: NaN, under MPI", under_mpi(number_at(np.nan)), "element 1234 is NaN"),
]


# ---- index files ----

def index(text, shards=True):
    def make(folder):
        if shards:
            wrote(folder, "a.safetensors", saved()["model.safetensors"])
        names = list(header_of(saved()["model.safetensors"])[0])
        content = text(names) if callable(text) else text
        return run("gpt", "--init", wrote(folder, "w.index.json", content), "--save", folder / "out")
    return make


def index_of(change):
    """All tensors in a.safetensors, but what CHANGE says."""
    return index(lambda names: json.dumps({"weight_map": {**{n: "a.safetensors" for n in names}, **change}}))


I = r"w\.index\.json: .*"
INDEX = [
    Row("index: empty", index(""), I + "byte 0: the text ends"),
    Row("index: no JSON", index("weights"), I + "byte 0: an object"),
    Row("index: no map", index('{"metadata": {}}'), I + 'no "weight_map"'),
    Row("index: a list for the map", index('{"weight_map": ["a"]}'), I + "byte 15: an object"),
    Row("index: two maps", index('{"weight_map": {}, "weight_map": {}}'), I + "byte .*weight_map occurs twice"),
    Row("index: number for a file", index_of({"wte.weight": 3}), I + "byte .*string"),
    Row("index: file that is missing", index_of({"wte.weight": "b.safetensors"}), r"b\.safetensors: No such file"),
    Row("index: file above", index_of({"wte.weight": "../a.safetensors"}), I + r'"\.\./a\.safetensors" is no plain file name'),
    Row("index: absolute file", index_of({"wte.weight": "/etc/passwd"}), I + '"/etc/passwd" is no plain file name'),
    Row("index: .. for a file", index_of({"wte.weight": ".."}), I + 'is no plain file name'),
    Row("index: no name for a file", index_of({"wte.weight": ""}), I + 'is no plain file name'),
    Row("index: the index for a file", index_of({"wte.weight": "w.index.json"}), I + "not a safetensors file"),
    Row("index: tensor that the file lacks", index_of({"wtf.weight": "a.safetensors"}), I + r'tensor "wtf\.weight" is not in .*a\.safetensors'),
    Row("index: lacks a tensor", index(lambda names: json.dumps({"weight_map": {n: "a.safetensors" for n in names[1:]}})), I + "lacks 1 of"),
    Row("index: tensor twice", index(lambda names: '{"weight_map": {' + ", ".join(f'"{n}": "a.safetensors"' for n in [*names, names[0]]) + "}}"),
        I + "two tensors are called"),
    Row("index: file with escape sequences", index_of({"wte.weight": ESCAPE}), r"\\x1b\[31mred.*No such file"),
    Row("index: file of another kind", lambda f: (wrote(f, "c", "text, not weights"), index('{"weight_map": {"x": "c"}}')(f))[1],
        "/c: not a safetensors file"),
    Row("index: a pipe", lambda f: (os.mkfifo(f / "w.json"), run("gpt", "--init", f / "w.json"))[1], r"w\.json: not a file"),
]


# ---- arrays ----

def good_arrays(kind):
    rng = np.random.default_rng(1)
    if kind == "mlp":
        return {"x": rng.standard_normal((2, 16, 8)).astype(np.float32), "y": rng.standard_normal((2, 16, 4)).astype(np.float32)}
    return {"inputs": np.zeros((2, 8, 64), np.int32), "targets": np.zeros((2, 8, 64), np.int32)}


def arrays(kind="mlp", name=None, change=None, raw=None):
    """A row's command: npy: data with array NAME changed, or its bytes."""
    def make(folder):
        for n, a in good_arrays(kind).items():
            if n == name and change is not None:
                a = change(a)
            if a is not None:
                np.save(wrote(folder, f"d/{n}.npy", b""), a, allow_pickle=True)
            else:
                (folder / "d" / f"{n}.npy").unlink(missing_ok=True)
            if n == name and raw is not None:
                path = folder / "d" / f"{n}.npy"
                path.write_bytes(raw(path.read_bytes()))
        return run(kind, "--data", f"npy:{folder / 'd'}", "--metrics", folder / "m.jsonl", "--save", folder / "out")
    return make


def dict_edited(old, new):
    """The header's text edited and kept as long as it was."""
    def edit(b):
        n = struct.unpack("<H", b[8:10])[0]
        text = b[10:10 + n]
        assert old in text, (old, text)
        changed = text.replace(old, new, 1).rstrip()
        return b[:8] + struct.pack("<H", max(n, len(changed))) + changed.ljust(n) + b[10 + n:]
    return arrays(name="x", raw=edit)


def set_at(place, value):
    def change(a):
        a[place] = value
        return a
    return change


def array_folder(folder):
    command = arrays(name="x", change=lambda a: None)(folder)
    (folder / "d" / "x.npy").mkdir()
    return command


X = r"x\.npy: .*"
ARRAYS = [
    Row("npy: empty", arrays(name="x", raw=lambda b: b""), X + "not a .npy file"),
    Row("npy: bad magic", arrays(name="x", raw=lambda b: b"\x93NUMPX" + b[6:]), X + "not a .npy file"),
    Row("npy: only the magic", arrays(name="x", raw=lambda b: b[:8]), X + "cut short"),
    Row("npy: version 9", arrays(name="x", raw=lambda b: b[:6] + b"\x09" + b[7:]), X + "version 9; 1 to 3"),
    Row("npy: version 0", arrays(name="x", raw=lambda b: b[:6] + b"\x00" + b[7:]), X + "version 0"),
    Row("npy: header past the end", arrays(name="x", raw=lambda b: b[:8] + b"\xff\xff" + b[10:40]), X + "cut short: a header of 65535"),
    Row("npy: version 2, header of 4 GB", arrays(name="x", raw=lambda b: b[:6] + b"\x02\x00\xff\xff\xff\xff" + b[12:]), X + "cut short: a header of 4294967295"),
    Row("npy: data cut short", arrays(name="x", raw=lambda b: b[:-5]), X + "its shape takes 1024 bytes, but the file holds 1019"),
    Row("npy: trailing bytes", arrays(name="x", raw=lambda b: b + b"xx"), X + "its shape takes 1024 bytes, but the file holds 1026"),
    Row("npy: header that is code", dict_edited(b"{'descr'", b"__import__('os').system('touch /tmp/x')"), X + "byte 10: the .npy header is not valid"),
    Row("npy: value that is an expression", dict_edited(b"False", b"not 1"), X + r"byte \d+: the .npy header"),
    Row("npy: key twice", dict_edited(b"'fortran_order': False", b"'descr': '<f4'"), X + r"byte \d+: the .npy header"),
    Row("npy: key that is unknown", dict_edited(b"'fortran_order'", b"'fortran_odor'"), X + r"byte \d+: the .npy header"),
    Row("npy: no fortran_order", dict_edited(b"'fortran_order': False, ", b""), X + "has no fortran_order"),
    Row("npy: empty dict", arrays(name="x", raw=lambda b: b[:10] + b"{}".ljust(struct.unpack("<H", b[8:10])[0]) + b[-1024:]), X + "has no descr"),
    Row("npy: Fortran order", arrays(name="x", change=lambda a: np.asfortranarray(a)), X + "in Fortran order; store it in C order"),
    Row("npy: big-endian", arrays(name="x", change=lambda a: a.astype(">f4")), X + r"dtype >f4 \(big-endian\) is not supported; store"),
    Row("npy: objects", arrays(name="x", change=lambda a: a.astype(object)), X + r"dtype \|O is not supported"),
    Row("npy: complex numbers", arrays(name="x", change=lambda a: a.astype(np.complex64)), X + "dtype <c8 is not supported"),
    Row("npy: text", arrays(name="x", change=lambda a: a.astype("U4")), X + "dtype <U4 is not supported"),
    Row("npy: structures", arrays(name="x", change=lambda a: np.zeros(3, [("a", "<f4")])), X + "structured arrays are not supported"),
    Row("npy: dtype with escape sequences", dict_edited(b"'<f4'", b"'" + ESCAPE.encode() + b"'"), X + r"dtype \\x1b\[31mred"),
    Row("npy: dtype of a thousand letters", dict_edited(b"'<f4'", b"'" + b"f" * 1000 + b"'"), X + "the .npy header is not valid"),
    Row("npy: shape that overflows", dict_edited(b"(2, 16, 8)", b"(4294967296, 4294967296)"), X + "overflows"),
    Row("npy: dimension past 64 bits", dict_edited(b"(2, 16, 8)", b"(99999999999999999999,)"), X + "overflows"),
    Row("npy: bytes that overflow", dict_edited(b"(2, 16, 8)", b"(4611686018427387904,)"), X + "or more, but the file holds 1024"),
    Row("npy: a claim of 1e9 samples", dict_edited(b"(2, 16, 8)", b"(1000000000, 8)"), X + "takes 32000000000 bytes"),
    Row("npy: negative dimension", dict_edited(b"(2, 16, 8)", b"(-2, 16, 8)"), X + r"byte \d+: "),
    Row("npy: nine dimensions", dict_edited(b"(2, 16, 8)", b"(1,1,1,1,1,1,2,16,8)"), X + "more than 8 dimensions"),
    Row("npy: shape that is a list", dict_edited(b"(2, 16, 8)", b"[2, 16, 8]"), X + r"byte \d+: "),
    Row("npy: wrong rank", arrays(name="x", change=lambda a: a.reshape(-1)), X + r"its shape is \[256\], but input \"x\" takes \[any, 8\], any number of samples, or \[any, 16, 8\], which are batches"),
    Row("npy: wrong width", arrays(name="x", change=lambda a: a[:, :, :7]), X + r"its shape is \[2, 16, 7\], but input \"x\" takes \[any, 16, 8\]: 7 is not 8, in dimension 3 of 3"),
    Row("npy: wrong width of samples", arrays(name="x", change=lambda a: a.reshape(-1, 8)[:, :5]), X + r"its shape is \[32, 5\], but input \"x\" takes \[any, 8\]: 5 is not 8, in dimension 2 of 2"),
    Row("npy: no samples", arrays(name="x", change=lambda a: a[:0]), X + r"its shape is \[0, 16, 8\]: it holds no samples"),
    Row("npy: fewer samples than the other", arrays(name="y", change=lambda a: a[:1]), r"y\.npy holds 16 samples, but .*x\.npy holds 32"),
    Row("npy: integers for floats", arrays(name="x", change=lambda a: a.astype(np.int32)), X + "its dtype is <i4, but input \"x\" takes <f4"),
    Row("npy: floats for integers", arrays("gpt", "inputs", lambda a: a.astype(np.float32)), r"inputs\.npy: its dtype is <f4"),
    Row("npy: NaN", arrays(name="x", change=set_at((0, 2, 3), np.nan)), X + 'element 19 is NaN; input "x" takes finite'),
    Row("npy: infinity", arrays(name="y", change=set_at((0, 15, 3), -np.inf)), r"y\.npy: element 63 is -infinite"),
    Row("npy: F64 that no float holds", arrays(name="x", change=lambda a: set_at((0, 0, 1), 1e300)(a.astype(np.float64))), X + "element 1 is infinite"),
    Row("npy: id past the vocabulary", arrays("gpt", "inputs", set_at((0, 7, 63), 512)), r'inputs\.npy: element 511 is 512, but input "inputs" takes 0 to 511'),
    Row("npy: negative id", arrays("gpt", "inputs", set_at((0, 0, 0), -1)), r"inputs\.npy: element 0 is -1"),
    Row("npy: label out of range", arrays("gpt", "targets", set_at((0, 1, 0), -101)), r"targets\.npy: element 64 is -101"),
    Row("npy: id past 32 bits", arrays("gpt", "inputs", lambda a: set_at((0, 0, 5), 2**32)(a.astype(np.int64))), r"inputs\.npy: element 5 is 4294967296"),
    Row("npy: array is missing", arrays(name="y", change=lambda a: None), r"y\.npy: No such file"),
    Row("npy: array is a folder", array_folder, X + "a folder, not a file"),
    Row("npy: folder is missing", lambda f: run("mlp", "--data", f"npy:{f / 'none'}"), "none: no such folder; npy: takes a folder"),
    Row("npy: folder is a file", lambda f: run("mlp", "--data", f"npy:{wrote(f, 'file', 'x')}"), "file: no such folder"),
    Row("npy: id past the vocabulary, under MPI", under_mpi(arrays("gpt", "inputs", set_at((0, 3, 5), 700))), r"inputs\.npy: element 197 is 700"),
]


# ---- token shards and text ----

def shard(magic=20240520, version=1, count=1000, data=None, dtype=np.uint16):
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, count
    return header.tobytes() + (np.zeros(1000, dtype).tobytes() if data is None else data)


def tokens(content, kind="tokens", pattern="s.bin"):
    def make(folder):
        wrote(folder, "s.bin", content)
        return run("gpt", "--data", f"{kind}:{folder / pattern}", "--metrics", folder / "m.jsonl", "--save", folder / "out")
    return make


def unreadable(folder):
    path = wrote(folder, "s.bin", shard())
    path.chmod(0)
    command = run("gpt", "--data", f"tokens:{path}")
    if os.getuid() != 0:
        return command
    for p in (*folder.parents, folder, plan("gpt").dir):  # root reads everything: run as nobody
        if h.TMP in (p, *p.parents):
            p.chmod(0o755)
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]


def shrinking(folder):
    """The file loses almost all of its bytes once training goes on."""
    path = wrote(folder, "s.txt", b"a" * (8 << 20))
    script = ("import os, subprocess, sys\n"
              "p = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)\n"
              "p.stdout.readline(), p.stdout.readline()\n"
              "os.truncate(sys.argv[1], 4096)\n"
              "p.stdout.read()\n"
              "sys.exit(p.wait())\n")
    return [sys.executable, "-c", script, path, *run("gpt", "--data", f"text:{path}", "--steps", "10000000")]


S = r"s\.bin: .*"
TOKENS = [
    Row("tokens: empty", tokens(b""), S + "holds 0 tokens, but a sample takes"),
    Row("tokens: one byte", tokens(b"\x01"), S + r"no token shard: .*odd number of bytes \(1\)"),
    Row("tokens: header cut short", tokens(shard()[:500]), S + "cut short: a token shard's header takes 1024 bytes, the file has 500"),
    Row("tokens: only the magic", tokens(shard()[:4]), S + "cut short"),
    Row("tokens: count too high", tokens(shard(count=1001)), S + "its header counts 1001 tokens, 3026 bytes in all, but the file has 3024"),
    Row("tokens: count too low", tokens(shard(count=999)), S + "its header counts 999 tokens"),
    Row("tokens: count of 4e9", tokens(shard(count=-1)), S + "its header counts 4294967295 tokens"),
    Row("tokens: header without tokens", tokens(shard(count=0, data=b"")), S + "holds 0 tokens"),
    Row("tokens: wrong version", tokens(shard(version=2)), S + "token shard of version 2; version 1 is supported"),
    Row("tokens: wrong version of wide tokens", tokens(shard(magic=20240801, version=3, dtype=np.uint32)), S + "version 3"),
    Row("tokens: big-endian", tokens(np.frombuffer(shard(), "<i4").byteswap().tobytes()), S + "a big-endian token shard"),
    Row("tokens: bad magic", tokens(shard(magic=20240521)), S + "token shard of magic number 20240521; 20240520 and 20240801 are supported"),
    Row("tokens: another kind of file", tokens(b"\x7fELF" * 500), S + r"element \d+ is \d+, but .*without a header a file is read as raw"),
    Row("tokens: odd number of bytes", tokens(bytes(2001)), S + r"no token shard: .*odd number of bytes \(2001\)"),
    Row("tokens: token past the vocabulary", tokens(shard(data=np.full(1000, 600, np.uint16).tobytes())), S + r"element \d+ is 600, but input"),
    Row("tokens: token past 31 bits", tokens(shard(magic=20240801, data=np.full(1000, 2**31, np.uint32).tobytes())), S + "is 2147483648"),
    Row("tokens: shorter than a sample", tokens(bytes(20)), S + "holds 10 tokens, but a sample takes 65"),
    Row("tokens: .npy file", tokens(b"\x93NUMPY\x01\x00" + bytes(2000)), S + "a .npy file, not a token shard; use npy:DIR"),
    Row("tokens: no file matches", lambda f: run("gpt", "--data", f"tokens:{f}/none*.bin"), r"none\*\.bin: no such file"),
    Row("tokens: pattern with escape sequences", lambda f: run("gpt", "--data", f"tokens:{f}/{ESCAPE}*"), r"\\x1b\[31mred.*: no such file"),
    Row("tokens: file with escape sequences", lambda f: (wrote(f, ESCAPE.replace("/", "") + ".bin", b"x"), run("gpt", "--data", f"tokens:{f}/*.bin"))[1],
        r"\\x1b\[31mred.*no token shard"),
    Row("tokens: one of many is damaged", lambda f: (wrote(f, "a1.bin", shard()), wrote(f, "a2.bin", shard(count=7)),
                                                       run("gpt", "--data", f"tokens:{f}/a*.bin"))[2], r"a2\.bin: its header counts 7"),
    Row("tokens: a folder", lambda f: ((f / "s.bin").mkdir(), run("gpt", "--data", f"tokens:{f}/s.bin"))[1], S + "a folder, not a file"),
    Row("tokens: a pipe", lambda f: (os.mkfifo(f / "s.bin"), run("gpt", "--data", f"tokens:{f}/s.bin"))[1], S + "not a file"),
    Row("tokens: /dev/zero", lambda f: run("gpt", "--data", "tokens:/dev/zero"), "/dev/zero: not a file"),
    Row("tokens: links in a circle", lambda f: (os.symlink("b.bin", f / "a.bin"), os.symlink("a.bin", f / "b.bin"),
                                                run("gpt", "--data", f"tokens:{f}/a.bin"))[2], r"a\.bin: .*(symbolic links|no such file)"),
    Row("tokens: unreadable", unreadable, S + "Permission denied"),
    Row("tokens: for a model of floats", lambda f: run("mlp", "--data", f"tokens:{wrote(f, 's.bin', shard())}"), 'cannot fill input "x"'),
    Row("text: empty", tokens(b"", "text"), S + "holds 0 tokens, but a sample takes"),
    Row("text: one byte", tokens(b"a", "text"), S + "holds 1 tokens, but a sample takes"),
    Row("text: shorter than a sample", tokens(b"a" * 64, "text"), S + "holds 64 tokens, but a sample takes 65"),
    Row("text: missing", lambda f: run("gpt", "--data", f"text:{f}/none.txt"), r"none\.txt: No such file"),
    Row("text: a folder", lambda f: run("gpt", "--data", f"text:{f}"), "a folder, not a file"),
    Row("text: a pipe", lambda f: (os.mkfifo(f / "p"), run("gpt", "--data", f"text:{f}/p"))[1], "p: not a file"),
    Row("text: /dev/urandom", lambda f: run("gpt", "--data", "text:/dev/urandom"), "/dev/urandom: not a file"),
    Row("text: cut short while it is read", shrinking, "bus error: a file of data or weights was cut short", status=(1,)),
    Row("text: missing, under MPI", under_mpi(lambda f: run("gpt", "--data", f"text:{f}/none.txt")), r"none\.txt: No such file"),
]


# ---- checkpoints ----

def checkpoint(change):
    """A row's command: --resume from the saved checkpoint whose {name: bytes} CHANGE edits."""
    def make(folder):
        for name, content in (change(dict(saved())) or {}).items():
            wrote(folder, f"c/step-1/{name}", content)
        (folder / "c" / "step-1").mkdir(parents=True, exist_ok=True)
        return run("gpt", "--resume", folder / "c", "--steps", "2", "--metrics", folder / "m.jsonl", "--save", folder / "out")
    return make


def state(**fields):
    def change(files):
        s = json.loads(files["state.json"])
        for key, value in fields.items():
            s.pop(key) if value is None else s.update({key: value})
        return {**files, "state.json": json.dumps(s).encode()}
    return checkpoint(change)


def state_text(edit):
    return checkpoint(lambda files: {**files, "state.json": edit(files["state.json"].decode()).encode()})


def flipped(name):
    """One bit of a number of file NAME."""
    def change(files):
        b = bytearray(files[name])
        b[-40] ^= 1
        return {**files, name: bytes(b)}
    return checkpoint(change)


def of_another_model(files):
    """The weights without one tensor, as if they were right."""
    header, data = header_of(files["model.safetensors"])
    content = without(header, data, "h.0.ln_1.weight")
    s = json.loads(files["state.json"])
    s["files"]["model.safetensors"]["bytes"] = len(content)
    return {**files, "model.safetensors": content, "state.json": json.dumps(s).encode()}


def of_a_deeper_model(files):
    """The weights and one tensor more."""
    header, data = header_of(files["model.safetensors"])
    header["h.9.ln_1.weight"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    content = with_header(json.dumps(header), data + bytes(4))
    s = json.loads(files["state.json"])
    s["files"]["model.safetensors"]["bytes"] = len(content)
    return {**files, "model.safetensors": content, "state.json": json.dumps(s).encode()}


J = r"state\.json: .*"
CHECKPOINTS = [
    Row("checkpoint: no folder", lambda f: run("gpt", "--resume", f / "none"), "none: no checkpoint"),
    Row("checkpoint: empty folder", lambda f: ((f / "c").mkdir(), run("gpt", "--resume", f / "c"))[1], "c: no checkpoint"),
    Row("checkpoint: a file", lambda f: run("gpt", "--resume", wrote(f, "c", "x")), "c: not a folder"),
    Row("checkpoint: no state.json", checkpoint(lambda files: {n: b for n, b in files.items() if n != "state.json"}), J + "No such file"),
    Row("checkpoint: empty state.json", state_text(lambda t: ""), J + "byte 0"),
    Row("checkpoint: cut state.json", state_text(lambda t: t[:60]), J + r"byte \d+"),
    Row("checkpoint: a list", state_text(lambda t: "[]"), J + "byte 0: an object"),
    Row("checkpoint: no step", state(step=None), J + "tells no step"),
    Row("checkpoint: no seed", state(seed=None), J + "tells no step and seed"),
    Row("checkpoint: step -1", state(step=-1), J + "step -1"),
    Row("checkpoint: step 1e30", state_text(lambda t: re.sub(r'"step": \d+', '"step": 1' + "0" * 30, t)), J + "byte .*past 64 bits"),
    Row("checkpoint: step 1e15", state(step=10**15), J + "step 1000000000000000"),
    Row("checkpoint: step 1.5", state(step=1.5), J + "byte .*whole number"),
    Row("checkpoint: step NaN", state(step=float("nan")), J + "byte .*whole number"),
    Row("checkpoint: step in words", state(step="one"), J + "byte .*whole number"),
    Row("checkpoint: step twice", state_text(lambda t: t.replace('"seed"', '"step": 1, "seed"', 1)), J + "byte .*step occurs twice"),
    Row("checkpoint: batch of 2^62", state(batch=2**62), J + "in batches of 4611686018427387904"),
    Row("checkpoint: negative samples", state(samples=-2), J + "-2 samples"),
    Row("checkpoint: samples past 64 bits", state_text(lambda t: re.sub(r'"samples": \d+', '"samples": 9223372036854775808', t)), J + "byte .*past 64 bits"),
    Row("checkpoint: setting that is infinite", state_text(lambda t: re.sub(r'"lr": [^,]*', '"lr": 1e999', t)), J + "byte .*double"),
    Row("checkpoint: number for the settings", state(settings=3), J + "byte .*object"),
    Row("checkpoint: list for the files", state(files=[]), J + "byte .*object"),
    Row("checkpoint: no optimiser in the files", state_text(lambda t: t.replace('"optimizer.safetensors"', '"optimiser.safetensors"')), J + r"byte .*optimizer\.safetensors is not listed"),
    Row("checkpoint: sum that is none", state_text(lambda t: re.sub(r'"sum": "[0-9a-f]{16}"', '"sum": "xyz"', t, 1)), J + "byte .*16 hexadecimal"),
    Row("checkpoint: a thousand lists in each other", state_text(lambda t: '{"x": ' + "[" * 1000 + "]" * 1000 + "}"), J + "byte .*nested deeper"),
    Row("checkpoint: state.json is a pipe", lambda f: (checkpoint(lambda files: {n: b for n, b in files.items() if n != "state.json"})(f),
                                                        os.mkfifo(f / "c/step-1/state.json"))[0], J + "not a file"),
    Row("checkpoint: no optimiser state", checkpoint(lambda files: {n: b for n, b in files.items() if n != "optimizer.safetensors"}), r"optimizer\.safetensors: No such file"),
    Row("checkpoint: weights cut short", checkpoint(lambda files: {**files, "model.safetensors": files["model.safetensors"][:-8]}), r"model\.safetensors: damaged: it holds"),
    Row("checkpoint: empty weights", checkpoint(lambda files: {**files, "model.safetensors": b""}), r"model\.safetensors: damaged: it holds 0 bytes"),
    Row("checkpoint: a bit of the weights", flipped("model.safetensors"), r"model\.safetensors: .*(damaged|sum|differ)"),
    Row("checkpoint: a bit of the optimiser state", flipped("optimizer.safetensors"), r"optimizer\.safetensors: .*(damaged|sum|differ)"),
    Row("checkpoint: lacks a tensor", checkpoint(of_another_model), r"model\.safetensors: lacks 1 of"),
    Row("checkpoint: a tensor too many", checkpoint(of_a_deeper_model), r"model\.safetensors: of another model .*1 tensor is not in this one: h\.9"),
    Row("checkpoint: files exchanged", checkpoint(lambda files: {**files, "model.safetensors": files["optimizer.safetensors"],
                                                                 "optimizer.safetensors": files["model.safetensors"]}), r"model\.safetensors: "),
    Row("checkpoint: of another seed", lambda f: [*checkpoint(lambda files: files)(f), "--seed", "99"], "was trained with seed .*--seed 99"),
    Row("checkpoint: step -1, under MPI", under_mpi(state(step=-1)), J + "step -1"),
]


# ---- options ----

def options(*args):
    return lambda folder: run("gpt", *(a.replace("FOLDER", str(folder)) for a in args))


OPTIONS = [
    Row("options: --steps 1e99", options("--steps", "1e99"), '--steps takes a whole number.*"1e99"'),
    Row("options: --steps 2^64", options("--steps", "18446744073709551616"), "--steps takes a whole number"),
    Row("options: --steps -1", options("--steps", "-1"), "--steps takes a whole number"),
    Row("options: --steps 1.5", options("--steps", "1.5"), "--steps takes a whole number"),
    Row("options: --steps of nothing", options("--steps="), "--steps takes a value"),
    Row("options: --steps with escape sequences", options("--steps", ESCAPE), r"--steps takes .*\\x1b\[31mred"),
    Row("options: --steps twice", options("--steps", "1", "--steps", "2"), "--steps is given twice"),
    Row("options: --data twice", options("--data", "synthetic", "--data=synthetic"), "--data is given twice"),
    Row("options: --seed -1", options("--seed", "-1"), "--seed takes a whole number"),
    Row("options: --seed 0x10", options("--seed", "0x10"), "--seed takes a whole number"),
    Row("options: --lr nan", options("--lr", "nan"), "--lr takes a number"),
    Row("options: --lr inf", options("--lr", "inf"), "--lr takes a number"),
    Row("options: --lr 1e999", options("--lr", "1e999"), "--lr takes a number"),
    Row("options: --lr -0.1", options("--lr", "-0.1"), "--lr takes a number"),
    Row("options: --lr 0.1x", options("--lr", "0.1x"), "--lr takes a number"),
    Row("options: --threads 0", options("--threads", "0"), '--threads takes a whole number from 1 to 1024, not "0"'),
    Row("options: --threads x", options("--threads", "x"), '--threads takes a whole number from 1 to 1024, not "x"'),
    Row("options: value is missing", options("--save"), "--save takes a value"),
    Row("options: an option for a value", options("--save", "--seed", "1"), "--save takes a value, but --seed follows"),
    Row("options: unknown", options("--stepz", "3"), 'no option --stepz; did you mean "--steps"'),
    Row("options: unknown, a thousand letters", options("--" + "z" * 1000), "no option --zzz"),
    Row("options: a word", options("train"), '"train" is no option'),
    Row("options: an empty word", options(""), '"" is no option'),
    Row("options: a word with escape sequences", options(ESCAPE), r"\\x1b\[31mred.*is no option"),
    Row("options: unknown data", options("--data", "txt:FOLDER/x"), '"txt:.*did you mean "text"'),
    Row("options: data without a file", options("--data", "text:"), "--data text: names no file"),
    Row("options: --init and --resume", options("--init", "a", "--resume", "b"), "--init and --resume"),
    Row("options: --metrics into a folder", options("--metrics", "FOLDER"), "Is a directory"),
    Row("options: --metrics in no folder", options("--metrics", "FOLDER/none/m.jsonl"), "No such file"),
    Row("options: --dump-grads in no folder", options("--dump-grads", "FOLDER/none/g"), "No such file"),
    Row("options: --dump-grads to a folder", options("--dump-grads", "FOLDER"), "not a file"),
    Row("options: --save below a file", lambda f: run("gpt", "--save", wrote(f, "file", "x") / "out"), "file: (Not a directory|File exists)|file/out: Not a directory"),
    Row("options: under ulimit -d", lambda f: ["prlimit", "--data=100000000", *run("gpt")], "of address space, more than `ulimit -d` leaves", status=(1,)),
    Row("options: under ulimit -v", lambda f: ["prlimit", "--as=200000000", *run("gpt")], "of address space, more than `ulimit -v` leaves", status=(1,)),
    Row("options: --save to a path of 5000 letters", options("--save", "s" * 5000), "too long"),
]

ROWS = [*WEIGHTS, *INDEX, *ARRAYS, *TOKENS, *CHECKPOINTS, *OPTIONS]


if __name__ == "__main__":
    words = [a for a in sys.argv[1:] if not a.startswith("-")]
    for row in ROWS:
        if not words or any(w in row.name for w in words):
            h.guarded(row.name, check_row, row)
    sys.exit(h.finish())
