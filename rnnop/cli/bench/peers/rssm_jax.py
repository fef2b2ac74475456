"""JAX: the model in `lax.scan`, compiled by `jit` for these shapes before anything is timed.

What does not wait for the loop is made before it (products of actions and embeddings) or after it
(the prior where the posterior goes on).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..rssm import RSSMInputs, gradients
from . import Contender
from .jax import compiled


def contenders(inputs: RSSMInputs, threads: int) -> list[Contender]:
    """Return JAX on the CPU."""
    import jax

    form = inputs.case.form
    weights = dict(inputs.weights.named())
    if form != "observe":
        weights = {k: array for k, array in weights.items() if not k.startswith("posterior")}
    if form == "imagine":
        weights |= inputs.actor
    given = jax.device_put((weights, inputs.arrays))
    model = _model(form)
    if inputs.case.work != "training":
        return [Contender("JAX", compiled(model, *given), _host)]
    cotangents = jax.device_put(inputs.cotangents)

    def loss(weights: Any, arrays: Any, noise: Any, cotangents: Any) -> Any:
        out = model(weights, {**arrays, "noise": noise})
        return sum((out[name] * d).sum() for name, d in cotangents.items()), out

    gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
    arrays = dict(given[1])
    noise = arrays.pop("noise")
    call = compiled(gradient, given[0], arrays, noise, cotangents)
    return [Contender("JAX", call, _gradients)]


def _host(arrays: Any) -> dict[str, Any]:
    return {name: np.asarray(array) for name, array in arrays.items()}


def _gradients(result: Any) -> dict[str, Any]:
    (_, out), (dweights, darrays) = result
    return _host(out) | gradients(_host(dweights) | _host(darrays))


def _head(w: Any, field: str, x: Any) -> Any:
    """Return mean and std, from what the first layer's product and bias gave."""
    import jax
    import jax.numpy as jnp

    out = jax.nn.elu(x) @ w[f"{field}[1].w"].T + w[f"{field}[1].b"]
    mean, std = jnp.split(out, 2, axis=-1)
    return mean, jnp.maximum(jax.nn.softplus(std), 0.1)


def _model(form: str) -> Callable[[Any, Any], Any]:
    """Return the function of weights and arrays that gives all outputs by name."""
    import jax
    import jax.numpy as jnp

    def move(w: Any, state: Any, part: Any, belief: Any) -> Any:
        x = jax.nn.elu(state @ w["inputs[0].w"][:, : state.shape[1]].T + part)
        r_x, z_x, n_x = jnp.split(x @ w["gru.w_ih[0]"].T + w["gru.b_ih[0]"], 3, axis=-1)
        r_h, z_h, n_h = jnp.split(belief @ w["gru.w_hh[0]"].T + w["gru.b_hh[0]"], 3, axis=-1)
        r, z = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
        return (1.0 - z) * jnp.tanh(n_x + r * n_h) + z * belief

    def of_action(w: Any, action: Any) -> Any:
        columns = w["inputs[0].w"][:, -action.shape[-1] :]
        return action @ columns.T + w["inputs[0].b"]

    def prior(w: Any, belief: Any) -> Any:
        return _head(w, "prior", belief @ w["prior[0].w"].T + w["prior[0].b"])

    def act(w: Any, state: Any, belief: Any) -> Any:
        x = jnp.concatenate([state, belief], axis=-1)
        return jnp.tanh(jax.nn.elu(x @ w["w1"].T + w["b1"]) @ w["w2"].T + w["b2"])

    def rollout(w: Any, given: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            state, belief = carry
            action = act(w, state, belief) if form == "imagine" else None
            part = of_action(w, action) if form == "imagine" else now["part"]
            belief = move(w, state, part, belief)
            mean, std = prior(w, belief)
            state = mean + std * now["noise"]
            out = {"mean": mean, "std": std, "state": state, "belief": belief}
            return (state, belief), out | ({"action": action} if form == "imagine" else {})

        steps = {"noise": given["noise"]}
        if form != "imagine":
            steps["part"] = of_action(w, given["actions"])
        return jax.lax.scan(step, (given["state"], given["belief"]), steps)[1]

    def observe(w: Any, given: Any) -> Any:
        size = given["belief"].shape[1]
        of_belief, of_embed = w["posterior[0].w"][:, :size], w["posterior[0].w"][:, size:]

        def step(carry: Any, now: Any) -> Any:
            state, belief = carry
            belief = move(w, state, now["part"], belief)
            mean, std = _head(w, "posterior", belief @ of_belief.T + now["embed"])
            state = mean + std * now["noise"]
            found = {"posterior_mean": mean, "posterior_std": std, "state": state}
            return (state, belief), found | {"belief": belief}

        steps = {
            "noise": given["noise"],
            "part": of_action(w, given["actions"]),
            "embed": given["embeds"] @ of_embed.T + w["posterior[0].b"],
        }
        out = jax.lax.scan(step, (given["state"], given["belief"]), steps)[1]
        mean, std = prior(w, out["belief"])
        return {"prior_mean": mean, "prior_std": std, **out}

    return observe if form == "observe" else rollout
