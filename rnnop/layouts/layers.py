"""Several layers as one network, and back, for owners that keep every layer for itself."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DTypeError, ShapeError, SpecError, blame
from ..validate import weights_object
from ..weights import RNNWeights


def stack_layers(layers: Sequence[RNNWeights]) -> RNNWeights:
    """Return one network of several, each of which reads the outputs of the one before.

    Parameters
    ----------
    layers : sequence of RNNWeights
        The first layer first. All have the same fields, or none has them, and the same number of
        directions.

    Returns
    -------
    RNNWeights
        With the same arrays, not copies.

    Raises
    ------
    DTypeError
        `layers` is no sequence of RNNWeights.
    ShapeError
        It is empty.
    SpecError
        The layers differ in their fields or directions.

    Examples
    --------
    >>> import rnnop
    >>> first = rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0)
    >>> second = rnnop.init_weights("gru", input_size=4, hidden_size=4, seed=1)
    >>> rnnop.layouts.stack_layers([first, second]).num_layers
    2
    """
    with blame("stack_layers"):
        if not isinstance(layers, Sequence):
            raise DTypeError(f"`layers` is {type(layers).__name__}; expected a list of RNNWeights")
        if not layers:
            raise ShapeError("`layers` has 0 entries; expected at least one")
        first = weights_object(layers[0])
        stacked = {name: list(arrays) for name, arrays in first.fields()}
        for k, layer in enumerate(layers[1:], 1):
            fields = dict(weights_object(layer).fields())
            if fields.keys() != stacked.keys():
                raise SpecError(
                    f"`layers[{k}]` has {', '.join(fields)} and `layers[0]` has "
                    f"{', '.join(stacked)}; expected the same in all"
                )
            if layer.bidirectional != first.bidirectional:
                raise SpecError(
                    f"`layers[{k}]` has {layer.num_directions} direction(s) and `layers[0]` has "
                    f"{first.num_directions}; expected the same in all"
                )
            for name, arrays in fields.items():
                stacked[name] += arrays
        return RNNWeights.of_fields(stacked, first.bidirectional)


def split_layers(weights: RNNWeights) -> list[RNNWeights]:
    """Return every layer of a network as a network of one layer.

    Parameters
    ----------
    weights : RNNWeights
        Of any array family.

    Returns
    -------
    list of RNNWeights
        The first layer first, with the same arrays, not copies.

    Raises
    ------
    DTypeError
        `weights` are not RNNWeights.
    """
    with blame("split_layers"):
        weights_object(weights)
        count = weights.num_directions
        starts = range(0, count * weights.num_layers, count)
        return [weights.part(slice(k, k + count), weights.bidirectional) for k in starts]
