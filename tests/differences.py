"""Central differences in float64, the judge of every gradient.

The function is given as the terms of a sum, as many as it likes: they are subtracted before they
are added, which keeps the rounding of large sums out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Terms: TypeAlias = Callable[[Array], Array]

STEP = 1e-7  # small, so that hardly any sum of this size straddles the kink of a clip or a Relu
AGREEMENT = 1e-6  # relative to the largest entry, or to the length, of the gradient
NOTHING = 1e-9  # what rounding alone can make of a difference that is 0


def along(f: Terms, at: Array, direction: Array) -> float:
    """Return the derivative of sum(f(at)) along a direction."""
    return float(np.sum(f(at + STEP * direction) - f(at - STEP * direction)) / (2 * STEP))


def assert_gradient(name: str, got: Array, f: Terms, at: Array) -> None:
    """Fail unless `got` is the gradient of sum(f(at)), entry by entry."""
    assert got.shape == at.shape, f"{name}: shape {got.shape}, wanted {at.shape}"
    most = AGREEMENT * float(np.abs(got).max(initial=0.0)) + NOTHING
    for index in np.ndindex(at.shape):
        direction = np.zeros(at.shape)
        direction[index] = 1.0
        wrong = abs(float(got[index]) - along(f, at, direction))
        assert wrong <= most, f"{name}: off by {wrong:.3g} at {index}, allowed {most:.3g}"


def assert_gradient_along(name: str, got: Array, f: Terms, at: Array, direction: Array) -> None:
    """Fail unless `got` is the gradient of sum(f(at)), as far as one direction tells."""
    assert got.shape == at.shape, f"{name}: shape {got.shape}, wanted {at.shape}"
    wrong = abs(float(np.sum(got * direction)) - along(f, at, direction))
    most = AGREEMENT * float(np.linalg.norm(got)) + NOTHING
    assert wrong <= most, f"{name}: off by {wrong:.3g} along a direction, allowed {most:.3g}"
