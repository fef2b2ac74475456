"""Torch tensors through `rnnop.rnn`: what NumPy arrays give, with torch's own autograd."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from agreement import Family, Results, assert_same, reference
from cases import CORE, TINY, Case, arrays_of, data_of
from gpu_arrays import no_gpu_for

import rnnop

torch = pytest.importorskip(
    "torch", reason="there is nothing to adapt to: pip install rnnop[torch]"
)
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_family import AUTOGRAD, TORCH, array, tensor  # noqa: E402

import rnnop.torch  # noqa: E402
from rnnop.torch import call as calls  # noqa: E402
from rnnop.torch import functional, host, op, operators  # noqa: E402

every_case = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in (*CORE, *TINY)]
)
some_cases = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in (*CORE[::7], *TINY)]
)


# NumPy arrays that lie in memory as the tensors do.
SAME = Family(lambda each: array(tensor(each)))


def assert_bits(got: Results, wanted: Results) -> None:
    """Fail unless all that is got is what is wanted, to the bit."""
    for name, each in got.items():
        assert each.dtype == wanted[name].dtype, name
        assert each.shape == wanted[name].shape, name
        assert each.tobytes() == wanted[name].tobytes(), name


def given_only(results: Results, case: Case) -> Results:
    """Leave out the gradients of states that were not given: autograd has none."""
    given = {"dh0": ("both", "h0"), "dc0": ("both", "c0")}
    return {
        name: each for name, each in results.items() if case.states in given.get(name, case.states)
    }


# The same as on NumPy arrays


@every_case
def test_autograd_gives_what_numpy_gives(case: Case) -> None:
    call, cotangents = case.call("float32", masked=np.nan), case.cotangents("float32", np.nan)
    got = AUTOGRAD.results(call, cotangents, "auto")
    wanted = given_only(SAME.results(call, cotangents, "auto"), case)
    assert got.keys() == wanted.keys()
    assert_bits(got, wanted)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@some_cases
def test_every_dtype(case: Case, dtype: str) -> None:
    call, cotangents = case.call(dtype), case.cotangents(dtype)
    for family in (TORCH, AUTOGRAD):
        got = family.results(call, cotangents, "auto")
        assert_bits(got, SAME.results(call, cotangents, "auto"))


@every_case
def test_without_gradients(case: Case) -> None:
    call = case.call("float32", masked=np.nan)
    mine = TORCH.call(call)
    wanted = SAME.outputs(SAME.call(call).rnn())
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = mine.rnn()
        assert_bits(TORCH.outputs(out), wanted)
        assert not any(each.requires_grad for each in arrays_of(out))


@some_cases
def test_tensors_that_numpy_does_not_have(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another device the tensors go to a backend as they are: the reference, where it is all."""

    def refuse(tensor: Any) -> Any:
        raise TypeError

    call, cotangents = case.call("float32"), case.cotangents("float32")
    monkeypatch.setattr(host, "to_numpy", refuse)
    monkeypatch.setattr(host, "HOST", host.Bridge(refuse, host.to_tensor))
    wanted = reference(call, cotangents)
    for family in (TORCH, AUTOGRAD):
        got = family.results(call, cotangents, "auto")
        assert_same(got, {name: wanted[name] for name in got}, "reference", "float32")
    mine = TORCH.call(call)
    packed = rnnop.prepack(mine.weights, mode=case.mode)
    assert isinstance(packed.cache["torch"].ready.weights.w_ih[0], torch.Tensor)
    for grad in (True, False):
        weights = mine.weights.map(lambda each: each.detach().requires_grad_(grad))  # noqa: B023
        packed = rnnop.prepack(weights, mode=case.mode)
        y = data_of(rnnop.rnn(mine.x, packed, mine.h0, mine.c0, **mine.options).y)
        assert_same({"y": array(y)}, {"y": wanted["y"]}, "reference", "float32")
        assert ("_RNNBackward" in str(y.grad_fn)) == grad, "and torch sees one operator"
    explained = rnnop.explain(mine.x, mine.weights, mine.h0, mine.c0, **mine.options)
    assert explained.backend == "reference"


