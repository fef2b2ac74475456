"""Each variant pinned to its owner, by the owner's equations worked once more.

PlaNet, Dreamer v1, v2 and v3 have so few units that every number can be followed by hand. The
module of pytorch/rl#366 is written with torch.nn. TorchRL's own are in test_rssm_torchrl.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rssm_cases import Actor

import rnnop
from rnnop import rssm
from rnnop.rssm import Layer

pytestmark = pytest.mark.usefixtures("each_backend")

Array = np.ndarray[Any, np.dtype[Any]]

CLOSE = 1e-14


def s(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def elu(x: float) -> float:
    return x if x > 0 else math.exp(x) - 1.0


def silu(x: float) -> float:
    return x * s(x)


def softplus(x: float) -> float:
    return math.log(1.0 + math.exp(x))


def layer(rows: list[list[float]], b: list[float], scale: Any = None, shift: Any = None) -> Layer:
    return Layer(*(None if each is None else np.array(each) for each in (rows, b, scale, shift)))


def one_unit_gru() -> rnnop.RNNWeights:
    def column(*numbers: float) -> tuple[Array]:
        return (np.array(numbers)[:, None],)

    biases = (np.array([0.01, 0.02, 0.03]),), (np.array([0.1, 0.2, 0.4]),)
    return rnnop.RNNWeights(column(0.3, -0.6, 0.9), column(0.5, 0.2, -0.7), *biases)


def one_unit(variant: str, **fields: Any) -> rssm.RSSMWeights:
    """One unit of everything, and weights of their own for every product."""
    sizes = dict.fromkeys(("state_size", "belief_size", "action_size", "embed_size"), 1)
    spec = rssm.RSSMSpec.of(variant, **{**sizes, "hidden_size": 1, **fields})
    return rssm.RSSMWeights(
        spec,
        inputs=(layer([[0.7, -0.4]], [0.05]),),
        gru=one_unit_gru(),
        prior=(layer([[1.1]], [0.15]), layer([[0.8], [-1.3]], [0.25, 0.35])),
        posterior=(layer([[-0.9, 0.6]], [0.45]), layer([[1.2], [0.5]], [-0.55, 0.65])),
    )


STATE, BELIEF, ACTION, EMBED, NOISE = 0.6, -0.8, 0.9, 1.7, -1.4


def column(number: float) -> Array:
    return np.array([[number]])


def observed(weights: rssm.RSSMWeights) -> dict[str, float]:
    """Take one step from the numbers above, with an observation; and one without."""
    prior = rssm.step(weights, column(STATE), column(BELIEF), column(ACTION), column(NOISE))
    out = rssm.observe(
        weights,
        column(STATE),
        column(BELIEF),
        column(ACTION)[None],
        column(EMBED)[None],
        noise=column(NOISE)[None],
    )
    found = {name: each.item() for name, each in zip(out._fields, out, strict=True)}
    assert prior.belief.item() == found["belief"]
    assert prior.mean.item() == pytest.approx(found["prior_mean"], abs=CLOSE)
    assert prior.std.item() == pytest.approx(found["prior_std"], abs=CLOSE)
    return found | {"prior_state": prior.state.item()}


def check(found: dict[str, float], belief: float, std: Any, act: Any = elu) -> None:
    """The heads, which PlaNet and Dreamer v1 have in common, above a belief."""
    assert found["belief"] == pytest.approx(belief, abs=CLOSE)
    x = act(1.1 * belief + 0.15)
    assert found["prior_mean"] == pytest.approx(0.8 * x + 0.25, abs=CLOSE)
    assert found["prior_std"] == pytest.approx(std(-1.3 * x + 0.35), abs=CLOSE)
    x = act(-0.9 * belief + 0.6 * EMBED + 0.45)
    mean, wide = 1.2 * x - 0.55, std(0.5 * x + 0.65)
    assert found["posterior_mean"] == pytest.approx(mean, abs=CLOSE)
    assert found["posterior_std"] == pytest.approx(wide, abs=CLOSE)
    assert found["state"] == pytest.approx(mean + wide * NOISE, abs=CLOSE)
    prior = found["prior_mean"] + found["prior_std"] * NOISE
    assert found["prior_state"] == pytest.approx(prior, abs=CLOSE)


def test_planet() -> None:
    """tf GRUBlockCell: the reset before the product; std softplus + 0.1."""
    found = observed(one_unit("planet"))
    x = elu(0.7 * STATE - 0.4 * ACTION + 0.05)  # 0.11
    h = BELIEF
    r = s(0.3 * x + 0.01 + 0.5 * h + 0.1)  # s(-0.257)
    z = s(-0.6 * x + 0.02 + 0.2 * h + 0.2)  # s(-0.006)
    n = math.tanh(0.9 * x + 0.03 - 0.7 * (r * h) + 0.4)
    check(found, (1 - z) * n + z * h, lambda x: softplus(x) + 0.1)
    # x = 0.11; r = 0.43610, z = 0.49850, n = tanh(0.77322) = 0.64880
    assert found["belief"] == pytest.approx(-0.07343, abs=5e-6)


def test_planet_with_relu() -> None:
    """PlaNet's first version had it in place of ELU."""
    weights = one_unit("planet", activation="relu")
    check(
        observed(weights),
        observed(weights)["belief"],
        lambda x: softplus(x) + 0.1,
        lambda x: max(x, 0.0),
    )


