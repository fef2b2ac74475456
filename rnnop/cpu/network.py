"""Layers and directions around the engine, and the large products of the backward.

The engine runs the recurrence of one pseudo-layer in either direction. What is left of the gradient
are products over all real steps at once, and they belong to BLAS:

    dW = dgates' x      dR = dgates' h_before      dx = dgates W      db = sum of dgates

The gradients of the gates come as (total, 4, H) with the slots i f g o of an LSTM, and n r z n' of
a GRU, where n' is the gradient of R_n h + b_hn.
"""

from __future__ import annotations

from ctypes import byref, c_int64
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import backends
from ..arrays import LABELS, dtype_name
from ..backends import Cotangents, Gradients, Result
from ..clips import Clip
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import engine as c
from .engine import pointer

_Array = npt.NDArray[Any]


def supports(problem: backends.Problem) -> str | None:
    """Return None, or why the engine cannot run the problem."""
    if problem.family != "numpy":
        return f"it takes NumPy arrays, and `x` is a {LABELS[problem.family]} array"
    if not problem.spec.default_activations:
        return "it has no custom `activations`"
    return None


def unavailable() -> str | None:
    """Return None, or why there is no engine here."""
    return c.why_unavailable()


def manner() -> str:
    """Return the instruction set and the threads that a call would use."""
    threads = c.num_threads()
    return f"{c.engine().isa}, {threads} thread{'s' if threads > 1 else ''}"


def compute_dtype(problem: backends.Problem) -> str:
    """Return the dtype of the arithmetic: that of the data, float32 for the halves."""
    return "float64" if dtype_name(problem.x) == "float64" else "float32"


@dataclass(frozen=True, eq=False)
class _Layer:
    """What the backward of one pseudo-layer needs; None for what its network does not have."""

    x: _Array  # (total, in)
    y: _Array  # (total, P), a view of the layer's output
    c: Any  # (total, H), likewise
    gates: Any  # (total, 4, H)
    pre: Any  # (total, 4, H), or (total, 1, H) of a plain RNN
    h_raw: Any  # (total, P)


def forward(problem: backends.Problem, keep: bool) -> Result:
    """Run the network. With `keep`, what the backward needs is saved."""
    dtype = np.dtype(compute_dtype(problem))
    data = problem.x.dtype
    problem = _converted(problem, dtype)
    spec, plan = problem.spec, problem.plan
    engine, threads = c.engine(), c.num_threads()
    directions, size, hidden = spec.num_directions, spec.output_size, spec.hidden_size
    total, segments = plan.total, plan.num_segments
    h_n = np.empty((spec.num_pseudo_layers, segments, size), dtype)
    c_n = _room(spec.has_cell_state, (spec.num_pseudo_layers, segments, hidden), dtype)
    every_c: _Array | None = None
    layers: list[_Layer] = []
    x = problem.x
    for layer in range(spec.num_layers):
        y = np.empty((total, directions * size), dtype)
        last = layer == spec.num_layers - 1
        if c_n is not None and (keep or (last and problem.return_cell_states)):
            every_c = np.empty((total, directions * hidden), dtype)
        for direction in range(directions):
            k = layer * directions + direction
            run = _Layer(
                x=x,
                y=_columns(y, direction, size),
                c=None if every_c is None else _columns(every_c, direction, hidden),
                gates=_room(keep and not spec.mode.startswith("rnn"), (total, 4, hidden), dtype),
                pre=_room(
                    keep and spec.gate_clip is not None, (total, _slots(spec), hidden), dtype
                ),
                h_raw=_room(keep and spec.proj_clip is not None, (total, size), dtype),
            )
            described = _describe(spec, plan, layer, direction, threads)
            packed = _packed(problem, engine, described, k, dtype)
            arguments = c.Forward(
                x=pointer(x),
                x_stride=x.shape[1],
                h0=pointer(problem.h0[k]),
                c0=None if problem.c0 is None else pointer(problem.c0[k]),
                y=pointer(run.y),
                y_stride=y.shape[1],
                h_n=pointer(h_n[k]),
                c_n=None if c_n is None else pointer(c_n[k]),
                c=pointer(run.c),
                c_stride=0 if every_c is None else every_c.shape[1],
                gates=pointer(run.gates),
                pre=pointer(run.pre),
                h_raw=pointer(run.h_raw),
            )
            engine.call(
                "forward", dtype, byref(described), byref(packed.structure), byref(arguments)
            )
            layers.append(run)
        x = y
        if layer < len(problem.dropout_masks):
            x = _drop(y, problem.dropout_masks[layer], spec.dropout)
    return Result(
        y=_cast(y, data),
        h_n=_cast(h_n, data),
        c_n=_cast(c_n, data),
        c=_cast(every_c, data),
        saved=(problem, layers) if keep else None,
    )


