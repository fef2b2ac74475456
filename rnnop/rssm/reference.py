"""The oracle: the loop of `loop.py` on any array namespace.

The halves are computed in float64 on NumPy, and so is float32 with RNNOP_REFERENCE_FLOAT64=1; on
the other families the halves are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from .. import flags
from .backends import HOISTED, Description, Problem, Steps
from .loop import Loop
from .weights import RSSMGrads, RSSMWeights


def unavailable() -> str | None:
    """Return None: the reference runs wherever Python does."""
    return None


def supports(problem: Problem) -> str | None:
    """Return None: there is nothing that the reference cannot run."""
    return None


def describe(problem: Problem) -> Description:
    """Return how it would run such a problem."""
    compute_dtype = _compute_dtype(problem.family, problem.dtype)
    return Description(None, HOISTED[problem.form], compute_dtype, None)


def prepack(weights: RSSMWeights, cache: dict[Any, Any]) -> None:
    """Do nothing: weights are read as they are given."""


def prepared(problem: Problem) -> None:
    """Return None: there is nothing to make ready."""


_quiet = np.errstate(over="ignore", under="ignore", invalid="ignore")
"""Infinities and NaN go through as they come, as they do in every other backend."""


@_quiet
def forward(problem: Problem, keep: bool) -> tuple[Steps, Any]:
    """Run the model. With `keep`, what the backward needs is saved."""
    run = Loop(_in_compute_dtype(problem))
    down = _caster(problem.xp, problem.state.dtype)
    steps = run.forward(keep)
    return {name: down(array) for name, array in steps.items()}, run if keep else None


@_quiet
def backward(problem: Problem, saved: Any, cotangents: Steps) -> RSSMGrads:
    """Run the gradient of `forward`, against time."""
    run: Loop = saved
    up = _caster(problem.xp, run.problem.state.dtype)
    down = _caster(problem.xp, problem.state.dtype)
    grads = run.backward({name: up(array) for name, array in cotangents.items()})
    return grads._replace(
        weights=grads.weights.map(down),
        **{name: down(getattr(grads, name)) for name in ("state", "belief", "actions", "embeds")},
    )


def _in_compute_dtype(problem: Problem) -> Problem:
    """Return the problem in the dtype that is computed in."""
    wide = _compute_dtype(problem.family, problem.dtype)
    if wide == problem.dtype:
        return problem
    up = _caster(problem.xp, getattr(problem.xp, wide))
    names = ("state", "belief", "noise", "actions", "embeds")
    changed = {name: up(getattr(problem, name)) for name in names}
    return replace(problem, weights=problem.weights.map(up), **changed)


def _compute_dtype(family: str, dtype: str) -> str:
    """Return the dtype of the arithmetic, see the docstring of the module."""
    if dtype in ("float16", "bfloat16"):
        return "float64" if family == "numpy" else "float32"
    wide = family == "numpy" and flags.enabled("RNNOP_REFERENCE_FLOAT64")
    return "float64" if wide else dtype


def _caster(xp: ModuleType, dtype: Any) -> Callable[[Any], Any]:
    """Return the conversion to `dtype`, which lets None through."""
    return lambda array: None if array is None else xp.astype(array, dtype, copy=False)
