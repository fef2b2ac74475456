"""Layouts whose owners cannot be installed beside the tests, against what those owners computed.

golden/README.md says what the files hold and how they were made.
"""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_golden import MXNET, TVM, TVM_META, assert_agrees, load, mxnet_mode

import rnnop
from rnnop.layouts import from_cudnn, from_mxnet, from_tvm, to_cudnn, to_mxnet, to_tvm
from rnnop.layouts.cudnn import linear_layers, weight_space_size

Array = np.ndarray[Any, np.dtype[Any]]
Case = dict[str, Array]
PROJECTED, _ = load("mxnet_projection.npz")


# MXNet


def mxnet_sizes(case: Case) -> dict[str, Any]:
    """Return what `from_mxnet` cannot read off the vector, from the shapes of a call."""
    pseudo_layers, _, output_size = case["h0"].shape
    num_directions = case["y"].shape[2] // output_size
    hidden_size = case["c0"].shape[2] if "c0" in case else output_size
    return {
        "input_size": case["x"].shape[2],
        "hidden_size": hidden_size,
        "num_layers": pseudo_layers // num_directions,
        "bidirectional": num_directions == 2,
        "proj_size": output_size if output_size < hidden_size else None,
    }


@pytest.mark.parametrize("name", MXNET)
def test_mxnet_gradients_in_its_own_layout(name: str) -> None:
    case, mode = MXNET[name], mxnet_mode(name)
    weights = from_mxnet(case["parameters"], mode=mode, **mxnet_sizes(case))
    out, vjp = rnnop.rnn_vjp(
        case["x"], weights, case["h0"], case.get("c0"), mode=mode, backend="reference"
    )
    assert_agrees(out.y, case["y"])
    grads = vjp(case["dy"], case["dh_n"], case.get("dc_n"))
    if "dparameters" in case:
        assert_agrees(to_mxnet(grads.weights, mode=mode), case["dparameters"])
    np.testing.assert_array_equal(to_mxnet(weights, mode=mode), case["parameters"])


@pytest.mark.parametrize("name", PROJECTED)
def test_mxnet_projections(name: str) -> None:
    case = PROJECTED[name]
    weights = from_mxnet(case["parameters"], mode="lstm", **mxnet_sizes(case))
    assert weights.w_hr is not None
    out = rnnop.rnn(case["x"], weights, case["h0"], case["c0"], mode="lstm", backend="reference")
    for made, wanted in ((out.y, "y"), (out.h_n, "h_n"), (out.c_n, "c_n")):
        assert_agrees(made, case[wanted])
    np.testing.assert_array_equal(to_mxnet(weights, mode="lstm"), case["parameters"])


def test_mxnet_projections_are_of_every_depth_and_direction() -> None:
    assert list(PROJECTED) == [
        f"lstm-{depth}-{direction}"
        for depth in ("1layer", "2layers")
        for direction in ("uni", "bi")
    ]


# TVM

TVM_WEIGHTS = ("Wi", "Wh", "Bi", "Bh", "proj", "p_i", "p_f", "p_o")


@pytest.mark.parametrize("name", TVM)
def test_tvm(name: str) -> None:
    case, meta = TVM[name], TVM_META["cases"][name]
    given = {key: case[key] for key in TVM_WEIGHTS if key in case}
    order = meta["weight_layout"]
    weights = from_tvm(**given, weight_layout=order)
    states = [case[key][None] if key in case else None for key in ("h_init", "c_init")]
    out = rnnop.rnn(
        case["Xs"],
        weights,
        *states,
        mode="lstm",
        reverse=meta["reverse"],
        return_cell_states=True,
        backend="reference",
    )
    # TVM lists its steps in the order it took them, rnnop in the order of the input.
    steps = slice(None, None, -1 if meta["reverse"] else 1)
    assert_agrees(out.y, case["hidden"][steps])
    assert_agrees(out.c, case["cell"][steps])
    back = to_tvm(weights, weight_layout=order, batch_size=case["Xs"].shape[1])._asdict()
    if "p_o" in given:  # a peephole that is absent beside others comes back as zeros
        given = dict.fromkeys(("p_i", "p_f"), np.zeros_like(given["p_o"])) | given
    assert {key for key, array in back.items() if array is not None} == set(given)
    for key, array in given.items():
        np.testing.assert_array_equal(back[key], array)


# cuDNN: what it answers for its weight space, row by row

MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
BIASES = ("none", "input", "double", "recurrent")
ITEMSIZES = {0: 4, 1: 8, 2: 2, 9: 2}  # float, double, half, bfloat16
Place = tuple[int, tuple[int, ...]] | None


