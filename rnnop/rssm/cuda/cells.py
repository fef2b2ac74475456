"""How state, belief and action become the next belief, as work for a device.

A transition has, as in `rnnop.rssm.transition`,

    part(span)           what the actions alone contribute
    step(t)              the belief after step t
    step_backward(t)     the gradients of state and belief before it, from all that arrives there
    part_backward(span)  the gradient of the actions
    sums()               the gradients of the weights
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .layers import Activated, Chain
from .work import Pointer

if TYPE_CHECKING:
    from .model import Model


class Transition(Protocol):
    """See the docstring of the module."""

    def __init__(self, model: Model) -> None: ...

    def part(self, span: int | None) -> None:
        """Begin with what the actions contribute."""

    def step(self, t: int) -> None:
        """Fill in the belief after step t."""

    def step_backward(self, t: int) -> None:
        """Fill in the gradients of state and belief before step t."""

    def part_backward(self, span: int | None) -> None:
        """Fill in the gradient of the actions."""

    def sums(self) -> None:
        """Fill in the gradients of the weights."""


def make_transition(model: Model) -> Transition:
    """Return the transition of a model."""
    return KINDS[model.spec.cell](model)


class GRUTransition:
    """x = layers of [state, action];  belief = GRU(x, belief), with a = W x and q = R h."""

    def __init__(self, model: Model) -> None:
        spec = model.spec
        self.model, self.H = model, spec.belief_size
        numbers = range(spec.input_layers)
        self.inputs = Chain(model, "inputs", numbers, known=spec.action_size)
        self.w_ih, self.w_hh = model.weight("gru.w_ih[0]"), model.weight("gru.w_hh[0]")
        self.biases = model.vector("gru.b_ih[0]"), model.vector("gru.b_hh[0]")
        self.dx = model.scratch(spec.hidden_size)
        self.make_room()

    def make_room(self) -> None:
        """Make memory for gates, and their gradients `da` and `dq`."""
        model, H = self.model, self.H
        self.a, self.q = model.rows(3 * H), model.rows(3 * H)
        self.kept = model.kept_rows(4 * H)
        self.da, self.dq = model.kept_rows(3 * H), model.kept_rows(3 * H)

    def part(self, span: int | None) -> None:
        """See the module."""
        self.inputs.part(span, self.model.actions.of(span))

    def step(self, t: int) -> None:
        """See the equations of the class."""
        x = self.inputs.forward(t, self.model.before("state", t), add=True)
        self.model.product(self.a.of(t), x, self.w_ih.T)
        self.cell(t)

    def cell(self, t: int) -> None:
        """Go from a and the belief before to the one after."""
        model, h = self.model, self.model.before("belief", t)
        model.product(self.q.of(t), h, self.w_hh.T)
        self._each(
            "gru",
            self.a.of(t),
            self.q.of(t),
            *self.biases,
            h,
            *model.gives("belief", t),
            self.kept.of(t),
        )

    def step_backward(self, t: int) -> None:
        """See the module."""
        self.cell_backward(t)
        self.model.product(self.dx.of(t), self.da.of(t), self.w_ih)
        self.inputs.backward(t, self.dx.of(t), self.model.d["state"].of(t))

    def cell_backward(self, t: int) -> None:
        """Go back to a and the belief before."""
        model, d_belief = self.model, self.model.d["belief"].of(t)
        self._each(
            "gru_backward",
            *model.arrives(t),
            self.kept.of(t),
            model.before("belief", t),
            self.da.of(t),
            self.dq.of(t),
            d_belief,
        )
        model.product(d_belief, self.dq.of(t), self.w_hh, add=True)

    def part_backward(self, span: int | None) -> None:
        """See the module."""
        self.inputs.part_backward(span, self.model.d["action"].of(span))

    def sums(self) -> None:
        """See the module."""
        model = self.model
        self.inputs.sums(model.all_before("state"), model.actions.all)
        model.product(model.gradient("gru.w_ih[0]"), self.da.all.T, self.inputs.out.all)
        model.column_sums("gru.b_ih[0]", self.da.all)
        self.recurrent_sums()

    def recurrent_sums(self) -> None:
        """Fill in the gradients of what reads the belief."""
        model = self.model
        model.product(model.gradient("gru.w_hh[0]"), self.dq.all.T, model.all_before("belief"))
        model.column_sums("gru.b_hh[0]", self.dq.all)

    def _each(self, kernel: str, *pointers: Pointer) -> None:
        self.model.each(kernel, (self.model.batch_size, self.H), *pointers)


class ResetBeforeTransition(GRUTransition):
    """PlaNet's: the reset before the product, q of r and z alone, then q_n = R_n (r * h)."""

    def make_room(self) -> None:
        """Make memory; the gates that are kept serve the second kernel too."""
        model, H = self.model, self.H
        self.a, self.q, self.q_n = model.rows(3 * H), model.rows(2 * H), model.rows(H)
        self.kept, self.rh = model.rows(4 * H, model.keep), model.rows(H, model.keep)
        self.da, self.d_rh = model.kept_rows(3 * H), model.scratch(H)
        self.of_reset, self.of_n = self.w_hh.between(0, 2 * H), self.w_hh.between(2 * H, 3 * H)

    def cell(self, t: int) -> None:
        """Go from a and the belief before to the one after."""
        model, h = self.model, self.model.before("belief", t)
        model.product(self.q.of(t), h, self.of_reset.T)
        self._each(
            "gru_reset", self.a.of(t), self.q.of(t), *self.biases, h, self.kept.of(t), self.rh.of(t)
        )
        model.product(self.q_n.of(t), self.rh.of(t), self.of_n.T)
        self._each(
            "gru_candidate",
            self.a.of(t),
            self.q_n.of(t),
            *self.biases,
            h,
            *model.gives("belief", t),
            self.kept.of(t),
        )

    def cell_backward(self, t: int) -> None:
        """Go back to a and the belief before."""
        model, h, H = self.model, self.model.before("belief", t), self.H
        d_belief, da = model.d["belief"].of(t), self.da.of(t)
        self._each("gru_candidate_backward", *model.arrives(t), self.kept.of(t), h, da, d_belief)
        model.product(self.d_rh.of(t), da.cut(2 * H, 3 * H), self.of_n)
        self._each("gru_reset_backward", self.d_rh.of(t), self.kept.of(t), h, da, d_belief)
        model.product(d_belief, da.cut(0, 2 * H), self.of_reset, add=True)

    def recurrent_sums(self) -> None:
        """Fill in the gradients of what reads the belief."""
        model, H, da = self.model, self.H, self.da.all
        gradient = model.gradient("gru.w_hh[0]")
        model.product(gradient.between(0, 2 * H), da.cut(0, 2 * H).T, model.all_before("belief"))
        model.product(gradient.between(2 * H, 3 * H), da.cut(2 * H, 3 * H).T, self.rh.all)
        model.column_sums("gru.b_hh[0]", da)


