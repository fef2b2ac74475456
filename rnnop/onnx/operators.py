"""RNN, GRU and LSTM as classes of onnx: a node's attributes and inputs become a call of `rnn`."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from ..api import prepack, rnn
from ..arrays import Array
from ..errors import DTypeError, RnnopError, ShapeError, SpecError
from ..layouts import from_onnx
from ..spec import Activation
from ..weights import PrepackedWeights, RNNWeights

# What `rnn` calls by another name than ONNX.
_ONNX_NAMES = {
    "x": "X",
    "weights.w_ih[0]": "W",
    "h0": "initial_h",
    "c0": "initial_c",
    "lengths": "sequence_lens",
    "gate_clip": "clip",
}
# With layout=1 these are not seen as they were given.
_SWAPPED_NAMES = {"h0": "initial_h.swapaxes(0, 1)", "c0": "initial_c.swapaxes(0, 1)"}


class _Recurrent(OpRun):
    """What the three operators share."""

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        self._title = " ".join(filter(None, (onnx_node.op_type, onnx_node.name)))
        self._check(onnx_node, run_params["opsets"])
        super().__init__(onnx_node, run_params)
        # onnx fills in what is left out, from another opset, and for an RNN of one direction the
        # activations of two.
        self._given = {attribute.name for attribute in onnx_node.attribute}
        self._laid_out: tuple[Any, Any, PrepackedWeights] | None = None

    def _check(self, node: onnx.NodeProto, opsets: dict[str, int]) -> None:
        """Refuse a node that its opset does not know: wrong attributes, too few or many inputs."""
        context = onnx.checker.C.CheckerContext()
        context.ir_version = onnx.IR_VERSION
        context.opset_imports = opsets
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            refusal = SpecError(str(error).splitlines()[0])
            refusal.function = self._title
            raise refusal from error

    def run(self, *inputs: Any, **options: Any) -> tuple[Array | None, ...]:
        """Run the node; an evaluator calls this.

        Parameters
        ----------
        *inputs : array or None
            The inputs in ONNX's order, None for one that is left out.
        **options
            What onnx hands to its own `run`.

        Returns
        -------
        tuple of array or None
            The outputs in ONNX's order, None for one without a name.

        Raises
        ------
        RnnopError
            An attribute or an input is wrong.
        """
        onnx_operator: Any = super()
        try:
            outputs = onnx_operator.run(*inputs, **options)
        except TypeError as error:
            # onnx replaces every TypeError by one of its own, and a DTypeError is one.
            if isinstance(error.__cause__, DTypeError):
                raise error.__cause__ from None
            raise
        # An evaluator would store an output without a name as the input that is left out.
        named = zip(self.onnx_node.output, outputs, strict=False)
        return tuple(output if name else None for name, output in named)

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array, ...]:
        try:
            return self._call(*inputs, **{name: attributes[name] for name in self._given})
        except RnnopError as error:
            error.function = self._title
            names = _ONNX_NAMES | (_SWAPPED_NAMES if attributes["layout"] == 1 else {})
            error.fact = re.sub(
                r"(?<=`)[\w.\[\]]+", lambda name: names.get(name[0], name[0]), error.fact
            )
            raise

    def _call(
        self,
        X: Array,
        W: Array,
        R: Array,
        B: Array | None = None,
        sequence_lens: Array | None = None,
        initial_h: Array | None = None,
        initial_c: Array | None = None,
        P: Array | None = None,
        *,
        direction: str = "forward",
        layout: int = 0,
        hidden_size: int | None = None,
        activations: list[str] | None = None,
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        clip: float | None = None,
        output_sequence: int = 0,  # of opset 1: whether Y is wanted, as its name says too
        **others: int,
    ) -> tuple[Array, ...]:
        """Return Y, Y_h and, of an LSTM, Y_c, from inputs and attributes by ONNX's names."""
        _one_of("direction", direction, "forward", "reverse", "bidirectional")
        batch_first = _one_of("layout", layout, 0, 1) == 1
        options = self._cell(activations, others)
        weights = self._weights(options["mode"], W, R, B, P)
        num_directions, size = 2 if direction == "bidirectional" else 1, R.shape[2]
        if num_directions != R.shape[0]:
            raise ShapeError(
                f"`W` and `R` have num_directions {R.shape[0]}; "
                f"expected {num_directions} with direction {direction!r}"
            )
        if hidden_size not in (None, size):
            raise SpecError(f"`hidden_size` is {hidden_size}; expected that of `R`, {size}")
        out = rnn(
            X,
            weights,
            _states(initial_h, batch_first),
            _states(initial_c, batch_first),
            lengths=sequence_lens,
            batch_first=batch_first,
            reverse=direction == "reverse",
            gate_clip=clip,
            activations=_activations(activations, activation_alpha, activation_beta),
            **options,
        )
        # Y has the directions on an axis of their own, before the rows if these are not first.
        y = out.y.reshape(*out.y.shape[:2], num_directions, size)
        outputs = [y if batch_first else y.swapaxes(1, 2), _states(out.h_n, batch_first)]
        return tuple(outputs if out.c_n is None else [*outputs, _states(out.c_n, batch_first)])

    @abstractmethod
    def _cell(self, activations: list[str] | None, others: dict[str, int]) -> dict[str, Any]:
        """Return the mode, and the option that no other operator has."""

    def _weights(self, mode: str, *arrays: Array | None) -> RNNWeights | PrepackedWeights:
        """Return the weights for `rnn`: those of the model laid out once, others at each run."""
        if not all(array is None or _constant(array) for array in arrays):
            return from_onnx(*arrays, mode=mode)
        key = (mode, *map(id, arrays))
        if self._laid_out is None or self._laid_out[0] != key:
            packed = prepack(from_onnx(*arrays, mode=mode), mode=mode)
            # The arrays too: while they live, nothing else has their id.
            self._laid_out = key, arrays, packed
        return self._laid_out[2]


