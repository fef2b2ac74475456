#!/usr/bin/env bash
# Runs on one GPU what CI cannot: the tests marked `gpu`, the self-check, the GPU benchmark.
#
#     tools/gpu_check.sh [FOLDER]        the folder of the results; $OUT or gpu-check by default
#
# It takes less than six minutes, installs nothing and needs no network. Wanted: Python with torch
# or CuPy, cuDNN (a wheel will do), NumPy, ml_dtypes, and pytest, without which less is compared.
# array-api-compat may be that within SciPy or scikit-learn. A C compiler builds the CPU engine, if
# it is not there; nothing on the GPU needs it. A part that fails does not keep the others from
# running; the exit status is 0 if none failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-${OUT:-gpu-check}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
: >"$out/summary.txt" >"$out/log.txt"

tell() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }

# part NAME SECONDS COMMAND...: run it for so long at most. Its output goes to the log.
part() {
    local name=$1 seconds=$2 begin=$SECONDS status
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$own/$name.txt" 2>&1
    status=$?
    printf '\n== %s: %s\n' "$name" "$*" | tee -a "$out/log.txt"
    cat "$own/$name.txt" >>"$out/log.txt"
    tail -n 15 "$own/$name.txt"
    tell "$name: exit status $status after $((SECONDS - begin)) s$([[ $status == 124 ]] && echo ', out of time')"
    ((status == 0)) || failed=1
    return "$status"
}

# pytest_part NAME SECONDS ARGUMENTS...: it must run some test. Its settings are not those of
# setup.cfg, which want plugins; it stops ten seconds before it would be killed with its report.
printf '[pytest]\nmarkers =\n    gpu: needs a GPU\n    slow: takes seconds\n' >"$own/pytest.ini"
pytest_part() {
    local name=$1 seconds=$2
    shift 2
    PYTHONPATH="$PYTHONPATH:$PWD/tests" part "$name" "$seconds" \
        "$python" -m pytest -c "$own/pytest.ini" --rootdir=. -m gpu -q -rfEs -p no:cacheprovider \
        -p deadline --deadline=$((seconds - 10)) "$@"
    if ! grep -Eq '[0-9]+ (passed|failed)' "$own/$name.txt"; then
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
        ln -s "$(head -n 1 <<<"$copy")" "$own/array_api_compat"
        export PYTHONPATH="$PYTHONPATH:$own"
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

if grep -qx 'engine: none' "$own/machine.txt"; then
    # The tests compare with it where the reference is slow. Without it, all runs as well. It is
    # built beside what does not need it, and its status, in a process of its own, does not count.
    part engine 60 "$python" setup.py build_ext --inplace --parallel 4 &
fi

if grep -q '^cuDNN: <' "$own/machine.txt"; then
    if grep -q '^pytest is missing' "$own/machine.txt"; then
        PYTHONPATH="$PYTHONPATH:$PWD/tests" part settles 45 "$python" -m settles
        tell "tests: pytest is missing; the self-check runs in full instead"
        part selfcheck 185 "$python" -m rnnop selfcheck --backend cudnn
    else
        pytest_part settles 45 tests/test_gpu_settles.py
        wait
        pytest_part tests 115 tests/test_gpu.py
        pytest_part rssm 60 tests/test_gpu_rssm.py
        part selfcheck 45 "$python" -m rnnop selfcheck --backend cudnn --quick
    fi
    cat "$own"/settles.txt "$own"/tests.txt 2>/dev/null | grep '^SETTLES' |
        sort -u -t: -k1.9n >"$out/settled.txt"
    cat "$out/settled.txt"
    if grep -q '^torch is missing' "$own/machine.txt"; then
        tell "benchmark: not run, for it compares with torch"
    else
        part benchmark 50 "$python" benchmarks/gpu.py --output "$out" --seconds 35
    fi
else
    tell "nothing was run on a GPU: $(grep '^cuDNN:' "$own/machine.txt")"
    failed=1
fi

wait
printf '\n'
cat "$out/summary.txt"
exit "$failed"
