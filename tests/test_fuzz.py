"""A few hundred of the calls that `tools/fuzz.py` makes; and that it would find a fault."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop import cpu
from rnnop.cpu import engine

pytestmark = pytest.mark.skipif(
    not engine.available(), reason="rnnop was installed without a C compiler"
)


@pytest.fixture(scope="module")
def fuzz() -> Iterator[ModuleType]:
    tools = str(Path(__file__).parents[1] / "tools")
    sys.path.insert(0, tools)
    yield importlib.import_module("fuzz")
    sys.path.remove(tools)


@pytest.fixture
def calls(fuzz: ModuleType) -> ModuleType:
    return importlib.import_module("fuzzing.calls")


@pytest.fixture(autouse=True)
def same_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        yield


def test_no_call_of_a_few_hundred_has_a_fault(fuzz: ModuleType) -> None:
    tally = fuzz.fuzz(400, seed=0)
    assert not tally.faults
    for kind in (
        "compared",
        "compared with gradients",
        "compared with prepacked weights",
        "a row compared with itself alone",
        *(f"refused: {name}" for name in ("ShapeError", "DTypeError", "SpecError", "TypeError")),
    ):
        assert tally.kinds[kind] > 5, kind


def test_a_call_follows_from_its_seed(calls: ModuleType) -> None:
    judge = importlib.import_module("fuzzing.judge")
    for seed in range(20):
        one, other = calls.draw(seed), calls.draw(seed)
        mine, theirs = ([a.tobytes() for a in judge.arrays_of(call)] for call in (one, other))
        assert mine == theirs
        assert one.options.keys() == other.options.keys()


@pytest.mark.parametrize(("over", "count"), [("torch", 200), ("jax", 40)])
def test_frameworks_do_what_numpy_does(fuzz: ModuleType, over: str, count: int) -> None:
    pytest.importorskip(over, reason=f"there is nothing to compare: pip install rnnop[{over}]")
    tally = fuzz.fuzz(count, seed=0, over=over)
    assert not tally.faults
    for kind in ("compared", "compared with gradients", "refused: DTypeError"):
        assert tally.kinds[kind] > 2, kind


def test_no_call_of_the_world_model_has_a_fault(fuzz: ModuleType) -> None:
    tally = fuzz.fuzz(300, seed=0, over="rssm")
    assert not tally.faults
    for kind in (
        "compared",
        "compared with gradients",
        "a row compared with itself alone",
        *(f"refused: {name}" for name in ("ShapeError", "DTypeError", "SpecError", "TypeError")),
    ):
        assert tally.kinds[kind] > 2, kind


def test_units_in_the_last_place_are_no_fault(fuzz: ModuleType) -> None:
    """1 - h * h is of no more digits than 1 - h has, in the gradient of a unit near its limit."""
    assert not fuzz.fuzz(1, seed=103119).faults
    assert not fuzz.fuzz(1, seed=108491).faults


def _off_by_a_little(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(problem: Any, keep: bool) -> Any:
        result = forward(problem, keep)
        if result.y.size > 3:
            result.y[-1, -1] *= 1 + np.asarray(1e-2, result.y.dtype)
        return result

    return wrong


def _writes_to_x(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(problem: Any, keep: bool) -> Any:
        result = forward(problem, keep)
        if problem.x.flags.writeable:
            problem.x[...] = 0
        return result

    return wrong


def _fails(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(problem: Any, keep: bool) -> Any:
        if problem.x.shape[0] == 4:
            raise ZeroDivisionError
        return forward(problem, keep)

    return wrong


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_off_by_a_little, "y is off by"),
        (_writes_to_x, "an argument was changed"),
        (_fails, "ZeroDivisionError"),
    ],
)
def test_it_finds_a_fault(
    fuzz: ModuleType,
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "forward", change(cpu.forward))
    faults = fuzz.fuzz(100, seed=0).faults
    assert any(word in fault for fault in faults), faults


def test_it_finds_what_is_accepted_though_wrong(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = rnnop.rnn

    def lenient(x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any) -> Any:
        if isinstance(h0, np.ndarray) and isinstance(x, np.ndarray):
            h0 = h0.astype(x.dtype)
        return good(x, weights, h0, c0, **options)

    monkeypatch.setattr(rnnop, "rnn", lenient)
    assert any("accepted, though wrong: dtype" in fault for fault in fuzz.fuzz(300, seed=0).faults)


def test_it_finds_what_a_framework_does_otherwise(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="there is nothing to compare: pip install rnnop[torch]")
    through_torch = importlib.import_module("fuzzing.through_torch")
    good = rnnop.rnn

    def wrong(x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any) -> Any:
        out = good(x, weights, h0, c0, **options)
        tensor = isinstance(out.y, through_torch.torch.Tensor)
        return out._replace(h_n=out.h_n * 1.001) if tensor else out

    monkeypatch.setattr(rnnop, "rnn", wrong)
    faults = fuzz.fuzz(50, seed=0, over="torch").faults
    assert any("h_n has other bits than with NumPy" in fault for fault in faults), faults


def test_it_finds_a_world_model_that_is_wrong(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rnnop.cpu import rssm as native

    good = native.forward

    def wrong(problem: Any, keep: bool) -> Any:
        steps, saved = good(problem, keep)
        return steps | {"belief": steps["belief"] * np.asarray(1.01, problem.dtype)}, saved

    monkeypatch.setattr(native, "forward", wrong)
    faults = fuzz.fuzz(60, seed=0, over="rssm").faults
    assert any("belief is off by" in fault for fault in faults), faults
