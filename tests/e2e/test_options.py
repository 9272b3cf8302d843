#!/usr/bin/env python3
"""The command line in words: --help, the man page and the completions say what the option table says; docs/ holds together."""
import re
import shutil
import subprocess
import sys

import harness as h

MAN = h.ROOT / "docs" / "mpplan.1"
DOCS = sorted((h.ROOT / "docs").glob("*.md"))


def table():
    """Rows of options.c: (name, alias, value, group, complete, help)."""
    text = (h.ROOT / "options.c").read_text()
    rows = re.findall(r'\{\{("[^"]*"|NULL), ("[^"]*"|NULL), ("[^"]*"|NULL), ("[^"]*"|NULL), ("[^"]*"|NULL), ("(?:[^"\\]|\\.)*"|NULL)\}', text)
    return [tuple(None if x == "NULL" else x[1:-1] for x in row) for row in rows]


ROWS = table()


def help_page():
    text = h.must(h.mpplan("--help")).stdout
    lines = text.rstrip("\n").split("\n")
    h.check(len(ROWS) >= 28, "the table is read", len(ROWS))
    h.check(len(lines) <= 50 and max(map(len, lines)) <= 80, "--help fits a screen", (len(lines), max(map(len, lines))))
    h.check(text == h.must(h.mpplan("-h")).stdout, "-h is --help")
    groups = list(dict.fromkeys(r[3] for r in ROWS))
    h.check([x for x in lines if not x.startswith(" ") and x in groups] == groups, "grouped by purpose, each group once")
    for name, _, value, _, _, words in ROWS:
        wanted = f"  {name}" + (f" {value}" if value else "")
        h.check(any(x.startswith(wanted) and (words or "") in x for x in lines), f"{name} is on the page")


def man_page():
    text = MAN.read_text()
    plain = re.sub(r"\\f.", "", text.replace("\\-", "-"))
    said = set(re.findall(r"(?<![\w-])(--?[A-Za-z][a-z-]*)", plain))
    for name, alias, value, _, complete, _ in ROWS:
        h.check(re.search(rf"^\.(?:TP\n\.)?(?:B|BI|BR) {re.escape(name)}\b", plain, re.M), f"{name} has an entry in the man page")
        h.check(not alias or alias in said, f"{name}: the man page knows {alias}")
        h.check(not value or all(part in plain for part in re.split(r"[ |]", value)), f"{name}: its value {value}")
        if complete and "|" in complete:
            h.check(all(word in plain for word in complete.split("|")), f"{name}: each of {complete}")
    known = {x for r in ROWS for x in r[:2] if x}
    extra = {x for x in said if x.startswith("--")} - known - {"--data", "--steps"}
    h.check(not extra, "the man page knows no option that is none", extra)
    version = re.search(r"version: '([\d.]+)'", (h.ROOT / "meson.build").read_text())[1]
    h.check(f"mpplan {version}" in text, "the man page's version")
    if not shutil.which("groff"):
        return h.skip("the man page's form: no groff")
    p = h.run(["groff", "-man", "-Tutf8", "-ww", "-z", MAN])
    h.check(p.returncode == 0 and p.stderr == "", "groff has nothing to say", p.stderr[:300])


# ---- completions ----

def bash(words, now=None):
    """What bash offers for the last of WORDS."""
    script = h.must(h.mpplan("--completion", "bash")).stdout
    quoted = " ".join("'" + w.replace("'", "'\\''") + "'" for w in words)
    call = f"compopt() {{ :; }}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _mpplan; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return h.must(h.run(["bash", "-c", script + call], cwd=h.ROOT)).stdout.split()


