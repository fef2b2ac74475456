"""Layers over a batch of rows, each forward beside its backward.

A hidden layer is y = activation(norm(W x + b)). `MLP` is a chain of them; what its first layer
reads may stand in two columns of W, the second of which is known for all steps beforehand: its
product, the *part*, is made once, outside the loop over time.

A backward adds the gradients of the weights to a `Tally`, under the names of `RSSMWeights.named`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ..arrays import Array, family, zeros
from ..reference.activations import apply, derivative
from ..spec import Activation
from .spec import RSSMSpec
from .weights import Layer, RSSMWeights

_ONNX = {"elu": Activation("Elu"), "relu": Activation("Relu")}
_SIGMOID = Activation("Sigmoid")


class Tally:
    """Sums of gradients of weights, by name and, for parts of a matrix, by block of columns."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.sums: dict[str, dict[int, Array]] = {}

    def add(self, name: str, gradient: Array, block: int = 0) -> None:
        """Add a gradient of the array `name`, or of a block of its columns."""
        blocks = self.sums.setdefault(name, {})
        blocks[block] = blocks[block] + gradient if block in blocks else gradient

    def weights(self, like: RSSMWeights) -> RSSMWeights:
        """Return the sums as weights, zeros where nothing was added."""
        joined = {name: self._joined(name, array) for name, array in like.named()}
        return RSSMWeights.of_arrays(like.spec, joined)

    def _joined(self, name: str, like: Array) -> Array:
        blocks = self.sums.get(name)
        if blocks is None:
            return zeros(self.xp, like.shape, like)
        return self.xp.concat([blocks[k] for k in sorted(blocks)], axis=-1)


class Activated:
    """y = activation(norm(x)) of one hidden layer, by the names of its spec."""

    def __init__(
        self, xp: ModuleType, name: str, layer: Layer, norm: str, activation: str, eps: float
    ) -> None:
        self.xp, self.name, self.activation = xp, name, activation
        self.norm = Norm(xp, norm, layer.scale, layer.shift, eps)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return (y, saved)."""
        normed, kept = self.norm.forward(x)
        if self.activation == "silu":
            s = apply(self.xp, _SIGMOID, normed)
            return normed * s, (kept, normed, s)
        y = apply(self.xp, _ONNX[self.activation], normed)
        return y, (kept, normed, y)

    def backward(self, saved: Any, dy: Array, tally: Tally) -> Array:
        """Return the gradient of x."""
        kept, normed, y = saved
        if self.activation == "silu":
            slope = y * (1 + normed * (1 - y))  # y is s(normed) here
        else:
            slope = derivative(self.xp, _ONNX[self.activation], normed, y)
        dx, grads = self.norm.backward(kept, dy * slope)
        for field, gradient in grads.items():
            tally.add(self.name + field, gradient)
        return dx


class Norm:
    """y = scale * (x - mean) / sqrt(var + eps) + shift over the last axis, or without mean: 'rms'.

    'none' returns x.
    """

    def __init__(
        self, xp: ModuleType, kind: str, scale: Array | None, shift: Array | None, eps: float
    ) -> None:
        self.xp, self.kind, self.eps = xp, kind, eps
        self.scale, self.shift = scale, shift

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return (y, saved)."""
        if self.kind == "none":
            return x, None
        xp = self.xp
        if self.kind == "layer":
            x = x - xp.mean(x, axis=-1, keepdims=True)
        inverse = 1 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        unit = x * inverse
        y = unit * self.scale
        return (y if self.shift is None else y + self.shift), (unit, inverse)

    def backward(self, saved: Any, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return dx, and the gradients of scale and shift.

        dx = (du - unit * mean(du * unit)) / sqrt(var + eps) with du = dy * scale, less its mean
        for 'layer'.
        """
        if self.kind == "none":
            return dy, {}
        xp = self.xp
        unit, inverse = saved
        grads = {"scale": xp.sum(dy * unit, axis=0), "shift": xp.sum(dy, axis=0)}
        if self.shift is None:
            del grads["shift"]
        du = dy * self.scale
        dx = (du - unit * xp.mean(du * unit, axis=-1, keepdims=True)) * inverse
        return (dx - xp.mean(dx, axis=-1, keepdims=True) if self.kind == "layer" else dx), grads


class MLP:
    """Layers of one field of the weights, from number `begin` on, one after another.

    With `known` columns, the first layer reads two things: x, and what gives the part. With `last`,
    the last layer has neither norm nor activation.
    """

    def __init__(
        self,
        xp: ModuleType,
        spec: RSSMSpec,
        field: str,
        layers: tuple[Layer, ...],
        *,
        begin: int = 0,
        known: int = 0,
        last: bool = False,
    ) -> None:
        self.xp, self.layers = xp, layers
        self.names = [f"{field}[{begin + k}]." for k in range(len(layers))]
        hidden = len(layers) - last
        self.activated = [
            Activated(
                xp, self.names[k], layers[k], spec.norm_of(field), spec.activation, spec.norm_eps
            )
            for k in range(hidden)
        ]
        first = layers[0].w
        self.split = first.shape[1] - known
        self.matrices = [first[:, : self.split], *(layer.w for layer in layers[1:])]
        self.known = first[:, self.split :]

    def part(self, known: Array) -> Array:
        """Return the part of the first layer's product that `known` (M, .) gives, with b."""
        return _plus(known @ self.known.T, self.layers[0].b)

    def part_backward(self, known: Array, dpart: Array, tally: Tally) -> Array:
        """Return the gradient of `known` from that of its part."""
        tally.add(self.names[0] + "w", dpart.T @ known, block=1)
        self._add_bias(0, dpart, tally)
        return dpart @ self.known

    def forward(self, x: Array, part: Array | None = None) -> tuple[Array, Any]:
        """Return (y, saved); without a part, the first layer reads x alone."""
        saved = []
        for k, matrix in enumerate(self.matrices):
            pre = x @ matrix.T
            pre = _plus(pre, self.layers[k].b) if k or part is None else pre + part
            y, kept = self.activated[k].forward(pre) if k < len(self.activated) else (pre, None)
            saved.append((x, kept))
            x = y
        return x, (saved, part is not None)

    def backward(self, saved: Any, dy: Array, tally: Tally) -> tuple[Array, Array]:
        """Return the gradients of x and of the part."""
        layers, has_part = saved
        for k in reversed(range(len(layers))):
            x, kept = layers[k]
            dpre = dy
            if k < len(self.activated):
                dpre = self.activated[k].backward(kept, dy, tally)
            tally.add(self.names[k] + "w", dpre.T @ x)
            if k or not has_part:
                self._add_bias(k, dpre, tally)
            dy = dpre @ self.matrices[k]
        return dy, dpre

    def _add_bias(self, k: int, dpre: Array, tally: Tally) -> None:
        if self.layers[k].b is not None:
            tally.add(self.names[k] + "b", self.xp.sum(dpre, axis=0))


def stop_gradient(array: Array) -> Array:
    """Return the same numbers as a constant to the autograd of the array's family."""
    name = family(array)
    if name == "torch":
        return array.detach()
    if name == "jax":
        return importlib.import_module("jax.lax").stop_gradient(array)
    return array


def _plus(x: Array, b: Array | None) -> Array:
    return x if b is None else x + b
