"""The ragged plan: how any mask, lengths and resets become segments that a backend can run.

A masked step did not happen, and a reset cuts a row into independent segments. So a call is a set
of *segments*, each a run of real steps of one row. Sorted longest first and packed step by step,
they are all that a backend ever sees: no hole, no zero length, no reset.

Four rows of five steps (a letter is a real step, . a masked one, | a reset before the step):

    row 0   a b . c .          segment  steps    row       packed, step after step
    row 1   . . . . .             0     g h i j   3        step 0   g a e d
    row 2   . d|e . f             1     a b c     0        step 1   h b f
    row 3   g h . i j             2     e f       2        step 2   i c
                                  3     d         2        step 3   j

    lengths 4 3 2 1, longest first (stable)                batch_sizes 4 3 2 1

At step t only the first batch_sizes[t] segments are alive, and they are the first rows of the
state. The initial state enters, forward, the first segment of a row (unless the row starts with a
reset) and, backward, its last; h_n leaves the last segment forward, the first backward. Row 1 has
no segment: its state passes through. The backward direction reads each segment from its own end:
`flip` is the permutation of packed positions that turns every segment round.

The way into packed order and back is one gather each way. Where steps lie in the caller's array
(time-major, batch-first or packed) is the *storage* order, and only this file knows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from .arrays import Array, HostBools, HostInts, in_float32, kept_from_host, take_rows, zeros


@dataclass(frozen=True, eq=False)
class RaggedPlan:
    """Segments of a batch in packed order, with the indices that lead there and back.

    Attributes
    ----------
    num_steps, batch_size : int
        T and N as the caller has them.
    lengths : (S,) int64
        Real steps of each segment, longest first, none of them 0.
    rows : (S,) int64
        The caller's row of each segment.
    batch_sizes : (max length,) int64
        How many segments have a step of that number.
    steps : (total,) int64 or None
        t * N + n of each packed position; None when that is 0, 1, 2, ... (as in a dense batch).
    storage : (T, N) int64 or None
        The row of the caller's flattened array that holds step t of row n, -1 for none;
        None for time-major, t * N + n.
    enter : pair of (S,) int64
        Forward and backward: the row whose initial state a segment starts from, -1 for zeros.
    leave : pair of (N,) int64
        Forward and backward: the segment whose final state is the row's, -1 for a row with no
        real step, whose initial state passes through.

    """

    num_steps: int
    batch_size: int
    lengths: HostInts
    rows: HostInts
    batch_sizes: HostInts
    steps: HostInts | None
    storage: HostInts | None
    enter: tuple[HostInts, HostInts]
    leave: tuple[HostInts, HostInts]

    @cached_property
    def total(self) -> int:
        """How many real steps there are."""
        return int(self.lengths.sum())

    @cached_property
    def offsets(self) -> HostInts:
        """(max length,) The packed position at which each step begins."""
        return np.cumsum(self.batch_sizes) - self.batch_sizes

    @property
    def num_segments(self) -> int:
        """S."""
        return len(self.lengths)

    @cached_property
    def dense(self) -> bool:
        """Whether every row is one segment of all T steps."""
        return self.num_segments == self.batch_size and self.total == self.num_steps * len(
            self.rows
        )

    @cached_property
    def states_stay(self) -> bool:
        """Whether segments are the rows, each with that row's initial and final state."""
        indices = (self.rows, *self.enter, *self.leave)
        every = np.arange(self.batch_size)
        return all(index is self.rows or np.array_equal(index, every) for index in indices)

    @cached_property
    def entered(self) -> tuple[HostInts, HostInts]:
        """Forward and backward: the (N,) segment that a row's initial state enters, -1 for none."""
        forward, backward = self.enter
        return invert(forward, self.batch_size), invert(backward, self.batch_size)

    @cached_property
    def left(self) -> tuple[HostInts, HostInts]:
        """Forward and backward: the (S,) row whose final state a segment's is, -1 for none."""
        forward, backward = self.leave
        return invert(forward, self.num_segments), invert(backward, self.num_segments)

    @cached_property
    def without_steps(self) -> HostBools:
        """(N,) Which rows have no real step."""
        return self.leave[0] < 0

    @cached_property
    def flip(self) -> HostInts:
        """(total,) The permutation, its own inverse, that turns each segment back to front."""
        segment = np.concatenate([np.arange(n) for n in self.batch_sizes] or [np.arange(0)])
        step = np.repeat(np.arange(len(self.batch_sizes)), self.batch_sizes)
        flip: HostInts = self.offsets[self.lengths[segment] - 1 - step] + segment
        return flip

    @cached_property
    def gather(self) -> HostInts | None:
        """(total,) The storage row of each packed position; None when they are the same."""
        if self.storage is None:
            return self.steps
        flat = self.storage.ravel()
        index = flat if self.steps is None else flat[self.steps]
        return None if np.array_equal(index, np.arange(self.storage_rows)) else index

    @cached_property
    def scatter(self) -> HostInts | None:
        """(storage rows,) The packed position of each storage row, -1 where it is masked."""
        return None if self.gather is None else invert(self.gather, self.storage_rows)

    @cached_property
    def storage_rows(self) -> int:
        """How many rows the caller's flattened array has."""
        if self.storage is None:
            return self.num_steps * self.batch_size
        return int(np.count_nonzero(self.storage >= 0))

    @cached_property
    def positions(self) -> HostInts:
        """(T, N) The packed position of each step, -1 where it is masked."""
        count = self.num_steps * self.batch_size
        flat = np.arange(count) if self.steps is None else invert(self.steps, count)
        return flat.reshape(self.num_steps, self.batch_size)

    @cached_property
    def held(self) -> tuple[HostInts, HostInts]:
        """Forward and backward: the packed position that each storage row shows under 'hold'.

        That is of the row's last real step up to it in the order of the direction, -1 before the
        first.
        """
        return self._held(backward=False), self._held(backward=True)

    def _held(self, backward: bool) -> HostInts:
        order = slice(None, None, -1) if backward else slice(None)
        positions = self.positions[order]
        real = np.where(positions >= 0, np.arange(self.num_steps)[:, None], -1)
        last = np.maximum.accumulate(real, axis=0)
        shown = np.where(last >= 0, np.take_along_axis(positions, np.maximum(last, 0), axis=0), -1)
        shown = shown[order]
        if self.storage is None:
            return shown.ravel()
        index = np.empty(self.storage_rows, np.int64)
        present = self.storage >= 0
        index[self.storage[present]] = shown[present]
        return index

    @cached_property
    def _flat_storage(self) -> HostInts | None:
        return None if self.storage is None else self.storage.ravel()

    @cached_property
    def _real(self) -> list[HostBools]:
        """(T, N) Which steps are real, as a list."""
        return list(self.positions >= 0)

    def gather_held(self, xp: ModuleType, cotangent: Array, backward: bool) -> Array:
        """Bring a cotangent of held outputs into packed order.

        Parameters
        ----------
        cotangent : array (storage rows, F)
            Of the outputs of one direction.

        Returns
        -------
        array (total, F)
            Each real step gets its own cotangent and those of the masked steps that show it.
        """
        count, width, dtype = self.num_steps * self.batch_size, cotangent.shape[1], cotangent.dtype
        if not count:
            return cotangent
        cotangent = in_float32(xp, cotangent)  # a row may be held for many steps
        by_step = take_rows(xp, cotangent, self._flat_storage)
        by_step = xp.reshape(by_step, (self.num_steps, self.batch_size, width))
        carried = zeros(xp, (self.batch_size, width), cotangent)
        sums: list[Array] = [carried] * self.num_steps
        for t in range(self.num_steps) if backward else reversed(range(self.num_steps)):
            sums[t] = by_step[t] + carried
            real = kept_from_host(xp, self._real[t], cotangent)[:, None]
            carried = xp.where(real, xp.zeros_like(carried), sums[t])
        gathered = take_rows(xp, xp.reshape(xp.stack(sums), (count, width)), self.steps)
        return xp.astype(gathered, dtype, copy=False)


