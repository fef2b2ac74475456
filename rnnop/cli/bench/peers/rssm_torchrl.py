"""TorchRL: its RSSMPrior and RSSMPosterior in a loop, as they are and with the step compiled.

The loop hands tensors on. TorchRL's own RSSMRollout does the same through a TensorDict, which takes
longer; its `compile_step` compiles what is compiled here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ....rssm import from_torchrl, to_torchrl
from ..rssm import ACTION_SIZE, RSSMInputs, gradients
from . import Contender


def contenders(inputs: RSSMInputs, threads: int) -> list[Contender]:
    """Return the two ways, with PyTorch's pool of threads set to `threads`."""
    import torch

    torch.set_num_threads(threads)
    return [
        _contender("TorchRL", inputs, compiles=False),
        _contender("TorchRL, compiled", inputs, compiles=True),
    ]


def _contender(name: str, inputs: RSSMInputs, *, compiles: bool) -> Contender:
    import torch

    given = {key: torch.from_numpy(array) for key, array in inputs.arrays.items()}
    actor = {key: torch.from_numpy(array) for key, array in inputs.actor.items()}
    modules = _modules(inputs)
    step = _step(inputs.case.form, modules, actor)
    if compiles:
        step = torch.compile(step)
    if inputs.case.work != "training":

        def infer() -> Any:
            with torch.inference_mode():
                return _loop(step, given)

        return Contender(name, infer, _host)

    leaves = {key: array.requires_grad_() for key, array in given.items() if key != "noise"}
    if inputs.case.form == "imagine":
        leaves |= {key: array.requires_grad_() for key, array in actor.items()}
    parameters = [dict(module.named_parameters()) for module in modules]
    cotangents = {key: torch.from_numpy(array) for key, array in inputs.cotangents.items()}
    wanted = [*leaves.values(), *(each for module in parameters for each in module.values())]

    def train() -> Any:
        out = _loop(step, given)
        outputs = [out[key] for key in cotangents]
        return out, torch.autograd.grad(outputs, wanted, list(cotangents.values()))

    def outputs(result: Any) -> dict[str, Any]:
        out, grads = result
        found = iter(grads)
        inputs_found = {key: next(found) for key in leaves}
        states = [{key: next(found) for key in module} for module in parameters]
        weights = dict(from_torchrl(*states).named())
        return _host(out) | gradients(_host(inputs_found | weights))

    return Contender(name, train, outputs)


def _host(arrays: Any) -> dict[str, Any]:
    return {name: array.detach().numpy() for name, array in arrays.items()}


def _modules(inputs: RSSMInputs) -> list[Any]:
    """Return the prior, and for observations the posterior."""
    import torch

    model_based: Any = importlib.import_module("torchrl.modules.models.model_based")
    H, S = inputs.case.belief_size, inputs.case.state_size
    sizes = {"hidden_dim": H, "rnn_hidden_dim": H, "state_dim": S}
    modules = [model_based.RSSMPrior(torch.zeros(ACTION_SIZE), **sizes, action_dim=ACTION_SIZE)]
    if inputs.case.form == "observe":
        modules.append(model_based.RSSMPosterior(**sizes, obs_embed_dim=H))
    states: Any = to_torchrl(inputs.weights)
    for module, state in zip(modules, states, strict=False):
        module.load_state_dict({key: torch.from_numpy(array) for key, array in state.items()})
    return modules


def _step(form: str, modules: list[Any], actor: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of state, belief, noise, and action or embedding, to outputs by name."""
    import torch

    def rollout(state: Any, belief: Any, noise: Any, action: Any) -> dict[str, Any]:
        mean, std, state, belief = modules[0](state, belief, action, noise)
        return {"mean": mean, "std": std, "state": state, "belief": belief}

    def observe(state: Any, belief: Any, noise: Any, action: Any, embed: Any) -> dict[str, Any]:
        mean, std, _, belief = modules[0](state, belief, action, noise)
        found = {"prior_mean": mean, "prior_std": std}
        mean, std, state = modules[1](belief, embed, noise)
        return {
            **found,
            "posterior_mean": mean,
            "posterior_std": std,
            "state": state,
            "belief": belief,
        }

    def imagine(state: Any, belief: Any, noise: Any) -> dict[str, Any]:
        linear = torch.nn.functional.linear
        hidden = linear(torch.cat([state, belief], dim=-1), actor["w1"], actor["b1"])
        action = torch.tanh(linear(torch.nn.functional.elu(hidden), actor["w2"], actor["b2"]))
        return {**rollout(state, belief, noise, action), "action": action}

    steps: dict[str, Callable[..., Any]] = {
        "rollout": rollout,
        "observe": observe,
        "imagine": imagine,
    }
    return steps[form]


def _loop(step: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    import torch

    state, belief = given["state"], given["belief"]
    known = [given[name].unbind(0) for name in ("noise", "actions", "embeds") if name in given]
    found = []
    for now in zip(*known, strict=True):
        out = step(state, belief, *now)
        state, belief = out["state"], out["belief"]
        found.append(out)
    return {name: torch.stack([out[name] for out in found]) for name in found[0]}
