"""LSTM, GRU and RNN for onnx's evaluator: onnx's own tests, and the whole specification.

The grid that is compared with ONNX Runtime is in test_onnx_grid.py, models that PyTorch exported in
test_onnx_torch.py, what onnx's own operators leave out in test_onnx_reference.py.
"""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_onnxruntime import (  # skips where onnx is not installed
    ACTIVATIONS,
    DIRECTIONS,
    GATES,
    LENGTHS,
    POSITIONS,
    VARIANTS,
    Activations,
    H,
    I,
    N,
    T,
    make_inputs,
    make_model,
    onnx,
    run_rnnop,
)
from tolerances import assert_close

import rnnop
import rnnop.onnx
from rnnop import DTypeError, RnnopError, ShapeError, SpecError
from rnnop.cpu import engine
from rnnop.onnx import operators

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = dict[str, Array]

ONNX = tuple(map(int, onnx.__version__.split(".")[:2]))


def evaluator(model: Any) -> Any:
    return onnx.reference.ReferenceEvaluator(model, new_ops=list(rnnop.onnx.OPS))


def with_constants(model: Any, inputs: Inputs) -> Inputs:
    """Make the weights part of the model, as in a model from a file; return the other inputs."""
    constants = [name for name in inputs if name in ("W", "R", "B", "P")]
    left = [each for each in model.graph.input if each.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(left)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(inputs[name], name) for name in constants
    )
    return {name: array for name, array in inputs.items() if name not in constants}


def run_evaluator(
    op: str,
    inputs: Inputs,
    activations: Activations,
    attributes: dict[str, Any],
    opset: int = 14,
    constants: bool = False,
) -> list[Array]:
    """Return Y, Y_h and, of an LSTM, Y_c."""
    model = make_model(op, inputs, activations, attributes, opset)
    if constants:
        inputs = with_constants(model, inputs)
    outputs: list[Array] = evaluator(model).run(None, inputs)
    return outputs


def assert_equal(actual: list[Array], expected: list[Array]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def rows_first(inputs: Inputs) -> Inputs:
    """Return the inputs as layout=1 has them."""
    swapped = ("X", "initial_h", "initial_c")
    return {
        name: array.swapaxes(0, 1) if name in swapped else array for name, array in inputs.items()
    }


def rows_first_outputs(outputs: list[Array]) -> list[Array]:
    """Return Y, Y_h and Y_c as layout=1 has them."""
    y, *states = outputs
    return [y.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in states)]


# onnx's own tests


def node_tests() -> list[Any]:
    """Return onnx's tests of nodes that have one of our operators.

    Importing a file of the folder makes its tests; all of them would take long.
    """
    cases = importlib.import_module("onnx.backend.test.case.node")
    folder = Path(str(cases.__file__)).parent
    for file in sorted(folder.glob("*.py")):
        if re.search(r'"(LSTM|GRU|RNN)"', file.read_text(encoding="utf-8")):
            importlib.import_module(f"{cases.__name__}.{file.stem}")
    return [
        case
        for case in cases._NodeTestCases
        if {node.op_type for node in case.model.graph.node} & set(GATES)
    ]


NODE_TESTS = node_tests()


@pytest.mark.parametrize("case", NODE_TESTS, ids=lambda case: case.name)
def test_of_onnx(case: Any) -> None:
    """To the last digits, where onnx's own limit is 1e-3."""
    ours = evaluator(case.model)
    for inputs, outputs in case.data_sets:
        found = ours.run(None, dict(zip(ours.input_names, inputs, strict=True)))
        for actual, expected in zip(found, outputs, strict=True):
            assert_close(case.name, actual, expected.astype(np.float64), "cpu", "float32")


