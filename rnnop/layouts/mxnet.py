"""MXNet: the flat vector `parameters` of the operator RNN (`mx.nd.RNN`, `mx.npx.rnn`).

All weights, then all biases. Of two layers in both directions (l and r, k = 0 to 3), with G gates
in rnnop's order (LSTM i f g o, GRU r z n):

    | l0: i2h h2h h2r | r0: i2h h2h h2r | l1: i2h h2h h2r | r1: i2h h2h h2r |    weights
    | l0: i2h h2h     | r0: i2h h2h     | l1: i2h h2h     | r1: i2h h2h     |    biases

    i2h_weight (G*H, I or D*P)  w_ih[k]        i2h_bias (G*H,)  b_ih[k]
    h2h_weight (G*H, P)         w_hh[k]        h2h_bias (G*H,)  b_hh[k]
    h2r_weight (P, H)           w_hr[k], of an LSTM with projection_size

There are always two biases.
"""

from __future__ import annotations

from ..arrays import Array
from ..errors import blame
from ..spec import RNNSpec
from ..weights import RNNWeights
from .common import both_biases, cut, flat_spec, join, network


def from_mxnet(
    parameters: Array,
    *,
    mode: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    proj_size: int | None = None,
) -> RNNWeights:
    """Return the weights of MXNet's operator RNN.

    Parameters
    ----------
    parameters : array (n,)
        The flat vector, or its gradient, of any array family.
    mode : {'rnn_relu', 'rnn_tanh', 'gru', 'lstm'}
        The operator's `mode`.
    input_size, hidden_size, num_layers : int
        I, H (MXNet's `state_size`) and L.
    bidirectional : bool
        Whether every layer has two directions.
    proj_size : int, optional
        P of an LSTM, MXNet's `projection_size`.

    Returns
    -------
    RNNWeights
        Views of `parameters`, where its family has views.

    Raises
    ------
    ShapeError
        `parameters` has another number of elements than n = G*H*D*(I+P+2) +
        (L-1)*G*H*D*(D*P+P+2), and L*D*P*H more with a projection.
    DTypeError
        It is no array of floats.
    SpecError
        An option is none of those above.
    """
    with blame("from_mxnet"):
        spec = flat_spec(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bidirectional=bidirectional,
            proj_size=proj_size,
        )
        return cut("parameters", parameters, spec)


def to_mxnet(weights: RNNWeights, *, mode: str) -> Array:
    """Return weights as the flat vector of MXNet's operator RNN.

    Parameters
    ----------
    weights : RNNWeights
        Of any array family.
    mode : {'rnn_relu', 'rnn_tanh', 'gru', 'lstm'}
        The operator's `mode`.

    Returns
    -------
    array (n,)
        Fresh. MXNet always has both biases: what is missing is filled in as zeros, which changes
        no result.

    Raises
    ------
    ShapeError
        The shapes do not fit the mode or one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        The mode is unknown, or there are peepholes, which MXNet does not have.
    """
    with blame("to_mxnet"):
        checked, _ = network(weights, mode, "MXNet", "peephole")
        full = both_biases(checked)
        return join(full, RNNSpec.of(full, mode=mode))
