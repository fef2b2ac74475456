"""The loop over time, forward beside backward: known actions, an actor, or observations.

Outside the loop stands what is known for all steps beforehand: the products of actions and
embeddings, and, where the posterior goes on, the prior's head, which nothing then waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import arrays
from ..arrays import Array
from .backends import Problem, Steps, step_shapes
from .latent import Parameters, make_latent
from .layers import MLP, Tally
from .transition import make_transition
from .weights import RSSMGrads


@dataclass(frozen=True, eq=False)
class _Step:
    """What the backward of one step needs: of its transition, head, latent, action and actor."""

    move: Any
    head: Any
    shaped: Any
    parameters: Parameters
    action: Any
    actor: Any


class Loop:
    """One problem: the parts of its model, and what a forward saved for its backwards."""

    def __init__(self, problem: Problem) -> None:
        weights, spec, xp = problem.weights, problem.weights.spec, problem.xp
        self.problem, self.xp = problem, xp
        self.num_steps, self.batch_size = problem.noise.shape[:2]
        self.transition = make_transition(weights, xp)
        self.latent = make_latent(spec, xp)
        self.prior = self.head = MLP(xp, spec, "prior", weights.prior, last=True)
        if problem.embeds is not None:
            known = spec.embed_size
            self.head = MLP(xp, spec, "posterior", weights.posterior, known=known, last=True)
        self.shapes = step_shapes(spec, problem.form)
        parameters = [name for name in self.shapes if name not in ("state", "belief", "action")]
        self.of_prior = [name for name in parameters if name.startswith("prior_")]
        self.drawn_from = [name for name in parameters if name not in self.of_prior]
        self.steps: list[_Step] = []
        self.action_saved: Any = None
        self.prior_saved: Any = None

    # Forward

    def forward(self, keep: bool) -> Steps:
        """Return the results of all steps."""
        problem, latent = self.problem, self.latent
        state, belief = problem.state, problem.belief
        actions, embeds = self._action_parts(), self._embed_parts()
        found: dict[str, list[Array]] = {name: [] for name in self.shapes}
        for t in range(self.num_steps):
            state, belief = self._begin(t, state, belief)
            action_saved = actor_vjp = None
            if problem.actor is None:
                part = actions[t]
            else:
                action, actor_vjp = problem.actor(state, belief)
                part, action_saved = self.transition.part(action)
                found["action"].append(action)
            belief, move = self.transition.step(part, state, belief)
            out, head = self.head.forward(belief, None if embeds is None else embeds[t])
            parameters, shaped = latent.parameters(out)
            state = latent.draw(parameters, problem.noise[t])
            names = (*self.drawn_from, "state", "belief")
            for name, array in zip(names, (*parameters, state, belief), strict=True):
                found[name].append(array)
            if keep:
                self.steps.append(_Step(move, head, shaped, parameters, action_saved, actor_vjp))
        steps = {name: self._stack(name, found[name]) for name in found}
        if self.of_prior:
            steps |= self._prior(steps["belief"])
        return steps

    def _action_parts(self) -> Any:
        """Return what the actions contribute to all steps; they are 0 where an episode begins."""
        if self.problem.actions is None:
            return None
        actions = self._unless_first(self.problem.actions)
        part, self.action_saved = self.transition.part(self._rows(actions))
        return self._unrows(part)

    def _embed_parts(self) -> Any:
        """Return what the embeddings contribute to the posterior at all steps."""
        embeds = self.problem.embeds
        return None if embeds is None else self._unrows(self.head.part(self._rows(embeds)))

    def _begin(self, t: int, state: Array, belief: Array) -> tuple[Array, Array]:
        """Put the initial state and belief where an episode begins."""
        weights = self.problem.weights
        pairs = ((state, weights.initial_state), (belief, weights.initial_belief))
        if self.problem.is_first is None:
            return state, belief
        first = self.problem.is_first[t][:, None]
        state, belief = (
            self.xp.where(first, self.xp.zeros_like(each) if initial is None else initial, each)
            for each, initial in pairs
        )
        return state, belief

    def _prior(self, beliefs: Array) -> Steps:
        """Return the prior of all steps."""
        out, head = self.prior.forward(self._rows(beliefs))
        parameters, shaped = self.latent.parameters(out)
        self.prior_saved = head, shaped
        # Copied: a mean is a view of the head's output, which nobody else may hold.
        fresh = (arrays.copy(self.xp, each) for each in parameters)
        return dict(zip(self.of_prior, map(self._unrows, fresh), strict=True))

    # Backward

    def backward(self, cotangents: Steps) -> RSSMGrads:
        """Return the gradients of all inputs."""
        problem, latent, tally = self.problem, self.latent, Tally(self.xp)
        dstate, dbelief = (self.xp.zeros_like(each) for each in (problem.state, problem.belief))
        dprior = self._prior_backward(cotangents, tally)
        dparts: list[Array] = []
        dembeds: list[Array] = []
        dactor: list[Array] | None = None
        for t in reversed(range(self.num_steps)):
            step, here = self.steps[t], {name: array[t] for name, array in cotangents.items()}
            dstate = _plus(dstate, here.get("state"))
            drawn = latent.draw_backward(step.parameters, problem.noise[t], dstate)
            dparameters = tuple(
                _plus(d, here.get(name)) for d, name in zip(drawn, self.drawn_from, strict=True)
            )
            dout = latent.parameters_backward(step.shaped, dparameters)
            dhead, dembed = self.head.backward(step.head, dout, tally)
            dbelief = _plus(dbelief + dhead, here.get("belief"))
            dbelief = _plus(dbelief, None if dprior is None else dprior[t])
            dpart, dstate, dbelief = self.transition.step_backward(step.move, dbelief, tally)
            if problem.actor is not None:
                daction = self.transition.part_backward(step.action, dpart, tally)
                ds, dh, own = step.actor(_plus(daction, here.get("action")))
                dstate, dbelief = _plus(dstate, ds), _plus(dbelief, dh)
                dactor = own if dactor is None else list(map(_plus, dactor, own))
            dstate, dbelief = self._begin_backward(t, dstate, dbelief, tally)
            dparts.append(dpart)
            dembeds.append(dembed)
        return RSSMGrads(
            actions=self._actions_backward(dparts[::-1], tally),
            embeds=self._embeds_backward(dembeds[::-1], tally),
            weights=tally.weights(problem.weights),
            state=dstate,
            belief=dbelief,
            actor=None if problem.actor is None else tuple(dactor or ()),
        )

    def _prior_backward(self, cotangents: Steps, tally: Tally) -> Array | None:
        """Return what the prior's own cotangents give for the beliefs of all steps."""
        given = [cotangents.get(name) for name in self.of_prior]
        if all(each is None for each in given):
            return None
        head, shaped = self.prior_saved
        dparameters = tuple(
            self._rows(self._stack(name, []) if each is None else each)
            for name, each in zip(self.of_prior, given, strict=True)
        )
        dout = self.latent.parameters_backward(shaped, dparameters)
        return self._unrows(self.prior.backward(head, dout, tally)[0])

    def _actions_backward(self, dparts: list[Array], tally: Tally) -> Array | None:
        actions = self.problem.actions
        if actions is None or not dparts:
            return None if actions is None else self.xp.zeros_like(actions)
        drows = self.transition.part_backward(
            self.action_saved, self.xp.concat(dparts, axis=0), tally
        )
        return self._unless_first(self._unrows(drows))

    def _embeds_backward(self, dparts: list[Array], tally: Tally) -> Array | None:
        embeds = self.problem.embeds
        if embeds is None or not dparts:
            return None if embeds is None else self.xp.zeros_like(embeds)
        drows = self.xp.concat(dparts, axis=0)
        return self._unrows(self.head.part_backward(self._rows(embeds), drows, tally))

    def _begin_backward(
        self, t: int, dstate: Array, dbelief: Array, tally: Tally
    ) -> tuple[Array, Array]:
        """Let nothing through where an episode begins, but to the initial state and belief."""
        if self.problem.is_first is None:
            return dstate, dbelief
        first = self.problem.is_first[t][:, None]
        for name, d in (("initial_state", dstate), ("initial_belief", dbelief)):
            tally.add(name, self.xp.sum(self.xp.where(first, d, self.xp.zeros_like(d)), axis=0))
        dstate, dbelief = (
            self.xp.where(first, self.xp.zeros_like(d), d) for d in (dstate, dbelief)
        )
        return dstate, dbelief

    # Shapes

    def _unless_first(self, actions: Array) -> Array:
        """Return actions, or their gradients, with zeros where an episode begins."""
        if self.problem.is_first is None:
            return actions
        first = self.problem.is_first[:, :, None]
        return self.xp.where(first, self.xp.zeros_like(actions), actions)

    def _rows(self, steps: Array) -> Array:
        """(T, N, ...) -> (T*N, ...)."""
        return self.xp.reshape(steps, (self.num_steps * self.batch_size, *steps.shape[2:]))

    def _unrows(self, rows: Array) -> Array:
        """(T*N, ...) -> (T, N, ...)."""
        return self.xp.reshape(rows, (self.num_steps, self.batch_size, *rows.shape[1:]))

    def _stack(self, name: str, steps: list[Array]) -> Array:
        """Return the steps as one array; zeros without any, which also stand for no cotangent."""
        if steps:
            return self.xp.stack(steps, axis=0)
        shape = (self.num_steps, self.batch_size, *self.shapes[name])
        return arrays.zeros(self.xp, shape, self.problem.state)


def _plus(d: Array, more: Array | None) -> Array:
    return d if more is None else d + more
