"""What is left of the gradient when the recurrence is done: products over many steps at once.

    dW = dgates' x      dR = dgates' h_before      dx = dgates W      db = sum of dgates

The gradients of the gates come as (rows, 4, H) with the slots i f g o of an LSTM, and n r z n' of a
GRU, where n' is the gradient of R_n h + b_hn; (rows, 1, H) of a plain RNN. They come a stretch of
steps at a time, since all of them at once would take as much memory as all that was saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..clips import Clip
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import engine as c
from .engine import pointer

_Array = npt.NDArray[Any]

LEAST_ROWS = 512  # of a stretch: enough for a product to run at full speed
MOST_STRETCHES = 8
LARGEST_VECTOR = 64  # bytes


@dataclass(frozen=True, eq=False)
class Saved:
    """What the backward of one pseudo-layer needs; None for what its network does not have."""

    x: _Array  # (total, in)
    y: _Array  # (total, P), a view of the layer's output
    c: Any  # (total, H), likewise
    gates: Any  # (total, 4, H)
    pre: Any  # (total, slots, H)
    h_raw: Any  # (total, P)
    h0: _Array  # (S, P)
    c0: Any  # (S, H)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Steps begin..end of every segment, in the order in which a direction runs.

    Attributes
    ----------
    count : int
        How many rows there are.
    here : slice or (count,) int64
        Their packed positions.
    first : int
        How many of them, at the front, are the first step of their segment.
    before : slice or (count - first,) int64
        Packed positions of the steps before the others.
    """

    begin: int
    end: int
    count: int
    here: Any
    first: int
    before: Any

    def state_before(self, states: _Array, initial: _Array) -> _Array:
        """Return (count, F), from the states after every step and the initial ones."""
        return np.concatenate([initial[: self.first], states[self.before]])


