"""What a head says of the state, and the draw, as work for a device; see `rnnop.rssm.latent`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .layers import Chain
from .work import Pointer

if TYPE_CHECKING:
    from .model import Model

_STDS = {  # rule of kernels.cu, shift of the argument of softplus, what is added to it
    "biased_softplus": (0, math.log(math.expm1(0.99)), 0.01),
    "max_softplus": (0, 0.0, 0.0),
    "softplus": (1, 0.0, 0.0),
    "sigmoid2": (2, 0.0, 0.0),
}


class Head:
    """A chain of layers on the belief, and the distribution that it ends in.

    Attributes
    ----------
    chain : Chain
        The layers.
    names : list of str
        Of the parameters of the distribution, as the outputs have them.
    """

    def __init__(self, model: Model, field: str, prefix: str, *, draws: bool) -> None:
        spec = model.spec
        self.model, self.width = model, spec.state_size
        layers, known = spec.prior_layers, 0
        if field == "posterior":
            layers, known = spec.posterior_layers, spec.embed_size
        self.chain = Chain(
            model, field, range(layers + 1), known=known, last=True, at_once=not draws
        )
        self.kernel, words = spec.latent, ["mean", "std"]
        if spec.latent == "gaussian":
            self.more: tuple[int | float, ...] = (*_STDS[spec.std], float(spec.min_std))
        else:
            words, self.more = ["logits"], (int(spec.num_classes or 1), float(spec.unimix))
        self.names = [prefix + word for word in words]

    def parameters(self, span: int | None) -> None:
        """Fill in the parameters, and the state after a step if they are of one."""
        model, out = self.model, self.chain.out.of(span)
        noise: Pointer = None
        gives: tuple[Pointer, ...] = (None,) * 4
        if span is not None:
            noise, gives = model.noise.of(span), model.gives("state", span)
        found = (model.outputs[name].of(span) for name in self.names)
        model.each(
            self.kernel,
            (out.rows, self.width),
            *(out, self.chain.bias, noise, *found, *gives),
            more=self.more,
        )

    def parameters_backward(self, span: int | None) -> None:
        """Fill in the gradient of the chain's output, from all that arrives at the state too."""
        model, out = self.model, self.chain.out.of(span)
        noise: Pointer = None
        arrives: tuple[Pointer, ...] = (None,) * 3
        if span is not None:
            given = model.cotangents["state"].of(span)
            noise, arrives = model.noise.of(span), (given, *model.comes_back("state", span))
        found = (model.cotangents[name].of(span) for name in self.names)
        model.each(
            f"{self.kernel}_backward",
            (out.rows, self.width),
            *(out, self.chain.bias, noise, *arrives, *found, self.chain.d_out.of(span)),
            more=self.more,
        )
