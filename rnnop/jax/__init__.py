"""The operator on JAX arrays: under jit, grad, vmap and shard_map, and without any of them.

`rnnop.rnn`, `rnn_vjp`, `explain` and `prepack` come here by themselves with JAX arrays.
Importing this package makes `RNNWeights` a pytree.

`call.py` parts a call into what may be traced and what is static, `primitives.py` tells JAX how it
runs and how it is differentiated, `batching.py` how it is mapped, and `host.py` runs it.
"""

import jax

from ..errors import BackendUnavailable

NEEDED = (0, 8)

if jax.__version_info__[:2] < NEEDED:
    raise BackendUnavailable(
        f"arrays of JAX {jax.__version__} are given; expected JAX 0.8 or newer",
        "An older one has backend='reference' only",
    )

from . import batching, rssm, tree  # noqa: E402, F401  # some register themselves with JAX
from .operator import VJP, explain, prepack, rnn, rnn_vjp  # noqa: E402

__all__ = ["VJP", "explain", "prepack", "rnn", "rnn_vjp", "rssm"]
