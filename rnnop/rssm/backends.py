"""What runs an RSSM: the table, what each backend is given and gives back.

Three forms share one loop over time: known actions, an actor, and known actions with embeddings.
All data is time-major here, all three are the same problem with other fields, and `step` is a
rollout of one step.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from .. import backends
from ..arrays import Array
from ..errors import UnsupportedError
from .spec import RSSMSpec
from .weights import RSSMGrads, RSSMWeights

# In the order in which `auto` tries them.
BACKENDS = {
    "cpu": "rnnop.cpu.rssm",
    "cuda": "rnnop.rssm.cuda",
    "reference": "rnnop.rssm.reference",
}

Actor = Callable[[Array, Array], tuple[Array, Any]]
"""(state, belief) -> (action, vjp); vjp(daction) -> (dstate, dbelief, *parameters)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One checked call in time-major order.

    Attributes
    ----------
    family, dtype : str
        Of all arrays.
    state, belief : array (N, S) and (N, H)
        Before the first step.
    noise : array (T, N, S or S / K)
        What draws each state.
    actions : array (T, N, A) or None
        None with an actor.
    embeds : array (T, N, E) or None
        With them, the state is drawn from the posterior.
    is_first : array (T, N) of bool, or None
        Where an episode begins.
    actor : callable or None
        See `Actor`; its vjp may be None in a forward that keeps nothing.
    cache : dict or None
        Of prepacked weights: where a backend keeps what it makes of them.
    """

    weights: RSSMWeights
    xp: ModuleType
    family: str
    dtype: str
    state: Array
    belief: Array
    noise: Array
    actions: Array | None = None
    embeds: Array | None = None
    is_first: Array | None = None
    actor: Actor | None = None
    cache: dict[Any, Any] | None = None

    @property
    def form(self) -> str:
        """'rollout', 'imagine' or 'observe'."""
        if self.actor is not None:
            return "imagine"
        return "rollout" if self.embeds is None else "observe"


Steps = dict[str, Array]
"""Results or cotangents of all steps, time-major, by the names of `step_shapes`.

Cotangents may lack a name: it counts as zeros.
"""


def step_shapes(spec: RSSMSpec, form: str) -> dict[str, tuple[int, ...]]:
    """Return what each step of a form has, in the order of the outputs: names and shapes of a row.

    The forms are 'rollout', 'imagine' and 'observe'.
    """
    S, classes = spec.state_size, int(spec.num_classes or 1)
    of: dict[str, tuple[int, ...]] = {"mean": (S,), "std": (S,)}
    if spec.latent == "categorical":
        of = {"logits": (S // classes, classes)}
    shapes: dict[str, tuple[int, ...]] = {}
    for which in ("prior_", "posterior_") if form == "observe" else ("",):
        shapes |= {which + name: shape for name, shape in of.items()}
    shapes |= {"state": (S,), "belief": (spec.belief_size,)}
    return shapes | ({"action": (spec.action_size,)} if form == "imagine" else {})


Prepared: TypeAlias = Callable[[Array, Array, Array, Array, Array | None], list[Array]]
"""A forward with all made ready but its data: from state, belief, noise, actions and embeds, as of
a `Problem`, it returns the results in the order of `step_shapes`. All are C-contiguous."""


class Description(NamedTuple):
    """How a backend would run a problem, for people.

    Attributes
    ----------
    manner : str or None
        The algorithm, such as an instruction set and threads; None for no more to say.
    hoisted : tuple of str
        What stands outside the loop over time.
    compute_dtype : str
        The dtype of the arithmetic.
    kept : int or None
        Bytes that a gradient keeps beside the results; None where they are not known beforehand.
    """

    manner: str | None
    hoisted: tuple[str, ...]
    compute_dtype: str
    kept: int | None


# What can stand outside the loop over time, by form.
HOISTED = {
    "rollout": ("noise", "products of actions"),
    "imagine": ("noise",),
    "observe": ("noise", "products of actions and embeddings", "the prior's head"),
}


class Backend(Protocol):
    """What a module in the table must offer."""

    def unavailable(self) -> str | None:
        """Return None, or the reason why it cannot run here."""

    def supports(self, problem: Problem) -> str | None:
        """Return None, or the reason why it cannot run such a problem."""

    def describe(self, problem: Problem) -> Description:
        """Return how it would run such a problem."""

    def prepack(self, weights: RSSMWeights, cache: dict[Any, Any]) -> None:
        """Lay weights out for many calls, into `cache`."""

    def prepared(self, problem: Problem) -> Prepared | None:
        """Return a quicker way to call `forward` again with other data; None if there is none."""

    def forward(self, problem: Problem, keep: bool) -> tuple[Steps, Any]:
        """Run the model; return the steps, and with `keep` what the backward needs."""

    def backward(self, problem: Problem, saved: Any, cotangents: Steps) -> RSSMGrads:
        """Run the gradient of the forward, with actions and embeddings time-major."""


@functools.cache
def load(name: str) -> Backend:
    """Import the backend called `name` at its first use."""
    return cast(Backend, importlib.import_module(BACKENDS[name]))


def refusals(problem: Problem) -> dict[str, str]:
    """Return the reason of every backend that cannot run a problem."""
    reasons = {name: _refusal(load(name), problem) for name in BACKENDS}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _refusal(backend: Backend, problem: Problem) -> str | None:
    """Return None, or why a backend cannot run a problem; libraries are loaded last."""
    return backend.supports(problem) or backend.unavailable()


def choose(backend: str, problem: Problem) -> Backend:
    """Return the backend for a call: the one named, or the first that can.

    Raises
    ------
    SpecError
        There is no backend of that name.
    UnsupportedError
        The one that was named cannot run this call, or runs no RSSM at all.
    """
    # The names of RNNOP_BACKEND are those of the operator, which has no backend `cuda`.
    name = backend if backend == "cuda" else backends.wanted(backend)
    if name not in ("auto", *BACKENDS):
        raise UnsupportedError(
            f"backend {name!r} runs no RSSM; expected auto, {', '.join(BACKENDS)}"
        )
    for each in BACKENDS if name == "auto" else (name,):
        chosen = load(each)
        reason = _refusal(chosen, problem)
        if reason is None:
            return chosen
    raise UnsupportedError(f"backend {each!r} cannot run this call: {reason}")
