"""Builds the stand-in for libcudnn from the C files beside this one, under cuDNN's file names.

It computes on the host, with host memory as device memory. Tests steer it by environment variables
that it reads at each call (switches.c): ``CUDNN_DOUBLE_FAULT`` makes one deliberate mistake,
``CUDNN_DOUBLE_MAX_BATCH`` fails larger batches, ``CUDNN_DOUBLE_SM`` is the compute capability (90),
``CUDNN_DOUBLE_NO_DEVICE=1`` hides the driver, ``CUDNN_DOUBLE_FAIL=function:status`` fails one
function. They ask it through the exported functions ``cudnn_double_*`` (hooks.c).
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

COMPILER = os.environ.get("CC", "cc")
SOURCES = Path(__file__).parent
FLAGS = [
    *("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror"),
]
# The names under which each generation is split into files. Each file is a stub that names the
# core as its dependency, so that /proc/self/maps shows them and they all share one state.
NAMES = {
    8: ["", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train", "_adv_infer", "_adv_train"],
    9: ["", "_graph", "_ops", "_cnn", "_adv", "_ext"],
}
CORE = "cudnn_double.so"


def build(folder: str | os.PathLike[str], version: str = "9.28.0") -> Path:
    """Put the stand-in of a cuDNN version into a folder; return the folder.

    Parameters
    ----------
    folder : path
        Made if it is missing. Each folder holds a library with a state of its own.
    version : str, optional
        Decides statuses, rejections and exported functions, such as ``"8.9.7"`` or ``"9.1.0"``.

    Returns
    -------
    Path
        `folder`, now with ``libcudnn.so.9`` and its parts, or those of 8.

    Notes
    -----
    Skips the test that asks for it where it cannot be built: without a C compiler, or elsewhere
    than on Linux.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for file in compile_version(version).iterdir():
        fresh = folder / f"{file.name}.new"
        shutil.copy(file, fresh)
        fresh.replace(folder / file.name)  # never writes into a file that is mapped
    return folder


def need_compiler() -> None:
    """Skip the test that asks, where nothing can be compiled and loaded as cuDNN is."""
    if sys.platform != "linux":
        pytest.skip("the stand-in for cuDNN is built on Linux only")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"the stand-in for cuDNN needs a C compiler, and there is no {COMPILER!r}")


@functools.cache
def compile_version(version: str) -> Path:
    """Compile one version, once per process, into a temporary folder."""
    major, minor, patch = map(int, version.split("."))
    number = major * (10000 if major >= 9 else 1000) + minor * 100 + patch
    target = Path(tempfile.mkdtemp(prefix="cudnn_double_"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    core = target / CORE
    sources = sorted(map(str, SOURCES.glob("*.c")))
    # The loader of the stubs looks for the core beside them.
    name = f"-Wl,-soname,$ORIGIN/{CORE}"
    compile_c(f"-DCUDNN_DOUBLE_VERSION={number}", name, *sources, "-o", core, "-lm", "-pthread")
    stub = target / "stub"
    compile_c("-x", "c", os.devnull, "-x", "none", "-Wl,--no-as-needed", core, "-o", stub)
    for part in NAMES[major]:
        shutil.copy(stub, target / f"libcudnn{part}.so.{major}")
    stub.unlink()
    return target


def compile_c(*arguments: str | Path) -> None:
    """Run the C compiler; its complaints become the error."""
    need_compiler()
    done = subprocess.run(
        [COMPILER, *FLAGS, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{COMPILER} failed:\n{done.stderr}")