NETWORK = r"## (\{.*\}) weightSpaceSize=(\d+) bytes = \d+ elems"
ROW = r" +pl=(-?\d+) lid=(-?\d+) (.*)"
REFUSED = r"-> 2000 BAD_PARAM .*"
TENSOR = r"@(\w+) \((\d), \d, (\[.*?\]), (\[.*?\])\)"


def fields(pattern: str, text: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, text)
    assert match, text
    return match.groups()


def place(offset: str, dtype: str, dims: str, strides: str) -> Place:
    """Return where a tensor is and its shape, which is row-major [1, rows, columns]."""
    if offset == "None":
        assert dims == strides == "[]"
        return None
    one, rows, columns = ast.literal_eval(dims)
    assert one == 1
    assert int(dtype) in ITEMSIZES
    assert ast.literal_eval(strides) == [rows * columns, columns, 1]
    return int(offset), (rows, columns)


def read_cudnn() -> list[tuple[dict[str, int], int, dict[tuple[int, int], Any]]]:
    """Return settings, bytes, and by (pseudo-layer, linLayerID) the places, None if refused."""
    text = (Path(__file__).parent / "golden" / "cudnn_weight_layout_9.28.txt").read_text()
    networks: list[tuple[dict[str, int], int, dict[tuple[int, int], Any]]] = []
    for line in text.splitlines()[1:]:
        if line.startswith("##"):
            settings, size = fields(NETWORK, line)
            networks.append((ast.literal_eval(settings), int(size), {}))
            continue
        layer, number, answer = fields(ROW, line)
        places = None
        if not re.fullmatch(REFUSED, answer):
            both = fields(f"m{TENSOR}  b{TENSOR}", answer)
            places = (place(*both[:4]), place(*both[4:]))
        networks[-1][2][int(layer), int(number)] = places
    return networks


CUDNN = read_cudnn()


def test_every_row_of_cudnn_is_read() -> None:
    assert len(CUDNN) == 26
    assert sum(len(rows) for _, _, rows in CUDNN) == 271


@pytest.mark.parametrize(("settings", "size", "rows"), CUDNN)
def test_cudnn_weight_space(settings: dict[str, int], size: int, rows: dict[Any, Any]) -> None:
    spec = rnnop.RNNSpec(
        mode=MODES[settings["mode"]],
        input_size=0 if settings.get("inp") else settings["i"],  # CUDNN_SKIP_INPUT: no W there
        hidden_size=settings["h"],
        num_layers=settings.get("L", 1),
        proj_size=None if settings["p"] == settings["h"] else settings["p"],
        bidirectional=bool(settings.get("dir")),
        bias=BIASES[settings.get("bias", 2)],
    )
    assert weight_space_size(spec, ITEMSIZES[settings.get("dt", 0)]) == size
    ours = {
        (k, number): (matrix, None if bias is None else (bias[0], (*bias[1], 1)))
        for k, number, matrix, bias in linear_layers(spec)
    }
    refused = {key for key, places in rows.items() if places is None}
    # cuDNN answers for a projection that is not there, too: with nothing.
    there = {key: places for key, places in rows.items() if places not in (None, (None, None))}
    assert there == ours
    assert not ours.keys() & refused


def test_cudnn_gates_are_the_rows_of_rnnops_arrays() -> None:
    """The offsets of the linear layers and the arrays that are cut at other places agree."""
    sizes: dict[str, Any] = {
        "input_size": 3,
        "hidden_size": 4,
        "num_layers": 2,
        "bidirectional": True,
        "proj_size": 2,
    }
    weights = rnnop.init_weights("lstm", **sizes, seed=0)
    space = to_cudnn(weights, mode="lstm")
    assert weights.w_hr is not None
    assert weights.b_ih is not None
    assert weights.b_hh is not None
    spec = rnnop.RNNSpec.of(weights, mode="lstm")
    layers = linear_layers(spec)
    assert len(layers) == 4 * 9
    for layer in layers:
        k, number, (offset, shape), bias = layer
        rows = slice(4 * (number % 4), 4 * (number % 4) + 4)
        field, biases = (
            (weights.w_hr, None)
            if number == 8
            else (weights.w_ih, weights.b_ih)
            if number < 4
            else (weights.w_hh, weights.b_hh)
        )
        wanted = field[k] if number == 8 else field[k][rows]
        np.testing.assert_array_equal(space[offset : offset + wanted.size].reshape(shape), wanted)
        if bias is None:
            assert biases is None
        else:
            np.testing.assert_array_equal(space[bias[0] : bias[0] + 4], biases[k][rows])
    back = from_cudnn(space, mode="lstm", **sizes)
    for (name, one), (_, other) in zip(back.named(), weights.named(), strict=True):
        np.testing.assert_array_equal(one, other, name)
