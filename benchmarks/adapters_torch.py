"""What a call through PyTorch costs over the same call on NumPy arrays, see adapters.py.

python benchmarks/adapters_torch.py
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ |= {"RNNOP_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
from adapters import H, report

import rnnop
import rnnop.torch


def main() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, H), np.float32)
    weights = rnnop.init_weights("gru", input_size=H, hidden_size=H, seed=0)
    prepacked = rnnop.prepack(weights)
    tensor = torch.from_numpy(x)
    tensors = weights.map(lambda each: torch.tensor(each, requires_grad=True))
    tensors_prepacked = rnnop.prepack(tensors)
    mine, theirs = rnnop.torch.GRU(H, H), torch.nn.GRU(H, H)
    dy = np.ones((1, 1, H), np.float32)

    def numpy_gradient() -> object:
        _, vjp = rnnop.rnn_vjp(x, weights)
        return vjp(dy)

    def inferring(function: Callable[[], object]) -> Callable[[], object]:
        @torch.no_grad()
        def run() -> object:
            return function()

        return run

    def gradient(function: Callable[[], torch.Tensor], parameters: list[torch.Tensor]) -> object:
        return torch.autograd.grad(function(), parameters, torch.from_numpy(dy))

    listed = [each for _, each in tensors.named()]
    report(
        f"torch {torch.__version__}",
        {
            "numpy": lambda: rnnop.rnn(x, weights),
            "torch.no_grad alone": inferring(lambda: None),
            "torch": inferring(lambda: rnnop.rnn(tensor, tensors)),
            "rnnop.torch.GRU": inferring(lambda: mine(tensor)),
            "torch.nn.GRU": inferring(lambda: theirs(tensor)),
            "numpy, prepacked": lambda: rnnop.rnn(x, prepacked),
            "torch, prepacked": inferring(lambda: rnnop.rnn(tensor, tensors_prepacked)),
            "numpy, gradient": numpy_gradient,
            "torch, gradient": lambda: gradient(lambda: rnnop.rnn(tensor, tensors).y, listed),
            "rnnop.torch.GRU, gradient": lambda: gradient(
                lambda: mine(tensor)[0], list(mine.parameters())
            ),
            "torch.nn.GRU, gradient": lambda: gradient(
                lambda: theirs(tensor)[0], list(theirs.parameters())
            ),
        },
        {
            "torch": "numpy",
            "torch, prepacked": "numpy, prepacked",
            "torch, gradient": "numpy, gradient",
        },
    )


if __name__ == "__main__":
    main()
