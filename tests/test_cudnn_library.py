"""Finding and loading cuDNN: by every step of the search, whole, broken, old and missing.

Most of it needs no cuDNN: a stub with its names is compiled, whose functions do nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from _ctypes import dlclose
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cudnn_double import need_compiler
from cudnn_headers import NOT_INSTALLED, facts, installed

from rnnop import flags
from rnnop.cudnn import library as libraries
from rnnop.cudnn import status
from rnnop.cudnn.descriptors import TensorDescriptor
from rnnop.cudnn.prototypes import FIRST, V9, prototypes
from rnnop.cudnn.status import Category, CudnnError, Status, Status8
from rnnop.errors import BackendUnavailable, LibraryError

PARTS = {9: ("graph", "ops", "adv"), 8: ("ops_infer", "adv_infer", "ops_train", "adv_train")}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was found, and close what a test opens: later tests must not find it here."""
    opened = []

    class Recorded(ctypes.CDLL):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            opened.append(self._handle)

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", Recorded)
        libraries._load.cache_clear()
        yield
        libraries._load.cache_clear()
    for handle in opened:
        dlclose(handle)


@functools.cache
def machine_code(source: str) -> bytes:
    """Compile a shared library, which has no name but its path."""
    need_compiler()
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or "cc"
    with tempfile.NamedTemporaryFile() as file:
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", file.name]
        subprocess.run(command, input=source, text=True, check=True)
        return Path(file.name).read_bytes()


