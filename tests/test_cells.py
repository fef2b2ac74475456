"""Each cell by hand: numbers that can be followed with a pocket calculator.

Every gate has weights of its own, so that two gates in the wrong order, or a weight in the wrong
place, cannot give the same number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from differences import assert_gradient

import rnnop

Array = np.ndarray[Any, np.dtype[np.float64]]

CLOSE = 1e-14

rnn = functools.partial(rnnop.rnn, backend="reference")
rnn_vjp = functools.partial(rnnop.rnn_vjp, backend="reference")


def s(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def column(*numbers: float) -> tuple[Array]:
    """Return weights of one input: the matrix of a single pseudo-layer."""
    return (np.array(numbers)[:, None],)


def vector(*numbers: float) -> tuple[Array]:
    return (np.array(numbers),)


def step(
    x: float, weights: rnnop.RNNWeights, h0: float = 0.0, c0: float | None = None, **options: Any
) -> rnnop.RNNOutput:
    """Run one step of one row of a network with a single unit."""
    state = None if c0 is None else np.array([[[c0]]])
    return rnn(np.array([[[x]]]), weights, np.array([[[h0]]]), state, **options)


# Plain RNN


@pytest.mark.parametrize(
    ("mode", "act"), [("rnn_tanh", math.tanh), ("rnn_relu", lambda a: max(a, 0.0))]
)
@pytest.mark.parametrize("x", [2.0, -2.0])
def test_rnn(mode: str, act: Callable[[float], float], x: float) -> None:
    weights = rnnop.RNNWeights(column(0.3), column(-0.5), vector(0.07), vector(0.11))
    out = step(x, weights, 0.8, mode=mode)
    # 0.3 x + 0.07 - 0.5 * 0.8 + 0.11
    assert out.y.item() == pytest.approx(act(0.3 * x + 0.07 - 0.4 + 0.11), abs=CLOSE)
    assert out.h_n.item() == out.y.item()
    assert out.c_n is None
    assert out.c is None


def test_rnn_relu_of_a_negative_number_is_zero() -> None:
    assert step(-1.0, rnnop.RNNWeights(column(1.0), column(1.0)), mode="rnn_relu").y.item() == 0.0


# GRU

GRU = rnnop.RNNWeights(
    column(0.3, -0.6, 0.9), column(0.5, 0.2, -0.7), vector(0.01, 0.02, 0.03), vector(0.1, 0.2, 0.4)
)


def test_gru_with_reset_after() -> None:
    x, h = 1.5, 0.8
    r = s(0.3 * x + 0.01 + 0.5 * h + 0.1)
    z = s(-0.6 * x + 0.02 + 0.2 * h + 0.2)
    n = math.tanh(0.9 * x + 0.03 + r * (-0.7 * h + 0.4))
    out = step(x, GRU, h, mode="gru")
    assert out.y.item() == pytest.approx((1 - z) * n + z * h, abs=CLOSE)
    # r = s(0.96) = 0.7231, z = s(-0.52) = 0.3729, n = tanh(1.2643) = 0.8522
    assert out.y.item() == pytest.approx(0.83275, abs=5e-5)


def test_gru_with_reset_before() -> None:
    x, h = 1.5, 0.8
    r = s(0.3 * x + 0.01 + 0.5 * h + 0.1)
    z = s(-0.6 * x + 0.02 + 0.2 * h + 0.2)
    n = math.tanh(0.9 * x + 0.03 - 0.7 * (r * h) + 0.4)
    out = step(x, GRU, h, mode="gru", reset_after=False)
    assert out.y.item() == pytest.approx((1 - z) * n + z * h, abs=CLOSE)
    # n = tanh(1.3751) = 0.8799
    assert out.y.item() == pytest.approx(0.85010, abs=5e-5)


def test_gru_without_weights_keeps_half() -> None:
    zeros = rnnop.RNNWeights(column(0.0, 0.0, 0.0), column(0.0, 0.0, 0.0))
    for reset_after in (True, False):
        out = step(3.0, zeros, 0.8, mode="gru", reset_after=reset_after)
        assert out.y.item() == 0.4  # z = 1/2, n = 0


def test_gru_with_two_units() -> None:
    """Unit 0 and unit 1 of each gate lie side by side: rows r0 r1 z0 z1 n0 n1."""
    w = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    R = [[0.1, -0.2], [0.3, -0.4], [0.5, -0.6], [0.7, -0.8], [0.9, -1.0], [1.1, -1.2]]
    b = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    x, h = 0.7, [0.4, -0.3]
    q = [row[0] * h[0] + row[1] * h[1] for row in R]
    wanted = []
    for unit in (0, 1):
        r = s(w[unit] * x + q[unit] + b[unit])
        z = s(w[2 + unit] * x + q[2 + unit] + b[2 + unit])
        n = math.tanh(w[4 + unit] * x + r * (q[4 + unit] + b[4 + unit]))
        wanted.append((1 - z) * n + z * h[unit])
    weights = rnnop.RNNWeights(column(*w), (np.array(R),), b_hh=vector(*b))
    out = rnn(np.array([[[x]]]), weights, np.array([[h]]), mode="gru")
    np.testing.assert_allclose(out.y[0, 0], wanted, rtol=0, atol=CLOSE)


# LSTM

LSTM = rnnop.RNNWeights(
    column(0.3, -0.6, 0.9, 0.4),
    column(0.5, 0.2, -0.7, 0.8),
    vector(0.01, 0.02, 0.03, 0.04),
    vector(0.1, 0.2, 0.4, 0.3),
)
X, H0, C0 = 1.5, 0.8, -0.9
A_I = 0.3 * X + 0.01 + 0.5 * H0 + 0.1  # 0.96
A_F = -0.6 * X + 0.02 + 0.2 * H0 + 0.2  # -0.52
A_G = 0.9 * X + 0.03 - 0.7 * H0 + 0.4  # 1.22
A_O = 0.4 * X + 0.04 + 0.8 * H0 + 0.3  # 1.58


def with_peephole(p_i: float, p_f: float, p_o: float) -> rnnop.RNNWeights:
    return rnnop.RNNWeights(
        LSTM.w_ih, LSTM.w_hh, LSTM.b_ih, LSTM.b_hh, peephole=column(p_i, p_f, p_o)
    )


def lstm(
    c0: float = C0, weights: rnnop.RNNWeights = LSTM, x: float = X, **options: Any
) -> tuple[float, float]:
    """Return h and c after one step."""
    out = step(x, weights, H0, c0, mode="lstm", return_cell_states=True, **options)
    assert out.c.item() == out.c_n.item() or math.isnan(out.c.item())
    assert out.y.item() == out.h_n.item() or math.isnan(out.y.item())
    return out.y.item(), out.c_n.item()


def test_lstm() -> None:
    c = s(A_F) * C0 + s(A_I) * math.tanh(A_G)
    h, c_n = lstm()
    assert c_n == pytest.approx(c, abs=CLOSE)
    assert h == pytest.approx(s(A_O) * math.tanh(c), abs=CLOSE)
    # i = 0.7231, f = 0.3729, g = 0.8397, o = 0.8292: c = -0.3356 + 0.6072
    assert c_n == pytest.approx(0.2716, abs=5e-5)
    assert h == pytest.approx(0.2198, abs=5e-5)


def test_lstm_without_weights() -> None:
    zeros = rnnop.RNNWeights(column(0.0, 0.0, 0.0, 0.0), column(0.0, 0.0, 0.0, 0.0))
    h, c_n = lstm(weights=zeros, c0=1.0)
    assert c_n == 0.5
    assert h == pytest.approx(0.5 * math.tanh(0.5), abs=CLOSE)


def test_lstm_with_two_units() -> None:
    """Unit 0 and unit 1 of each gate lie side by side: rows i0 i1 f0 f1 g0 g1 o0 o1."""
    w = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    R = [[0.1 * k, 0.05 - 0.2 * k] for k in range(8)]
    x, h, c = 0.7, [0.4, -0.3], [0.6, -0.2]
    a = [w[k] * x + R[k][0] * h[0] + R[k][1] * h[1] for k in range(8)]
    c_t = [s(a[2 + u]) * c[u] + s(a[u]) * math.tanh(a[4 + u]) for u in (0, 1)]
    h_t = [s(a[6 + u]) * math.tanh(c_t[u]) for u in (0, 1)]
    weights = rnnop.RNNWeights(column(*w), (np.array(R),))
    out = rnn(np.array([[[x]]]), weights, np.array([[h]]), np.array([[c]]), mode="lstm")
    np.testing.assert_allclose(out.y[0, 0], h_t, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(out.c_n[0, 0], c_t, rtol=0, atol=CLOSE)


def test_lstm_peepholes() -> None:
    """The gates i and f look at the state before the step, o at the one after it."""
    p_i, p_f, p_o = 0.25, -0.35, 0.45
    c = s(A_F + p_f * C0) * C0 + s(A_I + p_i * C0) * math.tanh(A_G)
    h, c_n = lstm(weights=with_peephole(p_i, p_f, p_o))
    assert c_n == pytest.approx(c, abs=CLOSE)
    assert h == pytest.approx(s(A_O + p_o * c) * math.tanh(c), abs=CLOSE)


def test_lstm_projection() -> None:
    """Two units projected to one number, which is what R sees at the next step."""
    w = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    R = [0.5, -0.5, 0.4, -0.4, 0.3, -0.3, 0.2, -0.2]
    project = [1.5, -0.7]
    xs, h, c = [0.7, -1.1], 0.6, [0.3, -0.2]
    wanted = []
    for x in xs:
        a = [w[k] * x + R[k] * h for k in range(8)]
        c = [s(a[2 + u]) * c[u] + s(a[u]) * math.tanh(a[4 + u]) for u in (0, 1)]
        m = [s(a[6 + u]) * math.tanh(c[u]) for u in (0, 1)]
        h = project[0] * m[0] + project[1] * m[1]
        wanted.append(h)
    weights = rnnop.RNNWeights(column(*w), column(*R), w_hr=(np.array([project]),))
    x = np.array(xs)[:, None, None]
    out = rnn(x, weights, np.full((1, 1, 1), 0.6), np.array([[[0.3, -0.2]]]), mode="lstm")
    np.testing.assert_allclose(out.y[:, 0, 0], wanted, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(out.c_n[0, 0], c, rtol=0, atol=CLOSE)
    assert out.h_n.shape == (1, 1, 1)


def test_lstm_input_forget() -> None:
    """f is 1 - i, whatever the weights of f."""
    i = s(A_I)
    c = (1 - i) * C0 + i * math.tanh(A_G)
    h, c_n = lstm(input_forget=True)
    assert c_n == pytest.approx(c, abs=CLOSE)
    assert h == pytest.approx(s(A_O) * math.tanh(c), abs=CLOSE)


# The three clips


def test_cell_clip_bounds_the_state_as_it_is_read_and_returned() -> None:
    low, high = (
        -0.5,
        0.125,
    )  # both are float32 numbers; c0 = -0.9 lies below, c after the step above
    c = s(A_F) * low + s(A_I) * math.tanh(A_G)
    assert c > high
    h, c_n = lstm(cell_clip=(low, high))
    assert c_n == high
    assert h == pytest.approx(s(A_O) * math.tanh(high), abs=CLOSE)


def test_cell_clip_bounds_what_peepholes_see() -> None:
    low, high, p_i, p_f, p_o = -0.5, 0.125, 0.25, -0.35, 0.45
    c = s(A_F + p_f * low) * low + s(A_I + p_i * low) * math.tanh(A_G)
    assert c > high
    h, _ = lstm(weights=with_peephole(p_i, p_f, p_o), cell_clip=(low, high))
    assert h == pytest.approx(s(A_O + p_o * high) * math.tanh(high), abs=CLOSE)
    low, high = -0.5, 4.0  # the same, with nothing to clip after the step
    h, c_n = lstm(weights=with_peephole(p_i, p_f, p_o), cell_clip=(low, high))
    assert c_n == pytest.approx(c, abs=CLOSE)
    assert h == pytest.approx(s(A_O + p_o * c) * math.tanh(c), abs=CLOSE)


def test_cell_clip_by_one_number_is_symmetric() -> None:
    assert lstm(cell_clip=0.125) == lstm(cell_clip=(-0.125, 0.125))
    assert lstm(c0=5.0, cell_clip=0.125)[1] == 0.125
    assert lstm(c0=-50.0, weights=LSTM, cell_clip=0.0625, x=-9.0)[1] == -0.0625


def test_cell_clip_rounds_its_bounds_to_float32() -> None:
    assert lstm(cell_clip=0.1)[1] == float(np.float32(0.1)) != 0.1


def test_cell_clip_bounds_a_state_that_no_step_reads() -> None:
    x, state = np.ones((1, 2, 1)), np.full((1, 2, 1), 7.0)
    out = rnn(x, LSTM, state, state, mode="lstm", lengths=[0, 1], cell_clip=(-0.5, 0.25))
    assert out.c_n[0, 0, 0] == 0.25
    assert out.h_n[0, 0, 0] == 7.0


def test_cell_clip_bounds_the_zeros_of_a_reset() -> None:
    """As it does those of a c0 that is not given: 0 need not lie within the bounds."""
    x, bounds = np.full((1, 1, 1), X), (0.5, 1.0)
    options: dict[str, Any] = {"mode": "lstm", "cell_clip": bounds}
    reset = rnn(x, LSTM, None, np.full((1, 1, 1), C0), resets=[[True]], **options)
    fresh = rnn(x, LSTM, **options)
    a_i, a_f, a_g = A_I - 0.5 * H0, A_F - 0.2 * H0, A_G + 0.7 * H0
    c = s(a_f) * 0.5 + s(a_i) * math.tanh(a_g)
    assert 0.5 < c < 1.0
    assert reset.c_n.item() == fresh.c_n.item() == pytest.approx(c, abs=CLOSE)


@pytest.mark.parametrize(
    ("c0", "slope"), [(-0.5, 1.0), (0.25, 1.0), (0.0, 1.0), (-0.50001, 0.0), (0.25001, 0.0)]
)
def test_cell_clip_has_slope_one_inside_and_on_its_bounds(c0: float, slope: float) -> None:
    """Of a row without a step, the final state is the clipped initial one."""
    x, state = np.ones((1, 1, 1)), np.full((1, 1, 1), c0)
    _, vjp = rnn_vjp(x, LSTM, None, state, mode="lstm", mask=[[False]], cell_clip=(-0.5, 0.25))
    assert vjp(None, dc_n=np.full((1, 1, 1), 3.0)).c0.item() == 3.0 * slope


def test_a_nan_state_stays_or_becomes_the_low_bound() -> None:
    h, c_n = lstm(c0=math.nan, cell_clip=(-0.5, 4.0))
    assert math.isnan(h)
    assert math.isnan(c_n)
    assert lstm(c0=math.nan, cell_clip=(-0.5, 4.0), cell_clip_nan=True) == lstm(c0=-0.5)
    # A NaN that a step makes: the state becomes the low bound, the NaN gates stay NaN.
    h, c_n = lstm(x=math.nan, cell_clip=(-0.5, 4.0), cell_clip_nan=True)
    assert c_n == -0.5
    assert math.isnan(h)


def test_no_gradient_goes_through_a_nan_that_is_replaced() -> None:
    x, state = np.ones((1, 1, 1)), np.full((1, 1, 1), np.nan)
    options: dict[str, Any] = {"mode": "lstm", "cell_clip": (-0.5, 4.0), "cell_clip_nan": True}
    _, vjp = rnn_vjp(x, LSTM, None, state, **options)
    grads = vjp(np.ones((1, 1, 1)), dc_n=np.ones((1, 1, 1)))
    assert grads.c0.item() == 0.0
    assert np.isfinite(grads.x.item())
    assert all(np.all(np.isfinite(array)) for _, array in grads.weights.named())


def test_proj_clip_bounds_h_after_the_projection() -> None:
    weights = rnnop.RNNWeights(LSTM.w_ih, LSTM.w_hh, LSTM.b_ih, LSTM.b_hh, w_hr=column(2.0))
    h, c = lstm(weights=weights)
    assert h == pytest.approx(2.0 * 0.2198, abs=1e-4)
    assert lstm(weights=weights, proj_clip=(-1.0, 0.3)) == (0.3, c)
    assert lstm(weights=weights, proj_clip=(0.5, 1.0)) == (0.5, c)
    assert lstm(weights=weights, proj_clip=1.0) == (h, c)


def test_gate_clip_bounds_the_arguments_of_every_activation() -> None:
    bound = 0.2
    i, f = s(bound), s(-bound)  # A_I = 0.96, A_F = -0.52
    g, o = math.tanh(bound), s(bound)
    c = f * C0 + i * g
    assert c < -bound
    h, c_n = lstm(gate_clip=bound)
    assert c_n == pytest.approx(c, abs=CLOSE)  # the state itself is not bounded,
    assert h == pytest.approx(
        o * math.tanh(-bound), abs=CLOSE
    )  # what the output activation sees is


def test_gate_clip_of_a_gru() -> None:
    x, h, bound = 1.5, 0.8, 0.3
    z, n = s(-bound), math.tanh(bound)  # of -0.52, and of 1.26 or 1.38
    for reset_after in (True, False):
        out = step(x, GRU, h, mode="gru", gate_clip=bound, reset_after=reset_after)
        assert out.y.item() == pytest.approx((1 - z) * n + z * h, abs=CLOSE)
    # With x = 0.1 and bounds of which only r, of 0.54, feels one: n sees the r of 0.5.
    x, r = 0.1, s(0.5)
    z = s(-0.6 * x + 0.02 + 0.2 * h + 0.2)
    n = math.tanh(0.9 * x + 0.03 + r * (-0.7 * h + 0.4))
    out = step(x, GRU, h, mode="gru", gate_clip=(-2.0, 0.5))
    assert out.y.item() == pytest.approx((1 - z) * n + z * h, abs=CLOSE)


def test_gate_clip_of_a_plain_rnn() -> None:
    weights = rnnop.RNNWeights(column(1.0), column(1.0))
    assert step(3.0, weights, mode="rnn_relu", gate_clip=(-1.0, 2.0)).y.item() == 2.0
    assert step(-3.0, weights, mode="rnn_tanh", gate_clip=(-1.0, 2.0)).y.item() == math.tanh(-1.0)


# Activations

ACTIVATIONS: dict[str, tuple[tuple[Any, ...], Callable[[float], float]]] = {
    "Sigmoid": (("Sigmoid",), s),
    "Tanh": (("Tanh",), math.tanh),
    "Relu": (("Relu",), lambda x: x if x > 0 else 0.0),
    "Affine": (("Affine", 0.7, -0.3), lambda x: 0.7 * x - 0.3),
    "Affine by default": (("Affine",), lambda x: x),
    "LeakyRelu": (("LeakyRelu", 0.2), lambda x: x if x > 0 else 0.2 * x),
    "LeakyRelu by default": (("LeakyRelu",), lambda x: x if x > 0 else 0.01 * x),
    "ThresholdedRelu": (("ThresholdedRelu", 0.5), lambda x: x if x > 0.5 else 0.0),
    "ThresholdedRelu by default": (("ThresholdedRelu",), lambda x: x if x > 1.0 else 0.0),
    "ScaledTanh": (("ScaledTanh", 1.7, 0.6), lambda x: 1.7 * math.tanh(0.6 * x)),
    "ScaledTanh by default": (("ScaledTanh",), math.tanh),
    "HardSigmoid": (("HardSigmoid", 0.4, 0.3), lambda x: min(1.0, max(0.0, 0.4 * x + 0.3))),
    "HardSigmoid by default": (("HardSigmoid",), lambda x: min(1.0, max(0.0, 0.2 * x + 0.5))),
    "Elu": (("Elu", 0.6), lambda x: x if x > 0 else 0.6 * (math.exp(x) - 1.0)),
    "Elu by default": (("Elu",), lambda x: x if x > 0 else math.exp(x) - 1.0),
    "Softsign": (("Softsign",), lambda x: x / (1.0 + abs(x))),
    "Softplus": (("Softplus",), lambda x: math.log(1.0 + math.exp(x))),
}
POINTS = np.array([-9.0, -2.6, -0.9, -0.2, 0.1, 0.4, 0.8, 1.6, 3.2, 9.0])
IDENTITY = rnnop.RNNWeights(column(1.0), column(0.0))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_derivatives(name: str) -> None:
    given, function = ACTIVATIONS[name]
    x = POINTS[None, :, None]

    def f(x: Array) -> Array:
        return rnn(x, IDENTITY, mode="rnn_tanh", activations=[given]).y

    np.testing.assert_allclose(f(x), np.vectorize(function)(x), rtol=1e-15, atol=1e-15)
    _, vjp = rnn_vjp(x, IDENTITY, mode="rnn_tanh", activations=[given])
    assert_gradient(name, vjp(np.ones_like(x)).x, f, x)


@pytest.mark.parametrize(
    ("given", "at", "slope"),
    [
        (("Relu",), 0.0, 0.0),
        (("LeakyRelu", 0.2), 0.0, 0.2),
        (("ThresholdedRelu", 0.5), 0.5, 1.0),  # the threshold itself passes
        (("HardSigmoid", 0.25, 0.5), -2.0, 0.0),
        (("HardSigmoid", 0.25, 0.5), 2.0, 0.0),
        (("Elu", 0.6), 0.0, 0.6),
        (("Softsign",), 0.0, 1.0),
        (("Softplus",), 0.0, 0.5),
        (("Sigmoid",), 0.0, 0.25),
    ],
)
def test_slopes_at_the_corners(given: tuple[Any, ...], at: float, slope: float) -> None:
    x = np.full((1, 1, 1), at)
    _, vjp = rnn_vjp(x, IDENTITY, mode="rnn_tanh", activations=[given])
    assert vjp(np.ones_like(x)).x.item() == slope


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_out_and_of_nan(name: str) -> None:
    """No overflow, no warning, and a NaN stays a NaN."""
    given, _ = ACTIVATIONS[name]
    x = np.array([-1e4, 1e4, np.nan])[None, :, None]
    out, vjp = rnn_vjp(x, IDENTITY, mode="rnn_tanh", activations=[given])
    low, high, nan = out.y.ravel()
    assert math.isnan(nan)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low <= high
    assert np.all(np.isfinite(vjp(np.ones_like(x)).x[0, :2]))


def test_each_gate_has_its_own_activation() -> None:
    """An LSTM's f is for i, f and o, its g for the candidate, its h for the output."""
    c = 0.5 * A_F * C0 + 0.5 * A_I * (2.0 * A_G)
    given = [("Affine", 0.5, 0.0), ("Affine", 2.0, 0.0), ("Affine", 3.0, 0.0)]
    h, c_n = lstm(activations=given)
    assert c_n == pytest.approx(c, abs=CLOSE)
    assert h == pytest.approx(0.5 * A_O * (3.0 * c), abs=CLOSE)
    x, h0 = 1.5, 0.8
    r, z = 0.5 * (0.3 * x + 0.01 + 0.5 * h0 + 0.1), 0.5 * (-0.6 * x + 0.02 + 0.2 * h0 + 0.2)
    n = 2.0 * (0.9 * x + 0.03 + r * (-0.7 * h0 + 0.4))
    out = step(x, GRU, h0, mode="gru", activations=given[:2])
    assert out.y.item() == pytest.approx((1 - z) * n + z * h0, abs=CLOSE)


def test_each_direction_has_its_own_activations() -> None:
    weights = rnnop.RNNWeights(column(1.0) * 2, column(0.0) * 2, bidirectional=True)
    x = np.full((1, 1, 1), 2.0)
    options: dict[str, Any] = {"mode": "rnn_tanh"}
    own = rnn(x, weights, activations=["Tanh", ("Affine", 3.0)], **options)
    assert own.y.ravel().tolist() == [math.tanh(2.0), 6.0]
    shared = rnn(x, weights, activations=[rnnop.Activation("Affine", 3.0)], **options)
    assert shared.y.ravel().tolist() == [6.0, 6.0]
