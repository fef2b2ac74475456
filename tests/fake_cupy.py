"""As much of CuPy as rnnop needs, on the host: for a machine without a GPU.

An array is no NumPy array, and mixes with none: who forgets to bring one over is found out.
"""

from __future__ import annotations

import operator
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import array_api_compat.numpy
import numpy as np


class ndarray:
    """An array of the host that claims to lie on a device."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.device = SimpleNamespace(id=0)  # like CuPy's, it equals its like and has no hash

    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=self._host.ctypes.data)

    def get(self) -> Any:
        return self._host.copy()

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size", "itemsize", "strides", "flags"):
            return getattr(self._host, name)
        if name in ("T",):
            return _wrapped(getattr(self._host, name))
        if name in ("reshape", "sum"):
            return _on_the_host(getattr(self._host, name))
        raise AttributeError(name)


def _wrapped(value: Any) -> Any:
    return ndarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _host_of(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, list | tuple):
        return type(value)(map(_host_of, value))
    if isinstance(value, np.ndarray):
        raise TypeError("a NumPy array among CuPy's")
    return value


def _on_the_host(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        named = {name: _host_of(value) for name, value in kwargs.items()}
        return _wrapped(function(*map(_host_of, args), **named))

    return call


for _name in (
    *("add", "sub", "mul", "truediv", "matmul", "and_", "or_", "lt", "le", "gt", "ge", "eq", "ne"),
    *("neg", "invert", "getitem", "setitem"),
):
    _dunder = f"__{_name.strip('_')}__"
    setattr(
        ndarray,
        _dunder,
        (lambda function: lambda *args: _on_the_host(function)(*args))(getattr(operator, _name)),
    )
for _name in ("add", "sub", "mul", "truediv"):
    setattr(
        ndarray,
        f"__r{_name}__",
        (lambda function: lambda self, other: _on_the_host(function)(other, self))(
            getattr(operator, _name)
        ),
    )
ndarray.__module__ = "cupy"


class Namespace(ModuleType):
    """NumPy's namespace for such arrays."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(array_api_compat.numpy, name)
        return value if isinstance(value, type) or not callable(value) else _on_the_host(value)

    def asarray(self, array: Any, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
        """Carry an array over; one that is there stays, unless a copy is wanted."""
        if isinstance(array, ndarray) and not copy:
            return array
        return ndarray(np.array(array._host if isinstance(array, ndarray) else array, dtype))


class Current(threading.local):
    """The device that is the current one of a thread."""

    device: int | None = None


CURRENT = Current()


class Device:
    """A device, the current one within a block."""

    def __init__(self, index: int | None = None) -> None:
        self.id, self.compute_capability = CURRENT.device or 0 if index is None else index, "120"

    def __enter__(self) -> Device:
        self._before, CURRENT.device = CURRENT.device, self.id
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.device = self._before


class Stream:
    """The current stream."""

    ptr = 4096

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Cupy(Namespace):
    """The module."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.__spec__ = ModuleSpec("cupy", None)
        self.ndarray, self.stream = ndarray, Stream()
        self.cuda = SimpleNamespace(Device=Device, get_current_stream=lambda: self.stream)

    def empty(self, shape: Any, dtype: Any) -> ndarray:
        """Return memory that somebody else has left, on the current device."""
        assert CURRENT.device == 0, "another device is the current one"
        fresh = np.empty(shape, dtype)
        fresh.view(np.uint8)[...] = 255
        return ndarray(fresh)

    def asnumpy(self, array: ndarray) -> Any:
        """Carry an array back."""
        return array.get()
