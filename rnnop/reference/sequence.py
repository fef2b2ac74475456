"""Layers, directions and time: the loop around the cells, forward and backward.

Data is packed (see `rnnop.ragged`): step t is the rows offsets[t] : offsets[t] + batch_sizes[t],
and belongs to the first batch_sizes[t] segments. A segment that has ended leaves the state at its
tail. The backward direction reads the same data through `plan.flip`, and is then a forward one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from .. import flags
from ..arrays import Array, take_rows
from ..backends import Cotangents, Frame, Gradients, Problem, Result, no_gradients
from ..dropout import drop
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights
from .cells import Cell, State, WeightGrads, make_cell


def supports(frame: Frame) -> str | None:
    """Return None: there is nothing that the reference cannot run."""
    return None


def unavailable() -> str | None:
    """Return None: the reference runs wherever Python does."""
    return None


def manner(frame: Frame) -> None:
    """Return None: there is no more to say."""


def compute_dtype(frame: Frame) -> str:
    """Return the dtype of the arithmetic, see the docstring of the package."""
    name, numpy = frame.dtype, frame.family == "numpy"
    if name in ("float16", "bfloat16"):
        return "float64" if numpy else "float32"
    return "float64" if numpy and flags.enabled("RNNOP_REFERENCE_FLOAT64") else name


def draws_dropout(frame: Frame) -> bool:
    """Return False: masks are given."""
    return False


def prepack(spec: RNNSpec, weights: RNNWeights, cache: dict[Any, Any]) -> None:
    """Do nothing: the reference takes weights as they are."""


def prepared(problem: Problem) -> None:
    """Return None: there is no quicker way."""


_quiet = np.errstate(over="ignore", under="ignore", invalid="ignore")
"""Infinities and NaN go through as they come, as they do in every other backend."""


@_quiet
def forward(problem: Problem, keep: bool) -> Result:
    """Run the network. With `keep`, what the backward needs is saved."""
    problem, dtype = _in_compute_dtype(problem)
    frame, weights = problem.frame, problem.weights
    spec, plan, xp = frame.spec, frame.plan, frame.xp
    finals: list[State] = []
    runs: list[_Run] = []
    layer_input = problem.x
    for layer in range(spec.num_layers):
        outputs = []
        for direction in range(spec.num_directions):
            k = layer * spec.num_directions + direction
            flip = plan.flip if spec.runs_backward(direction) else None
            u = take_rows(xp, layer_input, flip)
            a = u @ weights.w_ih[k].T
            if weights.b_ih is not None:
                a = a + weights.b_ih[k]
            cell = make_cell(spec, weights, k, xp)
            initial = _state(problem.h0, problem.c0, k)
            states, final, saved = _run(cell, a, initial, plan, xp)
            outputs.append(tuple(take_rows(xp, each, flip) for each in states))
            finals.append(final)
            runs.append(_Run(cell, flip, u, saved))
        layer_input = xp.concat([states[0] for states in outputs], axis=1)
        if layer < len(problem.dropout_masks):
            layer_input = drop(xp, layer_input, problem.dropout_masks[layer], spec.dropout)
    lstm = spec.has_cell_state
    every_c = xp.concat([states[1] for states in outputs], axis=1) if lstm else None
    cast = _caster(xp, dtype)
    return Result(
        y=cast(layer_input),
        h_n=cast(xp.stack([final[0] for final in finals])),
        c_n=cast(xp.stack([final[1] for final in finals]) if lstm else None),
        c=cast(every_c),
        saved=(problem, runs) if keep else None,
    )


@_quiet
def backward(problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, layer by layer from the last."""
    computed: Problem = saved[0]
    runs: list[_Run] = saved[1]
    frame, weights = computed.frame, computed.weights
    spec, plan, xp = frame.spec, frame.plan, frame.xp
    up, down = _caster(xp, computed.x.dtype), _caster(xp, problem.x.dtype)
    if plan.total == 0:
        return no_gradients(problem)
    doutput, dh_n = up(cotangents.dy), up(cotangents.dh_n)
    dc_n, dc = up(cotangents.dc_n), up(cotangents.dc)
    found: list[WeightGrads] = [{}] * spec.num_pseudo_layers
    dinitial: list[State] = [()] * spec.num_pseudo_layers
    for layer in reversed(range(spec.num_layers)):
        if layer < len(computed.dropout_masks):
            doutput = drop(xp, doutput, computed.dropout_masks[layer], spec.dropout)
        dinputs = []
        for direction in range(spec.num_directions):
            k = layer * spec.num_directions + direction
            run = runs[k]
            outputs: list[Array | None] = [_columns(doutput, direction, spec.output_size)]
            if spec.has_cell_state:
                last = layer == spec.num_layers - 1
                outputs.append(_columns(dc, direction, spec.hidden_size) if last else None)
            flipped = [None if each is None else take_rows(xp, each, run.flip) for each in outputs]
            dfinal = _state(dh_n, dc_n, k)
            da, dinitial[k], found[k] = _run_backward(run, flipped, dfinal, plan, xp)
            found[k]["w_ih"] = da.T @ run.u
            if weights.b_ih is not None:
                found[k]["b_ih"] = xp.sum(da, axis=0)
            dinputs.append(take_rows(xp, da @ weights.w_ih[k], run.flip))
        doutput = dinputs[0] if len(dinputs) == 1 else dinputs[0] + dinputs[1]
    return Gradients(
        dx=down(doutput),
        weights=RNNWeights.of_fields(
            {name: [down(grads[name]) for grads in found] for name in found[0]},
            spec.bidirectional,
        ),
        dh0=down(xp.stack([state[0] for state in dinitial])),
        dc0=down(xp.stack([state[1] for state in dinitial]) if spec.has_cell_state else None),
    )


