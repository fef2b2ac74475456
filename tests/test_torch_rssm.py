"""Torch tensors through `rnnop.rssm`: the numbers of the reference that torch differentiates."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import DTYPES
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of, gradients_of, inputs_of
from tolerances import assert_close

import rnnop
from rnnop import rssm

torch = pytest.importorskip(
    "torch", reason="there is nothing to adapt to: pip install rnnop[torch]"
)
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_family import array, tensor  # noqa: E402

import rnnop.torch  # noqa: E402
from rnnop.torch import host, operators, rssm_op  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]

T, N = 4, 3
LOOPS = ("rollout", "imagine", "observe")

every_model = pytest.mark.parametrize("name", SPECS)
some_models = pytest.mark.parametrize("name", ["first", "planet", "dreamer_v2", "dreamer_v3"])


class Policy(torch.nn.Module):
    """An actor of two layers."""

    def __init__(self, spec: rssm.RSSMSpec, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = torch.nn.Linear(spec.state_size + spec.belief_size, width)
        self.out = torch.nn.Linear(width, spec.action_size)
        self.double()

    def forward(self, state: Any, belief: Any) -> Any:
        hidden = torch.nn.functional.elu(self.hidden(torch.cat([state, belief], -1)))
        return torch.tanh(self.out(hidden))


def converted(inputs: Inputs, dtype: str) -> Inputs:
    """The same call in another dtype, all floats of it."""

    def cast(each: Array) -> Array:
        return each.astype(DTYPES[dtype])

    return replace(
        inputs,
        weights=inputs.weights.map(cast),
        arrays={name: cast(each) for name, each in inputs.arrays.items()},
        noise=cast(inputs.noise),
    )


def rows_first(inputs: Inputs) -> Inputs:
    """The same call with `batch_first`."""

    def turned(name: str, each: Any) -> Any:
        return each if name in ("state", "belief") else each.swapaxes(0, 1)

    return replace(
        inputs,
        arrays={name: turned(name, each) for name, each in inputs.arrays.items()},
        noise=inputs.noise.swapaxes(0, 1),
        is_first=inputs.is_first.swapaxes(0, 1),
    )


class Recorded:
    """A call on tensors, each of which needs a gradient, but those in `frozen`.

    Attributes
    ----------
    leaves : dict of str to Tensor
        The weights and inputs by name, and the actor's parameters.
    """

    def __init__(self, inputs: Inputs, frozen: tuple[str, ...] = ()) -> None:
        self.inputs, self.actor = inputs, Policy(inputs.weights.spec)
        self.noise, self.is_first = tensor(inputs.noise), inputs.is_first
        self.actor.to(self.noise.dtype)

        def leaf(name: str, each: Array) -> Any:
            copied = tensor(each).clone()
            return copied.requires_grad_(not name.startswith(frozen) if frozen else True)

        named = {name: leaf(name, each) for name, each in inputs.weights.named()}
        self.weights = rssm.RSSMWeights.of_arrays(inputs.weights.spec, named)
        self.arrays = {name: leaf(name, each) for name, each in inputs.arrays.items()}
        self.leaves = named | self.arrays
        if inputs.form == "imagine":
            self.leaves |= {f"actor.{name}": each for name, each in self.actor.named_parameters()}

    def __call__(self, **options: Any) -> Any:
        if self.inputs.form == "imagine":
            options = {"actor": self.actor, "horizon": T} | options
        if self.inputs.form in ("rollout", "observe"):
            options.setdefault("is_first", self.is_first)
        options.setdefault("noise", self.noise)
        return getattr(rssm, self.inputs.form)(self.weights, **self.arrays, **options)

    def gradients(self, out: Any, cotangents: list[Any]) -> dict[str, Any]:
        """Gradients of all leaves that need one; zeros where torch finds no way to it."""
        chosen = {name: each for name, each in self.leaves.items() if each.requires_grad}
        pairs = [(each, d) for each, d in zip(out, cotangents, strict=True) if d is not None]
        grads = torch.autograd.grad(
            [each for each, _ in pairs],
            list(chosen.values()),
            [d if isinstance(d, torch.Tensor) else tensor(d) for _, d in pairs],
            allow_unused=True,
        )
        return {
            name: array(torch.zeros_like(chosen[name]) if grad is None else grad)
            for name, grad in zip(chosen, grads, strict=True)
        }


def results(call: Recorded, cotangents: list[Any] | None = None, **options: Any) -> dict[str, Any]:
    """All outputs and gradients by name."""
    out = call(**options)
    if cotangents is None:
        cotangents = cotangents_of([array(each) for each in out])
    outputs = {name: array(each) for name, each in zip(out._fields, out, strict=True)}
    return outputs | {f"d{k}": each for k, each in call.gradients(out, cotangents).items()}


def joined(found: dict[str, Array]) -> dict[str, Array]:
    """With the gradients of one field of the weights as one vector: a bias alone may cancel."""
    together: dict[str, list[Array]] = {}
    for name, each in found.items():
        part = name.partition("[")[0].partition(".")[0]
        together.setdefault(part if part != name else name, []).append(each)
    return {
        name: parts[0] if len(parts) == 1 else np.concatenate([each.ravel() for each in parts])
        for name, parts in together.items()
    }


def assert_right(inputs: Inputs, dtype: str, **options: Any) -> None:
    """Fail unless every output and gradient is that of the float64 reference under autograd."""
    given = converted(inputs, dtype)
    call, wide = Recorded(given), Recorded(converted(given, "float64"))
    cotangents = cotangents_of([array(each) for each in call(**options)])
    found = results(call, cotangents, **options)
    cotangents = [each.astype("float64") for each in cotangents]
    wanted = results(wide, cotangents, backend="reference", **options)
    assert found.keys() == wanted.keys()
    right = joined(wanted)
    for name, each in joined(found).items():
        assert_close(name, each, right[name], "cpu", dtype)


def assert_bits(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert got.keys() == wanted.keys()
    for name, each in got.items():
        assert each.dtype == wanted[name].dtype, name
        assert each.shape == wanted[name].shape, name
        assert each.tobytes() == wanted[name].tobytes(), name


# Outputs and gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@every_model
def test_autograd_gives_what_the_reference_gives(name: str, form: str, dtype: str) -> None:
    assert_right(inputs_of(form, SPECS[name], T, N), dtype)


@pytest.mark.parametrize("form", LOOPS)
@some_models
def test_with_the_rows_first(name: str, form: str) -> None:
    assert_right(rows_first(inputs_of(form, SPECS[name], T, N)), "float32", batch_first=True)


@pytest.mark.parametrize("form", ["step", "rollout", "observe"])
@every_model
def test_numbers_are_those_of_numpy_arrays(name: str, form: str) -> None:
    inputs = converted(inputs_of(form, SPECS[name], T, N), "float32")
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    wanted = dict(zip(out._fields, out, strict=True))
    for key, each in gradients_of(vjp(*cotangents)).items():
        wanted["daction" if form == "step" and key == "actions" else f"d{key}"] = each
    assert_bits(results(Recorded(inputs), cotangents), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_halves(form: str, dtype: str) -> None:
    inputs = converted(inputs_of(form, SPECS["first"], T, N), dtype)
    found, wide = results(Recorded(inputs)), results(Recorded(converted(inputs, "float32")))
    for name, each in found.items():
        assert each.dtype == DTYPES[dtype]
        np.testing.assert_allclose(
            each.astype("float32"), wide[name], rtol=0.1, atol=0.1 * np.abs(wide[name]).max()
        )


@pytest.mark.parametrize("form", FORMS)
@some_models
def test_without_gradients(name: str, form: str) -> None:
    """Nothing is kept, and the numbers are the same."""
    inputs = converted(inputs_of(form, SPECS[name], T, N), "float32")
    call = Recorded(inputs)
    wanted = [array(each) for each in call()]
    gc.collect()
    before = len(operators._TOKENS)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = call()
        assert not any(each.requires_grad for each in out)
        assert [array(each).tobytes() for each in out] == [each.tobytes() for each in wanted]
    assert len(operators._TOKENS) == before
    frozen = Recorded(inputs, frozen=("",))
    frozen.actor.requires_grad_(False)
    assert not any(each.requires_grad for each in frozen())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [0, 1])
def test_outputs_that_are_not_used_have_no_part(form: str, given: int) -> None:
    inputs = inputs_of(form, SPECS["dreamer_v1"], T, N)
    call = Recorded(inputs)
    out = call()
    cotangents = cotangents_of([array(each) for each in out])
    for k in range(len(cotangents)):
        chosen = [each if (j == k) == bool(given) else None for j, each in enumerate(cotangents)]
        found = call.gradients(call(), chosen)
        wanted = call.gradients(call(backend="reference"), chosen)
        for name, each in found.items():
            most = 1e-12 * max(1.0, np.abs(wanted[name]).max(initial=0.0))
            np.testing.assert_allclose(each, wanted[name], rtol=0, atol=most, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "frozen", [("inputs", "prior", "posterior", "gru", "initial"), ("state", "belief"), ("gru",)]
)
def test_only_what_needs_a_gradient_gets_one(
    form: str, frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of(form, SPECS["first"], T, N)
    everything, call = Recorded(inputs), Recorded(inputs, frozen)
    cotangents = cotangents_of([array(each) for each in everything()])
    wanted = everything.gradients(everything(), cotangents)
    made: list[int] = []
    outward = host.HOST.outward
    counting = host.Bridge(host.to_numpy, lambda each: (made.append(1), outward(each))[1])
    monkeypatch.setattr(host, "HOST", counting)
    out = call()
    made.clear()
    found = call.gradients(out, cotangents)
    assert found.keys() == {name for name in wanted if not name.startswith(frozen)}
    assert_bits(found, {name: wanted[name] for name in found})
    others = [name for name in found if not name.startswith("actor.")]
    assert len(made) == len(others) + (T if form == "imagine" else 0)  # one for each daction


@pytest.mark.parametrize("form", FORMS)
def test_a_state_that_is_not_given(form: str) -> None:
    """The initial ones of the weights get its gradient."""
    inputs = inputs_of(form, SPECS["first"], T, N)
    call, other = Recorded(inputs), Recorded(inputs)
    for each in (call, other):
        each.arrays["state"] = None
        del each.leaves["state"]
    found, wanted = results(call), results(other, backend="reference")
    assert np.abs(found["dinitial_state"]).max() > 0
    for name, each in found.items():
        most = 1e-12 * max(1.0, np.abs(wanted[name]).max())
        np.testing.assert_allclose(each, wanted[name], rtol=0, atol=most, err_msg=name)


@pytest.mark.parametrize("form", ["rollout", "observe"])
@some_models
def test_nan_before_a_reset_reaches_nothing_after_it(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], 6, N)
    is_first = np.zeros((6, N), bool)
    is_first[3, 0] = True
    spoiled = {key: each.copy() for key, each in inputs.arrays.items()}
    for each in spoiled.values():
        each[(0,) if each.ndim == 2 else (slice(3), 0)] = np.nan
    spoiled["actions"][3, 0] = np.nan  # it belongs to the episode before
    clean, dirty = Recorded(inputs), Recorded(replace(inputs, arrays=spoiled))
    out, other = clean(is_first=is_first), dirty(is_first=is_first)
    for one, two in zip(out, other, strict=True):
        assert torch.equal(one[3:], two[3:])
        assert two[:3, 0].isnan().any()
    cotangents = cotangents_of([array(each) for each in out])
    for each in cotangents:
        each[:3, 0] = 0
    found, wanted = dirty.gradients(other, cotangents), clean.gradients(out, cotangents)
    np.testing.assert_array_equal(found["actions"][3:], wanted["actions"][3:])


@pytest.mark.parametrize("kind", ["tensor", "list"])
def test_where_episodes_begin_may_be_of_any_kind(kind: str) -> None:
    inputs = inputs_of("observe", SPECS["first"], T, N)
    call = Recorded(inputs)
    is_first = {"tensor": torch.tensor, "list": np.ndarray.tolist}[kind](inputs.is_first)
    assert_bits(results(call, is_first=is_first), results(call))


# Noise from a seed


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_noise_that_it_gives_numpy(form: str) -> None:
    inputs = inputs_of(form, SPECS["dreamer_v2"], T, N)
    call = Recorded(inputs)
    found = call(noise=None, seed=7)
    again = call(noise=None, seed=7, backend="reference")
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert not torch.equal(found.state, call(noise=None, seed=8).state)


@pytest.mark.parametrize("form", FORMS)
def test_torch_draws_the_seed_that_is_not_given(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))

    def state() -> Any:
        torch.manual_seed(3)
        return call(noise=None).state

    assert torch.equal(state(), state())
    assert not torch.equal(state(), call(noise=None).state)


@pytest.mark.parametrize("form", FORMS)
def test_checkpoints_draw_the_same_noise_again(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    leaf = call.leaves["inputs[0].w"]

    def loss(_: Any) -> Any:
        return call(noise=None).state.square().sum()

    torch.manual_seed(5)
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    torch.manual_seed(5)
    kept = checkpoint(loss, leaf, use_reentrant=False)
    (found,) = torch.autograd.grad(kept, leaf)
    assert torch.equal(found, wanted)


# The graph


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_may_be_used_twice(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    leaves = list(call.leaves.values())
    state = call().state.sum()
    options = {"allow_unused": True}
    first = torch.autograd.grad(state, leaves, retain_graph=True, **options)
    second = torch.autograd.grad(state, leaves, **options)
    for one, other in zip(first, second, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(state, leaves, **options)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_kept_goes_with_the_graph(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    gc.collect()
    before = len(operators._TOKENS)
    out = call()
    assert len(operators._TOKENS) == before + 1
    out.state.sum().backward()
    assert len(operators._TOKENS) == before, "freed with the graph, while the outputs still live"


@pytest.mark.parametrize("name", ["belief", "inputs[0].w", "out"])
@pytest.mark.parametrize("form", FORMS)
def test_what_the_backward_reads_may_not_change_before_it(form: str, name: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    out = call()
    with torch.no_grad():
        if name == "out":
            out.state.detach().mul_(2)
        else:
            call.leaves[name].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.state.sum().backward()


@pytest.mark.parametrize("form", FORMS)
def test_a_second_derivative_is_refused(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    belief = call.leaves["belief"]
    way_out = "backend='reference' has it"
    (first,) = torch.autograd.grad(call().state.square().sum(), belief, create_graph=True)
    assert np.array_equal(array(first), call.gradients(call(), _of_square(call()))["belief"])
    with pytest.raises(rnnop.UnsupportedError, match=f"{form}: it has no second.*{way_out}"):
        first.sum().backward()
    theirs = call(backend="reference").state.square().sum()
    (first,) = torch.autograd.grad(theirs, belief, create_graph=True)
    assert torch.autograd.grad(first.sum(), belief)[0].shape == belief.shape


def _of_square(out: Any) -> list[Any]:
    return [2 * each.detach() if each is out.state else None for each in out]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("form", FORMS)
def test_other_transforms_are_refused(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    belief = call.arrays["belief"].detach()

    def function(belief: Any) -> Any:
        call.arrays["belief"] = belief
        return call().state.sum()

    with pytest.raises(rnnop.UnsupportedError, match=rf"{form}: .*torch.func"):
        torch.func.grad(function)(belief)
    with pytest.raises(rnnop.UnsupportedError, match=rf"{form}: .*(vmap|torch.func)"):
        torch.vmap(function)(torch.stack([belief, belief]))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(belief, torch.ones_like(belief))
        with pytest.raises(rnnop.UnsupportedError, match=f"{form}: it has no forward-mode"):
            function(dual)


# The actor


def gradients_of_actor(
    actor: Any, parameters: list[Any], call: Recorded, backend: str
) -> list[Array]:
    out = call(actor=actor, backend=backend)
    total = out.state.sin().sum() + out.action.square().sum() + out.belief.cos().sum()
    leaves = [*parameters, call.leaves["state"], call.leaves["belief"], call.leaves["prior[0].w"]]
    return [array(each) for each in torch.autograd.grad(total, leaves)]


class Remembers(torch.nn.Module):
    """An actor with a state of its own, which reads what it saw before."""

    def __init__(self, spec: rssm.RSSMSpec) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(spec.state_size + spec.belief_size, spec.action_size).double()
        self.memory: Any = None

    def forward(self, state: Any, belief: Any) -> Any:
        self.memory = self.cell(torch.cat([state, belief], -1), self.memory)
        return self.memory


def actors(spec: rssm.RSSMSpec) -> dict[str, Callable[[], tuple[Any, list[Any]]]]:
    """Ways to act, each with its parameters; every one is made anew for each run."""
    action, belief = spec.action_size, spec.belief_size

    def module() -> tuple[Any, list[Any]]:
        policy = Policy(spec)
        return policy, list(policy.parameters())

    def memory() -> tuple[Any, list[Any]]:
        policy = Remembers(spec)
        return policy, list(policy.parameters())

    def constant() -> tuple[Any, list[Any]]:
        same = torch.full((N, action), 0.3, dtype=torch.float64, requires_grad=True)
        return lambda state, belief: same, [same]

    def detached() -> tuple[Any, list[Any]]:
        policy = Policy(spec)
        return lambda *seen: policy(*(each.detach() for each in seen)), list(policy.parameters())

    def view() -> tuple[Any, list[Any]]:
        return lambda state, belief: belief[:, :action], []

    def of_a_tensor() -> tuple[Any, list[Any]]:
        """It closes over what is no leaf."""
        raw = torch.full((action, belief), 0.1, dtype=torch.float64, requires_grad=True)
        w = raw.tanh()
        return lambda state, belief: belief @ w.T, [raw]

    def changing() -> tuple[Any, list[Any]]:
        """Not every call has the same parameters."""
        several = [torch.full((action,), 0.1 * k, dtype=torch.float64) for k in range(T)]
        left = iter([each.requires_grad_() for each in several])
        return lambda state, belief: belief[:, :action] * next(left), several

    return {each.__name__: each for each in (
        module, memory, constant, detached, view, of_a_tensor, changing
    )}  # fmt: skip


@pytest.mark.parametrize("kind", actors(SPECS["first"]))
@pytest.mark.parametrize("name", ["first", "dreamer_v3"])
def test_every_kind_of_actor_trains(name: str, kind: str) -> None:
    call = Recorded(inputs_of("imagine", SPECS[name], T, N))
    make = actors(SPECS[name])[kind]
    found, wanted = (
        gradients_of_actor(*make(), call, backend) for backend in ("auto", "reference")
    )
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(other).max() > 0
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1, np.abs(other).max()))


def test_an_actor_trains_in_a_frozen_world() -> None:
    inputs = inputs_of("imagine", SPECS["first"], T, N)
    call = Recorded(inputs, frozen=("",))
    call().state.sum().backward()
    wanted = Recorded(inputs, frozen=("",))
    wanted(backend="reference").state.sum().backward()
    for one, other in zip(call.actor.parameters(), wanted.actor.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)
    assert all(each.grad is None for each in call.arrays.values())


def test_an_actor_is_called_once_a_step_in_order() -> None:
    call = Recorded(inputs_of("imagine", SPECS["first"], T, N))
    seen: list[Any] = []

    def actor(state: Any, belief: Any) -> Any:
        seen.append((state.detach().clone(), belief.detach().clone()))
        return call.actor(state, belief)

    out = call(actor=actor)
    out.state.sum().backward()
    assert len(seen) == T
    for t in range(1, T):
        assert torch.equal(seen[t][0], out.state[t - 1])
        assert torch.equal(seen[t][1], out.belief[t - 1])


def test_an_actor_that_runs_without_gradients_sees_the_mode_of_its_caller() -> None:
    call = Recorded(inputs_of("imagine", SPECS["first"], T, N))
    modes: list[tuple[bool, bool]] = []

    def actor(state: Any, belief: Any) -> Any:
        modes.append((torch.is_grad_enabled(), state.requires_grad))
        return call.actor(state, belief)

    call(actor=actor)
    with torch.no_grad():
        call(actor=actor)
    assert modes == [(True, True)] * T + [(False, False)] * T


def test_what_an_actor_returns_is_checked() -> None:
    call = Recorded(inputs_of("imagine", SPECS["first"], T, N))
    wrong = {
        r"`actor\(state, belief\)` has shape \(3, 3\); expected \(N, action_size\) = \(3, 2\)": (
            lambda state, belief: state[:, :3]
        ),
        r"`actor\(state, belief\)` has dtype float32": lambda state, belief: state[:, :2].float(),
        r"`actor\(state, belief\)` is NoneType": lambda state, belief: None,
        r"`actor` is str; expected a function": "actor",
    }
    for text, actor in wrong.items():
        for context in (torch.enable_grad, torch.no_grad):
            with context(), pytest.raises(rnnop.RnnopError, match=f"^imagine: {text}"):
                call(actor=actor)


def test_hooks_that_move_what_is_saved_are_refused_by_imagine_only() -> None:
    """A rollout runs its forward again; an actor cannot be asked again."""

    def moved(form: str) -> tuple[Recorded, Any]:
        call = Recorded(inputs_of(form, SPECS["first"], T, N))
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
            return call, call()

    for form in ("rollout", "observe", "step"):
        call, out = moved(form)
        cotangents = cotangents_of([array(each) for each in out])
        assert_bits(call.gradients(out, cotangents), call.gradients(call(), cotangents))
    _, out = moved("imagine")
    with pytest.raises(rnnop.UnsupportedError, match=r"imagine: .* cannot be moved by hooks"):
        out.state.sum().backward()


# Functions with a vector-Jacobian product


@pytest.mark.parametrize("form", FORMS)
@some_models
def test_the_vjp_is_that_of_numpy_arrays(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], T, N)
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    call = {key: tensor(each) for key, each in inputs.arrays.items()}
    call |= {"noise": tensor(inputs.noise), "weights": inputs.weights.map(tensor)}
    if form == "imagine":

        def actor(state: Any, belief: Any) -> Any:
            action, pull = inputs.actor.with_vjp(array(state), array(belief))
            return tensor(action), lambda d: [tensor(each) for each in pull(array(d))]

        call["actor"] = actor
    found, their_vjp = inputs.run(vjp=True, **call)
    assert type(found) is type(out)
    assert_bits(dict(enumerate(map(array, found))), dict(enumerate(out)))
    grads = gradients_of(their_vjp(*map(tensor, cotangents)))
    wanted = gradients_of(vjp(*cotangents))
    assert_bits({key: array(each) for key, each in grads.items()}, wanted)
    named = their_vjp(dstate=tensor(cotangents[out._fields.index("state")]))
    assert torch.equal(named.state, their_vjp(None, *([None] * 0), dstate=named_state(out)).state)


def named_state(out: Any) -> Any:
    return tensor(cotangents_of(out)[out._fields.index("state")])


def test_cotangents_are_checked() -> None:
    call = inputs_of("rollout", SPECS["first"], T, N)
    given = {key: tensor(each) for key, each in call.arrays.items()}
    given |= {"noise": tensor(call.noise), "weights": call.weights.map(tensor)}
    out, vjp = call.run(vjp=True, **given)
    wrong: dict[str, Callable[[], Any]] = {
        "`dmean` is a NumPy array": lambda: vjp(np.ones(out.mean.shape)),
        "`dstd` has shape": lambda: vjp(dstd=out.std[0]),
        "`dlogits` is not one of an output": lambda: vjp(dlogits=out.mean),
        "vjp is given 5 cotangents": lambda: vjp(*out, out.mean),
    }
    for text, function in wrong.items():
        with pytest.raises(rnnop.RnnopError, match=f"vjp: {text}"):
            function()


# Errors


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_wrong_calls_are_refused_as_numpys(form: str, grad: bool) -> None:
    inputs = inputs_of(form, SPECS["first"], T, N)
    action = {"step": "action", "imagine": "belief"}.get(form, "actions")
    wrong: dict[str, dict[str, Any]] = {
        "shape": {action: inputs.arrays[action][..., :-1]},
        "noise": {"noise": inputs.noise[..., :-1]},
        "dtype": {action: inputs.arrays[action].astype("float32")},
        "seed": {"seed": -1},
        "seed_kind": {"seed": "now", "noise": None},
        "backend": {"backend": "gpu"},
        "no_rssm": {"backend": "cudnn"},
    }
    if form in ("rollout", "observe"):
        wrong["is_first"] = {"is_first": inputs.is_first[:-1]}
        wrong["is_first_kind"] = {"is_first": object()}
    if form == "imagine":
        wrong["horizon"] = {"horizon": 0}
    for options in wrong.values():
        mine = {
            key: tensor(each) if isinstance(each, np.ndarray) and each.dtype != bool else each
            for key, each in options.items()
        }
        changed = Recorded(inputs, frozen=() if grad else ("",))
        changed.arrays |= {key: mine.pop(key) for key in [*mine] if key in changed.arrays}
        with pytest.raises((rnnop.RnnopError, TypeError)) as wanted:
            inputs.run(**options)
        with pytest.raises(type(wanted.value)) as found:
            changed(**mine)
        assert str(found.value).startswith(f"{form}: ")
        assert str(found.value).replace("PyTorch", "NumPy") == str(wanted.value)


@pytest.mark.parametrize("form", FORMS)
def test_families_are_not_mixed(form: str) -> None:
    inputs = inputs_of(form, SPECS["first"], T, N)
    with pytest.raises(rnnop.DTypeError, match=f"{form}: .*expected one family for all"):
        inputs.run(weights=inputs.weights.map(tensor))
    with pytest.raises(rnnop.DTypeError, match=f"{form}: .*expected one family for all"):
        inputs.run(belief=tensor(inputs.arrays["belief"]))
    call = Recorded(inputs)
    with pytest.raises(rnnop.DTypeError, match=f"{form}: .*expected one family for all"):
        call(noise=inputs.noise)


def test_signatures_are_kept() -> None:
    for form in FORMS:
        parameters = inspect.signature(getattr(rssm, form)).parameters
        assert "weights" in parameters
        assert "backend" in parameters


# Autocast


@pytest.mark.parametrize("form", FORMS)
def test_autocast_computes_in_the_lower_precision(form: str) -> None:
    inputs = converted(inputs_of(form, SPECS["first"], T, N), "float32")
    call, low = Recorded(inputs), Recorded(converted(inputs, "bfloat16"))
    with torch.autocast("cpu", torch.bfloat16):
        out = call()
    wanted = low()
    for one, other in zip(out, wanted, strict=True):
        assert one.dtype is torch.bfloat16
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    out.state.sum().backward()
    assert all(
        each.grad is None or each.grad.dtype is torch.float32 for each in call.leaves.values()
    )
    assert call.leaves["inputs[0].w"].grad.abs().max() > 0


# Compilation


def operands(form: str, name: str, grad: bool) -> Any:
    inputs = inputs_of(form, SPECS[name], T, N)
    call = Recorded(inputs, frozen=() if grad else ("",))
    arrays = {"actions" if key == "action" else key: each for key, each in call.arrays.items()}
    order = "step" if form == "step" else "time_first"
    listed = rssm_op.Listed.of(call.weights)
    options = rssm_op.encode(
        form="rollout" if form == "step" else form, order=order, backend="auto"
    )
    return rssm_op.Inputs(
        listed.tensors,
        listed.model,
        options,
        **arrays,
        noise=tensor(inputs.noise),
        is_first=None if form == "step" else torch.tensor(inputs.is_first),
    )


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("form", ["step", "rollout", "observe"])
@pytest.mark.parametrize("name", ["first", "dreamer_v2"])
def test_opcheck(name: str, form: str, grad: bool) -> None:
    results = torch.library.opcheck(rssm_op.RSSM.op, tuple(operands(form, name, grad)))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", ["step", "rollout", "observe"])
def test_opcheck_of_the_gradient(form: str) -> None:
    given = operands(form, "first", grad=False)
    *outputs, token = rssm_op.RSSM.op(*given, True)
    cotangents = [outputs[0] * 1, None, *[each * 1 for each in outputs[2:]]]
    wanted = [k % 2 == 0 for k in range(given.num_differentiable - 1)] + [form == "observe"]
    arguments = cotangents, outputs, token, wanted, *given
    results = torch.library.opcheck(rssm_op.RSSM.backward_op, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", ["step", "rollout", "observe"])
@pytest.mark.parametrize("name", ["first", "dreamer_v3"])
def test_calls_compile_as_one_graph(name: str, form: str) -> None:
    call = Recorded(converted(inputs_of(form, SPECS[name], T, N), "float32"))
    call.is_first = torch.tensor(call.is_first)
    function = torch.compile(lambda: call(), fullgraph=True, backend="aot_eager")
    cotangents = cotangents_of([array(each) for each in call()])
    assert_bits(call.gradients(function(), cotangents), call.gradients(call(), cotangents))


@pytest.mark.parametrize("form", ["rollout", "observe"])
def test_a_seed_compiles(form: str) -> None:
    call = Recorded(inputs_of(form, SPECS["first"], T, N))
    function = torch.compile(lambda: call(noise=None, seed=3), fullgraph=True, backend="aot_eager")
    assert torch.equal(function().state, call(noise=None, seed=3).state)


@pytest.mark.filterwarnings("ignore")
def test_imagine_breaks_the_graph_of_a_compiled_function() -> None:
    call = Recorded(inputs_of("imagine", SPECS["first"], T, N))

    def loss() -> Any:
        return 2 * call().state.sum()

    compiled = torch.compile(loss, backend="aot_eager")
    parameters = list(call.actor.parameters())
    for one, other in zip(
        torch.autograd.grad(compiled(), parameters),
        torch.autograd.grad(loss(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_export_keeps_one_node() -> None:
    inputs = inputs_of("rollout", SPECS["first"], T, N)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = inputs.weights.map(tensor)

        def forward(self, actions: Any) -> Any:
            return rssm.rollout(self.weights, None, None, actions, seed=1).state

    model, actions = Model(), tensor(inputs.arrays["actions"])
    program = torch.export.export(model, (actions,))
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(rssm_op.RSSM.op) == 1
    assert torch.equal(program.module()(actions), model(actions))


# Training


@pytest.mark.parametrize("name", ["torchrl", "torchrl_v3"])
def test_weights_under_torchrls_names_train(name: str) -> None:
    """An optimizer goes the same way with the engine as through the reference."""
    inputs = inputs_of("observe", SPECS[name], 5, N)
    bare = replace_initial(inputs.weights)
    options = {"num_classes": SPECS[name].num_classes} if name == "torchrl_v3" else {}
    given = {key: tensor(each) for key, each in inputs.arrays.items()}

    def losses(backend: str) -> list[float]:
        prior, posterior = (
            {key: tensor(each).clone().requires_grad_() for key, each in state.items()}
            for state in rssm.to_torchrl(bare)
        )
        parameters = [*prior.values(), *posterior.values()]
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        found = []
        for _ in range(5):
            weights = rssm.from_torchrl(prior, posterior, **options)
            out = rssm.observe(
                weights,
                **given,
                is_first=inputs.is_first,
                noise=tensor(inputs.noise),
                backend=backend,
            )
            loss = sum(each.square().mean() for each in out)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    found = losses("auto")
    np.testing.assert_allclose(found, losses("reference"), rtol=1e-9)
    assert found[-1] < found[0]


def replace_initial(weights: rssm.RSSMWeights) -> rssm.RSSMWeights:
    """Without initial states, which TorchRL does not have."""
    named = {name: each for name, each in weights.named() if not name.startswith("initial")}
    return rssm.RSSMWeights.of_arrays(weights.spec, named)
