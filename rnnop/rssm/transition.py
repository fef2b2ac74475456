"""How state, belief and action become the next belief, forward beside backward.

What depends on the action alone, the *part*, is made for all known steps at once. A transition has

    part(actions)                      (M, A) -> ((M, .), saved)
    part_backward(saved, dpart, tally)        -> dactions
    step(part, state, belief)                 -> (next belief, saved)
    step_backward(saved, dbelief, tally)      -> (dpart, dstate, dbelief)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol, cast

from ..arrays import Array
from ..reference.cells import Cell, make_cell
from ..spec import RNNSpec
from ..weights import RNNWeights
from .cells import BlockGRUCell, LayerNormGRUCell
from .layers import MLP, Tally, stop_gradient
from .weights import RSSMWeights


class Transition(Protocol):
    """See the docstring of the module."""

    def part(self, actions: Array) -> tuple[Array, Any]:
        """Return what the actions alone contribute, and what `part_backward` needs."""

    def part_backward(self, saved: Any, dpart: Array, tally: Tally) -> Array:
        """Return the gradient of the actions."""

    def step(self, part: Array, state: Array, belief: Array) -> tuple[Array, Any]:
        """Return (next belief, saved)."""

    def step_backward(self, saved: Any, dbelief: Array, tally: Tally) -> tuple[Array, Array, Array]:
        """Return the gradients of part, state and belief."""


def make_transition(weights: RSSMWeights, xp: ModuleType) -> Transition:
    """Return the transition of a model."""
    kind = BlockTransition if weights.spec.cell == "block_gru" else GRUTransition
    return kind(weights, xp)


_NAMES = {
    "w_hh": "gru.w_hh[0]",
    "b_hh": "gru.b_hh[0]",
    "scale": "gru_scale",
    "shift": "gru_shift",
}


class GRUTransition:
    """x = layers of [state, action];  belief = GRU(x, belief)."""

    def __init__(self, weights: RSSMWeights, xp: ModuleType) -> None:
        spec, gru = weights.spec, cast(RNNWeights, weights.gru)
        self.xp = xp
        self.inputs = MLP(xp, spec, "inputs", weights.inputs, known=spec.action_size)
        self.w_ih = gru.w_ih[0]
        self.b_ih = None if gru.b_ih is None else gru.b_ih[0]
        rnn = RNNSpec.of(gru, mode="gru", reset_after=spec.cell != "gru_reset_before")
        self.cell: Cell = (
            LayerNormGRUCell(rnn, gru, weights, xp)
            if spec.cell == "gru_layernorm"
            else make_cell(rnn, gru, 0, xp)
        )

    def part(self, actions: Array) -> tuple[Array, Any]:
        """See the module."""
        return self.inputs.part(actions), actions

    def part_backward(self, saved: Any, dpart: Array, tally: Tally) -> Array:
        """See the module."""
        return self.inputs.part_backward(saved, dpart, tally)

    def step(self, part: Array, state: Array, belief: Array) -> tuple[Array, Any]:
        """See the equations of the class."""
        x, kept = self.inputs.forward(state, part)
        a = x @ self.w_ih.T
        (h,), saved = self.cell.step(a if self.b_ih is None else a + self.b_ih, (belief,))
        return h, (kept, x, saved)

    def step_backward(self, saved: Any, dbelief: Array, tally: Tally) -> tuple[Array, Array, Array]:
        """See the module."""
        kept, x, cell_saved = saved
        da, (dh,), grads = self.cell.step_backward(cell_saved, (dbelief,))
        for name, gradient in grads.items():
            tally.add(_NAMES[name], gradient)
        tally.add("gru.w_ih[0]", da.T @ x)
        if self.b_ih is not None:
            tally.add("gru.b_ih[0]", self.xp.sum(da, axis=0))
        dstate, dpart = self.inputs.backward(kept, da @ self.w_ih, tally)
        return dpart, dstate, dh


class BlockTransition:
    """Dreamer v3's: features of belief, state and action, then the block GRU.

    x_h = act(norm(W_h h + b));  x_s = act(norm(W_s s + b))
    x_a = act(norm(W_a (a / max(1, abs(a))) + b));  belief = BlockGRU([x_h, x_s, x_a], h)

    The divisor of the action counts as a constant: no gradient flows through it.
    """

    def __init__(self, weights: RSSMWeights, xp: ModuleType) -> None:
        self.xp, self.spec = xp, weights.spec
        self.of_belief, self.of_state, self.of_action = (
            MLP(xp, weights.spec, "inputs", (layer,), begin=k)
            for k, layer in enumerate(weights.inputs)
        )
        self.cell = BlockGRUCell(weights, xp)
        cut = 2 * weights.spec.hidden_size
        self.w_inner, self.w_action = self.cell.w_x[:, :cut], self.cell.w_x[:, cut:]

    def part(self, actions: Array) -> tuple[Array, Any]:
        """See the module."""
        size = self.xp.abs(actions)
        over = stop_gradient(self.xp.where(size > 1, size, self.xp.ones_like(size)))
        x, kept = self.of_action.forward(actions / over)
        return x @ self.w_action.T, (over, x, kept)

    def part_backward(self, saved: Any, dpart: Array, tally: Tally) -> Array:
        """See the module."""
        over, x, kept = saved
        self._add_features(dpart, x, 2, tally)
        return self.of_action.backward(kept, dpart @ self.w_action, tally)[0] / over

    def step(self, part: Array, state: Array, belief: Array) -> tuple[Array, Any]:
        """See the equations of the class."""
        x_h, kept_h = self.of_belief.forward(belief)
        x_s, kept_s = self.of_state.forward(state)
        x = self.xp.concat([x_h, x_s], axis=1)
        h, saved = self.cell.step(x @ self.w_inner.T + part, belief)
        return h, (kept_h, kept_s, x, saved)

    def step_backward(self, saved: Any, dbelief: Array, tally: Tally) -> tuple[Array, Array, Array]:
        """See the module."""
        kept_h, kept_s, x, cell_saved = saved
        dpart, dh = self.cell.step_backward(cell_saved, dbelief, tally)
        self._add_features(dpart, x, 1, tally)
        dx = dpart @ self.w_inner
        width = self.spec.hidden_size
        dh_features, _ = self.of_belief.backward(kept_h, dx[:, :width], tally)
        dstate, _ = self.of_state.backward(kept_s, dx[:, width:], tally)
        return dpart, dstate, dh + dh_features

    def _add_features(self, d: Array, x: Array, block: int, tally: Tally) -> None:
        """Add the gradient of the columns of the first dynamics layer that read the features x."""
        count = self.spec.num_blocks
        shape = (count, self.spec.belief_size // count, x.shape[1])
        tally.add("dynamics[0].w", self.xp.reshape(d.T @ x, shape), block=block)
