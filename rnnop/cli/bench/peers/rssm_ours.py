"""rnnop.rssm on NumPy arrays, with an actor of its own layers."""

from __future__ import annotations

from typing import Any

from .... import rssm
from ..rssm import RSSMInputs, gradients
from . import OURS, Contender


def contenders(inputs: RSSMInputs, threads: int) -> list[Contender]:
    """Return rnnop; the number of threads is that of RNNOP_NUM_THREADS."""
    if inputs.case.work == "training":
        return [Contender(OURS, lambda: _train(inputs), _gradients)]
    return [Contender(OURS, lambda: _infer(inputs), lambda out: out._asdict())]


def _actor(inputs: RSSMInputs) -> Any:
    layers = tuple(rssm.Layer(inputs.actor[f"w{k}"], inputs.actor[f"b{k}"]) for k in (1, 2))
    return rssm.MLPActor(layers, activation="elu", squash="tanh")


def _infer(inputs: RSSMInputs) -> Any:
    form, arrays = inputs.case.form, inputs.arrays
    if form != "imagine":
        return getattr(rssm, form)(inputs.weights, **arrays)
    horizon = inputs.case.num_steps
    return rssm.imagine(inputs.weights, **arrays, actor=_actor(inputs), horizon=horizon)


def _train(inputs: RSSMInputs) -> Any:
    form, arrays = inputs.case.form, inputs.arrays
    if form == "imagine":
        actor, horizon = _actor(inputs), inputs.case.num_steps
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
