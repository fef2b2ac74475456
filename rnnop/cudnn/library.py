"""Where cuDNN is, and its functions.

Nothing is loaded before the first call of `library`. The parts of cuDNN are opened one by one, by
their full paths, before the library that hands calls on to them: where one is missing, that library
ends the process, and so never gets the chance.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import flags
from ..errors import BackendUnavailable
from . import status as statuses
from .prototypes import FIRST, LAST, V9, prototypes

_NAMES = ("libcudnn.so.9", "libcudnn.so.8")
_NUMBERED = re.compile(r"libcudnn\.so\.([89])\b")
_PARTS = {"9": ("graph", "ops", "adv"), "8": ("ops_infer", "adv_infer", "ops_train", "adv_train")}
_HINT = (
    "Install nvidia-cudnn-cu12 or nvidia-cudnn-cu13, or set RNNOP_CUDNN_PATH to the folder of "
    f"{_NAMES[0]}"
)


class Functions:
    """The functions of a library as they are: what they return is not looked at."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this version of cuDNN has no {name}")


class Library(Functions):
    """A loaded cuDNN.

    Each function of `prototypes` that this version has is an attribute. Those that return a status
    return None here, and raise `status.CudnnError` unless it is a success.

    Attributes
    ----------
    version : int
        As cudnnGetVersion tells it: 8907 for 8.9.7, 92800 for 9.28.0.
    path : Path
        The file.
    how : str
        The step of the search that found it.
    raw : Functions
        The same functions, returning their status.
    companions : dict of str to (str or None)
        The libraries of CUDA that cuDNN may ask for, and how each is opened: by its plain name or
        by its path; None where it cannot be, which cuDNN will say if it needs it.
    """

    def __init__(self, version: int, path: Path, how: str, file: ctypes.CDLL) -> None:
        self.version, self.path, self.how, self.raw = version, path, how, Functions()
        self.companions: dict[str, str | None] = {}
        for prototype in prototypes().values():
            if not prototype.first <= version <= prototype.last:
                continue
            for owner in (self.raw, self):
                function = file[prototype.name]  # a new object each time
                function.argtypes, function.restype = prototype.arguments, prototype.result
                setattr(owner, prototype.name, function)
            if prototype.returns_status:
                function.errcheck = self._checked(prototype.name)

    def __repr__(self) -> str:
        return f"<cuDNN {self.version_text} of {self.path}, found by: {self.how}>"

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        thousands = 10_000 if self.version >= V9 else 1_000
        return f"{self.version // thousands}.{self.version % thousands // 100}.{self.version % 100}"

    def _checked(self, name: str) -> Callable[[Any, object, tuple[Any, ...]], Any]:
        def check(status: Any, _: object, arguments: tuple[Any, ...]) -> None:
            if status:
                raise statuses.failure(self, name, status, arguments)

        return check


def library() -> Library:
    """Return cuDNN, searched for and loaded at the first call.

    What was found is kept, and so is that nothing was, until RNNOP_CUDNN_PATH has another value.

    Raises
    ------
    BackendUnavailable
        There is none, with every place that was searched; or it is broken, and how.
    """
    found = _load(flags.read("RNNOP_CUDNN_PATH"))
    if isinstance(found, str):
        raise BackendUnavailable(found, _HINT)
    return found


def missing() -> str | None:
    """Return None if cuDNN can be loaded, or why not, in one sentence."""
    found = _load(flags.read("RNNOP_CUDNN_PATH"))
    return found if isinstance(found, str) else None


@functools.cache
def _load(wanted: str) -> Library | str:
    """Return cuDNN as RNNOP_CUDNN_PATH wants it, or why there is none."""
    if wanted != flags.FLAGS["RNNOP_CUDNN_PATH"].default:
        return _named(Path(wanted).expanduser().absolute())
    tried = []
    for how, step in _STEPS.items():
        found = step()
        if isinstance(found, Path):
            return _open(found, how)
        tried.append(f"{how} ({found})")
    return "no cuDNN was found; tried " + ", ".join(["RNNOP_CUDNN_PATH (not set)", *tried])


# The search


def _named(path: Path) -> Library | str:
    """Return the library that RNNOP_CUDNN_PATH names, and no other, or what is wrong with it."""
    if not path.exists():
        return f"RNNOP_CUDNN_PATH is {str(path)!r}, which does not exist"
    file = _in([path]) if path.is_dir() else path
    if file is None:
        return f"RNNOP_CUDNN_PATH is {str(path)!r}, a folder without {' or '.join(_NAMES)}"
    return _open(file, "RNNOP_CUDNN_PATH")


def _in(folders: list[Path]) -> Path | None:
    """Return the first library of some folders, or of the `lib64` or `lib` in them."""
    for folder in folders:
        for place in (folder, folder / "lib64", folder / "lib"):
            for name in _NAMES:
                if (place / name).is_file():
                    return place / name
    return None


