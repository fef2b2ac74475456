"""rnnop.rssm on NumPy arrays, with an actor in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import rssm
from ..rssm import RSSMInputs, gradients
from . import OURS, Contender


def contenders(inputs: RSSMInputs, threads: int) -> list[Contender]:
    """Return rnnop; the number of threads is that of RNNOP_NUM_THREADS."""
    if inputs.case.work == "training":
        return [Contender(OURS, lambda: _train(inputs), _gradients)]
    return [Contender(OURS, lambda: _infer(inputs), lambda out: out._asdict())]


def _infer(inputs: RSSMInputs) -> Any:
    form, arrays = inputs.case.form, inputs.arrays
    if form != "imagine":
        return getattr(rssm, form)(inputs.weights, **arrays)

    def actor(state: Any, belief: Any) -> Any:
        return _act(inputs.actor, state, belief)[0]

    return rssm.imagine(inputs.weights, **arrays, actor=actor, horizon=inputs.case.num_steps)


def _train(inputs: RSSMInputs) -> Any:
    form, arrays = inputs.case.form, inputs.arrays
    if form == "imagine":
        actor, horizon = _Actor(inputs.actor), inputs.case.num_steps
        out, vjp = rssm.imagine_vjp(inputs.weights, **arrays, actor=actor, horizon=horizon)
    else:
        out, vjp = getattr(rssm, f"{form}_vjp")(inputs.weights, **arrays)
    return out, vjp(*inputs.cotangents.values())


def _gradients(result: Any) -> dict[str, Any]:
    out, grads = result
    found = dict(grads.weights.named()) | {"state": grads.state, "belief": grads.belief}
    for name in ("actions", "embeds"):
        if getattr(grads, name) is not None:
            found[name] = getattr(grads, name)
    found |= dict(zip(("w1", "b1", "w2", "b2"), grads.actor or (), strict=False))
    # The posterior of a model that does not observe has no part in it.
    found = {name: array for name, array in found.items() if array.any()}
    outputs: dict[str, Any] = out._asdict()
    return outputs | gradients(found)


def _act(actor: Any, state: Any, belief: Any) -> Any:
    """Return the action, the hidden layer and what that reads."""
    x = np.concatenate([state, belief], axis=1)
    pre = x @ actor["w1"].T + actor["b1"]
    below = np.minimum(pre, 0)
    np.exp(below, out=below)  # several times faster than expm1
    below -= 1
    hidden = np.maximum(pre, below, out=below)
    return np.tanh(hidden @ actor["w2"].T + actor["b2"]), hidden, x


class _Actor:
    """The actor with its own vjp."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, state: Any, belief: Any) -> Any:
        weights = self.weights
        action, hidden, x = _act(weights, state, belief)

        def vjp(daction: Any) -> Any:
            d = daction * (1 - action * action)
            dhidden = (d @ weights["w2"]) * np.where(hidden > 0, 1, hidden + 1)
            dx = dhidden @ weights["w1"]
            own = dhidden.T @ x, dhidden.sum(axis=0), d.T @ hidden, d.sum(axis=0)
            return dx[:, : state.shape[1]], dx[:, state.shape[1] :], *own

        return action, vjp
