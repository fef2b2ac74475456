"""TorchRL's RSSM modules: values and gradients, and their weights in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rssm_cases import SPECS, gradients_of, weights_of

from rnnop import SpecError, rssm

torch = pytest.importorskip("torch", reason="PyTorch is needed: pip install rnnop[torch]")
models = pytest.importorskip(
    "torchrl.modules.models.model_based", reason="TorchRL is the oracle here: pip install torchrl"
)
tensordict = pytest.importorskip("tensordict")

pytestmark = pytest.mark.usefixtures("each_backend")

Array = np.ndarray[Any, np.dtype[Any]]

# Both compute in float64, and differ in the order of their sums: measured at most 3.5e-15, as a
# share of the largest entry where that is above 1.
TOLERANCE = 2e-14

N, T, S, H, A, E = 4, 6, 6, 8, 2, 5
K, B = 3, 2  # classes, blocks


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules cast to float32 on the way; here the same code stays in float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def shaken(module: Any) -> Any:
    """The module in float64, with parameters that leave no norm the identity."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.double()


def gaussian_modules() -> tuple[Any, Any]:
    prior = models.RSSMPrior(
        torch.zeros(A), hidden_dim=H, rnn_hidden_dim=H, state_dim=S, action_dim=A
    )
    posterior = models.RSSMPosterior(hidden_dim=H, state_dim=S, rnn_hidden_dim=H, obs_embed_dim=E)
    return shaken(prior), shaken(posterior)


# prior and posterior of RSSM*V3, by name
V3: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gru": ({"recurrent_model": "gru"}, {}),
    "gru_unimix": (
        {"recurrent_model": "gru", "unimix": 0.01},
        {"use_rms_norm": True, "num_layers": 2, "unimix": 0.01},
    ),
    "block_gru": (
        {"recurrent_model": "block_gru", "num_blocks": B, "num_layers": 2, "unimix": 0.01},
        {"use_rms_norm": True, "unimix": 0.01},
    ),
    "block_gru_plain_posterior": (
        {"recurrent_model": "block_gru", "num_blocks": 1, "prior_num_layers": 1},
        {},
    ),
}


