"""What a call through a framework costs over the same call on NumPy arrays.

It is the smallest call there is: a GRU of 64 units, one step of one row, float32, one thread. The
ways to make it take turns, so that a busy machine slows all of them; printed are percentiles over
many turns, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

H = 64
TURNS = 4000
PERCENTILES = (5, 25, 50, 75)

Run = Callable[[], object]


def take_turns(runs: Mapping[str, Run]) -> dict[str, np.ndarray]:
    """Return percentiles of the microseconds that each run takes."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(TURNS + 100):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn >= 100:
                taken[name].append(1e6 * (time.perf_counter() - begin))
    return {name: np.percentile(each, PERCENTILES) for name, each in taken.items()}


def report(title: str, runs: Mapping[str, Run], bases: Mapping[str, str]) -> None:
    """Print what each run takes, and how much more some of them take than another."""
    found = take_turns(runs)
    print(f"{title}, numpy {np.__version__}, {TURNS} turns")
    print(f"{'microseconds':32}" + "".join(f"{p:>7}%" for p in PERCENTILES))
    for name, row in found.items():
        print(f"{name:32}" + "".join(f"{each:8.1f}" for each in row))
    for name, base in bases.items():
        over = found[name] - found[base]
        print(f"{name + ' over numpy':32}" + "".join(f"{each:8.1f}" for each in over))
