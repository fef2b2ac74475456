"""One case: everybody's outputs compared, then everybody timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .agreement import TOLERANCE, largest_difference
from .cases import AnyCase, AnyInputs, draw
from .peers import OURS, OURSELVES, Contender, Peer, is_ours
from .timing import Timing, interleave

Load = Callable[[AnyInputs, int], list[Contender]]


@dataclass(frozen=True)
class Result:
    """What came out for one contender: a timing, or the reason why there is none.

    Attributes
    ----------
    timing : Timing or None
        What its calls took.
    difference : float or None
        Its largest difference from rnnop's outputs, as a share of the largest entry; None if it
        has none or no finite one.
    failure : str or None
        Why it was not timed.
    """

    timing: Timing | None = None
    difference: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Measurement:
    """A case, how many threads it ran on, and the result of every contender by its name."""

    case: AnyCase
    threads: int
    results: dict[str, Result] = field(default_factory=dict)

    def seconds(self, name: str) -> float | None:
        """Return the median of a contender, None if it has none."""
        result = self.results.get(name)
        return result.timing.median if result and result.timing else None

    @property
    def best_peer(self) -> str | None:
        """The fastest of the others, None if there is none."""
        medians = {name: self.seconds(name) for name in self.results if not is_ours(name)}
        timed = {name: seconds for name, seconds in medians.items() if seconds is not None}
        return min(timed, key=lambda name: timed[name]) if timed else None

    def ratio(self, name: str = OURS) -> float | None:
        """Return the best peer's median over that of rnnop: above 1, rnnop is faster."""
        mine, best = self.seconds(name), self.best_peer
        theirs = self.seconds(best) if best is not None else None
        return theirs / mine if mine is not None and theirs is not None else None

    @property
    def flops_per_second(self) -> float | None:
        """What rnnop reaches, counting real steps only."""
        seconds = self.seconds(OURS)
        return self.case.flops / seconds if seconds is not None else None

    @property
    def failures(self) -> dict[str, str]:
        """Why contenders were not timed, by their names."""
        return {name: each.failure for name, each in self.results.items() if each.failure}


def loaders(peers: Iterable[Peer]) -> dict[str, Load]:
    """Return what makes the contenders of rnnop, which comes first, and of each peer."""
    return {peer.name: peer.contenders for peer in (OURSELVES, *peers)}


def measure(case: AnyCase, threads: int, loads: dict[str, Load], seconds: float) -> Measurement:
    """Compare and time all contenders of a case.

    A peer that raises, or whose outputs are not those of rnnop, is reported and not timed; when
    rnnop itself raises, nothing is.
    """
    inputs = draw(case)
    results: dict[str, Result] = {}
    calls: dict[str, Callable[[], Any]] = {}
    expected: Mapping[str, Any] = {}
    for name, load in loads.items():
        try:
            found = [(each, each.outputs(each.call())) for each in load(inputs, threads)]
        except Exception as error:  # whatever a peer raises, the others are measured
            results[name] = Result(failure=_sentence(error))
            if name == OURS:
                return Measurement(case, threads, results)
            continue
        for contender, outputs in found:
            expected = expected or outputs
            difference = largest_difference(expected, outputs, inputs.real)
            results[contender.name] = _compared(difference)
            if difference <= TOLERANCE:
                calls[contender.name] = contender.call
    for name, timing in interleave(calls, seconds).items():
        results[name] = Result(timing, results[name].difference)
    return Measurement(case, threads, results)


def _compared(difference: float) -> Result:
    if difference <= TOLERANCE:
        return Result(difference=difference)
    return Result(
        difference=difference if math.isfinite(difference) else None,
        failure=f"its outputs differ from rnnop's by {difference:.2g} of the largest entry; "
        f"at most {TOLERANCE:g} is right",
    )


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
