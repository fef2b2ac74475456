"""Tensors as NumPy arrays that share their memory, and back.

NumPy has no bfloat16 of its own: there the bits go over as integers, and ml_dtypes names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..arrays import Array
from ..weights import FIELDS, RNNWeights

HostArray: TypeAlias = npt.NDArray[Any]


def to_numpy(tensor: Tensor) -> HostArray:
    """Return the array of a tensor.

    Raises
    ------
    TypeError
        It is not on the CPU, or of a kind that NumPy does not have, such as float8.
    """
    if not tensor.is_cpu:
        raise TypeError(f"the tensor lies on {tensor.device}")
    if tensor.dtype is torch.bfloat16:
        bits: HostArray = tensor.detach().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: HostArray = tensor.numpy(force=True)
    return array


def to_tensor(array: HostArray) -> Tensor:
    """Return the tensor of a fresh array, which nobody else will write to."""
    if array.dtype.type is ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Bridge(NamedTuple):
    """How tensors reach the arrays that a backend is given, and how those come back."""

    inward: Callable[[Tensor], Array]
    outward: Callable[[Array], Tensor]


HOST = Bridge(to_numpy, to_tensor)
NONE = Bridge(lambda tensor: tensor, lambda tensor: tensor)

# Weights as a list: the arrays of one pseudo-layer after those of the other. It is the order of
# torch.nn.RNNBase, whose modules need not sort their parameters then.


def fields_of(weights: RNNWeights) -> str:
    """Return the names of the fields that are there, such as 'w_ih w_hh'."""
    return " ".join([name for name in FIELDS if getattr(weights, name) is not None])


def as_list(weights: RNNWeights, fields: str) -> list[Any]:
    """Return the arrays of weights as a list."""
    by_layer = zip(*[getattr(weights, name) for name in fields.split()], strict=True)
    return [array for layer in by_layer for array in layer]


def of_list(arrays: list[Any], fields: str, bidirectional: bool) -> RNNWeights:
    """Return the weights whose arrays are in a list."""
    names = fields.split()
    found = {name: arrays[k :: len(names)] for k, name in enumerate(names)}
    return RNNWeights.of_fields(found, bidirectional)


class _Views:
    """What is made of the NumPy arrays of a list of tensors."""

    def __init__(
        self, tensors: list[Tensor], constants: tuple[Any, ...], make: Callable[[list[Any]], Any]
    ) -> None:
        number = id(tensors[0])
        self.first = ref(tensors[0], lambda _: _VIEWS.pop(number, None))
        self.key = _key(tensors, constants)
        self.made = make([to_numpy(each) for each in tensors])


# By the identity of the first tensor, and as long as it lives. A call finds again what an earlier
# one set up for the same RNNWeights, so the same tensors must become the same RNNWeights.
_VIEWS: dict[int, _Views] = {}


def on_numpy(
    tensors: list[Tensor], constants: tuple[Any, ...], make: Callable[[list[Any]], Any]
) -> Any:
    """Return what is made of arrays that share the memory of tensors, the same for the same ones.

    Such arrays keep their memory alive. So an address that is still the same is the same memory,
    also when somebody has given a parameter other data in between. What is made depends on the
    `constants` beside.
    """
    first = tensors[0]
    found = _VIEWS.get(id(first))
    if found is None or found.first() is not first or found.key != _key(tensors, constants):
        found = _VIEWS[id(first)] = _Views(tensors, constants, make)
    return found.made


def weights_on_numpy(tensors: list[Tensor], fields: str, bidirectional: bool) -> RNNWeights:
    """Return weights that share the memory of tensors, the same ones for the same tensors."""
    weights: RNNWeights = on_numpy(
        tensors, (fields, bidirectional), lambda arrays: of_list(arrays, fields, bidirectional)
    )
    return weights


def _key(tensors: list[Tensor], constants: tuple[Any, ...]) -> list[Any]:
    key: list[Any] = [constants]
    for each in tensors:
        key += each.data_ptr(), each.shape, each.stride(), each.dtype
    return key
