"""Bytes that the emitted kernels of a plan on one device move, as the shim counted them, against the least there can be.

    calls = fused_bytes.calls(p, micro_batches=1)                  # of one step, from stage0.c
    rows = fused_bytes.report(path)                                # of that step: MPP_SHIM_REPORT
    faults = fused_bytes.faults(p, calls, rows)                    # {function: what is wrong}

The least: each tensor that a call takes is read once, or written once. kernels.h says which of a call's arguments are read and what
an element takes, stage0.h how many elements each tensor has, stage0.c which tensors are meant. kernels.cu is only searched for the
names of its kernels, and for accesses to memory that nothing would count.
"""
import collections
import re
from math import prod

SIZES = {"float": 4, "int32_t": 4, "mpp_bf16": 2, "mpp_f16": 2}
Parameter = collections.namedtuple("Parameter", "name type read pointer")
Operand = collections.namedtuple("Operand", "name elements bytes")
# A call in FUNCTION of stage0.c, run TIMES a step; ADDED: how often each sum is added to what is there.
Call = collections.namedtuple("Call", "name function phase times inputs outputs added values")
Row = collections.namedtuple("Row", "launches read written again parts_read parts_written")


def functions(p):
    """{name: [Parameter]} of kernels.h."""
    out = {}
    for name, parameters in re.findall(r"^void (\w+)\((.*?)\);", (p.dir / "kernels.h").read_text(), re.M | re.S):
        out[name] = [Parameter(t.split()[-1].lstrip("*"), t.replace("const ", "").split()[0], "const " in t, "*" in t)
                     for t in re.sub(r"\s+", " ", parameters).split(", ")[1:]]
    return out


def tensors(p):
    """{struct: {field: elements, or the struct that it is an array of}} of stage0.h."""
    out = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", (p.dir / "stage0.h").read_text(), re.M | re.S):
        fields = out[name] = {}
        for field, shape in re.findall(r"^\s+\w+ \*(\w+);\s+/\* \[(.*?)\]", body, re.M | re.S):
            fields[field] = prod(int(d.split()[-1]) for d in shape.split(",") if d.strip())
        for kind, field in re.findall(r"^\s+struct (\w+) (\w+)\[", body, re.M):
            fields[field] = kind
    return out


def elements(structs, state, argument):
    """Of "t->attn_q", where t is a struct STATE, "p->h[3].res2" and the like."""
    path = re.sub(r"\[.*?\]", "", argument.strip().lstrip("&")).replace("->", ".").split(".")
    at = "plan_state" if path[0] == "p" else state
    for field in path[1:]:
        at = structs[at][field]
    return at


def bodies(p):
    """{function: (the struct that t points to, [(indent, line)])} of stage0.c."""
    out, name = {}, None
    text = re.sub(r"/\*.*?\*/", "", (p.dir / "stage0.c").read_text(), flags=re.S)
    lines = []
    for line in text.split("\n"):
        if lines and lines[-1].strip() and line.strip() and lines[-1].rstrip()[-1] not in ";{}" and not re.match(r"\s*for \(.*\)$", lines[-1]):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    for line in lines:
        head = re.match(r"(?:static )?void (\w+)\(struct mpp_rank \*r(?:, const struct (\w+) \*t)?\)$", line.strip().rstrip("{").strip())
        if head:
            name, out[head.group(1)] = head.group(1), (head.group(2), [])
        elif name:
            out[name][1].append((len(line) - len(line.lstrip()), line.strip()))
    return out


def repeats(lines):
    """(line, how often a call of the function runs it)."""
    loops = []
    for indent, line in lines:
        while loops and line and indent <= loops[-1][0]:
            loops.pop()
        loop = re.match(r"for \(int \w+ = (\d+); \w+ (<|>=) (\d+); \w+(\+\+|--)\)", line)
        if line.startswith("for") and not loop:
            raise ValueError(f"a loop that nobody can count: {line}")
        if loop:
            first, _, last, way = loop.groups()
            loops.append((indent, int(last) - int(first) if way == "++" else int(first) - int(last) + 1))
        yield line, prod(n for _, n in loops)


def calls(p, micro_batches):
    """Every call of a function of kernels.h in a step."""
    known, structs, functions_of_stage = functions(p), tensors(p), bodies(p)
    out = []

    def walk(function, phase, times):
        state, lines = functions_of_stage[function]
        for line, n in repeats(lines):
            call = re.match(r"(\w+)\(r(?:, (.*))?\);$", line)
            if call and call.group(1) in functions_of_stage:
                walk(call.group(1), phase, times * n)
            elif call and call.group(1) in known:
                out.append(understood(known[call.group(1)], structs, state, call, function, phase, times * n, micro_batches))

    for phase, times in (("prologue", micro_batches), ("forward", micro_batches), ("backward", micro_batches), ("update", 1)):
        if f"stage0_{phase}" in functions_of_stage:
            walk(f"stage0_{phase}", phase, times)
    return out