class LayerNormTransition(GRUTransition):
    """Dreamer v2's: a = LN(W x + R h + b_i + b_h), then the update that both Dreamers share."""

    def make_room(self) -> None:
        """Make memory; the sum of both products lies where the norm reads it."""
        model, width = self.model, 3 * self.H
        self.a, self.kept = model.rows(width, model.keep), model.rows(width, model.keep)
        self.bias = model.room(1, width)
        bias = self.bias.pointer if any(self.biases) else None
        self.norm = Activated(model, "gru_", bias, "layer", "identity", self.a, self.kept)
        self.da = self.dq = self.norm.d
        self.dy = model.scratch(width)

    def part(self, span: int | None) -> None:
        """Add the two biases up, too."""
        super().part(span)
        given = [name for name in ("gru.b_ih[0]", "gru.b_hh[0]") if name in self.model.weights]
        for k, name in enumerate(given):
            row = self.model.weight(name)
            self.model.product(self.bias, self.model.ones.cut(0, 1), row, add=k > 0)

    def cell(self, t: int) -> None:
        """Go from a and the belief before to the one after."""
        model, h = self.model, self.model.before("belief", t)
        model.product(self.a.of(t), h, self.w_hh.T, add=True)
        self.norm.forward(t)
        model.each(
            "update",
            (model.batch_size, self.H),
            self.kept.of(t),
            None,
            h,
            *model.gives("belief", t),
            more=(self.H,),
        )

    def cell_backward(self, t: int) -> None:
        """Go back to a and the belief before."""
        model, d_belief = self.model, self.model.d["belief"].of(t)
        model.each(
            "update_backward",
            (model.batch_size, self.H),
            *model.arrives(t),
            self.kept.of(t),
            None,
            model.before("belief", t),
            self.dy.of(t),
            d_belief,
            more=(self.H,),
        )
        self.norm.backward(t, self.dy.of(t))
        model.product(d_belief, self.da.of(t), self.w_hh, add=True)

    def recurrent_sums(self) -> None:
        """Fill in the gradients of what reads the belief, and of the norm."""
        super().recurrent_sums()
        self.norm.sums()


