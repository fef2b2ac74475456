"""What this backend can run, where, and how it would."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

from .. import arrays
from ..arrays import LABELS
from ..backends import Frame, Problem
from ..layouts.common import flat_size
from ..layouts.cudnn import MOST_ELEMENTS
from ..spec import RNNSpec
from ..weights import RNNWeights
from . import algo, parts, weightspace
from .descriptors import Handle
from .library import Library, library, missing
from .memory import FAMILIES, Memory
from .status import CudnnError

BFLOAT16 = 91300  # the first version that has it
CAPABILITIES = {"float16": (5, 3), "bfloat16": (8, 0)}  # the least that has arithmetic of them


def supports(frame: Frame) -> str | None:
    """Return None, or why cuDNN cannot run such a call."""
    memory = FAMILIES.get(frame.family)
    if memory is None:
        return f"it takes CuPy and PyTorch arrays, and `x` is a {LABELS[frame.family]} array"
    return (
        memory.missing(frame.device)
        or _no_equations(frame.spec)
        or _too_large(frame)
        or algo.refusal(algo.wanted(), frame)
        or _no_dtype(frame)
        or _no_capability(frame, memory)
    )


def unavailable() -> str | None:
    """Return None, or why there is no cuDNN here."""
    return missing() or _no_device(library(), os.getpid())


def manner(frame: Frame) -> str:
    """Return the version, the algorithm, the layout and the arithmetic that a call would have."""
    layout = "padded" if algo.padded(frame) else "packed"
    return ", ".join(
        (
            f"cuDNN {library().version_text}",
            f"algorithm {algo.wanted()}",
            *(() if algo.equal_lengths(frame) else (layout,)),
            algo.math_type(frame.dtype, _capability(frame)).name.removeprefix("CUDNN_"),
        )
    )


def compute_dtype(frame: Frame) -> str:
    """Return the dtype of the arithmetic: that of the data, float32 for the halves."""
    return "float64" if frame.dtype == "float64" else "float32"


def draws_dropout(frame: Frame) -> bool:
    """Return whether cuDNN runs all layers in one go, and so the dropout between them."""
    return not (frame.return_cell_states or parts.by_direction(frame))


def prepack(spec: RNNSpec, weights: RNNWeights, cache: dict[Any, Any]) -> None:
    """Lay the weights out on their device, for the calls that run all layers in one go."""
    first = weights.w_ih[0]
    memory = FAMILIES[str(arrays.family(first))]
    brought = weights.map(memory.bring)
    index = memory.index(brought.w_ih[0])
    with memory.on(index):
        cache[weightspace.cache_key(index, parts.whole(spec))] = weightspace.fill(spec, brought)


def prepared(problem: Problem) -> None:
    """Return None: there is no quicker way."""


def _no_equations(spec: RNNSpec) -> str | None:
    if not spec.default_activations:
        return "cuDNN has no custom `activations`"
    if not spec.reset_after:
        return "cuDNN has no `reset_after=False`: its GRU applies r after the product"
    if spec.proj_size == spec.hidden_size:
        return f"cuDNN has no projection to hidden_size = {spec.hidden_size} itself, only to less"
    for name, given in (
        ("weights.peephole", spec.peephole),
        ("proj_clip", spec.proj_clip is not None),
        ("gate_clip", spec.gate_clip is not None),
        ("input_forget", spec.input_forget),
    ):
        if given:
            return f"cuDNN has no `{name}`"
    return None


def _too_large(frame: Frame) -> str | None:
    spec = frame.spec
    elements = flat_size(weightspace.whole(spec))
    if elements > MOST_ELEMENTS:
        return (
            f"the weights have {elements:,} elements; cuDNN counts them in 32 bits, "
            f"up to {MOST_ELEMENTS:,}"
        )
    state = (spec.num_pseudo_layers, frame.plan.num_segments, spec.hidden_size)
    if math.prod(state) > MOST_ELEMENTS:
        return f"a state of shape {state} has more than {MOST_ELEMENTS:,} elements"
    return None


def _no_dtype(frame: Frame) -> str | None:
    if frame.dtype != "bfloat16" or missing() is not None:
        return None
    if library().version < BFLOAT16:
        return f"bfloat16 came with cuDNN 9.13, and this is {library().version_text}"
    return None


def _no_capability(frame: Frame, memory: Memory) -> str | None:
    algorithm = algo.wanted()
    for what, needed in (
        (frame.dtype, CAPABILITIES.get(frame.dtype)),
        (f"algorithm {algorithm}", algo.CAPABILITIES.get(algorithm)),
    ):
        if needed is None or unavailable() is not None:
            continue
        index = memory.number(frame.device)
        found = memory.capability(index)
        if found < needed:
            return (
                f"{what} needs a GPU of compute capability {needed[0]}.{needed[1]}, "
                f"and device {index} has {found[0]}.{found[1]}"
            )
    return None


def _capability(frame: Frame) -> tuple[int, int]:
    memory = FAMILIES[frame.family]
    return memory.capability(memory.number(frame.device))


@functools.cache
def _no_device(found: Library, process: int) -> str | None:
    """Return None, or why cuDNN finds no device. It is asked once in a process."""
    try:
        Handle(found)
    except CudnnError as error:
        return str(error).rstrip(".")
    return None
