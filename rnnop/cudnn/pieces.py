"""How packed steps are cut into what one cuDNN call may hold.

cuDNN takes at most 65,535 steps, and may refuse very many sequences. So the segments are cut into
groups, and their steps into chunks: the state that one chunk leaves enters the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import HostInts
from ..ragged import RaggedPlan

MOST_STEPS = 65535


@dataclass(frozen=True, eq=False)
class Piece:
    """Some steps of some segments, in packed order.

    Attributes
    ----------
    first, count : int
        The segments: `count` of them from number `first`.
    lengths : (count,) int32
        How many steps of each are here, longest first, none of them 0.
    rows : slice or (sum of lengths,) int64
        Packed positions.
    """

    first: int
    lengths: npt.NDArray[np.intc]
    rows: slice | HostInts

    @property
    def count(self) -> int:
        """How many segments there are."""
        return len(self.lengths)

    @property
    def segments(self) -> slice:
        """The segments, as an index of states."""
        return slice(self.first, self.first + self.count)


def cut(plan: RaggedPlan, most_segments: int, most_steps: int) -> list[Piece]:
    """Return the pieces of a plan: chunks of steps in their order, for one group after another."""
    pieces = []
    for first in range(0, plan.num_segments, most_segments):
        group = plan.lengths[first : first + most_segments]
        for begin in range(0, int(group[0]), most_steps):
            end = min(begin + most_steps, int(group[0]))
            left = np.minimum(group, end) - begin
            lengths = left[left > 0].astype(np.intc)
            pieces.append(Piece(first, lengths, _rows(plan, first, len(group), begin, end)))
    return pieces


def _rows(plan: RaggedPlan, first: int, count: int, begin: int, end: int) -> slice | HostInts:
    """Return the packed positions of steps begin..end of a group of segments."""
    offsets, alive = plan.offsets[begin:end], plan.batch_sizes[begin:end]
    if count == plan.num_segments:
        return slice(int(offsets[0]), int(offsets[-1] + alive[-1]))
    alive = np.minimum(alive - first, count)
    return np.concatenate(
        [start + first + np.arange(n) for start, n in zip(offsets, alive, strict=True)]
    )