def test_no_test_of_onnx_is_missed() -> None:
    """The names of those that every onnx has, so that files moved elsewhere are seen."""
    names = {case.name.removeprefix("test_") for case in NODE_TESTS}
    usual = {"defaults", "with_initial_bias", "batchwise"}
    wanted = {f"{op}_{test}" for op in ("lstm", "gru", "simple_rnn") for test in usual}
    assert names >= wanted | {"lstm_with_peepholes", "gru_seq_length", "rnn_seq_length"}
    assert len(names) == len(NODE_TESTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in tests of other operators
def test_no_test_of_onnx_is_missed_anywhere() -> None:
    """Among all tests of onnx, those of whole models too."""
    loader = importlib.import_module("onnx.backend.test.loader")
    found = set()
    for kind in ("node", "simple", "pytorch-operator", "pytorch-converted"):
        for case in loader.load_model_tests(kind=kind):
            model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
            if {node.op_type for node in model.graph.node} & set(GATES):
                found.add(case.name)
    assert found == {case.name for case in NODE_TESTS}


# The whole specification


@pytest.mark.parametrize("lengths", [None, "ragged", "zeros"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_layout(op: str, direction: str, lengths: str | None) -> None:
    inputs = make_inputs(op, direction, lengths=LENGTHS[lengths or "full"])
    expected = rows_first_outputs(run_evaluator(op, inputs, None, {"direction": direction}))
    attributes = {"direction": direction, "layout": 1}
    actual = run_evaluator(op, rows_first(inputs), None, attributes)
    assert [output.shape for output in actual] == [output.shape for output in expected]
    assert_equal(actual, expected)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Inputs, Activations, dict[str, Any]]:
    """Draw an operator with anything that it may have."""
    op = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(DIRECTIONS))
    lengths = draw(st.none() | st.lists(st.integers(0, T), min_size=N, max_size=N))
    inputs = make_inputs(
        op,
        direction,
        bias=draw(st.booleans()),
        states=draw(st.booleans()),
        peephole=op == "LSTM" and draw(st.booleans()),
        lengths=lengths,
        seed=draw(st.integers(0, 99)),
    )
    count = len(POSITIONS[op]) * len(inputs["W"])
    activation = st.sampled_from(sorted(ACTIVATIONS)).map(lambda name: (name, *ACTIVATIONS[name]))
    activations = draw(st.none() | st.lists(activation, min_size=count, max_size=count))
    attributes: dict[str, Any] = {"direction": direction}
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.25, 1.0, 4.0]))
    own = {"LSTM": "input_forget", "GRU": "linear_before_reset"}
    if op in own:
        attributes[own[op]] = draw(st.integers(0, 1))
    return op, inputs, activations, attributes


@given(call=calls(), layout=st.integers(0, 1), constants=st.booleans())
def test_anything_at_once(
    call: tuple[str, Inputs, Activations, dict[str, Any]], layout: int, constants: bool
) -> None:
    """In float64, against the call that `from_onnx` documents: no attribute is in another's way."""
    op, inputs, activations, attributes = call
    inputs = {
        name: array if name == "sequence_lens" else array.astype(np.float64)
        for name, array in inputs.items()
    }
    if activations is not None:  # attributes of a model are float32
        activations = [(name, *map(np.float32, values)) for name, *values in activations]
    expected = run_rnnop(op, inputs, activations, attributes)
    attributes["layout"] = layout
    if layout == 1:
        inputs, expected = rows_first(inputs), rows_first_outputs(expected)
    actual = run_evaluator(op, inputs, activations, attributes, constants=constants)
    for name, ours, theirs in zip(("Y", "Y_h", "Y_c"), actual, expected, strict=False):
        assert_close(name, ours, theirs, "cpu", "float64")
    assert len(actual) == len(expected)


