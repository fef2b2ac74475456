"""Builds the stand-in for the driver, NVRTC and cuBLAS: one library that is all three.

It computes on the host, with host memory as device memory, and compiles the package's own kernels
with the host's C++ compiler. Environment variables that it reads at each call: ``CUDA_DOUBLE_FAIL``
(``function:status``), ``CUDA_DOUBLE_THREADS`` (of a block, 1), ``CUDA_DOUBLE_VERSION`` (of CUDA,
12080), ``CUDA_DOUBLE_NO_DEVICE``, ``CUDA_DOUBLE_CALLER_CAPTURES``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

COMPILER = os.environ.get("CXX", "c++")
SOURCES = Path(__file__).parent
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Werror"]


@functools.cache
def build() -> Path:
    """Compile the stand-in, once per process; skip the test that asks where that cannot be."""
    if sys.platform != "linux":
        pytest.skip("the stand-in for CUDA is built on Linux only")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"the stand-in for CUDA needs a C++ compiler, and there is no {COMPILER!r}")
    folder = Path(tempfile.mkdtemp(prefix="cuda_double_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "cuda_double.so"
    words = {"SHIM": SOURCES / "shim.h", "CXX": COMPILER, "FOLDER": folder}
    defined = [f'-D{name}="{value}"' for name, value in words.items()]
    sources = [str(SOURCES / "double.cpp"), "-o", str(file), "-ldl"]
    done = subprocess.run(
        [COMPILER, *FLAGS, *defined, *sources], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{COMPILER} failed:\n{done.stderr}")
    return file


class Double:
    """What the stand-in has seen."""

    def __init__(self) -> None:
        self.file = build()
        self._library = ctypes.CDLL(str(self.file))

    def ask(self, hook: str, *names: str) -> int:
        """Return live, capturing, last_stream or math_mode."""
        function = self._library[f"cuda_double_{hook}"]
        function.restype = ctypes.c_long
        return int(function(*(name.encode() for name in names)))

    def calls(self, function: str) -> int:
        """Return how often a function was called since `reset`."""
        return self.ask("calls", function)

    def reset(self) -> None:
        """Forget the calls."""
        self._library.cuda_double_reset()
