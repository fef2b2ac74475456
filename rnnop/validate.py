"""Everything a caller can get wrong about arrays, refused by name before any work is done.

Options that change the mathematics are checked where `RNNSpec` is made; here are the arrays:
families, dtypes, devices, shapes, and the values of lengths, masks and packed sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import arrays
from .arrays import Array, HostBools, HostInts
from .errors import DTypeError, ShapeError, SpecError
from .spec import NUM_GATES, RNNSpec
from .weights import RNNWeights, expected_shapes

if TYPE_CHECKING:
    from .packing import PackedSequence


def data_array(name: str, value: object) -> Array:
    """Return `value` when it is an array of floating point numbers, else refuse it."""
    if arrays.family(value) is None:
        hint = None
        if isinstance(value, np.ma.MaskedArray):
            hint = "Give its data, and its mask (True where the step is real) as `mask`"
        elif hasattr(value, "batch_sizes"):
            hint = f"Make it rnnop's own: rnnop.PackedSequence(*{name})"
        elif type(value).__name__ == "PackedSequence":
            hint = "Make it rnnop's own, as with rnnop.PackedSequence(*x)"
        elif isinstance(value, list | tuple | float | int):
            hint = "Make it an array first, as with numpy.asarray(..., dtype='float32')"
        raise DTypeError(
            f"`{name}` is {type(value).__name__}; expected an array of NumPy, CuPy, PyTorch or JAX",
            hint,
        )
    checked: Array = value
    if arrays.dtype_name(checked) not in arrays.FLOATS:
        raise DTypeError(
            f"`{name}` has dtype {arrays.dtype_name(checked)}; "
            f"expected one of {', '.join(arrays.FLOATS)}",
            "Convert it; x, weights and states share one dtype",
        )
    return checked


def input_array(x: object, batch_first: bool) -> Array:
    """Return `x` when it is a (T, N, I) array, or (N, T, I) when `batch_first`."""
    array = data_array("x", x)
    if array.ndim != 3:
        axes = "(N, T, input_size)" if batch_first else "(T, N, input_size)"
        hint = None
        if array.ndim == 2:
            axis = 0 if batch_first else 1
            hint = f"A single sequence is a batch of one: insert the axis N at position {axis}"
        raise ShapeError(f"`x` has shape {tuple(array.shape)}; expected {axes}, three axes", hint)
    return array


def same_place(name: str, array: Array, x: Array, like: str = "x") -> None:
    """Refuse an array of another family, or on another device, than `x`, which is called `like`."""
    mine, theirs = arrays.family(array), arrays.family(x)
    if mine != theirs:
        raise DTypeError(
            f"`{name}` is a {arrays.LABELS[str(mine)]} array and `{like}` is a "
            f"{arrays.LABELS[str(theirs)]} array; expected one family for all",
            "Convert one of them; RNNWeights.map applies a function to every weight",
        )
    places = arrays.device(array), arrays.device(x)
    if None not in places and places[0] != places[1]:
        raise DTypeError(
            f"`{name}` lies on {places[0]} and `{like}` on {places[1]}; expected one device",
            "Move one of them",
        )


def shaped_like(
    name: str, value: object, shape: tuple[int, ...], axes: str, x: Array, like: str = "x"
) -> Array:
    """Return `value` when it has `shape` and agrees with `x` in family, dtype and device.

    `axes` spells the shape in words, and `like` names `x`, for the messages.
    """
    if type(value) is np.ndarray and type(x) is np.ndarray and value.dtype == x.dtype:
        array: Array = value
    else:
        array = data_array(name, value)
        same_place(name, array, x, like)
    if arrays.dtype_name(array) != arrays.dtype_name(x):
        raise DTypeError(
            f"`{name}` has dtype {arrays.dtype_name(array)} and `{like}` has dtype "
            f"{arrays.dtype_name(x)}; expected one dtype for x, weights and states",
            "Convert one of them",
        )
    if tuple(array.shape) != shape:
        raise ShapeError(f"`{name}` has shape {tuple(array.shape)}; expected {axes} = {shape}")
    return array


_AXES = {
    "w_ih": "(num_gates * hidden_size, {input})",
    "w_hh": "(num_gates * hidden_size, {output})",
    "b_ih": "(num_gates * hidden_size,)",
    "b_hh": "(num_gates * hidden_size,)",
    "w_hr": "(proj_size, hidden_size)",
    "peephole": "(3, hidden_size)",
}


def weights_object(value: object) -> RNNWeights:
    """Return `value` when it is RNNWeights, else refuse it."""
    if not isinstance(value, RNNWeights):
        raise DTypeError(
            f"`weights` is {type(value).__name__}; expected RNNWeights",
            "Make them with rnnop.init_weights, or from another system's with rnnop.layouts",
        )
    return value


def weights_agree(weights: RNNWeights, spec: RNNSpec, x: Array, like: str = "x") -> None:
    """Refuse weights whose arrays disagree with the spec or with `x`, which is called `like`."""
    output = "hidden_size" if spec.proj_size is None else "proj_size"
    rows, size = weights.w_ih[0].shape[0], spec.hidden_size
    looks = [mode for mode, gates in NUM_GATES.items() if gates * size == rows]
    if looks and spec.mode not in looks:
        gates = spec.num_gates
        raise ShapeError(
            f"`weights.w_ih[0]` has {rows} rows; expected num_gates * hidden_size = "
            f"{gates} * {size} = {gates * size} in mode {spec.mode!r}",
            f"They look like weights for mode {' or '.join(map(repr, looks))}",
        )
    for name, shapes in expected_shapes(spec).items():
        for k, shape in enumerate(shapes):
            later = f"num_directions * {output}"
            layer_input = "input_size" if k < spec.num_directions else later
            axes = _AXES[name].format(input=layer_input, output=output)
            shaped_like(f"weights.{name}[{k}]", getattr(weights, name)[k], shape, axes, x, like)


def state(name: str, value: object, spec: RNNSpec, batch_size: int, x: Array) -> Array:
    """Return the initial or final state `value` (L*D, N, P or H) when its shape is right."""
    cell = name in ("c0", "dc_n")
    if cell and not spec.has_cell_state:
        raise SpecError(
            f"`{name}` is given with mode {spec.mode!r}; only mode 'lstm' has a cell state"
        )
    if isinstance(value, tuple) and len(value) == 2:
        raise DTypeError(
            f"`{name}` is a tuple of two; expected one array",
            "Give the state and the cell state as two arguments, such as h0 and c0",
        )
    size = spec.hidden_size if cell or spec.proj_size is None else spec.proj_size
    word = "hidden_size" if cell or spec.proj_size is None else "proj_size"
    shape = (spec.num_pseudo_layers, batch_size, size)
    return shaped_like(name, value, shape, f"(num_layers * num_directions, N, {word})", x)


def lengths(value: object, num_steps: int, batch_size: int) -> HostInts:
    """Return the real steps of each row as (N,) int64 on the host."""
    host = arrays.to_host(value, "lengths")
    if host.dtype.kind not in "iu" and host.size:
        raise DTypeError(
            f"`lengths` has dtype {host.dtype}; expected integers",
            "A boolean array of real steps is `mask`" if host.dtype.kind == "b" else None,
        )
    if host.shape != (batch_size,):
        raise ShapeError(f"`lengths` has shape {host.shape}; expected (N,) = ({batch_size},)")
    wrong = np.flatnonzero((host < 0) | (host > num_steps))
    if len(wrong):
        row = int(wrong[0])
        raise ShapeError(
            f"`lengths` has {host[row]} at row {row}; expected integers in 0..T = 0..{num_steps}",
            "Count only the real steps of each row",
        )
    return host.astype(np.int64)


def step_mask(
    name: str, value: object, num_steps: int, batch_size: int, batch_first: bool
) -> HostBools:
    """Return a mask or resets as (T, N) bool on the host."""
    host = arrays.to_host(value, name)
    expected = (batch_size, num_steps) if batch_first else (num_steps, batch_size)
    axes = "(N, T)" if batch_first else "(T, N)"
    if host.dtype.kind != "b" and host.size:
        raise DTypeError(
            f"`{name}` has dtype {host.dtype}; expected bool, "
            + ("True where the step is real" if name == "mask" else "True where an episode starts"),
            f"Compare it first, as with {name} != 0",
        )
    if host.shape != expected:
        hint = None
        if host.shape == expected[::-1]:
            hint = f"It looks transposed; `batch_first` is {bool(batch_first)}"
        raise ShapeError(f"`{name}` has shape {host.shape}; expected {axes} = {expected}", hint)
    return (host.T if batch_first else host).astype(np.bool_)


def packed(name: str, value: PackedSequence) -> tuple[HostInts, HostInts]:
    """Return (batch_sizes, sorted_indices) of a packed sequence as int64 on the host."""
    data = data_array(f"{name}.data", value.data)
    sizes = _indices(f"{name}.batch_sizes", value.batch_sizes, "one for each step")
    before = np.concatenate([sizes[:1], sizes[:-1]])
    wrong = np.flatnonzero((sizes < 1) | (sizes > before))
    if len(wrong):
        step = int(wrong[0])
        after = f", after {before[step]}" if step else ""
        raise ShapeError(
            f"`{name}.batch_sizes` has {sizes[step]} at step {step}{after}; "
            "expected positive numbers that never grow"
        )
    if data.ndim < 1 or sizes.sum() != data.shape[0]:
        raise ShapeError(
            f"`{name}.data` has shape {tuple(data.shape)}; "
            f"expected sum(batch_sizes) = {int(sizes.sum())} rows"
        )
    least = int(sizes[0]) if len(sizes) else 0
    if value.sorted_indices is None:
        return sizes, np.arange(least)
    order = _indices(f"{name}.sorted_indices", value.sorted_indices, "one for each row")
    if len(order) < least or not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ShapeError(
            f"`{name}.sorted_indices` has shape {order.shape} and is no permutation of N >= "
            f"batch_sizes[0] = {least} rows; expected each of 0..N-1 once"
        )
    if value.unsorted_indices is not None:
        back = _indices(f"{name}.unsorted_indices", value.unsorted_indices, "one for each row")
        if not np.array_equal(back, np.argsort(order)):
            raise ShapeError(
                f"`{name}.unsorted_indices` has shape {back.shape} and is not the inverse of "
                f"sorted_indices, of shape {order.shape}; expected argsort(sorted_indices), or None"
            )
    return sizes, order


def _indices(name: str, value: object, count: str) -> HostInts:
    """Return a vector of integers as int64 on the host."""
    host = arrays.to_host(value, name)
    if host.ndim != 1 or (host.size and host.dtype.kind not in "iu"):
        raise DTypeError(
            f"`{name}` has dtype {host.dtype} and shape {host.shape}; expected integers, {count}"
        )
    return host.astype(np.int64)


def same_steps(name: str, value: PackedSequence, like: PackedSequence) -> None:
    """Refuse a packed cotangent whose steps are not those of the packed input `like`."""
    mine, theirs = packed(name, value), packed("x", like)
    for field, one, other in zip(("batch_sizes", "sorted_indices"), mine, theirs, strict=True):
        if not np.array_equal(one, other):
            raise ShapeError(f"`{name}.{field}` differs from `x.{field}`; expected the same steps")


def packed_data(x: PackedSequence) -> Array:
    """Return the data of a packed sequence when it is (total, I)."""
    if x.data.ndim != 2:
        raise ShapeError(
            f"`x.data` has shape {tuple(x.data.shape)}; expected (total, input_size), two axes"
        )
    return x.data


def seed(value: object) -> int | None:
    """Return a seed: None or an integer from 0 on."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise SpecError(f"`seed` is {value!r}; expected None or an integer >= 0")
    return int(value)


