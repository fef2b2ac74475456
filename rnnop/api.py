"""The operator: `rnn`, `rnn_vjp`, `explain` and `prepack`.

One call is a straight line: which family the arrays are of, what network it is (`RNNSpec`), which
steps happen (`RaggedPlan`), whether everything fits together (`validate`), which backend runs it,
the run in packed order, and the way back to the caller's order (`Storage`).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from . import arrays, backends, frameworks, setups, shortcut, validate
from . import dropout as streams
from .arrays import Array
from .backends import Cotangents, Problem, Result
from .errors import SpecError, blame
from .packing import PackedSequence, data_of, packed_as
from .ragged import make_plan
from .setups import Setup
from .spec import RNNSpec
from .storage import Storage
from .weights import PrepackedWeights, RNNGrads, RNNWeights

P = ParamSpec("P")
R = TypeVar("R")


class RNNOutput(NamedTuple):
    """What `rnn` returns. All arrays are fresh, C-contiguous, and of the family and dtype of `x`.

    Attributes
    ----------
    y : array (T, N, D*P), (N, T, D*P) with `batch_first`, or a PackedSequence
        Output of the last layer, forward direction first.
    h_n : array (L*D, N, P)
        State after each row's own last real step, of every layer and direction.
    c_n : array (L*D, N, H) or None
        Cell state likewise; None unless the mode is 'lstm'.
    c : array (T, N, D*H) as `y`, or None
        Cell state of every step of the last layer, 0 at masked steps; None unless asked for with
        `return_cell_states`.
    """

    y: Any
    h_n: Array
    c_n: Array | None
    c: Any


@dataclass(frozen=True)
class Explanation:
    """How a call would run: its text is meant to be printed.

    Attributes
    ----------
    backend : str
        The backend that would run it.
    manner : str or None
        How, such as the instruction set and the number of threads.
    refusals : dict
        The reason of every backend that could not.
    spec : RNNSpec
        The network.
    layout : str
        How the steps reach the backend.
    precision : str
        The dtype of the data, and that of the arithmetic.
    """

    backend: str
    manner: str | None
    refusals: dict[str, str]
    spec: RNNSpec
    layout: str
    precision: str

    def __str__(self) -> str:
        lines = [
            f"network    {self.spec}",
            f"backend    {self.backend}{f' ({self.manner})' if self.manner else ''}",
            f"layout     {self.layout}",
            f"precision  {self.precision}",
        ]
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that has been checked: what a backend is given, and the way back."""

    setup: Setup
    problem: Problem
    h0: Array
    c0: Array | None
    c0_given: Array | None


def _prepare(
    x: Array | PackedSequence,
    weights: RNNWeights | PrepackedWeights,
    h0: Array | None = None,
    c0: Array | None = None,
    *,
    mode: str = "gru",
    mask: Any = None,
    lengths: Any = None,
    resets: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: float = 0.0,
    training: bool = False,
    seed: int | None = None,
    dropout_masks: Any = None,
    cell_clip: Any = None,
    cell_clip_nan: bool = False,
    proj_clip: Any = None,
    gate_clip: Any = None,
    reset_after: bool = True,
    activations: Any = None,
    input_forget: bool = False,
    masked_output: str = "zero",
    return_cell_states: bool = False,
    backend: str = "auto",
) -> _Call:
    """Check a call and bring it into packed order. The signature is that of `rnn`."""
    plain = _plain_weights(weights, mode)
    options: dict[str, Any] = {
        "mode": mode,
        "batch_first": batch_first,
        "reverse": reverse,
        "dropout": dropout,
        "training": training,
        "cell_clip": cell_clip,
        "cell_clip_nan": cell_clip_nan,
        "proj_clip": proj_clip,
        "gate_clip": gate_clip,
        "reset_after": reset_after,
        "activations": activations,
        "input_forget": input_forget,
        "masked_output": masked_output,
        "return_cell_states": return_cell_states,
        "backend": backend,
    }
    setup = setups.of(x, plain, {"mask": mask, "lengths": lengths, "resets": resets}, options)
    storage, spec = setup.storage, setup.frame.spec
    data = data_of(x)
    with blame(spec=spec):
        h_rows = _initial_state("h0", h0, storage, data)
        c_rows = c0_given = c_segments = None
        if spec.has_cell_state or c0 is not None:
            c0_given = _initial_state("c0", c0, storage, data)
            c_rows = setup.cell_clip(c0_given)
            # Clipped again, for the zeros of a reset: a clip need not have 0 inside.
            c_segments = setup.cell_clip(storage.states_in(c_rows))
        chosen_seed = validate.seed(seed)
        problem = Problem(
            setup.frame,
            weights=plain,
            x=storage.rows_in(data),
            h0=storage.states_in(h_rows),
            c0=c_segments,
            dropout_masks=_dropout(setup, data, training, chosen_seed, dropout_masks),
            seed=chosen_seed,
            cache=weights.cache if isinstance(weights, PrepackedWeights) else None,
        )
    if dropout and spec.num_layers == 1:
        _warn_user(f"dropout={dropout} has no effect on a single layer: it acts between layers")
    return _Call(setup, problem, h_rows, c_rows, c0_given)


