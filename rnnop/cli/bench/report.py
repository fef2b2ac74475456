"""The tables of a run, and the page that they make."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..tables import Table
from .cases import GROUPS
from .measure import Measurement
from .memory import Footprint
from .results import Run, counted, in_order


def tables(run: Run) -> list[Table]:
    """Return the tables, the summary first; empty ones are left out."""
    found = [_summary(run), *_details(run), _memory(run)]
    return [table for table in found if table.rows]


def notes(run: Run) -> list[str]:
    """Return what a reader must know beside the tables, a sentence each."""
    found = [
        f"{counted(setting.threads)}: rnnop on {setting.backend}; measured peak "
        f"{setting.peak / 1e9:.0f} GFLOP/s, the fastest of a few large products through "
        f"numpy.matmul; {'; '.join(setting.blas)}."
        for setting in run.settings
    ]
    found += [
        f"{counted(setting.threads)}: others kept {setting.busy_cores:.1f} cores busy before the "
        "first measurement: the figures are noisy."
        for setting in run.settings
        if setting.busy_cores is not None and setting.busy_cores > 0.1
    ]
    if run.missing:
        found.append(f"Not installed here: {', '.join(run.missing)}.")
    found += [f"Not timed: {failure}." for failure in run.failures]
    for each in run.measurements:
        for name, result in each.results.items():
            if result.timing and result.timing.cores > 1.2 * each.threads:
                found.append(
                    f"{each.case.name}: {name} kept {result.timing.cores:.1f} cores busy, "
                    f"with {counted(each.threads)}."
                )
    return found


def text(run: Run, colour: bool) -> str:
    """Return the run for a terminal."""
    blocks = [table.text(colour) for table in tables(run)]
    return "\n\n".join([_machine(run), *blocks, "\n".join(notes(run))])


def markdown(run: Run, figures: list[str]) -> str:
    """Return the run as a page that shows the files `figures`, which lie beside it."""
    blocks = [
        "# Benchmark results",
        _machine(run),
        "Times are medians; ± is half the distance between the quartiles. The ratio is the median "
        "of the fastest peer over that of rnnop: above 1, rnnop is faster; rows named in bold "
        "are those where it is not. FLOPs count real steps only. How all this is measured is in "
        "`benchmarks/README.md`.",
        "\n".join(f"* {note}" for note in notes(run)),
        *(f"![{name.removesuffix('.png')}]({name})" for name in figures),
        *(table.markdown() for table in tables(run)),
    ]
    return "\n\n".join(blocks) + "\n"


def _machine(run: Run) -> str:
    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"{machine['processor']}, {machine['cores']} cores "
        f"({', '.join(machine['instruction_sets'])}), {machine['memory_gib']} GiB; "
        f"{machine['system']}, Python {machine['python']}, numpy {machine['numpy']}, {versions}"
    )


def _summary(run: Run) -> Table:
    """Return how the ratios of each group are spread."""
    header = ["best peer / rnnop", "cases", "least", "geometric mean", "most", "lost"]
    rows: list[list[str]] = []
    marked = set()
    for (group, work, threads), members in _parts(run, ("dense", "ragged", "stream", "rssm")):
        ratios = [ratio for each in members if (ratio := each.ratio()) is not None]
        if not ratios:
            continue
        lost = sum(ratio < 1.0 for ratio in ratios)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        if lost:
            marked.add(len(rows))
        rows.append(
            [
                f"{_title(group, work)}, {counted(threads)}",
                str(len(ratios)),
                *(f"{ratio:.2f}" for ratio in (min(ratios), mean, max(ratios))),
                str(lost),
            ]
        )
    return Table("Summary", header, rows, marked)


def _details(run: Run) -> Iterator[Table]:
    """Yield a table of every group, work and number of threads."""
    for (group, work, threads), members in _parts(run, tuple(GROUPS)):
        names = in_order(name for each in members for name in each.results)
        unit = "µs for a step" if group == "stream" else "ms"
        header = [
            "N,T,H,S" if group.startswith("rssm") else "N,T,I,H",
            *names,
            "ratio",
            "GFLOP/s",
            "of peak",
        ]
        rows = [
            [
                each.case.problem,
                *(_time(each, name) for name in names),
                _number(each.ratio(), "{:.2f}"),
                _number(each.flops_per_second, "{:.1f}", 1e-9),
                _number(run.share_of_peak(each), "{:.0f} %", 100.0),
            ]
            for each in members
        ]
        ratios = [each.ratio() for each in members]
        marked = {k for k, ratio in enumerate(ratios) if ratio is not None and ratio < 1.0}
        title = f"{_title(group, work)}, {counted(threads)} ({unit})"
        yield Table(title, header, rows, marked)


def _memory(run: Run) -> Table:
    """Return what a call takes beyond inputs and weights, a row for each problem."""
    problems: dict[str, list[Footprint]] = {}
    for each in run.footprints:
        problems.setdefault(each.case.name, []).append(each)
    longest = sorted(problems.values(), key=len, reverse=True)
    names = in_order(each.contender for mine in longest for each in mine)
    rows = []
    for mine in problems.values():
        peaks = {each.contender: f"{each.peak / 2**20:.1f}" for each in mine}
        results = f"{mine[0].results / 2**20:.1f}"
        label = f"{mine[0].case.problem}, {mine[0].case.work}"
        rows.append([label, results, *(peaks.get(name, "") for name in names)])
    title = "Memory of a call beyond its inputs and weights, at most at a time (MiB)"
    return Table(title, ["N,T,I,H or N,T,H,S", "its results alone", *names], rows)


def _parts(
    run: Run, groups: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str, int], list[Measurement]]]:
    """Yield the measurements of each group, work and number of threads."""
    members = run.of_group(*groups)
    keys = dict.fromkeys((each.case.group, each.case.work, each.threads) for each in members)
    for key in sorted(keys, key=lambda key: (groups.index(key[0]), key[1], key[2])):
        group, work, threads = key
        yield (
            key,
            [
                each
                for each in members
                if (each.case.group, each.case.work, each.threads) == (group, work, threads)
            ],
        )


def _title(group: str, work: str) -> str:
    return GROUPS[group] if work == "stream" else f"{GROUPS[group]}, {work}"


def _time(measurement: Measurement, name: str) -> str:
    """Return a contender's median and spread; what happened when it has none."""
    result = measurement.results.get(name)
    if result is None:
        return ""
    if result.timing is None:
        return "failed"
    scale = 1e6 / measurement.case.num_steps if measurement.case.work == "stream" else 1e3
    median = result.timing.median * scale
    return f"{median:{'.3g' if median < 1000 else '.0f'}} ±{100 * result.timing.spread:.0f} %"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(value * scale)