def dropout_masks(
    value: Any, spec: RNNSpec, leading: tuple[int, ...], axes: str, x: Array
) -> list[Array]:
    """Return the caller's dropout masks, one (*leading, D*P) bool array for each layer boundary."""
    word = "hidden_size" if spec.proj_size is None else "proj_size"
    if arrays.family(value) is None and not isinstance(value, tuple | list):
        raise DTypeError(
            f"`dropout_masks` is {type(value).__name__}; expected an array "
            f"(num_layers - 1, {axes}, num_directions * {word}) of bool"
        )
    boundaries = spec.num_layers - 1
    count = len(value) if isinstance(value, tuple | list) or value.ndim else 0
    if count != boundaries:
        raise ShapeError(
            f"`dropout_masks` has {count} masks; expected num_layers - 1 = {boundaries}"
        )
    shape = (*leading, spec.num_directions * spec.output_size)
    masks = []
    for layer in range(boundaries):
        mask = value[layer]
        if arrays.family(mask) is None or arrays.dtype_name(mask) != "bool":
            kind = type(mask).__name__ if arrays.family(mask) is None else arrays.dtype_name(mask)
            raise DTypeError(
                f"`dropout_masks[{layer}]` is {kind}; expected a bool array, True where an element "
                "is kept"
            )
        if tuple(mask.shape) != shape:
            raise ShapeError(
                f"`dropout_masks[{layer}]` has shape {tuple(mask.shape)}; "
                f"expected ({axes}, num_directions * {word}) = {shape}"
            )
        same_place(f"dropout_masks[{layer}]", mask, x)
        masks.append(mask)
    return masks


def is_whole(value: object) -> bool:
    """Return whether `value` is an integer, which True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole(name: str, value: object) -> None:
    """Refuse what is not an integer."""
    if not is_whole(value):
        raise SpecError(f"`{name}` is {value!r}; expected an integer")


def size(name: str, value: object, most: int | None = None) -> None:
    """Refuse a size that is not an integer from 1 on, or up to `most`."""
    whole = is_whole(value)
    if whole and abs(int(value)).bit_length() > 63:  # type: ignore[call-overload]
        # Python itself refuses to print a number of some thousand digits.
        raise SpecError(f"`{name}` has more than 63 bits; expected a size that an array can have")
    if not whole or value < 1 or (most is not None and value > most):  # type: ignore[operator]
        limit = "at least 1" if most is None else f"1..hidden_size = 1..{most}"
        raise SpecError(f"`{name}` is {value!r}; expected an integer, {limit}")


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse an option that is not one of its words."""
    if not isinstance(value, str) or value not in choices:
        raise SpecError(f"`{name}` is {value!r}; expected one of {', '.join(choices)}")
