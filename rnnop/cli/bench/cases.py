"""What is measured: the shapes, the lengths of the rows, and how much arithmetic that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

import rnnop

from ...spec import NUM_GATES
from . import rssm
from .rssm import RSSMCase, RSSMInputs

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """How the lengths of the rows lie, as shares of T.

    Attributes
    ----------
    label : str
        Its name in a table.
    low, high : float
        The lengths are spread evenly from low * T to high * T, at least one step each.
    full : float
        The share of rows that have all T steps instead.
    """

    label: str
    low: float
    high: float
    full: float = 0.0

    def draw(self, num_steps: int, batch_size: int) -> Ints:
        """Return (N,) lengths, the same at each call, in no order."""
        full = max(1, round(self.full * batch_size)) if self.full else 0
        low, high = (max(1.0, share * num_steps) for share in (self.low, self.high))
        spread = np.linspace(low, high, batch_size - full).round().astype(np.int64)
        lengths = np.concatenate([np.full(full, num_steps, np.int64), spread])
        return np.random.default_rng(0).permutation(lengths)


UNIFORM = Lengths("uniform 1..T", 0.0, 1.0)
FEW_FULL = Lengths("10 % full, rest 1..T/10", 0.0, 0.1, full=0.1)


def filled(percent: int) -> Lengths:
    """Return lengths of which, on average, `percent` of T is real, spread as widely as can be."""
    share = percent / 100.0
    return Lengths(f"{percent} % real", max(0.0, 2.0 * share - 1.0), min(1.0, 2.0 * share))


@dataclass(frozen=True)
class Case:
    """One problem, and what is done with it.

    Attributes
    ----------
    group : str
        The table or plot that it belongs to: a key of `GROUPS`.
    work : str
        'forward', inference; 'training', forward and the gradients of x and all weights; 'stream',
        a forward call for each step, which takes the state that the one before has returned.
    mode : str
        'lstm' or 'gru'.
    batch_size, num_steps, input_size, hidden_size : int
        N, T, I and H of a single layer.
    bidirectional : bool
        Whether it has two directions.
    lengths : Lengths or None
        Of the rows; None for a dense batch.
    """

    group: str
    work: str
    mode: str
    batch_size: int
    num_steps: int
    input_size: int
    hidden_size: int
    bidirectional: bool = False
    lengths: Lengths | None = None

    @property
    def problem(self) -> str:
        """The problem, without the work, as a row of a table is called."""
        sizes = (self.batch_size, self.num_steps, self.input_size, self.hidden_size)
        text = f"{self.mode.upper()} {','.join(map(str, sizes))}"
        if self.bidirectional:
            text += " bidirectional"
        return f"{text} {self.lengths.label}" if self.lengths else text

    @property
    def name(self) -> str:
        """The name that `--only` looks at."""
        return f"{self.group} {self.work} {self.problem}"

    @property
    def num_directions(self) -> int:
        """D."""
        return 2 if self.bidirectional else 1

    def draw_lengths(self) -> Ints | None:
        """Return the (N,) lengths; None for a dense batch."""
        return self.lengths.draw(self.num_steps, self.batch_size) if self.lengths else None

    @property
    def real_steps(self) -> int:
        """How many of the T * N steps are real."""
        lengths = self.draw_lengths()
        return self.num_steps * self.batch_size if lengths is None else int(lengths.sum())

    @property
    def fill(self) -> float:
        """The share of the T * N steps that is real."""
        return self.real_steps / (self.num_steps * self.batch_size)

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products over the real steps.

        2 G H (I + H) for a step and direction; three times that in training, where each product
        has two more of its size for its two gradients.
        """
        rows = NUM_GATES[self.mode] * self.hidden_size
        step = 2 * rows * (self.input_size + self.hidden_size)
        return self.real_steps * step * self.num_directions * (3 if self.work == "training" else 1)


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays of a case, float32: the same numbers for everyone.

    Attributes
    ----------
    case : Case
        Whose they are.
    x : array (T, N, I)
        0 in the padding, for those who compute it.
    dy : array (T, N, D*H)
        Cotangent of the outputs, 0 in the padding.
    weights : RNNWeights
        With both biases.
    lengths : (N,) integers, or None
        None for a dense batch.
    real : bool (T, N)
        True where a step is real.
    """

    case: Case
    x: Array
    dy: Array
    weights: rnnop.RNNWeights
    lengths: Ints | None
    real: npt.NDArray[np.bool_]

    def reversal(self) -> Ints:
        """Return (T, N, 1) indices that reverse the real steps of each row, for a gather."""
        steps = np.arange(self.case.num_steps)[:, None]
        last = self.case.num_steps if self.lengths is None else self.lengths
        index: Ints = np.where(self.real, last - 1 - steps, steps)[:, :, None]
        return index


AnyCase = Case | RSSMCase
AnyInputs = Inputs | RSSMInputs


def draw(case: AnyCase) -> AnyInputs:
    """Draw the arrays of a case, the same at each call."""
    return rssm.draw(case) if isinstance(case, RSSMCase) else _draw(case)


def _draw(case: Case) -> Inputs:
    generator = np.random.default_rng(0)
    lengths = case.draw_lengths()
    last = case.num_steps if lengths is None else lengths
    real = np.arange(case.num_steps)[:, None] < np.broadcast_to(last, case.batch_size)

    def normal(size: int) -> Array:
        array = generator.standard_normal((case.num_steps, case.batch_size, size), np.float32)
        array[~real] = 0.0
        return array

    weights = rnnop.init_weights(
        case.mode,
        input_size=case.input_size,
        hidden_size=case.hidden_size,
        bidirectional=case.bidirectional,
        seed=0,
    )
    x, dy = normal(case.input_size), normal(case.num_directions * case.hidden_size)
    return Inputs(case, x, dy, weights, lengths, real)


# What the tables and plots of each group show.
GROUPS = {
    "dense": "Dense batches",
    "ragged": "Ragged batches",
    "stream": "Streams of single steps, prepacked",
    "fill": "Cost against the share of real steps",
    "scale T": "Scaling with the number of steps",
    "scale N": "Scaling with the batch size",
    "scale H": "Scaling with the hidden size",
    **rssm.GROUPS,
    "memory": "Memory",
}
CURVES = ("fill", "scale T", "scale N", "scale H", *rssm.CURVES)

_GRID = (  # N, T, I, H
    (1, 80, 512, 256),
    (1, 256, 16, 16),
    (8, 100, 128, 128),
    (32, 100, 256, 256),
    (64, 50, 512, 1024),
)
_RAGGED: tuple[tuple[str, tuple[int, int, int, int], bool, Lengths], ...] = (
    ("lstm", (32, 100, 256, 256), False, UNIFORM),
    ("lstm", (64, 200, 128, 128), False, UNIFORM),
    ("lstm", (32, 100, 256, 256), True, UNIFORM),
    ("gru", (32, 100, 256, 256), False, UNIFORM),
    ("gru", (64, 200, 128, 128), False, UNIFORM),
    ("lstm", (32, 100, 256, 256), False, FEW_FULL),
    ("gru", (32, 100, 256, 256), False, FEW_FULL),
)
_WORKS = ("forward", "training")


def every() -> list[AnyCase]:
    """Return all cases, group by group."""
    stream = Case("stream", "stream", "gru", 1, 256, 64, 64)
    return [*_dense(), *_ragged(), stream, *_curves(), *rssm.every()]


def quick() -> list[AnyCase]:
    """Return a few small cases that tell whether a machine behaves as expected."""
    small = (8, 100, 128, 128)
    return [
        *(case for case in _dense() if _sizes(case) in ((1, 256, 16, 16), small)),
        *(
            Case("ragged", work, mode, *small, lengths=UNIFORM)
            for work in _WORKS
            for mode in ("lstm", "gru")
        ),
        Case("stream", "stream", "gru", 1, 256, 64, 64),
    ]


def matching(cases: list[AnyCase], pattern: str) -> list[AnyCase]:
    """Return the cases that have `pattern` in their name; `*` and `?` as in a shell."""
    wanted = f"*{pattern.lower()}*"
    return [case for case in cases if fnmatchcase(case.name.lower(), wanted)]


def _dense() -> Iterator[Case]:
    for work in _WORKS:
        for mode in ("lstm", "gru"):
            for sizes in _GRID:
                yield Case("dense", work, mode, *sizes)


def _ragged() -> Iterator[Case]:
    for work in _WORKS:
        for mode, sizes, bidirectional, lengths in _RAGGED:
            yield Case("ragged", work, mode, *sizes, bidirectional, lengths)


def _curves() -> Iterator[Case]:
    """Yield what is drawn as a curve, and the memory of one problem, dense and ragged."""
    for work in _WORKS:
        for percent in (5, 10, 25, 50, 75, 100):
            yield Case("fill", work, "lstm", 32, 100, 256, 256, lengths=filled(percent))
        for letter, name, sizes in (
            ("T", "num_steps", (25, 50, 100, 200, 400)),
            ("N", "batch_size", (1, 4, 16, 64)),
            ("H", "hidden_size", (32, 64, 128, 256, 512)),
        ):
            for size in sizes:
                usual = Case(f"scale {letter}", work, "lstm", 16, 100, 128, 128)
                varied: dict[str, Any] = {name: size}
                yield replace(usual, **varied)
    for work in _WORKS:
        for lengths in (None, UNIFORM):
            yield Case("memory", work, "lstm", 32, 100, 256, 256, lengths=lengths)


def _sizes(case: Case) -> tuple[int, int, int, int]:
    return (case.batch_size, case.num_steps, case.input_size, case.hidden_size)
