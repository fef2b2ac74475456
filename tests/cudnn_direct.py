"""cuDNN driven directly, as its documentation has it: for what rnnop itself never does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import Family
from cases import Array

import rnnop
from rnnop.cudnn import device as devices
from rnnop.cudnn.descriptors import (
    DropoutDescriptor,
    RNNDataDescriptor,
    RNNDataSettings,
    RNNDescriptor,
    RNNSettings,
    TensorDescriptor,
)
from rnnop.cudnn.device import Device
from rnnop.cudnn.enums import (
    DataType,
    DirectionMode,
    ForwardMode,
    MathType,
    NanPropagation,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    WgradMode,
)
from rnnop.cudnn.memory import Memory
from rnnop.layouts import to_cudnn

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
BIASES = {"none": 0, "input": 1, "double": 2, "recurrent": 3}
UNTOUCHED = 7.0  # what lies in y and dx before
PADDED, PACKED = 0, 1


@dataclass(frozen=True)
class Lab:
    """A family of arrays and its memory: where an experiment takes place, and how large."""

    family: Family
    memory: Memory
    scale: int = 1

    @contextmanager
    def device(self) -> Iterator[Device]:
        with devices.current(self.memory, self.family.there(np.zeros(1))) as device:
            yield device


@dataclass(frozen=True)
class Problem:
    """A network and a batch in float64. `lengths` are longest first."""

    mode: str = "lstm"
    lengths: tuple[int, ...] = (6, 4, 1)
    input_size: int = 3
    hidden_size: int = 5
    proj_size: int | None = None
    num_layers: int = 1
    bidirectional: bool = False
    bias: str = "double"
    layout: int = PADDED
    fill: float | None = 0.0
    clip: tuple[float, float] | None = None
    clip_nan: bool = False
    padded_io: bool = True

    @property
    def T(self) -> int:
        return max(self.lengths)

    @property
    def N(self) -> int:
        return len(self.lengths)

    @property
    def D(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def P(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def real(self) -> Array:
        """(T, N) Which steps there are."""
        real: Array = np.arange(self.T)[:, None] < np.array(self.lengths)
        return real

    def weights(self) -> rnnop.RNNWeights:
        made = rnnop.init_weights(
            self.mode,
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            bidirectional=self.bidirectional,
            proj_size=self.proj_size,
            dtype=np.float64,
            seed=1,
        )
        absent = {"none": ("b_ih", "b_hh"), "input": ("b_hh",), "recurrent": ("b_ih",)}
        return dataclasses.replace(made, **dict.fromkeys(absent.get(self.bias, ())))

    def drawn(self, name: str, *shape: int) -> Array:
        seed = sum(map(ord, name))
        drawn: Array = np.random.default_rng(seed).standard_normal(shape)
        return drawn

    def state(self, name: str) -> Array:
        size = self.hidden_size if name.startswith(("c", "dc")) else self.P
        return self.drawn(name, self.num_layers * self.D, self.N, size)

    def inputs(self) -> Array:
        """(T, N, I), NaN at steps that there are not."""
        x = self.drawn("x", self.T, self.N, self.input_size)
        x[~self.real] = np.nan
        return x

    def output_cotangent(self) -> Array:
        dy = self.drawn("dy", self.T, self.N, self.D * self.P)
        dy[~self.real] = np.nan
        return dy


class Direct:
    """The descriptors of a problem, and its passes."""

    def __init__(
        self, lab: Lab, device: Device, problem: Problem, dropout: DropoutDescriptor | None = None
    ) -> None:
        self.lab, self.device, self.problem = lab, device, problem
        self.library = device.handle.library
        double, padded = DataType.CUDNN_DATA_DOUBLE, problem.layout == PADDED
        self.rnn = RNNDescriptor(self.library)
        self.rnn.set(
            RNNSettings(
                RNNAlgo.CUDNN_RNN_ALGO_STANDARD,
                RNNMode(MODES[problem.mode]),
                RNNBiasMode(BIASES[problem.bias]),
                DirectionMode(problem.D - 1),
                RNNInputMode.CUDNN_LINEAR_INPUT,
                double,
                double,
                MathType.CUDNN_FMA_MATH,
                problem.input_size,
                problem.hidden_size,
                problem.P,
                problem.num_layers,
                int(padded and problem.padded_io),
            ),
            dropout,
        )
        if problem.clip is not None:
            self.rnn.set_clip(*problem.clip, NanPropagation(int(not problem.clip_nan)))
        fill = None if problem.fill is None else np.float64(problem.fill).tobytes()
        layout = RNNDataLayout(problem.layout)
        self.x, self.y = RNNDataDescriptor(self.library), RNNDataDescriptor(self.library)
        for each, width in ((self.x, problem.input_size), (self.y, problem.D * problem.P)):
            lengths = list(problem.lengths)
            each.set(RNNDataSettings(double, layout, problem.T, width, lengths, fill))
        self.h, self.c = TensorDescriptor(self.library), TensorDescriptor(self.library)
        pseudo_layers = problem.num_layers * problem.D
        for state, width in ((self.h, problem.P), (self.c, problem.hidden_size)):
            state.set(double, (pseudo_layers, problem.N, width))
        self.space = self.there(to_cudnn(problem.weights(), mode=problem.mode))
        self.reserve: Any = None

    def there(self, array: Array) -> Any:
        return self.lab.family.there(np.ascontiguousarray(array))

    def _rows(self, array: Array) -> Any:
        """Bring (T, N, F) to the device in the layout of the problem."""
        return self.there(array if self.problem.layout == PADDED else array[self.problem.real])

    def _back(self, array: Any) -> Array | None:
        return None if array is None else self.lab.family.back(array)

    def _buffer(self, width: int) -> Any:
        return self._rows(np.full((self.problem.T, self.problem.N, width), UNTOUCHED))

    def _room(self, size: int) -> Any:
        like = self.space
        return self.lab.memory.empty((size,), self.lab.memory.xp.uint8, like)

    def sizes(self, training: bool = True) -> tuple[int, int]:
        """Return the bytes of workspace and reserve."""
        work, reserve = c_size_t(), c_size_t()
        self.library.cudnnGetRNNTempSpaceSizes(
            self.device.handle.pointer,
            self.rnn.pointer,
            ForwardMode(int(training)),
            self.x.pointer,
            byref(work),
            byref(reserve),
        )
        return work.value, reserve.value

    def _weight_bytes(self) -> int:
        return int(self.space.shape[0]) * 8

    def forward(
        self, hx: Array | None = None, cx: Array | None = None, *, training: bool = True
    ) -> tuple[Array, Array, Array]:
        """Return y, as it lies in memory, hy and cy."""
        problem, address = self.problem, self.device.address
        work_size, reserve_size = self.sizes(training)
        work = self._room(work_size)
        self.reserve = self._room(reserve_size) if training else None
        self.x_rows, self.y_rows = (
            self._rows(problem.inputs()),
            self._buffer(problem.D * problem.P),
        )
        self.hx, self.cx = (None if each is None else self.there(each) for each in (hx, cx))
        hy, cy = self.there(problem.state("h")), self.there(problem.state("c"))
        lstm = problem.mode == "lstm"
        self.library.cudnnRNNForward(
            self.device.handle.pointer,
            self.rnn.pointer,
            ForwardMode(int(training)),
            None,
            self.x.pointer,
            address(self.x_rows),
            self.y.pointer,
            address(self.y_rows),
            self.h.pointer,
            address(self.hx),
            address(hy),
            self.c.pointer if lstm else None,
            address(self.cx) if lstm else None,
            address(cy) if lstm else None,
            self._weight_bytes(),
            address(self.space),
            work_size,
            address(work),
            reserve_size if training else 0,
            address(self.reserve),
        )
        back = self.lab.family.back
        return back(self.y_rows), back(hy), back(cy)

    def backward(
        self, dy: Array, dhy: Array | None = None, dcy: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Return dx, as it lies in memory, dhx and dcx."""
        problem, address = self.problem, self.device.address
        work_size, reserve_size = self.sizes()
        work, dy = self._room(work_size), self._rows(dy)
        dx = self._buffer(problem.input_size)
        dhy_there, dcy_there = (None if each is None else self.there(each) for each in (dhy, dcy))
        dhx, dcx = self.there(problem.state("h")), self.there(problem.state("c"))
        lstm = problem.mode == "lstm"
        self.library.cudnnRNNBackwardData_v8(
            self.device.handle.pointer,
            self.rnn.pointer,
            None,
            self.y.pointer,
            address(self.y_rows),
            address(dy),
            self.x.pointer,
            address(dx),
            self.h.pointer,
            address(self.hx),
            address(dhy_there),
            address(dhx),
            self.c.pointer if lstm else None,
            address(self.cx) if lstm else None,
            address(dcy_there) if lstm else None,
            address(dcx) if lstm else None,
            self._weight_bytes(),
            address(self.space),
            work_size,
            address(work),
            reserve_size,
            address(self.reserve),
        )
        back = self.lab.family.back
        return back(dx), back(dhx), back(dcx)

    def weight_gradients(self, mode: int = 0) -> tuple[int, Array]:
        """Return the status, 0 for success, and the gradients of the weight space."""
        address = self.device.address
        work_size, reserve_size = self.sizes()
        work, dspace = self._room(work_size), self.there(np.zeros(self.space.shape[0]))
        status = self.library.raw.cudnnRNNBackwardWeights_v8(
            self.device.handle.pointer,
            self.rnn.pointer,
            WgradMode(mode),
            None,
            self.x.pointer,
            address(self.x_rows),
            self.h.pointer,
            address(self.hx),
            self.y.pointer,
            address(self.y_rows),
            self._weight_bytes(),
            address(dspace),
            work_size,
            address(work),
            reserve_size,
            address(self.reserve),
        )
        return int(status), self.lab.family.back(dspace)
