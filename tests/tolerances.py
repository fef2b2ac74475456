"""One table of tolerances, and the one comparison of arrays that the tests use.

An error is the RMS of the difference over the RMS of the float64 result. A number here is never
loosened in passing: it stands a few times above the worst case measured, which stands beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import DTYPES

Array = np.ndarray[Any, np.dtype[Any]]

# (backend, dtype): the largest RMS error over RMS of the float64 result. Worst measured: all cases
# of cases.py, values and gradients, numpy 2.4 with OpenBLAS, November 2026.
TOLERANCES = {
    ("reference", "float64"): 1e-13,  # worst 1.2e-14, against the oracle after 40 steps
    ("reference", "float32"): 1e-5,  # worst 3.9e-6, a sum that nearly cancels; median 1.3e-7
    ("reference", "float16"): 1e-3,  # worst 5.4e-4; half a unit in the last place is 4.9e-4
    ("reference", "bfloat16"): 8e-3,  # worst 4.6e-3; half a unit in the last place is 3.9e-3
    ("cpu", "float64"): 3e-14,  # worst 9.4e-15, against the reference in float64; median 2.4e-16
    ("cpu", "float32"): 1e-5,  # worst 3.9e-6, a sum that nearly cancels; median 1.2e-7
    ("cpu", "float16"): 1e-3,  # worst 4.6e-4
    ("cpu", "bfloat16"): 8e-3,  # worst 4.6e-3
    ("cudnn", "float64"): 3e-14,  # the stand-in: worst 1.8e-15
    ("cudnn", "float32"): 1e-5,  # the stand-in: worst 2.1e-6, a sum that nearly cancels
    ("cudnn", "float16"): 4e-3,  # the stand-in: worst 2.0e-3; the backward reads y in halves
    ("cudnn", "bfloat16"): 8e-2,  # the stand-in: worst 6e-2, that sum again; then 1.0e-2
}

# How far apart the smallest numbers of a dtype are: nothing is expected to be nearer to zero.
FLOORS = {"float64": 1e-300, "float32": 1e-45, "float16": 6e-8, "bfloat16": 1e-40}


def rms(array: Array) -> float:
    """Return the root of the mean square, without overflow or underflow."""
    largest = float(np.abs(array).max(initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(array / largest)))) if largest else 0.0


def assert_close(name: str, got: Any, wanted: Any, backend: str, dtype: str) -> None:
    """Fail unless `got` has the shape, the dtype and, within the table, the values wanted.

    `wanted` is the float64 result; where it is not finite, `got` must be the same.
    """
    assert got.shape == wanted.shape, f"{name}: shape {got.shape}, wanted {wanted.shape}"
    assert got.dtype == DTYPES[dtype], f"{name}: dtype {got.dtype}, wanted {dtype}"
    wide, right = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    for word, differs in (
        ("NaN", np.isnan(wide) != np.isnan(right)),
        ("infinite", (np.isinf(wide) | np.isinf(right)) & (wide != right) & ~np.isnan(wide)),
    ):
        at = np.argwhere(differs)
        assert not len(at), (
            f"{name}: {len(at)} entries are {word} where they should not be, or the reverse; "
            f"the first at {at[0].tolist()}"
        )
    finite = np.isfinite(right)
    difference = rms(np.where(finite, wide, 0.0) - np.where(finite, right, 0.0))
    size = rms(np.where(finite, right, 0.0))
    most = TOLERANCES[backend, dtype] * size + FLOORS[dtype]
    assert difference <= most, (
        f"{name}: RMS error {difference:.3g} with RMS {size:.3g}, a ratio of "
        f"{difference / size if size else np.inf:.3g}; "
        f"the tolerance of {backend} in {dtype} is {TOLERANCES[backend, dtype]:.3g}"
    )
