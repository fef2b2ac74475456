"""RNNSpec: all that changes the mathematics of a call or the shape of a weight, as frozen data.

It is made from the weights and the options of a call, it knows every shape that follows, and its
text ends every error message. What depends on a single batch (T, N, masks, states) is not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .errors import ShapeError, SpecError

if TYPE_CHECKING:
    from .weights import RNNWeights

Bounds: TypeAlias = tuple[float, float]

NUM_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}

# ONNX's names, each with its default (alpha, beta); None where the function has no such parameter.
_ACTIVATION_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Sigmoid": (None, None),
    "Tanh": (None, None),
    "Relu": (None, None),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, None),
    "Softsign": (None, None),
    "Softplus": (None, None),
}
_ACTIVATION_GROUPS = {"rnn_relu": "f", "rnn_tanh": "f", "gru": "fg", "lstm": "fgh"}


@dataclass(frozen=True)
class Activation:
    """An elementwise function by its ONNX name.

    Parameters
    ----------
    name : str
        Sigmoid, Tanh, Relu, Affine (alpha x + beta), LeakyRelu (alpha x below 0),
        ThresholdedRelu (x from alpha on, else 0), ScaledTanh (alpha tanh(beta x)), HardSigmoid
        (alpha x + beta cut to 0..1), Elu (alpha (exp(x) - 1) below 0), Softsign (x / (1 + abs(x))),
        Softplus (log(1 + exp(x))).
    alpha, beta : float, optional
        Their parameters; None takes ONNX's default.

    Raises
    ------
    SpecError
        The name is unknown, or the function has no such parameter.
    """

    name: str
    alpha: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in _ACTIVATION_DEFAULTS:
            raise SpecError(
                f"`activations` has {self.name!r}; "
                f"expected one of {', '.join(_ACTIVATION_DEFAULTS)}"
            )
        for label, default in zip(("alpha", "beta"), _ACTIVATION_DEFAULTS[self.name], strict=True):
            given = getattr(self, label)
            if given is None:
                object.__setattr__(self, label, default)
            elif default is None:
                raise SpecError(
                    f"`activations` gives {self.name} {label}={given}; "
                    f"{self.name} has no parameter {label}"
                )
            else:
                object.__setattr__(self, label, number(f"activations: {label}", given))

    @property
    def parameters(self) -> tuple[float, float]:
        """(alpha, beta), 0 where the function has no such parameter."""
        return self.alpha or 0.0, self.beta or 0.0

    def __str__(self) -> str:
        parameters = [f"{value:g}" for value in (self.alpha, self.beta) if value is not None]
        return f"{self.name}({', '.join(parameters)})" if parameters else self.name


_SIGMOID, _TANH, _RELU = Activation("Sigmoid"), Activation("Tanh"), Activation("Relu")
_DEFAULT_ACTIVATIONS = {
    "rnn_relu": (_RELU,),
    "rnn_tanh": (_TANH,),
    "gru": (_SIGMOID, _TANH),
    "lstm": (_SIGMOID, _TANH, _TANH),
}


@dataclass(frozen=True)
class RNNSpec:
    """A network of recurrent layers, without its weights.

    Attributes
    ----------
    mode : str
        'rnn_relu', 'rnn_tanh', 'gru' or 'lstm'.
    input_size, hidden_size, num_layers : int
        I, H and L.
    proj_size : int or None
        P with an LSTM projection, else None.
    bidirectional, reverse : bool
        Two directions; or a single one that runs from the last step to the first.
    bias : str
        'none', 'input' (b_ih only), 'recurrent' (b_hh only) or 'double'.
    peephole, reset_after, input_forget : bool
        Variants of the cell, SPEC section 2.
    activations : tuple
        One tuple of `Activation` for each direction: (f, g, h) of an LSTM, (f, g) of a GRU,
        (f,) of a plain RNN.
    cell_clip, proj_clip, gate_clip : tuple of float or None
        (low, high) of each clip.
    cell_clip_nan : bool
        A NaN cell state becomes the low bound.
    dropout : float
        Probability of dropping an element between layers; 0 outside training.
    """

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    proj_size: int | None = None
    bidirectional: bool = False
    bias: str = "double"
    peephole: bool = False
    reverse: bool = False
    reset_after: bool = True
    input_forget: bool = False
    activations: tuple[tuple[Activation, ...], ...] = ()
    cell_clip: Bounds | None = None
    cell_clip_nan: bool = False
    proj_clip: Bounds | None = None
    gate_clip: Bounds | None = None
    dropout: float = 0.0

    @property
    def num_gates(self) -> int:
        """G: 1 for a plain RNN, 3 for a GRU, 4 for an LSTM."""
        return NUM_GATES[self.mode]

    @property
    def num_directions(self) -> int:
        """D: 2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def num_pseudo_layers(self) -> int:
        """L * D: one for each layer and direction, in the order layer * D + direction."""
        return self.num_layers * self.num_directions

    @property
    def output_size(self) -> int:
        """P: the size of h in one direction, hidden_size without a projection."""
        return self.proj_size or self.hidden_size

    @property
    def has_cell_state(self) -> bool:
        """Whether there is a cell state beside h: an LSTM."""
        return self.mode == "lstm"

    def runs_backward(self, direction: int) -> bool:
        """Return whether `direction` (0 or 1) goes from a row's last real step to its first."""
        return self.reverse or direction == 1

    def layer_input_size(self, layer: int) -> int:
        """Return the size of what layer number `layer` reads at each step."""
        return self.input_size if layer == 0 else self.num_directions * self.output_size

    @property
    def default_activations(self) -> bool:
        """Whether every direction has the usual activations of its mode."""
        usual = _DEFAULT_ACTIVATIONS[self.mode]
        return all(each == usual for each in self.activations)

    @classmethod
    def of(
        cls,
        weights: RNNWeights,
        *,
        mode: str,
        reverse: bool = False,
        dropout: float = 0.0,
        training: bool = False,
        cell_clip: Any = None,
        cell_clip_nan: bool = False,
        proj_clip: Any = None,
        gate_clip: Any = None,
        reset_after: bool = True,
        activations: Sequence[Any] | None = None,
        input_forget: bool = False,
    ) -> RNNSpec:
        """Read a spec off the weights and the options of `rnnop.rnn`.

        Raises
        ------
        SpecError
            An option is unknown, out of its range, or makes no sense in this mode.
        ShapeError
            The weights do not even have the number of axes that sizes can be read off.
        """
        check_mode(mode)
        for name, value in (
            ("reverse", reverse),
            ("training", training),
            ("cell_clip_nan", cell_clip_nan),
            ("reset_after", reset_after),
            ("input_forget", input_forget),
        ):
            check_bool(name, value)
        rate = check_dropout(dropout)
        input_size, hidden_size, proj_size = _sizes(weights)
        bidirectional = weights.bidirectional
        if reverse and bidirectional:
            raise SpecError(
                "`reverse` is True with bidirectional weights; expected a single direction",
                "A bidirectional network already runs both ways",
            )
        _only("lstm", mode, "`cell_clip`", cell_clip is not None)
        _only("lstm", mode, "`input_forget`", input_forget)
        _only("gru", mode, "`reset_after=False`", not reset_after)
        _only("lstm", mode, "`weights.w_hr` (projection)", weights.w_hr is not None)
        _only("lstm", mode, "`weights.peephole`", weights.peephole is not None)
        if cell_clip_nan and cell_clip is None:
            raise SpecError(
                "`cell_clip_nan` is True and `cell_clip` is None; expected both",
                "A NaN state becomes the low bound of `cell_clip`",
            )
        if proj_clip is not None and weights.w_hr is None:
            raise SpecError(
                "`proj_clip` is given and the weights have no projection `w_hr`",
                "`proj_clip` bounds h after the projection; for the cell state use `cell_clip`",
            )
        cell_bounds = _bounds("cell_clip", cell_clip)
        if cell_bounds is not None:
            # cuDNN holds them as float32 whatever the data; so does every backend.
            with np.errstate(over="ignore"):  # 1e300 becomes infinity
                low, high = (float(np.float32(bound)) for bound in cell_bounds)
            cell_bounds = (low, high)
        has_input, has_recurrent = weights.b_ih is not None, weights.b_hh is not None
        return cls(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=weights.num_layers,
            proj_size=proj_size,
            bidirectional=bidirectional,
            bias=("none", "input", "recurrent", "double")[has_input + 2 * has_recurrent],
            peephole=weights.peephole is not None,
            reverse=bool(reverse),
            reset_after=bool(reset_after),
            input_forget=bool(input_forget),
            activations=_activations(activations, mode, 2 if bidirectional else 1),
            cell_clip=cell_bounds,
            cell_clip_nan=bool(cell_clip_nan),
            proj_clip=_bounds("proj_clip", proj_clip),
            gate_clip=_bounds("gate_clip", gate_clip),
            dropout=rate if training else 0.0,
        )

    def __str__(self) -> str:
        proj = f", proj {self.proj_size}" if self.proj_size is not None else ""
        parts = [f"{self.input_size}->{self.hidden_size}{proj}"]
        parts.append(f"{self.num_layers} layer{'s' if self.num_layers > 1 else ''}")
        parts += [name for name in ("bidirectional", "reverse", "peephole") if getattr(self, name)]
        if self.bias != "double":
            parts.append(f"bias {self.bias}")
        if self.mode == "gru" and not self.reset_after:
            parts.append("reset_after=False")
        if self.input_forget:
            parts.append("input_forget")
        if not self.default_activations:
            parts.append("activations " + "/".join("+".join(map(str, a)) for a in self.activations))
        for name in ("cell_clip", "proj_clip", "gate_clip"):
            bounds = getattr(self, name)
            if bounds is not None:
                parts.append(f"{name}=({bounds[0]:g}, {bounds[1]:g})")
        if self.cell_clip_nan:
            parts.append("cell_clip_nan")
        if self.dropout:
            parts.append(f"dropout={self.dropout:g}")
        return f"{self.mode}({', '.join(parts)})"


