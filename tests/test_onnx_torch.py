"""Models that PyTorch exported, with any number of rows and steps: the numbers of PyTorch.

golden/README.md says how the files were made.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_golden import load
from test_onnx_ops import evaluator
from test_onnxruntime import assert_agrees, onnx, onnxruntime

Array = np.ndarray[Any, np.dtype[Any]]

CASES, _ = load("torch_onnx.npz")
MODELS = ("torch_lstm", "torch_gru", "torch_lstm_lengths", "torch_gru_lengths")
OUTPUTS = ("y", "h_n", "c_n")


def path(model: str) -> str:
    return str(Path(__file__).parent / "golden" / f"{model}.onnx")


def session(model: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path(model), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("model", MODELS)
def test_the_models_are_what_they_should_be(model: str) -> None:
    """Two operators each, no fixed number of rows or steps, and every case has its model."""
    graph = onnx.load(path(model)).graph
    operators = [node for node in graph.node if node.op_type in ("LSTM", "GRU")]
    assert [node.op_type for node in operators] == [model.split("_")[1].upper()] * 2
    assert all(bool(node.input[4]) == model.endswith("lengths") for node in operators)
    for each in graph.input:
        shape = each.type.tensor_type.shape.dim
        assert all(axis.dim_param for axis in shape[: 2 if each.name == "x" else 1])
    assert {case.rsplit("-", 1)[0] for case in CASES} == set(MODELS)


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_torch(case: str) -> None:
    model = case.rsplit("-", 1)[0]
    inputs = {name: array for name, array in CASES[case].items() if name not in OUTPUTS}
    outputs = [CASES[case][name] for name in OUTPUTS if name in CASES[case]]
    for how in (evaluator(path(model)), session(model)):
        for name, actual, expected in zip(OUTPUTS, how.run(None, inputs), outputs, strict=False):
            assert_agrees(actual, expected, f"{name} of {type(how).__name__}")


EVALUATORS = {model: evaluator(path(model)) for model in MODELS}
SESSIONS = {model: session(model) for model in MODELS}


@given(
    model=st.sampled_from(MODELS), T=st.integers(1, 9), N=st.integers(1, 6), seed=st.integers(0, 99)
)
def test_any_number_of_rows_and_steps(model: str, T: int, N: int, seed: int) -> None:
    """The same evaluator for all of them, as ONNX Runtime."""
    generator = np.random.default_rng(seed)
    ragged = model.endswith("lengths")
    x = generator.standard_normal((T, N, 3) if ragged else (N, T, 3), np.float32)
    inputs = {"x": x}
    if ragged:
        inputs["lengths"] = generator.integers(1, T + 1, N)
    ours, theirs = (each[model].run(None, inputs) for each in (EVALUATORS, SESSIONS))
    for actual, expected in zip(ours, theirs, strict=True):
        assert_agrees(actual, expected, model)
