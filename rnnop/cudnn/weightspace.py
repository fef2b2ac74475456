"""Weights as cuDNN's one buffer, and gradients back; `rnnop.layouts.cudnn` has the layout.

Both biases are always there, with zeros for one that is not given: so each network has a single
form, every algorithm can run it, and a missing bias gets no gradient.
"""

from __future__ import annotations

from ctypes import byref, c_size_t, c_void_p
from dataclasses import replace
from typing import Any

from ..arrays import Array
from ..backends import Problem
from ..errors import LibraryError
from ..layouts import cudnn as layout
from ..layouts.common import both_biases, cut, join
from ..spec import RNNSpec
from ..weights import RNNWeights
from .descriptors import Handle, RNNDescriptor, TensorDescriptor
from .device import Device
from .library import Library
from .parts import Part


def whole(spec: RNNSpec) -> RNNSpec:
    """Return the spec with both biases."""
    return replace(spec, bias="double")


def of_part(device: Device, part: Part, problem: Problem) -> Array:
    """Return the weight space of a part; that of prepacked weights is made once."""
    key = cache_key(device.index, part)
    cache = {} if problem.cache is None else problem.cache
    if key not in cache:
        weights = part.weights(problem.weights).map(device.memory.bring)
        cache[key] = fill(part.spec, weights)
    return cache[key]


def cache_key(index: int, part: Part) -> tuple[str, int, int, int]:
    """Return the key of a part's weight space on a device, in the cache of prepacked weights."""
    return "cudnn", index, part.first, part.spec.num_pseudo_layers


def fill(spec: RNNSpec, weights: RNNWeights) -> Array:
    """Return weights as a fresh weight space."""
    return join(both_biases(weights), whole(spec))


def gradients(spec: RNNSpec, space: Array, weights: RNNWeights) -> RNNWeights:
    """Return the gradients of the fields that `weights` has, as views of their space."""
    found = cut("gradients", space, whole(spec))
    given = {name for name, _ in weights.fields()}
    return RNNWeights.of_fields(
        {name: entries for name, entries in found.fields() if name in given},
        spec.bidirectional,
    )


_verified: set[Any] = set()


def verify(handle: Handle, rnn: RNNDescriptor, spec: RNNSpec, address: int, itemsize: int) -> None:
    """Compare the layout with cuDNN's own answers, once for every network.

    Raises
    ------
    LibraryError
        They differ: this version of cuDNN lays weights out in another way.
    """
    library = rnn.library
    shape = (spec.mode, spec.input_size, spec.hidden_size, spec.proj_size)
    key = (library.path, *shape, spec.num_layers, spec.bidirectional, itemsize)
    if key in _verified:
        return
    size = c_size_t()
    library.cudnnGetRNNWeightSpaceSize(handle.pointer, rnn.pointer, byref(size))
    ours = layout.weight_space_size(whole(spec), itemsize)
    _same(library, "cudnnGetRNNWeightSpaceSize", "bytes", size.value, ours)
    matrix, bias = TensorDescriptor(library), TensorDescriptor(library)
    for layer in layout.linear_layers(whole(spec)):
        addresses = c_void_p(), c_void_p()
        library.cudnnGetRNNWeightParams(
            handle.pointer,
            rnn.pointer,
            layer.pseudo_layer,
            size.value,
            address,
            layer.number,
            matrix.pointer,
            byref(addresses[0]),
            bias.pointer,
            byref(addresses[1]),
        )
        for found, described, item in (
            (addresses[0], matrix, layer.matrix),
            (addresses[1], bias, layer.bias),
        ):
            where = f"the place of linear layer {layer.number} of pseudo-layer {layer.pseudo_layer}"
            theirs = None
            if found.value is not None:
                # Behind a leading axis of 1; a bias as a column.
                theirs = (found.value - address) // itemsize, described.get()[1][1:]
            if item is not None:
                item = item[0], (*item[1], 1)[:2]
            _same(library, "cudnnGetRNNWeightParams", where, theirs, item)
    _verified.add(key)


def _same(library: Library, function: str, what: str, theirs: object, ours: object) -> None:
    if theirs != ours:
        detail = (
            f"{what}: cuDNN {library.version_text} has {theirs}, and rnnop {ours}; "
            "please report this version"
        )
        raise LibraryError(function, 0, "an unknown layout", detail)