def backward(problem: backends.Problem, saved: Any, cotangents: Cotangents) -> Gradients:
    """Run the gradient of `forward`, layer by layer from the last."""
    data = problem.x.dtype
    computed: backends.Problem = saved[0]
    layers: list[_Layer] = saved[1]
    spec, plan, weights, dtype = computed.spec, computed.plan, computed.weights, computed.x.dtype
    engine, threads = c.engine(), c.num_threads()
    directions, size, hidden = spec.num_directions, spec.output_size, spec.hidden_size
    dy, dh_n = _ready(cotangents.dy, dtype), _ready(cotangents.dh_n, dtype)
    dc_n = None if cotangents.dc_n is None else _ready(cotangents.dc_n, dtype)
    dc = None if cotangents.dc is None else _ready(cotangents.dc, dtype)
    dh0 = np.empty_like(dh_n)
    dc0 = None if dc_n is None else np.empty_like(dc_n)
    found: list[dict[str, _Array]] = [{}] * spec.num_pseudo_layers
    for layer in reversed(range(spec.num_layers)):
        if layer < len(computed.dropout_masks):
            dy = _drop(dy, computed.dropout_masks[layer], spec.dropout)
        dx: Any = None
        for direction in range(directions):
            k = layer * directions + direction
            run = layers[k]
            described = _describe(spec, plan, layer, direction, threads)
            packed = _packed_backward(computed, engine, described, k, dtype)
            dgates = np.empty((plan.total, _slots(spec), hidden), dtype)
            dh_raw = _room(spec.proj_size is not None, (plan.total, size), dtype)
            mine = _columns(dy, direction, size)
            dc_mine = None
            if dc is not None and layer == spec.num_layers - 1:
                dc_mine = _columns(dc, direction, hidden)
            c0 = None if computed.c0 is None else computed.c0[k]
            arguments = c.Backward(
                y=pointer(run.y),
                y_stride=run.y.strides[0] // dtype.itemsize,
                h0=pointer(computed.h0[k]),
                c0=pointer(c0),
                c=pointer(run.c),
                c_stride=0 if run.c is None else run.c.strides[0] // dtype.itemsize,
                gates=pointer(run.gates),
                pre=pointer(run.pre),
                h_raw=pointer(run.h_raw),
                dy=pointer(mine),
                dy_stride=mine.strides[0] // dtype.itemsize,
                dc=pointer(dc_mine),
                dc_stride=0 if dc_mine is None else dc_mine.strides[0] // dtype.itemsize,
                dh_n=pointer(dh_n[k]),
                dc_n=None if dc_n is None else pointer(dc_n[k]),
                dh0=pointer(dh0[k]),
                dc0=None if dc0 is None else pointer(dc0[k]),
                dgates=pointer(dgates),
                dh_raw=pointer(dh_raw),
            )
            engine.call(
                "backward", dtype, byref(described), byref(packed.structure), byref(arguments)
            )
            part, found[k] = _products(
                spec, plan, weights, k, run, dgates, dh_raw, computed.h0[k], c0
            )
            dx = part if dx is None else np.add(dx, part, out=dx)
        dy = dx
    return Gradients(
        dx=_cast(dy, data),
        weights=RNNWeights.of_fields(
            {name: [_cast(grads[name], data) for grads in found] for name in found[0]},
            spec.bidirectional,
        ),
        dh0=_cast(dh0, data),
        dc0=_cast(dc0, data),
    )


