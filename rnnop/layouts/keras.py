"""Keras: `layer.get_weights()` of `SimpleRNN`, `GRU`, `LSTM` and `Bidirectional`.

A layer is one layer. Gates are blocks of H columns, and every matrix is transposed:

    kernel           (I, G*H)   w_ih, transposed           Keras  rnnop       Keras  rnnop
    recurrent_kernel (H, G*H)   w_hh, transposed     LSTM  i      i      GRU  z      r
    bias             (G*H,)     b_ih                       f      f           r      z
    bias of a GRU    (2, G*H)   b_ih in the first row,     c      g           h      n
    with reset_after            b_hh in the second         o      o

    get_weights() of a layer          [ kernel, recurrent_kernel, bias ], or without the bias
                  of Bidirectional    [ the forward layer's three | the backward layer's ]

What Keras calls c in an LSTM and h in a GRU are g and n here.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import validate
from ..arrays import Array
from ..errors import DTypeError, ShapeError, blame
from ..spec import NUM_GATES, check_bool, check_mode
from ..weights import RNNWeights
from .common import (
    GATES,
    axes,
    both_biases_or_none,
    namespace,
    network,
    reorder,
    single_bias,
    transpose,
)

# Keras's order of the gates, in rnnop's letters.
_GATES = {"rnn_relu": "i", "rnn_tanh": "i", "gru": "zrn", "lstm": "ifgo"}


def from_keras(arrays: Sequence[Array], *, mode: str) -> RNNWeights:
    """Return the weights of a Keras layer.

    Parameters
    ----------
    arrays : sequence of array
        As `layer.get_weights()` gives them, of any array family: kernel, recurrent kernel and, if
        the layer has one, bias; of `Bidirectional` those of the forward layer and then those of
        the backward layer.
    mode : {'gru', 'lstm', 'rnn_tanh', 'rnn_relu'}
        Which layer it is: `GRU`, `LSTM`, or `SimpleRNN` with its activation.

    Returns
    -------
    RNNWeights
        One layer, in fresh arrays of the same dtype. A bias of one row is `b_ih`, one of two rows
        is `b_ih` and `b_hh`.

    Raises
    ------
    ShapeError
        The number of arrays, or a shape, does not fit the mode.
    DTypeError
        An entry is no array of floats, or they differ in dtype, family or device.
    SpecError
        The mode is unknown.

    Notes
    -----
    A GRU is told how it resets in the call, not here: a bias of two rows belongs to
    ``reset_after=True``, and one of a single row to ``reset_after=False``.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> arrays = [np.zeros((3, 12)), np.zeros((4, 12)), np.zeros((2, 12))]
    >>> rnnop.layouts.from_keras(arrays, mode="gru")
    RNNWeights(1 layer, float64, 108 parameters)
      w_ih[0]      (12, 3)
      w_hh[0]      (12, 4)
      b_ih[0]      (12,)
      b_hh[0]      (12,)
    """
    with blame("from_keras"):
        check_mode(mode)
        if not isinstance(arrays, Sequence):
            raise DTypeError(
                f"`arrays` is {type(arrays).__name__}; expected a list, as get_weights() gives it"
            )
        if len(arrays) not in (2, 3, 4, 6):
            raise ShapeError(
                f"`arrays` has {len(arrays)} entries; expected 2 or 3 (kernel, recurrent_kernel, "
                "bias) of a layer, or twice as many of Bidirectional"
            )
        each = len(arrays) if len(arrays) < 4 else len(arrays) // 2
        _check_shapes(arrays, each, mode)
        fields: dict[str, list[Array]] = {}
        for first in range(0, len(arrays), each):
            kernel, recurrent, *bias = arrays[first : first + each]
            fields.setdefault("w_ih", []).append(_from_columns(kernel, mode))
            fields.setdefault("w_hh", []).append(_from_columns(recurrent, mode))
            for given in bias:
                rows = [given] if given.ndim == 1 else [given[0], given[1]]
                for name, row in zip(("b_ih", "b_hh"), rows, strict=False):
                    fields.setdefault(name, []).append(_from_columns(row, mode))
        return RNNWeights.of_fields(fields, bidirectional=len(arrays) > each)


def to_keras(weights: RNNWeights, *, mode: str, reset_after: bool = True) -> list[Array]:
    """Return weights as `layer.set_weights` takes them.

    Parameters
    ----------
    weights : RNNWeights
        One layer without projection or peepholes, of any array family.
    mode : {'gru', 'lstm', 'rnn_tanh', 'rnn_relu'}
        Which cell it is.
    reset_after : bool
        As the `GRU` layer has it; no matter elsewhere.

    Returns
    -------
    list of array
        Fresh arrays. A GRU with `reset_after` has both biases or none: one that is missing is
        filled in as zeros, which changes no result. Elsewhere either bias can be the single one.

    Raises
    ------
    ShapeError
        The shapes do not fit the mode or one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        The mode is unknown, or there is what no Keras layer has: a second layer, a projection,
        peepholes; or both biases, of anything but a GRU with `reset_after`.
    """
    with blame("to_keras"):
        check_bool("reset_after", reset_after)
        checked, spec = network(weights, mode, "a Keras layer", "layers", "projection", "peephole")
        xp = namespace(checked.w_ih[0])
        if mode == "gru" and reset_after:
            checked = both_biases_or_none(checked)
        else:
            with blame(spec=spec):
                single = single_bias("this Keras layer", checked)
        made = []
        for k in range(spec.num_pseudo_layers):
            made += [_to_columns(checked.w_ih[k], mode), _to_columns(checked.w_hh[k], mode)]
            if mode == "gru" and reset_after:
                if checked.b_ih is not None and checked.b_hh is not None:
                    pair = (checked.b_ih[k], checked.b_hh[k])
                    made.append(xp.stack([_to_columns(bias, mode) for bias in pair]))
            elif single is not None:
                made.append(_to_columns(single[k], mode))
        return made


def _from_columns(array: Array, mode: str) -> Array:
    rows = transpose(array) if array.ndim == 2 else array
    return reorder(rows, _GATES[mode], GATES[mode])


def _to_columns(array: Array, mode: str) -> Array:
    rows = reorder(array, GATES[mode], _GATES[mode])
    return transpose(rows) if rows.ndim == 2 else rows


def _check_shapes(arrays: Sequence[Array], each: int, mode: str) -> None:
    """Refuse arrays of which one has not the shape that follows from the first two."""
    rows, columns = axes(
        "arrays[0]", arrays[0], 2, "a kernel (input_size, num_gates * hidden_size)"
    )
    hidden_size, left = divmod(columns, NUM_GATES[mode])
    if left:
        raise ShapeError(
            f"`arrays[0]` has shape {(rows, columns)}; expected (input_size, num_gates * "
            f"hidden_size) with {NUM_GATES[mode]} gates in mode {mode!r}"
        )
    for k, array in enumerate(arrays):
        name, shape, words = (
            ("kernel", (rows, columns), "(input_size, num_gates * hidden_size)"),
            ("recurrent_kernel", (hidden_size, columns), "(hidden_size, num_gates * hidden_size)"),
            ("bias", (columns,), "(num_gates * hidden_size,)"),
        )[k % each]
        if name == "bias" and mode == "gru" and getattr(arrays[each - 1], "ndim", 1) == 2:
            shape, words = (2, columns), "(2, num_gates * hidden_size)"
        validate.shaped_like(
            f"arrays[{k}]", array, shape, f"{name} {words}", arrays[0], "arrays[0]"
        )
