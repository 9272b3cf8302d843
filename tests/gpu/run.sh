#!/bin/sh
# On a machine with one GPU or more: builds CUDA trainers, compares them with the references, looks for accesses outside of memory,
# and prints a table of step times. README.md beside it says more.
#     tests/gpu/run.sh            # all, under 8 minutes
#     tests/gpu/run.sh bench      # a part: build, conformance, references, bench, bandwidth, memory
#     tests/gpu/run.sh --rehearse # without a GPU, on the stand-in of tests/cuda: does this script work?
cd "$(dirname "$0")/../.." || exit 1
case " $* " in *" --rehearse "*) ;; *)
    nvidia-smi -L >/dev/null 2>&1 || { echo "no GPU is here (nvidia-smi lists none): nothing is tested; --rehearse tests this script"; exit 1; } ;;
esac
MPP_GPU_BEGUN=$(date +%s) && export MPP_GPU_BEGUN
python=python3
$python -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
$python -c 'import numpy' 2>/dev/null || { echo "python3 has no numpy: install it (apt-get install python3-numpy, or pip install numpy)"; exit 1; }
[ -x "${MPPLAN:-build/mpplan}" ] || { { [ -f build/build.ninja ] || meson setup build >/dev/null; } && ninja -C build mpplan; } ||
    { echo "mpplan does not build here: it takes the BUILD_PACKAGES of scripts/install.sh"; exit 1; }
PYTHONPATH=tests/e2e exec "$python" tests/gpu/run.py "$@"