def _warn_user(text: str) -> None:
    """Warn, at the line of the user's that called: outside of rnnop and of what carries a call."""
    carriers = ("", "rnnop", *frameworks.ADAPTERS)  # what a compiler made has no name
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in carriers:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def shapes(*args: Any, **kwargs: Any) -> RNNOutput:
    """Check a call, and return the shapes of what `rnn` would return, for adapters."""
    call = _prepare(*args, **kwargs)
    storage, spec = call.setup.storage, call.setup.frame.spec
    c = (*storage.leading, spec.num_directions * spec.hidden_size)
    return RNNOutput(
        y=(*storage.leading, spec.num_directions * spec.output_size),
        h_n=tuple(call.h0.shape),
        c_n=None if call.c0 is None else tuple(call.c0.shape),
        c=c if call.setup.frame.return_cell_states else None,
    )


def _takes_a_call(
    prepare: Callable[P, _Call], again: Callable[..., Any] | None = None
) -> Callable[[Callable[[_Call], R]], Callable[P, R]]:
    """Turn a function of a checked call into a public one with the arguments of `prepare`.

    So the long signature is written once, and the public functions cannot drift apart. `again` is
    asked first, and returns None where it does not know a shorter way.
    """

    def decorate(function: Callable[[_Call], R]) -> Callable[P, R]:
        name = function.__name__
        mine = _renamed(prepare, name)

        def direct(*args: P.args, **kwargs: P.kwargs) -> R:
            if again is not None and 2 <= len(args) <= 4:
                done: R | None = again(*args, **kwargs)
                if done is not None:
                    return done
            with blame(name):
                return function(mine(*args, **kwargs))

        @functools.wraps(function)
        def public(*args: P.args, **kwargs: P.kwargs) -> R:
            x: Any = args[0] if args else kwargs.get("x")
            if type(x) is not np.ndarray:
                with blame(name):
                    adapter = frameworks.adapter(x, cast(str, kwargs.get("backend", "auto")))
                    if adapter is not None:
                        return cast(R, getattr(adapter, name)(*args, **kwargs))
            return direct(*args, **kwargs)

        returns = inspect.signature(function).return_annotation
        signature = inspect.signature(prepare).replace(return_annotation=returns)
        public.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
        # What an adapter calls when the arrays are for a backend to take as they are.
        public.direct = direct  # type: ignore[attr-defined]
        return public

    return decorate


def _renamed(function: Callable[P, R], name: str) -> Callable[P, R]:
    """Return the function under another name, for Python's own errors about its arguments."""
    old = cast(FunctionType, function)
    new = FunctionType(old.__code__, old.__globals__, name, old.__defaults__)
    new.__qualname__, new.__kwdefaults__ = name, old.__kwdefaults__
    return new