def test_dreamer_v1() -> None:
    """Keras' GRUCell: the reset after the product."""
    found = observed(one_unit("dreamer_v1"))
    x = elu(0.7 * STATE - 0.4 * ACTION + 0.05)
    h = BELIEF
    r = s(0.3 * x + 0.01 + 0.5 * h + 0.1)
    z = s(-0.6 * x + 0.02 + 0.2 * h + 0.2)
    n = math.tanh(0.9 * x + 0.03 + r * (-0.7 * h + 0.4))
    check(found, (1 - z) * n + z * h, lambda x: softplus(x) + 0.1)
    # n = tanh(0.129 + 0.43610 * 0.96) = tanh(0.54766) = 0.49876
    assert found["belief"] == pytest.approx(-0.14867, abs=5e-6)


@pytest.mark.parametrize(
    ("rule", "std"),
    [
        ("max_softplus", lambda x: max(softplus(x), 0.1)),
        ("softplus", lambda x: softplus(x) + 0.1),
        ("sigmoid2", lambda x: 2.0 * s(x / 2.0) + 0.1),
        ("biased_softplus", lambda x: max(softplus(x + 0.5254587) + 0.01, 0.1)),
    ],
)
@pytest.mark.parametrize("x", [-7.0, -2.2, 0.0, 1.3])
def test_std_rules(rule: str, std: Any, x: float) -> None:
    weights = one_unit("torchrl", std=rule)
    last = Layer(np.zeros((2, 1)), np.array([0.0, x]))
    weights = rssm.RSSMWeights(
        weights.spec, weights.inputs, (weights.prior[0], last), weights.posterior, weights.gru
    )
    assert observed(weights)["prior_std"] == pytest.approx(std(x), abs=1e-7)
    if rule == "biased_softplus" and x == 0.0:
        assert observed(weights)["prior_std"] == pytest.approx(1.0, abs=CLOSE)


def normed(numbers: list[float], scale: list[float], shift: list[float], eps: float) -> list[float]:
    mean = sum(numbers) / len(numbers)
    size = math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers) + eps)
    return [(x - mean) / size * g + b for x, g, b in zip(numbers, scale, shift, strict=True)]


def dreamer_update(r: float, n: float, u: float, h: float) -> float:
    """reset, cand, update -> new belief, as Dreamer v2 and v3 have it."""
    cand = math.tanh(s(r) * n)
    return s(u - 1.0) * cand + (1.0 - s(u - 1.0)) * h


