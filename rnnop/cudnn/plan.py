"""What one cuDNN call is described by, and the cache of such descriptions."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from ctypes import byref, c_size_t
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import flags
from ..arrays import HostInts
from ..ragged import invert
from ..spec import RNNSpec
from .descriptors import (
    DropoutDescriptor,
    Handle,
    RNNDataDescriptor,
    RNNDataSettings,
    RNNDescriptor,
    RNNSettings,
    TensorDescriptor,
)
from .enums import (
    CUDNN_RNN_PADDED_IO_DISABLED,
    CUDNN_RNN_PADDED_IO_ENABLED,
    DATA_TYPES,
    DirectionMode,
    ForwardMode,
    MathType,
    NanPropagation,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
)
from .library import Library

_MODES = {
    "rnn_relu": RNNMode.CUDNN_RNN_RELU,
    "rnn_tanh": RNNMode.CUDNN_RNN_TANH,
    "lstm": RNNMode.CUDNN_LSTM,
    "gru": RNNMode.CUDNN_GRU,
}
_ZERO = bytes(8)  # of any dtype


@dataclass(frozen=True)
class Key:
    """All that a plan follows from.

    Attributes
    ----------
    spec : RNNSpec
        The network.
    dtype : str
        Of the data.
    math : MathType
        The arithmetic.
    algo : RNNAlgo
        The algorithm.
    padded : bool
        Whether a ragged batch is padded rather than packed.
    lengths : bytes
        The lengths as int32, longest first.
    """

    spec: RNNSpec
    dtype: str
    math: MathType
    algo: RNNAlgo
    padded: bool
    lengths: bytes


class Plan:
    """The descriptors of one call. Threads may share it: nothing changes once it is made."""

    def __init__(self, library: Library, key: Key, dropout: DropoutDescriptor | None) -> None:
        spec = key.spec
        self.library, self.key = library, key
        lengths = np.frombuffer(key.lengths, np.intc)
        self.max_length, self.batch_size = int(lengths[0]), len(lengths)
        self.equal_lengths = bool(lengths[0] == lengths[-1])
        self.padded = key.padded and not self.equal_lengths
        data_type = DATA_TYPES[key.dtype]
        wide = DATA_TYPES["float64" if key.dtype == "float64" else "float32"]
        self.rnn = RNNDescriptor(library)
        self.rnn.set(
            RNNSettings(
                key.algo,
                _MODES[spec.mode],
                RNNBiasMode.CUDNN_RNN_DOUBLE_BIAS,
                DirectionMode(spec.num_directions - 1),
                RNNInputMode.CUDNN_LINEAR_INPUT,
                data_type,
                wide,
                key.math,
                spec.input_size,
                spec.hidden_size,
                spec.output_size,
                spec.num_layers,
                CUDNN_RNN_PADDED_IO_ENABLED if self.padded else CUDNN_RNN_PADDED_IO_DISABLED,
            ),
            dropout,
        )
        if spec.cell_clip is not None:
            replaced = NanPropagation.CUDNN_NOT_PROPAGATE_NAN
            nan = replaced if spec.cell_clip_nan else NanPropagation.CUDNN_PROPAGATE_NAN
            self.rnn.set_clip(*spec.cell_clip, nan)
        layout = RNNDataLayout.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
        if self.padded or self.equal_lengths:
            layout = RNNDataLayout.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED
        self.x, self.y = RNNDataDescriptor(library), RNNDataDescriptor(library)
        for each, size in ((self.x, spec.input_size), (self.y, self.output_width)):
            each.set(
                RNNDataSettings(data_type, layout, self.max_length, size, lengths.tolist(), _ZERO)
            )
        self.h, self.c = TensorDescriptor(library), TensorDescriptor(library)
        for state, size in ((self.h, spec.output_size), (self.c, spec.hidden_size)):
            state.set(data_type, (spec.num_pseudo_layers, self.batch_size, size))

    @property
    def output_width(self) -> int:
        """D * P."""
        return self.key.spec.num_directions * self.key.spec.output_size

    @property
    def rows(self) -> int:
        """How many rows x and y have."""
        if self.padded:
            return self.max_length * self.batch_size
        return int(np.frombuffer(self.key.lengths, np.intc).sum())

    @cached_property
    def unpad(self) -> HostInts:
        """(total,) The padded row of each packed position."""
        lengths = np.frombuffer(self.key.lengths, np.intc)
        return np.flatnonzero(np.arange(self.max_length)[:, None] < lengths)

    @cached_property
    def pad(self) -> HostInts:
        """(T * N,) The packed position of each padded row, -1 for none."""
        return invert(self.unpad, self.max_length * self.batch_size)

    def spaces(self, handle: Handle, mode: ForwardMode) -> tuple[int, int]:
        """Return the bytes of the workspace and of the reserve.

        They are asked for before each call: they may change with what else is on the device.
        """
        work, reserve = c_size_t(), c_size_t()
        self.library.cudnnGetRNNTempSpaceSizes(
            handle.pointer, self.rnn.pointer, mode, self.x.pointer, byref(work), byref(reserve)
        )
        return work.value, reserve.value


class _Plans(threading.local):
    """The plans of this thread, by device."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, Library, int], OrderedDict[Key, Plan]] = {}


_plans = _Plans()


def plan(handle: Handle, index: int, key: Key, dropout: DropoutDescriptor | None) -> Plan:
    """Return the plan for a call. Without dropout it is kept for the next such call."""
    if dropout is not None:
        return _made(handle, key, dropout)
    kept = _plans.of.setdefault((os.getpid(), handle.library, index), OrderedDict())
    if key not in kept:
        kept[key] = _made(handle, key, None)
    kept.move_to_end(key)
    while len(kept) > max(1, flags.integer("RNNOP_PLAN_CACHE")):
        kept.popitem(last=False)
    return kept[key]


def _made(handle: Handle, key: Key, dropout: DropoutDescriptor | None) -> Plan:
    made = Plan(handle.library, key, dropout)
    if key.algo == RNNAlgo.CUDNN_RNN_ALGO_PERSIST_DYNAMIC:
        # It compiles kernels for this batch size.
        made.library.cudnnBuildRNNDynamic(handle.pointer, made.rnn.pointer, made.batch_size)
    return made
