"""Calls through JAX: its arrays, `jax.vjp`, now and then under `jax.jit`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jax  # noqa: TID253
import jax.numpy as jnp  # noqa: TID253
import numpy as np

import rnnop

from . import judge, through
from .calls import Array, Call
from .judge import Results

JITTED = 0.05  # of the calls with gradients: each is compiled
KEPT = 400  # calls, until JAX may forget what it compiled


class _Jax:
    def of(self, array: Array, random: np.random.Generator) -> Any:
        moved = jnp.asarray(np.array(array, order="C"))
        if moved.dtype != array.dtype:
            raise TypeError(f"JAX has no {array.dtype}")
        return moved

    def host(self, array: Any) -> Array:
        return np.asarray(array)

    def gradients(self, call: Call, cotangents: Results, random: np.random.Generator) -> Results:
        def run(data: Any, weights: Any, h0: Any, c0: Any) -> list[Any]:
            x = call.x._replace(data=data) if isinstance(call.x, rnnop.PackedSequence) else data
            out = replace(call, x=x, weights=weights, h0=h0, c0=c0).rnn(backend="cpu")
            return [judge.data_of(getattr(out, name)) for name in cotangents]

        chosen = jax.jit(run) if random.random() < JITTED else run
        _, vjp = jax.vjp(chosen, judge.data_of(call.x), call.weights, call.h0, call.c0)
        return through.flat(*vjp([jnp.asarray(each) for each in cotangents.values()]), self.host)


def one(seed: int, tally: Counter[str]) -> None:
    """Make the call of a seed and judge it."""
    if seed % KEPT == 0:
        jax.clear_caches()
    with jax.enable_x64(True):
        through.one(seed, tally, _Jax())