def categorical_modules(name: str) -> tuple[Any, Any]:
    sizes = {"hidden_dim": 7, "rnn_hidden_dim": H, "num_categoricals": S // K, "num_classes": K}
    of_prior, of_posterior = V3[name]
    prior = models.RSSMPriorV3(action_shape=(A,), action_dim=A, **sizes, **of_prior)
    posterior = models.RSSMPosteriorV3(obs_embed_dim=E, **sizes, **of_posterior)
    return shaken(prior), shaken(posterior)


def parameters(prior: Any, posterior: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(
        {name: each.detach().numpy() for name, each in module.named_parameters()}
        for module in (prior, posterior)
    )


def leaves(**arrays: Array) -> dict[str, Any]:
    return {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}


def assert_close(name: str, ours: Any, theirs: Any) -> None:
    theirs = theirs.detach().numpy() if torch.is_tensor(theirs) else theirs
    most = TOLERANCE * max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=most, err_msg=name)


def compare(
    out: Any, vjp: Any, theirs: Any, inputs: dict[str, Any], modules: Any, **options: Any
) -> None:
    """Values, then all gradients from a random cotangent of every output."""
    for name, ours, other in zip(out._fields, out, theirs, strict=True):
        assert_close(name, ours, other)
    cotangents = [random(*each.shape, seed=k) for k, each in enumerate(out)]
    total = sum((each * torch.tensor(d)).sum() for each, d in zip(theirs, cotangents, strict=True))
    total.backward()
    found = gradients_of(vjp(*cotangents))
    named = [
        {
            name: torch.zeros_like(each) if each.grad is None else each.grad
            for name, each in m.named_parameters()
        }
        for m in modules
    ]
    numbers = [{name: each.numpy() for name, each in state.items()} for state in named]
    wanted = dict(rssm.from_torchrl(*numbers, **options).named())
    wanted |= {name: each.grad for name, each in inputs.items()}
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        assert_close(name, found[name], grad)


def test_prior() -> None:
    prior, posterior = gaussian_modules()
    given = {"state": random(N, S), "belief": random(N, H, seed=1)}
    action, noise = random(N, A, seed=2), random(N, S, seed=3)
    weights = rssm.from_torchrl(parameters(prior, posterior)[0])
    out, vjp = rssm.step_vjp(weights, given["state"], given["belief"], action, noise)
    inputs = leaves(**given, actions=action)
    theirs = prior(inputs["state"], inputs["belief"], inputs["actions"], torch.tensor(noise))
    compare(out, vjp, theirs, inputs, [prior])


def rollout_module(kind: Any, prior: Any, posterior: Any, **noise: str) -> Any:
    """Wrap two modules as TorchRL's own rollouts take them."""
    gaussian = kind is models.RSSMRollout
    of = ("mean", "std") if gaussian else ("logits",)
    wrap = tensordict.nn.TensorDictModule
    drawn = "prior_state" if gaussian else ("next", "state")
    return kind(
        wrap(
            prior,
            in_keys=["state", "belief", "action", *noise.values()],
            out_keys=[*(("next", f"prior_{x}") for x in of), drawn, ("next", "belief")],
        ),
        wrap(
            posterior,
            in_keys=[("next", "belief"), ("next", "encoded_latents"), *noise.values()],
            out_keys=[*(("next", f"posterior_{x}") for x in of), ("next", "state")],
        ),
    )


def observed(rollout: Any, inputs: dict[str, Any], out: Any, **more: Any) -> list[Any]:
    """Run one of TorchRL's rollouts; return its results under the names of `out`."""
    first = {name: inputs[name][:, None].expand(-1, T, -1) for name in ("state", "belief")}
    data = {
        **first,
        "action": inputs["actions"],
        "next": {"encoded_latents": inputs["embeds"]},
        **more,
    }
    result = rollout(tensordict.TensorDict(data, [N, T]))
    return [result["next", name] for name in out._fields]


def observed_inputs() -> dict[str, Array]:
    return {
        "state": random(N, S),
        "belief": random(N, H, seed=1),
        "actions": random(N, T, A, seed=2),
        "embeds": random(N, T, E, seed=3),
    }


def test_rollout() -> None:
    prior, posterior = gaussian_modules()
    given, noise = observed_inputs(), random(N, T, S, seed=4)
    weights = rssm.from_torchrl(*parameters(prior, posterior))
    out, vjp = rssm.observe_vjp(weights, **given, noise=noise, batch_first=True)
    inputs = leaves(**given)
    rollout = rollout_module(models.RSSMRollout, prior, posterior, noise="noise")
    theirs = observed(rollout, inputs, out, noise=torch.tensor(noise))
    compare(out, vjp, theirs, inputs, (prior, posterior))


@pytest.mark.parametrize("name", V3)
def test_prior_v3(name: str) -> None:
    prior, posterior = categorical_modules(name)
    options = {"num_classes": K, "unimix": V3[name][0].get("unimix", 0.0)}
    given = {"state": random(N, S), "belief": random(N, H, seed=1)}
    action = 2 * random(N, A, seed=2)
    uniform = np.random.default_rng(3).random((N, S // K))
    weights = rssm.from_torchrl(parameters(prior, posterior)[0], **options)
    out, vjp = rssm.step_vjp(weights, given["state"], given["belief"], action, uniform)
    inputs = leaves(**given, actions=action)
    theirs = prior(
        inputs["state"], inputs["belief"], inputs["actions"], _uniform=torch.tensor(uniform)
    )
    compare(out, vjp, theirs, inputs, [prior], **options)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("name", V3)
def test_rollout_v3(name: str, resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prior, posterior = categorical_modules(name)
    options = {"num_classes": K, "unimix": V3[name][0].get("unimix", 0.0)}
    given = observed_inputs()
    given["actions"] *= 2
    uniform = np.random.default_rng(4).random((N, T, S // K))
    first = np.random.default_rng(5).random((N, T)) < 0.3
    weights = rssm.from_torchrl(*parameters(prior, posterior), **options)
    out, vjp = rssm.observe_vjp(
        weights, **given, is_first=first if resets else None, noise=uniform, batch_first=True
    )
    # (T, 2, N, S / K): it draws for the prior too, and does not use that
    drawn = torch.tensor(uniform).transpose(0, 1)[:, None].expand(-1, 2, -1, -1)
    monkeypatch.setattr(torch, "rand", lambda *size, **_: drawn.reshape(size))
    inputs = leaves(**given)
    more = {"is_init": torch.tensor(first)[:, :, None]} if resets else {}
    rollout = rollout_module(models.RSSMRolloutV3, prior, posterior)
    theirs = observed(rollout, inputs, out, **more)
    compare(out, vjp, theirs, inputs, (prior, posterior), **options)


@pytest.mark.parametrize("name", ["gaussian", *V3])
def test_the_parameters_of_a_module_get_their_gradients(name: str) -> None:
    """Through torch's autograd, without a vjp."""
    gaussian = name == "gaussian"
    modules = gaussian_modules() if gaussian else categorical_modules(name)
    options: dict[str, Any] = {} if gaussian else {"num_classes": K}
    given = observed_inputs()
    inputs = {key: torch.tensor(array) for key, array in given.items()}

    weights = rssm.from_torchrl(*parameters(*modules), **options)
    out, vjp = rssm.observe_vjp(weights, **given, seed=0, batch_first=True)
    cotangents = [random(*each.shape, seed=k) for k, each in enumerate(out)]
    wanted = rssm.to_torchrl(vjp(*cotangents).weights)
    live = [dict(module.named_parameters()) for module in modules]
    weights = rssm.from_torchrl(*live, **options)
    out = rssm.observe(weights, **inputs, seed=0, batch_first=True)
    sum((each * torch.tensor(d)).sum() for each, d in zip(out, cotangents, strict=True)).backward()
    for theirs, ours in zip(live, wanted, strict=True):
        for key, parameter in theirs.items():
            assert_close(key, ours[key], parameter.grad)


@pytest.mark.parametrize("name", ["gaussian", *V3])
def test_weights_there_and_back(name: str) -> None:
    gaussian = name == "gaussian"
    modules = gaussian_modules() if gaussian else categorical_modules(name)
    options = {} if gaussian else {"num_classes": K}
    state_dicts = [module.state_dict() for module in modules]
    weights = rssm.from_torchrl(*state_dicts, **options)
    back = rssm.to_torchrl(weights)
    for module, ours, theirs in zip(modules, back, state_dicts, strict=True):
        assert ours.keys() == theirs.keys()
        for key, array in theirs.items():
            assert torch.equal(ours[key], array), key
        module.load_state_dict(ours)
    assert rssm.to_torchrl(rssm.from_torchrl(state_dicts[0], **options)).posterior is None


@pytest.mark.parametrize("name", ["first", "torchrl", "torchrl_v3", "block"])
def test_missing_biases_are_written_as_zeros(name: str) -> None:
    block = rssm.RSSMSpec.of(
        "torchrl_v3",
        state_size=S,
        num_classes=K,
        belief_size=H,
        action_size=A,
        embed_size=E,
        cell="block_gru",
        norm="rms",
        num_blocks=B,
    )
    weights = weights_of({**SPECS, "block": block}[name])
    named = {
        key: array
        for key, array in weights.named()
        if not key.endswith(".b") and "b_" not in key and "initial" not in key
    }
    bare = rssm.RSSMWeights.of_arrays(weights.spec, named)
    prior, posterior = rssm.to_torchrl(bare)
    assert not prior["rnn.gates.bias" if name == "block" else "rnn.bias_hh"].any()
    assert not posterior["obs_rnn_to_post_projector.0.bias"].any()


@pytest.mark.parametrize(
    "name", ["planet", "dreamer_v2", "dreamer_v2_gaussian", "block_gru_gaussian", "relu"]
)
def test_models_that_torchrl_does_not_have(name: str) -> None:
    with pytest.raises(SpecError, match="model that TorchRL does not have"):
        rssm.to_torchrl(weights_of(SPECS[name]))


def test_initial_states_that_torchrl_does_not_have() -> None:
    with pytest.raises(SpecError, match=r"`weights.initial_state` is given"):
        rssm.to_torchrl(weights_of(SPECS["torchrl"]))


def test_state_dicts_that_are_none() -> None:
    prior, _ = parameters(*gaussian_modules())
    del prior["rnn.bias_hh"]
    with pytest.raises(SpecError, match=r"from_torchrl: `prior` has no 'rnn\.bias_hh'"):
        rssm.from_torchrl(prior)
    with pytest.raises(SpecError, match=r"`posterior` has no 'obs_rnn_to_post_projector\.0"):
        rssm.from_torchrl(parameters(*gaussian_modules())[0], {})
    with pytest.raises(TypeError, match=r"`prior` is list"):
        rssm.from_torchrl([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="to_torchrl: `weights` is dict"):
        rssm.to_torchrl(prior)  # type: ignore[arg-type]
