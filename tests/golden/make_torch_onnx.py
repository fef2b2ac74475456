"""Write torch_*.onnx, models that PyTorch exported, and torch_onnx.npz, what PyTorch computes.

    python3.11 -m venv torch-venv
    torch-venv/bin/pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 numpy==2.4.6
    torch-venv/bin/python tests/golden/make_torch_onnx.py

Two layers of two directions and a linear layer, in float32, once as LSTM and once as GRU:

- ``torch_lstm.onnx``, ``torch_gru.onnx``: x (N, T, I) to y, h_n and c_n, by the exporter of
  today. N and T are free, all rows are of one length.
- ``torch_lstm_lengths.onnx``, ``torch_gru_lengths.onnx``: x (T, N, I) and lengths (N,) to y, by the
  TorchScript exporter: the only one that makes `pack_padded_sequence` the input sequence_lens.

A case of the archive is one call: its inputs by name, and its outputs as y, h_n, c_n.
"""

from __future__ import annotations

import json
import platform
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

I, H, O = 3, 4, 2
SIZES = {"one": (1, 1), "few": (7, 4), "long": (12, 2)}  # T, N
LENGTHS = {"one": [1], "few": [3, 7, 1, 5], "long": [12, 9]}
HERE = Path(__file__).parent


class Tagger(nn.Module):
    """All rows of one length."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
        self.rnn = getattr(nn, kind)(I, H, **options)
        self.head = nn.Linear(2 * H, O)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, state = self.rnn(x)
        return (self.head(y), *(state if isinstance(state, tuple) else (state,)))


class RaggedTagger(nn.Module):
    """Rows of any length, in any order."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(I, H, num_layers=2, bidirectional=True)
        self.head = nn.Linear(2 * H, O)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        y, _ = pad_packed_sequence(packed, total_length=x.shape[0])
        return self.head(y)


def export(kind: str) -> tuple[nn.Module, onnx.ModelProto]:
    """A network with its model, by the exporter of today."""
    network = Tagger(kind).eval()
    free = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(
        network,
        (torch.randn(3, 5, I),),
        dynamo=True,
        input_names=["x"],
        output_names=["y", "h_n", "c_n"][: 3 if kind == "LSTM" else 2],
        dynamic_shapes=({0: free, 1: free},),
    )
    return network, program.model_proto


def export_with_lengths(kind: str) -> tuple[nn.Module, onnx.ModelProto]:
    """A network with its model, by the TorchScript exporter."""
    network, file = RaggedTagger(kind).eval(), BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is old, and that tracing fixes Python numbers
        torch.onnx.export(
            network,
            (torch.randn(5, 3, I), torch.tensor([2, 5, 3])),
            file,
            dynamo=False,
            input_names=["x", "lengths"],
            output_names=["y"],
            dynamic_axes={"x": {0: "T", 1: "N"}, "lengths": {0: "N"}},
        )
    return network, onnx.load_from_string(file.getvalue())


def without_history(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without where in the program each node comes from."""
    for each in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        each.ClearField("doc_string")
        each.ClearField("metadata_props")
    for each in model.graph.initializer:
        each.ClearField("doc_string")
        each.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    return model


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, np.ndarray] = {}
    for kind in ("LSTM", "GRU"):
        for suffix, make in (("", export), ("_lengths", export_with_lengths)):
            network, model = make(kind)
            name = f"torch_{kind.lower()}{suffix}"
            onnx.checker.check_model(model, full_check=True)
            onnx.save(without_history(model), HERE / f"{name}.onnx")
            for size, (T, N) in SIZES.items():
                x = torch.randn((T, N, I) if suffix else (N, T, I))
                inputs = {"x": x} | ({"lengths": torch.tensor(LENGTHS[size])} if suffix else {})
                with torch.no_grad():
                    outputs = network(**inputs)
                outputs = (outputs,) if suffix else outputs
                named = inputs | dict(zip(("y", "h_n", "c_n"), outputs, strict=False))
                arrays |= {f"{name}-{size}/{key}": value.numpy() for key, value in named.items()}
    meta = {
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "python": platform.python_version(),
    }
    np.savez(HERE / "torch_onnx.npz", meta=np.array(json.dumps(meta)), **arrays)


if __name__ == "__main__":
    main()
