"""cuDNN's own dropout, through the stand-in: reproducible by its seed, and seeded seldom."""

from __future__ import annotations

import warnings
from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from agreement import gradients_of, outputs_of
from cases import CORE, Array, Call, Case, flat, widened
from cudnn_on_host import Double
from differences import assert_gradient_along
from test_cudnn import draws, reasons

import rnnop
from rnnop.cudnn import pieces

DRAWN = [case for case in CORE if draws(case) and not reasons(case)]


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


def copies(width: int, bidirectional: bool = False) -> rnnop.RNNWeights:
    """Return two layers that hand on what is positive: of ones, y shows the mask between them.

    The second layer adds up the directions below it.
    """
    directions = 2 if bidirectional else 1
    one, none = np.eye(width), np.zeros((width, width))
    above = np.concatenate([one] * directions, axis=1)
    w_ih = (one,) * directions + (above,) * directions
    return rnnop.RNNWeights(w_ih, (none,) * len(w_ih), bidirectional=bidirectional)


def masked(seed: int | None, rate: float = 0.3, shape: tuple[int, ...] = (20, 8, 16)) -> Array:
    """Return (T, N, F), 0 where an output was dropped and its factor where it was kept."""
    out = rnnop.rnn(
        np.ones(shape),
        copies(shape[-1]),
        **{"mode": "rnn_relu", "dropout": rate, "training": True, "seed": seed},
        backend="cudnn",
    )
    array: Array = out.y
    return array


def bits(named: dict[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in named.items()}


# What is drawn


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_the_rate_says_and_the_others_scaled(rate: float) -> None:
    y = masked(1, rate)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)  # cuDNN has it in float32
    assert abs(np.mean(y == 0) - rate) < 4 * np.sqrt(rate * (1 - rate) / y.size)


def test_the_gradient_goes_where_the_values_went() -> None:
    x, dy = np.ones((7, 3, 5)), np.random.default_rng(0).standard_normal((7, 3, 5))
    options: dict[str, Any] = {"mode": "rnn_relu", "dropout": 0.4, "training": True, "seed": 3}
    out, vjp = rnnop.rnn_vjp(x, copies(5), **options, backend="cudnn")
    np.testing.assert_array_equal(vjp(dy).x, out.y * dy)


def test_each_direction_draws_its_own() -> None:
    x = np.ones((9, 4, 6))
    options: dict[str, Any] = {"mode": "rnn_relu", "dropout": 0.5, "training": True, "seed": 5}
    y = rnnop.rnn(x, copies(6, bidirectional=True), **options, backend="cudnn").y
    assert set(np.unique(y)) == {0.0, 2.0, 4.0}
    assert np.any(y[:, :, :6] != y[:, :, 6:])


@pytest.mark.parametrize("most", [100, 2])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in DRAWN])
def test_the_gradients_are_those_of_the_outputs(
    case: Case, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By central differences at one seed, with many steps and segments in a call and with few."""
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", str(most))
    if case.D == 1:  # both directions over many steps run apart, with masks that rnnop draws
        monkeypatch.setattr(pieces, "MOST_STEPS", most)
    call, cotangents = widened(case.call()), case.cotangents()
    _, vjp = call.rnn_vjp(backend="cudnn")
    grads = gradients_of(vjp(**cotangents))
    leaves = call.leaves()
    weights = outputs_of(call.rnn(backend="cudnn"))
    names = {"y": "dy", "h_n": "dh_n", "c_n": "dc_n"}
    cotangent = flat([cotangents[names[name]] for name in weights])

    def moved(name: str, at: Array) -> Call:
        sizes = np.cumsum([array.size for array in leaves[name]])[:-1]
        parts = zip(np.split(at, sizes), leaves[name], strict=True)
        return call.with_leaves({name: [part.reshape(array.shape) for part, array in parts]})

    for name, arrays in leaves.items():
        at = flat(arrays)

        def terms(at: Array, name: str = name) -> Array:
            out = outputs_of(moved(name, at).rnn(backend="cudnn"))
            return flat(list(out.values())) * cotangent

        direction = case.random(f"direction {name}").standard_normal(at.shape)
        assert_gradient_along(name, grads[f"d{name}"], terms, at, direction)


# By a seed


def test_a_seed_gives_the_same_bits_whatever_ran_before() -> None:
    first = masked(1)
    assert masked(1).tobytes() == first.tobytes()
    others = [masked(2), masked(2**63 + 1), masked(None)]
    masked(7, rate=0.6, shape=(3, 2, 2))
    assert masked(1).tobytes() == first.tobytes()
    assert all(other.tobytes() != first.tobytes() for other in others)
    assert len({array.tobytes() for array in others}) == 3


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in DRAWN])
def test_a_forward_alone_drops_what_a_forward_for_a_backward_drops(case: Case) -> None:
    call = case.call("float32")
    alone, before = call.rnn(backend="cudnn"), call.rnn_vjp(backend="cudnn")[0]
    assert bits(outputs_of(alone)) == bits(outputs_of(before))


def test_a_seed_gives_the_same_bits_in_every_layout_and_from_either_group_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case("lstm", "lengths", "2-both", dropout="seed")
    packed = outputs_of(case.call().rnn(backend="cudnn"))
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    assert bits(outputs_of(case.call().rnn(backend="cudnn"))) == bits(packed)
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", "1")
    groups = [bits(outputs_of(case.call().rnn(backend="cudnn"))) for _ in range(3)]
    assert groups[0] == groups[1] == groups[2]


def test_without_a_seed_every_call_draws_anew() -> None:
    assert len({masked(None).tobytes() for _ in range(5)}) == 5


# What it costs


def test_the_states_are_made_once_and_seeded_when_the_seed_changes(double: Double) -> None:
    alive = double.live("rnn")
    counts = []
    for seed in (1, 1, 1, 2, 2, 1, None, None):
        masked(seed)
        counts.append(double.calls("cudnnSetDropoutDescriptor"))
    assert counts == [1, 1, 1, 2, 2, 3, 3, 3]
    assert double.calls("cudnnRestoreDropoutDescriptor") == 5
    assert double.calls("cudnnDropoutGetStatesSize") == 1
    masked(1, rate=0.7)
    masked(1, shape=(2, 3, 4))
    assert double.calls("cudnnDropoutGetStatesSize") == 1
    assert double.calls("cudnnSetDropoutDescriptor") == 3
    assert double.live("rnn") == alive  # no plan is kept with its dropout


def test_each_stream_has_states_of_its_own(double: Double) -> None:
    first = masked(1)
    double.memory.current = 4096
    assert masked(1).tobytes() == first.tobytes()
    assert double.calls("cudnnDropoutGetStatesSize") == 2


@pytest.mark.parametrize(
    ("stack", "how"),
    [
        ("2-both", {"training": False, "dropout": 0.4}),
        ("2-both", {"training": True, "dropout": 0.0}),
        ("1-both", {"training": True, "dropout": 0.4}),  # one layer
    ],
)
def test_where_nothing_is_dropped_there_is_no_generator(
    stack: str, how: dict[str, Any], double: Double
) -> None:
    call = Case("lstm", "lengths", stack).call()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dropout=0.4 has no effect on a single layer")
        out = call.rnn(**how, seed=1, backend="cudnn")
    assert bits(outputs_of(out)) == bits(outputs_of(call.rnn(backend="cudnn")))
    assert double.calls("cudnnDropoutGetStatesSize") == 0
    assert double.calls("cudnnCreateDropoutDescriptor") == 0
