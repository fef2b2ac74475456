"""PyTorch as an outside oracle of the reference, and as an array family of its own.

First rnnop on NumPy arrays against torch.nn.RNN, GRU and LSTM in float64: every output, and from
random cotangents of all of them every gradient. Then torch tensors through rnnop.
"""

from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.layouts import from_onnx, from_pytorch, to_onnx, to_pytorch

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here: pip install rnnop[torch]")
packing = torch.nn.utils.rnn

Array = np.ndarray[Any, np.dtype[Any]]

# Largest error as a share of the largest entry. Both sides compute in float64 and differ only in
# the order of their sums, of fewer than 100 terms each: measured at most 1.6e-15.
TOLERANCE = 1e-14

T, N, I, H = 5, 4, 3, 4
MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
BOTH = (False, True)


def numpy(value: Any) -> Array:
    array: Array = value.detach().double().numpy() if torch.is_tensor(value) else value
    return array


def assert_agrees(actual: Any, expected: Any, name: str, tolerance: float = TOLERANCE) -> None:
    ours, theirs = numpy(actual), numpy(expected)
    assert ours.shape == theirs.shape, name
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max(), name


def make_module(mode: str, **kwargs: Any) -> Any:
    kind = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}.get(mode, torch.nn.RNN)
    if kind is torch.nn.RNN:
        kwargs["nonlinearity"] = mode.removeprefix("rnn_")
    torch.manual_seed(0)
    return kind(I, H, dtype=torch.float64, **kwargs)


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def random_states(mode: str, module: Any) -> list[Array]:
    """Return h0, and c0 for an LSTM."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = [random(count, N, module.proj_size or H, seed=1)]
    return [*states, random(count, N, H, seed=2)] if mode == "lstm" else states


def check_against_module(
    mode: str,
    module: Any,
    *,
    states: bool = True,
    lengths: list[int] | None = None,
    enforce_sorted: bool = False,
) -> None:
    """Compare all outputs, and the gradients of all inputs, of rnnop and of a torch module."""
    batch_first = module.batch_first
    x = random(*((N, T, I) if batch_first else (T, N, I)), seed=0)
    given = random_states(mode, module) if states else []

    leaves = [torch.tensor(array, requires_grad=True) for array in (x, *given)]
    fed = leaves[0]
    if lengths is not None:
        fed = packing.pack_padded_sequence(
            fed, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=enforce_sorted
        )
    state = None
    if states:
        state = tuple(leaves[1:]) if mode == "lstm" else leaves[1]
    y, finals = module(fed, state)
    if lengths is not None:
        y, _ = packing.pad_packed_sequence(y, batch_first=batch_first, total_length=T)
    expected = [y, *finals] if mode == "lstm" else [y, finals]
    cotangents = [random(*out.shape, seed=10 + k) for k, out in enumerate(expected)]
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(
        expected, leaves + list(parameters.values()), [torch.tensor(d) for d in cotangents]
    )

    weights = from_pytorch(parameters).map(numpy)
    out, vjp = rnnop.rnn_vjp(
        x,
        weights,
        *given,
        mode=mode,
        lengths=lengths,
        batch_first=batch_first,
        backend="reference",
    )
    actual = [out.y, out.h_n] + ([out.c_n] if mode == "lstm" else [])
    for name, ours, theirs in zip(("y", "h_n", "c_n"), actual, expected, strict=False):
        assert_agrees(ours, theirs, name)
    grads = vjp(*cotangents)
    inputs = {"x": grads.x}
    if states:
        inputs["h0"] = grads.h0
        if mode == "lstm":
            inputs["c0"] = grads.c0
    named = inputs | to_pytorch(grads.weights)
    assert list(named) == [*inputs, *parameters]
    for (name, ours), theirs in zip(named.items(), gradients, strict=True):
        assert_agrees(ours, theirs, f"gradient of {name}")


@pytest.mark.parametrize("bias", BOTH, ids=["nobias", "bias"])
@pytest.mark.parametrize("bidirectional", BOTH, ids=["uni", "bi"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_modules(mode: str, num_layers: int, bidirectional: bool, bias: bool) -> None:
    module = make_module(mode, num_layers=num_layers, bidirectional=bidirectional, bias=bias)
    check_against_module(mode, module)


@pytest.mark.parametrize("proj_size", [1, H - 1])
@pytest.mark.parametrize("bias", BOTH, ids=["nobias", "bias"])
@pytest.mark.parametrize("bidirectional", BOTH, ids=["uni", "bi"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_projection(num_layers: int, bidirectional: bool, bias: bool, proj_size: int) -> None:
    module = make_module(
        "lstm", num_layers=num_layers, bidirectional=bidirectional, bias=bias, proj_size=proj_size
    )
    check_against_module("lstm", module)


@pytest.mark.parametrize("states", BOTH, ids=["nostate", "state"])
@pytest.mark.parametrize("batch_first", BOTH, ids=["timefirst", "batchfirst"])
@pytest.mark.parametrize("mode", MODES)
def test_batch_first_and_states(mode: str, batch_first: bool, states: bool) -> None:
    module = make_module(mode, num_layers=2, bidirectional=True, batch_first=batch_first)
    check_against_module(mode, module, states=states)


@pytest.mark.parametrize(
    ("lengths", "enforce_sorted"),
    [
        pytest.param([5, 4, 2, 1], True, id="sorted"),
        pytest.param([2, 5, 1, 4], False, id="unsorted"),
        pytest.param([3, 1, 3, 1], False, id="ties"),
    ],
)
@pytest.mark.parametrize("states", BOTH, ids=["nostate", "state"])
@pytest.mark.parametrize("batch_first", BOTH, ids=["timefirst", "batchfirst"])
@pytest.mark.parametrize("bidirectional", BOTH, ids=["uni", "bi"])
@pytest.mark.parametrize(
    ("mode", "proj_size"), [(mode, 0) for mode in MODES] + [("lstm", 2)], ids=str
)
def test_packed_sequences(
    mode: str,
    proj_size: int,
    bidirectional: bool,
    batch_first: bool,
    states: bool,
    lengths: list[int],
    enforce_sorted: bool,
) -> None:
    module = make_module(
        mode,
        num_layers=2,
        bidirectional=bidirectional,
        batch_first=batch_first,
        **({"proj_size": proj_size} if proj_size else {}),
    )
    check_against_module(
        mode, module, states=states, lengths=lengths, enforce_sorted=enforce_sorted
    )


# Packed sequences


@pytest.mark.parametrize("batch_first", BOTH, ids=["timefirst", "batchfirst"])
@pytest.mark.parametrize(
    ("lengths", "enforce_sorted"),
    [
        pytest.param([5, 3, 2, 1], True, id="sorted"),
        pytest.param([2, 5, 1, 4], False, id="unsorted"),
    ],
)
def test_pack_and_unpack(lengths: list[int], enforce_sorted: bool, batch_first: bool) -> None:
    x = torch.tensor(random(*((N, T, I) if batch_first else (T, N, I)), seed=0))
    theirs = packing.pack_padded_sequence(
        x, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=enforce_sorted
    )
    ours = rnnop.pack(x, lengths, batch_first=batch_first)
    assert torch.equal(ours.data, theirs.data)
    assert ours.batch_sizes.tolist() == theirs.batch_sizes.tolist()
    for name in ("sorted_indices", "unsorted_indices"):
        # torch leaves out the order of what was sorted already.
        order = getattr(theirs, name)
        expected = list(range(N)) if order is None else order.tolist()
        assert getattr(ours, name).tolist() == expected

    options = {"batch_first": batch_first, "padding_value": -7.0, "total_length": T + 2}
    padded, _ = packing.pad_packed_sequence(theirs, **options)
    assert torch.equal(rnnop.unpack(ours, **options), padded)
    assert torch.equal(rnnop.unpack(rnnop.PackedSequence(*theirs), **options), padded)
    returned = packing.PackedSequence(
        ours.data,
        *(torch.as_tensor(index) for index in ours[1:]),
    )
    assert torch.equal(packing.pad_packed_sequence(returned, **options)[0], padded)


@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [3, 5, 1, 3]], ids=["sorted", "unsorted"])
def test_torch_packed_sequence_in_and_out(lengths: list[int]) -> None:
    module = make_module("lstm", num_layers=2, bidirectional=True)
    given = random_states("lstm", module)
    x = torch.tensor(random(T, N, I, seed=0), requires_grad=True)
    packed = packing.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    states = [torch.tensor(state) for state in given]
    expected, (h_n, c_n) = module(packed, tuple(states))
    weights = from_pytorch(dict(module.named_parameters()))
    out = rnnop.rnn(
        rnnop.PackedSequence(*packed), weights, *states, mode="lstm", backend="reference"
    )
    assert out.y.batch_sizes is packed.batch_sizes
    assert_agrees(out.y.data, expected.data, "y")
    assert_agrees(out.h_n, h_n, "h_n")
    assert_agrees(out.c_n, c_n, "c_n")
    cotangent = torch.tensor(random(*expected.data.shape, seed=3))
    (ours,) = torch.autograd.grad(out.y.data, x, cotangent, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected.data, x, cotangent)
    assert_agrees(ours, theirs, "gradient of x")


# Layouts of torch tensors


@pytest.mark.parametrize(
    ("mode", "options"),
    [(mode, {}) for mode in MODES] + [("lstm", {"proj_size": 2})],
    ids=[*MODES, "projection"],
)
def test_layout_of_a_module(mode: str, options: dict[str, Any]) -> None:
    module = make_module(mode, num_layers=2, bidirectional=True, **options)
    state = module.state_dict()
    weights = from_pytorch(module)
    assert weights.num_parameters == sum(p.numel() for p in module.parameters())
    returned = to_pytorch(weights)
    assert list(returned) == list(state)
    for name, tensor in returned.items():
        assert tensor.data_ptr() == state[name].data_ptr()
    module.load_state_dict(returned, strict=True)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_onnx_layout_of_tensors(mode: str, dtype: str) -> None:
    weights = rnnop.init_weights(
        mode,
        input_size=I,
        hidden_size=H,
        bidirectional=True,
        peephole=mode == "lstm",
        dtype="float64",
        seed=0,
    )
    tensors = weights.map(lambda array: torch.tensor(array).to(getattr(torch, dtype)))
    made = to_onnx(tensors, mode=mode)
    for tensor, array in zip(made, to_onnx(weights, mode=mode), strict=True):
        if array is None:
            assert tensor is None
        else:
            assert torch.equal(tensor, torch.tensor(array).to(getattr(torch, dtype)))
    for (name, back), (_, tensor) in zip(
        from_onnx(*made, mode=mode).named(), tensors.named(), strict=True
    ):
        assert back.dtype == tensor.dtype, name
        assert torch.equal(back, tensor), name


# Torch tensors through the reference: everything it can do, in few networks.

HOLES = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0]], np.bool_)
RESETS = np.array([[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]], np.bool_)
LSTM = ("HardSigmoid", ("Elu", 0.7), "Softsign")
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rnn_tanh": ("rnn_tanh", {"bias": False}, {}),
    "rnn_relu": ("rnn_relu", {}, {"lengths": [0, 5, 2, 3]}),
    "gru": ("gru", {}, {"mask": HOLES, "resets": RESETS}),
    "gru-reset-before": (
        "gru",
        {},
        {"mask": HOLES, "reset_after": False, "masked_output": "hold", "gate_clip": 0.9},
    ),
    "lstm": ("lstm", {}, {"mask": HOLES, "resets": RESETS, "return_cell_states": True}),
    # Bounds of the cell clip that the halves hold: c0 is rounded to them before the arithmetic.
    "lstm-everything": (
        "lstm",
        {"proj_size": 2, "peephole": True},
        {"mask": HOLES, "cell_clip": (-0.3125, 0.375), "proj_clip": 0.2, "activations": LSTM},
    ),
    "lstm-coupled": (
        "lstm",
        {"peephole": True},
        {"input_forget": True, "dropout": 0.4, "training": True, "seed": 7},
    ),
}


class Case:
    """One of the networks, as NumPy arrays and as torch tensors that require gradients."""

    def __init__(self, name: str) -> None:
        self.mode, options, call = NETWORKS[name]
        self.call = {"backend": "reference", **call}
        bidirectional = options.get("proj_size") is None
        self.weights = rnnop.init_weights(
            self.mode,
            input_size=I,
            hidden_size=H,
            num_layers=2,
            bidirectional=bidirectional,
            dtype="float64",
            seed=0,
            **options,
        )
        count = self.weights.num_layers * self.weights.num_directions
        sizes = [options.get("proj_size", H)] + [H] * (self.mode == "lstm")
        self.states = [random(count, N, size, seed=k) for k, size in enumerate(sizes)]
        self.x = random(T, N, I, seed=5)
        self.tensors = [torch.tensor(a, requires_grad=True) for a in (self.x, *self.states)]
        self.tensor_weights = self.weights.map(lambda a: torch.tensor(a, requires_grad=True))

    def on_numpy(self) -> tuple[list[Array], list[Array], dict[str, Array]]:
        """Return outputs, cotangents for them, and the gradients by name."""
        out, vjp = rnnop.rnn_vjp(self.x, self.weights, *self.states, mode=self.mode, **self.call)
        outputs = [array for array in out if array is not None]
        cotangents = [random(*array.shape, seed=20 + k) for k, array in enumerate(outputs)]
        return outputs, cotangents, named_gradients(vjp(*cotangents))

    def leaves(self) -> list[Any]:
        return [*self.tensors, *(tensor for _, tensor in self.tensor_weights.named())]


def named_gradients(grads: rnnop.RNNGrads) -> dict[str, Any]:
    states = {"h0": grads.h0} | ({} if grads.c0 is None else {"c0": grads.c0})
    return {"x": grads.x, **states, **dict(grads.weights.named())}


@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_give_what_numpy_gives(name: str) -> None:
    case = Case(name)
    expected, cotangents, gradients = case.on_numpy()
    x, *states = case.tensors
    with torch.no_grad():
        out, vjp = rnnop.rnn_vjp(x, case.tensor_weights, *states, mode=case.mode, **case.call)
        grads = named_gradients(vjp(*map(torch.tensor, cotangents)))
    actual = [tensor for tensor in out if tensor is not None]
    for k, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert type(ours) is torch.Tensor
        assert ours.is_contiguous()
        assert_agrees(ours, theirs, out._fields[k])
    assert list(grads) == list(gradients)
    for name, ours in grads.items():
        assert type(ours) is torch.Tensor
        assert_agrees(ours, gradients[name], f"gradient of {name}")


@pytest.mark.parametrize("name", NETWORKS)
def test_autograd_through_the_reference(name: str) -> None:
    case = Case(name)
    _, cotangents, gradients = case.on_numpy()
    x, *states = case.tensors
    out = rnnop.rnn(x, case.tensor_weights, *states, mode=case.mode, **case.call)
    outputs = [tensor for tensor in out if tensor is not None]
    found = torch.autograd.grad(outputs, case.leaves(), [torch.tensor(d) for d in cotangents])
    for ours, (name, theirs) in zip(found, gradients.items(), strict=True):
        assert_agrees(ours, theirs, f"gradient of {name}")


DOUBLE = {
    "rnn_tanh": ("rnn_tanh", {}),
    "gru": ("gru", {}),
    "gru-reset-before": ("gru", {"reset_after": False}),
    "lstm": ("lstm", {"cell_clip": 0.3}),
}


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["random", "zero"])
@pytest.mark.parametrize("name", DOUBLE)
def test_double_backward(name: str, scale: float) -> None:
    """First and second derivatives against differences, with zero weights where gates are at 0."""
    mode, call = DOUBLE[name]
    weights = rnnop.init_weights(mode, input_size=1, hidden_size=1, dtype="float64", seed=4)
    leaves = [torch.tensor(random(3, 2, 1, seed=0)), torch.tensor(random(1, 2, 1, seed=1))]
    leaves += [scale * torch.tensor(array) for _, array in weights.named()]
    for leaf in leaves:
        leaf.requires_grad_()

    def function(x: Any, h0: Any, *arrays: Any) -> tuple[Any, ...]:
        fields = dict(zip(("w_ih", "w_hh", "b_ih", "b_hh"), arrays, strict=True))
        net = rnnop.RNNWeights(**{field: (array,) for field, array in fields.items()})
        out = rnnop.rnn(x, net, h0, mode=mode, lengths=[3, 2], backend="reference", **call)
        return tuple(tensor for tensor in out if tensor is not None)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_gradient_of_gates_at_zero(mode: str) -> None:
    """With zero weights every gate is at exactly 0, where |x| and min(x, 0) have a corner."""
    module = make_module(mode, num_layers=2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    x, h0 = (torch.tensor(random(*shape, seed=0)) for shape in ((T, N, I), (2, N, H)))
    h0.requires_grad_()
    states = (h0, torch.zeros_like(h0)) if mode == "lstm" else (h0,)
    expected, _ = module(x, states if mode == "lstm" else h0)
    weights = from_pytorch(dict(module.named_parameters()))
    actual = rnnop.rnn(x, weights, *states, mode=mode, backend="reference").y
    assert_agrees(actual, expected, "y")
    cotangent = torch.tensor(random(T, N, H, seed=3))
    leaves = [h0, *(tensor for _, tensor in weights.named())]
    ours = torch.autograd.grad(actual, leaves, cotangent)
    theirs = torch.autograd.grad(expected, leaves, cotangent)
    for k in range(len(leaves)):
        assert_agrees(ours[k], theirs[k], f"gradient {k}")


ACTIVATIONS = {
    "Sigmoid": (),
    "Tanh": (),
    "Relu": (),
    "Affine": (0.5, 0.25),
    "LeakyRelu": (0.25,),
    "ThresholdedRelu": (0.5,),
    "ScaledTanh": (0.5, 2.0),
    "HardSigmoid": (0.25, 0.5),
    "Elu": (0.5,),
    "Softsign": (),
    "Softplus": (),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_autograd_of_activations(name: str) -> None:
    """Also at their corners: 0, the threshold 0.5, and both ends of the hard sigmoid, -2 and 2."""
    points = np.array([-100.0, -2.0, -0.5, 0.0, 0.5, 2.0, 100.0])
    one = np.ones((1, 1))
    weights = rnnop.RNNWeights((one,), (0 * one,))
    call: dict[str, Any] = {
        "mode": "rnn_tanh",
        "activations": [(name, *ACTIVATIONS[name])],
        "backend": "reference",
    }
    x = points.reshape(1, -1, 1)
    out, vjp = rnnop.rnn_vjp(x, weights, **call)
    expected = vjp(np.ones_like(out.y)).x
    tensor = torch.tensor(x, requires_grad=True)
    y = rnnop.rnn(tensor, weights.map(torch.tensor), **call).y
    (gradient,) = torch.autograd.grad(y.sum(), tensor)
    assert_agrees(y, out.y, "y")
    assert_agrees(gradient, expected, "gradient")


# Half precision: the arithmetic is float32, every result is rounded once. A rounding to nearest is
# off by half a unit in the last place; float32 was measured to add at most 6e-8 of the largest.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
FLOAT32 = 3e-7


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision(name: str, dtype: str) -> None:
    case = Case(name)
    half = getattr(torch, dtype)
    cotangents = case.on_numpy()[1]

    def rounded(tensor: Any) -> Any:
        return torch.as_tensor(tensor).detach().to(half)

    def check(ours: Any, theirs: Array, name: str) -> None:
        assert ours.dtype == half, name
        bound = ROUNDING[dtype] * np.abs(theirs) + FLOAT32 * np.abs(theirs).max()
        assert np.all(np.abs(numpy(ours) - theirs) <= bound), name

    # The same half precision numbers, in float64 on NumPy.
    inputs = [rounded(array).requires_grad_() for array in (case.x, *case.states)]
    weights = case.weights.map(lambda array: rounded(array).requires_grad_())
    # On a grid this coarse the sums of held cotangents are exact.
    seeds = [rounded(np.round(8 * d) / 8) for d in cotangents]
    wide, wide_vjp = rnnop.rnn_vjp(
        numpy(inputs[0]),
        weights.map(numpy),
        *map(numpy, inputs[1:]),
        mode=case.mode,
        **case.call,
    )
    expected = named_gradients(wide_vjp(*map(numpy, seeds)))

    out, vjp = rnnop.rnn_vjp(inputs[0], weights, *inputs[1:], mode=case.mode, **case.call)
    outputs = [tensor for tensor in out if tensor is not None]
    for k, theirs in enumerate(array for array in wide if array is not None):
        check(outputs[k], theirs, out._fields[k])
    for name, ours in named_gradients(vjp(*seeds)).items():
        check(ours, expected[name], f"gradient of {name}")
    leaves = [*inputs, *(tensor for _, tensor in weights.named())]
    found = torch.autograd.grad(outputs, leaves, seeds)
    for ours, (name, theirs) in zip(found, expected.items(), strict=True):
        check(ours, theirs, f"gradient of {name} by autograd")


@pytest.mark.parametrize("dtype", ROUNDING)
def test_held_cotangents_add_up_in_float32(dtype: str) -> None:
    """Added up in half precision they would stick at 2048, or 256."""
    half, steps = getattr(torch, dtype), 3000
    mask = np.arange(steps)[:, None] == 0
    one = torch.ones((1, 1), dtype=half)
    weights = rnnop.RNNWeights((one,), (one,))
    out, vjp = rnnop.rnn_vjp(
        torch.zeros((steps, 1, 1), dtype=half),
        weights,
        mode="rnn_tanh",
        mask=mask,
        masked_output="hold",
        backend="reference",
    )
    gradient = float(vjp(torch.ones_like(out.y)).x[0, 0, 0])
    assert abs(gradient - steps) <= ROUNDING[dtype] * steps


# Families are not mixed.


def test_mixed_families_are_refused() -> None:
    case = Case("lstm")
    x, h0, c0 = case.tensors
    calls: dict[str, tuple[Any, ...]] = {
        "`weights.w_ih[0]` is a NumPy array and `x` is a PyTorch": (x, case.weights, h0, c0),
        "`weights.w_ih[0]` is a PyTorch array and `x` is a NumPy": (case.x, case.tensor_weights),
        "`h0` is a NumPy array and `x` is a PyTorch": (x, case.tensor_weights, case.states[0], c0),
        "`c0` is a NumPy array and `x` is a PyTorch": (x, case.tensor_weights, h0, case.states[1]),
    }
    for fragment, arguments in calls.items():
        with pytest.raises(rnnop.DTypeError) as caught:
            rnnop.rnn(*arguments, mode="lstm")
        assert fragment in str(caught.value)
    _, vjp = rnnop.rnn_vjp(x, case.tensor_weights, mode="lstm")
    with pytest.raises(rnnop.DTypeError, match="`dy` is a NumPy array and `x` is a PyTorch"):
        vjp(np.zeros((T, N, 2 * H)))
    weights = [np.zeros((1, 3 * H, size)) for size in (I, H)]
    with pytest.raises(rnnop.DTypeError, match="`R` is a NumPy array and `W` is a PyTorch"):
        from_onnx(torch.tensor(weights[0]), weights[1], mode="gru")


def test_the_comparison_can_fail() -> None:
    golden = random(3, 4, seed=0)
    assert_agrees(torch.tensor(golden), golden, "same")
    for wrong in (golden * (1 + 1e-13), golden[::-1].copy(), golden[:1], golden * np.nan):
        with pytest.raises(AssertionError):
            assert_agrees(torch.tensor(wrong), golden, "wrong")
