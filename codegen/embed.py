#!/usr/bin/env python3
"""embed.py OUT.c OUT.d FOLDER ARRAY - write files of FOLDER as the array ARRAY of embed.h, sorted by path, and a depfile that names
them: *.h, core/*, host/* and cuda/*, and calibrate/*.c of the runtime (mpp_embedded_runtime), *.css, *.html and *.js of the report
(mpp_embedded_report), *.schema.json of docs (mpp_embedded_schemas)."""
import os
import sys


def runtime_sources(root):
    for folder in ("", "core", "host", "cuda", "calibrate"):
        path = os.path.join(root, folder)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            if name.endswith((".h", ".cuh")) or (folder and name.endswith((".c", ".cu"))):
                yield "/".join(filter(None, (folder, name)))


def report_sources(root):
    return (name for name in sorted(os.listdir(root)) if name.endswith((".css", ".html", ".js")))


def schemas(root):
    return (name for name in sorted(os.listdir(root)) if name.endswith(".schema.json"))


SOURCES = {"mpp_embedded_runtime": runtime_sources, "mpp_embedded_report": report_sources, "mpp_embedded_schemas": schemas}


def main():
    out, dep, root, array = sys.argv[1:]
    paths = list(SOURCES[array](root))
    lines = [f"/* Written by codegen/embed.py from {os.path.basename(root)}/. */", '#include "codegen/embed.h"', ""]
    # Arrays of bytes: string literals this long are beyond what C17 promises.
    for i, path in enumerate(paths):
        with open(os.path.join(root, path), "rb") as f:
            data = f.read() + b"\0"
        lines.append(f"static const char source_{i}[] = {{")
        for at in range(0, len(data), 32):
            lines.append("    " + ",".join(str(b if b < 128 else b - 256) for b in data[at:at + 32]) + ",")
        lines += ["};", ""]
    lines.append(f"const struct mpp_embedded_source {array}[] = {{")
    for i, path in enumerate(paths):
        lines.append(f'    {{"{path}", source_{i}, sizeof source_{i} - 1}},')
    lines += ["    {0},", "};", ""]
    with open(out, "w", encoding="ascii") as f:
        f.write("\n".join(lines))
    with open(dep, "w", encoding="utf-8") as f:
        f.write(f"{out}: " + " ".join(os.path.join(root, p).replace(" ", "\\ ") for p in paths) + "\n")


main()
