"""Layers and directions around the engine, forward and backward."""

from __future__ import annotations

from ctypes import byref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import LABELS
from ..backends import Cotangents, Frame, Gradients, Problem, Result
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import engine as c
from . import panels
from .engine import pointer
from .products import Saved, WeightSums, most_rows, stretches

_Array = npt.NDArray[Any]
_DTYPES = {name: np.dtype(name) for name in ("float32", "float64")}


def supports(frame: Frame) -> str | None:
    """Return None, or why the engine cannot run such a call."""
    if frame.family != "numpy":
        return f"it takes NumPy arrays, and `x` is a {LABELS[frame.family]} array"
    if not frame.spec.default_activations:
        return "it has no custom `activations`"
    return None


def unavailable() -> str | None:
    """Return None, or why there is no engine here."""
    return c.why_unavailable()


def manner(frame: Frame) -> str:
    """Return the instruction set and the threads that a call would use."""
    threads = c.num_threads()
    return f"{c.engine().isa}, {threads} thread{'s' if threads > 1 else ''}"


def draws_dropout(frame: Frame) -> bool:
    """Return False: masks are given."""
    return False


def compute_dtype(frame: Frame) -> str:
    """Return the dtype of the arithmetic: that of the data, float32 for the halves."""
    return "float64" if frame.dtype == "float64" else "float32"


def forward(problem: Problem, keep: bool) -> Result:
    """Run the network. With `keep`, what the backward needs is saved."""
    frame = problem.frame
    spec, plan, dtype = frame.spec, frame.plan, _DTYPES[compute_dtype(frame)]
    engine, described = c.engine(), _descriptions(frame)
    packed = panels.packed(
        engine, described, spec, problem.weights, dtype, problem.cache, backward=False
    )
    functions = engine.of(dtype)
    directions, size, hidden = spec.num_directions, spec.output_size, spec.hidden_size
    total, states = plan.total, (spec.num_pseudo_layers, plan.num_segments)
    x, h0, c0 = (_ready(array, dtype) for array in (problem.x, problem.h0, problem.c0))
    h_n = np.empty((*states, size), dtype)
    c_n = _room(spec.has_cell_state, (*states, hidden), dtype)
    every_c: Any = None
    saved: list[Saved] = []
    for layer in range(spec.num_layers):
        y = np.empty((total, directions * size), dtype)
        wanted = keep or (frame.return_cell_states and layer == spec.num_layers - 1)
        every_c = _room(wanted and spec.has_cell_state, (total, directions * hidden), dtype)
        for direction in range(directions):
            k = layer * directions + direction
            run = Saved(
                x=x,
                y=_columns(y, direction, size),
                c=_columns(every_c, direction, hidden),
                gates=_room(keep and _slots(spec) == 4, (total, 4, hidden), dtype),
                pre=_room(keep and bool(spec.gate_clip), (total, _slots(spec), hidden), dtype),
                h_raw=_room(keep and bool(spec.proj_clip), (total, size), dtype),
                h0=h0[k],
                c0=None if c0 is None else c0[k],
            )
            arguments = c.Forward(
                pointer(x),
                x.shape[1],
                pointer(run.h0),
                pointer(run.c0),
                pointer(run.y),
                y.shape[1],
                pointer(h_n[k]),
                None if c_n is None else pointer(c_n[k]),
                pointer(run.c),
                directions * hidden,
                pointer(run.gates),
                pointer(run.pre),
                pointer(run.h_raw),
            )
            functions.forward(byref(described[k]), byref(packed[k].structure), byref(arguments))
            saved.append(run)
        x = y
        if layer < len(problem.dropout_masks):
            x = _drop(y, problem.dropout_masks[layer], spec.dropout)
    data = problem.x.dtype
    return Result(
        y=_cast(y, data),
        h_n=_cast(h_n, data),
        c_n=_cast(c_n, data),
        c=_cast(every_c, data),
        saved=saved if keep else None,
    )


