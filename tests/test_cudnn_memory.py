"""Device memory as CuPy and PyTorch have it, with both on the host, through the stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cudnn_on_host
import fake_cupy
import numpy as np
import pytest
from agreement import NUMPY, Family, assert_right
from cases import CORE, TINY, Array, Case
from cudnn_direct import Lab
from cudnn_on_host import Double
from gpu_arrays import cupy_family, torch_family
from settles import EXPERIMENTS, sentences
from test_cudnn import draws, reasons

import rnnop
from rnnop import arrays
from rnnop.cudnn import memory

CASES = [case for case in (*CORE[::3], *TINY) if not reasons(case) and not draws(case)]
every = pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


def check(case: Case, dtype: str, family: Family) -> None:
    cotangents = case.cotangents(dtype, masked=np.nan)
    assert_right(case.call(dtype, masked=np.nan), cotangents, "cudnn", dtype, family)


# CuPy


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cupy.Cupy]:
    module = fake_cupy.Cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(
        sys.modules, "array_api_compat.cupy", fake_cupy.Namespace("array_api_compat.cupy")
    )
    monkeypatch.setitem(memory.FAMILIES, "cupy", memory.CupyMemory())
    monkeypatch.setitem(memory.FAMILIES, "numpy", memory.CarriedMemory())
    arrays.namespace.cache_clear()
    yield module
    arrays.namespace.cache_clear()


@every
def test_cupy_arrays(case: Case, cupy: fake_cupy.Cupy) -> None:
    check(case, "float64", cupy_family(cupy))


@every
def test_numpy_arrays_are_carried(case: Case, cupy: fake_cupy.Cupy) -> None:
    check(case, "float64", NUMPY)


def test_results_are_of_the_callers_family(cupy: fake_cupy.Cupy) -> None:
    case = Case("lstm", "lengths", "2-both")
    there = cupy_family(cupy)
    out, vjp = there.call(case.call()).rnn_vjp(backend="cudnn")
    grads = vjp(**there.cotangents(case.cotangents()))
    carried, carried_vjp = case.call().rnn_vjp(backend="cudnn")
    carried_grads = carried_vjp(**case.cotangents())
    for kind, y, g in (
        (fake_cupy.ndarray, out, grads),
        (np.ndarray, carried, carried_grads),
    ):
        found = [y.y, y.h_n, y.c_n, g.x, g.h0, g.c0, *(each for _, each in g.weights.named())]
        assert all(type(each) is kind for each in found)


@pytest.mark.parametrize("carried", [False, True])
def test_drawn_dropout_and_prepacked_weights(carried: bool, cupy: fake_cupy.Cupy) -> None:
    family = NUMPY if carried else cupy_family(cupy)
    call = family.call(Case("gru", "lengths", "2", dropout="seed").call())
    packed = rnnop.prepack(call.weights, mode="gru", backend="cudnn")
    plain, again = (
        family.back(rnnop.rnn(call.x, each, call.h0, **call.options, backend="cudnn").y)
        for each in (call.weights, packed)
    )
    assert plain.tobytes() == again.tobytes()


def test_cupys_stream_and_device_are_the_callers(
    double: Double, cupy: fake_cupy.Cupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CHECK", "1")
    check(Case("gru"), "float32", cupy_family(cupy))
    assert double.number("last_stream") == 4096
    assert cupy.stream.waits == 3
    assert fake_cupy.CURRENT.device is None


def test_a_failure_tells_the_device_of_cupy(
    cupy: fake_cupy.Cupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnRNNForward:4000")
    with pytest.raises(rnnop.errors.LibraryError, match=r"device 0 of compute capability 12\.0"):
        check(Case("gru"), "float32", cupy_family(cupy))


@pytest.mark.parametrize("number", EXPERIMENTS)
def test_the_experiments_for_a_gpu(number: int, cupy: fake_cupy.Cupy) -> None:
    assert sentences(number, Lab(cupy_family(cupy), memory.FAMILIES["cupy"]))


def test_explain_for_numpy_arrays_that_cupy_carries(cupy: fake_cupy.Cupy) -> None:
    call = Case("gru").call()
    assert rnnop.explain(call.x, call.weights, backend="cudnn").backend == "cudnn"


def test_the_device_of_carried_arrays_is_the_current_one(cupy: fake_cupy.Cupy) -> None:
    carried = memory.FAMILIES["numpy"]
    assert (carried.number("cpu"), carried.capability(0)) == (0, (12, 0))
    with cupy.cuda.Device(3):
        assert carried.number("cpu") == 3
    assert memory.FAMILIES["cupy"].number(cupy.cuda.Device(2)) == 2


# PyTorch


class OnTheHost(memory.TorchMemory):
    """Tensors of the CPU, taken for those of a device."""

    def missing(self, device: Any) -> None:
        return None

    def number(self, device: Any) -> int:
        return 0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: rnnop[torch]")
    stream = SimpleNamespace(cuda_stream=8192, waits=0)

    def synchronize() -> None:
        stream.waits += 1

    @contextmanager
    def device(index: int) -> Iterator[None]:
        assert index == 0
        yield

    stream.synchronize = synchronize
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setitem(memory.FAMILIES, "torch", OnTheHost())
    return torch


def tensors(torch: Any) -> Family:
    """Return tensors that go to the backend as they are."""
    return torch_family(torch, "cpu", rnn_vjp=rnnop.rnn_vjp.direct)


@every
def test_torch_tensors(case: Case, torch: Any) -> None:
    check(case, "float64", tensors(torch))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "case",
    [Case("gru", "lengths", "2-both", dropout="masks"), Case("lstm", "mask", cell_states=True)],
)
def test_torch_halves(case: Case, dtype: str, torch: Any) -> None:
    check(case, dtype, tensors(torch))


def test_drawn_dropout_on_tensors(torch: Any) -> None:
    call = tensors(torch).call(Case("gru", "lengths", "2", dropout="seed").call())
    rnn = rnnop.rnn.direct
    y, again, other = (
        rnn(call.x, call.weights, call.h0, **call.options | {"seed": seed}, backend="cudnn").y
        for seed in (1, 1, 2)
    )
    assert torch.equal(y, again)
    assert not torch.equal(y, other)


@pytest.mark.parametrize("number", EXPERIMENTS)
def test_the_experiments_for_a_gpu_on_tensors(number: int, torch: Any) -> None:
    assert sentences(number, Lab(tensors(torch), memory.FAMILIES["torch"]))


def test_torchs_stream_is_the_callers(
    double: Double, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CHECK", "1")
    check(Case("gru"), "float32", tensors(torch))
    assert double.number("last_stream") == 8192
    assert torch.cuda.current_stream(0).waits == 3


def test_a_failure_tells_the_device_of_torch(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnRNNForward:4000")
    with pytest.raises(rnnop.errors.LibraryError, match=r"device 0 of compute capability 9\.0"):
        check(Case("gru"), "float32", tensors(torch))


def test_tensors_of_the_cpu_are_refused_in_a_sentence(torch: Any) -> None:
    own = memory.TorchMemory()
    assert own.missing(torch.device("cpu")) == "`x` lies on device 'cpu'; expected a CUDA device"
    assert own.missing(torch.device("cuda:1")) is None
    assert own.number(torch.device("cuda:1")) == 1
    assert own.index(SimpleNamespace(device=torch.device("cuda:1"))) == 1


def test_memory_of_torch_is_fresh_and_of_its_dtype(torch: Any) -> None:
    like = torch.zeros(2, dtype=torch.float64)
    own = memory.FAMILIES["torch"]
    assert memory.room(own, 5, like).dtype == torch.uint8
    empty: Array = own.empty((2, 3), torch.float16, like)
    assert (tuple(empty.shape), empty.dtype) == ((2, 3), torch.float16)
