"""Training on a GPU with PyTorch: one backward for each forward, and dropout drawn by torch.

Tensors of the CPU are taken for those of a device; cuDNN is its stand-in.
"""

from __future__ import annotations

from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from cudnn_on_host import Double

import rnnop

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install rnnop[torch]")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import rnnop.torch  # noqa: E402
from rnnop.torch import functional  # noqa: E402

I, H, P, T, N = 3, 8, 5, 6, 4
SEEDED = "cudnnSetDropoutDescriptor"


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    monkeypatch.setattr(functional, "_on_a_device", lambda x: True)
    return cudnn_on_host.use(monkeypatch)


def module(num_layers: int = 3, dropout: float = 0.5, **options: Any) -> Any:
    torch.manual_seed(0)
    return rnnop.torch.LSTM(I, H, num_layers, dropout=dropout, backend="cudnn", **options).double()


def step(net: Any, x: Any, **steps: Any) -> list[Any]:
    """Return the output and the gradients of a training step."""
    y = net(x, **steps)[0]
    y = y if isinstance(y, torch.Tensor) else y.data
    leaves = [x] if isinstance(x, torch.Tensor) else []
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), [*leaves, *net.parameters()])]


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def inputs(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(3)
    given = torch.randn(shape or (T, N, I), generator=generator, dtype=torch.float64)
    return given.requires_grad_()


# Dropout


def test_a_training_step_seeds_nothing(double: Double) -> None:
    net, x = module(), inputs()
    found = [step(net, x) for _ in range(10)]
    assert all(not equal(found[0], other) for other in found[1:])
    assert double.calls("cudnnRNNForward") == 10 * 3
    assert double.calls(SEEDED) == double.calls("cudnnRestoreDropoutDescriptor") == 0
    assert double.calls("cudnnDropoutGetStatesSize") == 0


def test_torchs_generator_decides() -> None:
    net, x = module(), inputs()
    torch.manual_seed(1)
    first, second = step(net, x), step(net, x)
    torch.manual_seed(1)
    assert equal(step(net, x), first)
    assert equal(step(net, x), second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_runs_the_same_dropout_again(use_reentrant: bool) -> None:
    net, x = module(), inputs()
    torch.manual_seed(1)
    wanted = step(net, x)
    torch.manual_seed(1)
    y = checkpoint(lambda x: net(x)[0], x, use_reentrant=use_reentrant)
    y.sin().sum().backward()
    assert equal([y.detach(), x.grad, *(each.grad for each in net.parameters())], wanted)


def test_a_forward_that_is_run_again_for_its_backward_drops_the_same() -> None:
    """As where what is saved was moved to the host meanwhile: the token does not fit any more."""
    net, x = module(), inputs()
    torch.manual_seed(1)
    wanted = step(net, x)
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
        assert equal(step(net, x), wanted)


def test_the_masks_are_those_that_drop() -> None:
    rate, (one, none) = 0.3, (torch.eye(16).double(), torch.zeros(16, 16).double())
    weights = rnnop.RNNWeights((one,) * 2, (none,) * 2)
    x = torch.ones(40, 8, 16).double().requires_grad_()
    options = {"mode": "rnn_relu", "dropout": rate, "training": True, "backend": "cudnn"}
    y = rnnop.rnn(x, weights, **options).y
    kept = y[y != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))
    share = 1 - kept.numel() / y.numel()
    assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / y.numel())
    dy = torch.randn_like(y)
    [dx] = torch.autograd.grad(y, [x], dy)
    torch.testing.assert_close(dx, y * dy)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("proj_size", [0, P])
def test_every_form_of_a_batch(bidirectional: bool, proj_size: int, double: Double) -> None:
    options = {"bidirectional": bidirectional, "proj_size": proj_size}
    net, lengths = module(**options), [6, 3, 1, 5]
    step(net, inputs(), lengths=lengths)
    step(module(**options, batch_first=True), inputs(N, T, I))
    packed = torch.nn.utils.rnn.pack_padded_sequence(inputs(), lengths, enforce_sorted=False)
    step(net, packed)
    assert double.calls(SEEDED) == 0


def test_a_seed_is_cudnns(double: Double) -> None:
    net, x = module(), inputs()
    weights = rnnop.RNNWeights(*zip(*[w[:4] for w in net.all_weights], strict=True))
    on = {"mode": "lstm", "dropout": 0.5, "training": True, "backend": "cudnn", "seed": 1}
    state = torch.get_rng_state()
    first, again = rnnop.rnn(x, weights, **on).y, rnnop.rnn(x, weights, **on).y
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert double.calls(SEEDED) == 1
    assert double.calls("cudnnRNNForward") == 2  # all layers in one go


