"""Measure how exact every backend here is, in every dtype, instruction set and switch.

    python benchmarks/tolerances.py

It runs the grid of `python -m rnnop selfcheck`, and a few long sequences. The results go to
`benchmarks/results/`, into a folder named after the machine; `docs/tolerances.md` shows them.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from rnnop.arrays import FLOATS
from rnnop.backends import BACKENDS
from rnnop.cli import info
from rnnop.cli.bench.machine import slug
from rnnop.cli.progress import progress
from rnnop.cli.selfcheck import report
from rnnop.cli.selfcheck.cases import CELLS, Case, grid
from rnnop.cli.selfcheck.compare import Check, check
from rnnop.cli.selfcheck.runners import Runner, find_runners
from rnnop.cli.tables import Table

OUTPUTS = ("y", "h_n", "c_n", "c")
LONG = {steps: (steps, 4, 32, 64) for steps in (10, 1000)}  # T, N, I, H by T
LONG_CELLS = ("rnn_tanh", "gru", "lstm")


def short(runner: Runner) -> str:
    """Return a name that fits into a table."""
    return runner.name.replace("RNNOP_", "")


def summary(checks: list[Check]) -> Table:
    """Return median and worst of all outputs and of all gradients, beside the tolerance."""
    header = ["backend", "dtype", "outputs", "worst", "gradients", "worst", "tolerance"]
    rows = []
    for each in checks:
        kinds: tuple[list[float], list[float]] = ([], [])
        for name, errors in each.errors.items():
            kinds[name not in OUTPUTS].extend(errors)
        if each.calls:
            figures = [f(kind) for kind in kinds for f in (statistics.median, max)]
            cells = [f"{figure:.1e}" for figure in figures]
            rows.append([short(each.runner), each.dtype, *cells, f"{each.tolerance:.0e}"])
    return Table("All calls, median and worst", header, rows)


def growth(runners: list[Runner]) -> Table:
    """Return the errors of y and dw_hh of one layer, for longer and longer sequences."""
    cases = [Case(cell, "dense", "1 layer", LONG[steps]) for cell in LONG_CELLS for steps in LONG]
    found: dict[tuple[str, str, str], list[list[float]]] = {}
    with progress(len(cases), "sequence") as show:
        for case in cases:
            for each in check([case], runners, FLOATS, lambda _: None):
                row = found.setdefault((each.dtype, short(each.runner), case.cell), [])
                row.append([each.errors[name][0] for name in ("y", "dw_hh")])
            show(case.name)
    names = [short(each) for each in runners]
    order = sorted(found, key=lambda key: (FLOATS.index(key[0]), names.index(key[1])))
    rows = [
        [
            name,
            cell,
            dtype,
            *(f"{error:.1e}" for kind in zip(*errors, strict=True) for error in kind),
        ]
        for dtype, name, cell in order
        for errors in (found[dtype, name, cell],)
    ]
    header = [f"{name}, T={steps}" for name in ("y", "dw_hh") for steps in LONG]
    return Table("Longer sequences", ["backend", "cell", "dtype", *header], rows)


def page(checks: list[Check], longer: Table, missing: dict[str, str]) -> Iterator[str]:
    """Yield the blocks of the page."""
    about = info.describe()
    engine = about["engine"]
    compiler = f", engine compiled by {engine['compiler']}" if isinstance(engine, dict) else ""
    yield "# Measured accuracy"
    yield (
        f"{about['processor']}; {about['system']}, {about['python']}, "
        f"{about['packages']['numpy']}, rnnop {about['rnnop']}{compiler}"
    )
    yield "\n".join(f"* Not measured here: `{name}`." for name in missing)
    yield summary(checks).markdown()
    yield longer.markdown()
    yield from (table.markdown() for table in report.tables(checks))
    yield "\n".join(f"* {each}." for each in report.refusals(checks))


if __name__ == "__main__":
    runners, missing = find_runners(list(BACKENDS))
    with progress(len(CELLS), "cell") as show:
        checks = check(grid(), runners, FLOATS, show)
    longer = growth(find_runners(list(BACKENDS), quick=True)[0])
    folder = Path(__file__).parent / "results" / slug()
    folder.mkdir(parents=True, exist_ok=True)
    blocks = filter(None, page(checks, longer, missing))
    (folder / "tolerances.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    numbers = json.dumps(report.to_json(checks, missing), indent=1)
    (folder / "tolerances.json").write_text(numbers + "\n", encoding="utf-8")
    print(report.verdict(checks))
    sys.exit(any(each.misses for each in checks))
