"""ONNX: the inputs W, R, B and P of the operators RNN, GRU and LSTM.

One operator is one layer of D directions, forward first. Blocks of H rows, one for each gate:

    W (D, G*H, I), R (D, G*H, H)       ONNX  rnnop      ONNX  rnnop      ONNX  rnnop
                                  LSTM  i      i    GRU   z      r    RNN   i      i
                                        o      f          r      z
                                        f      g          h      n
                                        c      o
    B (D, 2*G*H)   [ W's bias, gates as above | R's bias ]       b_ih, b_hh
    P (D, 3*H)     [ i | o | f ]                                 peephole, rows i, f, o

What ONNX calls c in an LSTM and h in a GRU are g and n here. `linear_before_reset` is a GRU's
`reset_after` and leaves the layout alone.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import validate
from ..arrays import Array
from ..errors import ShapeError, SpecError, blame
from ..spec import NUM_GATES, check_mode
from ..weights import RNNWeights
from .common import GATES, PEEPHOLES, both_biases_or_none, namespace, network, reorder

# ONNX's order of the gates and peepholes, in rnnop's letters.
_GATES = {"rnn_relu": "i", "rnn_tanh": "i", "gru": "zrn", "lstm": "iofg"}
_PEEPHOLES = "iof"


class ONNXWeights(NamedTuple):
    """The weights of one ONNX operator.

    Attributes
    ----------
    W : array (D, G*H, I)
        Input weights.
    R : array (D, G*H, H)
        Recurrent weights.
    B : array (D, 2*G*H) or None
        Biases, those of W first.
    P : array (D, 3*H) or None
        Peepholes of an LSTM.
    """

    W: Array
    R: Array
    B: Array | None
    P: Array | None


def from_onnx(
    W: Array, R: Array, B: Array | None = None, P: Array | None = None, *, mode: str
) -> RNNWeights:
    """Return the weights of an ONNX operator RNN, GRU or LSTM.

    Parameters
    ----------
    W : array (D, G*H, I)
        Input weights, of any array family.
    R : array (D, G*H, H)
        Recurrent weights.
    B : array (D, 2*G*H), optional
        Biases.
    P : array (D, 3*H), optional
        Peepholes of an LSTM.
    mode : {'gru', 'lstm', 'rnn_tanh', 'rnn_relu'}
        Which operator it is; the two plain RNNs have the same layout.

    Returns
    -------
    RNNWeights
        One layer, bidirectional if D is 2, in fresh arrays of the same dtype.

    Raises
    ------
    ShapeError
        The shapes do not fit the mode or one another.
    DTypeError
        An input is no array of floats, or they differ in dtype, family or device.
    SpecError
        The mode is unknown, or `P` is given and it is not 'lstm'.

    Notes
    -----
    The rest of the operator is said in the call: ``direction="reverse"`` is `reverse`,
    `linear_before_reset` is `reset_after`, `clip` is `gate_clip`, `sequence_lens` is `lengths`.
    """
    with blame("from_onnx"):
        check_mode(mode)
        if P is not None and mode != "lstm":
            raise SpecError(f"`P` is given with mode {mode!r}; only mode 'lstm' has peepholes")
        shape = tuple(int(size) for size in validate.data_array("W", W).shape)
        num_gates = NUM_GATES[mode]
        if len(shape) != 3 or shape[0] not in (1, 2) or 0 in shape or shape[1] % num_gates:
            raise ShapeError(
                f"`W` has shape {shape}; expected (num_directions, num_gates * hidden_size, "
                f"input_size) with 1 or 2 directions and {num_gates} gates in mode {mode!r}"
            )
        num_directions, rows, _ = shape
        hidden_size = rows // num_gates
        for name, given, axes, sizes in (
            ("R", R, "num_gates * hidden_size, hidden_size", (rows, hidden_size)),
            ("B", B, "2 * num_gates * hidden_size", (2 * rows,)),
            ("P", P, "3 * hidden_size", (3 * hidden_size,)),
        ):
            if given is not None or name == "R":
                expected = (num_directions, *sizes)
                validate.shaped_like(name, given, expected, f"(num_directions, {axes})", W, "W")

        def gates(array: Array) -> Array:
            return reorder(array, _GATES[mode], GATES[mode])

        def peephole(array: Array) -> Array:
            return reorder(array.reshape((3, hidden_size)), _PEEPHOLES, PEEPHOLES)

        directions = range(num_directions)
        return RNNWeights(
            w_ih=tuple(gates(W[d]) for d in directions),
            w_hh=tuple(gates(R[d]) for d in directions),
            b_ih=None if B is None else tuple(gates(B[d, :rows]) for d in directions),
            b_hh=None if B is None else tuple(gates(B[d, rows:]) for d in directions),
            peephole=None if P is None else tuple(peephole(P[d]) for d in directions),
            bidirectional=num_directions == 2,
        )


def to_onnx(weights: RNNWeights, *, mode: str) -> ONNXWeights:
    """Return weights as the inputs of an ONNX operator RNN, GRU or LSTM.

    Parameters
    ----------
    weights : RNNWeights
        One layer without projection, of any array family.
    mode : {'gru', 'lstm', 'rnn_tanh', 'rnn_relu'}
        Which cell it is.

    Returns
    -------
    ONNXWeights
        (W, R, B, P) in fresh arrays. ONNX has both biases or none: one that is missing beside the
        other is filled in as zeros, which changes no result.

    Raises
    ------
    ShapeError
        The shapes do not fit the mode or one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        The mode is unknown, or there is what no ONNX operator has: a second layer, a projection.
    """
    with blame("to_onnx"):
        checked, _ = network(weights, mode, "an ONNX operator", "layers", "projection")
        full = both_biases_or_none(checked)
        xp = namespace(full.w_ih[0])

        def gates(array: Array) -> Array:
            return reorder(array, GATES[mode], _GATES[mode])

        def peephole(array: Array) -> Array:
            return reorder(array, PEEPHOLES, _PEEPHOLES).reshape(-1)

        W, R = (xp.stack([gates(w) for w in each]) for each in (full.w_ih, full.w_hh))
        B = P = None
        if full.b_ih is not None and full.b_hh is not None:
            pairs = zip(full.b_ih, full.b_hh, strict=True)
            B = xp.stack([xp.concat([gates(b_ih), gates(b_hh)]) for b_ih, b_hh in pairs])
        if full.peephole is not None:
            P = xp.stack([peephole(p) for p in full.peephole])
        return ONNXWeights(W, R, B, P)
