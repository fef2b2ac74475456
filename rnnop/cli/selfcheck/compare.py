"""The comparison: every runner against the reference in float64, on the same rounded numbers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ... import flags
from ...cudnn.status import Category, CudnnError
from ...errors import UnsupportedError
from ..progress import Progress
from .cases import CELLS, Case, Inputs, Results, error_of, steady
from .runners import Runner


@dataclass(frozen=True)
class Check:
    """What came of one runner in one dtype.

    Attributes
    ----------
    tolerance : float
        The published one: the largest error that is right.
    errors : dict
        By the name of a result: its error in each call.
    refused : Counter of str
        Reasons why calls were refused, and how many.
    misses : list of str
        A line for each call with results beyond the tolerance, and for each that failed.
    """

    runner: Runner
    dtype: str
    tolerance: float
    errors: dict[str, list[float]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """How many calls were compared."""
        return len(self.errors.get("y", ()))


def check(
    cases: Sequence[Case], runners: Sequence[Runner], dtypes: Sequence[str], progress: Progress
) -> list[Check]:
    """Compare all runners on all cases, telling `progress` about each cell that is done."""
    checks = [
        Check(runner, dtype, runner.tolerance(dtype))
        for runner in runners
        for dtype in dtypes
        if dtype in runner.dtypes
    ]
    for cell, group in itertools.groupby(cases, lambda case: case.cell):
        for case in group:
            inputs = steady(case)
            for dtype in dtypes:
                rounded = inputs.cast(dtype)
                wanted = rounded.cast("float64").results("reference")
                for each in checks:
                    # Rounding at every step may carry a sum across any bound, see `steady`.
                    jumps = CELLS[cell].kinked and each.runner.rounds(dtype)
                    if each.dtype == dtype and not jumps:
                        _compare(each, case, rounded, wanted)
        progress(cell)
    return checks


def _compare(check: Check, case: Case, inputs: Inputs, wanted: Results) -> None:
    """Run one call and note its errors, or why there are none."""
    try:
        with flags.settings(check.runner.settings):
            got = _results(check.runner, inputs)
    except Exception as error:  # whatever it is, the report must show it, and the other calls run
        if _is_refusal(check.runner, error):
            check.refused[getattr(error, "fact", "")] += 1
        else:
            text = " ".join(str(error).split())
            check.misses.append(f"{case.name}: {type(error).__name__}: {text}")
        return
    beyond = []
    for name, arrays in wanted.items():
        found = error_of(got.get(name, []), arrays, np.dtype(check.dtype))
        check.errors.setdefault(name, []).append(found)
        if not found <= check.tolerance:
            beyond.append(f"{name} {found:.1e}")
    if beyond:
        check.misses.append(f"{case.name}: {', '.join(beyond)}")


def _results(runner: Runner, inputs: Inputs) -> Results:
    found = inputs.map(runner.move).results(runner.backend)
    return {name: [runner.back(each) for each in arrays] for name, arrays in found.items()}


def _is_refusal(runner: Runner, error: Exception) -> bool:
    """Return whether a backend has no such call, or this GPU not the way that was asked for."""
    if isinstance(error, CudnnError):
        return bool(runner.settings) and error.category is Category.NOT_SUPPORTED
    return isinstance(error, UnsupportedError)
