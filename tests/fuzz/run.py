#!/usr/bin/env python3
"""Builds every fuzz_NAME.c of this folder with clang's libFuzzer, ASan and UBSan, and runs each for some seconds.

    tests/fuzz/run.py                     60 seconds each
    tests/fuzz/run.py 600 model graph     ten minutes of each whose name contains one of these words
    tests/fuzz/run.py 0                   only what is in the seeds

Ends with "N passed, N failed[, N skipped]". A target's first line says what it links: `/* links: ir costmodel planner */` or
`/* links: runtime */`; a second may name more seeds: `/* seeds: models costmodel/clusters */`. Seeds lie in seeds/NAME, words
that help in NAME.dict. What is found new is kept in BUILD/corpus/NAME, what fails in BUILD/findings.
"""
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("BUILD_DIR", ROOT / "build")).resolve() / "fuzz"
CFLAGS = ["-std=c17", "-D_GNU_SOURCE", '-DMPP_VERSION="fuzz"', "-g", "-O1", "-fno-omit-frame-pointer",
          "-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined", "-ffp-contract=off", "-I.", "-Wall", "-Wextra"]
LIMITS = ["-rss_limit_mb=2048", "-timeout=25", "-print_final_stats=1", "-verbosity=1"]
LIBS = {"ir": ["libxml-2.0"], "solver": ["yajl", "zlib"], "costmodel": [], "planner": ["jansson"], "codegen": [], "runtime": ["openblas"],
        "inspect/trace_read.c": ["yajl"]}
PLAIN_LIBS = {"planner": ["-lglpk"], "solver": ["-lglpk"]}
OPTIONS = {"runtime": ["-Iruntime"]}


def pkg_config(flag, names):
    if not names:
        return []
    return subprocess.run(["pkg-config", flag, *names], capture_output=True, text=True, check=True).stdout.split()


def is_fresh(out):
    """Is the object file OUT newer than all that it was made of?"""
    made_of = out.with_suffix(".d")
    if not out.exists() or not made_of.exists():
        return False
    files = [ROOT / f for f in made_of.read_text().replace("\\\n", " ").split(":", 1)[1].split()]
    return all(f.exists() and f.stat().st_mtime < out.stat().st_mtime for f in files)


def compile_all(sources, options):
    """Object files of SOURCES; [] when one does not compile."""
    objects = []
    for source in sources:
        name = str(source.relative_to(ROOT) if source.is_relative_to(ROOT) else source.name)
        out = BUILD / (name.replace("/", "+") + ".o")
        objects.append(out)
        if is_fresh(out):
            continue
        p = subprocess.run(["clang", *CFLAGS, *options, "-MMD", "-MF", out.with_suffix(".d"), "-c", source, "-o", out], cwd=ROOT,
                           capture_output=True, text=True)
        if p.returncode != 0:
            print(f"{name} does not compile:\n{p.stderr[-3000:]}")
            return []
    return objects


def sources_of(part):
    if part.endswith(".c"):
        return [ROOT / part]
    if part == "runtime":
        return [s for s in sorted((ROOT / "runtime").rglob("*.c")) if "cuda" not in s.parts and s.name != "main.c"]
    if part != "costmodel":
        return sorted((ROOT / part).glob("*.c"))
    data = BUILD / "costmodel_data.c"
    files = sorted((ROOT / "costmodel").glob("*s/*.xml"))
    fresh = subprocess.run([sys.executable, ROOT / "costmodel" / "embed.py", BUILD / "new.c", *files], cwd=ROOT)
    if fresh.returncode == 0 and (not data.exists() or data.read_bytes() != (BUILD / "new.c").read_bytes()):
        shutil.copy(BUILD / "new.c", data)
    return [*sorted((ROOT / "costmodel").glob("*.c")), data]


def line_of(target, word):
    m = re.search(rf"^/\* {word}: (.*?) \*/$", target.read_text(), re.M)
    return m.group(1).split() if m else []


def build(target, libraries):
    """The program of TARGET, or None."""
    parts = line_of(target, "links")
    if not parts:
        print(f"{target.name}: its first line must say what it links")
        return None
    objects = []
    for part in parts:
        if part not in libraries:
            options = OPTIONS.get(part, []) + pkg_config("--cflags", LIBS[part])
            libraries[part] = compile_all(sources_of(part), options)
        if not libraries[part]:
            return None
        objects += libraries[part]
    options = [o for part in parts for o in OPTIONS.get(part, [])] + ["-Itests/fuzz"]
    own = compile_all([target], options)
    program = BUILD / target.stem
    if not own:
        return None
    libs = [f for part in parts for f in pkg_config("--libs", LIBS[part]) + PLAIN_LIBS.get(part, [])]
    p = subprocess.run(["clang", "-g", "-fsanitize=fuzzer,address,undefined", *own, *objects, "-o", program, *libs, "-lpthread", "-lm"],
                       cwd=ROOT, capture_output=True, text=True)
    if p.returncode != 0:
        print(f"{target.name} does not link:\n{p.stderr[-3000:]}")
        return None
    return program


def fuzz(target, program, seconds):
    """True when nothing was found."""
    name = target.stem[len("fuzz_"):]
    corpus, findings = BUILD / "corpus" / name, BUILD / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    seeds = [HERE / "seeds" / name, *(ROOT / s for s in line_of(target, "seeds"))]
    command = [program, corpus, *(s for s in seeds if s.exists()), *LIMITS, f"-artifact_prefix={findings}/{name}-"]
    command += [f"-max_total_time={seconds}"] if seconds else ["-runs=0"]
    command += line_of(target, "options")
    words = HERE / f"{name}.dict"
    command += [f"-dict={words}"] if words.exists() else []
    begun = time.monotonic()
    p = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, errors="replace", env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
                                                         "UBSAN_OPTIONS": "print_stacktrace=1"})
    done = re.search(r"stat::number_of_executed_units: (\d+)", p.stdout)
    cover = re.findall(r"cov: (\d+)", p.stdout)
    print(f"{name}: {done.group(1) if done else 'no'} runs in {time.monotonic() - begun:.0f} s, {cover[-1] if cover else 0} edges, "
          f"{len(list(corpus.iterdir()))} inputs kept{'' if p.returncode == 0 else ': FAILED'}", flush=True)
    if p.returncode != 0:
        at = re.search(r"(==\d+==ERROR|runtime error|broken promise|Assertion|SUMMARY)", p.stdout)
        print(p.stdout[max(0, at.start() - 500):][:6000] if at else p.stdout[-3000:], flush=True)
    return p.returncode == 0 and (done or not seconds)


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 60
    words = [a for a in sys.argv[1:] if not a.isdigit()]
    targets = [t for t in sorted(HERE.glob("fuzz_*.c")) if not words or any(w in t.stem for w in words)]
    if not shutil.which("clang"):
        print("clang is not installed")
        print(f"0 passed, 0 failed, {len(targets)} skipped")
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    passed, libraries = 0, {}
    for target in targets:
        program = build(target, libraries)
        passed += bool(program and fuzz(target, program, seconds))
    print(f"{passed} passed, {len(targets) - passed} failed")
    return 0 if passed == len(targets) and targets else 1


if __name__ == "__main__":
    sys.exit(main())
