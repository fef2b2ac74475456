"""Device memory as cuDNN needs it, for each family of arrays: pointers, streams, fresh room.

A framework is asked for by name and never imported above: nobody holds a CuPy array without CuPy.
NumPy arrays are carried to the device and back by CuPy.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol

from .. import arrays, flags
from ..arrays import Array


class Memory(Protocol):
    """What a family of arrays must offer."""

    @property
    def xp(self) -> ModuleType:
        """The namespace of the arrays on the device."""

    def missing(self, device: Any) -> str | None:
        """Return None, or why arrays of this family on `device` cannot be given to cuDNN."""

    def bring(self, array: Array) -> Array:
        """Return the array on the device."""

    def take_back(self, array: Array) -> Array:
        """Return an array of the device as the caller has his."""

    def index(self, array: Array) -> int:
        """Return the number of the CUDA device that an array lies on."""

    def number(self, device: Any) -> int:
        """Return the number of the CUDA device that work on arrays of `device` goes to."""

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make a device the current one."""

    def pointer(self, array: Array) -> int:
        """Return the address of the first element."""

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        """Return fresh memory, of the family's own pool, on the device of `like`."""

    def lasting(self) -> AbstractContextManager[Any]:
        """Let memory that is made within be written to after the call as well."""

    def contiguous(self, array: Array) -> Array:
        """Return the array, or a C-contiguous copy."""

    def stream(self, index: int) -> int:
        """Return the stream that the caller's work goes to."""

    def synchronize(self, index: int) -> None:
        """Wait for that stream."""

    def capability(self, index: int) -> tuple[int, int]:
        """Return the compute capability of a device."""


class CupyMemory:
    """CuPy arrays: CuPy's pool, its current stream."""

    @cached_property
    def _cupy(self) -> Any:
        return importlib.import_module("cupy")

    @cached_property
    def xp(self) -> ModuleType:
        """The namespace of the arrays."""
        return arrays.namespace("cupy")

    def missing(self, device: Any) -> str | None:
        """Return None: a CuPy array lies on a GPU."""
        return None

    def bring(self, array: Array) -> Array:
        """Return the array: it is there."""
        return array

    def take_back(self, array: Array) -> Array:
        """Return the array: it may stay."""
        return array

    def index(self, array: Array) -> int:
        """Return the number of the device."""
        return int(array.device.id)

    def number(self, device: Any) -> int:
        """Return the number of CuPy's device."""
        return int(device.id)

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make a device the current one."""
        device: AbstractContextManager[Any] = self._cupy.cuda.Device(index)
        return device

    def pointer(self, array: Array) -> int:
        """Return the address of the first element."""
        return int(array.data.ptr)

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        """Return fresh memory of CuPy's pool on the current device."""
        return self._cupy.empty(shape, dtype)

    def lasting(self) -> AbstractContextManager[Any]:
        """Do nothing: all memory is such."""
        return nullcontext()

    def contiguous(self, array: Array) -> Array:
        """Return the array, or a C-contiguous copy."""
        return self._cupy.ascontiguousarray(array)

    def stream(self, index: int) -> int:
        """Return CuPy's current stream."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def synchronize(self, index: int) -> None:
        """Wait for that stream."""
        self._cupy.cuda.get_current_stream().synchronize()

    def capability(self, index: int) -> tuple[int, int]:
        """Return (major, minor) of a device."""
        digits = str(self._cupy.cuda.Device(index).compute_capability)
        return int(digits[:-1]), int(digits[-1])


class CarriedMemory(CupyMemory):
    """NumPy arrays, which CuPy carries to the current device and back."""

    def missing(self, device: Any) -> str | None:
        """Return None, or that there is no CuPy to carry them."""
        if importlib.util.find_spec("cupy") is None:
            return "NumPy arrays need CuPy to carry them to the GPU, and CuPy is not installed"
        return None

    def bring(self, array: Array) -> Array:
        """Copy to the device."""
        return self._cupy.asarray(array)

    def number(self, device: Any) -> int:
        """Return the number of the current device: arrays of the host are carried there."""
        return int(self._cupy.cuda.Device().id)

    def take_back(self, array: Array) -> Array:
        """Copy to the host."""
        return self._cupy.asnumpy(array)


class TorchMemory:
    """PyTorch tensors: its caching allocator, its current stream."""

    @cached_property
    def _torch(self) -> Any:
        return importlib.import_module("torch")

    @cached_property
    def xp(self) -> ModuleType:
        """The namespace of the tensors."""
        return arrays.namespace("torch")

    def missing(self, device: Any) -> str | None:
        """Return None, or that the tensors do not lie on a GPU."""
        if device.type != "cuda":
            return f"`x` lies on device '{device}'; expected a CUDA device"
        return None

    def bring(self, array: Array) -> Array:
        """Return the tensor without its history: the gradient is ours to give."""
        return array.detach()

    def take_back(self, array: Array) -> Array:
        """Return the tensor: it may stay."""
        return array

    def index(self, array: Array) -> int:
        """Return the number of the device."""
        return self.number(array.device)

    def number(self, device: Any) -> int:
        """Return the number of torch's device."""
        return int(device.index)

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make a device the current one."""
        device: AbstractContextManager[Any] = self._torch.cuda.device(index)
        return device

    def pointer(self, array: Array) -> int:
        """Return the address of the first element."""
        return int(array.data_ptr())

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        """Return fresh memory of the caching allocator."""
        return self._torch.empty(shape, dtype=dtype, device=like.device)

    def lasting(self) -> AbstractContextManager[Any]:
        """Leave the inference mode, whose tensors nobody may write to after it."""
        outside: AbstractContextManager[Any] = self._torch.inference_mode(False)
        return outside

    def contiguous(self, array: Array) -> Array:
        """Return the tensor, or a C-contiguous copy."""
        return array.contiguous()

    def stream(self, index: int) -> int:
        """Return the current stream of a device."""
        return int(self._torch.cuda.current_stream(index).cuda_stream)

    def synchronize(self, index: int) -> None:
        """Wait for that stream."""
        self._torch.cuda.current_stream(index).synchronize()

    def capability(self, index: int) -> tuple[int, int]:
        """Return (major, minor) of a device."""
        major, minor = self._torch.cuda.get_device_capability(index)
        return int(major), int(minor)


FAMILIES: dict[str, Memory] = {
    "cupy": CupyMemory(),
    "torch": TorchMemory(),
    "numpy": CarriedMemory(),
}


def fresh(memory: Memory, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
    """Return memory with nothing in it to rely on: all NaN, or all ones, with RNNOP_CHECK."""
    room = memory.empty(shape, dtype, like)
    if flags.enabled("RNNOP_CHECK"):
        room[...] = 255 if dtype == memory.xp.uint8 else float("nan")
    return room


def room(memory: Memory, size: int, like: Array) -> Array:
    """Return `size` bytes."""
    return fresh(memory, (size,), memory.xp.uint8, like)