@pytest.mark.filterwarnings("ignore:dropout=0.5 has no effect")
def test_where_nothing_is_dropped_nothing_is_drawn(double: Double) -> None:
    for net in (module(dropout=0.0), module().eval()):
        state = torch.get_rng_state()
        step(net, inputs())
        assert torch.equal(torch.get_rng_state(), state)
    weights, x = rnnop.init_weights("gru", input_size=I, hidden_size=H, seed=0), inputs()
    weights = weights.map(lambda each: torch.from_numpy(each).double())
    rnnop.rnn(x, weights, dropout=0.5, training=True, backend="cudnn")  # a single layer
    assert torch.equal(torch.get_rng_state(), state)
    assert double.calls(SEEDED) == 0


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan"), "0.5"])
def test_a_wrong_rate_is_refused_as_everywhere(rate: Any) -> None:
    weights = rnnop.init_weights("gru", input_size=I, hidden_size=H, num_layers=2, seed=0)
    weights = weights.map(lambda each: torch.from_numpy(each).double())
    with pytest.raises(rnnop.SpecError, match="`dropout` is"):
        rnnop.rnn(inputs(), weights, dropout=rate, training=True, backend="cudnn")


def test_wrong_weights_are_refused_as_everywhere() -> None:
    one, flat = torch.ones(3, 3), torch.ones(3)
    weights = rnnop.RNNWeights((one,) * 2, (flat,) * 2)
    with pytest.raises(rnnop.ShapeError, match="w_hh"):
        rnnop.rnn(inputs(), weights, mode="rnn_tanh", dropout=0.5, training=True)


def test_the_masks_are_drawn_where_x_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    drawn = rnnop.init_weights("lstm", input_size=I, hidden_size=H, num_layers=2, seed=0)
    with FakeTensorMode():
        x = torch.empty(T, N, I, device="cuda")
        weights = drawn.map(lambda each: torch.empty(each.shape, device="cuda"))
        assert functional._on_a_device(x)
        masks = functional._drawn_masks(x, functional._as_listed(weights), 0.5)
        assert masks is not None
        assert (masks.device, masks.dtype) == (x.device, torch.bool)
        assert tuple(masks.shape) == (1, T, N, H)
        out = rnnop.rnn(x, weights, mode="lstm", dropout=0.5, training=True)
        assert out.y.device == x.device
    assert not functional._on_a_device(inputs())
    assert not functional._on_a_device(np.ones(3))


def test_it_compiles(double: Double) -> None:
    net, x = module(), inputs()
    compiled = torch.compile(lambda x: net(x)[0], backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    y = compiled(x)
    torch.autograd.grad(y.sin().sum(), [x])
    torch.manual_seed(1)
    assert torch.equal(compiled(x), y)
    assert not torch.equal(compiled(x), y)
    assert double.calls(SEEDED) == 0


# One backward for each forward


def test_a_second_backward_is_refused(double: Double) -> None:
    x = inputs()
    y = module(dropout=0.0)(x)[0]
    torch.autograd.grad(y.sum(), [x], retain_graph=True)
    with pytest.raises(rnnop.UnsupportedError) as caught:
        torch.autograd.grad(y.sum(), [x])
    assert "the vjp of this call has run before" in str(caught.value)
    assert "expected one vjp for each forward" in str(caught.value)
    assert double.calls("cudnnRNNBackwardData_v8") == 1


def test_a_second_derivative_is_refused() -> None:
    x = inputs()
    y = module(dropout=0.0)(x)[0]
    [dx] = torch.autograd.grad(y.sin().sum(), [x], create_graph=True)
    with pytest.raises(rnnop.UnsupportedError, match="it has no second derivative") as caught:
        torch.autograd.grad(dx.sum(), [x])
    assert "backend='reference' has it" in str(caught.value)


def test_a_forward_without_a_gradient_keeps_nothing(double: Double) -> None:
    x, net = inputs(), module(dropout=0.0)
    with torch.no_grad():
        y = net(x)[0]
    assert double.number("peak_reserve") == 0
    assert not y.requires_grad
    net(x)
    assert double.number("peak_reserve") > 0


def test_the_cell_states_have_a_gradient(double: Double) -> None:
    weights = rnnop.init_weights("lstm", input_size=I, hidden_size=H, num_layers=2, seed=0)
    weights = weights.map(lambda each: torch.from_numpy(each).double().requires_grad_())
    options = {"mode": "lstm", "lengths": [6, 3, 0, 5], "return_cell_states": True}
    leaves = [x := inputs(), *(each for _, each in weights.named())]

    def gradients(backend: str) -> list[Any]:
        out = rnnop.rnn(x, weights, **options, backend=backend)
        loss = out.c.sin().sum() + out.y.cos().sum() + out.c_n.sum()
        return list(torch.autograd.grad(loss, leaves))

    for got, wanted in zip(gradients("cudnn"), gradients("reference"), strict=True):
        torch.testing.assert_close(got, wanted)
    assert double.calls("cudnnRNNBackwardData_v8") == 6 + 1
