"""cuDNN on a GPU: every case on CuPy arrays and on PyTorch tensors against the reference.

What cuDNN does is settled in test_gpu_settles.py. Nothing here has a stand-in.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import NUMPY, Family, assert_right, assert_same, results
from cases import TINY, Array, Call, Case
from gpu_arrays import cupy_family, no_gpu_for, torch_family
from test_cudnn import FEW, HALVES, RAGGED, RUN, reasons
from test_cudnn_dropout import DRAWN

import rnnop
from rnnop.cpu import engine
from rnnop.cudnn import run
from rnnop.errors import LibraryError

pytestmark = pytest.mark.gpu


def make_family(name: str) -> Family:
    """Return the arrays of a framework, or skip where it has no GPU, or cuDNN none."""
    reason = no_gpu_for(name)
    if reason is not None:
        pytest.skip(reason)
    module = importlib.import_module(name)
    return cupy_family(module) if name == "cupy" else torch_family(module)


@pytest.fixture(scope="module", params=["cupy", "torch"])
def family(request: pytest.FixtureRequest) -> Family:
    return make_family(request.param)


@pytest.fixture(scope="module")
def cupy() -> Family:
    return make_family("cupy")


@pytest.fixture(scope="module")
def torch() -> Family:
    return make_family("torch")


def every(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


def check(case: Case, dtype: str, family: Family) -> None:
    cotangents = case.cotangents(dtype, masked=np.nan)
    call = case.call(dtype, masked=np.nan)
    assert_right(call, cotangents, "cudnn", dtype, family)


# Every case


@every(RUN)
def test_float64_on_cupy(case: Case, cupy: Family) -> None:
    check(case, "float64", cupy)


@every(FEW)
def test_float32_on_torch(case: Case, torch: Family) -> None:
    check(case, "float32", torch)


@every([case for case in RUN if case in TINY or case not in FEW])
def test_float32_on_cupy(case: Case, cupy: Family) -> None:
    check(case, "float32", cupy)


@every([case for case in RUN if case in TINY])
def test_float64_on_torch(case: Case, torch: Family) -> None:
    check(case, "float64", torch)


@every(HALVES)
def test_float16(case: Case, torch: Family) -> None:
    check(case, "float16", torch)


@every(HALVES[::2])
def test_bfloat16(case: Case, torch: Family) -> None:
    check(case, "bfloat16", torch)


@every([case for case in HALVES if case in TINY])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_on_cupy(case: Case, dtype: str, cupy: Family) -> None:
    check(case, dtype, cupy)


@every(RAGGED)
def test_padded(case: Case, cupy: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    check(case, "float64", cupy)


@every([case for case in RUN if case in TINY])
def test_numpy_arrays_that_cupy_carries(case: Case, cupy: Family) -> None:
    check(case, "float64", NUMPY)


@every([case for case in TINY if reasons(case)])
def test_auto_takes_the_reference_on_the_device(case: Case, family: Family) -> None:
    call = family.call(case.call())
    told = rnnop.explain(call.x, call.weights, call.h0, call.c0, **call.options)
    assert told.backend == "reference"
    assert told.refusals["cudnn"] in reasons(case)
    assert_right(case.call(), case.cotangents(), "auto", "float64", family, tolerance="reference")


def test_auto_takes_cudnn(family: Family) -> None:
    call = family.call(Case("lstm", "lengths").call("float32"))
    told = rnnop.explain(call.x, call.weights, call.h0, call.c0, **call.options)
    assert told.backend == "cudnn"
    assert "cuDNN" in str(told)


def test_poisoned_memory_changes_nothing(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CHECK", "1")
    for case in (Case("lstm", "lengths", "2-both"), Case("gru", "mask", "2-reverse")):
        check(case, "float64", family)


# Sizes


def host(call: Call, cotangents: dict[str, Any]) -> dict[str, Array]:
    """Return what is made of a call in float64 without a GPU."""
    return results(call, cotangents, "cpu" if engine.available() else "reference")


def large(mode: str, T: int, N: int, H: int, bidirectional: bool) -> tuple[Call, dict[str, Any]]:
    random = np.random.default_rng(0)
    weights = rnnop.init_weights(
        mode, input_size=H, hidden_size=H, bidirectional=bidirectional, seed=0, dtype=np.float64
    )
    lengths = random.integers(1, T, N, endpoint=True)
    lengths[0] = T
    x = random.standard_normal((T, N, H))
    dy = random.standard_normal((T, N, H * (1 + bidirectional)))
    return Call(x, weights, None, None, {"mode": mode, "lengths": lengths}), {"dy": dy}


@pytest.mark.parametrize("bidirectional", [False, True])
def test_more_steps_than_cudnn_takes(bidirectional: bool, cupy: Family) -> None:
    call, cotangents = large("gru", 70_000, 2, 4, bidirectional)
    got = cupy.results(call, cotangents, "cudnn")
    assert_same(got, host(call, cotangents), "cudnn", "float64")


@pytest.mark.parametrize(("T", "N", "H"), [(5, 6464, 32), (3, 70_000, 8)])
def test_many_sequences(
    T: int, N: int, H: int, cupy: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    call, cotangents = large("lstm", T, N, H, False)
    before = dict(run._most_segments)
    got = cupy.results(call, cotangents, "cudnn")
    assert_same(got, host(call, cotangents), "cudnn", "float64")
    learned = [most for key, most in run._most_segments.items() if before.get(key) != most]
    how = f"in groups of {learned[0]}" if learned else "in one call"
    with capsys.disabled():
        print(f"\nSETTLES 16: an LSTM of {H} units runs {N} sequences of up to {T} steps {how}")


# Algorithms


@pytest.mark.parametrize("name", ["persist_static", "persist_dynamic", "persist_static_small_h"])
@pytest.mark.parametrize("hidden_size", [64, 128, 512])
def test_algorithms(
    name: str,
    hidden_size: int,
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They give the reference's results, or say that this GPU has none of it."""
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", name)
    random = np.random.default_rng(0)
    weights = rnnop.init_weights("gru", input_size=32, hidden_size=hidden_size, seed=0)
    x = random.standard_normal((8, 16, 32), dtype=np.float32)
    dy = random.standard_normal((8, 16, hidden_size), dtype=np.float32)
    try:
        assert_right(
            Call(x, weights, None, None, {"mode": "gru"}),
            {"dy": dy},
            "cudnn",
            "float32",
            family,
        )
        how = "runs, and is right"
    except rnnop.UnsupportedError as error:
        how = f"is refused: {error.fact}"
    except LibraryError as error:
        if "NOT_SUPPORTED" not in error.name:
            raise
        how = f"is refused by cuDNN: {error.detail}"
    with capsys.disabled():
        print(f"\nSETTLES 17: {name} of a GRU of {hidden_size} in float32 {how}")