@some_cases
def test_explain_says_what_it_says_of_numpy(case: Case) -> None:
    call = case.call("float32")
    mine = TORCH.call(call)
    texts = [
        str(rnnop.explain(each.x, each.weights, each.h0, each.c0, **each.options))
        for each in (mine, call)
    ]
    assert texts[0] == texts[1]


@every_case
def test_tensors_without_data_have_the_shapes(case: Case) -> None:
    call = case.call("float32")
    wanted = call.rnn()

    def there(array: Any) -> Any:
        return tensor(array).to("meta")

    leaves = {name: [*map(there, each)] for name, each in call.leaves().items()}
    mine = call.with_leaves(leaves)
    options = dict(mine.options)
    if "dropout_masks" in options:
        options["dropout_masks"] = [*map(there, options["dropout_masks"])]
    out = rnnop.rnn(mine.x, mine.weights, mine.h0, mine.c0, **options)
    for name in out._fields:
        got, right = data_of(getattr(out, name)), data_of(getattr(wanted, name))
        assert (got is None) == (right is None), name
        if got is not None:
            assert tuple(got.shape) == right.shape, name
            assert got.dtype is torch.float32
            assert got.is_contiguous()


def test_the_signatures_are_the_same() -> None:
    for name in ("rnn", "rnn_vjp", "explain", "prepack"):
        mine, public = getattr(rnnop.torch, name), getattr(rnnop, name)
        assert inspect.signature(mine) == inspect.signature(public)
        assert set(inspect.signature(mine, follow_wrapped=False).parameters) <= {
            *inspect.signature(public).parameters,
            "options",
        }


def test_numbers_of_any_kind() -> None:
    net = Net("lstm")
    wanted = net(cell_clip=0.25, gate_clip=(-0.5, 0.5)).y
    for low, high in ((Fraction(-1, 2), 0.5), (np.float64(-0.5), np.float32(0.5))):
        for clip in ((low, high), [low, high]):
            y = net(cell_clip=Fraction(1, 4), gate_clip=clip).y
            assert torch.equal(y, wanted)
            assert "_RNNBackward" in str(y.grad_fn)
    assert torch.equal(net(cell_clip=0.25, gate_clip=np.array([-0.5, 0.5])).y, wanted)


def test_arguments_by_name() -> None:
    net = Net()
    out = rnnop.rnn(x=net.x, weights=net.weights, h0=net.h0, mode="gru")
    assert torch.equal(out.y, net().y)


# One small network


class Net:
    """A GRU, or an LSTM, on two rows of five steps."""

    def __init__(self, mode: str = "gru", dtype: str = "float64", **sizes: Any) -> None:
        torch.manual_seed(0)
        self.mode = mode
        drawn = rnnop.init_weights(mode, input_size=3, hidden_size=3, dtype=dtype, seed=0, **sizes)
        self.weights = drawn.map(lambda each: torch.from_numpy(each).requires_grad_())
        states = drawn.num_layers * drawn.num_directions
        kind = getattr(torch, dtype)
        self.x = torch.randn(5, 2, 3, dtype=kind, requires_grad=True)
        self.h0 = torch.randn(states, 2, 3, dtype=kind, requires_grad=True)

    def __call__(self, x: Any = None, **options: Any) -> rnnop.RNNOutput:
        x = self.x if x is None else x
        return rnnop.rnn(x, self.weights, self.h0, mode=self.mode, **options)

    def tensors(self) -> list[Any]:
        return [self.x, self.h0, *(each for _, each in self.weights.named())]

    def gradients(self, out: Any) -> list[Any]:
        return list(torch.autograd.grad(out.sin().sum(), self.tensors(), allow_unused=True))


def assert_equal(got: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["rnn_tanh", "gru", "lstm"])
def test_gradcheck(mode: str) -> None:
    net = Net(mode, num_layers=2)
    mask = np.random.default_rng(0).random((5, 2)) < 0.7

    def function(x: Any, h0: Any, *arrays: Any) -> Any:
        weights = host.of_list(list(arrays), "w_ih w_hh b_ih b_hh", False)
        out = rnnop.rnn(x, weights, h0, mode=mode, mask=mask, masked_output="hold")
        return tuple(each for each in out if each is not None)

    arrays = host.as_list(net.weights, "w_ih w_hh b_ih b_hh")
    assert torch.autograd.gradcheck(function, (net.x, net.h0, *arrays))


