"""cuDNN: the weight space, one dense buffer without gaps, the same for every algorithm.

Of two layers in both directions, k = layer * 2 + direction, with G gates in rnnop's order
(LSTM i f g o, GRU r z n):

    | w_ih[0] w_hh[0] w_hr[0] | w_ih[1] w_hh[1] w_hr[1] | w_ih[2] ... | w_ih[3] w_hh[3] w_hr[3] |
    | b_ih[0] b_hh[0] | b_ih[1] b_hh[1] | b_ih[2] b_hh[2] | b_ih[3] b_hh[3] |

    w_ih (G*H, I or D*P)    w_hh (G*H, P)    w_hr (P, H)    b_ih, b_hh (G*H,)

cuDNN counts gate by gate: its linear layers 0 to G-1 are the blocks of H rows of w_ih, G to 2*G-1
those of w_hh, and 2*G, of an LSTM, is w_hr. Without a projection there is no w_hr. In the bias
modes NO_BIAS, SINGLE_INP_BIAS, SINGLE_REC_BIAS and DOUBLE_BIAS there are no biases, `b_ih`, `b_hh`,
and both. What is absent takes no room.

The formula reproduces what cudnnGetRNNWeightParams of cuDNN 9.28 answers, row by row.
"""

from __future__ import annotations

from typing import NamedTuple

from ..arrays import Array
from ..errors import SpecError, UnsupportedError, blame
from ..spec import RNNSpec
from ..weights import RNNWeights
from .common import cut, flat_items, flat_size, flat_spec, join, network

MOST_ELEMENTS = 2**31 - 1


class LinearLayer(NamedTuple):
    """One linear layer, as cudnnGetRNNWeightParams counts them.

    Attributes
    ----------
    pseudo_layer : int
        layer * num_directions + direction.
    number : int
        The linLayerID.
    matrix, bias : tuple (offset, shape) or None
        Where each begins, in elements, and its shape, row-major; None where there is none.
    """

    pseudo_layer: int
    number: int
    matrix: tuple[int, tuple[int, int]] | None
    bias: tuple[int, tuple[int]] | None


def weight_space_size(spec: RNNSpec, itemsize: int) -> int:
    """Return the size of the weight space in bytes.

    Parameters
    ----------
    spec : RNNSpec
        The network.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    int
        Counted in Python's integers, which do not overflow.

    Raises
    ------
    SpecError
        cuDNN has no such network: peepholes, or a projection that is not smaller than H.
    UnsupportedError
        It has 2**31 elements or more. cuDNN counts them in 32 bits, of any version so far: from
        there on cudnnGetRNNWeightSpaceSize returns too small or senseless sizes, and no error.

    Examples
    --------
    >>> from rnnop import RNNSpec
    >>> from rnnop.layouts.cudnn import weight_space_size
    >>> weight_space_size(RNNSpec("lstm", input_size=8, hidden_size=16), itemsize=4)
    6656
    """
    _check(spec)
    return flat_size(spec) * itemsize


def linear_layers(spec: RNNSpec) -> list[LinearLayer]:
    """Return every linear layer of the weight space.

    Parameters
    ----------
    spec : RNNSpec
        The network. For CUDNN_SKIP_INPUT, give it the input_size 0.

    Returns
    -------
    list of LinearLayer
        By pseudo-layer, then by number.

    Raises
    ------
    SpecError, UnsupportedError
        As `weight_space_size`.
    """
    _check(spec)
    arrays = {(item.field, item.pseudo_layer): item for item in flat_items(spec)}
    gates, rows = spec.num_gates, spec.hidden_size

    def matrix(field: str, k: int, gate: int) -> tuple[int, tuple[int, int]] | None:
        _, _, offset, (_, columns) = arrays[field, k]
        return (offset + gate * rows * columns, (rows, columns)) if columns else None

    def bias(field: str, k: int, gate: int) -> tuple[int, tuple[int]] | None:
        item = arrays.get((field, k))
        return None if item is None else (item.offset + gate * rows, (rows,))

    found = []
    for k in range(spec.num_pseudo_layers):
        for first, w, b in ((0, "w_ih", "b_ih"), (gates, "w_hh", "b_hh")):
            found += [
                LinearLayer(k, first + gate, matrix(w, k, gate), bias(b, k, gate))
                for gate in range(gates)
            ]
        if spec.proj_size is not None:
            projection = arrays["w_hr", k]
            shape = (spec.proj_size, spec.hidden_size)
            found.append(LinearLayer(k, 2 * gates, (projection.offset, shape), None))
    return found


def from_cudnn(
    space: Array,
    *,
    mode: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    proj_size: int | None = None,
    bias: str = "double",
) -> RNNWeights:
    """Return the weights that lie in a cuDNN weight space.

    Parameters
    ----------
    space : array (n,)
        The weight space, or the gradients of one, as a vector of its own dtype.
    mode : {'rnn_relu', 'rnn_tanh', 'gru', 'lstm'}
        The cell.
    input_size, hidden_size, num_layers : int
        I, H and L.
    bidirectional : bool
        Whether every layer has two directions.
    proj_size : int, optional
        P of an LSTM with a projection, below H.
    bias : {'double', 'input', 'recurrent', 'none'}
        cuDNN's bias mode: both biases, `b_ih` only, `b_hh` only, or none.

    Returns
    -------
    RNNWeights
        Views of `space`, where its family has views.

    Raises
    ------
    ShapeError
        `space` has another number of elements.
    DTypeError
        It is no array of floats.
    SpecError
        An option is none of those above.
    UnsupportedError
        The weight space has 2**31 elements or more, which cuDNN counts wrongly.
    """
    with blame("from_cudnn"):
        spec = flat_spec(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bidirectional=bidirectional,
            proj_size=proj_size,
            bias=bias,
        )
        _check(spec)
        return cut("space", space, spec)


def to_cudnn(weights: RNNWeights, *, mode: str) -> Array:
    """Return weights as a cuDNN weight space.

    Parameters
    ----------
    weights : RNNWeights
        Of any array family.
    mode : {'rnn_relu', 'rnn_tanh', 'gru', 'lstm'}
        The cell.

    Returns
    -------
    array (n,)
        Fresh. Its bias mode is that of `weights`: both biases, one, or none.

    Raises
    ------
    ShapeError
        The shapes do not fit the mode or one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        The mode is unknown, or there is what cuDNN does not have: peepholes, or a projection that
        is not smaller than H.
    UnsupportedError
        The weight space has 2**31 elements or more, which cuDNN counts wrongly.
    """
    with blame("to_cudnn"):
        checked, spec = network(weights, mode, "cuDNN", "peephole")
        _check(spec)
        return join(checked, spec)


def _check(spec: RNNSpec) -> None:
    with blame(spec=spec):
        if spec.peephole:
            raise SpecError("`weights.peephole` is given; cuDNN has no peepholes")
        if spec.proj_size is not None and spec.proj_size >= spec.hidden_size:
            raise SpecError(
                f"`proj_size` is {spec.proj_size} and hidden_size is {spec.hidden_size}; "
                "cuDNN has proj_size < hidden_size"
            )
        elements = flat_size(spec)
        if elements > MOST_ELEMENTS:
            raise UnsupportedError(
                f"`weights` have {elements:,} elements; expected fewer than 2**31 = "
                f"{MOST_ELEMENTS + 1:,}, because cuDNN counts them in 32 bits and is wrong beyond",
                "Use fewer layers or a smaller hidden_size",
            )