class LSTM(_Recurrent):
    """ONNX's LSTM, of every opset, for `onnx.reference.ReferenceEvaluator`.

    It is not called but handed to an evaluator, in `new_ops`.

    Notes
    -----
    Inputs X, W, R, B, sequence_lens, initial_h, initial_c and P; attributes direction, layout,
    hidden_size, activations, activation_alpha, activation_beta, clip and input_forget; outputs Y,
    Y_h and Y_c. Where the operator's text is silent: Y is 0 from a row's length on, and a row of
    length 0 passes its initial state through.
    """

    def _cell(self, activations: list[str] | None, others: dict[str, int]) -> dict[str, Any]:
        coupled = _one_of("input_forget", others.get("input_forget", 0), 0, 1) == 1
        return {"mode": "lstm", "input_forget": coupled}


class GRU(_Recurrent):
    """ONNX's GRU, of every opset, for `onnx.reference.ReferenceEvaluator`.

    It is not called but handed to an evaluator, in `new_ops`.

    Notes
    -----
    Inputs X, W, R, B, sequence_lens and initial_h; attributes direction, layout, hidden_size,
    activations, activation_alpha, activation_beta, clip and linear_before_reset; outputs Y and Y_h.
    Where the operator's text is silent: as LSTM.
    """

    def _cell(self, activations: list[str] | None, others: dict[str, int]) -> dict[str, Any]:
        return {"mode": "gru", "reset_after": others.get("linear_before_reset", 0) != 0}


class RNN(_Recurrent):
    """ONNX's plain RNN, of every opset, for `onnx.reference.ReferenceEvaluator`.

    It is not called but handed to an evaluator, in `new_ops`.

    Notes
    -----
    Inputs X, W, R, B, sequence_lens and initial_h; attributes direction, layout, hidden_size,
    activations, activation_alpha, activation_beta and clip; outputs Y and Y_h. Where the operator's
    text is silent: as LSTM.
    """

    def _cell(self, activations: list[str] | None, others: dict[str, int]) -> dict[str, Any]:
        return {"mode": "rnn_relu" if set(activations or ()) == {"Relu"} else "rnn_tanh"}


OPS = (LSTM, GRU, RNN)


def _one_of(name: str, value: Any, *choices: Any) -> Any:
    """Return an attribute, refusing what is none of the choices."""
    if value not in choices:
        expected = " or ".join(map(str, choices))
        raise SpecError(f"`{name}` is {value!r}; expected {expected}")
    return value


def _states(states: Any, batch_first: bool) -> Any:
    """Swap (D, N, H) and (N, D, H) if the rows are first."""
    return states.swapaxes(0, 1) if batch_first and np.ndim(states) == 3 else states


def _constant(array: Any) -> bool:
    """Return whether nothing can change an array: it is a view of bytes, as a model holds them."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, bytes)


def _activations(
    names: list[str] | None, alphas: list[float] | None, betas: list[float] | None
) -> list[Activation] | None:
    """Give each activation the parameters that it has, in their order, while they last."""
    given = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    taken = dict.fromkeys(given, 0)
    entries = []
    for usual in map(Activation, names or ()):
        own = {}
        for label, values in given.items():
            if getattr(usual, label) is not None and taken[label] < len(values):
                own[label] = values[taken[label]]
                taken[label] += 1
        entries.append(Activation(usual.name, **own))
    for label, values in given.items():
        if taken[label] < len(values):
            raise SpecError(
                f"`activation_{label}` has {len(values)} values; expected at most {taken[label]}, "
                f"one for each of `activations` that has a parameter {label}"
            )
    return None if names is None else entries
