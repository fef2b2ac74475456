"""Where memory ends: an error, in a process that goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rnnop.cpu import engine

resource = pytest.importorskip("resource", reason="this system has no limit on memory")

HEAD = """
import resource
import numpy as np
import rnnop

def limit(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

def lift():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def outcome(call):
    try:
        call()
    except MemoryError as error:
        return str(error)
    return "done"
"""

TIGHT = """
w = rnnop.init_weights("lstm", input_size=8, hidden_size=256, seed=0)
x = np.ones((3, 2000, 8), np.float32)
vjp = rnnop.rnn_vjp(x, w, mode="lstm", backend="cpu")[1]
dy = np.ones((3, 2000, 256), np.float32)
for call in (
    lambda: rnnop.rnn(x, w, mode="lstm", backend="cpu"),
    lambda: rnnop.rnn_vjp(x, w, mode="lstm", backend="cpu"),
    lambda: vjp(dy),
):
    right = outcome(call)
    for megabytes in range(1, 80, 3):
        limit(megabytes << 20)
        found = outcome(call)
        lift()
        print(found)
    print("then", outcome(call))
"""

ABSURD = """
def shaped(*shape):
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), shape, (0,) * len(shape))

limit(2 << 30)
w = rnnop.init_weights("gru", input_size=1, hidden_size=1, seed=0)
for shape in ((2**20, 2**20, 1), (2**40, 1, 1), (1, 2**40, 1), (2**31, 1, 1), (1, 2**31, 1)):
    print(outcome(lambda: rnnop.rnn(shaped(*shape), w, backend="cpu")) != "done")
wide = rnnop.RNNWeights([shaped(3 * 2**18, 1)], [shaped(3 * 2**18, 2**18)])
print(outcome(lambda: rnnop.rnn(shaped(1, 1, 1), wide, backend="cpu")) != "done")
print(outcome(lambda: rnnop.rnn(shaped(1, 1, 1), w, backend="cpu")) == "done")
"""


def lines(script: str) -> list[str]:
    """Run a script in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc"),
    pytest.mark.skipif(not engine.available(), reason="rnnop was installed without a C compiler"),
]


def test_no_memory_is_an_error_wherever_it_strikes() -> None:
    found = lines(TIGHT)
    assert found.count("then done") == 3
    failed = [line for line in found if line not in ("done", "then done")]
    assert any("working memory could not be allocated" in line for line in failed)
    assert any("Unable to allocate" in line for line in failed)
    assert "done" in found


def test_absurd_sizes_are_errors() -> None:
    assert lines(ABSURD) == ["True"] * 7
