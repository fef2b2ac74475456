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
    arrays._NAMESPACES.clear()
    yield module
    arrays._NAMESPACES.clear()


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


# What a CUDA graph may hold: no copy from or to the host, no wait, nothing of cuDNN made anew


class Spy:
    """Counts what is asked of a memory, and fails where the host is asked for anything."""

    def __init__(
        self,
        double: Double,
        own: Any,
        monkeypatch: pytest.MonkeyPatch,
        copies: list[tuple[Any, str]],
    ) -> None:
        self.double, self.own, self.patch, self.copies = double, own, monkeypatch, copies
        self.rooms: list[int] = []

    def start(self) -> None:
        def refused(*_: Any, **__: Any) -> Any:
            raise AssertionError("a copy between host and device, or a wait for it")

        def empty(shape: Any, dtype: Any, like: Any, made: Any = self.own.empty) -> Any:
            self.rooms.append(len(shape))
            return made(shape, dtype, like)

        for owner, name in [*self.copies, (self.own, "synchronize")]:
            self.patch.setattr(owner, name, refused)
        self.patch.setattr(self.own, "empty", empty)
        self.double.reset()

    def made(self) -> int:
        """Return how many objects of cuDNN were made, set or built."""
        kinds = ("RNN", "RNNData", "Tensor", "Dropout")
        names = [f"cudnnCreate{kind}Descriptor" for kind in kinds]
        names += ["cudnnCreate", "cudnnSetRNNDescriptor_v8", "cudnnBuildRNNDynamic"]
        return sum(map(self.double.calls, names))


GRAPHS = {
    "equal": {},
    "unequal": {"lengths": [7, 3, 5, 1]},
    "holes": {"mask": np.random.default_rng(0).random((7, 4)) < 0.6},
    "resets": {"resets": np.random.default_rng(1).random((7, 4)) < 0.3},
    "held": {"lengths": [7, 3, 0, 1], "masked_output": "hold"},
    "batch first": {"lengths": [4, 4, 1, 2, 3, 0, 2], "batch_first": True},
}


def steady(
    spy: Spy, family: Family, options: dict[str, Any], train: bool, layout: str, **more: Any
) -> list[int]:
    """Return the axes of all rooms that a call asks for, once all is warm."""
    spy.patch.setenv("RNNOP_CUDNN_LAYOUT", layout)
    weights = rnnop.init_weights("lstm", input_size=3, hidden_size=5, num_layers=2, seed=0)
    weights = weights.map(lambda each: family.there(each.astype(np.float32)))
    numbers = np.random.default_rng(2).standard_normal
    x, dy = (family.there(numbers((7, 4, size)).astype(np.float32)) for size in (3, 5))
    rnn, rnn_vjp = more.get("functions", (rnnop.rnn, rnnop.rnn_vjp))

    def work() -> None:
        given = {"mode": "lstm", **options, "backend": "cudnn"}
        if not train:
            rnn(x, weights, **given)
            return
        _, vjp = rnn_vjp(x, weights, **given)
        vjp(dy)

    for _ in range(3):
        work()
    spy.start()
    found = []
    for _ in range(3):
        spy.rooms.clear()
        work()
        found.append(list(spy.rooms))
    assert found[0] == found[1] == found[2]
    assert spy.made() == 0
    return found[0]


every_graph = pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("train", [False, True], ids=["forward", "training"])
@every_graph
def test_a_steady_call_on_cupy_arrays_stays_on_the_device(
    options: dict[str, Any],
    train: bool,
    layout: str,
    double: Double,
    cupy: fake_cupy.Cupy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = [(fake_cupy.Namespace, "asarray"), (fake_cupy.ndarray, "get")]
    spy = Spy(double, memory.FAMILIES["cupy"], monkeypatch, copies)
    rooms = steady(spy, cupy_family(cupy), options, train, layout)
    assert rooms.count(1) == (3 if train else 1)  # a reserve, and a workspace of each direction


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("train", [False, True], ids=["forward", "training"])
@every_graph
def test_a_steady_call_on_tensors_stays_on_the_device(
    options: dict[str, Any],
    train: bool,
    layout: str,
    double: Double,
    torch: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "_on_gpu", lambda array: not isinstance(array, np.ndarray))
    copies = [(torch, name) for name in ("asarray", "as_tensor", "tensor", "from_numpy")]
    copies += [(torch.Tensor, name) for name in ("cpu", "numpy", "item", "tolist", "__bool__")]
    copies += [(arrays.namespace("torch"), "asarray")]
    spy = Spy(double, memory.FAMILIES["torch"], monkeypatch, copies)
    functions = rnnop.rnn.direct, rnnop.rnn_vjp.direct
    steady(spy, tensors(torch), options, train, layout, functions=functions)