@pytest.mark.parametrize("opset", [1, 3, 7, 14, 22])
@pytest.mark.parametrize("op", GATES)
def test_opsets(op: str, opset: int) -> None:
    """From the first on; what they differ in is `output_sequence`, `layout` and bfloat16."""
    inputs = make_inputs(op, "reverse", lengths=LENGTHS["ragged"])
    attributes = {"direction": "reverse", "clip": 0.5}
    expected = run_evaluator(op, inputs, None, attributes)
    if opset < 7:
        attributes["output_sequence"] = 1
    assert_equal(run_evaluator(op, inputs, None, attributes, opset), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes(variant: str, dtype: str) -> None:
    if dtype == "bfloat16" and ONNX < (1, 19):
        pytest.skip(f"onnx {onnx.__version__} does not know NumPy's bfloat16; 1.19 does")
    op, attributes = VARIANTS[variant]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    inputs = {
        name: array if name == "sequence_lens" else array.astype(kind)
        for name, array in make_inputs(op, lengths=LENGTHS["ragged"]).items()
    }
    wide = {
        name: array if name == "sequence_lens" else array.astype(np.float64)
        for name, array in inputs.items()
    }
    expected = run_rnnop(op, wide, None, attributes)
    actual = run_evaluator(op, inputs, None, attributes, 22, constants=True)
    for name, ours, theirs in zip(("Y", "Y_h", "Y_c"), actual, expected, strict=False):
        assert_close(name, ours, theirs, "cpu", dtype)


@pytest.mark.parametrize(
    "names", [("Y",), ("", "Y_h"), ("", "", "Y_c"), ("Y", "", "Y_c"), ("", "Y_h", "Y_c")]
)
def test_outputs_that_are_left_out(names: tuple[str, ...]) -> None:
    inputs = make_inputs("LSTM", "bidirectional")
    model = make_model("LSTM", inputs, None, {"direction": "bidirectional"})
    full = evaluator(model).run(None, inputs)
    node = model.graph.node[0]
    del node.output[:]
    node.output.extend(names)
    wanted = [name for name in names if name]
    chosen = [output for output in model.graph.output if output.name in wanted]
    del model.graph.output[:]
    model.graph.output.extend(chosen)
    expected = [full[("Y", "Y_h", "Y_c").index(name)] for name in wanted]
    assert_equal(evaluator(model).run(None, inputs), expected)


def test_an_output_left_out_is_not_the_next_nodes_input() -> None:
    """The evaluator keeps values by name, and inputs that are left out have the empty name."""
    inputs = make_inputs("GRU", states=False)
    make_node = onnx.helper.make_node
    nodes = [
        make_node("GRU", ["X", "W", "R", "B"], ["", "first"], hidden_size=H),
        make_node("GRU", ["X", "W", "R", "", "", "first"], ["", "second"], hidden_size=H),
    ]
    model = make_model("GRU", inputs, None, {})
    output = onnx.helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "two", model.graph.input, [output])
    model.graph.CopyFrom(graph)
    (second,) = evaluator(model).run(None, inputs)
    first = run_evaluator("GRU", inputs, None, {})[1]
    del inputs["B"]
    assert_equal([second], run_evaluator("GRU", inputs | {"initial_h": first}, None, {})[1:])


