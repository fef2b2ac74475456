"""The comparison must fail when it should, or no other test means anything."""

from __future__ import annotations

import numpy as np
import pytest
from cases import DTYPES
from differences import assert_gradient, assert_gradient_along
from tolerances import TOLERANCES, assert_close

WANTED = np.random.default_rng(0).standard_normal((4, 3))


def shifted(dtype: str, share: float) -> np.ndarray:
    """Return WANTED with an RMS error of `share` of the tolerance."""
    signs = np.where(np.arange(WANTED.size).reshape(WANTED.shape) % 2, 1.0, -1.0)
    size = np.sqrt(np.mean(WANTED**2))
    return WANTED + share * TOLERANCES["reference", dtype] * size * signs


def test_an_error_within_the_tolerance_passes() -> None:
    assert_close("y", shifted("float64", 0.98), WANTED, "reference", "float64")


def test_an_error_slightly_beyond_the_tolerance_fails() -> None:
    with pytest.raises(AssertionError, match=r"^y: RMS error .* a ratio of 1.02e-13; the tol"):
        assert_close("y", shifted("float64", 1.02), WANTED, "reference", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_its_own_tolerance(dtype: str) -> None:
    rounded = WANTED.astype(DTYPES[dtype])
    assert_close("y", rounded, WANTED, "reference", dtype)
    wrong = shifted(dtype, 2.0).astype(DTYPES[dtype])
    with pytest.raises(AssertionError, match=f"reference in {dtype} is"):
        assert_close("y", wrong, WANTED, "reference", dtype)


def test_one_wrong_entry_of_many_fails() -> None:
    many = np.ones(10_000)
    wrong = many.copy()
    wrong[77] += 1e-9
    with pytest.raises(AssertionError, match="RMS error"):
        assert_close("y", wrong, many, "reference", "float64")


def test_another_shape_fails_even_where_it_broadcasts() -> None:
    with pytest.raises(AssertionError, match=r"^y: shape \(1, 4, 3\), wanted \(4, 3\)$"):
        assert_close("y", WANTED[None], WANTED, "reference", "float64")


def test_another_dtype_fails() -> None:
    with pytest.raises(AssertionError, match=r"^y: dtype float32, wanted float64$"):
        assert_close("y", WANTED.astype(np.float32), WANTED, "reference", "float64")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_unless_it_is_wanted(bad: float) -> None:
    odd = WANTED.copy()
    odd[1, 2] = bad
    assert_close("y", odd, odd, "reference", "float64")
    for got, wanted in ((odd, WANTED), (WANTED, odd), (-odd, odd) if bad == bad else (odd, WANTED)):
        with pytest.raises(AssertionError, match=r"^y: 1 entries are .* the first at \[1, 2\]$"):
            assert_close("y", got, wanted, "reference", "float64")


def test_anything_but_zero_fails_where_zero_is_wanted() -> None:
    zeros = np.zeros(3)
    assert_close("y", zeros, zeros, "reference", "float64")
    with pytest.raises(AssertionError, match="RMS error"):
        assert_close("y", zeros + 1e-200, zeros, "reference", "float64")


def test_a_wrong_gradient_fails() -> None:
    at = np.array([0.3, -0.7])
    assert_gradient("x", np.cos(at), np.sin, at)
    assert_gradient_along("x", np.cos(at), np.sin, at, np.array([1.0, 2.0]))
    wrong = np.cos(at) * (1 + 3e-6)
    with pytest.raises(AssertionError, match=r"x: off by 2.\d*e-06 at \(0,\)"):
        assert_gradient("x", wrong, np.sin, at)
    with pytest.raises(AssertionError, match=r"x: off by .* along a direction"):
        assert_gradient_along("x", wrong, np.sin, at, np.array([1.0, 2.0]))
    with pytest.raises(AssertionError, match="x: shape"):
        assert_gradient("x", wrong[:1], np.sin, at)
