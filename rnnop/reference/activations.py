"""Gates: a clip, then an activation by its ONNX name, each with its derivative."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from ..arrays import Array
from ..clips import Clip
from ..spec import Activation


@dataclass(frozen=True)
class Gate:
    """y = activation(clip(x)): what ONNX calls clip bounds the argument of an activation."""

    xp: ModuleType
    activation: Activation
    clip: Clip

    def __call__(self, x: Array) -> Array:
        """Return the activation of the clipped pre-activation `x`."""
        return apply(self.xp, self.activation, self.clip(x))

    def backward(self, x: Array, y: Array, dy: Array) -> Array:
        """Return the gradient of the pre-activation `x`, with y = self(x)."""
        slope = derivative(self.xp, self.activation, self.clip(x), y)
        return self.clip.backward(x, dy * slope)


def apply(xp: ModuleType, activation: Activation, x: Array) -> Array:
    """Return the activation of `x`, elementwise.

    Written with `where` alone: so a NaN stays, and autograd finds what `derivative` says. At 0,
    |x|, max and min would give it a corner that the function does not have.
    """
    alpha, beta = activation.parameters
    match activation.name:
        case "Sigmoid":
            # No exponential can overflow, and a small result keeps its relative accuracy.
            e = xp.exp(xp.where(x <= 0, x, -x))
            return xp.where(x <= 0, e, xp.ones_like(x)) / (1 + e)
        case "Tanh":
            return xp.tanh(x)
        case "Relu":
            return xp.where(x <= 0, xp.zeros_like(x), x)
        case "Affine":
            return alpha * x + beta
        case "LeakyRelu":
            return xp.where(x <= 0, alpha * x, x)
        case "ThresholdedRelu":
            return xp.where(x < alpha, xp.zeros_like(x), x)
        case "ScaledTanh":
            return alpha * xp.tanh(beta * x)
        case "HardSigmoid":
            line, zero, one = alpha * x + beta, xp.zeros_like(x), xp.ones_like(x)
            return xp.where(line <= 0, zero, xp.where(line >= 1, one, line))
        case "Elu":
            return xp.where(x <= 0, alpha * xp.expm1(xp.where(x <= 0, x, xp.zeros_like(x))), x)
        case "Softsign":
            return x / (1 + xp.abs(x))
        case _:  # Softplus
            e = xp.exp(xp.where(x <= 0, x, -x))
            return xp.where(x <= 0, xp.zeros_like(x), x) + xp.log1p(e)


def derivative(xp: ModuleType, activation: Activation, x: Array, y: Array) -> Array:
    """Return dy/dx of y = apply(x), at a corner that of the branch which `apply` takes."""
    alpha, beta = activation.parameters
    one, zero = xp.ones_like(x), xp.zeros_like(x)
    match activation.name:
        case "Sigmoid":
            return y * (1 - y)
        case "Tanh":
            return 1 - y * y
        case "Relu":
            return xp.where(x <= 0, zero, one)
        case "Affine":
            return alpha * one
        case "LeakyRelu":
            return xp.where(x <= 0, alpha * one, one)
        case "ThresholdedRelu":
            return xp.where(x < alpha, zero, one)
        case "ScaledTanh":
            return alpha * beta * (1 - xp.tanh(beta * x) ** 2)
        case "HardSigmoid":
            cut = alpha * x + beta
            return xp.where((cut > 0) & (cut < 1), alpha * one, zero)
        case "Elu":
            return xp.where(x <= 0, y + alpha, one)
        case "Softsign":
            return 1 / (1 + xp.abs(x)) ** 2
        case _:  # Softplus
            return apply(xp, _SIGMOID, x)


_SIGMOID = Activation("Sigmoid")
