"""Layouts: exact both ways, drawn as their pictures say, and clear about what they cannot hold.

That the layouts are what their owners mean by them is shown in test_pytorch.py,
test_onnxruntime.py and the other test_layouts_*.py.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rnnop
from rnnop.layouts import (
    ONNXWeights,
    from_cudnn,
    from_flax,
    from_jax,
    from_keras,
    from_mxnet,
    from_onnx,
    from_pytorch,
    from_tvm,
    split_layers,
    stack_layers,
    to_cudnn,
    to_flax,
    to_jax,
    to_keras,
    to_mxnet,
    to_onnx,
    to_pytorch,
    to_tvm,
)
from rnnop.layouts.cudnn import weight_space_size

MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
DTYPES = ("float64", "float32", "float16", "bfloat16")
BIASES = ("none", "input", "recurrent", "double")


@st.composite
def networks(
    draw: st.DrawFn,
    biases: tuple[str, ...],
    most_layers: int = 3,
    modes: tuple[str, ...] = MODES,
    directions: tuple[bool, ...] = (False, True),
    projection: bool = False,
) -> tuple[str, rnnop.RNNWeights]:
    """Draw a mode and weights that an owner can hold."""
    mode = draw(st.sampled_from(modes))
    hidden_size = draw(st.integers(1, 4))
    weights = rnnop.init_weights(
        mode,
        input_size=draw(st.integers(1, 3)),
        hidden_size=hidden_size,
        num_layers=draw(st.integers(1, most_layers)),
        bidirectional=draw(st.sampled_from(directions)),
        proj_size=draw(st.integers(1, hidden_size - 1))
        if projection and mode == "lstm" and hidden_size > 1 and draw(st.booleans())
        else None,
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 9)),
    )
    return mode, with_bias(weights, draw(st.sampled_from(biases)))


def with_bias(weights: rnnop.RNNWeights, bias: str) -> rnnop.RNNWeights:
    return dataclasses.replace(
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


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the arrays of what a to_x returns."""
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        for entry in tree:
            yield from leaves(entry)
    elif tree is not None:
        yield tree


def assert_exact(
    weights: rnnop.RNNWeights,
    there: Callable[[rnnop.RNNWeights], Any],
    back: Callable[[Any], rnnop.RNNWeights],
    *,
    views: bool = False,
) -> None:
    """Fail unless both ways are exact, and what they make is new (back: unless it may be views)."""
    made = there(weights)
    again = back(made)
    assert_same_bits(again, weights)
    assert [bits(a) for a in leaves(there(again))] == [bits(a) for a in leaves(made)]
    given = [array for _, array in weights.named()]
    for array in leaves(made):
        assert array.flags.c_contiguous
        assert not any(np.shares_memory(array, other) for other in given)
        for _, other in again.named():
            assert other.flags.c_contiguous
            assert views or not np.shares_memory(array, other)