def prepack(spec: RNNSpec, weights: RNNWeights, cache: dict[Any, Any]) -> None:
    """Lay the weights out for the forward, into `cache`."""
    dtype = np.dtype("float64" if dtype_name(weights.w_ih[0]) == "float64" else "float32")
    engine = c.engine()
    ready = weights.map(lambda array: _ready(array, dtype))
    for k in range(spec.num_pseudo_layers):
        described = _describe(spec, None, k // spec.num_directions, k % spec.num_directions, 1)
        _cached(
            cache,
            ("forward", engine.isa, dtype, _cell(spec), k),
            _pack,
            engine,
            described,
            ready,
            k,
            dtype,
        )


@dataclass(frozen=True, eq=False)
class _Packed:
    """Packed weights, and the structure that points to them."""

    structure: c.Weights
    arrays: tuple[_Array | None, ...]


def _cell(spec: RNNSpec) -> str:
    return "gru_reset_before" if spec.mode == "gru" and not spec.reset_after else spec.mode


def _slots(spec: RNNSpec) -> int:
    """How many gate gradients there are: 4, or 1 for a plain RNN."""
    return 1 if spec.mode.startswith("rnn") else 4


def _describe(
    spec: RNNSpec, plan: RaggedPlan | None, layer: int, direction: int, threads: int
) -> c.Problem:
    """Return the engine's description of one pseudo-layer."""
    none = (0.0, 0.0)
    cell_clip, gate_clip = spec.cell_clip or none, spec.gate_clip or none
    proj_clip = spec.proj_clip or none
    return c.Problem(
        c.CELLS[_cell(spec)],
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


def _cached(cache: dict[Any, Any] | None, key: Any, make: Any, *arguments: Any) -> _Packed:
    """Return make(*arguments), from the cache of prepacked weights when there is one."""
    found: _Packed | None = None if cache is None else cache.get(key)
    if found is None:
        found = make(*arguments)
        if cache is not None:
            cache[key] = found
    return found


def _packed(
    problem: backends.Problem, engine: c.Engine, described: c.Problem, k: int, dtype: np.dtype[Any]
) -> _Packed:
    key = ("forward", engine.isa, dtype, _cell(problem.spec), k)
    return _cached(problem.cache, key, _pack, engine, described, problem.weights, k, dtype)


def _packed_backward(
    problem: backends.Problem, engine: c.Engine, described: c.Problem, k: int, dtype: np.dtype[Any]
) -> _Packed:
    key = ("backward", engine.isa, dtype, _cell(problem.spec), k)
    return _cached(problem.cache, key, _pack_backward, engine, described, problem.weights, k, dtype)


def _pack(
    engine: c.Engine, described: c.Problem, weights: RNNWeights, k: int, dtype: np.dtype[Any]
) -> _Packed:
    """Lay out the weights of pseudo-layer `k` for the forward."""
    sizes = (c_int64 * 8)()
    engine.call("packed_sizes", dtype, byref(described), byref(sizes))
    arrays = tuple(c.aligned(count, dtype) if count else None for count in sizes[:5])
    given = [_entry(weights, name, k) for name in ("w_ih", "w_hh", "w_hr", "b_ih", "b_hh")]
    engine.call("pack", dtype, byref(described), *map(pointer, given), *map(pointer, arrays))
    peephole = _entry(weights, "peephole", k)
    return _Packed(c.Weights(*map(pointer, (*arrays, peephole))), (*arrays, peephole))


def _pack_backward(
    engine: c.Engine, described: c.Problem, weights: RNNWeights, k: int, dtype: np.dtype[Any]
) -> _Packed:
    """Lay out the weights of pseudo-layer `k` for the backward."""
    sizes = (c_int64 * 8)()
    engine.call("packed_sizes", dtype, byref(described), byref(sizes))
    recurrent, candidate, projection = (
        c.aligned(count, dtype) if count else None for count in sizes[5:]
    )
    given = [_entry(weights, name, k) for name in ("w_hh", "w_hr")]
    arrays = (recurrent, candidate, projection)
    engine.call("pack_backward", dtype, byref(described), *map(pointer, (*given, *arrays)))
    peephole = _entry(weights, "peephole", k)
    structure = c.Weights(
        recurrent=pointer(recurrent),
        candidate=pointer(candidate),
        projection=pointer(projection),
        peephole=pointer(peephole),
    )
    return _Packed(structure, (*arrays, peephole))


def _entry(weights: RNNWeights, name: str, k: int) -> _Array | None:
    entries = getattr(weights, name)
    return None if entries is None else entries[k]


def _products(
    spec: RNNSpec,
    plan: RaggedPlan,
    weights: RNNWeights,
    k: int,
    run: _Layer,
    dgates: _Array,
    dh_raw: _Array | None,
    h0: _Array,
    c0: Any,
) -> tuple[_Array, dict[str, _Array]]:
    """Return dx and the gradients of the weights of one pseudo-layer."""
    hidden = spec.hidden_size
    backward = spec.runs_backward(k % spec.num_directions)
    flat = dgates.reshape(plan.total, dgates.shape[1] * hidden)
    w_ih = weights.w_ih[k]
    gru = spec.mode == "gru"
    grads: dict[str, _Array] = {}
    if gru:
        # The slots of the input part are n, r, z; those of the recurrent part r, z, n'.
        dinput = flat[:, : 3 * hidden]
        w_ih = np.concatenate([w_ih[2 * hidden :], w_ih[: 2 * hidden]])
        grads["w_ih"] = _r_z_n(dinput.T @ run.x, hidden)
        sums = flat.sum(axis=0)
        db_ih, db_hh = _r_z_n(sums[: 3 * hidden], hidden), sums[hidden:]
    else:
        dinput = flat
        grads["w_ih"] = dinput.T @ run.x
        db_ih = db_hh = flat.sum(axis=0)
    if gru and not spec.reset_after:
        reset, new = flat[:, hidden : 3 * hidden], flat[:, :hidden]
        grads["w_hh"] = np.concatenate(
            [_times_before(reset, run.y, h0, plan, backward), new.T @ run.gates[:, 3]]
        )
        db_hh = db_ih.copy()
    else:
        recurrent = flat[:, hidden:] if gru else flat
        grads["w_hh"] = _times_before(recurrent, run.y, h0, plan, backward)
    if weights.b_ih is not None:
        grads["b_ih"] = db_ih
    if weights.b_hh is not None:
        grads["b_hh"] = db_hh if db_hh is not db_ih else db_ih.copy()
    if dh_raw is not None:
        gate_clip = Clip(np, spec.gate_clip)
        grads["w_hr"] = dh_raw.T @ (run.gates[:, 3] * np.tanh(gate_clip(run.c)))
    if spec.peephole:
        before = _before(run.c, c0, plan, backward)
        read = ((0, before), (1, before), (3, run.c))
        grads["peephole"] = np.stack([np.einsum("nh,nh->h", dgates[:, g], by) for g, by in read])
    return dinput @ w_ih, grads


def _r_z_n(n_r_z: _Array, hidden: int) -> _Array:
    """Bring rows in the order n, r, z into the order r, z, n."""
    return np.concatenate([n_r_z[hidden:], n_r_z[:hidden]])


def _before(states: _Array, initial: _Array, plan: RaggedPlan, backward: bool) -> _Array:
    """Return the state before each step, from those after each step and the initial ones."""
    first, index = plan.previous(backward)
    before = np.empty((plan.total, states.shape[1]), states.dtype)
    before[first] = initial
    rest = np.ones(plan.total, np.bool_)
    rest[first] = False
    before[rest] = states[index]
    return before


def _times_before(
    d: _Array, states: _Array, initial: _Array, plan: RaggedPlan, backward: bool
) -> _Array:
    """Return d' times the state before each step."""
    product: _Array
    if not plan.dense:
        product = d.T @ _before(states, initial, plan, backward)
        return product
    # In a dense batch the state before is the one a batch earlier, and nothing need be copied.
    count, end = plan.batch_size, plan.total - plan.batch_size
    later, earlier = slice(count, None), slice(None, end)
    if backward:
        product = d[earlier].T @ states[later] + d[end:].T @ initial
    else:
        product = d[later].T @ states[earlier] + d[:count].T @ initial
    return product


def _room(wanted: bool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array | None:
    return np.empty(shape, dtype) if wanted else None


def _columns(array: _Array, direction: int, size: int) -> _Array:
    """Return the part of one direction of the last axis, as a view."""
    return array[:, direction * size : (direction + 1) * size]


def _ready(array: _Array, dtype: np.dtype[Any]) -> _Array:
    """Return an array as the engine reads it: its dtype, native and C-contiguous."""
    return np.ascontiguousarray(array, dtype)


def _converted(problem: backends.Problem, dtype: np.dtype[Any]) -> backends.Problem:
    """Return the problem as the engine reads it."""
    return replace(
        problem,
        weights=problem.weights.map(lambda array: _ready(array, dtype)),
        x=_ready(problem.x, dtype),
        h0=_ready(problem.h0, dtype),
        c0=None if problem.c0 is None else _ready(problem.c0, dtype),
    )


def _cast(array: Any, dtype: np.dtype[Any]) -> Any:
    return None if array is None else array.astype(dtype, copy=False)


def _drop(array: _Array, kept: _Array, rate: float) -> _Array:
    """Return the kept elements over 1 - rate, and 0 elsewhere."""
    dropped: _Array = np.where(kept, array / array.dtype.type(1.0 - rate), array.dtype.type(0))
    return dropped