@pytest.mark.parametrize("T", [0, 1])
@pytest.mark.parametrize("N", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("op", GATES)
def test_nothing_to_do(op: str, layout: int, N: int, T: int) -> None:
    inputs = make_inputs(op, "bidirectional")
    inputs["X"] = inputs["X"][:T, :N]
    for name in {"initial_h", "initial_c"} & set(inputs):
        inputs[name] = inputs[name][:, :N]
    shapes = [(T, 2, N, H), (2, N, H), (2, N, H)][: 3 if op == "LSTM" else 2]
    if layout == 1:
        inputs = rows_first(inputs)
        shapes = [(N, T, 2, H), (N, 2, H), (N, 2, H)][: len(shapes)]
    attributes = {"direction": "bidirectional", "layout": layout}
    outputs = run_evaluator(op, inputs, None, attributes)
    assert [output.shape for output in outputs] == shapes
    if T == 0:
        assert_equal(outputs[1:2], [inputs["initial_h"]])


# How it runs


@pytest.mark.parametrize(
    ("op", "activations"),
    [("RNN", None), ("RNN", ["Relu"]), ("GRU", ["Sigmoid", "Tanh"]), ("LSTM", None)],
)
def test_usual_activations_run_on_the_engine(
    op: str, activations: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not engine.available():
        pytest.skip("rnnop was installed without a C compiler")
    monkeypatch.setenv("RNNOP_BACKEND", "cpu")  # which refuses what it cannot run
    entries: Activations = None if activations is None else [(name,) for name in activations]
    run_evaluator(op, make_inputs(op), entries, {})
    with pytest.raises(rnnop.UnsupportedError, match="activations"):
        run_evaluator(op, make_inputs(op), [("Softplus",)] * len(POSITIONS[op]), {})


def test_weights_of_the_model_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arrays: Any, mode: str) -> rnnop.RNNWeights:
        made.append(mode)
        return rnnop.layouts.from_onnx(*arrays, mode=mode)

    monkeypatch.setattr(operators, "from_onnx", counted)
    inputs = make_inputs("LSTM", peephole=True)
    model = make_model("LSTM", inputs, None, {})
    expected = run_rnnop("LSTM", inputs, None, {})
    ours = evaluator(model)
    for _ in range(3):
        ours.run(None, inputs)
    assert len(made) == 3
    fed = with_constants(model, inputs)
    ours = evaluator(model)
    for _ in range(3):
        for actual, right in zip(ours.run(None, fed), expected, strict=True):
            assert_close("output", actual, right.astype(np.float64), "cpu", "float32")
    assert len(made) == 4


@pytest.mark.parametrize("read_only", [False, True])
def test_weights_that_are_fed_may_change(read_only: bool) -> None:
    """Even behind views that cannot be written to."""
    inputs = make_inputs("GRU")
    ours = evaluator(make_model("GRU", inputs, None, {}))
    W = inputs["W"]
    if read_only:
        for name in ("W", "R", "B"):
            inputs[name] = inputs[name].view()
            inputs[name].flags.writeable = False
    before = ours.run(None, inputs)
    W *= 2
    after = ours.run(None, inputs)
    assert np.abs(after[0] - before[0]).max() > 0.01
    assert_equal(after, run_evaluator("GRU", inputs, None, {}))


def test_other_weights_are_not_the_ones_laid_out() -> None:
    """Arrays that cannot change, as those of a model, but others at each run."""
    ours = evaluator(make_model("GRU", make_inputs("GRU"), None, {}))
    for seed in (0, 1, 0):
        inputs = make_inputs("GRU", seed=seed)
        for name in ("W", "R", "B"):
            fixed = np.frombuffer(inputs[name].tobytes(), np.float32)
            inputs[name] = fixed.reshape(inputs[name].shape)
        assert_equal(ours.run(None, inputs), run_evaluator("GRU", inputs, None, {}))


def test_in_a_branch_of_the_graph() -> None:
    inputs = make_inputs("GRU", lengths=LENGTHS["ragged"])
    model = make_model("GRU", inputs, None, {"clip": 0.1})
    expected = evaluator(model).run(None, inputs)
    make_graph, make_info = onnx.helper.make_graph, onnx.helper.make_tensor_value_info
    outputs = [make_info(name, onnx.TensorProto.FLOAT, None) for name in ("Y", "Y_h")]
    branch = make_graph(model.graph.node, "branch", [], model.graph.output)
    choice = onnx.helper.make_node(
        "If", ["which"], ["Y", "Y_h"], then_branch=branch, else_branch=branch
    )
    which = make_info("which", onnx.TensorProto.BOOL, [])
    model.graph.CopyFrom(make_graph([choice], "main", [which, *model.graph.input], outputs))
    assert_equal(evaluator(model).run(None, inputs | {"which": np.array(True)}), expected)


def function_of(node: Any, *names: str) -> Any:
    """Return a function of a model that is one node; its caller says the attributes named."""
    opset = [onnx.helper.make_opsetid("", 14)]
    return onnx.helper.make_function("own", "Run", node.input, node.output, [node], opset, names)


def test_attributes_of_a_function() -> None:
    inputs = {name: make_inputs("GRU")[name] for name in ("X", "W", "R")}
    attributes = {"direction": "reverse", "clip": 0.25}
    expected = run_evaluator("GRU", inputs, None, attributes)[:1]
    node = onnx.helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H)
    kinds = onnx.AttributeProto.STRING, onnx.AttributeProto.FLOAT
    for name, kind in zip(attributes, kinds, strict=True):
        node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))
    ours = evaluator(function_of(node, *attributes))
    assert_equal(ours.run(None, inputs, attributes=attributes), expected)
    with pytest.raises(SpecError, match="GRU: `direction` is 'up'; expected forward or reverse or"):
        ours.run(None, inputs, attributes=attributes | {"direction": "up"})


