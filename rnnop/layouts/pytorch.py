"""PyTorch: the state dict of `torch.nn.RNN`, `GRU` and `LSTM`.

The layout is rnnop's own, so arrays are handed on as they are and only the names change. Of two
layers in both directions, with G gates:

    torch                           rnnop    k = 0     1             2     3
    weight_ih  (G*H, I or D*P)      w_ih[k]      _l0   _l0_reverse   _l1   _l1_reverse
    weight_hh  (G*H, P)             w_hh[k]
    bias_ih    (G*H,)               b_ih[k]      the rows of the gates, H each:
    bias_hh    (G*H,)               b_hh[k]      LSTM  i f g o      GRU  r z n
    weight_hr  (P, H)               w_hr[k]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..arrays import Array
from ..errors import DTypeError, SpecError, blame
from ..spec import check_bool
from ..validate import weights_object
from ..weights import RNNWeights
from .common import both_biases_or_none

_FIELDS = {
    "weight_ih": "w_ih",
    "weight_hh": "w_hh",
    "bias_ih": "b_ih",
    "bias_hh": "b_hh",
    "weight_hr": "w_hr",
}
# Up to four digits: a corrupt name must not ask for more layers than memory holds.
_NAME = re.compile(rf"({'|'.join(_FIELDS)})_l(0|[1-9][0-9]{{0,3}})(_reverse)?")
_CELL_NAME = re.compile("((?:weight|bias)_[ih]h)()()")  # no layer, no direction
_EXAMPLES = ("weight_ih_l0", "bias_hh_l1_reverse")


def from_pytorch(source: Any, *, prefix: str = "") -> RNNWeights:
    """Return the weights of a torch module, or of its state dict.

    Parameters
    ----------
    source : module or mapping of str to array
        A `torch.nn.RNN`, `GRU` or `LSTM`, or a cell `RNNCell`, `GRUCell` or `LSTMCell` (whatever
        has a `state_dict`), or names and arrays as in its state dict, of any array family.
    prefix : str
        Read only the names that begin with it, such as ``"encoder.rnn."`` in the state dict of a
        larger module.

    Returns
    -------
    RNNWeights
        With the same arrays, not copies.

    Raises
    ------
    DTypeError
        `source` is neither a module nor a mapping, or an entry is no array.
    SpecError
        A name is missing, or is not one of torch's; or `prefix` is no string.

    Notes
    -----
    The tensors of a state dict are detached. To differentiate with respect to the parameters of a
    module, give ``dict(module.named_parameters())``.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> state = {"rnn.weight_ih_l0": np.zeros((12, 3)), "rnn.weight_hh_l0": np.zeros((12, 4))}
    >>> rnnop.layouts.from_pytorch(state, prefix="rnn.")
    RNNWeights(1 layer, float64, 84 parameters)
      w_ih[0]      (12, 3)
      w_hh[0]      (12, 4)
    """
    with blame("from_pytorch"):
        if not isinstance(prefix, str):
            raise SpecError(f"`prefix` is {prefix!r}; expected a string")
        mapping = source.state_dict() if hasattr(source, "state_dict") else source
        if not isinstance(mapping, Mapping):
            raise DTypeError(
                f"`source` is {type(source).__name__}; "
                "expected a torch module, or names and arrays as in its state dict"
            )
        named = {
            str(name).removeprefix(prefix): array
            for name, array in mapping.items()
            if str(name).startswith(prefix)
        }
        cell = "weight_ih" in named
        present = {"weight_ih", "weight_hh"}
        num_layers, bidirectional = 1, False
        for name in named:
            match = (_CELL_NAME if cell else _NAME).fullmatch(name)
            if match is None:
                examples = ("weight_ih", "bias_hh") if cell else _EXAMPLES
                raise SpecError(
                    f"`source` has the name {prefix + name!r}; expected "
                    f"{', '.join(prefix + example for example in examples)} and the like only",
                    "`prefix` picks one nn.RNN, GRU or LSTM out of a larger module",
                )
            part, layer, backward = match.groups()
            present.add(part)
            num_layers = max(num_layers, int(layer or 0) + 1)
            bidirectional = bidirectional or bool(backward)

        def entry(name: str) -> Array:
            if name not in named:
                directions = "two directions" if bidirectional else "one direction"
                raise SpecError(
                    f"`source` has no {prefix + name!r}; expected it beside the names that are "
                    f"there, which make {num_layers} layer(s) in {directions}"
                )
            return named[name]

        suffixes = _suffixes(num_layers, bidirectional, cell)
        fields = {
            field: tuple(entry(part + suffix) for suffix in suffixes)
            for part, field in _FIELDS.items()
            if part in present
        }
        return RNNWeights(**fields, bidirectional=bidirectional)


def to_pytorch(weights: RNNWeights, *, cell: bool = False) -> dict[str, Array]:
    """Return weights under the names, and in the order, of a torch state dict.

    Parameters
    ----------
    weights : RNNWeights
        Of any array family.
    cell : bool
        Whether the names are those of `RNNCell`, `GRUCell` and `LSTMCell`.

    Returns
    -------
    dict of str to array
        The same arrays, not copies. torch has both biases or none: one that is missing beside
        the other is filled in as zeros, which changes no result.

    Raises
    ------
    DTypeError
        `weights` are not RNNWeights.
    SpecError
        They have what no torch module has: peepholes, or a projection that is not smaller than
        the hidden size. Or they are to be a cell, and have a second layer or direction, or a
        projection.
    """
    with blame("to_pytorch"):
        weights_object(weights)
        check_bool("cell", cell)
        if cell and (len(weights.w_ih) > 1 or weights.w_hr is not None):
            raise SpecError(
                f"`weights` have {weights.num_layers} layer(s), {weights.num_directions} "
                f"direction(s) and {'a' if weights.w_hr else 'no'} projection; a cell has one "
                "layer, one direction and no projection"
            )
        if weights.peephole is not None:
            raise SpecError("`weights.peephole` is given; PyTorch's LSTM has no peepholes")
        if weights.w_hr is not None and weights.w_hr[0].shape[0] >= weights.w_hr[0].shape[1]:
            raise SpecError(
                f"`weights.w_hr[0]` has shape {tuple(weights.w_hr[0].shape)}; PyTorch's LSTM has "
                "(proj_size, hidden_size) with proj_size < hidden_size"
            )
        full = both_biases_or_none(weights)
        suffixes = _suffixes(weights.num_layers, weights.bidirectional, cell)
        return {
            part + suffix: getattr(full, field)[k]
            for k, suffix in enumerate(suffixes)
            for part, field in _FIELDS.items()
            if getattr(full, field) is not None
        }


def _suffixes(num_layers: int, bidirectional: bool, cell: bool) -> list[str]:
    """Return what torch appends to the names of each pseudo-layer: nothing to those of a cell."""
    if cell:
        return [""]
    directions = ("", "_reverse") if bidirectional else ("",)
    return [f"_l{layer}{direction}" for layer in range(num_layers) for direction in directions]
