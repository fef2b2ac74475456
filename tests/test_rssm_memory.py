"""The RSSM's memory on the CPU engine, in a fresh process, against what it must keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnnop.cpu import engine

MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
from rnnop import rssm

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

T, N, H, what = *map(int, sys.argv[1:4]), sys.argv[4]
spec = rssm.RSSMSpec.of(
    "torchrl", state_size=30, belief_size=H, hidden_size=H, action_size=6
)
weights = rssm.init_weights(spec, seed=0)
sizes = (6, 30, 30, 30, 30, H)
arrays = [np.ones((T, N, size), np.float32) for size in sizes]

def call(actions, noise, *cotangents):
    if what == "infer":
        return rssm.rollout(weights, None, None, actions, noise, backend="cpu")
    out, vjp = rssm.rollout_vjp(weights, None, None, actions, noise, backend="cpu")
    return out, vjp(*cotangents)

call(*(array[:2, :2].copy() for array in arrays))
Path("/proc/self/clear_refs").write_text("5")
before = peak()
result = call(*arrays)
print(peak() - before, 4 * weights.num_parameters)
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists() or not engine.available(),
    reason="needs the engine, and Linux to tell the peak of a process",
)
@pytest.mark.parametrize("what", ["infer", "train"])
def test_memory_is_what_must_be_kept(what: str) -> None:
    T, N, H = 400, 16, 256
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, (T, N, H)), what],
        check=True,
        capture_output=True,
        text=True,
    )
    taken, weights = map(int, done.stdout.split())
    outputs, state, slack = 4 * T * N * (H + 90), 4 * T * N * 30, 3 << 20
    if what == "infer":
        assert outputs <= taken <= outputs + 2 * weights + slack
        return
    # gates, and what the two hidden layers gave; mean's raw std, state and action, their gradient
    kept = outputs + 4 * T * N * (4 * H + 2 * H) + 3 * state
    assert kept <= taken + slack
    assert taken <= 1.15 * kept + 2 * weights + slack
