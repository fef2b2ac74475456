"""The RSSM on the CPU engine against the float64 reference: models, sizes, instruction sets."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rssm_cases
from cases import DTYPES
from rssm_cases import FORMS, SPECS, Actor, Inputs, cotangents_of, gradients_of
from tolerances import assert_close

from rnnop import UnsupportedError, rssm
from rnnop.cpu import engine
from rnnop.cpu import rssm as native
from rnnop.rssm.api import direct

Array = np.ndarray[Any, np.dtype[Any]]

ISAS = list(engine.available())

if not ISAS:
    pytest.skip("rnnop was installed without a C compiler", allow_module_level=True)

# Sizes around those of vectors and panels, chains of layers, every norm and activation.
ODD = {
    "state_size": 35,
    "belief_size": 67,
    "action_size": 9,
    "embed_size": 33,
    "hidden_size": 41,
    "input_layers": 2,
    "prior_layers": 2,
    "posterior_layers": 3,
}
MODELS = SPECS | {
    "odd_gru": rssm.RSSMSpec(**ODD, activation="silu"),
    "odd_planet": rssm.RSSMSpec.of("planet", **ODD, norm="layer"),
    "odd_dreamer_v2": rssm.RSSMSpec.of("dreamer_v2", **ODD, num_classes=7, unimix=0.1, norm="rms"),
    "odd_torchrl_v3": rssm.RSSMSpec.of("torchrl_v3", **ODD, num_classes=5, posterior_norm="layer"),
    "odd_dreamer_v3": rssm.RSSMSpec.of(
        "dreamer_v3",
        **{**ODD, "belief_size": 69, "input_layers": 1},
        num_classes=7,
        num_blocks=3,
        dynamics_layers=3,
    ),
    "odd_blocks": rssm.RSSMSpec(
        **{**ODD, "belief_size": 65, "input_layers": 1},
        cell="block_gru",
        num_blocks=13,
        norm="layer",
    ),
    "one": rssm.RSSMSpec(1, 1, 1, 1, 1, activation="relu"),
}
SHAPES = [(3, 2), (4, 9), (1, 1), (6, 1), (2, 50)]  # T, N
SLOW = [name for name in MODELS if name.startswith("odd")]


def inputs_of(form: str, spec: rssm.RSSMSpec, T: int = 3, N: int = 2) -> Inputs:
    """Those of the table; wide models have weights under which they are not chaotic."""
    inputs = rssm_cases.inputs_of(form, spec, T, N)
    if spec.hidden_size <= 4:
        return inputs
    random = np.random.default_rng(0)
    fresh = rssm.init_weights(spec, learned_initial=True, dtype="float64", seed=0)
    weights = fresh.map(lambda array: array + 0.1 * random.standard_normal(array.shape))
    actor = Actor(spec)
    actor.p, actor.q = 0.1 * actor.p, 0.1 * actor.q
    return replace(inputs, weights=weights, actor=actor)


def converted(inputs: Inputs, dtype: str) -> Inputs:
    """The same call in another dtype; the actor casts for itself."""

    def cast(array: Any) -> Any:
        return array.astype(DTYPES[dtype])

    return replace(
        inputs,
        weights=inputs.weights.map(cast),
        arrays={name: cast(array) for name, array in inputs.arrays.items()},
        noise=cast(inputs.noise),
    )


def train(inputs: Inputs, backend: str, cotangents: list[Array] | None = None) -> dict[str, Any]:
    """All outputs and gradients by name."""
    out, vjp = inputs.run(vjp=True, backend=backend)
    grads = vjp(*(cotangents_of(out) if cotangents is None else cotangents))
    outputs = dict(zip(out._fields, out, strict=True))
    return outputs | {f"d{name}": array for name, array in gradients_of(grads).items()}


def joined(found: dict[str, Any]) -> dict[str, Array]:
    """With the gradients of one field of the weights as one vector: a bias alone may cancel."""
    together: dict[str, list[Array]] = {}
    for name, array in found.items():
        part = name.partition("[")[0].partition(".")[0]
        key = part if name.startswith("d") and part[1:] not in ("state", "belief") else name
        together.setdefault(key, []).append(array)
    return {
        name: arrays[0] if len(arrays) == 1 else np.concatenate([each.ravel() for each in arrays])
        for name, arrays in together.items()
    }


def assert_right(inputs: Inputs, dtype: str) -> None:
    """Fail unless every output and gradient is the float64 reference's."""
    given = converted(inputs, dtype)
    wide = converted(given, "float64")
    out = given.run(backend="cpu")
    cotangents = cotangents_of(out)
    found = train(given, "cpu", cotangents)
    wanted = train(wide, "reference", [each.astype("float64") for each in cotangents])
    assert found.keys() == wanted.keys()
    for name in found:
        assert found[name].shape == wanted[name].shape, name
    right = joined(wanted)
    for name, array in joined(found).items():
        assert_close(name, array, right[name], "cpu", dtype)


