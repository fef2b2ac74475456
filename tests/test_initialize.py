"""Fresh weights: the distributions of PyTorch, Keras and Flax, and the seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cases import DTYPES, NUM_GATES

import rnnop

Array = np.ndarray[Any, np.dtype[Any]]

I, H, P = 24, 40, 10


def make(mode: str = "lstm", **options: Any) -> rnnop.RNNWeights:
    sizes: dict[str, Any] = {"input_size": I, "hidden_size": H, "seed": 0, "dtype": "float64"}
    return rnnop.init_weights(mode, **sizes | options)


def named(weights: rnnop.RNNWeights) -> dict[str, Array]:
    return dict(weights.named())


@pytest.mark.parametrize("mode", NUM_GATES)
def test_shapes(mode: str) -> None:
    rows = NUM_GATES[mode] * H
    w = named(make(mode, num_layers=2, bidirectional=True))
    assert {name: array.shape for name, array in w.items()} == {
        **{f"w_ih[{k}]": (rows, I if k < 2 else 2 * H) for k in range(4)},
        **{f"w_hh[{k}]": (rows, H) for k in range(4)},
        **{f"{name}[{k}]": (rows,) for name in ("b_ih", "b_hh") for k in range(4)},
    }


def test_shapes_of_the_rest() -> None:
    w = named(make(num_layers=2, bias=False, proj_size=P, peephole=True))
    assert {name: array.shape for name, array in w.items()} == {
        "w_ih[0]": (4 * H, I),
        "w_ih[1]": (4 * H, P),
        **{f"w_hh[{k}]": (4 * H, P) for k in (0, 1)},
        **{f"w_hr[{k}]": (P, H) for k in (0, 1)},
        **{f"peephole[{k}]": (3, H) for k in (0, 1)},
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    for given in (dtype, DTYPES[dtype]):
        w = make(dtype=given)
        assert all(array.dtype == DTYPES[dtype] for _, array in w.named())
        exact = named(make())
        for name, array in w.named():
            np.testing.assert_array_equal(array, exact[name].astype(DTYPES[dtype]))


def test_float32_is_the_default() -> None:
    assert rnnop.init_weights("gru", input_size=1, hidden_size=1).w_ih[0].dtype == np.float32


@pytest.mark.parametrize("scheme", ["pytorch", "keras", "flax"])
def test_seeds(scheme: str) -> None:
    one, again, other = (named(make(scheme=scheme, seed=seed)) for seed in (1, 1, np.int64(2)))
    unseeded = [make(scheme=scheme, seed=None).w_ih[0] for _ in range(2)]
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    assert np.all(one["w_ih[0]"] != other["w_ih[0]"])
    assert np.all(unseeded[0] != unseeded[1])


def assert_uniform(array: Array, bound: float) -> None:
    """Fail unless the entries fill -bound..bound evenly."""
    assert np.abs(array).max() <= bound
    shares = np.histogram(array, bins=4, range=(-bound, bound))[0] / array.size
    assert np.abs(shares - 0.25).max() < 5.0 * math.sqrt(0.25 * 0.75 / array.size)


def assert_orthonormal(columns: Array) -> None:
    np.testing.assert_allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-13)


def test_pytorch() -> None:
    for array in named(make(proj_size=P, peephole=True)).values():
        assert_uniform(array, 1.0 / math.sqrt(H))


def test_keras() -> None:
    w = named(make(scheme="keras", proj_size=P, peephole=True))
    assert_uniform(w["w_ih[0]"], math.sqrt(6.0 / (4 * H + I)))
    assert_uniform(w["w_hr[0]"], math.sqrt(6.0 / (P + H)))
    assert_orthonormal(w["w_hh[0]"])
    assert np.all(w["peephole[0]"] == 0.0)
    b_ih = w["b_ih[0]"].reshape(4, H)
    assert np.all(b_ih[1] == 1.0)  # the forget gate
    assert np.all(b_ih[[0, 2, 3]] == 0.0)
    assert np.all(w["b_hh[0]"] == 0.0)
    assert np.all(make("gru", scheme="keras").b_ih[0] == 0.0)


def test_flax() -> None:
    w = named(make(scheme="flax", proj_size=P, peephole=True))
    for name, fan_in in (("w_ih[0]", I), ("w_hr[0]", H)):
        normal = w[name] * math.sqrt(fan_in)
        assert np.abs(normal).max() <= 2.0 / 0.87962566
        assert abs(normal.mean()) < 5.0 / math.sqrt(normal.size)
        assert abs(normal.var() - 1.0) < 5.0 * math.sqrt(2.0 / normal.size)
    for gate in w["w_hh[0]"].reshape(4, H, P):
        assert_orthonormal(gate)
    for name in ("b_ih[0]", "b_hh[0]", "peephole[0]"):
        assert np.all(w[name] == 0.0)


def test_a_square_is_orthogonal_both_ways() -> None:
    square = make("rnn_tanh", scheme="keras").w_hh[0]
    assert_orthonormal(square)
    assert_orthonormal(square.T)


def test_orthogonal_matrices_have_no_favourite_direction() -> None:
    """Without the sign of R's diagonal, an entry of the first column is never positive."""
    entries = [make("rnn_tanh", scheme="keras", seed=seed).w_hh[0][0, 0] for seed in range(40)]
    assert 8 < sum(entry > 0.0 for entry in entries) < 32