def completions():
    options = {x for r in ROWS for x in r[:2] if x}
    h.check(set(bash(["mpplan", "--"])) == {o for o in options if o.startswith("--")}, "bash offers every option")
    h.check(bash(["mpplan", "--min"]) == ["--min-gpus"], "by its beginning")
    for name, alias, value, _, complete, _ in ROWS:
        if complete and "|" in complete:
            h.check(set(bash(["mpplan", name, ""])) == set(complete.split("|")), f"bash: {name}", bash(["mpplan", name, ""]))
    h.check({"dgx-a100", "host"} <= set(bash(["mpplan", "--cluster", ""])) and bash(["mpplan", "--cluster", "dgx2"]) == ["dgx2"], "clusters")
    h.check(set(bash(["mpplan", "models/gpt.xml", "--preset", "gpt2-"])) == {"gpt2-medium", "gpt2-large", "gpt2-xl"}, "presets of the model file")
    h.check({"batch=", "hidden=", "layers="} <= set(bash(["mpplan", "models/gpt.xml", "-D", ""])), "its dimensions and parameters")
    h.check(set(bash(["mpplan", "--fix", "dp=2,rec"])) == {"dp=2,recompute=none", "dp=2,recompute=selective", "dp=2,recompute=full"}, "pins")
    h.check("models/gpt.xml" in bash(["mpplan", "models/g"]), "model files")
    h.check(h.mpplan("--completion", "fish").returncode == 2, "another shell is told so")
    pins = {k for k in re.findall(r'^    \{"(\w+)"', (h.ROOT / "planner" / "pins.c").read_text(), re.M)}
    offered = {re.split("[=:]", x)[0] for x in bash(["mpplan", "--fix", ""])}
    h.check(len(pins) > 8 and pins <= offered, "bash offers every pin", pins - offered)
    script = h.must(h.mpplan("--completion", "zsh")).stdout
    named = set(re.findall(r"^        '\*(--?\w[\w-]*)[=+]?\[", script, re.M))
    h.check(named == options, "zsh offers every option", named ^ options)
    h.check(script.startswith("#compdef mpplan\n"), "zsh finds it in its path")
    if not shutil.which("zsh"):
        return h.skip("zsh's completions in zsh: no zsh")
    asked = script + "\n_arguments() { print -l -- \"$@\"; }\n_mpplan\n"
    p = h.run(["zsh", "-f", "-c", "compdef() { :; }\n" + asked])
    h.check(p.returncode == 0 and p.stderr == "" and all(f"*{o}" in p.stdout for o in options), "zsh reads it", p.stderr[:300])


def installed():
    built = h.Path(h.os.environ.get("MPP_BUILD", h.ROOT / "build"))
    p = subprocess.run(["meson", "introspect", "--installed", str(built)], capture_output=True, text=True)
    h.check(p.returncode == 0 and all(x in p.stdout for x in ("man/man1/mpplan.1", "bash-completion/completions/mpplan", "site-functions/_mpplan")),
            "the man page and completions are installed", p.stdout[:400])


# ---- the book ----

def anchors(text):
    return {re.sub(r"[^\w\- ]", "", t.replace("`", "")).strip().lower().replace(" ", "-") for t in re.findall(r"^#+ (.*)$", text, re.M)}


def book():
    index = (h.ROOT / "docs" / "README.md").read_text()
    for page in DOCS:
        text = page.read_text()
        h.check(page.name == "README.md" or f"({page.name})" in index, f"{page.name} is in the index")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page if not path else (page.parent / path)
            ok = file.exists() and (not anchor or anchor in anchors(file.read_text()))
            h.check(ok, f"{page.name}: {target} is there")
        unknown = set(re.findall(r"mpplan [^`\n|]*?(--[a-z][a-z-]+)", text)) - {x for r in ROWS for x in r[:2] if x}
        h.check(not unknown or page.name in ("training.md", "running.md", "tutorial.md"), f"{page.name}: options that exist", unknown)


def failures():
    """Messages that the FAQ quotes are those that the programs print."""
    sources = "\n".join(re.sub(r'"\s*\n\s*"', "", p.read_text()) for f in ("ir", "solver", "costmodel", "planner", "codegen", "inspect", "runtime")
                        for p in sorted((h.ROOT / f).rglob("*.[ch]")))
    quoted = [m for q in re.findall(r"^\*\*(.*?)\*\*", (h.ROOT / "docs" / "faq.md").read_text(), re.M) for m in re.findall(r"`([^`]+)`", q)]
    h.check(len(quoted) >= 8, "the FAQ quotes messages", quoted)
    for message in quoted:
        for part in message.split("..."):
            h.check(part.strip(" ,;:") in sources, f"the FAQ's \"{message}\" is said", part)


def main():
    parts = {"help": help_page, "man": man_page, "completions": completions, "installed": installed, "book": book, "failures": failures}
    for name in h.only(parts):
        h.guarded(name, parts[name])
    return h.finish()


if __name__ == "__main__":
    sys.exit(main())
