"""One call from the caller's arrays to a backend's problem and back; every check is here.

Straight on: the weights and what they are a model of, the layout and sizes, each array, the noise,
the backend. Backends see time-major arrays only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from .. import arrays, validate
from ..arrays import Array
from ..errors import DTypeError, ShapeError, SpecError, blame
from ..ragged import batch_first_storage
from . import noise as streams
from .actor import CheckedActor
from .backends import Backend, Problem, Steps, choose, step_shapes
from .outputs import OUTPUTS
from .spec import RSSMSpec
from .weights import PrepackedRSSMWeights, RSSMGrads, RSSMWeights

AXES = {"step": "N", "time_first": "T, N", "batch_first": "N, T"}


@dataclass(frozen=True)
class Layout:
    """Where the caller has time and rows: 'step' (no time), 'time_first' or 'batch_first'."""

    order: str
    num_steps: int
    batch_size: int

    def shape(self, *row: int) -> tuple[int, ...]:
        """Return the shape of an array whose rows have the shape `row`."""
        T, N = self.num_steps, self.batch_size
        return {"step": (N,), "time_first": (T, N), "batch_first": (N, T)}[self.order] + row

    def time_first(self, xp: ModuleType, array: Array) -> Array:
        """Return the caller's array as (T, N, ...)."""
        if self.order == "step":
            return array[None]
        if self.order == "time_first":
            return array
        return xp.permute_dims(array, (1, 0, *range(2, array.ndim)))

    def as_given(self, xp: ModuleType, array: Array) -> Array:
        """Return a (T, N, ...) array as the caller has his, C-contiguous."""
        if self.order == "step":
            return array[0]
        if self.order == "time_first":
            return array
        T, N, *row = array.shape
        rows = xp.reshape(array, (T * N, *row))
        order = batch_first_storage(N, T).reshape(-1)
        return xp.reshape(arrays.take_rows(xp, rows, order), (N, T, *row))


@dataclass(frozen=True, eq=False)
class Call:
    """A call that has been checked."""

    problem: Problem
    backend: Backend
    layout: Layout
    state_given: bool
    belief_given: bool

    @property
    def spec(self) -> RSSMSpec:
        """The model."""
        return self.problem.weights.spec

    def outputs(self, steps: Steps) -> Any:
        """Return what the caller gets."""
        xp, shapes = self.problem.xp, step_shapes(self.spec, self.problem.form)
        kind = OUTPUTS[self.problem.form, self.spec.latent]
        return kind(*(self.layout.as_given(xp, steps[name]) for name in shapes))

    def cotangents(self, given: tuple[Any, ...], named: dict[str, Any]) -> Steps:
        """Return the cotangents that are given, by position or by name, time-major."""
        shapes = step_shapes(self.spec, self.problem.form)
        names = [f"d{name}" for name in shapes]
        expected = f"expected {', '.join(names)}"
        if len(given) > len(names):
            raise SpecError(f"vjp is given {len(given)} cotangents; {expected}")
        together = dict(zip(names, given, strict=False))
        for name, value in named.items():
            if name not in names or name in together:
                reason = "given twice" if name in together else "not one of an output"
                raise SpecError(f"`{name}` is {reason}; {expected}")
            together[name] = value
        return {
            name[1:]: self._cotangent(name, value, shapes[name[1:]])
            for name, value in together.items()
            if value is not None
        }

    def _cotangent(self, name: str, value: Any, row: tuple[int, ...]) -> Array:
        shape, like = self.layout.shape(*row), self.problem.state
        array = validate.shaped_like(name, value, shape, f"the shape of {name[1:]}", like, "state")
        return self.layout.time_first(self.problem.xp, array)

    def grads(self, grads: RSSMGrads) -> RSSMGrads:
        """Return gradients in the caller's layout."""
        xp, changed = self.problem.xp, {}
        for name in ("actions", "embeds"):
            array = getattr(grads, name)
            changed[name] = None if array is None else self.layout.as_given(xp, array)
        return grads._replace(**changed, weights=self._with_initial(grads))

    def _with_initial(self, grads: RSSMGrads) -> RSSMWeights:
        """Add what goes to the initial state and belief where they stood in for one not given."""
        weights, more = grads.weights, {}
        for name, given in (("state", self.state_given), ("belief", self.belief_given)):
            initial = getattr(weights, f"initial_{name}")
            if initial is not None and not given:
                total = self.problem.xp.sum(getattr(grads, name), axis=0)
                more[f"initial_{name}"] = initial + total
        return replace(weights, **more) if more else weights


