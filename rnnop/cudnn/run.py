"""Forward and backward of one part of a network, piece by piece."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import arrays, log
from ..arrays import Array, HostInts, take_rows
from ..backends import Frame
from ..clips import Clip
from ..ragged import RaggedPlan, invert
from . import algo, call, dropout, pieces
from . import plan as plans
from .call import Run
from .device import Device
from .parts import Part
from .pieces import Piece
from .plan import Key
from .status import Category, CudnnError


@dataclass(frozen=True, eq=False)
class Job:
    """A part and what it is run on.

    Attributes
    ----------
    x : array (total, in)
        Its input in packed order, turned where the part is.
    h0, c0 : array (pseudo-layers, S, .)
        Its initial states; `c0` is None unless an LSTM.
    space : array
        Its weight space.
    seed : int or None
        Of its dropout.
    keep : bool
        Whether there will be a backward.
    by_step : bool
        Whether each step runs alone, so that its backward can be given a cotangent of the cell
        state after every step.
    """

    frame: Frame
    part: Part
    x: Array
    h0: Array
    c0: Array | None
    space: Array
    seed: int | None
    keep: bool
    by_step: bool = False

    @property
    def plan(self) -> RaggedPlan:
        """The steps."""
        return self.frame.plan


@dataclass(frozen=True, eq=False)
class Done:
    """What came of a job: outputs in packed order, final states, and each piece with its run."""

    y: Array
    h_n: Array
    c_n: Array | None
    runs: list[tuple[Piece, Run]]


# What was found out: how many segments one call can take, and the fastest algorithm.
_most_segments: dict[Any, int] = {}
_fastest: dict[Any, str] = {}


def forward(device: Device, job: Job) -> Done:
    """Run a job, in smaller groups of segments where cuDNN refuses all at once."""
    algorithm = _algorithm(device, job)
    where = (device.index, job.part, job.frame.dtype, algorithm)
    most = min(_most_segments.get(where, 2**31), job.plan.num_segments)
    refusals: list[CudnnError] = []
    while most:
        try:
            done = _forward(device, job, algorithm, most)
        except CudnnError as error:
            if not _may_be_too_many(error):
                raise
            # A traceback would keep this frame, and so all arrays of the job.
            refusals.append(error.with_traceback(None))
            most //= 2
        else:
            if refusals:
                _most_segments[where] = most
                log.info(f"{refusals[0]} Groups of {most} segments do run")
            return done
    raise refusals.pop(0)


def backward(
    device: Device,
    part: Part,
    done: Done,
    dy: Array,
    dh_n: Array,
    dc_n: Array | None,
    dc_steps: Array | None = None,
) -> tuple[Array, Array, Array, Array | None]:
    """Return the gradients of a job's x, weight space, h0 and c0.

    `dc_steps` (total, H) is the cotangent of the cell state after every step, of a job that ran
    step by step.
    """
    memory = device.memory
    clip = Clip(memory.xp, part.spec.cell_clip, part.spec.cell_clip_nan)
    dspace = memory.xp.zeros_like(done.runs[0][1].space)
    hidden, cells = _States(device, dh_n), _States(device, dc_n)
    dx = []
    for piece, run in reversed(done.runs):
        dc = cells.of(piece)
        if dc_steps is not None:
            dc = dc + _rows(device, dc_steps, piece)
        if dc is not None and run.c_n is not None:
            dc = memory.contiguous(clip.backward(run.c_n, dc))
        dx_rows, dh0, dc0 = call.backward(
            device, run, _rows(device, dy, piece), hidden.of(piece), dc, dspace
        )
        hidden.put(piece, dh0)
        cells.put(piece, dc0)
        dx.append(dx_rows)
    joined = _joined(device, [piece for piece, _ in done.runs], dx[::-1])
    return joined, dspace, hidden.all, cells.all


def _forward(device: Device, job: Job, algorithm: str, most_segments: int) -> Done:
    """Run the pieces of a job, each on the state that the one before has left."""
    spec, memory = job.part.spec, device.memory
    clip = Clip(memory.xp, spec.cell_clip, spec.cell_clip_nan)
    drop = None
    if spec.dropout and spec.num_layers > 1:
        drop = dropout.descriptor(device, spec.dropout, job.seed, job.x)
    training = job.keep or drop is not None
    hidden, cells = _States(device, job.h0), _States(device, job.c0)
    runs = []
    most_steps = 1 if job.by_step else pieces.MOST_STEPS
    for piece in pieces.cut(job.plan, most_segments, most_steps):
        key = Key(
            spec,
            job.frame.dtype,
            algo.math_type(job.frame.dtype, device.capability),
            algo.ALGORITHMS[algorithm],
            algo.padded(job.frame),
            piece.lengths.tobytes(),
        )
        plan = plans.plan(device.handle, device.index, key, drop)
        x = _rows(device, job.x, piece)
        run = call.forward(device, plan, x, hidden.of(piece), cells.of(piece), job.space, training)
        hidden.put(piece, run.h_n)
        cells.put(piece, None if run.c_n is None else clip(run.c_n))
        runs.append((piece, run))
    y = _joined(device, [piece for piece, _ in runs], [run.packed_y(memory) for _, run in runs])
    return Done(y, hidden.all, cells.all, runs if job.keep else [])


def _may_be_too_many(error: CudnnError) -> bool:
    """Return whether fewer segments in one call may help: cuDNN does not tell its limits."""
    refused = error.category in (Category.NOT_SUPPORTED, Category.EXECUTION_FAILED)
    return refused and error.function == "cudnnRNNForward"


def _algorithm(device: Device, job: Job) -> str:
    """Return the algorithm that is wanted, or with RNNOP_CUDNN_ALGO=benchmark the fastest."""
    if job.by_step:
        return "standard"
    names = algo.candidates(job.frame)
    if len(names) == 1:
        return names[0]
    math_type = algo.math_type(job.frame.dtype, device.capability)
    lengths = job.plan.lengths.tobytes()
    key = (device.index, job.part, job.frame.dtype, math_type, job.keep, lengths)
    if key not in _fastest:
        seconds = {name: _seconds(device, job, name) for name in names}
        log.info(f"{job.part.spec}: seconds of each algorithm {seconds}")
        _fastest[key] = min(names, key=lambda name: seconds[name])
    return _fastest[key]


def _seconds(device: Device, job: Job, algorithm: str) -> float:
    """Return how long a job takes at best; infinity where this device refuses the algorithm."""
    least = math.inf
    for _ in range(4):
        device.memory.synchronize(device.index)
        start = time.perf_counter()
        try:
            done = _forward(device, job, algorithm, job.plan.num_segments)
        except CudnnError as error:
            if error.category is not Category.NOT_SUPPORTED:
                raise
            return math.inf
        if job.keep:
            backward(device, job.part, done, done.y, done.h_n, done.c_n)
        device.memory.synchronize(device.index)
        least = min(least, time.perf_counter() - start)
    return least


class _States:
    """The state of every segment, from which pieces take and to which they give back."""

    def __init__(self, device: Device, states: Any) -> None:
        self._memory, self.all = device.memory, states

    def of(self, piece: Piece) -> Any:
        """Return the states of a piece, C-contiguous; None if there are none."""
        if self.all is None:
            return None
        return self._memory.contiguous(self.all[:, piece.segments])

    def put(self, piece: Piece, states: Any) -> None:
        """Set the states of a piece."""
        if self.all is None or piece.count == self.all.shape[1]:
            self.all = states
            return
        self.all = arrays.copy(self._memory.xp, self.all)
        self.all[:, piece.segments] = states


def _rows(device: Device, packed: Array, piece: Piece) -> Array:
    """Return the rows of a piece."""
    if isinstance(piece.rows, slice):
        return packed[piece.rows]
    return take_rows(device.memory.xp, packed, piece.rows)


def _joined(device: Device, cut: Sequence[Piece], parts: list[Array]) -> Array:
    """Return the rows of all pieces in packed order."""
    if len(parts) == 1:
        return parts[0]
    xp = device.memory.xp
    every = [_positions(piece) for piece in cut]
    order = np.concatenate(every)
    return take_rows(xp, xp.concat(parts, axis=0), invert(order, len(order)))


def _positions(piece: Piece) -> HostInts:
    if isinstance(piece.rows, slice):
        return np.arange(piece.rows.start, piece.rows.stop)
    return piece.rows
