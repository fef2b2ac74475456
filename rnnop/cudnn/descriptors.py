"""The objects that cuDNN makes, each owned by one of Python's.

An owner is made empty, is `set`, and tells with `get` what cuDNN has understood. What it points to
lives as long as it does. cuDNN's object is destroyed with its owner, but not in a process that was
forked from the one that made it, and not when the interpreter exits: the driver may be gone by
then, and the system takes everything back.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import (
    byref,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_uint32,
    c_ulonglong,
    c_void_p,
)
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .enums import (
    CUDNN_DIM_MAX,
    DataType,
    DirectionMode,
    MathType,
    NanPropagation,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
)
from .library import Library
from .status import failure


def _destroy(destroy: Callable[[int], int], pointer: int, process: int) -> None:
    if os.getpid() == process:
        destroy(pointer)  # nothing could be done about a bad status


def _addresses(*values: Any) -> list[Any]:
    return [byref(value) for value in values]


class _Owner:
    """Makes an object of cuDNN, and destroys it.

    Attributes
    ----------
    library : Library
        That made it.
    pointer : int
        Its address.
    """

    kind: ClassVar[str]  # it is made by cudnnCreate{kind}
    hint: ClassVar[str] = ""

    def __init__(self, library: Library) -> None:
        made = c_void_p()
        status = getattr(library.raw, f"cudnnCreate{self.kind}")(byref(made))
        if status:
            raise failure(library, f"cudnnCreate{self.kind}", status, (byref(made),), self.hint)
        self.library = library
        self.pointer = made.value or 0
        destroy = getattr(library.raw, f"cudnnDestroy{self.kind}")
        finalizer = weakref.finalize(self, _destroy, destroy, self.pointer, os.getpid())
        finalizer.atexit = False


class Handle(_Owner):
    """A cudnnHandle_t, of the device that is current when it is made. One thread may use it."""

    kind = ""
    hint = "there is no NVIDIA driver, no GPU that this process may use, or no memory left on it"

    def set_stream(self, stream: int) -> None:
        """Run what follows on a CUDA stream, given by its address."""
        self.library.cudnnSetStream(self.pointer, stream)


class _Handles(threading.local):
    """The handles of this thread."""

    def __init__(self) -> None:
        self.made: dict[tuple[Library, int, int], Handle] = {}


_handles = _Handles()


def handle(library: Library, device: int) -> Handle:
    """Return this thread's handle for a device, which must be the current one.

    Raises
    ------
    CudnnError
        There is no driver, no device, or no memory on it.
    """
    key = (library, device, os.getpid())
    if key not in _handles.made:
        _handles.made[key] = Handle(library)
    return _handles.made[key]


class TensorDescriptor(_Owner):
    """A cudnnTensorDescriptor_t: the shape of a state."""

    kind = "TensorDescriptor"

    def set(self, data_type: int, shape: Sequence[int]) -> None:
        """Describe a C-contiguous array of at least three axes."""
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        axes = c_int * len(shape)
        self.library.cudnnSetTensorNdDescriptor(
            self.pointer, data_type, len(shape), axes(*shape), axes(*strides)
        )

    def get(self) -> tuple[DataType, tuple[int, ...], tuple[int, ...]]:
        """Return its dtype, shape and strides."""
        data_type, count = c_int(), c_int()
        shape, strides = (c_int * CUDNN_DIM_MAX)(), (c_int * CUDNN_DIM_MAX)()
        self.library.cudnnGetTensorNdDescriptor(
            self.pointer, len(shape), byref(data_type), byref(count), shape, strides
        )
        axes = slice(count.value)
        return DataType(data_type.value), tuple(shape[axes]), tuple(strides[axes])


class DropoutDescriptor(_Owner):
    """A cudnnDropoutDescriptor_t: a probability and a generator, whose states are on the device."""

    kind = "DropoutDescriptor"

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self.states: object = None

    def set(
        self, handle: Handle, dropout: float, states: object, address: int, size: int, seed: int
    ) -> None:
        """Seed the generator, which takes a while.

        Parameters
        ----------
        handle : Handle
            Of the device.
        dropout : float
            The probability.
        states : object
            The owner of the device memory for the states, kept alive.
        address, size : int
            Where that memory is, and its bytes, of which cudnnDropoutGetStatesSize tells how many
            are needed.
        seed : int
            Of the generator.
        """
        self.library.cudnnSetDropoutDescriptor(
            self.pointer, handle.pointer, dropout, address, size, seed
        )
        self.states = states

    def restore(
        self, handle: Handle, dropout: float, states: object, address: int, size: int, seed: int
    ) -> None:
        """Go on with states that were seeded before. The arguments are those of `set`."""
        self.library.cudnnRestoreDropoutDescriptor(
            self.pointer, handle.pointer, dropout, address, size, seed
        )
        self.states = states

    def get(self, handle: Handle) -> tuple[float, int | None, int]:
        """Return the probability, the address of the states, and the seed."""
        dropout, address, seed = c_float(), c_void_p(), c_ulonglong()
        self.library.cudnnGetDropoutDescriptor(
            self.pointer, handle.pointer, byref(dropout), byref(address), byref(seed)
        )
        return dropout.value, address.value, seed.value


class RNNSettings(NamedTuple):
    """The values that cudnnSetRNNDescriptor_v8 takes, in its order.

    `proj_size` is `hidden_size` without a projection; `aux_flags` is CUDNN_RNN_PADDED_IO_ENABLED
    where the sequences of a padded layout differ in length.
    """

    algo: RNNAlgo
    cell_mode: RNNMode
    bias_mode: RNNBiasMode
    dir_mode: DirectionMode
    input_mode: RNNInputMode
    data_type: DataType
    math_prec: DataType
    math_type: MathType
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    aux_flags: int


_ENUMS = (RNNAlgo, RNNMode, RNNBiasMode, DirectionMode, RNNInputMode, DataType, DataType, MathType)


class RNNDescriptor(_Owner):
    """A cudnnRNNDescriptor_t: the network."""

    kind = "RNNDescriptor"

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self.dropout: DropoutDescriptor | None = None

    def set(self, settings: RNNSettings, dropout: DropoutDescriptor | None = None) -> None:
        """Describe the network, and keep its dropout alive. Forgets a clip that was set."""
        address = None if dropout is None else dropout.pointer
        *values, aux_flags = settings
        self.library.cudnnSetRNNDescriptor_v8(self.pointer, *values, address, aux_flags)
        self.dropout = dropout

    def get(self) -> tuple[RNNSettings, int | None]:
        """Return what it was set to, and the address of the dropout descriptor."""
        enums = [c_int() for _ in _ENUMS]
        numbers = [c_int32() for _ in range(4)]
        dropout, aux_flags = c_void_p(), c_uint32()
        self.library.cudnnGetRNNDescriptor_v8(
            self.pointer, *_addresses(*enums, *numbers, dropout, aux_flags)
        )
        values: list[Any] = [enum(each.value) for enum, each in zip(_ENUMS, enums, strict=True)]
        values += [each.value for each in (*numbers, aux_flags)]
        return RNNSettings(*values), dropout.value

    def set_clip(self, low: float, high: float, nan: NanPropagation) -> None:
        """Clip the cell state of an LSTM. To be called after `set`."""
        self.library.cudnnRNNSetClip_v8(
            self.pointer, RNNClipMode.CUDNN_RNN_CLIP_MINMAX, nan, low, high
        )

    def get_clip(self) -> tuple[RNNClipMode, float, float, NanPropagation]:
        """Return whether the cell state is clipped, the bounds, and the rule for NaN."""
        mode, nan, low, high = c_int(), c_int(), c_double(), c_double()
        self.library.cudnnRNNGetClip_v8(self.pointer, *_addresses(mode, nan, low, high))
        return RNNClipMode(mode.value), low.value, high.value, NanPropagation(nan.value)


class RNNDataSettings(NamedTuple):
    """The values that cudnnSetRNNDataDescriptor takes, but for the number of lengths.

    `padding_fill` is one element as it is in memory, written to the padding of an output; None
    leaves the padding alone.
    """

    data_type: DataType
    layout: RNNDataLayout
    max_length: int
    vector_size: int
    lengths: Sequence[int]
    padding_fill: bytes | None = None


class RNNDataDescriptor(_Owner):
    """A cudnnRNNDataDescriptor_t: a batch of sequences."""

    kind = "RNNDataDescriptor"

    def set(self, settings: RNNDataSettings) -> None:
        """Describe the batch. cuDNN copies the lengths and the element."""
        data_type, layout, max_length, vector_size, lengths, padding_fill = settings
        copy: Any = np.array(lengths, np.intc)
        array = (c_int * len(copy)).from_buffer(copy)
        self.library.cudnnSetRNNDataDescriptor(
            self.pointer,
            data_type,
            layout,
            max_length,
            len(array),
            vector_size,
            array,
            padding_fill,
        )

    def get(self) -> RNNDataSettings:
        """Return what it was set to, the element in eight bytes."""
        data_type, layout, max_length, count, vector_size = (c_int() for _ in range(5))
        fill = ctypes.create_string_buffer(8)
        head = (data_type, layout, max_length, count, vector_size)
        get = self.library.cudnnGetRNNDataDescriptor
        get(self.pointer, *_addresses(*head), 0, None, fill)
        lengths = (c_int * count.value)()
        get(self.pointer, *_addresses(*head), count.value, lengths, fill)
        return RNNDataSettings(
            DataType(data_type.value),
            RNNDataLayout(layout.value),
            max_length.value,
            vector_size.value,
            tuple(lengths),
            fill.raw,
        )
