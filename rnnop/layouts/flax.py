"""Flax: the parameters of the cells of `flax.linen` and `flax.nnx`.

A cell is one direction of one layer. Under each key lies a `kernel`, transposed, (in, H) of one
gate or (in, G*H) of all, and under some a `bias` too:

    cell                                         input (I, .)     recurrent (H, .)   bias under
    linen.LSTMCell, linen.OptimizedLSTMCell      ii if  ig io     hi hf hg ho        hi hf hg ho
    linen.GRUCell                                ir iz  in        hr hz hn           ir iz in, hn
    linen.SimpleCell                             i                h                  i
    nnx.LSTMCell                                 ii if_ ig io     hi hf hg ho        hi hf hg ho
    nnx.OptimizedLSTMCell, gates i f g o         dense_i          dense_h            dense_h
    nnx.GRUCell, gates r z n                     dense_i          dense_h            dense_i
    nnx.SimpleCell                               dense_i          dense_h            dense_i

The letters are rnnop's own. What lies under input is w_ih and b_ih, the rest w_hh and b_hh. Of the
b_hh of a GRU linen has the part n alone, and nnx has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import validate
from ..arrays import Array
from ..errors import ShapeError, SpecError, blame
from ..spec import NUM_GATES, RNNSpec, check_bool
from ..weights import RNNWeights
from .common import axes, both_biases, entries, namespace, network, single_bias, transpose


class _Cell(NamedTuple):
    """Under which keys a cell keeps the gates of its input, of its state, and its biases."""

    mode: str
    inputs: tuple[str, ...]
    recurrent: tuple[str, ...]
    biased: tuple[str, ...]


_H_GATES = ("hi", "hf", "hg", "ho")
_LINEN_LSTM = _Cell("lstm", ("ii", "if", "ig", "io"), _H_GATES, _H_GATES)
_CELLS = {
    "linen.LSTMCell": _LINEN_LSTM,
    "linen.OptimizedLSTMCell": _LINEN_LSTM,
    "linen.GRUCell": _Cell("gru", ("ir", "iz", "in"), ("hr", "hz", "hn"), ("ir", "iz", "in", "hn")),
    "linen.SimpleCell": _Cell("rnn_tanh", ("i",), ("h",), ("i",)),
    "nnx.LSTMCell": _Cell("lstm", ("ii", "if_", "ig", "io"), _H_GATES, _H_GATES),
    "nnx.OptimizedLSTMCell": _Cell("lstm", ("dense_i",), ("dense_h",), ("dense_h",)),
    "nnx.GRUCell": _Cell("gru", ("dense_i",), ("dense_h",), ("dense_i",)),
    "nnx.SimpleCell": _Cell("rnn_tanh", ("dense_i",), ("dense_h",), ("dense_i",)),
}


def from_flax(
    forward: Mapping[str, Mapping[str, Array]],
    backward: Mapping[str, Mapping[str, Array]] | None = None,
    *,
    cell: str,
) -> RNNWeights:
    """Return the weights of one Flax cell, or of the two cells of a bidirectional layer.

    Parameters
    ----------
    forward : mapping of str to mapping of str to array
        The cell's own parameters: ``variables["params"]`` of a linen cell, of its `nn.RNN`
        ``variables["params"]["cell"]``; ``nnx.to_pure_dict(nnx.state(cell, nnx.Param))`` of an nnx
        cell. Of any array family.
    backward : mapping, optional
        The parameters of the backward cell.
    cell : str
        Which cell it is: 'linen.LSTMCell', 'linen.OptimizedLSTMCell', 'linen.GRUCell',
        'linen.SimpleCell', 'nnx.LSTMCell', 'nnx.OptimizedLSTMCell', 'nnx.GRUCell' or
        'nnx.SimpleCell'.

    Returns
    -------
    RNNWeights
        One layer, in fresh arrays. A bias that the cell does not have is None, or zeros beside the
        part that it has.

    Raises
    ------
    SpecError
        `cell` is none of those, or a key is missing or not the cell's.
    DTypeError
        An entry is no mapping, or no array of floats, or they differ in dtype, family or device.
    ShapeError
        The shapes do not fit one another.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> params = {"i": {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)},
    ...           "h": {"kernel": np.zeros((4, 4))}}
    >>> rnnop.layouts.from_flax(params, cell="linen.SimpleCell")
    RNNWeights(1 layer, float64, 32 parameters)
      w_ih[0]      (4, 3)
      w_hh[0]      (4, 4)
      b_ih[0]      (4,)
    """
    with blame("from_flax"):
        keys = _cell(cell)
        given = {"forward": forward} | ({} if backward is None else {"backward": backward})
        _check_arrays(given, keys)
        fields: dict[str, list[Array]] = {}
        for params in given.values():
            for side, w, b in ((keys.inputs, "w_ih", "b_ih"), (keys.recurrent, "w_hh", "b_hh")):
                kernels = [params[key]["kernel"] for key in side]
                xp = namespace(kernels[0])
                fields.setdefault(w, []).append(xp.concat([transpose(k) for k in kernels]))
                if set(side) & set(keys.biased):
                    biases = [
                        params[key]["bias"] if key in keys.biased else xp.zeros_like(kernel[0])
                        for key, kernel in zip(side, kernels, strict=True)
                    ]
                    fields.setdefault(b, []).append(xp.concat(biases))
        return RNNWeights.of_fields(fields, bidirectional=backward is not None)


def to_flax(
    weights: RNNWeights, *, cell: str, gradients: bool = False
) -> tuple[dict[str, dict[str, Array]], ...]:
    """Return weights as the parameters of Flax cells.

    Parameters
    ----------
    weights : RNNWeights
        One layer without projection or peepholes, of any array family.
    cell : str
        Which cell it is to be, named as in `from_flax`.
    gradients : bool
        Whether `weights` are gradients. Those of biases that the cell does not have are then left
        out. Otherwise such biases must be 0, and they are looked at, which `jax.jit` forbids.

    Returns
    -------
    tuple of dict
        The parameters of one cell for each direction, in fresh arrays. Flax always has a bias:
        one that is missing is filled in as zeros, which changes no result.

    Raises
    ------
    ShapeError
        The shapes do not fit the cell or one another.
    DTypeError
        `weights` are not RNNWeights, or the arrays differ in dtype, family or device.
    SpecError
        `cell` is unknown, or there is what the cell does not have: a second layer, a projection,
        peepholes; both biases, of an LSTM or a plain RNN; the part of `b_hh` that a GRU lacks.
    """
    with blame("to_flax"):
        keys = _cell(cell)
        check_bool("gradients", gradients)
        checked, spec = network(weights, keys.mode, cell, "layers", "projection", "peephole")
        with blame(spec=spec):
            if keys.mode == "gru":
                if not gradients:
                    _check_left_out(checked, keys, cell)
                full = both_biases(checked)
                biases = (full.b_ih or (), full.b_hh or ())
            else:
                single = single_bias(cell, checked) or both_biases(checked).b_ih or ()
                biases = (single, single)
        xp = namespace(checked.w_ih[0])
        directions = []
        for k in range(spec.num_pseudo_layers):
            params: dict[str, dict[str, Array]] = {}
            for side, array, bias in (
                (keys.inputs, checked.w_ih[k], biases[0][k]),
                (keys.recurrent, checked.w_hh[k], biases[1][k]),
            ):
                for key, rows in _parts(side, spec):
                    params[key] = {"kernel": xp.concat([transpose(array[rows])])}
                    if key in keys.biased:
                        params[key]["bias"] = xp.concat([bias[rows]])
            directions.append(params)
        return tuple(directions)


def _cell(name: object) -> _Cell:
    if not isinstance(name, str) or name not in _CELLS:
        raise SpecError(f"`cell` is {name!r}; expected one of {', '.join(_CELLS)}")
    return _CELLS[name]


def _parts(side: tuple[str, ...], spec: RNNSpec) -> list[tuple[str, slice]]:
    """Return each key of a side with the rows of the gates that lie under it."""
    size = spec.num_gates * spec.hidden_size // len(side)
    return [(key, slice(k * size, (k + 1) * size)) for k, key in enumerate(side)]


def _check_left_out(weights: RNNWeights, keys: _Cell, cell: str) -> None:
    """Refuse a part of b_hh that is not zero and for which the cell has no room."""
    spec = RNNSpec.of(weights, mode=keys.mode)
    for k, bias in enumerate(weights.b_hh or ()):
        for key, rows in _parts(keys.recurrent, spec):
            if key not in keys.biased and bool(namespace(bias).any(bias[rows] != 0)):
                raise SpecError(
                    f"`weights.b_hh[{k}]` has numbers other than 0 in rows {rows.start} to "
                    f"{rows.stop - 1}; {cell} has no such bias",
                    "The parts r and z may be added to b_ih; the part n may not, as r multiplies "
                    "it. For gradients say gradients=True",
                )


def _check_arrays(given: Mapping[str, Any], keys: _Cell) -> None:
    """Refuse parameters with other keys or shapes than the cell's."""
    for name, params in given.items():
        entries(name, params, (*keys.inputs, *keys.recurrent))
        for key in (*keys.inputs, *keys.recurrent):
            expected = ("kernel", "bias") if key in keys.biased else ("kernel",)
            entries(f"{name}[{key!r}]", params[key], expected)
    like_input, like_recurrent = (
        f"forward[{side[0]!r}]['kernel']" for side in (keys.inputs, keys.recurrent)
    )
    first = given["forward"][keys.inputs[0]]["kernel"]
    recurrent = given["forward"][keys.recurrent[0]]["kernel"]
    input_size, columns = axes(like_input, first, 2, "a kernel, two axes")
    hidden_size, _ = axes(like_recurrent, recurrent, 2, "a kernel, two axes")
    if columns != NUM_GATES[keys.mode] * hidden_size // len(keys.inputs):
        raise ShapeError(
            f"`{like_input}` has shape {(input_size, columns)} and `{like_recurrent}` has "
            f"{hidden_size} rows; expected (input_size, {NUM_GATES[keys.mode] // len(keys.inputs)}"
            " * hidden_size) and hidden_size rows"
        )
    for name, params in given.items():
        for side, size, word in (
            (keys.inputs, input_size, "input_size"),
            (keys.recurrent, hidden_size, "hidden_size"),
        ):
            for key in side:
                for part, array in params[key].items():
                    shape = (size, columns) if part == "kernel" else (columns,)
                    words = f"({word}, gates * hidden_size)"
                    validate.shaped_like(
                        f"{name}[{key!r}][{part!r}]",
                        array,
                        shape,
                        words if part == "kernel" else "(gates * hidden_size,)",
                        first,
                        like_input,
                    )
