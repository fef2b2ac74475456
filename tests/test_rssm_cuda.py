"""The RSSM's GPU backend without a GPU: all of its work on the host, through a stand-in."""

from __future__ import annotations

import gc
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_on_host
import fake_cupy
import numpy as np
import pytest
from agreement import Family
from cases import DTYPES
from cuda_double import Double
from gpu_arrays import cupy_family, torch_family
from hypothesis import given, settings
from hypothesis import strategies as st
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of, gradients_of
from test_rssm_cpu import ODD, bits, converted, inputs_of, joined, train
from tolerances import assert_close

from rnnop import RnnopError, UnsupportedError, arrays, rssm
from rnnop.cudnn import memory
from rnnop.errors import BackendUnavailable, LibraryError
from rnnop.rssm import cuda
from rnnop.rssm.api import direct
from rnnop.rssm.cuda import abilities, compiler, library, plan, work
from rnnop.rssm.cuda.model import Model

Array = np.ndarray[Any, np.dtype[Any]]
REAL_PLACES = library.places  # not the stand-in's
SHAPES = [(3, 2), (1, 1), (4, 5)]  # T, N

MODELS = SPECS | {
    "odd_gru": rssm.RSSMSpec(**ODD, activation="silu"),
    "odd_planet": rssm.RSSMSpec.of("planet", **ODD, norm="layer"),
    "odd_dreamer_v2": rssm.RSSMSpec.of("dreamer_v2", **ODD, num_classes=7, unimix=0.1, norm="rms"),
    "odd_dreamer_v3": rssm.RSSMSpec.of(
        "dreamer_v3",
        **ODD | {"belief_size": 69, "input_layers": 1},
        num_classes=5,
        num_blocks=3,
        dynamics_layers=2,
    ),
    "one": rssm.RSSMSpec(1, 1, 1, 1, 1, activation="relu"),
}


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    yield cuda_on_host.use(monkeypatch)
    cuda_on_host.forget_libraries()


def models(*names: str) -> Any:
    return pytest.mark.parametrize("name", names or MODELS)


def assert_right(inputs: Inputs, dtype: str, family: Family | None = None) -> None:
    """Fail unless every output and gradient is the float64 reference's; the engine's tolerances."""
    given = converted(inputs, dtype)
    wide = converted(given, "float64")
    cotangents = cotangents_of(given.run(backend="reference"))
    found = train(given, "cuda", cotangents) if family is None else on(family, given, cotangents)
    wanted = train(wide, "reference", [each.astype("float64") for each in cotangents])
    assert found.keys() == wanted.keys()
    right = joined(wanted)
    for name, array in joined(found).items():
        assert_close(name, array, right[name], "cpu", dtype)


def on(family: Family, inputs: Inputs, cotangents: list[Array]) -> dict[str, Array]:
    """Train with the arrays of a family; the actor works on the host."""
    there, back = family.there, family.back

    def actor(state: Any, belief: Any) -> Any:
        action, pull = inputs.actor.with_vjp(back(state), back(belief))
        return there(action), lambda d: tuple(map(there, pull(back(d))))

    moved = replace(
        inputs,
        weights=inputs.weights.map(there),
        arrays={name: there(array) for name, array in inputs.arrays.items()},
        noise=there(inputs.noise),
        actor=SimpleNamespace(with_vjp=actor),
    )
    out, vjp = moved.run(vjp=True, backend="cuda")
    found = gradients_of(vjp(*map(there, cotangents)))
    outputs = dict(zip(out._fields, map(back, out), strict=True))
    return outputs | {f"d{name}": back(array) for name, array in found.items()}


