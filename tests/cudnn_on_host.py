"""cuDNN without a GPU: its stand-in is the library, and the memory of the host is the device's."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import array_api_compat.numpy
import numpy as np
import pytest
from cudnn_double import build, compile_version

from rnnop import setups
from rnnop.cudnn import dropout, memory, plan, run, weightspace

Array = np.ndarray[Any, np.dtype[Any]]


class HostMemory:
    """NumPy arrays as arrays of a device. Fresh memory is full of NaN, as another may have left it.

    Attributes
    ----------
    current : int
        The address of the caller's stream.
    waits : int
        How often somebody has waited for it.
    capable : (int, int)
        The compute capability that it is said to have.
    """

    def __init__(self) -> None:
        self.current, self.waits, self.capable = 0, 0, (9, 0)

    @property
    def xp(self) -> ModuleType:
        return array_api_compat.numpy

    def missing(self, device: Any) -> None:
        return None

    def bring(self, array: Array) -> Array:
        return array

    def take_back(self, array: Array) -> Array:
        return array

    def index(self, array: Array) -> int:
        return 0

    def number(self, device: Any) -> int:
        return 0

    def on(self, index: int) -> AbstractContextManager[None]:
        return nullcontext()

    def pointer(self, array: Array) -> int:
        assert array.flags.c_contiguous, "a device would read other elements"
        return int(array.ctypes.data)

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        fresh = np.empty(shape, dtype)
        fresh.view(np.uint8)[...] = 255
        return fresh

    def contiguous(self, array: Array) -> Array:
        return np.ascontiguousarray(array)

    def stream(self, index: int) -> int:
        return self.current

    def synchronize(self, index: int) -> None:
        self.waits += 1

    def capability(self, index: int) -> tuple[int, int]:
        return self.capable


class Double:
    """The stand-in of a version: its folder, and what it has seen.

    Attributes
    ----------
    folder : Path
        Where its files are.
    memory : HostMemory
        That it works on.
    """

    def __init__(self, version: str) -> None:
        self.folder = compile_version(version)
        self.memory = HostMemory()
        name = f"libcudnn.so.{version.partition('.')[0]}"
        self._library = ctypes.CDLL(str(self.folder / name))

    def _ask(self, hook: str, *names: str) -> int:
        function = self._library[f"cudnn_double_{hook}"]
        function.restype = ctypes.c_ssize_t
        return int(function(*(name.encode() for name in names)))

    def calls(self, function: str) -> int:
        """Return how often a function was called since `reset`."""
        return self._ask("calls", function)

    def last(self, setting: str) -> int:
        """Return a setting of the latest pass."""
        return self._ask("last", setting)

    def live(self, kind: str) -> int:
        """Return how many objects of a kind there are: handle, rnn, data, tensor, dropout."""
        return self._ask("live", kind)

    def number(self, hook: str) -> int:
        """Return last_stream, foreign_threads, peak_workspace or peak_reserve."""
        return self._ask(hook)

    def reset(self) -> None:
        """Forget all but the objects."""
        self._library.cudnn_double_reset()


def use(patch: pytest.MonkeyPatch, version: str = "9.28.0") -> Double:
    """Make the stand-in the cuDNN of this test, which has seen and remembers nothing yet."""
    double = Double(version)
    patch.setenv("RNNOP_CUDNN_PATH", str(double.folder))
    patch.setitem(memory.FAMILIES, "numpy", double.memory)
    patch.setattr(plan, "_plans", plan._Plans())
    patch.setattr(dropout, "_generators", dropout._Generators())
    patch.setattr(run, "_most_segments", {})
    patch.setattr(run, "_fastest", {})
    patch.setattr(weightspace, "_verified", set())
    patch.setattr(setups, "_OF_WEIGHTS", WeakKeyDictionary())
    patch.setattr(setups, "_OF_SHAPES", {})
    double.reset()
    return double


def compile_again(folder: Path, version: str = "9.28.0") -> Path:
    """Return a folder with a stand-in that no test has loaded yet."""
    return build(folder, version)
