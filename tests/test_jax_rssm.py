"""JAX arrays through `rnnop.rssm`: NumPy's numbers, differentiated by JAX like the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of, gradients_of, inputs_of
from tolerances import assert_close

import rnnop
from rnnop import rssm

jax = pytest.importorskip("jax", reason="tests JAX arrays: pip install rnnop[jax]")

import jax.numpy as jnp  # noqa: E402

import rnnop.jax  # noqa: E402
from rnnop.jax import host  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]

T, N = 4, 3
LOOPS = ("rollout", "imagine", "observe")
KNOWN = ("step", "rollout", "observe")

SOME = ("first", "dreamer_v2", "dreamer_v3")
some_models = pytest.mark.parametrize("name", SOME)
every_model = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in SPECS],
)


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[host.Waiting]:
    """Return where a vjp waits for its backward; a test that leaves one there fails."""
    fresh = host.Waiting()
    monkeypatch.setattr(host, "WAITING", fresh)
    yield fresh
    assert len(fresh) == 0


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of every forward and backward that runs from now on."""
    found: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        run = getattr(host, name)

        def watch(*given: Any) -> Any:
            found.append(name)
            return run(*given)

        return watch

    for name in ("forward", "backward"):
        monkeypatch.setattr(host, name, watched(name))
    return found


def in_jax(inputs: Inputs, dtype: str = "float32") -> Inputs:
    """The same call with JAX arrays."""

    def cast(each: Array) -> Any:
        return jnp.asarray(each, dtype)

    return replace(
        inputs,
        weights=inputs.weights.map(cast),
        arrays={name: cast(each) for name, each in inputs.arrays.items()},
        noise=cast(inputs.noise),
    )


def in_numpy(inputs: Inputs, dtype: str = "float32") -> Inputs:
    def cast(each: Array) -> Array:
        return np.asarray(each).astype(dtype)

    return replace(
        inputs,
        weights=inputs.weights.map(cast),
        arrays={name: cast(each) for name, each in inputs.arrays.items()},
        noise=cast(inputs.noise),
    )


def parameters_of(inputs: Inputs, dtype: str = "float32") -> dict[str, Any]:
    """What the actor knows."""
    return {
        "p": jnp.asarray(inputs.actor.p, dtype),
        "q": jnp.asarray(inputs.actor.q, dtype),
    }


def call(
    inputs: Inputs, weights: Any, arrays: Any, parameters: Any, noise: Any = None, **options: Any
) -> Any:
    """Call it; an actor is a function of its parameters, and of state and belief."""
    if inputs.form in ("rollout", "observe"):
        options.setdefault("is_first", inputs.is_first)
    if inputs.form == "imagine":

        def actor(state: Any, belief: Any) -> Any:
            return jnp.tanh(state @ parameters["p"].T + belief @ parameters["q"].T)

        options = {"actor": actor, "horizon": T} | options
    noise = inputs.noise if noise is None else noise
    return getattr(rssm, inputs.form)(weights, **arrays, noise=noise, **options)


def results(
    inputs: Inputs,
    dtype: str,
    cotangents: list[Array] | None = None,
    compiled: bool = True,
    **options: Any,
) -> dict[str, Array]:
    """All outputs and gradients by name."""
    inputs = in_jax(inputs, dtype)

    def function(*given: Any) -> Any:
        return call(inputs, *given, **options)

    given = inputs.weights, inputs.arrays, parameters_of(inputs, dtype)

    def both(given: Any, cotangents: Any) -> Any:
        out, pullback = jax.vjp(function, *given)
        return out, pullback(type(out)(*cotangents))

    if cotangents is None:
        shapes = jax.eval_shape(function, *given)
        random = np.random.default_rng(2)
        cotangents = [random.standard_normal(each.shape).astype(each.dtype) for each in shapes]
    given_too = [jnp.asarray(each, dtype) for each in cotangents]
    out, grads = (jax.jit(both) if compiled else both)(given, given_too)
    weights, arrays, parameters = grads
    found = dict(zip(out._fields, out, strict=True))
    found |= {f"d{name}": each for name, each in weights.named()}
    found |= {f"d{name}": each for name, each in arrays.items()}
    if inputs.form == "imagine":
        found |= {f"dactor.{name}": each for name, each in parameters.items()}
    return {name: np.asarray(each) for name, each in found.items()}


