"""CUDA without a GPU: the stand-in is all three libraries, the memory of the host the device's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from cudnn_on_host import HostMemory

from rnnop.rssm.cuda import abilities, library, plan

Array = np.ndarray[Any, np.dtype[Any]]


class Memory(HostMemory):
    """Memory of the host. Nobody makes any, or waits, while a graph is captured."""

    def __init__(self, double: Double) -> None:
        super().__init__()
        self.double, self.made = double, 0

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        assert not self.double.ask("capturing")
        self.made += 1
        return super().empty(shape, dtype, like)

    def lasting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self, index: int) -> None:
        assert not self.double.ask("capturing")
        super().synchronize(index)


def use(patch: pytest.MonkeyPatch) -> Double:
    """Make the stand-in the CUDA of this test, with no plan so far."""
    double = Double()
    forget_libraries()
    patch.setattr(library, "DRIVER", str(double.file))
    patch.setattr(library, "places", lambda name: iter([str(double.file)]))
    patch.setattr(plan, "_plans", plan._Plans())
    patch.setitem(abilities.FAMILIES, "numpy", Memory(double))
    double.reset()
    return double


def forget_libraries() -> None:
    """Let the next call search for the libraries again."""
    library._driver.cache_clear()
    library._found.cache_clear()
