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

from ..arrays import LABELS
from ..rssm.backends import Problem, Steps, step_shapes
from ..rssm.weights import Layer, RSSMGrads, RSSMWeights
from . import engine as c
from .engine import pointer
from .products import LEAST_ROWS

_Array = npt.NDArray[Any]

# In the order of the enums of engine.h.
_CELLS = {"gru": 0, "gru_reset_before": 1, "gru_layernorm": 2}
_ACTIVATIONS = {"identity": 0, "elu": 1, "relu": 2, "silu": 3}
_NORMS = {"none": 0, "layer": 1, "rms": 2}
_STDS = {  # rule, shift of the argument of softplus, what is added to it
    "biased_softplus": (0, math.log(math.expm1(0.99)), 0.01),
    "max_softplus": (0, 0.0, 0.0),
    "softplus": (1, 0.0, 0.0),
    "sigmoid2": (2, 0.0, 0.0),
}


def unavailable() -> str | None:
    """Return None, or why there is no engine here."""
    return c.why_unavailable()


def supports(problem: Problem) -> str | None:
    """Return None, or why the engine cannot run such a call."""
    if problem.family != "numpy":
        return f"it takes NumPy arrays, and `state` is a {LABELS[problem.family]} array"
    if problem.weights.spec.cell not in _CELLS:
        return f"it has no cell {problem.weights.spec.cell!r}"
    return None


def forward(problem: Problem, keep: bool) -> tuple[Steps, Any]:
    """Run the model. With `keep`, what the backward needs is saved."""
    run = Run(problem, keep)
    run.forward()
    steps = {name: _cast(array, problem.state.dtype) for name, array in run.steps.items()}
    return steps, run if keep else None


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


class _Pointed:
    """Structures and the arrays that they point to, which live as long."""

    def __init__(self) -> None:
        self._alive: list[Any] = []

    def put(self, structure: Structure, **arrays: Any) -> None:
        """Let fields of a structure point to arrays; None is a null pointer."""
        for name, array in arrays.items():
            self._alive.append(array)
            setattr(structure, name, pointer(array))


