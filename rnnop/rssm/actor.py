"""The caller's actor: what it returns is checked, and brought to the dtype of the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..arrays import Array
from ..errors import DTypeError
from ..validate import shaped_like
from .mlp_actor import MLPActor
from .spec import RSSMSpec


@dataclass(frozen=True, eq=False)
class CheckedActor:
    """A backend's actor around the caller's, see `rnnop.rssm.backends.Actor`.

    The caller's sees arrays like `like`, whatever the backend computes in. With `has_vjp` it
    returns (action, vjp), else the action alone.
    """

    call: Callable[..., Any]
    has_vjp: bool
    spec: RSSMSpec
    xp: ModuleType
    like: Array
    batch_size: int

    def __call__(self, state: Array, belief: Array) -> tuple[Array, Any]:
        """Return the action, and its vjp or None."""
        call = self.call
        if self.has_vjp and isinstance(call, MLPActor):
            call = call.with_vjp
        result = call(self._down(state), self._down(belief))
        vjp = None
        if self.has_vjp:
            result, vjp = self._action_and_vjp(result)
        size = self.spec.action_size
        action = self._checked("actor(state, belief)", result, size, "action_size")
        wide = state.dtype
        if vjp is None:
            return self.xp.astype(action, wide, copy=False), None
        return self.xp.astype(action, wide, copy=False), lambda d: self._pull(vjp, d)

    def _action_and_vjp(self, result: Any) -> tuple[Any, Callable[..., Any]]:
        if not isinstance(result, tuple | list) or len(result) != 2 or not callable(result[1]):
            raise DTypeError(
                f"`actor(state, belief)` is {type(result).__name__}; expected (action, vjp), with "
                "vjp(daction) -> (dstate, dbelief, *dparameters)"
            )
        return result[0], result[1]

    def _pull(self, vjp: Callable[..., Any], d: Array) -> tuple[Any, Any, list[Any]]:
        """Return the gradients of state and belief, None for zeros, and of the parameters."""
        result = vjp(self._down(d))
        if not isinstance(result, tuple | list) or len(result) < 2:
            raise DTypeError(
                f"the actor's vjp returned {type(result).__name__}; "
                "expected (dstate, dbelief, *dparameters)"
            )
        dstate, dbelief, *own = result
        sizes = (("dstate", dstate, "state_size"), ("dbelief", dbelief, "belief_size"))
        pulled = [
            None
            if each is None
            else self.xp.astype(
                self._checked(f"{name} of the actor", each, getattr(self.spec, size), size),
                d.dtype,
                copy=False,
            )
            for name, each, size in sizes
        ]
        return pulled[0], pulled[1], own

    def _checked(self, name: str, array: Any, size: int, word: str) -> Array:
        shape = (self.batch_size, size)
        return shaped_like(name, array, shape, f"(N, {word})", self.like, "the state")

    def _down(self, array: Array) -> Array:
        return self.xp.astype(array, self.like.dtype, copy=False)