@dataclass(frozen=True)
class _Run:
    """What the backward of one pseudo-layer needs: its cell, order, input and saved steps."""

    cell: Cell
    flip: Any
    u: Array
    saved: list[Any]


def _run(
    cell: Cell, a: Array, state: State, plan: RaggedPlan, xp: ModuleType
) -> tuple[State, State, list[Any]]:
    """Run one pseudo-layer over time.

    Returns the states after every step, packed, then the final state of each segment, then what
    each step saved.
    """
    steps, ended, saved = [], [], []
    for begin, count in zip(plan.offsets.tolist(), plan.batch_sizes.tolist(), strict=True):
        ended.append(tuple(each[count:] for each in state))
        state, kept = cell.step(a[begin : begin + count], tuple(each[:count] for each in state))
        steps.append(state)
        saved.append(kept)
    # With no step at all, an empty cut of the initial state has the right width.
    packed = tuple(xp.concat(column, axis=0) for column in zip(*steps, strict=True))
    final = [state, *reversed(ended)]
    return (
        packed or tuple(each[:0] for each in state),
        tuple(xp.concat(column, axis=0) for column in zip(*final, strict=True)),
        saved,
    )


def _run_backward(
    run: _Run, doutputs: list[Array | None], dfinal: State, plan: RaggedPlan, xp: ModuleType
) -> tuple[Array, State, WeightGrads]:
    """Run the gradient of `_run` against time.

    `doutputs` are the packed gradients of the states after every step, None for zeros. Returns the
    gradients of `a`, of the initial states, and of the weights that the cell holds.
    """
    dstate = tuple(each[:0] for each in dfinal)
    das: list[Array] = []
    totals: WeightGrads = {}
    alive = 0
    for step in reversed(range(len(plan.batch_sizes))):
        begin, count = int(plan.offsets[step]), int(plan.batch_sizes[step])
        joined = (
            xp.concat([d, final[alive:count]], axis=0)
            for d, final in zip(dstate, dfinal, strict=True)
        )
        dstate = tuple(
            d if dout is None else d + dout[begin : begin + count]
            for d, dout in zip(joined, doutputs, strict=True)
        )
        alive = count
        da, dstate, grads = run.cell.step_backward(run.saved[step], dstate)
        das.append(da)
        totals = {name: totals[name] + grads[name] if totals else grads[name] for name in grads}
    return xp.concat(das[::-1], axis=0), dstate, totals


def _in_compute_dtype(problem: Problem) -> tuple[Problem, Any]:
    """Return the problem in the dtype that is computed in, and the dtype of the data."""
    xp, wide = problem.frame.xp, compute_dtype(problem.frame)
    if wide == problem.frame.dtype:
        return problem, problem.x.dtype
    up = _caster(xp, getattr(xp, wide))
    computed = replace(
        problem,
        weights=problem.weights.map(up),
        x=up(problem.x),
        h0=up(problem.h0),
        c0=up(problem.c0),
    )
    return computed, problem.x.dtype


def _caster(xp: ModuleType, dtype: Any) -> Callable[[Any], Any]:
    """Return the conversion to `dtype`, which lets None through."""
    return lambda array: None if array is None else xp.astype(array, dtype, copy=False)


def _state(h: Array, c: Array | None, k: int) -> State:
    """Return the state of pseudo-layer `k`: (h,) or (h, c)."""
    return (h[k],) if c is None else (h[k], c[k])


def _columns(array: Array | None, direction: int, size: int) -> Array | None:
    """Return the part of one direction of the last axis."""
    return None if array is None else array[:, direction * size : (direction + 1) * size]
