"""rnnop, as its caller has it: padded NumPy arrays in, padded NumPy arrays out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rnnop

from ..cases import Inputs
from . import OURS, Contender


def contenders(inputs: Inputs, threads: int) -> list[Contender]:
    """Return rnnop with the weights as they are and, for inference, prepacked.

    The number of threads is that of RNNOP_NUM_THREADS and of the BLAS of NumPy, which the
    environment of the process has set.
    """
    mode = inputs.case.mode
    if inputs.case.work == "training":
        return [Contender(OURS, lambda: _train(inputs), _gradients)]
    packed = rnnop.prepack(inputs.weights, mode=mode)
    if inputs.case.work == "stream":
        steps = [x[None] for x in inputs.x]
        return [Contender(OURS, lambda: _stream(steps, packed, mode), lambda h: {"h": h})]

    def forward(weights: rnnop.RNNWeights | rnnop.PrepackedWeights) -> Callable[[], Any]:
        return lambda: rnnop.rnn(inputs.x, weights, lengths=inputs.lengths, mode=mode)

    return [
        Contender(OURS, forward(inputs.weights), lambda out: {"y": out.y}),
        Contender(f"{OURS}, prepacked", forward(packed), lambda out: {"y": out.y}),
    ]


def _train(inputs: Inputs) -> tuple[rnnop.RNNOutput, rnnop.RNNGrads]:
    out, vjp = rnnop.rnn_vjp(
        inputs.x, inputs.weights, lengths=inputs.lengths, mode=inputs.case.mode
    )
    return out, vjp(inputs.dy)


def _gradients(result: tuple[rnnop.RNNOutput, rnnop.RNNGrads]) -> dict[str, Any]:
    out, grads = result
    return {"y": out.y, "x": grads.x, **dict(grads.weights.named())}


def _stream(steps: list[Any], packed: rnnop.PrepackedWeights, mode: str) -> Any:
    """Return the last state (1, 1, H)."""
    h = None
    for x in steps:
        h = rnnop.rnn(x, packed, h, mode=mode).h_n
    return h
