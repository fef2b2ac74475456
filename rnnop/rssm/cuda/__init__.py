"""The RSSM on a GPU: cuBLAS products and small kernels, captured in CUDA graphs.

From the libraries up: `library.py` finds the driver, NVRTC and cuBLAS, `compiler.py` makes kernels
of `kernels.cu`, `device.py` is where work goes. `work.py` has the two kinds of work, a product and
a launch, and lists of them that become graphs. `layers.py`, `cells.py` and `model.py` write the
lists of one model, `plan.py` keeps them with their memory, `run.py` makes a call of one.
"""

from .abilities import describe, prepack, prepared, supports, unavailable
from .run import backward, forward

__all__ = [
    "backward",
    "describe",
    "forward",
    "prepack",
    "prepared",
    "supports",
    "unavailable",
]
