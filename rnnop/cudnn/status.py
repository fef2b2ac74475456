"""What cuDNN's functions return, and the errors made of it.

cuDNN 9 numbered its statuses anew, in thousands by kind; cuDNN 8 counts them. Both are told by name
and by kind.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ..errors import LibraryError
from .enums import Severity
from .prototypes import V9

if TYPE_CHECKING:
    from .library import Library


class Status(IntEnum):
    """cudnnStatus_t of cuDNN 9."""

    CUDNN_STATUS_SUCCESS = 0
    CUDNN_STATUS_NOT_INITIALIZED = 1001
    CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH = 1002
    CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH = 1003
    CUDNN_STATUS_DEPRECATED = 1004
    CUDNN_STATUS_LICENSE_ERROR = 1005
    CUDNN_STATUS_RUNTIME_IN_PROGRESS = 1006
    CUDNN_STATUS_RUNTIME_FP_OVERFLOW = 1007
    CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED = 1008
    CUDNN_STATUS_BAD_PARAM = 2000
    CUDNN_STATUS_INVALID_VALUE = 2001
    CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002
    CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER = 2003
    CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004
    CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND = 2005
    CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006
    CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH = 2007
    CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008
    CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES = 2009
    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010
    CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011
    CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE = 2012
    CUDNN_STATUS_NOT_SUPPORTED = 3000
    CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN = 3001
    CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002
    CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003
    CUDNN_STATUS_NOT_SUPPORTED_LAYOUT = 3004
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006
    CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH = 3007
    CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008
    CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009
    CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010
    CUDNN_STATUS_NOT_SUPPORTED_PADDING = 3011
    CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012
    CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013
    CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014
    CUDNN_STATUS_INTERNAL_ERROR = 4000
    CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED = 4001
    CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE = 4002
    CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003
    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004
    CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005
    CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006
    CUDNN_STATUS_EXECUTION_FAILED = 5000
    CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER = 5001
    CUDNN_STATUS_EXECUTION_FAILED_CUBLAS = 5002
    CUDNN_STATUS_EXECUTION_FAILED_CUDART = 5003
    CUDNN_STATUS_EXECUTION_FAILED_CURAND = 5004


class Status8(IntEnum):
    """cudnnStatus_t of cuDNN 8."""

    CUDNN_STATUS_SUCCESS = 0
    CUDNN_STATUS_NOT_INITIALIZED = 1
    CUDNN_STATUS_ALLOC_FAILED = 2
    CUDNN_STATUS_BAD_PARAM = 3
    CUDNN_STATUS_INTERNAL_ERROR = 4
    CUDNN_STATUS_INVALID_VALUE = 5
    CUDNN_STATUS_ARCH_MISMATCH = 6
    CUDNN_STATUS_MAPPING_ERROR = 7
    CUDNN_STATUS_EXECUTION_FAILED = 8
    CUDNN_STATUS_NOT_SUPPORTED = 9
    CUDNN_STATUS_LICENSE_ERROR = 10
    CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING = 11
    CUDNN_STATUS_RUNTIME_IN_PROGRESS = 12
    CUDNN_STATUS_RUNTIME_FP_OVERFLOW = 13
    CUDNN_STATUS_VERSION_MISMATCH = 14


class Category(IntEnum):
    """The kinds of failure, by the thousands of cuDNN 9."""

    NOT_INITIALIZED = 1
    BAD_PARAM = 2
    NOT_SUPPORTED = 3
    INTERNAL_ERROR = 4
    EXECUTION_FAILED = 5


# By the number of cuDNN 8, from 1 to 14.
_CATEGORY_8 = (1, 4, 2, 4, 2, 3, 4, 5, 3, 1, 3, 1, 1, 1)


class CudnnError(LibraryError):
    """A function of cuDNN failed.

    Attributes
    ----------
    category : Category
        The kind of failure, alike in every version.
    """

    def __init__(
        self, function: str, status: int, name: str, detail: str, category: Category
    ) -> None:
        super().__init__(function, status, name, detail)
        self.category = category


def name_of(version: int, status: int) -> str:
    """Return the name of a status in a version of cuDNN."""
    try:
        return (Status if version >= V9 else Status8)(status).name
    except ValueError:
        return "a status that is not known"


def category_of(version: int, status: int) -> Category:
    """Return the kind of a failure; one that is not known is an internal error."""
    try:
        return Category(status // 1000 if version >= V9 else _CATEGORY_8[status - 1])
    except (ValueError, IndexError):
        return Category.INTERNAL_ERROR


def failure(
    library: Library, function: str, status: int, arguments: tuple[Any, ...], hint: str = ""
) -> CudnnError:
    """Return the error for a status, with all that cuDNN tells about it.

    Parameters
    ----------
    library : Library
        That was called.
    function : str
        The function of it that failed.
    status : int
        What it returned.
    arguments : tuple
        What it was given.
    hint : str, optional
        What the failure of this function usually means.
    """
    category = category_of(library.version, status)
    reason = _last_error(library)
    if not reason and category in (Category.BAD_PARAM, Category.NOT_SUPPORTED):
        reason = _LOG.reason(library, function, arguments)
    version = f"cuDNN {library.version_text}"
    detail = "; ".join(filter(None, (reason or "cuDNN gives no reason", hint, version)))
    return CudnnError(function, status, name_of(library.version, status), detail, category)


def _last_error(library: Library) -> str:
    """Return what cuDNN 9 says of this thread's last failure, which forgets it; else nothing."""
    if library.version < V9:
        return ""
    text = ctypes.create_string_buffer(1024)
    library.raw.cudnnGetLastErrorString(text, len(text))
    return text.value.decode(errors="replace")


