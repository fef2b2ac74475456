"""The LSTM of `jax.experimental.rnn` as the owner of its flat vector: outputs and all gradients."""

from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.layouts import from_jax, to_jax

jax = pytest.importorskip("jax", reason="JAX owns this layout: pip install rnnop[jax]")
rnn = pytest.importorskip("jax.experimental.rnn", reason="this jax has no jax.experimental.rnn")

Array = np.ndarray[Any, np.dtype[Any]]

# Largest error as a share of the largest entry, both sides in float64: measured at most 8.5e-16.
TOLERANCE = 1e-14

T, N, I, H = 4, 3, 3, 2


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def assert_agrees(actual: Any, expected: Any, name: str) -> None:
    theirs = np.asarray(expected)
    assert actual.shape == theirs.shape, name
    assert np.abs(actual - theirs).max() <= TOLERANCE * np.abs(theirs).max(), name


@pytest.mark.slow
@pytest.mark.parametrize(("num_layers", "bidirectional"), [(1, False), (2, False), (2, True)])
def test_lstm(num_layers: int, bidirectional: bool) -> None:
    sizes = (I, H, num_layers, bidirectional)
    count = rnn.get_num_params_in_lstm(*sizes)
    directions = 2 if bidirectional else 1
    states = num_layers * directions
    arguments = (
        random(N, T, I, seed=0),
        random(states, N, H, seed=1),
        random(states, N, H, seed=2),
        random(count, seed=3),
    )
    lengths = np.array([T, 1, T - 1], np.int32)

    def owner(x: Any, h0: Any, c0: Any, flat: Any) -> Any:
        parts = rnn.unpack_lstm_weights(flat, *sizes)
        return rnn.lstm_ref(x, h0, c0, *parts, lengths, I, H, num_layers, 0.0, bidirectional)

    shapes = ((N, T, directions * H), *(state.shape for state in arguments[1:3]))
    cotangents = [random(*shape, seed=10 + k) for k, shape in enumerate(shapes)]

    @jax.jit
    def outputs_and_gradients(*inputs: Any) -> Any:
        outputs, pullback = jax.vjp(owner, *inputs)
        return outputs, pullback(tuple(map(jax.numpy.asarray, cotangents)))

    with jax.enable_x64(True):
        expected, gradients = outputs_and_gradients(*map(jax.numpy.asarray, arguments))

    x, h0, c0, flat = arguments
    weights = from_jax(
        flat,
        input_size=I,
        hidden_size=H,
        num_layers=num_layers,
        bidirectional=bidirectional,
    )
    out, vjp = rnnop.rnn_vjp(
        x, weights, h0, c0, mode="lstm", lengths=lengths, batch_first=True, backend="reference"
    )
    for name, ours, theirs in zip(("y", "h_n", "c_n"), out, expected, strict=False):
        assert_agrees(ours, theirs, name)
    grads = vjp(*cotangents)
    made = (grads.x, grads.h0, grads.c0, to_jax(grads.weights))
    for name, ours, theirs in zip(("x", "h0", "c0", "weights"), made, gradients, strict=True):
        assert_agrees(ours, theirs, f"gradient of {name}")
    np.testing.assert_array_equal(to_jax(weights), flat)


def test_it_can_be_jitted_and_differentiated() -> None:
    sizes = {"input_size": I, "hidden_size": H, "num_layers": 2, "bidirectional": True}
    flat = jax.numpy.asarray(random(rnn.get_num_params_in_lstm(*sizes.values()), seed=0))

    def there_and_back(vector: Any) -> Any:
        return to_jax(from_jax(vector, **sizes))

    np.testing.assert_array_equal(jax.jit(there_and_back)(flat), flat)
    gradient = jax.grad(lambda vector: (there_and_back(vector) ** 2).sum())(flat)
    np.testing.assert_array_equal(gradient, 2 * flat)
