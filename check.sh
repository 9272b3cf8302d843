#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests and ends with "N passed, N failed[, N skipped]".
# --full runs the whole equivalence and conformance matrices, sanitizers and clang too.
set -uo pipefail
cd "$(dirname "$0")"
. ./scripts/install.sh
install_packages $BUILD_PACKAGES $TEST_PACKAGES || exit 1
install_packages $BROWSER_PACKAGES || echo "no browser could be installed: report.html is tested by its data alone"
install_packages $SLURM_PACKAGES || echo "no Slurm could be installed: run.sbatch is not tried"
install_packages $EXPORT_PACKAGES || echo "no Graphviz, zsh or groff could be installed: pictures, zsh's completions and the man page's form are not tried"
exec python3 tests/run.py "$@"
