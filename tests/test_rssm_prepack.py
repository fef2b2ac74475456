"""Prepacked RSSM weights: the same bits as without, by a shorter way; and what `explain` says."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of, gradients_of, inputs_of

import rnnop
from rnnop import rssm
from rnnop.cpu import engine
from rnnop.cpu import rssm as native
from rnnop.rssm import api

if not engine.available():
    pytest.skip("rnnop was installed without a C compiler", allow_module_level=True)

MODELS = ["first", "planet", "dreamer_v2", "dreamer_v3", "torchrl_v3"]
QUICK = [form for form in FORMS if form != "imagine"]


def call_of(form: str, name: str = "first", dtype: str = "float32", **sizes: int) -> Inputs:
    """A call without `is_first`, in another dtype."""
    inputs = inputs_of(form, SPECS[name], **sizes)
    return replace(
        inputs,
        weights=inputs.weights.map(lambda array: array.astype(dtype)),
        arrays={key: array.astype(dtype) for key, array in inputs.arrays.items()},
        noise=inputs.noise.astype(dtype),
        is_first=None,
    )


def prepacked(inputs: Inputs) -> Inputs:
    return replace(inputs, weights=rssm.prepack(inputs.weights, backend="cpu"))


def bits(out: Any) -> list[bytes]:
    return [array.tobytes() for array in out]


def shapes(out: Any) -> list[tuple[int, ...]]:
    return [array.shape for array in out]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_the_bits_are_those_of_plain_weights(name: str, form: str, dtype: str) -> None:
    for T, N in ((1, 1), (4, 3), (2, 0)):
        plain = call_of(form, name, dtype, num_steps=T, batch_size=N)
        quick = prepacked(plain)
        wanted = plain.run(backend="cpu")
        for _ in range(3):
            found = quick.run(backend="cpu")
            assert type(found) is type(wanted)
            assert shapes(found) == shapes(wanted)
            assert bits(found) == bits(wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_weights(name: str, form: str) -> None:
    plain = replace(inputs_of(form, SPECS[name], 4, 3))
    results = []
    for inputs in (plain, prepacked(plain), prepacked(plain)):
        out, vjp = inputs.run(vjp=True, backend="cpu")
        grads = gradients_of(vjp(*cotangents_of(out)))
        results.append(bits(out) + bits(grads.values()))
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.parametrize("form", ["rollout", "observe"])
def test_episodes_and_layouts_take_prepacked_weights(form: str) -> None:
    plain = inputs_of(form, SPECS["planet"], 4, 3)
    quick = prepacked(plain)
    for _ in range(2):
        assert bits(quick.run()) == bits(plain.run())
    turned = {
        key: array.swapaxes(0, 1) if array.ndim == 3 else array
        for key, array in plain.arrays.items()
    }
    given = {"noise": plain.noise.swapaxes(0, 1), "is_first": plain.is_first.T}
    for _ in range(2):
        found = replace(quick, arrays=turned).run(**given, batch_first=True)
        assert bits(found) == bits(replace(plain, arrays=turned).run(**given, batch_first=True))
    assert not quick.weights.shortcuts


@pytest.mark.parametrize("form", QUICK)
def test_the_shorter_way_is_taken(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call_of(form)
    quick = prepacked(plain)
    wanted = [plain.run(seed=5, **nothing) for nothing in ({}, {"state": None}, {"belief": None})]
    quick.run()
    monkeypatch.setattr(api, "make_call", None)  # the long way is closed
    found = [quick.run(seed=5, **nothing) for nothing in ({}, {"state": None}, {"belief": None})]
    assert [bits(each) for each in found] == [bits(each) for each in wanted]


def test_weights_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out = []
    lay_out = native.Model.lay_out
    monkeypatch.setattr(native.Model, "lay_out", lambda *a: laid_out.append(a) or lay_out(*a))
    quick = prepacked(call_of("rollout"))
    assert len(laid_out) == 2  # for the prior's head, and the posterior's
    monkeypatch.setattr(native, "lay_out", None)  # that of one call
    for N in (1, 2, 3):
        inputs = call_of("rollout", batch_size=N)
        replace(inputs, weights=quick.weights).run()
        replace(call_of("observe", batch_size=N), weights=quick.weights).run()
    assert len(laid_out) == 2


@pytest.mark.parametrize("form", QUICK)
@pytest.mark.parametrize("name", ["first", "dreamer_v2"])
def test_noise_is_drawn_as_ever(name: str, form: str) -> None:
    plain = call_of(form, name)
    quick = prepacked(plain)
    for seed in (0, 7, 0):
        assert bits(quick.run(noise=None, seed=seed)) == bits(plain.run(noise=None, seed=seed))
    if name == "first":
        one, other = (quick.run(noise=None) for _ in range(2))
        assert bits(one) != bits(other)


WRONG: dict[str, Any] = {
    "state": [np.zeros((3, 6), "f"), np.zeros((2, 6)), [[0.0] * 6] * 2, "state"],
    "belief": [np.zeros((2, 5), "f"), np.zeros((2, 4), "f2")],
    "noise": [np.zeros((3, 2, 5), "f"), np.zeros((3, 2, 6)), 0.0],
    "actions": [np.zeros((3, 2, 3), "f"), np.zeros((3, 2, 2)), np.zeros((3, 2), "f"), None],
    "embeds": [np.zeros((3, 2, 4), "f"), np.zeros((2, 2, 5), "f"), np.zeros((3, 2, 5)), None],
    "seed": [-1, True, 0.5, "0"],
    "backend": ["fpga", None, ["cpu"], "cudnn"],
    "batch_first": [1, None],
    "is_first": [np.zeros((3, 2)), np.zeros((2, 2), bool)],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_as_ever(name: str) -> None:
    plain = call_of("observe")
    quick = prepacked(plain)
    quick.run()
    for value in WRONG[name]:
        with pytest.raises(rnnop.RnnopError) as long:
            plain.run(**{name: value})
        with pytest.raises(type(long.value)) as short:
            quick.run(**{name: value})
        assert str(short.value) == str(long.value)


@pytest.mark.parametrize("form", QUICK)
def test_views_go_the_long_way(form: str) -> None:
    plain = call_of(form)
    quick = prepacked(plain)
    wanted = bits(quick.run())
    for name, array in plain.arrays.items():
        for view in (np.asfortranarray(array), np.repeat(array, 2, axis=-1)[..., ::2]):
            assert not view.flags.c_contiguous
            assert bits(quick.run(**{name: view})) == wanted
    read_only = {name: array.copy() for name, array in plain.arrays.items()}
    for array in read_only.values():
        array.flags.writeable = False
    assert bits(quick.run(**read_only)) == wanted


def test_outputs_are_fresh_and_what_begins_stays_as_it_is() -> None:
    quick = prepacked(call_of("step", "torchrl"))
    action, noise = quick.arrays["action"], quick.noise
    outputs = []
    for _ in range(4):
        out = rssm.step(quick.weights, None, None, action, noise)
        outputs.append(bits(out))
        for array in out:
            assert array.flags.writeable
            assert array.flags.c_contiguous
            array[...] = np.nan
    assert outputs[1:] == outputs[:1] * 3


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call_of("rollout")
    quick = prepacked(plain)
    quick.run()
    for isa in engine.available():
        for threads in ("1", "3"):
            monkeypatch.setenv("RNNOP_CPU_ISA", isa)
            monkeypatch.setenv("RNNOP_NUM_THREADS", threads)
            for _ in range(2):
                assert bits(quick.run(backend="cpu")) == bits(plain.run(backend="cpu"))
    monkeypatch.setenv("RNNOP_BACKEND", "reference")
    for _ in range(2):
        assert bits(quick.run()) == bits(plain.run(backend="reference"))
    monkeypatch.setenv("RNNOP_CPU_ISA", "mips")
    with pytest.raises(rnnop.SpecError, match="RNNOP_CPU_ISA"):
        quick.run(backend="cpu")


def test_few_shortcuts_are_kept() -> None:
    weights = rssm.prepack(call_of("step").weights)
    for N in range(1, 200):
        rssm.step(weights, None, None, np.zeros((N, 2), np.float32))
    assert 0 < len(weights.shortcuts) <= 64


def test_python_threads_may_call_at_once() -> None:
    calls = [call_of("rollout", seed=seed) for seed in range(4)]
    weights = rssm.prepack(calls[0].weights)
    wanted = [bits(each.run()) for each in calls]
    found: list[Any] = [None] * len(calls)

    def run(k: int) -> None:
        for _ in range(200):
            found[k] = bits(calls[k].run(weights=weights))
            if found[k] != wanted[k]:
                return

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert found == wanted


def test_prepack_refuses_what_it_cannot_take() -> None:
    weights = call_of("step").weights
    packed = rssm.prepack(weights)
    assert packed.spec is weights.spec
    assert rssm.prepack(packed).weights is weights
    with pytest.raises(
        rnnop.DTypeError, match=r"^prepack: `weights` is dict; expected RSSMWeights"
    ):
        rssm.prepack({})  # type: ignore[arg-type]
    with pytest.raises(rnnop.SpecError, match=r"^prepack: `backend` is 'fpga'"):
        rssm.prepack(weights, backend="fpga")
    assert not rssm.prepack(weights, backend="reference").cache


# What would run


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_explain_says_what_runs(name: str, form: str) -> None:
    inputs = call_of(form, name, num_steps=4, batch_size=3)
    told = inputs.explain(seed=0)
    assert told.backend == "cpu"
    assert told.spec is inputs.weights.spec
    assert told.call == f"{form}, T={1 if form == 'step' else 4} N=3"
    assert told.refusals == {
        "cuda": "it takes CuPy and PyTorch arrays, and `state` is a NumPy array"
    }
    assert told.results == sum(array.nbytes for array in inputs.run())
    assert told.precision == "float32 data, float32 arithmetic"
    assert ("the prior's head" in told.hoisted) == (form == "observe")
    assert "noise" in told.hoisted
    reference = inputs.explain(backend="reference")
    assert reference.backend == "reference"
    assert reference.manner is None
    assert reference.kept is None
    assert (
        "float64 arithmetic"
        in call_of(form, name, "float16").explain(backend="reference").precision
    )


@pytest.mark.parametrize("form", ["rollout", "observe"])
@pytest.mark.parametrize("name", MODELS)
def test_explain_counts_what_a_gradient_keeps(name: str, form: str) -> None:
    inputs = call_of(form, name, num_steps=60, batch_size=50)
    for is_first in (None, np.zeros((60, 50), bool)):
        inputs = replace(inputs, is_first=is_first)
        told = inputs.explain()
        inputs.run(vjp=True)
        tracemalloc.start()
        try:
            kept = inputs.run(vjp=True)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        numbers = 0 if is_first is None else 9 * is_first.size  # of episodes, beside a copy
        assert abs(taken - told.results - told.kept - numbers) < 40_000
        assert told.kept > 100_000
        del kept


def test_explain_is_to_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_NUM_THREADS", "2")
    told = str(call_of("imagine", "dreamer_v3").explain())
    assert "model      rssm(block_gru, categorical" in told
    assert "call       imagine, T=3 N=2" in told
    assert "2 threads, one native call for each step" in told
    assert "memory     432 B of results, " in told


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_explain_and_prepack_with_tensors(
    form: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator brings tensors to the engine: that is said, and holds for prepacked weights."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install rnnop[torch]")

    def tensor(array: Any) -> Any:
        return torch.from_numpy(array.astype("float64")).to(getattr(torch, dtype))

    plain = call_of(form)
    inputs = replace(
        plain,
        weights=plain.weights.map(tensor),
        arrays={key: tensor(array) for key, array in plain.arrays.items()},
        noise=tensor(plain.noise),
    )
    given = {}
    if form == "imagine":
        given["actor"] = lambda state, belief: torch.tanh(belief[:, :2])
    told = inputs.explain(**given)
    assert told.backend == "cpu"
    assert f"{dtype} data, float{64 if dtype == 'float64' else 32} arithmetic" == told.precision
    if form == "imagine":
        assert "one native call for each step" in str(told.manner)
    assert inputs.explain(**given, backend="reference").backend == "reference"
    called = []
    forward = native.forward
    monkeypatch.setattr(native, "forward", lambda *a, **k: called.append(a) or forward(*a, **k))
    wanted = inputs.run(**given)
    packed = replace(inputs, weights=rssm.prepack(inputs.weights))
    calls = len(called)
    assert calls
    for one, other in zip(packed.run(**given), wanted, strict=True):
        assert torch.equal(one, other)
    assert len(called) == 2 * calls
    assert packed.explain(**given).backend == "cpu"


def test_explain_runs_nothing_and_refuses_what_the_call_refuses() -> None:
    inputs = call_of("imagine")

    def actor(state: Any, belief: Any) -> Any:
        raise AssertionError("the actor was called")

    assert inputs.explain(actor=actor).backend == "cpu"
    with pytest.raises(rnnop.SpecError, match=r"^explain: `call` is 'walk'; expected one of step"):
        rssm.explain("walk", inputs.weights)
    with pytest.raises(rnnop.SpecError, match=r"^explain: `horizon` is 0"):
        inputs.explain(horizon=0)
    with pytest.raises(TypeError, match="horizons"):
        inputs.explain(horizons=3)
