"""The one comparison of arrays that the tests use. Its numbers are those of `rnnop.tolerances`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import DTYPES

from rnnop.tolerances import TOLERANCES, error, rms


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
    wide, right = np.where(finite, wide, 0.0), np.where(finite, right, 0.0)
    ratio, most = error(wide, right, dtype), TOLERANCES[backend, dtype]
    assert ratio <= most, (
        f"{name}: RMS error {rms(wide - right):.3g} with RMS {rms(right):.3g}, a ratio of "
        f"{ratio:.3g}; the tolerance of {backend} in {dtype} is {most:.3g}"
    )
