"""Small models of every kind, their inputs, and the four calls, for the tests of `rnnop.rssm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnop import rssm

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = {"state_size": 6, "belief_size": 4, "action_size": 2, "embed_size": 5, "hidden_size": 3}
CATEGORICAL = {**SIZES, "num_classes": 3}

SPECS = {
    "first": rssm.RSSMSpec(**SIZES),
    "torchrl": rssm.RSSMSpec.of("torchrl", **SIZES),
    "planet": rssm.RSSMSpec.of("planet", **SIZES, input_layers=2, prior_layers=2),
    "dreamer_v1": rssm.RSSMSpec.of("dreamer_v1", **SIZES),
    "dreamer_v2": rssm.RSSMSpec.of("dreamer_v2", **CATEGORICAL),
    "dreamer_v2_gaussian": rssm.RSSMSpec.of(
        "dreamer_v2", **SIZES, num_classes=None, latent="gaussian", norm="layer"
    ),
    "dreamer_v3": rssm.RSSMSpec.of(
        "dreamer_v3", **CATEGORICAL, num_blocks=2, dynamics_layers=2, posterior_layers=2
    ),
    "block_gru_gaussian": rssm.RSSMSpec(
        **SIZES, cell="block_gru", num_blocks=2, activation="silu", norm="rms", std="softplus"
    ),
    "one_block": rssm.RSSMSpec(**SIZES, cell="block_gru", posterior_norm="layer"),
    "torchrl_v3": rssm.RSSMSpec.of("torchrl_v3", **CATEGORICAL),
    "relu": rssm.RSSMSpec(**SIZES, activation="relu", posterior_layers=2, posterior_norm="rms"),
}
GAUSSIAN = [name for name, spec in SPECS.items() if spec.latent == "gaussian"]
FORMS = ("step", "rollout", "imagine", "observe")


def weights_of(spec: rssm.RSSMSpec, seed: int = 0) -> rssm.RSSMWeights:
    """Random weights of float64, everything there is: norms and initial states too."""
    random = np.random.default_rng(seed)
    fresh = rssm.init_weights(spec, learned_initial=True, dtype="float64", seed=seed)
    return fresh.map(lambda array: array + 0.5 * random.standard_normal(array.shape))


class Actor:
    """action = tanh(P state + Q belief), with its own vjp."""

    def __init__(self, spec: rssm.RSSMSpec, seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.p = random.standard_normal((spec.action_size, spec.state_size))
        self.q = random.standard_normal((spec.action_size, spec.belief_size))

    def plain(self, state: Any, belief: Any) -> Any:
        like = type(state)
        if like is np.ndarray:
            return np.tanh(state @ self.p.T + belief @ self.q.T).astype(state.dtype)
        import torch

        p, q = (torch.asarray(each, dtype=state.dtype) for each in (self.p, self.q))
        return torch.tanh(state @ p.T + belief @ q.T)

    def with_vjp(self, state: Array, belief: Array) -> Any:
        action = self.plain(state, belief)

        def vjp(daction: Array) -> tuple[Array, ...]:
            d = daction * (1 - action**2)
            return (
                (d @ self.p).astype(d.dtype),
                (d @ self.q).astype(d.dtype),
                d.T @ state,
                d.T @ belief,
            )

        return action, vjp


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays of a call, time-major; `arrays` by their names in the call."""

    form: str
    weights: rssm.RSSMWeights
    arrays: dict[str, Any]
    noise: Any
    is_first: Any
    actor: Any

    def run(self, vjp: bool = False, **changes: Any) -> Any:
        """Call it, with other weights or arrays where they are given."""
        given = self._arguments(vjp, changes)
        return getattr(rssm, self.form + ("_vjp" if vjp else ""))(**given)

    def explain(self, **changes: Any) -> Any:
        """Let `rssm.explain` say how `run` would run."""
        return rssm.explain(self.form, **self._arguments(False, changes))

    def _arguments(self, vjp: bool, changes: dict[str, Any]) -> dict[str, Any]:
        given = {"weights": self.weights, **self.arrays, "noise": self.noise, **changes}
        if self.form in ("rollout", "observe"):
            given.setdefault("is_first", self.is_first)
        if self.form == "imagine":
            given.setdefault("actor", self.actor.with_vjp if vjp else self.actor.plain)
            given.setdefault("horizon", self.noise.shape[0])
        return given


def inputs_of(
    form: str, spec: rssm.RSSMSpec, num_steps: int = 3, batch_size: int = 2, seed: int = 1
) -> Inputs:
    random = np.random.default_rng(seed)
    T, N = num_steps, batch_size

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape)

    arrays = {"state": normal(N, spec.state_size), "belief": normal(N, spec.belief_size)}
    leading = (N,) if form == "step" else (T, N)
    if form == "step":
        arrays["action"] = normal(N, spec.action_size)
    elif form != "imagine":
        arrays["actions"] = 2 * normal(T, N, spec.action_size)
    if form == "observe":
        arrays["embeds"] = normal(T, N, spec.embed_size)
    if spec.latent == "gaussian":
        noise = normal(*leading, spec.noise_size)
    else:
        noise = random.random((*leading, spec.noise_size))
    is_first = random.random((T, N)) < 0.3
    if T > 1 and N:
        is_first[1, 0] = True
    return Inputs(form, weights_of(spec), arrays, noise, is_first, Actor(spec))


def cotangents_of(out: Any, seed: int = 2) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(each.shape).astype(each.dtype) for each in out]


def gradients_of(grads: rssm.RSSMGrads) -> dict[str, Any]:
    """All gradients by name, those of weights by the names of `named`."""
    found = dict(grads.weights.named())
    found |= {"state": grads.state, "belief": grads.belief}
    for name in ("actions", "embeds"):
        if getattr(grads, name) is not None:
            found[name] = getattr(grads, name)
    for k, each in enumerate(grads.actor or ()):
        found[f"actor[{k}]"] = each
    return found


def with_array(weights: rssm.RSSMWeights, name: str, array: Any) -> rssm.RSSMWeights:
    return rssm.RSSMWeights.of_arrays(weights.spec, {**dict(weights.named()), name: array})