def joined(found: dict[str, Array]) -> dict[str, Array]:
    """With the gradients of one field of the weights as one vector: a bias alone may cancel."""
    together: dict[str, list[Array]] = {}
    for name, each in found.items():
        together.setdefault(name.partition("[")[0].partition(".")[0], []).append(each)
    return {
        name: parts[0] if len(parts) == 1 else np.concatenate([each.ravel() for each in parts])
        for name, parts in together.items()
    }


def assert_equal(got: Any, wanted: Any) -> None:
    """Fail unless two trees have the same arrays, to the bit."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_near(got: Any, wanted: Any, tolerance: float = 3e-6) -> None:
    """Fail unless two trees are equal but for the order of sums in float32."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape
        largest = max(1.0, np.abs(np.asarray(other)).max(initial=0.0))
        assert np.abs(np.asarray(one) - np.asarray(other)).max(initial=0.0) <= tolerance * largest


# Outputs and gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@some_models
def test_gradients_are_those_of_the_reference(name: str, form: str, dtype: str) -> None:
    """Under jit, each output with a random cotangent, against JAX's own gradient in float64."""
    inputs = in_numpy(inputs_of(form, SPECS[name], T, N), dtype)
    with jax.enable_x64(True):
        wanted = results(inputs, "float64", compiled=False, backend="reference")
    with jax.enable_x64(dtype == "float64"):
        found = results(inputs, dtype)
    assert found.keys() == wanted.keys()
    right = joined(wanted)
    for key, each in joined(found).items():
        assert_close(key, each, right[key], "cpu", dtype)


def numpys(inputs: Inputs) -> tuple[dict[str, Array], list[Array]]:
    """All outputs and gradients of the same call on NumPy arrays, and the cotangents."""
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    wanted = dict(zip(out._fields, out, strict=True))
    names = {"actor[0]": "actor.p", "actor[1]": "actor.q"}
    names |= {"actions": "action"} if inputs.form == "step" else {}
    for key, each in gradients_of(vjp(*cotangents)).items():
        wanted[f"d{names.get(key, key)}"] = each
    return wanted, cotangents


@pytest.mark.parametrize("form", FORMS)
@every_model
def test_compiled_calls_give_numpys_numbers(name: str, form: str) -> None:
    inputs = in_numpy(inputs_of(form, SPECS[name], T, N))
    wanted, cotangents = numpys(inputs)
    found = results(inputs, "float32", cotangents)
    if form != "imagine":
        assert_equal(found, wanted)
        return
    # The sums over the steps are JAX's own, and so is the actor.
    assert found.keys() == wanted.keys()
    assert_near(joined(found), joined(wanted), 1e-4)


@pytest.mark.parametrize("form", KNOWN)
@some_models
def test_eager_calls_give_numpys_numbers(name: str, form: str) -> None:
    inputs = in_numpy(inputs_of(form, SPECS[name], T, N))
    wanted, cotangents = numpys(inputs)
    assert_equal(results(inputs, "float32", cotangents, compiled=False), wanted)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", KNOWN)
def test_one_call_is_one_operation(form: str, compiled: bool, runs: list[str]) -> None:
    results(inputs_of(form, SPECS["first"], T, N), "float32", compiled=compiled)
    assert runs == ["forward", "backward"]


def test_imagine_is_one_operation_a_step(runs: list[str]) -> None:
    results(inputs_of("imagine", SPECS["first"], T, N), "float32")
    assert sorted(runs) == ["backward"] * T + ["forward"] * T


