"""Whether two contenders have computed the same thing: compared before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# The largest difference allowed, as a share of the largest entry of an array. Everything is
# float32. Worst measured over all cases and peers: 3.7e-6, a gradient of 6,432 summed steps.
TOLERANCE = 2e-5

STEPWISE = ("y", "x")  # the arrays (T, N, .), of which only the real steps count


def largest_difference(
    ours: Mapping[str, npt.NDArray[Any]],
    theirs: Mapping[str, npt.NDArray[Any]],
    real: npt.NDArray[np.bool_],
) -> float:
    """Return the largest difference over all arrays, each as a share of its largest entry.

    Parameters
    ----------
    ours, theirs : mapping of str to array
        The output 'y' and the gradients 'x', 'w_ih[0]' and so on, or a stream's last state 'h'.
    real : bool (T, N)
        The steps of y and x that count.

    Returns
    -------
    float
        Infinite if an array is missing, has another shape or is not finite.
    """
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(_difference(ours[name], theirs[name], real, name in STEPWISE) for name in ours)


def _difference(
    mine: npt.NDArray[Any], other: npt.NDArray[Any], real: npt.NDArray[np.bool_], stepwise: bool
) -> float:
    if mine.shape != other.shape:
        return float("inf")
    if stepwise:
        mine, other = mine[real], other[real]
    difference = float(np.abs(mine - other).max())
    size = float(np.abs(mine).max())
    return difference / size if np.isfinite(difference) and size > 0.0 else float("inf")
