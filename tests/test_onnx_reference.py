"""What others leave out or do otherwise: every row of the two tables in docs/onnx.md.

First the operators that onnx ships. A row is what a node has beyond the usual: onnx's own operator
gives the same numbers with it and without; rnnop's gives onnx's without it, and others with it:
those of ONNX Runtime, as test_onnx_grid.py shows. Then ONNX Runtime itself, where it differs.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_onnx_ops import ONNX, rows_first, run_evaluator
from test_onnxruntime import (
    GATES,
    LENGTHS,
    Activations,
    H,
    N,
    T,
    make_inputs,
    make_model,
    onnx,
    run_onnxruntime,
)
from tolerances import assert_close

from rnnop import SpecError

Array = np.ndarray[Any, np.dtype[Any]]

as_described = pytest.mark.skipif(
    ONNX < (1, 23), reason=f"onnx 1.23 is described, and {onnx.__version__} leaves out more"
)

# The first cell of each row: for which operators, the attributes, the activations of LSTM and GRU.
IGNORED: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Activations]]] = {
    "`sequence_lens`": (("LSTM", "GRU", "RNN"), {}, {}),
    "`clip`": (("LSTM", "GRU", "RNN"), {"clip": 0.25}, {}),
    "`activations`": (
        ("LSTM", "GRU"),
        {},
        {"LSTM": [("Sigmoid",), ("Relu",), ("Tanh",)], "GRU": [("Sigmoid",), ("Relu",)]},
    ),
    "`activation_alpha`, `activation_beta`": (
        ("LSTM", "GRU"),
        {},
        {
            "LSTM": [("HardSigmoid", 0.3, 0.4), ("Tanh",), ("Tanh",)],
            "GRU": [("HardSigmoid", 0.3, 0.4), ("Tanh",)],
        },
    ),
    "`input_forget`": (("LSTM",), {"input_forget": 1}, {}),
}


def run_onnx(
    op: str, inputs: dict[str, Array], activations: Activations, attributes: dict[str, Any]
) -> list[Array]:
    """Return Y, Y_h and, of an LSTM, Y_c by onnx's own operator."""
    model = make_model(op, inputs, activations, attributes)
    outputs: list[Array] = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    return outputs


def assert_agree(ours: list[Array], theirs: list[Array]) -> None:
    for name, actual, expected in zip(("Y", "Y_h", "Y_c"), ours, theirs, strict=False):
        assert_close(name, actual, expected.astype(np.float64), "cpu", "float32")
    assert len(ours) == len(theirs)


@as_described
@pytest.mark.parametrize(
    ("row", "op"), [(row, op) for row, (operators, *_) in IGNORED.items() for op in operators]
)
def test_what_is_ignored(row: str, op: str) -> None:
    _, attributes, activations = IGNORED[row]
    inputs = make_inputs(op)
    without = run_onnx(op, inputs, None, {})
    assert_agree(run_evaluator(op, inputs, None, {}), without)
    if row == "`sequence_lens`":
        inputs = make_inputs(op, lengths=LENGTHS["ragged"])
    theirs = run_onnx(op, inputs, activations.get(op), attributes)
    for one, other in zip(theirs, without, strict=True):
        np.testing.assert_array_equal(one, other)
    ours = run_evaluator(op, inputs, activations.get(op), attributes)
    assert all(np.abs(one - other).max() > 0.01 for one, other in zip(ours, theirs, strict=True))


@as_described
def test_activations_of_rnn() -> None:
    """It refuses all but Tanh and Affine, and takes the first of two for both directions."""
    inputs = make_inputs("RNN")
    with pytest.raises(RuntimeError, match="Unknown activation function 'Relu'"):
        run_onnx("RNN", inputs, [("Relu",)], {})
    inputs, both = make_inputs("RNN", "bidirectional"), {"direction": "bidirectional"}
    activations: Activations = [("Tanh",), ("Affine",)]
    theirs = run_onnx("RNN", inputs, activations, both)[0]
    np.testing.assert_array_equal(theirs, run_onnx("RNN", inputs, None, both)[0])
    ours = run_evaluator("RNN", inputs, activations, both)[0]
    np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=1e-5)
    assert np.abs(ours[:, 1] - theirs[:, 1]).max() > 0.01


@as_described
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LSTM", {}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {}),
        ("RNN", {"direction": "reverse"}),
        ("LSTM", {"direction": "bidirectional"}),
    ],
)
@pytest.mark.parametrize("layout", [0, 1])
def test_what_is_not(op: str, attributes: dict[str, Any], layout: int) -> None:
    inputs = make_inputs(op, attributes.get("direction", "forward"), peephole=op == "LSTM")
    if layout == 1:
        inputs = rows_first(inputs)
    attributes = attributes | {"layout": layout}
    assert_agree(
        run_evaluator(op, inputs, None, attributes), run_onnx(op, inputs, None, attributes)
    )


@as_described
@pytest.mark.parametrize("op", GATES)
def test_no_steps(op: str) -> None:
    inputs = make_inputs(op)
    inputs["X"] = inputs["X"][:0]
    with pytest.raises(ValueError, match="need at least one array"):
        run_onnx(op, inputs, None, {})
    assert run_evaluator(op, inputs, None, {})[0].shape[0] == 0


# ONNX Runtime


