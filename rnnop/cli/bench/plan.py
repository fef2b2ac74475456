"""What is to be measured, and the run that does it.

There is a process for each number of threads, then one for each footprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import rnnop

from ..progress import Progress
from . import machine
from .cases import CURVES, AnyCase
from .measure import Measurement, loaders, measure
from .memory import Footprint, contenders, footprint, measurable
from .peers import PEERS, Peer
from .processes import run_in_fresh_process
from .results import Run, Setting, counted


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes
    ----------
    cases : list of Case and RSSMCase
        Of all groups. Curves and memory are measured on the most threads only.
    threads : sequence of int
        How many threads, one run of the cases for each.
    peers : list of Peer
        The peers that are installed and wanted.
    seconds : float
        How long the contenders of a case take turns, unless that is too short for a few rounds.
    """

    cases: list[AnyCase]
    threads: Sequence[int]
    peers: list[Peer]
    seconds: float

    def timed(self, threads: int) -> list[AnyCase]:
        """Return the cases that are timed on so many threads."""
        most = threads == max(self.threads)
        return [
            case
            for case in self.cases
            if case.group != "memory" and (most or case.group not in CURVES)
        ]

    def weighed(self) -> list[AnyCase]:
        """Return the cases whose memory is measured, if the system can tell."""
        weighed = [case for case in self.cases if case.group == "memory"]
        return weighed if weighed and measurable() else []

    def num_steps(self) -> int:
        """Return how often `collect` reports progress."""
        return sum(len(self.timed(threads)) for threads in self.threads) + len(self.weighed())


def collect(plan: Plan, progress: Progress) -> Run:
    """Measure everything, telling `progress` about each case that is done."""
    versions = {"rnnop": rnnop.__version__}
    for peer in plan.peers:
        versions |= peer.versions
    missing = [peer.name for peer in PEERS if not peer.installed]
    run = Run(machine.describe(), versions, missing)
    for threads in plan.threads:
        cases = plan.timed(threads)
        if not cases:
            continue
        for item in run_in_fresh_process(
            threads, _measurements, cases, threads, plan.peers, plan.seconds
        ):
            if isinstance(item, Setting):
                run.settings.append(item)
            else:
                run.measurements.append(item)
                progress(_told(item))
    for case in plan.weighed():
        found = list(_weigh(case, max(plan.threads), plan.peers))
        run.footprints.extend(found)
        progress(case.name)
    return run


def _measurements(
    cases: list[AnyCase], threads: int, peers: list[Peer], seconds: float
) -> Iterator[Setting | Measurement]:
    """Yield the setting, then each measurement; run in a process of its own."""
    loads = loaders(peers)
    weights = rnnop.init_weights("gru", input_size=1, hidden_size=1, seed=0)
    how = rnnop.explain(np.zeros((1, 1, 1), np.float32), weights)
    backend = f"{how.backend} ({how.manner})" if how.manner else how.backend
    busy = machine.busy_cores()
    yield Setting(threads, machine.peak(), backend, machine.blas(), busy)
    for case in cases:
        yield measure(case, threads, loads, seconds)


def _weigh(case: AnyCase, threads: int, peers: list[Peer]) -> Iterator[Footprint]:
    """Yield the footprint of everybody, each from a process of its own."""
    loads = loaders(peers)
    for name, place in list(run_in_fresh_process(threads, contenders, case, threads, loads)):
        yield from run_in_fresh_process(threads, footprint, case, threads, loads[name], place)


def _told(measurement: Measurement) -> str:
    """Return what the progress says about a case that is done."""
    ratio = measurement.ratio()
    text = f"{measurement.case.name}, {counted(measurement.threads)}"
    return text if ratio is None else f"{text}: {ratio:.2f} x {measurement.best_peer}"
