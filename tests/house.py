#!/usr/bin/env python3
"""The rules of the house that a program can check: who may include what, lengths, no globals, no exits."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ["ir", "solver", "costmodel", "planner", "codegen", "inspect"]  # a room sees itself and those before it
OWNERS = {  # third-party header -> the only files that may include it
    r"libxml/": r"ir/xml\.c",
    r"glpk\.h": r"(planner/solver_glpk|solver/(exact|glpk_env|master))\.c",
    r"yajl/": r"(solver/iopddl|inspect/trace_read)\.c",
    r"zlib\.h": r"solver/iopddl\.c",
    r"jansson\.h": r"planner/plan_json_value\.[ch]",
    r"mpi\.h": r"runtime/core/transport_mpi(_shm|_transfers)?\.[ch]",
    r"(cblas|openblas/.*|lapacke)\.h": r"runtime/host/kernels_gemm\.c",
}
COMMAND = sorted(p for p in ROOT.iterdir() if p.suffix in (".c", ".h"))  # of the folder that holds mpplan.c
# Where a process may end: the command and the trainer's main.
MAY_EXIT = {"mpplan.c", "runtime/core/main.c"}
# runtime/host/team.c, thread-local: gcc's OpenMP calls carry no context.
OPENMP_STATE = {"own_team", "own_share", "own_shares"}
# Entry points of the runtime that have no arrays to try, and the tests that call them.
WITHOUT_ARRAYS = {"mpp_extent_of": "kernels", "mpp_uniform": "kernels", "mpp_first_sample": "kernels", "mpp_forward": "pipeline",
                  "mpp_backward": "pipeline", "mpp_main": "trainer"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 1000, 100
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b|not (yet )?implemented|unimplemented", re.I)
ABSOLUTE = re.compile(r"[\"'\s(=]/(?:home|root|work|build)/\w")

passed = failed = 0


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print(f"FAILED: {what}")


def sources(*folders, suffixes=(".c", ".h")):
    return sorted(p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in suffixes)


def tracked():
    """Files of the project: what git tracks, or everything that is no build output."""
    p = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if p.returncode == 0 and p.stdout:
        return [ROOT / f for f in p.stdout.split("\n") if f and (ROOT / f).is_file()]
    skip = {"build", "quickstart-plan", ".git"}
    return [p for p in ROOT.rglob("*") if p.is_file() and p.relative_to(ROOT).parts[0] not in skip]


def without_comments(text):
    """Comments become blanks, line numbers stay."""
    keep_lines = lambda m: re.sub(r"[^\n]", " ", m.group(0)) if m.group(0)[0] == "/" else m.group(0)
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", keep_lines, text, flags=re.S)


def includes(path):
    return re.findall(r"^\s*#\s*include\s+[<\"]([^>\"]+)[>\"]", path.read_text(), re.M)


def check_includes():
    for room_at, room in enumerate(ROOMS):
        for path in sources(room):
            name = path.relative_to(ROOT).as_posix()
            for header in includes(path):
                top = header.split("/")[0]
                wrong = top in ROOMS[room_at + 1:] or top in ("runtime", "tests") or header == "mpp_rt.h"
                check(not wrong, f"{name} includes {header}; {room}/ sees {', '.join(ROOMS[:room_at + 1])} only")
    for path in sources("runtime"):
        for header in includes(path):
            check(header.split("/")[0] not in [*ROOMS, "runtime", "tests"],
                  f"{path.relative_to(ROOT)} includes {header}; runtime/ stands alone")
            check(path.parent.name != "core" or header.split("/")[0] not in ("host", "cuda"),
                  f"{path.relative_to(ROOT)} includes {header}; runtime/core/ knows no backend")
    for path in [*sources(*ROOMS, "runtime"), *COMMAND]:
        name = path.relative_to(ROOT).as_posix()
        for header in includes(path):
            for pattern, owner in OWNERS.items():
                if re.fullmatch(pattern + ("" if pattern.endswith("h") else ".*"), header):
                    check(re.fullmatch(owner, name), f"{name} includes <{header}>, which belongs to {owner}")


def functions(text):
    """(name, first line, lines) of each function: bodies open and close in column 0."""
    lines, start = text.split("\n"), None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line == "}" and start is not None:
            head = " ".join(lines[max(0, start - 4):start])
            names = re.findall(r"(\w+)\s*\(", head)
            yield names[-1] if names else "?", start + 1, i - start - 1
            start = None


def check_code():
    code = [*sources(*ROOMS, "runtime", "tests"), *COMMAND]
    for path in code:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        plain = without_comments(text)
        lines = text.count("\n")
        check(lines <= MAX_FILE_LINES, f"{name} has {lines} lines; split it ({MAX_FILE_LINES} at most)")
        for function, at, n in functions(text):
            if n > MAX_FUNCTION_LINES:
                check(False, f"{name}:{at}: {function}() has {n} lines; split it ({MAX_FUNCTION_LINES} at most)")
        if path.suffix == ".h" and not re.search(r"tests/", name):
            check(text.startswith("/*"), f"{name}: a header opens with its job")
        if name.startswith("tests/"):
            continue
        calls = [m for m in re.finditer(r"(?<![\w.>])(_?exit|abort|quick_exit)\s*\(", plain)]
        check(not calls or name in MAY_EXIT, f"{name}: calls {calls[0].group(1) if calls else ''}(); library code returns")
        if name.split("/")[0] in ROOMS and name not in ("ir/arena.c", "ir/arena.h", "ir/diag.c", "ir/diag.h"):
            check(not re.search(r"\bmpp_(arena_new\(\)|diag_new\()", plain),
                  f"{name}: an arena without a guard; mpp_arena_scratch makes one of the caller's run, mpp_diag_in a collector")
        if not name.startswith("ir/"):
            check(not re.search(r"\bcase\s+MPP_OP_", plain), f"{name}: switches on an op; the op table says what ops do")
    for path in tracked():
        if path.suffix not in (".c", ".h", ".py", ".md", ".xml", ".sh", ".def", ".build") or path.name == "house.py":
            continue
        name, text = path.relative_to(ROOT), path.read_text(errors="replace")
        for pattern, what in ((UNFINISHED, "unfinished"), (ABSOLUTE, "an absolute path")):
            m = pattern.search(text)
            check(not m, f"{name}:{text[:m.start()].count(chr(10)) + 1 if m else 0}: {what}: {m.group(0) if m else ''}")


def check_folders():
    for folder in [*ROOMS, "runtime", "models", "tests"]:
        check((ROOT / folder / "README.md").exists(), f"{folder}/ has no README.md")
    for folder in [*ROOMS, "tests"]:
        check((ROOT / folder / "meson.build").exists(), f"{folder}/ has no meson.build")


def check_suites():
    """Every end-to-end suite is one that tests/run.py runs."""
    text = (ROOT / "tests" / "run.py").read_text()
    for path in sorted((ROOT / "tests" / "e2e").glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        check(f'"{name}"' in text or f"{path.name}\"" in text, f"tests/e2e/{path.name} is in no list of tests/run.py")


def check_conformance():
    """Every entry point of mpp_rt.h is in the conformance tests, which see to sizes, alignment and types; they run on both backends."""
    header = without_comments((ROOT / "runtime" / "mpp_rt.h").read_text())
    entries = set(re.findall(r"^(?!static|#)[\w *]*\b(mpp_\w+)\([^;{]*\);", header, re.M))
    called, built = set(), [(ROOT / f).read_text() for f in ("tests/meson.build", "tests/cuda/meson.build")]
    for name in ("conformance", "conformance_ranks"):
        called |= set(re.findall(r"\bCALL\(&?\w+, (mpp_\w+)", (ROOT / "tests" / f"test_runtime_{name}.c").read_text()))
        check(f"'runtime_{name}'" in built[0] and f"'{name}'" in built[1], f"test_runtime_{name}.c is not built for both backends")
    check(len(entries) > 60, f"mpp_rt.h has {len(entries)} entry points")
    for entry in sorted(entries):
        elsewhere = WITHOUT_ARRAYS.get(entry)
        other = elsewhere and (ROOT / "tests" / f"test_runtime_{elsewhere}.c").read_text()
        check(entry in called or other and re.search(rf"\b{entry}\(", other), f"{entry}: no conformance test calls it")


def check_headers():
    """Each header compiles alone."""
    flags = ["-std=c17", "-D_GNU_SOURCE", "-fsyntax-only", "-x", "c", "-I", str(ROOT), "-I", str(ROOT / "runtime")]
    for path in sources(*ROOMS, "runtime", suffixes=(".h",)):
        text = path.read_text()
        if re.search(r"included (several times|more than once)|X-macro", text[:2000]):
            continue
        p = subprocess.run(["gcc", *flags, "-"], input=f'#include "{path}"\n', capture_output=True, text=True)
        check(p.returncode == 0, f"{path.relative_to(ROOT)} does not compile alone: {p.stderr.splitlines()[0] if p.stderr else ''}")


def check_globals():
    """No mutable globals in the libraries that a build made: nothing in .data, .bss or their thread-local forms."""
    build = Path(os.environ.get("MPP_BUILD", ROOT / "build"))
    for library in sorted(build.glob("*/lib*.a")):
        p = subprocess.run(["objdump", "-t", str(library)], capture_output=True, text=True)
        found = re.findall(r"^[0-9a-f]+ .{7} (\.t?data(?:\.local)?|\.t?bss(?:\.local)?|\*COM\*)\s+([0-9a-f]+) (?:\.hidden )?(\S+)$",
                           p.stdout, re.M)
        names = [n for section, size, n in found if n != section and int(size, 16) > 0 and n not in OPENMP_STATE]
        check(not names, f"{library.name} has mutable globals: {', '.join(names[:8])}")


if __name__ == "__main__":
    for step in (check_includes, check_code, check_folders, check_suites, check_conformance, check_headers, check_globals):
        step()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
