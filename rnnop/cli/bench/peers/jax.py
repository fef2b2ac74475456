"""JAX: the cell in `lax.scan`, compiled by `jit` for these shapes before anything is timed.

It computes the padding, since a scan has one length; in the backward direction of a ragged batch,
rows are reversed by a gather. In training all input products are one product before the scan, which
makes its gradient faster; in inference they are part of the step, which is no slower.

JAX has no call that sets its number of threads: it takes it from the environment of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....weights import FIELDS
from ..cases import Inputs
from . import Contender

_Project = Callable[[Any], Any]
_Step = Callable[[Any, Any], tuple[Any, Any]]


def contenders(inputs: Inputs, threads: int) -> list[Contender]:
    """Return JAX on the CPU."""
    import jax

    x, dy, weights = jax.device_put((inputs.x, inputs.dy, dict(inputs.weights.named())))
    if inputs.case.work == "stream":
        call, outputs = _stream(list(x), weights), lambda h: {"h": np.asarray(h)[None]}
    elif inputs.case.work == "training":
        call, outputs = compiled(_gradient(inputs), x, weights, dy), _gradients
    else:
        call, outputs = compiled(_forward(inputs), x, weights), lambda y: {"y": np.asarray(y)}
    return [Contender("JAX", call, outputs)]


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Return a call of a function, compiled for these arguments, which has run once."""
    import jax

    jitted = jax.jit(function)

    def call() -> Any:
        return jax.block_until_ready(jitted(*arguments))

    call()
    return call


def _forward(inputs: Inputs, hoist: bool = False) -> Callable[[Any, Any], Any]:
    """Return the function of x (T, N, I) and the weights that gives y (T, N, D*H)."""
    import jax.numpy as jnp

    case, reversal = inputs.case, inputs.reversal()

    def turn(array: Any) -> Any:
        return jnp.take_along_axis(array, reversal, axis=0)

    def forward(x: Any, weights: Any) -> Any:
        y = _scan(case.mode, x, weights, 0, hoist)
        if not case.bidirectional:
            return y
        return jnp.concatenate([y, turn(_scan(case.mode, turn(x), weights, 1, hoist))], axis=-1)

    return forward


def _gradient(inputs: Inputs) -> Callable[[Any, Any, Any], Any]:
    """Return the function that gives y beside the gradients of x and the weights."""
    import jax

    forward = _forward(inputs, hoist=True)

    def loss(x: Any, weights: Any, dy: Any) -> tuple[Any, Any]:
        y = forward(x, weights)
        return (y * dy).sum(), y

    gradient: Callable[[Any, Any, Any], Any] = jax.value_and_grad(loss, (0, 1), has_aux=True)
    return gradient


def _gradients(result: Any) -> dict[str, Any]:
    (_, y), (dx, grads) = result
    return {name: np.asarray(array) for name, array in {"y": y, "x": dx, **grads}.items()}


def _scan(mode: str, x: Any, weights: Any, k: int, hoist: bool) -> Any:
    """Return y (T, N, H) of direction `k`."""
    import jax
    import jax.numpy as jnp

    project, step = _cell(mode, weights, k)
    zeros = jnp.zeros((x.shape[1], weights[f"w_hh[{k}]"].shape[1]), x.dtype)
    state = (zeros, zeros) if mode == "lstm" else zeros
    if hoist:
        return jax.lax.scan(step, state, project(x))[1]
    return jax.lax.scan(lambda state, x: step(state, project(x)), state, x)[1]


def _cell(mode: str, weights: Any, k: int) -> tuple[_Project, _Step]:
    """Return the input product, and the step from a state and that product to (state, h)."""
    import jax
    import jax.numpy as jnp

    w_ih, w_hh, b_ih, b_hh = (weights[f"{name}[{k}]"] for name in FIELDS[:4])
    sigmoid = jax.nn.sigmoid

    def project(x: Any) -> Any:
        return x @ w_ih.T + b_ih

    def lstm(state: Any, projected: Any) -> tuple[Any, Any]:
        h, c = state
        i, f, g, o = jnp.split(projected + (h @ w_hh.T + b_hh), 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(h: Any, projected: Any) -> tuple[Any, Any]:
        r_x, z_x, n_x = jnp.split(projected, 3, axis=-1)
        r_h, z_h, n_h = jnp.split(h @ w_hh.T + b_hh, 3, axis=-1)
        r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        h = (1.0 - z) * jnp.tanh(n_x + r * n_h) + z * h
        return h, h

    return project, lstm if mode == "lstm" else gru


def _stream(steps: list[Any], weights: Any) -> Callable[[], Any]:
    """Return a loop over a compiled step of a GRU, whose result is the last state (1, H)."""
    import jax
    import jax.numpy as jnp

    def advance(x: Any, h: Any, weights: Any) -> Any:
        project, step = _cell("gru", weights, 0)
        return step(h, project(x))[1]

    jitted = jax.jit(advance)
    zeros = jnp.zeros((1, weights["w_hh[0]"].shape[1]), jnp.float32)

    def call() -> Any:
        h = zeros
        for x in steps:
            h = jitted(x, h, weights)
        return jax.block_until_ready(h)

    return call
