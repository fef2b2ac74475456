"""Weights in the order in which the engine reads them (the pictures are in kernels/product.h)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import dtype_name, family
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import engine as c
from .engine import address, pointer

_Array = npt.NDArray[Any]

# In the order of struct Given.
_GIVEN = ("w_ih", "w_hh", "w_hr", "b_ih", "b_hh", "peephole")


@dataclass(frozen=True, eq=False)
class Packed:
    """Packed weights of one pseudo-layer, and a reference to the structure that points to them."""

    reference: Any
    arrays: tuple[_Array | None, ...]


def packed(
    functions: c.Functions,
    described: Sequence[Any],
    spec: RNNSpec,
    weights: RNNWeights,
    cache: dict[Any, Any] | None,
    *,
    backward: bool,
) -> list[Packed]:
    """Return the packed weights of every pseudo-layer, for the forward or for the backward.

    `described` refers to the engine's description of each.
    `cache` is that of prepacked weights: what it holds is not packed again.
    """
    if cache is None:
        return _pack(functions, described, weights, backward)
    key = (backward, functions, cell(spec))
    found: list[Packed] | None = cache.get(key)
    if found is None:
        found = cache[key] = _pack(functions, described, weights, backward)
    return found


def prepack(spec: RNNSpec, weights: RNNWeights, cache: dict[Any, Any]) -> None:
    """Lay weights out for the forward, into `cache`; other arrays than NumPy's are left alone."""
    first = weights.w_ih[0]
    if family(first) == "numpy":
        functions = c.engine().functions(dtype_name(first))
        described = [
            describe(spec, None, k, c.num_threads()) for k in range(spec.num_pseudo_layers)
        ]
        packed(functions, described, spec, weights, cache, backward=False)


def cell(spec: RNNSpec) -> str:
    """Return the engine's name of a cell."""
    return "gru_reset_before" if spec.mode == "gru" and not spec.reset_after else spec.mode


def describe(spec: RNNSpec, plan: RaggedPlan | None, k: int, threads: int) -> c.Problem:
    """Return the engine's description of pseudo-layer `k`."""
    layer, direction = divmod(k, spec.num_directions)
    none = (0.0, 0.0)
    cell_clip, gate_clip = spec.cell_clip or none, spec.gate_clip or none
    proj_clip = spec.proj_clip or none
    return c.Problem(
        c.CELLS[cell(spec)],
        spec.layer_input_size(layer),
        spec.hidden_size,
        spec.output_size,
        spec.proj_size is not None,
        spec.peephole,
        spec.input_forget,
        spec.runs_backward(direction),
        spec.cell_clip is not None,
        spec.cell_clip_nan,
        spec.gate_clip is not None,
        spec.proj_clip is not None,
        *cell_clip,
        *gate_clip,
        *proj_clip,
        0 if plan is None else plan.num_segments,
        0 if plan is None else len(plan.batch_sizes),
        None if plan is None else pointer(plan.batch_sizes),
        None if plan is None else pointer(plan.offsets),
        None if plan is None else pointer(plan.lengths),
        threads,
    )


def _pack(
    functions: c.Functions,
    described: Sequence[Any],
    weights: RNNWeights,
    backward: bool,
) -> list[Packed]:
    """Lay out the weights of every pseudo-layer, in one room."""
    dtype = functions.dtype
    sizes = [functions.packed_size(each, backward) for each in described]
    room = c.aligned(sum(sizes), dtype)
    begin = address(room)
    found = []
    for k, (problem, size) in enumerate(zip(described, sizes, strict=True)):
        arrays = [_entry(getattr(weights, name), k, dtype) for name in _GIVEN]
        structure, given = c.Weights(), c.Given(*map(pointer, arrays))
        functions.pack(problem, byref(given), backward, begin, byref(structure))
        found.append(Packed(byref(structure), (room, arrays[-1])))
        begin += size * dtype.itemsize
    return found


def as_given(weights: RNNWeights, k: int) -> c.Given:
    """Return pseudo-layer `k` of weights that lie as the engine reads them, for it to pack."""
    entries = (getattr(weights, name) for name in _GIVEN)
    return c.Given(*(None if each is None else address(each[k]) for each in entries))


def _entry(entries: Sequence[_Array] | None, k: int, dtype: np.dtype[Any]) -> _Array | None:
    """Return an array of the weights as the engine reads it: of its dtype, and C-contiguous."""
    return None if entries is None else np.ascontiguousarray(entries[k], dtype)
