"""The device of a call: where its memory comes from, and the stream that its work goes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import flags
from ..arrays import Array
from .descriptors import Handle, handle
from .library import library
from .memory import Memory, fresh

_CAPABILITIES: dict[Any, tuple[int, int]] = {}


@dataclass(frozen=True, eq=False)
class Device:
    """A device that is the current one, and the stream that work goes to.

    Attributes
    ----------
    memory : Memory
        Of the family of the arrays.
    index : int
        Its number.
    handle : Handle
        This thread's, set to the stream.
    stream : int
        The address of the stream.
    """

    memory: Memory
    index: int
    handle: Handle
    stream: int

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability, (major, minor)."""
        key = self.memory, self.index
        if key not in _CAPABILITIES:
            _CAPABILITIES[key] = self.memory.capability(self.index)
        return _CAPABILITIES[key]

    def address(self, array: Array | None) -> int | None:
        """Return where an array begins; None of None."""
        return None if array is None else self.memory.pointer(array)

    def like(self, array: Array | None) -> Array | None:
        """Return fresh memory for an array of the same shape and dtype; None of None."""
        if array is None:
            return None
        return fresh(self.memory, tuple(array.shape), array.dtype, array)

    def finish(self) -> None:
        """Wait for the call that was made, with RNNOP_CHECK: so that its failure shows here."""
        if flags.enabled("RNNOP_CHECK"):
            self.memory.synchronize(self.index)


@contextmanager
def current(memory: Memory, x: Array) -> Iterator[Device]:
    """Make the device of `x` the current one, with this thread's handle on the caller's stream."""
    index = memory.index(x)
    with memory.on(index):
        mine, stream = handle(library(), index), memory.stream(index)
        mine.set_stream(stream)
        yield Device(memory, index, mine, stream)
