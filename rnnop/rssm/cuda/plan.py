"""Models with their memory, kept for the next call of the same shapes.

A plan serves one call at a time. One that is kept for a gradient is busy until nobody can ask for
that gradient any more. Its work may go to any stream: an event tells when the last of it is done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import flags
from ...arrays import Array
from .device import WORKSPACE, Device, event
from .model import Key, Model

MOST_IDLE = 8  # each has its own memory

Place = tuple[int, str, int, Key]
"""Process, family, device and key."""


class Plan:
    """A model, the memory that cuBLAS works in, and whether it may have graphs.

    Attributes
    ----------
    busy : Owner
        The event that its latest work is done.
    """

    def __init__(self, place: Place, device: Device, like: Array, alone: bool) -> None:
        self.place, self.alone = place, alone
        self.model = Model(place[-1], device, like)
        memory = device.memory
        self._workspace = device.room((WORKSPACE,), memory.xp.uint8, like)
        self.workspace = memory.pointer(self._workspace)
        self.busy = event(device.driver)

    @contextmanager
    def work(self, device: Device) -> Iterator[None]:
        """Let what is begun within follow what was begun before, on whatever stream that was."""
        if device.captures:
            yield
            return
        device.driver.cuStreamWaitEvent(device.stream, self.busy.pointer, 0)
        try:
            yield
        finally:
            device.driver.cuEventRecord(self.busy.pointer, device.stream)
        device.finish()

    def run(self, device: Device, *section: Any) -> None:
        """Begin a section of the work."""
        capture = not device.captures and flags.enabled("RNNOP_CUDA_GRAPHS")
        self.model.sections[section].run(device, self.workspace, self.place[-1].tf32, capture)

    def close(self, device: Device) -> None:
        """Wait until it is idle, so that its memory may go."""
        device.driver.cuEventSynchronize(self.busy.pointer)


class _Plans(threading.local):
    """The idle plans of this thread, the latest last, and those that come back from gradients."""

    def __init__(self) -> None:
        self.idle: OrderedDict[int, Plan] = OrderedDict()
        self.returned: deque[Plan] = deque()


_plans = _Plans()


def take(device: Device, key: Key, family: str, like: Array) -> Plan:
    """Return an idle plan for a key, or a new one.

    Within a capture of the caller's it is a new one that nobody else gets: the caller's graph will
    write to its memory.
    """
    place = (os.getpid(), family, device.index, key)
    if device.captures:
        return Plan(place, device, like, alone=True)
    _tidy(device)
    for number, plan in reversed(_plans.idle.items()):
        if plan.place == place:
            return _plans.idle.pop(number)
    return Plan(place, device, like, alone=False)


def give_back(plan: Plan) -> None:
    """Let the next call have a plan."""
    if not plan.alone:
        _plans.returned.append(plan)


def give_back_after(owner: object, plan: Plan) -> None:
    """Let the next call have a plan once `owner` is gone. It goes to this thread, from any."""
    if not plan.alone:
        weakref.finalize(owner, _plans.returned.append, plan).atexit = False


def _tidy(device: Device) -> None:
    """Put what came back beside the other idle plans, and let the oldest go."""
    while _plans.returned:
        plan = _plans.returned.popleft()
        _plans.idle[id(plan)] = plan
    most = min(MOST_IDLE, flags.integer("RNNOP_PLAN_CACHE"))
    while len(_plans.idle) > most:
        _, plan = _plans.idle.popitem(last=False)
        plan.close(device)
