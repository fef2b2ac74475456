"""ONNX Runtime's CPU operators RNN, GRU and LSTM as an outside oracle of the reference.

Every test builds a model of one node in ONNX's own words, runs it, and runs rnnop on the same
float32 numbers: ONNX Runtime has no float64 kernel for these operators. Where it leaves ONNX's
text, or the text is silent, the case is left out of the comparison and what rnnop does is pinned
by hand: see the end of this file.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.layouts import from_onnx, to_onnx

WHY = "ONNX Runtime is the oracle here: pip install rnnop[onnx]"
onnx = pytest.importorskip("onnx", reason=WHY)
onnxruntime = pytest.importorskip("onnxruntime", reason=WHY)

Array = np.ndarray[Any, np.dtype[Any]]

# Largest error as a share of the largest entry, float32 against float32: measured at most 1.2e-6.
TOLERANCE = 6e-6

# Opset 14 is the first with `layout`; models of IR version 8 are read by every ONNX Runtime since.
OPSET, IR_VERSION = 14, 8

T, N, I, H = 6, 5, 3, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
MODES = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}
POSITIONS = {"RNN": "f", "GRU": "fg", "LSTM": "fgh"}
USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")

# ONNX's list, with parameters that are nobody's default.
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "Sigmoid": (),
    "Tanh": (),
    "Relu": (),
    "Affine": (0.8, 0.1),
    "LeakyRelu": (0.3,),
    "ThresholdedRelu": (0.2,),
    "ScaledTanh": (0.9, 1.2),
    "HardSigmoid": (0.3, 0.4),
    "Elu": (0.7,),
    "Softsign": (),
    "Softplus": (),
}
LENGTHS = {
    "full": None,
    "ragged": [6, 2, 3, 1, 4],
    "zeros": [0, 6, 0, 3, 1],
    "short": [3, 2, 0, 1, 3],
    "nothing": [0, 0, 0, 0, 0],
}
DIRECTIONS = ("forward", "reverse", "bidirectional")
VARIANTS = {
    "RNN": ("RNN", {}),
    "GRU": ("GRU", {}),
    "GRU-linear-before-reset": ("GRU", {"linear_before_reset": 1}),
    "LSTM": ("LSTM", {}),
    "LSTM-input-forget": ("LSTM", {"input_forget": 1}),
}


def make_inputs(
    op: str,
    direction: str = "forward",
    *,
    bias: bool = True,
    peephole: bool = False,
    states: bool = True,
    lengths: list[int] | None = None,
    seed: int = 0,
) -> dict[str, Array]:
    """Draw the inputs of an operator, by ONNX's names."""
    generator = np.random.default_rng(seed)

    def draw(size: float, *shape: int) -> Array:
        return generator.uniform(-size, size, shape).astype(np.float32)

    directions, rows = 2 if direction == "bidirectional" else 1, GATES[op] * H
    inputs = {
        "X": draw(1.0, T, N, I),
        "W": draw(0.7, directions, rows, I),
        "R": draw(0.5, directions, rows, H),
    }
    if bias:
        inputs["B"] = draw(0.5, directions, 2 * rows)
    if lengths is not None:
        inputs["sequence_lens"] = np.array(lengths, np.int32)
    if states:
        inputs["initial_h"] = draw(1.0, directions, N, H)
    if states and op == "LSTM":
        inputs["initial_c"] = draw(1.0, directions, N, H)
    if peephole:
        inputs["P"] = draw(0.5, directions, 3 * H)
    return inputs


Activations = list[tuple[Any, ...]] | None


