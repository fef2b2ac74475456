"""JAX: the flat vector `weights` of the LSTM of `jax.experimental.rnn`.

It is cuDNN's. Of two layers in both directions, k = layer * 2 + direction, gates i f g o:

    | W_ih[0] W_hh[0] | W_ih[1] W_hh[1] | W_ih[2] W_hh[2] | W_ih[3] W_hh[3] |
    | b_ih[0] b_hh[0] | b_ih[1] b_hh[1] | b_ih[2] b_hh[2] | b_ih[3] b_hh[3] |

    W_ih (4*H, I or D*H)    W_hh (4*H, H)    b_ih, b_hh (4*H,)

There are always two biases, and never a projection.
"""

from __future__ import annotations

from ..arrays import Array
from ..errors import blame
from ..spec import RNNSpec
from ..weights import RNNWeights
from .common import both_biases, cut, flat_spec, join, network


def from_jax(
    weights: Array,
    *,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
) -> RNNWeights:
    """Return the weights of an LSTM of `jax.experimental.rnn`.

    Parameters
    ----------
    weights : array (n,)
        As `jax.experimental.rnn.init_lstm_weight` makes it, or its gradient, of any array family.
    input_size, hidden_size, num_layers : int
        I, H and L.
    bidirectional : bool
        Whether every layer has two directions.

    Returns
    -------
    RNNWeights
        Of mode 'lstm', with parts of `weights`. It can be differentiated and jitted.

    Raises
    ------
    ShapeError
        `weights` has another number of elements than
        `jax.experimental.rnn.get_num_params_in_lstm` says.
    DTypeError
        It is no array of floats.
    SpecError
        A size is no whole number from 1 on, or `bidirectional` is not True or False.
    """
    with blame("from_jax"):
        spec = flat_spec(
            mode="lstm",
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bidirectional=bidirectional,
        )
        return cut("weights", weights, spec)


def to_jax(weights: RNNWeights) -> Array:
    """Return an LSTM as the flat vector of `jax.experimental.rnn`.

    Parameters
    ----------
    weights : RNNWeights
        Of an LSTM, of any array family.

    Returns
    -------
    array (n,)
        Fresh, of the same family. What is missing of the two biases is filled in as zeros, which
        changes no result.

    Raises
    ------
    ShapeError
        The shapes are not those of an LSTM, or do not fit one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        There is what that LSTM does not have: a projection, peepholes.
    """
    with blame("to_jax"):
        owner = "jax.experimental.rnn"
        checked, _ = network(weights, "lstm", owner, "projection", "peephole")
        full = both_biases(checked)
        return join(full, RNNSpec.of(full, mode="lstm"))
