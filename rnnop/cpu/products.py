"""What is left of the gradient when the recurrence is done: products over many steps at once.

They belong to BLAS:

    dW = dgates' x      dR = dgates' h_before      dx = dgates W      db = sum of dgates

The gradients of the gates come as (rows, 4, H) with the slots i f g o of an LSTM, and n r z n' of a
GRU, where n' is the gradient of R_n h + b_hn; (rows, 1, H) of a plain RNN. They come a stretch of
steps at a time, since all of them at once would take as much memory as all that was saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..clips import Clip
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights

_Array = npt.NDArray[Any]

LEAST_ROWS = 512  # of a stretch: enough for a product to run at full speed
MOST_STRETCHES = 8


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

    def __init__(self, spec: RNNSpec, weights: RNNWeights, k: int) -> None:
        self.spec = spec
        self.has_bias = {name: getattr(weights, name) is not None for name in ("b_ih", "b_hh")}
        hidden, w_ih = spec.hidden_size, weights.w_ih[k]
        # The input part of a GRU comes in the order n, r, z.
        self.w_ih = np.concatenate([w_ih[2 * hidden :], w_ih[: 2 * hidden]]) if self._gru else w_ih
        self.sums: dict[str, _Array] = {}

    @property
    def _gru(self) -> bool:
        return self.spec.mode == "gru"

    def _add(self, name: str, part: _Array) -> None:
        if name in self.sums:
            self.sums[name] += part
        else:
            self.sums[name] = part

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
        spec, hidden = self.spec, self.spec.hidden_size
        dgates = dgates[: stretch.count]
        flat = dgates.reshape(stretch.count, dgates.shape[1] * hidden)
        dinput = flat[:, : 3 * hidden] if self._gru else flat
        drecurrent = flat[:, hidden:] if self._gru else flat
        self._add("w_ih", dinput.T @ run.x[stretch.here])
        self._add("bias", flat.sum(axis=0))
        if self._gru and not spec.reset_after:
            reset = self._times_before(run, stretch, flat[:, hidden : 3 * hidden])
            new = flat[:, :hidden].T @ run.gates[stretch.here, 3]  # r * h was kept there
            self._add("w_hh", np.concatenate([reset, new]))
        else:
            self._add("w_hh", self._times_before(run, stretch, drecurrent))
        if dh_raw is not None:
            cell = np.tanh(Clip(np, spec.gate_clip)(run.c[stretch.here]))
            self._add("w_hr", dh_raw[: stretch.count].T @ (run.gates[stretch.here, 3] * cell))
        if spec.peephole:
            before, after = stretch.state_before(run.c, run.c0), run.c[stretch.here]
            read = ((0, before), (1, before), (3, after))
            self._add(
                "peephole", np.stack([np.einsum("nh,nh->h", dgates[:, g], by) for g, by in read])
            )
        if first and isinstance(stretch.here, slice):
            np.matmul(dinput, self.w_ih, out=dx[stretch.here])
        elif first:
            dx[stretch.here] = dinput @ self.w_ih
        else:
            dx[stretch.here] += dinput @ self.w_ih

    @staticmethod
    def _times_before(run: Saved, stretch: Stretch, d: _Array) -> _Array:
        """Return d' times the state before each step."""
        product: _Array = d[stretch.first :].T @ run.y[stretch.before]
        if stretch.first:
            product += d[: stretch.first].T @ run.h0
        return product

    def result(self) -> dict[str, _Array]:
        """Return the gradients by the names of the fields of `RNNWeights`."""
        grads, hidden = dict(self.sums), self.spec.hidden_size
        bias = {"b_ih": grads.pop("bias")}
        bias["b_hh"] = bias["b_ih"].copy()
        if self._gru:
            bias["b_ih"], bias["b_hh"] = bias["b_ih"][: 3 * hidden], bias["b_hh"][hidden:]
            for each in (grads, bias):
                name = "w_ih" if each is grads else "b_ih"
                each[name] = np.concatenate([each[name][hidden:], each[name][:hidden]])
            if not self.spec.reset_after:  # n' is n
                bias["b_hh"] = bias["b_ih"].copy()
        return grads | {name: each for name, each in bias.items() if self.has_bias[name]}
