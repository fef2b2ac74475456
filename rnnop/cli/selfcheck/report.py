"""What a check has found: a table for each runner, the reasons, the verdict."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..tables import Table
from .compare import Check

# Outputs, then gradients.
_NAMES = (
    *("y", "h_n", "c_n", "c", "dx", "dh0", "dc0"),
    *("dw_ih", "dw_hh", "db_ih", "db_hh", "dw_hr", "dpeephole"),
)
_MOST = 20  # misses that are told one by one


def tables(checks: Sequence[Check]) -> Iterator[Table]:
    """Yield the worst errors of each runner: a row for each result, a column for each dtype."""
    for runner, group in itertools.groupby(checks, lambda check: check.runner):
        mine = list(group)
        names = [name for name in _NAMES if any(name in check.errors for check in mine)]
        rows = [[name, *(_worst(check, name) for check in mine)] for name in names]
        marked = {
            row
            for row, name in enumerate(names)
            if any(not _largest(check, name) <= check.tolerance for check in mine)
        }
        rows.append(["tolerance", *(f"{check.tolerance:.0e}" for check in mine)])
        rows.append(["calls", *(str(check.calls) for check in mine)])
        yield Table(runner.name, ["", *(check.dtype for check in mine)], rows, marked)


def refusals(checks: Sequence[Check]) -> Iterator[str]:
    """Yield a sentence for each reason that a backend gave against calls."""
    for backend, group in itertools.groupby(checks, lambda check: check.runner.backend):
        reasons = sum((check.refused for check in group), Counter[str]())
        for reason, count in reasons.items():
            yield f"{backend} refused {count} calls: {reason.rpartition('this call: ')[2]}"


def text(checks: Sequence[Check], missing: dict[str, str], colour: bool) -> str:
    """Return all of it for a terminal."""
    blocks = [table.text(colour) for table in tables(checks)]
    notes = [*refusals(checks), *(f"not checked: {name}: {why}" for name, why in missing.items())]
    return "\n\n".join(filter(None, [*blocks, "\n".join(notes), verdict(checks)]))


def verdict(checks: Sequence[Check]) -> str:
    """Return how it went, with the misses."""
    misses = [
        f"{check.runner.name}, {check.dtype}: {miss}" for check in checks for miss in check.misses
    ]
    if misses:
        more = [f"... and {len(misses) - _MOST} more"] if len(misses) > _MOST else []
        return "\n".join([f"MISSED in {len(misses)} calls:", *misses[:_MOST], *more])
    compared = sum(len(errors) for check in checks for errors in check.errors.values())
    return f"ok: all {compared:,} results are within the published tolerances"


def to_json(checks: Sequence[Check], missing: dict[str, str]) -> dict[str, Any]:
    """Return all of it as data; an error without bounds is null."""
    return {
        "ok": not any(check.misses for check in checks),
        "checks": [
            {
                "backend": check.runner.backend,
                "arrays": check.runner.family,
                "settings": check.runner.settings,
                "dtype": check.dtype,
                "tolerance": check.tolerance,
                "calls": check.calls,
                "worst": {
                    name: worst if math.isfinite(worst := max(errors)) else None
                    for name, errors in check.errors.items()
                },
                "refused": dict(check.refused),
                "misses": check.misses,
            }
            for check in checks
        ],
        "not_checked": missing,
    }


def _largest(check: Check, name: str) -> float:
    return max(check.errors.get(name, [0.0]))


def _worst(check: Check, name: str) -> str:
    return f"{_largest(check, name):.1e}" if name in check.errors else "-"
