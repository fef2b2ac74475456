"""`python -m rnnop selfcheck`: it passes here, and fails on whatever it is there to find."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cudnn_on_host
import fake_cupy
import numpy as np
import pytest
from cudnn_on_host import Double
from test_cudnn_faults import FAULTS

from rnnop import arrays, flags
from rnnop.cli import main
from rnnop.cli.selfcheck import cases, report, runners
from rnnop.cli.selfcheck.cases import CELLS, STACKS, STEPS, Inputs, error_of, grid, steady
from rnnop.cli.selfcheck.compare import Check, check
from rnnop.cli.selfcheck.runners import Runner
from rnnop.cpu import engine
from rnnop.cudnn import memory
from rnnop.cudnn.memory import FAMILIES
from rnnop.tolerances import TOLERANCES

OUTPUTS = {"y", "h_n", "c_n", "c"}
GRADIENTS = {"dx", "dh0", "dc0", "dw_ih", "dw_hh", "db_ih", "db_hh", "dw_hr", "dpeephole"}
FLOAT32 = np.dtype(np.float32)

GRU = next(case for case in grid() if case.cell == "gru" and case.steps == "lengths")


def selfcheck(*options: str) -> int:
    return main(["selfcheck", *options])


def silent(_: str) -> None:
    """Show no progress."""


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


# The command


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck("--quick", "--backend", "reference", "--dtype", "float32", "float16") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    begin = lines.index("reference")
    table = [line.split() for line in lines[begin + 1 : begin + 17]]
    assert table[0] == ["float32", "float16"]
    assert {row[0] for row in table[1:14]} == OUTPUTS | GRADIENTS
    for _, single, half in table[1:14]:
        assert 1e-9 < float(single) < 1e-5
        assert 1e-5 < float(half) < 1e-3
    assert table[14:] == [["tolerance", "1e-05", "1e-03"], ["calls", "28", "28"]]
    assert lines[-1].startswith("ok: all ")
    assert lines[0].startswith("rnnop ")  # what is here stands above
    assert err.splitlines()[0] == "cell  1/14  rnn_tanh"
    assert len(err.splitlines()) == len(CELLS) == 14


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck("--quick", "--json", "--dtype", "float64") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert result["info"]["backends"]["reference"] is None
    for each in result["checks"]:
        assert set(each["worst"]) == OUTPUTS | GRADIENTS
        assert all(0 < worst < each["tolerance"] for worst in each["worst"].values())
        assert each["tolerance"] == TOLERANCES[each["backend"], each["dtype"]]
        assert (each["calls"], each["refused"], each["misses"]) == (28, {}, [])
    if engine.available():
        isa = {"RNNOP_CPU_ISA": engine.available()[0]}
        assert [each["settings"] for each in result["checks"] if each["backend"] == "cpu"] == [isa]


@pytest.mark.slow
def test_everything_that_is_here() -> None:
    assert selfcheck() == 0


def test_a_backend_that_is_named_must_be_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_PATH", str(tmp_path))
    assert selfcheck("--backend", "cudnn") == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("rnnop: backend 'cudnn' cannot be checked here: RNNOP_CUDNN_PATH is")
    assert selfcheck("--backend", "reference", "--dtype", "float32", "--quick") == 0
    assert "not checked" not in capsys.readouterr().out


def test_nothing_compared_is_no_success() -> None:
    with pytest.raises(SystemExit, match="nothing was compared"):
        selfcheck("--backend", "reference", "--dtype", "float64", "--quick")


# cuDNN, through its stand-in


def test_cudnn_passes(double: Double, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck("--quick", "--backend", "cudnn", "--dtype", "float64", "float16") == 0
    out = capsys.readouterr().out
    assert double.calls("cudnnRNNForward") > 28
    assert "cudnn refused 2 calls: cuDNN has no `input_forget`" not in out  # 4: both dtypes
    assert "cudnn refused 4 calls: cuDNN has no `input_forget`" in out
    assert "ok: all " in out


@pytest.mark.parametrize("fault", ["gate_order", "dcy_ignored", "dw_wrong_step"])
def test_a_wrong_cudnn_is_an_exit_status(
    fault: str, double: Double, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", fault)
    options = ["--quick", "--backend", "cudnn", "--dtype", "float32"]
    with pytest.raises(SystemExit) as stop:
        selfcheck(*options)
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "MISSED in " in out
    assert "ok: all" not in out
    assert any(line.startswith("dw_hh") and line.endswith(" *") for line in out.splitlines())
    with pytest.raises(SystemExit):
        selfcheck(*options, "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    assert "dw_hh" in result["checks"][0]["misses"][0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted({*FAULTS} - {"dropout_scale", "padding_fill"}))
def test_the_grid_notices_every_fault(
    fault: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those of dropout, which is left out, and of the padding, which nobody reads."""
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", fault)
    who = [Runner("cudnn"), Runner("cudnn", settings={"RNNOP_CUDNN_LAYOUT": "padded"})]
    plain = [case for case in grid() if case.cell in ("gru", "lstm", "lstm cell_clip", "rnn_tanh")]
    found = check(plain, who, ["float32"], silent)
    assert any(each.misses for each in found)