def test_functions_of_a_model_are_inlined_first() -> None:
    """The evaluator runs them with onnx's own operators, whatever `new_ops` says."""
    inputs = {name: make_inputs("GRU")[name] for name in ("X", "W", "R")}
    expected = run_evaluator("GRU", inputs, None, {"clip": 0.25})[:1]
    model = make_model("GRU", inputs, None, {})
    node = onnx.helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H, clip=0.25)
    call = onnx.helper.make_node("Run", ["X", "W", "R"], ["Y"], domain="own")
    graph = onnx.helper.make_graph([call], "main", model.graph.input, model.graph.output[:1])
    model.graph.CopyFrom(graph)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.functions.append(function_of(node))
    inlined = importlib.import_module("onnx.inliner").inline_local_functions(model)
    assert_equal(evaluator(inlined).run(None, inputs), expected)
    assert np.abs(evaluator(model).run(None, inputs)[0] - expected[0]).max() > 0.01  # no clip


# Corrupt and hostile models


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def names(*activations: str, **parameters: list[float]) -> dict[str, Any]:
    return {"activations": list(activations)} | parameters


Wrong = tuple[dict[str, Any], dict[str, Any], type[RnnopError], str]

# What an LSTM is given in place of good attributes and inputs, the error, and how its text begins.
WRONG: list[Wrong] = [
    # Attributes
    (
        {"direction": "sideways"},
        {},
        SpecError,
        "`direction` is 'sideways'; expected forward or reverse or bidirectional",
    ),
    (
        {"direction": "bidirectional"},
        {},
        ShapeError,
        "`W` and `R` have num_directions 1; expected 2 with direction 'bidirectional'",
    ),
    ({"layout": 2}, {}, SpecError, "`layout` is 2; expected 0 or 1"),
    ({"input_forget": -1}, {}, SpecError, "`input_forget` is -1; expected 0 or 1"),
    ({"hidden_size": 6}, {}, SpecError, "`hidden_size` is 6; expected that of `R`, 5"),
    ({"hidden_size": 2**62}, {}, SpecError, "`hidden_size` is 4611686018427387904; expected"),
    ({"clip": -1.0}, {}, SpecError, "`clip` is (1, -1); expected low <= high"),
    ({"clip": float("nan")}, {}, SpecError, "`clip` is (nan, nan); expected low <= high"),
    (
        names("Sigmoid", "Tahn", "Tanh"),
        {},
        SpecError,
        "`activations` has 'Tahn'; expected one of Sigmoid, Tanh, Relu,",
    ),
    (names("Tanh"), {}, SpecError, "`activations` has 1 entries; expected 3, for (f, g, h)"),
    (
        names("Sigmoid", "LeakyRelu", "Tanh", activation_alpha=[0.0, 0.3, 0.0]),
        {},
        SpecError,
        "`activation_alpha` has 3 values; expected at most 1, one for each of `activations` that",
    ),
    (
        {"activation_beta": [0.5]},
        {},
        SpecError,
        "`activation_beta` has 1 values; expected at most 0",
    ),
    # What onnx's checker knows of an opset
    ({"linear_before_reset": 1}, {}, SpecError, "Unrecognized attribute: linear_before_reset"),
    ({"run": 1}, {}, SpecError, "Unrecognized attribute: run for operator LSTM"),
    ({"_run": "exit()"}, {}, SpecError, "Unrecognized attribute: _run for operator LSTM"),
    ({"direction": 1}, {}, SpecError, "Mismatched attribute type in 'encoder : direction'"),
    ({"activations": "Tanh"}, {}, SpecError, "Mismatched attribute type in 'encoder : activations"),
    # Weights
    (
        {},
        {"W": zeros(1, 19, I)},
        ShapeError,
        "`W` has shape (1, 19, 3); expected (num_directions, num_gates * hidden_size, input_size)",
    ),
    ({}, {"W": zeros(20, I)}, ShapeError, "`W` has shape (20, 3); expected (num_directions, "),
    ({}, {"W": zeros(1, 20, 0)}, ShapeError, "`W` has shape (1, 20, 0); expected"),
    ({}, {"W": zeros(2, 20, I)}, ShapeError, "`R` has shape (1, 20, 5); expected"),
    ({}, {"R": zeros(1, 20, 4)}, ShapeError, "`R` has shape (1, 20, 4); expected"),
    ({}, {"B": zeros(1, 20)}, ShapeError, "`B` has shape (1, 20); expected"),
    ({}, {"P": zeros(1, 20)}, ShapeError, "`P` has shape (1, 20); expected"),
    ({}, {"W": None}, DTypeError, "`W` is NoneType; expected an array"),
    ({}, {"B": zeros(1, 40, dtype=np.int8)}, DTypeError, "`B` has dtype int8; expected one of"),
    ({}, {"B": np.full((1, 40), "b")}, DTypeError, "`B` has dtype str32; expected one of"),
    # Data
    ({}, {"X": zeros(T, N)}, ShapeError, "`X` has shape (6, 5); expected (T, N, input_size)"),
    (
        {},
        {"X": zeros(T, N, 4)},
        ShapeError,
        "`X` has 4 features, its shape is (6, 5, 4); expected input_size = 3, as `W` has it",
    ),
    (
        {},
        {"X": zeros(T, N, I, dtype=np.float64)},
        DTypeError,
        "`W` has dtype float32 and `X` has dtype float64; expected one dtype",
    ),
    ({}, {"X": [[[1.0]]]}, DTypeError, "`X` is list; expected an array"),
    ({}, {"initial_h": zeros(1, N + 1, H)}, ShapeError, "`initial_h` has shape (1, 6, 5); exp"),
    ({}, {"initial_c": zeros(H)}, ShapeError, "`initial_c` has shape (5,); expected"),
    (
        {"layout": 1},
        {"X": zeros(N, T, I), "initial_h": zeros(2, 1, H)},
        ShapeError,
        "`initial_h.swapaxes(0, 1)` has shape (1, 2, 5); expected",
    ),
    ({}, {"initial_h": zeros(1, N, H, dtype=np.float16)}, DTypeError, "`initial_h` has dtype fl"),
    # Lengths
    (
        {},
        {"sequence_lens": np.array([1, 7, 1, 1, 1])},
        ShapeError,
        "`sequence_lens` has 7 at row 1; expected integers in 0..T = 0..6",
    ),
    (
        {},
        {"sequence_lens": np.array([1, 1, -1, 1, 1])},
        ShapeError,
        "`sequence_lens` has -1 at row 2; expected integers in 0..T = 0..6",
    ),
    ({}, {"sequence_lens": np.array([2])}, ShapeError, "`sequence_lens` has shape (1,); expected"),
    ({}, {"sequence_lens": np.ones(N)}, DTypeError, "`sequence_lens` has dtype float64; expected"),
]


