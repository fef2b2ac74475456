"""Everything that a run has measured, and its form in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .measure import Measurement
from .memory import Footprint


@dataclass(frozen=True)
class Setting:
    """What the measurements on one number of threads have in common.

    Attributes
    ----------
    threads : int
        How many.
    peak : float
        Float32 FLOP/s of a large matrix product.
    backend : str
        The backend of rnnop, and how it runs.
    blas : list of str
        Every BLAS that was loaded.
    busy_cores : float or None
        How many cores others kept busy before the first measurement; None if not known.
    """

    threads: int
    peak: float
    backend: str
    blas: list[str]
    busy_cores: float | None


@dataclass(frozen=True)
class Run:
    """The machine, the versions of what is installed, the peers that are not, and the figures."""

    machine: dict[str, Any]
    versions: dict[str, str]
    missing: list[str]
    settings: list[Setting] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    def of_group(self, *groups: str) -> list[Measurement]:
        """Return the measurements of some groups."""
        return [each for each in self.measurements if each.case.group in groups]

    def share_of_peak(self, measurement: Measurement) -> float | None:
        """Return what share of the measured peak rnnop reaches."""
        peak = next(each.peak for each in self.settings if each.threads == measurement.threads)
        reached = measurement.flops_per_second
        return None if reached is None else reached / peak

    @property
    def failures(self) -> list[str]:
        """One sentence for each contender that was not timed."""
        return [
            f"{each.case.name}, threads: {each.threads}: {name}: {why}"
            for each in self.measurements
            for name, why in each.failures.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the run as what JSON knows, with the figures that follow from others."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "missing": self.missing,
            "settings": [asdict(each) for each in self.settings],
            "measurements": [self._measurement(each) for each in self.measurements],
            "footprints": [{**asdict(each), "case": each.case.name} for each in self.footprints],
        }

    def _measurement(self, each: Measurement) -> dict[str, Any]:
        case = each.case
        return {
            "name": case.name,
            "threads": each.threads,
            "case": asdict(case),
            "real_steps": case.real_steps,
            "fill": case.fill,
            "flops": case.flops,
            "results": {name: asdict(result) for name, result in each.results.items()},
            "best_peer": each.best_peer,
            "ratio": each.ratio(),
            "flops_per_second": each.flops_per_second,
            "share_of_peak": self.share_of_peak(each),
        }


def in_order(names: Iterable[str]) -> list[str]:
    """Return each name once, in the order in which they come first."""
    return list(dict.fromkeys(names))


def counted(threads: int) -> str:
    """Return '1 thread', '2 threads' and so on."""
    return f"{threads} thread{'s' if threads > 1 else ''}"
