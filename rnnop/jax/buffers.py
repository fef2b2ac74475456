"""JAX's buffers as arrays of a backend, while a callback runs: how, by platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..arrays import Array
from ..errors import BackendUnavailable

Work = Callable[[list[Array]], None]


def in_numpy(_: Any, buffers: Sequence[Any], work: Work) -> None:
    """Do some work on the buffers as NumPy arrays."""
    work([buffer.__array__() for buffer in buffers])  # numpy.asarray takes four times as long


def in_cupy(context: Any, buffers: Sequence[Any], work: Work) -> None:
    """Do some work on the buffers as CuPy arrays, on the stream of the program."""
    try:
        import cupy
    except ImportError:
        raise BackendUnavailable(
            "JAX arrays on a GPU reach a backend as CuPy arrays, and CuPy is not installed",
            "Install it, as with pip install rnnop[cuda12]",
        ) from None
    with cupy.cuda.ExternalStream(context.stream):
        work([cupy.from_dlpack(buffer) for buffer in buffers])


WAYS = {"cpu": in_numpy, "cuda": in_cupy}
