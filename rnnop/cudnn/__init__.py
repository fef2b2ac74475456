"""The GPU: cuDNN's RNN v8 API, called through ctypes.

From the library up: `library.py` finds and opens it, `prototypes.py`, `enums.py` and `status.py`
are what its headers say, `descriptors.py` owns its objects. `plan.py` describes one call,
`call.py` makes it. `parts.py` and `pieces.py` cut what it cannot take at once, `run.py` runs
pieces, `network.py` parts. `memory.py` is all that is known of CuPy and PyTorch.
"""

from .abilities import (
    compute_dtype,
    draws_dropout,
    manner,
    prepack,
    prepared,
    supports,
    unavailable,
)
from .network import backward, forward

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
