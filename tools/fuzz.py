"""Call the operator in every way that chance finds, right and wrong, and judge what comes back.

    python tools/fuzz.py --calls 200000 --seed 0

Each call follows from its seed alone. One that is right must give, on the backend `cpu`, the values
of the reference in float64 within the published tolerances, leave its arguments as they were, and
give the same bits the second time and with prepacked weights. One that is wrong must be refused by
an error of rnnop, or by Python's own TypeError, and by both backends with the same words. A row
must give what it gives alone with its masked steps cut out. Whatever else happens is a fault: it is
printed with its seed, and ``--calls 1 --seed`` that number shows it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

import rnnop
from rnnop.tolerances import FLOORS, TOLERANCES, rms

Array = np.ndarray[Any, np.dtype[Any]]
Results = dict[str, Array]

HANGS_AFTER = 300  # seconds for 100 calls, on a busy machine
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
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
            return function(value) if isinstance(value, np.ndarray) else value

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
    reshaped: dict[str, Any] = {name: _reshaped(d, array)}
    return replace(call, **reshaped, refuse=name != "x")


def _reshaped(d: Draw, array: Array) -> Array:
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
            fields[name][k] = _reshaped(d, fields[name][k])
    both = call.weights.bidirectional
    try:
        return replace(call, weights=rnnop.RNNWeights.of_fields(fields, both))
    except rnnop.RnnopError:
        return replace(call, weights=None, refuse=True)


# Judging


class Fault(Exception):
    """A call did what it must not."""


@dataclass
class Tally:
    """What came of many calls."""

    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def judge(call: Call, tally: Counter[str]) -> None:
    """Run a call on both backends.

    Raises
    ------
    Fault
        Something came of it that must not.
    """
    before = _bytes(call)
    got, wanted = (_outcome(call, backend) for backend in ("cpu", "reference"))
    if _bytes(call) != before:
        raise Fault("an argument was changed")
    if isinstance(wanted, Exception):
        tally[f"refused: {type(wanted).__name__}"] += 1
        same = (type(got), str(got)) == (type(wanted), str(wanted))
        if not same and not isinstance(got, rnnop.UnsupportedError):
            raise Fault(f"cpu: {got!r}; reference: {wanted!r}")
        return
    if call.refuse:
        raise Fault(f"accepted, though wrong: {call.wrong}")
    if isinstance(got, rnnop.UnsupportedError):
        tally["only the reference has it"] += 1
        return
    if isinstance(got, Exception):
        raise Fault(f"cpu refused what the reference ran: {got}") from got
    _same_shapes(got, wanted)
    for result in (*got.values(), *wanted.values()):
        if any(np.may_share_memory(result, array) for array in _arrays(call)):
            raise Fault("a result shares memory with an argument")
    options = call.options
    drawn = options.get("dropout") and options.get("training")
    if drawn and options.get("seed") is None and options.get("dropout_masks") is None:
        tally["dropout without a seed"] += 1
        return
    tally["compared"] += 1
    if call.exact and call.vjp:
        tally["compared with gradients"] += 1
        out, grads = _with_gradients(call, "cpu")
        for name, array in out.items():
            if array.tobytes() != got[name].tobytes():
                raise Fault(f"{name} of rnn_vjp has other bits than that of rnn")
        _compare(call, out | grads, None)
    elif call.exact:
        _compare(call, got, wanted if call.dtype == "float64" else None)
    _compare_ways(call, got, tally)
    if call.exact and not drawn:
        _compare_row(call, got, tally)


def _outcome(call: Call, backend: str) -> Results | Exception:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dropout=.* has no effect", UserWarning)
            return _outputs(call.rnn(backend=backend))
    except (rnnop.RnnopError, TypeError) as error:
        if not isinstance(error, rnnop.RnnopError) and call.wrong != "name":
            raise Fault(f"Python's own error: {error}") from error
        return error


def _outputs(out: rnnop.RNNOutput) -> Results:
    named = {name: _data(array) for name, array in out._asdict().items() if array is not None}
    for name, array in named.items():
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            raise Fault(f"{name} is no plain contiguous array")
    return named


def _data(value: Any) -> Any:
    return value.data if isinstance(value, rnnop.PackedSequence) else value


def _arrays(call: Call) -> list[Array]:
    arrays = [_data(call.x), call.h0, call.c0, *call.options.values()]
    if isinstance(call.weights, rnnop.RNNWeights):
        arrays += [array for _, array in call.weights.named()]
    return [each for each in arrays if isinstance(each, np.ndarray)]


def _bytes(call: Call) -> list[bytes]:
    return [each.tobytes() for each in _arrays(call)]


def _same_shapes(got: Results, wanted: Results) -> None:
    mine, theirs = ({k: (v.shape, v.dtype) for k, v in r.items()} for r in (got, wanted))
    if mine != theirs:
        raise Fault(f"shapes and dtypes {mine}, expected {theirs}")


def _compare_ways(call: Call, got: Results, tally: Counter[str]) -> None:
    """Call again, in ways that must give the same bits."""
    again = [call] if len(got["y"]) % 3 == 0 else []
    if call.prepacked:
        tally["compared with prepacked weights"] += 1
        packed = rnnop.prepack(call.weights, mode=call.options["mode"], backend="cpu")
        again += [replace(call, weights=packed)] * 2
    for each in again:
        other = _outcome(each, "cpu")
        if isinstance(other, Exception):
            raise Fault(f"the same call was refused: {other}") from other
        for name, array in got.items():
            if array.tobytes() != other[name].tobytes():
                raise Fault(f"{name} has other bits the second time")


def _with_gradients(call: Call, backend: str) -> tuple[Results, Results]:
    """Return outputs and gradients, for cotangents that follow from the shapes."""
    out, vjp = rnnop.rnn_vjp(
        call.x, call.weights, call.h0, call.c0, **call.options, backend=backend
    )
    named = _outputs(out)
    random = np.random.default_rng(5)
    cotangents: dict[str, Any] = {"y": None, "h_n": None}
    for name, array in named.items():
        dtype = DTYPES[call.dtype]  # rounded to it also where the call is in float64
        drawn = np.asarray(random.standard_normal(array.shape), np.float32).astype(dtype)
        cotangents[name] = drawn.astype(array.dtype)
        if isinstance(getattr(out, name), rnnop.PackedSequence):
            cotangents[name] = getattr(out, name)._replace(data=cotangents[name])
    grads = vjp(**{f"d{name}": value for name, value in cotangents.items()})
    found = {"dx": _data(grads.x), "dh0": grads.h0}
    found |= {} if grads.c0 is None else {"dc0": grads.c0}
    for name, entries in grads.weights.fields():
        found[f"d{name}"] = np.concatenate([np.ravel(each) for each in entries])
    return named, found


def _compare(call: Call, got: Results, wanted: Results | None) -> None:
    """Compare with the reference in float64, whose results may be known.

    A result that nearly cancels says nothing about its computation: so what is beyond the
    tolerance must also be further off than the result moves when every number of the call does,
    by its rounding, and than the last places of the largest result are: 1 - h * h is no more exact
    than h, and a gradient of the weights sums it over all steps.
    """
    wide = call.map(lambda array: np.asarray(array, np.float64))

    def right(call: Call) -> Results:
        if "dx" not in got:
            return _outputs(call.rnn(backend="reference"))
        out, grads = _with_gradients(call, "reference")
        return out | grads

    wanted = right(wide) if wanted is None else wanted
    most = TOLERANCES["cpu", call.dtype]
    off = {}
    for name, array in wanted.items():
        found = np.asarray(got[name], np.float64)
        if not np.array_equal(np.isnan(found), np.isnan(array)):
            raise Fault(f"{name} has NaN elsewhere")
        difference = rms(found - array) - FLOORS[call.dtype]
        if not difference <= most * rms(array):
            off[name] = difference
    if not off:
        return
    random, unit = np.random.default_rng(6), EPS[call.dtype]
    most_of_all = max(map(rms, wanted.values()))
    steps = _data(call.x).size // max(1, _data(call.x).shape[-1])
    moves = dict.fromkeys(off, unit * most_of_all * float(np.sqrt(steps)))
    for _ in range(6):
        moved = right(wide.map(lambda a: a * (1 + unit * random.choice([-1, 1], a.shape))))
        for name in off:
            moves[name] = max(moves[name], rms(moved[name] - wanted[name]))
    for name, difference in off.items():
        if not difference <= most * rms(wanted[name]) + 8 * moves[name]:
            raise Fault(
                f"{name} is off by {difference:.2g}, RMS {rms(wanted[name]):.2g}; "
                f"rounding moves it by {moves[name]:.2g}"
            )


def _compare_row(call: Call, got: Results, tally: Counter[str]) -> None:
    """Compare one row with itself alone, its masked steps cut out."""
    options = dict(call.options)
    lengths, mask = options.pop("lengths", None), options.pop("mask", None)
    if isinstance(call.x, rnnop.PackedSequence) or (lengths is None and mask is None):
        return
    first = options.pop("batch_first", False)
    x, y = (each.swapaxes(0, 1) if first else each for each in (call.x, got["y"]))
    T, N = x.shape[:2]
    if not N:
        return
    row = T % N
    real = np.arange(T) < lengths[row] if mask is None else (mask[row] if first else mask[:, row])
    real = np.asarray(real)
    if options.pop("resets", None) is not None or options.pop("dropout_masks", None) is not None:
        return
    options |= {"backend": "reference", "masked_output": "zero"}
    states = [None if s is None else s[:, row : row + 1] for s in (call.h0, call.c0)]
    options.pop("dropout", None)
    alone = rnnop.rnn(x[real][:, row : row + 1], call.weights, *states, **options)
    tally["a row compared with itself alone"] += 1
    loose = 1e3 * TOLERANCES["cpu", call.dtype]  # a few entries, of one row
    for name, mine, theirs in (
        ("y", y[real, row], alone.y[:, 0]),
        ("h_n", got["h_n"][:, row], alone.h_n[:, 0]),
    ):
        wide, other = (np.asarray(each, np.float64) for each in (mine, theirs))
        if not np.allclose(wide, other, rtol=loose, atol=loose, equal_nan=True):
            raise Fault(f"{name} of row {row} is another than that of the row alone")


def fuzz(calls: int, seed: int, watch: bool = False) -> Tally:
    """Judge the calls of as many seeds, from `seed` on."""
    tally = Tally()
    warnings.filterwarnings("ignore", "dropout=.* has no effect", UserWarning)
    started = time.monotonic()
    for each in range(seed, seed + calls):
        if watch and each % 100 == 0:
            faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            judge(draw(each), tally.kinds)
        except Exception as error:  # whatever it is, it is a fault, and the others are to run
            frame = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            tally.faults.append(f"seed {each}: {type(error).__name__}: {error} ({where})")
            if watch:
                print(tally.faults[-1], flush=True)
        if watch and (each - seed) % 10_000 == 9_999:
            print(f"{each - seed + 1} calls, {time.monotonic() - started:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> int:
    """Run as many calls as asked for, and print what came of them."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first call; the others follow")
    arguments = parser.parse_args()
    tally = fuzz(arguments.calls, arguments.seed, watch=True)
    print(f"{arguments.calls} calls, {len(tally.faults)} faults")
    for kind, count in tally.kinds.most_common():
        print(f"{count:8}  {kind}")
    return bool(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