def test_benchmark_mode(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "benchmark")
    check(Case("gru", sizes="t5n18i31h64"), "float32", family)


# Dropout


@every(DRAWN[::4])
def test_a_seed_gives_the_same_bits(case: Case, family: Family) -> None:
    call = family.call(case.call("float32"))

    def once(**more: Any) -> bytes:
        options = call.options | more | {"backend": "cudnn"}
        y = rnnop.rnn(call.x, call.weights, call.h0, call.c0, **options).y
        array = family.back(getattr(y, "data", y) if hasattr(y, "batch_sizes") else y)
        return array.tobytes()

    first = once()
    others = {once(seed=seed) for seed in range(100, 105)}
    assert once() == first
    if case.mask.any() and case.H > 2:
        assert others != {first}


def test_dropped_gradients_go_where_the_values_went(family: Family) -> None:
    one, none = np.eye(16), np.zeros((16, 16))
    weights = rnnop.RNNWeights((one,) * 2, (none,) * 2).map(family.there)
    dy = np.random.default_rng(0).standard_normal((9, 4, 16))
    options: dict[str, Any] = {"mode": "rnn_relu", "dropout": 0.4, "training": True, "seed": 3}
    x = family.there(np.ones((9, 4, 16)))
    out, vjp = family.rnn_vjp(x, weights, **options, backend="cudnn")
    y, dx = family.back(out.y), family.back(vjp(family.there(dy)).x)
    assert 0.25 < np.mean(y == 0) < 0.55
    np.testing.assert_allclose(dx, y * dy, rtol=1e-6)


