"""Layouts: exact both ways, drawn as their pictures say, and clear about what they cannot hold.

That the layouts are what their owners mean by them is shown in test_pytorch.py and
test_onnxruntime.py.
"""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rnnop
from rnnop.layouts import ONNXWeights, from_onnx, from_pytorch, to_onnx, to_pytorch

MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
DTYPES = ("float64", "float32", "float16", "bfloat16")
BIASES = ("none", "input", "recurrent", "double")


@st.composite
def networks(
    draw: st.DrawFn, biases: tuple[str, ...], most_layers: int = 3
) -> tuple[str, rnnop.RNNWeights]:
    """Draw a mode and weights that torch or ONNX can hold."""
    mode = draw(st.sampled_from(MODES))
    hidden_size = draw(st.integers(1, 4))
    weights = rnnop.init_weights(
        mode,
        input_size=draw(st.integers(1, 3)),
        hidden_size=hidden_size,
        num_layers=draw(st.integers(1, most_layers)),
        bidirectional=draw(st.booleans()),
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 9)),
    )
    bias = draw(st.sampled_from(biases))
    return mode, dataclasses.replace(
        weights,
        b_ih=weights.b_ih if bias in ("input", "double") else None,
        b_hh=weights.b_hh if bias in ("recurrent", "double") else None,
    )


def peepholes(weights: rnnop.RNNWeights) -> rnnop.RNNWeights:
    """Give an LSTM peepholes, made of its own first rows."""
    size = weights.w_hh[0].shape[1]
    return dataclasses.replace(
        weights, peephole=tuple(w[: 3 * size, 0].reshape(3, size) for w in weights.w_hh)
    )


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, array.tobytes()


def assert_same_bits(actual: rnnop.RNNWeights, expected: rnnop.RNNWeights) -> None:
    assert actual.bidirectional == expected.bidirectional
    named = dict(expected.named())
    assert [name for name, _ in actual.named()] == list(named)
    for name, array in actual.named():
        assert bits(array) == bits(named[name]), name


def lstm(**kwargs: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights("lstm", input_size=2, hidden_size=3, seed=0, **kwargs)


# PyTorch


@given(networks(biases=("none", "double")), st.booleans())
def test_pytorch_round_trip_hands_on_the_same_arrays(
    network: tuple[str, rnnop.RNNWeights], projected: bool
) -> None:
    mode, weights = network
    if projected and mode == "lstm" and weights.w_hh[0].shape[1] > 1:
        w_hr = tuple(w[:1] for w in weights.w_hh)
        weights = dataclasses.replace(weights, w_hr=w_hr)
    state = to_pytorch(weights)
    back = from_pytorch(state)
    assert back.bidirectional == weights.bidirectional
    there, again = list(weights.named()), list(back.named())
    assert [name for name, _ in again] == [name for name, _ in there]
    assert all(a is b for (_, a), (_, b) in zip(again, there, strict=True))
    assert {id(array) for array in state.values()} == {id(array) for _, array in there}


def test_pytorch_picture() -> None:
    weights = rnnop.init_weights(
        "lstm", input_size=2, hidden_size=3, num_layers=2, proj_size=1, bidirectional=True, seed=0
    )
    suffixes = ("_l0", "_l0_reverse", "_l1", "_l1_reverse")
    names = {
        "weight_ih": weights.w_ih,
        "weight_hh": weights.w_hh,
        "bias_ih": weights.b_ih,
        "bias_hh": weights.b_hh,
        "weight_hr": weights.w_hr,
    }
    expected = [
        (part + suffix, id(arrays[k]))
        for k, suffix in enumerate(suffixes)
        for part, arrays in names.items()
    ]
    assert [(name, id(array)) for name, array in to_pytorch(weights).items()] == expected


def test_pytorch_takes_modules_and_prefixes() -> None:
    weights = lstm()
    state = to_pytorch(weights)
    assert_same_bits(from_pytorch(SimpleNamespace(state_dict=lambda: state)), weights)
    larger = {f"model.rnn.{name}": array for name, array in state.items()}
    larger["model.head.weight"] = np.zeros((2, 3))
    assert_same_bits(from_pytorch(larger, prefix="model.rnn."), weights)


@pytest.mark.parametrize("missing", ["b_ih", "b_hh"])
@pytest.mark.parametrize("reset_after", [True, False])
def test_a_missing_bias_becomes_zeros_and_changes_nothing(missing: str, reset_after: bool) -> None:
    full = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0, bidirectional=True)
    weights = dataclasses.replace(full, **{missing: None})
    x = np.random.default_rng(0).standard_normal((4, 2, 2)).astype(np.float32)

    def output(w: rnnop.RNNWeights) -> Any:
        return rnnop.rnn(x, w, mode="gru", reset_after=reset_after).y

    through_pytorch = from_pytorch(to_pytorch(weights))
    through_onnx = from_onnx(*to_onnx(weights, mode="gru"), mode="gru")
    for filled in (through_pytorch, through_onnx):
        for bias in getattr(filled, missing):
            assert bits(bias) == bits(np.zeros(9, np.float32))
        np.testing.assert_array_equal(output(filled), output(weights))


