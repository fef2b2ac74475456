"""What a call through JAX costs over the same call on NumPy arrays: the smallest call there is.

A GRU of 64 units, one step of one row, float32, one thread. NumPy and JAX take turns, so that a
busy machine slows both; printed are percentiles over many turns, in microseconds.

    python benchmarks/adapters_jax.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ |= {"RNNOP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import numpy as np

import rnnop

H = 64
TURNS = 4000
PERCENTILES = (5, 25, 50, 75)

Run = Callable[[], object]


def take_turns(runs: dict[str, Run]) -> dict[str, np.ndarray]:
    """Return percentiles of the microseconds that each run takes."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(TURNS + 100):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn >= 100:
                taken[name].append(1e6 * (time.perf_counter() - begin))
    return {name: np.percentile(each, PERCENTILES) for name, each in taken.items()}


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
    found = take_turns(
        {
            "numpy": lambda: rnnop.rnn(x, weights),
            "jit": lambda: forward(jx, jweights).y.block_until_ready(),
            "eager": lambda: rnnop.rnn(jx, jweights).y.block_until_ready(),
            "numpy, prepacked": lambda: rnnop.rnn(x, prepacked),
            "jit, prepacked": lambda: forward_prepacked(jx).y.block_until_ready(),
            "numpy, gradient": numpy_gradient,
            "jit, gradient": lambda: jax.block_until_ready(gradient(jx, jweights)),
            "jit of two additions": lambda: empty(jx, jweights)[0].block_until_ready(),
        }
    )
    print(f"jax {jax.__version__}, numpy {np.__version__}, {TURNS} turns")
    print(f"{'microseconds':24}" + "".join(f"{p:>7}%" for p in PERCENTILES))
    for name, row in found.items():
        print(f"{name:24}" + "".join(f"{each:8.1f}" for each in row))
    for name, base in (
        ("jit", "numpy"),
        ("eager", "numpy"),
        ("jit, prepacked", "numpy, prepacked"),
        ("jit, gradient", "numpy, gradient"),
    ):
        over = found[name] - found[base]
        print(f"{name + ' over numpy':24}" + "".join(f"{each:8.1f}" for each in over))


if __name__ == "__main__":
    main()
