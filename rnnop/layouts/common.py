"""What several layouts need: gates in another order, biases, flat vectors, clear refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from .. import arrays, validate
from ..arrays import Array
from ..errors import DTypeError, ShapeError, SpecError, blame
from ..spec import RNNSpec, check_bool, check_mode
from ..weights import RNNWeights, expected_shapes

# The letters of rnnop's gates and peepholes, in the order of their rows.
GATES = {"rnn_relu": "i", "rnn_tanh": "i", "gru": "rzn", "lstm": "ifgo"}
PEEPHOLES = "ifo"


def namespace(array: Array) -> ModuleType:
    """Return the array namespace of an array that is known to be one."""
    return arrays.namespace(str(arrays.family(array)))


def reorder(array: Array, given: str, wanted: str) -> Array:
    """Return a copy with the equal blocks of the first axis, one for each letter, reordered."""
    size = array.shape[0] // len(given)
    begins = [size * given.index(gate) for gate in wanted]
    return namespace(array).concat([array[begin : begin + size] for begin in begins], axis=0)


def transpose(array: Array) -> Array:
    """Return the transpose of a matrix, C-contiguous; a copy where that takes one."""
    return array.T.reshape(-1).reshape(array.shape[::-1])


# Biases


def both_biases(weights: RNNWeights) -> RNNWeights:
    """Return weights with both biases: one that is missing is zeros."""
    zeros = tuple(namespace(w).zeros_like(w[:, 0]) for w in weights.w_ih)
    return dataclasses.replace(weights, b_ih=weights.b_ih or zeros, b_hh=weights.b_hh or zeros)


def both_biases_or_none(weights: RNNWeights) -> RNNWeights:
    """Return weights for an owner that knows no single bias: the other one is zeros."""
    if weights.b_ih is None and weights.b_hh is None:
        return weights
    return both_biases(weights)


def single_bias(owner: str, weights: RNNWeights) -> tuple[Array, ...] | None:
    """Return the only bias, for a cell in which the two would simply add up."""
    if weights.b_ih is not None and weights.b_hh is not None:
        raise SpecError(
            f"`weights` have both `b_ih` and `b_hh`; {owner} has a single bias",
            "Add them up first: dataclasses.replace(weights, b_hh=None, "
            "b_ih=[b + c for b, c in zip(weights.b_ih, weights.b_hh)])",
        )
    return weights.b_ih or weights.b_hh


# Checks


def network(weights: object, mode: str, owner: str, *lacks: str) -> tuple[RNNWeights, RNNSpec]:
    """Return weights whose shapes are right, and their spec; refuse what the owner `lacks`.

    What can be lacking: 'layers' (more than one), 'directions', 'projection', 'peephole'.
    """
    checked = validate.weights_object(weights)
    spec = RNNSpec.of(checked, mode=mode)
    with blame(spec=spec):
        if "layers" in lacks and spec.num_layers > 1:
            raise SpecError(
                f"`weights` have {spec.num_layers} layers; {owner} has one",
                "Make one for each layer: rnnop.layouts.split_layers(weights) yields them",
            )
        if "directions" in lacks and spec.bidirectional:
            raise SpecError(f"`weights` are bidirectional; {owner} has one direction")
        if "projection" in lacks and checked.w_hr is not None:
            raise SpecError(f"`weights.w_hr` is given; {owner} has no projection")
        if "peephole" in lacks and checked.peephole is not None:
            raise SpecError(f"`weights.peephole` is given; {owner} has no peepholes")
        first = validate.data_array("weights.w_ih[0]", checked.w_ih[0])
        validate.weights_agree(checked, spec, first, "weights.w_ih[0]")
    return checked, spec


def axes(name: str, value: object, count: int, words: str) -> tuple[int, ...]:
    """Return the shape of an array of floats that has `count` axes, none of them empty."""
    shape = tuple(int(size) for size in validate.data_array(name, value).shape)
    if len(shape) != count or 0 in shape:
        raise ShapeError(f"`{name}` has shape {shape}; expected {words}, none of them 0")
    return shape


def entries(name: str, value: object, expected: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a mapping that has the expected keys and no others."""
    if not isinstance(value, Mapping):
        raise DTypeError(f"`{name}` is {type(value).__name__}; expected a mapping of names")
    listed = ", ".join(expected)
    for key in expected:
        if key not in value:
            raise SpecError(f"`{name}` has no {key!r}; expected {listed}")
    for key in value:
        if key not in expected:
            raise SpecError(f"`{name}` has {key!r}; expected {listed} only")
    return value


