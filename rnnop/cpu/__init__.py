"""The CPU engine: compiled kernels that skip what did not happen.

`engine.py` knows C; `network.py` walks layers and directions, forward and backward.
"""

from .network import backward, compute_dtype, forward, manner, prepack, supports, unavailable

__all__ = ["backward", "compute_dtype", "forward", "manner", "prepack", "supports", "unavailable"]
