"""What a call asks of cuDNN, through the stand-in: arithmetic, algorithm, layout, clip, one vjp."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from pathlib import Path
from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from agreement import assert_right, gradients_of, outputs_of
from cases import DTYPES, Case
from cudnn_on_host import Double
from test_cudnn import check

import rnnop
import rnnop.cpu
import rnnop.cudnn
from rnnop import arrays
from rnnop.backends import Frame
from rnnop.cudnn import memory, run
from rnnop.ragged import RaggedPlan, make_plan
from rnnop.spec import RNNSpec

DEFAULT, TENSOR_OP, ALLOW_CONVERSION, FMA = range(4)
STANDARD, PERSIST_STATIC, PERSIST_DYNAMIC, SMALL_H = range(4)
UNPACKED, PACKED = range(2)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


def frame(
    spec: RNNSpec | None = None,
    plan: RaggedPlan | None = None,
    family: str = "numpy",
    device: Any = "cpu",
    dtype: str = "float32",
) -> Frame:
    spec = spec or RNNSpec("gru", input_size=2, hidden_size=3)
    xp = arrays.namespace("numpy")
    return Frame(spec, plan or make_plan(4, 2), family, xp, dtype, device, False)


def ragged(dtype: str = "float32") -> Case:
    return Case("lstm", "lengths", "2-both")


# The arithmetic

MATH = {  # (tensor cores, conversion, TF32): of float64, of float32, of the halves
    (0, 0, 0): (FMA, FMA, FMA),
    (0, 0, 1): (FMA, DEFAULT, FMA),
    (0, 1, 0): (FMA, FMA, FMA),
    (0, 1, 1): (FMA, DEFAULT, FMA),
    (1, 0, 0): (FMA, FMA, TENSOR_OP),
    (1, 0, 1): (FMA, DEFAULT, TENSOR_OP),
    (1, 1, 0): (ALLOW_CONVERSION, ALLOW_CONVERSION, TENSOR_OP),
    (1, 1, 1): (ALLOW_CONVERSION, ALLOW_CONVERSION, TENSOR_OP),
}
FLAGS = ("RNNOP_ALLOW_TENSOR_CORE", "RNNOP_TENSOR_OP_ALLOW_CONVERSION", "RNNOP_ALLOW_TF32")
NAMES = ("DEFAULT_MATH", "TENSOR_OP_MATH", "TENSOR_OP_MATH_ALLOW_CONVERSION", "FMA_MATH")
PLACES = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 2}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_flags_choose_the_arithmetic_at_each_call(
    dtype: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Case("gru").call(dtype)
    for flags in itertools.product((0, 1), repeat=3):
        for name, value in zip(FLAGS, flags, strict=True):
            monkeypatch.setenv(name, str(value))
        wanted = MATH[flags][PLACES[dtype]]
        _, vjp = call.rnn_vjp(backend="cudnn")
        assert double.last("math") == wanted
        vjp(None)
        assert double.last("math") == wanted
        told = rnnop.explain(call.x, call.weights, backend="cudnn", **call.options)
        assert told.manner is not None
        assert told.manner.endswith(f", {NAMES[wanted]}")


def test_by_default_nothing_is_rounded_down(double: Double) -> None:
    for dtype, wanted in (("float32", FMA), ("float64", FMA), ("float16", TENSOR_OP)):
        Case("gru").call(dtype).rnn(backend="cudnn")
        assert double.last("math") == wanted


@pytest.mark.parametrize(
    ("dtype", "data", "compute"),
    [("float32", 0, 0), ("float64", 1, 1), ("float16", 2, 0), ("bfloat16", 9, 0)],
)
def test_halves_are_computed_in_float32(
    dtype: str, data: int, compute: int, double: Double
) -> None:
    Case("lstm").call(dtype).rnn(backend="cudnn")
    assert (double.last("type"), double.last("precision")) == (data, compute)
    assert rnnop.cudnn.compute_dtype(frame(dtype=dtype)) == ("float32", "float64")[compute]


# The layout


def test_layouts(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, unequal = Case("lstm").call(), Case("lstm", "lengths").call()
    for flag, of_unequal in (("auto", PACKED), ("packed", PACKED), ("padded", UNPACKED)):
        monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", flag)
        dense.rnn(backend="cudnn")
        assert (double.last("layout"), double.last("aux")) == (UNPACKED, 0)
        unequal.rnn(backend="cudnn")
        assert double.last("layout") == of_unequal
        assert double.last("aux") == (of_unequal == UNPACKED)  # only where it is needed


def test_both_biases_are_always_there(double: Double) -> None:
    for bias in ("none", "input", "recurrent", "double"):
        Case("gru", bias=bias).call().rnn(backend="cudnn")
        assert double.last("bias") == 2


# The algorithm

DENSE = Case("gru", sizes="t4n5i3h17")
ALGORITHMS = {
    "auto": STANDARD,
    "standard": STANDARD,
    "persist_static": PERSIST_STATIC,
    "persist_dynamic": PERSIST_DYNAMIC,
    "persist_static_small_h": SMALL_H,
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_may_be_named(
    name: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", name)
    check(DENSE, "float32")
    assert double.last("algo") == ALGORITHMS[name]
    # A dynamic plan is compiled for its batch, once.
    check(DENSE, "float32")
    assert double.calls("cudnnBuildRNNDynamic") == (name == "persist_dynamic")


@pytest.mark.parametrize(
    ("name", "case", "dtype", "reason"),
    [
        ("persist_static", Case("lstm_projection"), "float32", "has no projection"),
        ("persist_dynamic", Case("lstm_projection"), "float32", "has no projection"),
        ("persist_static", Case("gru", "lengths"), "float32", "needs rows of equal lengths"),
        ("persist_dynamic", Case("gru", "mask"), "float64", "needs rows of equal lengths"),
        ("persist_static", Case("gru"), "float64", "has no float64"),
        ("persist_static_small_h", Case("gru"), "float64", "has no float64"),
    ],
)
def test_what_an_algorithm_has_not_is_refused_by_name(
    name: str,
    case: Case,
    dtype: str,
    reason: str,
    double: Double,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", name)
    with pytest.raises(rnnop.UnsupportedError, match=f"algorithm {name} {reason}"):
        case.call(dtype).rnn(backend="cudnn")
    assert double.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize(
    ("mode", "most"), [("rnn_relu", 384), ("rnn_tanh", 384), ("gru", 192), ("lstm", 192)]
)
def test_small_h_is_small(mode: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "persist_static_small_h")
    spec = RNNSpec(mode, input_size=2, hidden_size=most)
    assert rnnop.cudnn.supports(frame(spec)) is None
    refused = rnnop.cudnn.supports(frame(dataclasses.replace(spec, hidden_size=most + 1)))
    assert refused == (
        f"algorithm persist_static_small_h has hidden_size at most {most} in mode '{mode}'"
    )


class Clock:
    """A clock by which each forward takes as long as its algorithm is said to."""

    def __init__(self, double: Double, seconds: dict[int, float]) -> None:
        self.double, self.seconds, self.runs = double, seconds, []

    def perf_counter(self) -> float:
        self.runs.append(self.double.last("algo"))
        return sum(self.seconds[algo] for algo in self.runs[1::2])


@pytest.mark.parametrize("fastest", range(4))
@pytest.mark.parametrize("train", [False, True])
def test_benchmark_keeps_the_fastest(
    fastest: int, train: bool, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "benchmark")
    clock = Clock(double, {algo: 1.0 + (algo != fastest) for algo in range(4)})
    monkeypatch.setattr(run, "time", clock)
    call, cotangents = DENSE.call("float32"), DENSE.cotangents("float32")

    def once() -> None:
        if train:
            assert_right(call, cotangents, "cudnn", "float32")
        else:
            call.rnn(backend="cudnn")

    once()
    assert double.last("algo") == fastest
    assert sorted(set(clock.runs[1::2])) == [0, 1, 2, 3]
    timed = len(clock.runs)
    assert double.calls("cudnnRNNForward") == timed // 2 + 1
    assert double.calls("cudnnRNNBackwardData_v8") == (timed // 2 + 1 if train else 0)
    once()
    assert len(clock.runs) == timed  # not again for the same problem
    Case("gru", sizes="t6n3i3h5").call("float32").rnn(backend="cudnn")
    assert len(clock.runs) > timed


def test_benchmark_takes_only_what_can_run(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "benchmark")
    clock = Clock(double, {algo: 9.0 - algo for algo in range(4)})
    monkeypatch.setattr(run, "time", clock)
    check(Case("gru", "lengths"), "float32")
    assert not clock.runs  # there is nothing to choose
    check(DENSE, "float64")
    assert set(clock.runs[1::2]) == {STANDARD, PERSIST_DYNAMIC}
    monkeypatch.setenv("CUDNN_DOUBLE_SM", "50")  # a GPU that has none of them
    monkeypatch.setattr(run, "_fastest", {})
    check(DENSE, "float32")
    assert double.last("algo") == STANDARD


def test_a_failure_while_timing_is_an_error(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "benchmark")
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnRNNForward:4000")
    with pytest.raises(rnnop.errors.LibraryError, match="cudnnRNNForward: CUDNN_STATUS_INTERNAL"):
        DENSE.call("float32").rnn(backend="cudnn")


# The clip


@pytest.mark.parametrize("nan", [False, True])
def test_the_clip_is_cudnns_and_the_final_cell_state_ours(nan: bool, double: Double) -> None:
    weights = rnnop.init_weights("lstm", input_size=2, hidden_size=3, seed=0, dtype=np.float64)
    x = 5 * np.random.default_rng(0).standard_normal((6, 4, 2))
    options: dict[str, Any] = {"mode": "lstm", "cell_clip": (-0.25, 0.2), "cell_clip_nan": nan}
    out, vjp = rnnop.rnn_vjp(x, weights, **options, backend="cudnn")
    assert (double.last("clip"), double.last("clip_nan")) == (1, int(not nan))
    assert out.c_n.min() == np.float32(-0.25)
    assert out.c_n.max() == np.float32(0.2)
    # No gradient through a state beyond the bounds.
    inside = (out.c_n > np.float32(-0.25)) & (out.c_n < np.float32(0.2))
    assert inside.any()
    grads = vjp(None, dc_n=np.where(inside, 0.0, 1.0))
    assert all(not array.any() for array in gradients_of(grads).values())
    rnnop.rnn(x, weights, mode="lstm", backend="cudnn")
    assert double.last("clip") == 0


def test_nan_in_a_cell_state_stays_or_becomes_the_low_bound(double: Double) -> None:
    weights = rnnop.init_weights("lstm", input_size=2, hidden_size=2, seed=0, dtype=np.float64)
    x, c0 = np.zeros((1, 1, 2)), np.array([[[np.nan, 0.1]]])
    options: dict[str, Any] = {"mode": "lstm", "cell_clip": 0.5}
    kept = rnnop.rnn(x, weights, c0=c0, **options, backend="cudnn")
    assert np.isnan(kept.c_n).tolist() == [[[True, False]]]
    replaced = rnnop.rnn(x, weights, c0=c0, **options, cell_clip_nan=True, backend="cudnn")
    low = rnnop.rnn(x, weights, c0=np.array([[[-0.5, 0.1]]]), **options, backend="cudnn")
    assert replaced.c_n.tobytes() == low.c_n.tobytes()


# The backward


def test_inference_keeps_nothing(double: Double) -> None:
    call = ragged().call()
    call.rnn(backend="cudnn")
    assert double.number("peak_reserve") == 0
    call.rnn_vjp(backend="cudnn")
    assert double.number("peak_reserve") > 0


@pytest.mark.parametrize("steps", ["lengths", "no_steps"])
def test_a_forward_for_inference_has_no_backward(steps: str, double: Double) -> None:
    _, vjp = Case("lstm", steps).call().rnn_vjp(backend="cudnn")
    problem = vjp._call.problem
    saved = rnnop.cudnn.forward(problem, keep=False).saved
    with pytest.raises(rnnop.UnsupportedError) as caught:
        rnnop.cudnn.backward(problem, saved, None)
    assert str(caught.value) == (
        "this forward ran for inference and has kept nothing; cuDNN's backward needs what a "
        "forward in training mode keeps. Call rnn_vjp in place of rnn."
    )
    assert double.calls("cudnnRNNBackwardData_v8") == 0


def test_a_forward_has_one_vjp(double: Double) -> None:
    case = ragged()
    _, vjp = case.call().rnn_vjp(backend="cudnn")
    vjp(**case.cotangents())
    with pytest.raises(rnnop.UnsupportedError) as caught:
        vjp(**case.cotangents())
    assert "the vjp of this call has run before" in str(caught.value)
    assert str(caught.value).endswith(
        "Call rnn_vjp again for another, or name backend='reference'."
    )
    assert double.calls("cudnnRNNBackwardData_v8") == 1
    assert double.calls("cudnnRNNBackwardWeights_v8") == 1


@pytest.mark.parametrize("stack", ["1", "2-both", "2-reverse"])
def test_the_last_layer_runs_again_for_its_cell_states(stack: str, double: Double) -> None:
    """Step by step, and only where there is a cotangent of them."""
    case = Case("lstm", "lengths", stack, cell_states=True)
    call, cotangents = case.call(), case.cotangents()

    def passes(**given: Any) -> tuple[int, int, int]:
        _, vjp = call.rnn_vjp(backend="cudnn")
        double.reset()
        vjp(**given)
        names = ("cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8")
        forward, data, weights = (double.calls(name) for name in names)
        return forward, data, weights

    steps = case.D * int(call.options["lengths"].max())
    below = case.L - 1
    assert passes(**cotangents) == (steps, below + steps, below + steps)
    del cotangents["dc"]
    assert passes(**cotangents) == (0, case.L, case.L)


def test_the_last_layer_frees_what_it_kept_before_it_runs_again() -> None:
    case = Case("lstm", cell_states=True)
    _, vjp = case.call().rnn_vjp(backend="cudnn")
    saved = vjp._result.saved
    kept = weakref.ref(saved.levels[-1][0][1])
    seen = []
    again = saved.again
    saved.again = lambda device: (seen.append(kept()), again(device))[1]
    vjp(**case.cotangents())
    assert seen == [None]


def test_a_step_by_step_run_takes_the_algorithm_that_runs_everything(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "persist_static")
    case = Case("lstm", sizes="t4n5i3h17", cell_states=True)
    assert_right(case.call("float32"), case.cotangents("float32"), "cudnn", "float32")
    assert double.last("algo") == STANDARD


@pytest.mark.parametrize("steps", ["no_steps", "no_rows", "lengths_all_zero", "mask_none"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_without_a_step_nothing_is_called(cell: str, steps: str, double: Double) -> None:
    case = Case(cell, steps, "2-both", cell_states=cell == "lstm")
    call, cotangents = case.call(), case.cotangents()
    for _ in range(2):
        assert_right(call, cotangents, "cudnn", "float64")
    assert double.calls("cudnnRNNForward") == double.calls("cudnnCreateRNNDescriptor") == 0


# What is said of a call


def test_explain_tells_how(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Case("lstm", "lengths").call("float32")

    def manner() -> str | None:
        told = rnnop.explain(call.x, call.weights, backend="cudnn", **call.options)
        return told.manner

    assert manner() == "cuDNN 9.28.0, algorithm standard, packed, FMA_MATH"
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "benchmark")
    assert manner() == "cuDNN 9.28.0, algorithm benchmark, padded, FMA_MATH"
    del call.options["lengths"]
    assert manner() == "cuDNN 9.28.0, algorithm benchmark, FMA_MATH"


@pytest.mark.parametrize("cell", ["lstm", "lstm_peephole"])
def test_auto_takes_the_reference_where_cudnn_cannot(
    cell: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnnop.cpu, "supports", lambda frame: "the arrays lie on a device")
    call = Case(cell).call()
    told = rnnop.explain(call.x, call.weights, **call.options)
    assert told.backend == ("cudnn" if cell == "lstm" else "reference")
    wanted = outputs_of(call.rnn(backend=told.backend))
    got = outputs_of(call.rnn())
    assert {name: each.tobytes() for name, each in got.items()} == {
        name: each.tobytes() for name, each in wanted.items()
    }
    if cell == "lstm_peephole":
        assert told.refusals["cudnn"] == "cuDNN has no `weights.peephole`"
        assert "not cudnn: cuDNN has no `weights.peephole`" in str(told)
        assert double.calls("cudnnRNNForward") == 0


def test_the_arrays_of_others_are_refused_in_a_sentence() -> None:
    assert rnnop.cudnn.supports(frame(family="jax")) == (
        "it takes CuPy and PyTorch arrays, and `x` is a JAX array"
    )
    assert rnnop.cudnn.supports(frame(family="cupy")) is None


def test_numpy_arrays_need_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory.FAMILIES, "numpy", memory.CarriedMemory())
    assert rnnop.cudnn.supports(frame()) == (
        "NumPy arrays need CuPy to carry them to the GPU, and CuPy is not installed"
    )
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: object())
    assert rnnop.cudnn.supports(frame()) is None


def test_weights_that_cudnn_cannot_count_are_refused() -> None:
    spec = RNNSpec("lstm", input_size=16384, hidden_size=16384)
    assert rnnop.cudnn.supports(frame(spec)) == (
        "the weights have 2,147,614,720 elements; cuDNN counts them in 32 bits, up to 2,147,483,647"
    )


def test_states_that_cudnn_cannot_count_are_refused() -> None:
    spec = RNNSpec("gru", input_size=2, hidden_size=2**14)
    assert rnnop.cudnn.supports(frame(spec, make_plan(1, 2**17 - 1))) is None
    assert rnnop.cudnn.supports(frame(spec, make_plan(1, 2**17))) == (
        "a state of shape (1, 131072, 16384) has more than 2,147,483,647 elements"
    )


@pytest.mark.parametrize("version", ["8.9.7", "9.10.2"])
def test_bfloat16_needs_a_version_that_has_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = cudnn_on_host.use(monkeypatch, version)
    with pytest.raises(rnnop.UnsupportedError) as caught:
        Case("gru").call("bfloat16").rnn(backend="cudnn")
    assert f"bfloat16 came with cuDNN 9.13, and this is {version}." in str(caught.value)
    assert double.calls("cudnnRNNForward") == 0


# What a device has not


@pytest.mark.parametrize(
    ("dtype", "needed", "older"),
    [("bfloat16", (8, 0), (7, 5)), ("float16", (5, 3), (5, 2))],
)
def test_the_halves_need_a_device_that_has_them(
    dtype: str, needed: tuple[int, int], older: tuple[int, int], double: Double
) -> None:
    call = Case("gru").call(dtype)
    double.memory.capable = needed
    call.rnn(backend="cudnn")
    double.reset()
    double.memory.capable = older
    told = rnnop.explain(call.x, call.weights, **call.options).refusals["cudnn"]
    assert told == (
        f"{dtype} needs a GPU of compute capability {needed[0]}.{needed[1]}, "
        f"and device 0 has {older[0]}.{older[1]}"
    )
    with pytest.raises(rnnop.UnsupportedError) as caught:
        dataclasses.replace(call, x=call.x[:2]).rnn(backend="cudnn")
    assert told in str(caught.value)
    assert double.calls("cudnnRNNForward") == 0
    Case("gru").call("float32").rnn(backend="cudnn")


@pytest.mark.parametrize("name", ["persist_static", "persist_dynamic", "persist_static_small_h"])
def test_the_persistent_algorithms_need_a_device_that_has_them(
    name: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", name)
    double.memory.capable = (6, 0)
    assert rnnop.cudnn.supports(frame()) is None
    double.memory.capable = (5, 3)
    assert rnnop.cudnn.supports(frame()) == (
        f"algorithm {name} needs a GPU of compute capability 6.0, and device 0 has 5.3"
    )


def test_where_there_is_no_device_nobody_asks_it(
    tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_PATH", str(cudnn_on_host.compile_again(tmp_path)))
    monkeypatch.setenv("CUDNN_DOUBLE_NO_DEVICE", "1")
    monkeypatch.delattr(type(double.memory), "capability")
    assert rnnop.cudnn.supports(frame(dtype="bfloat16")) is None
    assert "there is no NVIDIA driver" in str(rnnop.cudnn.unavailable())


@pytest.mark.parametrize(
    ("capable", "dtype", "wanted"),
    [
        ((6, 1), "float16", FMA),  # no tensor cores
        ((7, 0), "float16", TENSOR_OP),
        ((6, 1), "float32", FMA),
        ((7, 5), "float32", ALLOW_CONVERSION),
    ],
)
def test_tensor_cores_need_a_device_that_has_them(
    capable: tuple[int, int],
    dtype: str,
    wanted: int,
    double: Double,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RNNOP_TENSOR_OP_ALLOW_CONVERSION", "1")
    double.memory.capable = capable
    call = Case("gru").call(dtype)
    call.rnn(backend="cudnn")
    assert double.last("math") == wanted
    told = rnnop.explain(call.x, call.weights, backend="cudnn", **call.options)
    assert str(told.manner).endswith(f", {NAMES[wanted]}")


@pytest.mark.parametrize(("capable", "wanted"), [((7, 5), FMA), ((8, 0), DEFAULT)])
def test_tf32_needs_a_device_that_has_it(
    capable: tuple[int, int], wanted: int, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_ALLOW_TF32", "1")
    double.memory.capable = capable
    Case("gru").call("float32").rnn(backend="cudnn")
    assert double.last("math") == wanted


# Weights laid out beforehand


@pytest.mark.parametrize("case", [ragged(), Case("gru", stack="2-reverse", bias="input")])
def test_prepacked_weights_are_joined_once(
    case: Case, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, filled = case.call(), []
    fill = rnnop.cudnn.weightspace.fill
    monkeypatch.setattr(
        rnnop.cudnn.weightspace, "fill", lambda *given: (filled.append(given[0]), fill(*given))[1]
    )
    packed = rnnop.prepack(call.weights, mode=case.mode, backend="cudnn")
    again = dataclasses.replace(call, weights=packed)
    wanted = outputs_of(call.rnn(backend="cudnn"))
    assert len(filled) == 2
    for _ in range(3):
        out, vjp = again.rnn_vjp(backend="cudnn")
        vjp(**case.cotangents())
        for name, array in outputs_of(out).items():
            assert array.tobytes() == wanted[name].tobytes()
    assert len(filled) == 2
    again.rnn(backend="cudnn", return_cell_states=case.mode == "lstm")
    parts = 2 if case.mode == "lstm" else 0  # one for each layer
    assert len(filled) == 2 + parts
    again.rnn(backend="cudnn", return_cell_states=case.mode == "lstm")
    assert len(filled) == 2 + parts