def backward(problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, layer by layer from the last."""
    frame = problem.frame
    spec, plan, dtype = frame.spec, frame.plan, _DTYPES[compute_dtype(frame)]
    engine, threads, described = c.engine(), c.num_threads(), _descriptions(frame)
    weights = problem.weights.map(lambda array: _ready(array, dtype))
    packed = panels.packed(engine, described, spec, weights, dtype, problem.cache, backward=True)
    functions = engine.of(dtype)
    directions, size, hidden = spec.num_directions, spec.output_size, spec.hidden_size
    runs: list[Saved] = saved
    if plan.total == 0:
        return _no_gradients(problem)
    dy, dh_n, dc_n, dc = (
        _ready(array, dtype)
        for array in (cotangents.dy, cotangents.dh_n, cotangents.dc_n, cotangents.dc)
    )
    # The engine goes through the steps in stretches, and keeps the gradient of the state here.
    dh0, dc0 = dh_n.copy(), None if dc_n is None else dc_n.copy()
    # One room for all stretches: fresh memory would be mapped anew each time.
    most = most_rows(plan)
    dgates = np.empty((most, _slots(spec), hidden), dtype)
    dh_raw = _room(spec.proj_size is not None, (most, size), dtype)
    found: list[dict[str, _Array]] = [{}] * spec.num_pseudo_layers
    for layer in reversed(range(spec.num_layers)):
        if layer < len(problem.dropout_masks):
            dy = _drop(dy, problem.dropout_masks[layer], spec.dropout)
        dx = np.empty((plan.total, spec.layer_input_size(layer)), dtype)
        for direction in range(directions):
            k = layer * directions + direction
            run, sums = runs[k], WeightSums(functions, threads, spec, weights, k)
            dc_last = dc if layer == spec.num_layers - 1 else None
            arguments = c.Backward(
                0,
                0,
                pointer(run.y),
                directions * size,
                pointer(run.h0),
                pointer(run.c0),
                pointer(run.c),
                directions * hidden,
                pointer(run.gates),
                pointer(run.pre),
                pointer(run.h_raw),
                pointer(_columns(dy, direction, size)),
                directions * size,
                pointer(_columns(dc_last, direction, hidden)),
                directions * hidden,
                pointer(dh0[k]),
                None if dc0 is None else pointer(dc0[k]),
                pointer(dh0[k]),
                None if dc0 is None else pointer(dc0[k]),
                pointer(dgates),
                pointer(dh_raw),
            )
            for stretch in stretches(plan, spec.runs_backward(direction)):
                arguments.begin, arguments.end = stretch.begin, stretch.end
                functions.backward(
                    byref(described[k]), byref(packed[k].structure), byref(arguments)
                )
                sums.add(run, stretch, dgates, dh_raw, dx, first=direction == 0)
            found[k] = sums.result()
        dy = dx
    data = problem.x.dtype
    return Gradients(
        dx=_cast(dy, data),
        weights=RNNWeights.of_fields(
            {name: [_cast(grads[name], data) for grads in found] for name in found[0]},
            spec.bidirectional,
        ),
        dh0=_cast(dh0, data),
        dc0=_cast(dc0, data),
    )


def _no_gradients(problem: Problem) -> Gradients:
    """Return the gradients of a call without a single step."""
    return Gradients(
        dx=_zeros(problem.x),
        weights=problem.weights.map(_zeros),
        dh0=_zeros(problem.h0),
        dc0=None if problem.c0 is None else _zeros(problem.c0),
    )


def _zeros(like: _Array) -> _Array:
    return np.zeros(like.shape, like.dtype)  # zeros_like would copy the order of a Fortran array


def _descriptions(frame: Frame) -> list[c.Problem]:
    """Return what the engine is told of each pseudo-layer, made once for a frame."""
    threads = c.num_threads()
    found: list[c.Problem] | None = frame.notes.get(("cpu", threads))
    if found is None:
        spec = frame.spec
        found = [
            panels.describe(spec, frame.plan, k, threads) for k in range(spec.num_pseudo_layers)
        ]
        frame.notes["cpu", threads] = found
    return found


def _slots(spec: RNNSpec) -> int:
    """How many gate gradients there are: 4, or 1 for a plain RNN."""
    return 1 if spec.mode.startswith("rnn") else 4


def _room(wanted: bool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return np.empty(shape, dtype) if wanted else None


def _columns(array: Any, direction: int, size: int) -> Any:
    """Return the part of one direction of the last axis, as a view; None of None."""
    return None if array is None else array[:, direction * size : (direction + 1) * size]


def _ready(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as the engine reads it: of its dtype, and C-contiguous; None of None."""
    return None if array is None else np.ascontiguousarray(array, dtype)


def _cast(array: Any, dtype: np.dtype[Any]) -> Any:
    return None if array is None else array.astype(dtype, copy=False)


def _drop(array: _Array, kept: _Array, rate: float) -> _Array:
    """Return the kept elements over 1 - rate, and 0 elsewhere."""
    dropped: _Array = np.where(kept, array / array.dtype.type(1.0 - rate), array.dtype.type(0))
    return dropped
