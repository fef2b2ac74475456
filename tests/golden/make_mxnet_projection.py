"""Write mxnet_projection.npz: outputs of MXNet's fused LSTM with a projection, on a CPU.

In the environment of make_mxnet.py, whose head says how to make it:

    mxnet-venv/bin/python tests/golden/make_mxnet_projection.py

One case is one call of ``mx.nd.RNN``. On a CPU MXNet runs a projection forward only, so there are
no gradients. ``parameters`` is MXNet's flat vector, in which h2r follows h2h of its pseudo-layer.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MXNET_USE_MKLDNN_RNN"] = "0"

import mxnet as mx
import numpy as np

T, N, I, H, P = 4, 3, 5, 6, 2


def run(rng: np.random.Generator, L: int, D: int) -> dict[str, np.ndarray]:
    """Inputs in [-1, 1] on a grid of 1/64, and the outputs of the operator."""
    size = 4 * H * D * (I + P + 2) + (L - 1) * 4 * H * D * (D * P + P + 2) + L * D * P * H
    shapes = {"x": (T, N, I), "parameters": (size,), "h0": (L * D, N, P), "c0": (L * D, N, H)}
    drawn = {n: rng.integers(-64, 64, s, endpoint=True) / 64 for n, s in shapes.items()}
    outputs = mx.nd.RNN(
        *(mx.nd.array(array, dtype="float64") for array in drawn.values()),
        mode="lstm",
        state_size=H,
        num_layers=L,
        bidirectional=D == 2,
        projection_size=P,
        state_outputs=True,  # without them the operator writes to a null pointer
    )
    return drawn | {name: outputs[k].asnumpy() for k, name in enumerate(("y", "h_n", "c_n"))}


def main() -> None:
    rng = np.random.default_rng(13056)
    meta = {
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "dtype": "float64",
    }
    stored = {"meta": np.array(json.dumps(meta))}
    for L in (1, 2):
        for D in (1, 2):
            name = f"lstm-{L}layer{'s' if L > 1 else ''}-{'bi' if D == 2 else 'uni'}"
            stored.update({f"{name}/{key}": array for key, array in run(rng, L, D).items()})
    np.savez_compressed(Path(__file__).with_name("mxnet_projection.npz"), **stored)


if __name__ == "__main__":
    main()
