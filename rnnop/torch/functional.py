"""The functions of `rnnop.api` on tensors, with the same arguments.

What torch's operator cannot be given (arrays of another family, an option of an odd type) goes on
to `rnnop.api` as it is, and is refused there by name.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .. import api, validate
from ..errors import blame
from ..packing import PackedSequence, data_of, packed_as
from ..spec import Activation
from ..weights import PrepackedWeights, RNNGrads, RNNWeights
from . import host
from .call import (
    DEFAULTS,
    Inputs,
    Listed,
    direct,
    encode,
    on_host,
    remember,
    run,
    seed_of,
    weights_for,
)
from .op import RNN
from .operators import needs_autograd, unseen


@functools.wraps(api.rnn)
def rnn(x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any) -> api.RNNOutput:
    """Run `rnnop.rnn`; the arguments are those of `rnn`."""
    listed = _listed(weights, options)
    if listed is None:
        return api.RNNOutput(*_as_it_is("rnn", x, weights, h0, c0, options))
    return rnn_of_list(x, listed, h0, c0, options)


def rnn_of_list(
    x: Any, weights: Listed, h0: Any, c0: Any, options: dict[str, Any]
) -> api.RNNOutput:
    """Run `rnnop.rnn` with weights as a list."""
    tensors = data_of(x), h0, c0, *weights.tensors
    plain, recorded = unseen(*tensors), False
    if plain:
        recorded = needs_autograd("rnn", *tensors)
        out = None if recorded else _at_once(x, weights, h0, c0, options)
        if out is not None:
            return out
    inputs = _inputs(x, weights, h0, c0, options)
    if inputs is None:
        arrays = host.of_list(weights.tensors, weights.fields, weights.bidirectional)
        return api.RNNOutput(*_as_it_is("rnn", x, arrays, h0, c0, options))
    return _output(RNN(inputs, plain, recorded), x)


def _at_once(
    x: Any, weights: Listed, h0: Any, c0: Any, options: dict[str, Any]
) -> api.RNNOutput | None:
    """Run a call that torch need not see on NumPy arrays; return None if it cannot be.

    What the operator needs beside it would take half as long as a small call.
    """
    if isinstance(x, PackedSequence) or options.get("training", False) is not False:
        return None
    if options.get("dropout_masks") is not None:
        return None
    try:
        arrays = weights_for(host.HOST, *weights)
        given = host.to_numpy(x)
        if h0 is not None:
            h0 = host.to_numpy(h0)
        if c0 is not None:
            c0 = host.to_numpy(c0)
    except TypeError:  # not on the CPU
        return None
    y, h_n, c_n, c = direct("rnn", given, arrays, h0, c0, **options)
    return api.RNNOutput(
        host.to_tensor(y),
        host.to_tensor(h_n),
        None if c_n is None else host.to_tensor(c_n),
        None if c is None else host.to_tensor(c),
    )


@functools.wraps(api.rnn_vjp)
def rnn_vjp(
    x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any
) -> tuple[api.RNNOutput, VJP]:
    """Run `rnnop.rnn_vjp`; the arguments are those of `rnn`. Autograd sees nothing of it."""
    inputs = _inputs(x, _listed(weights, options), h0, c0, options)
    if inputs is None:
        out, vjp = _as_it_is("rnn_vjp", x, weights, h0, c0, options)
        return out, VJP(vjp, host.NONE, data_of(x))
    (out, vjp), bridge = run("rnn_vjp", inputs)
    outputs = [bridge.outward(data_of(each)) for each in out if each is not None]
    return _output(outputs, x), VJP(vjp, bridge, data_of(x))


@functools.wraps(api.explain)
def explain(
    x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any
) -> api.Explanation:
    """Run `rnnop.explain`; the arguments are those of `rnn`."""
    inputs = _inputs(x, _listed(weights, options), h0, c0, options)
    explanation: api.Explanation
    if inputs is None:
        explanation = _as_it_is("explain", x, weights, h0, c0, options)
    else:
        explanation, _ = run("explain", inputs)
    return explanation


@functools.wraps(api.prepack)
def prepack(weights: RNNWeights, *, mode: str = "gru", backend: str = "auto") -> PrepackedWeights:
    """Run `rnnop.prepack`."""
    try:
        arrays = weights.map(host.to_numpy)
    except (TypeError, AttributeError):  # not on the CPU, or not even tensors
        arrays = weights
    ready: PrepackedWeights = direct("prepack", arrays, mode=mode, backend=backend)
    # What is found by the number lives as long as what is returned.
    listed = _as_listed(weights)._replace(number=remember(ready), ready=ready)
    return PrepackedWeights(weights, mode, ready.backend, {"torch": listed})


class VJP:
    """The vector-Jacobian product of one call of `rnn_vjp`."""

    def __init__(self, vjp: api.VJP, bridge: host.Bridge, x: Tensor) -> None:
        self._vjp = vjp
        self._bridge = bridge
        self._x = x

    def __call__(
        self, dy: Any, dh_n: Tensor | None = None, dc_n: Tensor | None = None, dc: Any = None
    ) -> RNNGrads:
        """Return the gradients; the arguments are those of `rnnop.VJP`."""
        given = {"dy": dy, "dh_n": dh_n, "dc_n": dc_n, "dc": dc}
        with blame("vjp"):
            grads = self._vjp(*[self._inward(name, each) for name, each in given.items()])
        outward = self._bridge.outward
        return RNNGrads(
            packed_as(outward(data_of(grads.x)), grads.x),
            grads.weights.map(outward),
            outward(grads.h0),
            None if grads.c0 is None else outward(grads.c0),
        )

    def _inward(self, name: str, cotangent: Any) -> Any:
        if cotangent is None:
            return None
        tensor = validate.data_array(name, data_of(cotangent))
        validate.same_place(name, tensor, self._x)
        return packed_as(self._bridge.inward(tensor), cotangent)


# The weights of earlier calls as lists.
_LISTS: WeakKeyDictionary[RNNWeights, Listed] = WeakKeyDictionary()


def _listed(weights: Any, options: dict[str, Any]) -> Listed | None:
    """Return weights as a list, or None if they are to be refused."""
    if isinstance(weights, PrepackedWeights):
        listed: Listed | None = weights.cache.get("torch")
        if listed is None and weights.mode == options.get("mode", DEFAULTS["mode"]):
            listed = _listed(weights.weights, options)  # prepacked for the reference
        return listed
    if not isinstance(weights, RNNWeights):
        return None
    if torch.compiler.is_dynamo_compiling():
        return _as_listed(weights)
    found = _LISTS.get(weights)
    if found is None:
        found = _LISTS[weights] = _as_listed(weights)
    return found


def _as_listed(weights: RNNWeights) -> Listed:
    fields = host.fields_of(weights)
    return Listed(host.as_list(weights, fields), fields, weights.bidirectional)


def _inputs(
    x: Any, weights: Listed | None, h0: Any, c0: Any, options: dict[str, Any]
) -> Inputs | None:
    """Return a call as the operator takes it, or None if it cannot."""
    if weights is None:
        return None
    tensors, fields, bidirectional, number, _ = weights
    if not options.keys() <= DEFAULTS.keys():
        return None
    for each in (h0, c0, *tensors):
        if each is not None and not isinstance(each, Tensor):
            return None
    others: dict[str, Any] = {"h0": h0, "c0": c0, "prepacked": number}
    options = dict(options)
    try:
        for name in ("mask", "lengths", "resets"):
            steps = options.pop(name, None)
            if steps is not None:
                others[name] = on_host(name, steps)
        if isinstance(x, PackedSequence):
            for name, index in x._asdict().items():
                if name != "data" and index is not None:
                    others[name] = on_host(name, index)
        kept = options.pop("dropout_masks", None)
        if kept is not None:
            others["dropout_masks"] = kept if isinstance(kept, Tensor) else torch.stack(list(kept))
        elif options.get("dropout") and options.get("training"):
            if options.get("seed") is None and _on_a_device(x):
                others["dropout_masks"] = _drawn_masks(data_of(x), weights, options["dropout"])
            else:
                others["seed"] = seed_of(options.get("seed"))
                if others["seed"] is not None:
                    options.pop("seed", None)
        if isinstance(options.get("activations"), list | tuple):
            options["activations"] = [_plain(each) for each in options["activations"]]
        text = encode(**options)
    except (TypeError, ValueError, IndexError, RuntimeError):
        return None
    return Inputs(data_of(x), tensors, fields, bidirectional, text, **others)


def _as_it_is(
    function: str, x: Any, weights: Any, h0: Any, c0: Any, options: dict[str, Any]
) -> Any:
    """Hand a call that the operator cannot be given to `rnnop.api`.

    It is checked for the backend that takes every array: another one would refuse the tensors,
    and not what is wrong with the call.
    """
    if options.keys() <= DEFAULTS.keys():
        api.shapes(x, weights, h0, c0, **options | {"backend": "reference"})
    return direct(function, x, weights, h0, c0, **options)


def _on_a_device(x: Any) -> bool:
    data = data_of(x)
    return isinstance(data, Tensor) and not data.is_cpu


def _drawn_masks(x: Tensor, weights: Listed, dropout: float) -> Tensor | None:
    """Return the masks of dropout, drawn by torch where `x` lies; None for a single layer.

    cuDNN has a generator of its own, which knows nothing of torch's: to draw again what torch
    runs again, or replays, it would have to be seeded in each call, which is slow.
    """
    fields, directions = weights.fields.split(), 2 if weights.bidirectional else 1
    boundaries = len(weights.tensors) // (len(fields) * directions) - 1
    if not boundaries:
        return None
    output_size = weights.tensors[fields.index("w_hh")].shape[1]
    shape = (boundaries, *x.shape[:-1], directions * output_size)
    return torch.empty(shape, dtype=torch.bool, device=x.device).bernoulli_(1.0 - dropout)


def _plain(activation: Any) -> Any:
    if isinstance(activation, Activation):
        return activation.name, activation.alpha, activation.beta
    return activation


def _output(outputs: list[Tensor], x: Any) -> api.RNNOutput:
    """Return the outputs of the operator, packed where `x` is."""
    y, h_n, *more = outputs
    c_n = more[0] if more else None
    c = packed_as(more[1], x) if len(more) > 1 else None
    return api.RNNOutput(packed_as(y, x), h_n, c_n, c)
