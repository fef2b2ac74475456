"""What a call through a framework must do: what it does on NumPy arrays, to the last bit.

The arrays go to the same engine, so there is no tolerance. What NumPy is refused, a framework is
refused by the same error, about the same argument.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

import rnnop

from . import judge
from .calls import Array, Call, draw
from .judge import Fault, Results


class Framework(Protocol):
    """What the judge must know of a framework."""

    def of(self, array: Array, random: np.random.Generator) -> Any:
        """Return equal numbers as its own array, however that lies in memory.

        Raises TypeError for what it has not.
        """

    def host(self, array: Any) -> Array:
        """Return an array as one of NumPy."""

    def gradients(self, call: Call, cotangents: Results, random: np.random.Generator) -> Results:
        """Return the gradients that the framework itself finds, by the names of `flat`."""


def flat(x: Any, weights: Any, h0: Any, c0: Any, host: Callable[[Any], Array]) -> Results:
    """Return the gradients of what was given, by name; those of a kind of weights as a vector."""
    found = {"dx": host(judge.data_of(x))}
    found |= {name: host(each) for name, each in (("dh0", h0), ("dc0", c0)) if each is not None}
    for name, entries in weights.fields():
        found[f"d{name}"] = np.concatenate([host(each).ravel() for each in entries])
    return found


def judge_call(
    call: Call, tally: Counter[str], framework: Framework, random: np.random.Generator
) -> None:
    """Run a call on NumPy arrays and through a framework.

    Raises
    ------
    Fault
        They do not agree, or an argument was changed.
    """
    wanted = judge.outcome(call, "cpu")
    theirs = translated(call, framework, random)
    before = _bytes(theirs, framework)
    got = _outcome(lambda: theirs.rnn(backend="cpu"), framework, call.wrong)
    if isinstance(wanted, Exception):
        _same_refusal(got, wanted, call.wrong)
        tally[f"refused: {type(wanted).__name__}"] += 1
        return
    if isinstance(got, Exception):
        raise Fault(f"refused, though NumPy is not: {got}") from got
    options = call.options
    drawn = options.get("dropout") and options.get("training")
    if drawn and options.get("seed") is None and options.get("dropout_masks") is None:
        tally["dropout without a seed"] += 1
        return
    _same(got, wanted)
    tally["compared"] += 1
    if call.vjp:
        tally["compared with gradients"] += 1
        _compare_gradients(call, theirs, framework, random)
    if _bytes(theirs, framework) != before:
        raise Fault("an argument was changed")


def translated(call: Call, framework: Framework, random: np.random.Generator) -> Call:
    """Return the call on arrays of a framework; what it does not have stays as it is."""

    def moved(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
            return value
        try:
            return framework.of(value, random)
        except TypeError:
            return value

    options = dict(call.options)
    for name in ("mask", "resets", "lengths"):
        if random.random() < 0.5 and name in options:
            options[name] = moved(options[name])
    masks = options.get("dropout_masks")
    if masks is not None:
        listed = isinstance(masks, list | tuple)
        options["dropout_masks"] = [moved(each) for each in masks] if listed else moved(masks)
    return replace(call.map(moved), options=options)


def _outcome(
    run: Callable[[], rnnop.RNNOutput], framework: Framework, wrong: str
) -> Results | Exception:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "dropout=.* has no effect", UserWarning)
            out = run()
    except (rnnop.RnnopError, TypeError) as error:
        if not isinstance(error, rnnop.RnnopError) and wrong != "name":
            raise Fault(f"Python's own error: {error}") from error
        return error
    named = {name: judge.data_of(each) for name, each in out._asdict().items() if each is not None}
    return {name: framework.host(each) for name, each in named.items()}


def _same_refusal(got: Results | Exception, wanted: Exception, wrong: str) -> None:
    """Hold a refusal to that of NumPy: the same class, or about the same argument.

    A call with something else for an array may be wrong in two ways, and either may be told. So
    may a wrong call that `cpu` does not have.
    """
    if not isinstance(got, Exception):
        raise Fault(f"accepted, though NumPy is refused: {wanted}")
    names = [re.search(r"`([^`\[]*)", str(error)) for error in (got, wanted)]
    mine, theirs = (name and name[1] for name in names)
    either = wrong == "array" or (wrong and isinstance(wanted, rnnop.UnsupportedError))
    if type(got) is not type(wanted) and mine != theirs and not either:
        raise Fault(f"refused by {got!r}; NumPy by {wanted!r}")


def _same(got: Results, wanted: Results) -> None:
    judge.same_shapes(got, wanted)
    for name, array in wanted.items():
        if not np.array_equal(_bits(got[name]), _bits(array)):
            raise Fault(f"{name} has other bits than with NumPy")


def _bits(array: Array) -> Array:
    """Return the bits of numbers; one NaN is as good as another."""
    return np.where(np.isnan(array), -1, array.view(f"i{array.dtype.itemsize}"))


def _compare_gradients(
    call: Call, theirs: Call, framework: Framework, random: np.random.Generator
) -> None:
    """Compare gradients: the framework's own, and those of `rnn_vjp` on its arrays."""
    outputs, grads = judge.with_gradients(call, "cpu")
    cotangents = judge.cotangents_of(outputs, call.dtype)
    given = {"dx": True, "dh0": call.h0 is not None, "dc0": call.c0 is not None}
    wanted = {name: array for name, array in grads.items() if given.get(name, True)}
    _same(framework.gradients(theirs, cotangents, random), wanted)
    out, vjp = rnnop.rnn_vjp(
        theirs.x, theirs.weights, theirs.h0, theirs.c0, **theirs.options, backend="cpu"
    )
    moved: dict[str, Any] = {"dy": None}
    for name, array in cotangents.items():
        data = framework.of(array, random)
        like = getattr(out, name)
        packed = isinstance(like, rnnop.PackedSequence)
        moved[f"d{name}"] = like._replace(data=data) if packed else data
    found = vjp(**moved)
    _same(flat(found.x, found.weights, found.h0, found.c0, framework.host), grads)


def _bytes(call: Call, framework: Framework) -> list[bytes]:
    """Return the numbers of all arguments that are arrays."""
    values = [judge.data_of(call.x), call.h0, call.c0, *call.options.values()]
    if isinstance(call.weights, rnnop.RNNWeights):
        values += [array for _, array in call.weights.named()]
    return [framework.host(each).tobytes() for each in values if hasattr(each, "shape")]


def one(seed: int, tally: Counter[str], framework: Framework) -> None:
    """Make the call of a seed and judge it."""
    with np.errstate(all="ignore"):
        judge_call(draw(seed), tally, framework, np.random.default_rng([seed, 1]))
