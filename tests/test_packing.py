"""Packed sequences: the picture of rnnop/packing.py in numbers, and its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import DTYPES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rnnop
from rnnop.packing import PackedSequence

Array = np.ndarray[Any, np.dtype[Any]]

PICTURE = ["ab..", "cdef", "g..."]  # lengths 2, 4, 1
LENGTHS = [2, 4, 1]
CODES = np.array([[float(ord(letter)) for letter in row] for row in PICTURE]).T[:, :, None]
PACKED = PackedSequence(
    np.array([[float(ord(letter))] for letter in "cagdbef"]),
    np.array([3, 2, 1, 1]),
    np.array([1, 0, 2]),
    np.array([1, 0, 2]),
)


def letters(array: Array) -> str:
    return "".join("." if code == 0.0 else chr(int(code)) for code in np.ravel(array))


def test_picture() -> None:
    packed = rnnop.pack(CODES, LENGTHS)
    assert letters(packed.data) == "cagdbef"
    assert packed.data.shape == (7, 1)
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    assert packed.sorted_indices is not None
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    assert packed.unsorted_indices is not None
    assert packed.unsorted_indices.tolist() == [1, 0, 2]
    assert all(index.dtype == np.int64 for index in packed[1:])


def test_picture_back() -> None:
    padded = rnnop.unpack(PACKED)
    assert padded.shape == (4, 3, 1)
    assert letters(padded[:, :, 0].T) == "".join(PICTURE)


def test_batch_first() -> None:
    packed = rnnop.pack(CODES.swapaxes(0, 1), LENGTHS, batch_first=True)
    assert letters(packed.data) == "cagdbef"
    padded = rnnop.unpack(packed, batch_first=True)
    assert padded.shape == (3, 4, 1)
    assert padded.flags.c_contiguous
    assert letters(padded) == "".join(PICTURE)


def test_unsorted_indices_are_not_needed() -> None:
    for packed in (PACKED._replace(unsorted_indices=None), PACKED):
        assert letters(rnnop.unpack(packed)[:, :, 0].T) == "".join(PICTURE)
    rows_were_sorted = PACKED._replace(sorted_indices=None, unsorted_indices=None)
    assert letters(rnnop.unpack(rows_were_sorted)[:, :, 0].T) == "cdef" + "ab.." + "g..."


def test_equal_lengths_keep_their_order() -> None:
    packed = rnnop.pack(CODES, [2, 2, 2])
    assert packed.sorted_indices is not None
    assert packed.sorted_indices.tolist() == [0, 1, 2]


def test_empty_rows_stand_at_the_end() -> None:
    packed = rnnop.pack(CODES, [0, 3, 0])
    assert packed.batch_sizes.tolist() == [1, 1, 1]
    assert packed.sorted_indices is not None
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    assert letters(packed.data) == "cde"
    assert letters(rnnop.unpack(packed)[:, :, 0].T) == "..." + "cde" + "..."


def test_no_real_step_at_all() -> None:
    packed = rnnop.pack(CODES, [0, 0, 0])
    assert packed.data.shape == (0, 1)
    assert packed.batch_sizes.tolist() == []
    assert rnnop.unpack(packed).shape == (0, 3, 1)
    assert rnnop.unpack(packed, total_length=2).tolist() == [[[0.0]] * 3] * 2


@pytest.mark.parametrize("shape", [(0, 3, 1), (4, 0, 1), (0, 0, 1), (4, 3, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    lengths = np.full(shape[1], shape[0])
    packed = rnnop.pack(np.zeros(shape), lengths)
    assert packed.data.shape == (shape[0] * shape[1], shape[2])
    assert rnnop.unpack(packed, total_length=shape[0]).shape == shape


def test_any_number_of_axes() -> None:
    for shape in ((4, 3), (4, 3, 2, 5)):
        x = np.random.default_rng(0).standard_normal(shape)
        packed = rnnop.pack(x, LENGTHS)
        assert packed.data.shape == (7, *shape[2:])
        back = rnnop.unpack(packed, padding_value=-1.0)
        for row, length in enumerate(LENGTHS):
            assert np.array_equal(back[:length, row], x[:length, row])
            assert np.all(back[length:, row] == -1.0)


def test_total_length() -> None:
    assert rnnop.unpack(PACKED, total_length=4).shape == (4, 3, 1)
    padded = rnnop.unpack(PACKED, total_length=6, padding_value=float(ord("-")))
    assert letters(padded[:, :, 0].T) == "ab----" + "cdef--" + "g-----"
    padded = rnnop.unpack(PACKED, total_length=6, batch_first=True)
    assert padded.shape == (3, 6, 1)
    with pytest.raises(rnnop.ShapeError, match=r"`total_length` is 3; .* longest row, 4\.$"):
        rnnop.unpack(PACKED, total_length=3)


@pytest.mark.parametrize("value", [1.5, -np.inf, np.nan])
def test_padding_value(value: float) -> None:
    padded = rnnop.unpack(PACKED, padding_value=value)[:, :, 0].T
    padding = np.array([[letter == "." for letter in row] for row in PICTURE])
    np.testing.assert_array_equal(padded[padding], value)
    assert letters(padded[~padding]) == "abcdefg"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_stays(dtype: str) -> None:
    packed = rnnop.pack(CODES.astype(DTYPES[dtype]), LENGTHS)
    assert packed.data.dtype == DTYPES[dtype]
    assert rnnop.unpack(packed, padding_value=2.0).dtype == DTYPES[dtype]


@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [4, 3, 0]])
def test_results_share_no_memory(lengths: list[int]) -> None:
    x = np.asfortranarray(CODES)
    packed = rnnop.pack(x, lengths)
    assert packed.data.flags.c_contiguous
    assert not np.may_share_memory(packed.data, x)
    padded = rnnop.unpack(packed)
    assert padded.flags.c_contiguous
    assert not np.may_share_memory(padded, packed.data)


@pytest.mark.parametrize("kind", [list, tuple, np.int32, np.int64, np.uint8])
def test_any_kind_of_lengths(kind: Any) -> None:
    lengths = kind(LENGTHS) if kind in (list, tuple) else np.array(LENGTHS, kind)
    assert letters(rnnop.pack(CODES, lengths).data) == "cagdbef"


@st.composite
def batches(draw: st.DrawFn) -> tuple[Array, Array]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5))
    lengths = draw(hnp.arrays(np.int64, shape[1], elements=st.integers(0, shape[0])))
    x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    return x, lengths


@given(batches())
def test_unpack_undoes_pack(batch: tuple[Array, Array]) -> None:
    x, lengths = batch
    packed = rnnop.pack(x, lengths)
    back = rnnop.unpack(packed, total_length=len(x))
    real = (np.arange(len(x))[:, None] < lengths).reshape(x.shape[:2] + (1,) * (x.ndim - 2))
    np.testing.assert_array_equal(back, np.where(real, x, 0.0))
    assert packed.batch_sizes.sum() == lengths.sum()


@given(batches())
def test_pack_undoes_unpack(batch: tuple[Array, Array]) -> None:
    packed = rnnop.pack(*batch)
    again = rnnop.pack(rnnop.unpack(packed), batch[1])
    for one, other in zip(packed, again, strict=True):
        np.testing.assert_array_equal(one, other)
