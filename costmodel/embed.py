#!/usr/bin/env python3
"""embed.py OUT.c FILE.xml... - write the files as C strings, sorted by name: those of a folder
devices, clusters or tunings into the array mpp_embedded_ of that name (embed.h)."""
import os
import sys


def literal(text):
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return '"' + quoted.replace("\n", '\\n"\n     "') + '"'


def main():
    out, files = sys.argv[1], sys.argv[2:]
    groups = {"devices": [], "clusters": [], "tunings": []}
    for path in files:
        folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
        with open(path, encoding="ascii") as f:
            groups[folder].append((os.path.basename(path)[: -len(".xml")], f.read()))
    lines = ["/* Written by costmodel/embed.py from the files in its folders. */",
             '#include "costmodel/embed.h"', ""]
    for folder, entries in groups.items():
        lines.append(f"const struct mpp_embedded mpp_embedded_{folder}[] = {{")
        for name, text in sorted(entries):
            lines.append(f'    {{"{name}",\n     {literal(text)},\n     {len(text)}}},')
        lines += ["    {0},", "};", ""]
    with open(out, "w", encoding="ascii") as f:
        f.write("\n".join(lines))


main()
