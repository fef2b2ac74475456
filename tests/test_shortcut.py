"""A call like one before it goes a shorter way, and nobody can tell but by the clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import arrays_of

import rnnop
from rnnop import shortcut

NETWORKS: dict[str, dict[str, Any]] = {
    "gru": {"mode": "gru"},
    "lstm": {"mode": "lstm", "num_layers": 2, "bidirectional": True},
    "lstm_projection": {"mode": "lstm", "proj_size": 3},
    "rnn_tanh": {"mode": "rnn_tanh", "bias": False},
}


def prepacked(name: str, dtype: str = "float32") -> rnnop.PrepackedWeights:
    options = dict(NETWORKS[name])
    mode = options.pop("mode")
    weights = rnnop.init_weights(mode, input_size=5, hidden_size=7, seed=0, dtype=dtype, **options)
    return rnnop.prepack(weights, mode=mode, backend="cpu")


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
    for given in ([], states(weights, shape[1], dtype)):
        for seed in range(3):
            x = drawn(*shape, seed=seed, dtype=dtype)
            got = rnnop.rnn(x, weights, *given, mode=weights.mode)
            wanted = rnnop.rnn(x, weights.weights, *given, mode=weights.mode, backend="cpu")
            assert bits(got) == bits(wanted)
            assert [each.shape for each in arrays_of(got)] == [
                each.shape for each in arrays_of(wanted)
            ]


def test_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    rnnop.rnn(x, weights, mode="gru")
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
    rnnop.rnn(x, weights, mode="gru", reset_after=True)
    with pytest.raises(error) as long:
        rnnop.rnn(x, weights.weights, **{"mode": "gru", **options})
    with pytest.raises(error) as short:
        rnnop.rnn(x, weights, **{"mode": "gru", **options})
    assert str(short.value) == str(long.value)


def test_other_states_go_the_long_way() -> None:
    weights, x = prepacked("gru"), drawn(2, 3, 5)
    h0 = drawn(1, 3, 7)
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
    rnnop.rnn(x, weights, mode="gru")
    monkeypatch.setenv("RNNOP_BACKEND", "reference")
    key = shortcut.key(x, weights, {"mode": "gru"})
    assert key not in weights.shortcuts
    rnnop.rnn(x, weights, mode="gru")
    assert weights.shortcuts[key] is None  # the reference has none
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
    assert not weights.shortcuts


def test_few_are_kept() -> None:
    weights = prepacked("gru")
    for batch_size in range(200):
        rnnop.rnn(drawn(1, batch_size, 5), weights, mode="gru")
    assert len(weights.shortcuts) <= 64