def make_call(
    form: str,
    order: str,
    weights: Any,
    state: Any,
    belief: Any,
    noise: Any,
    seed: Any,
    backend: str,
    **rest: Any,
) -> Call:
    """Check a call and choose its backend.

    The `rest` are `actions`, `is_first` and `embeds` as the form has them, or `actor`, `horizon`
    and `has_vjp`.
    """
    cache = weights.cache if isinstance(weights, PrepackedRSSMWeights) else None
    weights = plain_weights(weights)
    with blame(spec=weights.spec):
        start = _imagined if form == "imagine" else _known
        sizes, like, like_name = start(order, weights.spec, state, belief, rest)
        check = _Checker(weights, sizes, like, like_name)
        check.weights_agree()
        fields: dict[str, Any] = {
            "state": check.start("state", state),
            "belief": check.start("belief", belief),
        }
        if form == "imagine":
            fields["actor"] = check.actor(rest["actor"], rest["has_vjp"])
        else:
            fields["actions"] = sizes.time_first(check.xp, like)
            fields["is_first"] = check.is_first(rest.get("is_first"))
        if form == "observe":
            fields["embeds"] = check.embeds(rest["embeds"])
        fields["noise"] = check.noise(noise, validate.seed(seed))
        family, dtype = str(arrays.family(like)), arrays.dtype_name(like)
        problem = Problem(weights, check.xp, family, dtype, **fields, cache=cache)
        chosen = choose(backend, problem)
        return Call(problem, chosen, sizes, state is not None, belief is not None)


def plain_weights(weights: object) -> RSSMWeights:
    """Return the weights as the caller gave them, prepacked or not."""
    if isinstance(weights, PrepackedRSSMWeights):
        return weights.weights
    if not isinstance(weights, RSSMWeights):
        raise DTypeError(
            f"`weights` is {type(weights).__name__}; expected RSSMWeights",
            "Make them with rnnop.rssm.init_weights or rnnop.rssm.from_torchrl",
        )
    return weights


def _known(
    order: str, spec: RSSMSpec, state: Any, belief: Any, rest: dict[str, Any]
) -> tuple[Layout, Array, str]:
    """Read the layout off known actions, and what other arrays must be like."""
    name = "action" if order == "step" else "actions"
    actions = validate.data_array(name, rest["actions"])
    ndim, axes = len(AXES[order].split(", ")) + 1, f"({AXES[order]}, action_size)"
    if actions.ndim != ndim or actions.shape[-1] != spec.action_size:
        raise ShapeError(
            f"`{name}` has shape {tuple(actions.shape)}; expected {axes}, {ndim} axes, "
            f"with action_size = {spec.action_size}"
        )
    leading = tuple(int(extent) for extent in actions.shape[:-1])
    T, N = {"step": (1, *leading), "time_first": leading, "batch_first": leading[::-1]}[order]
    return Layout(order, T, N), actions, name


