"""`torch.ops.rnnop.rnn`, and `rnn_backward`, its gradient, as torch knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.library import get_ctx

from .. import api
from ..arrays import Array
from ..packing import data_of
from . import host
from .call import Inputs, run
from .operators import Operator

_SCHEMA = (
    "Tensor x, Tensor[] weights, str fields, bool bidirectional, str options, Tensor? h0=None, "
    "Tensor? c0=None, Tensor? mask=None, Tensor? lengths=None, Tensor? resets=None, "
    "Tensor? seed=None, Tensor? dropout_masks=None, Tensor? batch_sizes=None, "
    "Tensor? sorted_indices=None, Tensor? unsorted_indices=None, int prepacked=0"
)


class _RNN(Operator):
    """Outputs: y, h_n, then c_n and c where there are any. Gradients: x, weights, h0, c0."""

    def run(
        self, inputs: Inputs, keep: bool
    ) -> tuple[list[Tensor], Callable[..., Sequence[Array | None]] | None, host.Bridge]:
        """Run `rnnop.rnn`, or `rnnop.rnn_vjp`."""
        if not keep:
            out, bridge = run("rnn", inputs)
            return _tensors(out, bridge), None, bridge
        (out, vjp), bridge = run("rnn_vjp", inputs)

        def pull(*cotangents: Array | None) -> Sequence[Array | None]:
            grads = vjp(*cotangents)
            weights = host.as_list(grads.weights, inputs.fields)
            return [data_of(grads.x), *weights, grads.h0, grads.c0]

        return _tensors(out, bridge), pull, bridge

    def read_again(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return what has steps: y and c."""
        return outputs[::3]

    def inputs_read_again(self, inputs: Inputs) -> Sequence[Tensor | None]:
        """Return the dropout masks."""
        return [inputs.dropout_masks]

    def fakes(self, inputs: Inputs) -> list[Tensor]:
        """Return outputs without data."""
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
        return outputs


def _tensors(out: api.RNNOutput, bridge: host.Bridge) -> list[Tensor]:
    return [bridge.outward(data_of(each)) for each in out if each is not None]


def _num_rows(inputs: Inputs) -> Any:
    if inputs.batch_sizes is None:
        return inputs.x.shape[0 if inputs.option("batch_first") else 1]
    if inputs.sorted_indices is not None:
        return inputs.sorted_indices.shape[0]
    if inputs.h0 is not None:
        return inputs.h0.shape[1]
    return get_ctx().new_dynamic_size()  # it is batch_sizes[0], which has no data


RNN = _RNN("rnn", Inputs, _SCHEMA)
