"""`rnnop.rssm` on JAX arrays: `run` and `run_vjp`, with the arguments of `make_call`.

`step`, `rollout` and `observe` are one operation of a program each. `imagine` is one for each step,
with whatever the actor does between them: JAX sees the actor, and so can differentiate it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import arrays, validate
from ..arrays import Array
from ..errors import DTypeError, SpecError, blame
from ..rssm import call as calls
from ..rssm.actor import CheckedActor
from ..rssm.api import RSSMVJP, direct, direct_vjp
from ..rssm.backends import step_shapes
from ..rssm.outputs import OUTPUTS
from ..rssm.spec import RSSMSpec
from ..rssm.weights import RSSMGrads, RSSMWeights
from .call import axis_of_each, stand_in, steps_array
from .operator import varying_alike
from .primitives import forward_p


class Operands(NamedTuple):
    """The arrays of a call, in the order in which the primitives take them; None for none.

    All but the last two have a gradient.
    """

    weights: Any
    state: Any
    belief: Any
    actions: Any
    embeds: Any
    noise: Any
    is_first: Any


@dataclass(frozen=True)
class RSSMCall:
    """What is static of a call, see `calls.py`.

    Attributes
    ----------
    tree : PyTreeDef
        How the operands make `Operands`; the spec is in it.
    function : str
        The public function that was called.
    form, order, backend : str
        As of `make_call`.
    """

    tree: Any
    function: str
    form: str
    order: str
    backend: str

    @property
    def num_operands(self) -> int:
        """How many arrays it takes."""
        return int(self.tree.num_leaves)

    @functools.cached_property
    def spec(self) -> RSSMSpec:
        """The model."""
        spec: RSSMSpec = self.operands().weights.spec
        return spec

    @functools.cached_property
    def cotangents(self) -> tuple[str, ...]:
        """The names of the cotangents."""
        return tuple(f"d{name}" for name in step_shapes(self.spec, self.form))

    def operands(self, leaves: Sequence[Any] | None = None) -> Operands:
        """Return the operands by name: `leaves`, or their numbers."""
        numbers = range(self.num_operands)
        operands: Operands = jax.tree_util.tree_unflatten(
            self.tree, numbers if leaves is None else leaves
        )
        return operands

    def shapes(self, avals: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the results, after all checks that need no values."""
        return _shapes(self, tuple((aval.shape, aval.dtype) for aval in avals))

    def quiet(self) -> RSSMCall:
        """Return the call: nothing is said when it is checked."""
        return self

    def run(self, leaves: Sequence[Array]) -> list[Array]:
        """Return the results."""
        given, rest = self._arguments(leaves)
        return list(direct(*given, **rest))

    def run_vjp(self, leaves: Sequence[Array]) -> tuple[list[Array], RSSMVJP]:
        """Return the results and the vjp."""
        given, rest = self._arguments(leaves)
        out, vjp = direct_vjp(*given, **rest)
        return list(out), vjp

    def kept(self, vjp: RSSMVJP) -> Any:
        """Return what it holds in memory until the backward."""
        saved = vjp._saved
        return saved if hasattr(saved, "nbytes") else saved.steps  # those of the reference's loop

    def pull(self, vjp: RSSMVJP, cotangents: Mapping[str, Array]) -> list[Array]:
        """Return the gradients of the first operands, as many as have one."""
        grads, given = vjp(**cotangents), self.operands()
        found = [
            None if getattr(given, name) is None else getattr(grads, name)
            for name in ("state", "belief", "actions", "embeds")
        ]
        leaves: list[Array] = jax.tree_util.tree_leaves((grads.weights, *found))
        return leaves

    def _arguments(self, leaves: Sequence[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of `make_call`, with `leaves` of the family of a backend."""
        operands = self.operands(leaves)
        weights, state, belief, actions, embeds, noise, is_first = operands
        given = self.form, self.order, weights, state, belief, noise, None, self.backend
        rest = {"actions": actions, "is_first": is_first}
        return given, rest | ({"embeds": embeds} if self.form == "observe" else {})

    @property
    def folds(self) -> bool:
        """Whether what is mapped may become rows of one call."""
        return True

    def rows(self) -> list[int]:
        """Return which axis of each operand is that of the rows; of the weights -1."""
        return axis_of_each(self.operands(), Operands(-1, 0, 0, *[self._rows] * 4))

    def result_rows(self) -> list[int]:
        """Return which axis of each result is that of the rows."""
        return [self._rows] * len(self.cotangents)

    @property
    def _rows(self) -> int:
        return 1 if self.order == "time_first" else 0


@functools.lru_cache(maxsize=256)
def _shapes(call: RSSMCall, avals: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    given, rest = call._arguments([stand_in(*aval) for aval in avals])
    checked = calls.make_call(*given, **rest)
    rows = step_shapes(call.spec, call.form).values()
    return tuple(checked.layout.shape(*row) for row in rows)


Given = tuple[str, str, RSSMWeights, Any, Any, Any, Any, str]
"""What `make_call` takes for every form, in its order."""


def run(form: str, order: str, weights: RSSMWeights, *given: Any, **rest: Any) -> Any:
    """Run a call."""
    state, belief, noise, seed, backend = given
    checked = _check((form, order, weights, *given), rest)
    if noise is None:
        _refuse_no_seed(seed, weights, state, belief, rest)
    noise = _noise(checked, noise)
    if form != "imagine":
        operands = _operands(weights, state, belief, noise, rest)
        return _bound(form, order, backend, operands)
    out = _imagine(checked, weights, state, belief, noise, backend, rest["actor"])
    if given[2] is None:
        _refuse_no_seed(seed, out)  # the actor may be all that is traced
    return out


def _check(given: Given, rest: dict[str, Any]) -> calls.Call:
    """Check all but values, on arrays of NumPy that stand in for those of JAX."""
    form, order, weights, state, belief, noise, seed, backend = given
    if isinstance(seed, jax.Array):
        raise DTypeError(
            "`seed` is an array of JAX; expected a Python integer",
            "Draw the noise with jax.random, and give it as `noise`",
        )
    data = {"state": state, "belief": belief, "noise": noise, **rest}
    for name in ("state", "belief", "noise", "actions", "embeds"):
        _refuse_other_family(name, data.get(name), weights)
    for name, array in weights.named():
        _refuse_other_family(f"weights.{name}", array, weights)
    stands = {name: _stand_in(value) for name, value in data.items()}
    state, belief, noise = (stands.pop(name) for name in ("state", "belief", "noise"))
    shown = weights.map(_stand_in)  # JAX puts weights together without a check: here it is
    return calls.make_call(form, order, shown, state, belief, noise, seed, backend, **stands)


def _stand_in(value: Any) -> Any:
    return stand_in(value.shape, value.dtype) if isinstance(value, jax.Array) else value


def _refuse_other_family(name: str, value: Any, weights: RSSMWeights) -> None:
    if arrays.family(value) not in (None, "jax"):
        validate.same_place(name, value, weights.prior[0].w, "weights")


def _noise(checked: calls.Call, noise: Any) -> Array:
    """Return the noise that is given or drawn; no gradient goes to it."""
    if noise is None:
        drawn = checked.layout.as_given(checked.problem.xp, checked.problem.noise)
        noise = jnp.asarray(drawn)
    return jax.lax.stop_gradient(noise)


def _refuse_no_seed(seed: Any, *operands: Any) -> None:
    """Refuse to draw noise from a fresh seed under a transformation: it would stay the same."""
    leaves = jax.tree_util.tree_leaves(operands)
    if seed is None and any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise SpecError(
            "`noise` and `seed` are both None under a transformation of JAX; expected one of them",
            "Draw the noise with jax.random, and give it as `noise`",
        )


def _operands(
    weights: RSSMWeights, state: Any, belief: Any, noise: Array, rest: dict[str, Any]
) -> Operands:
    first = steps_array("is_first", rest.get("is_first"))
    return Operands(weights, state, belief, rest["actions"], rest.get("embeds"), noise, first)


def _bound(
    form: str, order: str, backend: str, operands: Operands, function: str | None = None
) -> Any:
    """Run the operation."""
    leaves, tree = jax.tree_util.tree_flatten(operands)
    name = function or ("step" if order == "step" else form)
    call = RSSMCall(tree, name, form, order, backend)
    results = forward_p.bind(*varying_alike(leaves), call=call, keep=())
    return OUTPUTS[form, operands.weights.spec.latent](*results)


def _imagine(
    checked: calls.Call,
    weights: RSSMWeights,
    state: Any,
    belief: Any,
    noise: Array,
    backend: str,
    actor: Any,
) -> Any:
    """Take one step after another, each an operation of its own."""
    layout, spec = checked.layout, weights.spec
    like = belief if state is None else state
    state = _start("state", checked, weights, state)
    belief = _start("belief", checked, weights, belief)
    asked = CheckedActor(actor, False, spec, jnp, like, layout.batch_size)
    steps: list[tuple[Array, ...]] = []
    for each in layout.time_first(jnp, noise):
        action, _ = asked(state, belief)
        operands = Operands(weights, state, belief, action, None, each, None)
        results = _bound("rollout", "step", backend, operands, "imagine")
        state, belief = results.state, results.belief
        steps.append((*results, action))
    axis = 1 if layout.order == "batch_first" else 0
    stacked = [jnp.stack(each, axis=axis) for each in zip(*steps, strict=True)]
    return OUTPUTS["imagine", spec.latent](*stacked)


def _start(name: str, checked: calls.Call, weights: RSSMWeights, given: Any) -> Array:
    """Return the state or belief before the first step; the initial one, or zeros, for None."""
    if given is not None:
        return given
    zeros = jnp.zeros(getattr(checked.problem, name).shape, weights.prior[0].w.dtype)
    initial = getattr(weights, f"initial_{name}")
    return zeros if initial is None else zeros + initial


# The vector-Jacobian product: JAX's own


def run_vjp(
    form: str, order: str, weights: RSSMWeights, *given: Any, **rest: Any
) -> tuple[Any, VJP | RSSMVJP]:
    """Run a call, and return its vector-Jacobian product.

    That of `imagine` runs on the reference: its actor brings gradients for JAX's own operations.
    """
    if form == "imagine":
        return direct_vjp(form, order, weights, *given, **rest)
    state, belief, noise, seed, backend = given
    checked = _check((form, order, weights, *given), rest)
    if noise is None:
        _refuse_no_seed(seed, weights, state, belief, rest)
    operands = _operands(weights, state, belief, _noise(checked, noise), rest)
    data = {name: getattr(operands, name) for name in ("actions", "embeds")}
    # What is added to the initial ones, where none are given: so they too get a gradient.
    start = {
        name: getattr(operands, name)
        if getattr(operands, name) is not None
        else jnp.zeros_like(_start(name, checked, weights, None))
        for name in ("state", "belief")
    }

    def function(weights: RSSMWeights, start: dict[str, Array], data: dict[str, Any]) -> Any:
        begun = {
            name: each
            if getattr(operands, name) is not None
            else each + _start(name, checked, weights, None)
            for name, each in start.items()
        }
        return _bound(form, order, backend, operands._replace(weights=weights, **begun, **data))

    out, pull = jax.vjp(function, weights, start, data)
    return out, VJP(checked, out, pull)


@dataclass(frozen=True, eq=False, repr=False)
class VJP:
    """The vector-Jacobian product of one call on JAX arrays."""

    _checked: calls.Call
    _out: Any
    _pull: Any

    @functools.wraps(RSSMVJP.__call__)
    def __call__(self, *cotangents: Any, **named: Any) -> RSSMGrads:
        """Return the gradients, as `rnnop.rssm.RSSMVJP` does."""
        names = [f"d{name}" for name in self._out._fields]
        together = dict(zip(names, cotangents, strict=False)) | named
        with blame("vjp", self._checked.spec):
            for name, each in together.items():
                if arrays.family(each) not in (None, "jax"):
                    validate.same_place(name, each, self._out.state, "state")
            shown = {name: _stand_in(each) for name, each in named.items()}
            self._checked.cotangents(tuple(map(_stand_in, cotangents)), shown)
        every = [
            jnp.zeros_like(like) if together.get(name) is None else together[name]
            for name, like in zip(names, self._out, strict=True)
        ]
        weights, start, data = self._pull(type(self._out)(*every))
        return RSSMGrads(weights, **start, **data)
