"""The three libraries of NVIDIA's: the driver, NVRTC, cuBLAS; where they are, what they declare.

The functions of each are few and old: they are the same in CUDA 12 and 13. Nothing is loaded before
the first call of `driver`, `nvrtc` or `cublas`.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_longlong, c_size_t, c_uint
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Any

from ... import flags
from ...errors import BackendUnavailable, LibraryError

DRIVER = "libcuda.so.1"
MAJORS = (13, 12)  # of CUDA; the driver of one also runs libraries of the one before

_PRODUCT = [pointer, c_int, c_int, c_int, c_int, c_int]  # handle, two ops, m, n, k


def _product(real: Any, *, batched: bool) -> list[Any]:
    """alpha, A, B, beta, C, each matrix with its leading dimension, and stride if batched."""
    matrix = [pointer, c_int, *([c_longlong] if batched else [])]
    scale = POINTER(real)
    return [*_PRODUCT, scale, *matrix, *matrix, scale, *matrix, *([c_int] if batched else [])]


# Handles of all kinds are pointers; a CUdevice is an int. What is returned is a status.
PROTOTYPES: dict[str, dict[str, list[Any]]] = {
    "cuda": {
        "cuInit": [c_uint],
        "cuDriverGetVersion": [POINTER(c_int)],
        "cuDeviceGetCount": [POINTER(c_int)],
        "cuDeviceGet": [POINTER(c_int), c_int],
        "cuDevicePrimaryCtxRetain": [POINTER(pointer), c_int],
        "cuCtxPushCurrent_v2": [pointer],
        "cuCtxPopCurrent_v2": [POINTER(pointer)],
        "cuModuleLoadData": [POINTER(pointer), c_char_p],
        "cuModuleGetFunction": [POINTER(pointer), pointer, c_char_p],
        "cuLaunchKernel": [pointer, *[c_uint] * 7, pointer, POINTER(pointer), POINTER(pointer)],
        "cuStreamCreate": [POINTER(pointer), c_uint],
        "cuStreamDestroy_v2": [pointer],
        "cuStreamBeginCapture_v2": [pointer, c_int],
        "cuStreamEndCapture": [pointer, POINTER(pointer)],
        "cuStreamIsCapturing": [pointer, POINTER(c_int)],
        "cuStreamWaitEvent": [pointer, pointer, c_uint],
        "cuGraphInstantiateWithFlags": [POINTER(pointer), pointer, ctypes.c_ulonglong],
        "cuGraphLaunch": [pointer, pointer],
        "cuGraphDestroy": [pointer],
        "cuGraphExecDestroy": [pointer],
        "cuEventCreate": [POINTER(pointer), c_uint],
        "cuEventRecord": [pointer, pointer],
        "cuEventSynchronize": [pointer],
        "cuEventDestroy_v2": [pointer],
        "cuGetErrorName": [c_int, POINTER(c_char_p)],
    },
    "nvrtc": {
        "nvrtcGetNumSupportedArchs": [POINTER(c_int)],
        "nvrtcGetSupportedArchs": [POINTER(c_int)],
        "nvrtcCreateProgram": [
            *(POINTER(pointer), c_char_p, c_char_p, c_int),
            *(POINTER(c_char_p), POINTER(c_char_p)),
        ],
        "nvrtcCompileProgram": [pointer, c_int, POINTER(c_char_p)],
        "nvrtcGetProgramLogSize": [pointer, POINTER(c_size_t)],
        "nvrtcGetProgramLog": [pointer, c_char_p],
        "nvrtcGetCUBINSize": [pointer, POINTER(c_size_t)],
        "nvrtcGetCUBIN": [pointer, c_char_p],
        "nvrtcGetPTXSize": [pointer, POINTER(c_size_t)],
        "nvrtcGetPTX": [pointer, c_char_p],
        "nvrtcDestroyProgram": [POINTER(pointer)],
    },
    "cublas": {
        "cublasCreate_v2": [POINTER(pointer)],
        "cublasDestroy_v2": [pointer],
        "cublasSetStream_v2": [pointer, pointer],
        "cublasSetWorkspace_v2": [pointer, pointer, c_size_t],
        "cublasSetMathMode": [pointer, c_int],
        "cublasSgemm_v2": _product(c_float, batched=False),
        "cublasDgemm_v2": _product(c_double, batched=False),
        "cublasSgemmStridedBatched": _product(c_float, batched=True),
        "cublasDgemmStridedBatched": _product(c_double, batched=True),
    },
}


class Library:
    """A loaded library: each function of its prototypes, which raises unless it succeeds.

    Attributes
    ----------
    path : str
        What was opened.
    raw : dict of str to function
        The same functions, returning their status.
    """

    def __init__(self, short: str, file: ctypes.CDLL) -> None:
        self.path, self.raw = str(file._name), {}
        for name, arguments in PROTOTYPES[short].items():
            for checked in (False, True):
                function = file[name]  # a new object each time
                function.argtypes, function.restype = arguments, c_int
                if checked:
                    function.errcheck = self._check(name)
                    setattr(self, name, function)
                else:
                    self.raw[name] = function

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path} has no {name}")

    def _check(self, name: str) -> Callable[[Any, object, tuple[Any, ...]], Any]:
        def check(status: Any, _: object, __: tuple[Any, ...]) -> None:
            if status:
                raise LibraryError(name, status, self.name_of(status), f"it is of {self.path}")

        return check

    def name_of(self, status: int) -> str:
        """Return the name of a status of the driver; of others, that it is one."""
        if "cuGetErrorName" not in self.raw:
            return "status"
        text = c_char_p()
        self.raw["cuGetErrorName"](status, ctypes.byref(text))
        return (text.value or b"status").decode()


def missing() -> str | None:
    """Return None if all three can be loaded and there is a device, or why not."""
    found = (_driver(), _found("nvrtc"), _found("cublas"))
    return next((each for each in found if isinstance(each, str)), None)


def driver() -> Library:
    """Return the driver. Each of the three raises BackendUnavailable where it is not there."""
    return _or_raise(_driver())


def nvrtc() -> Library:
    """Return NVRTC, which compiles kernels."""
    return _or_raise(_found("nvrtc"))


def cublas() -> Library:
    """Return cuBLAS, which multiplies matrices."""
    return _or_raise(_found("cublas"))


def _or_raise(found: Library | str) -> Library:
    if isinstance(found, str):
        raise BackendUnavailable(found)
    return found


@functools.cache
def _driver() -> Library | str:
    """Return the driver, which has found a device, or why there is none."""
    try:
        found = Library("cuda", ctypes.CDLL(DRIVER))
    except OSError as error:
        return f"there is no NVIDIA driver: {error}"
    except AttributeError as error:
        return f"the NVIDIA driver is too old: {error}"
    count = c_int()
    try:
        found.cuInit(0)
        found.cuDeviceGetCount(ctypes.byref(count))
    except LibraryError as error:
        return f"the NVIDIA driver finds no GPU: {error}".rstrip(".")
    return found if count.value else "the NVIDIA driver finds no GPU"


@functools.cache
def _found(short: str) -> Library | str:
    """Return NVRTC or cuBLAS, of a CUDA that the driver runs, or that there is none."""
    newest = _newest()
    for name in (f"lib{short}.so.{major}" for major in MAJORS if major <= newest):
        for file in places(name):
            with_it = Path(file).with_name(name.replace("cublas", "cublasLt"))
            if short == "cublas" and with_it.is_file():  # which the loader would not find
                _opened(str(with_it))
            opened = _opened(file)
            if opened is not None:
                return _declared(short, opened)
    return f"no lib{short} of CUDA {' or '.join(map(str, MAJORS))} was found that the driver runs"


def _newest() -> int:
    """Return the newest CUDA that the driver runs; 0 without a driver."""
    found, version = _driver(), c_int()
    if isinstance(found, Library):
        found.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def _declared(short: str, file: ctypes.CDLL) -> Library | str:
    try:
        return Library(short, file)
    except AttributeError as error:
        return f"{file._name} lacks a function: {error}"


def _opened(file: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(file)
    except OSError:
        return None


def places(name: str) -> Iterator[str]:
    """Yield where a library may be, as cuDNN is searched for, what others have loaded first."""
    yield from _in_the_process(name)
    for folder in (Path(entry or ".").absolute() / "nvidia" for entry in sys.path):
        yield from map(str, sorted(folder.glob(f"*/lib/{name}")))
    folders = map(flags.foreign, ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"))
    prefix, *toolkits = (Path(each) if each else None for each in folders)
    if prefix is not None:
        yield str(prefix / "lib" / name)
    yield name  # by the loader
    for toolkit in filter(None, toolkits):
        yield from (str(toolkit / place / name) for place in ("lib64", "lib"))


def _in_the_process(name: str) -> Iterator[str]:
    maps = Path("/proc/self/maps")
    if maps.exists():
        yield from re.findall(rf" (/.*/{re.escape(name)})[^/\n]*$", maps.read_text(), re.MULTILINE)
