"""What a call through JAX costs over the same call on NumPy arrays, see adapters.py.

python benchmarks/adapters_jax.py
"""

from __future__ import annotations

import os

os.environ |= {"RNNOP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import numpy as np
from adapters import H, report

import rnnop


def main() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, H), np.float32)
    weights = rnnop.init_weights("gru", input_size=H, hidden_size=H, seed=0)
    prepacked = rnnop.prepack(weights)
    jx, jweights = jnp.asarray(x), weights.map(jnp.asarray)
    jprepacked = rnnop.prepack(jweights)
    dy = np.ones((1, 1, H), np.float32)

    def numpy_gradient() -> object:
        _, vjp = rnnop.rnn_vjp(x, weights)
        return vjp(dy)

    forward = jax.jit(rnnop.rnn)
    forward_prepacked = jax.jit(lambda x: rnnop.rnn(x, jprepacked))
    gradient = jax.jit(jax.grad(lambda x, w: rnnop.rnn(x, w).y.sum(), (0, 1)))
    empty = jax.jit(lambda x, w: (x + 1, x + 2))
    report(
        f"jax {jax.__version__}",
        {
            "numpy": lambda: rnnop.rnn(x, weights),
            "jit": lambda: forward(jx, jweights).y.block_until_ready(),
            "eager": lambda: rnnop.rnn(jx, jweights).y.block_until_ready(),
            "numpy, prepacked": lambda: rnnop.rnn(x, prepacked),
            "jit, prepacked": lambda: forward_prepacked(jx).y.block_until_ready(),
            "numpy, gradient": numpy_gradient,
            "jit, gradient": lambda: jax.block_until_ready(gradient(jx, jweights)),
            "jit of two additions": lambda: empty(jx, jweights)[0].block_until_ready(),
        },
        {
            "jit": "numpy",
            "eager": "numpy",
            "jit, prepacked": "numpy, prepacked",
            "jit, gradient": "numpy, gradient",
        },
    )


if __name__ == "__main__":
    main()