def run_unchecked(
    op: str, attributes: dict[str, Any], inputs: dict[str, Any], opset: int = 14
) -> list[Array]:
    """Run an operator that onnx's checker has not seen, as a stranger's file brings it."""
    good = make_inputs(op, lengths=LENGTHS["ragged"], peephole=op == "LSTM")
    model = make_model(op, good, None, {})
    model.opset_import[0].version = opset
    node = model.graph.node[0]
    node.name = "encoder"
    for name, value in attributes.items():
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    outputs: list[Array] = evaluator(model).run(None, good | inputs)
    return outputs


@pytest.mark.parametrize(("attributes", "inputs", "error", "text"), WRONG)
def test_errors(
    attributes: dict[str, Any], inputs: dict[str, Any], error: type[RnnopError], text: str
) -> None:
    """By rnnop's own classes, with the node's name and ONNX's words."""
    with pytest.raises(error) as caught:
        run_unchecked("LSTM", attributes, inputs)
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"LSTM encoder: {text}")


def test_errors_of_an_opset() -> None:
    with pytest.raises(SpecError, match="GRU encoder: Unrecognized attribute: layout"):
        run_unchecked("GRU", {"layout": 1}, {}, opset=7)
    with pytest.raises(SpecError, match="GRU encoder: No Op registered for GRU"):
        run_unchecked("GRU", {}, {}, opset=0)


