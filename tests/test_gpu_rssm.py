"""The RSSM on a GPU: CuPy arrays and PyTorch tensors against the reference on the host."""

from __future__ import annotations

import gc
import importlib
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import Family
from gpu_arrays import cupy_family, no_gpu_for, torch_family
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of
from test_rssm_cpu import converted, inputs_of
from test_rssm_cuda import MODELS, assert_right, on

from rnnop import rssm
from rnnop.rssm import cuda
from rnnop.rssm.cuda import plan

pytestmark = pytest.mark.gpu


def make_family(name: str) -> Family:
    """Return the arrays of a framework, or skip where it has no GPU, or the backend none."""
    reason = no_gpu_for(name, cuda.unavailable)
    if reason is not None:
        pytest.skip(reason)
    module = importlib.import_module(name)
    return cupy_family(module) if name == "cupy" else torch_family(module)


@pytest.fixture(scope="module", params=["cupy", "torch"])
def family(request: pytest.FixtureRequest) -> Family:
    return make_family(request.param)


@pytest.fixture(scope="module")
def torch() -> Family:
    return make_family("torch")


@pytest.fixture(scope="module")
def cupy() -> Family:
    return make_family("cupy")


def trained(inputs: Inputs, family: Family) -> dict[str, bytes]:
    """Every bit of all outputs and gradients."""
    found = on(family, inputs, cotangents_of(inputs.run(backend="reference")))
    return {name: array.tobytes() for name, array in found.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_all_results_are_the_references(name: str, form: str, family: Family) -> None:
    for T, N in ((4, 3), (1, 1)):
        for dtype in ("float64", "float32"):
            for _ in range(2):  # the second time as graphs
                assert_right(inputs_of(form, MODELS[name], T, N), dtype, family)


@pytest.mark.parametrize("variant", ["torchrl", "planet", "dreamer_v2", "dreamer_v3"])
def test_sizes_of_world_models(variant: str, family: Family) -> None:
    """Rows that are wider than a block of threads, and more of them than a grid has blocks."""
    sizes = {"state_size": 64, "belief_size": 264, "action_size": 6, "embed_size": 130}
    few = {"num_classes": 8} if variant.startswith("dreamer_v") else {}
    spec = rssm.RSSMSpec.of(variant, **sizes, hidden_size=200, **few)
    for T, N in ((20, 16), (2, 2500)):
        assert_right(inputs_of("observe", spec, T, N), "float64", family)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str, torch: Family) -> None:
    for form in ("step", "rollout", "observe"):
        assert_right(inputs_of(form, SPECS["first"], 3, 2), dtype, torch)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["first", "planet", "dreamer_v2", "dreamer_v3"])