@pytest.mark.parametrize("form", LOOPS)
def test_with_the_rows_first(form: str) -> None:
    inputs = inputs_of(form, SPECS["first"], T, N)

    def turned(name: str, each: Any) -> Any:
        return each if name in ("state", "belief") else each.swapaxes(0, 1)

    other = replace(
        inputs,
        arrays={name: turned(name, each) for name, each in inputs.arrays.items()},
        noise=inputs.noise.swapaxes(0, 1),
        is_first=inputs.is_first.swapaxes(0, 1),
    )
    with jax.enable_x64(True):
        found = results(other, "float64", batch_first=True)
        wanted = results(other, "float64", compiled=False, batch_first=True, backend="reference")
    assert_near(found, wanted, 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_that_are_not_used_have_no_part(form: str) -> None:
    inputs = in_jax(inputs_of(form, SPECS["dreamer_v1"], T, N))
    given = inputs.weights, inputs.arrays, parameters_of(inputs)

    def loss(*given: Any, backend: str = "auto") -> Any:
        return jnp.sin(call(inputs, *given, backend=backend).state).sum()

    found = jax.jit(jax.grad(loss, (0, 1, 2)))(*given)
    wanted = jax.grad(lambda *given: loss(*given, backend="reference"), (0, 1, 2))(*given)
    assert_near(found, wanted, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_of_some_arguments_only(form: str) -> None:
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    given = inputs.weights, inputs.arrays, parameters_of(inputs)

    def loss(*given: Any) -> Any:
        return jnp.sin(call(inputs, *given).belief).sum()

    wanted = jax.grad(loss, (0, 1, 2))(*given)
    for k in range(3 if form == "imagine" else 2):
        assert_near(jax.jit(jax.grad(loss, k))(*given), wanted[k])


@pytest.mark.parametrize("form", FORMS)
def test_a_state_that_is_not_given(form: str) -> None:
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    arrays = inputs.arrays | {"state": None}

    def loss(weights: Any, backend: str) -> Any:
        out = call(inputs, weights, arrays, parameters_of(inputs), backend=backend)
        return jnp.sin(out.belief).sum()

    found = jax.grad(loss)(inputs.weights, "auto")
    assert np.abs(found.initial_state).max() > 0
    assert_near(found, jax.grad(loss)(inputs.weights, "reference"), 1e-5)


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
    clean, dirty = in_jax(inputs), in_jax(replace(inputs, arrays=spoiled))

    def run(is_first: Any, arrays: Any) -> Any:
        return call(clean, clean.weights, arrays, {}, is_first=is_first)

    first = jnp.asarray(is_first)
    out, other = jax.jit(run)(first, clean.arrays), jax.jit(run)(first, dirty.arrays)
    for one, two in zip(out, other, strict=True):
        np.testing.assert_array_equal(one[3:], two[3:])
        assert np.isnan(two[:3, 0]).any()


def test_where_episodes_begin_may_be_traced(runs: list[str]) -> None:
    inputs = in_jax(inputs_of("rollout", SPECS["first"], T, N))
    compiled = jax.jit(
        lambda is_first: call(inputs, inputs.weights, inputs.arrays, {}, is_first=is_first)
    )
    for is_first in (inputs.is_first, ~inputs.is_first):
        wanted = call(inputs, inputs.weights, inputs.arrays, {}, is_first=is_first.tolist())
        assert_equal(compiled(jnp.asarray(is_first)), wanted)


# Noise


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_noise_that_it_gives_numpy(form: str, compiled: bool) -> None:
    inputs = inputs_of(form, SPECS["dreamer_v2"], T, N)
    given = in_jax(inputs)
    rest: dict[str, Any] = {"horizon": T} if form == "imagine" else {}

    def run() -> Any:
        options = {"actor": lambda state, belief: belief[:, :2]} | rest if rest else {}
        return getattr(rssm, form)(given.weights, **given.arrays, seed=7, **options)

    out = jax.jit(run)() if compiled else run()
    if rest:
        rest["actor"] = lambda state, belief: belief[:, :2]
    plain = in_numpy(inputs)
    wanted = getattr(rssm, form)(plain.weights, **plain.arrays, seed=7, **rest)
    assert_near(out, wanted, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_noise_gets_no_gradient(form: str) -> None:
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))

    def loss(noise: Any) -> Any:
        out = call(inputs, inputs.weights, inputs.arrays, parameters_of(inputs), noise)
        return out.state.sum()

    assert not jax.grad(loss)(inputs.noise).any()


@pytest.mark.parametrize("form", FORMS)
def test_noise_under_a_transformation_needs_a_seed(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "WAITING", host.Waiting())  # some backwards never come
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    options: dict[str, Any] = {"horizon": T} if form == "imagine" else {}
    function = getattr(rssm, form)

    def run(belief: Any, w: Any = 1.0) -> Any:
        given = inputs.arrays | {"belief": belief}
        if form == "imagine":
            options["actor"] = lambda state, belief: belief[:, :2] * w
        return function(inputs.weights, **given, **options)

    assert not np.array_equal(run(inputs.arrays["belief"])[0], run(inputs.arrays["belief"]).state)
    with pytest.raises(rnnop.SpecError, match=f"{form}: `noise` and `seed` are both None under"):
        jax.jit(run)(inputs.arrays["belief"])
    if form == "imagine":
        with pytest.raises(rnnop.SpecError, match=r"imagine: `noise` and `seed` are both None"):
            jax.grad(lambda w: run(inputs.arrays["belief"], w).state.sum())(2.0)
    with pytest.raises(rnnop.DTypeError, match=f"{form}: `seed` is an array of JAX"):
        function(inputs.weights, **inputs.arrays, seed=jnp.asarray(3), **options)


# vmap


@pytest.mark.parametrize("form", FORMS)
def test_a_mapped_call_has_more_rows(form: str, runs: list[str]) -> None:
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    parameters = parameters_of(inputs)
    both = jax.tree.map(lambda each: jnp.stack([each, -each]), inputs.arrays)

    def one(arrays: Any) -> Any:
        return call(inputs, inputs.weights, arrays, parameters)

    found = jax.jit(jax.vmap(one))(both)
    assert runs == ["forward"] * (T if form == "imagine" else 1)
    for k in range(2):
        alone = one(jax.tree.map(lambda each: each[k], both))  # noqa: B023
        assert_near(jax.tree.map(lambda each: each[k], found), alone)  # noqa: B023


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_mapped_calls(form: str, runs: list[str]) -> None:
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    parameters = parameters_of(inputs)
    both = jax.tree.map(lambda each: jnp.stack([each, -each]), inputs.arrays)

    def loss(weights: Any, arrays: Any) -> Any:
        return jnp.sin(call(inputs, weights, arrays, parameters).state).sum()

    def total(weights: Any) -> Any:
        return jax.vmap(loss, (None, 0))(weights, both).sum()

    each = jax.vmap(jax.grad(loss), (None, 0))(inputs.weights, both)
    del runs[:]
    found = jax.jit(jax.grad(total))(inputs.weights)
    assert runs.count("backward") == (T if form == "imagine" else 1)
    assert_near(found, jax.tree.map(lambda both: both.sum(0), each), 1e-5)


# The vjps that wait for their backward


@pytest.mark.parametrize("name", ["first", "dreamer_v3"])
def test_a_forward_without_its_backward_keeps_little(name: str, waiting: host.Waiting) -> None:
    inputs = in_jax(inputs_of("rollout", SPECS[name], T, N))

    def run(actions: Any) -> Any:
        return call(inputs, inputs.weights, inputs.arrays | {"actions": actions}, {})

    jax.vjp(run, inputs.arrays["actions"])
    one = waiting.bytes
    assert one > T * N * SPECS[name].belief_size * 4
    waiting.most_bytes = 3 * one + one // 2
    pullbacks = [jax.vjp(run, inputs.arrays["actions"]) for _ in range(5)]
    assert len(waiting) == 3
    for out, pullback in pullbacks:  # those that were given up run their forward again
        assert_equal(pullback(out), pullbacks[-1][1](pullbacks[-1][0]))


# Functions with a vector-Jacobian product


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", ["both", "belief", "none"])
@pytest.mark.parametrize("form", KNOWN)
def test_the_vjp_is_that_of_numpy_arrays(form: str, given: str, compiled: bool) -> None:
    inputs = in_numpy(inputs_of(form, SPECS["first"], T, N))
    for name in {"both": [], "belief": ["state"], "none": ["state", "belief"]}[given]:
        inputs.arrays[name] = None
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    cotangents[1] = None  # type: ignore[call-overload]
    wanted = gradients_of(vjp(*cotangents))
    arrays = {k: None if v is None else jnp.asarray(v) for k, v in inputs.arrays.items()}

    def run(weights: Any, arrays: Any, noise: Any, cotangents: Any) -> Any:
        options: dict[str, Any] = {} if form == "step" else {"is_first": inputs.is_first}
        out, vjp = getattr(rssm, f"{form}_vjp")(weights, **arrays, noise=noise, **options)
        return out, vjp(*cotangents)

    function = jax.jit(run) if compiled else run
    weights, noise = inputs.weights.map(jnp.asarray), jnp.asarray(inputs.noise)
    mine = [None if each is None else jnp.asarray(each) for each in cotangents]
    found, grads = function(weights, arrays, noise, mine)
    assert_equal(tuple(found), tuple(out))
    assert isinstance(grads, rssm.RSSMGrads)
    found = gradients_of(grads)
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        np.testing.assert_allclose(each, wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_cotangents_are_checked() -> None:
    inputs = in_jax(inputs_of("rollout", SPECS["first"], T, N))
    out, vjp = inputs.run(vjp=True)
    wrong: dict[str, Callable[[], Any]] = {
        "`dmean` is a NumPy array": lambda: vjp(np.ones(out.mean.shape, np.float32)),
        "`dstd` has shape": lambda: vjp(dstd=out.std[0]),
        "`dlogits` is not one of an output": lambda: vjp(dlogits=out.mean),
        "vjp is given 5 cotangents": lambda: vjp(*out, out.mean),
    }
    for text, function in wrong.items():
        with pytest.raises(rnnop.RnnopError, match=f"vjp: {text}"):
            function()
    vjp(dstate=out.state)


def test_imagine_vjp_takes_jax_arrays() -> None:
    inputs = inputs_of("imagine", SPECS["first"], T, N)
    out, vjp = in_numpy(inputs).run(vjp=True)
    given = in_jax(inputs)

    def actor(state: Any, belief: Any) -> Any:
        action, pull = inputs.actor.with_vjp(np.asarray(state), np.asarray(belief))
        return jnp.asarray(action, jnp.float32), lambda d: [
            jnp.asarray(each, jnp.float32) for each in pull(np.asarray(d))
        ]

    found, their_vjp = given.run(vjp=True, actor=actor)
    assert_near(tuple(found), tuple(out), 1e-5)
    cotangents = cotangents_of(out)
    grads = gradients_of(their_vjp(*map(jnp.asarray, cotangents)))
    for name, each in gradients_of(vjp(*cotangents)).items():
        np.testing.assert_allclose(grads[name], each, rtol=1e-4, atol=1e-4, err_msg=name)


# The actor


def test_an_actor_is_called_once_a_step() -> None:
    inputs = in_jax(inputs_of("imagine", SPECS["first"], T, N))
    gains = iter(jnp.arange(1.0, T + 1))
    seen: list[Any] = []

    def actor(state: Any, belief: Any) -> Any:
        seen.append(next(gains))
        return belief[:, :2] * seen[-1]

    out = rssm.imagine(inputs.weights, **inputs.arrays, actor=actor, horizon=T, noise=inputs.noise)
    assert len(seen) == T
    for t in range(1, T):
        np.testing.assert_array_equal(out.action[t], out.belief[t - 1][:, :2] * seen[t])


def test_what_an_actor_returns_is_checked() -> None:
    inputs = in_jax(inputs_of("imagine", SPECS["first"], T, N))
    wrong: dict[str, Any] = {
        r"`actor\(state, belief\)` has shape \(3, 3\); expected \(N, action_size\) = \(3, 2\)": (
            lambda state, belief: state[:, :3]
        ),
        r"`actor\(state, belief\)` is a NumPy array": lambda state, belief: np.ones((N, 2), "f4"),
        r"`actor\(state, belief\)` is NoneType": lambda state, belief: None,
        r"`actor` is str; expected a function": "actor",
    }
    for text, actor in wrong.items():
        with pytest.raises(rnnop.RnnopError, match=f"^imagine: {text}"):
            call(inputs, inputs.weights, inputs.arrays, {}, actor=actor)


# Weights


def test_weights_are_a_pytree() -> None:
    for spec in SPECS.values():
        weights = inputs_of("step", spec).weights
        doubled = jax.tree.map(lambda each: 2 * each, weights)
        assert isinstance(doubled, rssm.RSSMWeights)
        assert doubled.spec == spec
        for (name, one), (other, two) in zip(weights.named(), doubled.named(), strict=True):
            assert name == other
            np.testing.assert_array_equal(2 * one, two)


def test_weights_that_jax_put_together_are_checked() -> None:
    inputs = in_jax(inputs_of("rollout", SPECS["first"], T, N))
    cut = jax.tree.map(lambda each: each[:1], inputs.weights)
    with pytest.raises(rnnop.ShapeError, match=r"`inputs\[0\].w` has shape \(1, 8\); expected"):
        call(inputs, cut, inputs.arrays, {})


@pytest.mark.parametrize("name", ["torchrl", "torchrl_v3"])
def test_weights_under_torchrls_names_train(name: str) -> None:
    """Gradient descent under jit goes the same way as through the reference."""
    inputs = in_jax(inputs_of("observe", SPECS[name], 5, N))
    options = {"num_classes": SPECS[name].num_classes} if name == "torchrl_v3" else {}
    named = {key: v for key, v in inputs.weights.named() if not key.startswith("initial")}
    start = rssm.to_torchrl(rssm.RSSMWeights.of_arrays(inputs.weights.spec, named))

    def losses(backend: str) -> list[float]:
        def loss(modules: Any) -> Any:
            weights = rssm.from_torchrl(*modules, **options)
            out = call(inputs, weights, inputs.arrays, {}, backend=backend)
            return sum((each**2).mean() for each in out)

        @jax.jit
        def train(modules: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(modules)
            return value, jax.tree.map(lambda one, d: one - 0.01 * d, modules, grads)

        modules, found = tuple(start), []
        for _ in range(3):
            value, modules = train(modules)
            found.append(float(value))
        return found

    found = losses("auto")
    np.testing.assert_allclose(found, losses("reference"), rtol=1e-5)
    assert found[-1] < found[0]


# Refusals


@pytest.mark.parametrize("form", FORMS)
def test_other_derivatives_are_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WAITING", host.Waiting())  # some backwards never come
    inputs = in_jax(inputs_of(form, SPECS["first"], T, N))
    belief = inputs.arrays["belief"]

    def loss(belief: Any, backend: str = "auto") -> Any:
        arrays = inputs.arrays | {"belief": belief}
        parameters = parameters_of(inputs)
        return call(inputs, inputs.weights, arrays, parameters, backend=backend).state.sum()

    with pytest.raises(rnnop.UnsupportedError, match=f"{form}: the forward-mode derivative"):
        jax.jvp(loss, (belief,), (belief,))
    with pytest.raises(rnnop.UnsupportedError, match=f"{form}: the derivative of a gradient"):
        jax.grad(lambda belief: jax.grad(loss)(belief).sum())(belief)
    jax.jvp(lambda belief: loss(belief, "reference"), (belief,), (belief,))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_wrong_calls_are_refused_as_numpys(form: str, compiled: bool) -> None:
    inputs = in_numpy(inputs_of(form, SPECS["first"], T, N))
    given = in_jax(inputs)
    action = {"step": "action", "imagine": "belief"}.get(form, "actions")
    wrong: dict[str, dict[str, Any]] = {
        "shape": {action: inputs.arrays[action][..., :-1]},
        "noise": {"noise": inputs.noise[..., :-1]},
        "dtype": {action: inputs.arrays[action].astype("float16")},
        "seed": {"seed": -1},
        "backend": {"backend": "gpu"},
    }
    if form in ("rollout", "observe"):
        wrong["is_first"] = {"is_first": inputs.is_first[:-1]}
    if form == "imagine":
        wrong["horizon"] = {"horizon": 0}
    for options in wrong.values():
        mine = {
            key: jnp.asarray(each) if isinstance(each, np.ndarray) and each.dtype != bool else each
            for key, each in options.items()
        }
        arrays = {key: mine.pop(key, each) for key, each in given.arrays.items()}
        function = lambda arrays: call(given, given.weights, arrays, {}, **mine)  # noqa: B023, E731
        with pytest.raises((rnnop.RnnopError, TypeError)) as wanted:
            inputs.run(**options)
        with pytest.raises(type(wanted.value)) as found:
            (jax.jit(function) if compiled else function)(arrays)
        assert str(found.value).startswith(f"{form}: ")
        text = str(found.value).replace("a JAX array", "a NumPy array")
        assert text.partition(". spec")[0] == str(wanted.value).partition(". spec")[0]


@pytest.mark.parametrize("form", FORMS)
def test_families_are_not_mixed(form: str) -> None:
    inputs = in_numpy(inputs_of(form, SPECS["first"], T, N))
    given = in_jax(inputs)
    for weights, arrays, noise in (
        (given.weights, inputs.arrays, given.noise),
        (given.weights, given.arrays, inputs.noise),
        (inputs.weights, given.arrays, given.noise),
    ):
        with pytest.raises(rnnop.DTypeError, match=f"{form}: .*expected one family for all"):
            call(given, weights, arrays, parameters_of(inputs), noise)
