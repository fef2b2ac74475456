"""A clip with its gradient: one rule for cell, projection and gate clips, in every room."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from .arrays import Array, in_float32
from .spec import Bounds


@dataclass(frozen=True)
class Clip:
    """Values cut to [low, high]; the gradient is 1 inside and on the bounds, 0 outside.

    A NaN stays, or becomes `low` with `nan_to_low`; either way no gradient goes through it. The
    halves are cut in float32, which the bounds are given in.
    """

    xp: ModuleType
    bounds: Bounds | None
    nan_to_low: bool = False

    def __call__(self, x: Array) -> Array:
        """Return `x` cut to the bounds."""
        if self.bounds is None:
            return x
        low, high = self.bounds
        wide = in_float32(self.xp, x)
        if self.nan_to_low:
            wide = self.xp.where(self.xp.isnan(wide), self.xp.full_like(wide, low), wide)
        return self.xp.astype(self.xp.clip(wide, low, high), x.dtype, copy=False)

    def backward(self, x: Array, dy: Array) -> Array:
        """Return the gradient of `x` from that of the cut `x`."""
        if self.bounds is None:
            return dy
        wide = in_float32(self.xp, x)
        inside = (wide >= self.bounds[0]) & (wide <= self.bounds[1])
        return self.xp.where(inside, dy, self.xp.zeros_like(dy))