_prepare_rnn = _renamed(_prepare, "rnn")


def _again(
    x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any
) -> RNNOutput | None:
    """Run a call whose like has been here before, if all but its data is ready."""
    key = shortcut.key(x, weights, options)
    if key is None:
        return None
    known = shortcut.among(weights)
    try:
        found = known[key]
    except KeyError:
        if known.worth_making(key):
            with blame("rnn"):
                call = _prepare_rnn(x, weights, h0, c0, **options)
            backend = backends.load(call.setup.backend)
            known[key] = shortcut.of(call.problem, call.setup.storage, backend)
        return None
    done = None if found is None else found(x, h0, c0)
    return None if done is None else RNNOutput(*done, None)


@_takes_a_call(_prepare, again=_again)
def rnn(call: _Call) -> RNNOutput:
    """Run a network of recurrent layers over a batch, whatever its steps look like.

    Parameters
    ----------
    x : array (T, N, I), (N, T, I) with `batch_first`, or a PackedSequence
        Input; float64, float32, float16 or bfloat16, of NumPy, CuPy, PyTorch or JAX.
    weights : RNNWeights or PrepackedWeights
        They also say how many layers and directions there are, and every size.
    h0 : array (L*D, N, P), optional
        Initial state; zeros by default. P is H without a projection.
    c0 : array (L*D, N, H), optional
        Initial cell state of an LSTM; zeros by default.
    mode : {'gru', 'lstm', 'rnn_tanh', 'rnn_relu'}
        The cell.
    mask : bool (T, N), or (N, T) with `batch_first`, optional
        True where the step is real, in any pattern. A masked step did not happen.
    lengths : (N,) integers in 0..T, optional
        The same for right-padded rows; a list, or an array on any device. Not with `mask`.
    resets : bool (T, N), or (N, T) with `batch_first`, optional
        True where a new episode starts: the state before it is zero.
    batch_first : bool
        Whether x, mask, resets, y and the dropout masks have the rows first.
    reverse : bool
        Run a single direction from each row's last real step to its first.
    dropout : float in [0, 1)
        Probability of dropping an output between layers, in training; the rest is scaled by
        1 / (1 - dropout).
    training : bool
        Whether dropout acts.
    seed : int, optional
        Makes dropout reproducible.
    dropout_masks : L-1 bool arrays shaped as y, optional
        The caller's own masks, True where an output is kept; `seed` is then not used.
    cell_clip : float c for (-c, c), or (low, high), optional
        Bounds of the cell state wherever it is read, and of c_n and c; rounded to float32.
    cell_clip_nan : bool
        A NaN cell state becomes `low`; otherwise it stays.
    proj_clip : as cell_clip, optional
        Bounds of h after the projection.
    gate_clip : as cell_clip, optional
        ONNX's clip: bounds of the gate pre-activations and of the argument of the output
        activation.
    reset_after : bool
        Whether a GRU applies r after the product (cuDNN, PyTorch) or before (ONNX, PlaNet).
    activations : sequence, optional
        A name, (name, alpha), (name, alpha, beta) or `Activation` for (f, g, h) of an LSTM, (f, g)
        of a GRU, (f,) of a plain RNN; twice as many give each direction its own.
    input_forget : bool
        LSTM with f = 1 - i.
    masked_output : {'zero', 'hold'}
        What y shows at a masked step: 0, or the last real output before it in that direction's
        order.
    return_cell_states : bool
        Whether to return `c`.
    backend : {'auto', 'cpu', 'cudnn', 'reference'}
        A backend that is named runs, or raises with the reason.

    Returns
    -------
    RNNOutput
        (y, h_n, c_n, c).

    Raises
    ------
    ShapeError
        An array has the wrong shape or a value out of its range.
    DTypeError
        An argument has the wrong type, dtype, device or array family.
    SpecError
        An option is unknown, out of range or contradicts another.
    UnsupportedError
        The backend that was named cannot run the call.

    Warns
    -----
    UserWarning
        `dropout` is given with a single layer, where it has no effect.

    Notes
    -----
    For input x_t and the state h = h_{t-1}, c = c_{t-1} (* elementwise, s the logistic function)::

        rnn_*   h_t = act(W x_t + b_i + R h + b_h)
        gru     r = s(W_r x_t + b_ir + R_r h + b_hr);  z = s(W_z x_t + b_iz + R_z h + b_hz)
                n = tanh(W_n x_t + b_in + r * (R_n h + b_hn))    with reset_after
                n = tanh(W_n x_t + b_in + R_n (r * h) + b_hn)    without
                h_t = (1 - z) * n + z * h
        lstm    i = s(.. + p_i * c);  f = s(.. + p_f * c);  g = tanh(..)
                c_t = clip(f * c + i * g);  o = s(.. + p_o * c_t)
                m = o * tanh(c_t);  h_t = m, or proj_clip(W_hr m)

    A row in a batch gives what it gives alone with its masked steps cut out; the backward direction
    starts at its last real step. A row without any real step passes its state through. Whatever
    lies at masked steps of x reaches no output.

    `resets` cut a row into independent segments: h0 enters the first one forward (unless it starts
    with a reset) and the last one backward; h_n leaves the last forward and the first backward.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> w = rnnop.init_weights("gru", input_size=3, hidden_size=4, bidirectional=True, seed=0)
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> out = rnnop.rnn(x, w, lengths=[5, 2], mode="gru")
    >>> out.y.shape, out.h_n.shape
    ((5, 2, 8), (2, 2, 4))
    >>> bool((out.y[2:, 1] == 0).all())
    True
    """
    return _outputs(call, _forward(call, keep=False))