def test_a_call_that_fails_is_a_miss_and_the_others_run(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnRNNBackwardWeights_v8:5000")
    (wrong, right) = check([GRU], [Runner("cudnn"), Runner("reference")], ["float32"], silent)
    assert len(wrong.misses) == 1
    assert "CudnnError: cudnnRNNBackwardWeights_v8" in wrong.misses[0]
    assert (wrong.calls, right.calls, right.misses) == (0, 1, [])


def test_a_way_that_this_gpu_has_not_is_a_refusal(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnRNNForward:3000")
    dense = next(case for case in grid() if case.cell == "gru" and case.steps == "dense")
    way = Runner("cudnn", settings={"RNNOP_CUDNN_ALGO": "persist_dynamic"})
    other, default = check([dense], [way, Runner("cudnn")], ["float32"], silent)
    assert sum(other.refused.values()) == 1
    assert not other.misses
    assert "NOT_SUPPORTED" in default.misses[0]


# Who runs


def test_the_cpu_runs_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    if not engine.available():
        pytest.skip("rnnop was installed without a C compiler")
    isas = [each.settings["RNNOP_CPU_ISA"] for each in runners.find_runners(["cpu"])[0]]
    assert isas == list(engine.available())
    monkeypatch.setenv("RNNOP_CPU_ISA", isas[-1])
    assert [each.settings["RNNOP_CPU_ISA"] for each in runners.find_runners(["cpu"])[0]] == isas[
        -1:
    ]


def test_a_setting_is_set_while_its_runner_runs_and_not_after() -> None:
    if len(engine.available()) < 2:
        pytest.skip("there is only one instruction set")
    seen = []

    def watched(inputs: Inputs, backend: str) -> Any:
        seen.append((backend, flags.read("RNNOP_CPU_ISA")))
        return results(inputs, backend)

    results: Callable[..., Any] = Inputs.results
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inputs, "results", watched)
        check([GRU], runners.find_runners(["cpu"])[0], ["float32"], silent)
    assert seen == [("reference", "auto"), *(("cpu", isa) for isa in engine.available())]
    assert "RNNOP_CPU_ISA" not in os.environ


def test_the_ways_of_cudnn(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    names = [each.name for each in runners.find_runners(["cudnn"])[0]]
    assert names[:2] == ["cudnn, NumPy arrays", "cudnn, NumPy arrays, RNNOP_CUDNN_LAYOUT=padded"]
    assert "cudnn, NumPy arrays, RNNOP_CUDNN_ALGO=persist_static" in names
    assert [each.name for each in runners.find_runners(["cudnn"], quick=True)[0]] == names[:1]
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "standard")
    assert not any("ALGO" in each.name for each in runners.find_runners(["cudnn"])[0])


def test_cudnn_without_arrays_on_a_gpu(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    monkeypatch.setitem(FAMILIES, "numpy", memory.CarriedMemory())
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: None)
    found, missing = runners.find_runners(["cudnn"])
    assert not found
    assert missing == {"cudnn": "neither CuPy nor PyTorch is here to hold arrays on the GPU"}


@pytest.fixture
def cupy(double: Double, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cupy.Cupy]:
    module = fake_cupy.Cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    namespace = fake_cupy.Namespace("array_api_compat.cupy")
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", namespace)
    monkeypatch.setitem(FAMILIES, "cupy", memory.CupyMemory())
    monkeypatch.setitem(FAMILIES, "numpy", memory.CarriedMemory())
    arrays._NAMESPACES.clear()
    yield module
    arrays._NAMESPACES.clear()


def test_cupy_arrays(cupy: fake_cupy.Cupy) -> None:
    found = runners.find_runners(["cudnn"], quick=True)[0]
    assert {"cupy", "numpy"} <= {each.family for each in found}
    mine = [each for each in found if each.family in ("cupy", "numpy")]
    for each in check([GRU], mine, ["float64", "bfloat16"], silent):
        assert (each.calls, each.misses) == (1, [])


def test_torch_tensors_go_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from rnnop.torch import host

    monkeypatch.setitem(runners._FAMILIES, "torch", (host.to_tensor, runners._from_torch))
    who = [Runner("reference", "torch")]
    for each in check([GRU], who, ["float64", "float32", "bfloat16"], silent):
        assert (each.calls, each.misses) == (1, [])


@pytest.mark.gpu
def test_cudnn_on_a_gpu() -> None:
    found, missing = runners.find_runners(["cudnn"])
    if not found:
        pytest.skip(f"no GPU to run on: {missing['cudnn']}")
    assert selfcheck("--backend", "cudnn") == 0


def test_where_data_may_be_rounded_the_tolerance_is_a_halves() -> None:
    strict, coarse = TOLERANCES["cudnn", "float32"], TOLERANCES["cudnn", "float16"]
    assert Runner("cudnn").tolerance("float32") == strict
    tf32 = Runner("cudnn", settings={"RNNOP_ALLOW_TF32": "1"})
    assert (tf32.tolerance("float32"), tf32.tolerance("float16")) == (coarse, coarse)
    assert tf32.tolerance("float64") == TOLERANCES["cudnn", "float64"]
    converted = Runner("cudnn", settings={"RNNOP_TENSOR_OP_ALLOW_CONVERSION": "1"})
    assert converted.tolerance("float64") == coarse
    assert converted.tolerance("bfloat16") == TOLERANCES["cudnn", "bfloat16"]
    with flags.settings({"RNNOP_ALLOW_TF32": "1"}):
        assert Runner("cpu").tolerance("float32") == TOLERANCES["cpu", "float32"]


# The grid


def test_every_cell_meets_all_steps_and_all_stacks() -> None:
    pairs = {(case.cell, case.steps) for case in grid()}
    assert pairs == set(itertools.product(CELLS, STEPS))
    pairs = {(case.cell, case.stack) for case in grid()}
    assert pairs == set(itertools.product(CELLS, STACKS))
    assert set(grid(quick=True)) < set(grid())
    assert {case.cell for case in grid(quick=True)} == set(CELLS)
    assert len({case.name for case in grid()}) == len(grid())


@pytest.mark.parametrize("cell", CELLS)
def test_inputs_hold_nan_where_nothing_is_read(cell: str) -> None:
    for case in (each for each in grid(quick=True) if each.cell == cell):
        inputs = steady(case)
        stepwise = [
            inputs.x,
            *(inputs.cotangents[n] for n in inputs.cotangents if n in ("dy", "dc")),
        ]
        for array in stepwise:
            assert np.isnan(array).any() == (case.steps in ("lengths", "mask", "resets"))
        for got in inputs.results("reference").values():
            assert all(np.isfinite(each).all() for each in got)


def test_lengths_hold_zero_and_all() -> None:
    for case in grid():
        if case.steps == "lengths":
            lengths = cases.draw(case).options["lengths"]
            assert (lengths.min(), lengths.max()) == (0, case.sizes[0])


def test_no_sum_is_near_a_kink() -> None:
    kinked = [case for case in grid(quick=True) if CELLS[case.cell].kinked]
    assert {CELLS[case.cell].mode for case in kinked} == {"rnn_relu", "gru", "lstm"}
    for case in kinked:
        inputs = steady(case)
        assert cases._is_smooth(inputs)
    rough = [cases.draw(case, seed) for case in kinked for seed in range(3)]
    assert not all(map(cases._is_smooth, rough))


# Errors


def test_an_error_is_infinite_where_shape_dtype_or_value_is_no_number() -> None:
    wanted = [np.ones((2, 3)), np.ones(4)]
    right = [each.astype(FLOAT32) for each in wanted]
    assert error_of(right, wanted, FLOAT32) == 0
    assert error_of([2 * right[0], right[1]], wanted, FLOAT32) == pytest.approx(math.sqrt(0.6))
    for wrong in (
        [],
        right[:1],
        [right[0].T, right[1]],
        [right[0].astype(np.float64), right[1]],
        [right[0] * np.nan, right[1]],
        [right[0] * np.inf, right[1]],
    ):
        assert error_of(wrong, wanted, FLOAT32) == math.inf


def test_infinite_errors_are_null_in_json_and_marked_in_text() -> None:
    made_up = Check(Runner("cpu"), "float32", 1e-5, {"y": [1e-7, math.inf], "dx": [1e-7, 2e-7]})
    made_up.misses.append("a call: y inf")
    result = report.to_json([made_up], {})
    assert json.loads(json.dumps(result, allow_nan=False))["checks"][0]["worst"]["y"] is None
    lines = report.text([made_up], {"cudnn": "no cuDNN"}, colour=False).splitlines()
    assert [line for line in lines if line.endswith(" *")] == ["y              inf *"]
    assert "not checked: cudnn: no cuDNN" in lines
    assert lines[-2:] == [
        "MISSED in 1 calls:",
        "cpu, float32: a call: y inf",
    ]


def test_few_misses_of_many_are_told() -> None:
    made_up = Check(Runner("cpu"), "float32", 1e-5, {"y": [1.0]}, misses=["a call"] * 50)
    assert report.verdict([made_up]).splitlines()[-1] == "... and 30 more"


# Settings


def test_settings_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_BACKEND", "cpu")

    def inside() -> None:
        with flags.settings({"RNNOP_BACKEND": "reference", "RNNOP_CHECK": "1"}):
            assert (flags.read("RNNOP_BACKEND"), flags.enabled("RNNOP_CHECK")) == (
                "reference",
                True,
            )
            raise RuntimeError

    with pytest.raises(RuntimeError):
        inside()
    assert os.environ["RNNOP_BACKEND"] == "cpu"
    assert "RNNOP_CHECK" not in os.environ
