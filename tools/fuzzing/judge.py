"""What a call on NumPy arrays must do: on `cpu` what the reference does, and no harm."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import rnnop
from rnnop.tolerances import FLOORS, TOLERANCES, rms

from .calls import DTYPES, Array, Call, draw

Results = dict[str, Array]

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Fault(Exception):
    """A call did what it must not."""


def one(seed: int, tally: Counter[str]) -> None:
    """Make the call of a seed and judge it."""
    judge(draw(seed), tally)


def judge(call: Call, tally: Counter[str]) -> None:
    """Run a call on both backends.

    Raises
    ------
    Fault
        Something came of it that must not.
    """
    results = of_both(call, outcome, arrays_of(call), tally)
    if results is None:
        return
    got, wanted = results
    options = call.options
    drawn = options.get("dropout") and options.get("training")
    if drawn and options.get("seed") is None and options.get("dropout_masks") is None:
        tally["dropout without a seed"] += 1
        return
    tally["compared"] += 1
    if call.exact and call.vjp:
        tally["compared with gradients"] += 1
        out, grads = with_gradients(call, "cpu")
        for name, array in out.items():
            if array.tobytes() != got[name].tobytes():
                raise Fault(f"{name} of rnn_vjp has other bits than that of rnn")
        _compare(call, out | grads, None)
    elif call.exact:
        _compare(call, got, wanted if call.dtype == "float64" else None)
    _compare_ways(call, got, tally)
    if call.exact and not drawn:
        _compare_row(call, got, tally)


def of_both(
    call: Any,
    run: Callable[[Any, str], Results | Exception],
    given: list[Array],
    tally: Counter[str],
) -> tuple[Results, Results] | None:
    """Return what a call gives on `cpu` and on the reference, or None where it is refused.

    Raises
    ------
    Fault
        They do not agree in that, or harm an argument.
    """
    before = [each.tobytes() for each in given]
    got, wanted = (run(call, backend) for backend in ("cpu", "reference"))
    if [each.tobytes() for each in given] != before:
        raise Fault("an argument was changed")
    if isinstance(wanted, Exception):
        tally[f"refused: {type(wanted).__name__}"] += 1
        same = (type(got), str(got)) == (type(wanted), str(wanted))
        if not same and not isinstance(got, rnnop.UnsupportedError):
            raise Fault(f"cpu: {got!r}; reference: {wanted!r}")
        return None
    if call.refuse:
        raise Fault(f"accepted, though wrong: {call.wrong}")
    if isinstance(got, rnnop.UnsupportedError):
        tally["only the reference has it"] += 1
        return None
    if isinstance(got, Exception):
        raise Fault(f"cpu refused what the reference ran: {got}") from got
    same_shapes(got, wanted)
    for result in (*got.values(), *wanted.values()):
        if any(np.may_share_memory(result, array) for array in given):
            raise Fault("a result shares memory with an argument")
    return got, wanted


def outcome(call: Call, backend: str) -> Results | Exception:
    """Return what a call gives, or the error that refuses it."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dropout=.* has no effect", UserWarning)
            return _outputs(call.rnn(backend=backend))
    except (rnnop.RnnopError, TypeError) as error:
        if not isinstance(error, rnnop.RnnopError) and call.wrong != "name":
            raise Fault(f"Python's own error: {error}") from error
        return error


def _outputs(out: rnnop.RNNOutput) -> Results:
    named = {name: data_of(array) for name, array in out._asdict().items() if array is not None}
    for name, array in named.items():
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            raise Fault(f"{name} is no plain contiguous array")
    return named


def data_of(value: Any) -> Any:
    """Return an array, or the data of a packed sequence."""
    return value.data if isinstance(value, rnnop.PackedSequence) else value


def arrays_of(call: Call) -> list[Array]:
    """Return every argument that is an array."""
    arrays = [data_of(call.x), call.h0, call.c0, *call.options.values()]
    if isinstance(call.weights, rnnop.RNNWeights):
        arrays += [array for _, array in call.weights.named()]
    return [each for each in arrays if isinstance(each, np.ndarray)]


