"""The CPU engine: compiled kernels that skip what did not happen.

`engine.py` knows C, `panels.py` lays weights out, `network.py` walks layers and directions, and
`products.py` has the large products of the backward. `prepared.py` is the short way of calls that
are alike.
"""

from .network import (
    backward,
    compute_dtype,
    draws_dropout,
    forward,
    manner,
    prepared,
    supports,
    unavailable,
)
from .panels import prepack

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
