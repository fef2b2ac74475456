"""An actor of dense layers: what it computes, its gradient, and its place in the engine's loop."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from differences import assert_gradient
from rssm_cases import SPECS, weights_of
from tolerances import assert_close

import rnnop
from rnnop import rssm
from rnnop.cpu import engine
from rnnop.rssm.actor import CheckedActor

Array = np.ndarray[Any, np.dtype[Any]]

needs_engine = pytest.mark.skipif(
    not engine.available(), reason="rnnop was installed without a C compiler"
)
ODD = rssm.RSSMSpec(35, 67, 9, hidden_size=41)
MODELS = SPECS | {
    "odd": ODD,
    "odd_reset_before": rssm.RSSMSpec(35, 67, 9, hidden_size=41, cell="gru_reset_before"),
    "odd_layernorm": rssm.RSSMSpec(35, 67, 9, hidden_size=41, cell="gru_layernorm"),
}
KINDS = [([], "elu", "tanh"), ([17], "silu", "identity"), ([20, 5], "relu", "tanh")]


def model(name: str) -> rssm.RSSMWeights:
    """Random weights; those of wide models are such that they are not chaotic."""
    spec = MODELS[name]
    if spec.hidden_size <= 4:
        return weights_of(spec)
    draw = np.random.default_rng(0).standard_normal
    fresh = rssm.init_weights(spec, learned_initial=True, dtype="float64", seed=0)
    return fresh.map(lambda array: array + 0.1 * draw(array.shape))


def actor_of(spec: rssm.RSSMSpec, kind: Any = KINDS[2], dtype: str = "float64") -> rssm.MLPActor:
    """An actor with hidden layers of the sizes given; its second layer has no bias."""
    hidden, activation, squash = kind
    draw = np.random.default_rng(4).standard_normal
    sizes = [spec.state_size + spec.belief_size, *hidden, spec.action_size]
    layers = [
        rssm.Layer(
            (0.5 * draw((out, size)) / np.sqrt(size)).astype(dtype),
            draw(out).astype(dtype) if k != 1 else None,
        )
        for k, (size, out) in enumerate(itertools.pairwise(sizes))
    ]
    return rssm.MLPActor(tuple(layers), activation, squash)


def start(spec: rssm.RSSMSpec, rows: int, dtype: str = "float64") -> tuple[Array, Array]:
    draw = np.random.default_rng(1).standard_normal
    return (
        draw((rows, spec.state_size)).astype(dtype),
        draw((rows, spec.belief_size)).astype(dtype),
    )


def everything(
    weights: Any,
    actor: Any,
    rows: int,
    horizon: int,
    backend: str,
    dtype: str = "float64",
    rounded: str = "float64",
    plain: Any = None,
) -> dict[str, Array]:
    """Every output and every gradient of an imagination, with a cotangent of every output."""

    def given(array: Any) -> Array:
        return array.astype(rounded).astype(dtype)

    spec = weights.spec
    noise = given(np.random.default_rng(2).standard_normal((horizon, rows, spec.noise_size)))
    if spec.latent == "categorical":
        noise = given(np.random.default_rng(2).random((horizon, rows, spec.noise_size)))
    begun = [given(each) for each in start(spec, rows, dtype)]
    out, vjp = rssm.imagine_vjp(weights, *begun, actor, horizon, noise, backend=backend)
    again = rssm.imagine(weights, *begun, plain or actor, horizon, noise, backend=backend)
    assert all(np.array_equal(one, other) for one, other in zip(out, again, strict=True))
    draw = np.random.default_rng(5).standard_normal
    grads = vjp(*(given(draw(each.shape)) for each in out))
    found = out._asdict() | {"dstate": grads.state, "dbelief": grads.belief}
    found |= {f"d{name}": array for name, array in grads.weights.named()}
    return found | {f"dactor[{k}]": array for k, array in enumerate(grads.actor)}


def test_the_numbers_of_one_by_hand() -> None:
    first = rssm.Layer(np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]]), np.array([0.5, 0.0]))
    actor = rssm.MLPActor((first, rssm.Layer(np.array([[2.0, -1.0]]))), "relu", "identity")
    state, belief = np.array([[1.0]]), np.array([[-0.25, 3.0]])
    # hidden = relu([1 - 0.5 + 0.5, -0.25 - 3]) = [1, 0]; action = 2
    action, vjp = actor.with_vjp(state, belief)
    assert action.tolist() == actor(state, belief).tolist() == [[2.0]]
    dstate, dbelief, dw1, db1, dw2 = vjp(np.array([[3.0]]))
    assert dstate.tolist() == [[6.0]]  # 3 * 2 * 1
    assert dbelief.tolist() == [[12.0, 0.0]]
    assert dw1.tolist() == [[6.0, -1.5, 18.0], [0.0, 0.0, 0.0]]
    assert db1.tolist() == [6.0, 0.0]
    assert dw2.tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_its_gradient_is_that_of_differences(kind: Any) -> None:
    spec = SPECS["first"]
    actor, (state, belief) = actor_of(spec, kind), start(spec, 3)
    weight = np.random.default_rng(6).standard_normal((3, spec.action_size))
    dstate, dbelief, *own = actor.with_vjp(state, belief)[1](weight)
    assert_gradient("state", dstate, lambda each: weight * actor(each, belief), state)
    assert_gradient("belief", dbelief, lambda each: weight * actor(state, each), belief)
    assert len(own) == len(actor.parameters)
    for k, (parameter, got) in enumerate(zip(actor.parameters, own, strict=True)):

        def changed(array: Array, number: int = k) -> Array:
            left = [array if i == number else each for i, each in enumerate(actor.parameters)]
            layers = tuple(
                rssm.Layer(left.pop(0), None if layer.b is None else left.pop(0))
                for layer in actor.layers
            )
            return weight * rssm.MLPActor(layers, actor.activation, actor.squash)(state, belief)

        assert_gradient(f"parameter {k}", got, changed, parameter)


@needs_engine
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_agrees_with_the_reference(
    name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = model(name)
    actor = actor_of(weights.spec, kind)
    for rows, horizon in ((1, 6), (3, 4), (50, 2)):
        wanted = everything(weights, actor, rows, horizon, "reference")
        bits = []
        for threads in ("1", "2", "3"):
            monkeypatch.setenv("RNNOP_NUM_THREADS", threads)
            found = everything(weights, actor, rows, horizon, "cpu")
            assert found.keys() == wanted.keys()
            for key, array in found.items():
                assert_close(key, array, wanted[key], "cpu", "float64")
            bits.append([array.tobytes() for array in found.values()])
        assert bits[0] == bits[1] == bits[2]


@needs_engine
@pytest.mark.parametrize("name", ["odd", "odd_reset_before", "odd_layernorm", "dreamer_v2"])
def test_float32_is_as_near_as_published(name: str) -> None:
    narrow = model(name).map(lambda array: array.astype("float32"))
    actor = actor_of(narrow.spec, dtype="float32")
    wide = tuple(
        rssm.Layer(*(None if each is None else each.astype("float64") for each in layer))
        for layer in actor.layers
    )
    wanted = everything(
        narrow.map(lambda array: array.astype("float64")),
        rssm.MLPActor(wide, actor.activation, actor.squash),
        5,
        6,
        "reference",
        "float64",
        rounded="float32",
    )
    found = everything(narrow, actor, 5, 6, "cpu", "float32")
    for key, array in found.items():
        assert array.dtype == np.float32
        assert_close(key, array, wanted[key], "cpu", "float32")


@needs_engine
def test_the_engine_runs_it_in_its_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = model("odd")
    actor = actor_of(ODD)
    wanted = everything(weights, actor, 4, 3, "cpu")
    monkeypatch.setattr(CheckedActor, "__call__", None)
    assert everything(weights, actor, 4, 3, "cpu").keys() == wanted.keys()
    begun = (*start(weights.spec, 4), actor, 3)
    noise = np.random.default_rng(2).standard_normal((3, 4, weights.spec.noise_size))
    out = rssm.imagine(rssm.prepack(weights), *begun, noise, backend="cpu")
    assert all(np.array_equal(each, wanted[name]) for name, each in out._asdict().items())
    told = rssm.explain("imagine", weights, *begun)
    assert "one native call for all steps" in told.manner
    with pytest.raises(TypeError):  # a function is called at each step
        rssm.imagine(weights, *start(ODD, 4), actor.__call__, 3, backend="cpu")


@needs_engine
@pytest.mark.parametrize("name", MODELS)
def test_it_is_worth_what_a_function_is(name: str) -> None:
    weights = model(name)
    actor = actor_of(weights.spec)
    one = everything(weights, actor, 4, 5, "cpu")
    other = everything(weights, actor.with_vjp, 4, 5, "cpu", plain=actor.__call__)
    for key, array in other.items():
        assert_close(key, array, one[key], "cpu", "float64")


@needs_engine
def test_a_cotangent_less_is_zeros() -> None:
    weights, actor = model("odd"), actor_of(ODD)
    found = {}
    for backend in ("cpu", "reference"):
        out, vjp = rssm.imagine_vjp(weights, *start(ODD, 4), actor, 3, seed=3, backend=backend)
        found[backend] = vjp(dbelief=np.ones_like(out.belief)).actor
    for k, (got, wanted) in enumerate(zip(found["cpu"], found["reference"], strict=True)):
        assert_close(f"dactor[{k}]", got, wanted, "cpu", "float64")


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_torch_differentiates_it(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install rnnop[torch]")
    weights = weights_of(SPECS["first"])
    actor = actor_of(weights.spec)
    wanted = everything(weights, actor, 3, 4, "reference")
    layers = tuple(
        rssm.Layer(
            *(
                None if each is None else torch.from_numpy(each).requires_grad_()
                for each in (layer.w, layer.b)
            )
        )
        for layer in actor.layers
    )
    of_torch = rssm.MLPActor(layers, actor.activation, actor.squash)
    noise = np.random.default_rng(2).standard_normal((4, 3, weights.spec.noise_size))
    state, belief, noise = map(torch.from_numpy, (*start(weights.spec, 3), noise))
    call = (weights.map(torch.from_numpy), state, belief, of_torch, 4, noise)
    draw = np.random.default_rng(5).standard_normal

    out = rssm.imagine(*call, backend=backend)
    cotangents = [torch.from_numpy(draw(each.shape)) for each in out]
    torch.autograd.backward(list(out), cotangents)
    with torch.no_grad():
        again, vjp = rssm.imagine_vjp(*call, backend=backend)
        own = vjp(*cotangents).actor
    for name, array in again._asdict().items():
        assert_close(name, array.numpy(), wanted[name], "reference", "float64")
    for k, parameter in enumerate(of_torch.parameters):
        for each in (parameter.grad, own[k]):
            assert_close(
                f"dactor[{k}]", each.numpy(), wanted[f"dactor[{k}]"], "reference", "float64"
            )


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda w, b: rssm.MLPActor(()), rnnop.SpecError, "layers"),
        (lambda w, b: rssm.MLPActor((w,)), rnnop.DTypeError, r"layers\[0\]"),
        (lambda w, b: rssm.MLPActor((rssm.Layer([[1.0]]),)), rnnop.DTypeError, r"layers\[0\].w"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(b),)), rnnop.ShapeError, r"layers\[0\].w"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w, w),)), rnnop.ShapeError, r"layers\[0\].b"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w, b[1:]),)), rnnop.ShapeError, "rows of w"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w, b, b),)), rnnop.SpecError, "norm"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w),) * 2), rnnop.ShapeError, r"layers\[1\].w"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w),), "gelu"), rnnop.SpecError, "activation"),
        (lambda w, b: rssm.MLPActor((rssm.Layer(w),), squash="clip"), rnnop.SpecError, "squash"),
    ],
)
def test_what_is_no_actor_is_refused(make: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        make(np.ones((2, 3)), np.ones(2))


@pytest.mark.parametrize("call", [rssm.imagine, rssm.imagine_vjp])
def test_an_actor_of_another_model_is_refused(call: Any) -> None:
    spec = SPECS["first"]
    weights, begun = weights_of(spec), start(spec, 3)
    other = rssm.RSSMSpec(7, 4, 2, hidden_size=3)
    with pytest.raises(rnnop.ShapeError, match="state_size"):
        call(weights, *begun, actor_of(other), 3)
    other = rssm.RSSMSpec(6, 4, 3, hidden_size=3)
    with pytest.raises(rnnop.ShapeError, match=r"layers\[2\].w.*2 rows"):
        call(weights, *begun, actor_of(other), 3)
    with pytest.raises(rnnop.DTypeError, match=r"actor.layers\[0\].w"):
        call(weights, *begun, actor_of(spec, dtype="float32"), 3)


def test_it_shows_its_sizes() -> None:
    assert repr(actor_of(ODD)) == "MLPActor(102 -> 20 -> 5 -> 9, relu, tanh)"


@needs_engine
def test_prepacked_weights_keep_nothing_of_an_actor() -> None:
    weights = rssm.prepack(model("first"))
    state, belief = start(weights.spec, 3)

    def kept() -> int:
        (described,) = (each for (_, observes), each in weights.cache.items() if not observes)
        return len(described._alive)

    before = kept()
    for _ in range(3):
        found = rssm.imagine(weights, state, belief, actor_of(weights.spec), 4, seed=0)
        wanted = rssm.imagine(weights.weights, state, belief, actor_of(weights.spec), 4, seed=0)
        assert [one.tobytes() for one in found] == [other.tobytes() for other in wanted]
    assert kept() == before


@needs_engine
def test_explain_tells_whose_loop_an_actor_runs_in() -> None:
    weights = model("first")
    state, belief = start(weights.spec, 3)
    actor = actor_of(weights.spec)
    inside = rssm.explain("imagine", weights, state, belief, actor, 4)
    outside = rssm.explain("imagine", weights, state, belief, lambda s, b: actor(s, b), 4)
    assert "one native call for all steps" in str(inside.manner)
    assert "one native call for each step" in str(outside.manner)
    assert inside.kept is not None
    assert outside.kept is not None
    assert inside.kept - outside.kept == 8 * 4 * 3 * (20 + 5)  # the hidden layers of the actor
