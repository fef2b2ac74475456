"""One call of the backend: the parts of a network one after another, and what is between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..arrays import Array, take_rows, zeros
from ..backends import Cotangents, Frame, Gradients, Problem, Result, no_gradients
from ..dropout import drop
from ..errors import UnsupportedError
from ..weights import RNNWeights
from . import cellstates, parts, run, weightspace
from .device import Device, current
from .memory import FAMILIES, Memory
from .parts import Part
from .run import Done, Job
from .status import CudnnError


@dataclass(eq=False)
class Saved:
    """What the backward needs.

    Attributes
    ----------
    levels : list of list of (Part, Done)
        The parts level by level, each with what came of it.
    again : function or None
        Runs the last level once more, step by step; only where cell states were asked for.
    used : bool
        Whether it has run.
    """

    levels: list[list[tuple[Part, Done]]]
    again: Callable[[Device], list[tuple[Part, Done]]] | None = None
    used: bool = False


def forward(problem: Problem, keep: bool) -> Result:
    """Run the network. With `keep`, what the backward needs is saved."""
    frame = problem.frame
    memory, spec = FAMILIES[frame.family], frame.spec
    if frame.plan.total == 0:
        return _without_steps(problem, keep)
    brought = _brought(problem, memory)
    with current(memory, brought.x) as device, _telling(device, frame):
        x = layer_input = brought.x
        levels = []
        for depth, level in enumerate(parts.levels(frame, _by_layer(problem))):
            layer_input = x
            done = [(part, _run(device, part, brought, layer_input, keep)) for part in level]
            x = _joined(memory, [_turned(brought, part, each.y) for part, each in done], 1)
            if depth < len(brought.dropout_masks):
                x = drop(memory.xp, x, brought.dropout_masks[depth], spec.dropout)
            levels.append(done)
        every = [each for level in levels for _, each in level]
        h_n = _joined(memory, [each.h_n for each in every], 0)
        c_n = _joined(memory, [each.c_n for each in every], 0) if spec.has_cell_state else None
        c, again = None, None
        if frame.return_cell_states:
            c = _cell_states(brought, layer_input, x)
            again = functools.partial(_last_layer_by_step, brought, layer_input)
        return Result(
            y=memory.take_back(x),
            h_n=memory.take_back(h_n),
            c_n=None if c_n is None else memory.take_back(c_n),
            c=None if c is None else memory.take_back(c),
            saved=Saved(levels, again) if keep else None,
        )


def backward(problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, once, level by level from the last.

    Raises
    ------
    UnsupportedError
        The forward has kept nothing, or this has run before.
    """
    frame = problem.frame
    memory, spec = FAMILIES[frame.family], frame.spec
    if saved is None:
        raise UnsupportedError(
            "this forward ran for inference and has kept nothing; "
            "cuDNN's backward needs what a forward in training mode keeps",
            "Call rnn_vjp in place of rnn",
        )
    if frame.plan.total == 0:
        return no_gradients(problem)
    if saved.used:
        raise UnsupportedError(
            "the vjp of this call has run before, and cuDNN's backward consumes what its forward "
            "kept; expected one vjp for each forward",
            "Call rnn_vjp again for another, or name backend='reference'",
        )
    saved.used = True
    # x, the weights and the states are not brought again: the forward has kept what it had there.
    d, back = memory.bring(cotangents.dy), memory.take_back
    with current(memory, d) as device, _telling(device, frame):
        masks, dh_n = _masks(problem, memory), memory.bring(cotangents.dh_n)
        dc_n = None if cotangents.dc_n is None else memory.bring(cotangents.dc_n)
        dc_steps = None
        if cotangents.dc is not None:
            dc_steps = memory.bring(cotangents.dc)
            saved.levels.pop()  # and what it kept on the device
            saved.levels.append(saved.again(device))
        dh0, dc0 = [], []
        fields: dict[str, list[Array]] = {}
        for depth, level in reversed(list(enumerate(saved.levels))):
            if depth < len(masks):
                d = drop(memory.xp, d, masks[depth], spec.dropout)
            dinputs = []
            for place, (part, done) in reversed(list(enumerate(level))):
                own, states = functools.partial(_own, problem, part, place), part.pseudo_layers
                dx, dspace, dh, dc = run.backward(
                    device,
                    part,
                    done,
                    own(d, len(level)),
                    dh_n[states],
                    None if dc_n is None else dc_n[states],
                    None if dc_steps is None else own(dc_steps, len(level)),
                )
                dinputs.append(_turned(problem, part, dx))
                dh0.append(dh)
                dc0.append(dc)
                found = weightspace.gradients(part.spec, dspace, problem.weights)
                for name, entries in found.fields():
                    fields[name] = [*entries, *fields.get(name, [])]
            d = dinputs[0] if len(dinputs) == 1 else dinputs[0] + dinputs[1]
            dc_steps = None  # it is of the last layer
        return Gradients(
            dx=back(d),
            weights=RNNWeights.of_fields(fields, spec.bidirectional).map(back),
            dh0=back(_joined(memory, dh0[::-1], 0)),
            dc0=back(_joined(memory, dc0[::-1], 0)) if spec.has_cell_state else None,
        )