class Run(_Pointed):
    """One problem: what the engine is told of it, its results, and what it keeps.

    Attributes
    ----------
    steps : dict of str to array
        The results of all steps.
    model : Rssm
        What the engine is told.
    layers : dict of str to array of struct Layer
        The layers by the fields of the weights, and 'gru' of the cell with layer norm.
    actors : list
        The vjp of the actor at every step.
    """

    def __init__(self, problem: Problem, keep: bool) -> None:
        super().__init__()
        self.problem, self.spec, self.keep = problem, problem.weights.spec, keep
        wide = problem.dtype == "float64"
        self.dtype = np.dtype("float64" if wide else "float32")
        self.functions = c.engine().of(self.dtype)
        self.num_steps, self.batch_size = problem.noise.shape[:2]
        self.weights = problem.weights
        self.steps = {
            name: np.empty((self.num_steps, self.batch_size, *shape), self.dtype)
            for name, shape in step_shapes(self.spec, problem.form).items()
        }
        self.actors: list[Any] = []
        self.layers = self._layers()
        self.model = self._model()
        self._data()
        if keep:
            self._keep()

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""
        return sum(array.nbytes for array in self._alive if isinstance(array, np.ndarray))

    def ready(self, array: Any) -> Any:
        """Return an array as the engine reads it; None of None."""
        return None if array is None else np.ascontiguousarray(array, self.dtype)

    def rows(self, *shape: int) -> _Array:
        """Return memory for all rows, if they are kept."""
        return np.empty((self.num_steps * self.batch_size, *shape), self.dtype)

    def _model(self) -> c.Rssm:
        spec, problem, layers = self.spec, self.problem, self.layers
        rule, shift, offset = _STDS[spec.std]
        observes = problem.form == "observe"
        head = "posterior" if observes else "prior"
        return c.Rssm(
            cell=_CELLS[spec.cell],
            classes=spec.num_classes or 0,
            std_rule=rule,
            std_shift=shift,
            std_offset=offset,
            min_std=spec.min_std,
            unimix=spec.unimix,
            norm_eps=spec.norm_eps,
            state=spec.state_size,
            belief=spec.belief_size,
            action=spec.action_size,
            embed=spec.embed_size if observes else 0,
            batch=self.batch_size,
            threads=c.num_threads(),
            inputs=layers["inputs"],
            head=layers[head],
            num_inputs=len(layers["inputs"]),
            num_head=len(layers[head]),
            **({"prior": layers["prior"], "num_prior": len(layers["prior"])} if observes else {}),
            **({"gru": layers["gru"]} if "gru" in layers else {}),
        )

    def _layers(self) -> dict[str, Any]:
        spec, weights = self.spec, self.weights
        found = {
            "inputs": self._chain("inputs", weights.inputs, back=spec.state_size),
            "prior": self._chain("prior", weights.prior),
        }
        if self.problem.form == "observe":
            known = spec.embed_size
            found["posterior"] = self._chain("posterior", weights.posterior, known=known)
        if spec.cell == "gru_layernorm":
            found["gru"] = (c.Layer * 1)()
            w = weights.gru.w_ih[0]  # type: ignore[union-attr]  # such a cell has one
            norm = Layer(w, None, weights.gru_scale, weights.gru_shift)
            self._describe(found["gru"][0], norm, "layer", "identity", y=True)
        return found

    def _chain(
        self, field: str, layers: tuple[Layer, ...], *, known: int = 0, back: int | None = None
    ) -> Any:
        """Describe the layers of a field of the weights; those of a head end in one without norm.

        The first reads `known` columns beforehand; the loop wants the gradient of `back` columns.
        """
        spec, found = self.spec, (c.Layer * len(layers))()
        for k, layer in enumerate(layers):
            if field != "inputs" and k == len(layers) - 1:
                self._describe(found[k], layer, "none", "identity", y=False)
            else:
                self._describe(found[k], layer, spec.norm_of(field), spec.activation, y=True)
        first = found[0]
        first.known, first.inputs = known, first.inputs - known
        first.back = first.inputs if back is None else back
        return found

    def _describe(self, to: c.Layer, layer: Layer, norm: str, activation: str, *, y: bool) -> None:
        to.out, to.inputs = layer.w.shape
        to.back, to.norm, to.activation = to.inputs, _NORMS[norm], _ACTIVATIONS[activation]
        self.put(to, **{name: self.ready(array) for name, array in layer._asdict().items()})
        if self.keep and y:
            self.put(to, y=self.rows(to.out))
            if norm != "none" or activation == "silu":
                self.put(to, pre=self.rows(to.out))

    def _data(self) -> None:
        """Point to what is given, and to where the results go."""
        problem, weights, spec, steps = self.problem, self.weights, self.spec, self.steps
        gru: Any = weights.gru
        names = ("w_ih", "w_hh", "b_ih", "b_hh")
        arrays = {name: getattr(gru, name) for name in names}
        self.put(
            self.model,
            **{name: array and self.ready(array[0]) for name, array in arrays.items()},
        )
        actions = steps["action"] if problem.actor else self.ready(problem.actions)
        self.put(
            self.model,
            initial_state=self._or_zeros(weights.initial_state, spec.state_size),
            initial_belief=self._or_zeros(weights.initial_belief, spec.belief_size),
            first=None if problem.is_first is None else _episodes(problem.is_first),
            state0=self.ready(problem.state),
            belief0=self.ready(problem.belief),
            noise=self.ready(problem.noise),
            actions=actions,
            embeds=self.ready(problem.embeds),
            states=steps["state"],
            beliefs=steps["belief"],
        )
        self.put_drawn(self.model, self.steps, ("mean", "std"))

    def _or_zeros(self, array: Any, size: int) -> Any:
        return np.zeros(size, self.dtype) if array is None else self.ready(array)

    def put_drawn(self, model: c.Rssm, arrays: Steps, fields: tuple[str, str]) -> None:
        """Let two fields of what is drawn from point to arrays by the names of the outputs."""
        heads = {"drawn": ""}
        if self.problem.form == "observe":
            heads = {"drawn": "posterior_", "from_prior": "prior_"}
        names = ("mean", "std") if self.spec.latent == "gaussian" else ("logits",)
        for drawn, prefix in heads.items():
            for field, name in zip(fields, names, strict=False):
                self.put(getattr(model, drawn), **{field: arrays.get(prefix + name)})

    def _keep(self) -> None:
        """Point to memory for what the backward needs."""
        spec, model = self.spec, self.model
        self.put(model, given=self.rows(spec.state_size + spec.action_size))
        if self.problem.is_first is not None:
            self.put(model, before=self.rows(spec.belief_size))
        if spec.cell != "gru_layernorm":
            self.put(model, gates=self.rows(4, spec.belief_size))
        if spec.latent == "gaussian":
            self.put(model.drawn, raw=self.rows(spec.state_size))
            if self.problem.form == "observe":
                self.put(model.from_prior, raw=self.rows(spec.state_size))

    def pack(self, model: c.Rssm, *, backward: bool) -> _Array:
        """Lay the weights out, and return the memory that they lie in."""
        size = self.functions.rssm_packed_size(byref(model), backward)
        room = c.aligned(size, self.dtype)
        self.functions.rssm_pack(byref(model), backward, pointer(room))
        return room

    def forward(self) -> None:
        """Fill in the results of all steps."""
        room = self.pack(self.model, backward=False)
        if self.problem.actor is None:
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