@_takes_a_call(_prepare)
def rnn_vjp(call: _Call) -> tuple[RNNOutput, VJP]:
    """Run `rnn`, and return its vector-Jacobian product beside the output.

    The arguments are those of `rnn`.

    Returns
    -------
    RNNOutput
        As from `rnn`.
    VJP
        ``vjp(dy, dh_n=None, dc_n=None, dc=None)`` returns `RNNGrads`; a cotangent that is None
        stands for zeros. It may be called any number of times.

    Notes
    -----
    What lies at masked steps of `dy` reaches no gradient. With ``masked_output="hold"`` the
    masked steps of y are copies of real ones, so there `dy` counts towards the step that is shown,
    and only what lies before a row's first real step is without effect.

    A clip has gradient 1 inside and on its bounds, 0 outside; no gradient goes through a NaN that
    `cell_clip_nan` replaces.

    Examples
    --------
    >>> import numpy as np, rnnop
    >>> w = rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0)
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> out, vjp = rnnop.rnn_vjp(x, w, lengths=[5, 2])
    >>> grads = vjp(np.ones_like(out.y))
    >>> grads.x.shape, grads.weights.w_hh[0].shape
    ((5, 2, 3), (12, 4))
    """
    result = _forward(call, keep=True)
    return _outputs(call, result), VJP(call, result)


