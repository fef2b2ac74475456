"""`rnnop.rssm.imagine` on tensors: one part of the graph, through an actor that torch knows.

The model goes all its steps on arrays, and back again. Between them stands the actor: each of its
calls is recorded by autograd as a graph of its own, from a state and a belief that begin there.
On the way back the action's gradient goes through that graph, to the state and the belief, and to
whatever else it began at: the actor's parameters, which so become inputs of the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arrays import Array
from ..rssm.api import RSSMVJP, direct, direct_vjp
from ..rssm.weights import RSSMWeights
from . import host
from .call import fresh_seed
from .operators import Once, kept_under, lowered, refusal, token_of
from .rssm_op import Listed, model_of, on_arrays


class _Acted(NamedTuple):
    """One call of the actor.

    Attributes
    ----------
    seen : list of Tensor
        State and belief as it saw them.
    action : Tensor
        What it returned.
    leaves : list of Tensor
        Where the graph of the action begins.
    """

    seen: list[Tensor]
    action: Tensor
    leaves: list[Tensor]


class _Actor:
    """An actor on tensors as one on arrays with a vector-Jacobian product, by autograd."""

    def __init__(self, call: Callable[..., Any], bridge: host.Bridge) -> None:
        self.call, self.bridge = call, bridge
        self.acted: list[_Acted] = []
        self.sums: dict[int, Tensor] = {}

    def __call__(self, state: Array, belief: Array) -> tuple[Any, Callable[..., Any]]:
        """Return the action, and how its gradient goes back."""
        seen = [self.bridge.outward(each).detach().requires_grad_() for each in (state, belief)]
        with torch.enable_grad():
            action = self.call(*seen)
        if isinstance(action, Tensor):
            self.acted.append(_Acted(seen, action, _leaves(action)))
        return _inward(self.bridge, action), functools.partial(self._pull, len(self.acted) - 1)

    def _pull(self, step: int, daction: Array) -> list[Array | None]:
        """Take the gradient of an action; return those of its state and belief.

        All others are added to the sums: also those of earlier states, which an actor with a memory
        reads again.
        """
        seen, action, leaves = self.acted[step]
        if leaves:
            d = self.bridge.outward(daction)
            grads = torch.autograd.grad(action, leaves, d, retain_graph=True, allow_unused=True)
            for leaf, grad in zip(leaves, grads, strict=True):
                if grad is not None:
                    known = self.sums.get(id(leaf))
                    self.sums[id(leaf)] = grad if known is None else known + grad
        found = [self.sums.pop(id(each), None) for each in seen]
        return [None if each is None else self.bridge.inward(each) for each in found]

    def parameters(self) -> list[Tensor]:
        """Return all that the graphs begin at beside states and beliefs."""
        seen = {id(each) for acted in self.acted for each in acted.seen}
        every = {id(leaf): leaf for acted in self.acted for leaf in acted.leaves}
        return [leaf for number, leaf in every.items() if number not in seen]


def _leaves(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that the graph of a tensor begins at."""
    if tensor.grad_fn is None:
        return [tensor] if tensor.requires_grad else []
    found: list[Tensor] = []
    nodes: set[Any] = set()
    ahead: list[Any] = [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            found.append(node.variable)
        ahead += [each for each, _ in node.next_functions]
    return found


def _inward(bridge: host.Bridge, action: Any) -> Any:
    """Return an action as an array, and what is none as it is, to be refused."""
    if not isinstance(action, Tensor):
        return action
    try:
        return bridge.inward(action.detach())
    except TypeError:
        return action


class _Kept(NamedTuple):
    """What a forward leaves behind."""

    vjp: RSSMVJP
    actor: _Actor
    names: tuple[str, ...]
    parameters: list[Tensor]


class _Imagine(torch.autograd.Function):
    """A run that has been, with its gradient."""

    @staticmethod
    def forward(ctx: Any, kept: _Kept, outputs: list[Tensor], *tensors: Tensor | None) -> Any:
        """Return the outputs, and save all that their gradient reads."""
        ctx.save_for_backward(token_of(kept), *tensors, *outputs)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        """Return the gradients of weights, state, belief and the actor's parameters."""
        token, *saved = ctx.saved_tensors
        kept, wanted = kept_under(token), ctx.needs_input_grad[2:]
        if kept is None:
            raise refusal(
                "imagine", "what it keeps for its backward cannot be moved by hooks or to a disk"
            )
        run = functools.partial(_gradients, kept, cotangents, wanted)
        if torch.is_grad_enabled():  # for a second derivative
            found = Once.apply("imagine", run, *cotangents, *saved)
        else:
            found = run()
        left = iter(found)
        return None, None, *[next(left) if each else None for each in wanted]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse the forward mode."""
        raise _no_forward_mode()


def _no_forward_mode() -> Exception:
    return refusal("imagine", "it has no forward-mode derivative")


def _gradients(
    kept: _Kept, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor]:
    """Return those gradients that are wanted."""
    actor, bridge = kept.actor, kept.actor.bridge
    actor.sums.clear()
    with torch.no_grad():
        grads = kept.vjp(*[None if each is None else bridge.inward(each) for each in cotangents])
    weights = dict(grads.weights.named())
    every = [*(weights[name] for name in kept.names), grads.state, grads.belief]
    count = len(every)
    found = [bridge.outward(each) for each, chosen in zip(every, wanted, strict=False) if chosen]
    for parameter, chosen in zip(kept.parameters, wanted[count:], strict=True):
        if chosen:
            known = actor.sums.get(id(parameter))
            found.append(torch.zeros_like(parameter) if known is None else known)
    actor.sums.clear()
    return found


Given = tuple[str, str, RSSMWeights, Any, Any, Any, Any, str]
"""What `rnnop.rssm.call.make_call` takes for every form, in its order."""


@torch._disable_dynamo  # as torch.compiler.disable, which takes a second to import
def run(listed: Listed, given: Given, actor: Any, horizon: Any) -> Any:
    """Run `imagine`. Where gradients are recorded, so are those of the actor."""
    if torch._C._are_functorch_transforms_active():
        raise refusal("imagine", "it has no rule for the transforms of torch.func")
    if forward_ad._current_level >= 0:
        raise _no_forward_mode()
    if not _are_tensors(given) or not callable(actor):
        return direct(*given, actor=actor, horizon=horizon, has_vjp=False)
    listed, given = _as_autocast_has_it(listed, given)
    bridge, arrays = _on_arrays(listed, given)
    if not torch.is_grad_enabled():
        plain = functools.partial(_plain_action, actor, bridge)
        out = direct(*arrays, actor=plain, horizon=horizon, has_vjp=False)
        return type(out)(*map(bridge.outward, out))
    recorded = _Actor(actor, bridge)
    with torch.no_grad():
        out, vjp = direct_vjp(*arrays, actor=recorded, horizon=horizon, has_vjp=True)
    outputs = [bridge.outward(each) for each in out]
    parameters = recorded.parameters()
    tensors = [*listed.tensors, *given[3:5], *parameters]
    if any(each is not None and each.requires_grad for each in tensors):
        _, names = model_of(listed.model)
        outputs = _Imagine.apply(_Kept(vjp, recorded, names, parameters), outputs, *tensors)
    return type(out)(*outputs)


def run_vjp(
    listed: Listed, given: Given, actor: Any, horizon: Any
) -> tuple[Any, RSSMVJP, host.Bridge]:
    """Run `imagine_vjp`, whose actor brings its own vjp on tensors; autograd sees nothing of it."""
    bridge = host.NONE
    if _are_tensors(given) and callable(actor):
        bridge, given = _on_arrays(listed, given)
        actor = functools.partial(_action_and_vjp, actor, bridge)
    with torch.no_grad():
        out, vjp = direct_vjp(*given, actor=actor, horizon=horizon, has_vjp=True)
    return type(out)(*map(bridge.outward, out)), vjp, bridge


def _are_tensors(given: Given) -> bool:
    """Return whether state, belief and noise are tensors, or are not given."""
    return all(each is None or isinstance(each, Tensor) for each in given[3:6])


def _as_autocast_has_it(listed: Listed, given: Given) -> tuple[Listed, Given]:
    device = listed.tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return listed, given
    form, order, weights, *data, seed, backend = given
    data = [lowered(device, each) for each in data]
    tensors = [lowered(device, each) for each in listed.tensors]
    return listed._replace(tensors=tensors), (form, order, weights, *data, seed, backend)


def _on_arrays(listed: Listed, given: Given) -> tuple[host.Bridge, Given]:
    """Return the call as a backend is given it, and the way back."""
    form, order, _, *data, seed, backend = given
    if seed is None and data[2] is None:
        seed = int(fresh_seed())
    bridge, weights, data = on_arrays(listed, data)
    return bridge, (form, order, weights, *data, seed, backend)


def _plain_action(actor: Callable[..., Any], bridge: host.Bridge, *seen: Array) -> Any:
    return _inward(bridge, actor(*map(bridge.outward, seen)))


def _action_and_vjp(actor: Callable[..., Any], bridge: host.Bridge, *seen: Array) -> Any:
    """Return what an actor returns with arrays in place of tensors; it is checked as they are."""
    result = actor(*map(bridge.outward, seen))
    if not isinstance(result, tuple | list) or len(result) != 2 or not callable(result[1]):
        return result
    action, vjp = result

    def pull(daction: Array) -> Any:
        found = vjp(bridge.outward(daction))
        if not isinstance(found, tuple | list):
            return found
        return [*(_inward(bridge, each) for each in found[:2]), *found[2:]]

    return _inward(bridge, action), pull
