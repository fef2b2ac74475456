"""Drives a build of the stand-in through prototypes of its own: nothing of rnnop vouches for it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cudnn_double import build

RELU, TANH, LSTM, GRU = range(4)
NO_BIAS, INP_BIAS, DOUBLE_BIAS, REC_BIAS = range(4)
SEQ_MAJOR, PACKED, BATCH_MAJOR = range(3)
FLOAT, DOUBLE, HALF, BFLOAT16 = 0, 1, 2, 9
INFERENCE, TRAINING = range(2)
DTYPES = {
    FLOAT: np.dtype(np.float32),
    DOUBLE: np.dtype(np.float64),
    HALF: np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}

# p pointer or descriptor, i int, z size_t, f float, d double, q unsigned long long.
PROTOTYPES = {
    "cudnnCreate": "p",
    "cudnnDestroy": "p",
    "cudnnSetStream": "pp",
    "cudnnGetStream": "pp",
    "cudnnGetProperty": "ip",
    "cudnnSetCallback": "ipp",
    "cudnnCreateTensorDescriptor": "p",
    "cudnnDestroyTensorDescriptor": "p",
    "cudnnSetTensorNdDescriptor": "piipp",
    "cudnnGetTensorNdDescriptor": "pipppp",
    "cudnnGetTensorSizeInBytes": "pp",
    "cudnnCreateDropoutDescriptor": "p",
    "cudnnDestroyDropoutDescriptor": "p",
    "cudnnDropoutGetStatesSize": "pp",
    "cudnnSetDropoutDescriptor": "ppfpzq",
    "cudnnRestoreDropoutDescriptor": "ppfpzq",
    "cudnnGetDropoutDescriptor": "ppppp",
    "cudnnCreateRNNDescriptor": "p",
    "cudnnDestroyRNNDescriptor": "p",
    "cudnnSetRNNDescriptor_v8": "piiiiiiiiiiiipi",
    "cudnnGetRNNDescriptor_v8": "ppppppppppppppp",
    "cudnnRNNSetClip_v8": "piidd",
    "cudnnRNNGetClip_v8": "ppppp",
    "cudnnRNNSetClip_v9": "pidd",
    "cudnnRNNGetClip_v9": "pppp",
    "cudnnBuildRNNDynamic": "ppi",
    "cudnnGetRNNTempSpaceSizes": "ppippp",
    "cudnnGetRNNWeightSpaceSize": "ppp",
    "cudnnGetRNNWeightParams": "ppizpipppp",
    "cudnnCreateRNNDataDescriptor": "p",
    "cudnnDestroyRNNDataDescriptor": "p",
    "cudnnSetRNNDataDescriptor": "piiiiipp",
    "cudnnGetRNNDataDescriptor": "ppppppipp",
    "cudnnRNNForward": "ppippppppppppp" + "zpzpzp",
    "cudnnRNNBackwardData_v8": "pppppppppppppppp" + "zpzpzp",
    "cudnnRNNBackwardWeights_v8": "ppipppppppzpzpzp",
}
LETTERS = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "z": ctypes.c_size_t,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "q": ctypes.c_ulonglong,
}


class Double:
    """One build of the stand-in: its functions, its statuses, its hooks."""

    def __init__(self, folder: Path, version: str) -> None:
        self.v9 = not version.startswith("8.")
        name = "libcudnn.so.9" if self.v9 else "libcudnn.so.8"
        build(folder, version)
        self.library = ctypes.CDLL(str(folder / name))
        for function, letters in PROTOTYPES.items():
            if "_v9" in function and not self.v9:
                continue
            getattr(self.library, function).argtypes = [LETTERS[letter] for letter in letters]
        self.library.cudnnGetErrorString.restype = ctypes.c_char_p
        for hook in ("live", "calls", "last_stream", "foreign_threads", "peak_workspace"):
            getattr(self.library, f"cudnn_double_{hook}").restype = ctypes.c_size_t
        self.library.cudnn_double_last.restype = ctypes.c_long
        self.BAD, self.UNSUPPORTED, self.UNSET = (2000, 3000, 1001) if self.v9 else (3, 9, 1)
        self.INTERNAL, self.FAILED = (4000, 5000) if self.v9 else (4, 8)

    def status(self, function: str, *arguments: Any) -> int:
        return int(getattr(self.library, function)(*arguments))

    def __call__(self, function: str, *arguments: Any) -> None:
        status = self.status(function, *arguments)
        assert status == 0, f"{function}: {self.library.cudnnGetErrorString(status)}"

    def make(self, kind: str) -> int:
        made = ctypes.c_void_p()
        self(f"cudnnCreate{kind}", ctypes.byref(made))
        assert made.value is not None
        return made.value

    def size(self, function: str, *arguments: Any) -> int:
        size = ctypes.c_size_t()
        self(function, *arguments, ctypes.byref(size))
        return size.value

    def live(self) -> list[int]:
        kinds = (b"handle", b"rnn", b"data", b"tensor", b"dropout")
        return [self.library.cudnn_double_live(kind) for kind in kinds]

    def error(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.library.cudnnGetLastErrorString(text, ctypes.c_size_t(256))
        return text.value.decode()


@dataclass(frozen=True)
class Problem:
    mode: int = LSTM
    I: int = 3
    H: int = 4
    P: int = 4
    L: int = 1
    D: int = 1
    lengths: tuple[int, ...] = (5, 5)
    layout: int = SEQ_MAJOR
    dtype: int = DOUBLE
    precision: int = DOUBLE
    bias: int = DOUBLE_BIAS
    skip: bool = False
    algo: int = 0
    aux: int = 1
    dropout: float = 0.0
    clip: tuple[float, float] | None = None
    clip_nan: int = 1
    fill: float | None = 0.0

    @property
    def T(self) -> int:
        return max(self.lengths)

    @property
    def N(self) -> int:
        return len(self.lengths)

    @property
    def valid(self) -> np.ndarray:
        return np.arange(self.T)[:, None] < np.asarray(self.lengths)  # [T, N]

    def width(self, pseudo: int) -> int:
        return self.I if pseudo < self.D else self.P * self.D

    def weight_shapes(self) -> Iterator[tuple[int, ...]]:
        """Shapes in torch's terms, in the order of the weight space."""
        rows = GATES[self.mode] * self.H
        for pseudo in range(self.L * self.D):
            if not (self.skip and pseudo < self.D):
                yield rows, self.width(pseudo)
            yield rows, self.P
            if self.P < self.H:
                yield self.P, self.H
        for _ in range(self.L * self.D):
            if self.bias in (INP_BIAS, DOUBLE_BIAS):
                yield (rows,)
            if self.bias in (REC_BIAS, DOUBLE_BIAS):
                yield (rows,)


