"""Layers and directions around the engine, forward and backward."""

from __future__ import annotations

from ctypes import byref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import LABELS, Array
from ..backends import Cotangents, Frame, Gradients, Prepared, Problem, Result, no_gradients
from ..dropout import drop
from ..weights import RNNWeights
from . import engine as c
from .engine import pointer
from .passes import Pass, columns, room, slots
from .products import Saved, WeightSums, most_rows, stretches

_Array = npt.NDArray[Any]


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
    """Return the instruction set and the threads that a call would use, and if it may round."""
    engine, threads = c.engine(), c.num_threads()
    told = f"{engine.isa}, {threads} thread{'s' if threads > 1 else ''}"
    if not c.may_round(frame.dtype):
        return told
    return f"{told}, {'' if engine.has_bf16 else 'no '}bfloat16 products"


def draws_dropout(frame: Frame) -> bool:
    """Return False: masks are given."""
    return False


def compute_dtype(frame: Frame) -> str:
    """Return the dtype of the arithmetic: that of the data, float32 for the halves."""
    return "float64" if frame.dtype == "float64" else "float32"


def forward(problem: Problem, keep: bool) -> Result:
    """Run the network. With `keep`, what the backward needs is saved."""
    run = _pass(problem)
    packed = run.packed(problem.weights, problem.cache, backward=False)
    x, h0, c0 = (_ready(array, run.dtype) for array in (problem.x, problem.h0, problem.c0))
    done = run.forward(packed, x, h0, c0, problem.dropout_masks, keep)
    data = problem.x.dtype
    return Result(
        y=_cast(done.y, data),
        h_n=_cast(done.h_n, data),
        c_n=_cast(done.c_n, data),
        c=_cast(done.c, data),
        saved=done.saved,
    )


def prepared(problem: Problem) -> Prepared | None:
    """Return a function of (x, h0, c0) that makes a call like this one; None where there is none.

    There is one for prepacked weights, in float32 and float64, without dropout.
    """
    run = _pass(problem)
    if problem.cache is None or problem.x.dtype != run.dtype or problem.dropout_masks:
        return None
    packed = run.packed(problem.weights, problem.cache, backward=False)

    def again(x: Array, h0: Array, c0: Array | None) -> tuple[Array, Array, Array | None]:
        return run.forward(packed, x, h0, c0, (), keep=False)[:3]

    def again_as_allowed(
        x: Array, h0: Array, c0: Array | None
    ) -> tuple[Array, Array, Array | None]:
        run = _pass(problem)
        packed = run.packed(problem.weights, problem.cache, backward=False)
        return run.forward(packed, x, h0, c0, (), keep=False)[:3]

    # Only an engine that may round has to read, at each call, whether it should.
    return again_as_allowed if c.engine().has_bf16 else again


def _pass(problem: Problem) -> Pass:
    """Return the pass of a frame, which is made once."""
    frame, threads = problem.frame, c.num_threads()
    functions = c.engine().functions(frame.dtype)
    run: Pass | None = frame.notes.get((functions, threads))
    if run is None:
        run = Pass(frame.spec, frame.plan, functions, threads, frame.return_cell_states)
        frame.notes[functions, threads] = run
    return run


def backward(problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, layer by layer from the last."""
    run, frame = _pass(problem), problem.frame
    spec, plan, dtype, functions = frame.spec, frame.plan, run.dtype, run.functions
    weights = problem.weights.map(lambda array: _ready(array, dtype))
    packed = run.packed(weights, problem.cache, backward=True)
    directions, size, hidden = spec.num_directions, spec.output_size, spec.hidden_size
    if plan.total == 0:
        return no_gradients(problem)
    dy, dh_n, dc_n, dc = (
        _ready(array, dtype)
        for array in (cotangents.dy, cotangents.dh_n, cotangents.dc_n, cotangents.dc)
    )
    # The engine goes through the steps in stretches, and keeps the gradient of the state here.
    dh0, dc0 = dh_n.copy(), None if dc_n is None else dc_n.copy()
    # One room for all stretches: fresh memory would be mapped anew each time.
    most = most_rows(plan)
    dgates = np.empty((most, slots(spec), hidden), dtype)
    dh_raw = room(spec.proj_size is not None, (most, size), dtype)
    found: list[dict[str, _Array]] = [{}] * spec.num_pseudo_layers
    for layer in reversed(range(spec.num_layers)):
        if layer < len(problem.dropout_masks):
            dy = drop(np, dy, problem.dropout_masks[layer], spec.dropout)
        dx = np.empty((plan.total, spec.layer_input_size(layer)), dtype)
        for direction in range(directions):
            k = layer * directions + direction
            sums = WeightSums(functions, run.threads, spec, weights, k)
            dc_last = dc if layer == spec.num_layers - 1 else None
            kept: Saved = saved[k]
            arguments = c.Backward(
                0,
                0,
                pointer(kept.y),
                directions * size,
                pointer(kept.h0),
                pointer(kept.c0),
                pointer(kept.c),
                directions * hidden,
                pointer(kept.gates),
                pointer(kept.pre),
                pointer(kept.h_raw),
                pointer(columns(dy, direction, size)),
                directions * size,
                pointer(columns(dc_last, direction, hidden)),
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
                functions.backward(run.described[k], packed[k].reference, byref(arguments))
                sums.add(kept, stretch, dgates, dh_raw, dx, first=direction == 0)
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


def _ready(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as the engine reads it: of its dtype, and C-contiguous; None of None."""
    return None if array is None else np.ascontiguousarray(array, dtype)


def _cast(array: Any, dtype: np.dtype[Any]) -> Any:
    return None if array is None else array.astype(dtype, copy=False)
