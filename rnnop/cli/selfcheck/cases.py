"""The grid of calls: cells, kinds of steps and stacks of layers, and their numbers."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import rnnop

from ...tolerances import error, rms

Array = npt.NDArray[Any]
Results = dict[str, list[Any]]
"""Arrays by name: outputs, and gradients with a d before the name. Those of one field of the
weights stand together: where a single sum nearly cancels, its size says nothing of its accuracy."""


@dataclass(frozen=True)
class Cell:
    """One set of equations: a mode, its options, and the weights that only it has."""

    mode: str
    options: dict[str, Any] = field(default_factory=dict)
    projection: bool = False
    peephole: bool = False
    every_cotangent: bool = False  # that of the cell states too, where they are returned

    @property
    def kinked(self) -> bool:
        """Whether a gradient jumps somewhere."""
        return self.mode == "rnn_relu" or any("clip" in name for name in self.options)


CELLS = {
    "rnn_tanh": Cell("rnn_tanh"),
    "rnn_relu": Cell("rnn_relu"),
    "gru": Cell("gru"),
    "lstm": Cell("lstm"),
    "lstm projection": Cell("lstm", projection=True),
    "gru reset before": Cell("gru", {"reset_after": False}),
    "gru gate_clip": Cell("gru", {"gate_clip": 1.5}),
    "lstm peephole": Cell("lstm", peephole=True),
    "lstm input_forget": Cell("lstm", {"input_forget": True}),
    "lstm cell_clip": Cell("lstm", {"cell_clip": (-0.3, 0.4)}),
    "lstm proj_clip": Cell("lstm", {"proj_clip": 0.2}, projection=True),
    "lstm gate_clip": Cell("lstm", {"gate_clip": (-1.4, 1.8)}),
    "lstm cell states": Cell("lstm", {"return_cell_states": True}),
    "lstm cell states, dc": Cell("lstm", {"return_cell_states": True}, every_cotangent=True),
}

STEPS = ("dense", "lengths", "mask", "resets")

# (num_layers, bidirectional, reverse)
STACKS = {
    "1 layer": (1, False, False),
    "1 layer, reverse": (1, False, True),
    "2 layers": (2, False, False),
    "2 layers, both ways": (2, True, False),
}

# (T, N, I, H). Few numbers where a gradient jumps: see `steady`.
_SIZES = ((7, 5, 3, 5), (20, 9, 17, 33), (11, 4, 64, 64))
_KINKED_SIZES = (5, 3, 3, 4)


@dataclass(frozen=True)
class Case:
    """One call: a choice of each kind."""

    cell: str
    steps: str
    stack: str
    sizes: tuple[int, int, int, int]

    @property
    def name(self) -> str:
        """What it is called in a report."""
        return f"{self.cell}, {self.steps}, {self.stack}, T,N,I,H={self.sizes}"


def grid(quick: bool = False) -> list[Case]:
    """Return the calls.

    A cell without options meets every kind of steps on every stack of layers; another meets each
    kind of steps once, and each stack once. With `quick`, every cell has two calls.
    """
    cases = []
    for number, (name, cell) in enumerate(CELLS.items()):
        for (i, steps), (j, stack) in itertools.product(enumerate(STEPS), enumerate(STACKS)):
            once = (number + i) % len(STACKS) == j
            if (once and i >= 2) if quick else (once or not cell.options):
                sizes = _KINKED_SIZES if cell.kinked else _SIZES[(number + i + j) % len(_SIZES)]
                cases.append(Case(name, steps, stack, sizes))
    return cases


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays and options of a call, and the cotangents of its vjp."""

    x: Any
    weights: rnnop.RNNWeights
    h0: Any
    c0: Any
    options: dict[str, Any]
    cotangents: dict[str, Any]

    def map(self, function: Callable[[Any], Any]) -> Inputs:
        """Return the same with a function applied to each array; how the steps lie stays."""
        return Inputs(
            function(self.x),
            self.weights.map(function),
            function(self.h0),
            None if self.c0 is None else function(self.c0),
            self.options,
            {name: function(array) for name, array in self.cotangents.items()},
        )

    def cast(self, dtype: str) -> Inputs:
        """Return the same rounded to a dtype, of NumPy arrays."""
        return self.map(lambda array: array.astype(np.dtype(dtype)))

    def results(self, backend: str) -> Results:
        """Return every output of the call, and every gradient of its vjp."""
        out, vjp = rnnop.rnn_vjp(
            self.x, self.weights, self.h0, self.c0, backend=backend, **self.options
        )
        grads = vjp(**self.cotangents)
        single = out._asdict() | {"dx": grads.x, "dh0": grads.h0, "dc0": grads.c0}
        found = {name: [array] for name, array in single.items() if array is not None}
        return found | {f"d{name}": list(arrays) for name, arrays in grads.weights.fields()}