def test_only_what_needs_a_gradient_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    everything = net.gradients(net().y)
    made: list[int] = []
    outward = host.HOST.outward
    counting = host.Bridge(host.to_numpy, lambda each: (made.append(1), outward(each))[1])
    monkeypatch.setattr(host, "HOST", counting)
    for k, one in enumerate(net.tensors()):
        for each in net.tensors():
            each.requires_grad_(each is one)
        y = net().y
        made.clear()
        (got,) = torch.autograd.grad(y.sin().sum(), one)
        assert torch.equal(got, everything[k])
        assert len(made) == 1
    for each in net.tensors():
        each.requires_grad_(False)
    assert not net().y.requires_grad


def test_an_output_that_is_not_used_has_no_part() -> None:
    net = Net("lstm")
    out = net()
    got = net.gradients(out.c_n)
    _, vjp = rnnop.rnn_vjp(net.x, net.weights, net.h0, mode="lstm")
    grads = vjp(None, None, out.c_n.detach().cos())
    assert torch.equal(got[0], grads.x)
    assert torch.equal(got[1], grads.h0)


def test_a_graph_may_be_used_twice() -> None:
    net = Net()
    y = net().y
    first = torch.autograd.grad(y.sum(), net.x, retain_graph=True)
    assert_equal(list(torch.autograd.grad(y.sum(), net.x)), list(first))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), net.x)


@pytest.mark.parametrize("name", ["x", "h0", "w_hh", "y"])
def test_what_the_backward_reads_may_not_change_before_it(name: str) -> None:
    net = Net()
    x, h0 = net.x * 1, net.h0 * 1
    weights = net.weights.map(lambda each: each * 1)
    y = rnnop.rnn(x, weights, h0).y
    loss = y.sum()
    {"x": x, "h0": h0, "w_hh": weights.w_hh[0], "y": y}[name].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_final_states_may_change_before_the_backward() -> None:
    """As they do where a loop carries them on and clears some rows."""
    for backend_options in ({}, {"activations": ["Sigmoid", "Softsign", "Tanh"]}):
        net = Net("lstm", num_layers=2)
        wanted = net.gradients(net(**backend_options).y)
        out = net(**backend_options)
        with torch.no_grad():
            out.h_n.detach().zero_()
            out.c_n.detach().zero_()
        assert_equal(net.gradients(out.y), wanted)


# What is kept between forward and backward


def test_nothing_is_kept_where_no_backward_can_follow() -> None:
    net = Net()
    gc.collect()
    before = len(operators._TOKENS)
    with torch.no_grad():
        net()
    plain = rnnop.rnn(net.x.detach(), net.weights.map(lambda each: each.detach()))
    assert len(operators._TOKENS) == before
    out = net()
    assert len(operators._TOKENS) == before + 1
    out.y.sum().backward()
    assert len(operators._TOKENS) == before, "freed with the graph, while the outputs still live"
    assert plain.y.shape == out.y.shape


def test_the_backward_uses_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    y = net().y
    monkeypatch.setattr(op, "run", None)  # it would run the forward again
    net.gradients(y)


@pytest.mark.parametrize("lost", ["token", "x", "h0", "w_hh", "y"])
def test_the_backward_runs_the_forward_again_where_what_was_kept_is_not_its_own(lost: str) -> None:
    """A hook replaces what is saved by a copy, as one that moves it to a disk does."""
    net = Net("lstm", num_layers=2, bidirectional=True)
    options = {"dropout": 0.5, "training": True, "seed": 3, "lengths": [5, 2]}
    out = net(**options)
    wanted = net.gradients(out.y)
    copied = {"x": net.x, "h0": net.h0, "w_hh": net.weights.w_hh[1]}
    count = 0
    gc.collect()
    before = len(operators._TOKENS)

    def pack(each: Any) -> Any:
        nonlocal count
        chosen = {
            "token": each.dtype is torch.int64 and each.shape == (1,),
            "y": each.shape == out.y.shape,
        }
        if chosen.get(lost, each is copied.get(lost)):
            count += 1
            return each.clone()
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        y = net(**options).y
    assert count
    assert len(operators._TOKENS) == before + (lost != "token")
    assert_equal(net.gradients(y), wanted)


