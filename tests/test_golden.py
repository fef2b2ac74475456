"""The reference against golden files: the numbers of MXNet's fused RNN and of TVM's LSTM.

golden/README.md says what the files hold and how they were made.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnop

Array = np.ndarray[Any, np.dtype[Any]]
Case = dict[str, Array]

TOLERANCE = 1e-12  # largest error, as a share of the largest golden entry


def load(file: str) -> tuple[dict[str, Case], dict[str, Any]]:
    """Return the cases of a golden file, by name, and its meta data."""
    cases: dict[str, Case] = {}
    with np.load(Path(__file__).parent / "golden" / file, allow_pickle=False) as stored:
        for key in stored.files:
            if key != "meta":
                case, name = key.split("/")
                cases.setdefault(case, {})[name] = stored[key]
        return cases, json.loads(str(stored["meta"]))


MXNET, _ = load("mxnet.npz")
TVM, TVM_META = load("tvm.npz")


def assert_agrees(actual: Array, golden: Array) -> None:
    assert actual.shape == golden.shape
    assert actual.dtype == golden.dtype == np.float64
    assert np.abs(actual - golden).max() <= TOLERANCE * np.abs(golden).max()


def mxnet_mode(case: str) -> str:
    return case.split("-")[0]


def mxnet_weights(case: str, flat: Array) -> rnnop.RNNWeights:
    """Cut MXNet's flat vector: weights of all pseudo-layers, then biases of all of them."""
    arrays = MXNET[case]
    input_size, (pseudo_layers, _, hidden_size) = arrays["x"].shape[2], arrays["h0"].shape
    num_directions = arrays["y"].shape[2] // hidden_size
    rows = {"gru": 3, "lstm": 4}.get(mxnet_mode(case), 1) * hidden_size
    taken = 0

    def take(*shape: int) -> Array:
        nonlocal taken
        taken += int(np.prod(shape))
        return flat[taken - int(np.prod(shape)) : taken].reshape(shape)

    weights = [
        (
            take(rows, input_size if k < num_directions else num_directions * hidden_size),
            take(rows, hidden_size),
        )
        for k in range(pseudo_layers)
    ]
    biases = [(take(rows), take(rows)) for _ in range(pseudo_layers)]
    assert taken == flat.size
    w_ih, w_hh = zip(*weights, strict=True)
    b_ih, b_hh = zip(*biases, strict=True)
    return rnnop.RNNWeights(w_ih, w_hh, b_ih, b_hh, bidirectional=num_directions == 2)


@pytest.mark.parametrize("case", MXNET)
def test_mxnet_outputs(case: str) -> None:
    arrays = MXNET[case]
    out = rnnop.rnn(
        arrays["x"],
        mxnet_weights(case, arrays["parameters"]),
        arrays["h0"],
        arrays.get("c0"),
        mode=mxnet_mode(case),
        backend="reference",
    )
    assert_agrees(out.y, arrays["y"])
    assert_agrees(out.h_n, arrays["h_n"])
    if "c_n" in arrays:
        assert_agrees(out.c_n, arrays["c_n"])
    else:
        assert out.c_n is None


@pytest.mark.parametrize("case", MXNET)
def test_mxnet_gradients(case: str) -> None:
    arrays = MXNET[case]
    _, vjp = rnnop.rnn_vjp(
        arrays["x"],
        mxnet_weights(case, arrays["parameters"]),
        arrays["h0"],
        arrays.get("c0"),
        mode=mxnet_mode(case),
        backend="reference",
    )
    grads = vjp(arrays["dy"], arrays["dh_n"], arrays.get("dc_n"))
    assert_agrees(grads.x, arrays["dx"])
    assert_agrees(grads.h0, arrays["dh0"])
    if "dc0" in arrays:
        assert_agrees(grads.c0, arrays["dc0"])
    if "dparameters" in arrays:
        golden = dict(mxnet_weights(case, arrays["dparameters"]).named())
        actual = dict(grads.weights.named())
        assert actual.keys() == golden.keys()
        for name in golden:
            assert_agrees(actual[name], golden[name])


def test_mxnet_cases_are_complete() -> None:
    """Every mode, depth and direction; only the gradients that MXNet has wrong are missing."""
    modes, layers = ("rnn_relu", "rnn_tanh", "gru", "lstm"), ("1layer", "2layers", "3layers")
    assert [case.rsplit("-", 4)[0] for case in MXNET] == [
        f"{mode}-{depth}-{direction}"
        for mode in modes
        for depth in layers
        for direction in ("uni", "bi")
    ]
    for case, arrays in MXNET.items():
        expected = {"x", "parameters", "h0", "y", "h_n", "dy", "dh_n", "dx", "dparameters", "dh0"}
        if case.startswith("lstm"):
            expected |= {"c0", "c_n", "dc_n", "dc0"}
        if case.startswith(("rnn_relu-3layers", "rnn_tanh-3layers")):
            expected -= {"dparameters"}
        assert arrays.keys() == expected


def tvm_weights(case: str) -> rnnop.RNNWeights:
    """Put TVM's gates in the order i, f, g, o, and its peepholes in one array."""
    arrays, layout = TVM[case], TVM_META["cases"][case]["weight_layout"]

    def ifgo(array: Array) -> Array:
        gates = np.split(array, 4)
        return np.concatenate([gates[layout.index(gate)] for gate in "IFGO"])

    def optional(name: str) -> tuple[Array] | None:
        return (ifgo(arrays[name]),) if name in arrays else None

    peephole = None
    if "p_o" in arrays:
        # One row of the batch stands for all. An absent peephole is zero.
        absent = np.zeros_like(arrays["p_o"])
        peephole = (np.stack([arrays.get(name, absent)[0] for name in ("p_i", "p_f", "p_o")]),)
    return rnnop.RNNWeights(
        (ifgo(arrays["Wi"]),),
        (ifgo(arrays["Wh"]),),
        optional("Bi"),
        optional("Bh"),
        w_hr=(arrays["proj"],) if "proj" in arrays else None,
        peephole=peephole,
    )


@pytest.mark.parametrize("case", TVM)
def test_tvm_states_of_every_step(case: str) -> None:
    arrays, reverse = TVM[case], TVM_META["cases"][case]["reverse"]
    out = rnnop.rnn(
        arrays["Xs"],
        tvm_weights(case),
        arrays["h_init"][None] if "h_init" in arrays else None,
        arrays["c_init"][None] if "c_init" in arrays else None,
        mode="lstm",
        reverse=reverse,
        return_cell_states=True,
        backend="reference",
    )
    # TVM lists its steps in the order it took them, rnnop in the order of the input.
    order = slice(None, None, -1 if reverse else 1)
    assert_agrees(out.y, arrays["hidden"][order])
    assert_agrees(out.c, arrays["cell"][order])
    assert_agrees(out.h_n, arrays["hidden"][-1:])
    assert_agrees(out.c_n, arrays["cell"][-1:])


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda a: a * (1 + 1e-11), id="scaled"),
        pytest.param(lambda a: a[::-1], id="reversed"),
        pytest.param(lambda a: a[:1], id="shorter"),
        pytest.param(lambda a: a * np.nan, id="nan"),
        pytest.param(lambda a: a.astype(np.float32), id="float32"),
    ],
)
def test_the_comparison_can_fail(wrong: Any) -> None:
    golden = TVM["plain"]["hidden"]
    assert_agrees(golden, golden)
    with pytest.raises(AssertionError):
        assert_agrees(wrong(golden), golden)
