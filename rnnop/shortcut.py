"""The way of a call that is like one before it: a loop of small calls spends its time elsewhere.

It is for dense NumPy data, without dropout or a cell clip, where a backend has made ready all but
the data. Whatever is not exactly as in the call before goes the long way, where it is checked.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from . import flags
from .arrays import Array
from .backends import Backend, Prepared, Problem
from .setups import MOST, plain_types
from .storage import Storage
from .weights import PrepackedWeights, RNNWeights

_FLAGS = (
    "RNNOP_BACKEND",
    "RNNOP_NUM_THREADS",
    "RNNOP_CPU_ISA",
    "RNNOP_TENSOR_OP_ALLOW_CONVERSION",
    "RNNOP_ALLOW_TENSOR_CORE",
)


class Shortcut:
    """A call with all made ready but its data."""

    def __init__(self, problem: Problem, run: Prepared, y_shape: tuple[int, ...]) -> None:
        self._run, self._y_shape = run, y_shape
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
        elif not fits(h0, self._h_shape, self._dtype):
            return None
        if c0 is None:
            c0 = self._c0
        elif not fits(c0, self._c_shape, self._dtype):
            return None
        y, h_n, c_n = self._run(x, h0, c0)
        return y.reshape(self._y_shape), h_n, c_n


def fits(array: Any, shape: tuple[int, ...] | None, dtype: Any) -> bool:
    """Return whether an array is one that a backend takes as it is."""
    return (
        type(array) is np.ndarray
        and array.shape == shape
        and array.dtype == dtype
        and array.flags.c_contiguous
    )


class Shortcuts(dict[Any, Shortcut | None]):
    """Those of calls with the same weights, by `key`; None where a call has none.

    The first call of a kind leaves its key only: an adapter makes new weights for each call.
    """

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def worth_making(self, key: Any) -> bool:
        """Return whether a call has been here before, and note that it was here."""
        if key in self._seen:
            return True
        if len(self._seen) >= MOST:
            self.clear()
            self._seen.clear()
        self._seen.add(key)
        return False


_OF_WEIGHTS: WeakKeyDictionary[RNNWeights | PrepackedWeights, Shortcuts] = WeakKeyDictionary()


def among(weights: RNNWeights | PrepackedWeights) -> Shortcuts:
    """Return the shortcuts of calls with these weights."""
    found = _OF_WEIGHTS.get(weights)
    if found is None:
        found = _OF_WEIGHTS[weights] = Shortcuts()
    return found


def key(x: Any, weights: Any, options: dict[str, Any]) -> Any:
    """Return what a call is known by among those of its weights; None if it is not kept."""
    if type(x) is not np.ndarray or type(weights) not in (PrepackedWeights, RNNWeights):
        return None
    values = (*options.values(),)
    types = plain_types(values)
    if types is None or options.get("dropout") or not x.flags.c_contiguous:
        return None
    return x.shape, x.dtype, flags.state(_FLAGS), (*options,), values, types


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
