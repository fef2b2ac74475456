"""One call of cuDNN's forward, and the two calls of its backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays import Array, take_rows
from . import weightspace
from .device import Device
from .enums import ForwardMode, WgradMode
from .memory import Memory, fresh, room
from .plan import Plan


@dataclass(frozen=True, eq=False)
class Run:
    """A forward that was made, and what its backward needs.

    Attributes
    ----------
    plan : Plan
        Its descriptors.
    x, y : array (rows, .)
        As cuDNN had them, padded or packed.
    h0, c0 : array
        The state that entered; `c0` is None unless an LSTM.
    h_n, c_n : array
        The state that left, the cell state before its clip.
    space : array (bytes or elements of the weights)
        The weight space.
    reserve : array or None
        What cuDNN kept for the backward, in training mode.
    """

    plan: Plan
    x: Array
    y: Array
    h0: Array
    c0: Array | None
    h_n: Array
    c_n: Array | None
    space: Array
    reserve: Array | None

    def packed_y(self, memory: Memory) -> Array:
        """Return the outputs in packed order."""
        return _packed(memory, self.plan, self.y)


def forward(
    device: Device, plan: Plan, x: Array, h0: Array, c0: Array | None, space: Array, training: bool
) -> Run:
    """Run cuDNN on packed rows `x` (total, I).

    Only `training` has dropout, and a reserve for a backward.
    """
    memory, address = device.memory, device.address
    x = _as_planned(memory, plan, x)
    mode = ForwardMode(int(training))
    size, start = _bytes(space), memory.pointer(space)
    weightspace.verify(device.handle, plan.rnn, plan.key.spec, start, int(space.itemsize))
    work_size, reserve_size = plan.spaces(device.handle, mode)
    work = room(memory, work_size, x)
    reserve = room(memory, reserve_size, x) if training else None
    y = fresh(memory, (plan.rows, plan.output_width), x.dtype, x)
    h_n, c_n = device.like(h0), device.like(c0)
    plan.library.cudnnRNNForward(
        device.handle.pointer,
        plan.rnn.pointer,
        mode,
        None,  # the lengths on the device: since 8.9.1 those of the descriptors count
        plan.x.pointer,
        address(x),
        plan.y.pointer,
        address(y),
        plan.h.pointer,
        address(h0),
        address(h_n),
        plan.c.pointer,
        address(c0),
        address(c_n),
        size,
        start,
        work_size,
        address(work),
        reserve_size if training else 0,
        address(reserve),
    )
    device.finish()
    return Run(plan, x, y, h0, c0, h_n, c_n, space, reserve)


def backward(
    device: Device, run: Run, dy: Array, dh_n: Array, dc_n: Array | None, dspace: Array
) -> tuple[Array, Array, Array | None]:
    """Run cuDNN's backward, which consumes the reserve.

    The gradients of the weights are added to `dspace`; those of the packed rows of x, of h0 and of
    c0 are returned.
    """
    memory, address, plan = device.memory, device.address, run.plan
    dy = _as_planned(memory, plan, dy)
    work_size, _ = plan.spaces(device.handle, ForwardMode.CUDNN_FWD_MODE_TRAINING)
    work = room(memory, work_size, dy)
    spaces: tuple[Any, ...] = (
        work_size,
        address(work),
        0 if run.reserve is None else int(run.reserve.shape[0]),
        address(run.reserve),
    )
    size = _bytes(run.space)
    dx, dh0, dc0 = device.like(run.x), device.like(run.h0), device.like(run.c0)
    plan.library.cudnnRNNBackwardData_v8(
        device.handle.pointer,
        plan.rnn.pointer,
        None,
        plan.y.pointer,
        address(run.y),
        address(dy),
        plan.x.pointer,
        address(dx),
        plan.h.pointer,
        address(run.h0),
        address(dh_n),
        address(dh0),
        plan.c.pointer,
        address(run.c0),
        address(dc_n),
        address(dc0),
        size,
        address(run.space),
        *spaces,
    )
    device.finish()
    plan.library.cudnnRNNBackwardWeights_v8(
        device.handle.pointer,
        plan.rnn.pointer,
        WgradMode.CUDNN_WGRAD_MODE_ADD,
        None,
        plan.x.pointer,
        address(run.x),
        plan.h.pointer,
        address(run.h0),
        plan.y.pointer,
        address(run.y),
        size,
        address(dspace),
        *spaces,
    )
    device.finish()
    return _packed(memory, plan, dx), dh0, dc0


def _as_planned(memory: Memory, plan: Plan, rows: Array) -> Array:
    """Return packed rows as the plan has them: padded with zeros, or as they are."""
    return memory.contiguous(take_rows(memory.xp, rows, plan.pad) if plan.padded else rows)


def _packed(memory: Memory, plan: Plan, rows: Array) -> Array:
    """Return rows of the plan in packed order, whatever lies in the padding."""
    return take_rows(memory.xp, rows, plan.unpad) if plan.padded else rows


def _bytes(vector: Array) -> int:
    return int(vector.shape[0]) * int(vector.itemsize)
