"""The CPU engine's memory: what a call takes, in a fresh process, against what it must keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnnop.cpu import engine

T, N, I, H = 300, 32, 256, 256
UNIT = T * N * H * 4  # bytes of one (total, H) array of float32; I = H
WEIGHTS = 4 * H * (I + H) * 4
SLACK = 3 << 20  # interpreter, thread stacks, rounding of pages

SCRIPT = """
import re, sys
from pathlib import Path
import numpy as np
import rnnop

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

T, N, I, H = map(int, sys.argv[1:5])
weights = rnnop.init_weights("lstm", input_size=I, hidden_size=H, seed=0)
x, dy = np.ones((T, N, I), np.float32), np.ones((T, N, H), np.float32)

def train(x, dy):
    out, vjp = rnnop.rnn_vjp(x, weights, mode="lstm", backend="cpu")
    return out, vjp(dy)

def infer(x, dy):
    return rnnop.rnn(x, weights, mode="lstm", backend="cpu")

call = {"train": train, "infer": infer}[sys.argv[5]]
call(x[:2, :2].copy(), dy[:2, :2].copy())
Path("/proc/self/clear_refs").write_text("5")
before = peak()
result = call(x, dy)
print(peak() - before)
"""


def growth(what: str) -> int:
    sizes = map(str, (T, N, I, H))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *sizes, what], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists() or not engine.available(),
    reason="needs the engine, and Linux to tell the peak of a process",
)


@linux
def test_inference_takes_its_outputs_and_a_few_steps() -> None:
    assert growth("infer") <= UNIT + 2 * WEIGHTS + SLACK


@linux
def test_training_takes_little_beyond_what_it_must_keep() -> None:
    gates, c, x, y, dx = 4 * UNIT, UNIT, UNIT, UNIT, UNIT
    taken = growth("train") + x  # x is there before
    assert taken <= 1.3 * (gates + c + x + y + dx + WEIGHTS) + SLACK
    assert taken >= gates + c + x + y + dx  # or the peak was not seen
