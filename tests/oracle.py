"""The oracle: the equations of the operator once more, one row and one step at a time, in float64.

It shares nothing with the package. A masked step is skipped, a reset starts again from zeros, and
that is all there is to ragged batches here; what the package makes of them must come to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]
Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Cell:
    """The weights of one layer and direction, in float64, and what changes its equations."""

    mode: str
    w_ih: Vector
    w_hh: Vector
    b_ih: Vector
    b_hh: Vector
    w_hr: Vector | None = None
    peephole: Vector | None = None
    activations: tuple[tuple[str, float, float], ...] | None = None
    cell_clip: Bounds = None
    cell_clip_nan: bool = False
    proj_clip: Bounds = None
    gate_clip: Bounds = None
    reset_after: bool = True
    input_forget: bool = False

    @property
    def hidden_size(self) -> int:
        return len(self.b_ih) // {"gru": 3, "lstm": 4}.get(self.mode, 1)

    @property
    def output_size(self) -> int:
        return self.hidden_size if self.w_hr is None else len(self.w_hr)


def activation(name: str, alpha: float = 0.0, beta: float = 0.0) -> Callable[[float], float]:
    """Return a function of one number, by its ONNX name."""
    functions: dict[str, Callable[[float], float]] = {
        "Sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
        "Tanh": math.tanh,
        "Relu": lambda x: max(x, 0.0),
        "Affine": lambda x: alpha * x + beta,
        "LeakyRelu": lambda x: x if x >= 0.0 else alpha * x,
        "ThresholdedRelu": lambda x: x if x >= alpha else 0.0,
        "ScaledTanh": lambda x: alpha * math.tanh(beta * x),
        "HardSigmoid": lambda x: max(0.0, min(1.0, alpha * x + beta)),
        "Elu": lambda x: x if x >= 0.0 else alpha * (math.exp(x) - 1.0),
        "Softsign": lambda x: x / (1.0 + abs(x)),
        "Softplus": lambda x: math.log(1.0 + math.exp(x)),
    }
    return functions[name]


USUAL = {
    "rnn_tanh": (("Tanh", 0.0, 0.0),),
    "rnn_relu": (("Relu", 0.0, 0.0),),
    "gru": (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0)),
    "lstm": (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0)),
}


def clip(values: Vector, bounds: Bounds, nan_to_low: bool = False) -> Vector:
    """Cut values to the bounds; a NaN stays, or becomes the low bound."""
    if bounds is None:
        return values
    low, high = bounds
    cut = []
    for value in values:
        if math.isnan(value):
            cut.append(low if nan_to_low else value)
        else:
            cut.append(min(max(value, low), high))
    return np.array(cut, np.float64).reshape(values.shape)


def step(cell: Cell, x: Vector, h: Vector, c: Vector) -> tuple[Vector, Vector]:
    """One step of one row: the next h and c. `c` is within the cell clip, as is what returns."""
    H = cell.hidden_size
    functions = [activation(*each) for each in cell.activations or USUAL[cell.mode]]

    def act(which: int, values: Vector) -> Vector:
        clipped = clip(values, cell.gate_clip)
        return np.array([functions[which](float(value)) for value in clipped])

    def gate(k: int) -> tuple[slice, Vector]:
        rows = slice(k * H, (k + 1) * H)
        return rows, cell.w_ih[rows] @ x + cell.b_ih[rows]

    def recurrent(rows: slice, state: Vector) -> Vector:
        return cell.w_hh[rows] @ state

    if cell.mode in ("rnn_tanh", "rnn_relu"):
        rows, a = gate(0)
        return act(0, a + recurrent(rows, h) + cell.b_hh[rows]), c
    if cell.mode == "gru":
        rows, a = gate(0)
        r = act(0, a + recurrent(rows, h) + cell.b_hh[rows])
        rows, a = gate(1)
        z = act(0, a + recurrent(rows, h) + cell.b_hh[rows])
        rows, a = gate(2)
        if cell.reset_after:
            n = act(1, a + r * (recurrent(rows, h) + cell.b_hh[rows]))
        else:
            n = act(1, a + recurrent(rows, r * h) + cell.b_hh[rows])
        return (1.0 - z) * n + z * h, c
    p_i, p_f, p_o = np.zeros((3, H)) if cell.peephole is None else cell.peephole
    rows, a = gate(0)
    i = act(0, a + recurrent(rows, h) + cell.b_hh[rows] + p_i * c)
    rows, a = gate(1)
    f = act(0, a + recurrent(rows, h) + cell.b_hh[rows] + p_f * c)
    if cell.input_forget:
        f = 1.0 - i
    rows, a = gate(2)
    g = act(1, a + recurrent(rows, h) + cell.b_hh[rows])
    c_next = clip(f * c + i * g, cell.cell_clip, cell.cell_clip_nan)
    rows, a = gate(3)
    o = act(0, a + recurrent(rows, h) + cell.b_hh[rows] + p_o * c_next)
    m = o * act(2, c_next)
    return (m if cell.w_hr is None else clip(cell.w_hr @ m, cell.proj_clip)), c_next


def run_row(
    cell: Cell,
    backward: bool,
    x: Sequence[Vector],
    real: Sequence[bool],
    resets: Sequence[bool],
    h0: Vector,
    c0: Vector,
) -> tuple[dict[int, Vector], dict[int, Vector], Vector, Vector]:
    """Run one direction of one layer over one row.

    Return h and c of each real step, by its time, and the final h and c.
    """
    starts, waiting = [], False  # the real steps at which an episode begins
    times = []
    for t in range(len(real)):
        waiting = waiting or resets[t]
        if real[t]:
            times.append(t)
            if waiting:
                starts.append(t)
            waiting = False
    h, c = h0, clip(c0, cell.cell_clip, cell.cell_clip_nan)
    hs, cs = {}, {}
    later = None  # the real step after this one, on the way back
    for t in reversed(times) if backward else times:
        if (later if backward else t) in starts:
            h, c = np.zeros_like(h), np.zeros_like(c)
            c = clip(c, cell.cell_clip, cell.cell_clip_nan)
        h, c = step(cell, x[t], h, c)
        hs[t], cs[t], later = h, c, t
    return hs, cs, h, c


def run(
    x: Vector,  # (T, N, I)
    cells: list[list[tuple[Cell, bool]]],  # of each layer, each direction: its cell, is it backward
    h0: Vector,  # (L*D, N, P)
    c0: Vector,  # (L*D, N, H)
    real: Any,  # (T, N) bool
    resets: Any,  # (T, N) bool
    kept: Any = None,  # L-1 of (T, N, D*P) bool
    dropout: float = 0.0,
    hold: bool = False,
) -> tuple[Vector, Vector, Vector, Vector]:
    """Run the network; return y, h_n, c_n and c of the last layer, of every model of RNN."""
    T, N = x.shape[:2]
    D = len(cells[0])
    first = cells[0][0][0]
    P, H = first.output_size, first.hidden_size
    h_n, c_n = np.zeros((len(cells) * D, N, P)), np.zeros((len(cells) * D, N, H))
    for layer, directions in enumerate(cells):
        y, c_all = np.zeros((T, N, D * P)), np.zeros((T, N, D * H))
        for direction, (cell, backward) in enumerate(directions):
            k = layer * D + direction
            part_h = slice(direction * P, (direction + 1) * P)
            part_c = slice(direction * H, (direction + 1) * H)
            for n in range(N):
                hs, cs, h_n[k, n], c_n[k, n] = run_row(
                    cell, backward, x[:, n], real[:, n], resets[:, n], h0[k, n], c0[k, n]
                )
                for t in hs:
                    y[t, n, part_h], c_all[t, n, part_c] = hs[t], cs[t]
                if hold and layer == len(cells) - 1:
                    shown = np.zeros(P)
                    for t in reversed(range(T)) if backward else range(T):
                        shown = hs.get(t, shown)
                        y[t, n, part_h] = shown
        x = y
        if kept is not None and layer < len(cells) - 1:
            x = y * kept[layer] / (1.0 - dropout)
    return y, h_n, c_n, c_all


def segments(real: Any, resets: Any) -> list[tuple[int, list[int]]]:
    """Return the row and the steps of every segment, longest first, by walking over the batch."""
    found: list[tuple[int, list[int]]] = []
    for n in range(real.shape[1]):
        current: list[int] = []
        cut = False
        for t in range(real.shape[0]):
            cut = cut or bool(resets[t, n])
            if real[t, n]:
                if current and cut:
                    found.append((n, current))
                    current = []
                current, cut = [*current, t], False
        if current:
            found.append((n, current))
    return sorted(found, key=lambda segment: -len(segment[1]))