def make_model(
    op: str,
    inputs: dict[str, Array],
    activations: Activations,
    attributes: dict[str, Any],
    opset: int = OPSET,
) -> Any:
    """Return a model of one operator: to Y, Y_h and, of an LSTM, Y_c."""
    if activations is not None:
        attributes = {"activations": [name for name, *_ in activations], **attributes}
        # A flat list for all functions that take the parameter, in their order.
        for place, name in ((1, "activation_alpha"), (2, "activation_beta")):
            values = [entry[place] for entry in activations if len(entry) > place]
            if values:
                attributes[name] = values
    names = [name if name in inputs else "" for name in INPUTS[: 8 if op == "LSTM" else 6]]
    outputs = {"Y": 4, "Y_h": 3} | ({"Y_c": 3} if op == "LSTM" else {})
    hidden_size = inputs["R"].shape[2]
    types = {
        name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()
    }
    node = onnx.helper.make_node(op, names, list(outputs), hidden_size=hidden_size, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "one_operator",
        [
            onnx.helper.make_tensor_value_info(name, types[name], inputs[name].shape)
            for name in names
            if name
        ],
        [
            onnx.helper.make_tensor_value_info(name, types["X"], [None] * axes)
            for name, axes in outputs.items()
        ],
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def run_onnxruntime(
    op: str, inputs: dict[str, Array], activations: Activations, attributes: dict[str, Any]
) -> list[Array]:
    """Return Y, Y_h and, of an LSTM, Y_c."""
    model = make_model(op, inputs, activations, attributes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(None, inputs)
    return found


def run_rnnop(
    op: str, inputs: dict[str, Array], activations: Activations, attributes: dict[str, Any]
) -> list[Array]:
    """Return the same in ONNX's shapes, from the call that `from_onnx` documents."""
    mode = MODES[op]
    weights = from_onnx(inputs["W"], inputs["R"], inputs.get("B"), inputs.get("P"), mode=mode)
    options: dict[str, Any] = {"activations": activations}
    if op == "GRU":
        options["reset_after"] = bool(attributes.get("linear_before_reset", 0))
    if op == "LSTM":
        options["input_forget"] = bool(attributes.get("input_forget", 0))
    out = rnnop.rnn(
        inputs["X"],
        weights,
        inputs.get("initial_h"),
        inputs.get("initial_c"),
        mode=mode,
        lengths=inputs.get("sequence_lens"),
        reverse=attributes.get("direction") == "reverse",
        gate_clip=attributes.get("clip"),
        backend="reference",
        **options,
    )
    num_steps, batch_size, _ = inputs["X"].shape
    y = out.y.reshape(num_steps, batch_size, weights.num_directions, -1).transpose(0, 2, 1, 3)
    return [y, out.h_n] + ([] if out.c_n is None else [out.c_n])


def assert_agrees(actual: Array, expected: Array, name: str) -> None:
    assert actual.shape == expected.shape, name
    assert actual.dtype == expected.dtype == np.float32, name
    assert np.abs(actual - expected).max() <= TOLERANCE * np.abs(expected).max(), name


def check(
    op: str, inputs: dict[str, Array], activations: Activations = None, **attributes: Any
) -> None:
    """Compare Y, Y_h and Y_c of both."""
    expected = run_onnxruntime(op, inputs, activations, attributes)
    actual = run_rnnop(op, inputs, activations, attributes)
    initial = [inputs.get("initial_h"), inputs.get("initial_c")]
    lengths = inputs.get("sequence_lens", np.full(inputs["X"].shape[1], T))
    some, none = lengths > 0, lengths == 0
    assert_agrees(actual[0], expected[0], "Y")
    for name, ours, theirs, given in zip(
        ("Y_h", "Y_c"), actual[1:], expected[1:], initial, strict=False
    ):
        if some.any():
            assert_agrees(ours[:, some], theirs[:, some], name)
        # A row without a step: the text is silent, ONNX Runtime returns zeros and drops the
        # initial state, rnnop returns the initial state.
        passed = np.zeros_like(ours) if given is None else given
        np.testing.assert_array_equal(ours[:, none], passed[:, none], name)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("states", [False, True], ids=["nostate", "state"])
@pytest.mark.parametrize("bias", [False, True], ids=["nobias", "bias"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_directions_lengths_and_states(
    variant: str, direction: str, bias: bool, states: bool, lengths: str
) -> None:
    op, attributes = VARIANTS[variant]
    inputs = make_inputs(op, direction, bias=bias, states=states, lengths=LENGTHS[lengths])
    check(op, inputs, direction=direction, **attributes)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("input_forget", [0, 1])
def test_peepholes(input_forget: int, direction: str) -> None:
    inputs = make_inputs("LSTM", direction, peephole=True, lengths=LENGTHS["ragged"])
    check("LSTM", inputs, direction=direction, input_forget=input_forget)


@pytest.mark.parametrize("clip", [0.1, 0.6])
@pytest.mark.parametrize("bias", [False, True], ids=["nobias", "bias"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_clip(variant: str, direction: str, bias: bool, clip: float) -> None:
    """The clip of every gate: after bias and peephole, before the activation."""
    op, attributes = VARIANTS[variant]
    inputs = make_inputs(op, direction, bias=bias, peephole=op == "LSTM", lengths=LENGTHS["ragged"])
    activations = None
    if op == "LSTM":
        # ONNX Runtime does not clip the argument of h, see test_clip_of_h. This h is constant
        # from the bounds of the clip on, so that it cannot make a difference.
        saturated = ("HardSigmoid", 0.5 / clip, 0.5)
        activations = [("Sigmoid",), ("Tanh",), saturated] * inputs["W"].shape[0]
    attributes = {"direction": direction, **attributes}
    check(op, inputs, activations, clip=clip, **attributes)
    with_clip = run_rnnop(op, inputs, activations, {"clip": clip, **attributes})
    without = run_rnnop(op, inputs, activations, attributes)
    assert np.abs(with_clip[0] - without[0]).max() > 0.05  # the clip was not idle


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("variant", "place"),
    [
        (variant, place)
        for variant, (op, _) in VARIANTS.items()
        for place in range(len(POSITIONS[op]))
    ],
)
def test_activations(variant: str, place: int, name: str) -> None:
    op, attributes = VARIANTS[variant]
    activations: list[tuple[Any, ...]] = [(usual,) for usual in USUAL[op]]
    activations[place] = (name, *ACTIVATIONS[name])
    inputs = make_inputs(op, peephole=op == "LSTM", lengths=LENGTHS["ragged"])
    check(op, inputs, activations, **attributes)


@pytest.mark.parametrize("shift", range(len(ACTIVATIONS)))
@pytest.mark.parametrize("op", GATES)
def test_activations_of_each_direction(op: str, shift: int) -> None:
    """All of them, each in every place of both directions: alphas and betas are one flat list."""
    names = list(ACTIVATIONS)
    count = 2 * len(POSITIONS[op])
    chosen = [names[(shift + 2 * k) % len(names)] for k in range(count)]
    activations = [(name, *ACTIVATIONS[name]) for name in chosen]
    inputs = make_inputs(op, "bidirectional", lengths=LENGTHS["ragged"])
    check(op, inputs, activations, direction="bidirectional")


# Affine, ThresholdedRelu and ScaledTanh are not here, see test_default_parameters.
@pytest.mark.parametrize(
    "name", sorted(set(ACTIVATIONS) - {"Affine", "ThresholdedRelu", "ScaledTanh"})
)
@pytest.mark.parametrize("op", GATES)
def test_parameters_left_out(op: str, name: str) -> None:
    activations: list[tuple[Any, ...]] = [(usual,) for usual in USUAL[op]]
    activations[-1] = (name,)
    check(op, make_inputs(op), activations)


@pytest.mark.parametrize(
    ("mode", "linear_before_reset"),
    [("rnn_tanh", None), ("rnn_relu", None), ("gru", 0), ("gru", 1), ("lstm", None)],
)
@pytest.mark.parametrize("bias", ["none", "input", "recurrent", "double"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["uni", "bi"])
def test_weights_of_rnnop(
    mode: str, linear_before_reset: int | None, bias: str, bidirectional: bool
) -> None:
    """Networks that start as rnnop's own reach ONNX Runtime through `to_onnx`."""
    weights = rnnop.init_weights(
        mode,
        input_size=I,
        hidden_size=H,
        bidirectional=bidirectional,
        peephole=mode == "lstm",
        seed=0,
    )
    if bias not in ("input", "double"):
        weights = dataclasses.replace(weights, b_ih=None)
    if bias not in ("recurrent", "double"):
        weights = dataclasses.replace(weights, b_hh=None)
    x = make_inputs("RNN")["X"]
    made = to_onnx(weights, mode=mode)
    inputs = {"X": x} | {k: v for k, v in made._asdict().items() if v is not None}
    op = {"gru": "GRU", "lstm": "LSTM"}.get(mode, "RNN")
    attributes: dict[str, Any] = {"direction": "bidirectional" if bidirectional else "forward"}
    options = {}
    if linear_before_reset is not None:
        attributes["linear_before_reset"] = linear_before_reset
        options["reset_after"] = bool(linear_before_reset)
    activations: Activations = [("Relu",)] * weights.num_directions if mode == "rnn_relu" else None
    y, *states = run_onnxruntime(op, inputs, activations, attributes)
    out = rnnop.rnn(x, weights, mode=mode, backend="reference", **options)
    assert_agrees(out.y, y.transpose(0, 2, 1, 3).reshape(out.y.shape), "Y")
    for ours, theirs in zip((out.h_n, out.c_n), states, strict=False):
        assert_agrees(ours, theirs, "state")


# Where ONNX Runtime cannot be the oracle. What rnnop does is pinned by hand.


def step(name: str, *parameters: float, at: list[float]) -> Array:
    """Return an activation as a plain RNN applies it to its input."""
    one = np.ones((1, 1))
    y: Array = rnnop.rnn(
        np.array(at).reshape(-1, 1, 1),
        rnnop.RNNWeights((one,), (0 * one,)),
        mode="rnn_tanh",
        activations=[(name, *parameters)],
        backend="reference",
    ).y.ravel()
    return y


def test_default_parameters() -> None:
    """ONNX: the defaults "are the same as of corresponding ONNX operators".

    ONNX Runtime has 0 for what it does not list: every parameter of Affine, ThresholdedRelu and
    ScaledTanh. Affine and ScaledTanh are no ONNX operators any more; here they default to doing
    nothing beside their name.
    """
    for name in ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu"):
        attributes = onnx.defs.get_schema(name, OPSET).attributes
        activation = rnnop.Activation(name)
        for parameter in ("alpha", "beta"):
            ours = getattr(activation, parameter)
            if parameter in attributes:
                assert np.float32(ours) == np.float32(attributes[parameter].default_value.f)
            else:
                assert ours is None
    x = [-1.5, 0.25, 2.0]
    np.testing.assert_array_equal(step("Affine", at=x), x)
    np.testing.assert_array_equal(step("ScaledTanh", at=x), np.tanh(x))
    np.testing.assert_array_equal(step("ThresholdedRelu", at=x), [0.0, 0.0, 2.0])


def test_thresholded_relu_at_its_threshold() -> None:
    """ONNX's text of RNN, GRU and LSTM: "x if x >= alpha else 0"; ONNX Runtime has x > alpha."""
    np.testing.assert_array_equal(
        step("ThresholdedRelu", 0.5, at=[0.25, 0.5, 0.75]), [0, 0.5, 0.75]
    )


def test_softplus_does_not_overflow() -> None:
    """log(1 + e^x) is 100 at 100; in float32, ONNX Runtime has infinity from 88.8 on."""
    np.testing.assert_array_equal(step("Softplus", at=[-1000.0, 100.0, 1000.0]), [0, 100, 1000])


def test_clip_of_h() -> None:
    """ONNX's text: the clip "is applied to the input of activations", so to that of h too.

    ONNX Runtime's CPU kernel clips the gates and not the argument of h.
    """
    clip, two = 0.5, np.full((1, 1, 1), 2.0)
    # W, B = 0 leave every gate at its clip of B: i = f = o = s(0.5), g = tanh(0.5).
    weights = from_onnx(np.zeros((1, 4, 1)), np.zeros((1, 4, 1)), np.full((1, 8), 3.0), mode="lstm")
    out = rnnop.rnn(two, weights, 0 * two, two, mode="lstm", gate_clip=clip, backend="reference")
    s = 1 / (1 + np.exp(-clip))
    c = s * 2.0 + s * np.tanh(clip)
    assert c > clip
    np.testing.assert_allclose(out.c_n.item(), c, rtol=1e-15)
    np.testing.assert_allclose(out.h_n.item(), s * np.tanh(clip), rtol=1e-15)


def test_the_comparison_can_fail() -> None:
    golden = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    assert_agrees(golden, golden, "same")
    for wrong in (
        golden * np.float32(1 + 1e-5),
        golden[::-1],
        golden[:1],
        golden * np.float32(np.nan),
        golden.astype(np.float64),
    ):
        with pytest.raises(AssertionError):
            assert_agrees(wrong, golden, "wrong")