def _in_the_process() -> Path | str:
    """Whoever shares the process may have loaded cuDNN, and two are known to crash."""
    return next(_mapped(), "it holds none")


def _mapped() -> Iterator[Path]:
    """Yield the file of libcudnn.so beside each part of cuDNN that this process has loaded."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    for line in maps.read_text().splitlines():
        match = re.search(r" (/.*/)libcudnn(?:_\w+)?(\.so\.[89])[^/]*$", line)
        if match:
            yield Path(match[1], f"libcudnn{match[2]}")


def _in_wheels() -> Path | str:
    """NVIDIA's wheels hold the library where no loader looks."""
    folders = [Path(entry or ".").absolute() / "nvidia/cudnn" for entry in sys.path]
    return _in(folders) or "sys.path has no nvidia/cudnn/lib"


def _in_conda() -> Path | str:
    prefix = flags.foreign("CONDA_PREFIX")
    if prefix is None:
        return "CONDA_PREFIX is not set"
    return _in([Path(prefix)]) or f"{prefix} has none"


def _by_the_loader() -> Path | str:
    """Let the system search: LD_LIBRARY_PATH, the cache of ldconfig, its own folders."""
    if any(map(_opens, _NAMES)):
        return _in_the_process()
    return f"it knows no {' or '.join(_NAMES)}"


def _in_cuda_folders() -> Path | str:
    names = ("CUDNN_PATH", "CUDNN_HOME", "CUDA_HOME", "CUDA_PATH")
    folders = {name: value for name in names if (value := flags.foreign(name))}
    if not folders:
        return f"none of {', '.join(names)} is set"
    found = _in([Path(folder) for folder in folders.values()])
    return found or f"{', '.join(folders.values())} have none"


_STEPS: dict[str, Callable[[], Path | str]] = {
    "this process": _in_the_process,
    "wheels": _in_wheels,
    "conda": _in_conda,
    "the loader": _by_the_loader,
    "CUDA folders": _in_cuda_folders,
}


# Loading


def _open(path: Path, how: str) -> Library | str:
    """Return the library of a file, or what is wrong with it."""
    try:
        return _open_parts(path, how)
    except OSError as error:
        return f"cuDNN in {path.parent} ({how}) cannot be loaded: {error}"


def _open_parts(path: Path, how: str) -> Library | str:
    names = (path.name, path.resolve().name)  # a plain libcudnn.so is a link to one with a number
    major = next((each[1] for each in map(_NUMBERED.match, names) if each), None)
    if not path.name.startswith("libcudnn.so") or major is None:
        return f"{path} ({how}) is not named like {' or '.join(_NAMES)}"
    for part in _PARTS[major]:
        ctypes.CDLL(str(path.with_name(f"libcudnn_{part}.so.{major}")))
    file = ctypes.CDLL(str(path))
    file.cudnnGetVersion.restype = ctypes.c_size_t
    version = file.cudnnGetVersion()
    if not FIRST <= version <= LAST:
        return f"{path} ({how}) is version {version} of cuDNN; expected 8.9.7 or any 9"
    try:
        library = Library(version, path, how, file)
    except AttributeError as error:
        return f"{path} ({how}) lacks a function of cuDNN {version}: {error}"
    return _mixed(library) or _with_companions(library)


def _mixed(library: Library) -> str | None:
    """Return None, or that parts of different versions were loaded."""
    for name in prototypes():
        if name.endswith("VersionCheck") and hasattr(library.raw, name):
            status = getattr(library.raw, name)()
            if status:
                folders = sorted({str(each.parent) for each in _mapped()})
                return (
                    f"{library.path} ({library.how}) is cuDNN {library.version_text} with a part "
                    f"of another version: {name} returns "
                    f"{statuses.name_of(library.version, status)} ({status}); this process has "
                    f"loaded cuDNN from {', '.join(folders)}"
                )
    return None


def _with_companions(library: Library) -> Library:
    """Open what cuDNN asks the loader for by name, for the loader does not look into wheels."""
    major = library.raw.cudnnGetCudartVersion() // 1000
    near = library.path.parent.parent.parent
    folders = [near, *(Path(entry or ".") / "nvidia" for entry in sys.path)]
    for short in ("cublasLt", "cublas", "nvrtc"):  # cublas asks for cublasLt
        name = f"lib{short}.so.{major}"
        files = (str(file) for folder in folders for file in folder.glob(f"*/lib/{name}"))
        library.companions[name] = next(filter(_opens, (name, *files)), None)
    return library


def _opens(name: str) -> bool:
    """Return whether a library can be opened, after which others find it by its plain name."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
