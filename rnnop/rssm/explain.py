"""How a call would run, without running it: the text of `rnnop.rssm.explain`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import arrays, frameworks
from ..errors import SpecError, blame
from ..initialize import float_dtype
from . import api
from .backends import BACKENDS, Problem, choose, load, refusals, step_shapes
from .call import Call, make_call
from .spec import RSSMSpec

CALLS: Mapping[str, Callable[..., Any]] = {
    "step": api.step,
    "rollout": api.rollout,
    "imagine": api.imagine,
    "observe": api.observe,
}


@dataclass(frozen=True, eq=False)
class RSSMExplanation:
    """How a call would run: its text is meant to be printed.

    Attributes
    ----------
    spec : RSSMSpec
        The model.
    call : str
        Which call, and its sizes.
    backend : str
        The backend that would run it.
    manner : str or None
        How, such as the instruction set and the number of threads.
    refusals : dict
        The reason of every backend that could not.
    hoisted : tuple of str
        What stands outside the loop over time.
    precision : str
        The dtype of the data, and that of the arithmetic.
    results, kept : int, int or None
        Bytes of what the call returns, and of what its `_vjp` keeps beside them for the gradient.
        None where the backend cannot tell beforehand.
    """

    spec: RSSMSpec
    call: str
    backend: str
    manner: str | None
    refusals: dict[str, str]
    hoisted: tuple[str, ...]
    precision: str
    results: int
    kept: int | None

    def __str__(self) -> str:
        kept = "" if self.kept is None else f", {_bytes(self.kept)} more kept for a gradient"
        lines = [
            f"model      {self.spec}",
            f"call       {self.call}",
            f"backend    {self.backend}{f' ({self.manner})' if self.manner else ''}",
            f"hoisted    {', '.join(self.hoisted)}",
            f"memory     {_bytes(self.results)} of results{kept}",
            f"precision  {self.precision}",
        ]
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


def explain(call: str, *given: Any, **options: Any) -> RSSMExplanation:
    """Say how a call would run, without running it.

    Parameters
    ----------
    call : {'step', 'rollout', 'imagine', 'observe'}
        Which call.
    *given, **options
        Its arguments. An actor is not called.

    Returns
    -------
    RSSMExplanation
        The backend and why not the others, what is hoisted out of the loop, memory, precision.
        Print it.

    Raises
    ------
    RnnopError
        As from the call, or there is no such call.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> actions = np.ones((5, 4, 2), np.float32)
    >>> print(rssm.explain("rollout", weights, None, None, actions, backend="reference"))
    model      rssm(gru, gaussian, state 3, belief 8, action 2, embed 0, hidden 8)
    call       rollout, T=5 N=4
    backend    reference
    hoisted    noise, products of actions
    memory     1.36 kB of results
    precision  float32 data, float32 arithmetic
    not cuda: it takes CuPy and PyTorch arrays, and `state` is a NumPy array
    """
    with blame("explain"):
        if call not in CALLS:
            raise SpecError(f"`call` is {call!r}; expected one of {', '.join(CALLS)}")
        checked, backend = _checked(call, given, options)
        with blame(spec=checked.spec):
            problem = _brought(checked.problem, backend)
            chosen = choose(backend, problem)
        described = chosen.describe(problem)
        name = next(each for each in BACKENDS if load(each) is chosen)
        sizes = f"T={checked.layout.num_steps} N={checked.layout.batch_size}"
        return RSSMExplanation(
            checked.spec,
            f"{call}, {sizes}",
            name,
            described.manner,
            refusals(problem),
            described.hoisted,
            f"{problem.dtype} data, {described.compute_dtype} arithmetic",
            _results(problem),
            described.kept,
        )


def _checked(name: str, given: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Call, str]:
    """Return the call as its function would check it, and the backend that it asks for."""
    bound = inspect.signature(CALLS[name]).bind(*given, **options)
    bound.apply_defaults()
    rest = bound.arguments
    backend = rest.pop("backend")
    first = [rest.pop(each) for each in ("weights", "state", "belief", "noise", "seed")]
    first.append("reference")  # which takes every call
    if name == "step":
        return make_call("rollout", "step", *first, actions=rest["action"]), backend
    order = api.order_of(rest.pop("batch_first"))
    if name == "imagine":
        rest["has_vjp"] = False
    return make_call(name, order, *first, **rest), backend


def _brought(problem: Problem, backend: str) -> Problem:
    """Return the problem as it reaches a backend: adapters bring arrays on the host as NumPy's."""
    first = problem.weights.prior[0].w
    adapter = frameworks.adapter(first, "auto" if backend == "cuda" else backend)
    on_host = problem.family == "jax" or str(arrays.device(first)) == "cpu"
    if adapter is None or not on_host or backend == "cuda":
        return problem

    def like(array: Any) -> Any:
        if array is None:
            return None
        kind = arrays.dtype_name(array)
        return np.empty(tuple(array.shape), bool if kind == "bool" else float_dtype(kind))

    fields = ("state", "belief", "noise", "actions", "embeds", "is_first")
    actor: Any = problem.actor
    return replace(
        problem,
        weights=problem.weights.map(like),
        xp=arrays.namespace("numpy"),
        family="numpy",
        cache=None,
        actor=None if actor is None else replace(actor, call=None),  # it stays outside
        **{name: like(getattr(problem, name)) for name in fields},
    )


def _results(problem: Problem) -> int:
    """Return the bytes of all that a call returns."""
    row = sum(map(math.prod, step_shapes(problem.weights.spec, problem.form).values()))
    T, N, *_ = problem.noise.shape
    return int(T * N * row * problem.state.dtype.itemsize)


def _bytes(count: int) -> str:
    """Write a number of bytes with two or three figures."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
