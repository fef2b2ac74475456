"""The oracle: plain loops over any array namespace, and everything that SPEC describes.

Read `cells.py` for one step and its gradient, `sequence.py` for layers, directions and time. On
NumPy the halves are computed in float64, and so is float32 with RNNOP_REFERENCE_FLOAT64=1; on the
other families the halves are computed in float32.
"""

from .sequence import (
    backward,
    compute_dtype,
    draws_dropout,
    forward,
    manner,
    prepack,
    prepared,
    supports,
    unavailable,
)

__all__ = [
    "backward",
    "compute_dtype",
    "draws_dropout",
    "forward",
    "manner",
    "prepack",
    "prepared",
    "supports",
    "unavailable",
]