# void callback(cudnnSeverity_t sev, void *udata, const cudnnDebug_t *dbg, const char *msg);
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_SEVERITIES = 1 << Severity.CUDNN_SEV_ERROR | 1 << Severity.CUDNN_SEV_WARNING


class _Log:
    """cuDNN's log, for the reasons that are told nowhere else.

    The log of a process has one reader. It is Python only while a call that was refused is made
    once more: no other call pays for it, no other thread waits for the interpreter in it, and it is
    not called when the interpreter is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._lines: list[str] = []
        self._callback = _CALLBACK(self._read)
        # cuDNN 9 cannot be told to log nothing once a reader was set: without one it writes errors
        # to the standard error. A function of C that does nothing, and needs no interpreter, keeps
        # it quiet.
        self._quiet = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)

    def reason(self, library: Library, function: str, arguments: tuple[Any, ...]) -> str:
        """Return why cuDNN refuses these arguments; nothing if it does not say."""
        mask, data, reader = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
        raw = library.raw
        with self._lock:
            raw.cudnnGetCallback(*map(ctypes.byref, (mask, data, reader)))
            if mask.value and reader.value != self._quiet.value:
                return "cuDNN's log is in use and has the reason if it holds warnings"
            self._thread, self._lines = threading.get_ident(), []
            raw.cudnnSetCallback(_SEVERITIES, None, self._callback)
            try:
                getattr(raw, function)(*arguments)
            finally:
                raw.cudnnSetCallback(0, None, self._quiet)
                self._thread = 0
            reasons = (line.partition("Reason: ")[2] for line in self._lines)
            return "; ".join(dict.fromkeys(filter(None, reasons)))

    def _read(self, _: int, __: int | None, ___: int | None, message: int) -> None:
        """Keep the lines of a message, if it is about the call that is made once more."""
        if threading.get_ident() == self._thread:
            self._lines += _strings(message)


def _strings(address: int) -> Iterator[str]:
    """Yield the strings of a block that an empty one ends."""
    while text := ctypes.string_at(address):
        yield text.decode(errors="replace")
        address += len(text) + 1


_LOG = _Log()
