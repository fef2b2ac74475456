"""The way of a call that is like one before it: a control loop spends its time elsewhere.

It is for prepacked weights and NumPy data, time-major or a single step, without an actor or
`is_first`, where a backend has made ready all but the data. Whatever is not exactly as in the call
before goes the long way, where it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import flags
from ..arrays import Array
from ..setups import MOST
from ..shortcut import fits
from . import noise as streams
from .backends import Prepared
from .call import Call, start
from .outputs import OUTPUTS
from .weights import PrepackedRSSMWeights

_FLAGS = ("RNNOP_BACKEND", "RNNOP_NUM_THREADS", "RNNOP_CPU_ISA")


class Shortcut:
    """A call with all made ready but its data."""

    def __init__(self, call: Call, run: Prepared) -> None:
        problem, layout = call.problem, call.layout
        self._run, self._spec, self._dtype = run, call.spec, problem.state.dtype
        self._steps, self._rows = layout.num_steps, layout.batch_size
        self._is_step, self._observes = layout.order == "step", problem.form == "observe"
        self._output = OUTPUTS[problem.form, call.spec.latent]
        # Not given, they are these, which nobody writes to.
        self._state, self._belief = (
            start(name, problem.weights, layout.batch_size, problem.state)
            for name in ("state", "belief")
        )
        self._noise_shape = layout.shape(call.spec.noise_size)
        self._embeds_shape = layout.shape(call.spec.embed_size)

    def __call__(
        self, state: Any, belief: Any, noise: Any, seed: Any, actions: Array, embeds: Any
    ) -> Any:
        """Return what the caller gets; None where something is not as it should be."""
        if state is None:
            state = self._state
        elif not self._fits(state, self._state.shape):
            return None
        if belief is None:
            belief = self._belief
        elif not self._fits(belief, self._belief.shape):
            return None
        if self._observes and not self._fits(embeds, self._embeds_shape):
            return None
        if seed is not None and (type(seed) is not int or seed < 0):
            return None
        if noise is None:
            noise = streams.draw(self._spec, seed, self._steps, self._rows).astype(self._dtype)
        elif not self._fits(noise, self._noise_shape):
            return None
        steps = self._run(state, belief, noise, actions, embeds)
        return self._output(*([array[0] for array in steps] if self._is_step else steps))

    def _fits(self, array: Any, shape: tuple[int, ...]) -> bool:
        return fits(array, shape, self._dtype)


def key(
    form: str, order: str, weights: Any, backend: Any, given: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Return what a call is known by among those of its weights; None if it is not kept."""
    if type(weights) is not PrepackedRSSMWeights or order == "batch_first":
        return None
    actions = given.get("actions")
    if type(actions) is not np.ndarray or not actions.flags.c_contiguous:
        return None
    if given.get("is_first") is not None or type(backend) is not str:
        return None
    return form, order, actions.shape, actions.dtype, backend, flags.state(_FLAGS)


def keep(known_as: tuple[Any, ...], weights: PrepackedRSSMWeights, call: Call) -> None:
    """Make ready the calls that are known as this one; None says that it cannot be."""
    if len(weights.shortcuts) >= MOST:
        weights.shortcuts.clear()
    run = call.backend.prepared(call.problem)
    weights.shortcuts[known_as] = None if run is None else Shortcut(call, run)
