"""Times of several callables that take turns in one process.

A turn begins when the process is idle: the threads of whoever ran before may spin on for
milliseconds, and would take a core from the next one. In a turn a short call runs many times, and
its first run does not count: it finds the caches full of the others' data.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_ROUNDS = 5
MOST_ROUNDS = 50
TURN_SECONDS = 0.01
_IDLE_SLICE = 0.005  # longer than the 4 ms in which Linux may count processor time
_MOST_IDLE_SLICES = 20


@dataclass(frozen=True)
class Timing:
    """What the calls of one contender took.

    Attributes
    ----------
    median, lower, upper : float
        Median and quartiles, in seconds.
    calls : int
        How many were timed.
    cores : float
        Processor time over time: how many cores it kept busy.
    """

    median: float
    lower: float
    upper: float
    calls: int
    cores: float

    @classmethod
    def of(cls, seconds: list[float], cores: float) -> Timing:
        """Summarise the times of the calls."""
        lower, median, upper = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper, len(seconds), cores)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return (self.upper - self.lower) / 2.0 / self.median


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    processor_clock: Callable[[], float] = time.process_time,
    rest: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Time callables, in rounds in which each has a turn.

    Parameters
    ----------
    calls : mapping of str to callable
        Each has run before, so that nothing is loaded or compiled any more.
    seconds : float
        Rounds go on until this has passed, but for at least `LEAST_ROUNDS` of them and at most
        `MOST_ROUNDS`.
    clock, processor_clock, rest : callable
        The time, the processor time of all threads, and what is done between two turns: waiting
        until the process is idle.
    """
    rest = rest or wait_until_idle
    times: dict[str, list[float]] = {name: [] for name in calls}
    used = dict.fromkeys(calls, 0.0)
    passed = dict.fromkeys(calls, 0.0)
    order = list(calls)
    with garbage_kept():
        repeats = {name: _repeats(_timed(call, clock)) for name, call in calls.items()}
        begin, rounds = clock(), 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and clock() - begin < seconds):
            for name in order:
                call = calls[name]
                rest()
                if repeats[name] > 1:
                    call()
                turn, processor = clock(), processor_clock()
                times[name] += [_timed(call, clock) for _ in range(repeats[name])]
                used[name] += processor_clock() - processor
                passed[name] += clock() - turn
            order.append(order.pop(0))  # so that nobody always follows the same other
            rounds += 1
    return {name: Timing.of(times[name], used[name] / passed[name]) for name in calls}


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect garbage now, and not again until the end of the block."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def wait_until_idle() -> None:
    """Sleep until no thread of this process works or spins any more, for 0.1 s at most."""
    for _ in range(_MOST_IDLE_SLICES):
        before = time.process_time()
        time.sleep(_IDLE_SLICE)
        if time.process_time() - before < _IDLE_SLICE / 5:
            return


def _timed(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return clock() - begin


def _repeats(seconds: float) -> int:
    """Return how many calls of that length fill a turn."""
    return max(1, min(200, int(TURN_SECONDS / seconds)))