def applied(name: str, *parameters: float, to: list[float]) -> tuple[Array, Array]:
    """Return an activation of the numbers, by rnnop and by ONNX Runtime."""
    x, one = np.array(to, np.float32).reshape(-1, 1, 1), np.ones((1, 1, 1), np.float32)
    inputs = {"X": x, "W": one, "R": 0 * one}
    how = run_evaluator, run_onnxruntime
    ours, theirs = (run("RNN", inputs, [(name, *parameters)], {})[0].ravel() for run in how)
    return ours, theirs


def a_row_of_length_0() -> None:
    inputs = make_inputs("LSTM", lengths=LENGTHS["zeros"])
    none = inputs["sequence_lens"] == 0
    _, *ours = run_evaluator("LSTM", inputs, None, {})
    _, *theirs = run_onnxruntime("LSTM", inputs, None, {})
    for name, mine, other in zip(("initial_h", "initial_c"), ours, theirs, strict=True):
        np.testing.assert_array_equal(mine[:, none], inputs[name][:, none])
        assert not other[:, none].any()


def clip_of_h() -> None:
    inputs = make_inputs("LSTM")
    inputs["X"], inputs["initial_c"] = inputs["X"][:1], 10 * inputs["initial_c"]
    both = [run("LSTM", inputs, None, {"clip": 0.5}) for run in (run_evaluator, run_onnxruntime)]
    (mine, _, my_c), (other, _, their_c) = both
    np.testing.assert_allclose(my_c, their_c, rtol=1e-5)  # of which h is the activation
    assert np.abs(mine[0]).max() < np.tanh(0.5) < np.abs(other[0]).max()


def thresholded_relu() -> None:
    ours, theirs = applied("ThresholdedRelu", 0.5, to=[0.25, 0.5, 0.75])
    assert (ours.tolist(), theirs.tolist()) == ([0, 0.5, 0.75], [0, 0, 0.75])


def defaults() -> None:
    for name, right, other in (
        ("Affine", 0.25, 0.0),
        ("ScaledTanh", np.tanh(0.25), 0.0),
        ("ThresholdedRelu", 0.0, 0.25),
    ):
        ours, theirs = applied(name, to=[0.25])
        np.testing.assert_allclose((ours.item(), theirs.item()), (right, other), rtol=1e-6)


def softplus() -> None:
    ours, theirs = applied("Softplus", to=[100.0])
    assert (ours.item(), theirs.item()) == (100, np.inf)


def more_alphas() -> None:
    inputs = make_inputs("GRU")
    entries: Activations = [("Sigmoid", 0.1), ("LeakyRelu", 0.3)]
    with pytest.raises(SpecError, match="`activation_alpha` has 2 values; expected at most 1"):
        run_evaluator("GRU", inputs, entries, {})
    theirs = run_onnxruntime("GRU", inputs, entries, {})
    first = run_onnxruntime("GRU", inputs, [("Sigmoid",), ("LeakyRelu", 0.1)], {})
    np.testing.assert_array_equal(theirs[0], first[0])


def small_letters() -> None:
    inputs = make_inputs("GRU")
    entries: Activations = [("sigmoid",), ("tanh",)]
    with pytest.raises(SpecError, match="`activations` has 'sigmoid'; expected one of Sigmoid"):
        run_evaluator("GRU", inputs, entries, {})
    theirs = run_onnxruntime("GRU", inputs, entries, {})
    np.testing.assert_array_equal(theirs[0], run_onnxruntime("GRU", inputs, None, {})[0])


def three_for_two() -> None:
    inputs = make_inputs("LSTM", "bidirectional")
    entries: Activations = [("Sigmoid",), ("Relu",), ("Tanh",)]
    both = {"direction": "bidirectional"}
    with pytest.raises(Exception, match="activation_func_names"):
        run_onnxruntime("LSTM", inputs, entries, both)
    ours = run_evaluator("LSTM", inputs, entries, both)
    assert_agree(ours, run_onnxruntime("LSTM", inputs, entries * 2, both))


def layout_1() -> None:
    inputs = rows_first(make_inputs("GRU"))
    with pytest.raises(Exception, match="layout"):
        run_onnxruntime("GRU", inputs, None, {"layout": 1})
    assert run_evaluator("GRU", inputs, None, {"layout": 1})[0].shape == (N, T, 1, H)


def float64() -> None:
    inputs = {name: array.astype(np.float64) for name, array in make_inputs("GRU").items()}
    with pytest.raises(Exception, match="does not support double"):
        run_onnxruntime("GRU", inputs, None, {})
    assert run_evaluator("GRU", inputs, None, {})[0].dtype == np.float64


# In the order of the table.
DIFFERENCES = (
    a_row_of_length_0,
    clip_of_h,
    thresholded_relu,
    defaults,
    softplus,
    more_alphas,
    small_letters,
    three_for_two,
    layout_1,
    float64,
)


@pytest.mark.parametrize("check", DIFFERENCES, ids=lambda check: check.__name__)
def test_where_onnx_runtime_differs(check: Callable[[], None]) -> None:
    check()


# The tables


def rows(title: str) -> list[str]:
    """Return the first cells of the table in a section of the page."""
    page = (Path(__file__).parents[1] / "docs" / "onnx.md").read_text(encoding="utf-8")
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+?) \|", section, re.MULTILINE)[1:]


def test_the_tables_have_these_rows() -> None:
    ignored = rows("What onnx's own operators leave out")
    assert ignored == [*IGNORED, "`activations` of RNN", "`X` without a step"]
    assert len(rows("Where ONNX Runtime differs")) == len(DIFFERENCES)