def stretches(plan: RaggedPlan, backward: bool) -> Iterator[Stretch]:
    """Yield the steps of a plan from the last to the first."""
    least = max(LEAST_ROWS, -(-plan.total // MOST_STRETCHES))
    end = len(plan.batch_sizes)
    while end:
        begin, count = end, 0
        while begin and count < least:
            begin -= 1
            count += int(plan.batch_sizes[begin])
        yield _stretch(plan, backward, begin, end, count)
        end = begin


def most_rows(plan: RaggedPlan) -> int:
    """Return the rows of the largest stretch."""
    return max(stretch.count for stretch in stretches(plan, backward=False))


def _stretch(plan: RaggedPlan, backward: bool, begin: int, end: int, count: int) -> Stretch:
    start = int(plan.offsets[begin])
    first = plan.num_segments if begin == 0 else 0
    # A row of step t follows the row of the same segment in step t - 1, which is batch_sizes[t - 1]
    # rows before it.
    steps = np.arange(max(begin, 1), end)
    back = np.repeat(plan.batch_sizes[steps - 1], plan.batch_sizes[steps])
    before: Any = np.arange(start + first, start + count) - back
    here: Any = slice(start, start + count)
    if backward:
        here, before = plan.flip[here], plan.flip[before]
    elif plan.dense and len(before):
        before = slice(int(before[0]), int(before[-1]) + 1)
    return Stretch(begin, end, count, here, first, before)


class WeightSums:
    """Gradients of the weights of one pseudo-layer, summed stretch by stretch."""

    def __init__(
        self,
        functions: c.Functions,
        threads: int,
        spec: RNNSpec,
        weights: RNNWeights,
        k: int,
    ) -> None:
        self.functions, self.threads, self.spec = functions, threads, spec
        self.has_bias = {name: getattr(weights, name) is not None for name in ("b_ih", "b_hh")}
        w_ih = weights.w_ih[k]
        self.dtype = w_ih.dtype
        self.sums = {
            name: np.zeros(getattr(weights, name)[k].shape, self.dtype)
            for name in ("w_ih", "w_hh", "w_hr", "peephole")
            if getattr(weights, name) is not None
        }
        rows, inputs = w_ih.shape
        self.bias = np.zeros(4 * spec.hidden_size if self._gru else rows, self.dtype)
        # The input part of a GRU comes in the order n, r, z.
        panel = 4 * LARGEST_VECTOR // self.dtype.itemsize
        self.w_ih = c.aligned(-(-inputs // panel) * panel * rows, self.dtype)
        rotate = spec.hidden_size if self._gru else 0
        functions.pack_times(pointer(w_ih), inputs, rows, rotate, pointer(self.w_ih))

    @property
    def _gru(self) -> bool:
        return self.spec.mode == "gru"

    def add(
        self,
        run: Saved,
        stretch: Stretch,
        dgates: _Array,
        dh_raw: Any,
        dx: _Array,
        *,
        first: bool,
    ) -> None:
        """Add a stretch, the first rows of `dgates`; set its dx, or add to it unless `first`."""
        spec, hidden, here = self.spec, self.spec.hidden_size, stretch.here
        dgates = dgates[: stretch.count]
        flat = dgates.reshape(stretch.count, dgates.shape[1] * hidden)
        dinput = flat[:, : 3 * hidden] if self._gru else flat
        drecurrent = flat[:, hidden:] if self._gru else flat
        self._outer(self.sums["w_ih"], dinput, run.x, here)
        self.bias += flat.sum(axis=0)
        if self._gru and not spec.reset_after:
            reset, new = flat[:, hidden : 3 * hidden], flat[:, :hidden]
            self._outer_before(self.sums["w_hh"][: 2 * hidden], reset, run, stretch)
            # r * h was kept as the last gate
            self._outer(self.sums["w_hh"][2 * hidden :], new, run.gates[:, 3], here)
        else:
            self._outer_before(self.sums["w_hh"], drecurrent, run, stretch)
        if dh_raw is not None:
            m = run.gates[here, 3] * np.tanh(Clip(np, spec.gate_clip)(run.c[here]))
            self._outer(self.sums["w_hr"], dh_raw[: stretch.count], m, slice(None))
        if spec.peephole:
            before, after = stretch.state_before(run.c, run.c0), run.c[here]
            for row, (gate, by) in enumerate(((0, before), (1, before), (3, after))):
                self.sums["peephole"][row] += np.einsum("nh,nh->h", dgates[:, gate], by)
        self._times(dinput, dx, here, add=not first)

    def _outer_before(self, into: _Array, d: _Array, run: Saved, stretch: Stretch) -> None:
        """Add d' times the state before each step."""
        self._outer(into, d[stretch.first :], run.y, stretch.before)
        if stretch.first:
            self._outer(into, d[: stretch.first], run.h0, slice(None))

    def _outer(self, into: _Array, d: _Array, x: _Array, rows: Any) -> None:
        """Add d' x[rows] into a block of rows of a gradient."""
        if not len(d):
            return
        x, index = _rows(x, rows)
        arguments = c.Outer(
            len(d),
            d.shape[1],
            x.shape[1],
            self.threads,
            pointer(d),
            d.strides[0] // self.dtype.itemsize,
            pointer(x),
            x.strides[0] // self.dtype.itemsize,
            pointer(index),
            pointer(into),
            into.strides[0] // self.dtype.itemsize,
        )
        self.functions.outer(byref(arguments))

    def _times(self, d: _Array, dx: _Array, rows: Any, *, add: bool) -> None:
        """Set dx[rows] to d W, or add it."""
        into, index = _rows(dx, rows)
        arguments = c.Times(
            len(d),
            d.shape[1],
            dx.shape[1],
            self.threads,
            add,
            pointer(d),
            d.strides[0] // self.dtype.itemsize,
            pointer(self.w_ih),
            pointer(into),
            pointer(index),
        )
        self.functions.times(byref(arguments))

    def result(self) -> dict[str, _Array]:
        """Return the gradients by the names of the fields of `RNNWeights`."""
        grads, hidden = dict(self.sums), self.spec.hidden_size
        bias = {"b_ih": self.bias, "b_hh": self.bias.copy()}
        if self._gru:
            bias = {
                "b_ih": _r_z_n(self.bias[: 3 * hidden], hidden),
                "b_hh": self.bias[hidden:],
            }
            grads["w_ih"] = _r_z_n(grads["w_ih"], hidden)
            if not self.spec.reset_after:  # n' is n
                bias["b_hh"] = bias["b_ih"].copy()
        return grads | {name: each for name, each in bias.items() if self.has_bias[name]}


def _r_z_n(n_r_z: _Array, hidden: int) -> _Array:
    """Bring rows in the order n, r, z into the order r, z, n."""
    return np.concatenate([n_r_z[hidden:], n_r_z[:hidden]])


def _rows(array: _Array, rows: Any) -> tuple[_Array, _Array | None]:
    """Return an array and the index of its rows, none where they follow each other."""
    return (array[rows], None) if isinstance(rows, slice) else (array, rows)
