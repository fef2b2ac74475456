"""The table of backends, what each is given and gives back, and how one is chosen.

A backend is a package with the functions of `Backend`. All are given the same packed data, so
masks, holes, zero lengths and resets cannot differ between them: see `rnnop.ragged`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

from . import arrays, flags, log
from .arrays import Array
from .errors import BackendUnavailable, SpecError, UnsupportedError
from .ragged import RaggedPlan
from .spec import RNNSpec
from .weights import RNNWeights

# In the order in which `auto` tries them.
BACKENDS = {"cpu": "rnnop.cpu", "cudnn": "rnnop.cudnn", "reference": "rnnop.reference"}


@dataclass(frozen=True, eq=False)
class Frame:
    """What is known of a call from its shapes and options alone.

    Attributes
    ----------
    family : str
        'numpy', 'cupy', 'torch' or 'jax'.
    xp : module
        The namespace of the family.
    dtype : str
        Name of the dtype of all data.
    device : object
        Where the data lies, as `rnnop.arrays.device` gives it.
    return_cell_states : bool
        Whether `Result.c` is wanted.
    notes : dict
        Where a backend keeps what it makes of the frame: the same one may serve many calls.
    """

    spec: RNNSpec
    plan: RaggedPlan
    family: str
    xp: ModuleType
    dtype: str
    device: Any
    return_cell_states: bool
    notes: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Problem:
    """One call in packed order: what every backend is given.

    Attributes
    ----------
    frame : Frame
        What it is.
    x : array (total, I)
        The real steps.
    h0 : array (L*D, S, P)
        The state each segment starts from.
    c0 : array (L*D, S, H) or None
        The cell state likewise, already within `spec.cell_clip`; None unless an LSTM.
    dropout_masks : tuple of array (total, D*P) of bool
        True where an output is kept, one for each layer boundary; empty without dropout, or where
        the backend draws them itself.
    seed : int or None
        Of the masks that the backend draws; None for any.
    cache : dict or None
        Of prepacked weights: where a backend keeps what it makes of them.
    """

    frame: Frame
    weights: RNNWeights
    x: Array
    h0: Array
    c0: Array | None
    dropout_masks: tuple[Array, ...]
    seed: int | None
    cache: dict[Any, Any] | None


@dataclass(frozen=True, eq=False)
class Result:
    """What a forward gives back, in packed order.

    Attributes
    ----------
    y : array (total, D*P)
        Outputs of the last layer.
    h_n, c_n : array (L*D, S, P) and (L*D, S, H)
        The state each segment ends in; `c_n` is None unless an LSTM.
    c : array (total, D*H) or None
        Cell state of every step of the last layer; may be None unless it is wanted.
    saved : object
        What the backend's own backward needs; None when it was not asked for.
    """

    y: Array
    h_n: Array
    c_n: Array | None
    c: Array | None
    saved: Any


@dataclass(frozen=True, eq=False)
class Cotangents:
    """Cotangents of a `Result`, with its shapes; `dc_n` and `dc` are None unless an LSTM."""

    dy: Array
    dh_n: Array
    dc_n: Array | None
    dc: Array | None


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of a `Problem`, with its shapes; `dc0` is None unless an LSTM."""

    dx: Array
    weights: RNNWeights
    dh0: Array
    dc0: Array | None


def no_gradients(problem: Problem) -> Gradients:
    """Return the gradients of a call without a single step: zeros, and no segment."""

    def zeros(array: Array) -> Array:
        return arrays.zeros(problem.frame.xp, tuple(array.shape), array)

    return Gradients(
        dx=zeros(problem.x),
        weights=problem.weights.map(zeros),
        dh0=zeros(problem.h0),
        dc0=None if problem.c0 is None else zeros(problem.c0),
    )


Prepared: TypeAlias = Callable[[Array, Array, Array | None], tuple[Array, Array, Array | None]]
"""A forward with all made ready but its data: from x, h0 and c0, as of a `Problem`, it returns y,
h_n and c_n, as of a `Result`. They must be C-contiguous, and of the dtype of the frame; x may have
more axes."""


class Backend(Protocol):
    """What a package in the table must offer."""

    def supports(self, frame: Frame) -> str | None:
        """Return None, or the reason why this backend cannot run such a call."""

    def unavailable(self) -> str | None:
        """Return None, or the reason why this backend cannot run anything here."""

    def manner(self, frame: Frame) -> str | None:
        """Return how it would run such a call, for people: the algorithm; None for no more."""

    def compute_dtype(self, frame: Frame) -> str:
        """Return the dtype of the arithmetic, 'float32' or 'float64'."""

    def draws_dropout(self, frame: Frame) -> bool:
        """Return whether it has a generator of its own for the dropout of such a call."""

    def prepack(self, spec: RNNSpec, weights: RNNWeights, cache: dict[Any, Any]) -> None:
        """Lay weights out for many calls, into `cache`."""

    def forward(self, problem: Problem, keep: bool) -> Result:
        """Run the network, keeping what the backward needs if `keep`."""

    def prepared(self, problem: Problem) -> Prepared | None:
        """Return a quicker way to call `forward` again with other data; None if there is none."""

    def backward(self, problem: Problem, saved: Any, cotangents: Cotangents) -> Gradients:
        """Run the gradient of the network."""


# A plain dict: of a functools.cache, torch.compile warns its user.
_LOADED: dict[str, Backend] = {}


def load(name: str) -> Backend:
    """Import the backend called `name` at its first use."""
    if name not in _LOADED:
        _LOADED[name] = cast(Backend, importlib.import_module(BACKENDS[name]))
    return _LOADED[name]


def wanted(backend: str) -> str:
    """Return the backend that a caller's argument asks for, RNNOP_BACKEND speaking for 'auto'."""
    known = ("auto", *BACKENDS)
    if not isinstance(backend, str) or backend not in known:
        raise SpecError(f"`backend` is {backend!r}; expected one of {', '.join(known)}")
    return flags.read("RNNOP_BACKEND") if backend == "auto" else backend


def refusals(frame: Frame) -> Iterator[tuple[str, str | None]]:
    """Yield each backend with None, or with its reason against such a call."""
    for name in BACKENDS:
        backend = load(name)
        yield name, backend.supports(frame) or backend.unavailable()


def choose(backend: str, frame: Frame) -> str:
    """Return the backend for a call: the one named, or the first that can.

    Raises
    ------
    SpecError
        There is no backend of that name.
    UnsupportedError
        The backend that was named cannot run such a call.
    BackendUnavailable
        The backend that was named cannot run here at all.
    """
    name = wanted(backend)
    if name == "auto":
        return _first_that_can(frame)
    by = f"backend={backend!r}" if backend != "auto" else f"RNNOP_BACKEND={name}"
    asked = f"Asked for by {by}"
    reason = load(name).unavailable()
    if reason is not None:
        raise BackendUnavailable(f"backend {name!r} cannot run here: {reason}", asked)
    reason = load(name).supports(frame)
    if reason is not None:
        raise UnsupportedError(f"backend {name!r} cannot run this call: {reason}", asked)
    return name


def _first_that_can(frame: Frame) -> str:
    """Return the first backend of the table that can, and say once if a faster one is missing."""
    name = next(each for each, reason in refusals(frame) if reason is None)
    for better in BACKENDS:
        if better == name:
            break
        if load(better).supports(frame) is None:
            log.warn_once(f"{name!r} runs in place of {better!r}: {load(better).unavailable()}")
    return name
