"""What torch is told of an operator that has a vector-Jacobian product of its own.

The operator and its gradient are functions of tensors and constants alone, so torch can trace,
compile, export and replay them.

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
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arrays import Array
from ..errors import BackendUnavailable, RnnopError, UnsupportedError
from .host import Bridge

NEEDED = (2, 6)

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < NEEDED:
    raise BackendUnavailable(
        f"tensors of PyTorch {torch.__version__} are given; "
        f"expected PyTorch {NEEDED[0]}.{NEEDED[1]} or newer",
        "An older one has backend='reference' only",
    )

_LIBRARY = torch.library.Library("rnnop", "DEF")


class Inputs(Protocol):
    """The inputs of an operator: a named tuple in the order of its schema."""

    @property
    def function(self) -> str:
        """The public function that was called."""

    @property
    def num_differentiable(self) -> int:
        """How many of `tensors` have a gradient: the first ones."""

    def tensors(self) -> list[Tensor | None]:
        """Return all tensors."""

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Self:
        """Return the inputs with others in their place."""

    def __iter__(self) -> Any:
        """Yield the fields."""


class Kept(NamedTuple):
    """What a forward leaves behind.

    Attributes
    ----------
    pull : callable
        Takes the cotangents of all outputs as arrays, or None; returns the gradients of the first
        `num_differentiable` tensors.
    bridge : Bridge
        Between tensors and those arrays.
    addresses : list of int
        Where everything lies that it reads.
    """

    pull: Callable[..., Sequence[Array | None]]
    bridge: Bridge
    addresses: list[int]


class _Token(np.ndarray[Any, Any]):
    """The array under a token tensor, which keeps it alive, and with it what stands here."""

    kept: Any


# No other process has these numbers either.
_NUMBERS = itertools.count(secrets.randbits(62))
_TOKENS: WeakValueDictionary[int, _Token] = WeakValueDictionary()


def token_of(kept: Any) -> Tensor:
    """Return a token, with which `kept` lives and dies."""
    number = next(_NUMBERS)
    token = np.array([number]).view(_Token)
    token.kept = kept
    _TOKENS[number] = token
    return torch.from_numpy(token)


def kept_under(token: Tensor) -> Any:
    """Return what a token stands for; None if it means nothing here."""
    found = _TOKENS.get(int(token))
    return None if found is None else found.kept


# Autograd. torch.library.register_autograd would do, but takes 0.15 ms a call for lists of tensors.


def refusal(function: str, fact: str) -> UnsupportedError:
    """Return the error for what an operator does not have."""
    error = UnsupportedError(fact, "backend='reference' has it: torch sees all of its operations")
    error.function = function
    return error


def needs_autograd(function: str, *tensors: Tensor | None) -> bool:
    """Return whether autograd has to see what becomes of the tensors."""
    if torch._C._are_functorch_transforms_active():
        raise refusal(function, "it has no rule for the transforms of torch.func")
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


class Once(torch.autograd.Function):
    """Whatever returns tensors, without a gradient of its own: for gradients."""

    @staticmethod
    def forward(ctx: Any, function: str, run: Callable[[], Any], *tensors: Tensor | None) -> Any:
        """Run it."""
        ctx.function = function
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Refuse a second derivative."""
        raise refusal(ctx.function, "it has no second derivative")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse the forward mode."""
        raise refusal(ctx.function, "it has no second derivative")


class _Recorded(torch.autograd.Function):
    """An operator with its gradient."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, inputs: Any, *differentiable: Tensor | None) -> Any:
        """Run it, and save all that its gradient reads."""
        plain = unseen(*differentiable)
        run = operator.forward_at_once if plain else _below(operator.op)
        *outputs, token = run(*inputs, True)
        # Outputs that it reads too: so autograd refuses a backward after they were changed.
        tensors = inputs.tensors()
        ctx.save_for_backward(token, *tensors, *operator.read_again(outputs))
        ctx.operator, ctx.inputs = operator, inputs.with_tensors([None] * len(tensors))
        ctx.function = inputs.function
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        """Return the gradient of every tensor that needs one."""
        operator, (token, *saved) = ctx.operator, ctx.saved_tensors
        count = len(saved) - len(operator.read_again(cotangents))
        inputs = ctx.inputs.with_tensors(saved[:count])
        wanted = list(ctx.needs_input_grad[2:])
        given = list(cotangents), saved[count:], token, wanted
        if torch.is_grad_enabled():  # for a second derivative
            run = operator.backward_op
        else:
            plain = unseen(*cotangents, *saved[: inputs.num_differentiable])
            run = operator.backward_at_once if plain else _below(operator.backward_op)
        left = iter(run(*given, *inputs))
        return None, None, *[next(left) if each else None for each in wanted]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse the forward mode."""
        raise refusal(ctx.function, "it has no forward-mode derivative")


class Operator:
    """An operator of torch, and its gradient, which has none.

    Parameters
    ----------
    name : str
        It is `torch.ops.rnnop.<name>`, and its gradient `<name>_backward`.
    kind : type of Inputs
        What it takes.
    schema : str
        The same for torch.
    """

    def __init__(self, name: str, kind: Any, schema: str) -> None:
        self.kind, self.num_fields = kind, len(kind._fields)
        backward = f"{name}_backward"
        for each in (
            f"{name}({schema}, bool keep=False) -> Tensor[]",
            f"{backward}(Tensor?[] cotangents, Tensor[] outputs, Tensor token, bool[] wanted, "
            f"{schema}) -> Tensor[]",
        ):
            _LIBRARY.define(each, tags=torch.Tag.pt2_compliant_tag)
        self.op = getattr(torch.ops.rnnop, name).default
        self.backward_op = getattr(torch.ops.rnnop, backward).default
        self._function: Any = type(f"_{name.upper()}", (_Recorded,), {})
        _LIBRARY.impl(name, self.forward_at_once, "CompositeExplicitAutograd")
        _LIBRARY.impl(backward, self.backward_at_once, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, self._autograd, "Autograd")
        _LIBRARY.impl(backward, self._backward_autograd, "Autograd")
        for device in ("cpu", "cuda"):
            lowered = functools.partial(self._autocast, device)
            _LIBRARY.impl(name, lowered, f"Autocast{device.upper()}")
        for each, fake in ((name, self._fake), (backward, self._backward_fake)):
            torch.library.register_fake(f"rnnop::{each}", fake, lib=_LIBRARY)
        for each, skipped in ((name, 0), (backward, 4)):
            no_vmap = functools.partial(self._no_vmap, skipped)
            torch.library.register_vmap(f"rnnop::{each}", no_vmap, lib=_LIBRARY)

    # What each operator has of its own

    def run(
        self, inputs: Any, keep: bool
    ) -> tuple[list[Tensor], Callable[..., Sequence[Array | None]] | None, Bridge]:
        """Return the outputs, with `keep` the `pull` of `Kept`, and the bridge."""
        raise NotImplementedError

    def fakes(self, inputs: Any) -> list[Tensor]:
        """Return outputs without data for inputs without data."""
        raise NotImplementedError

    def read_again(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return those that the backward reads, of the outputs or of what stands for them."""
        raise NotImplementedError

    def inputs_read_again(self, inputs: Any) -> Sequence[Tensor | None]:
        """Return those tensors without a gradient that the backward reads."""
        raise NotImplementedError

    # Running

    def __call__(self, inputs: Any, plain: bool, recorded: bool) -> list[Tensor]:
        """Return the outputs.

        `plain` is what `unseen` says of its tensors, and `recorded` what `needs_autograd` says.
        """
        if not plain:
            outputs: list[Tensor] = self.op(*inputs)
            return outputs
        return self._with_gradient(inputs) if recorded else self.forward_at_once(*inputs)

    # torch leaves out arguments that have their default value, from the end: so in the functions
    # that it calls what follows the inputs are as many as there are.
    def _parted(self, given: Sequence[Any]) -> tuple[Any, bool]:
        return self.kind(*given[: self.num_fields]), any(given[self.num_fields :])

    def forward_at_once(self, *given: Any) -> list[Tensor]:
        """Return the outputs, and with `keep` the token."""
        inputs, keep = self._parted(given)
        try:
            outputs, pull, bridge = self.run(inputs, keep)
        except RnnopError as error:
            error.function = inputs.function
            raise
        if pull is None:
            return outputs
        kept = Kept(pull, bridge, self._addresses(inputs, self.read_again(outputs)))
        return [*outputs, token_of(kept)]

    def _addresses(self, inputs: Any, outputs: Sequence[Tensor]) -> list[int]:
        """Return where everything lies that a vector-Jacobian product may read again."""
        tensors = *_differentiable(inputs), *self.inputs_read_again(inputs), *outputs
        return [0 if each is None else each.data_ptr() for each in tensors]

    def backward_at_once(
        self,
        cotangents: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        token: Tensor,
        wanted: Sequence[bool],
        *given: Any,
    ) -> list[Tensor]:
        """Return those gradients that are wanted."""
        inputs = self.kind(*given)
        if not any(wanted):
            return []
        kept = kept_under(token)
        if kept is not None and kept.addresses == self._addresses(inputs, outputs):
            pull, bridge, _ = kept
        else:
            _, pull, bridge = self.run(inputs, True)
        with torch.no_grad():
            grads = pull(*[None if each is None else bridge.inward(each) for each in cotangents])
        return [bridge.outward(each) for each, chosen in zip(grads, wanted, strict=True) if chosen]

    # Autograd

    def _with_gradient(self, inputs: Any) -> list[Tensor]:
        return list(self._function.apply(self, inputs, *_differentiable(inputs)))

    def _autograd(self, *given: Any) -> Any:
        inputs, keep = self._parted(given)
        if not keep and needs_autograd(inputs.function, *_differentiable(inputs)):
            return self._with_gradient(inputs)
        return _below(self.op)(*given)

    def _backward_autograd(self, *given: Any) -> Any:
        cotangents, inputs = given[0], self.kind(*given[4:])
        tensors = [*cotangents, *_differentiable(inputs)]
        run = functools.partial(_below(self.backward_op), *given)
        if needs_autograd(inputs.function, *tensors):
            return list(Once.apply(inputs.function, run, *tensors))
        return run()

    def _autocast(self, device: str, *given: Any) -> Any:
        """Do all in the lower precision, on the CPU too, as torch's own networks do on CUDA."""
        with torch.autocast(device, enabled=False):
            return self.op(*[lowered(device, each) for each in given])

    def _no_vmap(self, skipped: int, *given: Any, **_: Any) -> Any:
        inputs = self._parted(given[2 + skipped :])[0]
        raise refusal(inputs.function, "it has no rule for torch.vmap; put the rows into the batch")

    # Shapes, for tensors without data

    def _fake(self, *given: Any) -> list[Tensor]:
        inputs, keep = self._parted(given)
        outputs = self.fakes(inputs)
        if keep:
            outputs.append(torch.empty(1, dtype=torch.int64, device="cpu"))
        return outputs

    def _backward_fake(
        self, cotangents: Any, outputs: Any, token: Any, wanted: Sequence[bool], *given: Any
    ) -> list[Tensor]:
        every = _differentiable(self.kind(*given))
        return [
            each.new_empty(each.shape)
            for each, chosen in zip(every, wanted, strict=True)
            if chosen and each is not None
        ]


def _differentiable(inputs: Any) -> list[Tensor | None]:
    tensors: list[Tensor | None] = inputs.tensors()
    return tensors[: inputs.num_differentiable]


def lowered(device: str, value: Any) -> Any:
    """Return a tensor, or tensors in a list, as autocast has them on a device."""
    if isinstance(value, list):
        return [lowered(device, each) for each in value]
    if not isinstance(value, Tensor) or value.device.type != device:
        return value
    lower = value.is_floating_point() and value.dtype is not torch.float64
    return value.to(torch.get_autocast_dtype(device)) if lower else value


# Without torch's dispatcher, where it would do nothing but call the functions above: it takes
# longer than a small call.

_PLAIN = {Tensor, torch.nn.Parameter, type(None)}


def unseen(x: Any, *others: Any) -> bool:
    """Return whether nothing traces, casts or replaces what is done with `x` and other tensors."""
    return _PLAIN.issuperset(map(type, (x, *others))) and not (
        (x is not None and x.is_meta)
        or torch.compiler.is_dynamo_compiling()
        or torch._C._is_any_autocast_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
    )