def check_mode(mode: object) -> None:
    """Refuse a mode that is none of the four."""
    if not isinstance(mode, str) or mode not in NUM_GATES:
        hint = "`mode='rnn_tanh'` and `mode='rnn_relu'` are the plain RNNs"
        raise SpecError(f"`mode` is {mode!r}; expected one of {', '.join(NUM_GATES)}", hint)


def check_bool(name: str, value: object) -> None:
    """Refuse an on/off option that is not True or False."""
    if not isinstance(value, bool | np.bool_):
        raise SpecError(f"`{name}` is {value!r}; expected True or False")


def check_dropout(rate: object) -> float:
    """Return a dropout probability as a float, refusing what lies outside [0, 1)."""
    value = number("dropout", rate)
    if not 0.0 <= value < 1.0:
        raise SpecError(
            f"`dropout` is {value}; expected a probability, 0 <= dropout < 1",
            "It is the share of elements that are dropped between layers",
        )
    return value


def number(name: str, value: object, expected: str = "a real number") -> float:
    """Return `value` as a float, refusing what is not a real number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise SpecError(f"`{name}` is {value!r}; expected {expected}")
    try:
        return float(value)
    except OverflowError:
        raise SpecError(f"`{name}` is too large; expected what a float64 can hold") from None


def _only(wanted: str, mode: str, what: str, given: bool) -> None:
    if given and mode != wanted:
        raise SpecError(f"{what} is given with mode {mode!r}; it exists in mode {wanted!r} only")


def _bounds(name: str, clip: Any) -> Bounds | None:
    """Return (low, high) from a pair, or from c the pair (-c, c)."""
    if clip is None:
        return None
    expected = "(low, high), or one number c for (-c, c)"
    if isinstance(clip, tuple | list) or (isinstance(clip, np.ndarray) and clip.ndim):
        if len(clip) != 2:
            raise SpecError(f"`{name}` has {len(clip)} values; expected {expected}")
        low, high = (number(f"{name}[{k}]", value) for k, value in enumerate(clip))
    else:
        high = number(name, clip, expected)
        low = -high
    if math.isnan(low) or math.isnan(high) or low > high:
        raise SpecError(
            f"`{name}` is ({low:g}, {high:g}); expected low <= high, neither of them NaN",
            "One number c stands for (-c, c) and may not be negative",
        )
    return low, high


def _activations(given: Any, mode: str, num_directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction, the usual ones where none are given."""
    if given is None:
        return (_DEFAULT_ACTIVATIONS[mode],) * num_directions
    groups = _ACTIVATION_GROUPS[mode]
    count = len(groups)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise SpecError(
            f"`activations` is {given!r}; expected a sequence of {count}, "
            f"for ({', '.join(groups)}) of mode {mode!r}"
        )
    if len(given) not in (count, count * num_directions):
        per_direction = f", or {count * num_directions} for each direction its own"
        more = per_direction if num_directions > 1 else ""
        raise SpecError(
            f"`activations` has {len(given)} entries; expected {count}, "
            f"for ({', '.join(groups)}) of mode {mode!r}{more}"
        )
    entries = tuple(_activation(entry) for entry in given)
    if len(entries) == count:
        return (entries,) * num_directions
    return entries[:count], entries[count:]


