"""`torch.ops.rnnop.rssm` and its gradient: `step`, `rollout`, `observe` as torch knows them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays import Array
from ..rssm.api import direct, direct_vjp
from ..rssm.backends import step_shapes
from ..rssm.spec import RSSMSpec
from ..rssm.weights import RSSMWeights
from . import host
from .call import decode, encode
from .operators import Operator

_SCHEMA = (
    "Tensor[] weights, str model, str options, Tensor actions, Tensor? state=None, "
    "Tensor? belief=None, Tensor? embeds=None, Tensor? noise=None, Tensor? is_first=None, "
    "Tensor? seed=None"
)


class Listed(NamedTuple):
    """Weights as the operator takes them.

    Attributes
    ----------
    tensors : list of Tensor
        In the order of `RSSMWeights.named`.
    model : str
        Their names and spec, as `encode` makes it.
    """

    tensors: list[Any]
    model: str

    @classmethod
    def of(cls, weights: RSSMWeights) -> Listed:
        """Return weights as a list."""
        named = list(weights.named())
        names = [name for name, _ in named]
        return cls([array for _, array in named], _text_of(weights.spec, names))


def _text_of(spec: RSSMSpec, names: list[str]) -> str:
    return encode(spec=asdict(spec), names=names)


_text_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as `encode`


@functools.lru_cache(maxsize=256)
def model_of(text: str) -> tuple[RSSMSpec, tuple[str, ...]]:
    """Return the spec and the names in a text."""
    found = decode(text)
    return RSSMSpec(**found["spec"]), found["names"]


def on_arrays(
    listed: Listed, data: Sequence[Any]
) -> tuple[host.Bridge, RSSMWeights, list[Array | None]]:
    """Return weights and data as a backend is given them, and the way back.

    Tensors on the CPU become NumPy arrays. Others, and what NumPy does not have, go as they are.
    """
    spec, names = model_of(listed.model)

    def make(arrays: Sequence[Any]) -> RSSMWeights:
        return RSSMWeights.of_arrays(spec, dict(zip(names, arrays, strict=True)))

    try:
        weights = host.on_numpy(listed.tensors, (listed.model,), make)
        arrays = [None if each is None else host.to_numpy(each) for each in data]
        return host.HOST, weights, arrays
    except TypeError:
        return host.NONE, make(listed.tensors), list(data)


class Inputs(NamedTuple):
    """The inputs of the operator, in the order of its schema.

    Attributes
    ----------
    weights, model
        The parts of `Listed`.
    options : str
        `form`, `order` and `backend`, as `encode` makes it, and a `seed` that is not used.
    actions : Tensor
        Or the action of a step.
    seed : Tensor of one int64, optional
        Of the noise.
    """

    weights: list[Tensor]
    model: str
    options: str
    actions: Tensor
    state: Tensor | None = None
    belief: Tensor | None = None
    embeds: Tensor | None = None
    noise: Tensor | None = None
    is_first: Tensor | None = None
    seed: Tensor | None = None

    @property
    def function(self) -> str:
        """The public function that was called."""
        options = decode(self.options)
        return "step" if options["order"] == "step" else str(options["form"])

    @property
    def num_differentiable(self) -> int:
        """How many of `tensors` have a gradient: all but noise, is_first and seed."""
        return len(self.weights) + 4

    def tensors(self) -> list[Tensor | None]:
        """Return all tensors."""
        others: Any = self[3:]
        return [*self.weights, *others]

    def with_tensors(self, tensors: Sequence[Any]) -> Inputs:
        """Return the inputs with others in their place."""
        count = len(self.weights)
        return Inputs(list(tensors[:count]), self.model, self.options, *tensors[count:])


class _RSSM(Operator):
    """Outputs: those of the call. Gradients: the weights, actions, state, belief, embeddings."""

    def run(
        self, inputs: Inputs, keep: bool
    ) -> tuple[list[Tensor], Callable[..., Sequence[Array | None]] | None, host.Bridge]:
        """Run the call, and with `keep` its vector-Jacobian product."""
        if not keep:
            out, bridge = run(direct, inputs)
            return [bridge.outward(each) for each in out], None, bridge
        (out, vjp), bridge = run(direct_vjp, inputs)
        _, names = model_of(inputs.model)

        def pull(*cotangents: Array | None) -> Sequence[Array | None]:
            grads = vjp(*cotangents)
            weights = dict(grads.weights.named())
            every = [weights[name] for name in names]
            return [*every, grads.actions, grads.state, grads.belief, grads.embeds]

        return [bridge.outward(each) for each in out], pull, bridge

    def read_again(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return all."""
        return outputs

    def inputs_read_again(self, inputs: Inputs) -> Sequence[Tensor | None]:
        """Return the noise, and where episodes begin."""
        return [inputs.noise, inputs.is_first]

    def fakes(self, inputs: Inputs) -> list[Tensor]:
        """Return outputs without data."""
        shapes = step_shapes(model_of(inputs.model)[0], decode(inputs.options)["form"])
        leading = inputs.actions.shape[:-1]
        return [inputs.actions.new_empty((*leading, *shape)) for shape in shapes.values()]


RSSM = _RSSM("rssm", Inputs, _SCHEMA)


def run(function: Callable[..., Any], inputs: Inputs) -> tuple[Any, host.Bridge]:
    """Call a function on the inputs; return its result, and the way back."""
    given = inputs.state, inputs.belief, inputs.noise, inputs.actions, inputs.embeds
    bridge, weights, data = on_arrays(Listed(inputs.weights, inputs.model), given)
    state, belief, noise, actions, embeds = data
    options = decode(inputs.options)
    form, order, backend = options["form"], options["order"], options["backend"]
    rest = {"actions": actions, "is_first": inputs.is_first}
    if form == "observe":
        rest["embeds"] = embeds
    seed = options.get("seed") if inputs.seed is None else int(inputs.seed)
    with torch.no_grad():
        return function(form, order, weights, state, belief, noise, seed, backend, **rest), bridge
