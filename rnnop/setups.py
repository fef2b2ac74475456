"""What follows from the shapes and options of a call alone, found once for many calls.

A loop of small calls would spend its time on finding it again. So it is kept: for dense NumPy
calls; and for arrays on a device with any steps that are given on the host, since its indices are
kept on the device with it. What is given on a device would have to be fetched to be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from . import arrays, backends, flags, validate
from .arrays import Array, HostBools, HostInts
from .backends import Frame
from .clips import Clip
from .errors import ShapeError, SpecError, blame
from .packing import PackedSequence
from .ragged import RaggedPlan, batch_first_storage, make_plan, packed_storage
from .spec import RNNSpec, check_bool
from .storage import Storage
from .weights import FIELDS, RNNWeights

MOST = 64  # kept for all weights of the same shapes
_PLAIN = frozenset((str, bool, int, float, type(None)))


@dataclass(frozen=True, eq=False)
class Setup:
    """The network, the steps, the way in and out, and who runs it."""

    frame: Frame
    storage: Storage
    backend: str
    cell_clip: Clip


# By weights and then by shape and options. Weights whose arrays have the same shapes share theirs:
# an adapter makes new ones of new arrays at every call.
_OF_WEIGHTS: WeakKeyDictionary[RNNWeights, dict[Any, Setup]] = WeakKeyDictionary()
_OF_SHAPES: dict[Any, dict[Any, Setup]] = {}


def of(x: Any, weights: RNNWeights, steps: Mapping[str, Any], options: Mapping[str, Any]) -> Setup:
    """Return the setup of a call, a known one or a new one; `steps` are mask, lengths, resets."""
    key = _key(x, steps, options)
    if key is None:
        return set_up(x, weights, **steps, **options)
    known = _OF_WEIGHTS.get(weights)
    if known is None:
        known = _OF_WEIGHTS[weights] = _of_shapes(weights)
    setup = known.get(key)
    if setup is None:
        if len(known) >= MOST:
            known.clear()
        setup = known[key] = set_up(x, weights, **steps, **options)
    return setup


def forget() -> None:
    """Forget all setups: for whoever changes what a backend can do."""
    _OF_WEIGHTS.clear()
    _OF_SHAPES.clear()


def _of_shapes(weights: RNNWeights) -> dict[Any, Setup]:
    """Return the setups of all weights with the same shapes."""
    shapes: list[Any] = [weights.bidirectional]
    for name in FIELDS:  # in the small: this is done for every call of an adapter
        for array in getattr(weights, name) or ():
            shapes += (name, type(array), array.shape, array.dtype, str(arrays.device(array)))
    if len(_OF_SHAPES) >= MOST:
        _OF_SHAPES.clear()
    return _OF_SHAPES.setdefault(tuple(shapes), {})


def _key(x: Any, steps: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return what a setup is known by; None if it is not kept."""
    values = tuple(options.values())
    types = plain_types(values)
    if types is None:
        return None
    if type(x) is np.ndarray:
        named = flags.read("RNNOP_BACKEND")
        if "cudnn" in (named, options["backend"]):  # which many a flag has a say in
            return None
        if any(each is not None for each in steps.values()):
            return None
        return x.shape, x.dtype, values, types, named
    if arrays.family(x) not in ("cupy", "torch"):
        return None
    host = tuple(map(_bytes, steps.values()))
    if False in host:
        return None
    return x.shape, x.dtype, str(arrays.device(x)), values, types, host, flags.state(flags.FLAGS)


def plain_types(values: tuple[Any, ...]) -> tuple[type, ...] | None:
    """Return the types of options that a call may be known by, or None.

    1 equals True, and is refused where a bool is expected: so the types count. Others than the
    plain ones may hide such types inside, as a tuple does, or change after the call, as a tensor.
    """
    types = (*map(type, values),)
    return types if _PLAIN.issuperset(types) else None


def _bytes(given: Any) -> Any:
    """Return what steps on the host are known by, None for none, False where that is unknown."""
    if given is None:
        return None
    if not isinstance(given, list | tuple | np.ndarray):
        return False
    with contextlib.suppress(ValueError):  # a ragged list
        array = np.asarray(given)
        if array.dtype.kind in "biu":
            return array.dtype, array.shape, array.tobytes()
    return False