# Flat vectors: of every pseudo-layer w_ih, w_hh and w_hr, then of every one b_ih and b_hh


class FlatItem(NamedTuple):
    """Where an array stands in a flat vector.

    Attributes
    ----------
    field : str
        Its field in `RNNWeights`.
    pseudo_layer : int
        Its place in that field.
    offset : int
        Elements before it.
    shape : tuple of int
        Its shape; it is row-major.
    """

    field: str
    pseudo_layer: int
    offset: int
    shape: tuple[int, ...]


def flat_items(spec: RNNSpec) -> list[FlatItem]:
    """Return the arrays of a network in the order of the flat vector, without gaps."""
    shapes = expected_shapes(spec)
    items, offset = [], 0
    for group in (("w_ih", "w_hh", "w_hr"), ("b_ih", "b_hh")):
        for k in range(spec.num_pseudo_layers):
            for field in group:
                if field in shapes:
                    shape = shapes[field][k]
                    items.append(FlatItem(field, k, offset, shape))
                    offset += math.prod(shape)
    return items


def flat_size(spec: RNNSpec) -> int:
    """Return the number of elements of the flat vector.

    All layers after the first are alike, and none is listed here: a number of layers that comes
    with a stranger's file may be any number.
    """
    one, two = (_end(dataclasses.replace(spec, num_layers=layers)) for layers in (1, 2))
    return one + (spec.num_layers - 1) * (two - one)


def _end(spec: RNNSpec) -> int:
    last = flat_items(spec)[-1]
    return last.offset + math.prod(last.shape)


def flat_spec(
    *,
    mode: str,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bidirectional: bool,
    proj_size: int | None = None,
    bias: str = "double",
) -> RNNSpec:
    """Return the spec of a network whose sizes cannot be read off its weights."""
    check_mode(mode)
    check_bool("bidirectional", bidirectional)
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
    for name, size in sizes.items():
        validate.size(name, size)
    if proj_size is not None:
        validate.size("proj_size", proj_size, most=hidden_size)
        if mode != "lstm":
            raise SpecError(f"`proj_size` is given with mode {mode!r}; only mode 'lstm' has it")
    validate.choice("bias", bias, ("none", "input", "recurrent", "double"))
    return RNNSpec(
        mode=mode,
        input_size=int(input_size),
        hidden_size=int(hidden_size),
        num_layers=int(num_layers),
        proj_size=None if proj_size is None else int(proj_size),
        bidirectional=bool(bidirectional),
        bias=bias,
    )


def cut(name: str, flat: object, spec: RNNSpec) -> RNNWeights:
    """Return the weights that lie in a flat vector: views of it, where the family has views."""
    with blame(spec=spec):
        shape = tuple(int(size) for size in validate.data_array(name, flat).shape)
        if shape != (flat_size(spec),):
            raise ShapeError(f"`{name}` has shape {shape}; expected ({flat_size(spec)},)")
    vector: Array = flat
    fields: dict[str, list[Array]] = {}
    for field, _, offset, shape in flat_items(spec):
        part = vector[offset : offset + math.prod(shape)]
        fields.setdefault(field, []).append(part.reshape(shape))
    return RNNWeights.of_fields(fields, spec.bidirectional)


def join(weights: RNNWeights, spec: RNNSpec) -> Array:
    """Return weights, whose shapes are right, as a fresh flat vector."""
    parts = [getattr(weights, item.field)[item.pseudo_layer] for item in flat_items(spec)]
    return namespace(parts[0]).concat([part.reshape(-1) for part in parts])
