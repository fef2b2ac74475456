"""`rnnop.torch.RNN`, `GRU` and `LSTM` beside torch.nn's: one table, every row run on both.

A row is a constructor call and a forward. Both modules have the same weights, so they must return
the same, and give the same gradients, or fail in the same way. Where they do not, `DIFFERENT` says
what ours does, and why.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import rnnop

torch = pytest.importorskip(
    "torch", reason="there is nothing to adapt to: pip install rnnop[torch]"
)

import rnnop.torch  # noqa: E402

packing = torch.nn.utils.rnn
KINDS = ("RNN", "GRU", "LSTM")
T, N, I, H = 5, 3, 3, 4

every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass
class Row:
    """A constructor call, and what the module is given; `only` names the kinds that it is for."""

    arguments: tuple[Any, ...] = (I, H)
    options: dict[str, Any] = field(default_factory=dict)
    given: Callable[[Any], tuple[Any, ...]] = lambda module: (x(),)
    only: tuple[str, ...] = KINDS


def x(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape or (T, N, I), generator=generator).to(dtype).requires_grad_()


def states(module: Any, rows: int | None = N, **other: Any) -> Any:
    """Return the initial state that a module takes, without the axis N for None."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if rows is None else (rows,)
    h0 = x(count, *batch, module.proj_size or module.hidden_size, **other)
    if not isinstance(module, torch.nn.LSTM | rnnop.torch.LSTM):
        return h0
    return h0, x(count, *batch, module.hidden_size, **other)


def packed(lengths: list[int], enforce_sorted: bool = False, batch_first: bool = False) -> Any:
    padded = x(len(lengths), T, I) if batch_first else x(T, len(lengths), I)
    return packing.pack_padded_sequence(
        padded, torch.tensor(lengths), enforce_sorted=enforce_sorted, batch_first=batch_first
    )


def strided(tensor: Any) -> Any:
    """Return an equal tensor with gaps in between."""
    around = torch.zeros([2 * size for size in tensor.shape])
    around[tuple(slice(None, None, 2) for _ in tensor.shape)] = tensor.detach()
    return around[tuple(slice(None, None, 2) for _ in tensor.shape)].requires_grad_()


def with_states(data: Callable[[], Any], rows: int | None = N) -> Callable[[Any], tuple[Any, ...]]:
    return lambda module: (data(), states(module, rows))


LSTM, NOT_LSTM = ("LSTM",), ("RNN", "GRU")
half, bfloat16, float64 = torch.float16, torch.bfloat16, torch.float64

