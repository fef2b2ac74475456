"""Every comparison with ONNX Runtime once more, now through an evaluator with rnnop's operators.

The tests are those of test_onnxruntime.py; only the side of rnnop is another: the same model that
ONNX Runtime runs, where there it is a call of `rnnop.rnn`.
"""

import pytest
import test_onnxruntime
from test_onnx_ops import run_evaluator
from test_onnxruntime import (
    test_activations,
    test_activations_of_each_direction,
    test_clip,
    test_directions_lengths_and_states,
    test_parameters_left_out,
    test_peepholes,
)

__all__ = [
    "test_activations",
    "test_activations_of_each_direction",
    "test_clip",
    "test_directions_lengths_and_states",
    "test_parameters_left_out",
    "test_peepholes",
]


@pytest.fixture(autouse=True)
def through_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_onnxruntime, "run_rnnop", run_evaluator)