def make_plan(
    num_steps: int,
    batch_size: int,
    mask: HostBools | None = None,
    resets: HostBools | None = None,
    storage: HostInts | None = None,
) -> RaggedPlan:
    """Cut a batch into segments, sort them and index their steps.

    Parameters
    ----------
    num_steps, batch_size : int
        T and N.
    mask : (T, N) bool, optional
        True on real steps, in any pattern; None means all.
    resets : (T, N) bool, optional
        True where a new episode starts. On a masked step it takes effect at the row's next real
        step; with none after it, it has no effect.
    storage : (T, N) int64, optional
        The storage row of each step, see `RaggedPlan`.
    """
    if mask is None and resets is None and num_steps > 0:
        return _dense_plan(num_steps, batch_size, storage)
    real = np.ones((num_steps, batch_size), np.bool_) if mask is None else mask
    rows, times = np.nonzero(real.T)  # row after row, each in order of time
    row_starts = np.diff(rows, prepend=-1) > 0
    cuts = np.zeros(len(rows), np.bool_)
    if resets is not None:
        resets_so_far = np.cumsum(resets, axis=0)[times, rows]
        cuts = resets_so_far > np.where(row_starts, 0, np.roll(resets_so_far, 1))

    begins = np.flatnonzero(row_starts | cuts)
    lengths = np.diff(begins, append=len(rows))
    order = np.argsort(-lengths, kind="stable")
    segment_rows = rows[begins]
    first = row_starts[begins]
    last = np.roll(first, -1)  # the next segment begins another row
    fresh = first & ~cuts[begins]
    enters, firsts, lasts = (
        np.where(which, segment_rows, -1)[order] for which in (fresh, first, last)
    )

    segment = np.cumsum(row_starts | cuts) - 1
    step = np.arange(len(rows)) - begins[segment]
    ordered_lengths = lengths[order]
    longest = int(ordered_lengths[0]) if len(order) else 0
    batch_sizes = np.searchsorted(-ordered_lengths, -np.arange(longest), side="left")
    offsets = np.cumsum(batch_sizes) - batch_sizes
    steps = np.empty(len(rows), np.int64)
    steps[offsets[step] + invert(order, len(order))[segment]] = times * batch_size + rows
    all_real = np.array_equal(steps, np.arange(num_steps * batch_size))

    return RaggedPlan(
        num_steps,
        batch_size,
        lengths=ordered_lengths,
        rows=segment_rows[order],
        batch_sizes=batch_sizes,
        steps=None if all_real else steps,
        storage=storage,
        enter=(enters, lasts),
        leave=(invert(lasts, batch_size), invert(firsts, batch_size)),
    )