@dataclass
class Tensors:
    """Everything a pass reads: x and dy are [T, N, width] with NaN at padding."""

    x: np.ndarray
    weights: np.ndarray
    hx: np.ndarray | None
    cx: np.ndarray | None
    dy: np.ndarray
    dhy: np.ndarray | None
    dcy: np.ndarray | None

    @classmethod
    def random(cls, problem: Problem, seed: int = 0) -> Tensors:
        rng = np.random.default_rng(seed)
        layers = problem.L * problem.D
        steps = (problem.T, problem.N)
        count = sum(math.prod(shape) for shape in problem.weight_shapes())
        h, c = (layers, problem.N, problem.P), (layers, problem.N, problem.H)
        drawn = cls(
            rng.normal(size=(*steps, problem.I)),
            rng.normal(size=count) * 0.5,
            rng.normal(size=h),
            rng.normal(size=c),
            rng.normal(size=(*steps, problem.D * problem.P)),
            rng.normal(size=h),
            rng.normal(size=c),
        )
        drawn.x[~problem.valid] = np.nan
        drawn.dy[~problem.valid] = np.nan
        dtype = DTYPES[problem.dtype]
        return cls(**{name: value.astype(dtype) for name, value in vars(drawn).items()})


def arrange(rows: np.ndarray, problem: Problem) -> np.ndarray:
    """[T, N, width] to the layout of the problem."""
    if problem.layout == PACKED:
        return np.ascontiguousarray(rows[problem.valid])
    return np.ascontiguousarray(rows.swapaxes(0, 1) if problem.layout == BATCH_MAJOR else rows)


def restore(flat: np.ndarray, problem: Problem) -> np.ndarray:
    """Back to [T, N, width]; what packing left out is NaN."""
    if problem.layout == PACKED:
        rows = np.full((problem.T, problem.N, flat.shape[-1]), np.nan, flat.dtype)
        rows[problem.valid] = flat
        return rows
    return flat.swapaxes(0, 1) if problem.layout == BATCH_MAJOR else flat