def test_a_token_of_another_process_means_nothing() -> None:
    net = Net()
    y = net().y
    wanted = net.gradients(net().y)
    operators._TOKENS.clear()
    assert_equal(net.gradients(y), wanted)


@pytest.mark.parametrize("seed", [None, 5])
def test_checkpoints_run_the_same_dropout_again(seed: int | None) -> None:
    net = Net("lstm", num_layers=3)

    def function(x: Any) -> Any:
        return net(x, dropout=0.5, training=True, seed=seed).y

    torch.manual_seed(1)
    wanted = net.gradients(function(net.x))
    torch.manual_seed(1)
    y = checkpoint(function, net.x, use_reentrant=False)
    assert_equal(net.gradients(y), wanted)


# Dropout


def test_dropout_follows_torch_unless_it_has_a_seed() -> None:
    net = Net(num_layers=2)
    on = {"dropout": 0.5, "training": True}
    torch.manual_seed(7)
    first, second = net(**on).y, net(**on).y
    torch.manual_seed(7)
    assert torch.equal(net(**on).y, first)
    assert not torch.equal(first, second)
    for seed in (0, 2**63 - 1, 2**63, 2**70, np.int64(5)):
        arrays = net.weights.map(array)
        wanted = rnnop.rnn(array(net.x), arrays, array(net.h0), seed=seed, **on).y
        assert np.array_equal(array(net(seed=seed, **on).y), wanted)
    state = torch.get_rng_state()
    net(**on, seed=1)
    net(dropout=0.5)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_masks_in_one_tensor() -> None:
    net = Net(num_layers=3)
    masks = torch.rand(2, 5, 2, 3) < 0.5
    on = {"dropout": 0.5, "training": True}
    assert torch.equal(net(dropout_masks=masks, **on).y, net(dropout_masks=list(masks), **on).y)


# Weights that change


def test_weights_are_read_anew() -> None:
    net = Net("rnn_tanh")
    one = net.weights.w_ih[0]
    other = torch.randn(3, 3, dtype=torch.float64)
    changes: list[Callable[[], Any]] = [
        lambda: one.mul_(2.0),
        lambda: setattr(one, "data", other),
        lambda: setattr(one, "data", other.t()),
        lambda: setattr(one, "data", other.clone()),
    ]
    for change in changes:
        with torch.no_grad():
            net()
            change()
            got = net().y
        arrays = net.weights.map(lambda each: each.detach().numpy().copy())
        wanted = rnnop.rnn(array(net.x), arrays, array(net.h0), mode="rnn_tanh").y
        assert np.array_equal(got.numpy(), wanted)
        assert np.array_equal(array(net().y), wanted)


def test_weights_do_not_outlive_their_owner() -> None:
    net = Net()
    net().y.sum().backward()
    with torch.no_grad():
        net()
    gc.collect()
    number, before = id(net.weights.w_ih[0]), len(functional._LISTS)
    assert number in host._VIEWS
    del net
    gc.collect()
    assert number not in host._VIEWS
    assert len(functional._LISTS) == before - 1


def test_the_same_tensors_in_another_order_are_other_weights() -> None:
    net = Net("rnn_tanh")
    w_ih, w_hh = net.weights.w_ih[0].detach(), net.weights.w_hh[0].detach()
    wide = rnnop.RNNWeights((w_ih,), (w_hh,))
    first = rnnop.rnn(net.x.detach(), wide, mode="rnn_tanh").y
    both = rnnop.RNNWeights((w_ih, w_ih), (w_hh, w_hh))
    stacked = rnnop.rnn(net.x.detach(), both, mode="rnn_tanh").y
    directions = rnnop.RNNWeights((w_ih, w_ih), (w_hh, w_hh), bidirectional=True)
    assert rnnop.rnn(net.x.detach(), directions, mode="rnn_tanh").y.shape == (5, 2, 6)
    assert torch.equal(rnnop.rnn(net.x.detach(), wide, mode="rnn_tanh").y, first)
    assert not torch.equal(stacked, first)