@dataclass(frozen=True, eq=False, repr=False)
class VJP:
    """The vector-Jacobian product of one call of `rnn_vjp`."""

    _call: _Call
    _result: Result

    def __call__(
        self, dy: Any, dh_n: Array | None = None, dc_n: Array | None = None, dc: Any = None
    ) -> RNNGrads:
        """Return the gradients of sum(y * dy) + sum(h_n * dh_n) + sum(c_n * dc_n) + sum(c * dc).

        Parameters
        ----------
        dy : array or PackedSequence like y, or None
            Cotangent of the outputs.
        dh_n, dc_n : array like h_n and c_n, optional
            Cotangents of the final states.
        dc : array or PackedSequence like c, optional
            Cotangent of the cell states of every step; only with `return_cell_states`.

        Returns
        -------
        RNNGrads
            Gradients of x, the weights, h0 and c0.
        """
        call, setup, storage = self._call, self._call.setup, self._call.setup.storage
        spec, x = storage.spec, call.problem.x
        with blame("vjp", spec):
            if dc is not None and not setup.frame.return_cell_states:
                raise SpecError(
                    "`dc` is given, and rnn_vjp was called with return_cell_states=False; "
                    "expected True"
                )
            states = {
                name: None if value is None else validate.state(name, value, spec, batch_size, x)
                for name, value in (("dh_n", dh_n), ("dc_n", dc_n))
                for batch_size in (storage.plan.batch_size,)
            }
            dy = _output_cotangent("dy", dy, storage, x, spec.output_size)
            dc = None if dc is None else _output_cotangent("dc", dc, storage, x, spec.hidden_size)
        dh_rows = _zeros_if_none(states["dh_n"], call.h0, storage)
        dc_rows = None
        if call.c0 is not None:
            dc_rows = _zeros_if_none(states["dc_n"], call.c0, storage)
        cotangents = Cotangents(
            dy=storage.outputs_out_transposed(dy),
            dh_n=storage.states_out_transposed(dh_rows),
            dc_n=None if dc_rows is None else storage.states_out_transposed(dc_rows),
            dc=None if dc is None else storage.rows_in(dc),
        )
        with blame("vjp", spec):
            backend = backends.load(setup.backend)
            grads = backend.backward(call.problem, self._result.saved, cotangents)
        dc0 = None
        if grads.dc0 is not None:
            dc0 = storage.initial_gradients(grads.dc0, dc_rows)
            dc0 = setup.cell_clip.backward(call.c0_given, dc0)
        return RNNGrads(
            x=packed_as(storage.rows_out(grads.dx), storage.packed),
            weights=grads.weights,
            h0=storage.initial_gradients(grads.dh0, dh_rows),
            c0=dc0,
        )


@_takes_a_call(_prepare)
def explain(call: _Call) -> Explanation:
    """Say how `rnn` would run a call, without running it.

    The arguments are those of `rnn`.

    Returns
    -------
    Explanation
        The backend and why not the others, the network, the layout, the precision. Print it.
    """
    frame, plan = call.setup.frame, call.setup.frame.plan
    reasons = {name: why for name, why in backends.refusals(frame) if why is not None}
    cells = plan.num_steps * plan.batch_size
    if plan.dense:
        layout = f"dense, T={plan.num_steps} N={plan.batch_size}"
    else:
        layout = (
            f"packed, {plan.num_segments} segments of up to {len(plan.batch_sizes)} steps; "
            f"{plan.total} of T*N = {plan.num_steps}*{plan.batch_size} = {cells} steps are real"
        )
    name = call.setup.backend
    backend = backends.load(name)
    precision = f"{frame.dtype} data, {backend.compute_dtype(frame)} arithmetic"
    return Explanation(name, backend.manner(frame), reasons, frame.spec, layout, precision)


def prepack(weights: RNNWeights, *, mode: str = "gru", backend: str = "auto") -> PrepackedWeights:
    """Check weights and lay them out for a backend once, for many calls.

    Parameters
    ----------
    weights : RNNWeights
        The weights.
    mode : str
        As of `rnn`; the calls must have the same.
    backend : str
        As of `rnn`. Another backend may still be named in a call: it takes the weights as given.

    Returns
    -------
    PrepackedWeights
        Accepted wherever weights are. Later changes of the arrays may not be seen.

    Raises
    ------
    RnnopError
        As from `rnn`.
    """
    with blame("prepack"):
        first = weights.w_ih[0] if isinstance(weights, RNNWeights) else None
        adapter = frameworks.adapter(first, backend)
        if adapter is not None:
            return cast(PrepackedWeights, adapter.prepack(weights, mode=mode, backend=backend))
        return _prepack(weights, mode=mode, backend=backend)


