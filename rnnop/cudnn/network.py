"""One call of the backend: the parts of a network one after another, and what is between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..arrays import Array, in_float32, take_rows, zeros
from ..backends import Cotangents, Frame, Gradients, Problem, Result
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
    """What the backward needs: the parts level by level, each with what came of it."""

    levels: list[list[tuple[Part, Done]]]
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
                x = _drop(memory, x, brought.dropout_masks[depth], spec.dropout)
            levels.append(done)
        every = [each for level in levels for _, each in level]
        h_n = _joined(memory, [each.h_n for each in every], 0)
        c_n = _joined(memory, [each.c_n for each in every], 0) if spec.has_cell_state else None
        c = _cell_states(brought, layer_input, x) if frame.return_cell_states else None
        return Result(
            y=memory.take_back(x),
            h_n=memory.take_back(h_n),
            c_n=None if c_n is None else memory.take_back(c_n),
            c=None if c is None else memory.take_back(c),
            saved=Saved(levels) if keep else None,
        )


def backward(problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, once, level by level from the last.

    Raises
    ------
    UnsupportedError
        It has run before; or there is a cotangent of the cell states of every step.
    """
    frame = problem.frame
    memory, spec = FAMILIES[frame.family], frame.spec
    if cotangents.dc is not None:
        raise UnsupportedError(
            "`dc` is given; cuDNN takes no cotangent of the cell states of every step",
            "The backends 'cpu' and 'reference' do",
        )
    if frame.plan.total == 0:
        return _no_gradients(problem)
    if saved.used:
        raise UnsupportedError(
            "the vjp of this call has run before, and cuDNN's backward consumes what its forward "
            "kept; expected one vjp for each forward",
            "Call rnn_vjp again for another, or name backend='reference'",
        )
    saved.used = True
    brought, back = _brought(problem, memory), memory.take_back
    with current(memory, brought.x) as device, _telling(device, frame):
        d, dh_n = memory.bring(cotangents.dy), memory.bring(cotangents.dh_n)
        dc_n = None if cotangents.dc_n is None else memory.bring(cotangents.dc_n)
        dh0, dc0 = [], []
        fields: dict[str, list[Array]] = {}
        for depth, level in reversed(list(enumerate(saved.levels))):
            if depth < len(brought.dropout_masks):
                d = _drop(memory, d, brought.dropout_masks[depth], spec.dropout)
            width = d.shape[1] // len(level)
            dinputs = []
            for place, (part, done) in reversed(list(enumerate(level))):
                dy = _turned(brought, part, d[:, place * width : (place + 1) * width])
                states = part.pseudo_layers
                dx, dspace, dh, dc = run.backward(
                    device, part, done, dy, dh_n[states], None if dc_n is None else dc_n[states]
                )
                dinputs.append(_turned(brought, part, dx))
                dh0.append(dh)
                dc0.append(dc)
                found = weightspace.gradients(part.spec, dspace, problem.weights)
                for name, entries in found.fields():
                    fields[name] = [*entries, *fields.get(name, [])]
            d = dinputs[0] if len(dinputs) == 1 else dinputs[0] + dinputs[1]
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
        major, minor = device.memory.capability(device.index)
        error.detail += (
            f"; x ({plan.total}, {spec.input_size}) in {frame.dtype}, h0 {state}, segments of up "
            f"to {plan.lengths[0]} steps, on device {device.index} of compute capability "
            f"{major}.{minor}"
        )
        raise


def _run(device: Device, part: Part, problem: Problem, x: Array, keep: bool) -> Done:
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
    )
    return run.forward(device, job)


def _by_layer(problem: Problem) -> bool:
    """Return whether something between layers is to be done or seen that cuDNN keeps to itself."""
    frame = problem.frame
    looks_inside = frame.return_cell_states and frame.spec.num_layers > 1
    return looks_inside or bool(problem.dropout_masks)


def _turned(problem: Problem, part: Part, rows: Array) -> Array:
    """Return packed rows in the order in which a part runs, or back: it is its own inverse."""
    xp = FAMILIES[problem.frame.family].xp
    return take_rows(xp, rows, problem.frame.plan.flip) if part.flip else rows


def _joined(memory: Memory, arrays: list[Any], axis: int) -> Any:
    return arrays[0] if len(arrays) == 1 else memory.xp.concat(arrays, axis=axis)


def _drop(memory: Memory, array: Array, kept: Array, rate: float) -> Array:
    """Return the kept elements over 1 - rate, and 0 elsewhere."""
    xp = memory.xp
    scaled = xp.astype(in_float32(xp, array) / (1.0 - rate), array.dtype, copy=False)
    return xp.where(kept, scaled, xp.zeros_like(array))


def _cell_states(problem: Problem, x: Array, y: Array) -> Array:
    """Return the cell states of the last layer from its input and its output."""
    frame = problem.frame
    spec, layer = frame.spec, frame.spec.num_layers - 1
    own = slice(layer * spec.num_directions, None)
    weights = RNNWeights.of_fields(
        {name: entries[own] for name, entries in problem.weights.fields()}, spec.bidirectional
    )
    xp = FAMILIES[frame.family].xp
    return cellstates.of_layer(
        xp, spec, weights, frame.plan, x, y, problem.h0[own], _given(problem.c0)[own]
    )


def _given(array: Array | None) -> Array:
    return array


def _brought(problem: Problem, memory: Memory) -> Problem:
    """Return a problem whose arrays lie on the device."""
    bring = memory.bring
    return replace(
        problem,
        weights=problem.weights.map(bring),
        x=bring(problem.x),
        h0=bring(problem.h0),
        c0=None if problem.c0 is None else bring(problem.c0),
        dropout_masks=tuple(bring(mask) for mask in problem.dropout_masks),
    )


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


def _no_gradients(problem: Problem) -> Gradients:
    """Return the gradients of a call without a single step."""
    xp = problem.frame.xp
    return Gradients(
        dx=zeros(xp, tuple(problem.x.shape), problem.x),
        weights=problem.weights.map(lambda array: zeros(xp, tuple(array.shape), array)),
        dh0=problem.h0,
        dc0=problem.c0,
    )