def test_what_dropout_costs(torch: Family, capsys: pytest.CaptureFixture[str]) -> None:
    """A new seed for each step, one seed for all, or masks that torch draws, layer by layer."""
    module = importlib.import_module("torch")
    weights = rnnop.init_weights("lstm", input_size=256, hidden_size=256, num_layers=2, seed=0)
    leaves = weights.map(lambda each: torch.there(each).requires_grad_())
    x = module.randn(64, 32, 256, device="cuda")
    seeds = itertools.count()

    def step(**seed: Any) -> None:
        options = {"mode": "lstm", "dropout": 0.3, "training": True, "backend": "cudnn"}
        rnnop.rnn(x, leaves, **options, **seed).y.sum().backward()

    ways: dict[str, Callable[[], None]] = {
        "a new seed": lambda: step(seed=next(seeds)),
        "the same seed": lambda: step(seed=0),
        "torch's masks": step,
    }
    told = []
    for way, work in ways.items():
        times = []
        for _ in range(15):
            module.cuda.synchronize()
            start = time.perf_counter()
            work()
            module.cuda.synchronize()
            times.append(time.perf_counter() - start)
        told.append(f"{way} {statistics.median(times[5:]) * 1e3:.2f} ms")
    assert all(each.grad is not None for _, each in leaves.named())
    with capsys.disabled():
        print(f"\nSETTLES 18: a step of a 2-layer LSTM with dropout takes with {', '.join(told)}")


def test_a_graph_of_torch_draws_new_masks_in_each_replay(torch: Family) -> None:
    module = importlib.import_module("torch")
    one, none = np.eye(16), np.zeros((16, 16))
    weights = rnnop.RNNWeights((one,) * 2, (none,) * 2).map(torch.there)
    x = torch.there(np.ones((9, 4, 16)))
    options = {"mode": "rnn_relu", "dropout": 0.5, "training": True, "backend": "cudnn"}
    side = module.cuda.Stream()
    side.wait_stream(module.cuda.current_stream())
    with module.cuda.stream(side):
        for _ in range(3):
            rnnop.rnn(x, weights, **options)
    side.synchronize()
    graph = module.cuda.CUDAGraph()
    with module.cuda.graph(graph):
        y = rnnop.rnn(x, weights, **options).y
    seen = set()
    for _ in range(4):
        graph.replay()
        module.cuda.synchronize()
        seen.add(torch.back(y).tobytes())
    assert len(seen) == 4


# Streams, threads, repetition


def test_repeated_calls_give_the_same_bits(family: Family) -> None:
    case = Case("lstm", "lengths", "2-both", sizes="t5n18i31h64")
    found = {
        b"".join(array.tobytes() for array in family.results(*_work(case), "cudnn").values())
        for _ in range(10)
    }
    assert len(found) == 1


def _work(case: Case) -> tuple[Call, dict[str, Any]]:
    return case.call("float32"), case.cotangents("float32")


def test_python_threads_may_call_at_once(family: Family) -> None:
    cases = [Case("gru", "lengths", "2-both"), Case("lstm", "dense", "2"), Case("lstm", "mask")]
    wrong: list[BaseException] = []

    def run_all() -> None:
        try:
            for _ in range(5):
                for case in cases:
                    check(case, "float64", family)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong


def test_a_vjp_may_run_in_another_thread(family: Family) -> None:
    call, cotangents = _work(Case("lstm", "lengths", "2-both"))
    mine = family.call(call)
    options = mine.options | {"backend": "cudnn"}
    out, vjp = family.rnn_vjp(mine.x, mine.weights, mine.h0, mine.c0, **options)
    found: list[Any] = []
    given = family.cotangents(cotangents)
    thread = threading.Thread(target=lambda: found.append(vjp(**given)))
    thread.start()
    thread.join(120)
    got = family.outputs(out) | family.gradients(found[0])
    assert_same(got, family.results(call, cotangents, "cudnn"), "cudnn", "float32")


def test_streams_of_cupy(cupy: Family) -> None:
    module = importlib.import_module("cupy")
    for _ in range(2):
        with module.cuda.Stream(non_blocking=True) as stream:
            check(Case("lstm", "lengths", "2-both"), "float64", cupy)
            stream.synchronize()


def test_streams_of_torch(torch: Family) -> None:
    module = importlib.import_module("torch")
    for _ in range(2):
        stream = module.cuda.Stream()
        with module.cuda.stream(stream):
            check(Case("lstm", "lengths", "2-both"), "float64", torch)
        stream.synchronize()


def test_no_memory_is_lost(torch: Family) -> None:
    module = importlib.import_module("torch")
    case = Case("lstm", "lengths", "2-both", sizes="t5n18i31h64")
    held = []
    for _ in range(6):
        for _ in range(10):
            torch.results(*_work(case), "cudnn")
        gc.collect()
        module.cuda.synchronize()
        held.append(module.cuda.memory_allocated())
    assert len(set(held[1:])) == 1