def test_dreamer_v2() -> None:
    """The norm over all three gates; its rows here are reset, update, cand."""
    plain = one_unit("torchrl", std="sigmoid2")
    scale, shift = [0.9, 1.2, 0.7], [0.2, -0.3, 0.4]
    spec = rssm.RSSMSpec.of(
        "dreamer_v2",
        latent="gaussian",
        num_classes=None,
        state_size=1,
        belief_size=1,
        action_size=1,
        embed_size=1,
        hidden_size=1,
    )
    weights = rssm.RSSMWeights(
        spec,
        plain.inputs,
        plain.prior,
        plain.posterior,
        plain.gru,
        np.array(scale),
        np.array(shift),
    )
    x = elu(0.7 * STATE - 0.4 * ACTION + 0.05)
    h = BELIEF
    parts = [
        0.3 * x + 0.5 * h + 0.11,
        -0.6 * x + 0.2 * h + 0.22,
        0.9 * x - 0.7 * h + 0.43,
    ]  # -0.257, -0.006, 1.089
    r, u, n = normed(parts, scale, shift, 1e-3)
    found = observed(weights)
    check(found, dreamer_update(r, n, u, h), lambda x: 2.0 * s(x / 2.0) + 0.1)
    # r = s(-0.61861) = 0.35010, u = s(-1.87684) = 0.13275, cand = tanh(0.35010 * 1.37319) = 0.44684
    assert found["belief"] == pytest.approx(-0.63448, abs=5e-6)


def choose(logits: list[float], uniform: float, unimix: float) -> list[float]:
    """Draw a class: the first whose cumulative probability reaches the uniform number."""
    total = sum(math.exp(x) for x in logits)
    cumulative = 0.0
    for k, x in enumerate(logits):
        cumulative += (1.0 - unimix) * math.exp(x) / total + unimix / len(logits)
        if uniform <= cumulative:
            return [float(k == each) for each in range(len(logits))]
    raise AssertionError("a uniform number above 1")


@pytest.mark.parametrize("uniform", [0.001, 0.2, 0.45, 0.7, 0.999])
def test_dreamer_v2_categorical(uniform: float) -> None:
    spec = rssm.RSSMSpec.of(
        "dreamer_v2", state_size=3, num_classes=3, belief_size=1, action_size=1, hidden_size=1
    )
    rows = [[0.8], [-1.3], [0.4]]
    weights = rssm.RSSMWeights(
        spec,
        inputs=(layer([[0.7, 0.2, -0.1, -0.4]], [0.05]),),
        gru=one_unit_gru(),
        gru_scale=np.ones(3),
        prior=(layer([[1.1]], [0.15]), layer(rows, [0.25, 0.35, -0.45])),
    )
    h = BELIEF
    x = elu(0.2 - 0.4 * ACTION + 0.05)  # the state is the second of three classes
    parts = [0.3 * x + 0.5 * h + 0.11, -0.6 * x + 0.2 * h + 0.22, 0.9 * x - 0.7 * h + 0.43]
    r, u, n = normed(parts, [1.0] * 3, [0.0] * 3, 1e-3)
    belief = dreamer_update(r, n, u, h)
    x = elu(1.1 * belief + 0.15)
    logits = [0.8 * x + 0.25, -1.3 * x + 0.35, 0.4 * x - 0.45]
    out = rssm.step(
        weights, np.array([[0.0, 1.0, 0.0]]), column(h), column(ACTION), column(uniform)
    )
    np.testing.assert_allclose(out.belief, [[belief]], rtol=0, atol=CLOSE)
    np.testing.assert_allclose(out.logits, [[logits]], rtol=0, atol=CLOSE)
    assert out.state.tolist() == [choose(logits, uniform, 0.0)]