def address(array: np.ndarray | None) -> int | None:
    if array is None:
        return None
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def space(size: int) -> np.ndarray:
    return np.full(-(-size // 8), np.nan)


@dataclass
class Session:
    """Descriptors of one problem on one double, and its passes."""

    double: Double
    problem: Problem
    seed: int = 7

    def __post_init__(self) -> None:
        double, problem = self.double, self.problem
        self.handle = double.make("")
        self.rnn = double.make("RNNDescriptor")
        self.dropout = double.make("DropoutDescriptor")
        self.states = space(double.size("cudnnDropoutGetStatesSize", self.handle))
        double("cudnnSetDropoutDescriptor", self.dropout, self.handle, problem.dropout,
               address(self.states), self.states.nbytes, self.seed)  # fmt: skip
        double("cudnnSetRNNDescriptor_v8", self.rnn, problem.algo, problem.mode, problem.bias,
               problem.D - 1, int(problem.skip), problem.dtype, problem.precision, 3, problem.I,
               problem.H, problem.P, problem.L, self.dropout, problem.aux)  # fmt: skip
        if problem.clip:
            double("cudnnRNNSetClip_v8", self.rnn, 1, problem.clip_nan, *problem.clip)
        if problem.algo == 2:
            double("cudnnBuildRNNDynamic", self.handle, self.rnn, problem.N)
        self.x_desc = self.data(problem.I)
        self.y_desc = self.data(problem.D * problem.P)
        self.h_desc = self.tensor(problem.P)
        self.c_desc = self.tensor(problem.H)

    def data(self, width: int) -> int:
        problem = self.problem
        made = self.double.make("RNNDataDescriptor")
        lengths = (ctypes.c_int * problem.N)(*problem.lengths)
        fill = None if problem.fill is None else np.array(problem.fill, DTYPES[problem.dtype])
        self.double("cudnnSetRNNDataDescriptor", made, problem.dtype, problem.layout, problem.T,
                    problem.N, width, lengths, address(fill))  # fmt: skip
        return made

    def tensor(self, width: int) -> int:
        shape = (self.problem.L * self.problem.D, self.problem.N, width)
        made = self.double.make("TensorDescriptor")
        ints = ctypes.c_int * 3
        self.double("cudnnSetTensorNdDescriptor", made, self.problem.dtype, 3, ints(*shape),
                    ints(shape[1] * width, width, 1))  # fmt: skip
        return made

    def sizes(self, mode: int) -> tuple[int, int]:
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        self.double("cudnnGetRNNTempSpaceSizes", self.handle, self.rnn, mode, self.x_desc,
                    ctypes.byref(work), ctypes.byref(reserve))  # fmt: skip
        return work.value, reserve.value

    def empty(self, *shape: int) -> np.ndarray:
        return np.full(shape, np.nan, DTYPES[self.problem.dtype])

    def forward_arguments(self, tensors: Tensors, mode: int) -> list[Any]:
        problem = self.problem
        layers = problem.L * problem.D
        self.tensors = tensors  # the addresses below must outlive this call
        self.x = arrange(tensors.x, problem)
        rows = self.x.shape[:-1]
        self.y = self.empty(*rows, problem.D * problem.P)
        self.hy = self.empty(layers, problem.N, problem.P)
        self.cy = self.empty(layers, problem.N, problem.H)
        work, reserve = self.sizes(mode)
        self.work, self.reserve = space(work), space(reserve)
        return [self.handle, self.rnn, mode, None, self.x_desc, address(self.x), self.y_desc,
                address(self.y), self.h_desc, address(tensors.hx), address(self.hy), self.c_desc,
                address(tensors.cx), address(self.cy), tensors.weights.nbytes,
                address(tensors.weights), self.work.nbytes, address(self.work),
                self.reserve.nbytes, address(self.reserve)]  # fmt: skip

    def forward(self, tensors: Tensors, mode: int = TRAINING) -> dict[str, np.ndarray]:
        self.double("cudnnRNNForward", *self.forward_arguments(tensors, mode))
        assert np.isnan(self.work).all()
        results = {"y": restore(self.y, self.problem), "hy": self.hy}
        return results | ({"cy": self.cy} if self.problem.mode == LSTM else {})

    def backward_data_arguments(self, tensors: Tensors) -> list[Any]:
        self.dx, self.dhx, self.dcx = (self.empty(*a.shape) for a in (self.x, self.hy, self.cy))
        self.dy = arrange(tensors.dy, self.problem)
        self.work = space(self.sizes(TRAINING)[0])
        return [self.handle, self.rnn, None, self.y_desc, address(self.y), address(self.dy),
                self.x_desc, address(self.dx), self.h_desc, address(tensors.hx),
                address(tensors.dhy), address(self.dhx), self.c_desc, address(tensors.cx),
                address(tensors.dcy), address(self.dcx), tensors.weights.nbytes,
                address(tensors.weights), self.work.nbytes, address(self.work),
                self.reserve.nbytes, address(self.reserve)]  # fmt: skip

    def backward_weights_arguments(self, tensors: Tensors, mode: int = 0) -> list[Any]:
        return [self.handle, self.rnn, mode, None, self.x_desc, address(self.x), self.h_desc,
                address(tensors.hx), self.y_desc, address(self.y), tensors.weights.nbytes,
                address(self.dw), self.work.nbytes, address(self.work), self.reserve.nbytes,
                address(self.reserve)]  # fmt: skip

    def backward(self, tensors: Tensors) -> dict[str, np.ndarray]:
        self.double("cudnnRNNBackwardData_v8", *self.backward_data_arguments(tensors))
        assert np.isnan(self.work).all()
        self.dw = np.zeros_like(tensors.weights)
        self.double("cudnnRNNBackwardWeights_v8", *self.backward_weights_arguments(tensors))
        assert np.isnan(self.work).all()
        results = {"dx": restore(self.dx, self.problem), "dhx": self.dhx, "dw": self.dw}
        return results | ({"dcx": self.dcx} if self.problem.mode == LSTM else {})

    def close(self) -> None:
        for kind, desc in [
            ("Tensor", self.c_desc),
            ("Tensor", self.h_desc),
            ("RNNData", self.y_desc),
            ("RNNData", self.x_desc),
            ("RNN", self.rnn),
            ("Dropout", self.dropout),
        ]:
            self.double(f"cudnnDestroy{kind}Descriptor", desc)
        self.double("cudnnDestroy", self.handle)
