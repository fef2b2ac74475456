"""`torch.ops.rnnop.rnn`, and `rnn_backward`, its gradient, as torch knows them.

Both are functions of tensors and constants alone, so torch can trace, compile, export and replay
them.

A forward that a backward will follow leaves its vector-Jacobian product behind, under the number
in its last output, the token. The token dies with the graph that it is saved in, and what it
stands for dies with it. The backward uses what it finds, if that reads the very memory that the
backward is given. Otherwise (a token from a disk, an input that a compiled graph computed a second
time) it runs the forward again, for it is given all of the inputs.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import api
from ..errors import BackendUnavailable, RnnopError, UnsupportedError
from ..packing import data_of
from . import host
from .call import Inputs, run

NEEDED = (2, 6)

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < NEEDED:
    raise BackendUnavailable(
        f"tensors of PyTorch {torch.__version__} are given; "
        f"expected PyTorch {NEEDED[0]}.{NEEDED[1]} or newer",
        "An older one has backend='reference' only",
    )

_INPUTS = (
    "Tensor x, Tensor[] weights, str fields, bool bidirectional, str options, Tensor? h0=None, "
    "Tensor? c0=None, Tensor? mask=None, Tensor? lengths=None, Tensor? resets=None, "
    "Tensor? seed=None, Tensor? dropout_masks=None, Tensor? batch_sizes=None, "
    "Tensor? sorted_indices=None, Tensor? unsorted_indices=None, int prepacked=0"
)
_LIBRARY = torch.library.Library("rnnop", "DEF")
for _schema in (
    f"rnn({_INPUTS}, bool keep=False) -> Tensor[]",
    "rnn_backward(Tensor?[] cotangents, Tensor[] outputs, Tensor token, bool[] wanted, "
    f"{_INPUTS}) -> Tensor[]",
):
    _LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)
RNN = torch.ops.rnnop.rnn.default
RNN_BACKWARD = torch.ops.rnnop.rnn_backward.default

# torch leaves out arguments that have their default value, from the end: so in the functions that
# it calls what follows `inputs` are as many as there are.
_COUNT = len(Inputs._fields)


class _Token(np.ndarray[Any, Any]):
    """The array under a token tensor, which keeps it alive, and with it what stands here."""

    vjp: api.VJP
    bridge: host.Bridge
    addresses: list[int]


# No other process has these numbers either.
_NUMBERS = itertools.count(secrets.randbits(62))
_TOKENS: WeakValueDictionary[int, _Token] = WeakValueDictionary()


def _token(vjp: api.VJP, bridge: host.Bridge, addresses: list[int]) -> Tensor:
    number = next(_NUMBERS)
    token = np.array([number]).view(_Token)
    token.vjp, token.bridge, token.addresses = vjp, bridge, addresses
    _TOKENS[number] = token
    return torch.from_numpy(token)


def _addresses(inputs: Inputs, outputs: Sequence[Tensor]) -> list[int]:
    """Return where everything lies that a vector-Jacobian product may read again."""
    tensors = *_differentiable(inputs), inputs.dropout_masks, *outputs
    return [0 if each is None else each.data_ptr() for each in tensors]


def _rnn(*given: Any) -> list[Tensor]:
    """Return y, h_n, then c_n and c where there are any, and with `keep` the token."""
    inputs, keep = Inputs(*given[:_COUNT]), given[_COUNT:]
    try:
        if not any(keep):
            out, bridge = run("rnn", inputs)
            return _outputs(out, bridge)
        (out, vjp), bridge = run("rnn_vjp", inputs)
    except RnnopError as error:
        error.function = "rnn"
        raise
    outputs = _outputs(out, bridge)
    return [*outputs, _token(vjp, bridge, _addresses(inputs, _of_steps(outputs)))]


def _of_steps(outputs: Sequence[Any]) -> Sequence[Any]:
    """Return y and c, of all outputs or of what stands for them."""
    return outputs[::3]


def _outputs(out: api.RNNOutput, bridge: host.Bridge) -> list[Tensor]:
    return [bridge.outward(data_of(each)) for each in out if each is not None]


def _rnn_backward(
    cotangents: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    token: Tensor,
    wanted: Sequence[bool],
    *given: Any,
) -> list[Tensor]:
    """Return those gradients of (x, *weights, h0, c0) that are wanted."""
    inputs = Inputs(*given)
    if not any(wanted):
        return []
    kept = _TOKENS.get(int(token))
    if kept is not None and kept.addresses == _addresses(inputs, outputs):
        vjp, bridge = kept.vjp, kept.bridge
    else:
        (_, vjp), bridge = run("rnn_vjp", inputs)
    with torch.no_grad():
        grads = vjp(*[None if each is None else bridge.inward(each) for each in cotangents])
    weights = host.as_list(grads.weights, inputs.fields)
    every = [data_of(grads.x), *weights, grads.h0, grads.c0]
    return [bridge.outward(each) for each, chosen in zip(every, wanted, strict=True) if chosen]


_LIBRARY.impl("rnn", _rnn, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_backward", _rnn_backward, "CompositeExplicitAutograd")


# Shapes, for tensors without data.


@torch.library.register_fake("rnnop::rnn", lib=_LIBRARY)
def _rnn_fake(*given: Any) -> list[Tensor]:
    inputs, keep = Inputs(*given[:_COUNT]), given[_COUNT:]
    x, names = inputs.x, inputs.fields.split()
    shapes = {name: inputs.weights[k].shape for k, name in enumerate(names)}
    states = len(inputs.weights) // len(names)
    directions = 2 if inputs.bidirectional else 1
    output_size = shapes["w_hh"][1]
    hidden_size = shapes["w_hr"][1] if "w_hr" in shapes else output_size
    rows = _num_rows(inputs)
    outputs = [
        x.new_empty((*x.shape[:-1], directions * output_size)),
        x.new_empty((states, rows, output_size)),
    ]
    if inputs.option("mode") == "lstm":
        outputs.append(x.new_empty((states, rows, hidden_size)))
    if inputs.option("return_cell_states"):
        outputs.append(x.new_empty((*x.shape[:-1], directions * hidden_size)))
    if any(keep):
        outputs.append(torch.empty(1, dtype=torch.int64, device="cpu"))
    return outputs


def _num_rows(inputs: Inputs) -> Any:
    if inputs.batch_sizes is None:
        return inputs.x.shape[0 if inputs.option("batch_first") else 1]
    if inputs.sorted_indices is not None:
        return inputs.sorted_indices.shape[0]
    if inputs.h0 is not None:
        return inputs.h0.shape[1]
    return torch.library.get_ctx().new_dynamic_size()  # it is batch_sizes[0], which has no data


@torch.library.register_fake("rnnop::rnn_backward", lib=_LIBRARY)
def _rnn_backward_fake(
    cotangents: Any, outputs: Any, token: Any, wanted: Sequence[bool], *given: Any
) -> list[Tensor]:
    every = _differentiable(Inputs(*given))
    return [
        each.new_empty(each.shape)
        for each, chosen in zip(every, wanted, strict=True)
        if chosen and each is not None
    ]


# Autograd. torch.library.register_autograd would do, but takes 0.15 ms a call for lists of tensors.

_OPTIONAL = slice(Inputs._fields.index("h0"), Inputs._fields.index("prepacked"))
_NUM_OPTIONAL = len(Inputs._fields[_OPTIONAL])


def _differentiable(inputs: Inputs) -> list[Tensor | None]:
    return [inputs.x, *inputs.weights, inputs.h0, inputs.c0]


def needs_autograd(*tensors: Tensor | None) -> bool:
    """Return whether autograd has to see what becomes of the tensors."""
    if torch._C._are_functorch_transforms_active():
        raise _refusal("it has no rule for the transforms of torch.func")
    if forward_ad._current_level >= 0:  # forward mode, which `jvp` refuses
        return True
    if not torch.is_grad_enabled():
        return False
    return any(each is not None and each.requires_grad for each in tensors)


def _below(op: Any) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*given)

    return run


class _RNN(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx: Any, inputs: Inputs, x: Tensor, h0: Any, c0: Any, *weights: Tensor) -> Any:
        """Run it, and save all that its gradient reads."""
        inputs = inputs._replace(x=x, h0=h0, c0=c0, weights=list(weights))
        run = _rnn if unseen(x, h0, c0, *weights) else _below(RNN)
        *outputs, token = run(*inputs, True)
        # The outputs of every step too: so autograd refuses a backward after they were changed.
        optional: Any = inputs[_OPTIONAL]
        ctx.save_for_backward(token, x, *optional, *weights, *_of_steps(outputs))
        ctx.constants = inputs.fields, inputs.bidirectional, inputs.options, inputs.prepacked
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        """Return the gradient of every tensor that needs one."""
        token, x, *others = ctx.saved_tensors
        count = len(others) - len(_of_steps(cotangents))
        optional, weights = others[:_NUM_OPTIONAL], others[_NUM_OPTIONAL:count]
        fields, bidirectional, options, prepacked = ctx.constants
        inputs = (x, weights, fields, bidirectional, options, *optional, prepacked)
        _, for_x, for_h0, for_c0, *for_weights = ctx.needs_input_grad
        wanted = [for_x, *for_weights, for_h0, for_c0]
        given = [*cotangents, *[None] * (4 - len(cotangents))], others[count:], token, wanted
        if torch.is_grad_enabled():  # for a second derivative
            run = RNN_BACKWARD
        else:
            run = _rnn_backward if unseen(x, *cotangents, *weights) else _below(RNN_BACKWARD)
        left = iter(run(*given, *inputs))
        grads: list[Any] = [next(left) if each else None for each in wanted]
        dx, *dweights, dh0, dc0 = grads
        return None, dx, dh0, dc0, *dweights

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse the forward mode."""
        raise _refusal("it has no forward-mode derivative")