def bits(found: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in found.items()}


def models(names: Any = MODELS) -> Any:
    marks = {True: pytest.mark.slow, False: ()}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks[name in SLOW]) for name in names]
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@models()
def test_all_results_are_the_references(
    name: str, form: str, dtype: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    for T, N in SHAPES:
        assert_right(inputs_of(form, MODELS[name], T, N), dtype)


@pytest.mark.parametrize("form", ["rollout", "observe"])
@models(["first", "planet", "dreamer_v2", "dreamer_v3", "one_block"])
def test_without_episodes_that_begin(name: str, form: str) -> None:
    for T, N in SHAPES:
        assert_right(replace(inputs_of(form, MODELS[name], T, N), is_first=None), "float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
@models(["first", "planet", "dreamer_v2_gaussian", "block_gru_gaussian"])
def test_halves_are_computed_in_float32(name: str, form: str, dtype: str) -> None:
    """The same as in float32, rounded; an actor gets and gives halves."""
    half = DTYPES[dtype]
    inputs = converted(inputs_of(form, MODELS[name], 3, 5), dtype)

    def rounding(state: Array, belief: Array) -> Any:
        action, vjp = inputs.actor.with_vjp(state.astype(half), belief.astype(half))
        return action.astype("float32"), lambda d: [
            each.astype("float32") for each in vjp(d.astype(half))
        ]

    out, vjp = inputs.run(vjp=True, backend="cpu")
    options = {"actor": rounding} if form == "imagine" else {}
    wide_out, wide_vjp = converted(inputs, "float32").run(vjp=True, backend="cpu", **options)
    cotangents = cotangents_of(out)
    grads = gradients_of(vjp(*cotangents))
    grads = {name: grads[name] for name in grads if not name.startswith("actor")}  # his own
    wide = gradients_of(wide_vjp(*(each.astype("float32") for each in cotangents)))
    found = [*out, *(grads[name] for name in grads)]
    for one, other in zip(found, [*wide_out, *(wide[name] for name in grads)], strict=True):
        assert one.dtype == half
        assert one.tobytes() == other.astype(half).tobytes()


@pytest.mark.parametrize("rows", [1, 3, 10])
@pytest.mark.parametrize("form", FORMS)
@models(["first", "planet", "dreamer_v2", "dreamer_v3", "one_block"])
def test_a_backward_may_go_in_stretches(
    name: str, form: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "LEAST_ROWS", rows)
    for T, N in ((5, 2), (7, 1)):
        assert_right(inputs_of(form, MODELS[name], T, N), "float64")


@pytest.mark.parametrize("form", FORMS)
@models()
def test_inference_gives_what_training_gives(name: str, form: str) -> None:
    inputs = converted(inputs_of(form, MODELS[name], 4, 5), "float32")
    plain = inputs.run(backend="cpu")
    trained, _ = inputs.run(vjp=True, backend="cpu")
    for one, other in zip(plain, trained, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("form", FORMS)
@models(["torchrl", "planet", "dreamer_v2", "dreamer_v3"])
def test_results_are_fresh_and_contiguous_and_no_input_changes(name: str, form: str) -> None:
    inputs = converted(inputs_of(form, MODELS[name], 4, 3), "float32")
    cotangents = cotangents_of(inputs.run(backend="cpu"))
    given = [*inputs.arrays.values(), inputs.noise, *cotangents]
    given += [array for _, array in inputs.weights.named()]
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    found = list(train(inputs, "cpu", cotangents).values())
    assert [array.tobytes() for array in given] == before
    for k, array in enumerate(found):
        assert array.flags.c_contiguous, k
        assert array.flags.writeable, k
        assert not any(np.may_share_memory(array, other) for other in given + found[:k]), k


@pytest.mark.parametrize("form", ["rollout", "observe"])
@models(["torchrl", "planet", "dreamer_v3"])
def test_layouts_and_views_are_read_as_they_lie(name: str, form: str) -> None:
    inputs = inputs_of(form, MODELS[name], 4, 3)
    right = inputs.run(backend="cpu")
    turned = {
        name: array.swapaxes(0, 1) if array.ndim == 3 else np.asfortranarray(array)
        for name, array in inputs.arrays.items()
    }
    changed = replace(
        inputs,
        weights=inputs.weights.map(np.asfortranarray),
        arrays=turned,
        noise=inputs.noise.swapaxes(0, 1),
        is_first=inputs.is_first.swapaxes(0, 1),
    )
    for one, other in zip(right, changed.run(backend="cpu", batch_first=True), strict=True):
        assert one.tobytes() == other.swapaxes(0, 1).tobytes()


def test_a_vjp_may_be_called_again() -> None:
    inputs = inputs_of("observe", MODELS["torchrl"], 4, 3)
    out, vjp = inputs.run(vjp=True, backend="cpu")
    cotangents = cotangents_of(out)
    one, other = (bits(gradients_of(vjp(*cotangents))) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("form", ["rollout", "observe", "imagine"])
@models(["torchrl", "dreamer_v2", "dreamer_v3"])
def test_a_cotangent_that_is_missing_counts_as_zeros(name: str, form: str) -> None:
    inputs = inputs_of(form, MODELS[name], 4, 3)
    out, vjp = inputs.run(vjp=True, backend="cpu")
    for field in out._fields:
        given: dict[str, Any] = {each: np.zeros_like(getattr(out, each)) for each in out._fields}
        given[field] = cotangents_of([getattr(out, field)])[0]
        whole = gradients_of(vjp(*given.values()))
        alone = gradients_of(vjp(**{f"d{field}": given[field]}))
        for key, array in whole.items():
            np.testing.assert_array_equal(alone[key], array, err_msg=f"{field}: {key}")


# Threads: rows are dealt out, or columns shared, and neither may show.

LARGE = {"state_size": 40, "action_size": 7, "embed_size": 150, "hidden_size": 211}
LARGE |= {"belief_size": 203}
THREADED = {
    "gru": rssm.RSSMSpec(**LARGE),
    "gru_reset_before": rssm.RSSMSpec.of("planet", **LARGE, input_layers=2),
    "gru_layernorm": rssm.RSSMSpec.of("dreamer_v2", **LARGE, num_classes=8, norm="layer"),
    "block_gru": rssm.RSSMSpec.of(
        "dreamer_v3", **{**LARGE, "belief_size": 210}, num_classes=8, num_blocks=5
    ),
    "blocks_without_norm": rssm.RSSMSpec(
        **{**LARGE, "belief_size": 192}, cell="block_gru", num_blocks=3, dynamics_layers=2
    ),
    "categorical": rssm.RSSMSpec.of(
        "torchrl_v3", **{**LARGE, "state_size": 400}, num_classes=40, norm="rms"
    ),
}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("form", ["rollout", "observe", "imagine"])
@pytest.mark.parametrize("name", THREADED)
def test_results_do_not_depend_on_the_number_of_threads(
    name: str, form: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = converted(inputs_of(form, THREADED[name], 5, batch_size), "float32")
    found = []
    for threads in (1, 2, 3, 7, 2):
        monkeypatch.setenv("RNNOP_NUM_THREADS", str(threads))
        found.append(bits(train(inputs, "cpu")))
    for each in found:
        assert each == found[0]


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("form", ["rollout", "observe"])
@pytest.mark.parametrize("name", THREADED)
def test_results_with_threads_are_the_references(
    name: str, form: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_NUM_THREADS", "2")
    assert_right(inputs_of(form, THREADED[name], 4, batch_size), "float64")


@pytest.mark.parametrize("name", THREADED)
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    inputs = converted(inputs_of("rollout", THREADED[name], 4, 9), "float32")
    whole = inputs.run(backend="cpu")
    for row in range(9):
        arrays = {
            key: array[:, [row]] if array.ndim == 3 else array[[row]]
            for key, array in inputs.arrays.items()
        }
        noise, first = inputs.noise[:, [row]], inputs.is_first[:, [row]]
        alone = replace(inputs, arrays=arrays, noise=noise, is_first=first).run(backend="cpu")
        for one, other in zip(whole, alone, strict=True):
            assert one[:, row].tobytes() == other[:, 0].tobytes()


def test_python_threads_may_call_at_once() -> None:
    calls = [
        converted(inputs_of("rollout", spec, 4, N), "float32")
        for spec in THREADED.values()
        for N in (1, 6)
    ]
    wanted = [bits(train(each, "cpu")) for each in calls]
    found: list[Any] = [None] * len(calls)

    def run(k: int) -> None:
        for _ in range(5):
            found[k] = bits(train(calls[k], "cpu"))
            if found[k] != wanted[k]:
                return

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert found == wanted


@models([name for name in SPECS if SPECS[name].latent == "gaussian" and name in MODELS])
def test_the_state_is_drawn_from_what_is_returned(name: str) -> None:
    inputs = inputs_of("observe", MODELS[name], 4, 5)
    out = inputs.run(backend="cpu")
    drawn = out.posterior_mean + out.posterior_std * inputs.noise
    np.testing.assert_allclose(out.state, drawn, rtol=0, atol=4e-16 * np.abs(drawn).max())


# Numbers that are not, and nothing at all


@pytest.mark.parametrize("form", ["rollout", "observe"])
@models(["torchrl", "planet", "dreamer_v2", "torchrl_v3", "dreamer_v3", "one_block"])
def test_nan_before_a_reset_does_not_reach_what_comes_after(name: str, form: str) -> None:
    inputs = inputs_of(form, MODELS[name], 6, 3)
    inputs.is_first[:] = False
    inputs.is_first[3, 0] = True
    right = inputs.run(backend="cpu")
    spoiled = {key: array.copy() for key, array in inputs.arrays.items()}
    noise = inputs.noise.copy()
    for array in spoiled.values():
        array[(0,) if array.ndim == 2 else (slice(3), 0)] = np.nan
    spoiled["actions"][3, 0] = np.nan  # it belongs to the episode before
    noise[:3, 0] = np.nan
    out, vjp = replace(inputs, arrays=spoiled, noise=noise).run(vjp=True, backend="cpu")
    for one, other in zip(out, right, strict=True):
        np.testing.assert_array_equal(one[3:, 0], other[3:, 0])
        np.testing.assert_array_equal(one[:, 1:], other[:, 1:])
        assert np.isnan(one[:3, 0]).any()
    cotangents = cotangents_of(out)
    for d in cotangents:
        d[:3, 0] = 0
    grads, (_, whole) = vjp(*cotangents), inputs.run(vjp=True, backend="cpu")
    wanted = whole(*cotangents)
    for key in ("actions", "embeds"):
        if getattr(wanted, key) is not None:
            one, other = getattr(grads, key), getattr(wanted, key)
            np.testing.assert_array_equal(one[3:, 0], other[3:, 0])
            np.testing.assert_array_equal(one[:, 1:], other[:, 1:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("std", ["biased_softplus", "max_softplus", "softplus", "sigmoid2"])
def test_stds_far_out_are_the_references(
    std: str, dtype: Any, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights of zero the last bias is what the std is made of."""
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    x = np.concatenate([np.linspace(-20, 20, 201), [-1e4, -100, 100, 1e4, np.inf, -np.inf, np.nan]])
    x, S = x.astype(dtype).astype(np.float64), len(x)
    spec = rssm.RSSMSpec(S, 2, 1, hidden_size=2, std=std, min_std=1e-3)
    weights = rssm.init_weights(spec, seed=0, dtype="float64").map(np.zeros_like)
    named = dict(weights.named())
    named["prior[1].b"] = np.concatenate([np.zeros(S), x])
    weights = rssm.RSSMWeights.of_arrays(spec, named)
    for backend in ("reference", "cpu"):
        given = weights if backend == "reference" else weights.map(lambda a: a.astype(dtype))
        like = np.float64 if backend == "reference" else dtype
        out, vjp = rssm.step_vjp(
            given, None, None, np.zeros((1, 1), like), np.zeros((1, S), like), backend=backend
        )
        grads = vjp(dstd=np.ones_like(out.std))
        found = out.std[0], dict(grads.weights.named())["prior[1].b"][S:]
        if backend == "reference":
            wanted = found
    eps = np.finfo(dtype).eps
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=8 * eps, atol=eps)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("form", FORMS)
def test_no_rows_and_no_steps(form: str, shape: tuple[int, int]) -> None:
    if form in ("step", "imagine") and shape[0] == 0:
        shape = (1, 0)  # they have steps
    inputs = inputs_of(form, MODELS["torchrl"], *shape)
    found, wanted = train(inputs, "cpu"), train(inputs, "reference")
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


# Refusals


def test_it_takes_numpy_arrays() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install rnnop[torch]")
    spec = SPECS["torchrl"]
    weights = rssm.init_weights(spec, seed=0).map(torch.from_numpy)
    given, actions = (None, None, None, None, "cpu"), torch.zeros(2, spec.action_size)
    with pytest.raises(UnsupportedError, match=r"it takes NumPy arrays, and .* PyTorch array"):
        direct("rollout", "step", weights, *given, actions=actions)  # beside the adapter


def test_auto_takes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    forward = native.forward
    monkeypatch.setattr(native, "forward", lambda *a, **k: called.append(a) or forward(*a, **k))
    inputs_of("rollout", SPECS["torchrl"]).run()
    assert len(called) == 1
