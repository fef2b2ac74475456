"""Memory of one call: how far a process grows during it, over its inputs and weights."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import RnnopError
from .cases import AnyCase, draw
from .measure import Load

# Of Linux: "5" in the first sets the peak of the process back to what is resident now.
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Footprint:
    """What a call of one contender takes beyond its inputs and weights.

    Attributes
    ----------
    case : Case
        What is called.
    threads : int
        On how many threads.
    contender : str
        Who.
    peak : int
        The most bytes that it has at a time, its results included.
    results : int
        Bytes of y and, in training, of the gradients: the least that anybody must have.
    """

    case: AnyCase
    threads: int
    contender: str
    peak: int
    results: int


def measurable() -> bool:
    """Return whether the system can tell and lets us ask."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def contenders(case: AnyCase, threads: int, loads: dict[str, Load]) -> Iterator[tuple[str, int]]:
    """Yield each contender of a case, as a peer and a place in its list; for a fresh process."""
    inputs = draw(_tiny(case))
    for name, load in loads.items():
        yield from ((name, place) for place in range(len(load(inputs, threads))))


def footprint(case: AnyCase, threads: int, load: Load, place: int) -> Iterator[Footprint]:
    """Yield the footprint of one contender; for a fresh process."""
    # Once on next to nothing, so that libraries, threads and buffers of fixed size are there.
    load(draw(_tiny(case)), threads)[place].call()
    contender = load(draw(case), threads)[place]
    gc.collect()
    _give_back()
    _RESET.write_text("5")
    before = _peak()
    result = contender.call()
    peak = _peak() - before
    arrays = contender.outputs(result).values()
    yield Footprint(case, threads, contender.name, peak, sum(array.nbytes for array in arrays))


def _tiny(case: AnyCase) -> AnyCase:
    return replace(case, num_steps=2, batch_size=2)


def _peak() -> int:
    """Return the most bytes that the process has had resident."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RnnopError(f"{_STATUS} has no line VmHWM; expected it there on Linux")
    return int(found[1]) * 1024


def _give_back() -> None:
    """Have the C library give free memory back: a call that reuses it would seem to take none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