class Gradient(_Pointed):
    """One gradient of a run, in stretches of steps: their memory is used again."""

    def __init__(self, run: Run, cotangents: Steps) -> None:
        super().__init__()
        self.origin, self.cotangents = run, cotangents
        self.spec, self.dtype = run.spec, run.dtype
        self.stretch = max(1, -(-LEAST_ROWS // max(run.batch_size, 1)))
        self.most_rows = min(self.stretch, run.num_steps) * run.batch_size
        self.model = c.Rssm.from_buffer_copy(run.model)
        self.layers = {
            field: type(layers).from_buffer_copy(layers) for field, layers in run.layers.items()
        }
        self.sums = {name: np.zeros(array.shape, self.dtype) for name, array in run.weights.named()}
        self._point_to_layers()
        self._data()

    def _point_to_layers(self) -> None:
        observes = "posterior" in self.layers
        self.model.inputs = self.layers["inputs"]
        self.model.head = self.layers["posterior" if observes else "prior"]
        if observes:
            self.model.prior = self.layers["prior"]
        if "gru" in self.layers:
            self.model.gru = self.layers["gru"]
        for field, layers in self.layers.items():
            for k, layer in enumerate(layers):
                name = f"{field}[{k}]."
                sums = {"dw": "w", "db": "b", "dscale": "scale", "dshift": "shift"}
                if field == "gru":
                    name, sums = "gru_", {"dscale": "scale", "dshift": "shift"}
                self.put(layer, **{to: self.sums.get(name + part) for to, part in sums.items()})
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
        run.put_drawn(model, given, ("dmean", "dstd"))
        self.put(
            model,
            d_gates=None if "gru" in self.layers else self._rows(4, H),
            d_prior=self._rows(H) if self.wants_prior else None,
            dstates=given.get("state"),
            dbeliefs=given.get("belief"),
            dstate=self.dstate,
            dbelief=self.dbelief,
            first_dstate=self.dfirst["state"],
            first_dbelief=self.dfirst["belief"],
            dactions=self.dactions,
            dembeds=self.dembeds,
            dw_ih=self.sums["gru.w_ih[0]"],
            dw_hh=self.sums["gru.w_hh[0]"],
            db_gates=self.db_gates,
        )

    def run(self) -> RSSMGrads:
        """Return the gradients of all inputs."""
        run, functions = self.origin, self.origin.functions
        room = run.pack(self.model, backward=True)
        actor: Any = None
        if run.problem.actor is None:
            functions.rssm_gradient(byref(self.model), run.num_steps, self.stretch)
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


def _episodes(is_first: _Array) -> _Array:
    """Return (T, N) numbers of the episodes that begin, -1 where none does."""
    numbers = np.cumsum(is_first).reshape(is_first.shape) - 1
    return np.where(is_first, numbers, -1).astype(np.int64)


def _cast(array: Any, dtype: np.dtype[Any]) -> Any:
    return None if array is None else array.astype(dtype, copy=False)
