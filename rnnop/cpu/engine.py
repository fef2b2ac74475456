"""The compiled engine as Python sees it: which library, its structures and its functions.

A library is built for each instruction set when rnnop is installed (setup.py); the best that the
machine runs is loaded at first use, or the one that RNNOP_CPU_ISA names.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from ctypes import POINTER, Structure, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import flags
from ..errors import BackendUnavailable, LibraryError

CELLS = {"rnn_tanh": 0, "rnn_relu": 1, "gru": 2, "gru_reset_before": 3, "lstm": 4}
_NO_MEMORY = 1  # enum Status of engine.h

# In order of preference, with the rnnop_cpu_level() that runs it; None: whatever the machine.
_VARIANTS = {
    "avx512bf16": 3,
    "avx512": 2,
    "avx2": 1,
    "neonbf16": 1,
    "neon": None,
    "generic": None,
}
_THAT_ROUND = ("forward", "network", "backward", "packed_size", "pack")


class Problem(Structure):
    """struct Problem of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("cell", "input", "hidden", "output")),
        *((name, c_int64) for name in ("projected", "peephole", "coupled", "backward")),
        *((name, c_int64) for name in ("has_cell_clip", "cell_clip_nan")),
        *((name, c_int64) for name in ("has_gate_clip", "has_proj_clip")),
        *((name, c_double) for name in ("cell_low", "cell_high", "gate_low", "gate_high")),
        *((name, c_double) for name in ("proj_low", "proj_high")),
        *((name, c_int64) for name in ("num_segments", "num_steps")),
        *((name, c_void_p) for name in ("batch_sizes", "offsets", "lengths")),
        ("threads", c_int64),
    ]


class Given(Structure):
    """struct Given of engine.h."""

    _fields_: ClassVar = [
        (name, c_void_p) for name in ("w_ih", "w_hh", "w_hr", "b_ih", "b_hh", "peephole")
    ]


class Weights(Structure):
    """struct Weights of engine.h."""

    _fields_: ClassVar = [
        (name, c_void_p)
        for name in ("input", "recurrent", "candidate", "projection", "bias", "peephole")
    ]


class Forward(Structure):
    """struct Forward of engine.h."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        *((name, c_void_p) for name in ("h0", "c0", "y")),
        ("y_stride", c_int64),
        *((name, c_void_p) for name in ("h_n", "c_n", "c")),
        ("c_stride", c_int64),
        *((name, c_void_p) for name in ("gates", "pre", "h_raw")),
    ]


class Backward(Structure):
    """struct Backward of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("begin", "end")),
        ("y", c_void_p),
        ("y_stride", c_int64),
        *((name, c_void_p) for name in ("h0", "c0", "c")),
        ("c_stride", c_int64),
        *((name, c_void_p) for name in ("gates", "pre", "h_raw", "dy")),
        ("dy_stride", c_int64),
        ("dc", c_void_p),
        ("dc_stride", c_int64),
        *((name, c_void_p) for name in ("dh_n", "dc_n", "dh0", "dc0", "dgates", "dh_raw")),
    ]


class Outer(Structure):
    """struct Outer of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("rows", "left", "right", "threads")),
        ("d", c_void_p),
        ("d_stride", c_int64),
        ("x", c_void_p),
        ("x_stride", c_int64),
        *((name, c_void_p) for name in ("x_rows", "sum")),
        ("sum_stride", c_int64),
    ]


class Times(Structure):
    """struct Times of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("rows", "depth", "columns", "threads", "add")),
        ("d", c_void_p),
        ("d_stride", c_int64),
        *((name, c_void_p) for name in ("packed", "y", "y_rows")),
    ]


class Layer(Structure):
    """struct Layer of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("inputs", "known", "back", "out", "norm", "activation")),
        *((name, c_void_p) for name in ("w", "b", "scale", "shift")),
        *((name, c_void_p) for name in ("y", "pre", "d", "d_scale", "d_shift")),
        *((name, c_void_p) for name in ("dw", "db", "dscale", "dshift")),
        ("place", c_int64),
        *((name, c_void_p) for name in ("forward", "forward_known", "bias")),
        *((name, c_void_p) for name in ("backward", "backward_known")),
    ]


class Drawn(Structure):
    """struct Drawn of engine.h."""

    _fields_: ClassVar = [(name, c_void_p) for name in ("mean", "std", "raw", "dmean", "dstd")]


class Rssm(Structure):
    """struct Rssm of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("cell", "classes", "std_rule")),
        *((name, c_double) for name in ("std_shift", "std_offset", "min_std")),
        *((name, c_double) for name in ("unimix", "norm_eps")),
        *((name, c_int64) for name in ("state", "belief", "action", "embed")),
        *((name, c_int64) for name in ("batch", "threads")),
        *((name, POINTER(Layer)) for name in ("gru", "dynamics", "inputs")),
        *((name, POINTER(Layer)) for name in ("head", "prior", "actor")),
        *((name, c_int64) for name in ("num_dynamics", "num_inputs", "num_head")),
        *((name, c_int64) for name in ("num_prior", "num_actor", "blocks", "squash")),
        *((name, c_void_p) for name in ("w_ih", "w_hh", "b_ih", "b_hh")),
        *((name, c_void_p) for name in ("initial_state", "initial_belief", "first")),
        *((name, c_void_p) for name in ("state0", "belief0", "noise", "actions", "embeds")),
        *((name, Drawn) for name in ("drawn", "from_prior")),
        *((name, c_void_p) for name in ("states", "beliefs", "given", "before", "gates")),
        ("stretch", c_int64),
        *((name, c_void_p) for name in ("d_gates", "d_prior", "dstates", "dbeliefs", "dactor")),
        *((name, c_void_p) for name in ("dstate", "dbelief", "first_dstate", "first_dbelief")),
        *((name, c_void_p) for name in ("dactions", "dembeds", "dw_ih", "dw_hh", "db_gates")),
        *((name, c_void_p) for name in ("gru_input", "gru_recurrent", "gru_candidate", "gru_bias")),
        ("features", c_void_p * 3),
        *((name, c_int64) for name in ("parameters", "width", "far")),
    ]