def compiled(file: Path, source: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(machine_code(source))
    return file


def stub(
    folder: Path, version: int = 92800, lacking: str = "", returns: dict[str, int] | None = None
) -> Path:
    """Make a cuDNN all of whose functions return 0, unless told otherwise."""
    answers = {"cudnnGetVersion": version, "cudnnGetCudartVersion": 99010, **(returns or {})}
    names = [
        name
        for name, each in prototypes().items()
        if each.first <= max(version, FIRST) <= each.last
    ]
    names = [name for name in names or answers if name != lacking]
    source = "\n".join(f"long {name}(void) {{ return {answers.get(name, 0)}; }}" for name in names)
    major = 8 if version < V9 else 9
    file = compiled(folder / f"libcudnn.so.{major}", source)
    for part in PARTS[major]:
        compiled(folder / f"libcudnn_{part}.so.{major}", source)
    return file


Use = Callable[[Path], libraries.Library]


@pytest.fixture
def use(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Load the library that RNNOP_CUDNN_PATH names."""

    def load(path: Path) -> libraries.Library:
        monkeypatch.setenv("RNNOP_CUDNN_PATH", str(path))
        return libraries.library()

    return load


# Whole


@pytest.mark.parametrize(
    ("version", "text"), [(92800, "9.28.0"), (90001, "9.0.1"), (8907, "8.9.7")]
)
def test_a_library_says_what_it_is(version: int, text: str, tmp_path: Path, use: Use) -> None:
    file = stub(tmp_path, version)
    library = use(tmp_path)
    assert (library.version, library.version_text) == (version, text)
    assert (library.path, library.how) == (file, "RNNOP_CUDNN_PATH")
    assert str(library) == f"<cuDNN {text} of {file}, found by: RNNOP_CUDNN_PATH>"
    assert libraries.missing() is None


def test_functions_have_their_types(tmp_path: Path, use: Use) -> None:
    stub(tmp_path)
    library = use(tmp_path)
    for name, prototype in prototypes().items():
        there = prototype.last >= library.version
        assert hasattr(library, name) == hasattr(library.raw, name) == there
        if there:
            for owner in (library, library.raw):
                assert tuple(getattr(owner, name).argtypes) == prototype.arguments
                assert getattr(owner, name).restype is prototype.result
    with pytest.raises(
        AttributeError, match="this version of cuDNN has no cudnnRNNForwardTraining"
    ):
        library.cudnnRNNForwardTraining()


def test_functions_that_came_later_are_not_looked_for(tmp_path: Path, use: Use) -> None:
    stub(tmp_path, 8907)
    library = use(tmp_path)
    assert hasattr(library, "cudnnAdvTrainVersionCheck")
    assert not hasattr(library, "cudnnRNNSetClip_v9")
    assert not hasattr(library, "cudnnGetLastErrorString")


def test_a_file_may_be_named_as_well_as_its_folder(tmp_path: Path, use: Use) -> None:
    file = stub(tmp_path / "lib64")
    assert use(file).path == file
    assert use(tmp_path).path == file
    plain = file.with_name("libcudnn.so")  # as in packages for developers
    plain.symlink_to(file.name)
    assert use(plain).version == 92800
    link = tmp_path / "links/libcudnn.so.9"  # as in stores that name files by their contents
    for part in ("", *(f"_{part}" for part in PARTS[9])):
        stored = file.with_name(f"libcudnn{part}.so.9").rename(tmp_path / f"5f3a{part}")
        link.parent.mkdir(exist_ok=True)
        link.with_name(f"libcudnn{part}.so.9").symlink_to(stored)
    assert use(link).path == link


def test_the_newest_of_two_in_a_folder(tmp_path: Path, use: Use) -> None:
    stub(tmp_path, 8907)
    stub(tmp_path, 92800)
    assert use(tmp_path).version == 92800


def test_the_flag_is_read_at_each_call(tmp_path: Path, use: Use) -> None:
    one, other = stub(tmp_path / "a"), stub(tmp_path / "b", 90100)
    first = use(one)
    assert use(other).version == 90100
    assert use(one) is first  # loaded once


def test_libraries_of_cuda_are_opened_where_wheels_hide_them(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path / "lib")
    lt = compiled(tmp_path / "site/nvidia/cublas/lib/libcublasLt.so.99", "int f(void) {return 0;}")
    text = tmp_path / "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.99"
    text.parent.mkdir(parents=True)
    text.write_text("no library")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert use(tmp_path).companions == {
        "libcublasLt.so.99": str(lt),
        "libcublas.so.99": None,
        "libnvrtc.so.99": None,
    }


# Broken


@pytest.mark.parametrize("version", [92800, 8907])
def test_a_part_that_is_missing_is_named(version: int, tmp_path: Path, use: Use) -> None:
    major = 8 if version < V9 else 9
    for part in PARTS[major]:
        folder = tmp_path / part
        stub(folder, version)
        (folder / f"libcudnn_{part}.so.{major}").unlink()
        with pytest.raises(BackendUnavailable) as caught:
            use(folder)
        assert f"{folder}/libcudnn_{part}.so.{major}: cannot open" in str(caught.value)
        assert "set RNNOP_CUDNN_PATH to the folder of libcudnn.so.9" in str(caught.value)


def test_what_is_no_library_is_named(tmp_path: Path, use: Use) -> None:
    file = stub(tmp_path)
    file.write_text("a text " * 1000)
    with pytest.raises(BackendUnavailable, match=rf"{file}: invalid ELF header"):
        use(tmp_path)
    assert "invalid ELF header" in (libraries.missing() or "")


@pytest.mark.parametrize("version", [8906, 8800, 100000])
def test_other_versions_are_refused(version: int, tmp_path: Path, use: Use) -> None:
    stub(tmp_path, version)
    with pytest.raises(BackendUnavailable, match=f"is version {version} of cuDNN; expected 8.9.7"):
        use(tmp_path)


def test_a_function_that_is_missing_is_named(tmp_path: Path, use: Use) -> None:
    stub(tmp_path, lacking="cudnnRNNForward")
    with pytest.raises(BackendUnavailable, match=r"lacks a function .* symbol: cudnnRNNForward"):
        use(tmp_path)


@pytest.mark.parametrize(
    ("version", "function", "answer"),
    [
        (92800, "cudnnAdvVersionCheck", 1002),
        (92800, "cudnnOpsVersionCheck", 1002),
        (8907, "cudnnAdvTrainVersionCheck", 14),
        (8907, "cudnnOpsInferVersionCheck", 14),
    ],
)
def test_parts_of_other_versions_are_noticed(
    version: int, function: str, answer: int, tmp_path: Path, use: Use
) -> None:
    stub(tmp_path, version, returns={function: answer})
    with pytest.raises(BackendUnavailable) as caught:
        use(tmp_path)
    text = str(caught.value)
    assert f"{function} returns CUDNN_STATUS_" in text
    assert f"VERSION_MISMATCH ({answer})" in text
    assert str(tmp_path) in text.partition("this process has loaded cuDNN from ")[2]


def test_a_path_that_is_named_is_taken_or_refused(tmp_path: Path, use: Use) -> None:
    with pytest.raises(BackendUnavailable, match=f"is '{tmp_path}/no', which does not exist"):
        use(tmp_path / "no")
    with pytest.raises(BackendUnavailable, match=r"a folder without libcudnn\.so\.9 or"):
        use(tmp_path)
    for name in ("libcudnn_ops.so.9", "libcudnn.so.7", "libcudnn.so"):
        (tmp_path / name).write_text("")
        with pytest.raises(BackendUnavailable, match=f"{name} .* is not named like"):
            use(tmp_path / name)


# The search


@pytest.fixture
def nowhere(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing for the search to find."""
    monkeypatch.setattr(libraries, "_mapped", lambda: iter(()))
    monkeypatch.setattr(libraries, "_opens", lambda name: False)
    monkeypatch.setattr(sys, "path", [])
    for name in flags.FOREIGN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nowhere")
def test_nothing_found_tells_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    monkeypatch.setenv("CUDNN_PATH", "/cudnn")
    text = (
        "no cuDNN was found; tried RNNOP_CUDNN_PATH (not set), this process (it holds none), "
        "wheels (sys.path has no nvidia/cudnn/lib), conda (/conda has none), "
        "the loader (it knows no libcudnn.so.9 or libcudnn.so.8), "
        "CUDA folders (/cudnn, /cuda have none)"
    )
    assert libraries.missing() == text
    with pytest.raises(BackendUnavailable) as caught:
        libraries.library()
    assert str(caught.value) == (
        f"{text}. Install nvidia-cudnn-cu12 or nvidia-cudnn-cu13, or set RNNOP_CUDNN_PATH to the "
        "folder of libcudnn.so.9."
    )


@pytest.mark.usefixtures("nowhere")
def test_nothing_set_tells_so() -> None:
    text = libraries.missing()
    assert text is not None
    assert "conda (CONDA_PREFIX is not set)" in text
    assert "CUDA folders (none of CUDNN_PATH, CUDNN_HOME, CUDA_HOME, CUDA_PATH is set)" in text


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("how", "inside"),
    [
        ("wheels", "nvidia/cudnn/lib"),
        ("conda", "lib"),
        ("CUDA folders", "lib64"),
        ("CUDA folders", "lib"),
        ("CUDA folders", ""),
    ],
)
def test_every_step_finds(
    how: str, inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stub(tmp_path / inside)
    monkeypatch.chdir(tmp_path)
    for name in {"conda": flags.FOREIGN[:1], "CUDA folders": flags.FOREIGN[1:]}.get(how, ()):
        libraries._load.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tmp_path))
            library = libraries.library()
        assert (library.path, library.how) == (file, how)
    if how == "wheels":
        for entry in (str(tmp_path), ""):  # an empty entry is the current folder
            libraries._load.cache_clear()
            monkeypatch.setattr(sys, "path", ["/nowhere", entry])
            assert (libraries.library().path, libraries.library().how) == (file, how)