def lstm(**kwargs: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights("lstm", input_size=2, hidden_size=3, seed=0, **kwargs)


def gru(**kwargs: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0, **kwargs)


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


@pytest.mark.parametrize("bias", ["none", "double"])
@pytest.mark.parametrize("mode", MODES)
def test_pytorch_cells(mode: str, bias: str) -> None:
    weights = with_bias(rnnop.init_weights(mode, input_size=2, hidden_size=3, seed=0), bias)
    state = to_pytorch(weights, cell=True)
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    assert list(state) == names[: 4 if bias == "double" else 2]
    assert_same_bits(from_pytorch(state), weights)
    larger = {f"prior.rnn.{name}": array for name, array in state.items()}
    assert_same_bits(from_pytorch(larger, prefix="prior.rnn."), weights)


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


# Keras


@given(networks(biases=("none", "input"), most_layers=1, modes=("rnn_tanh", "rnn_relu", "lstm")))
def test_keras_round_trips_exactly(network: tuple[str, rnnop.RNNWeights]) -> None:
    mode, weights = network
    assert_exact(weights, lambda w: to_keras(w, mode=mode), lambda a: from_keras(a, mode=mode))


@given(networks(biases=BIASES, most_layers=1, modes=("gru",)), st.booleans())
def test_keras_gru_round_trips_exactly(
    network: tuple[str, rnnop.RNNWeights], reset_after: bool
) -> None:
    """With two rows of bias or none, or one row or none."""
    _, weights = network
    if reset_after and (weights.b_ih is None) != (weights.b_hh is None):
        weights = from_pytorch(to_pytorch(weights))  # which fills the other one in
    if not reset_after:
        weights = dataclasses.replace(weights, b_hh=None)
    assert_exact(
        weights,
        lambda w: to_keras(w, mode="gru", reset_after=reset_after),
        lambda arrays: from_keras(arrays, mode="gru"),
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_tanh"])
def test_keras_picture(mode: str, bidirectional: bool) -> None:
    """A gate's number is its place in Keras's order; its column number stands behind the point."""
    keras, ours = {
        "gru": ([1, 2, 3], [2, 1, 3]),
        "lstm": ([1, 2, 3, 4], [1, 2, 3, 4]),
        "rnn_tanh": ([1], [1]),
    }[mode]

    def columns(gates: list[int]) -> Any:
        return np.array([gate + column / 10 for gate in gates for column in (0, 1)])

    rows = np.array([0.0, 100.0, 200.0])[:, None]  # of the kernel: the inputs
    arrays: list[Any] = []
    for sign in (1, -1)[: 1 + bidirectional]:
        bias = np.stack([columns(keras), 1000 + columns(keras)])
        arrays += [
            sign * (rows + columns(keras)),
            sign * -(rows[:2] + columns(keras)),
            sign * (bias if mode == "gru" else bias[0]),
        ]
    weights = from_keras(arrays, mode=mode)
    assert weights.bidirectional == bidirectional
    assert weights.b_ih is not None
    assert (weights.b_hh is None) == (mode != "gru")
    for k, sign in enumerate((1, -1)[: 1 + bidirectional]):
        np.testing.assert_array_equal(weights.w_ih[k], sign * (rows + columns(ours)).T)
        np.testing.assert_array_equal(weights.w_hh[k], sign * -(rows[:2] + columns(ours)).T)
        np.testing.assert_array_equal(weights.b_ih[k], sign * columns(ours))
        if weights.b_hh is not None:
            np.testing.assert_array_equal(weights.b_hh[k], sign * (1000 + columns(ours)))


def test_keras_takes_either_bias_where_they_add_up() -> None:
    for weights, mode in ((lstm(), "lstm"), (gru(), "gru")):
        for bias in ("input", "recurrent"):
            single = with_bias(weights, bias)
            made = to_keras(single, mode=mode, reset_after=False)
            back = from_keras(made, mode=mode)
            assert back.b_hh is None
            x = np.random.default_rng(0).standard_normal((4, 2, 2)).astype(np.float32)
            call: dict[str, Any] = {"mode": mode}
            if mode == "gru":
                call["reset_after"] = False
            np.testing.assert_array_equal(
                rnnop.rnn(x, back, **call).y, rnnop.rnn(x, single, **call).y
            )


# Flax

FLAX_BIASES = {
    "linen.LSTMCell": "recurrent",
    "linen.OptimizedLSTMCell": "recurrent",
    "linen.GRUCell": "double",
    "linen.SimpleCell": "input",
    "nnx.LSTMCell": "recurrent",
    "nnx.OptimizedLSTMCell": "recurrent",
    "nnx.GRUCell": "input",
    "nnx.SimpleCell": "input",
}
FLAX_MODES = {"LSTMCell": "lstm", "OptimizedLSTMCell": "lstm", "GRUCell": "gru"}


def flax_mode(cell: str) -> str:
    return FLAX_MODES.get(cell.partition(".")[2], "rnn_tanh")


def without_reset_bias(weights: rnnop.RNNWeights) -> rnnop.RNNWeights:
    """Set the parts r and z of a GRU's b_hh to zero, which linen does not have."""
    size = weights.w_hh[0].shape[1]
    keep = np.repeat([0, 0, 1], size)
    assert weights.b_hh is not None
    return dataclasses.replace(
        weights, b_hh=tuple(np.where(keep, b, 0).astype(b.dtype) for b in weights.b_hh)
    )


@given(st.data(), st.sampled_from(tuple(FLAX_BIASES)))
def test_flax_round_trips_exactly(data: st.DataObject, cell: str) -> None:
    modes, biases = (flax_mode(cell),), (FLAX_BIASES[cell],)
    _, weights = data.draw(networks(biases=biases, most_layers=1, modes=modes))
    if cell == "linen.GRUCell":
        weights = without_reset_bias(weights)
    assert_exact(weights, lambda w: to_flax(w, cell=cell), lambda p: from_flax(*p, cell=cell))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", FLAX_BIASES)
def test_flax_picture(cell: str, bidirectional: bool) -> None:
    """A gate's number is the place of its letter in rnnop's order; the letter ends Flax's key."""
    letters = {"lstm": "ifgo", "gru": "rzn"}.get(flax_mode(cell), "h")
    fused = cell in ("nnx.OptimizedLSTMCell", "nnx.GRUCell", "nnx.SimpleCell")

    biased = {
        "input": ["i", "ii", "ir", "iz", "in", "dense_i"],
        "recurrent": ["hi", "hf", "hg", "ho", "dense_h"],
        "double": ["ir", "iz", "in", "hn"],
    }[FLAX_BIASES[cell]]

    def side(first: str, rows: int, scale: float) -> dict[str, dict[str, Any]]:
        names = {f"{first}{letter}": [number] for number, letter in enumerate(letters, 1)}
        if flax_mode(cell) == "rnn_tanh":
            names = {first: [1]}
        if fused:
            names = {f"dense_{first}": list(range(1, len(letters) + 1))}
        if cell == "nnx.LSTMCell" and first == "i":
            names["if_"] = names.pop("if")
        return {
            name: {"kernel": scale * np.array([gates] * rows, np.float64)}
            | ({"bias": 10 * scale * np.array(gates, np.float64)} if name in biased else {})
            for name, gates in names.items()
        }

    signs = (1.0, -1.0)[: 1 + bidirectional]
    params = [side("i", 2, sign) | side("h", 1, 2 * sign) for sign in signs]
    weights = from_flax(*params, cell=cell)
    gates = np.arange(1.0, len(letters) + 1)
    for k, sign in enumerate(signs):
        np.testing.assert_array_equal(weights.w_ih[k], sign * np.stack([gates, gates], axis=1))
        np.testing.assert_array_equal(weights.w_hh[k], 2 * sign * gates[:, None])
        if FLAX_BIASES[cell] in ("input", "double"):
            assert weights.b_ih is not None
            np.testing.assert_array_equal(weights.b_ih[k], 10 * sign * gates)
        else:
            assert weights.b_ih is None
        if FLAX_BIASES[cell] in ("recurrent", "double"):
            assert weights.b_hh is not None
            there = 1 if FLAX_BIASES[cell] == "recurrent" else np.array([0, 0, 1])
            np.testing.assert_array_equal(weights.b_hh[k], there * 20 * sign * gates)
        else:
            assert weights.b_hh is None


@pytest.mark.parametrize("cell", FLAX_BIASES)
def test_flax_missing_biases_become_zeros_and_change_nothing(cell: str) -> None:
    mode = flax_mode(cell)
    weights = rnnop.init_weights(mode, input_size=2, hidden_size=3, bias=False, seed=0)
    back = from_flax(*to_flax(weights, cell=cell), cell=cell)
    x = np.random.default_rng(0).standard_normal((4, 2, 2)).astype(np.float32)
    np.testing.assert_array_equal(
        rnnop.rnn(x, back, mode=mode).y, rnnop.rnn(x, weights, mode=mode).y
    )


def test_flax_gradients_leave_out_what_the_cell_does_not_have() -> None:
    (params,) = to_flax(gru(), cell="linen.GRUCell", gradients=True)
    kept = without_reset_bias(gru())
    assert_same_bits(from_flax(params, cell="linen.GRUCell"), kept)


# TVM


@given(
    networks(biases=BIASES, most_layers=1, modes=("lstm",), directions=(False,), projection=True),
    st.booleans(),
    st.permutations("IFGO"),
    st.integers(1, 3),
)
def test_tvm_round_trips_exactly(
    network: tuple[str, rnnop.RNNWeights], peephole: bool, order: list[str], batch_size: int
) -> None:
    _, weights = network
    if peephole:
        size = weights.w_ih[0].shape[0] // 4
        rows = weights.w_ih[0][: 3 * size, 0].reshape(3, size).copy()
        weights = dataclasses.replace(weights, peephole=(rows,))
    layout = "".join(order)
    made = to_tvm(weights, weight_layout=layout, batch_size=batch_size)
    assert made.p_i is None or made.p_i.shape == (batch_size, made.Wi.shape[0] // 4)
    assert_exact(
        weights,
        lambda w: to_tvm(w, weight_layout=layout, batch_size=batch_size),
        lambda arrays: from_tvm(*arrays, weight_layout=layout),
    )


@pytest.mark.parametrize("layout", ["".join(order) for order in itertools.permutations("IFGO")])
def test_tvm_picture(layout: str) -> None:
    gates = np.array([[float("IFGO".index(letter))] for letter in layout])
    weights = from_tvm(gates, gates, gates[:, 0], gates[:, 0], weight_layout=layout)
    for _, array in weights.named():
        np.testing.assert_array_equal(array.ravel(), [0, 1, 2, 3])


# Flat vectors


def flat_sizes(weights: rnnop.RNNWeights) -> dict[str, Any]:
    """Return what cannot be read off a flat vector."""
    return {
        "input_size": weights.w_ih[0].shape[1],
        "hidden_size": weights.w_hh[0].shape[1]
        if weights.w_hr is None
        else weights.w_hr[0].shape[1],
        "num_layers": weights.num_layers,
        "bidirectional": weights.bidirectional,
    }


def proj_size(weights: rnnop.RNNWeights) -> int | None:
    return None if weights.w_hr is None else int(weights.w_hr[0].shape[0])


@given(networks(biases=("double",), projection=True))
def test_mxnet_round_trips_exactly(network: tuple[str, rnnop.RNNWeights]) -> None:
    mode, weights = network
    sizes = flat_sizes(weights) | {"mode": mode, "proj_size": proj_size(weights)}
    assert_exact(
        weights, lambda w: to_mxnet(w, mode=mode), lambda a: from_mxnet(a, **sizes), views=True
    )


@given(networks(biases=("double",), modes=("lstm",)))
def test_jax_round_trips_exactly(network: tuple[str, rnnop.RNNWeights]) -> None:
    _, weights = network
    sizes = flat_sizes(weights)
    assert_exact(weights, to_jax, lambda a: from_jax(a, **sizes), views=True)
    same = to_mxnet(weights, mode="lstm"), to_cudnn(weights, mode="lstm")
    assert all(bits(to_jax(weights)) == bits(vector) for vector in same)


@given(st.data(), st.sampled_from(BIASES))
def test_cudnn_round_trips_exactly(data: st.DataObject, bias: str) -> None:
    mode, weights = data.draw(networks(biases=(bias,), projection=True))
    sizes = flat_sizes(weights) | {"mode": mode, "proj_size": proj_size(weights), "bias": bias}
    assert_exact(
        weights, lambda w: to_cudnn(w, mode=mode), lambda a: from_cudnn(a, **sizes), views=True
    )
    spec = rnnop.RNNSpec.of(weights, mode=mode)
    assert weight_space_size(spec, itemsize=1) == weights.num_parameters


@pytest.mark.parametrize("bias", BIASES)
def test_flat_vectors_fill_in_missing_biases(bias: str) -> None:
    weights = with_bias(lstm(bidirectional=True), bias)
    back = from_jax(to_jax(weights), **flat_sizes(weights))
    same = from_mxnet(to_mxnet(weights, mode="lstm"), mode="lstm", **flat_sizes(weights))
    assert_same_bits(back, same)
    for name in ("b_ih", "b_hh"):
        for k, array in enumerate(getattr(back, name)):
            given_bias = getattr(weights, name)
            wanted = np.zeros_like(array) if given_bias is None else given_bias[k]
            assert bits(array) == bits(wanted)


@pytest.mark.parametrize("function", [from_mxnet, from_cudnn])
def test_flat_weights_are_views(function: Callable[..., rnnop.RNNWeights]) -> None:
    vector = to_mxnet(lstm(), mode="lstm")
    weights = function(vector, mode="lstm", **flat_sizes(lstm()))
    assert all(np.shares_memory(vector, array) for _, array in weights.named())


@pytest.mark.parametrize(
    ("sizes", "cudnns_answer"),
    [
        # What cudnnGetRNNWeightSpaceSize says, in bytes of float32, for sizes past its counter.
        ({"input_size": 16384, "hidden_size": 16384}, 18446744065120141312),
        ({"input_size": 2**13, "hidden_size": 2**13, "num_layers": 16}, 4194304),
    ],
)
def test_cudnn_refuses_what_cudnn_counts_wrongly(sizes: dict[str, int], cudnns_answer: int) -> None:
    spec = rnnop.RNNSpec("lstm", **sizes)
    count = spec.num_layers * (8 * spec.hidden_size**2 + 8 * spec.hidden_size)
    wrapped = (count + 2**31) % 2**32 - 2**31  # the 32 bits that are left
    assert wrapped * 4 % 2**64 == cudnns_answer
    with pytest.raises(rnnop.UnsupportedError) as caught:
        weight_space_size(spec, 4)
    for fragment in (f"{count:,}", "2**31", "counts them in 32 bits", f"spec: {spec}"):
        assert fragment in str(caught.value)


def test_cudnn_accepts_the_most_it_counts_rightly() -> None:
    """4*H*(I + H + 2) is a multiple of 4: 2**31 - 4 is the largest size, and 2**31 is refused."""
    largest = rnnop.RNNSpec("lstm", input_size=2**29 - 4, hidden_size=1)
    assert weight_space_size(largest, itemsize=4) == (2**31 - 4) * 4
    with pytest.raises(rnnop.UnsupportedError):
        weight_space_size(dataclasses.replace(largest, input_size=2**29 - 3), itemsize=4)


# Several layers


@given(networks(biases=BIASES, projection=True))
def test_layers_come_apart_and_together(network: tuple[str, rnnop.RNNWeights]) -> None:
    mode, weights = network
    layers = split_layers(weights)
    assert len(layers) == weights.num_layers
    assert all(layer.num_layers == 1 for layer in layers)
    back = stack_layers(layers)
    assert back.bidirectional == weights.bidirectional
    named = dict(weights.named())
    assert [name for name, _ in back.named()] == list(named)
    assert all(array is named[name] for name, array in back.named())
    wide = weights.map(lambda array: array.astype(np.float64))
    x = y = np.ones((2, 1, weights.w_ih[0].shape[1]))
    for layer in split_layers(wide):
        y = rnnop.rnn(y, layer, mode=mode, backend="reference").y
    whole = rnnop.rnn(x, wide, mode=mode, backend="reference").y
    np.testing.assert_allclose(y, whole, rtol=1e-13)


# Other families of arrays

THROUGH: dict[str, Callable[[rnnop.RNNWeights], rnnop.RNNWeights]] = {
    "pytorch": lambda w: from_pytorch(to_pytorch(w)),
    "onnx": lambda w: from_onnx(*to_onnx(w, mode="lstm"), mode="lstm"),
    "keras": lambda w: from_keras(to_keras(w, mode="lstm"), mode="lstm"),
    "linen": lambda w: from_flax(*to_flax(w, cell="linen.LSTMCell"), cell="linen.LSTMCell"),
    "nnx": lambda w: from_flax(
        *to_flax(w, cell="nnx.OptimizedLSTMCell"), cell="nnx.OptimizedLSTMCell"
    ),
    "tvm": lambda w: from_tvm(*to_tvm(w, weight_layout="GOFI"), weight_layout="GOFI"),
    "mxnet": lambda w: from_mxnet(to_mxnet(w, mode="lstm"), mode="lstm", **flat_sizes(w)),
    "jax": lambda w: from_jax(to_jax(w), **flat_sizes(w)),
    "cudnn": lambda w: from_cudnn(to_cudnn(w, mode="lstm"), mode="lstm", **flat_sizes(w)),
}


@pytest.mark.parametrize(
    ("kind", "mode"), [("RNNCell", "rnn_tanh"), ("GRUCell", "gru"), ("LSTMCell", "lstm")]
)
def test_pytorch_cells_are_one_step(kind: str, mode: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch owns this layout")
    torch.manual_seed(0)
    cell = getattr(torch.nn, kind)(3, 4, dtype=torch.float64)
    x, h, c = (torch.randn(5, size, dtype=torch.float64) for size in (3, 4, 4))
    expected = cell(x, (h, c) if mode == "lstm" else h)
    weights = from_pytorch(cell).map(lambda tensor: tensor.numpy())
    states = [tensor[None].numpy() for tensor in ((h, c) if mode == "lstm" else (h,))]
    out = rnnop.rnn(x[None].numpy(), weights, *states, mode=mode, backend="reference")
    finals = expected if mode == "lstm" else (expected,)
    for ours, theirs in zip((out.h_n, out.c_n), finals, strict=False):
        np.testing.assert_allclose(ours[0], theirs.detach().numpy(), rtol=1e-13, atol=1e-15)
    assert list(to_pytorch(weights, cell=True)) == list(cell.state_dict())


@pytest.mark.parametrize("owner", THROUGH)
def test_torch_tensors_go_through_and_stay_differentiable(owner: str) -> None:
    torch = pytest.importorskip("torch", reason="a second family of arrays")
    bias = {"keras": "input", "linen": "recurrent", "nnx": "recurrent"}.get(owner, "double")
    host = with_bias(lstm(), bias)
    given_weights = host.map(lambda array: torch.tensor(array, requires_grad=True))
    back = THROUGH[owner](given_weights)
    assert_same_bits(back.map(lambda tensor: tensor.detach().numpy()), host)
    assert all(tensor.is_contiguous() for _, tensor in back.named())
    total = sum((tensor**2).sum() for _, tensor in back.named())
    leaves_given = [tensor for _, tensor in given_weights.named()]
    gradients = torch.autograd.grad(total, leaves_given)
    for gradient, tensor in zip(gradients, leaves_given, strict=True):
        assert torch.equal(gradient, 2 * tensor)


# What is refused: the call, the error, and what its text must name.
STATE = to_pytorch(lstm(num_layers=2))
CELL = to_pytorch(lstm(), cell=True)
W, R, B, P = to_onnx(peepholes(lstm()), mode="lstm")
KERAS = to_keras(gru(), mode="gru")
(LINEN,) = to_flax(with_bias(lstm(), "recurrent"), cell="linen.LSTMCell")
TVM = to_tvm(peepholes(lstm()), batch_size=2)._asdict()
FLAT = to_mxnet(lstm(), mode="lstm")
SIZES: dict[str, Any] = {"input_size": 2, "hidden_size": 3}


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
    "pytorch-cell-with-a-layer": (
        lambda: from_pytorch(CELL | {"weight_ih_l0": CELL["weight_ih"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has the name 'weight_ih_l0'", "expected weight_ih, bias_hh"),
    ),
    "pytorch-cell-with-a-projection": (
        lambda: from_pytorch(CELL | {"weight_hr": CELL["weight_hh"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has the name 'weight_hr'",),
    ),
    "pytorch-cell-without-a-weight": (
        lambda: from_pytorch({"weight_ih": CELL["weight_ih"]}),
        rnnop.SpecError,
        ("from_pytorch: `source` has no 'weight_hh'",),
    ),
    "to-pytorch-cell-of-two-layers": (
        lambda: to_pytorch(lstm(num_layers=2), cell=True),
        rnnop.SpecError,
        ("to_pytorch: `weights` have 2 layer(s), 1 direction(s) and no projection", "a cell"),
    ),
    "to-pytorch-cell-of-two-directions": (
        lambda: to_pytorch(lstm(bidirectional=True), cell=True),
        rnnop.SpecError,
        ("to_pytorch: `weights` have 1 layer(s), 2 direction(s)",),
    ),
    "to-pytorch-cell-with-a-projection": (
        lambda: to_pytorch(lstm(proj_size=2), cell=True),
        rnnop.SpecError,
        ("1 direction(s) and a projection",),
    ),
    "to-pytorch-cell-of-no-bool": (
        lambda: to_pytorch(lstm(), cell="GRUCell"),  # type: ignore[arg-type]
        rnnop.SpecError,
        ("to_pytorch: `cell` is 'GRUCell'; expected True or False",),
    ),
    "keras-mode": (
        lambda: from_keras(KERAS, mode="GRU"),
        rnnop.SpecError,
        ("from_keras: `mode` is 'GRU'",),
    ),
    "keras-no-list": (
        lambda: from_keras(KERAS[0], mode="gru"),
        rnnop.DTypeError,
        ("from_keras: `arrays` is ndarray", "get_weights()"),
    ),
    "keras-five": (
        lambda: from_keras(KERAS + KERAS[:2], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays` has 5 entries; expected 2 or 3", "Bidirectional"),
    ),
    "keras-entry": (
        lambda: from_keras([KERAS[0], KERAS[1].tolist()], mode="gru"),
        rnnop.DTypeError,
        ("from_keras: `arrays[1]` is list",),
    ),
    "keras-three-axes": (
        lambda: from_keras([KERAS[0][None], KERAS[1]], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays[0]` has shape (1, 2, 9)", "(input_size, num_gates * hidden_size)"),
    ),
    "keras-no-multiple-of-the-gates": (
        lambda: from_keras(KERAS, mode="lstm"),
        rnnop.ShapeError,
        ("from_keras: `arrays[0]` has shape (2, 9)", "4 gates in mode 'lstm'"),
    ),
    "keras-recurrent": (
        lambda: from_keras([KERAS[0], KERAS[1][:2]], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays[1]` has shape (2, 9)", "recurrent_kernel", "= (3, 9)"),
    ),
    "keras-bias": (
        lambda: from_keras([*KERAS[:2], KERAS[2][0, :3]], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays[2]` has shape (3,)", "bias (num_gates * hidden_size,) = (9,)"),
    ),
    "keras-two-rows-of-an-lstm": (
        lambda: from_keras([np.zeros((2, 12)), np.zeros((3, 12)), np.zeros((2, 12))], mode="lstm"),
        rnnop.ShapeError,
        ("from_keras: `arrays[2]` has shape (2, 12)", "= (12,)"),
    ),
    "keras-biases-of-two-kinds": (
        lambda: from_keras([*KERAS, *KERAS[:2], KERAS[2][0]], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays[5]` has shape (9,)", "= (2, 9)"),
    ),
    "keras-backward-kernel": (
        lambda: from_keras([*KERAS, KERAS[0][:1], *KERAS[1:]], mode="gru"),
        rnnop.ShapeError,
        ("from_keras: `arrays[3]` has shape (1, 9)", "kernel", "= (2, 9)"),
    ),
    "keras-dtypes": (
        lambda: from_keras([KERAS[0], KERAS[1].astype(np.float64)], mode="gru"),
        rnnop.DTypeError,
        ("from_keras: `arrays[1]` has dtype float64 and `arrays[0]` has dtype float32",),
    ),
    "to-keras-peephole": (
        lambda: to_keras(lstm(peephole=True), mode="lstm"),
        rnnop.SpecError,
        ("to_keras: `weights.peephole` is given; a Keras layer has no peepholes", "spec: lstm("),
    ),
    "to-keras-projection": (
        lambda: to_keras(lstm(proj_size=2), mode="lstm"),
        rnnop.SpecError,
        ("to_keras: `weights.w_hr` is given",),
    ),
    "to-keras-two-layers": (
        lambda: to_keras(lstm(num_layers=2), mode="lstm"),
        rnnop.SpecError,
        ("to_keras: `weights` have 2 layers", "split_layers"),
    ),
    "to-keras-two-biases": (
        lambda: to_keras(lstm(), mode="lstm"),
        rnnop.SpecError,
        ("to_keras: `weights` have both `b_ih` and `b_hh`", "single bias", "Add them up"),
    ),
    "to-keras-two-biases-of-a-gru": (
        lambda: to_keras(gru(), mode="gru", reset_after=False),
        rnnop.SpecError,
        ("to_keras: `weights` have both `b_ih` and `b_hh`",),
    ),
    "to-keras-reset-after": (
        lambda: to_keras(gru(), mode="gru", reset_after=1),  # type: ignore[arg-type]
        rnnop.SpecError,
        ("to_keras: `reset_after` is 1; expected True or False",),
    ),
    "flax-cell": (
        lambda: from_flax(LINEN, cell="LSTMCell"),
        rnnop.SpecError,
        ("from_flax: `cell` is 'LSTMCell'", "linen.LSTMCell", "nnx.SimpleCell"),
    ),
    "flax-no-mapping": (
        lambda: from_flax(W, cell="linen.LSTMCell"),
        rnnop.DTypeError,
        ("from_flax: `forward` is ndarray; expected a mapping",),
    ),
    "flax-missing": (
        lambda: from_flax(
            {key: value for key, value in LINEN.items() if key != "hg"}, cell="linen.LSTMCell"
        ),
        rnnop.SpecError,
        ("from_flax: `forward` has no 'hg'; expected ii, if, ig, io, hi, hf, hg, ho",),
    ),
    "flax-extra": (
        lambda: from_flax(LINEN | {"x": LINEN["ii"]}, cell="linen.LSTMCell"),
        rnnop.SpecError,
        ("from_flax: `forward` has 'x'; expected ii, if, ig, io, hi, hf, hg, ho only",),
    ),
    "flax-of-the-whole-network": (
        lambda: from_flax({"params": LINEN}, cell="linen.LSTMCell"),  # type: ignore[dict-item]
        rnnop.SpecError,
        ("from_flax: `forward` has no 'ii'",),
    ),
    "flax-bias-missing": (
        lambda: from_flax(LINEN | {"hi": {"kernel": LINEN["hi"]["kernel"]}}, cell="linen.LSTMCell"),
        rnnop.SpecError,
        ("from_flax: `forward['hi']` has no 'bias'; expected kernel, bias",),
    ),
    "flax-bias-extra": (
        lambda: from_flax(LINEN | {"ii": LINEN["hi"]}, cell="linen.LSTMCell"),
        rnnop.SpecError,
        ("from_flax: `forward['ii']` has 'bias'; expected kernel only",),
    ),
    "flax-no-kernel": (
        lambda: from_flax(LINEN | {"ii": {"kernel": 1.0}}, cell="linen.LSTMCell"),
        rnnop.DTypeError,
        ("from_flax: `forward['ii']['kernel']` is float",),
    ),
    "flax-width": (
        lambda: from_flax(LINEN | {"ii": {"kernel": W[0]}}, cell="linen.LSTMCell"),
        rnnop.ShapeError,
        ("from_flax: `forward['ii']['kernel']` has shape (12, 2)", "has 3 rows"),
    ),
    "flax-shape": (
        lambda: from_flax(LINEN | {"ig": {"kernel": R[0, :3]}}, cell="linen.LSTMCell"),
        rnnop.ShapeError,
        ("from_flax: `forward['ig']['kernel']` has shape (3, 3)", "= (2, 3)"),
    ),
    "flax-backward-shape": (
        lambda: from_flax(LINEN, LINEN | {"ig": {"kernel": R[0, :3]}}, cell="linen.LSTMCell"),
        rnnop.ShapeError,
        ("from_flax: `backward['ig']['kernel']` has shape (3, 3)", "= (2, 3)"),
    ),
    "to-flax-cell": (
        lambda: to_flax(lstm(), cell="linen.MGUCell"),
        rnnop.SpecError,
        ("to_flax: `cell` is 'linen.MGUCell'",),
    ),
    "to-flax-gradients": (
        lambda: to_flax(gru(), cell="linen.GRUCell", gradients=None),  # type: ignore[arg-type]
        rnnop.SpecError,
        ("to_flax: `gradients` is None; expected True or False",),
    ),
    "to-flax-two-biases": (
        lambda: to_flax(lstm(), cell="nnx.LSTMCell"),
        rnnop.SpecError,
        ("to_flax: `weights` have both", "nnx.LSTMCell has a single bias", "spec: lstm("),
    ),
    "to-flax-bias-of-r": (
        lambda: to_flax(gru(), cell="linen.GRUCell"),
        rnnop.SpecError,
        ("to_flax: `weights.b_hh[0]` has numbers other than 0 in rows 0 to 2", "gradients=True"),
    ),
    "to-flax-bias-of-n": (
        lambda: to_flax(with_bias(gru(), "recurrent"), cell="nnx.GRUCell"),
        rnnop.SpecError,
        ("`weights.b_hh[0]` has numbers other than 0 in rows 0 to 8; nnx.GRUCell has no such",),
    ),
    "to-flax-wrong-mode": (
        lambda: to_flax(lstm(), cell="nnx.GRUCell"),
        rnnop.ShapeError,
        ("to_flax: `weights.w_ih[0]` has 12 rows", "spec: gru("),
    ),
    "to-flax-peephole": (
        lambda: to_flax(lstm(peephole=True), cell="linen.LSTMCell"),
        rnnop.SpecError,
        ("to_flax: `weights.peephole` is given; linen.LSTMCell has no peepholes",),
    ),
    "tvm-layout": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"], weight_layout="IFG"),
        rnnop.SpecError,
        ("from_tvm: `weight_layout` is 'IFG'; expected a permutation of IFGO",),
    ),
    "tvm-layout-twice": (
        lambda: to_tvm(lstm(), weight_layout="IFGG"),
        rnnop.SpecError,
        ("to_tvm: `weight_layout` is 'IFGG'",),
    ),
    "tvm-rows": (
        lambda: from_tvm(TVM["Wi"][:10], TVM["Wh"]),
        rnnop.ShapeError,
        ("from_tvm: `Wi` has 10 rows; expected 4 * hidden_size",),
    ),
    "tvm-Wh": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"][:, :2]),
        rnnop.ShapeError,
        ("from_tvm: `Wh` has shape (12, 2)", "= (12, 3)"),
    ),
    "tvm-proj": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"], proj=np.zeros((2, 3), np.float32)),
        rnnop.ShapeError,
        ("from_tvm: `proj` has shape (2, 3)", "(proj_size, hidden_size) = (3, 3)"),
    ),
    "tvm-one-peephole": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"], p_i=TVM["p_i"]),
        rnnop.SpecError,
        ("from_tvm: one of `p_i` and `p_f` is given without the other", "give zeros"),
    ),
    "tvm-peephole-of-one-axis": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"], p_o=TVM["p_o"][0]),
        rnnop.ShapeError,
        ("from_tvm: `p_o` has shape (3,)", "(batch_size, hidden_size)"),
    ),
    "tvm-peephole-of-the-batch": (
        lambda: from_tvm(TVM["Wi"], TVM["Wh"], p_o=TVM["p_o"] * np.float32([[1], [2]])),
        rnnop.ShapeError,
        ("from_tvm: `p_o` has 2 rows that differ", "the same row"),
    ),
    "to-tvm-two-directions": (
        lambda: to_tvm(lstm(bidirectional=True)),
        rnnop.SpecError,
        ("to_tvm: `weights` are bidirectional; TVM's LSTM has one direction",),
    ),
    "to-tvm-two-layers": (
        lambda: to_tvm(lstm(num_layers=2)),
        rnnop.SpecError,
        ("to_tvm: `weights` have 2 layers",),
    ),
    "to-tvm-gru": (
        lambda: to_tvm(gru()),
        rnnop.ShapeError,
        ("to_tvm: `weights.w_ih[0]` has 9 rows", "They look like weights for mode 'gru'"),
    ),
    "to-tvm-batch-size": (
        lambda: to_tvm(lstm(), batch_size=0),
        rnnop.SpecError,
        ("to_tvm: `batch_size` is 0; expected an integer, at least 1",),
    ),
    "mxnet-elements": (
        lambda: from_mxnet(FLAT[1:], mode="lstm", **SIZES),
        rnnop.ShapeError,
        ("from_mxnet: `parameters` has shape (83,); expected (84,)", "spec: lstm(2->3, 1 layer)"),
    ),
    "mxnet-axes": (
        lambda: from_mxnet(FLAT[None], mode="lstm", **SIZES),
        rnnop.ShapeError,
        ("from_mxnet: `parameters` has shape (1, 84); expected (84,)",),
    ),
    "mxnet-list": (
        lambda: from_mxnet(FLAT.tolist(), mode="lstm", **SIZES),
        rnnop.DTypeError,
        ("from_mxnet: `parameters` is list",),
    ),
    "mxnet-mode": (
        lambda: from_mxnet(FLAT, mode="rnn", **SIZES),
        rnnop.SpecError,
        ("from_mxnet: `mode` is 'rnn'",),
    ),
    "mxnet-size": (
        lambda: from_mxnet(FLAT, mode="lstm", input_size=2.0, hidden_size=3),  # type: ignore[arg-type]
        rnnop.SpecError,
        ("from_mxnet: `input_size` is 2.0; expected an integer",),
    ),
    "mxnet-proj-size": (
        lambda: from_mxnet(FLAT, mode="lstm", proj_size=4, **SIZES),
        rnnop.SpecError,
        ("from_mxnet: `proj_size` is 4; expected an integer, 1..hidden_size = 1..3",),
    ),
    "mxnet-proj-size-of-a-gru": (
        lambda: from_mxnet(FLAT, mode="gru", proj_size=2, **SIZES),
        rnnop.SpecError,
        ("from_mxnet: `proj_size` is given with mode 'gru'",),
    ),
    "to-mxnet-peephole": (
        lambda: to_mxnet(lstm(peephole=True), mode="lstm"),
        rnnop.SpecError,
        ("to_mxnet: `weights.peephole` is given; MXNet has no peepholes",),
    ),
    "jax-elements": (
        lambda: from_jax(FLAT, input_size=2, hidden_size=4),
        rnnop.ShapeError,
        ("from_jax: `weights` has shape (84,); expected (128,)", "spec: lstm(2->4"),
    ),
    "jax-bidirectional": (
        lambda: from_jax(FLAT, bidirectional=2, **SIZES),
        rnnop.SpecError,
        ("from_jax: `bidirectional` is 2; expected True or False",),
    ),
    "to-jax-projection": (
        lambda: to_jax(lstm(proj_size=2)),
        rnnop.SpecError,
        ("to_jax: `weights.w_hr` is given; jax.experimental.rnn has no projection",),
    ),
    "cudnn-elements": (
        lambda: from_cudnn(FLAT, mode="lstm", bias="input", **SIZES),
        rnnop.ShapeError,
        ("from_cudnn: `space` has shape (84,); expected (72,)", "bias input"),
    ),
    "cudnn-bias": (
        lambda: from_cudnn(FLAT, mode="lstm", bias="both", **SIZES),
        rnnop.SpecError,
        ("from_cudnn: `bias` is 'both'; expected one of none, input, recurrent, double",),
    ),
    "cudnn-projection-as-large-as-the-cell": (
        lambda: from_cudnn(FLAT, mode="lstm", proj_size=3, **SIZES),
        rnnop.SpecError,
        ("from_cudnn: `proj_size` is 3 and hidden_size is 3; cuDNN has proj_size < hidden_size",),
    ),
    "to-cudnn-projection-as-large-as-the-cell": (
        lambda: to_cudnn(lstm(proj_size=3), mode="lstm"),
        rnnop.SpecError,
        ("to_cudnn: `proj_size` is 3", "spec: lstm("),
    ),
    "to-cudnn-peephole": (
        lambda: to_cudnn(lstm(peephole=True), mode="lstm"),
        rnnop.SpecError,
        ("to_cudnn: `weights.peephole` is given; cuDNN has no peepholes",),
    ),
    "cudnn-size-peephole": (
        lambda: weight_space_size(rnnop.RNNSpec("lstm", 2, 3, peephole=True), 4),
        rnnop.SpecError,
        ("`weights.peephole` is given; cuDNN has no peepholes",),
    ),
    "stack-no-list": (
        lambda: stack_layers(lstm()),  # type: ignore[arg-type]
        rnnop.DTypeError,
        ("stack_layers: `layers` is RNNWeights; expected a list of RNNWeights",),
    ),
    "stack-nothing": (
        lambda: stack_layers([]),
        rnnop.ShapeError,
        ("stack_layers: `layers` has 0 entries",),
    ),
    "stack-entry": (
        lambda: stack_layers([lstm(), None]),  # type: ignore[list-item]
        rnnop.DTypeError,
        ("stack_layers: `weights` is NoneType",),
    ),
    "stack-fields": (
        lambda: stack_layers([lstm(), with_bias(lstm(), "input")]),
        rnnop.SpecError,
        ("stack_layers: `layers[1]` has w_ih, w_hh, b_ih and `layers[0]` has w_ih, w_hh, b_ih, ",),
    ),
    "stack-directions": (
        lambda: stack_layers([lstm(), lstm(bidirectional=True)]),
        rnnop.SpecError,
        ("stack_layers: `layers[1]` has 2 direction(s) and `layers[0]` has 1",),
    ),
    "split-no-weights": (
        lambda: split_layers([lstm()]),  # type: ignore[arg-type]
        rnnop.DTypeError,
        ("split_layers: `weights` is list",),
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
        ("to_onnx: `weights` have 2 layers", "split_layers", "spec: lstm("),
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