class Network(Structure):
    """struct Network of engine.h."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("layers", "directions")),
        *((name, c_void_p) for name in ("problems", "packed", "given")),
    ]


_STRUCTURES: tuple[type[Structure], ...] = (
    *(Problem, Given, Weights, Forward, Backward),
    *(Outer, Times),
    *(Layer, Drawn, Rssm),
    Network,
)


class Functions:
    """The functions of a library for one dtype; those that return a status raise for a bad one.

    MemoryError is raised where the engine could not allocate its working memory. With `rounds`, for
    float32, the products of the forward and of the recurrence of the backward round to bfloat16.
    """

    def __init__(self, library: ctypes.CDLL, dtype: str, *, rounds: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        suffix = f"f{8 * self.dtype.itemsize}"

        def declared(name: str, result: Any, *arguments: Any) -> Any:
            kind = "bf16" if rounds and name in _THAT_ROUND else suffix
            function = library[f"rnnop_{name}_{kind}"]
            function.argtypes, function.restype = arguments, result
            return function

        def checked(name: str, *arguments: Any) -> Any:
            function = declared(name, c_int, *arguments)
            function.errcheck = _check
            return function

        # int rnnop_forward_f32(const Problem *p, const Weights *w, const Forward *f);
        self.forward = checked("forward", POINTER(Problem), POINTER(Weights), POINTER(Forward))
        # int rnnop_network_f32(const Network *n, const float *x, const float *h0, const float *c0,
        #                       float *y, float *h_n, float *c_n);
        self.network = checked("network", POINTER(Network), *[c_void_p] * 6)
        # int rnnop_backward_f32(const Problem *p, const Weights *w, const Backward *b);
        self.backward = checked("backward", POINTER(Problem), POINTER(Weights), POINTER(Backward))
        # int rnnop_outer_f32(const Outer *o);
        self.outer = checked("outer", POINTER(Outer))
        # int rnnop_times_f32(const Times *t);
        self.times = checked("times", POINTER(Times))
        # int64_t rnnop_packed_size_f32(const Problem *p, int backward);
        self.packed_size = declared("packed_size", c_int64, POINTER(Problem), c_int)
        # void rnnop_pack_f32(const Problem *p, const Given *given, int backward, void *room,
        #                     Weights *w);
        self.pack = declared(
            "pack", None, POINTER(Problem), POINTER(Given), c_int, c_void_p, POINTER(Weights)
        )
        # void rnnop_pack_times_f32(const void *w, int64_t input, int64_t left, int64_t rotate,
        #                           void *packed);
        self.pack_times = declared(
            "pack_times", None, c_void_p, c_int64, c_int64, c_int64, c_void_p
        )
        # int64_t rnnop_rssm_packed_size_f32(Rssm *r, int backward);
        self.rssm_packed_size = declared("rssm_packed_size", c_int64, POINTER(Rssm), c_int)
        # void rnnop_rssm_pack_f32(Rssm *r, int backward, void *room);
        self.rssm_pack = declared("rssm_pack", None, POINTER(Rssm), c_int, c_void_p)
        # int rnnop_rssm_forward_f32(Rssm *r, int64_t begin, int64_t end);
        self.rssm_forward = checked("rssm_forward", POINTER(Rssm), c_int64, c_int64)
        # int rnnop_rssm_backward_f32(Rssm *r, int64_t begin, int64_t end);
        self.rssm_backward = checked("rssm_backward", POINTER(Rssm), c_int64, c_int64)
        # int rnnop_rssm_sums_f32(Rssm *r, int64_t begin, int64_t end);
        self.rssm_sums = checked("rssm_sums", POINTER(Rssm), c_int64, c_int64)
        # int rnnop_rssm_gradient_f32(Rssm *r, int64_t num_steps, int64_t steps);
        self.rssm_gradient = checked("rssm_gradient", POINTER(Rssm), c_int64, c_int64)


def _check(status: int, function: Any, _: object) -> None:
    if status == _NO_MEMORY:
        raise MemoryError(f"{function.__name__}: working memory could not be allocated")
    if status:
        raise LibraryError(function.__name__, status, "UNKNOWN", "the C engine")


class Engine:
    """A loaded library.

    Attributes
    ----------
    isa : str
        Its instruction set.
    level : int
        What this machine can run, see rnnop_cpu_level.
    has_bf16 : bool
        Whether it has a dot product of bfloat16 that accumulates in float32.
    """

    def __init__(self, isa: str, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.isa = isa
        self._float32, self._float64 = (Functions(library, f"float{size}") for size in (32, 64))
        self.has_bf16 = hasattr(library, "rnnop_forward_bf16")
        if self.has_bf16:
            self._rounding = Functions(library, "float32", rounds=True)
        # int rnnop_cpu_level(void);
        library.rnnop_cpu_level.argtypes, library.rnnop_cpu_level.restype = [], c_int
        self.level = int(library.rnnop_cpu_level())
        # void rnnop_layout(int64_t *bytes);
        sizes = (c_int64 * len(_STRUCTURES))()
        library.rnnop_layout.argtypes, library.rnnop_layout.restype = [type(sizes)], None
        library.rnnop_layout(sizes)
        expected = [ctypes.sizeof(structure) for structure in _STRUCTURES]
        if list(sizes) != expected:
            raise LibraryError(
                "rnnop_layout",
                0,
                "LAYOUT",
                f"{path.name} has structures of {list(sizes)} bytes; "
                f"expected {expected}; install rnnop anew",
            )

    def of(self, dtype: np.dtype[Any]) -> Functions:
        """Return the functions for float32 or float64."""
        return self._float64 if dtype.itemsize == 8 else self._float32

    def rounds(self, dtype: str) -> bool:
        """Return whether products round data of a dtype to bfloat16 in this call."""
        return self.has_bf16 and may_round(dtype)

    def functions(self, dtype: str) -> Functions:
        """Return the functions for data of a dtype in this call."""
        if dtype == "float64":
            return self._float64
        return self._rounding if self.rounds(dtype) else self._float32


def built() -> dict[str, Path]:
    """Return the libraries that were built, best first."""
    folder = Path(__file__).parent
    paths = {isa: folder / f"engine_{isa}.so" for isa in _VARIANTS}
    return {isa: path for isa, path in paths.items() if path.exists()}


@functools.lru_cache(maxsize=1)
def available() -> tuple[str, ...]:
    """Return the instruction sets that were built and that this machine runs, best first."""
    found = built()
    base = next((isa for isa in ("generic", "neon") if isa in found), None)
    if base is None:
        return ()
    level = Engine(base, found[base]).level
    return tuple(isa for isa in found if (needed := _VARIANTS[isa]) is None or level >= needed)


@functools.lru_cache(maxsize=8)
def load(isa: str) -> Engine:
    """Return the library for an instruction set that is available here."""
    return Engine(isa, built()[isa])


def why_unavailable() -> str | None:
    """Return None, or why there is no engine."""
    if available():
        return None
    return (
        f"no C engine for {platform.machine()} was built when rnnop was installed; "
        "install it again with a C compiler at hand"
    )


def engine() -> Engine:
    """Return the engine for this call.

    Raises
    ------
    BackendUnavailable
        None was built, or RNNOP_CPU_ISA names one that is not here.
    """
    reason = why_unavailable()
    if reason is not None:
        raise BackendUnavailable(f"the backend 'cpu' is not usable: {reason}")
    wanted = flags.read("RNNOP_CPU_ISA")
    here = available()
    if wanted == "auto":
        return load(here[0])
    if wanted not in here:
        raise BackendUnavailable(
            f"RNNOP_CPU_ISA is {wanted!r}; this machine and this build have {', '.join(here)}"
        )
    return load(wanted)


def may_round(dtype: str) -> bool:
    """Return whether the flags allow products to round data of a dtype to bfloat16."""
    names = ("RNNOP_TENSOR_OP_ALLOW_CONVERSION", "RNNOP_ALLOW_TENSOR_CORE")
    return dtype == "float32" and all(map(flags.enabled, names))


def num_threads() -> int:
    """Return RNNOP_NUM_THREADS, by default the cores that this process may use."""
    return flags.integer("RNNOP_NUM_THREADS") or available_cores()


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def aligned(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised vector that begins on a cache line."""
    raw = np.empty(count + 64 // dtype.itemsize, dtype)
    begin = -address(raw) % 64 // dtype.itemsize
    return raw[begin : begin + count]


# Where an array object keeps the address of its data: right behind what every object begins with,
# as NumPy's ABI has it.
_DATA = object.__basicsize__
_word = c_void_p.from_address


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's first element, in a sixth of the time of `array.ctypes`."""
    found: int = _word(id(array) + _DATA).value  # type: ignore[assignment]  # never NULL
    return found


def pointer(array: npt.NDArray[Any] | None) -> int | None:
    """Return the address of an array's first element; None, a null pointer, of None."""
    return None if array is None else address(array)
