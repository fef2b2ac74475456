"""How a network is cut into what cuDNN runs in one go.

Mostly it is one part. What happens between layers and is not cuDNN's own doing (the caller's
dropout, a look at the last layer's input) needs a part for each layer. Both directions over more
steps than cuDNN takes need a part for each direction: the backward one starts at the other end.
`reverse` is a forward direction over turned segments.

A list of levels, each with the parts that read the same input, side by side:

    [[whole network]]    [[layer 0], [layer 1]]    [[0 forward, 0 backward], [1 forward, ...]]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..backends import Frame
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import pieces


@dataclass(frozen=True)
class Part:
    """Some pseudo-layers of a network that run in one go.

    Attributes
    ----------
    spec : RNNSpec
        Their network, as if it stood alone, never in reverse.
    first : int
        Number of the first of its pseudo-layers in the whole network.
    flip : bool
        Whether it reads every segment from its end.
    """

    spec: RNNSpec
    first: int
    flip: bool

    @property
    def pseudo_layers(self) -> slice:
        """Its pseudo-layers, as an index of states and weights."""
        return slice(self.first, self.first + self.spec.num_pseudo_layers)

    def weights(self, weights: RNNWeights) -> RNNWeights:
        """Return its part of the weights."""
        return weights.part(self.pseudo_layers, self.spec.bidirectional)


def levels(frame: Frame, by_layer: bool) -> list[list[Part]]:
    """Return the parts of a network, level by level.

    `by_layer` asks for a part for each layer.
    """
    spec = frame.spec
    if by_direction(frame):
        return [
            [_one_layer(spec, layer, direction) for direction in range(2)]
            for layer in range(spec.num_layers)
        ]
    if by_layer:
        return [[_one_layer(spec, layer)] for layer in range(spec.num_layers)]
    return [[whole(spec)]]


def last_layer(spec: RNNSpec) -> list[Part]:
    """Return a part for each direction of the last layer."""
    return [
        _one_layer(spec, spec.num_layers - 1, direction) for direction in range(spec.num_directions)
    ]


def whole(spec: RNNSpec) -> Part:
    """Return the part that is the whole network."""
    return Part(replace(spec, reverse=False), 0, spec.reverse)


def by_direction(frame: Frame) -> bool:
    """Return whether the directions of a call must run apart."""
    return frame.spec.bidirectional and len(frame.plan.batch_sizes) > pieces.MOST_STEPS


def _one_layer(spec: RNNSpec, layer: int, direction: int | None = None) -> Part:
    """Return the part of a layer, or of one of its two directions."""
    alone = replace(
        spec,
        input_size=spec.layer_input_size(layer),
        num_layers=1,
        bidirectional=spec.bidirectional and direction is None,
        reverse=False,
        activations=spec.activations[:1] if direction is not None else spec.activations,
        dropout=0.0,
    )
    first = layer * spec.num_directions + (direction or 0)
    return Part(alone, first, spec.runs_backward(direction or 0))
