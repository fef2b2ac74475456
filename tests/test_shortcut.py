"""A call like one before it goes a shorter way, and nobody can tell but by the clock."""

from __future__ import annotations

import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cases import arrays_of

import rnnop
from rnnop import shortcut
from rnnop.cpu.engine import address

NETWORKS: dict[str, dict[str, Any]] = {
    "gru": {"mode": "gru"},
    "lstm": {"mode": "lstm", "num_layers": 2, "bidirectional": True},
    "gru_layers": {"mode": "gru", "num_layers": 4},
    "lstm_projection": {"mode": "lstm", "proj_size": 3},
    "rnn_tanh": {"mode": "rnn_tanh", "bias": False},
}


def plain(name: str, dtype: str = "float32") -> rnnop.RNNWeights:
    options = dict(NETWORKS[name])
    mode = options.pop("mode")
    return rnnop.init_weights(mode, input_size=5, hidden_size=7, seed=0, dtype=dtype, **options)


def prepacked(name: str, dtype: str = "float32") -> rnnop.PrepackedWeights:
    return rnnop.prepack(plain(name, dtype), mode=NETWORKS[name]["mode"], backend="cpu")


def long_way(*args: Any, **options: Any) -> rnnop.RNNOutput:
    """Run a call with weights that nobody has seen."""
    x, weights, *states = args
    return rnnop.rnn(x, weights.map(lambda array: array), *states, **options)


def warm(*args: Any, **options: Any) -> None:
    """Run a call until its like goes the shorter way."""
    for _ in range(2):
        rnnop.rnn(*args, **options)


def drawn(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def states(weights: rnnop.PrepackedWeights, batch_size: int, dtype: str = "float32") -> Any:
    out = rnnop.rnn(drawn(1, batch_size, 5, dtype=dtype), weights.weights, mode=weights.mode)
    return [drawn(*each.shape, dtype=dtype) for each in (out.h_n, out.c_n) if each is not None]


def bits(out: rnnop.RNNOutput) -> list[bytes]:
    return [array.tobytes() for array in arrays_of(out)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 5), (4, 3, 5), (2, 0, 5), (0, 2, 5)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_bits_are_those_of_the_long_way(name: str, shape: tuple[int, ...], dtype: str) -> None:
    weights = prepacked(name, dtype)
    mode = weights.mode
    for given in ([], states(weights, shape[1], dtype)):
        for seed in range(4):
            x = drawn(*shape, seed=seed, dtype=dtype)
            wanted = long_way(x, weights.weights, *given, mode=mode, backend="cpu")
            for each in (weights, weights.weights):
                got = rnnop.rnn(x, each, *given, mode=mode, backend="cpu")
                assert bits(got) == bits(wanted)
                assert [array.shape for array in arrays_of(got)] == [
                    array.shape for array in arrays_of(wanted)
                ]


@pytest.mark.parametrize("make", [plain, prepacked])
def test_it_is_taken(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, x = make("gru"), drawn(2, 3, 5)
    warm(x, weights, mode="gru")
    monkeypatch.setattr(rnnop.api, "_forward", None)  # the long way is closed
    assert rnnop.rnn(x, weights, mode="gru").y.shape == (2, 3, 7)
    assert rnnop.rnn(x, weights, h0=drawn(1, 3, 7), mode="gru").y.shape == (2, 3, 7)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"h0": np.zeros((1, 2, 7), np.float32)}, rnnop.ShapeError),
        ({"h0": np.zeros((1, 3, 7))}, rnnop.DTypeError),
        ({"h0": [[0.0] * 7] * 3}, rnnop.DTypeError),
        ({"c0": np.zeros((1, 3, 7), np.float32)}, rnnop.SpecError),
        ({"reset_after": 1}, rnnop.SpecError),
        ({"modes": "gru"}, TypeError),
        ({"backend": "fpga"}, rnnop.SpecError),
    ],
)
def test_what_is_wrong_is_refused_as_ever(options: dict[str, Any], error: type) -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    warm(x, weights, mode="gru", reset_after=True)
    with pytest.raises(error) as long:
        long_way(x, weights.weights, **{"mode": "gru", **options})
    with pytest.raises(error) as short:
        rnnop.rnn(x, weights, **{"mode": "gru", **options})
    assert str(short.value) == str(long.value)


