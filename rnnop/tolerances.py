"""The published tolerances: how far the results of each backend may be from those in float64.

An error is the RMS of the difference over the RMS of the float64 result. The tests and
`python -m rnnop selfcheck` hold every backend to these numbers. A number here is never loosened in
passing: it stands a few times above the worst case measured, which stands beside it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# (backend, dtype): the largest RMS error over RMS of the float64 result. Worst measured: all cases
# of tests/cases.py, values and gradients, numpy 2.4 with OpenBLAS, November 2026.
TOLERANCES = {
    ("reference", "float64"): 1e-13,  # worst 1.2e-14, against the oracle after 40 steps
    ("reference", "float32"): 1e-5,  # worst 3.9e-6, a sum that nearly cancels; median 1.3e-7
    ("reference", "float16"): 1e-3,  # worst 5.4e-4; half a unit in the last place is 4.9e-4
    ("reference", "bfloat16"): 8e-3,  # worst 4.6e-3; half a unit in the last place is 3.9e-3
    ("cpu", "float64"): 3e-14,  # worst 9.4e-15, against the reference in float64; median 2.4e-16
    ("cpu", "float32"): 1e-5,  # worst 3.9e-6, a sum that nearly cancels; median 1.2e-7
    ("cpu", "float16"): 1e-3,  # worst 4.6e-4
    ("cpu", "bfloat16"): 8e-3,  # worst 4.6e-3
    ("cpu_bfloat16_products", "float32"): 6e-2,  # worst 2.9e-2, nearly cancels; median 2.0e-3
    ("cudnn", "float64"): 3e-14,  # worst 1.8e-15, with the tests' stand-in; on no GPU yet
    ("cudnn", "float32"): 1e-5,  # likewise 2.1e-6, a sum that nearly cancels
    ("cudnn", "float16"): 4e-3,  # likewise 1.1e-3: the backward reads y, which is rounded
    ("cudnn", "bfloat16"): 3e-2,  # likewise 1.0e-2; of a single tanh unit near 1 it was 6.0e-2
}

# How far apart the smallest numbers of a dtype are: nothing is expected to be nearer to zero.
FLOORS = {"float64": 1e-300, "float32": 1e-45, "float16": 6e-8, "bfloat16": 1e-40}


def rms(array: Array) -> float:
    """Return the root of the mean square, without overflow or underflow."""
    largest = float(np.abs(array).max(initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(array / largest)))) if largest else 0.0


def error(got: Array, wanted: Array, dtype: str) -> float:
    """Return the RMS of `got - wanted` over the RMS of `wanted`.

    Parameters
    ----------
    got, wanted : array of float64
        `wanted` is finite.
    dtype : str
        The one that `got` was computed in: what is nearer to zero than that can tell counts as 0.

    Returns
    -------
    float
        Infinite where `got` is not finite, or `wanted` is all zeros and `got` is not.
    """
    if not np.isfinite(got).all():
        return math.inf
    rest, size = max(rms(got - wanted) - FLOORS[dtype], 0.0), rms(wanted)
    return rest / size if size else math.inf if rest else 0.0
