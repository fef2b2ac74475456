"""The plots: ratios, losing ones visible; cost against the share of real steps; scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .measure import Measurement
from .peers import OURS, is_ours
from .results import Run, counted, in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of Okabe and Ito, which most people can tell apart.
_WINS, _LOSES = "#0072B2", "#D55E00"
_PEERS = {
    "PyTorch": "#E69F00",
    "PyTorch, packed": "#CC79A7",
    "ONNX Runtime": "#009E73",
    "JAX": "#56B4E9",
    "TorchRL": "#F0E442",
    "TorchRL, compiled": "#000000",
}

_WORKS = ("forward", "training")


def draw(run: Run, folder: Path) -> list[str]:
    """Write the plots for which there are figures as PNG, and return their names."""
    plots: dict[str, Callable[[Run, Path], bool]] = {
        "ratios.png": _ratios,
        "fill.png": _fill,
        "scaling.png": lambda run, path: _scaling(run, path, _LSTM),
        "rssm.png": lambda run, path: _scaling(run, path, _RSSM),
    }
    return [name for name, plot in plots.items() if plot(run, folder / name)]


def _ratios(run: Run, path: Path) -> bool:
    """Draw a bar for each case that has a peer, those where rnnop loses in another colour."""
    members = run.of_group("dense", "ragged", "stream", "rssm")
    parts = list(dict.fromkeys(each.threads for each in members if each.ratio() is not None))
    if not parts:
        return False
    most = max(len([each for each in members if each.threads == part]) for part in parts)
    figure = _figure(7.5 * len(parts), 1.5 + 0.26 * most)
    for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        _bars(axes, [each for each in members if each.threads == part])
        axes.set_title(counted(part))
    figure.suptitle("Best peer's time / rnnop's time: beyond 1, rnnop is faster")
    figure.savefig(path, format="png")
    return True


def _bars(axes: Axes, members: list[Measurement]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    shown = [(each, ratio) for each in members if (ratio := each.ratio()) is not None]
    for place, (each, ratio) in enumerate(shown):
        # A bar begins at 1, so that a loss goes to the left.
        colour = _WINS if ratio >= 1.0 else _LOSES
        axes.barh(place, ratio - 1.0, left=1.0, color=colour, height=0.7)
        label = f" {ratio:.2f} {each.best_peer}"
        axes.text(max(ratio, 1.0), place, label, va="center", fontsize=7, color=colour)
    names = [f"{each.case.work} {each.case.problem}" for each, _ in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xscale("log", base=2)
    ratios = [ratio for _, ratio in shown]
    axes.set_xlim(min(0.8, *ratios) / 1.1, max(1.25, *ratios) * 2.0)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1.0, color="black", linewidth=1.0)
    _quiet(axes, "x")


def _fill(run: Run, path: Path) -> bool:
    """Draw cost against the share of real steps, ours and the peers'."""
    members = run.of_group("fill")
    if not members:
        return False
    figure = _figure(11.0, 4.5)
    for axes, work in zip(figure.subplots(1, 2), _WORKS, strict=True):
        mine = [each for each in members if each.case.work == work]
        _curves(axes, mine, lambda each: 100.0 * each.case.fill)
        axes.set(title=work, xlabel="steps that are real (%)", ylabel="time of a call (ms)")
        axes.set(xlim=(0.0, 102.0))
        axes.set_ylim(bottom=0.0)
    case: Any = members[0].case
    threads = members[0].threads
    sizes = f"N={case.batch_size} T={case.num_steps} I={case.input_size} H={case.hidden_size}"
    figure.suptitle(f"Cost against fill: {case.mode.upper()}, {sizes}, threads: {threads}")
    figure.savefig(path, format="png")
    return True


# A title, then for each group the label of the size that is varied, and the field that has it.
_Scales = tuple[str, dict[str, tuple[str, str]]]
_LSTM: _Scales = (
    "LSTM, T=100 N=16 I=128 H=128",
    {
        "scale T": ("steps T", "num_steps"),
        "scale N": ("batch size N", "batch_size"),
        "scale H": ("hidden size H", "hidden_size"),
    },
)
_RSSM: _Scales = (
    "RSSM rollout, T=50 N=16 H=200 S=30",
    {
        "rssm scale T": ("steps T", "num_steps"),
        "rssm scale N": ("batch size N", "batch_size"),
        "rssm scale H": ("belief H", "belief_size"),
    },
)


def _scaling(run: Run, path: Path, scales: _Scales) -> bool:
    """Draw cost against T, N and H, both axes logarithmic."""
    title, groups = scales
    members = run.of_group(*groups)
    if not members:
        return False
    figure = _figure(13.0, 7.5)
    grid = figure.subplots(len(_WORKS), len(groups))
    for row, work in zip(grid, _WORKS, strict=True):
        for axes, (group, (label, field)) in zip(row, groups.items(), strict=True):
            size = _size_of(field)
            mine = [each for each in members if (each.case.group, each.case.work) == (group, work)]
            _curves(axes, mine, size)
            axes.set(title=work, xlabel=label, ylabel="time of a call (ms)")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            ticks = [size(each) for each in mine]
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    threads = members[0].threads
    figure.suptitle(f"Scaling: {title} with one of them varied, threads: {threads}")
    figure.savefig(path, format="png")
    return True


def _size_of(field: str) -> Callable[[Measurement], float]:
    return lambda each: float(getattr(each.case, field))


def _curves(
    axes: Axes, members: Sequence[Measurement], position: Callable[[Measurement], float]
) -> None:
    """Draw a line for each contender, with its quartiles as a band."""
    names = in_order(name for each in members for name in each.results)
    for name in names:
        timed = [
            (position(each), result.timing)
            for each in members
            if (result := each.results.get(name)) is not None and result.timing is not None
        ]
        colour = _WINS if is_ours(name) else _PEERS.get(name, "black")
        style = ("-", 2.2) if name == OURS else (":", 1.5) if is_ours(name) else ("-", 1.5)
        places = [place for place, _ in timed]
        axes.plot(
            places,
            [1e3 * each.median for _, each in timed],
            label=name,
            color=colour,
            linestyle=style[0],
            linewidth=style[1],
            marker="o",
        )
        axes.fill_between(
            places,
            [1e3 * each.lower for _, each in timed],
            [1e3 * each.upper for _, each in timed],
            color=colour,
            alpha=0.15,
            linewidth=0.0,
        )
    if names:
        axes.legend(frameon=False, fontsize=8)
    _quiet(axes, "both")


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _quiet(axes: Axes, grid: Any) -> None:
    axes.grid(alpha=0.3, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