class _RNNBackward(torch.autograd.Function):
    """The gradient, without one of its own."""

    @staticmethod
    def forward(ctx: Any, given: Sequence[Any], *tensors: Tensor | None) -> Any:
        """Run it."""
        return tuple(_below(RNN_BACKWARD)(*given))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Refuse a second derivative."""
        raise _refusal("it has no second derivative")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse the forward mode."""
        raise _refusal("it has no second derivative")


def _refusal(fact: str) -> UnsupportedError:
    error = UnsupportedError(fact, "backend='reference' has it: torch sees all of its operations")
    error.function = "rnn"
    return error


def _with_gradient(inputs: Inputs) -> list[Tensor]:
    return list(_RNN.apply(inputs, inputs.x, inputs.h0, inputs.c0, *inputs.weights))


def _rnn_autograd(*given: Any) -> Any:
    inputs, keep = Inputs(*given[:_COUNT]), given[_COUNT:]
    if not any(keep) and needs_autograd(*_differentiable(inputs)):
        return _with_gradient(inputs)
    return _below(RNN)(*given)


def _rnn_backward_autograd(*given: Any) -> Any:
    cotangents, inputs = given[0], Inputs(*given[4:])
    tensors = [*cotangents, *_differentiable(inputs)]
    if needs_autograd(*tensors):
        return list(_RNNBackward.apply(given, *tensors))
    return _below(RNN_BACKWARD)(*given)