# Every model, call and dtype


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@models()
def test_all_results_are_the_references(name: str, form: str, dtype: str) -> None:
    for T, N in SHAPES:
        for _ in range(2):  # the second time as graphs
            assert_right(inputs_of(form, MODELS[name], T, N), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
@models("first", "block_gru_gaussian")
def test_halves_are_computed_in_float32(name: str, form: str, dtype: str) -> None:
    """The same as in float32, rounded; an actor gets and gives halves."""
    half = DTYPES[dtype]
    inputs = converted(inputs_of(form, MODELS[name], 3, 5), dtype)

    def rounding(state: Array, belief: Array) -> Any:
        action, pull = inputs.actor.with_vjp(state.astype(half), belief.astype(half))
        return action.astype("float32"), lambda d: [
            each.astype("float32") for each in pull(d.astype(half))
        ]

    wide = replace(converted(inputs, "float32"), actor=SimpleNamespace(with_vjp=rounding))
    out, vjp = inputs.run(vjp=True, backend="cuda")
    wide_out, wide_vjp = wide.run(vjp=True, backend="cuda")
    cotangents = cotangents_of(out)
    grads = gradients_of(vjp(*cotangents))
    wide_grads = gradients_of(wide_vjp(*(each.astype("float32") for each in cotangents)))
    names = [name for name in grads if not name.startswith("actor")]  # those are his own
    found = [*out, *(grads[name] for name in names)]
    for one, other in zip(found, [*wide_out, *(wide_grads[name] for name in names)], strict=True):
        assert one.dtype == half
        assert one.tobytes() == other.astype(half).tobytes()


@pytest.mark.parametrize("form", FORMS)
@models("first", "planet", "dreamer_v2", "dreamer_v3", "torchrl_v3", "relu")
def test_with_many_threads_in_a_block(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_THREADS", "4")
    assert_right(inputs_of(form, MODELS[name], 2, 2), "float64")


@pytest.mark.parametrize("form", FORMS)
@models("first", "dreamer_v3", "torchrl_v3")
def test_without_what_may_be_left_out(name: str, form: str) -> None:
    inputs = inputs_of(form, MODELS[name])
    needed = {
        key: array
        for key, array in inputs.weights.named()
        if not key.endswith((".b", ".shift")) and not key.startswith(("gru.b_", "initial_"))
    }
    weights = rssm.RSSMWeights.of_arrays(MODELS[name], needed)
    assert_right(replace(inputs, weights=weights, is_first=None), "float64")


@pytest.mark.parametrize("missing", ["gru.b_ih[0]", "gru.b_hh[0]"])
@models("first", "planet", "dreamer_v2")
def test_with_one_bias_of_the_gru(name: str, missing: str) -> None:
    inputs = inputs_of("rollout", MODELS[name])
    named = {key: array for key, array in inputs.weights.named() if key != missing}
    weights = rssm.RSSMWeights.of_arrays(inputs.weights.spec, named)
    assert_right(replace(inputs, weights=weights), "float64")


@pytest.mark.parametrize("order", [False, True])
@models("first", "dreamer_v3")
def test_both_layouts(name: str, order: bool) -> None:
    inputs = inputs_of("observe", MODELS[name], 4, 3)
    turned = {
        key: array.swapaxes(0, 1) if array.ndim == 3 and order else array
        for key, array in inputs.arrays.items()
    }
    noise, first = (
        each.swapaxes(0, 1) if order else each for each in (inputs.noise, inputs.is_first)
    )
    moved = replace(inputs, arrays=turned, noise=noise, is_first=first)
    for one, other in zip(
        moved.run(backend="cuda", batch_first=order),
        moved.run(backend="reference", batch_first=order),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", ["rollout", "observe"])
@models("first", "planet", "dreamer_v2", "dreamer_v3")
def test_nan_before_a_reset_does_not_reach_the_steps_after_it(name: str, form: str) -> None:
    inputs = inputs_of(form, MODELS[name], 4, 3)
    inputs.is_first[:] = False
    inputs.is_first[2] = True
    spoiled = {
        key: np.where(np.arange(4)[:, None, None] < 2, np.nan, array) if array.ndim == 3 else array
        for key, array in inputs.arrays.items()
    }
    bad = replace(inputs, arrays=spoiled)
    out, vjp = bad.run(vjp=True, backend="cuda")
    right, wanted = inputs.run(vjp=True, backend="cuda")
    for one, other in zip(out, right, strict=True):
        assert one[2:].tobytes() == other[2:].tobytes()
    assert np.isnan(out.belief[:2]).all()
    cotangent = np.zeros_like(out.state)
    cotangent[3] = 1
    one, other = (each(dstate=cotangent).weights.initial_state for each in (vjp, wanted))
    assert np.isfinite(one).all()
    assert one.tobytes() == other.tobytes()


@settings(max_examples=25)
@given(data=st.data())
def test_any_sizes_are_the_references(data: st.DataObject) -> None:
    def size(most: int = 5) -> int:
        return data.draw(st.integers(1, most))

    cell = data.draw(st.sampled_from(["gru", "gru_reset_before", "gru_layernorm", "block_gru"]))
    latent = data.draw(st.sampled_from(["gaussian", "categorical"]))
    blocks, classes = size(3) if cell == "block_gru" else 1, size(4)
    few = {} if latent == "gaussian" else {"num_classes": classes, "unimix": 0.05}
    spec = rssm.RSSMSpec(
        state_size=size() * (classes if few else 1),
        belief_size=size() * blocks,
        action_size=size(),
        embed_size=size(),
        hidden_size=size(),
        cell=cell,
        latent=latent,
        num_blocks=blocks,
        norm=data.draw(st.sampled_from(["none", "layer", "rms"])),
        std=data.draw(st.sampled_from(["biased_softplus", "max_softplus", "softplus", "sigmoid2"])),
        activation=data.draw(st.sampled_from(["elu", "relu", "silu"])),
        **few,
    )
    assert_right(inputs_of(data.draw(st.sampled_from(FORMS)), spec, size(4), size(4)), "float64")


# Graphs


@pytest.mark.parametrize("form", FORMS)
@models("first", "planet", "dreamer_v2", "dreamer_v3")
def test_a_graph_gives_every_bit(
    name: str, form: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of(form, MODELS[name], 3, 2)
    plain, captured, replayed = (bits(train(inputs, "cuda")) for _ in range(3))
    sections = {"imagine": 3 + 3 + 1}.get(form, 2)
    assert double.calls("cuStreamBeginCapture_v2") == sections
    assert double.calls("cuGraphLaunch") == 2 * sections
    assert plain == captured == replayed
    monkeypatch.setenv("RNNOP_CUDA_GRAPHS", "0")
    assert bits(train(inputs, "cuda")) == plain
    assert double.calls("cuGraphLaunch") == 2 * sections


def test_a_graph_reads_what_each_call_is_given(double: Double) -> None:
    inputs = inputs_of("observe", MODELS["first"], 4, 3)
    for scale in (1.0, 2.0, -0.5):
        given = {name: scale * array for name, array in inputs.arrays.items()}
        weights = inputs.weights.map(lambda array, scale=scale: scale * array)
        assert_right(replace(inputs, arrays=given, weights=weights), "float64")
    assert double.calls("cuGraphLaunch") == 4


@pytest.mark.parametrize(
    "failure", ["cuStreamBeginCapture_v2:900", "cuGraphInstantiateWithFlags:801"]
)
def test_a_capture_that_is_refused_is_told_and_not_tried_again(
    failure: str,
    double: Double,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RNNOP_LOG", "info")
    monkeypatch.setenv("CUDA_DOUBLE_FAIL", failure)
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    found = [bits(train(inputs, "cuda")) for _ in range(4)]
    assert all(each == found[0] for each in found)
    assert double.calls(failure.partition(":")[0]) == 2
    assert not double.calls("cuGraphLaunch")
    assert not double.ask("capturing")
    assert f"without a CUDA graph: {failure.partition(':')[0]}" in caplog.text


def test_within_a_capture_of_the_callers_all_is_plain_and_nobody_elses(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    wanted = bits(train(inputs, "cuda"))
    made = len(plan._plans.idle) + len(plan._plans.returned)
    monkeypatch.setenv("CUDA_DOUBLE_CALLER_CAPTURES", "1")
    double.reset()
    for _ in range(3):
        assert bits(train(inputs, "cuda")) == wanted
    for function in ("cuGraphLaunch", "cuStreamBeginCapture_v2", "cuEventRecord"):
        assert not double.calls(function)
    assert not double.calls("cuStreamWaitEvent")
    assert len(plan._plans.idle) + len(plan._plans.returned) == made


def test_a_gradient_within_a_capture_of_the_callers_is_plain_too(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    wanted = bits(train(inputs, "cuda"))
    out, vjp = inputs.run(vjp=True, backend="cuda")
    monkeypatch.setenv("CUDA_DOUBLE_CALLER_CAPTURES", "1")
    double.reset()
    for name, array in gradients_of(vjp(*cotangents_of(out))).items():
        assert array.tobytes() == wanted[f"d{name}"], name
    for function in ("cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"):
        assert not double.calls(function)


# Plans


def test_gradients_that_wait_keep_their_own_memory() -> None:
    inputs = [inputs_of("rollout", MODELS["first"], 3, 2) for _ in range(3)]
    for k, each in enumerate(inputs):
        each.arrays["actions"] = each.arrays["actions"] + k
    runs = [each.run(vjp=True, backend="cuda") for each in inputs]
    for each, (out, vjp) in zip(inputs, runs, strict=True):
        cotangents = cotangents_of(out)
        _, wanted = each.run(vjp=True, backend="reference")
        for _ in range(2):  # a vjp may be called again
            one, other = (gradients_of(of(*cotangents)) for of in (vjp, wanted))
            for name, array in other.items():
                np.testing.assert_allclose(one[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def test_results_stay_what_they_were() -> None:
    inputs = inputs_of("observe", MODELS["first"], 3, 2)
    out, vjp = inputs.run(vjp=True, backend="cuda")
    grads = vjp(*cotangents_of(out))
    before = [each.copy() for each in (*out, grads.actions, grads.state)]
    del vjp
    gc.collect()
    for _ in range(3):
        train(replace(inputs, noise=inputs.noise + 1), "cuda")
    for one, other in zip((*out, grads.actions, grads.state), before, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(("flag", "most"), [("64", plan.MOST_IDLE), ("2", 2), ("0", 0)])
def test_few_plans_are_kept(
    flag: str, most: int, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_PLAN_CACHE", flag)
    spec = MODELS["first"]
    inputs_of("rollout", spec, 1, 1).run(backend="cuda")
    plan._plans.idle.clear()
    plan._plans.returned.clear()
    gc.collect()
    alive = double.ask("live")
    for T in (*range(1, 13), 1):
        for _ in range(2):
            inputs_of("rollout", spec, T, 2).run(backend="cuda")
    assert len(plan._plans.idle) <= most
    assert len(plan._plans.returned) == 1
    gc.collect()
    assert double.ask("live") - alive <= 3 * (most + 1)  # an event, a graph, one in the making


def test_a_plan_serves_again_once_its_gradient_is_gone() -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    host = abilities.FAMILIES["numpy"]
    train(inputs, "cuda")
    gc.collect()
    made = host.made
    train(inputs, "cuda")
    gc.collect()
    assert host.made == made
    waiting = [inputs.run(vjp=True, backend="cuda") for _ in range(2)]
    assert host.made > made
    del waiting


def test_threads_have_plans_of_their_own() -> None:
    calls = [inputs_of("rollout", MODELS[name], 3, 2) for name in ("first", "planet", "first")]
    wanted = [bits(train(each, "cuda")) for each in calls]
    found: list[Any] = [None] * len(calls)

    def run(k: int) -> None:
        for _ in range(3):
            found[k] = bits(train(calls[k], "cuda"))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:  # one after another: the stand-in has no locks
        thread.start()
        thread.join(timeout=60)
    assert found == wanted


def test_a_gradient_may_be_asked_for_in_another_thread() -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    wanted = bits(train(inputs, "cuda"))
    out, vjp = inputs.run(vjp=True, backend="cuda")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(vjp(*cotangents_of(out))))
    thread.start()
    thread.join(timeout=60)
    for name, array in gradients_of(found[0]).items():
        assert array.tobytes() == wanted[f"d{name}"], name


def test_an_actor_that_fails_leaves_all_as_it_was() -> None:
    inputs = inputs_of("imagine", MODELS["first"], 3, 2)
    wanted = bits(train(inputs, "cuda"))

    def fails(state: Array, belief: Array) -> Any:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            inputs.run(backend="cuda", actor=fails)
    assert bits(train(inputs, "cuda")) == wanted


# The device


def test_work_goes_to_the_callers_stream(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    host = abilities.FAMILIES["numpy"]
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    for stream in (4096, 8192, 8192):
        host.current = stream
        inputs.run(backend="cuda")
        assert double.ask("last_stream") == stream
    assert host.waits == 0
    monkeypatch.setenv("RNNOP_CHECK", "1")
    inputs.run(backend="cuda")
    assert host.waits == 1


@pytest.mark.parametrize(("flag", "mode"), [("0", 0), ("1", 3)])
def test_tf32_only_where_it_is_allowed(
    flag: str, mode: int, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_ALLOW_TF32", flag)
    inputs_of("rollout", MODELS["first"], 3, 2).run(backend="cuda")
    assert double.ask("math_mode") == mode


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cublasDgemm_v2", "cuModuleGetFunction"])
def test_a_failure_is_told_by_name(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_FAIL", f"{function}:700")
    with pytest.raises(LibraryError, match=rf"^rollout: {function}|{function}: .*\(700\)"):
        inputs_of("rollout", MODELS["first"], 3, 2).run(backend="cuda")
    monkeypatch.delenv("CUDA_DOUBLE_FAIL")
    assert_right(inputs_of("rollout", MODELS["first"], 3, 2), "float64")


KINDS = {"In": "pointer", "Out": "pointer", "Index": "whole", "double": "float"}


def test_kernels_are_given_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r",\s+", ", ", compiler.source().decode())
    arrives = "In d_given, In d_head, In d_prior, In d_begun, In d_first"
    declared = {
        name: [KINDS[each.split()[0]] for each in taken.replace("ARRIVES", arrives).split(", ")]
        for name, taken in re.findall(r"^KERNEL (\w+)\(([^)]*)\)", text, re.M)
    }
    launch, seen = Model.launch, set()

    def checked(self: Model, kernel: str, blocks: int, *arguments: Any) -> None:
        kinds = {float: "float", int: "whole", work.Matrix: "pointer", type(None): "pointer"}
        assert len(arguments) == len(declared[kernel]), kernel
        for argument, wanted in zip(arguments, declared[kernel], strict=True):
            addressed = isinstance(argument, int) and wanted == "pointer" and argument > 2**16
            assert addressed or kinds[type(argument)] == wanted, (kernel, argument, wanted)
        seen.add(kernel)
        launch(self, kernel, blocks, *arguments)

    monkeypatch.setattr(Model, "launch", checked)
    for spec in SPECS.values():
        for form in FORMS:
            train(inputs_of(form, spec), "cuda")
    assert seen == set(declared)


# CuPy and PyTorch


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    module = fake_cupy.Cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(
        sys.modules, "array_api_compat.cupy", fake_cupy.Namespace("array_api_compat.cupy")
    )
    monkeypatch.setitem(abilities.FAMILIES, "cupy", memory.CupyMemory())
    module.cuda.Device = CapableDevice
    arrays._NAMESPACES.clear()
    yield cupy_family(module)
    arrays._NAMESPACES.clear()


class CapableDevice(fake_cupy.Device):
    """One that the stand-in of NVRTC knows no code for."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.compute_capability = "120"


class TensorsOnTheHost(memory.TorchMemory):
    """Tensors of the CPU, taken for those of a device."""

    def missing(self, device: Any) -> None:
        return None

    def index(self, array: Any) -> int:
        return 0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Family:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: rnnop[torch]")

    @contextmanager
    def device(index: int) -> Iterator[None]:
        yield

    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=8192)
    )
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setitem(abilities.FAMILIES, "torch", TensorsOnTheHost())
    return torch_family(torch, "cpu")


@pytest.fixture(params=["cupy", "torch"])
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("form", FORMS)
@models("first", "planet", "dreamer_v2", "dreamer_v3")
def test_arrays_of_the_device(name: str, form: str, family: Family) -> None:
    for _ in range(2):
        assert_right(inputs_of(form, MODELS[name], 3, 2), "float64", family)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_torch(dtype: str, torch: Family) -> None:
    for form in ("step", "rollout", "observe"):
        assert_right(inputs_of(form, MODELS["first"], 3, 2), dtype, torch)


def test_auto_takes_it_on_a_device(double: Double, family: Family) -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    names = ("state", "belief", "actions")
    state, belief, actions = (family.there(inputs.arrays[name]) for name in names)
    weights, noise = inputs.weights.map(family.there), family.there(inputs.noise)
    # As the adapter calls it, which takes tensors in the memory of the host to the engine.
    given = weights, state, belief, noise, None, "auto"
    out = direct("rollout", "time_first", *given, actions=actions, is_first=None)
    assert double.calls("cuLaunchKernel")
    wanted = inputs.run(backend="reference", is_first=None)
    np.testing.assert_allclose(family.back(out.state), wanted.state, rtol=1e-12)


# What it cannot do, and where


def reason(inputs: Inputs, **changes: Any) -> str:
    with pytest.raises(UnsupportedError) as caught:
        inputs.run(**{"backend": "cuda"} | changes)
    return str(caught.value)


def test_numpy_arrays_stay_on_the_host(monkeypatch: pytest.MonkeyPatch, double: Double) -> None:
    monkeypatch.delitem(abilities.FAMILIES, "numpy")
    inputs = inputs_of("rollout", MODELS["one_block"], 3, 2)
    assert "CuPy and PyTorch arrays, and `state` is a NumPy array" in reason(inputs)
    inputs.run()  # the reference runs it, and nobody looks for a GPU
    assert not double.calls("cuInit")


def test_no_rows() -> None:
    inputs = inputs_of("rollout", MODELS["first"], 3, 0)
    assert "needs a step and a row" in reason(inputs)


def test_more_rows_than_cublas_can_count() -> None:
    noise = np.broadcast_to(np.zeros(1), (2**20, 2**11, 1))
    problem = SimpleNamespace(
        family="numpy", state=np.zeros(1), noise=noise, weights=None, actor=None
    )
    assert "2,147,483,648 rows" in str(cuda.supports(problem))


# In the three that follow nobody brings tensors to a backend, as rnnop.torch does.


def test_tensors_that_somebody_watches(torch: Family) -> None:
    import torch as module

    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    given = [torch.there(inputs.arrays[name]) for name in ("state", "belief", "actions")]
    weights, noise = inputs.weights.map(torch.there), torch.there(inputs.noise)
    watched = given[2].requires_grad_()

    def run(actions: Any, backend: str = "cuda") -> Any:
        options = {"actions": actions, "is_first": None}
        call = ("rollout", "time_first", weights, *given[:2], noise, None, backend)
        return direct(*call, **options).state

    def imagine() -> None:
        options = {"actor": lambda s, h: h[:, :2], "horizon": 2, "has_vjp": False}
        direct("imagine", "time_first", weights, *given[:2], None, 0, "cuda", **options)

    with pytest.raises(UnsupportedError, match="autograd is on"):
        run(watched)
    run(watched, "auto").sum().backward()  # the reference, which autograd sees
    assert watched.grad.abs().sum() > 0
    with module.no_grad():
        assert not run(watched).requires_grad
    plain = watched.detach()
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        module.func.vmap(run)(plain[None])
    with pytest.raises(UnsupportedError, match="autograd is on"):
        imagine()
    with module.no_grad():
        imagine()


def test_torch_compile_is_sent_to_the_reference(
    torch: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch as module

    monkeypatch.setattr(module.compiler, "is_compiling", lambda: True)
    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    given = inputs.weights.map(torch.there), None, None, None, 0, "cuda"
    actions = torch.there(inputs.arrays["actions"])
    with pytest.raises(UnsupportedError, match=r"torch\.compile cannot look into it"):
        direct("rollout", "time_first", *given, actions=actions, is_first=None)


def test_memory_that_was_made_in_inference_mode_serves_after_it(torch: Family) -> None:
    import torch as module

    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    given = [torch.there(inputs.arrays[name]) for name in ("state", "belief", "actions")]
    weights, noise = inputs.weights.map(torch.there), torch.there(inputs.noise)
    found = []
    for mode in (module.inference_mode, module.no_grad, module.inference_mode, module.enable_grad):
        with mode():
            out = rssm.rollout(weights, *given, noise=noise, backend="cuda")
            found.append(torch.back(out.state).tobytes())
    assert len(plan._plans.idle) + len(plan._plans.returned) == 1
    assert len(set(found)) == 1


def test_tensors_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: rnnop[torch]")
    import torch as module

    inputs = inputs_of("rollout", MODELS["first"], 3, 2)
    there = module.from_numpy
    given = inputs.weights.map(there), None, None, None, 0, "cuda"
    actions = there(inputs.arrays["actions"])
    with pytest.raises(UnsupportedError, match="`state` lies on device 'cpu'"):
        direct("rollout", "time_first", *given, actions=actions, is_first=None)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (("attribute", "DRIVER", "libnone.so"), "there is no NVIDIA driver"),
        (("attribute", "DRIVER", "libc.so.6"), "driver is too old: .*cuInit"),
        (("variable", "CUDA_DOUBLE_NO_DEVICE", "1"), "finds no GPU: .*NO_DEVICE"),
        (("variable", "CUDA_DOUBLE_VERSION", "11080"), "no libnvrtc of CUDA 13 or 12"),
        (("attribute", "places", lambda name: iter(["libnone.so"])), "no libnvrtc"),
        (
            ("attribute", "places", lambda name: iter(["libc.so.6"])),
            "libc.so.6 lacks a function: .*nvrtcGetNumSupportedArchs",
        ),
    ],
)
def test_what_is_missing_is_told(
    spoil: tuple[str, str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, value = spoil
    if kind == "attribute":
        monkeypatch.setattr(library, name, value)
    else:
        monkeypatch.setenv(name, value)
    cuda_on_host.forget_libraries()
    assert re.search(told, str(cuda.unavailable()))
    with pytest.raises(UnsupportedError, match=told):
        inputs_of("rollout", MODELS["first"], 3, 2).run(backend="cuda")
    with pytest.raises(BackendUnavailable, match=told):
        (library.driver(), library.nvrtc())


# The libraries


def test_where_a_library_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "libcublas.so.12"
    wheel = tmp_path / "site/nvidia/cublas/lib" / name
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(library, "_in_the_process", lambda name: iter(["/loaded"]))
    assert list(REAL_PLACES(name)) == [
        "/loaded",
        str(wheel),
        f"/conda/lib/{name}",
        name,
        f"/cuda/lib64/{name}",
        f"/cuda/lib/{name}",
    ]


def test_cublas_finds_its_companion_beside_it(
    double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("libcublas.so.12", "libcublasLt.so.12")
    for name in names:
        shutil.copy(double.file, tmp_path / name)
    opened: list[str] = []
    real = library._opened

    def opens(file: str) -> Any:
        opened.append(Path(file).name)
        return real(file)

    monkeypatch.setattr(library, "_opened", opens)
    monkeypatch.setattr(library, "places", lambda name: iter([str(tmp_path / name)]))
    cuda_on_host.forget_libraries()
    assert library.cublas().path == str(tmp_path / names[0])
    assert opened == [names[1], names[0]]


def test_a_library_of_the_process_comes_first(double: Double) -> None:
    assert next(REAL_PLACES(double.file.name)) == str(double.file)


@pytest.mark.parametrize("dtype", compiler.REALS)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (99, 9)])
def test_nvidias_own_compiler_takes_the_kernels(
    capability: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no GPU."""
    monkeypatch.setattr(library, "places", REAL_PLACES)
    monkeypatch.setattr(library, "_newest", lambda: max(library.MAJORS))
    cuda_on_host.forget_libraries()
    nvrtc = library._found("nvrtc")
    if isinstance(nvrtc, str):
        pytest.skip(f"needs NVRTC, as in nvidia-cuda-nvrtc-cu12: {nvrtc}")
    code = compiler.compiled(nvrtc, capability, dtype)
    assert code.startswith(b"//" if capability == (99, 9) else b"\x7fELF")
    for kernel in re.findall(rb"^KERNEL (\w+)", compiler.source(), re.M):
        assert kernel in code


def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Callable[[], bytes] = lambda: b"\nKERNEL wrong(In x) { no such words }\n"  # noqa: E731
    monkeypatch.setattr(compiler, "source", broken)
    with pytest.raises(RnnopError, match="error"):
        compiler.compiled(library.nvrtc(), (9, 0), "float32")
