"""The call as operations of JAX, and what its transformations make of them.

    forward   operands                      -> results, and with `keep` a token
    tangent   operands, token, tangents     -> tangents of the results; never run
    backward  operands, token, cotangents   -> gradients

`keep` has the numbers of the operands whose gradients a backward may want: none, none is to come.
`tangent` is linear in the tangents, and its transpose is `backward`: this is how JAX derives
reverse mode. The token is explained in `host.py`, and vmap in `batching.py`.

Why no jax.custom_vjp: under vmap it maps the backward by itself, which must then give the weights a
gradient for every element, though nearly always their sum is wanted. Here vmap comes first, and the
backward is that of one call with more rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import PartitionSpec

from ..arrays import Array
from ..errors import UnsupportedError, blame
from . import host
from .buffers import WAYS
from .calls import Call


def _primitive(name: str) -> Primitive:
    primitive = Primitive(f"rnnop_{name}")
    primitive.multiple_results = True
    return primitive


forward_p, tangent_p, backward_p = map(_primitive, ("forward", "tangent", "backward"))


# Shapes


def _like(aval: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the type of a result: as `aval`, which also says over which devices it varies."""
    spec = PartitionSpec(*[None] * len(shape))
    sharding = aval.sharding.update(spec=spec)
    return aval.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)


def _forward_avals(*avals: Any, call: Call, keep: tuple[int, ...]) -> list[Any]:
    results = [_like(avals[0], shape, avals[0].dtype) for shape in call.shapes(avals)]
    return [*results, _like(avals[0], *host.TOKEN)] if keep else results


def _tangent_avals(*avals: Any, call: Call, moving: tuple[int, ...]) -> list[Any]:
    shapes = call.shapes(avals[: call.num_operands])
    return [_like(avals[0], shape, avals[0].dtype) for shape in shapes]


def _backward_avals(*avals: Any, call: Call, given: Any, wanted: tuple[int, ...]) -> list[Any]:
    return [_like(avals[k], avals[k].shape, avals[k].dtype) for k in wanted]


forward_p.def_abstract_eval(_forward_avals)
tangent_p.def_abstract_eval(_tangent_avals)
backward_p.def_abstract_eval(_backward_avals)


# Running


def _forward(leaves: Sequence[Array], call: Call, keep: tuple[int, ...]) -> list[Array]:
    return host.forward(call, leaves, bool(keep))


def _backward(
    leaves: Sequence[Array], call: Call, given: tuple[str, ...], wanted: tuple[int, ...]
) -> list[Array]:
    count = call.num_operands
    cotangents = dict(zip(given, leaves[count + 1 :], strict=True))
    gradients = host.backward(call, leaves[:count], leaves[count], cotangents)
    return [gradients[k] for k in wanted]


def _runs(
    primitive: Primitive, run: Callable[..., list[Array]], types: Callable[..., list[Any]]
) -> None:
    """Let `run` do the work of a primitive: at once on a CPU, and by callback in a program."""

    def staged(way: Any, *operands: Any, call: Call, **static: Any) -> Any:
        avals = types(*map(jax.typeof, operands), call=call, **static)
        results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        call = call.quiet()
        count = len(operands)

        def work(arrays: list[Array]) -> None:
            given, room = arrays[:count], arrays[count:]
            if static.get("keep"):  # what is kept outlives JAX's buffers
                given = [array.copy() for array in given]
            for place, result in zip(room, run(given, call=call, **static), strict=True):
                place[...] = result

        def callback(context: Any, out: Any, *buffers: Any) -> None:
            way(context, (*buffers, *out), work)

        return buffer_callback(callback, results)(*operands)

    compiled = jax.jit(primitive.bind, static_argnames=("call", "keep", "given", "wanted"))

    def at_once(*operands: Any, **static: Any) -> list[Array]:
        given = [each for each in operands if isinstance(each, jax.Array)]
        devices = {device for each in given for device in each.devices()}
        if len(devices) > 1 or any(device.platform != "cpu" for device in devices):
            results: list[Array] = compiled(*operands, **static)
            return results
        found = run([np.asarray(each) for each in operands], **static)
        # Results are bound to a device if an operand is, as those of JAX's own operations.
        if any(each.committed for each in given):
            return [jax.device_put(each, next(iter(devices))) for each in found]
        return [jnp.asarray(each) for each in found]

    primitive.def_impl(at_once)
    mlir.register_lowering(primitive, _refuse_platform)
    for platform, way in WAYS.items():
        rule = mlir.lower_fun(functools.partial(staged, way), multiple_results=True)
        mlir.register_lowering(primitive, rule, platform=platform)


def _refuse_platform(context: Any, *_: Any, call: Call, **__: Any) -> NoReturn:
    with blame(call.function):
        raise UnsupportedError(
            f"a call on JAX arrays is compiled for {', '.join(context.module_context.platforms)}; "
            f"expected one of {', '.join(WAYS)}",
            "backend='reference' runs wherever JAX does",
        )


_runs(forward_p, _forward, _forward_avals)
_runs(backward_p, _backward, _backward_avals)


# Derivatives


def _refuse(fact: str, *_: Any, call: Call, **__: Any) -> NoReturn:
    with blame(call.function):
        raise UnsupportedError(
            f"{fact} of a call on JAX arrays is wanted; expected reverse mode, once",
            "backend='reference' has it: it is written in JAX's own operations",
        )


_refuse_forward_mode = functools.partial(_refuse, "the forward-mode derivative (jvp)")
_refuse_twice = functools.partial(_refuse, "the derivative of a gradient")


def _forward_jvp(
    primals: Any, tangents: Any, *, call: Call, keep: tuple[int, ...]
) -> tuple[Any, Any]:
    moving = tuple(k for k, each in enumerate(tangents) if not isinstance(each, ad.Zero))
    *results, token = forward_p.bind(*primals, call=call, keep=moving)
    moved = (tangents[k] for k in moving)
    dresults = tangent_p.bind(*primals, token, *moved, call=call, moving=moving)
    if not keep:
        return results, dresults
    return [*results, token], [*dresults, ad.Zero(jax.typeof(token).to_tangent_aval())]


def _tangent_transpose(
    cotangents: Any, *operands: Any, call: Call, moving: tuple[int, ...]
) -> list[Any]:
    count = call.num_operands + 1
    named = zip(call.cotangents, cotangents, strict=False)
    there = {name: each for name, each in named if not isinstance(each, ad.Zero)}
    found = backward_p.bind(
        *operands[:count], *there.values(), call=call, given=tuple(there), wanted=moving
    )
    return [*[None] * count, *found]


def _forward_without_use(used: list[bool], equation: Any) -> tuple[list[bool], Any]:
    """Keep nothing for a backward when the token is not used, as before a checkpoint.

    JAX leaves out what has no use: an equation, or here one of its results.
    """
    count = len(equation.invars)
    if not any(used):
        return [False] * count, None
    if equation.params["keep"] and not used[-1]:
        params = equation.params | {"keep": ()}
        equation = equation.replace(outvars=equation.outvars[:-1], params=params)
    return [True] * count, equation


partial_eval.dce_rules[forward_p] = _forward_without_use
ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_jvps[backward_p] = _refuse_twice
ad.primitive_jvps[tangent_p] = _refuse_twice
tangent_p.def_impl(_refuse_forward_mode)
mlir.register_lowering(tangent_p, _refuse_forward_mode)
batching.primitive_batchers[tangent_p] = _refuse_forward_mode
