"""A call on a device: its arrays into a plan's memory, the work, and the results out of it."""

from __future__ import annotations

from typing import Any

from ... import arrays, flags
from ...arrays import Array
from ..backends import Problem, Steps
from ..weights import RSSMGrads, RSSMWeights
from .abilities import FAMILIES
from .device import Device, current
from .model import Key
from .plan import Plan, give_back, give_back_after, take


class Saved:
    """What the backward of a call needs: its plan, which is busy as long as this lives.

    Attributes
    ----------
    actors : list
        The vjp of the actor at every step.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.actors: list[Any] = []
        give_back_after(self, plan)


def forward(problem: Problem, keep: bool) -> tuple[Steps, Any]:
    """Run the model. With `keep`, what the backward needs is saved."""
    memory = FAMILIES[problem.family]
    with current(memory, problem.state) as device:
        plan = take(device, _key(problem, keep), problem.family, problem.state)
        saved = Saved(plan) if keep else None
        call = _Call(problem, plan, device, saved)
        try:
            with plan.work(device):
                call.load()
                call.forward()
                return call.results(), saved
        finally:
            if saved is None:
                give_back(plan)


def backward(problem: Problem, saved: Any, cotangents: Steps) -> RSSMGrads:
    """Run the gradient of `forward`, against time."""
    memory = FAMILIES[problem.family]
    with current(memory, problem.state) as device:
        call = _Call(problem, saved.plan, device, saved)
        with saved.plan.work(device):
            actor = call.backward(cotangents)
            return call.gradients(actor)


def _key(problem: Problem, keep: bool) -> Key:
    T, N = (int(extent) for extent in problem.noise.shape[:2])
    shapes = tuple((name, tuple(map(int, each.shape))) for name, each in problem.weights.named())
    dtype = "float64" if problem.dtype == "float64" else "float32"
    spec, episodes = problem.weights.spec, problem.is_first is not None
    tf32 = flags.enabled("RNNOP_ALLOW_TF32")
    return Key(spec, problem.form, T, N, dtype, keep, episodes, tf32, shapes)


class _Call:
    """One call of a plan."""

    def __init__(self, problem: Problem, plan: Plan, device: Device, saved: Saved | None) -> None:
        self.problem, self.plan, self.device, self.saved = problem, plan, device, saved
        self.model, self.xp = plan.model, problem.xp
        self.steps = range(self.model.num_steps)

    def load(self) -> None:
        """Copy all that is known into the plan's memory, in the dtype that is computed in."""
        problem, model, bring = self.problem, self.model, self.device.memory.bring
        given = {"noise": problem.noise, "embeds": problem.embeds}
        if problem.actions is not None:
            given["actions"] = self._unless_first(problem.actions)
        if problem.is_first is not None:
            given["first"] = problem.is_first[:, :, None]
        for name, array in given.items():
            if array is not None:
                model.inputs[name][...] = bring(array)
        for name, array in problem.weights.named():
            model.weights[name][...] = bring(array)
        model.begins["state"][...] = bring(problem.state)
        model.begins["belief"][...] = bring(problem.belief)

    def forward(self) -> None:
        """Begin the work, around the actor if there is one."""
        if self.problem.actor is None:
            self.plan.run(self.device, "forward")
            return
        state, belief = self.model.begins["state"], self.model.begins["belief"]
        for t in self.steps:
            # Copied: what the actor does with them is its own affair.
            action, vjp = self.problem.actor(self._copy(state), self._copy(belief))
            self.model.inputs["actions"][t][...] = self.device.memory.bring(action)
            self.plan.run(self.device, "forward", t)
            state, belief = (self.model.results[name][t] for name in ("state", "belief"))
            if self.saved is not None:
                self.saved.actors.append(vjp)

    def results(self) -> Steps:
        """Return copies of the results, in the dtype of the caller."""
        return {name: self._out(array) for name, array in self.model.results.items()}

    def backward(self, cotangents: Steps) -> tuple[Array, ...] | None:
        """Begin the work; return the sums of the actor's own gradients."""
        for name, array in self.model.given.items():
            given = cotangents.get(name)
            array[...] = 0 if given is None else self.device.memory.bring(given)
        if self.problem.actor is None:
            self.plan.run(self.device, "backward")
            return None
        return self._imagined(cotangents.get("action"))

    def _imagined(self, dactions: Array | None) -> tuple[Array, ...]:
        """Go back step by step, through the actor's own vjp too."""
        d, sums, saved = self.model.of_d, None, self.saved
        for t in reversed(self.steps):
            self.plan.run(self.device, "backward", t)
            daction = self._copy(d["action"][t])
            if dactions is not None:
                daction = daction + self.xp.astype(dactions[t], daction.dtype, copy=False)
            dstate, dbelief, own = saved.actors[t](daction)  # type: ignore[union-attr]
            for name, more in (("state", dstate), ("belief", dbelief)):
                if more is not None:
                    d[name][t][...] = d[name][t] + self.device.memory.bring(more)
            sums = own if sums is None else [a + b for a, b in zip(sums, own, strict=True)]
        self.plan.run(self.device, "sums")
        return tuple(sums or ())

    def gradients(self, actor: tuple[Array, ...] | None) -> RSSMGrads:
        """Return copies of the gradients, in the dtype of the caller."""
        problem, d = self.problem, self.model.of_d
        known = problem.actor is None
        begins = {name: self._unless_first(d[name])[0] for name in ("state", "belief")}
        return RSSMGrads(
            weights=self._weights(),
            state=self._out(begins["state"]),
            belief=self._out(begins["belief"]),
            actions=self._out(self._unless_first(d["action"])) if known else None,
            embeds=self._out(d["embed"]) if "embed" in d else None,
            actor=actor,
        )

    def _weights(self) -> RSSMWeights:
        """Return the gradients of the weights; those of the initial state and belief are sums."""
        found = {name: self._out(array) for name, array in self.model.gradients.items()}
        first = self.problem.is_first
        for name in ("state", "belief"):
            if f"initial_{name}" in found and first is not None:
                d = self.model.of_d[name]
                arrived = self.xp.where(first[:, :, None], d, self.xp.zeros_like(d))
                found[f"initial_{name}"] = self._out(self.xp.sum(arrived, axis=(0, 1)))
        return RSSMWeights.of_arrays(self.model.spec, found)

    def _unless_first(self, steps: Array) -> Array:
        """Return steps with zeros where an episode begins."""
        if self.problem.is_first is None:
            return steps
        return self.xp.where(self.problem.is_first[:, :, None], self.xp.zeros_like(steps), steps)

    def _out(self, array: Array) -> Array:
        """Return a copy in the caller's dtype."""
        like = self.problem.state.dtype
        if array.dtype == like:
            return self._copy(array)
        return self.xp.astype(array, like)

    def _copy(self, array: Array) -> Array:
        return arrays.copy(self.xp, array)
