"""PyTorch's tensors as a family of arrays, its autograd standing in for `rnn_vjp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from agreement import Family
from cases import Array, data_of

import rnnop


def tensor(array: Array) -> torch.Tensor:
    """Return a tensor that lies in memory as the array does; torch has no negative strides."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(tensor: torch.Tensor) -> Array:
    """Return the array of a tensor."""
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.detach().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: Array = tensor.detach().numpy()
    return found


def rnn_by_autograd(
    x: Any, weights: Any, h0: Any, c0: Any, **options: Any
) -> tuple[rnnop.RNNOutput, Callable[..., rnnop.RNNGrads]]:
    """Return what `rnn` returns, and its gradients with respect to all that is given."""

    def leaf(each: Any) -> Any:
        return None if each is None else each.detach().requires_grad_()

    data, h0, c0, weights = leaf(data_of(x)), leaf(h0), leaf(c0), weights.map(leaf)
    x = x._replace(data=data) if isinstance(x, rnnop.PackedSequence) else data
    out = rnnop.rnn(x, weights, h0, c0, **options)
    outputs = [data_of(each) for each in out if each is not None]

    def vjp(dy: Any, dh_n: Any = None, dc_n: Any = None, dc: Any = None) -> rnnop.RNNGrads:
        named = [each for _, each in weights.named()]
        given = [each for each in (data, h0, c0) if each is not None]
        cotangents = [each for each in (dy, dh_n, dc_n, dc) if each is not None]
        found = iter(torch.autograd.grad(outputs, [*given, *named], cotangents, retain_graph=True))
        states = [next(found) if each is not None else None for each in (data, h0, c0)]
        return rnnop.RNNGrads(states[0], weights.map(lambda _: next(found)), *states[1:])

    return out, vjp


TORCH = Family(tensor, array)
AUTOGRAD = Family(tensor, array, rnn_by_autograd)
