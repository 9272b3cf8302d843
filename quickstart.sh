#!/usr/bin/env bash
# From a fresh Debian 12 to a trained small GPT: installs what is missing, builds mpplan, plans for 4 devices,
# compiles the generated trainer and trains it on a text file, as bytes.
set -euo pipefail
cd "$(dirname "$0")"
. ./scripts/install.sh
install_packages $BUILD_PACKAGES

build=${BUILD_DIR:-build}
[ -f "$build/build.ninja" ] || meson setup "$build" >/dev/null
ninja -C "$build" mpplan | tail -n 1

out=${1:-quickstart-plan}
text=${TEXT:-}
for f in "$text" /usr/share/common-licenses/GPL-3 LICENSE; do
    if [ -n "$f" ] && [ -r "$f" ]; then text=$f; break; fi
done

echo
echo "== plan: a small GPT on 4 devices =="
"$build/mpplan" models/gpt.xml --preset bytes --gpus 4 -o "$out"
echo
echo "== make: compile the generated trainer =="
make -s -j2 -C "$out"
echo
echo "== train: $text, as bytes =="
"$out/trainer" --data "text:$text" --steps "${STEPS:-300}" --seed 1 --metrics "$out/metrics.jsonl" --save "$out/checkpoint"
echo
echo "Done. Open $out/report.html, or read $out/report.txt, to see what was planned and why, $out/stage0.c for the generated code."
