"""The families of device arrays, as CuPy and PyTorch have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from agreement import Family
from cases import Array

import rnnop.cudnn


def cupy_family(cupy: Any, **more: Any) -> Family:
    """Return the arrays of a CuPy."""

    def there(array: Array) -> Any:
        moved = cupy.asarray(np.ascontiguousarray(array))
        if any(stride < 0 for stride in array.strides):
            back = (slice(None, None, -1),) * array.ndim
            return cupy.ascontiguousarray(moved[back])[back]
        if array.flags.c_contiguous:
            return moved
        if array.flags.f_contiguous:
            return cupy.asfortranarray(moved)
        inside = (slice(None, None, 2),) * array.ndim
        around = cupy.zeros([2 * size for size in array.shape], dtype=array.dtype)
        around[inside] = moved
        return around[inside]

    return Family(there, lambda array: array.get(), **more)


def torch_family(torch: Any, device: str = "cuda", **more: Any) -> Family:
    """Return the tensors on a device. They have no negative strides."""

    def there(array: Array) -> Any:
        flat = np.ascontiguousarray(array)
        if array.dtype == ml_dtypes.bfloat16:
            tensor = torch.tensor(flat.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.tensor(flat)
        strides = [stride // array.itemsize for stride in array.strides]
        if min(strides, default=0) < 0:
            return tensor.to(device)
        moved = torch.empty_strided(array.shape, strides, dtype=tensor.dtype, device=device)
        return moved.copy_(tensor)

    def back(tensor: Any) -> Array:
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            bits: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
            return bits
        array: Array = tensor.numpy()
        return array

    return Family(there, back, **more)


def no_gpu_for(
    name: str, unavailable: Callable[[], str | None] = rnnop.cudnn.unavailable
) -> str | None:
    """Return None, or why a framework finds no GPU here, or cuDNN or another backend none."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return f"needs a GPU and {name}, which is not installed"
    try:
        count = module.cuda.runtime.getDeviceCount() if name == "cupy" else 0
    except RuntimeError as error:  # CUDARuntimeError
        return f"needs a GPU: {error}"
    if not count and not (name == "torch" and module.cuda.is_available()):
        return f"needs a GPU, and {name} finds none"
    reason = unavailable()
    return None if reason is None else f"there is a GPU, but {reason}"
