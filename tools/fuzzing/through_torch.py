"""Calls through PyTorch: tensors however they lie, and autograd."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import torch  # noqa: TID253

from . import judge, through
from .calls import Array, Call
from .judge import Results


class _Torch:
    def of(self, array: Array, random: np.random.Generator) -> Any:
        host = np.array(array, order="C")
        if host.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(host.astype(np.float32)).bfloat16()
        else:
            try:
                tensor = torch.from_numpy(host)
            except ValueError as error:  # another byte order
                raise TypeError from error
        return _laid_out(tensor, random)

    def host(self, array: Any) -> Array:
        if not isinstance(array, torch.Tensor):
            return np.asarray(array)
        tensor = array.detach().contiguous()
        if tensor.dtype == torch.bfloat16:
            return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
        return np.asarray(tensor.numpy())

    def gradients(self, call: Call, cotangents: Results, random: np.random.Generator) -> Results:
        leaves: list[Any] = []

        def leaf(tensor: Any) -> Any:
            kind = torch.nn.Parameter if random.random() < 0.3 else torch.Tensor.requires_grad_
            leaves.append(kind(tensor.detach()))
            return leaves[-1]

        out = call.map(leaf).rnn(backend="cpu")
        results = [judge.data_of(getattr(out, name)) for name in cotangents]
        given = [self.of(each, random) for each in cotangents.values()]
        found = iter(torch.autograd.grad(results, leaves, given))
        grads = call.map(lambda _: next(found))
        return through.flat(grads.x, grads.weights, grads.h0, grads.c0, self.host)


def _laid_out(tensor: Any, random: np.random.Generator) -> Any:
    """Return an equal tensor that lies otherwise in memory."""
    match random.integers(8):
        case 0:
            around = torch.ones([2 * n for n in tensor.shape], dtype=tensor.dtype)
            inside = tuple(slice(None, None, 2) for _ in tensor.shape)
            around[inside] = tensor
            return around[inside]
        case 1 if tensor.ndim:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        case 2 if tensor.ndim and len(tensor):
            repeated = tensor[:1].expand_as(tensor)
            return repeated if torch.equal(repeated, tensor) else tensor
        case 3:
            return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor


def one(seed: int, tally: Counter[str]) -> None:
    """Make the call of a seed and judge it."""
    through.one(seed, tally, _Torch())
