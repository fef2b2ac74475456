"""The four array families: NumPy, CuPy, PyTorch and JAX.

All that rnnop must know about who made an array lives here. A framework is only asked when it is
already imported: nobody can hold a torch tensor without torch in the process.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import DTypeError

Array: TypeAlias = Any
"""An array of any of the four families: they share no base class."""

HostInts: TypeAlias = npt.NDArray[np.int64]
HostBools: TypeAlias = npt.NDArray[np.bool_]

LABELS = {"numpy": "NumPy", "cupy": "CuPy", "torch": "PyTorch", "jax": "JAX"}
FLOATS = ("float64", "float32", "float16", "bfloat16")
_PACKAGES = {"torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}


# Here and below a plain dict: of every lru_cache that it meets, torch.compile warns its user.
_FAMILIES: dict[type, str | None] = {}


def _family_of_type(kind: type) -> str | None:
    if issubclass(kind, np.ma.MaskedArray | np.matrix):
        return None
    for base in kind.__mro__:
        if base is np.ndarray:
            return "numpy"
        # A torch.nn.Parameter is a Tensor, a JAX array is an ArrayImpl or a Tracer: go by the root.
        root = _PACKAGES.get(base.__module__.partition(".")[0])
        if root and (root != "torch" or base.__name__ == "Tensor"):
            return root
    return None


def family(array: object) -> str | None:
    """Return 'numpy', 'cupy', 'torch' or 'jax', or None for anything else.

    A NumPy masked array is none of them: its own mask would be dropped without a word. Nor is a
    NumPy matrix, whose * is no elementwise product.
    """
    kind: type = type(array)
    if kind not in _FAMILIES:
        _FAMILIES[kind] = _family_of_type(kind)
    name = _FAMILIES[kind]
    if name in (None, "numpy") or hasattr(array, "ndim"):
        return name
    return None


_NAMESPACES: dict[str, ModuleType] = {}


def namespace(name: str) -> ModuleType:
    """Return the array API namespace of a family, as array-api-compat gives it."""
    if name not in _NAMESPACES:
        module = "jax.numpy" if name == "jax" else f"array_api_compat.{name}"
        _NAMESPACES[name] = importlib.import_module(module)
    return _NAMESPACES[name]


# Of the dtypes that data may have.
_DTYPE_NAMES: dict[Any, str] = {}


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return str(dtype)  # '>f4': another byte order is another dtype
    return str(getattr(dtype, "name", None) or str(dtype).rpartition(".")[2])


def dtype_name(array: Array) -> str:
    """Return the plain name of an array's dtype: 'float32', 'bfloat16', 'bool', ..."""
    dtype = array.dtype
    if dtype in _DTYPE_NAMES:
        return _DTYPE_NAMES[dtype]
    name = _dtype_name(dtype)
    if name in FLOATS:
        _DTYPE_NAMES[dtype] = name
    return name


def device(array: Array) -> Any:
    """Return the device an array lies on; equal devices compare equal.

    None for an array that JAX traces: it lies nowhere yet.
    """
    if isinstance(array, np.ndarray):
        return "cpu"
    return getattr(array, "device", None)


def to_host(array: object, name: str) -> npt.NDArray[Any]:
    """Return a NumPy copy or view of `array` (a list, or an array of any family on any device).

    Raises
    ------
    DTypeError
        `array` is not something that NumPy can hold as numbers or booleans.
    """
    kind = family(array)
    source: Any = array
    if kind == "torch":
        return np.asarray(source.detach().cpu().numpy())
    if kind == "cupy":
        return np.asarray(source.get())
    try:
        host = np.asarray(source)
    except ValueError:  # a ragged list
        raise DTypeError(
            f"`{name}` is {type(array).__name__}, which NumPy cannot read as an array; "
            "expected numbers or booleans, as many in every row"
        ) from None
    if host.dtype.kind not in "biuf":
        raise DTypeError(
            f"`{name}` is {type(array).__name__}, which NumPy reads as dtype {host.dtype}; "
            "expected numbers or booleans"
        )
    return host


def from_host(xp: ModuleType, host: npt.NDArray[Any], like: Array) -> Array:
    """Return the NumPy array `host` as an array of the namespace `xp` on the device of `like`."""
    if isinstance(like, np.ndarray):
        return host
    return xp.asarray(host, device=device(like))


def zeros(xp: ModuleType, shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of `shape` with the dtype and on the device of `like`."""
    if isinstance(like, np.ndarray):
        return np.zeros(shape, like.dtype)
    return xp.zeros(shape, dtype=like.dtype, device=device(like))


def in_float32(xp: ModuleType, array: Array) -> Array:
    """Return a half as float32, where bounds are compared, and other arrays as they are."""
    if dtype_name(array) not in ("float16", "bfloat16"):
        return array
    return xp.astype(array, xp.float32)


def take_rows(xp: ModuleType, array: Array, index: HostInts | None) -> Array:
    """Return the rows of `array` (axis 0) at `index`, and a row of zeros where `index` is -1.

    `index` lies on the host; None means every row in its place. Nothing is written in place, so
    the frameworks can differentiate through it.
    """
    if index is None:
        return array
    count = int(array.shape[0])

    def sent() -> tuple[Array, bool]:
        places, misses = _places(index, count)
        return from_host(xp, places, array), misses

    places, misses = _kept_on_device(index, array, count, sent) if _on_gpu(array) else sent()
    if misses:
        array = xp.concat([array, zeros(xp, (1, *array.shape[1:]), array)], axis=0)
    return xp.take(array, places, axis=0)


def _places(index: HostInts, count: int) -> tuple[Any, bool]:
    """Return an index with `count`, the row of zeros, in place of -1, and whether it occurs."""
    misses = bool(index.size) and int(index.min()) < 0
    return (np.where(index < 0, count, index) if misses else index), misses


# What is on a device, by the host's array, while that lives: a plan that is kept is not sent again.
_ON_DEVICE: dict[Any, Any] = {}


def kept_from_host(xp: ModuleType, host: npt.NDArray[Any], like: Array) -> Array:
    """Return what `from_host` does, sent to a GPU once as long as `host` lives, and is the same."""
    if not _on_gpu(like):
        return from_host(xp, host, like)
    return _kept_on_device(host, like, None, lambda: from_host(xp, host, like))


def _kept_on_device(host: Any, like: Array, how: Any, make: Callable[[], Any]) -> Any:
    key = (id(host), how, str(device(like)))  # CuPy's have no hash
    if key not in _ON_DEVICE:
        _ON_DEVICE[key] = make()
        weakref.finalize(host, _ON_DEVICE.pop, key, None)
    return _ON_DEVICE[key]


def _on_gpu(array: Array) -> bool:
    """Return whether an array lies on a GPU, and nobody traces what is done with it."""
    if isinstance(array, np.ndarray):
        return False
    kind = family(array)
    if kind == "torch":
        return type(array).__name__ == "Tensor" and bool(array.is_cuda)
    return kind == "cupy"


def copy(xp: ModuleType, array: Array) -> Array:
    """Return a C-contiguous copy that shares no memory."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C")
    if family(array) == "torch":
        return array.clone(memory_format=xp.contiguous_format)
    return xp.asarray(array, copy=True)


def contiguous(xp: ModuleType, array: Array) -> Array:
    """Return a C-contiguous array: this one, or a copy where it lies otherwise."""
    match family(array):
        case "torch":
            return array.contiguous()
        case "jax":
            return array
    return xp.ascontiguousarray(array)
