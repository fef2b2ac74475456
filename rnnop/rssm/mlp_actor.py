"""An actor of dense layers: it knows its gradient, and a backend may run it itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays import Array, family, namespace
from ..errors import DTypeError, ShapeError, SpecError
from ..validate import choice, shaped_like
from .layers import Activated, Tally
from .spec import ACTIVATIONS, RSSMSpec
from .weights import Layer

SQUASHES = ("tanh", "identity")


@dataclass(frozen=True, eq=False, repr=False)
class MLPActor:
    """An actor for `imagine` and `imagine_vjp` alike, made of dense layers.

    On NumPy arrays the CPU engine runs it inside its loop, so that all steps are one native call.

    Parameters
    ----------
    layers : sequence of Layer
        Each with `w` (out, in) and, if it has one, `b` (out,); `in` of the first is state_size +
        belief_size, `out` of the last is action_size. The arrays stay the caller's.
    activation : {'elu', 'relu', 'silu'}
        After all layers but the last.
    squash : {'tanh', 'identity'}
        After the last one.

    Raises
    ------
    SpecError
        There is no layer, an option is unknown, or a layer has a norm.
    DTypeError
        A layer is not a `Layer`.
    ShapeError
        Layers do not fit one another.

    Notes
    -----
    With a_0 = [state, belief]::

        a_k = activation(W_k a_{k-1} + b_k);   action = squash(W_n a_{n-1} + b_n)

    ``grads.actor`` of `imagine_vjp` has the gradients in the order of `parameters`.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> draw = np.random.default_rng(0).standard_normal
    >>> hidden = rssm.Layer(draw((16, 11), np.float32), np.zeros(16, np.float32))
    >>> last = rssm.Layer(draw((2, 16), np.float32))
    >>> actor = rssm.MLPActor([hidden, last])
    >>> out, vjp = rssm.imagine_vjp(weights, None, np.zeros((4, 8), np.float32), actor, 15, seed=0)
    >>> [each.shape for each in vjp(dstate=np.ones_like(out.state)).actor]
    [(16, 11), (16,), (2, 16)]
    """

    layers: tuple[Layer, ...]
    activation: str = "elu"
    squash: str = "tanh"

    def __post_init__(self) -> None:
        choice("activation", self.activation, ACTIVATIONS)
        choice("squash", self.squash, SQUASHES)
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise SpecError("`layers` is empty; expected at least one layer")
        for k, layer in enumerate(self.layers):
            self._check_layer(k, layer)

    def _check_layer(self, k: int, layer: Any) -> None:
        name = f"layers[{k}]"
        if not isinstance(layer, Layer):
            raise DTypeError(f"`{name}` is {type(layer).__name__}; expected rnnop.rssm.Layer")
        if layer.scale is not None or layer.shift is not None:
            raise SpecError(f"`{name}` has a norm; expected w and b alone")
        given: list[tuple[str, Any, int]] = [("w", layer.w, 2)]
        if layer.b is not None:
            given.append(("b", layer.b, 1))
        for field, array, ndim in given:
            if family(array) is None:
                raise DTypeError(f"`{name}.{field}` is {type(array).__name__}; expected an array")
            if array.ndim != ndim:
                raise ShapeError(
                    f"`{name}.{field}` has shape {tuple(array.shape)}; expected {ndim} axes"
                )
        if layer.b is not None and layer.b.shape[0] != layer.w.shape[0]:
            raise ShapeError(
                f"`{name}.b` has shape {tuple(layer.b.shape)}; expected ({layer.w.shape[0]},), "
                "the rows of w"
            )
        if k and layer.w.shape[1] != self.layers[k - 1].w.shape[0]:
            raise ShapeError(
                f"`{name}.w` has shape {tuple(layer.w.shape)}; expected "
                f"(out, {self.layers[k - 1].w.shape[0]}), what the layer before gives"
            )

    @property
    def parameters(self) -> tuple[Array, ...]:
        """W and b of each layer, those that there are: what `grads.actor` is the gradient of."""
        return tuple(each for layer in self.layers for each in layer if each is not None)

    def check(self, spec: RSSMSpec, like: Array) -> None:
        """Refuse arrays that do not fit a model, or that are unlike its data."""
        seen = spec.state_size + spec.belief_size
        ends = (
            ("layers[0].w", self.layers[0].w, 1, seen, "state_size + belief_size columns"),
            (f"layers[{len(self.layers) - 1}].w", self.layers[-1].w, 0, spec.action_size, "rows"),
        )
        for name, array, axis, size, what in ends:
            if array.shape[axis] != size:
                raise ShapeError(
                    f"`actor.{name}` has shape {tuple(array.shape)}; expected {size} {what}"
                )
        for k, layer in enumerate(self.layers):
            for field, array in layer._asdict().items():
                if array is not None:
                    name, shape = f"actor.layers[{k}].{field}", tuple(array.shape)
                    shaped_like(name, array, shape, "its shape", like, "the state")

    def __call__(self, state: Array, belief: Array) -> Array:
        """Return the action (N, A) of a state (N, S) and a belief (N, H)."""
        return self._run(state, belief)[0]

    def with_vjp(self, state: Array, belief: Array) -> tuple[Array, Callable[[Array], Any]]:
        """Return the action and its vjp, for dstate, dbelief and those of `parameters`."""
        action, saved = self._run(state, belief)
        return action, lambda daction: self._pull(saved, daction, int(state.shape[1]))

    def _run(self, state: Array, belief: Array) -> tuple[Array, Any]:
        xp = namespace(str(family(state)))
        hidden = [
            Activated(xp, "", layer, "none", self.activation, 0.0) for layer in self.layers[:-1]
        ]
        x, saved = xp.concat([state, belief], axis=1), []
        for k, layer in enumerate(self.layers):
            pre = x @ layer.w.T
            pre = pre if layer.b is None else pre + layer.b
            y, kept = hidden[k].forward(pre) if k < len(hidden) else (pre, None)
            saved.append((x, kept))
            x = y
        action = xp.tanh(x) if self.squash == "tanh" else x
        return action, (xp, hidden, saved, action)

    def _pull(self, saved: Any, daction: Array, state_size: int) -> tuple[Array, ...]:
        xp, hidden, steps, action = saved
        d = daction * (1 - action * action) if self.squash == "tanh" else daction
        own: list[Array] = []
        for k in reversed(range(len(self.layers))):
            layer, (x, kept) = self.layers[k], steps[k]
            if kept is not None:
                d = hidden[k].backward(kept, d, Tally(xp))
            if layer.b is not None:
                own.insert(0, xp.sum(d, axis=0))
            own.insert(0, d.T @ x)
            d = d @ layer.w
        return d[:, :state_size], d[:, state_size:], *own

    def __repr__(self) -> str:
        sizes = [self.layers[0].w.shape[1], *(layer.w.shape[0] for layer in self.layers)]
        return f"MLPActor({' -> '.join(map(str, sizes))}, {self.activation}, {self.squash})"