def _prepack(weights: RNNWeights, *, mode: str = "gru", backend: str = "auto") -> PrepackedWeights:
    plain = _plain_weights(weights, mode)
    spec = RNNSpec.of(plain, mode=mode)
    with blame(spec=spec):
        first = validate.data_array("weights.w_ih[0]", plain.w_ih[0])
        validate.weights_agree(plain, spec, first, "weights.w_ih[0]")
        packed = PrepackedWeights(plain, mode, backends.wanted(backend))
        frame = setups.frame_of(spec, make_plan(0, 0), first, return_cell_states=False)
        backends.load(backends.choose(backend, frame)).prepack(spec, plain, packed.cache)
        return packed


prepack.direct = _prepack  # type: ignore[attr-defined]


def _plain_weights(weights: object, mode: str) -> RNNWeights:
    """Return the weights as the caller gave them, prepacked or not."""
    if isinstance(weights, PrepackedWeights):
        if weights.mode != mode:
            raise SpecError(
                f"`weights` were prepacked for mode {weights.mode!r}; expected mode {mode!r}"
            )
        return weights.weights
    return validate.weights_object(weights)


def _initial_state(name: str, given: Array | None, storage: Storage, data: Array) -> Array:
    """Return the state `given`, or zeros."""
    spec, batch_size = storage.spec, storage.plan.batch_size
    if given is not None:
        return validate.state(name, given, spec, batch_size, data)
    size = spec.hidden_size if name == "c0" else spec.output_size
    return arrays.zeros(storage.xp, (spec.num_pseudo_layers, batch_size, size), data)


def _dropout(
    setup: Setup, data: Array, training: bool, seed: int | None, given: Any
) -> tuple[Array, ...]:
    """Return the mask of each layer boundary in packed order, the caller's or drawn."""
    storage = setup.storage
    spec, plan = storage.spec, storage.plan
    if given is not None:
        axes = (
            "total"
            if storage.packed is not None
            else "N, T"
            if plan.storage is not None
            else "T, N"
        )
        masks = validate.dropout_masks(given, spec, storage.leading, axes, data)
        return tuple(storage.rows_in(mask) for mask in masks) if training else ()
    if spec.dropout == 0.0 or spec.num_layers == 1:
        return ()
    if backends.load(setup.backend).draws_dropout(setup.frame):
        return ()
    start = streams.fresh_seed() if seed is None else seed
    width = spec.num_directions * spec.output_size
    return tuple(
        arrays.from_host(storage.xp, streams.draw_mask(start, k, spec.dropout, plan, width), data)
        for k in range(spec.num_layers - 1)
    )


def _forward(call: _Call, keep: bool) -> Result:
    with blame(spec=call.setup.frame.spec):
        return backends.load(call.setup.backend).forward(call.problem, keep)


def _outputs(call: _Call, result: Result) -> RNNOutput:
    """Bring a result back into the caller's order."""
    storage = call.setup.storage

    def final(states: Array, initial: Array) -> Array:
        # NumPy lays a result out like its operands, and the caller's states may lie anyhow.
        return arrays.contiguous(storage.xp, storage.states_out(states, initial))

    c_n = None if result.c_n is None else final(result.c_n, call.c0)
    c = None
    if call.setup.frame.return_cell_states:
        c = packed_as(storage.rows_out(result.c), storage.packed)
    y = packed_as(storage.outputs_out(result.y), storage.packed)
    return RNNOutput(y, final(result.h_n, call.h0), c_n, c)


def _output_cotangent(name: str, given: Any, storage: Storage, x: Array, size: int) -> Array:
    """Return the cotangent of y or c, zeros for None."""
    shape = (*storage.leading, storage.spec.num_directions * size)
    if given is None:
        return arrays.zeros(storage.xp, shape, x)
    if isinstance(given, PackedSequence) and storage.packed is not None:
        validate.same_steps(name, given, storage.packed)
    return validate.shaped_like(name, data_of(given), shape, f"the shape of {name[1:]}", x)


def _zeros_if_none(given: Array | None, like: Array, storage: Storage) -> Array:
    return storage.xp.zeros_like(like) if given is None else given
