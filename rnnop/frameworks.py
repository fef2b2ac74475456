"""Which framework's adapter a call goes through, so that it is part of that framework.

An adapter has the public functions of `rnnop.api` under the same names. It brings the framework's
arrays to a backend and the gradients back, and knows neither mathematics nor shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import arrays, backends
from .packing import data_of


def _jax() -> ModuleType:
    from . import jax

    return jax


def _torch() -> ModuleType:
    from . import torch

    return torch


# By family of the arrays: what imports it. torch.compile sees through an import statement, and
# through nothing else that imports.
ADAPTERS: dict[str, Callable[[], ModuleType]] = {"jax": _jax, "torch": _torch}


def adapter(x: Any, backend: str) -> ModuleType | None:
    """Return the adapter for a call on `x`, or None if it needs none.

    Plain arrays need none. Nor does the reference where a caller asks for it: it is written in the
    framework's own operations, so the framework can differentiate it as often as it likes.
    """
    family = arrays.family(data_of(x))
    if family not in ADAPTERS or backends.wanted(backend) == "reference":
        return None
    return ADAPTERS[family]()