ROWS: dict[str, Row] = {
    # Arguments
    "plain": Row(),
    "no_arguments": Row(()),
    "sizes_by_name": Row((), {"input_size": I, "hidden_size": H}),
    "layers": Row((I, H, 3)),
    "relu": Row((I, H, 1, "relu"), only=("RNN",)),
    "relu_by_name": Row((I, H), {"nonlinearity": "relu"}, only=("RNN",)),
    "nonlinearity_unknown": Row((I, H), {"nonlinearity": "sin"}, only=("RNN",)),
    "nonlinearity_elsewhere": Row((I, H), {"nonlinearity": "relu"}, only=("GRU", "LSTM")),
    "no_bias": Row((I, H), {"bias": False}),
    "no_bias_by_place": Row((I, H, 2, False, True), only=("GRU", "LSTM")),
    "bias_int": Row((I, H), {"bias": 1}),
    "batch_first": Row((I, H), {"batch_first": True}, lambda m: (x(N, T, I), states(m))),
    "batch_first_int": Row((I, H), {"batch_first": 1}),
    "bidirectional": Row((I, H, 2), {"bidirectional": True}),
    "projection": Row((I, H, 2), {"proj_size": 2, "bidirectional": True}, only=LSTM),
    "projection_elsewhere": Row((I, H), {"proj_size": 2}, only=NOT_LSTM),
    "projection_as_large": Row((I, H), {"proj_size": H}, only=LSTM),
    "projection_negative": Row((I, H), {"proj_size": -1}, only=LSTM),
    "dropout": Row((I, H, 2), {"dropout": 0.5}),
    "dropout_one_layer": Row((I, H), {"dropout": 0.5}),
    "dropout_negative": Row((I, H, 2), {"dropout": -0.1}),
    "dropout_bool": Row((I, H, 2), {"dropout": True}),
    "dropout_text": Row((I, H, 2), {"dropout": "0.5"}),
    "dropout_all": Row((I, H, 2), {"dropout": 1}),
    "dtype": Row((I, H), {"dtype": float64}, lambda m: (x(dtype=float64),)),
    "dtype_half": Row((I, H), {"dtype": half}, lambda m: (x(dtype=half),)),
    "dtype_bfloat16": Row((I, H), {"dtype": bfloat16}, lambda m: (x(dtype=bfloat16),)),
    "dtype_int": Row((I, H), {"dtype": torch.int64}),
    "device_meta": Row((I, H), {"device": "meta"}, lambda m: (x().to("meta"),)),
    "input_size_float": Row((3.0, H)),
    "input_size_zero": Row((0, H)),
    "hidden_size_float": Row((I, 4.0)),
    "hidden_size_zero": Row((I, 0)),
    "no_layers": Row((I, H, 0)),
    "unknown_argument": Row((I, H), {"peephole": True}),
    "too_many": Row((I, H, 1, True, True, False, 0.0, False, 0, None, None, None)),
    # Input forms
    "one_step": Row(given=lambda m: (x(1, N, I),)),
    "one_row": Row(given=lambda m: (x(T, 1, I),)),
    "no_rows": Row(given=lambda m: (x(T, 0, I), states(m, 0))),
    "no_steps": Row(given=lambda m: (x(0, N, I), states(m))),
    "unbatched": Row((I, H, 2), {"bidirectional": True}, lambda m: (x(T, I),)),
    "unbatched_batch_first": Row((I, H), {"batch_first": True}, lambda m: (x(T, I),)),
    "unbatched_states": Row((I, H, 2), {}, with_states(lambda: x(T, I), None)),
    "unbatched_no_steps": Row(given=lambda m: (x(0, I),)),
    "packed": Row(given=lambda m: (packed([2, 5, 1]),)),
    "packed_states": Row(
        (I, H, 2), {"bidirectional": True}, with_states(lambda: packed([2, 5, 1]))
    ),
    "packed_sorted": Row(given=with_states(lambda: packed([5, 5, 1], True))),
    "packed_batch_first": Row(
        (I, H), {"batch_first": True}, with_states(lambda: packed([2, 5, 1], batch_first=True))
    ),
    "packed_one": Row(given=lambda m: (packed([3]),)),
    "strided": Row(given=with_states(lambda: strided(x()))),
    "transposed": Row(given=with_states(lambda: x(N, T, I).transpose(0, 1))),
    "expanded": Row(given=lambda m: (x(1, N, I).expand(T, N, I),)),
    "one_axis": Row(given=lambda m: (x(I),)),
    "four_axes": Row(given=lambda m: (x(T, N, I, 1),)),
    "features": Row(given=lambda m: (x(T, N, I + 1),)),
    "features_unbatched": Row(given=lambda m: (x(T, I + 1),)),
    "features_packed": Row((I + 1, H), {}, lambda m: (packed([2, 5, 1]),)),
    "input_double": Row(given=lambda m: (x(dtype=float64),)),
    "input_half": Row(given=lambda m: (x(dtype=half),)),
    "input_ints": Row(given=lambda m: (torch.ones(T, N, I, dtype=torch.int64),)),
    "input_list": Row(given=lambda m: ([[1.0]],)),
    "input_none": Row(given=lambda m: (None,)),
    "no_input": Row(given=lambda m: ()),
    # State forms
    "states": Row((I, H, 2), {"bidirectional": True}, with_states(x)),
    "states_none": Row(given=lambda m: (x(), None)),
    "states_list": Row(given=lambda m: (x(), list(states(m))), only=LSTM),
    "states_of_projection": Row((I, H), {"proj_size": 2}, with_states(x), only=LSTM),
    "state_alone": Row(given=lambda m: (x(), x(1, N, H)), only=LSTM),
    "state_pair": Row(given=lambda m: (x(), (x(1, N, H), x(1, N, H))), only=NOT_LSTM),
    "states_three": Row(given=lambda m: (x(), (x(1, N, H),) * 3), only=LSTM),
    "states_rows": Row(given=lambda m: (x(), states(m, N + 1))),
    "states_rows_packed": Row(given=lambda m: (packed([2, 5]), states(m, 3))),
    "states_unbatched": Row(given=lambda m: (x(), states(m, None))),
    "states_batched": Row(given=lambda m: (x(T, I), states(m, 1))),
    "states_layers": Row((I, H, 2), {}, lambda m: (x(), x(1, N, H)), only=NOT_LSTM),
    "states_double": Row(given=lambda m: (x(), states(m, dtype=float64))),
    "states_strided": Row(given=lambda m: (x(), strided(x(1, N, H))), only=NOT_LSTM),
    "cell_state_rows": Row(given=lambda m: (x(), (x(1, N, H), x(1, N + 1, H))), only=LSTM),
}

