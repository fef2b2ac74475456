"""The way of a call that is like one before it: a loop of small calls spends its time elsewhere.

It is for prepacked weights and dense NumPy data, without dropout or a cell clip, where a backend
has made ready all but the data. Whatever is not exactly as in the call before goes the long way,
where it is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import flags
from .arrays import Array
from .backends import Backend, Prepared, Problem
from .setups import plain_types
from .storage import Storage
from .weights import PrepackedWeights

_FLAGS = ("RNNOP_BACKEND", "RNNOP_NUM_THREADS", "RNNOP_CPU_ISA")


class Shortcut:
    """A call with all made ready but its data."""

    def __init__(self, problem: Problem, run: Prepared, y_shape: tuple[int, ...]) -> None:
        self._run, self._y_shape = run, y_shape
        self._x_shape = problem.x.shape
        # Not given, a state is zeros, which nobody writes to.
        self._h0, self._c0 = np.zeros_like(problem.h0), None
        self._h_shape, self._dtype = problem.h0.shape, problem.h0.dtype
        self._c_shape: tuple[int, ...] | None = None
        if problem.c0 is not None:
            self._c0 = np.zeros_like(problem.c0)
            self._c_shape = problem.c0.shape

    def __call__(self, x: Array, h0: Any, c0: Any) -> tuple[Array, Array, Array | None] | None:
        """Return y, h_n and c_n; None where a state is not as it should be."""
        if h0 is None:
            h0 = self._h0
        elif not self._fits(h0, self._h_shape):
            return None
        if c0 is None:
            c0 = self._c0
        elif not self._fits(c0, self._c_shape):
            return None
        y, h_n, c_n = self._run(x.reshape(self._x_shape), h0, c0)
        return y.reshape(self._y_shape), h_n, c_n

    def _fits(self, state: Any, shape: tuple[int, ...] | None) -> bool:
        return (
            type(state) is np.ndarray
            and state.shape == shape
            and state.dtype == self._dtype
            and state.flags.c_contiguous
        )


def key(x: Any, weights: Any, options: dict[str, Any]) -> Any:
    """Return what a call is known by among those of its weights; None if it is not kept."""
    if type(weights) is not PrepackedWeights or type(x) is not np.ndarray:
        return None
    values = (*options.values(),)
    types = plain_types(values)
    if types is None or options.get("dropout") or not x.flags.c_contiguous:
        return None
    return x.shape, x.dtype, flags.raw(_FLAGS), (*options,), values, types


def of(problem: Problem, storage: Storage, backend: Backend) -> Shortcut | None:
    """Return the shortcut for calls like this one; None if there is none."""
    frame = problem.frame
    plan, spec = frame.plan, frame.spec
    in_place = plan.dense and plan.gather is None and plan.states_stay and storage.packed is None
    if not in_place or frame.return_cell_states or spec.cell_clip is not None:
        return None
    run = backend.prepared(problem)
    if run is None:
        return None
    width = spec.num_directions * spec.output_size
    return Shortcut(problem, run, (*storage.leading, width))
