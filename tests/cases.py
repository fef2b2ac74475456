"""The one table of cases: every backend runs it, in every dtype it knows.

A case is plain data and its arrays follow from its id alone. `CORE` covers every pair of choices
(each cell with each kind of steps, each layout with each stride, ...) with small sizes that fill no
vector; `WIDE` covers them with sizes around the blocks that compiled kernels like, for fewer kinds
of steps; `TINY` has one network of a few numbers for each cell, for tests that go through every
entry of every array.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

import rnnop

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
FIELDS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "peephole")
NUM_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


@dataclass(frozen=True)
class Cell:
    """One set of equations: a mode, its options, and the weights that only it has."""

    mode: str
    options: dict[str, Any] = field(default_factory=dict)
    projection: str | None = None  # "half": P is about H / 2; "full": P is H
    peephole: bool = False
    nan_state: bool = False  # c0 holds a NaN


CELLS = {
    "rnn_tanh": Cell("rnn_tanh"),
    "rnn_relu": Cell("rnn_relu"),
    "rnn_gate_clip": Cell("rnn_tanh", {"gate_clip": (-0.4, 0.6)}),
    "rnn_activations": Cell(
        "rnn_tanh", {"activations": (("LeakyRelu", 0.2), ("Affine", 0.4, 0.1))}
    ),
    "gru": Cell("gru"),
    "gru_reset_before": Cell("gru", {"reset_after": False}),
    "gru_gate_clip": Cell("gru", {"gate_clip": 0.7}),
    "gru_activations": Cell(
        "gru",
        {
            "reset_after": False,
            "gate_clip": 1.5,
            "activations": (
                *(("HardSigmoid", 0.3, 0.4), ("ScaledTanh", 1.2, 0.7)),
                *(("Sigmoid",), ("Softsign",)),
            ),
        },
    ),
    "lstm": Cell("lstm"),
    "lstm_projection": Cell("lstm", projection="half"),
    "lstm_projection_full": Cell("lstm", projection="full"),
    "lstm_peephole": Cell("lstm", peephole=True),
    "lstm_cell_clip": Cell("lstm", {"cell_clip": 0.3}),
    "lstm_cell_clip_skew": Cell("lstm", {"cell_clip": (-0.2, 0.35)}, peephole=True),
    "lstm_cell_clip_above": Cell("lstm", {"cell_clip": (0.05, 0.5)}),  # not even 0 is inside
    "lstm_cell_clip_nan": Cell(
        "lstm", {"cell_clip": (-0.6, 0.5), "cell_clip_nan": True}, nan_state=True
    ),
    "lstm_proj_clip": Cell("lstm", {"proj_clip": (-0.1, 0.15)}, projection="half"),
    "lstm_gate_clip": Cell("lstm", {"gate_clip": 0.5}),
    "lstm_input_forget": Cell("lstm", {"input_forget": True}),
    "lstm_activations": Cell(
        "lstm",
        {
            "activations": (
                *(("Sigmoid",), ("Elu", 0.8), ("Tanh",)),
                *(("HardSigmoid", 0.25, 0.5), ("Softplus",), ("ThresholdedRelu", 0.1)),
            ),
        },
    ),
    "lstm_all": Cell(
        "lstm",
        {
            "cell_clip": (-0.4, 0.6),
            "proj_clip": 0.2,
            "gate_clip": (-0.9, 1.1),
            "input_forget": True,
        },
        projection="half",
        peephole=True,
    ),
}

# (num_layers, bidirectional, reverse)
STACKS = {
    "1": (1, False, False),
    "1-reverse": (1, False, True),
    "1-both": (1, True, False),
    "2": (2, False, False),
    "2-reverse": (2, False, True),
    "2-both": (2, True, False),
    "3": (3, False, False),
    "3-both": (3, True, False),
}

# (T, N, I, H)
SIZES = {
    "t6n3i3h5": (6, 3, 3, 5),
    "t5n4i1h1": (5, 4, 1, 1),
    "t4n3i17h3": (4, 3, 17, 3),
    "t4n5i3h17": (4, 5, 3, 17),
    "t3n2i33h33": (3, 2, 33, 33),
    "t1n1i1h2": (1, 1, 1, 2),
    "t11n1i4h6": (11, 1, 4, 6),
}
WIDE_SIZES = {
    "t9n7i65h33": (9, 7, 65, 33),
    "t5n18i31h64": (5, 18, 31, 64),
    "t4n3i130h65": (4, 3, 130, 65),
    "t40n4i8h16": (40, 4, 8, 16),
}

TINY_SIZES = {"t4n2i2h2": (4, 2, 2, 2)}
ALL_SIZES = SIZES | WIDE_SIZES | TINY_SIZES

FACTORS: dict[str, tuple[Any, ...]] = {
    "cell": tuple(CELLS),
    "steps": (
        "dense",
        "lengths",
        "lengths_zero",
        "lengths_all_zero",
        "lengths_one",
        "lengths_full",
        "mask",
        "mask_left",
        "mask_none",
        "mask_all",
        "resets",
        "resets_everywhere",
        "resets_mask",
        "resets_lengths",
        "no_steps",
        "no_rows",
    ),
    "stack": tuple(STACKS),
    "sizes": tuple(SIZES),
    "bias": ("double", "none", "input", "recurrent"),
    "states": ("both", "none", "h0", "c0"),
    "layout": ("time_major", "batch_first", "packed"),
    "stride": ("contiguous", "sliced", "negative", "fortran"),
    "dropout": ("none", "masks", "seed"),
    "hold": (False, True),
    "cell_states": (False, True),
}


@dataclass(frozen=True)
class Call:
    """The arguments of `rnnop.rnn`."""

    x: Any
    weights: rnnop.RNNWeights
    h0: Array | None
    c0: Array | None
    options: dict[str, Any]

    def rnn(self, **more: Any) -> rnnop.RNNOutput:
        return rnnop.rnn(self.x, self.weights, self.h0, self.c0, **self.options | more)

    def rnn_vjp(self, **more: Any) -> tuple[rnnop.RNNOutput, rnnop.VJP]:
        return rnnop.rnn_vjp(self.x, self.weights, self.h0, self.c0, **self.options | more)

    def leaves(self) -> dict[str, list[Array]]:
        """Return the arrays of every argument that is given and has a gradient."""
        found = {"x": [data_of(self.x)], "h0": [self.h0], "c0": [self.c0]}
        found |= {name: getattr(self.weights, name) or [None] for name in FIELDS}
        return {name: list(arrays) for name, arrays in found.items() if arrays[0] is not None}

    def with_leaves(self, leaves: dict[str, list[Array]]) -> Call:
        """Return the call with other arrays for some arguments."""
        fields = {name: tuple(arrays) for name, arrays in leaves.items() if name in FIELDS}
        call = replace(self, weights=replace(self.weights, **fields))
        for name in ("x", "h0", "c0"):
            if name in leaves:
                call = replace(call, **{name: leaves[name][0]})
        if isinstance(self.x, rnnop.PackedSequence):
            call = replace(call, x=self.x._replace(data=data_of(call.x)))
        return call


@dataclass(frozen=True)
class Case:
    """One call, as a choice for every factor."""

    cell: str
    steps: str = "dense"
    stack: str = "1"
    sizes: str = "t6n3i3h5"
    bias: str = "double"
    states: str = "both"
    layout: str = "time_major"
    stride: str = "contiguous"
    dropout: str = "none"
    hold: bool = False
    cell_states: bool = False

    @property
    def id(self) -> str:
        parts = [self.cell, self.steps, self.stack, self.sizes, f"bias_{self.bias}"]
        parts += [f"states_{self.states}", self.layout, self.stride, f"dropout_{self.dropout}"]
        parts += [name for name in ("hold", "cell_states") if getattr(self, name)]
        return "-".join(parts)

    @property
    def mode(self) -> str:
        return CELLS[self.cell].mode

    @property
    def features(self) -> frozenset[str]:
        """What not every backend has: names of options and of fields of the weights."""
        cell = CELLS[self.cell]
        extras = {"w_hr": cell.projection, "peephole": cell.peephole, "seed": self.by_seed}
        return frozenset(cell.options) | {name for name, given in extras.items() if given}

    # Sizes

    @property
    def T(self) -> int:
        return 0 if self.steps == "no_steps" else ALL_SIZES[self.sizes][0]

    @property
    def N(self) -> int:
        return 0 if self.steps == "no_rows" else ALL_SIZES[self.sizes][1]

    @property
    def I(self) -> int:  # noqa: E743
        return ALL_SIZES[self.sizes][2]

    @property
    def H(self) -> int:
        return ALL_SIZES[self.sizes][3]

    @property
    def P(self) -> int:
        return (self.H + 1) // 2 if CELLS[self.cell].projection == "half" else self.H

    @property
    def L(self) -> int:
        return STACKS[self.stack][0]

    @property
    def D(self) -> int:
        return 2 if STACKS[self.stack][1] else 1

    def runs_backward(self, direction: int) -> bool:
        return STACKS[self.stack][2] or direction == 1

    # Numbers

    def random(self, name: str) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(self.id.encode()), zlib.crc32(name.encode())])

    def draw(self, name: str, *shape: int) -> Array:
        return self.random(name).standard_normal(shape)

    # Steps

    @cached_property
    def lengths(self) -> Array | None:
        """(N,) Real steps of each row, unsorted; None unless the steps are given by lengths."""
        T, N, random = self.T, self.N, self.random("lengths")
        least = 0 if self.steps == "lengths_zero" else min(1, T)
        drawn = random.integers(least, T, N, endpoint=True)
        match self.steps:
            case "lengths" | "resets_lengths":
                drawn[N // 2] = T
            case "lengths_zero":
                drawn[-1], drawn[0] = T, 0
            case "lengths_all_zero":
                drawn[:] = 0
            case "lengths_one":
                drawn[:] = 1
            case "lengths_full":
                drawn[:] = T
            case _:
                return None
        return drawn

    @cached_property
    def mask(self) -> Array:
        """(T, N) True where a step is real."""
        random = self.random("mask").random((self.T, self.N))
        if self.lengths is not None:
            return np.arange(self.T)[:, None] < self.lengths
        if self.steps in ("mask", "resets_mask"):
            return random < 0.6
        if self.steps == "mask_left":
            return np.arange(self.T)[:, None] >= (random[:1] * (self.T + 1)).astype(int)
        return np.full((self.T, self.N), self.steps != "mask_none")

    @cached_property
    def resets(self) -> Array:
        """(T, N) True where an episode starts."""
        if self.steps == "resets_everywhere":
            return np.ones((self.T, self.N), bool)
        share = 0.35 if self.steps.startswith("resets") else 0.0
        return self.random("resets").random((self.T, self.N)) < share

    def hidden(self, what: str) -> Array:
        """(T, N, D) True where an entry of 'x', 'dy' or 'dc' must have no effect."""
        hidden = np.repeat(~self.mask[:, :, None], self.D, axis=2)
        if what == "dy" and self.hold:  # a held step shows another: only those before it are void
            for d in range(self.D):
                order = slice(None, None, -1 if self.runs_backward(d) else 1)
                seen = np.logical_or.accumulate(self.mask[order], axis=0)
                hidden[order, :, d] = ~seen
        return hidden

    # Dropout

    @property
    def by_seed(self) -> bool:
        return self.dropout == "seed"

    @property
    def rate(self) -> float:
        return 0.0 if self.dropout == "none" else 0.4

    SEED = 20

    @cached_property
    def kept(self) -> list[Array] | None:
        """L-1 of (T, N, D*P), True where an output is kept, as `rnnop.dropout` describes it."""
        if self.dropout == "none":
            return None
        shape, masks = (self.T, self.N, self.D * self.P), []
        for layer in range(self.L - 1):
            stream = self.random(f"kept {layer}")
            if self.by_seed:
                words = np.random.SeedSequence([self.SEED, layer])
                stream = np.random.Generator(np.random.Philox(words))
            masks.append(stream.random(shape, dtype=np.float32) >= np.float32(self.rate))
        return masks

    # Arrays

    def to_layout(self, array: Array) -> Array:
        """Bring a (T, N, F) array into the caller's layout, as its data when that is packed."""
        if self.layout == "batch_first":
            return array.swapaxes(0, 1)
        if self.layout == "packed":
            return array[self._packed_steps]
        return array

    def to_time_major(self, array: Array) -> Array:
        """Bring an array back from the caller's layout, with 0 where packed data has none."""
        if self.layout == "batch_first":
            return array.swapaxes(0, 1)
        if self.layout == "packed":
            padded = np.zeros((self.T, self.N, array.shape[-1]), array.dtype)
            padded[self._packed_steps] = array
            return padded
        return array

    @cached_property
    def _order(self) -> Array:
        """(N,) The rows, longest first."""
        return np.array(sorted(range(self.N), key=lambda n: -self.mask[:, n].sum()), int)

    @cached_property
    def _packed_steps(self) -> tuple[list[int], list[int]]:
        """Step and row of every real step, in packed order."""
        steps = [(t, int(n)) for t in range(self.T) for n in self._order if self.mask[t, n]]
        return [t for t, _ in steps], [n for _, n in steps]

    @cached_property
    def _packed_T(self) -> int:
        """Packed data has no more steps than the longest row."""
        return int(self.mask.any(axis=1).sum())

    def weights(self, dtype: str = "float64") -> rnnop.RNNWeights:
        cell, rows = CELLS[self.cell], NUM_GATES[self.mode] * self.H
        fields: dict[str, list[Array]] = {}
        for k in range(self.L * self.D):
            width = self.I if k < self.D else self.D * self.P
            shapes: dict[str, tuple[tuple[int, ...], float]] = {
                "w_ih": ((rows, width), width**-0.5),
                "w_hh": ((rows, self.P), self.P**-0.5),
                "b_ih": ((rows,), 0.5 * (self.bias in ("double", "input"))),
                "b_hh": ((rows,), 0.5 * (self.bias in ("double", "recurrent"))),
                "w_hr": ((self.P, self.H), self.H**-0.5 * bool(cell.projection)),
                "peephole": ((3, self.H), 0.5 * cell.peephole),
            }
            for name, (shape, scale) in shapes.items():
                if scale:
                    drawn = scale * self.draw(f"{name}[{k}]", *shape)
                    array = strided(drawn.astype(DTYPES[dtype]), self.stride)
                    fields.setdefault(name, []).append(array)
        arrays = {name: tuple(entries) for name, entries in fields.items()}
        return rnnop.RNNWeights(**arrays, bidirectional=self.D == 2)

    def state(self, name: str, dtype: str) -> Array | None:
        if self.states not in ("both", name) or (name == "c0" and self.mode != "lstm"):
            return None
        drawn = self.draw(name, self.L * self.D, self.N, self.H if name == "c0" else self.P)
        if name == "c0" and CELLS[self.cell].nan_state:
            drawn[..., -1] = np.nan
        return strided(drawn.astype(DTYPES[dtype]), self.stride)

    def features_of_steps(self, name: str, size: int, dtype: str, masked: float | None) -> Array:
        """Draw a (T, N, size) array, with `masked` wherever it must have no effect."""
        drawn = self.draw(name, self.T, self.N, size)
        if masked is not None:
            hidden = self.hidden(name)
            if name == "x":
                hidden = hidden[:, :, :1]
            drawn[np.repeat(hidden, size // hidden.shape[2], axis=2)] = masked
        return strided(self.to_layout(drawn).astype(DTYPES[dtype]), self.stride)

    def call(self, dtype: str = "float64", masked: float | None = None) -> Call:
        """Return the arguments, with `masked` at the masked steps of x (None: any number)."""
        cell = CELLS[self.cell]
        options: dict[str, Any] = {"mode": self.mode, **cell.options}
        if "activations" in options and self.D == 1:
            given = options["activations"]
            options["activations"] = given[: len(given) // 2]
        options |= {"reverse": STACKS[self.stack][2], "return_cell_states": self.cell_states}
        options |= {"masked_output": "hold" if self.hold else "zero"}
        x: Any = self.features_of_steps("x", self.I, dtype, masked)
        resets = self.resets
        if self.layout == "packed":
            resets = resets[: self._packed_T]
            batch_sizes = self.mask.sum(axis=1)[: self._packed_T]
            x = rnnop.PackedSequence(x, batch_sizes, self._order, np.argsort(self._order))
        elif self.lengths is not None:
            options["lengths"] = self.lengths
        elif self.steps not in ("dense", "resets", "resets_everywhere", "no_steps", "no_rows"):
            options["mask"] = strided(self._rows_first(self.mask), self.stride)
        if self.layout == "batch_first":
            options["batch_first"] = True
        if self.steps.startswith("resets"):
            options["resets"] = strided(self._rows_first(resets), self.stride)
        if self.kept is not None:
            options |= {"dropout": self.rate, "training": True}
            if self.by_seed:
                options["seed"] = self.SEED
            else:
                kept = [strided(self.to_layout(mask), self.stride) for mask in self.kept]
                options["dropout_masks"] = kept
        h0, c0 = self.state("h0", dtype), self.state("c0", dtype)
        return Call(x, self.weights(dtype), h0, c0, options)

    def _rows_first(self, array: Array) -> Array:
        return array.T if self.layout == "batch_first" else array

    def cotangents(self, dtype: str = "float64", masked: float | None = None) -> dict[str, Any]:
        """Return the arguments of the vjp, with `masked` wherever they must have no effect."""
        dy: Any = self.features_of_steps("dy", self.D * self.P, dtype, masked)
        given = {"dy": dy, "dh_n": self.draw("dh_n", self.L * self.D, self.N, self.P)}
        if self.mode == "lstm":
            given["dc_n"] = self.draw("dc_n", self.L * self.D, self.N, self.H)
        if self.cell_states:
            given["dc"] = self.features_of_steps("dc", self.D * self.H, dtype, masked)
        for name in ("dh_n", "dc_n"):
            if name in given:
                given[name] = strided(given[name].astype(DTYPES[dtype]), self.stride)
        return given


def data_of(array: Any) -> Array:
    """Return an array, or the data of a packed sequence."""
    return array.data if isinstance(array, rnnop.PackedSequence) else array


def arrays_of(result: Any) -> list[Array]:
    """Return every array of an RNNOutput, of RNNGrads or of a Call."""
    if result is None or isinstance(result, str | bool | int | float):
        return []
    if isinstance(result, rnnop.RNNWeights):
        return [array for _, array in result.named()]
    if isinstance(result, rnnop.PackedSequence):
        return [result.data]
    if isinstance(result, Call):
        return arrays_of([result.x, result.weights, result.h0, result.c0, *result.options.values()])
    if isinstance(result, tuple | list):
        return [array for each in result for array in arrays_of(each)]
    return [result]


def flat(arrays: Sequence[Array]) -> Array:
    """Return the entries of several arrays as one vector."""
    return np.concatenate([np.ravel(array) for array in arrays])


def gradient_of(grads: rnnop.RNNGrads, name: str) -> Array:
    """Return the gradient of an argument, named as in `Call.leaves`, as one vector."""
    if name in FIELDS:
        return flat(getattr(grads.weights, name))
    return flat([data_of(getattr(grads, name))])


def widened(call: Call) -> Call:
    """Return the same numbers in float64."""
    leaves = call.leaves().items()
    return call.with_leaves(
        {name: [a.astype(np.float64) for a in arrays] for name, arrays in leaves}
    )


def wide_cotangents(cotangents: dict[str, Any]) -> dict[str, Any]:
    """Return the same numbers in float64."""
    return {name: each.astype(np.float64) for name, each in cotangents.items()}


def strided(array: Array, how: str) -> Array:
    """Return an equal array that lies otherwise in memory, with NaN or True in the gaps."""
    match how:
        case "sliced":
            around = np.full([2 * n for n in array.shape], np.nan).astype(array.dtype)
            inside = tuple(slice(None, 2 * n, 2) for n in array.shape)
            around[inside] = array
            return around[inside]
        case "negative":
            back = (slice(None, None, -1),) * array.ndim
            return np.ascontiguousarray(array[back])[back]
        case "fortran":
            return np.array(array, order="F")
    return np.array(array, order="C")


def clash(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Return whether two choices, each (factor, value), cannot stand in one call."""
    chosen = dict((one, other))
    cell, layout = chosen.get("cell"), chosen.get("layout")
    plain = cell is not None and CELLS[cell].mode != "lstm"
    steps = str(chosen.get("steps"))
    return bool(
        (layout == "packed" and ("mask" in steps or steps == "no_rows"))
        or (str(chosen.get("stack")).startswith("1") and chosen.get("dropout", "none") != "none")
        or (plain and chosen.get("cell_states"))
        or (plain and chosen.get("states") in ("h0", "c0"))
    )


def pairs(factors: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield choices for all factors, so few that every pair that can stand together is there."""
    values = [(name, value) for name, choices in factors.items() for value in choices]
    missing = dict.fromkeys(
        (one, other)
        for i, one in enumerate(values)
        for other in values[i:]
        if one[0] != other[0] and not clash(one, other)
    )
    used = dict.fromkeys(values, 0)
    while missing:
        chosen = dict(next(iter(missing)))
        for name, choices in factors.items():
            if name not in chosen:
                free = [
                    (name, value)
                    for value in choices
                    if not any(clash((name, value), each) for each in chosen.items())
                ]

                def gain(value: tuple[str, Any], chosen: dict[str, Any] = chosen) -> Any:
                    new = sum(
                        (value, e) in missing or (e, value) in missing for e in chosen.items()
                    )
                    return new, -used[value]

                chosen[name] = max(free, key=gain)[1]
        ordered = [(name, chosen[name]) for name in factors]
        for i, one in enumerate(ordered):
            used[one] += 1
            for other in ordered[i:]:
                missing.pop((one, other), None)
        yield chosen


CORE = tuple(Case(**chosen) for chosen in pairs(FACTORS))
WIDE_STEPS = ("dense", "lengths", "lengths_zero", "mask", "mask_left", "resets_mask")
WIDE = tuple(
    Case(**chosen) for chosen in pairs(FACTORS | {"sizes": tuple(WIDE_SIZES), "steps": WIDE_STEPS})
)
TINY = tuple(
    Case(
        cell,
        steps,
        stack,
        *TINY_SIZES,
        hold=hold,
        cell_states=CELLS[cell].mode == "lstm",
        dropout="none" if stack.startswith("1") else "masks",
    )
    for cell, (steps, stack, hold) in zip(
        CELLS,
        itertools.cycle(
            [
                ("resets_mask", "1-both", True),
                ("mask", "2", True),
                ("lengths_zero", "1-both", False),
                ("resets_lengths", "2-reverse", False),
                ("dense", "2", False),
            ]
        ),
        strict=False,
    )
)