def same_shapes(got: Results, wanted: Results) -> None:
    """Hold results to the names, shapes and dtypes of others."""
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
        other = outcome(each, "cpu")
        if isinstance(other, Exception):
            raise Fault(f"the same call was refused: {other}") from other
        for name, array in got.items():
            if array.tobytes() != other[name].tobytes():
                raise Fault(f"{name} has other bits the second time")


def cotangents_of(named: Results, dtype: str) -> Results:
    """Return a cotangent of each output: numbers of `dtype`, also where the call is in float64."""
    random = np.random.default_rng(5)
    drawn = {
        name: np.asarray(random.standard_normal(array.shape), np.float32).astype(DTYPES[dtype])
        for name, array in named.items()
    }
    return {name: array.astype(named[name].dtype) for name, array in drawn.items()}


def with_gradients(call: Call, backend: str) -> tuple[Results, Results]:
    """Return outputs and gradients, for cotangents that follow from the shapes."""
    out, vjp = rnnop.rnn_vjp(
        call.x, call.weights, call.h0, call.c0, **call.options, backend=backend
    )
    named = _outputs(out)
    cotangents: dict[str, Any] = dict(cotangents_of(named, call.dtype))
    for name in cotangents:
        if isinstance(getattr(out, name), rnnop.PackedSequence):
            cotangents[name] = getattr(out, name)._replace(data=cotangents[name])
    grads = vjp(**{f"d{name}": value for name, value in cotangents.items()})
    found = {"dx": data_of(grads.x), "dh0": grads.h0}
    found |= {} if grads.c0 is None else {"dc0": grads.c0}
    for name, entries in grads.weights.fields():
        found[f"d{name}"] = np.concatenate([np.ravel(each) for each in entries])
    return named, found


def _compare(call: Call, got: Results, wanted: Results | None) -> None:
    """Compare with the reference in float64, whose results may be known."""
    wide = call.map(lambda array: np.asarray(array, np.float64))

    def right(change: Callable[[Array], Array]) -> Results:
        changed = wide.map(change)
        if "dx" not in got:
            return _outputs(changed.rnn(backend="reference"))
        out, grads = with_gradients(changed, "reference")
        return out | grads

    wanted = right(lambda array: array) if wanted is None else wanted
    steps = data_of(call.x).size // max(1, data_of(call.x).shape[-1])
    hold("cpu", call.dtype, got, wanted, right, steps)


def hold(
    backend: str,
    dtype: str,
    got: Results,
    wanted: Results,
    right: Callable[[Callable[[Array], Array]], Results],
    steps: int,
    own: Callable[[], Results] | None = None,
) -> None:
    """Hold results to those in float64.

    A result that nearly cancels says nothing about its computation: so what is beyond the
    tolerance must also be further off than the result moves when every number of the call does,
    by its rounding, and than the last places of the largest result are: 1 - h * h is no more exact
    than h, and a gradient of the weights sums it over all steps. `right` runs the call again with
    its numbers changed. `own` runs the reference in the call's own dtype, which may be no nearer:
    a layer norm of numbers that are nearly equal makes much of the rounding before it.
    """
    most = TOLERANCES[backend, dtype]
    off = {}
    for name, array in wanted.items():
        found = np.asarray(got[name], np.float64)
        if not np.array_equal(np.isnan(found), np.isnan(array)):
            raise Fault(f"{name} has NaN elsewhere")
        numbers = ~np.isnan(array)
        difference = rms(found[numbers] - array[numbers]) - FLOORS[dtype]
        if not difference <= most * rms(array[numbers]):
            off[name] = difference
    if not off:
        return
    random, unit = np.random.default_rng(6), EPS[dtype]
    most_of_all = max(map(rms, wanted.values()))
    moves = dict.fromkeys(off, unit * most_of_all * float(np.sqrt(steps)))
    for _ in range(6):
        moved = right(lambda a: a * (1 + unit * random.choice([-1, 1], a.shape)))
        for name in off:
            moves[name] = max(moves[name], rms(moved[name] - wanted[name]))
    rounded = {} if own is None else own()
    for name in rounded.keys() & off.keys():
        found = np.asarray(rounded[name], np.float64)
        moves[name] = max(moves[name], rms(found - wanted[name]))
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