def _activation(entry: Any) -> Activation:
    if isinstance(entry, Activation):
        return entry
    if isinstance(entry, str):
        return Activation(entry)
    if isinstance(entry, tuple) and 1 <= len(entry) <= 3 and isinstance(entry[0], str):
        return Activation(*entry)
    raise SpecError(
        f"`activations` has the entry {entry!r}; "
        "expected a name, or a tuple (name, alpha) or (name, alpha, beta)"
    )


def _sizes(weights: RNNWeights) -> tuple[int, int, int | None]:
    """Return (input_size, hidden_size, proj_size or None) as the first layer's shapes tell them."""
    first = {"w_ih": weights.w_ih[0], "w_hh": weights.w_hh[0]}
    if weights.w_hr is not None:
        first["w_hr"] = weights.w_hr[0]
    for name, array in first.items():
        if array.ndim != 2:
            raise ShapeError(
                f"`weights.{name}[0]` has shape {tuple(array.shape)}; expected two axes"
            )
    input_size = int(first["w_ih"].shape[1])
    if "w_hr" in first:
        proj_size, hidden_size = (int(size) for size in first["w_hr"].shape)
    else:
        proj_size, hidden_size = None, int(first["w_hh"].shape[1])
    if min(input_size, hidden_size, hidden_size if proj_size is None else proj_size) < 1:
        proj = "" if proj_size is None else f", proj_size {proj_size}"
        raise ShapeError(
            f"`weights` have input_size {input_size}, hidden_size {hidden_size}{proj}; "
            "expected at least 1 of each"
        )
    if proj_size is not None and proj_size > hidden_size:
        raise ShapeError(
            f"`weights.w_hr[0]` has shape {(proj_size, hidden_size)}; "
            f"expected (proj_size, hidden_size) with proj_size <= hidden_size"
        )
    return input_size, hidden_size, proj_size
