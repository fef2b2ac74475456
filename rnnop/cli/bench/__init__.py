"""Measure rnnop on this machine, against whatever peers are installed.

LSTM, GRU and RSSM on the CPU, float32, forward and training, dense and ragged batches, streams of
single steps, cost against the share of real steps and against T, N and H, and memory. Peers are
PyTorch, ONNX Runtime, JAX and, for the RSSM, TorchRL, with the same weights and the same number of
threads. Outputs and gradients
are compared before anything is timed: who disagrees is reported as failed and not timed.

All take turns in one process for each number of threads. Times are medians; +- is half the distance
between the quartiles. The ratio is the time of the best peer over that of rnnop: above 1, rnnop is
faster; rows where it loses are marked. Leave the machine alone while this runs: everything takes
some ten minutes, --quick takes less than half a minute.

  python -m rnnop bench --quick
  python -m rnnop bench --threads 2 --only "ragged * lstm"
  python -m rnnop bench --output results

The exit status is 1 if a contender failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...cpu import engine
from ..extras import require
from ..progress import progress
from . import cases, figures, report
from .peers import PEERS, Peer
from .plan import Plan, collect
from .results import Run

_SECONDS, _QUICK_SECONDS = 1.0, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--quick", action="store_true", help="a few small cases, on the most threads only"
    )
    parser.add_argument(
        "--threads",
        type=_thread_counts,
        metavar="COUNT[,COUNT]",
        help="numbers of threads, a run for each; default: 1,2, as far as there are cores",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="only cases with this in their name; * and ? as in a shell; see --list",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument(
        "--peers",
        type=_peers,
        metavar="NAMES",
        help=f"some of {', '.join(peer.name for peer in PEERS)}, or none; default: all installed",
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        metavar="S",
        help="time for the turns of a case, more where that is too short for 5 rounds; "
        f"default: {_SECONDS}, with --quick {_QUICK_SECONDS}",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write results.json, results.md and plots there",
    )


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    chosen = cases.matching(cases.quick() if options.quick else cases.every(), options.only)
    if not chosen:
        raise SystemExit(f"rnnop: no case has {options.only!r} in its name; see --list")
    if options.list:
        names = [case.name for case in chosen]
        print(json.dumps(names) if options.json else "\n".join(names))
        return
    require("bench", "tqdm", "threadpoolctl", *(["matplotlib"] if options.output else []))
    possible = [count for count in (1, 2) if count <= engine.available_cores()]
    threads = options.threads or (possible[-1:] if options.quick else possible)
    plan = Plan(
        chosen,
        threads,
        [peer for peer in PEERS if peer.installed] if options.peers is None else options.peers,
        options.seconds or (_QUICK_SECONDS if options.quick else _SECONDS),
    )
    with progress(plan.num_steps(), "case") as show:
        measured = collect(plan, show)
    if options.output:
        write(measured, options.output)
    print(
        json.dumps(measured.to_json())
        if options.json
        else report.text(measured, sys.stdout.isatty())
    )
    if measured.failures:
        raise SystemExit(1)


def write(measured: Run, folder: Path) -> None:
    """Write the figures, the tables and the plots of a run into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = figures.draw(measured, folder)
    page = report.markdown(measured, plots)
    numbers = json.dumps(measured.to_json(), indent=1)
    (folder / "results.md").write_text(page, encoding="utf-8")
    (folder / "results.json").write_text(numbers + "\n", encoding="utf-8")


def _thread_counts(text: str) -> list[int]:
    """Return the numbers of threads, each once, the fewest first."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not one or more counts such as 1,2")
    return sorted({int(part) for part in parts})


def _peers(text: str) -> list[Peer]:
    if text == "none":
        return []
    known = {peer.name.lower(): peer for peer in PEERS}
    found = []
    for name in text.split(","):
        peer = known.get(name.strip().lower())
        if peer is None:
            names = ", ".join(peer.name for peer in PEERS)
            raise argparse.ArgumentTypeError(f"{name.strip()!r} is none of {names}, none")
        if not peer.installed:
            raise argparse.ArgumentTypeError(
                f'{peer.name} is not installed: pip install "{peer.install}"'
            )
        found.append(peer)
    return found


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value