class BlockTransition:
    """Dreamer v3's: features of belief, state and action, layers in blocks, the same update.

    The first layer in blocks is D_h h, each block its own, and D_x x, which all blocks share; its
    products with the features of the action stand before the loop.
    """

    def __init__(self, model: Model) -> None:
        spec = model.spec
        self.model, self.H, self.X = model, spec.belief_size, spec.hidden_size
        self.blocks, self.block = spec.num_blocks, spec.belief_size // spec.num_blocks
        every = model.keep or model.hoists
        self.x, self.limited = (model.rows(n, every) for n in (3 * self.X, spec.action_size))
        parts = [self.x.cut(k * self.X, (k + 1) * self.X) for k in range(3)]
        at_once = (False, False, model.hoists)
        self.of_belief, self.of_state, self.of_action = (
            Chain(model, "inputs", range(k, k + 1), at_once=at_once[k], y=parts[k])
            for k in range(3)
        )
        weights = [
            model.in_blocks(model.weight(f"dynamics[{k}].w"))
            for k in range(spec.dynamics_layers + 1)
        ]
        width = weights[0].columns
        self.matrices = [weights[0].cut(0, self.block), *weights[1:]]
        self.shared = model.weight("dynamics[0].w").cut(self.block, width)
        self.pre = [
            model.rows(self.blocks * each.rows, model.keep or (k == 0 and model.hoists))
            for k, each in enumerate(weights)
        ]
        self.y = [model.rows(self.H, model.keep) for _ in weights[:-1]]
        self.activated = [
            Activated(
                *(model, f"dynamics[{k}].", model.vector(f"dynamics[{k}].b"), spec.norm),
                *(spec.activation, self.pre[k], self.y[k]),
            )
            for k in range(spec.dynamics_layers)
        ]
        self.bias = model.vector(f"dynamics[{spec.dynamics_layers}].b")
        self.da = model.kept_rows(3 * self.H)
        self.d = [*(each.d for each in self.activated), self.da]
        self.dy, self.dx = model.scratch(self.H), model.kept_rows(3 * self.X)

    def part(self, span: int | None) -> None:
        """See the module."""
        given, limited = self.model.actions.of(span), self.limited.of(span)
        self.model.each("limit", (given.rows, given.columns), given, limited)
        x = self.of_action.forward(span, limited)
        self.model.product(self.pre[0].of(span), x, self.shared.cut(2 * self.X, 3 * self.X).T)

    def step(self, t: int) -> None:
        """See the equations of the class."""
        model, h = self.model, self.model.before("belief", t)
        self.of_belief.forward(t, h)
        self.of_state.forward(t, model.before("state", t))
        features, shared = self.x.of(t).cut(0, 2 * self.X), self.shared.cut(0, 2 * self.X)
        model.product(self.pre[0].of(t), features, shared.T, add=True)
        y = h
        for k, matrix in enumerate(self.matrices):
            pre = self.pre[k].of(t).blocked(self.blocks)
            model.product(pre, y.blocked(self.blocks), matrix.T, add=k == 0)
            if k < len(self.activated):
                y = self.activated[k].forward(t)
        model.each(
            "update",
            (model.batch_size, self.H),
            self.pre[-1].of(t),
            self.bias,
            h,
            *model.gives("belief", t),
            more=(self.block,),
        )

    def step_backward(self, t: int) -> None:
        """See the module."""
        model, d_belief, dx = self.model, self.model.d["belief"].of(t), self.dx.of(t)
        model.each(
            "update_backward",
            (model.batch_size, self.H),
            *model.arrives(t),
            self.pre[-1].of(t),
            self.bias,
            model.before("belief", t),
            self.da.of(t),
            d_belief,
            more=(self.block,),
        )
        for k in reversed(range(len(self.matrices))):
            if k < len(self.activated):
                self.activated[k].backward(t, self.dy.of(t))
            to = self.dy.of(t) if k else d_belief
            d = self.d[k].of(t).blocked(self.blocks)
            model.product(to.blocked(self.blocks), d, self.matrices[k], add=k == 0)
        both = 2 * self.X
        model.product(dx.cut(0, both), self.d[0].of(t), self.shared.cut(0, both))
        self.of_belief.backward(t, dx.cut(0, self.X), d_belief, add=True)
        self.of_state.backward(t, dx.cut(self.X, both), model.d["state"].of(t))

    def part_backward(self, span: int | None) -> None:
        """See the module."""
        dx = self.dx.of(span).cut(2 * self.X, 3 * self.X)
        self.model.product(dx, self.d[0].of(span), self.shared.cut(2 * self.X, 3 * self.X))
        given, d = self.model.actions.of(span), self.model.d["action"].of(span)
        self.of_action.backward(span, dx, d)
        self.model.each("limit_backward", (given.rows, given.columns), given, d)

    def sums(self) -> None:
        """See the module."""
        model, beliefs = self.model, self.model.all_before("belief")
        self.of_belief.sums(beliefs)
        self.of_state.sums(model.all_before("state"))
        self.of_action.sums(self.limited.all)
        width = self.block + 3 * self.X
        shared = model.gradient("dynamics[0].w").cut(self.block, width)
        model.product(shared, self.d[0].all.T, self.x.all)
        for k, d in enumerate(self.d):
            gradient = model.in_blocks(model.gradient(f"dynamics[{k}].w")).cut(0, self.block)
            read = self.y[k - 1].all if k else beliefs
            model.product(gradient, d.all.blocked(self.blocks).T, read.blocked(self.blocks))
            model.column_sums(f"dynamics[{k}].b", d.all)
        for each in self.activated:
            each.sums()


KINDS: dict[str, type[Transition]] = {
    "gru": GRUTransition,
    "gru_reset_before": ResetBeforeTransition,
    "gru_layernorm": LayerNormTransition,
    "block_gru": BlockTransition,
}