@contextmanager
def _telling(device: Device, frame: Frame) -> Iterator[None]:
    """Add to an error of cuDNN what was run, and where."""
    try:
        yield
    except CudnnError as error:
        spec, plan = frame.spec, frame.plan
        state = (spec.num_pseudo_layers, plan.num_segments, spec.output_size)
        major, minor = device.capability
        error.detail += (
            f"; x ({plan.total}, {spec.input_size}) in {frame.dtype}, h0 {state}, segments of up "
            f"to {plan.lengths[0]} steps, on device {device.index} of compute capability "
            f"{major}.{minor}"
        )
        raise


def _run(
    device: Device, part: Part, problem: Problem, x: Array, keep: bool, by_step: bool = False
) -> Done:
    """Run a part on the input of its level."""
    states, memory = part.pseudo_layers, device.memory
    job = Job(
        problem.frame,
        part,
        _turned(problem, part, x),
        memory.contiguous(problem.h0[states]),
        None if problem.c0 is None else memory.contiguous(problem.c0[states]),
        weightspace.of_part(device, part, problem),
        problem.seed,
        keep,
        by_step,
    )
    return run.forward(device, job)


def _last_layer_by_step(problem: Problem, x: Array, device: Device) -> list[tuple[Part, Done]]:
    """Run the last layer on its input, each step alone.

    cuDNN takes a cotangent of the cell state where a call ends. So each step is a call.
    """
    return [
        (part, _run(device, part, problem, x, keep=True, by_step=True))
        for part in parts.last_layer(problem.frame.spec)
    ]


def _by_layer(problem: Problem) -> bool:
    """Return whether something between layers is to be done or seen that cuDNN keeps to itself."""
    frame = problem.frame
    looks_inside = frame.return_cell_states and frame.spec.num_layers > 1
    return looks_inside or bool(problem.dropout_masks)


def _turned(problem: Problem, part: Part, rows: Array) -> Array:
    """Return packed rows in the order in which a part runs, or back: it is its own inverse."""
    xp = FAMILIES[problem.frame.family].xp
    return take_rows(xp, rows, problem.frame.plan.flip) if part.flip else rows


def _own(problem: Problem, part: Part, place: int, rows: Array, count: int) -> Array:
    """Return the columns of one of `count` parts side by side, in the order in which it runs."""
    width = rows.shape[1] // count
    return _turned(problem, part, rows[:, place * width : (place + 1) * width])


def _joined(memory: Memory, arrays: list[Any], axis: int) -> Any:
    return arrays[0] if len(arrays) == 1 else memory.xp.concat(arrays, axis=axis)


def _cell_states(problem: Problem, x: Array, y: Array) -> Array:
    """Return the cell states of the last layer from its input and its output."""
    frame = problem.frame
    spec, memory = frame.spec, FAMILIES[frame.family]
    last = slice((spec.num_layers - 1) * spec.num_directions, None)
    weights = problem.weights.part(last, spec.bidirectional).map(memory.bring)
    c0: Array = problem.c0
    return cellstates.of_layer(
        memory.xp, spec, weights, frame.plan, x, y, problem.h0[last], c0[last]
    )


def _brought(problem: Problem, memory: Memory) -> Problem:
    """Return a problem whose data lies on the device; weights go there where they are needed."""
    bring = memory.bring
    return replace(
        problem,
        x=bring(problem.x),
        h0=bring(problem.h0),
        c0=None if problem.c0 is None else bring(problem.c0),
        dropout_masks=_masks(problem, memory),
    )


def _masks(problem: Problem, memory: Memory) -> tuple[Array, ...]:
    return tuple(memory.bring(mask) for mask in problem.dropout_masks)


def _without_steps(problem: Problem, keep: bool) -> Result:
    """Return the result of a call without a single step: there is no segment either."""
    frame = problem.frame
    spec, xp = frame.spec, frame.xp

    def rows(size: int) -> Array:
        return zeros(xp, (0, spec.num_directions * size), problem.x)

    return Result(
        y=rows(spec.output_size),
        h_n=problem.h0,
        c_n=problem.c0,
        c=rows(spec.hidden_size) if spec.has_cell_state else None,
        saved=Saved([]) if keep else None,
    )
