"""The way in and out: the caller's arrays to packed order and results back, with gradients.

Nothing here computes; every function is a gather along rows (see `rnnop.ragged` for the indices),
and each has its transpose beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from .arrays import Array, HostInts, kept_from_host, take_rows
from .packing import PackedSequence
from .ragged import RaggedPlan
from .spec import RNNSpec


@dataclass(frozen=True, eq=False)
class Storage:
    """How one caller's arrays lie.

    Attributes
    ----------
    leading : tuple of int
        What stands before the features: (T, N), (N, T), or (total,) for a packed sequence.
    packed : PackedSequence or None
        The input, when it came packed.
    hold : bool
        Masked steps of y show the last real output instead of 0.
    """

    spec: RNNSpec
    plan: RaggedPlan
    xp: ModuleType
    leading: tuple[int, ...]
    packed: PackedSequence | None
    hold: bool

    def rows_in(self, array: Array) -> Array:
        """Bring (*leading, F) into packed order, (total, F). Also the transpose of zero filling."""
        rows = array.reshape((self.plan.storage_rows, array.shape[-1]))
        return take_rows(self.xp, rows, self.plan.gather)

    def rows_out(self, packed: Array) -> Array:
        """Bring (total, F) back into the caller's order, with zeros at masked steps."""
        return self._shape(take_rows(self.xp, packed, self.plan.scatter))

    def outputs_out(self, packed: Array) -> Array:
        """Bring outputs (total, D*F) back, with what `masked_output` asks for at masked steps."""
        if not self.hold or self.plan.scatter is None:
            return self.rows_out(packed)
        parts = [
            take_rows(self.xp, part, self.plan.held[self.spec.runs_backward(direction)])
            for direction, part in self._directions(packed)
        ]
        return self._shape(self.xp.concat(parts, axis=1))

    def outputs_out_transposed(self, cotangent: Array) -> Array:
        """Bring a cotangent of outputs into packed order, (total, D*F)."""
        if not self.hold or self.plan.scatter is None:
            return self.rows_in(cotangent)
        rows = self.xp.reshape(cotangent, (self.plan.storage_rows, cotangent.shape[-1]))
        parts = [
            self.plan.gather_held(self.xp, part, self.spec.runs_backward(direction))
            for direction, part in self._directions(rows)
        ]
        return self.xp.concat(parts, axis=1)

    def states_in(self, states: Array) -> Array:
        """Give each segment its initial state: (L*D, N, F) to (L*D, S, F)."""
        return self._each(states, self.plan.enter)

    def states_in_transposed(self, dsegments: Array) -> Array:
        """Give each row the gradient of its initial state: (L*D, S, F) to (L*D, N, F)."""
        return self._each(dsegments, self.plan.entered)

    def states_out(self, segments: Array, initial: Array) -> Array:
        """Give each row its final state, its initial one where no step is real: (L*D, N, F)."""
        return self._passed_through(self._each(segments, self.plan.leave), initial)

    def states_out_transposed(self, dstates: Array) -> Array:
        """Give each segment the gradient of its final state: (L*D, N, F) to (L*D, S, F)."""
        return self._each(dstates, self.plan.left)

    def _passed_through(self, states: Array, others: Array) -> Array:
        """Return `states`, but for the rows without a real step those of `others`."""
        if self.plan.states_stay:
            return states
        empty = self.plan.without_steps
        if not np.any(empty):
            return states
        return self.xp.where(kept_from_host(self.xp, empty, states)[None, :, None], others, states)

    def initial_gradients(self, dsegments: Array, dfinal: Array) -> Array:
        """Return the gradient of initial states from that of segments and of final states."""
        return self._passed_through(self.states_in_transposed(dsegments), dfinal)

    def _each(self, states: Array, index: tuple[HostInts, HostInts]) -> Array:
        """Gather the rows of every pseudo-layer with the index of its direction."""
        if self.plan.states_stay:
            return states
        directions = self.spec.num_directions
        return self.xp.stack(
            [
                take_rows(self.xp, states[k], index[self.spec.runs_backward(k % directions)])
                for k in range(self.spec.num_pseudo_layers)
            ]
        )

    def _directions(self, rows: Array) -> list[tuple[int, Array]]:
        """Cut (rows, D*F) into one part a direction."""
        count = self.spec.num_directions
        width = rows.shape[1] // count
        return [(d, rows[:, d * width : (d + 1) * width]) for d in range(count)]

    def _shape(self, rows: Array) -> Array:
        return rows.reshape((*self.leading, rows.shape[1]))