def _dense_plan(num_steps: int, batch_size: int, storage: HostInts | None) -> RaggedPlan:
    """Return the plan of a batch whose steps are all real: every row is a segment."""
    every = np.arange(batch_size)
    return RaggedPlan(
        num_steps,
        batch_size,
        lengths=np.full(batch_size, num_steps),
        rows=every,
        batch_sizes=np.full(num_steps if batch_size else 0, batch_size),
        steps=None,
        storage=storage,
        enter=(every, every),
        leave=(every, every),
    )


def invert(index: HostInts, size: int) -> HostInts:
    """Return the inverse of an index, (size,), -1 where nothing points.

    The entries of `index` are -1, or occur once.
    """
    inverse = np.full(size, -1, np.int64)
    taken = index >= 0
    inverse[index[taken]] = np.flatnonzero(taken)
    return inverse


def batch_first_storage(num_steps: int, batch_size: int) -> HostInts:
    """Return the storage of an (N, T, .) array: step t of row n lies at n * T + t."""
    return np.arange(num_steps * batch_size).reshape(batch_size, num_steps).T


def packed_storage(batch_sizes: HostInts, sorted_indices: HostInts) -> HostInts:
    """Return the storage of packed data: at step t the rows sorted_indices[:batch_sizes[t]]."""
    storage = np.full((len(batch_sizes), len(sorted_indices)), -1, np.int64)
    begin = 0
    for t, count in enumerate(batch_sizes):
        storage[t, sorted_indices[:count]] = np.arange(begin, begin + count)
        begin += int(count)
    return storage