# ONNX


@given(networks(biases=("none", "double"), most_layers=1), st.booleans())
def test_onnx_round_trips_exactly(network: tuple[str, rnnop.RNNWeights], peephole: bool) -> None:
    mode, weights = network
    if peephole and mode == "lstm":
        weights = peepholes(weights)
    made = to_onnx(weights, mode=mode)
    directions, gates, hidden = weights.num_directions, GATES[mode], weights.w_hh[0].shape[1]
    assert made.W.shape == (directions, gates * hidden, weights.w_ih[0].shape[1])
    assert made.R.shape == (directions, gates * hidden, hidden)
    assert made.B is None or made.B.shape == (directions, 2 * gates * hidden)
    assert made.P is None or made.P.shape == (directions, 3 * hidden)
    back = from_onnx(*made, mode=mode)
    assert_same_bits(back, weights)
    again = to_onnx(back, mode=mode)
    for name in ONNXWeights._fields:
        there, here = getattr(made, name), getattr(again, name)
        assert (there is None and here is None) or bits(there) == bits(here)


# The pictures of rnnop/layouts/onnx.py: a gate's number is its place in ONNX's order, and the
# backward direction of a bidirectional operator is ten times the forward one.
PICTURES = {
    "lstm": ([1, 2, 3, 4], [1, 3, 4, 2]),
    "gru": ([1, 2, 3], [2, 1, 3]),
    "rnn_tanh": ([1], [1]),
    "rnn_relu": ([1], [1]),
}


