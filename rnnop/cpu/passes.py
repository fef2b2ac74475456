"""The forward of a network over a plan: what stays the same from call to call is made once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..dropout import drop
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import engine as c
from . import panels
from .engine import address, pointer
from .panels import Packed
from .products import Saved

_Array = npt.NDArray[Any]


class Outcome(NamedTuple):
    """What a forward gives, as a `rnnop.backends.Result` in the dtype of the arithmetic."""

    y: _Array
    h_n: _Array
    c_n: Any
    c: Any
    saved: list[Saved] | None


class _Part(NamedTuple):
    """A pseudo-layer: its number, and the arguments that stay the same.

    Then where its part of the states h and c, of y, and of the cell states of every step begins, in
    bytes.
    """

    k: int
    arguments: c.Forward
    h: int
    c: int
    y: int
    every_c: int


class Pass:
    """Layers and directions around the engine.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the arithmetic: all arrays have it, and are C-contiguous.
    functions : Functions
        The engine's of that dtype.
    described : list
        What the engine is told of each pseudo-layer, by reference.
    y_shape, h_shape, c_shape : tuple of int
        Of a layer's output in packed order, and of the states.
    """

    def __init__(
        self,
        spec: RNNSpec,
        plan: RaggedPlan,
        functions: c.Functions,
        threads: int,
        cell_states: bool,
    ) -> None:
        self.spec, self.functions, self.threads = spec, functions, threads
        self.dtype = functions.dtype
        self.described: list[Any] = [
            byref(panels.describe(spec, plan, k, threads)) for k in range(spec.num_pseudo_layers)
        ]
        self._plan = plan  # its arrays are pointed to
        self._wants_cell_states = cell_states and spec.has_cell_state
        total, count, segments = plan.total, spec.num_pseudo_layers, plan.num_segments
        self.y_shape = (total, spec.num_directions * spec.output_size)
        self._every_c_shape = (total, spec.num_directions * spec.hidden_size)
        self.h_shape = (count, segments, spec.output_size)
        self.c_shape = (count, segments, spec.hidden_size)
        self._layers = [
            [self._part(layer, direction) for direction in range(spec.num_directions)]
            for layer in range(spec.num_layers)
        ]

    def _part(self, layer: int, direction: int) -> _Part:
        spec, item = self.spec, self.dtype.itemsize
        k = layer * spec.num_directions + direction
        return _Part(
            k,
            c.Forward(
                x_stride=spec.layer_input_size(layer),
                y_stride=self.y_shape[1],
                c_stride=self._every_c_shape[1],
            ),
            h=k * item * math.prod(self.h_shape[1:]),
            c=k * item * math.prod(self.c_shape[1:]),
            y=direction * item * spec.output_size,
            every_c=direction * item * spec.hidden_size,
        )

    def packed(
        self, weights: RNNWeights, cache: dict[Any, Any] | None, *, backward: bool
    ) -> list[Packed]:
        """Return packed weights; those of prepacked ones, with a `cache`, are packed once."""
        functions, described = self.functions, self.described
        return panels.packed(functions, described, self.spec, weights, cache, backward=backward)

    def forward(
        self,
        packed: list[Packed],
        x: _Array,
        h0: _Array,
        c0: Any,
        dropout_masks: Sequence[_Array],
        keep: bool,
    ) -> Outcome:
        """Run all pseudo-layers on packed rows. With `keep`, what the backward needs is saved."""
        dtype = self.dtype
        h_n = np.empty(self.h_shape, dtype)
        c_n = every_c = None
        h0_at, h_n_at, c0_at, c_n_at, c_at = address(h0), address(h_n), 0, 0, 0
        if c0 is not None:
            c_n = np.empty(self.c_shape, dtype)
            c0_at, c_n_at = address(c0), address(c_n)
        y, saved = x, []
        for layer, parts in enumerate(self._layers):
            x = y
            if 0 < layer <= len(dropout_masks):
                x = drop(np, y, dropout_masks[layer - 1], self.spec.dropout)
            y = np.empty(self.y_shape, dtype)
            if c0 is not None and (keep or self._wants_cell_states):
                every_c = np.empty(self._every_c_shape, dtype)
                c_at = address(every_c)
            x_at, y_at = address(x), address(y)
            for part in parts:
                arguments = c.Forward.from_buffer_copy(part.arguments)
                arguments.x, arguments.y = x_at, y_at + part.y
                arguments.h0, arguments.h_n = h0_at + part.h, h_n_at + part.h
                if c0 is not None:
                    arguments.c0, arguments.c_n = c0_at + part.c, c_n_at + part.c
                if c_at:
                    arguments.c = c_at + part.every_c
                if keep:
                    run = self._saved(x, y, every_c, h0, c0, part.k)
                    arguments.gates, arguments.pre = pointer(run.gates), pointer(run.pre)
                    arguments.h_raw = pointer(run.h_raw)
                    saved.append(run)
                self.functions.forward(
                    self.described[part.k], packed[part.k].reference, byref(arguments)
                )
        return Outcome(y, h_n, c_n, every_c, saved if keep else None)

    def _saved(self, x: _Array, y: _Array, every_c: Any, h0: _Array, c0: Any, k: int) -> Saved:
        """Return what the backward of pseudo-layer `k` needs, with room for what is to come."""
        spec, total, dtype = self.spec, self.y_shape[0], self.dtype
        hidden, size, count = spec.hidden_size, spec.output_size, slots(spec)
        direction = k % spec.num_directions
        return Saved(
            x=x,
            y=columns(y, direction, size),
            c=columns(every_c, direction, hidden),
            gates=room(count == 4, (total, 4, hidden), dtype),
            pre=room(bool(spec.gate_clip), (total, count, hidden), dtype),
            h_raw=room(bool(spec.proj_clip), (total, size), dtype),
            h0=h0[k],
            c0=None if c0 is None else c0[k],
        )


def slots(spec: RNNSpec) -> int:
    """How many gate gradients there are: 4, or 1 for a plain RNN."""
    return 1 if spec.mode.startswith("rnn") else 4


def room(wanted: bool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return memory with nothing in it, if wanted."""
    return np.empty(shape, dtype) if wanted else None


def columns(array: Any, direction: int, size: int) -> Any:
    """Return the part of one direction of the last axis, as a view; None of None."""
    return None if array is None else array[:, direction * size : (direction + 1) * size]
