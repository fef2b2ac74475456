"""Packed sequences: the real steps of a ragged batch, step after step, longest row first.

Lengths 2, 4, 1 (a letter is a step, . is padding):

    row 0   a b . .          sorted_indices    1 0 2
    row 1   c d e f          batch_sizes       3 2 1 1
    row 2   g . . .          data              c a g  d b  e  f

The four fields are those of torch's PackedSequence, so either can be made from the other. A row of
length 0 is allowed here: it stands at the end of `sorted_indices` and has no data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import arrays, validate
from .arrays import Array, HostInts
from .errors import DTypeError, ShapeError, blame
from .ragged import batch_first_storage, invert, make_plan, packed_storage
from .spec import check_bool, number


class PackedSequence(NamedTuple):
    """Real steps only, sorted by length.

    Attributes
    ----------
    data : array (total, ...)
        The real steps: those of step 0, then of step 1, and so on.
    batch_sizes : (max length,) int64
        How many rows have that step, on the host.
    sorted_indices : (N,) int64 or None
        The caller's row at each place of the sorted order; None when they were sorted already.
    unsorted_indices : (N,) int64 or None
        Its inverse.
    """

    data: Array
    batch_sizes: HostInts
    sorted_indices: HostInts | None = None
    unsorted_indices: HostInts | None = None


def data_of(array: Any) -> Any:
    """Return an array, or the data of a packed sequence."""
    return array.data if isinstance(array, PackedSequence) else array


def packed_as(array: Any, like: Any) -> Any:
    """Return an array of all steps, as a packed sequence where `like` is one."""
    return like._replace(data=array) if isinstance(like, PackedSequence) else array


def pack(x: Array, lengths: object, *, batch_first: bool = False) -> PackedSequence:
    """Pack the real steps of a right-padded batch.

    Parameters
    ----------
    x : array (T, N, ...), or (N, T, ...) with `batch_first`
        Of any family.
    lengths : (N,) integers, 0..T, in any order
        Real steps of each row.
    batch_first : bool
        Whether the rows come first.

    Returns
    -------
    PackedSequence
        Its `data` is of the family, dtype and device of `x`.

    Raises
    ------
    ShapeError
        `x` has fewer than two axes, or `lengths` another shape or a value outside 0..T.
    DTypeError
        `x` is no array, or `lengths` no integers.
    SpecError
        `batch_first` is not True or False.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> x = np.arange(6.0).reshape(3, 2, 1)
    >>> packed = rnnop.pack(x, [1, 3])
    >>> packed.data.ravel().tolist(), packed.batch_sizes.tolist(), packed.sorted_indices.tolist()
    ([1.0, 0.0, 3.0, 5.0], [2, 1, 1], [1, 0])
    """
    with blame("pack"):
        check_bool("batch_first", batch_first)
        array = validate.data_array("x", x)
        if array.ndim < 2:
            axes = "N and T" if batch_first else "T and N"
            raise ShapeError(
                f"`x` has shape {tuple(array.shape)}; expected at least two axes, {axes}"
            )
        num_steps, batch_size = (int(n) for n in array.shape[:2])
        if batch_first:
            num_steps, batch_size = batch_size, num_steps
        host = validate.lengths(lengths, num_steps, batch_size)
    order = np.argsort(-host, kind="stable")
    real = np.arange(num_steps)[:, None] < host
    storage = batch_first_storage(num_steps, batch_size) if batch_first else None
    plan = make_plan(num_steps, batch_size, real, storage=storage)
    xp = arrays.namespace(str(arrays.family(array)))
    rows = xp.reshape(array, (num_steps * batch_size, *array.shape[2:]))
    same = plan.gather is None
    data = arrays.copy(xp, rows) if same else arrays.take_rows(xp, rows, plan.gather)
    return PackedSequence(data, plan.batch_sizes, order, invert(order, batch_size))


def unpack(
    packed: PackedSequence,
    *,
    batch_first: bool = False,
    total_length: int | None = None,
    padding_value: float = 0.0,
) -> Array:
    """Pad a packed sequence again, its rows in the order that `pack` was given.

    Parameters
    ----------
    packed : PackedSequence
        From `pack`, or made of torch's four fields.
    batch_first : bool
        Return (N, T, ...) instead of (T, N, ...).
    total_length : int, optional
        T of the result; the longest row's length by default.
    padding_value : float
        What stands at the steps that are not there.

    Returns
    -------
    array (T, N, ...) or (N, T, ...)
        Fresh and C-contiguous.

    Raises
    ------
    ShapeError
        The fields do not fit together, or `total_length` is shorter than the longest row.
    DTypeError
        `packed` is no PackedSequence, or its fields are not what they should be.
    SpecError
        An option has the wrong type.
    """
    with blame("unpack"):
        check_bool("batch_first", batch_first)
        value = number("padding_value", padding_value)
        if not isinstance(packed, PackedSequence):
            raise DTypeError(
                f"`packed` is {type(packed).__name__}; expected a rnnop.PackedSequence",
                "Of another's four fields it is made by rnnop.PackedSequence(*packed)",
            )
        batch_sizes, order = validate.packed("packed", packed)
        num_steps, batch_size = len(batch_sizes), len(order)
        if total_length is not None:
            validate.whole("total_length", total_length)
            if total_length < num_steps:
                raise ShapeError(
                    f"`total_length` is {total_length}; "
                    f"expected at least the length of the longest row, {num_steps}"
                )
    storage = packed_storage(batch_sizes, order)
    if total_length is not None:
        padding = np.full((total_length - num_steps, batch_size), -1)
        storage = np.concatenate([storage, padding])
    if batch_first:
        storage = storage.T
    xp = arrays.namespace(str(arrays.family(packed.data)))
    padded = arrays.take_rows(xp, packed.data, storage.ravel())
    if value != 0.0:
        present = storage.reshape(-1, *[1] * (packed.data.ndim - 1)) >= 0
        filled = xp.full_like(padded, value)
        padded = xp.where(arrays.from_host(xp, present, padded), padded, filled)
    return xp.reshape(padded, (*storage.shape, *packed.data.shape[1:]))
