"""One call of the operator for every seed: right ones of every kind, and wrong ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
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
MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
GROUPS = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 2, "lstm": 3}
SMOOTH = (
    *("Sigmoid", "Tanh", "Softsign", "Softplus", "Relu"),
    *(("LeakyRelu", 0.2), ("Affine", 0.6, 0.1), ("Elu", 0.7), ("ScaledTanh", 1.1, 0.8)),
    *(("HardSigmoid", 0.3, 0.4), ("ThresholdedRelu", 0.2)),
)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, 5e-324, 1e-42, 1e30, 1e300, -1e300)


@dataclass(frozen=True)
class Call:
    """The arguments of one call, and what is to be done with it."""

    x: Any
    weights: Any
    h0: Any
    c0: Any
    options: dict[str, Any]
    dtype: str
    vjp: bool = False
    prepacked: bool = False
    exact: bool = True  # whether all numbers are ordinary ones
    wrong: str = ""  # what was made of it, and whether it must be refused
    refuse: bool = False

    def rnn(self, **more: Any) -> rnnop.RNNOutput:
        """Run it."""
        return rnnop.rnn(self.x, self.weights, self.h0, self.c0, **self.options | more)

    def map(self, function: Any) -> Call:
        """Return it with a function applied to every array of numbers."""

        def changed(value: Any) -> Any:
            if isinstance(value, rnnop.PackedSequence):
                return value._replace(data=function(value.data))
            if isinstance(value, rnnop.RNNWeights):
                return value.map(function)
            return function(value) if hasattr(value, "ndim") else value

        x, weights, h0, c0 = map(changed, (self.x, self.weights, self.h0, self.c0))
        return replace(self, x=x, weights=weights, h0=h0, c0=c0)


class Draw:
    """Everything that is drawn for one call."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = self.one(["float64"] * 5 + ["float32"] * 3 + ["float16", "bfloat16"])
        self.exact = self.chance(0.9)
        self.readonly = self.chance(0.3)

    def chance(self, probability: float) -> bool:
        """Return True as often as that."""
        return bool(self.random.random() < probability)

    def one(self, choices: Any) -> Any:
        """Return one of them."""
        return choices[int(self.random.integers(len(choices)))]

    def size(self, least: int = 1) -> int:
        """Return a small size, now and then one around a vector of the engine."""
        if self.chance(0.05):
            return int(self.random.integers(15, 35))
        return int(self.random.integers(least, 10))

    def array(self, *shape: int, scale: float = 1.0) -> Array:
        """Return numbers of the dtype of the call that lie in memory as chance has it."""
        values = scale * self.random.standard_normal(shape)
        if not self.exact and values.size and self.chance(0.4):
            places = self.random.random(shape) < 0.2
            values[places] = self.random.choice(SPECIAL, int(places.sum()))
        return self._rounded(values)

    def around(self, array: Array) -> Array:
        """Return numbers near those of an array, as `array` does."""
        return self._rounded(array + 0.2 * self.random.standard_normal(array.shape))

    def _rounded(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return self.laid_out(values.astype(DTYPES[self.dtype]))

    def laid_out(self, array: Array) -> Array:
        """Return an equal array that lies otherwise in memory."""
        match self.random.integers(12):
            case 0:
                around = np.ones([2 * n for n in array.shape], array.dtype)
                inside = tuple(slice(None, 2 * n, 2) for n in array.shape)
                around[inside] = array
                array = around[inside]
            case 1:
                back = (slice(None, None, -1),) * array.ndim
                array = np.ascontiguousarray(array[back])[back]
            case 2:
                array = np.asfortranarray(array)
            case 3 if array.ndim and len(array):
                array = np.broadcast_to(array[:1], array.shape)
            case 4:  # at an odd address
                memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
                held = memory.view(array.dtype).reshape(array.shape)
                held[...] = array
                array = held
            case 5:
                array = array.view(Subclass)
            case 6 if array.size:
                array = np.broadcast_to(array.ravel()[:1], array.shape)
        if self.readonly and array.flags.writeable:
            array.flags.writeable = False
        return array


class Subclass(np.ndarray):
    """An array with a class of its own, as many packages have."""


def draw(seed: int) -> Call:
    """Return the call that follows from a seed."""
    d = Draw(seed)
    mode = d.one(MODES)
    lstm = mode == "lstm"
    T, N = (0 if d.chance(0.03) else min(d.size(), d.size()) for _ in range(2))
    I, H, L, D = d.size(), d.size(), d.one([1, 1, 2, 3]), d.one([1, 1, 2])
    P = int(d.random.integers(1, H, endpoint=True)) if lstm and d.chance(0.3) else None
    options: dict[str, Any] = {"mode": mode}
    options |= _cell_options(d, mode, D, P)
    weights = _weights(d, mode, I, H, P, L, D)
    h0 = d.array(L * D, N, P or H) if d.chance(0.5) else None
    c0 = d.array(L * D, N, H) if lstm and d.chance(0.5) else None
    x: Any = d.array(T, N, I)
    width = D * (P or H)
    if d.chance(0.15):
        lengths = d.random.integers(0, T, N, endpoint=True)
        x = rnnop.pack(x, lengths)
        leading: tuple[int, ...] = (len(x.data),)
        if d.chance(0.3):
            T = len(x.batch_sizes)
            options["resets"] = d.laid_out(d.random.random((T, N)) < 0.3)
    else:
        leading = (T, N)
        if d.chance(0.3):
            options["batch_first"] = True
            leading = (N, T)
            x = d.array(N, T, I)
        options |= _steps(d, T, N, leading)
    if L > 1 and d.chance(0.25):
        options |= {"dropout": d.one([0.0, 0.3, 0.9]), "training": d.chance(0.8)}
        if d.chance(0.5):
            shape = (*leading, width)
            options["dropout_masks"] = [d.laid_out(d.random.random(shape) < 0.6)] * (L - 1)
        else:
            options["seed"] = int(d.random.integers(2**40))
    if d.chance(0.3):
        options["masked_output"] = "hold"
    if lstm and d.chance(0.3):
        options["return_cell_states"] = True
    if d.chance(0.03):
        options["activations"] = [d.one(SMOOTH) for _ in range(GROUPS[mode] * d.one([1, D]))]
    call = Call(x, weights, h0, c0, options, d.dtype, d.chance(0.4), d.chance(0.3), d.exact)
    return _wrong(d, call) if d.chance(0.25) else call


def _cell_options(d: Draw, mode: str, D: int, P: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if D == 1 and d.chance(0.3):
        options["reverse"] = True
    if mode == "gru" and d.chance(0.3):
        options["reset_after"] = False
    if d.chance(0.15):
        options["gate_clip"] = d.one([0.7, (-0.4, 0.6), np.float32(0.9), 3])
    if mode == "lstm":
        if d.chance(0.2):
            options["cell_clip"] = d.one([0.3, (-0.2, 0.4), (0.05, 0.5), [-1, 1], 1e300])
            options["cell_clip_nan"] = d.chance(0.3)
        if P and d.chance(0.3):
            options["proj_clip"] = d.one([0.2, (-0.1, 0.15)])
        if d.chance(0.15):
            options["input_forget"] = True
    return options


def _weights(d: Draw, mode: str, I: int, H: int, P: int | None, L: int, D: int) -> rnnop.RNNWeights:
    rows, out = {"gru": 3, "lstm": 4}.get(mode, 1) * H, P or H
    shapes: dict[str, Any] = {
        "w_ih": [(rows, I if k < D else D * out) for k in range(L * D)],
        "w_hh": [(rows, out)] * (L * D),
    }
    shapes |= {name: [(rows,)] * (L * D) for name in ("b_ih", "b_hh") if d.chance(0.7)}
    if P:
        shapes["w_hr"] = [(P, H)] * (L * D)
    if mode == "lstm" and d.chance(0.2):
        shapes["peephole"] = [(3, H)] * (L * D)
    return rnnop.RNNWeights(
        **{
            name: tuple(d.array(*shape, scale=shape[-1] ** -0.5) for shape in each)
            for name, each in shapes.items()
        },
        bidirectional=D == 2,
    )


def _steps(d: Draw, T: int, N: int, leading: tuple[int, ...]) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    if d.chance(0.3):
        lengths = d.random.integers(0, T, N, endpoint=True)
        steps["lengths"] = d.one([lengths, lengths.tolist(), lengths.astype(np.uint8)])
    elif d.chance(0.4):
        steps["mask"] = d.laid_out(d.random.random(leading) < d.one([0.1, 0.6, 0.95, 1.0]))
    if d.chance(0.25):
        steps["resets"] = d.laid_out(d.random.random(leading) < d.one([0.1, 0.4, 1.0]))
    return steps


# Wrong calls

NO_ARRAYS: tuple[Any, ...] = (
    *(None, 3, 2.5, "x", [1.0], (), {}, object(), 1j, b"bytes", range(3), np.float64(1.0)),
    *(memoryview(b"abcd"), np.zeros(3), np.zeros((2, 2, 2), int), np.zeros((1, 1, 1), complex)),
    *(np.array([[[None]]], object), np.array("x"), np.ma.zeros((2, 2, 2)), np.zeros((0,) * 40)),
    *(np.zeros((1, 1, 1), np.longdouble), np.zeros((1, 1, 1), "M8[s]"), np.zeros(1, "f4,f4")),
    *(np.zeros((2, 2), bool), np.zeros(()), lambda: None, float("nan"), -1, 10**400),
)
NO_OPTIONS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 1.0, 2, float("nan"), float("inf"), 10**400, 1j, "", "gru"),
    *("nonsense", "auto", b"gru", [], (), (1,), (1, 0), (0, 1), (np.nan, 1), [0.1, 0.2, 0.3], {}),
    *(np.zeros(2), np.zeros((2, 2)), np.array(0.5), np.float16(0.5), np.bool_(True), object()),
    *(["Tanh"], ("Tanh", "Tanh"), [("Tanh", 1)], [None] * 3, [("LeakyRelu", "a")], [()], "Tanh"),
)
NAMES = (
    *("mode", "mask", "lengths", "resets", "batch_first", "reverse", "dropout", "training", "seed"),
    *("dropout_masks", "cell_clip", "cell_clip_nan", "proj_clip", "gate_clip", "reset_after"),
    *("activations", "input_forget", "masked_output", "return_cell_states"),
)