def set_up(
    x: Any,
    weights: RNNWeights,
    mask: Any,
    lengths: Any,
    resets: Any,
    *,
    mode: str,
    batch_first: bool,
    reverse: bool,
    dropout: float,
    training: bool,
    cell_clip: Any,
    cell_clip_nan: bool,
    proj_clip: Any,
    gate_clip: Any,
    reset_after: bool,
    activations: Any,
    input_forget: bool,
    masked_output: str,
    return_cell_states: bool,
    backend: str,
) -> Setup:
    """Check everything but states and dropout masks, and choose the backend."""
    check_bool("batch_first", batch_first)
    check_bool("return_cell_states", return_cell_states)
    validate.choice("masked_output", masked_output, ("zero", "hold"))
    spec = RNNSpec.of(
        weights,
        mode=mode,
        reverse=reverse,
        dropout=dropout,
        training=training,
        cell_clip=cell_clip,
        cell_clip_nan=cell_clip_nan,
        proj_clip=proj_clip,
        gate_clip=gate_clip,
        reset_after=reset_after,
        activations=activations,
        input_forget=input_forget,
    )
    with blame(spec=spec):
        if return_cell_states and not spec.has_cell_state:
            raise SpecError(
                f"`return_cell_states` is True with mode {mode!r}; "
                "only mode 'lstm' has a cell state"
            )
        data, leading, plan = _steps(x, mask, lengths, resets, bool(batch_first))
        if data.shape[-1] != spec.input_size:
            raise ShapeError(
                f"`x` has {data.shape[-1]} features, its shape is {tuple(data.shape)}; "
                f"expected input_size = {spec.input_size}, as `weights.w_ih[0]` has it"
            )
        validate.weights_agree(weights, spec, data)
        packed = x if isinstance(x, PackedSequence) else None
        frame = frame_of(spec, plan, data, return_cell_states=bool(return_cell_states))
        xp = frame.xp
        storage = Storage(spec, plan, xp, leading, packed, hold=masked_output == "hold")
        chosen = backends.choose(backend, frame)
    return Setup(frame, storage, chosen, Clip(xp, spec.cell_clip, spec.cell_clip_nan))


def frame_of(spec: RNNSpec, plan: RaggedPlan, data: Array, *, return_cell_states: bool) -> Frame:
    """Return the frame of a call on arrays that are like `data`."""
    family = str(arrays.family(data))
    return Frame(
        spec,
        plan,
        family,
        arrays.namespace(family),
        dtype=arrays.dtype_name(data),
        device=arrays.device(data),
        return_cell_states=return_cell_states,
    )


def _steps(
    x: Any, mask: Any, lengths: Any, resets: Any, batch_first: bool
) -> tuple[Array, tuple[int, ...], RaggedPlan]:
    """Return the data of x, what stands before its features, and which of its steps happen."""
    storage: HostInts | None
    real: HostBools | None
    if isinstance(x, PackedSequence):
        for name, given in (("mask", mask), ("lengths", lengths), ("batch_first", batch_first)):
            if given is not None and given is not False:
                raise SpecError(
                    f"`{name}` is given with a PackedSequence; expected neither mask, lengths nor "
                    "batch_first",
                    "A packed sequence knows which steps are real",
                )
        batch_sizes, order = validate.packed("x", x)
        data = validate.packed_data(x)
        storage = packed_storage(batch_sizes, order)
        num_steps, batch_size = storage.shape
        leading: tuple[int, ...] = (int(data.shape[0]),)
        real = storage >= 0
    else:
        data = validate.input_array(x, batch_first)
        leading = tuple(int(n) for n in data.shape[:2])
        num_steps, batch_size = leading[::-1] if batch_first else leading
        storage = batch_first_storage(num_steps, batch_size) if batch_first else None
        real = None
        if mask is not None and lengths is not None:
            raise SpecError("`mask` and `lengths` are both given; expected one of them")
        if mask is not None:
            real = validate.step_mask("mask", mask, num_steps, batch_size, batch_first)
        if lengths is not None:
            host = validate.lengths(lengths, num_steps, batch_size)
            real = np.arange(num_steps)[:, None] < host
    cuts = None
    if resets is not None:
        cuts = validate.step_mask("resets", resets, num_steps, batch_size, batch_first)
    return data, leading, make_plan(num_steps, batch_size, real, cuts, storage)
