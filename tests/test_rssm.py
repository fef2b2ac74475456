"""What the calls of `rnnop.rssm` mean: layouts, episodes, noise, dtypes, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rssm_cases import (
    FORMS,
    SIZES,
    SPECS,
    Inputs,
    cotangents_of,
    gradients_of,
    inputs_of,
    weights_of,
    with_array,
)
from test_house import section

import rnnop
from rnnop import DTypeError, ShapeError, SpecError, UnsupportedError, rssm
from rnnop.rssm.backends import BACKENDS, load
from rnnop.rssm.noise import draw

pytestmark = pytest.mark.usefixtures("each_backend")

Array = np.ndarray[Any, np.dtype[Any]]

SEQUENCES = [form for form in FORMS if form != "step"]
KINDS = ["first", "planet", "dreamer_v2", "dreamer_v3"]  # of each cell, and of each latent, one

every_spec = pytest.mark.parametrize("name", SPECS)
every_kind = pytest.mark.parametrize("name", KINDS)


def assert_same(one: Any, other: Any, most: float = 0.0) -> None:
    """Compare two outputs, or two sets of gradients."""
    if isinstance(one, rssm.RSSMGrads):
        one, other = gradients_of(one), gradients_of(other)
    else:
        one, other = one._asdict(), other._asdict()
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=most, atol=most, err_msg=name)


# One step and many


@every_spec
def test_a_step_is_a_rollout_of_one_step(name: str) -> None:
    inputs = inputs_of("step", SPECS[name])
    state, belief, action = inputs.arrays.values()
    out, vjp = inputs.run(vjp=True)
    whole, whole_vjp = rssm.rollout_vjp(
        inputs.weights, state, belief, action[None], inputs.noise[None]
    )
    assert_same(out, type(whole)(*(each[0] for each in whole)))
    cotangents = cotangents_of(out)
    grads, whole_grads = vjp(*cotangents), whole_vjp(*(each[None] for each in cotangents))
    assert_same(grads, whole_grads._replace(actions=whole_grads.actions[0]))


@pytest.mark.parametrize("form", ["rollout", "observe"])
@every_spec
def test_steps_can_be_taken_in_two_calls(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], num_steps=5)
    whole = inputs.run()

    def part(steps: slice, **start: Array) -> Any:
        cut = {
            key: inputs.arrays[key][steps] for key in ("actions", "embeds") if key in inputs.arrays
        }
        return inputs.run(
            noise=inputs.noise[steps], is_first=inputs.is_first[steps], **cut, **start
        )

    one = part(slice(2))
    two = part(slice(2, None), state=one.state[-1], belief=one.belief[-1])
    joined = [np.concatenate(pair) for pair in zip(one, two, strict=True)]
    assert_same(whole, type(whole)(*joined), 1e-12)


@every_spec
def test_an_imagined_rollout_is_one_with_the_actors_actions(name: str) -> None:
    inputs = inputs_of("imagine", SPECS[name])
    out, vjp = inputs.run(vjp=True)
    assert_same(out, inputs.run())
    known, known_vjp = rssm.rollout_vjp(
        inputs.weights, **inputs.arrays, actions=out.action, noise=inputs.noise
    )
    for field in known._fields:
        np.testing.assert_allclose(getattr(known, field), getattr(out, field), rtol=0, atol=1e-13)
    state, belief = inputs.arrays.values()
    np.testing.assert_array_equal(out.action[0], inputs.actor.plain(state, belief))
    np.testing.assert_array_equal(out.action[1], inputs.actor.plain(out.state[0], out.belief[0]))

    # An actor to which its arguments are constants: the gradients of known actions, and its own.
    def constant(state: Array, belief: Array) -> Any:
        action = inputs.actor.plain(state, belief)
        return action, lambda daction: (None, None, daction)

    _, vjp = inputs.run(vjp=True, actor=constant)
    *cotangents, daction = cotangents_of(out)
    grads, known_grads = vjp(*cotangents, daction), known_vjp(*cotangents)
    np.testing.assert_allclose(
        grads.actor[0], (known_grads.actions + daction).sum(0), rtol=0, atol=1e-12
    )
    assert_same(grads._replace(actor=None), known_grads._replace(actions=None), 1e-11)


@every_spec
def test_an_observed_step_has_the_prior_of_a_plain_one(name: str) -> None:
    inputs = inputs_of("observe", SPECS[name])
    out = inputs.run(is_first=None)
    plain = rssm.step(
        inputs.weights, out.state[0], out.belief[0], inputs.arrays["actions"][1], seed=0
    )
    np.testing.assert_allclose(plain.belief, out.belief[1], rtol=0, atol=1e-13)
    for field in ("mean", "std", "logits"):
        if hasattr(plain, field):
            np.testing.assert_allclose(
                getattr(plain, field), getattr(out, f"prior_{field}")[1], rtol=0, atol=1e-13
            )


def test_the_state_is_drawn_from_what_is_returned() -> None:
    inputs = inputs_of("observe", SPECS["first"])
    out = inputs.run(backend="reference")  # the engine rounds the product and the sum at once
    np.testing.assert_array_equal(out.state, out.posterior_mean + out.posterior_std * inputs.noise)
    inputs = inputs_of("rollout", SPECS["first"])
    out = inputs.run(backend="reference")
    np.testing.assert_array_equal(out.state, out.mean + out.std * inputs.noise)


# Layouts


def batch_first(inputs: Inputs) -> dict[str, Any]:
    """The same call with the rows first, by way of arrays that are not contiguous."""
    turned = {
        name: np.moveaxis(array, 0, 1)
        for name, array in {**inputs.arrays, "noise": inputs.noise}.items()
        if array.ndim == 3
    }
    if inputs.form != "imagine":
        turned["is_first"] = inputs.is_first.T
    return {**turned, "batch_first": True}


@pytest.mark.parametrize("form", SEQUENCES)
@every_kind
def test_batch_first(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], num_steps=4, batch_size=3)
    out, vjp = inputs.run(vjp=True)
    turned, turned_vjp = inputs.run(vjp=True, **batch_first(inputs))
    assert_same(out, type(out)(*(np.moveaxis(each, 0, 1) for each in turned)), 1e-14)
    cotangents = cotangents_of(out)
    grads = vjp(*cotangents)
    turned_grads = turned_vjp(*(np.moveaxis(each, 0, 1) for each in cotangents))
    for field in ("actions", "embeds"):
        array = getattr(turned_grads, field)
        if array is not None:
            assert array.flags.c_contiguous
            turned_grads = turned_grads._replace(**{field: np.moveaxis(array, 0, 1)})
    assert_same(grads, turned_grads, 1e-13)


@pytest.mark.parametrize("form", FORMS)
@every_kind
def test_results_are_fresh_and_contiguous_and_no_input_changes(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name])
    mine = [*inputs.arrays.values(), inputs.noise, *(array for _, array in inputs.weights.named())]
    before = [array.tobytes() for array in mine]
    for array in mine:
        array.flags.writeable = False
    options = batch_first(inputs) if form != "step" else {}
    found: list[Array] = []
    for more in ({}, options):
        out, vjp = inputs.run(vjp=True, **more)
        grads = vjp(*cotangents_of(out))
        found += [
            *out,
            *(array for name, array in gradients_of(grads).items() if "actor" not in name),
        ]
        found += [*vjp().weights.map(np.asarray).prior[0][:2]]
    assert [array.tobytes() for array in mine] == before
    for k, array in enumerate(found):
        assert array.flags.c_contiguous, k
        assert not any(np.may_share_memory(array, other) for other in mine), k


@pytest.mark.parametrize("form", FORMS)
@every_spec
def test_a_row_gives_what_it_gives_alone(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], batch_size=3)
    whole = inputs.run()
    axis = 0 if form == "step" else 1
    for row in range(3):

        def alone(array: Array, row: int = row) -> Array:
            return np.take(array, [row], axis=min(axis, array.ndim - 2))

        cut = {key: alone(array) for key, array in inputs.arrays.items()}
        more = {} if form in ("step", "imagine") else {"is_first": inputs.is_first[:, [row]]}
        out = inputs.run(noise=np.take(inputs.noise, [row], axis=axis), **cut, **more)
        one = [np.take(each, [row], axis=axis) for each in whole]
        assert_same(out, type(out)(*one), 1e-13)


@given(T=st.integers(1, 4), N=st.integers(1, 4), data=st.data())
def test_the_order_of_rows_does_not_matter(T: int, N: int, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(SPECS)))
    form = data.draw(st.sampled_from(["rollout", "observe"]))
    order = data.draw(st.permutations(range(N)))
    inputs = inputs_of(form, SPECS[name], T, N, seed=data.draw(st.integers(0, 1000)))
    out, vjp = inputs.run(vjp=True)
    moved = {
        key: array[order] if array.ndim == 2 else array[:, order]
        for key, array in inputs.arrays.items()
    }
    other, other_vjp = inputs.run(
        vjp=True, noise=inputs.noise[:, order], is_first=inputs.is_first[:, order], **moved
    )
    assert_same(type(out)(*(each[:, order] for each in out)), other, 1e-12)
    cotangents = cotangents_of(out)
    grads, other_grads = vjp(*cotangents), other_vjp(*(each[:, order] for each in cotangents))
    for weights, more in zip(grads.weights.named(), other_grads.weights.named(), strict=True):
        np.testing.assert_allclose(weights[1], more[1], rtol=0, atol=1e-9, err_msg=weights[0])
    np.testing.assert_allclose(grads.actions[:, order], other_grads.actions, rtol=0, atol=1e-10)


# Episodes


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("form", ["rollout", "observe"])
@every_spec
def test_an_episode_begins_from_the_initial_state(name: str, form: str, learned: bool) -> None:
    inputs = inputs_of(form, SPECS[name], num_steps=5, batch_size=1)
    weights = inputs.weights
    if not learned:
        named = {key: array for key, array in weights.named() if "initial" not in key}
        weights = rssm.RSSMWeights.of_arrays(weights.spec, named)
    first = np.array([[False], [False], [True], [False], [False]])
    out, vjp = inputs.run(vjp=True, weights=weights, is_first=first)
    start = {"state": None, "belief": None}
    cut = {key: array[2:].copy() for key, array in inputs.arrays.items() if array.ndim == 3}
    cut["actions"][0] = 0.0
    alone, alone_vjp = inputs.run(
        vjp=True, weights=weights, is_first=None, noise=inputs.noise[2:], **cut, **start
    )
    assert_same(type(out)(*(each[2:] for each in out)), alone, 1e-13)

    # Nothing flows back across the begin, but to the initial state and belief.
    cotangents = [
        np.concatenate([np.zeros_like(each[:2]), each[2:]]) for each in cotangents_of(out)
    ]
    grads, alone_grads = vjp(*cotangents), alone_vjp(*(each[2:] for each in cotangents))
    assert not grads.state.any()
    assert not grads.belief.any()
    assert not grads.actions[:3].any()
    np.testing.assert_allclose(grads.actions[3:], alone_grads.actions[1:], rtol=0, atol=1e-12)
    for (key, one), (_, other) in zip(
        grads.weights.named(), alone_grads.weights.named(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11, err_msg=key)
    if learned:
        np.testing.assert_allclose(
            grads.weights.initial_state, alone_grads.state[0], rtol=0, atol=1e-13
        )
        assert grads.weights.initial_belief.any()


@pytest.mark.parametrize("form", ["rollout", "observe"])
@every_spec
def test_an_episode_that_begins_at_once_ignores_what_is_given(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], num_steps=3, batch_size=2)
    first = np.array([[True, False], [False, False], [False, False]])
    spoiled = {key: array.copy() for key, array in inputs.arrays.items()}
    for key in ("state", "belief"):
        spoiled[key][0] = np.nan
    spoiled["actions"][0, 0] = np.nan
    out, vjp = inputs.run(vjp=True, is_first=first, **spoiled)
    start = {key: spoiled[key].copy() for key in ("state", "belief", "actions")}
    for key in ("state", "belief"):
        start[key][0] = getattr(inputs.weights, f"initial_{key}")
    start["actions"][0, 0] = 0.0
    alone, alone_vjp = inputs.run(vjp=True, is_first=None, **start)
    assert_same(out, alone, 1e-13)
    cotangents = cotangents_of(out)
    grads, alone_grads = vjp(*cotangents), alone_vjp(*cotangents)
    for key in ("state", "belief"):
        one, other = getattr(grads, key), getattr(alone_grads, key)
        assert not one[0].any()
        np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-12)
        initial = getattr(grads.weights, f"initial_{key}")
        np.testing.assert_allclose(initial, other[0], rtol=0, atol=1e-12)
    assert not grads.actions[0, 0].any()


@pytest.mark.parametrize("form", ["rollout", "observe"])
@every_spec
def test_nan_before_a_reset_does_not_reach_what_comes_after(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], num_steps=5, batch_size=2)
    first = np.zeros((5, 2), bool)
    first[3, 0] = True
    out, vjp = inputs.run(vjp=True, is_first=first)
    spoiled = {key: array.copy() for key, array in inputs.arrays.items()}
    for key, array in spoiled.items():
        array[(0,) if array.ndim == 2 else (slice(3), 0)] = np.nan
        if key == "actions":
            array[3, 0] = np.nan  # an action from before the episode
    noise = inputs.noise.copy()
    noise[:3, 0] = np.nan
    bad, bad_vjp = inputs.run(vjp=True, is_first=first, noise=noise, **spoiled)
    after = first[:, :, None].cumsum(0) > 0
    after[:, 1] = True
    for field, one, other in zip(out._fields, out, bad, strict=True):
        where = np.broadcast_to(after.reshape(5, 2, *[1] * (one.ndim - 2)), one.shape)
        assert np.isnan(other[~where]).all(), field
        np.testing.assert_array_equal(one[where], other[where], err_msg=field)
    cotangents = cotangents_of(out)
    grads, bad_grads = vjp(*cotangents), bad_vjp(*cotangents)
    for field in ("actions", "embeds"):
        one, other = getattr(grads, field), getattr(bad_grads, field)
        if one is not None:
            np.testing.assert_array_equal(one[3:], other[3:], err_msg=field)
            np.testing.assert_array_equal(one[:, 1], other[:, 1], err_msg=field)
    assert not bad_grads.actions[3, 0].any()
    for field in ("initial_state", "initial_belief"):
        np.testing.assert_array_equal(
            getattr(grads.weights, field), getattr(bad_grads.weights, field)
        )


def test_a_state_that_is_not_given_is_the_initial_one() -> None:
    inputs = inputs_of("rollout", SPECS["first"])
    whole = {
        name: np.broadcast_to(getattr(inputs.weights, f"initial_{name}"), inputs.arrays[name].shape)
        for name in ("state", "belief")
    }
    out, vjp = inputs.run(vjp=True, state=None, belief=None)
    same, same_vjp = inputs.run(vjp=True, **whole)
    assert_same(out, same)
    cotangents = cotangents_of(out)
    grads, same_grads = vjp(*cotangents), same_vjp(*cotangents)
    for name in ("state", "belief"):
        initial = f"initial_{name}"
        np.testing.assert_allclose(
            getattr(grads.weights, initial),
            getattr(same_grads.weights, initial) + getattr(same_grads, name).sum(0),
            rtol=0,
            atol=1e-13,
        )


# Noise


@every_kind
def test_noise_from_a_seed(name: str) -> None:
    inputs = inputs_of("rollout", SPECS[name], num_steps=4, batch_size=3)
    drawn = inputs.run(noise=None, seed=5)
    assert_same(drawn, inputs.run(noise=None, seed=5))
    other, unseeded = inputs.run(noise=None, seed=6), inputs.run(noise=None)
    assert (other.state != drawn.state).any()
    assert (unseeded.state != drawn.state).any()
    assert (inputs.run(noise=None).state != unseeded.state).any()
    # Noise that is given goes before a seed.
    assert_same(inputs.run(seed=5), inputs.run())

    turned = inputs.run(seed=5, **{**batch_first(inputs), "noise": None})
    assert_same(drawn, type(drawn)(*(np.moveaxis(each, 0, 1) for each in turned)), 1e-13)


@pytest.mark.parametrize("latent", ["gaussian", "categorical"])
def test_steps_and_rows_at_the_end_change_no_noise_before_them(latent: str) -> None:
    spec = SPECS["first" if latent == "gaussian" else "dreamer_v3"]
    large = draw(spec, 7, 6, 5)
    np.testing.assert_array_equal(large[:4, :3], draw(spec, 7, 4, 3))
    assert len(np.unique(large)) == large.size
    many = draw(spec, 7, 40, 500)
    mean, std = (0.0, 1.0) if latent == "gaussian" else (0.5, 12**-0.5)
    assert many.mean() == pytest.approx(mean, abs=0.01)
    assert many.std() == pytest.approx(std, abs=0.01)
    if latent == "categorical":
        assert many.min() >= 0.0
        assert many.max() < 1.0


@pytest.mark.parametrize("unimix", [0.0, 0.3])
def test_classes_come_as_often_as_their_probabilities_say(unimix: float) -> None:
    spec = rssm.RSSMSpec.of(
        "torchrl_v3", state_size=3, num_classes=3, belief_size=1, action_size=1, unimix=unimix
    )
    weights = rssm.init_weights(spec, dtype="float64", seed=0)
    logits = np.array([2.0, -1.0, 0.5])
    zeros = {name: np.zeros_like(array) for name, array in weights.named()}
    weights = rssm.RSSMWeights.of_arrays(spec, {**zeros, "prior[1].b": logits})
    out = rssm.step(weights, None, None, np.zeros((20_000, 1)), seed=0)
    assert set(np.unique(out.state)) == {0.0, 1.0}
    np.testing.assert_array_equal(out.state.sum(1), 1.0)
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(out.state.mean(0), (1 - unimix) * p + unimix / 3, atol=0.01)
    np.testing.assert_array_equal(out.logits[:, 0], np.broadcast_to(logits, (20_000, 3)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_largest_uniform_draws_the_last_class(dtype: str) -> None:
    weights = weights_of(SPECS["dreamer_v3"]).map(lambda array: array.astype(dtype))
    action = np.zeros((1, 2), dtype)
    for uniform, wanted in ((0.0, [1, 0, 0, 1, 0, 0]), (1.0, [0, 0, 1, 0, 0, 1])):
        out = rssm.step(weights, None, None, action, np.full((1, 2), uniform, dtype))
        assert out.state.tolist() == [wanted]


def test_a_nan_in_the_output_of_a_head_stays_in_the_std() -> None:
    weights = weights_of(SPECS["torchrl"])
    weights = with_array(weights, "prior[1].b", np.full(12, np.nan))
    assert np.isnan(rssm.step(weights, None, None, np.zeros((1, 2)), seed=0).std).all()


# Sizes and dtypes


@pytest.mark.parametrize(("T", "N"), [(1, 1), (1, 0), (3, 0), (7, 5)])
@pytest.mark.parametrize("form", SEQUENCES)
@every_kind
def test_odd_sizes(name: str, form: str, T: int, N: int) -> None:
    inputs = inputs_of(form, SPECS[name], T, N)
    out, vjp = inputs.run(vjp=True)
    assert all(each.shape[:2] == (T, N) for each in out)
    grads = vjp(*cotangents_of(out))
    for (key, array), (_, weight) in zip(
        grads.weights.named(), inputs.weights.named(), strict=True
    ):
        assert array.shape == weight.shape, key
        if not N:
            assert not array.any(), key
    assert grads.state.shape == inputs.arrays["state"].shape


@pytest.mark.parametrize("form", ["rollout", "observe"])
@every_kind
def test_no_steps(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name], 0, 3)
    out, vjp = inputs.run(vjp=True)
    assert all(each.shape[:2] == (0, 3) for each in out)
    grads = gradients_of(vjp(*cotangents_of(out)))
    assert grads["actions"].shape == (0, 3, 2)
    assert not any(array.any() for array in grads.values())


# The largest error, as a share of the largest entry where that is above 1: measured 4.6e-7, 1.4e-3
# and 1.1e-2 on one machine. Weights and inputs are halves on both sides; the noise of this case
# happens to lie far from every edge between classes.
CLOSENESS = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", CLOSENESS)
@pytest.mark.parametrize("form", FORMS)
@every_kind
def test_dtypes(name: str, form: str, dtype: str) -> None:
    inputs = inputs_of(form, SPECS[name])

    def narrow(array: Array) -> Array:
        return array.astype(DTYPES[dtype])

    given = {key: narrow(array) for key, array in inputs.arrays.items()}
    noise = narrow(inputs.noise)
    weights = inputs.weights.map(narrow)
    out, vjp = inputs.run(vjp=True, weights=weights, noise=noise, **given)
    wide = {key: array.astype(np.float64) for key, array in given.items()}
    right, right_vjp = inputs.run(
        vjp=True,
        weights=weights.map(lambda array: array.astype(np.float64)),
        noise=noise.astype(np.float64),
        **wide,
    )
    cotangents = [narrow(each) for each in cotangents_of(right)]
    found = out._asdict() | gradients_of(vjp(*cotangents))
    wanted = right._asdict() | gradients_of(right_vjp(*(d.astype(np.float64) for d in cotangents)))
    for key, array in wanted.items():
        if "actor" not in key:
            assert found[key].dtype == DTYPES[dtype], key
            most = CLOSENESS[dtype] * max(float(np.abs(array).max()), 1.0)
            np.testing.assert_allclose(
                found[key].astype(np.float64), array, rtol=0, atol=most, err_msg=key
            )


def test_float32_can_be_computed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of("observe", SPECS["first"])
    weights = inputs.weights.map(lambda array: array.astype(np.float32))
    given: dict[str, Any] = {key: array.astype(np.float32) for key, array in inputs.arrays.items()}
    given["noise"] = inputs.noise.astype(np.float32)
    given["backend"] = "reference"
    plain = inputs.run(weights=weights, **given)
    monkeypatch.setenv("RNNOP_REFERENCE_FLOAT64", "1")
    exact = inputs.run(weights=weights, **given)
    right = inputs.run(
        weights=weights.map(lambda array: array.astype(np.float64)),
        **{key: array.astype(np.float64) for key, array in given.items() if key != "backend"},
        backend="reference",
    )
    assert exact.state.dtype == np.float32
    np.testing.assert_array_equal(exact.state, right.state.astype(np.float32))
    assert (plain.state != exact.state).any()


# Cotangents


@pytest.mark.parametrize("form", FORMS)
@every_kind
def test_cotangents_by_name_and_by_place(name: str, form: str) -> None:
    inputs = inputs_of(form, SPECS[name])
    out, vjp = inputs.run(vjp=True)
    cotangents = cotangents_of(out)
    whole = vjp(*cotangents)
    names = [f"d{field}" for field in out._fields]
    assert_same(whole, vjp(**dict(zip(names, cotangents, strict=True))))
    assert_same(whole, vjp(*cotangents[:1], **dict(zip(names[1:], cotangents[1:], strict=True))))
    zeros = [np.zeros_like(each) for each in out]
    total: dict[str, Array] = {}
    for k in range(len(out)):
        one = vjp(**{names[k]: cotangents[k]})
        assert_same(one, vjp(*zeros[:k], cotangents[k], *zeros[k + 1 :]), 1e-13)
        assert_same(one, vjp(*[None] * k, cotangents[k]))
        for key, array in gradients_of(one).items():
            total[key] = total.get(key, 0.0) + array
    for key, array in gradients_of(whole).items():
        np.testing.assert_allclose(array, total[key], rtol=1e-9, atol=1e-10, err_msg=key)
    assert not any(array.any() for array in gradients_of(vjp()).values())


def test_cotangents_that_are_none() -> None:
    inputs = inputs_of("rollout", SPECS["first"])
    out, vjp = inputs.run(vjp=True)
    expected = "expected dmean, dstd, dstate, dbelief"
    with pytest.raises(SpecError, match=f"vjp: vjp is given 5 cotangents; {expected}"):
        vjp(*out, out.belief)
    with pytest.raises(SpecError, match=f"`dlogits` is not one of an output; {expected}"):
        vjp(dlogits=out.mean)
    with pytest.raises(SpecError, match=f"`dmean` is given twice; {expected}"):
        vjp(out.mean, dmean=out.mean)
    with pytest.raises(ShapeError, match=r"`dstd` has shape \(3, 2\); expected the shape of std"):
        vjp(dstd=np.zeros((3, 2)))
    with pytest.raises(DTypeError, match="`dstd` has dtype float32"):
        vjp(dstd=out.std.astype(np.float32))


# What is refused

STEP = inputs_of("step", SPECS["first"])
ROLLOUT = inputs_of("rollout", SPECS["first"])
OBSERVE = inputs_of("observe", SPECS["first"])
IMAGINE = inputs_of("imagine", SPECS["first"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weights": 3}, DTypeError, r"rollout: `weights` is int; expected RSSMWeights"),
        ({"state": np.zeros((2, 5))}, ShapeError, r"`state` has shape \(2, 5\).*\(N, state_size\)"),
        ({"belief": np.zeros((3, 4))}, ShapeError, r"`belief` has shape \(3, 4\)"),
        ({"actions": np.zeros((3, 2))}, ShapeError, r"`actions` has shape \(3, 2\).*T, N, act"),
        ({"actions": np.zeros((3, 2, 7))}, ShapeError, "with action_size = 2"),
        ({"actions": [[[0.0, 1.0]]]}, DTypeError, "`actions` is list"),
        ({"actions": np.zeros((3, 2, 2), int)}, DTypeError, "`actions` has dtype int64"),
        ({"noise": np.zeros((3, 2, 2))}, ShapeError, r"`noise` has shape.*\(T, N, state_size\)"),
        ({"noise": np.zeros((2, 3, 6))}, ShapeError, r"`noise` has shape \(2, 3, 6\)"),
        ({"is_first": np.zeros((2, 3), bool)}, ShapeError, "`is_first` has shape"),
        ({"is_first": np.zeros((3, 2))}, DTypeError, "`is_first` has dtype float64"),
        ({"seed": -1, "noise": None}, SpecError, "`seed` is -1"),
        ({"batch_first": 1}, SpecError, "`batch_first` is 1"),
        ({"backend": "fast"}, SpecError, "`backend` is 'fast'"),
        ({"backend": "cudnn"}, UnsupportedError, "backend 'cudnn' runs no RSSM"),
        (
            {"state": np.zeros((2, 6), np.float32)},
            DTypeError,
            "`state` has dtype float32 and `actions` has dtype float64",
        ),
    ],
)
@pytest.mark.parametrize("vjp", [False, True])
def test_refused_in_a_rollout(
    changes: dict[str, Any], error: type[Exception], message: str, vjp: bool
) -> None:
    with pytest.raises(error, match=message.replace("rollout:", f"rollout{'_vjp' * vjp}:")):
        ROLLOUT.run(vjp=vjp, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"action": np.zeros((2, 3))},
            ShapeError,
            r"`action` has shape \(2, 3\).*\(N, action_size",
        ),
        ({"action": np.zeros((1, 2, 2))}, ShapeError, r"`action` has shape \(1, 2, 2\)"),
        ({"action": None}, DTypeError, "`action` is NoneType"),
        ({"noise": np.zeros((2, 5))}, ShapeError, r"`noise` has shape \(2, 5\).*\(N, state_size\)"),
        ({"noise": np.zeros((1, 2, 6))}, ShapeError, r"`noise` has shape \(1, 2, 6\)"),
        ({"state": np.zeros((3, 6))}, ShapeError, r"`state` has shape \(3, 6\)"),
        ({"belief": np.zeros((2, 6))}, ShapeError, r"`belief` has shape \(2, 6\)"),
    ],
)
@pytest.mark.parametrize("vjp", [False, True])
def test_refused_in_a_step(
    changes: dict[str, Any], error: type[Exception], message: str, vjp: bool
) -> None:
    with pytest.raises(error, match=f"step{'_vjp' * vjp}: {message}"):
        STEP.run(vjp=vjp, **changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"embeds": np.zeros((3, 2, 4))}, ShapeError, r"`embeds` has shape.*\(T, N, embed_size\)"),
        ({"embeds": np.zeros((2, 2, 5))}, ShapeError, "observe: `embeds` has shape"),
        ({"embeds": None}, DTypeError, "`embeds` is NoneType"),
    ],
)
def test_refused_in_an_observation(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        OBSERVE.run(**changes)


def test_a_backend_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in map(load, BACKENDS):
        monkeypatch.setattr(each, "supports", lambda problem: f"it has {problem.form}s of tests")
    for backend in ("auto", "reference"):
        with pytest.raises(UnsupportedError, match="'reference' cannot run this call: it has roll"):
            ROLLOUT.run(backend=backend)


def test_a_model_without_a_posterior_observes_nothing() -> None:
    spec = rssm.RSSMSpec(**{**SIZES, "embed_size": 0})
    weights = rssm.init_weights(spec, dtype="float64", seed=0)
    assert weights.posterior == ()
    with pytest.raises(SpecError, match="observe: `weights` have embed_size = 0"):
        OBSERVE.run(weights=weights)


def never(state: Array, belief: Array) -> Array:
    raise AssertionError("the actor is called before everything is checked")


def short(state: Array, belief: Array) -> Array:
    return state[:, :1]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"horizon": 0, "actor": never}, SpecError, "imagine: `horizon` is 0; .*at least 1"),
        ({"horizon": 2.0, "actor": never}, SpecError, r"`horizon` is 2\.0"),
        ({"horizon": 4, "actor": never}, ShapeError, "`noise` has shape"),
        ({"actor": 3}, DTypeError, "`actor` is int; expected a function"),
        ({"state": None, "belief": None, "actor": never}, ShapeError, "both None"),
        ({"state": np.zeros(6), "actor": never}, ShapeError, r"`state` has shape \(6,\)"),
        ({"belief": np.zeros((1, 4)), "actor": never}, ShapeError, "`belief` has shape"),
        ({"actor": short}, ShapeError, r"`actor\(state, belief\)` has shape \(2, 1\); .*action_s"),
        ({"actor": lambda s, b: None}, DTypeError, r"`actor\(state, belief\)` is NoneType"),
        ({"actor": lambda s, b: s[:, :2].astype("f4")}, DTypeError, "has dtype float32"),
    ],
)
def test_refused_in_imagination(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        IMAGINE.run(**changes)


def test_an_actors_vjp_is_checked() -> None:
    with pytest.raises(DTypeError, match=r"`actor\(state, belief\)` is ndarray; expected \(act"):
        IMAGINE.run(vjp=True, actor=IMAGINE.actor.plain)
    with pytest.raises(ShapeError, match=r"`actor\(state, belief\)` has shape \(2, 1\)"):
        IMAGINE.run(vjp=True, actor=lambda state, belief: (short(state, belief), never))
    for returned, error, message in (
        (None, DTypeError, "vjp: the actor's vjp returned NoneType"),
        ((None,), DTypeError, "the actor's vjp returned tuple"),
        ((np.zeros((2, 4)), None), ShapeError, r"`dstate of the actor` has shape \(2, 4\)"),
        ((None, np.zeros((2, 6))), ShapeError, r"`dbelief of the actor` has shape \(2, 6\)"),
    ):

        def actor(state: Array, belief: Array, returned: Any = returned) -> Any:
            return state[:, :2], lambda daction: returned

        out, vjp = IMAGINE.run(vjp=True, actor=actor)
        with pytest.raises(error, match=message):
            vjp(out.mean)


def test_an_imagination_needs_only_one_of_state_and_belief() -> None:
    inputs = inputs_of("imagine", SPECS["first"])
    for name in ("state", "belief"):
        out = inputs.run(**{name: None})
        initial = np.broadcast_to(
            getattr(inputs.weights, f"initial_{name}"), inputs.arrays[name].shape
        )
        assert_same(out, inputs.run(**{name: initial.copy()}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"state_size": 0}, "`state_size` is 0"),
        ({"hidden_size": 2.5}, "`hidden_size` is 2.5"),
        ({"embed_size": -1}, "`embed_size` is -1"),
        ({"cell": "lstm"}, "`cell` is 'lstm'; expected one of gru, gru_reset_before"),
        ({"latent": "normal"}, "`latent` is 'normal'"),
        ({"std": "exp"}, "`std` is 'exp'"),
        ({"activation": "tanh"}, "`activation` is 'tanh'"),
        ({"norm": "batch"}, "`norm` is 'batch'"),
        ({"posterior_norm": "batch"}, "`posterior_norm` is 'batch'"),
        ({"min_std": float("nan")}, "`min_std` is nan; expected a finite number"),
        ({"min_std": float("inf")}, "`min_std` is inf"),
        ({"min_std": -0.1}, "`min_std` is -0.1"),
        ({"norm_eps": -1.0}, "`norm_eps` is -1.0"),
        ({"num_classes": 3}, "only a categorical one has them"),
        ({"unimix": 0.1}, "only a categorical one has them"),
        ({"latent": "categorical"}, "`num_classes` is None"),
        ({"latent": "categorical", "num_classes": 4}, "expected a multiple of num_classes = 4"),
        ({"latent": "categorical", "num_classes": 3, "unimix": 1.0}, "`unimix` is 1.0"),
        ({"num_blocks": 2}, "only 'block_gru' has them"),
        ({"cell": "block_gru", "num_blocks": 3}, "expected a multiple of num_blocks = 3"),
        ({"cell": "block_gru", "input_layers": 2}, "`input_layers` is 2"),
    ],
)
def test_a_spec_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape("RSSMSpec: ") + ".*" + message):
        rssm.RSSMSpec(**{**SIZES, **fields})


def test_variants_by_name() -> None:
    with pytest.raises(SpecError, match=r"RSSMSpec.of: `variant` is 'dreamer'; expected one of pl"):
        rssm.RSSMSpec.of("dreamer", **SIZES)
    spec = rssm.RSSMSpec.of("planet", **SIZES, std="sigmoid2")
    assert (spec.cell, spec.std) == ("gru_reset_before", "sigmoid2")
    assert str(spec) == (
        "rssm(gru_reset_before, gaussian, state 6, belief 4, action 2, embed 5, hidden 3, "
        "std=sigmoid2)"
    )


# Weights


def test_weights_show_and_name_themselves() -> None:
    weights = weights_of(SPECS["dreamer_v3"])
    lines = repr(weights).splitlines()
    assert lines[0] == f"RSSMWeights(float64, {weights.num_parameters:,} parameters)"
    assert lines[1].strip() == str(weights.spec)
    assert lines[2].split(maxsplit=1) == ["inputs[0].w", "(3, 4)"]
    named = dict(weights.named())
    assert weights.num_parameters == sum(array.size for array in named.values())
    assert named["dynamics[0].w"].shape == (2, 2, 2 + 3 * 3)
    doubled = weights.map(lambda array: 2 * array)
    for name, array in doubled.named():
        np.testing.assert_array_equal(array, 2 * named[name])
    with pytest.raises(dataclasses.FrozenInstanceError):
        weights.gru = None  # type: ignore[misc]


def test_the_gru_inside_is_one_of_ours() -> None:
    """What the cells read of the weights is what `rnnop.rnn` reads."""
    inputs = inputs_of("step", SPECS["first"])
    state, belief, action = inputs.arrays.values()
    (layer,) = inputs.weights.inputs
    x = np.concatenate([state, action], 1) @ layer.w.T + layer.b
    x = np.where(x > 0, x, np.expm1(x))
    out = rnnop.rnn(x[None], inputs.weights.gru, belief[None], backend="reference")
    np.testing.assert_allclose(out.h_n[0], inputs.run().belief, rtol=0, atol=1e-14)


def changed(name: str, array: Any) -> Any:
    return lambda: with_array(ROLLOUT.weights, name, array)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rssm.RSSMWeights(3, (), ()), DTypeError, "RSSMWeights: `spec` is int"),  # type: ignore[arg-type]
        (lambda: rssm.RSSMWeights(SPECS["first"], 3, ()), DTypeError, "`inputs` is int"),  # type: ignore[arg-type]
        (
            lambda: rssm.RSSMWeights(SPECS["first"], (), (), gru=3),  # type: ignore[arg-type]
            DTypeError,
            "`gru` is int; expected RNNWeights",
        ),
        (lambda: rssm.RSSMWeights(SPECS["first"], (), ()), ShapeError, r"`inputs\[0\].w` is miss"),
        (changed("prior[0].w", np.zeros((3, 5))), ShapeError, r"`prior\[0\].w` has shape \(3, 5\)"),
        (changed("prior[0].w", None), ShapeError, r"`prior\[0\]\.w` is missing"),
        (
            changed("gru_scale", np.ones(12)),
            ShapeError,
            "`gru_scale` is given; such a model has no",
        ),
        (changed("prior[0].scale", np.ones(3)), ShapeError, r"`prior\[0\].scale` is given"),
        (changed("prior[0].b", [1, 2, 3]), DTypeError, r"`prior\[0\].b` is list"),
        (changed("prior[0].b", np.zeros(3, np.float32)), DTypeError, r"`prior\[0\].b` has dtype"),
        (changed("initial_state", np.zeros(5)), ShapeError, "`initial_state` has shape"),
    ],
)
def test_weights_refuse(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_integer_weights_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"`inputs\[0\].w` has dtype int64"):
        ROLLOUT.weights.map(lambda array: array.astype(np.int64))


@every_spec
def test_every_bias_may_be_left_out(name: str) -> None:
    """It then counts as zeros, and gets no gradient."""

    def is_bias(key: str) -> bool:
        return key.endswith((".b", "shift")) or ".b_" in key

    inputs = inputs_of("observe", SPECS[name])
    named = dict(inputs.weights.named())
    zeros = {key: np.zeros_like(a) if is_bias(key) else a for key, a in named.items()}
    bare = {key: a for key, a in named.items() if not is_bias(key)}
    spec = inputs.weights.spec
    (out, vjp), (bare_out, bare_vjp) = (
        inputs.run(vjp=True, weights=rssm.RSSMWeights.of_arrays(spec, each))
        for each in (zeros, bare)
    )
    assert_same(out, bare_out, 1e-14)
    cotangents = cotangents_of(out)
    wanted = gradients_of(vjp(*cotangents))
    found = gradients_of(bare_vjp(*cotangents))
    assert not any(map(is_bias, found))
    for key, array in found.items():
        np.testing.assert_allclose(array, wanted[key], rtol=0, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("scheme", ["pytorch", "dreamer_v3"])
@every_spec
def test_fresh_weights(name: str, scheme: str) -> None:
    spec = dataclasses.replace(SPECS[name], hidden_size=60, belief_size=50)
    weights = rssm.init_weights(spec, seed=0, scheme=scheme)
    again = rssm.init_weights(spec, seed=0, scheme=scheme)
    for (key, array), (_, same) in zip(weights.named(), again.named(), strict=True):
        assert array.dtype == np.float32, key
        np.testing.assert_array_equal(array, same)
        if key.endswith("scale"):
            assert (array == 1).all(), key
        elif key.endswith("shift") or (scheme != "pytorch" and array.ndim == 1):
            assert (array == 0).all(), key
        else:
            inputs = array.shape[-1] * (array.shape[0] if array.ndim == 3 else 1)
            if scheme == "pytorch" and key.startswith("gru"):
                inputs = 50
            if array.ndim > 1 and array.size > 1000:
                variance = 1 / 3 if scheme == "pytorch" else 1.0
                assert array.std() == pytest.approx((variance / inputs) ** 0.5, rel=0.06), key
            if scheme == "pytorch" and array.ndim > 1:
                assert np.abs(array).max() <= inputs**-0.5, key
    assert weights.initial_state is None
    learned = rssm.init_weights(spec, learned_initial=True, dtype="bfloat16")
    assert not learned.initial_belief.any()
    assert learned.initial_state.dtype == ml_dtypes.bfloat16


def test_fresh_weights_refuse() -> None:
    with pytest.raises(DTypeError, match="init_weights: `spec` is str"):
        rssm.init_weights("gru")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="`scheme` is 'keras'"):
        rssm.init_weights(SPECS["first"], scheme="keras")
    with pytest.raises(SpecError, match="`dtype` is int64"):
        rssm.init_weights(SPECS["first"], dtype="int64")


# Families


def test_families_may_not_be_mixed() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install rnnop[torch]")
    actions = torch.tensor(ROLLOUT.arrays["actions"])
    with pytest.raises(DTypeError, match=r"`weights.inputs\[0\].w` is a NumPy array"):
        ROLLOUT.run(actions=actions)
    weights = ROLLOUT.weights.map(torch.tensor)
    with pytest.raises(DTypeError, match="`state` is a NumPy array and `actions` is a PyTorch"):
        ROLLOUT.run(weights=weights, actions=actions)
    with pytest.raises(DTypeError, match=r"`prior\[0\].b` is a PyTorch array"):
        with_array(ROLLOUT.weights, "prior[0].b", torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
@every_kind
def test_torch_draws_the_same_noise(name: str, form: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install rnnop[torch]")
    inputs = inputs_of(form, SPECS[name])
    ours = inputs.run(noise=None, seed=3, **({"horizon": 3} if form == "imagine" else {}))
    more: dict[str, Any] = {"horizon": 3} if form == "imagine" else {}
    theirs = inputs.run(
        weights=inputs.weights.map(torch.tensor),
        noise=None,
        seed=3,
        **{key: torch.tensor(array) for key, array in inputs.arrays.items()},
        **more,
    )
    assert all(isinstance(each, torch.Tensor) for each in theirs)
    assert_same(ours, type(ours)(*(each.numpy() for each in theirs)), 1e-13)
    halves = inputs.run(
        weights=inputs.weights.map(lambda array: torch.tensor(array, dtype=torch.bfloat16)),
        noise=None,
        seed=3,
        **{key: torch.tensor(a, dtype=torch.bfloat16) for key, a in inputs.arrays.items()},
        **more,
    )
    assert all(each.dtype == torch.bfloat16 for each in halves)


# Documentation


@pytest.mark.parametrize("name", rssm.__all__)
def test_docstrings(name: str) -> None:
    """A first line that is a sentence, and a section with every parameter or attribute."""
    value = getattr(rssm, name)
    text = inspect.getdoc(value)
    assert text is not None
    assert re.match(r"[A-Z].*[.:]$", text.partition("\n")[0])
    if inspect.isclass(value):
        fields = getattr(value, "_fields", None) or [
            each.name for each in dataclasses.fields(value) if each.name[0] != "_"
        ]
        listed = (section(text, "Parameters") or []) + (section(text, "Attributes") or [])
        assert sorted(listed) == sorted(fields)
        return
    if not re.search(r"The arguments are those of `\w+`", text):
        wanted = [
            {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "") + each.name
            for each in inspect.signature(value).parameters.values()
        ]
        assert section(text, "Parameters") == wanted
    assert section(text, "Returns")


def test_the_arguments_of_a_vjp_are_those_of_its_call() -> None:
    for name in FORMS:
        call, vjp = getattr(rssm, name), getattr(rssm, f"{name}_vjp")
        bare = [
            [
                each.replace(annotation=each.empty)
                for each in inspect.signature(f).parameters.values()
            ]
            for f in (call, vjp)
        ]
        assert bare[0] == bare[1]
