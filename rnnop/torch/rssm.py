"""`rnnop.rssm` on tensors: `run` and `run_vjp`, with the arguments of `make_call`.

What torch's operator cannot be given goes on as it is, and is refused there by name.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .. import validate
from ..errors import blame
from ..rssm.api import RSSMVJP, direct, direct_vjp
from ..rssm.outputs import OUTPUTS
from ..rssm.weights import RSSMGrads, RSSMWeights
from . import host, imagination, rssm_op
from .call import encode, on_host, seed_of
from .operators import needs_autograd, unseen
from .rssm_op import RSSM, Inputs, Listed


def run(
    form: str,
    order: str,
    weights: RSSMWeights,
    state: Any,
    belief: Any,
    noise: Any,
    seed: Any,
    backend: str,
    **rest: Any,
) -> Any:
    """Run a call."""
    given = form, order, weights, state, belief, noise, seed, backend
    if form == "imagine":
        return imagination.run(_listed(weights), given, rest["actor"], rest["horizon"])
    inputs = _inputs(*given, **rest)
    if inputs is None:
        return direct(*given, **rest)
    differentiable = inputs.tensors()[: inputs.num_differentiable]
    plain = unseen(*differentiable)
    recorded = plain and needs_autograd(inputs.function, *differentiable)
    return OUTPUTS[form, weights.spec.latent](*RSSM(inputs, plain, recorded))


def run_vjp(
    form: str,
    order: str,
    weights: RSSMWeights,
    state: Any,
    belief: Any,
    noise: Any,
    seed: Any,
    backend: str,
    **rest: Any,
) -> tuple[Any, VJP | RSSMVJP]:
    """Run a call, and return its vector-Jacobian product; autograd sees nothing of it."""
    given = form, order, weights, state, belief, noise, seed, backend
    if form == "imagine":
        out, vjp, bridge = imagination.run_vjp(
            _listed(weights), given, rest["actor"], rest["horizon"]
        )
        return out, VJP(vjp, bridge, out)
    inputs = _inputs(*given, **rest)
    if inputs is None:
        return direct_vjp(*given, **rest)
    (arrays, vjp), bridge = rssm_op.run(direct_vjp, inputs)
    out = type(arrays)(*map(bridge.outward, arrays))
    return out, VJP(vjp, bridge, out)


class VJP:
    """The vector-Jacobian product of one call on tensors."""

    def __init__(self, vjp: RSSMVJP, bridge: host.Bridge, out: Any) -> None:
        self._vjp = vjp
        self._bridge = bridge
        self._out = out

    @functools.wraps(RSSMVJP.__call__)
    def __call__(self, *cotangents: Any, **named: Any) -> RSSMGrads:
        """Return the gradients, as `rnnop.rssm.RSSMVJP` does."""
        names = [f"d{name}" for name in self._out._fields]
        labels = names + ["vjp"] * len(cotangents)  # too many are refused below
        with blame("vjp"):
            grads = self._vjp(
                *[self._inward(*each) for each in zip(labels, cotangents, strict=False)],
                **{name: self._inward(name, each) for name, each in named.items()},
            )
        outward = self._bridge.outward
        others = {name: getattr(grads, name) for name in ("state", "belief", "actions", "embeds")}
        return grads._replace(
            weights=grads.weights.map(outward),
            **{name: None if each is None else outward(each) for name, each in others.items()},
        )

    def _inward(self, name: str, cotangent: Any) -> Any:
        if cotangent is None:
            return None
        tensor = validate.data_array(name, cotangent)
        validate.same_place(name, tensor, self._out.state, "state")
        return self._bridge.inward(tensor)


# The weights of earlier calls as lists.
_LISTS: WeakKeyDictionary[RSSMWeights, Listed] = WeakKeyDictionary()


def _listed(weights: RSSMWeights) -> Listed:
    """Return weights as a list."""
    if torch.compiler.is_dynamo_compiling():
        return Listed.of(weights)
    found = _LISTS.get(weights)
    if found is None:
        found = _LISTS[weights] = Listed.of(weights)
    return found


def _inputs(
    form: str,
    order: str,
    weights: RSSMWeights,
    state: Any,
    belief: Any,
    noise: Any,
    seed: Any,
    backend: str,
    actions: Any,
    is_first: Any = None,
    embeds: Any = None,
) -> Inputs | None:
    """Return a call as the operator takes it, or None if it cannot."""
    others = {"state": state, "belief": belief, "embeds": embeds, "noise": noise}
    for each in (*others.values(), actions):
        if each is not None and not isinstance(each, Tensor):
            return None
    if actions is None or (form == "observe" and embeds is None):
        return None
    options: dict[str, Any] = {"form": form, "order": order, "backend": backend}
    try:
        if is_first is not None:
            others["is_first"] = on_host("is_first", is_first)
        if noise is None:
            others["seed"] = seed_of(seed)
        if others.get("seed") is None and seed is not None:
            options["seed"] = seed
        text = encode(**options)
    except (TypeError, ValueError, RuntimeError):
        return None
    tensors, model = _listed(weights)
    return Inputs(tensors, model, text, actions, **others)
