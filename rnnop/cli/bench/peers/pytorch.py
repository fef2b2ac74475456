"""PyTorch: torch.nn.LSTM, GRU and GRUCell.

A ragged batch can go two ways, and both count: packed, or dense with its padding computed too. The
second is right as it stands in one direction; in two, the backward one must begin at each row's own
last step, so there it runs on rows that a gather has reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....layouts import from_pytorch, to_pytorch
from ..cases import Inputs
from . import Contender

_Forward = Callable[[Any], Any]


def contenders(inputs: Inputs, threads: int) -> list[Contender]:
    """Return the ways of PyTorch, with its pool of threads set to `threads`."""
    import torch

    torch.set_num_threads(threads)
    if inputs.case.work == "stream":
        return [Contender("PyTorch", _stream(inputs), lambda h: {"h": h[None].numpy()})]
    return [
        _train(name, forward, parameters, inputs)
        if inputs.case.work == "training"
        else _infer(name, forward, inputs)
        for name, forward, parameters in _ways(inputs)
    ]


def _ways(inputs: Inputs) -> Iterator[tuple[str, _Forward, dict[str, Any]]]:
    """Yield name, forward and parameters of each way; the names are those of a state dict."""
    state = {name: _tensor(array) for name, array in to_pytorch(inputs.weights).items()}
    module = _module(inputs, state, bidirectional=inputs.case.bidirectional)
    parameters = dict(module.named_parameters())
    if inputs.lengths is None or not inputs.case.bidirectional:
        yield "PyTorch", lambda x: module(x)[0], parameters
    else:
        yield "PyTorch", *_reversed_by_gather(inputs, state)
    if inputs.lengths is not None:
        yield "PyTorch, packed", _packed(inputs, module), parameters


def _module(inputs: Inputs, state: dict[str, Any], bidirectional: bool) -> Any:
    import torch

    kind = torch.nn.LSTM if inputs.case.mode == "lstm" else torch.nn.GRU
    module = kind(inputs.case.input_size, inputs.case.hidden_size, bidirectional=bidirectional)
    module.load_state_dict(state)
    return module


def _packed(inputs: Inputs, module: Any) -> _Forward:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    lengths = _tensor(inputs.lengths)

    def forward(x: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = pad_packed_sequence(module(packed)[0], total_length=x.shape[0])
        return y

    return forward


def _reversed_by_gather(inputs: Inputs, state: dict[str, Any]) -> tuple[_Forward, dict[str, Any]]:
    """Return two modules of one direction that do the work of one with two."""
    import torch

    suffix = "_reverse"
    there = {name: array for name, array in state.items() if not name.endswith(suffix)}
    back = {name.removesuffix(suffix): state[name] for name in state if name.endswith(suffix)}
    ahead, behind = (_module(inputs, each, bidirectional=False) for each in (there, back))
    index = _tensor(inputs.reversal())

    def turn(array: Any) -> Any:
        return torch.gather(array, 0, index.expand(array.shape))

    def forward(x: Any) -> Any:
        return torch.cat([ahead(x)[0], turn(behind(turn(x))[0])], dim=-1)

    parameters = dict(ahead.named_parameters())
    parameters |= {name + suffix: each for name, each in behind.named_parameters()}
    return forward, parameters


def _infer(name: str, forward: _Forward, inputs: Inputs) -> Contender:
    import torch

    x = _tensor(inputs.x)

    def call() -> Any:
        with torch.inference_mode():
            return forward(x)

    return Contender(name, call, lambda y: {"y": y.numpy()})


def _train(name: str, forward: _Forward, parameters: dict[str, Any], inputs: Inputs) -> Contender:
    import torch

    x, dy = _tensor(inputs.x).requires_grad_(), _tensor(inputs.dy)
    leaves = [x, *parameters.values()]

    def call() -> Any:
        y = forward(x)
        return y, torch.autograd.grad(y, leaves, dy)

    def outputs(result: Any) -> dict[str, Any]:
        y, (dx, *rest) = result
        weights = from_pytorch(dict(zip(parameters, rest, strict=True)))
        grads = {key: grad.numpy() for key, grad in weights.named()}
        return {"y": y.detach().numpy(), "x": dx.numpy(), **grads}

    return Contender(name, call, outputs)


def _stream(inputs: Inputs) -> Callable[[], Any]:
    """Return a loop over the cell, whose result is the last state (1, H)."""
    import torch

    cell = torch.nn.GRUCell(inputs.case.input_size, inputs.case.hidden_size)
    state = to_pytorch(inputs.weights)
    cell.load_state_dict({name.removesuffix("_l0"): _tensor(state[name]) for name in state})
    steps = list(_tensor(inputs.x))

    def call() -> Any:
        with torch.inference_mode():
            h = None
            for x in steps:
                h = cell(x, h)
            return h

    return call


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)