def steady(case: Case) -> Inputs:
    """Return float64 inputs of a case, with NaN wherever nothing may be read.

    A gradient jumps where a sum crosses a bound of a clip or the zero of a Relu. Near there, the
    rounding of a half decides on which side it is, and an error tells nothing about a backend. So
    other numbers are drawn until none is near.
    """
    draws = (draw(case, seed) for seed in itertools.count())
    return next(each for each in draws if not CELLS[case.cell].kinked or _is_smooth(each))


def draw(case: Case, seed: int = 0) -> Inputs:
    """Return float64 inputs of a case, with NaN wherever nothing may be read."""
    cell = CELLS[case.cell]
    layers, both, reverse = STACKS[case.stack]
    steps, rows, features, hidden = case.sizes
    random = np.random.default_rng([zlib.crc32(case.name.encode()), seed])
    weights = rnnop.init_weights(
        cell.mode,
        input_size=features,
        hidden_size=hidden,
        num_layers=layers,
        bidirectional=both,
        proj_size=hidden // 2 if cell.projection else None,
        peephole=cell.peephole,
        dtype="float64",
    ).map(lambda array: random.standard_normal(array.shape) / array.shape[-1] ** 0.5)
    directions = 1 + both
    width = hidden // 2 if cell.projection else hidden
    real, how = _steps(case.steps, random, steps, rows)

    def stepwise(size: int) -> Array:
        return np.where(real[:, :, None], random.standard_normal((steps, rows, size)), np.nan)

    def state(size: int) -> Array:
        return random.standard_normal((layers * directions, rows, size))

    cotangents = {"dy": stepwise(directions * width), "dh_n": state(width)}
    c0 = None
    if cell.mode == "lstm":
        c0, cotangents["dc_n"] = state(hidden), state(hidden)
    if cell.every_cotangent:
        cotangents["dc"] = stepwise(directions * hidden)
    options = {"mode": cell.mode, "reverse": reverse, **how, **cell.options}
    return Inputs(stepwise(features), weights, state(width), c0, options, cotangents)


def _steps(
    kind: str, random: np.random.Generator, steps: int, rows: int
) -> tuple[Array, dict[str, Any]]:
    """Return which steps are real (T, N), and the arguments that say so."""
    real = np.ones((steps, rows), bool)
    if kind == "lengths":
        lengths = random.permutation(np.linspace(0, steps, rows).astype(int))  # 0 and T among them
        return np.arange(steps)[:, None] < lengths, {"lengths": lengths}
    if kind in ("mask", "resets"):
        real = random.random((steps, rows)) < 0.7
    if kind == "resets":
        return real, {"mask": real, "resets": random.random((steps, rows)) < 0.3}
    return real, {"mask": real} if kind == "mask" else {}


def _is_smooth(inputs: Inputs) -> bool:
    """Return whether gradients change in proportion, when all inputs change by what halves may."""
    share = 2.0**-7  # twice what rounding to bfloat16 may change
    random = np.random.default_rng(0)
    signs: dict[int, Array] = {}

    def moved(by: float) -> Callable[[Array], Array]:
        def move(array: Array) -> Array:
            sign = signs.setdefault(id(array), random.choice([-1.0, 1.0], array.shape))
            return array * (1.0 + by * sign)

        return move

    here, up, down = (
        {name: flat(arrays) for name, arrays in each.results("reference").items()}
        for each in (inputs, inputs.map(moved(share)), inputs.map(moved(-share)))
    )
    return all(
        rms(up[name] + down[name] - 2.0 * here[name]) <= 0.01 * rms(here[name]) for name in here
    )


def flat(arrays: list[Array]) -> Array:
    """Return the entries of several arrays as one float64 vector."""
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])


def error_of(got: list[Array], wanted: list[Array], dtype: np.dtype[Any]) -> float:
    """Return the error of a result as `rnnop.tolerances` defines it.

    It is infinite where an array has another shape or dtype than it should.
    """
    if [(each.shape, each.dtype) for each in got] != [(each.shape, dtype) for each in wanted]:
        return float("inf")
    return error(flat(got), flat(wanted), dtype.name)
