"""RNNWeights: the arrays of a network, and RNNGrads, the gradients that have their shape.

Gate order in every (G*H, .) array: LSTM i, f, g, o; GRU r, z, n. Each field holds one array for
each pseudo-layer, in the order layer * num_directions + direction:

    layer 0 forward | layer 0 backward | layer 1 forward | layer 1 backward | ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .arrays import Array, dtype_name, family
from .errors import DTypeError, ShapeError
from .spec import RNNSpec, check_bool

FIELDS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "peephole")


@dataclass(frozen=True, eq=False, repr=False)
class RNNWeights:
    """The weights of a network: frozen; the arrays stay the caller's.

    Parameters
    ----------
    w_ih : sequence of array, each (G*H, I) or in later layers (G*H, D*P)
        Input weights.
    w_hh : sequence of array, each (G*H, P)
        Recurrent weights; P is H without a projection.
    b_ih, b_hh : sequence of array, each (G*H,), optional
        Biases. A GRU with `reset_after` multiplies the n part of `b_hh` by r; elsewhere the two
        simply add up.
    w_hr : sequence of array, each (P, H), optional
        Projection of an LSTM.
    peephole : sequence of array, each (3, H), optional
        Peepholes of an LSTM for the gates i, f, o.
    bidirectional : bool
        Whether pseudo-layers alternate between forward and backward.

    Raises
    ------
    DTypeError
        A field is not a sequence of arrays.
    ShapeError
        The fields differ in length, or a bidirectional network has an odd number of arrays.
    """

    w_ih: tuple[Array, ...]
    w_hh: tuple[Array, ...]
    b_ih: tuple[Array, ...] | None = None
    b_hh: tuple[Array, ...] | None = None
    w_hr: tuple[Array, ...] | None = None
    peephole: tuple[Array, ...] | None = None
    bidirectional: bool = False

    def __post_init__(self) -> None:
        check_bool("weights.bidirectional", self.bidirectional)
        for name in FIELDS:
            entries = getattr(self, name)
            if entries is None and name not in ("w_ih", "w_hh"):
                continue
            if not isinstance(entries, tuple | list):
                raise DTypeError(
                    f"`weights.{name}` is {type(entries).__name__}; "
                    "expected a tuple with one array for each pseudo-layer",
                    f"A single layer is {name}=(array,)",
                )
            object.__setattr__(self, name, tuple(entries))
            for k, entry in enumerate(entries):
                if family(entry) is None:
                    raise DTypeError(
                        f"`weights.{name}[{k}]` is {type(entry).__name__}; "
                        "expected an array of NumPy, CuPy, PyTorch or JAX"
                    )
        count = len(self.w_ih)
        for name, entries in self.fields():
            if len(entries) != count:
                raise ShapeError(
                    f"`weights.{name}` has {len(entries)} arrays; expected {count}, as in `w_ih`"
                )
        if count == 0 or count % self.num_directions:
            raise ShapeError(
                f"`weights.w_ih` has {count} arrays; expected num_layers * num_directions, "
                f"with num_directions = {self.num_directions}"
            )

    def fields(self) -> Iterator[tuple[str, tuple[Array, ...]]]:
        """Yield the name and the arrays of each field that is given."""
        for name in FIELDS:
            entries = getattr(self, name)
            if entries is not None:
                yield name, entries

    @property
    def num_directions(self) -> int:
        """D: 2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def num_layers(self) -> int:
        """L: the number of layers, a bidirectional pair counting as one."""
        return len(self.w_ih) // self.num_directions

    @property
    def num_parameters(self) -> int:
        """How many numbers all the arrays hold."""
        return count(self.named())

    def named(self) -> Iterator[tuple[str, Array]]:
        """Yield each array with its name, as 'w_ih[0]'."""
        for name, entries in self.fields():
            for k, array in enumerate(entries):
                yield f"{name}[{k}]", array

    @classmethod
    def of_fields(cls, arrays: Mapping[str, Sequence[Array]], bidirectional: bool) -> RNNWeights:
        """Make weights from a mapping of field names to arrays; missing fields are None."""
        fields: dict[str, Any] = {name: tuple(entries) for name, entries in arrays.items()}
        return cls(**fields, bidirectional=bidirectional)

    def part(self, pseudo_layers: slice, bidirectional: bool) -> RNNWeights:
        """Return the weights of some pseudo-layers, the same arrays."""
        return RNNWeights.of_fields(
            {name: entries[pseudo_layers] for name, entries in self.fields()}, bidirectional
        )

    def map(self, function: Callable[[Array], Array]) -> RNNWeights:
        """Return weights with `function` applied to every array, such as `torch.from_numpy`."""
        changed = {name: [function(entry) for entry in entries] for name, entries in self.fields()}
        return RNNWeights.of_fields(changed, self.bidirectional)

    def __repr__(self) -> str:
        first = self.w_ih[0]
        lines = [
            f"RNNWeights({self.num_layers} layer{'s' if self.num_layers > 1 else ''}"
            f"{', bidirectional' if self.bidirectional else ''}, "
            f"{dtype_name(first)}, {self.num_parameters:,} parameters)"
        ]
        lines += [f"  {name:<12} {tuple(array.shape)}" for name, array in self.named()]
        return "\n".join(lines)


class RNNGrads(NamedTuple):
    """Gradients of a scalar with respect to the arrays of a call.

    Attributes
    ----------
    x : array or PackedSequence
        As the input, exactly 0 at masked steps.
    weights : RNNWeights
        With the same fields and shapes as the weights of the call.
    h0 : array (L*D, N, P)
        Of the initial state, given or not.
    c0 : array (L*D, N, H) or None
        Of the initial cell state; None unless the mode is 'lstm'.
    """

    x: Any
    weights: RNNWeights
    h0: Array
    c0: Array


@dataclass(frozen=True, eq=False)
class PrepackedWeights:
    """Weights that were checked and laid out for a backend once, see `rnnop.prepack`.

    Attributes
    ----------
    weights : RNNWeights
        As they were given.
    mode, backend : str
        What they were laid out for.
    cache : dict
        What a backend made of them, for it to find again.
    """

    weights: RNNWeights
    mode: str
    backend: str
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)


def count(named: Iterator[tuple[str, Array]]) -> int:
    """Return how many numbers all the arrays hold, of any family."""
    return sum(math.prod(map(int, array.shape)) for _, array in named)


def expected_shapes(spec: RNNSpec) -> dict[str, list[tuple[int, ...]]]:
    """Return the shape of every array of a network, by field and pseudo-layer."""
    rows = spec.num_gates * spec.hidden_size
    count = spec.num_pseudo_layers
    inputs = [spec.layer_input_size(k // spec.num_directions) for k in range(count)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "w_ih": [(rows, size) for size in inputs],
        "w_hh": [(rows, spec.output_size)] * count,
    }
    if spec.bias in ("input", "double"):
        shapes["b_ih"] = [(rows,)] * count
    if spec.bias in ("recurrent", "double"):
        shapes["b_hh"] = [(rows,)] * count
    if spec.proj_size is not None:
        shapes["w_hr"] = [(spec.proj_size, spec.hidden_size)] * count
    if spec.peephole:
        shapes["peephole"] = [(3, spec.hidden_size)] * count
    return shapes