# Row, or (row, kind): the error of ours, None where it runs; and why it is not that of torch.nn.
NO_STEP = "a row without a step is legal: y is empty and the states pass through"
TOLD = "torch fails where it comes to multiply; ours names the argument before any work"
DIFFERENT: dict[Any, tuple[type[Exception] | None, str]] = {
    "no_steps": (None, NO_STEP),
    "unbatched_no_steps": (None, NO_STEP),
    "states_rows_packed": (RuntimeError, "torch silently takes the first rows of the state"),
    "states_double": (rnnop.DTypeError, TOLD),
    "state_alone": (rnnop.DTypeError, TOLD),
    "states_three": (rnnop.DTypeError, TOLD),
}


@dataclass
class Outcome:
    """What came of a row."""

    tensors: list[Any] | None = None
    error: type[Exception] | None = None
    warned: list[tuple[type, str]] = field(default_factory=list)


def flat(value: Any) -> list[Any]:
    """Return the tensors in a result, those of a packed sequence in their order."""
    if isinstance(value, tuple | list):
        return [each for item in value for each in flat(item)]
    return [] if value is None else [value]


def run(room: Any, kind: str, row: Row) -> Outcome:
    """Run a row: all outputs, and from random cotangents all gradients."""
    outcome = Outcome()
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            module = getattr(room, kind)(*row.arguments, **row.options).eval()
            given = row.given(module)
            outputs = flat(module(*given))
            outcome.tensors = list(outputs)
            floating = [each for each in outputs if each.is_floating_point()]
            if floating[0].device.type != "meta":
                leaves = [each for each in flat(given) if each.requires_grad]
                leaves += module.parameters()
                cotangents = [x(*each.shape).to(each.dtype) for each in floating]
                outcome.tensors += torch.autograd.grad(
                    floating, leaves, cotangents, allow_unused=True
                )
        except Exception as error:
            outcome.error = type(error)
    warned = [(each.category, str(each.message)) for each in caught]
    # That torch leaves out a library which ours never had is no warning to repeat.
    outcome.warned = [each for each in warned if "oneDNN" not in each[1]]
    return outcome


TOLERANCES = {float64: 1e-13, torch.float32: 2e-6, half: 4e-3, bfloat16: 3e-2}


def assert_close(got: Any, wanted: Any) -> None:
    if wanted is None:  # torch.nn has no gradient there; zeros are as good
        assert got is None or not got.any()
        return
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    if got.device.type == "meta":
        return
    if not wanted.is_floating_point():
        assert torch.equal(got, wanted)
        return
    size = max(1.0, float(wanted.detach().abs().max())) if wanted.numel() else 1.0
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCES[wanted.dtype] * size)


CASES = [(name, kind) for name, row in ROWS.items() for kind in row.only]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_row(name: str, kind: str) -> None:
    row = ROWS[name]
    theirs, ours = run(torch.nn, kind, row), run(rnnop.torch, kind, row)
    if (name, kind) in DIFFERENT or name in DIFFERENT:
        error, reason = DIFFERENT[(name, kind) if (name, kind) in DIFFERENT else name]
        assert reason
        assert ours.error is error
        assert ours.error is not theirs.error, "it does not differ: strike it out"
        return
    if theirs.error is None or ours.error is None:
        assert ours.error is theirs.error
    else:
        assert issubclass(ours.error, theirs.error)
    assert ours.warned == theirs.warned
    if theirs.tensors is not None:
        for got, wanted in zip(ours.tensors, theirs.tensors, strict=True):
            assert_close(got, wanted)


# Parameters and state


