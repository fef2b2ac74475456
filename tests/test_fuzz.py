"""A few hundred of the calls that `tools/fuzz.py` makes; and that it would find a fault."""

from __future__ import annotations

import importlib.util
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
def fuzz() -> ModuleType:
    file = Path(__file__).parents[1] / "tools" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


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


def test_a_call_follows_from_its_seed(fuzz: ModuleType) -> None:
    for seed in range(20):
        one, other = fuzz.draw(seed), fuzz.draw(seed)
        assert fuzz._bytes(one) == fuzz._bytes(other)
        assert one.options.keys() == other.options.keys()


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