def understood(parameters, structs, state, call, function, phase, times, micro_batches):
    arguments = call.group(2).split(", ")
    if len(arguments) != len(parameters):
        raise ValueError(f"not understood: {call.group()}")
    inputs, outputs, added, values, adds = {}, {}, {}, [], 0
    for i, (parameter, argument) in enumerate(zip(parameters, arguments)):
        if parameter.type == "bool":  # of the output that follows
            output = next(k for k in range(i, len(parameters)) if parameters[k].pointer and not parameters[k].read)
            adds = {"false": 0, "true": times, "later": times // micro_batches * (micro_batches - 1)}[argument]
            added[arguments[output]] = adds
        elif parameter.pointer:
            n = elements(structs, state, argument)
            (inputs if parameter.read else outputs)[argument] = Operand(parameter.name, n, n * SIZES[parameter.type])
        else:
            values.append(argument)
    return Call(call.group(1), function, phase, times, inputs, outputs, added, values)


def report(path):
    """{function: (the kernel, the kernel that adds parts up)} of the shim's report."""
    out = {}
    for line in path.read_text().splitlines():
        *numbers, kernel = line.split(" ", 6)
        name = re.match(r"(\w+?)_(kernel|finish)(?:_\d+)?$", kernel.strip("()").split("<")[0])
        if name:
            rows = out.setdefault(name.group(1), [Row(0, 0, 0, 0, 0, 0), Row(0, 0, 0, 0, 0, 0)])
            at = name.group(2) == "finish"
            rows[at] = Row(*(a + int(b) for a, b in zip(rows[at], numbers)))
    return out


def least(calls_of_one):
    """Bytes read and written by these calls."""
    read = written = 0
    for c in calls_of_one:
        read += c.times * sum(o.bytes for o in c.inputs.values()) + sum(n * c.outputs[y].bytes for y, n in c.added.items())
        written += c.times * sum(o.bytes for o in c.outputs.values())
    return read, written


def most_again(calls_of_one):
    """What comes from a cache: an operand that many threads read is read once at each point, the first time from memory."""
    total = 0
    for c in calls_of_one:
        points = max(o.elements for o in [*c.inputs.values(), *c.outputs.values()])
        total += c.times * sum(o.bytes // o.elements * (points - o.elements) for o in c.inputs.values())
    return total


def uncounted(text):
    """Accesses to memory in the kernels of kernels.cu that go past the functions that count."""
    out = []
    for head, parameters, body in re.findall(r"^(?:template <int W> )?((?:__global__|__device__)[^(]*)\((.*?)\)\n\{\n(.*?)^\}", text, re.M | re.S):
        for pointer in re.findall(r"\*(\w+)", parameters):
            for access in re.findall(rf"\b{pointer}\s*\[|[^\w)\s]\s*\*\s*{pointer}\b|\(\s*\*\s*{pointer}\b", body):
                out.append(f"{head.split()[-1]}: {access.strip()}")
    return out


def parts_of(calls_of_one, name, text):
    """How often sums are formed in parts, and bytes of the parts: of functions whose sums keep the columns of rows x columns, by the
    rule in docs/kernels.md. None: of other forms."""
    body = text[text.index(f"\nvoid {name}("):].split("\n}\n")[0]
    times = size = 0
    if "mpp_row_parts" in body:
        return None
    for c in calls_of_one if "mpp_column_parts" in body else []:
        if len(c.values) != 2:
            return None
        rows, columns = map(int, c.values)
        lanes = 8 if any(o.elements and o.bytes // o.elements == 2 for o in [*c.inputs.values(), *c.outputs.values()]) else 4
        blocks = -(-(columns // lanes) // 32)
        parts = min(-(-rows // 64), -(-512 // max(blocks, 1)))
        if parts > 1:
            times += c.times
            size += c.times * parts * 8 * sum(c.outputs[y].elements for y in c.added)
    return times, size


def faults(p, all_calls, rows):
    """What is wrong, by function of kernels.h: nothing where each moves the least there can be."""
    text = (p.dir / "kernels.cu").read_text()
    out = {name: "memory that is not counted" for name in uncounted(text)}
    emitted = set(re.findall(r"__global__ void (\w+?)_kernel(?:_\d+)?\(", text))
    for name in sorted(emitted | set(functions(p)) | set(rows) & emitted):
        mine = [c for c in all_calls if c.name == name]
        kernel, finish = rows.get(name, [Row(0, 0, 0, 0, 0, 0)] * 2)
        times = sum(c.times for c in mine)
        read, written = least(mine)
        both = Row(*(a + b for a, b in zip(kernel, finish)))
        wrong = []
        if times == 0 or kernel.launches != times:
            wrong.append(f"{kernel.launches} launches, {times} expected")
        if (both.read, both.written) != (read, written):
            wrong.append(f"read {both.read}, written {both.written}; the least is {read}, {written}")
        if both.again > most_again(mine):
            wrong.append(f"{both.again} bytes are read again, {most_again(mine)} where each point reads them once")
        parts = parts_of(mine, name, text)
        if both.parts_read != both.parts_written or parts not in (None, (finish.launches, both.parts_written)) or 8 * both.parts_written > read:
            wrong.append(f"parts of sums: written {both.parts_written}, read {both.parts_read}, {finish.launches} times; expected {parts}")
        if wrong:
            out[name] = "; ".join(wrong)
    return out


# ---- docs/kernels.md ----

PRODUCTS, ROWS = ("mpp_gemm", "mpp_gemm_add", "mpp_gemm_gelu", "mpp_einsum"), ("mpp_layernorm_forward", "mpp_layernorm_backward", "mpp_attention_forward", "mpp_attention_backward")
APART = {"Einsum", "LayerNorm", "LayerNormGrad", "Attention", "AttentionGrad", "Accumulate"}


def unfused(p, phase, layer):
    """Operators of a layer that are elementwise or sums, and elements that they move, as graph.ir lists them: one kernel each."""
    text = (p.dir / "graph.ir").read_text()
    shapes = {name: prod(int(re.sub(r"\(.*\)", "", d).split()[-1]) for d in dims.split(",") if d.strip())
              for name, dims in re.findall(r"^\w+ (\S+) \w+ \[(.*?)\]", text, re.M)}
    sizes = []
    for kind, ins, outs in re.findall(rf"^op \S+ = (\w+)\((.*?)\) -> \((.*?)\) .* {phase} layer={layer} ", text, re.M):
        if kind not in APART:
            sizes.append(sum(shapes[t] for t in {*ins.split(", "), *outs.split(", ")}))
    return sizes


def epilogues(structs, state, lines):
    """(elements of y, elements beside y that are read or written) of each product with an epilogue."""
    for line in lines:
        call = re.match(r"mpp_gemm_(?:add|gelu)\(r, (.*)\);$", line)
        if call:
            *_, beside, y, _ = call.group(1).split(", ")
            yield elements(structs, state, y), 0 if beside == "NULL" else elements(structs, state, beside)


def documented(p, all_calls, text):
    """What docs/kernels.md says of a layer of GPT-2, and what is so: (where, says, is)."""
    rows = {(cells[0], len(cells)): cells[1:] for cells in
            ([c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| (forward|backward) \|", line))}
    structs, out = tensors(p), []
    unit = structs["h_tensors"]["res1"]
    for phase in ("forward", "backward"):
        state, body = bodies(p)[f"h_{phase}"]
        lines = [line for _, line in body]
        products, rowwise, fused, single = rows[phase, 5]
        of_layer = [c for c in all_calls if c.function == f"h_{phase}"]
        sizes = unfused(p, phase, "0:1:h")
        counts = [sum(line.startswith(f"{name}(") for line in lines for name in group) for group in (PRODUCTS, ROWS)]
        out.append((f"products {phase}", products, str(counts[0])))
        out.append((f"fused {phase}", int(re.match(r"\d+", fused).group()), len(of_layer)))
        out.append((f"unfused {phase}", int(re.match(r"\d+", single).group()), len(sizes)))
        out.append((f"norms and attention {phase}", 3, counts[1]))
        moved = [sum(o.elements for o in [*c.inputs.values(), *c.outputs.values()]) for c in of_layer]
        now, fused, single = rows[phase, 4]
        after = list(epilogues(structs, state, lines))
        beside, kernels = sum(b // unit for _, b in after), sum(n // unit for n in moved)
        out.append((f"elements {phase}", re.findall(r"\d+", now), [str(kernels + beside), str(beside)] if after else [str(kernels)]))
        out.append((f"elements {phase}, fused", fused, str(kernels + beside + sum(2 * y // unit for y, _ in after))))
        out.append((f"elements {phase}, unfused", single, str(sum(n // unit for n in sizes))))
        if phase == "backward":
            cuda = (p.dir / "kernels.cu").read_text()
            sums = [c for c in of_layer if c.added]
            shares = [100 * parts_of([c], c.name, cuda)[1] / least([c])[0] for c in sums]
            out.append(("parts of sums", re.search(r"([\d.]+) to ([\d.]+) % of what their kernels read", text).groups(),
                        (f"{min(shares):.1f}", f"{max(shares):.1f}")))
            out.append(("kernels that add parts up", re.findall(r"and (\d+)", rows[phase, 5][2] + rows[phase, 5][3]), [str(len(sums))] * 2))
    return out