def _wrong(d: Draw, call: Call) -> Call:
    """Return the call with something changed: mostly it becomes a wrong one."""
    kind = d.one(["option", "option", "array", "shape", "shape", "weights", "dtype", "name"])
    call = replace(call, exact=call.exact and kind == "option", vjp=False, wrong=kind)
    if kind == "option":
        name = d.one(NAMES)
        return replace(call, options=call.options | {name: d.one(NO_OPTIONS)})
    if kind == "name":
        options = call.options | {d.one(["masks", "h0", "x", "hx", ""]): d.one(NO_OPTIONS)}
        return replace(call, options=options, refuse=True)
    if kind == "array":
        name = d.one(["x", "h0", "c0", "weights", "mask", "lengths", "resets", "packed"])
        value = d.one(NO_ARRAYS)
        if name == "packed":
            fields: list[Any] = [np.zeros((3, 2)), [2, 1], None, None]
            fields[d.random.integers(4)] = value
            return replace(call, x=rnnop.PackedSequence(*fields))
        if name in ("x", "h0", "c0", "weights"):
            return replace(call, **{name: value})
        return replace(call, options=call.options | {name: value})
    if kind == "weights":
        return _wrong_weights(d, call)
    names = [n for n in ("x", "h0", "c0") if isinstance(getattr(call, n), np.ndarray)]
    if not names:
        return replace(call, x=(), refuse=True)
    name = d.one(names)
    array = getattr(call, name)
    if kind == "dtype":
        others = [dtype for each, dtype in DTYPES.items() if each != call.dtype]
        swapped = array.dtype.newbyteorder() if call.dtype != "bfloat16" else np.int8
        other = d.one([*others, np.int32, bool, np.complex64, object, swapped, swapped])
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed: dict[str, Any] = {name: array.astype(other)}
            return replace(call, **changed, refuse=True)
    reshaped: dict[str, Any] = {name: in_another_shape(d, array)}
    return replace(call, **reshaped, refuse=name != "x")


def in_another_shape(d: Draw, array: Array) -> Array:
    """Return the numbers in another shape."""
    shape = list(array.shape)
    match d.random.integers(4):
        case 0:
            shape.insert(int(d.random.integers(len(shape) + 1)), 1)
        case 1:
            shape.pop()
        case _:
            axis = int(d.random.integers(len(shape)))
            shape[axis] += d.one([-1, 1, 5]) if shape[axis] else 1
    return np.resize(array, shape)


def _wrong_weights(d: Draw, call: Call) -> Call:
    fields = {name: list(entries) for name, entries in call.weights.fields()}
    name = d.one(list(fields))
    k = int(d.random.integers(len(fields[name])))
    match d.random.integers(3):
        case 0:
            fields[name][k] = d.one(NO_ARRAYS)
        case 1:
            fields[name].pop(k)
        case _:
            fields[name][k] = in_another_shape(d, fields[name][k])
    both = call.weights.bidirectional
    try:
        return replace(call, weights=rnnop.RNNWeights.of_fields(fields, both))
    except rnnop.RnnopError:
        return replace(call, weights=None, refuse=True)
