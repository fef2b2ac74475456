#!/usr/bin/env bash
# Runs on one GPU what CI cannot: the tests marked `gpu`, the self-check, the GPU benchmark.
#
#     tools/gpu_check.sh [FOLDER]        the folder of the results; $OUT or gpu-check by default
#
# It takes less than six minutes, installs nothing and needs no network. Wanted: Python with torch
# or CuPy, cuDNN (a wheel will do), NumPy, ml_dtypes, array-api-compat, pytest, pytest-cov,
# pytest-xdist and hypothesis. A part that fails does not keep the others from running; the exit
# status is 0 if none failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-${OUT:-gpu-check}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0
: >"$out/summary.txt"

tell() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }

# part NAME SECONDS COMMAND...: run it for so long at most, with its output in NAME.txt.
part() {
    local name=$1 seconds=$2 begin=$SECONDS status
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.txt" 2>&1
    status=$?
    tail -n 15 "$out/$name.txt"
    tell "$name: exit status $status after $((SECONDS - begin)) s$([[ $status == 124 ]] && echo ', out of time')"
    ((status == 0)) || failed=1
    return "$status"
}

# pytest_part NAME SECONDS ARGUMENTS...: it must run some test. Warnings of frameworks may pass.
pytest_part() {
    local name=$1 seconds=$2
    shift 2
    part "$name" "$seconds" "$python" -m pytest -m gpu -n 0 --no-cov -q -rfEs \
        -W default -p no:cacheprovider --junitxml="$out/$name.xml" "$@"
    if ! grep -Eq '[0-9]+ (passed|failed)' "$out/$name.txt"; then
        tell "$name: NO TEST RAN"
        failed=1
    fi
}

# Some images have array-api-compat only inside SciPy or scikit-learn: that copy does.
if ! "$python" -c 'import array_api_compat' 2>/dev/null; then
    copy=$("$python" - <<'PYTHON'
import importlib.util
from pathlib import Path

for owner in ("sklearn", "scipy"):
    found = importlib.util.find_spec(owner)
    for folder in found.submodule_search_locations if found else ():
        for each in Path(folder).glob("*/array_api_compat/torch/__init__.py"):
            print(each.parents[1])
PYTHON
    )
    if [[ -n $copy ]]; then
        borrowed=$(mktemp -d)
        trap 'rm -rf "$borrowed"' EXIT
        ln -s "$(head -n 1 <<<"$copy")" "$borrowed/array_api_compat"
        export PYTHONPATH="$PYTHONPATH:$borrowed"
        tell "array-api-compat: borrowed from $(head -n 1 <<<"$copy")"
    fi
fi

part machine 25 "$python" - <<'PYTHON'
import importlib
import platform

import rnnop
from rnnop import cudnn
from rnnop.cpu import engine
from rnnop.rssm import cuda

print("python", platform.python_version(), "rnnop", rnnop.__version__)
for name in ("numpy", "array_api_compat", "ml_dtypes", "torch", "cupy", "pytest", "hypothesis"):
    try:
        print(name, importlib.import_module(name).__version__)
    except ImportError as error:
        print(name, "is missing:", error)
print("engine:", ", ".join(engine.available()) or "none")
print("cuDNN:", cudnn.unavailable() or cudnn.library.library())
print("RSSM on CUDA:", cuda.unavailable() or "yes")
PYTHON

if ! grep -q '^engine: [^n]' "$out/machine.txt"; then
    # The self-check compares with the CPU engine too. Without it, all the rest runs as well.
    part engine 60 "$python" setup.py build_ext --inplace
fi

if grep -q '^cuDNN: <' "$out/machine.txt"; then
    pytest_part settles 45 tests/test_gpu_settles.py
    grep -h '^SETTLES' "$out/settles.txt" >"$out/settled.txt"
    pytest_part tests 110 tests/test_gpu.py
    grep -h '^SETTLES' "$out/tests.txt" >>"$out/settled.txt"
    sort -u -t: -k1.9n "$out/settled.txt" -o "$out/settled.txt"
    cat "$out/settled.txt"
    pytest_part rssm 110 tests/test_gpu_rssm.py
    part selfcheck 60 "$python" -m rnnop selfcheck --backend cudnn --quick
    part benchmark 60 "$python" benchmarks/gpu.py --output "$out" --seconds 45
else
    tell "nothing was run on a GPU: $(grep '^cuDNN:' "$out/machine.txt")"
    failed=1
fi

printf '\n'
cat "$out/summary.txt"
exit "$failed"