def test_a_graph_gives_every_bit(
    name: str, form: str, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = converted(inputs_of(form, SPECS[name], 5, 16), "float32")
    monkeypatch.setenv("RNNOP_CUDA_GRAPHS", "0")
    plain = trained(inputs, family)
    monkeypatch.setenv("RNNOP_CUDA_GRAPHS", "1")
    for _ in range(3):
        assert trained(inputs, family) == plain
    idle = [*plan._plans.idle.values(), *plan._plans.returned]
    sections = [each for one in idle for each in one.model.sections.values()]
    assert any(each.graph is not None for each in sections)
    assert not any(each.refused for each in sections)


def test_many_shapes(family: Family) -> None:
    for T in (*range(1, 14), 1, 2, 13):
        assert_right(inputs_of("rollout", SPECS["first"], T, 3), "float64", family)
    assert len(plan._plans.idle) <= plan.MOST_IDLE


def test_streams_of_torch(torch: Family) -> None:
    module = importlib.import_module("torch")
    inputs = converted(inputs_of("observe", SPECS["first"], 20, 16), "float32")
    wanted = trained(inputs, torch)
    for _ in range(3):
        for stream in (module.cuda.Stream(), module.cuda.Stream()):
            with module.cuda.stream(stream):
                found = trained(inputs, torch)
            stream.synchronize()
            assert found == wanted


def test_streams_of_cupy(cupy: Family) -> None:
    module = importlib.import_module("cupy")
    inputs = converted(inputs_of("observe", SPECS["first"], 20, 16), "float32")
    wanted = trained(inputs, cupy)
    for _ in range(3):
        with module.cuda.Stream(non_blocking=True) as stream:
            found = trained(inputs, cupy)
            stream.synchronize()
        assert found == wanted


def test_two_streams_at_once_share_no_memory(torch: Family) -> None:
    """Nobody waits between the calls: each plan waits for its own earlier work."""
    module = importlib.import_module("torch")
    spec = rssm.RSSMSpec.of("torchrl", state_size=30, belief_size=200, action_size=6)
    inputs = [converted(inputs_of("rollout", spec, 50, 16), "float32") for _ in range(2)]
    inputs[1] = replace(inputs[1], noise=inputs[1].noise + 1)
    given = [
        (each.weights.map(torch.there), *map(torch.there, each.arrays.values())) for each in inputs
    ]
    noise = [torch.there(each.noise) for each in inputs]
    wanted = [
        rssm.rollout(*one, noise=eps, backend="cuda").state.clone()
        for one, eps in zip(given, noise, strict=True)
    ]
    module.cuda.synchronize()
    streams = [module.cuda.Stream() for _ in inputs]
    found: list[tuple[int, Any]] = []
    for turn in range(20):
        k = turn % 2
        with module.cuda.stream(streams[k]):
            found.append((k, rssm.rollout(*given[k], noise=noise[k], backend="cuda").state))
    module.cuda.synchronize()
    for k, state in found:
        assert module.equal(state, wanted[k])


def test_threads(torch: Family) -> None:
    inputs = converted(inputs_of("observe", SPECS["first"], 10, 16), "float32")
    wanted, found = trained(inputs, torch), []
    module = importlib.import_module("torch")

    def run() -> None:
        with module.cuda.stream(module.cuda.Stream()):
            for _ in range(5):
                found.append(trained(inputs, torch))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(found) == 20
    assert all(each == wanted for each in found)


def test_a_graph_of_torchs_own(torch: Family) -> None:
    """Within a capture of the caller's the work is plain, and becomes part of his graph."""
    module = importlib.import_module("torch")
    inputs = converted(inputs_of("rollout", SPECS["first"], 5, 4), "float32")
    weights, noise = inputs.weights.map(torch.there), torch.there(inputs.noise)
    arrays = {name: torch.there(array) for name, array in inputs.arrays.items()}

    def call() -> list[Any]:
        out, vjp = rssm.rollout_vjp(weights, **arrays, noise=noise, backend="cuda")
        grads = vjp(dstate=module.ones_like(out.state))
        return [out.state, grads.actions, grads.weights.gru.w_hh[0]]

    side = module.cuda.Stream()
    side.wait_stream(module.cuda.current_stream())
    with module.cuda.stream(side):
        for _ in range(3):
            call()
    module.cuda.current_stream().wait_stream(side)
    graph = module.cuda.CUDAGraph()
    with module.cuda.graph(graph):
        captured = call()
    given = arrays["actions"].clone()
    for scale in (0.5, 1.0):
        arrays["actions"].copy_(scale * given)
        graph.replay()
        module.cuda.synchronize()
        for got, wanted in zip(captured, call(), strict=True):
            assert module.equal(got, wanted)


def test_no_memory_is_lost(torch: Family) -> None:
    module = importlib.import_module("torch")
    inputs = converted(inputs_of("observe", SPECS["first"], 10, 16), "float32")
    held = []
    for _ in range(6):
        for _ in range(10):
            trained(inputs, torch)
        gc.collect()
        module.cuda.synchronize()
        held.append(module.cuda.memory_allocated())
    assert len(set(held[1:])) == 1


def test_nan_before_a_reset_does_not_reach_the_steps_after_it(family: Family) -> None:
    inputs = inputs_of("rollout", SPECS["dreamer_v3"], 4, 3)
    inputs.is_first[:] = False
    inputs.is_first[2] = True
    spoiled = inputs.arrays["actions"].copy()
    spoiled[:2] = np.nan
    there = family.there
    states = [
        family.back(
            rssm.rollout(
                inputs.weights.map(there),
                there(inputs.arrays["state"]),
                there(inputs.arrays["belief"]),
                there(actions),
                there(inputs.noise),
                is_first=inputs.is_first,
                backend="cuda",
            ).state
        )
        for actions in (inputs.arrays["actions"], spoiled)
    ]
    assert np.isnan(states[1][:2]).all()
    assert states[1][2:].tobytes() == states[0][2:].tobytes()


def test_two_devices(torch: Family) -> None:
    module = importlib.import_module("torch")
    if module.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for _ in range(2):
        other = torch_family(module, "cuda:1")
        assert_right(inputs_of("observe", SPECS["first"], 3, 2), "float64", other)
    assert module.cuda.current_device() == 0
