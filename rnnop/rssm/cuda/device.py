"""The device of a call: its context, this thread's cuBLAS on it, and the stream of the work."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass
from typing import Any

from ... import flags
from ...arrays import Array
from ...cudnn.memory import Memory, fresh
from . import library
from .compiler import compiled
from .library import Library

WORKSPACE = 1 << 22  # bytes for cuBLAS
_NON_BLOCKING, _NO_TIMING = 1, 2  # CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING
_FULL, _TF32 = 0, 3  # CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH


class Owner:
    """Something that a library has made, and destroys with this object."""

    def __init__(self, pointer: int, destroy: Any) -> None:
        self.pointer = pointer
        finalizer = weakref.finalize(self, _destroy, destroy, pointer, os.getpid())
        finalizer.atexit = False


def _destroy(destroy: Any, pointer: int, process: int) -> None:
    if os.getpid() == process:
        destroy(pointer)


def event(driver: Library) -> Owner:
    """Return an event that has not happened yet, and so holds nobody up."""
    made = c_void_p()
    driver.cuEventCreate(byref(made), _NO_TIMING)
    return Owner(made.value or 0, driver.raw["cuEventDestroy_v2"])


@dataclass(frozen=True, eq=False)
class Machine:
    """What a thread has on a device.

    Attributes
    ----------
    context : int
        The one that every framework shares.
    blas : Owner
        This thread's handle of cuBLAS.
    side : Owner
        A stream for captures.
    """

    driver: Library
    cublas: Library
    context: int
    blas: Owner
    side: Owner


class _Machines(threading.local):
    """The machines of this thread."""

    def __init__(self) -> None:
        self.made: dict[tuple[Library, int, int], Machine] = {}


_machines = _Machines()
_contexts: dict[tuple[Library, int, int], int] = {}
_modules: dict[tuple[Library, int, str, int], int] = {}


def _context(driver: Library, index: int) -> int:
    """Return the context of a device that the frameworks use, which is never given back."""
    key = (driver, index, os.getpid())
    if key not in _contexts:
        device, context = c_int(), c_void_p()
        driver.cuDeviceGet(byref(device), index)
        driver.cuDevicePrimaryCtxRetain(byref(context), device)
        _contexts[key] = context.value or 0
    return _contexts[key]


def _machine(driver: Library, index: int, context: int) -> Machine:
    key = (driver, index, os.getpid())
    if key not in _machines.made:
        cublas, blas, side = library.cublas(), c_void_p(), c_void_p()
        cublas.cublasCreate_v2(byref(blas))
        driver.cuStreamCreate(byref(side), _NON_BLOCKING)
        _machines.made[key] = Machine(
            driver,
            cublas,
            context,
            Owner(blas.value or 0, cublas.raw["cublasDestroy_v2"]),
            Owner(side.value or 0, driver.raw["cuStreamDestroy_v2"]),
        )
    return _machines.made[key]


@dataclass(frozen=True, eq=False)
class Device:
    """A device that is the current one.

    Attributes
    ----------
    memory : Memory
        Of the family of the arrays.
    index : int
        Its number.
    stream : int
        The address of the caller's stream.
    captures : bool
        Whether the caller captures it: then it must not wait, and no graph of ours begins.
    """

    memory: Memory
    index: int
    machine: Machine
    stream: int
    captures: bool

    @property
    def driver(self) -> Library:
        """The driver."""
        return self.machine.driver

    def room(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        """Return fresh memory of the family, which outlives the call."""
        with self.memory.lasting():
            return fresh(self.memory, shape, dtype, like)

    def function(self, name: str, dtype: str) -> int:
        """Return a kernel for a dtype; all of them are compiled and loaded at once."""
        key = (self.driver, self.index, dtype, os.getpid())
        if key not in _modules:
            code = compiled(library.nvrtc(), self.memory.capability(self.index), dtype)
            module = c_void_p()
            self.driver.cuModuleLoadData(byref(module), code)
            _modules[key] = module.value or 0
        function = c_void_p()
        self.driver.cuModuleGetFunction(byref(function), _modules[key], name.encode())
        return function.value or 0

    def set_up(self, stream: int, workspace: int, tf32: bool) -> None:
        """Let cuBLAS work on a stream, with memory that only this work uses."""
        machine, handle = self.machine, self.machine.blas.pointer
        machine.cublas.cublasSetStream_v2(handle, stream)
        machine.cublas.cublasSetWorkspace_v2(handle, workspace, WORKSPACE)  # after the stream
        machine.cublas.cublasSetMathMode(handle, _TF32 if tf32 else _FULL)

    def finish(self) -> None:
        """Wait for what was begun, with RNNOP_CHECK: so that its failure shows here."""
        if flags.enabled("RNNOP_CHECK"):
            self.memory.synchronize(self.index)


@contextmanager
def current(memory: Memory, like: Array) -> Iterator[Device]:
    """Make the device of `like` the current one, of the driver too."""
    driver, index = library.driver(), memory.index(like)
    with memory.on(index):
        context, before = _context(driver, index), c_void_p()
        driver.cuCtxPushCurrent_v2(context)
        try:
            stream, status = memory.stream(index), c_int()
            driver.cuStreamIsCapturing(stream, byref(status))
            yield Device(
                *(memory, index, _machine(driver, index, context), stream, status.value != 0)
            )
        finally:
            driver.cuCtxPopCurrent_v2(byref(before))


Reals = {"float32": ctypes.c_float, "float64": ctypes.c_double}