def pair(kind: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return a module of torch.nn and one of ours, made from the same seed."""
    made = []
    for room in (torch.nn, rnnop.torch):
        torch.manual_seed(0)
        made.append(getattr(room, kind)(*arguments, **options))
    return made[0], made[1]


def bits(module: Any) -> dict[str, bytes]:
    return {name: each.numpy().tobytes() for name, each in module.state_dict().items()}


SHAPES: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "num_layers": 2},
]


@pytest.mark.parametrize("options", SHAPES)
@every_kind
def test_the_state_dict_goes_both_ways(kind: str, options: dict[str, Any]) -> None:
    if kind == "LSTM":
        options = options | {"proj_size": 2}
    theirs, ours = pair(kind, I, H, **options)
    assert list(bits(ours).items()) == list(bits(theirs).items()), "the same seed, the same start"
    assert str(ours) == str(theirs)
    ours.reset_parameters()
    theirs.load_state_dict(ours.state_dict())
    assert bits(theirs) == bits(ours)
    theirs.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    assert bits(ours) == bits(theirs)
    for got, wanted in zip(flat(ours(x())), flat(theirs(x())), strict=True):
        assert_close(got, wanted)


@every_kind
def test_a_module_may_be_copied_pickled_moved_and_cast(kind: str) -> None:
    module = getattr(rnnop.torch, kind)(I, H, 2, backend="cpu", masked_output="hold")
    data, lengths = x(), [5, 2, 0]
    wanted = flat(module(data, lengths=lengths))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.options == module.options
        assert all(map(torch.equal, flat(other(data, lengths=lengths)), wanted))
        for parameter in other.parameters():
            parameter.data.zero_()
    assert all(map(torch.equal, flat(module(data, lengths=lengths)), wanted))
    for each in flat(module.to(bfloat16)(data.to(bfloat16))):
        assert each.dtype is bfloat16
    for each in flat(module.to("meta")(data.to("meta", bfloat16))):
        assert each.device.type == "meta"


@every_kind
def test_other_parameters_may_stand_in(kind: str) -> None:
    theirs, ours = pair(kind, I, H)
    doubled = {name: 2 * each.detach() for name, each in ours.named_parameters()}
    data = x()
    for got, wanted in zip(
        flat(torch.func.functional_call(ours, doubled, (data,))),
        flat(torch.func.functional_call(theirs, doubled, (data,))),
        strict=True,
    ):
        assert_close(got, wanted)
    for module in (theirs, ours):
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
        module(data)[0].sum().backward()
    names = [name for name, _ in ours.named_parameters()]
    assert names == [name for name, _ in theirs.named_parameters()]
    for got, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(got.grad, wanted.grad)


def test_parameters_that_are_shared() -> None:
    module = rnnop.torch.GRU(H, H, 2)
    module.weight_ih_l1, module.weight_hh_l1 = module.weight_ih_l0, module.weight_hh_l0
    y, _ = module(x(T, N, H))
    y.sum().backward()
    weights = rnnop.layouts.from_pytorch(dict(module.named_parameters(remove_duplicate=False)))
    assert torch.equal(y, rnnop.rnn(x(T, N, H), weights).y)
    assert module.weight_ih_l0.grad is not None


def test_training_goes_down_with_an_optimizer() -> None:
    torch.manual_seed(0)
    module, head = rnnop.torch.LSTM(I, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.02)
    data = x(T, 16, I).detach()
    target = data.sum(dim=(0, 2))
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (head(module(data)[1][0][0])[:, 0] - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 3


# What is more


def weights_of(module: Any) -> rnnop.RNNWeights:
    return rnnop.layouts.from_pytorch(dict(module.named_parameters()))


MASK = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "cell_clip": ("LSTM", {"cell_clip": 0.1}),
    "cell_clip_nan": ("LSTM", {"cell_clip": (-0.2, 0.1), "cell_clip_nan": True}),
    "proj_clip": ("LSTM", {"proj_size": 2, "proj_clip": 0.05}),
    "gate_clip": ("RNN", {"gate_clip": 0.3}),
    "reset_after": ("GRU", {"reset_after": False}),
    "activations": ("GRU", {"activations": ["HardSigmoid", ("Elu", 0.5)]}),
    "input_forget": ("LSTM", {"input_forget": True}),
    "masked_output": ("GRU", {"masked_output": "hold"}),
    "reverse": ("GRU", {"reverse": True}),
    "backend": ("GRU", {"backend": "reference"}),
}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", MORE)
def test_keywords_are_those_of_the_function(name: str, batch_first: bool) -> None:
    kind, options = MORE[name]
    torch.manual_seed(0)
    module = getattr(rnnop.torch, kind)(I, H, 2, batch_first=batch_first, **options)
    data = x(N, T, I) if batch_first else x()
    steps: dict[str, Any] = {"mask": MASK, "resets": ~MASK}
    if batch_first:
        steps = {key: each.T for key, each in steps.items()}
    mode = {"RNN": "rnn_tanh"}.get(kind, kind.lower())
    more = {key: each for key, each in options.items() if key != "proj_size"}
    for given in (steps, {"lengths": [5, 0, 3]}, {"lengths": torch.tensor([1, 2, 5])}):
        y, final = module(data, states(module), **given)
        out = rnnop.rnn(
            data,
            weights_of(module),
            *([states(module)] if kind != "LSTM" else states(module)),
            mode=mode,
            batch_first=batch_first,
            **given,
            **more,
        )
        assert torch.equal(y, out.y)
        assert all(map(torch.equal, flat(final), [out.h_n, out.c_n]))
    shape = {key: each for key, each in options.items() if key == "proj_size"}
    plain = getattr(rnnop.torch, kind)(I, H, 2, batch_first=batch_first, **shape)
    plain.load_state_dict(module.state_dict())
    same = torch.equal(
        plain(data, states(plain), **steps)[0], module(data, states(module), **steps)[0]
    )
    assert not same or name == "backend", "the keyword has an effect"
    assert f"{next(iter(more))}=" in repr(module)


@pytest.mark.parametrize("batch_first", [False, True])
@every_kind
def test_steps_of_a_single_row(kind: str, batch_first: bool) -> None:
    module = getattr(rnnop.torch, kind)(I, H, 2, bidirectional=True, batch_first=batch_first)
    data, given = x(T, I), states(module, None)
    batch = data[None] if batch_first else data[:, None]
    rows = [each[:, None] for each in flat(given)]
    rows = tuple(rows) if kind == "LSTM" else rows[0]
    one = MASK[:, 0]
    for steps, of_batch in (
        ({"mask": one}, {"mask": one[None] if batch_first else one[:, None]}),
        ({"mask": one.tolist()}, {"mask": one[None] if batch_first else one[:, None]}),
        ({"resets": one}, {"resets": one[None] if batch_first else one[:, None]}),
        ({"lengths": 3}, {"lengths": [3]}),
        ({"lengths": torch.tensor(3)}, {"lengths": [3]}),
    ):
        y, final = module(data, given, **steps)
        wanted, wanted_final = module(batch, rows, **of_batch)
        assert torch.equal(y, wanted[0] if batch_first else wanted[:, 0])
        for got, each in zip(flat(final), flat(wanted_final), strict=True):
            assert torch.equal(got, each[:, 0])


def test_packed_input_takes_resets_and_nothing_else() -> None:
    module = rnnop.torch.GRU(I, H)
    resets = torch.zeros(T, 3, dtype=torch.bool)
    resets[2] = True
    got, _ = module(packed([2, 5, 3]), resets=resets)
    wanted, _ = module(x(), lengths=[2, 5, 3], resets=resets)
    assert torch.equal(packing.pad_packed_sequence(got)[0], wanted)
    with pytest.raises(rnnop.SpecError, match="`lengths` is given with a PackedSequence"):
        module(packed([2, 5, 3]), lengths=[2, 5, 3])


def test_second_derivatives_by_the_reference() -> None:
    module = rnnop.torch.LSTM(I, H, backend="reference")
    data = x()
    (first,) = torch.autograd.grad(module(data)[0].sum(), data, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), data)
    assert second.any()


def test_dropout_acts_in_training_only() -> None:
    module = rnnop.torch.GRU(I, H, 3, dropout=0.5)
    data = x()
    torch.manual_seed(1)
    one, two = module(data)[0], module(data)[0]
    assert not torch.equal(one, two)
    torch.manual_seed(1)
    assert torch.equal(module(data)[0], one)
    module.eval()
    assert torch.equal(module(data)[0], module(data)[0])
    everything = rnnop.torch.GRU(I, H, 3, dropout=1.0)
    assert everything.eval()(data)[0].any()
    with pytest.raises(rnnop.SpecError, match=r"`dropout` is 1\.0"):
        everything.train()(data)


def test_a_wrong_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="peephole"):
        rnnop.torch.LSTM(I, H, peephole=True)
    with pytest.raises(TypeError, match="return_cell_states"):
        rnnop.torch.LSTM(I, H, return_cell_states=True)
    module = rnnop.torch.GRU(I, H, cell_clip=1.0)
    with pytest.raises(rnnop.SpecError, match="`cell_clip` is given with mode 'gru'"):
        module(x())
    module = rnnop.torch.GRU(I, H)
    with pytest.raises(rnnop.ShapeError, match="rnn: `lengths` has 9"):
        module(x(), lengths=[9, 1, 1])
    with pytest.raises(rnnop.DTypeError, match="`mask` has dtype int64"):
        module(x(T, I), mask=[1, 0, 1, 1, 1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_torchscript_is_refused_by_torch() -> None:
    """It knows no keyword arguments with defaults. torch.compile and torch.export are there."""
    with pytest.raises(torch.jit.frontend.NotSupportedError, match="keyword-only"):
        torch.jit.script(rnnop.torch.GRU(I, H))
