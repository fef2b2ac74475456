"""What this backend can run, and where."""

from __future__ import annotations

import importlib
from typing import Any

from ... import flags
from ...arrays import LABELS, device
from ...cudnn.memory import CupyMemory, Memory, TorchMemory
from ..backends import HOISTED, Description, Problem
from ..weights import RSSMWeights
from . import library

MOST_ROWS = 2**31 - 1  # cuBLAS counts them in 32 bits

FAMILIES: dict[str, Memory] = {"cupy": CupyMemory(), "torch": TorchMemory()}


def unavailable() -> str | None:
    """Return None, or why there is no GPU here, or what is missing to use it."""
    return library.missing()


def supports(problem: Problem) -> str | None:
    """Return None, or why such a call cannot run."""
    memory = FAMILIES.get(problem.family)
    if memory is None:
        return f"it takes CuPy and PyTorch arrays, and `state` is a {LABELS[problem.family]} array"
    return (
        _elsewhere(memory, problem)
        or _no_shape(problem)
        or (_watched(problem) if problem.family == "torch" else None)
    )


def describe(problem: Problem) -> Description:
    """Return how it would run such a problem."""
    captures = flags.enabled("RNNOP_CUDA_GRAPHS")
    return Description(
        "captured in CUDA graphs" if captures else "one launch after another",
        HOISTED[problem.form],
        "float64" if problem.dtype == "float64" else "float32",
        None,
    )


def prepack(weights: RSSMWeights, cache: dict[Any, Any]) -> None:
    """Do nothing: a plan copies weights in at each call."""


def prepared(problem: Problem) -> None:
    """Return None: what is made once is kept in a plan."""


def _elsewhere(memory: Memory, problem: Problem) -> str | None:
    reason = memory.missing(device(problem.state))
    return None if reason is None else reason.replace("`x`", "`state`")


def _no_shape(problem: Problem) -> str | None:
    T, N = problem.noise.shape[:2]
    if not N or not T:
        return "it needs a step and a row"
    if T * N > MOST_ROWS:
        return f"T * N = {T * N:,} rows; cuBLAS counts up to {MOST_ROWS:,}"
    return None


def _watched(problem: Problem) -> str | None:
    """Return None, or who watches what is done with tensors, and would see nothing of it."""
    torch: Any = importlib.import_module("torch")
    if torch.compiler.is_compiling():
        return "torch.compile cannot look into it"
    if torch._C._are_functorch_transforms_active():
        return "the transforms of torch.func cannot look into it"
    if not torch.is_grad_enabled():
        return None
    actor: Any = problem.actor
    given = (problem.state, problem.belief, problem.noise, problem.actions, problem.embeds)
    tensors = [each for each in given if each is not None]
    tensors += [each for _, each in problem.weights.named()]
    if any(each.requires_grad for each in tensors) or not (actor is None or actor.has_vjp):
        return "autograd is on, and cannot look into it; torch.no_grad() turns it off"
    return None