_LIBRARY.impl("rnn", _rnn_autograd, "Autograd")
_LIBRARY.impl("rnn_backward", _rnn_backward_autograd, "Autograd")


# Autocast: as torch has it for its own recurrent networks on CUDA, everything in the lower
# precision, on the CPU too.


def _autocast(device: str, *given: Any) -> Any:
    dtype = torch.get_autocast_dtype(device)

    def cast(value: Any) -> Any:
        if isinstance(value, list):
            return [cast(each) for each in value]
        if not isinstance(value, Tensor) or value.device.type != device:
            return value
        lower = value.is_floating_point() and value.dtype is not torch.float64
        return value.to(dtype) if lower else value

    with torch.autocast(device, enabled=False):
        return RNN(*[cast(each) for each in given])


for _device in ("cpu", "cuda"):
    _LIBRARY.impl("rnn", functools.partial(_autocast, _device), f"Autocast{_device.upper()}")


# vmap


def _no_vmap(*_: Any, **__: Any) -> Any:
    raise _refusal("it has no rule for torch.vmap; put the rows into the batch")


for _name in ("rnnop::rnn", "rnnop::rnn_backward"):
    torch.library.register_vmap(_name, _no_vmap, lib=_LIBRARY)


# Without torch's dispatcher, where it would do nothing but call the functions above: it takes
# longer than a small call.

_PLAIN = {Tensor, torch.nn.Parameter, type(None)}


def unseen(x: Any, *others: Any) -> bool:
    """Return whether nothing traces, casts or replaces what is done with `x` and other tensors."""
    return _PLAIN.issuperset(map(type, (x, *others))) and not (
        x.is_meta
        or torch.compiler.is_dynamo_compiling()
        or torch._C._is_any_autocast_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
    )


def call(inputs: Inputs, plain: bool, recorded: bool) -> list[Tensor]:
    """Run the operator: return y, h_n, then c_n and c where there are any.

    `plain` is what `unseen` says of its tensors, and `recorded` what `needs_autograd` says.
    """
    if not plain:
        outputs: list[Tensor] = RNN(*inputs)
        return outputs
    return _with_gradient(inputs) if recorded else _rnn(*inputs)
