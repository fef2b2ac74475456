"""Dropout by masks, and masks from a seed: a counter-based stream for each layer boundary.

The stream of a boundary is that of Philox 4x64 keyed by (seed, layer), read in time-major order.
So a mask depends on nothing else: not on threads, not on how a batch is packed, and steps that are
added at the end of a batch change no element before them.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from .arrays import Array, HostBools, in_float32
from .ragged import RaggedPlan


def draw_mask(seed: int, layer: int, rate: float, plan: RaggedPlan, width: int) -> HostBools:
    """Return which outputs of `layer` are kept, as (total, width) in packed order."""
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, layer])))
    shape = (plan.num_steps * plan.batch_size, width)
    kept = stream.random(shape, dtype=np.float32) >= np.float32(rate)
    return kept if plan.steps is None else kept[plan.steps]


def drop(xp: ModuleType, array: Array, kept: Array, rate: float) -> Array:
    """Return the kept elements over 1 - rate, and 0 elsewhere; its own transpose."""
    scaled = in_float32(xp, array) / (1.0 - rate)
    if scaled.dtype != array.dtype:
        scaled = xp.astype(scaled, array.dtype)
    return xp.where(kept, scaled, xp.zeros_like(array))


def fresh_seed() -> int:
    """Return a seed that nobody has used before."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
