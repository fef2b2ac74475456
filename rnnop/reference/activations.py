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
    """Return the activation of `x`, elementwise."""
    alpha, beta = activation.parameters
    match activation.name:
        case "Sigmoid":
            # Neither exponential can overflow, and a small result keeps its relative accuracy.
            return xp.exp(xp.minimum(x, xp.zeros_like(x))) / (1 + xp.exp(-xp.abs(x)))
        case "Tanh":
            return xp.tanh(x)
        case "Relu":
            # Not maximum(x, 0): a NaN must stay, and the gradient at 0 is 0 for autograd too.
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
            return xp.clip(alpha * x + beta, 0.0, 1.0)
        case "Elu":
            return xp.where(x <= 0, alpha * xp.expm1(xp.minimum(x, xp.zeros_like(x))), x)
        case "Softsign":
            return x / (1 + xp.abs(x))
        case _:  # Softplus
            return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def derivative(xp: ModuleType, activation: Activation, x: Array, y: Array) -> Array:
    """Return dy/dx of y = apply(x), from the left at a kink."""
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