def test_the_vjp_frees_what_the_forward_kept(torch: Family) -> None:
    """The reserve goes with the vjp, not with the next collection of garbage."""
    module = importlib.import_module("torch")
    call, cotangents = _work(Case("lstm", "lengths", "2-both", sizes="t5n18i31h64"))
    mine, given = torch.call(call), torch.cotangents(cotangents)
    options = mine.options | {"backend": "cudnn"}
    rnnop.rnn_vjp(mine.x, mine.weights, mine.h0, mine.c0, **options)[1](**given)
    gc.collect()
    gc.disable()
    try:
        before = module.cuda.memory_allocated()
        rnnop.rnn_vjp(mine.x, mine.weights, mine.h0, mine.c0, **options)[1](**given)
        assert module.cuda.memory_allocated() == before
    finally:
        gc.enable()


# CUDA graphs


def graph_work(train: bool, lengths: Any) -> tuple[Any, Call]:
    """Return what is captured, a function of a call's arrays, and a call."""
    random = np.random.default_rng(0)
    weights = rnnop.init_weights("gru", input_size=8, hidden_size=16, num_layers=2, seed=0)
    x = random.standard_normal((7, 4, 8), dtype=np.float32)
    call = Call(x, weights, None, None, {"mode": "gru", "lengths": lengths})

    def work(x: Any, weights: Any, dy: Any) -> list[Any]:
        options = {**call.options, "backend": "cudnn"}
        if not train:
            return [rnnop.rnn(x, weights, **options).y]
        out, vjp = rnnop.rnn_vjp(x, weights, **options)
        grads = vjp(dy)
        return [out.y, grads.x, *grads.weights.w_hh]

    return work, call


every_graph = pytest.mark.parametrize(
    ("train", "lengths"),
    [(False, None), (True, None), (False, [7, 3, 5, 1]), (True, [7, 3, 5, 1])],
    ids=["forward", "training", "forward-ragged", "training-ragged"],
)


def graph_inputs(family: Family, call: Call) -> tuple[Any, Any, Any, Array]:
    dy = np.random.default_rng(1).standard_normal((7, 4, 16)).astype(np.float32)
    other = np.random.default_rng(2).standard_normal(call.x.shape).astype(np.float32)
    return family.there(call.x), call.weights.map(family.there), family.there(dy), other


@every_graph
def test_a_graph_of_torch(
    train: bool, lengths: Any, torch: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("torch")
    work, call = graph_work(train, lengths)
    x, weights, dy, other = graph_inputs(torch, call)
    side = module.cuda.Stream()
    side.wait_stream(module.cuda.current_stream())
    with module.cuda.stream(side):
        for _ in range(3):
            work(x, weights, dy)
    module.cuda.current_stream().wait_stream(side)
    graph = module.cuda.CUDAGraph()
    with module.cuda.graph(graph):
        captured = work(x, weights, dy)
    for data in (other, call.x):
        x.copy_(torch.there(data))
        graph.replay()
        module.cuda.synchronize()
        for got, wanted in zip(captured, work(x, weights, dy), strict=True):
            assert module.equal(got, wanted)
    with capsys.disabled():
        print(f"\nSETTLES 14: torch captures {_said(train, lengths)} in a CUDA graph")


@every_graph
def test_a_graph_of_cupy(
    train: bool, lengths: Any, cupy: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pool of the graph is its own: nobody else may be given what it will write to."""
    module = importlib.import_module("cupy")
    work, call = graph_work(train, lengths)
    x, weights, dy, other = graph_inputs(cupy, call)
    stream, pool = module.cuda.Stream(non_blocking=True), module.cuda.MemoryPool()
    with stream:
        with module.cuda.using_allocator(pool.malloc):
            for _ in range(3):
                work(x, weights, dy)
            stream.synchronize()
            stream.begin_capture()
            captured = work(x, weights, dy)
            graph = stream.end_capture()
        for data in (other, call.x):
            x[...] = cupy.there(data)
            graph.launch(stream)
            stream.synchronize()
            for got, wanted in zip(captured, work(x, weights, dy), strict=True):
                assert bool((got == wanted).all())
    with capsys.disabled():
        print(f"\nSETTLES 14: CuPy captures {_said(train, lengths)} in a CUDA graph")


def _said(train: bool, lengths: Any) -> str:
    what = "forward and backward" if train else "a forward"
    return f"{what} of {'equal' if lengths is None else 'unequal'} lengths"


# Two GPUs


def test_two_devices(torch: Family) -> None:
    module = importlib.import_module("torch")
    if module.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    check(Case("lstm", "lengths", "2-both"), "float64", torch_family(module, "cuda:1"))
    assert module.cuda.current_device() == 0