# Prepacked weights


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_prepacked_weights(mode: str) -> None:
    net = Net(mode)
    packed = rnnop.prepack(net.weights, mode=mode)
    assert packed.weights is net.weights
    wanted = net()
    with torch.no_grad():
        assert torch.equal(rnnop.rnn(net.x, packed, net.h0, mode=mode).y, wanted.y)
    out = rnnop.rnn(net.x, packed, net.h0, mode=mode)
    assert_equal(net.gradients(out.y), net.gradients(wanted.y))
    _, vjp = rnnop.rnn_vjp(net.x, packed, net.h0, mode=mode)
    assert vjp(out.y).weights.w_hh[0].shape == net.weights.w_hh[0].shape
    with pytest.raises(rnnop.SpecError, match="prepacked for mode"):
        rnnop.rnn(net.x, packed, mode="rnn_tanh")
    calls._PREPACKED.clear()  # as in another process, with a graph of this one
    out = rnnop.rnn(net.x, packed, net.h0, mode=mode)
    assert_equal(net.gradients(out.y), net.gradients(net().y))


def test_prepacked_weights_are_not_packed_again() -> None:
    net = Net()
    if rnnop.explain(net.x, net.weights).backend != "cpu":
        pytest.skip("rnnop was installed without a C compiler: nothing is packed")
    packed = rnnop.prepack(net.weights)
    wanted = net().y.detach()
    with torch.no_grad():
        for _, each in net.weights.named():
            each.zero_()
        assert torch.equal(rnnop.rnn(net.x, packed, net.h0).y, wanted)
    assert torch.equal(rnnop.rnn(net.x, packed, net.h0).y, wanted)
    assert not torch.equal(net().y, wanted)


def test_weights_prepacked_for_the_reference() -> None:
    net = Net()
    packed = rnnop.prepack(net.weights, backend="reference")
    torch.testing.assert_close(rnnop.rnn(net.x, packed, net.h0).y, net().y)
    mixed = rnnop.RNNWeights(net.weights.w_ih, (np.zeros((9, 3)),))
    with pytest.raises(rnnop.DTypeError, match="one family"):
        rnnop.prepack(mixed)


# Autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_the_lower_precision(dtype: Any) -> None:
    net = Net(dtype="float32")
    lower = net.weights.map(lambda each: each.detach().to(dtype))
    wanted = rnnop.rnn(net.x.detach().to(dtype), lower, net.h0.detach().to(dtype))
    with torch.autocast("cpu", dtype):
        out = net()
        assert torch.equal(net(net.x.to(dtype)).y, wanted.y)
        with torch.no_grad():
            assert torch.equal(net().y, wanted.y)
    assert out.y.dtype is dtype
    assert torch.equal(out.y, wanted.y)
    assert torch.equal(out.h_n, wanted.h_n)
    for gradient in net.gradients(out.y.float()):
        assert gradient.dtype is torch.float32
    wide = Net()
    with torch.autocast("cpu", dtype):
        assert wide().y.dtype is torch.float64


# What there is not


WAY_OUT = "backend='reference' has it"