@pytest.mark.usefixtures("nowhere")
def test_the_first_step_that_finds_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken library is an error, not a reason to take another."""
    stub(tmp_path / "cuda/lib64")
    wheel = stub(tmp_path / "site/nvidia/cudnn/lib")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    wheel.with_name("libcudnn_ops.so.9").unlink()
    assert f"cuDNN in {wheel.parent} (wheels) cannot be loaded" in (libraries.missing() or "")


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that finds cuDNN only where it is told."""
    hidden = ("COV", "CONDA", "CUDNN", "CUDA", "LD_LIBRARY_PATH")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_library_that_the_process_holds_is_taken(tmp_path: Path) -> None:
    """Even where only a part of it was loaded, by whomever."""
    file = stub(tmp_path)
    for part in ("", "_graph"):
        done = child(
            f"import ctypes; ctypes.CDLL('{tmp_path}/libcudnn{part}.so.9')\n"
            "from rnnop.cudnn import library; print(library.library())"
        )
        assert done.stdout == f"<cuDNN 9.28.0 of {file}, found by: this process>\n", done.stderr


def test_parts_are_seen_where_they_are_loaded(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stub(tmp_path / "a folder")
    use(file)
    assert list(libraries._mapped()).count(file) >= 4
    monkeypatch.setattr(libraries, "_mapped", lambda: iter([file]))
    monkeypatch.setattr(libraries, "_opens", lambda name: name == "libcudnn.so.8")
    assert libraries._by_the_loader() == file


def test_the_loader_finds(tmp_path: Path) -> None:
    file = stub(tmp_path)
    done = child(
        "from rnnop.cudnn import library; del library._STEPS['wheels']; print(library.library())",
        LD_LIBRARY_PATH=str(tmp_path),
    )
    assert done.stdout == f"<cuDNN 9.28.0 of {file}, found by: the loader>\n", done.stderr


def test_a_system_without_proc_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert list(libraries._mapped()) == []


# Statuses


def failing(function: str, answer: int, tmp_path: Path, use: Use, version: int) -> CudnnError:
    stub(tmp_path, version, returns={function: answer})
    library = use(tmp_path)
    count = len(prototypes()[function].arguments)
    assert getattr(library.raw, function)(*[None] * count) == answer
    with pytest.raises(CudnnError) as caught:
        getattr(library, function)(*[None] * count)
    return caught.value


@pytest.mark.parametrize(
    ("version", "answer", "name", "category"),
    [
        (92800, 2000, "CUDNN_STATUS_BAD_PARAM", Category.BAD_PARAM),
        (92800, 3007, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH", Category.NOT_SUPPORTED),
        (92800, 3999, "a status that is not known", Category.NOT_SUPPORTED),
        (92800, 9999, "a status that is not known", Category.INTERNAL_ERROR),
        (92800, 7, "a status that is not known", Category.INTERNAL_ERROR),
        (8907, 3, "CUDNN_STATUS_BAD_PARAM", Category.BAD_PARAM),
        (8907, 15, "a status that is not known", Category.INTERNAL_ERROR),
    ],
)
def test_a_bad_status_is_an_error(
    version: int, answer: int, name: str, category: Category, tmp_path: Path, use: Use
) -> None:
    error = failing("cudnnDestroyRNNDescriptor", answer, tmp_path, use, version)
    assert isinstance(error, LibraryError)
    assert (error.function, error.status) == ("cudnnDestroyRNNDescriptor", answer)
    assert (error.name, error.category) == (name, category)
    text = {92800: "9.28.0", 8907: "8.9.7"}[version]
    assert error.detail == f"cuDNN gives no reason; cuDNN {text}"
    assert str(error) == f"cudnnDestroyRNNDescriptor: {name} ({answer}): {error.detail}."


def test_a_good_status_is_nothing(tmp_path: Path, use: Use) -> None:
    stub(tmp_path)
    assert use(tmp_path).cudnnDestroyRNNDescriptor(None) is None
    assert use(tmp_path).raw.cudnnDestroyRNNDescriptor(None) == 0
    assert use(tmp_path).cudnnGetVersion() == 92800


def test_every_status_of_8_is_of_the_kind_that_it_is_in_9() -> None:
    same = {
        "CUDNN_STATUS_ALLOC_FAILED": 4003,
        "CUDNN_STATUS_ARCH_MISMATCH": 3007,
        "CUDNN_STATUS_MAPPING_ERROR": 4006,
        "CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING": 3008,
        "CUDNN_STATUS_VERSION_MISMATCH": 1002,
        **{member.name: member.value for member in Status},
    }
    for member in Status8:
        if member:
            assert status.category_of(8907, member) == same[member.name] // 1000, member.name


class LogInUse:
    """A library whose log is read by somebody else: no other function of it may be called."""

    version, version_text = 8907, "8.9.7"

    def cudnnGetCallback(self, mask: Any, data: Any, reader: Any) -> int:
        mask._obj.value = 2
        return 0

    @property
    def raw(self) -> Any:
        return self


def test_a_log_in_use_is_left_alone() -> None:
    error = status.failure(LogInUse(), "cudnnRNNForward", Status8.CUDNN_STATUS_BAD_PARAM, ())
    assert str(error) == (
        "cudnnRNNForward: CUDNN_STATUS_BAD_PARAM (3): cuDNN's log is in use and has the reason "
        "if it holds warnings; cuDNN 8.9.7."
    )


# The real library


@pytest.fixture
def real() -> libraries.Library:
    folder = installed()
    if folder is None:
        pytest.skip(NOT_INSTALLED)
    library = libraries._load(str(folder / "lib"))
    assert isinstance(library, libraries.Library)
    return library


REPORT = """
from rnnop.cudnn import library
print(library.missing() or library.library())
"""


def test_the_installed_wheel_is_found(real: libraries.Library) -> None:
    done = child(f"import sys; sys.path[:] = {sys.path}\n{REPORT}")
    assert done.stdout.splitlines() == [
        f"<cuDNN {real.version_text} of {real.path}, found by: wheels>"
    ], done.stderr


def test_the_version_is_that_of_the_headers(real: libraries.Library) -> None:
    assert real.version == facts(real.path.parents[1] / "include")["version"]
    assert set(real.companions) == {
        f"lib{name}.so.{real.raw.cudnnGetCudartVersion() // 1000}"
        for name in ("cublasLt", "cublas", "nvrtc")
    }


def test_names_of_statuses_are_cudnns(real: libraries.Library) -> None:
    """Those of later versions aside, ours are all there are."""
    known = {}
    for number in range(6000):
        name = real.cudnnGetErrorString(number).decode()
        if name != "CUDNN_UNKNOWN_STATUS":
            known[number] = name
    assert len(known) >= len(Status8)
    for number, name in known.items():
        assert status.name_of(real.version, number) == name


def test_the_reason_of_a_bad_parameter(real: libraries.Library) -> None:
    with pytest.raises(CudnnError) as caught:
        real.cudnnRNNSetClip_v8(None, 1, 1, 0.0, 0.0)
    error = caught.value
    assert (error.name, error.category) == ("CUDNN_STATUS_BAD_PARAM", Category.BAD_PARAM)
    assert "!rnnDesc" in error.detail
    assert error.detail.endswith(f"; cuDNN {real.version_text}")


def unsupported(library: libraries.Library) -> str:
    """Make a call that is not supported, and return what is said of it."""
    tensor = TensorDescriptor(library)
    with pytest.raises(CudnnError) as caught:
        tensor.set(0, (1,) * 9)
    assert caught.value.name.startswith("CUDNN_STATUS_NOT_SUPPORTED")
    assert caught.value.category is Category.NOT_SUPPORTED
    return caught.value.detail


def test_the_reason_of_what_is_not_supported(
    real: libraries.Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is in the log alone, which stays silent otherwise, before and after."""
    for _ in range(2):
        assert "nbDims > " in unsupported(real)
        with pytest.raises(CudnnError):
            real.cudnnRNNSetClip_v8(None, 1, 1, 0.0, 0.0)
    assert capfd.readouterr() == ("", "")


def test_errors_of_threads_do_not_mix(real: libraries.Library) -> None:
    """Each of many threads, all failing at once, gets its own reasons."""
    wrong: list[str] = []

    def work(me: int) -> None:
        for _ in range(400):
            try:
                if me % 2:
                    TensorDescriptor(real).set(0, (1,) * 9)
                else:
                    real.cudnnRNNSetClip_v8(None, 1, 1, 0.0, 0.0)
            except CudnnError as error:
                seen = "nbDims > " in error.detail, "!rnnDesc" in error.detail
                if seen != (me % 2, not me % 2):
                    wrong.append(f"{me}: {error}")

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


UNSUPPORTED = """
from rnnop.cudnn import descriptors, library, status
library = library.library()
messages = []
reader = status._CALLBACK(lambda severity, data, debug, text: messages.append(text))
if {theirs}:
    library.raw.cudnnSetCallback(6, None, reader)
try:
    descriptors.TensorDescriptor(library).set(0, (1,) * 9)
except status.CudnnError as error:
    print(error.detail)
print(len(messages))
"""


@pytest.mark.parametrize("theirs", [True, False], ids=["a function", "the environment"])
def test_the_log_of_somebody_else_is_left_alone(
    theirs: bool, real: libraries.Library, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    switches = {"CUDNN_LOGLEVEL_DBG": "2", "CUDNN_LOGWARN_DBG": "1"}  # of cuDNN 9 and 8
    environment = {} if theirs else {"CUDNN_LOGDEST_DBG": str(log), **switches}
    done = child(UNSUPPORTED.format(theirs=theirs), RNNOP_CUDNN_PATH=str(real.path), **environment)
    text = "cuDNN's log is in use and has the reason if it holds warnings"
    assert done.stdout == f"{text}; cuDNN {real.version_text}\n{int(theirs)}\n", done.stderr
    assert theirs or log.read_text().count("nbDims > ") == 1


def broken(real: libraries.Library, folder: Path, part: str) -> Path:
    """Make a copy of the real library, of links, without one part, and return where that was."""
    for file in real.path.parent.glob(f"libcudnn*{real.path.suffix}"):
        (folder / file.name).symlink_to(file)
    gone = folder / real.path.name.replace("cudnn", f"cudnn{part}")
    gone.unlink()
    return gone


@pytest.mark.parametrize("number", range(4))
def test_a_broken_installation_is_an_error_in_python(
    number: int, real: libraries.Library, tmp_path: Path
) -> None:
    """Never the end of the process, which is what cuDNN itself makes of it."""
    parts = PARTS[real.version // (10_000 if real.version >= V9 else 1_000)]
    part = parts[min(number, len(parts) - 1)]
    gone = broken(real, tmp_path, f"_{part}")
    done = child(REPORT, RNNOP_CUDNN_PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{gone}: cannot open shared object file" in done.stdout


def test_a_text_in_place_of_the_library_is_an_error_in_python(
    real: libraries.Library, tmp_path: Path
) -> None:
    gone = broken(real, tmp_path, "")
    gone.write_text("no library")
    done = child(REPORT, RNNOP_CUDNN_PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{gone}: file too short" in done.stdout


def test_a_part_of_another_version_is_an_error_in_python(
    real: libraries.Library, tmp_path: Path
) -> None:
    part, function, answer = (
        ("adv", "cudnnAdvVersionCheck", 1002)
        if real.version >= V9
        else ("adv_train", "cudnnAdvTrainVersionCheck", 14)
    )
    compiled(broken(real, tmp_path, f"_{part}"), f"int {function}(void) {{ return {answer}; }}")
    done = child(REPORT, RNNOP_CUDNN_PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"with a part of another version: {function} returns CUDNN_STATUS_" in done.stdout