def test_other_states_go_the_long_way() -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    h0 = drawn(1, 3, 7)
    warm(x, weights, h0, mode="gru")
    wanted = bits(rnnop.rnn(x, weights, h0, mode="gru"))
    for other in (np.asfortranarray(h0), np.repeat(h0, 2, axis=2)[:, :, ::2]):
        assert not other.flags.c_contiguous
        assert bits(rnnop.rnn(x, weights, other, mode="gru")) == wanted
    for other in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]):
        assert bits(rnnop.rnn(other, weights, h0, mode="gru")) == wanted


def test_outputs_are_fresh_and_zeros_stay_zeros() -> None:
    weights, x = prepacked("lstm"), drawn(2, 3, 5)
    first = rnnop.rnn(x, weights, mode="lstm")
    before = bits(first)
    for _ in range(3):
        again = rnnop.rnn(x, weights, mode="lstm")
        assert bits(again) == before
        for array in arrays_of(again):
            assert array.flags.writeable
            array[...] = np.nan
    assert bits(first) == before


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    warm(x, weights, mode="gru")
    monkeypatch.setenv("RNNOP_BACKEND", "reference")
    key, known = shortcut.key(x, weights, {"mode": "gru"}), shortcut.among(weights)
    assert known
    assert key not in known
    warm(x, weights, mode="gru")
    assert known[key] is None  # the reference has none
    monkeypatch.setenv("RNNOP_CPU_ISA", "mips")
    with pytest.raises(rnnop.SpecError, match="RNNOP_CPU_ISA"):
        rnnop.rnn(x, weights, mode="gru", backend="cpu")


def test_a_warning_is_given_each_time() -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    for _ in range(3):
        with pytest.warns(UserWarning, match="single layer"):
            rnnop.rnn(x, weights, mode="gru", dropout=0.5)


def test_what_has_no_hash_goes_the_long_way() -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    for _ in range(3):
        out = rnnop.rnn(x, weights, mode="gru", lengths=[2, 0, 1])
        assert (out.y[:, 1] == 0).all()
        rnnop.rnn(x, weights, mode="gru", gate_clip=(-1, 1))
    assert not shortcut.among(weights)


def test_few_are_kept() -> None:
    weights = prepacked("gru")
    for batch_size in range(200):
        warm(drawn(1, batch_size, 5), weights, mode="gru")
    assert 0 < len(shortcut.among(weights)) <= 64


def test_weights_changed_in_place_are_seen() -> None:
    weights, x = plain("lstm_projection"), drawn(2, 3, 5)
    warm(x, weights, mode="lstm")
    before = rnnop.rnn(x, weights, mode="lstm")
    for _, array in weights.named():
        array *= 2
    after = rnnop.rnn(x, weights, mode="lstm")
    assert bits(after) == bits(long_way(x, weights, mode="lstm")) != bits(before)


def test_weights_that_lie_otherwise_go_the_long_way() -> None:
    weights, x = plain("gru"), drawn(2, 3, 5)
    for other in (weights.map(np.asfortranarray), weights.map(lambda a: a.astype("float16"))):
        y = x.astype(other.w_ih[0].dtype)
        warm(y, other, mode="gru")
        assert bits(rnnop.rnn(y, other, mode="gru")) == bits(long_way(y, other, mode="gru"))
        assert list(shortcut.among(other).values()) == [None]


def test_weights_can_be_forgotten_and_copied() -> None:
    weights, x = plain("gru"), drawn(2, 3, 5)
    warm(x, weights, mode="gru")
    copy = pickle.loads(pickle.dumps(weights))
    assert bits(rnnop.rnn(x, copy, mode="gru")) == bits(rnnop.rnn(x, weights, mode="gru"))
    gone = weakref.ref(weights)
    del weights
    gc.collect()
    assert gone() is None


def test_threads_share_a_shortcut() -> None:
    weights = plain("lstm")
    inputs = [drawn(6, 3, 5, seed=seed) for seed in range(8)]
    warm(inputs[0], weights, mode="lstm")
    wanted = [bits(long_way(x, weights, mode="lstm")) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            found = pool.map(lambda x: bits(rnnop.rnn(x, weights, mode="lstm")), inputs)
            assert list(found) == wanted


def test_an_address_is_what_numpy_says() -> None:
    for array in (np.empty(0), np.ones((2, 3), np.float16)[1:], np.broadcast_to(1.0, (3,))):
        assert address(array) == array.ctypes.data