def test_a_second_derivative_is_refused() -> None:
    net = Net()
    (first,) = torch.autograd.grad(net().y.sum(), net.x, create_graph=True)
    with pytest.raises(rnnop.UnsupportedError, match=f"rnn: it has no second.*{WAY_OUT}"):
        first.sum().backward()
    (first,) = torch.autograd.grad(net(backend="reference").y.sum(), net.x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), net.x)
    assert second.shape == net.x.shape


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_forward_mode_is_refused() -> None:
    net = Net()
    x, tangent = net.x.detach(), torch.ones_like(net.x)
    for context in (torch.enable_grad, torch.no_grad):
        with forward_ad.dual_level(), context():
            dual = forward_ad.make_dual(x, tangent)
            with pytest.raises(rnnop.UnsupportedError, match=f"rnn: it has no forward.*{WAY_OUT}"):
                net(dual)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_transforms_of_torch_func_are_refused() -> None:
    net = Net()
    x, weights = net.x.detach(), net.weights.map(lambda each: each.detach())

    def function(x: Any, backend: str = "auto") -> Any:
        return rnnop.rnn(x, weights, backend=backend).y.sum()

    for transformed in (torch.func.grad(function), torch.func.jacrev(function)):
        with pytest.raises(rnnop.UnsupportedError, match=f"rnn: .* torch.func.*{WAY_OUT}"):
            transformed(x)
    with pytest.raises(rnnop.UnsupportedError, match=r"rnn: .*torch.func"):
        torch.func.jvp(function, (x,), (x,))
    with pytest.raises(rnnop.UnsupportedError, match=r"torch.vmap; put the rows into the batch"):
        torch.vmap(function)(torch.stack([x, x]))
    by_reference = torch.func.grad(lambda x: function(x, backend="reference"))(x)
    plain = torch.autograd.grad(rnnop.rnn(net.x, weights).y.sum(), net.x)[0]
    torch.testing.assert_close(by_reference, plain)


# Errors: those of NumPy arrays, word for word


ERRORS: dict[str, dict[str, Any]] = {
    "mode": {"mode": "gru2"},
    "mode_none": {"mode": None},
    "lengths": {"lengths": [1, 9]},
    "lengths_shape": {"lengths": [1, 2, 3]},
    "lengths_ragged": {"lengths": [[1], [2, 3]]},
    "lengths_float": {"lengths": np.array([1.0, 2.0])},
    "mask": {"mask": np.ones((2, 5), bool)},
    "mask_ints": {"mask": np.ones((5, 2), int)},
    "both": {"mask": np.ones((5, 2), bool), "lengths": [1, 2]},
    "resets": {"resets": np.ones((5, 3), bool)},
    "cell_clip": {"cell_clip": 1.0},
    "gate_clip": {"gate_clip": (1.0, -1.0)},
    "gate_clip_bool": {"gate_clip": (0, True)},
    "gate_clip_object": {"gate_clip": object},
    "activations": {"activations": "Tanh"},
    "activations_object": {"activations": [None, None]},
    "activation": {"activations": [rnnop.Activation("Tanh"), "Tan"]},
    "batch_first": {"batch_first": 1},
    "training": {"training": "yes", "dropout": 0.5},
    "dropout": {"dropout": 1.0},
    "seed": {"seed": -1},
    "seed_kind": {"seed": 1.5, "dropout": 0.5, "training": True},
    "masked_output": {"masked_output": "last"},
    "return_cell_states": {"return_cell_states": True},
    "dropout_masks": {"dropout_masks": 3, "dropout": 0.5, "training": True},
    "dropout_masks_none": {"dropout_masks": [], "dropout": 0.5, "training": True},
    "unknown": {"no_such_option": 1},
}


def complaint(function: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises((rnnop.RnnopError, TypeError)) as caught:
        function()
    return caught.type, str(caught.value)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ERRORS)
def test_wrong_options_are_refused_as_numpys(name: str, grad: bool) -> None:
    net = Net(num_layers=2)
    options, arrays = ERRORS[name], net.weights.map(array)
    with torch.set_grad_enabled(grad):
        got = complaint(lambda: rnnop.rnn(net.x, net.weights, net.h0, **options))
    assert got == complaint(lambda: rnnop.rnn(array(net.x), arrays, array(net.h0), **options))
    if name != "unknown":
        assert got[1].startswith("rnn: ")