def test_dreamer_v3() -> None:
    """Two blocks of one unit: features of belief, state and action, shared by the blocks."""
    spec = rssm.RSSMSpec.of(
        "dreamer_v3",
        state_size=2,
        num_classes=2,
        belief_size=2,
        action_size=1,
        hidden_size=1,
        num_blocks=2,
        prior_layers=1,
    )
    weights = rssm.RSSMWeights(
        spec,
        inputs=(
            layer([[0.5, -0.3]], [0.1], [1.1]),
            layer([[0.7, 0.2]], [0.05], [0.9]),
            layer([[-0.8]], [0.3], [1.2]),
        ),
        dynamics=(
            layer([[[0.4, 0.1, -0.2, 0.3]], [[-0.6, 0.5, 0.7, -0.9]]], [0.02, -0.03], [1.3, 0.8]),
            layer([[[0.2], [0.9], [-0.5]], [[1.1], [-0.7], [0.6]]], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        ),
        prior=(layer([[0.6, -0.4]], [0.2], [1.4]), layer([[1.5], [-0.5]], [0.1, 0.0])),
    )

    def unit(x: float, scale: float) -> float:
        """SiLU of an RMS norm of one number."""
        return silu(scale * x / math.sqrt(x * x + 1e-4))

    h, action = [0.6, -0.9], -2.5
    x_h = unit(0.5 * h[0] - 0.3 * h[1] + 0.1, 1.1)
    x_s = unit(0.2 + 0.05, 0.9)
    x_a = unit(-0.8 * (action / 2.5) + 0.3, 1.2)
    d = [
        0.4 * h[0] + 0.1 * x_h - 0.2 * x_s + 0.3 * x_a + 0.02,
        -0.6 * h[1] + 0.5 * x_h + 0.7 * x_s - 0.9 * x_a - 0.03,
    ]
    size = math.sqrt((d[0] ** 2 + d[1] ** 2) / 2.0 + 1e-4)
    d = [silu(1.3 * d[0] / size), silu(0.8 * d[1] / size)]
    # of each block the rows reset, update, cand
    belief = [
        dreamer_update(0.2 * d[0] + 0.1, -0.5 * d[0] + 0.3, 0.9 * d[0] + 0.2, h[0]),
        dreamer_update(1.1 * d[1] + 0.4, 0.6 * d[1] + 0.6, -0.7 * d[1] + 0.5, h[1]),
    ]
    x = unit(0.6 * belief[0] - 0.4 * belief[1] + 0.2, 1.4)
    logits = [1.5 * x + 0.1, -0.5 * x]
    for uniform in (0.1, 0.995):
        out = rssm.step(
            weights, np.array([[0.0, 1.0]]), np.array([h]), column(action), column(uniform)
        )
        np.testing.assert_allclose(out.belief, [belief], rtol=0, atol=CLOSE)
        np.testing.assert_allclose(out.logits, [[logits]], rtol=0, atol=CLOSE)
        assert out.state.tolist() == [choose(logits, uniform, 0.01)]
    assert choose(logits, 0.1, 0.01) != choose(logits, 0.995, 0.01)


def test_block_gru_of_torchrl_by_its_own_numbers() -> None:
    """TorchRL's fixture from Dreamer v3 in JAX: all parameters from -0.2 to 0.2 in equal steps."""
    shapes = {
        "rnn.belief_projection.0.weight": (4, 4),
        "rnn.belief_projection.0.bias": (4,),
        "rnn.belief_projection.1.weight": (4,),
        "rnn.state_projection.0.weight": (4, 4),
        "rnn.state_projection.0.bias": (4,),
        "rnn.state_projection.1.weight": (4,),
        "rnn.action_projection.0.weight": (4, 2),
        "rnn.action_projection.0.bias": (4,),
        "rnn.action_projection.1.weight": (4,),
        "rnn.hidden_layers.0.weight": (2, 14, 2),
        "rnn.hidden_layers.0.bias": (4,),
        "rnn.hidden_layers.1.weight": (4,),
        "rnn.gates.weight": (2, 2, 6),
        "rnn.gates.bias": (12,),
        "rnn_to_prior_projector.0.weight": (4, 4),
        "rnn_to_prior_projector.0.bias": (4,),
        "rnn_to_prior_projector.1.weight": (4,),
        "rnn_to_prior_projector.3.weight": (4, 4),
        "rnn_to_prior_projector.3.bias": (4,),
    }
    state_dict = {
        name: np.linspace(-0.2, 0.2, math.prod(shape)).reshape(shape)
        for name, shape in shapes.items()
    }
    out = rssm.step(
        rssm.from_torchrl(state_dict, num_classes=2),
        np.array([[1.0, 0.0, 0.0, 1.0]]),
        np.array([[0.1, -0.2, 0.3, -0.4]]),
        np.array([[2.0, -4.0]]),
        seed=0,
    )
    belief = [[0.0575409, -0.1607322, 0.2253285, -0.2480658]]
    logits = [[[-0.2538432, -0.0850009], [0.0838414, 0.2526837]]]
    np.testing.assert_allclose(out.belief, belief, rtol=0, atol=5e-5)  # as they have it
    np.testing.assert_allclose(out.logits, logits, rtol=0, atol=5e-5)


# The module of pytorch/rl#366

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here: pip install rnnop[torch]")


class FirstPrior(torch.nn.Module):
    """What RSSMPrior was, with the std of its NormalParamWrapper; sizes of their own."""

    def __init__(self, S: int, H: int, A: int, X: int) -> None:
        super().__init__()
        nn = torch.nn
        self.rnn = nn.GRUCell(X, H)
        self.action_state_projector = nn.Sequential(nn.Linear(S + A, X), nn.ELU())
        self.rnn_to_prior_projector = nn.ModuleDict(
            {"operator": nn.Sequential(nn.Linear(H, X), nn.ELU(), nn.Linear(X, 2 * S))}
        )

    def forward(self, state: Any, belief: Any, action: Any, noise: Any) -> Any:
        belief = self.rnn(self.action_state_projector(torch.cat([state, action], -1)), belief)
        mean, x = self.rnn_to_prior_projector["operator"](belief).chunk(2, -1)
        shifted = torch.nn.functional.softplus(x + math.log(math.expm1(0.99)))
        std = (shifted + 0.01).clamp_min(0.1)
        return mean, std, mean + noise * std, belief


def unrolled(prior: Any, state: Any, belief: Any, noise: Any, actions: Any, actor: Any) -> Any:
    """Both of the loops that #366 asks for: `actions` (N, T, A), or an actor."""
    steps = []
    for t in range(noise.shape[1]):
        action = actions[:, t] if actor is None else actor(state, belief)
        mean, std, state, belief = prior(state, belief, action, noise[:, t])
        steps.append(
            (mean, std, state, belief) if actor is None else (mean, std, state, belief, action)
        )
    return [torch.stack(each, 1) for each in zip(*steps, strict=True)]


@pytest.mark.parametrize("acting", [False, True])
@pytest.mark.parametrize("num_steps", [1, 7])
def test_the_request(num_steps: int, acting: bool) -> None:
    S, H, A, X, N, T = 3, 5, 2, 4, 6, num_steps
    torch.manual_seed(0)
    prior = FirstPrior(S, H, A, X).double()
    random = np.random.default_rng(0)
    shapes = {"state": (N, S), "belief": (N, H), "noise": (N, T, S), "actions": (N, T, A)}
    given = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    weights = rssm.from_torchrl(
        {name: each.detach().numpy() for name, each in prior.named_parameters()},
        std="biased_softplus",
    )
    # The head's last layer draws some stds to the bound, some above it.
    actor = Actor(weights.spec)
    if acting:
        del given["actions"], leaves["actions"]
        out, vjp = rssm.imagine_vjp(
            weights, actor=actor.with_vjp, horizon=T, batch_first=True, **given
        )
    else:
        out, vjp = rssm.rollout_vjp(weights, batch_first=True, **given)
    theirs = unrolled(prior, **{"actions": None, **leaves}, actor=actor.plain if acting else None)
    cotangents = [random.standard_normal(each.shape) for each in out]
    grads = vjp(*cotangents)
    total = sum((each * torch.tensor(d)).sum() for each, d in zip(theirs, cotangents, strict=True))
    total.backward()
    for field, ours, other in zip(out._fields, out, theirs, strict=True):
        np.testing.assert_allclose(ours, other.detach(), rtol=0, atol=CLOSE, err_msg=field)
    named = {name: each.grad.numpy() for name, each in prior.named_parameters()}
    wanted = dict(rssm.from_torchrl(named, std="biased_softplus").named())
    found = dict(grads.weights.named())
    for name in ("state", "belief", *(() if acting else ("actions",))):
        wanted[name], found[name] = leaves[name].grad.numpy(), getattr(grads, name)
    for name, array in wanted.items():
        most = 1e-13 * max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(found[name], array, rtol=0, atol=most, err_msg=name)
