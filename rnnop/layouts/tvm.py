"""TVM: the arguments of `tvm.topi.nn.lstm`.

One LSTM in one direction. The gates stand in any order, which `weight_layout` tells: a permutation
of IFGO, such as IOFG.

    Wi   (4*H, I)    w_ih, gates as weight_layout        p_i  (B, H)    peephole[0]
    Wh   (4*H, P)    w_hh                                p_f  (B, H)    peephole[1]
    Bi   (4*H,)      b_ih                                p_o  (B, H)    peephole[2]
    Bh   (4*H,)      b_hh
    proj (P, H)      w_hr                                the same row for each of the batch

Each of the last six may be absent.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import validate
from ..arrays import Array
from ..errors import ShapeError, SpecError, blame
from ..weights import RNNWeights
from .common import GATES, axes, namespace, network, reorder


class TVMWeights(NamedTuple):
    """The weights among the arguments of `tvm.topi.nn.lstm`, under its names for them.

    Attributes
    ----------
    Wi : array (4*H, I)
        Input weights.
    Wh : array (4*H, P)
        Recurrent weights; P is H without a projection.
    Bi, Bh : array (4*H,) or None
        Biases.
    proj : array (P, H) or None
        Projection.
    p_i, p_f, p_o : array (B, H) or None
        Peepholes, the same row for each of the batch.
    """

    Wi: Array
    Wh: Array
    Bi: Array | None = None
    Bh: Array | None = None
    proj: Array | None = None
    p_i: Array | None = None
    p_f: Array | None = None
    p_o: Array | None = None


def from_tvm(
    Wi: Array,
    Wh: Array,
    Bi: Array | None = None,
    Bh: Array | None = None,
    proj: Array | None = None,
    p_i: Array | None = None,
    p_f: Array | None = None,
    p_o: Array | None = None,
    *,
    weight_layout: str = "IFGO",
) -> RNNWeights:
    """Return the weights of `tvm.topi.nn.lstm`.

    Parameters
    ----------
    Wi : array (4*H, I)
        Input weights, of any array family.
    Wh : array (4*H, P)
        Recurrent weights; P is H without a projection.
    Bi, Bh : array (4*H,), optional
        Biases.
    proj : array (P, H), optional
        Projection.
    p_i, p_f, p_o : array (B, H), optional
        Peepholes. Of the first two both or none: TVM drops one that is alone.
    weight_layout : str
        The order of the gates, a permutation of IFGO.

    Returns
    -------
    RNNWeights
        One layer of mode 'lstm', in fresh arrays. A peephole that is absent beside others is zeros.

    Raises
    ------
    ShapeError
        The shapes do not fit one another, or the rows of a peephole differ: here a peephole is a
        weight and no matter of the batch.
    DTypeError
        An input is no array of floats, or they differ in dtype, family or device.
    SpecError
        `weight_layout` is no permutation of IFGO, or only one of `p_i` and `p_f` is given.

    Notes
    -----
    TVM lists the outputs of ``reverse=True`` in the order in which it took the steps. rnnop lists
    them in the order of the input.
    """
    with blame("from_tvm"):
        order = _order(weight_layout)
        rows, _ = axes("Wi", Wi, 2, "(4 * hidden_size, input_size)")
        if rows % 4:
            raise ShapeError(f"`Wi` has {rows} rows; expected 4 * hidden_size")
        size = rows // 4
        _, output_size = axes("Wh", Wh, 2, "(4 * hidden_size, hidden_size or proj_size)")
        if proj is None:
            output_size = size
        for name, given, words, shape in (
            ("Wh", Wh, "(4 * hidden_size, hidden_size or proj_size)", (rows, output_size)),
            ("Bi", Bi, "(4 * hidden_size,)", (rows,)),
            ("Bh", Bh, "(4 * hidden_size,)", (rows,)),
            ("proj", proj, "(proj_size, hidden_size)", (output_size, size)),
        ):
            if given is not None:
                validate.shaped_like(name, given, shape, words, Wi, "Wi")

        def gates(array: Array | None) -> tuple[Array] | None:
            return None if array is None else (reorder(array, order, GATES["lstm"]),)

        xp = namespace(Wi)
        return RNNWeights(
            w_ih=(reorder(Wi, order, GATES["lstm"]),),
            w_hh=(reorder(Wh, order, GATES["lstm"]),),
            b_ih=gates(Bi),
            b_hh=gates(Bh),
            w_hr=None if proj is None else (xp.concat([proj]),),
            peephole=_peephole({"p_i": p_i, "p_f": p_f, "p_o": p_o}, Wi, size),
        )


def to_tvm(weights: RNNWeights, *, weight_layout: str = "IFGO", batch_size: int = 1) -> TVMWeights:
    """Return weights as arguments of `tvm.topi.nn.lstm`.

    Parameters
    ----------
    weights : RNNWeights
        One layer of an LSTM in one direction, of any array family.
    weight_layout : str
        The order of the gates, a permutation of IFGO.
    batch_size : int
        B, for how many rows the peepholes are repeated.

    Returns
    -------
    TVMWeights
        Fresh arrays.

    Raises
    ------
    ShapeError
        The shapes are not those of an LSTM, or do not fit one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        `weight_layout` is no permutation of IFGO, `batch_size` is no whole number from 1 on, or
        there is what TVM's LSTM does not have: a second layer or direction.
    """
    with blame("to_tvm"):
        order = _order(weight_layout)
        validate.size("batch_size", batch_size)
        checked, _ = network(weights, "lstm", "TVM's LSTM", "layers", "directions")
        xp = namespace(checked.w_ih[0])

        def gates(field: tuple[Array, ...] | None) -> Array | None:
            return None if field is None else reorder(field[0], GATES["lstm"], order)

        peepholes: list[Array | None] = [None] * 3
        if checked.peephole is not None:
            peepholes = [xp.stack([row] * int(batch_size)) for row in checked.peephole[0]]
        return TVMWeights(
            gates(checked.w_ih),
            gates(checked.w_hh),
            gates(checked.b_ih),
            gates(checked.b_hh),
            None if checked.w_hr is None else xp.concat([checked.w_hr[0]]),
            *peepholes,
        )


def _order(weight_layout: object) -> str:
    if not isinstance(weight_layout, str) or sorted(weight_layout) != sorted("IFGO"):
        raise SpecError(f"`weight_layout` is {weight_layout!r}; expected a permutation of IFGO")
    return weight_layout.lower()


def _peephole(given: dict[str, Array | None], like: Array, size: int) -> tuple[Array] | None:
    """Return the peepholes as one array (3, H), or None if there is none."""
    if (given["p_i"] is None) != (given["p_f"] is None):
        raise SpecError(
            "one of `p_i` and `p_f` is given without the other; expected both or none",
            "TVM takes no notice of one alone; for a peephole that is absent give zeros",
        )
    if all(array is None for array in given.values()):
        return None
    xp = namespace(like)
    rows = []
    for name, array in given.items():
        if array is None:
            rows.append(xp.zeros_like(like[:size, 0]))
            continue
        batch_size = axes(name, array, 2, "(batch_size, hidden_size)")[0]
        words, shape = "(batch_size, hidden_size)", (batch_size, size)
        validate.shaped_like(name, array, shape, words, like, "Wi")
        if bool(xp.any(array != array[:1])):
            raise ShapeError(
                f"`{name}` has {batch_size} rows that differ; expected the same row for each of "
                "the batch, as a peephole is a weight here"
            )
        rows.append(array[0])
    return (xp.stack(rows),)