@pytest.mark.parametrize("inputs", [["X", "W"], ["X", "", "R"], list("XWR") + ["X"] * 4])
def test_a_wrong_number_of_inputs(inputs: list[str]) -> None:
    node = onnx.helper.make_node("GRU", inputs, ["Y"], hidden_size=H)
    with pytest.raises(SpecError, match="GRU: Node"):
        evaluator(node)


def test_errors_of_rnnop_are_not_hidden() -> None:
    """onnx makes a TypeError of its own of every other; one that is not ours stays onnx's."""
    gru = rnnop.onnx.GRU.create(3, hidden_size=H)
    good = make_inputs("GRU")
    with pytest.raises(TypeError, match="Issues with types") as caught:
        gru.run(*[good["X"]] * 9)
    assert not isinstance(caught.value, RnnopError)


@given(data=st.data(), op=st.sampled_from(sorted(GATES)), opset=st.sampled_from([1, 7, 14, 22]))
def test_what_a_stranger_sends(data: st.DataObject, op: str, opset: int) -> None:
    """Any attribute and any shapes: the operator runs, or says by name what is wrong."""
    known = sorted(onnx.defs.get_schema(op, 22).attributes)
    name = st.sampled_from([*known, "output_sequence", "onnx_node", "run", "self"])
    number = st.integers(-(2**63), 2**63 - 1) | st.floats(width=32)
    texts = st.sampled_from(["forward", "bidirectional", "Tanh", "Elu", "", "\0"])
    values = st.lists(texts, min_size=1, max_size=7) | st.lists(
        st.floats(width=32), min_size=1, max_size=3
    )
    attributes = data.draw(st.dictionaries(name, number | texts | values, max_size=2))
    axes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 6, 15, 20]), max_size=4)
    dtype = st.sampled_from([np.float32, np.float64, np.int32, np.bool_, np.complex64])
    array = st.builds(lambda axes, dtype: np.ones(axes, dtype), axes, dtype)
    names = [each.name for each in make_model(op, make_inputs(op), None, {}).graph.input]
    inputs = data.draw(st.dictionaries(st.sampled_from(names), array, max_size=2))
    count, refusal = 0, ""
    try:
        count = len(run_unchecked(op, attributes, inputs, opset))
    except RnnopError as error:
        refusal = str(error)
    assert count == (3 if op == "LSTM" else 2) or refusal.startswith(f"{op} encoder: ")


# Without onnx


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "rnnop.onnx needs onnx 1.17 or newer, and there is none; get it by: pip install"),
        ("1.16.2", "rnnop.onnx needs onnx 1.17 or newer, and here is 1.16.2; get it by: pip"),
        ("1.9.0rc1", "rnnop.onnx needs onnx 1.17 or newer, and here is 1.9.0rc1; get it by: pip"),
    ],
)
def test_onnx_is_too_old_or_absent(
    found: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = None if found is None else SimpleNamespace(__version__=found)
    monkeypatch.setitem(sys.modules, "onnx", other)
    monkeypatch.delitem(sys.modules, "rnnop.onnx")
    monkeypatch.delitem(sys.modules, "rnnop.onnx.operators")
    with pytest.raises(ImportError, match=re.escape(text)):
        importlib.import_module("rnnop.onnx")
