"""Gradients of the RSSM: central differences, and torch's autograd of the same rules.

Every output has a random cotangent, and every gradient is looked at: of the weights, the state, the
belief, the actions, the embeddings and the actor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differences import assert_gradient
from rssm_cases import (
    FORMS,
    GAUSSIAN,
    SPECS,
    Actor,
    cotangents_of,
    gradients_of,
    inputs_of,
    with_array,
)

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here: pip install rnnop[torch]")

Array = np.ndarray[Any, np.dtype[Any]]

# Both compute in float64, and differ in the order of their sums: measured at most 2.3e-15, as a
# share of the largest entry where that is above 1.
TOLERANCE = 2e-14


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GAUSSIAN)
def test_differences(name: str, form: str) -> None:
    """Of the reference; whatever else runs is compared with it, and closer."""
    inputs = inputs_of(form, SPECS[name])
    for key in {"action", "actions"} & set(inputs.arrays):
        # Beyond 1 the divisor of a block GRU's actions is a constant to gradients, not in fact.
        inputs.arrays[key] = np.tanh(inputs.arrays[key])
    out, vjp = inputs.run(vjp=True, backend="reference")
    cotangents = cotangents_of(out)
    found = gradients_of(vjp(*cotangents))

    def terms(**changes: Any) -> Array:
        result = inputs.run(**changes, backend="reference")
        return np.concatenate(
            [(each * d).reshape(-1) for each, d in zip(result, cotangents, strict=True)]
        )

    for name, array in inputs.weights.named():
        assert_gradient(
            name,
            found.pop(name),
            lambda a, name=name: terms(weights=with_array(inputs.weights, name, a)),
            array,
        )
    for name, array in inputs.arrays.items():
        key = "actions" if name == "action" else name
        assert_gradient(name, found.pop(key), lambda a, name=name: terms(**{name: a}), array)
    for k, letter in enumerate("pq" if form == "imagine" else ""):

        def with_parameter(a: Array, letter: str = letter) -> Array:
            actor = Actor(inputs.weights.spec)
            setattr(actor, letter, a)
            return terms(actor=actor.plain)

        at = getattr(inputs.actor, letter)
        assert_gradient(f"actor.{letter}", found.pop(f"actor[{k}]"), with_parameter, at)
    assert not found


def tensors(inputs: Any, dtype: Any = torch.float64) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the inputs as torch's, and every leaf that has a gradient by its name."""

    def leaf(array: Array) -> Any:
        return torch.tensor(array, dtype=dtype, requires_grad=True)

    weights = inputs.weights.map(leaf)
    given = {name: leaf(array) for name, array in inputs.arrays.items()}
    leaves = dict(weights.named())
    leaves |= {"actions" if name == "action" else name: each for name, each in given.items()}
    call = {"weights": weights, "noise": torch.tensor(inputs.noise, dtype=dtype), **given}
    return call, leaves, given


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SPECS)
def test_autograd(name: str, form: str) -> None:
    """The plain forward of the reference on torch tensors, differentiated by torch."""
    inputs = inputs_of(form, SPECS[name])
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    found = gradients_of(vjp(*cotangents))
    call, leaves, _ = tensors(inputs)
    theirs = inputs.run(**call, backend="reference")
    for field, ours, other in zip(out._fields, out, theirs, strict=True):
        np.testing.assert_allclose(ours, other.detach(), rtol=0, atol=TOLERANCE, err_msg=field)
    total = sum((each * torch.tensor(d)).sum() for each, d in zip(theirs, cotangents, strict=True))
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        wanted = np.zeros(leaf.shape) if grad is None else grad.numpy()
        most = TOLERANCE * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=most, err_msg=name)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("form", ["step", "rollout", "observe"])
@pytest.mark.parametrize("name", ["first", "dreamer_v2", "dreamer_v3"])
def test_the_vjp_takes_tensors(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name])
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    found = gradients_of(vjp(*cotangents))
    call, _, _ = tensors(inputs)
    _, their_vjp = inputs.run(vjp=True, **call)
    with torch.no_grad():
        theirs = gradients_of(their_vjp(*map(torch.tensor, cotangents)))
    assert found.keys() == theirs.keys()
    for key, array in found.items():
        assert isinstance(theirs[key], torch.Tensor)
        np.testing.assert_allclose(array, theirs[key].detach(), rtol=1e-12, atol=TOLERANCE)
