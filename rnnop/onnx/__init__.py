"""ONNX's operators LSTM, GRU and RNN, whole, for `onnx.reference.ReferenceEvaluator`.

An evaluator that is given them, by ``new_ops=list(rnnop.onnx.OPS)``, runs every LSTM, GRU and RNN
of its graph through `rnnop.rnn`. A model is data: nothing in it is executed but its operators.
"""

from __future__ import annotations

try:
    import onnx
except ImportError as error:
    raise ImportError(
        "rnnop.onnx needs onnx 1.17 or newer, and there is none; "
        'get it by: pip install "rnnop[onnx]"'
    ) from error
if tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 17):
    raise ImportError(
        f"rnnop.onnx needs onnx 1.17 or newer, and here is {onnx.__version__}; "
        'get it by: pip install --upgrade "rnnop[onnx]"'
    )

from .operators import GRU, LSTM, OPS, RNN

__all__ = ["GRU", "LSTM", "OPS", "RNN"]
