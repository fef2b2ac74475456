"""Calls that are alike but for their data: one native call each, all else being ready."""

from __future__ import annotations

from ctypes import addressof, byref, c_void_p
from typing import Any

import numpy as np

from ..arrays import Array
from ..backends import Prepared, Problem
from . import engine as c
from . import panels
from .engine import address
from .passes import Pass


def prepare(run: Pass, problem: Problem) -> Prepared | None:
    """Return a function of (x, h0, c0) that makes a call like this one; None where there is none.

    There is one in float32 and float64, without dropout, for weights that are prepacked or lie as
    the engine reads them. Those that are not prepacked are packed in each call.
    """
    weights, cache, dtype = problem.weights, problem.cache, run.dtype
    if problem.x.dtype != dtype or problem.dropout_masks:
        return None
    entries: list[Any]
    if cache is not None:
        packed = run.packed(weights, cache, backward=False)
        field, entries = "packed", [each.reference._obj for each in packed]
        alive: Any = packed
    else:
        if any(a.dtype != dtype or not a.flags.c_contiguous for _, a in weights.named()):
            return None
        entries = [panels.as_given(weights, k) for k in range(run.spec.num_pseudo_layers)]
        field, alive = "given", [array for _, array in weights.named()]
    problems = _addresses([each._obj for each in run.described])
    structures = _addresses(entries)
    network = c.Network(
        run.spec.num_layers,
        run.spec.num_directions,
        addressof(problems),
        **{field: addressof(structures)},
    )
    pointed_to = (alive, entries, run, problems, structures, network)
    return _caller(run, byref(network), pointed_to)


def _addresses(structures: list[Any]) -> Any:
    """Return a C array of pointers to structures."""
    return (c_void_p * len(structures))(*map(addressof, structures))


def _caller(run: Pass, network: Any, pointed_to: Any) -> Prepared:
    """Return the function itself, in the small: it is what a loop of small calls spends."""
    call, empty, dtype = run.functions.network, np.empty, run.dtype
    y_shape, h_shape, c_shape = run.y_shape, run.h_shape, run.c_shape

    def again(
        x: Array, h0: Array, c0: Array | None, _alive: Any = pointed_to
    ) -> tuple[Array, Array, Array | None]:
        y, h_n, c_n = empty(y_shape, dtype), empty(h_shape, dtype), None
        if c0 is None:
            call(network, address(x), address(h0), None, address(y), address(h_n), None)
        else:
            c_n = empty(c_shape, dtype)
            call(
                network,
                address(x),
                address(h0),
                address(c0),
                address(y),
                address(h_n),
                address(c_n),
            )
        return y, h_n, c_n

    return again