@pytest.mark.parametrize("grad", [True, False])
def test_wrong_arrays_are_refused_as_numpys(grad: bool) -> None:
    net = Net()
    right: dict[str, Any] = {"x": net.x, "h0": net.h0, "w_hh": net.weights.w_hh[0]}
    wrong: list[dict[str, Any]] = [
        {"x": net.x[0]},
        {"x": net.x[..., :2]},
        {"x": net.x.float()},
        {"x": net.x.detach().long()},
        {"h0": net.h0[:, :1]},
        {"h0": net.h0.float()},
        {"h0": (net.h0, net.h0)},
        {"w_hh": net.weights.w_hh[0].float()},
        {"w_hh": net.weights.w_hh[0].t()},
        {"w_hh": net.weights.w_ih[0][:3]},
    ]

    def call(arrays: dict[str, Any]) -> Any:
        w_ih = net.weights.w_ih[0]
        w_ih = w_ih if isinstance(arrays["w_hh"], torch.Tensor) else array(w_ih)
        return rnnop.rnn(arrays["x"], rnnop.RNNWeights((w_ih,), (arrays["w_hh"],)), arrays["h0"])

    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if isinstance(value, tuple) else array(value)

    for change in wrong:
        given = right | change
        with torch.set_grad_enabled(grad):
            got = complaint(lambda: call(given))  # noqa: B023
        on_numpy = {name: plain(value) for name, value in given.items()}
        assert got == complaint(lambda: call(on_numpy))  # noqa: B023


@pytest.mark.parametrize("grad", [True, False])
def test_what_no_backend_has_is_refused_by_name(grad: bool) -> None:
    net = Net()
    x = net.x.detach()
    with torch.set_grad_enabled(grad):
        for wrong, text in (
            (x.to(torch.complex64), "`x` has dtype complex64"),
            (x.to(torch.float8_e4m3fn), "`x` has dtype float8_e4m3fn"),
        ):
            with pytest.raises(rnnop.DTypeError, match=f"rnn: {text}"):
                rnnop.rnn(wrong, net.weights)
        with pytest.raises(
            rnnop.DTypeError, match=r"`weights.w_ih\[0\]` lies on meta and `x` on c"
        ):
            rnnop.rnn(x, net.weights.map(lambda each: each.detach().to("meta")))
        with pytest.raises(rnnop.DTypeError, match="`h0` is a NumPy array and `x` is a PyTorch"):
            rnnop.rnn(net.x, net.weights, array(net.h0))
        with pytest.raises(rnnop.DTypeError, match="`weights` is NoneType"):
            rnnop.rnn(net.x, None)


def test_cotangents_are_checked() -> None:
    net = Net()
    out, vjp = rnnop.rnn_vjp(net.x, net.weights, net.h0)
    for wrong, text in (
        (array(out.y), "`dy` is a NumPy array and `x` is a PyTorch"),
        ([1.0], "`dy` is list"),
        (out.y.float(), "`dy` has dtype float32"),
        (out.y.to("meta"), "`dy` lies on meta and `x` on cpu"),
    ):
        with pytest.raises(rnnop.DTypeError, match=f"vjp: {text}"):
            vjp(wrong)
    with pytest.raises(rnnop.ShapeError, match="vjp: `dy` has shape"):
        vjp(out.y[:1])


OLD = """
import torch
torch.__version__ = "2.5.1+cpu"
import rnnop
weights = rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0).map(torch.from_numpy)
x = torch.ones(5, 2, 3)
print(rnnop.rnn(x, weights, backend="reference").y.shape)
try:
    rnnop.rnn(x, weights)
except rnnop.BackendUnavailable as error:
    print(error)
"""


def test_an_old_torch_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", OLD], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "torch.Size([5, 2, 4])",
        "rnn: tensors of PyTorch 2.5.1+cpu are given; expected PyTorch 2.6 or newer. "
        "An older one has backend='reference' only.",
    ]


# Odd tensors


def test_tensors_that_are_only_a_view_of_others() -> None:
    net = Net()
    odd = torch.randn(5, 2, 3, dtype=torch.complex128).conj().imag  # its sign is not in memory
    assert odd.is_neg()
    expanded = torch.randn(1, 2, 1, dtype=torch.float64).expand(5, 2, 3)
    for x in (odd, expanded, net.x.detach().transpose(0, 1).contiguous().transpose(0, 1)):
        with torch.no_grad():
            assert torch.equal(net(x).y, net(x.clone()).y)
        assert torch.equal(net(x).y, net(x.clone()).y)


def test_a_cotangent_may_be_expanded() -> None:
    net = Net()
    got = torch.autograd.grad(net().y.sum(), net.x)[0]
    wanted = torch.autograd.grad(net().y, net.x, torch.ones(5, 2, 3, dtype=torch.float64))[0]
    assert torch.equal(got, wanted)


