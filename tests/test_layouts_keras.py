"""Keras's layers as the owners of their layout: outputs and every gradient, in float64.

Keras runs on PyTorch here. What a backend computes is the same; how it lays out weights, too.
"""

import os
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.layouts import from_keras, to_keras

os.environ["KERAS_BACKEND"] = "torch"  # read when Keras is first imported
torch = pytest.importorskip("torch", reason="Keras runs on PyTorch here")
keras = pytest.importorskip("keras", reason="Keras owns this layout: pip install keras")

# Keras's variables have an __array__ from before NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Array = np.ndarray[Any, np.dtype[Any]]

# Largest error as a share of the largest entry. What Keras gives to PyTorch's own LSTM and GRU is
# float64 throughout: measured at most 1.3e-15. In its own loop it rounds every product of matrices
# to float32, whatever the dtype of the layer: measured at most 3.7e-7.
FUSED, LOOP = 1e-14, 2e-6

T, N, I, H = 5, 3, 4, 3
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SimpleRNN-tanh": ("rnn_tanh", {}),
    "SimpleRNN-relu": ("rnn_relu", {"activation": "relu"}),
    "GRU-reset_after": ("gru", {"reset_after": True}),
    "GRU-reset_before": ("gru", {"reset_after": False}),
    "LSTM": ("lstm", {}),
}


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def make_layer(name: str, bidirectional: bool, **options: Any) -> Any:
    """Make a layer with random numbers everywhere, the biases too."""
    kind = getattr(keras.layers, name.partition("-")[0])
    layer = kind(
        H,
        dtype="float64",
        return_sequences=True,
        return_state=True,
        **LAYERS[name][1],
        **options,
    )
    if bidirectional:
        layer = keras.layers.Bidirectional(layer, dtype="float64")
    layer.build((N, T, I))
    layer.set_weights([random(*w.shape, seed=k) for k, w in enumerate(layer.weights)])
    return layer


def assert_agrees(actual: Any, expected: Any, name: str, tolerance: float = FUSED) -> None:
    theirs = expected.detach().numpy()
    assert actual.shape == theirs.shape, name
    assert np.abs(actual - theirs).max() <= tolerance * np.abs(theirs).max(), name


@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "nobias"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["uni", "bi"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, bidirectional: bool, use_bias: bool) -> None:
    mode, options = LAYERS[name]
    layer = make_layer(name, bidirectional, use_bias=use_bias)
    tolerance = FUSED if name in ("LSTM", "GRU-reset_after") else LOOP
    directions = 2 if bidirectional else 1
    per_direction = 2 if mode == "lstm" else 1  # h, and c of an LSTM
    x = torch.tensor(random(N, T, I, seed=20), requires_grad=True)
    states = [
        torch.tensor(random(N, H, seed=30 + k), requires_grad=True)
        for k in range(directions * per_direction)
    ]
    outputs = layer(x, initial_state=states)
    cotangents = [torch.tensor(random(*o.shape, seed=40 + k)) for k, o in enumerate(outputs)]
    parameters = [variable.value for variable in layer.weights]
    gradients = torch.autograd.grad(outputs, [x, *states, *parameters], cotangents)

    def ours(arrays: Any) -> list[Array]:
        """Stack states that stand direction by direction, as (h, c) of (D, N, H)."""
        host = [array.detach().numpy() for array in arrays]
        return [np.stack(host[k::per_direction]) for k in range(per_direction)]

    call: dict[str, Any] = {"mode": mode, "batch_first": True, "backend": "reference"}
    if mode == "gru":
        call["reset_after"] = options["reset_after"]
    weights = from_keras(layer.get_weights(), mode=mode)
    out, vjp = rnnop.rnn_vjp(x.detach().numpy(), weights, *ours(states), **call)
    assert_agrees(out.y, outputs[0], "y", tolerance)
    for k, final in enumerate(ours(outputs[1:])):
        assert_agrees(out[1 + k], torch.tensor(final), "final state", tolerance)
    grads = vjp(cotangents[0].numpy(), *ours(cotangents[1:]))
    assert_agrees(grads.x, gradients[0], "gradient of x", tolerance)
    count = len(states)
    for k, wanted in enumerate(ours(gradients[1 : 1 + count])):
        assert_agrees(
            (grads.h0, grads.c0)[k], torch.tensor(wanted), "gradient of a state", tolerance
        )
    reset_after = options.get("reset_after", True)
    made = to_keras(grads.weights, mode=mode, reset_after=reset_after)
    for one, wanted, variable in zip(made, gradients[1 + count :], layer.weights, strict=True):
        assert_agrees(one, wanted, f"gradient of {variable.path}", tolerance)

    # Back into the layer: the same bits.
    before = layer.get_weights()
    layer.set_weights(to_keras(weights, mode=mode, reset_after=reset_after))
    for one, other in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("zero", [False, True], ids=["hold", "zero"])
@pytest.mark.parametrize("name", LAYERS)
def test_masks(name: str, zero: bool) -> None:
    """Keras's mask is rnnop's, holes and empty rows too, and repeats outputs unless told not to."""
    mode, options = LAYERS[name]
    layer = make_layer(name, bidirectional=False, zero_output_for_mask=zero)
    x = random(N, T, I, seed=20)
    mask = np.array([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    outputs = layer(torch.tensor(x), mask=torch.tensor(mask))
    out = rnnop.rnn(
        x,
        from_keras(layer.get_weights(), mode=mode),
        mode=mode,
        mask=mask,
        batch_first=True,
        masked_output="zero" if zero else "hold",
        reset_after=options.get("reset_after", True),
        backend="reference",
    )
    assert_agrees(out.y, outputs[0], "y", LOOP)
    assert_agrees(out.h_n[0], outputs[1], "h_n", LOOP)


def test_go_backwards_is_reverse_with_the_steps_in_its_own_order() -> None:
    layer = make_layer("LSTM", bidirectional=False, go_backwards=True)
    x = random(N, T, I, seed=20)
    outputs = layer(torch.tensor(x))
    weights = from_keras(layer.get_weights(), mode="lstm")
    out = rnnop.rnn(x, weights, mode="lstm", batch_first=True, reverse=True, backend="reference")
    assert_agrees(out.y[:, ::-1], outputs[0], "y")


def test_the_variables_of_a_layer_stay_differentiable() -> None:
    """Torch tensors go in and come out: no NumPy in between."""
    layer = make_layer("GRU-reset_after", bidirectional=False)
    weights = from_keras([variable.value for variable in layer.weights], mode="gru")
    total = sum((array**2).sum() for _, array in weights.named())
    kernel = layer.weights[0].value
    (gradient,) = torch.autograd.grad(total, [kernel])
    assert_agrees(2 * kernel.detach().numpy(), gradient, "kernel")
