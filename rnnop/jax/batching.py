"""vmap: what it adds to the arrays becomes rows of the batch.

A mapped call of B elements with N rows is one call with B * N rows: rows do not see one another.
This is not so where the elements differ in what rows share (the weights, the indices of a packed
sequence), or where each must have what it has alone (its own gradient of the weights; dropout drawn
from a seed, which depends on the batch). Then one element runs after another, in `jax.lax.map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching

from ..arrays import Array
from .calls import Call
from .primitives import backward_p, forward_p

Dims = Sequence[int | None]


def _folds(call: Call, dims: Dims, wanted: tuple[int, ...]) -> bool:
    """Return whether mapped calls make one call.

    Their operands are mapped along `dims`, and the gradients of those with the numbers `wanted` may
    be asked for.
    """
    rows = call.rows()
    differ = any(dim is not None for dim, row in zip(dims, rows, strict=True) if row < 0)
    return call.folds and not (differ or any(rows[k] < 0 for k in wanted))


def _fold(array: Array, dim: int | None, row: int, size: int) -> Array:
    """Bring a mapped axis of `size` into the axis of the rows."""
    if dim is None:
        shape = array.shape
        array = jnp.broadcast_to(jnp.expand_dims(array, row), (*shape[:row], size, *shape[row:]))
    else:
        array = jnp.moveaxis(array, dim, row)
    rows = array.shape[row] * array.shape[row + 1]  # -1 cannot be told where another size is 0
    return array.reshape((*array.shape[:row], rows, *array.shape[row + 2 :]))


def _unfold(array: Array, row: int, size: int) -> Array:
    """Cut the axis of the rows in two, the mapped axis first."""
    rows = array.shape[row] // size
    return array.reshape((*array.shape[:row], size, rows, *array.shape[row + 1 :]))


def _size(args: Sequence[Array], dims: Dims) -> int:
    named = zip(args, dims, strict=True)
    return next(int(arg.shape[dim]) for arg, dim in named if dim is not None)


def _folded(args: Sequence[Array], dims: Dims, rows: Sequence[int], size: int) -> list[Array]:
    named = zip(args, dims, rows, strict=True)
    return [arg if row < 0 else _fold(arg, dim, row, size) for arg, dim, row in named]


def _unfolded(results: Sequence[Array], rows: Sequence[int], size: int) -> list[Array]:
    named = zip(results, rows, strict=True)
    return [result if row < 0 else _unfold(result, row, size) for result, row in named]


def _one_by_one(
    primitive: Primitive, args: Sequence[Array], dims: Dims, **static: Any
) -> tuple[list[Array], list[int]]:
    """Run one mapped call after another."""
    mapped = [
        jnp.moveaxis(arg, dim, 0) for arg, dim in zip(args, dims, strict=True) if dim is not None
    ]

    def one(elements: list[Array]) -> list[Array]:
        rest = iter(elements)
        found: list[Array] = primitive.bind(
            *(arg if dim is None else next(rest) for arg, dim in zip(args, dims, strict=True)),
            **static,
        )
        return found

    results = jax.lax.map(one, mapped)
    return results, [0] * len(results)


def _forward(
    args: Sequence[Array], dims: Dims, *, call: Call, keep: tuple[int, ...]
) -> tuple[list[Array], Sequence[int | None]]:
    if not _folds(call, dims, keep):
        return _one_by_one(forward_p, args, dims, call=call, keep=keep)
    size = _size(args, dims)
    folded = _folded(args, dims, call.rows(), size)
    results = forward_p.bind(*folded, call=call, keep=keep)
    rows = [*call.result_rows()[: len(results) - bool(keep)], *[-1] * bool(keep)]
    return _unfolded(results, rows, size), [None if row < 0 else row for row in rows]


def _backward(
    args: Sequence[Array],
    dims: Dims,
    *,
    call: Call,
    given: tuple[str, ...],
    wanted: tuple[int, ...],
) -> tuple[list[Array], Sequence[int | None]]:
    count, rows = call.num_operands, call.rows()
    if dims[count] is not None or not _folds(call, dims[:count], wanted):
        return _one_by_one(backward_p, args, dims, call=call, given=given, wanted=wanted)
    size = _size(args, dims)
    named = dict(zip(call.cotangents, call.result_rows(), strict=True))
    # The token is that of the folded forward, or else it is not found.
    all_rows = [*rows, -1, *(named[name] for name in given)]
    folded = _folded(args, dims, all_rows, size)
    results = backward_p.bind(*folded, call=call, given=given, wanted=wanted)
    rows = [rows[k] for k in wanted]
    return _unfolded(results, rows, size), rows


batching.primitive_batchers[forward_p] = _forward
batching.primitive_batchers[backward_p] = _backward
