"""Kernels of `kernels.cu`, compiled by NVRTC for one GPU and one dtype."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib import resources

from ...errors import LibraryError
from .library import Library

THREADS = 128  # of a block; a power of two, for the kernels' sums over a row
REALS = {"float32": "float", "float64": "double"}


@cache
def source() -> bytes:
    """Return the text of the kernels."""
    return (resources.files(__package__) / "kernels.cu").read_bytes()


def compiled(nvrtc: Library, capability: tuple[int, int], dtype: str) -> bytes:
    """Return machine code for a GPU; PTX, which the driver compiles, for one newer than NVRTC.

    Raises
    ------
    LibraryError
        NVRTC refuses, with what it says.
    """
    wanted, known = 10 * capability[0] + capability[1], _architectures(nvrtc)
    kind = "sm" if wanted in known else "compute"
    number = max((each for each in known if each <= wanted), default=wanted)
    program = c_void_p()
    nvrtc.nvrtcCreateProgram(byref(program), source(), b"kernels.cu", 0, None, None)
    try:
        options = (f"--gpu-architecture={kind}_{number}", f"-DREAL={REALS[dtype]}")
        _compile(nvrtc, program, [*options, f"-DTHREADS={THREADS}"])
        return _text(nvrtc, program, "CUBIN" if kind == "sm" else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


def _compile(nvrtc: Library, program: c_void_p, options: list[str]) -> None:
    given = (c_char_p * len(options))(*(each.encode() for each in options))
    status = nvrtc.raw["nvrtcCompileProgram"](program, len(options), given)
    if status:
        said = _text(nvrtc, program, "ProgramLog").decode(errors="replace").strip()
        raise LibraryError("nvrtcCompileProgram", status, "status", said)


def _text(nvrtc: Library, program: c_void_p, what: str) -> bytes:
    """Return bytes of a program whose size NVRTC tells apart."""
    size = c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, byref(size))
    room = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, room)
    return room.raw


def _architectures(nvrtc: Library) -> list[int]:
    count = c_int()
    nvrtc.nvrtcGetNumSupportedArchs(byref(count))
    found = (c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(found)
    return list(found)
