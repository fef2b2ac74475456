"""The public functions on JAX arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import api, backends, validate
from ..api import Explanation, RNNOutput
from ..arrays import Array
from ..errors import DTypeError, blame
from ..packing import PackedSequence, data_of, packed_as
from ..weights import PrepackedWeights, RNNGrads, RNNWeights
from .call import RNNCall, on_host, split, stand_in
from .primitives import backward_p, forward_p

Weights = RNNWeights | PrepackedWeights


@functools.wraps(api.rnn)
def rnn(x: Any, weights: Weights, h0: Any = None, c0: Any = None, **options: Any) -> RNNOutput:
    """Run `rnnop.rnn`; the arguments are those of `rnn`."""
    call, leaves = split(x, weights, h0, c0, **options)
    results = forward_p.bind(*varying_alike(leaves), call=call, keep=())
    return _output(x, results)


@functools.wraps(api.rnn_vjp)
def rnn_vjp(
    x: Any, weights: Weights, h0: Any = None, c0: Any = None, **options: Any
) -> tuple[RNNOutput, VJP]:
    """Run `rnnop.rnn_vjp`; the arguments are those of `rnn`."""
    call, leaves = split(x, weights, h0, c0, **options)
    _, *states = call.shapes(leaves)
    zeros = [jnp.zeros(shape, data_of(x).dtype) for shape in states]
    h0 = zeros[0] if h0 is None else h0
    c0 = zeros[1] if c0 is None and len(zeros) > 1 else c0
    call, leaves = split(x, weights, h0, c0, **options)
    leaves = varying_alike(leaves)
    *results, token = forward_p.bind(*leaves, call=call, keep=tuple(range(call.num_gradients)))
    output = _output(x, results)
    return output, VJP(call, leaves, token, x, output)


@functools.wraps(api.explain)
def explain(
    x: Any, weights: Weights, h0: Any = None, c0: Any = None, **options: Any
) -> Explanation:
    """Run `rnnop.explain`; the arguments are those of `rnn`."""
    call, leaves = split(x, weights, h0, c0, **options)
    shown = [
        stand_in(leaf.shape, leaf.dtype) if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)
        for leaf in leaves
    ]
    given, options = call.arguments(shown)
    explained: Explanation = api.explain.direct(*given, **options)  # type: ignore[attr-defined]
    return explained


@functools.wraps(api.prepack)
def prepack(weights: RNNWeights, *, mode: str = "gru", backend: str = "auto") -> PrepackedWeights:
    """Run `rnnop.prepack`."""
    plain = validate.weights_object(weights)
    for name, array in plain.named():
        if isinstance(array, jax.core.Tracer):
            raise DTypeError(
                f"`weights.{name}` is traced by JAX; expected an array that has its values",
                "Prepack outside of the function that is transformed",
            )
    packed = PrepackedWeights(plain, mode, backends.wanted(backend))
    on_host(packed)
    return packed


@dataclass(frozen=True, eq=False, repr=False)
class VJP:
    """The vector-Jacobian product of one call of `rnn_vjp`, on JAX arrays."""

    _call: RNNCall
    _leaves: list[Array]
    _token: Array
    _x: Any
    _output: RNNOutput

    @functools.wraps(api.VJP.__call__)
    def __call__(
        self, dy: Any, dh_n: Array | None = None, dc_n: Array | None = None, dc: Any = None
    ) -> RNNGrads:
        """Return the gradients, as `rnnop.VJP` does."""
        given = {"dy": dy, "dh_n": dh_n, "dc_n": dc_n, "dc": dc}
        with blame("vjp"):
            there = {
                name: self._cotangent(name, value)
                for name, value in given.items()
                if value is not None
            }
            found = backward_p.bind(
                *varying_alike([*self._leaves, self._token, *there.values()]),
                call=self._call,
                given=tuple(there),
                wanted=tuple(range(self._call.num_gradients)),
            )
        grads = self._call.operands([*found, *self._leaves[len(found) :]])
        return RNNGrads(packed_as(grads.x, self._x), grads.weights, grads.h0, grads.c0)

    def _cotangent(self, name: str, value: Any) -> Array:
        """Return a cotangent as an array, shaped as what it belongs to."""
        like = getattr(self._output, name[1:])
        if like is None:
            return data_of(value)  # refused where the call runs
        if isinstance(value, PackedSequence) and isinstance(self._x, PackedSequence):
            validate.same_steps(name, value, self._x)
        shape = tuple(data_of(like).shape)
        return validate.shaped_like(
            name, data_of(value), shape, f"the shape of {name[1:]}", data_of(self._x)
        )


def _output(x: Any, results: Sequence[Array]) -> RNNOutput:
    y, h_n, c_n, c = (*results, None, None)[:4]
    return RNNOutput(packed_as(y, x), h_n, c_n, None if c is None else packed_as(c, x))


def varying_alike(leaves: list[Array]) -> list[Array]:
    """Let all operands vary over the same axes of a `jax.shard_map`, as its types demand.

    The transpose of this adds up what the devices find for an operand that all of them share.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return leaves
    axes = [_axes(jax.typeof(leaf)) for leaf in leaves]
    every = frozenset[Any]().union(*axes)
    return [
        jax.lax.pcast(leaf, tuple(every - mine), to="varying") if every - mine else leaf
        for leaf, mine in zip(leaves, axes, strict=True)
    ]


def _axes(aval: Any) -> frozenset[Any]:
    """Return the axes of a mesh over which a value of this type varies."""
    if hasattr(aval, "vma"):  # before jax 0.10
        return frozenset(aval.vma)
    return frozenset(aval.manual_axis_type.varying)