def _imagined(
    order: str, spec: RSSMSpec, state: Any, belief: Any, rest: dict[str, Any]
) -> tuple[Layout, Array, str]:
    """Likewise with an actor: the state or the belief says how many rows there are."""
    validate.size("horizon", rest["horizon"])
    if state is None and belief is None:
        raise ShapeError(
            "`state` and `belief` are both None; expected one of them, for the number of rows"
        )
    name, given = ("state", state) if state is not None else ("belief", belief)
    like = validate.data_array(name, given)
    if like.ndim != 2:
        raise ShapeError(f"`{name}` has shape {tuple(like.shape)}; expected (N, {name}_size)")
    return Layout(order, int(rest["horizon"]), int(like.shape[0])), like, name


def start(name: str, weights: RSSMWeights, batch_size: int, like: Array) -> Array:
    """Return the initial state or belief of every row, as `name` says; zeros if there is none."""
    shape = batch_size, getattr(weights.spec, f"{name}_size")
    zeros = arrays.zeros(arrays.namespace(str(arrays.family(like))), shape, like)
    initial = getattr(weights, f"initial_{name}")
    return zeros if initial is None else zeros + initial


@dataclass(frozen=True, eq=False)
class _Checker:
    """The arrays of one call: each must fit the model, the layout and the array `like`."""

    weights: RSSMWeights
    layout: Layout
    like: Array
    like_name: str

    @property
    def xp(self) -> ModuleType:
        return arrays.namespace(str(arrays.family(self.like)))

    def array(self, name: str, given: Any, shape: tuple[int, ...], axes: str) -> Array:
        return validate.shaped_like(name, given, shape, axes, self.like, self.like_name)

    def weights_agree(self) -> None:
        """Refuse weights unlike the data; they agree with one another, so one speaks for all."""
        name, array = next(self.weights.named())
        self.array(f"weights.{name}", array, tuple(array.shape), "its shape")

    def start(self, name: str, given: Any) -> Array:
        """Return the state or belief before the first step; the initial one, or zeros, for None."""
        size = getattr(self.weights.spec, f"{name}_size")
        shape = (self.layout.batch_size, size)
        if given is not None:
            return self.array(name, given, shape, f"(N, {name}_size)")
        return start(name, self.weights, self.layout.batch_size, self.like)

    def noise(self, given: Any, seed: int | None) -> Array:
        """Return the caller's noise, or what the seed gives, time-major."""
        spec, layout = self.weights.spec, self.layout
        word = "state_size" if spec.latent == "gaussian" else "state_size / num_classes"
        if given is not None:
            axes = f"({AXES[layout.order]}, {word})"
            array = self.array("noise", given, layout.shape(spec.noise_size), axes)
            return layout.time_first(self.xp, array)
        host = streams.draw(spec, seed, layout.num_steps, layout.batch_size)
        if arrays.dtype_name(self.like) != "float64":
            host = host.astype(np.float32)
        drawn = arrays.from_host(self.xp, host, self.like)
        return self.xp.astype(drawn, self.like.dtype, copy=False)

    def is_first(self, given: Any) -> Array | None:
        """Return where episodes begin as (T, N) on the device of the data."""
        if given is None:
            return None
        T, N = self.layout.num_steps, self.layout.batch_size
        batch_first = self.layout.order == "batch_first"
        host = validate.step_mask("is_first", given, T, N, batch_first)
        return arrays.from_host(self.xp, host, self.like)

    def embeds(self, given: Any) -> Array:
        """Return the embeddings, time-major."""
        size = self.weights.spec.embed_size
        if not size:
            raise SpecError("`weights` have embed_size = 0 and no posterior; observe needs one")
        axes = f"({AXES[self.layout.order]}, embed_size)"
        array = self.array("embeds", given, self.layout.shape(size), axes)
        return self.layout.time_first(self.xp, array)

    def actor(self, given: Any, has_vjp: bool) -> CheckedActor:
        """Return the actor, whose results are checked as they come."""
        if not callable(given):
            raise DTypeError(
                f"`actor` is {type(given).__name__}; expected a function of (state, belief)"
            )
        spec, N = self.weights.spec, self.layout.batch_size
        return CheckedActor(given, has_vjp, spec, self.xp, self.like, N)
