"""One call as tensors and constants, which is all that torch can trace, and how it is run."""

from __future__ import annotations

import functools
import inspect
import json
import secrets
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from .. import api
from ..arrays import to_host
from ..packing import PackedSequence
from ..weights import PrepackedWeights, RNNWeights
from . import host


class Listed(NamedTuple):
    """Weights as the operator takes them.

    Attributes
    ----------
    tensors : list of Tensor
        As `host.as_list` makes it.
    fields : str
        What is there, such as 'w_ih w_hh'.
    number, ready : int and PrepackedWeights, optional
        Weights that were prepacked, and by which number `run` finds them.
    """

    tensors: list[Any]
    fields: str
    bidirectional: bool
    number: int = 0
    ready: PrepackedWeights | None = None


class Inputs(NamedTuple):
    """The inputs of the operator, in the order of its schema.

    Attributes
    ----------
    weights, fields, bidirectional, prepacked
        The parts of `Listed`, but for `ready`.
    options : str
        As `encode` makes it.
    seed : Tensor of one int64, optional
        Of dropout.
    batch_sizes, sorted_indices, unsorted_indices : Tensor, optional
        Of a packed sequence, whose data is `x`.
    """

    x: Tensor
    weights: list[Tensor]
    fields: str
    bidirectional: bool
    options: str
    h0: Tensor | None = None
    c0: Tensor | None = None
    mask: Tensor | None = None
    lengths: Tensor | None = None
    resets: Tensor | None = None
    seed: Tensor | None = None
    dropout_masks: Tensor | None = None
    batch_sizes: Tensor | None = None
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None
    prepacked: int = 0

    @property
    def function(self) -> str:
        """The public function that was called."""
        return "rnn"

    @property
    def num_differentiable(self) -> int:
        """How many of `tensors` have a gradient: x, the weights, h0 and c0."""
        return len(self.weights) + 3

    def tensors(self) -> list[Tensor | None]:
        """Return all tensors."""
        optional: Any = self[_OPTIONAL]
        return [self.x, *self.weights, *optional]

    def with_tensors(self, tensors: Sequence[Any]) -> Inputs:
        """Return the inputs with others in their place."""
        count = len(self.weights) + 1
        weights, optional = list(tensors[1:count]), tensors[count:]
        return Inputs._make([tensors[0], weights, *self[2:5], *optional, self.prepacked])

    def option(self, name: str) -> Any:
        """Return one of the options, given or not."""
        return decode(self.options).get(name, DEFAULTS[name])


_OPTIONAL = slice(Inputs._fields.index("h0"), Inputs._fields.index("prepacked"))
DEFAULTS = {name: each.default for name, each in inspect.signature(api.rnn).parameters.items()}


def encode(**options: Any) -> str:
    """Return options as a text, which torch can keep in a graph.

    Raises
    ------
    TypeError
        An option is of a kind that has no text.
    """
    return _ENCODER.encode(options)


# The compiler need not look inside: it has the options as constants, and calls it once.
encode._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no text")


_ENCODER = json.JSONEncoder(default=_plain)


@functools.lru_cache(maxsize=256)
def decode(text: str) -> dict[str, Any]:
    """Return the options in a text."""
    return {name: _tuples(value) for name, value in json.loads(text).items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def on_host(name: str, value: Any) -> Tensor:
    """Return steps or indices as a tensor."""
    if isinstance(value, Tensor):
        return value
    if torch.compiler.is_compiling():
        return torch.as_tensor(value)
    # Not ascontiguousarray, which makes a vector of a single number.
    return torch.tensor(np.array(to_host(value, name), order="C"))


_LARGEST_SEED = 2**63 - 1


def fresh_seed() -> Tensor:
    """Return a seed that torch draws: so it can draw it again, as for what is checkpointed."""
    return torch.randint(_LARGEST_SEED, (), device="cpu")


def seed_of(seed: Any) -> Tensor | None:
    """Return a seed as a tensor, a fresh one for None; None if it has no tensor."""
    if seed is None:
        return fresh_seed()
    if type(seed) is int and 0 <= seed <= _LARGEST_SEED:
        return torch.tensor(seed, device="cpu")
    return None


# By a number that is drawn, so that no other process has it for other weights.
_PREPACKED: WeakValueDictionary[int, PrepackedWeights] = WeakValueDictionary()


def remember(prepacked: PrepackedWeights) -> int:
    """Return a number by which `run` finds prepacked weights, as long as they live."""
    number = secrets.randbits(62) + 1
    _PREPACKED[number] = prepacked
    return number


def direct(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of `rnnop.api` with no adapter in between."""
    return getattr(api, function).direct(*arguments, **options)


def run(function: str, inputs: Inputs) -> tuple[Any, host.Bridge]:
    """Call a function of `rnnop.api` on the inputs; return its result, and the way back.

    Tensors on the CPU become NumPy arrays. Others, and what NumPy does not have, go as they are;
    if no backend has it either, it is refused there.
    """
    options = decode(inputs.options)
    for name in ("mask", "lengths", "resets"):
        steps = getattr(inputs, name)
        if steps is not None:
            on_host = steps.device.type == "cpu"  # where rnnop keeps what it makes of them
            options = options | {name: steps.numpy() if on_host else steps}
    if inputs.seed is not None:
        options = options | {"seed": int(inputs.seed)}
    try:
        bridge, arrays = host.HOST, _arrays(inputs, host.HOST)
    except TypeError:
        bridge, arrays = host.NONE, _arrays(inputs, host.NONE)
    x, weights, h0, c0, dropout_masks = arrays
    if dropout_masks is not None:
        options = options | {"dropout_masks": dropout_masks}
    with torch.no_grad():
        return direct(function, x, weights, h0, c0, **options), bridge


def _arrays(inputs: Inputs, bridge: host.Bridge) -> tuple[Any, ...]:
    """Return x, the weights, h0, c0 and the dropout masks as a backend is given them."""
    given = inputs.x, inputs.h0, inputs.c0, inputs.dropout_masks
    x, *others = [None if each is None else bridge.inward(each) for each in given]
    if inputs.batch_sizes is not None:
        indices: Any = inputs.batch_sizes, inputs.sorted_indices, inputs.unsorted_indices
        x = PackedSequence(x, *indices)
    listed = inputs.weights, inputs.fields, inputs.bidirectional, inputs.prepacked, None
    return x, weights_for(bridge, *listed), *others


def weights_for(
    bridge: host.Bridge,
    tensors: list[Any],
    fields: str,
    bidirectional: bool,
    number: int,
    ready: PrepackedWeights | None,
) -> RNNWeights | PrepackedWeights:
    """Return the weights in a list as a backend is given them."""
    ready = ready or _PREPACKED.get(number)
    on_host = bridge is not host.NONE
    if ready is not None and isinstance(ready.weights.w_ih[0], np.ndarray) == on_host:
        return ready
    if on_host:
        return host.weights_on_numpy(tensors, fields, bidirectional)
    return host.of_list(tensors, fields, bidirectional)
