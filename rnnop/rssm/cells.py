"""Dreamer's cells: one step beside its gradient.

Both end in the same update. It multiplies the whole candidate by r, and its u says how much is
written, not how much is kept; so neither is a GRU of cuDNN's.

    r = s(a_r);  u = s(a_u - 1);  n = tanh(r * a_n);  h_t = u * n + (1 - u) * h
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..arrays import Array
from ..reference.activations import apply
from ..reference.cells import GRUCell, State, WeightGrads
from ..spec import Activation, RNNSpec
from ..weights import RNNWeights
from .layers import Activated, Norm, Tally
from .weights import RSSMWeights

UPDATE_BIAS = -1.0  # of both owners: little is written before training
_SIGMOID = Activation("Sigmoid")


class Update:
    """The update that both cells share, see the equations of the module."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def forward(self, gates: list[Array], h: Array) -> tuple[Array, Any]:
        """Return (h_t, saved) from the pre-activations a_r, a_u and a_n."""
        a_r, a_u, a_n = gates
        r, u = (apply(self.xp, _SIGMOID, a) for a in (a_r, a_u + UPDATE_BIAS))
        n = self.xp.tanh(r * a_n)
        return u * n + (1 - u) * h, (a_n, h, r, u, n)

    def backward(self, saved: Any, dh_t: Array) -> tuple[list[Array], Array]:
        """Return the gradients of the pre-activations, and of h."""
        a_n, h, r, u, n = saved
        d_rn = dh_t * u * (1 - n * n)
        d_r = d_rn * a_n * r * (1 - r)
        d_u = dh_t * (n - h) * u * (1 - u)
        return [d_r, d_u, d_rn * r], dh_t * (1 - u)


class LayerNormGRUCell(GRUCell):
    """Dreamer v2's GRU: a = LN(W x + b_i + R h + b_h), normed over its three gates at once."""

    def __init__(
        self, spec: RNNSpec, gru: RNNWeights, weights: RSSMWeights, xp: ModuleType
    ) -> None:
        super().__init__(spec, gru, 0, xp)
        self.update = Update(xp)
        eps = weights.spec.norm_eps
        self.norm = Norm(xp, "layer", weights.gru_scale, weights.gru_shift, eps)

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """See the equations of the class and of the module."""
        (h,) = state
        normed, kept = self.norm.forward(a + self.product(h))
        h_t, updated = self.update.forward(self.split(normed), h)
        return (h_t,), (h, kept, updated)

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """See `rnnop.reference.cells.Cell`; the norm's gradients are 'scale' and 'shift'."""
        h, kept, updated = saved
        gates, dh = self.update.backward(updated, dstate[0])
        da, grads = self.norm.backward(kept, self.xp.concat(gates, axis=1))
        dh_product, product_grads = self.product_backward(h, da)
        return da, (dh + dh_product,), grads | product_grads


class BlockProduct:
    """W x of a matrix in blocks: block b maps its own part of x to its own part of the result."""

    def __init__(self, xp: ModuleType, w: Array) -> None:
        self.xp, self.w = xp, w

    def forward(self, x: Array) -> Array:
        """Return (M, B * out) from (M, B * in)."""
        return self._joined(self._blocks(x) @ self._turned(self.w))

    def backward(self, x: Array, dy: Array) -> tuple[Array, Array]:
        """Return the gradients of x and of W."""
        d = self._blocks(dy)
        return self._joined(d @ self.w), self._turned(d) @ self._blocks(x)

    def _blocks(self, x: Array) -> Array:
        """(M, B * k) -> (B, M, k)."""
        count = self.w.shape[0]
        parts = self.xp.reshape(x, (x.shape[0], count, x.shape[1] // count))
        return self.xp.permute_dims(parts, (1, 0, 2))

    def _joined(self, blocks: Array) -> Array:
        """(B, M, k) -> (M, B * k)."""
        count, rows, size = blocks.shape
        return self.xp.reshape(self.xp.permute_dims(blocks, (1, 0, 2)), (rows, count * size))

    def _turned(self, blocks: Array) -> Array:
        return self.xp.permute_dims(blocks, (0, 2, 1))


class BlockGRUCell:
    """Dreamer v3's GRU: belief and features go through layers in blocks to the update's gates.

    d = act(norm(D_h h + D_x x + b));  d = act(norm(D d + b)), ...;  a_r, a_u, a_n = D d + b

    D_h and the later D are blocks of their own. D_x reads features that all blocks share, so it is
    one plain matrix; the caller makes its products.
    """

    def __init__(self, weights: RSSMWeights, xp: ModuleType) -> None:
        spec, layers = weights.spec, weights.dynamics
        self.xp, self.blocks = xp, spec.num_blocks
        block = spec.belief_size // spec.num_blocks
        self.biases = [layer.b for layer in layers]
        first = layers[0].w
        self.w_x = xp.reshape(first[:, :, block:], (spec.belief_size, first.shape[2] - block))
        matrices = [first[:, :, :block], *(layer.w for layer in layers[1:])]
        self.products = [BlockProduct(xp, matrix) for matrix in matrices]
        self.activated = [
            Activated(xp, f"dynamics[{k}].", layer, spec.norm, spec.activation, spec.norm_eps)
            for k, layer in enumerate(layers[:-1])
        ]
        self.update = Update(xp)

    def step(self, features: Array, h: Array) -> tuple[Array, Any]:
        """Return (h_t, saved); `features` are D_x x, of all features together."""
        kept = []
        d, extra = h, features
        for k, product in enumerate(self.products):
            pre = product.forward(d)
            pre = pre if self.biases[k] is None else pre + self.biases[k]
            y, saved = pre, None
            if k < len(self.activated):
                y, saved = self.activated[k].forward(pre if k else pre + extra)
            kept.append((d, saved))
            d = y
        h_t, updated = self.update.forward(self._gates(d), h)
        return h_t, (kept, updated)

    def step_backward(self, saved: Any, dh_t: Array, tally: Tally) -> tuple[Array, Array]:
        """Return the gradients of D_x x and of h."""
        kept, updated = saved
        gates, dh = self.update.backward(updated, dh_t)
        dy = self._gates_backward(gates)
        for k in reversed(range(len(kept))):
            d, activated = kept[k]
            dpre = dy
            if k < len(self.activated):
                dpre = self.activated[k].backward(activated, dy, tally)
            if self.biases[k] is not None:
                tally.add(f"dynamics[{k}].b", self.xp.sum(dpre, axis=0))
            dy, dw = self.products[k].backward(d, dpre)
            tally.add(f"dynamics[{k}].w", dw)
        return dpre, dh + dy

    def _gates(self, d: Array) -> list[Array]:
        """Cut (M, 3 H), three gates in each block, into three of (M, H)."""
        xp, rows = self.xp, d.shape[0]
        size = d.shape[1] // (3 * self.blocks)
        cut = xp.reshape(d, (rows, self.blocks, 3, size))
        return [xp.reshape(cut[:, :, k], (rows, self.blocks * size)) for k in range(3)]

    def _gates_backward(self, gates: list[Array]) -> Array:
        xp, (rows, width) = self.xp, gates[0].shape
        cut = [xp.reshape(gate, (rows, self.blocks, width // self.blocks)) for gate in gates]
        return xp.reshape(xp.stack(cut, axis=2), (rows, 3 * width))
