"""The RSSM on the engine: one native call for a rollout, one for all of its gradient.

What the engine is told of a call stands in the structures of kernels/engine.h; a `Run` makes them,
with the arrays that they point to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from ctypes import Structure, byref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import LABELS, Array, dtype_name, family
from ..rssm.backends import Description, Prepared, Problem, Steps, step_shapes
from ..rssm.mlp_actor import MLPActor
from ..rssm.weights import RSSMGrads, RSSMWeights
from . import engine as c
from .engine import pointer
from .products import LEAST_ROWS
from .rssm_model import (
    ACTIVATIONS,
    Model,
    Pointed,
    actor_layers,
    lay_out,
    point_to_layers,
    ready,
)

_Array = npt.NDArray[Any]


def unavailable() -> str | None:
    """Return None, or why there is no engine here."""
    return c.why_unavailable()


def supports(problem: Problem) -> str | None:
    """Return None, or why the engine cannot run such a call."""
    if problem.family != "numpy":
        return f"it takes NumPy arrays, and `state` is a {LABELS[problem.family]} array"
    return None


def describe(problem: Problem) -> Description:
    """Return how the engine would run such a problem."""
    threads, form = c.num_threads(), problem.form
    stepwise = problem.actor is not None and native_actor(problem) is None
    calls = "one native call for " + ("each step" if stepwise else "all steps")
    manner = f"{c.engine().isa}, {threads} thread{'s' if threads > 1 else ''}, {calls}"
    hoisted = ("products of embeddings", "the prior's head") if form == "observe" else ()
    dtype = _compute_dtype(problem.dtype)
    model = _model(problem.weights, form == "observe", problem.cache)
    actor = native_actor(problem)
    layers = (
        model.layers
        if actor is None
        else model.layers | {"actor": actor_layers(Pointed(), actor, dtype)}
    )
    numbers = sum(math.prod(row) for _, _, row in _kept(problem, model.told, layers))
    T, N, *_ = problem.noise.shape
    return Description(manner, ("noise", *hoisted), str(dtype), T * N * numbers * dtype.itemsize)


def prepack(weights: RSSMWeights, cache: dict[Any, Any]) -> None:
    """Lay weights out for the forward of every form, into `cache`; NumPy arrays alone."""
    _, first = next(weights.named())
    if family(first) == "numpy":
        for observes in {False, bool(weights.posterior)}:
            _model(weights, observes, cache)


def forward(problem: Problem, keep: bool) -> tuple[Steps, Any]:
    """Run the model. With `keep`, what the backward needs is saved."""
    run = Run(problem, keep)
    run.forward()
    steps = {name: _cast(array, problem.state.dtype) for name, array in run.steps.items()}
    return steps, run if keep else None


def prepared(problem: Problem) -> Prepared | None:
    """Return a function that makes a call like this one; None where there is none.

    There is one for prepacked weights, in float32 and float64, without an actor or `is_first`.
    """
    plain = problem.actor is None and problem.is_first is None
    if problem.cache is None or not plain or problem.dtype not in ("float32", "float64"):
        return None
    run = Run(problem, keep=False)
    forward = run.functions.rssm_forward
    shapes = [array.shape for array in run.steps.values()]
    dtype, num_steps, fields = run.dtype, run.num_steps, [*map(_field, run.steps)]

    def again(state: Array, belief: Array, noise: Array, actions: Array, embeds: Any) -> list[Any]:
        model = c.Rssm.from_buffer_copy(run.model)
        model.state0, model.belief0 = pointer(state), pointer(belief)
        model.noise, model.actions = pointer(noise), pointer(actions)
        model.embeds = pointer(embeds)
        steps = [np.empty(shape, dtype) for shape in shapes]
        for (part, field), array in zip(fields, steps, strict=True):
            setattr(getattr(model, part) if part else model, field, pointer(array))
        forward(byref(model), 0, num_steps)
        return steps

    return again


def backward(problem: Problem, saved: Any, cotangents: Steps) -> RSSMGrads:
    """Run the gradient of `forward`, against time."""
    run: Run = saved
    grads = Gradient(run, cotangents).run()
    down = problem.state.dtype
    if run.dtype == down:
        return grads
    return grads._replace(
        weights=grads.weights.map(lambda array: _cast(array, down)),
        **{
            name: _cast(getattr(grads, name), down)
            for name in ("state", "belief", "actions", "embeds")
        },
    )


class Run(Pointed):
    """One problem: what the engine is told of it, its results, and what it keeps.

    Attributes
    ----------
    steps : dict of str to array
        The results of all steps.
    model : Rssm
        What the engine is told.
    layers : dict of str to array of struct Layer
        As those of `Model`.
    actor : MLPActor or None
        The actor, if it is in the loop.
    actors : list
        The vjp of another actor at every step.
    """

    def __init__(self, problem: Problem, keep: bool) -> None:
        super().__init__()
        self.problem, self.spec, self.keep = problem, problem.weights.spec, keep
        self.dtype = _compute_dtype(problem.dtype)
        self.functions = c.engine().of(self.dtype)
        self.num_steps, self.batch_size = problem.noise.shape[:2]
        self.weights = problem.weights
        self.steps = {
            name: np.empty((self.num_steps, self.batch_size, *shape), self.dtype)
            for name, shape in step_shapes(self.spec, problem.form).items()
        }
        self.actors: list[Any] = []
        self.described = _model(problem.weights, problem.form == "observe", problem.cache)
        self.model = c.Rssm.from_buffer_copy(self.described.told)
        self.model.batch, self.model.threads = self.batch_size, c.num_threads()
        self.layers, self.actor = self.described.layers, native_actor(problem)
        if self.actor is not None:
            self._act()
        self._data()
        if keep:
            self._keep()

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""
        return sum(array.nbytes for array in self._alive if isinstance(array, np.ndarray))

    def ready(self, array: Any) -> Any:
        """Return an array as the engine reads it; None of None."""
        return ready(array, self.dtype)

    def _act(self) -> None:
        """Take the actor into the loop, which then wants the gradient of its action, too."""
        actor: Any = self.actor
        self.layers = _copies(self.layers) | {"actor": actor_layers(self, actor, self.dtype)}
        self.layers["inputs"][0].back += self.spec.action_size
        point_to_layers(self.model, self.layers)
        self.model.squash = actor.squash == "tanh"

    def _data(self) -> None:
        """Point to what is given, and to where the results go."""
        problem, steps = self.problem, self.steps
        actions = steps["action"] if problem.actor else self.ready(problem.actions)
        self.put(
            self.model,
            first=None if problem.is_first is None else _episodes(problem.is_first),
            state0=self.ready(problem.state),
            belief0=self.ready(problem.belief),
            noise=self.ready(problem.noise),
            actions=actions,
            embeds=self.ready(problem.embeds),
        )
        _put_steps(self, self.model, steps)

    def _keep(self) -> None:
        """Point to memory for what the backward needs, from layers of its own."""
        self.layers = _copies(self.layers)
        point_to_layers(self.model, self.layers)
        for structure, field, row in _kept(self.problem, self.model, self.layers):
            array = np.empty((self.num_steps * self.batch_size, *row), self.dtype)
            self.put(structure, **{field: array})

    def forward(self) -> None:
        """Fill in the results of all steps."""
        room = None if self.actor else self.described.room
        if room is None:
            room = lay_out(self.model, self.functions, self.dtype, backward=False)
        if self.problem.actor is None or self.actor:
            self.functions.rssm_forward(byref(self.model), 0, self.num_steps)
        else:
            self._imagine()
        del room

    def _imagine(self) -> None:
        problem, steps = self.problem, self.steps
        actor: Any = problem.actor
        state, belief = self.ready(problem.state), self.ready(problem.belief)
        for t in range(self.num_steps):
            # Copied: what the actor does with them is its own affair.
            action, vjp = actor(state.copy(), belief.copy())
            steps["action"][t] = action
            self.functions.rssm_forward(byref(self.model), t, t + 1)
            state, belief = steps["state"][t], steps["belief"][t]
            if self.keep:
                self.actors.append(vjp)


class Gradient(Pointed):
    """One gradient of a run, in stretches of steps: their memory is used again."""

    def __init__(self, run: Run, cotangents: Steps) -> None:
        super().__init__()
        self.origin, self.cotangents = run, cotangents
        self.spec, self.dtype = run.spec, run.dtype
        self.stretch = max(1, -(-LEAST_ROWS // max(run.batch_size, 1)))
        self.most_rows = min(self.stretch, run.num_steps) * run.batch_size
        self.model = c.Rssm.from_buffer_copy(run.model)
        self.layers = _copies(run.layers)
        self.sums = {name: np.zeros(array.shape, self.dtype) for name, array in run.weights.named()}
        self.actor_sums: dict[str, _Array] = {}
        if run.actor is not None:
            for k, layer in enumerate(run.actor.layers):
                for part, array in layer._asdict().items():
                    if array is not None:
                        self.actor_sums[f"actor[{k}].{part}"] = np.zeros(array.shape, self.dtype)
        self._point_to_layers()
        self._data()

    def _point_to_layers(self) -> None:
        point_to_layers(self.model, self.layers)
        found = self.sums | self.actor_sums
        for field, layers in self.layers.items():
            for k, layer in enumerate(layers):
                name = f"{field}[{k}]."
                sums = {"dw": "w", "db": "b", "dscale": "scale", "dshift": "shift"}
                if field == "gru":
                    name, sums = "gru_", {"dscale": "scale", "dshift": "shift"}
                self.put(layer, **{to: found.get(name + part) for to, part in sums.items()})
                self.put(layer, d=self._rows(layer.out))
                if layer.norm:
                    self.put(layer, d_scale=self._rows(layer.out), d_shift=self._rows(layer.out))

    def _rows(self, *shape: int) -> _Array:
        """Return memory for the rows of a stretch."""
        return np.empty((self.most_rows, *shape), self.dtype)

    def _data(self) -> None:
        run, spec, model = self.origin, self.spec, self.model
        T, N, H = run.num_steps, run.batch_size, spec.belief_size
        given = {name: run.ready(array) for name, array in self.cotangents.items()}
        self.wants_prior = any(name.startswith("prior_") for name in given)
        self.dstate, self.dbelief = (
            np.zeros((N, size), self.dtype) for size in (spec.state_size, H)
        )
        self.dactions = np.empty((T, N, spec.action_size), self.dtype)
        self.dembeds = None
        if run.problem.embeds is not None:
            self.dembeds = np.empty((T, N, spec.embed_size), self.dtype)
        self.db_gates = np.zeros((4, H), self.dtype)
        episodes = 0 if run.problem.is_first is None else int(run.problem.is_first.sum())
        self.dfirst = {
            "state": np.zeros((episodes, spec.state_size), self.dtype),
            "belief": np.zeros((episodes, H), self.dtype),
        }
        _put_steps(self, model, given, "d")
        self.put(
            model,
            d_gates=self._rows(4, H) if model.gates else None,
            d_prior=self._rows(H) if self.wants_prior else None,
            dstate=self.dstate,
            dbelief=self.dbelief,
            first_dstate=self.dfirst["state"],
            first_dbelief=self.dfirst["belief"],
            dactions=self.dactions,
            dembeds=self.dembeds,
            dactor=given.get("action"),
            dw_ih=self.sums.get("gru.w_ih[0]"),
            dw_hh=self.sums.get("gru.w_hh[0]"),
            db_gates=self.db_gates,
        )

    def run(self) -> RSSMGrads:
        """Return the gradients of all inputs."""
        run, functions = self.origin, self.origin.functions
        room = lay_out(self.model, functions, self.dtype, backward=True)
        actor: Any = None
        if run.problem.actor is None or run.actor:
            functions.rssm_gradient(byref(self.model), run.num_steps, self.stretch)
            actor = tuple(self.actor_sums.values()) if run.actor else None
        else:
            actor = self._imagined()
        del room
        known = run.problem.actor is None
        if run.problem.is_first is not None:
            self.dactions[run.problem.is_first] = 0
        return RSSMGrads(
            weights=self._weights(),
            state=self.dstate,
            belief=self.dbelief,
            actions=self.dactions if known else None,
            embeds=self.dembeds,
            actor=actor,
        )

    def _imagined(self) -> tuple[Any, ...]:
        """Go back step by step, through the actor's own vjp too, whose sums are returned."""
        run, functions = self.origin, self.origin.functions
        dactions = run.ready(self.cotangents.get("action"))
        sums: list[Any] | None = None
        for begin, end in self._stretches():
            self.model.stretch = begin
            for t in reversed(range(begin, end)):
                functions.rssm_backward(byref(self.model), t, t + 1)
                daction = self.dactions[t] if dactions is None else self.dactions[t] + dactions[t]
                dstate, dbelief, own = run.actors[t](daction)
                if dstate is not None:
                    self.dstate += dstate
                if dbelief is not None:
                    self.dbelief += dbelief
                sums = own if sums is None else [a + b for a, b in zip(sums, own, strict=True)]
            functions.rssm_sums(byref(self.model), begin, end)
        return tuple(sums or ())

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Yield where the stretches begin and end, the last first."""
        end = self.origin.num_steps
        while end:
            begin = max(0, end - self.stretch)
            yield begin, end
            end = begin

    def _weights(self) -> RSSMWeights:
        H, sums, gates = self.spec.belief_size, self.sums, self.db_gates
        if "gru.b_ih[0]" in sums:
            sums["gru.b_ih[0]"][:] = gates[:3].reshape(3 * H)
        if "gru.b_hh[0]" in sums:
            last = 3 if self.spec.cell == "gru" else 2
            sums["gru.b_hh[0]"][:] = gates[[0, 1, last]].reshape(3 * H)
        for name, each in self.dfirst.items():
            if f"initial_{name}" in sums:
                sums[f"initial_{name}"] += each.sum(axis=0)
        return RSSMWeights.of_arrays(self.spec, sums)


def native_actor(problem: Problem) -> MLPActor | None:
    """Return the actor of a problem if the engine runs it in its own loop.

    It does in float32 and float64, but not with a block GRU.
    """
    actor = getattr(problem.actor, "call", None)
    if not isinstance(actor, MLPActor) or problem.weights.spec.cell == "block_gru":
        return None
    return actor if problem.dtype in ("float32", "float64") else None


def _field(name: str) -> tuple[str, str]:
    """Return where the engine has the array of an output: a field, or a part and its field."""
    if name in ("state", "belief"):
        return "", f"{name}s"
    head, _, parameter = name.rpartition("_")
    return "from_prior" if head == "prior" else "drawn", parameter.replace("logits", "mean")


def _put_steps(to: Pointed, model: c.Rssm, arrays: Steps, prefix: str = "") -> None:
    """Let fields, whose names have a prefix, point to arrays by the names of the outputs."""
    for name, array in arrays.items():
        if name != "action":
            part, field = _field(name)
            to.put(getattr(model, part) if part else model, **{prefix + field: array})


def _kept(
    problem: Problem, model: c.Rssm, layers: dict[str, Any]
) -> Iterator[tuple[Structure, str, tuple[int, ...]]]:
    """Yield what a gradient needs: the field of a structure, and the shape of one row."""
    spec = problem.weights.spec
    S, H = spec.state_size, spec.belief_size
    yield model, "given", (S + spec.action_size,)
    if problem.is_first is not None:
        yield model, "before", (H,)
    if spec.cell in ("gru", "gru_reset_before"):  # those of Dreamer's follow from a layer
        yield model, "gates", (4, H)
    if spec.latent == "gaussian":
        yield model.drawn, "raw", (S,)
        if problem.form == "observe":
            yield model.from_prior, "raw", (S,)
    for field, each in layers.items():
        is_result = field in ("prior", "posterior", "actor")  # what their last ones give
        for layer in each[: len(each) - is_result]:
            yield layer, "y", (layer.out,)
            if layer.norm or layer.activation == ACTIVATIONS["silu"]:
                yield layer, "pre", (layer.out,)


def _model(weights: RSSMWeights, observes: bool, cache: dict[Any, Any] | None) -> Model:
    """Return what the engine is told of weights; of prepacked ones once, and laid out."""
    dtype = _compute_dtype(dtype_name(next(weights.named())[1]))
    if cache is None:
        return Model(weights, dtype, observes=observes)
    engine = c.engine()
    key = engine.isa, observes
    model: Model | None = cache.get(key)
    if model is None:
        model = Model(weights, dtype, observes=observes)
        model.lay_out(engine.of(dtype))
        cache[key] = model
    return model


def _compute_dtype(name: str) -> np.dtype[Any]:
    return np.dtype("float64" if name == "float64" else "float32")


def _copies(layers: dict[str, Any]) -> dict[str, Any]:
    return {field: type(each).from_buffer_copy(each) for field, each in layers.items()}


def _episodes(is_first: _Array) -> _Array:
    """Return (T, N) numbers of the episodes that begin, -1 where none does."""
    numbers = np.cumsum(is_first).reshape(is_first.shape) - 1
    return np.where(is_first, numbers, -1).astype(np.int64)


def _cast(array: Any, dtype: np.dtype[Any]) -> Any:
    return None if array is None else array.astype(dtype, copy=False)
