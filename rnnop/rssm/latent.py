"""The latent: what a head's output says of the state, and how the state is drawn from it.

A latent has, with the parameters (mean, std) or (logits,),

    parameters(out)                        (M, head_size) -> (parameters, saved)
    parameters_backward(saved, dparameters)               -> dout
    draw(parameters, noise)                               -> state (M, S)
    draw_backward(parameters, noise, dstate)              -> dparameters
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, Protocol

from ..arrays import Array
from ..reference.activations import apply, derivative
from ..spec import Activation
from .layers import stop_gradient
from .spec import RSSMSpec

Parameters = tuple[Array, ...]

_SIGMOID, _SOFTPLUS = Activation("Sigmoid"), Activation("Softplus")
_UNIT_STD = math.log(math.expm1(0.99))  # softplus of it, plus 0.01, is 1


class Latent(Protocol):
    """See the docstring of the module."""

    def parameters(self, out: Array) -> tuple[Parameters, Any]:
        """Return the parameters of the distribution, and what the backward needs."""

    def parameters_backward(self, saved: Any, dparameters: Parameters) -> Array:
        """Return the gradient of the head's output."""

    def draw(self, parameters: Parameters, noise: Array) -> Array:
        """Return the state."""

    def draw_backward(self, parameters: Parameters, noise: Array, dstate: Array) -> Parameters:
        """Return the gradients of the parameters."""


def make_latent(spec: RSSMSpec, xp: ModuleType) -> Latent:
    """Return the latent of a model."""
    return Gaussian(spec, xp) if spec.latent == "gaussian" else Categorical(spec, xp)


class Gaussian:
    """state = mean + std * noise, with the std of one of the rules of `RSSMSpec`."""

    def __init__(self, spec: RSSMSpec, xp: ModuleType) -> None:
        self.xp, self.rule, self.low, self.size = xp, spec.std, spec.min_std, spec.state_size

    def parameters(self, out: Array) -> tuple[Parameters, Any]:
        """Return ((mean, std), saved)."""
        x = out[:, self.size :]
        return (out[:, : self.size], self._std(x)), x

    def parameters_backward(self, saved: Any, dparameters: Parameters) -> Array:
        """See the module."""
        dmean, dstd = dparameters
        return self.xp.concat([dmean, dstd * self._slope(saved)], axis=1)

    def draw(self, parameters: Parameters, noise: Array) -> Array:
        """See the equation of the class."""
        mean, std = parameters
        return mean + std * noise

    def draw_backward(self, parameters: Parameters, noise: Array, dstate: Array) -> Parameters:
        """See the module."""
        return dstate, dstate * noise

    def _std(self, x: Array) -> Array:
        free = self._free(x)
        if self.rule in ("softplus", "sigmoid2"):
            return free + self.low
        return self.xp.where(free < self.low, self.xp.full_like(free, self.low), free)

    def _free(self, x: Array) -> Array:
        """Return the std before the bound, or the offset, of min_std."""
        match self.rule:
            case "biased_softplus":
                return apply(self.xp, _SOFTPLUS, x + _UNIT_STD) + 0.01
            case "sigmoid2":
                return 2 * apply(self.xp, _SIGMOID, x / 2)
            case _:
                return apply(self.xp, _SOFTPLUS, x)

    def _slope(self, x: Array) -> Array:
        """Return dstd/dx: on the bound itself that of the free side."""
        xp = self.xp
        if self.rule == "sigmoid2":
            s = apply(xp, _SIGMOID, x / 2)
            return s * (1 - s)
        shifted = x + _UNIT_STD if self.rule == "biased_softplus" else x
        slope = derivative(xp, _SOFTPLUS, shifted, shifted)
        if self.rule == "softplus":
            return slope
        return xp.where(self._free(x) < self.low, xp.zeros_like(slope), slope)


class Categorical:
    """S / K draws from K classes each, as one-hot vectors side by side.

    p = (1 - unimix) * softmax(logits) + unimix / K. The class is the number of partial sums of p
    that lie below the uniform noise. Straight through: where the state has a gradient, p gets it.
    """

    def __init__(self, spec: RSSMSpec, xp: ModuleType) -> None:
        self.xp, self.unimix = xp, spec.unimix
        self.count, self.classes = spec.noise_size, int(spec.num_classes or 1)

    def parameters(self, out: Array) -> tuple[Parameters, Any]:
        """Return ((logits (M, S / K, K),), saved)."""
        return (self._grouped(out),), None

    def parameters_backward(self, saved: Any, dparameters: Parameters) -> Array:
        """See the module."""
        return self._flat(dparameters[0])

    def draw(self, parameters: Parameters, noise: Array) -> Array:
        """See the rule of the class."""
        xp = self.xp
        p = self._mixed(self._softmax(parameters[0]))
        below = xp.astype(noise[:, :, None] > xp.cumulative_sum(p, axis=-1), noise.dtype)
        # A uniform next to 1 may lie above the last sum, which rounding keeps below 1.
        index = xp.clip(xp.sum(below, axis=-1), 0, self.classes - 1)
        classes = xp.cumulative_sum(xp.ones_like(p), axis=-1) - 1
        one_hot = xp.astype(classes == index[:, :, None], p.dtype)
        return self._flat(stop_gradient(one_hot) + (p - stop_gradient(p)))

    def draw_backward(self, parameters: Parameters, noise: Array, dstate: Array) -> Parameters:
        """See the module: q * (d - sum(q * d)) for q = softmax(logits), d = (1 - unimix) dstate."""
        q = self._softmax(parameters[0])
        d = (1 - self.unimix) * self._grouped(dstate)
        return (q * (d - self.xp.sum(q * d, axis=-1, keepdims=True)),)

    def _softmax(self, logits: Array) -> Array:
        e = self.xp.exp(logits - stop_gradient(self.xp.max(logits, axis=-1, keepdims=True)))
        return e / self.xp.sum(e, axis=-1, keepdims=True)

    def _mixed(self, q: Array) -> Array:
        return (1 - self.unimix) * q + self.unimix / self.classes

    def _grouped(self, flat: Array) -> Array:
        return self.xp.reshape(flat, (flat.shape[0], self.count, self.classes))

    def _flat(self, grouped: Array) -> Array:
        return self.xp.reshape(grouped, (grouped.shape[0], self.count * self.classes))
