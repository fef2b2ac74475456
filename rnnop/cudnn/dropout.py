"""cuDNN's own dropout: one generator for each thread and stream, seeded as seldom as possible.

Seeding runs a slow kernel. So the states are seeded once and a copy is kept: a call with the same
seed starts from the copy, and gives the same masks as the last. A call without a seed goes on from
where the one before has stopped.
"""

from __future__ import annotations

import os
import threading
from ctypes import byref, c_size_t
from typing import Any

from .. import dropout as streams
from ..arrays import Array, copy
from .descriptors import DropoutDescriptor
from .device import Device
from .memory import room


class _Generator:
    """The states of a generator on the device."""

    def __init__(self, device: Device, like: Array) -> None:
        size = c_size_t()
        library = device.handle.library
        library.cudnnDropoutGetStatesSize(device.handle.pointer, byref(size))
        self.states = room(device.memory, size.value, like)
        self.seeded: Array = None
        self.seed: int | None = None

    def descriptor(self, device: Device, rate: float, seed: int | None) -> DropoutDescriptor:
        """Return a descriptor for the next forward."""
        made = DropoutDescriptor(device.handle.library)
        address, size = device.memory.pointer(self.states), int(self.states.shape[0])
        if seed is None and self.seed is None:
            seed = streams.fresh_seed()
        if seed is not None and seed != self.seed:
            made.set(device.handle, rate, self.states, address, size, seed % 2**64)
            self.seeded, self.seed = copy(device.memory.xp, self.states), seed
            return made
        if seed is not None:
            self.states[...] = self.seeded
        made.restore(device.handle, rate, self.states, address, size, (self.seed or 0) % 2**64)
        return made


class _Generators(threading.local):
    """The generators of this thread. Two streams at once would race for the same states."""

    def __init__(self) -> None:
        self.of: dict[Any, _Generator] = {}


_generators = _Generators()


def descriptor(device: Device, rate: float, seed: int | None, like: Array) -> DropoutDescriptor:
    """Return the descriptor of a forward's dropout; None as the seed goes on with the last one."""
    key = (os.getpid(), device.handle.library, device.index, device.stream)
    if key not in _generators.of:
        _generators.of[key] = _Generator(device, like)
    return _generators.of[key].descriptor(device, rate, seed)