def test_a_subclass_of_tensors_sees_the_operator() -> None:
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    net = Net()
    with torch.no_grad():
        y = net(net.x.detach().as_subclass(Watched)).y
    assert torch.ops.rnnop.rnn.default in seen
    assert torch.equal(y.as_subclass(torch.Tensor), net().y)


def test_a_mode_sees_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    net = Net()
    with Watch():
        y = net().y
        y.sum().backward()
        with torch.no_grad():
            net()
    names = [each for each in seen if each.namespace == "rnnop"]
    operators = torch.ops.rnnop
    assert names == [operators.rnn.default, operators.rnn_backward.default, operators.rnn.default]
    assert_equal([net.x.grad], [torch.autograd.grad(net().y.sum(), net.x)[0]])


# On a GPU


@pytest.mark.gpu
def test_cuda_tensors_stay_on_their_device_and_stream() -> None:
    reason = no_gpu_for("torch")
    if reason is not None:
        pytest.skip(reason)
    net = Net("lstm", dtype="float32", num_layers=2)
    lengths = [5, 2]
    wanted = net(lengths=lengths)
    gradients = net.gradients(wanted.y)
    on_cpu = [wanted.y, wanted.h_n, *gradients]
    net.weights = net.weights.map(lambda each: each.detach().cuda().requires_grad_())
    net.x = net.x.detach().cuda().requires_grad_()
    net.h0 = net.h0.detach().cuda().requires_grad_()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = net(lengths=torch.tensor(lengths, device="cuda"))
            found = [out.y, out.h_n, *net.gradients(out.y)]
            packed = rnnop.prepack(net.weights, mode="lstm")
            y = rnnop.rnn(net.x, packed, net.h0, mode="lstm", lengths=lengths).y
        stream.synchronize()
        for got, right in zip(found, on_cpu, strict=True):
            assert got.is_cuda
            torch.testing.assert_close(got.cpu(), right, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y, out.y)
        assert y.requires_grad
    with torch.autocast("cuda", torch.float16):
        assert net(lengths=lengths).y.dtype is torch.float16
    with pytest.raises(rnnop.DTypeError, match=r"lies on cuda:0 and `x` on cpu"):
        net(net.x.cpu())


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("function", [rnnop.rnn, rnnop.rnn_vjp, rnnop.explain])
def test_dropout_on_one_layer_warns_at_the_callers_line(
    function: Callable[..., Any], grad: bool
) -> None:
    single = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    net = single.map(lambda array: torch.from_numpy(array).requires_grad_(grad))
    for backend in ("auto", "reference"):
        with pytest.warns(UserWarning, match="no effect on a single layer") as caught:
            function(torch.zeros(4, 1, 2), net, dropout=0.5, training=True, backend=backend)
        assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("function", [rnnop.rnn, rnnop.rnn_vjp, rnnop.explain])
def test_a_single_length_is_no_vector_of_one(function: Callable[..., Any]) -> None:
    drawn = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    net = drawn.map(lambda each: torch.from_numpy(each).requires_grad_())
    with pytest.raises(rnnop.ShapeError, match=r"`lengths` has shape \(\); expected \(N,\)"):
        function(torch.zeros(4, 1, 2), net, lengths=3)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"training": np.ones(2)}, "`training` is .*; expected True or False"),
        ({"h0": np.zeros((1, 1, 3))}, "`h0` is a NumPy array and `x` is a PyTorch array"),
        ({"h0": 0.0}, "`h0` is float; expected an array"),
        ({"dropout_masks": "x"}, "`dropout_masks` is str; expected an array"),
    ],
)
def test_a_backend_that_is_named_hides_no_other_refusal(
    wrong: dict[str, Any], message: str, grad: bool
) -> None:
    drawn = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    net = drawn.map(lambda each: torch.from_numpy(each).requires_grad_(grad))
    for function in (rnnop.rnn, rnnop.rnn_vjp, rnnop.explain):
        with pytest.raises(rnnop.RnnopError, match=f"^{function.__name__}: {message}"):
            function(torch.zeros(4, 1, 2), net, backend="cpu", **wrong)