@pytest.mark.parametrize("dtype", ["float64", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("num_directions", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_onnx_picture(mode: str, num_directions: int, dtype: Any) -> None:
    onnx, ours = (np.array(order, dtype) for order in PICTURES[mode])
    scale = np.array([1, 10][:num_directions], dtype)[:, None]
    hundred = np.array(100, dtype)
    weights = from_onnx(
        W=(scale * onnx)[:, :, None],
        R=(scale * -onnx)[:, :, None],
        B=np.concatenate([scale * onnx, hundred * scale * onnx], axis=1),
        P=scale * np.array([1, 2, 3], dtype) if mode == "lstm" else None,
        mode=mode,
    )
    assert weights.bidirectional == (num_directions == 2)
    for k, factor in enumerate(scale[:, 0]):
        assert bits(weights.w_ih[k]) == bits((factor * ours)[:, None])
        assert bits(weights.w_hh[k]) == bits((factor * -ours)[:, None])
        assert weights.b_ih is not None
        assert weights.b_hh is not None
        assert bits(weights.b_ih[k]) == bits(factor * ours)
        assert bits(weights.b_hh[k]) == bits(hundred * factor * ours)
        if mode == "lstm":
            assert weights.peephole is not None
            assert bits(weights.peephole[k]) == bits(factor * np.array([[1], [3], [2]], dtype))
        else:
            assert weights.peephole is None


def test_onnx_arrays_are_fresh() -> None:
    W, R = np.ones((1, 3, 2)), np.ones((1, 3, 3))
    weights = from_onnx(W, R, mode="rnn_tanh")
    assert not np.shares_memory(weights.w_ih[0], W)
    assert not np.shares_memory(to_onnx(weights, mode="rnn_tanh").R, weights.w_hh[0])


# What is refused: the call, the error, and what its text must name.
STATE = to_pytorch(lstm(num_layers=2))
W, R, B, P = to_onnx(peepholes(lstm()), mode="lstm")


def without(name: str) -> dict[str, Any]:
    return {key: array for key, array in STATE.items() if key != name}


Refusal = tuple[Callable[[], object], type[Exception], tuple[str, ...]]
REFUSALS: dict[str, Refusal] = {
    "pytorch-no-mapping": (
        lambda: from_pytorch([1]),
        rnnop.DTypeError,
        ("from_pytorch: `source` is list", "state dict"),
    ),
    "pytorch-entry": (
        lambda: from_pytorch({**STATE, "bias_ih_l1": [0.0]}),
        rnnop.DTypeError,
        ("from_pytorch: `weights.b_ih[1]` is list",),
    ),
    "pytorch-unknown-name": (
        lambda: from_pytorch({**STATE, "weight_l0": STATE["weight_ih_l0"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has the name 'weight_l0'", "weight_ih_l0", "`prefix`"),
    ),
    "pytorch-two-zeros": (
        lambda: from_pytorch({**STATE, "weight_ih_l00": STATE["weight_ih_l0"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has the name 'weight_ih_l00'",),
    ),
    "pytorch-name-of-no-string": (
        lambda: from_pytorch({**STATE, 7: STATE["weight_ih_l0"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has the name '7'",),
    ),
    "pytorch-unknown-name-with-prefix": (
        lambda: from_pytorch({"a.weight_g": W}, prefix="a."),
        rnnop.SpecError,
        ("`source` has the name 'a.weight_g'", "a.weight_ih_l0"),
    ),
    "pytorch-missing-weight": (
        lambda: from_pytorch(without("weight_hh_l1")),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'weight_hh_l1'", "2 layer(s) in one direction"),
    ),
    "pytorch-missing-layer": (
        lambda: from_pytorch({k.replace("l1", "l2"): v for k, v in STATE.items()}),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'weight_ih_l1'", "3 layer(s)"),
    ),
    "pytorch-missing-bias": (
        lambda: from_pytorch(without("bias_hh_l0")),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'bias_hh_l0'",),
    ),
    "pytorch-missing-direction": (
        lambda: from_pytorch({**STATE, "weight_ih_l0_reverse": STATE["weight_ih_l0"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'weight_ih_l1_reverse'", "two directions"),
    ),
    "pytorch-missing-prefix": (
        lambda: from_pytorch(STATE, prefix="rnn."),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'rnn.weight_ih_l0'",),
    ),
    "to-pytorch-no-weights": (
        lambda: to_pytorch(STATE),  # type: ignore[arg-type]
        rnnop.DTypeError,
        ("to_pytorch: `weights` is dict; expected RNNWeights",),
    ),
    "to-pytorch-peephole": (
        lambda: to_pytorch(lstm(peephole=True)),
        rnnop.SpecError,
        ("to_pytorch: `weights.peephole`", "no peepholes"),
    ),
    "to-pytorch-projection-as-large-as-the-cell": (
        lambda: to_pytorch(lstm(proj_size=3)),
        rnnop.SpecError,
        ("to_pytorch: `weights.w_hr[0]` has shape (3, 3)", "proj_size < hidden_size"),
    ),
    "onnx-mode": (
        lambda: from_onnx(W, R, mode="LSTM"),
        rnnop.SpecError,
        ("from_onnx: `mode` is 'LSTM'", "lstm"),
    ),
    "onnx-list": (
        lambda: from_onnx(W.tolist(), R, mode="lstm"),
        rnnop.DTypeError,
        ("from_onnx: `W` is list",),
    ),
    "onnx-integers": (
        lambda: from_onnx(W.astype(int), R, mode="lstm"),
        rnnop.DTypeError,
        ("from_onnx: `W` has dtype int64",),
    ),
    "onnx-two-axes": (
        lambda: from_onnx(W[0], R, mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `W` has shape (12, 2)", "4 gates in mode 'lstm'"),
    ),
    "onnx-three-directions": (
        lambda: from_onnx(np.concatenate([W] * 3), R, mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `W` has shape (3, 12, 2)", "1 or 2 directions"),
    ),
    "onnx-no-multiple-of-the-gates": (
        lambda: from_onnx(W[:, :10], R, mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `W` has shape (1, 10, 2)", "4 gates"),
    ),
    "onnx-empty": (
        lambda: from_onnx(W[:, :0], R[:, :0, :0], mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `W` has shape (1, 0, 2)",),
    ),
    "onnx-R": (
        lambda: from_onnx(W, R[:, :, :2], mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `R` has shape (1, 12, 2)", "(1, 12, 3)"),
    ),
    "onnx-R-of-another-mode": (
        lambda: from_onnx(W, R, mode="gru"),
        rnnop.ShapeError,
        ("from_onnx: `R` has shape (1, 12, 3)", "(1, 12, 4)"),
    ),
    "onnx-no-R": (
        lambda: from_onnx(W, None, mode="lstm"),
        rnnop.DTypeError,
        ("from_onnx: `R` is NoneType",),
    ),
    "onnx-B": (
        lambda: from_onnx(W, R, B[:, :12], mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `B` has shape (1, 12)", "2 * num_gates * hidden_size", "(1, 24)"),
    ),
    "onnx-B-dtype": (
        lambda: from_onnx(W, R, B.astype(np.float64), mode="lstm"),
        rnnop.DTypeError,
        ("from_onnx: `B` has dtype float64 and `W` has dtype float32",),
    ),
    "onnx-P": (
        lambda: from_onnx(W, R, B, P[:, :3], mode="lstm"),
        rnnop.ShapeError,
        ("from_onnx: `P` has shape (1, 3)", "(1, 9)"),
    ),
    "onnx-P-of-a-gru": (
        lambda: from_onnx(W, R, B, P, mode="gru"),
        rnnop.SpecError,
        ("from_onnx: `P` is given with mode 'gru'", "peepholes"),
    ),
    "to-onnx-no-weights": (
        lambda: to_onnx((W, R), mode="lstm"),  # type: ignore[arg-type]
        rnnop.DTypeError,
        ("to_onnx: `weights` is tuple; expected RNNWeights",),
    ),
    "to-onnx-mode": (
        lambda: to_onnx(lstm(), mode="rnn"),
        rnnop.SpecError,
        ("to_onnx: `mode` is 'rnn'",),
    ),
    "to-onnx-wrong-mode": (
        lambda: to_onnx(lstm(), mode="gru"),
        rnnop.ShapeError,
        ("to_onnx: `weights.w_ih[0]` has 12 rows", "= 9 in mode 'gru'", "spec: gru(2->3"),
    ),
    "to-onnx-two-layers": (
        lambda: to_onnx(lstm(num_layers=2), mode="lstm"),
        rnnop.SpecError,
        ("to_onnx: `weights` have 2 layers", "one operator for each layer", "spec: lstm("),
    ),
    "to-onnx-projection": (
        lambda: to_onnx(lstm(proj_size=2), mode="lstm"),
        rnnop.SpecError,
        ("to_onnx: `weights.w_hr` is given", "no projection"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    call, error, fragments = REFUSALS[case]
    with pytest.raises(error) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value)
