"""`python -m rnnop info`: what is there, what is not and why, and that nothing is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cudnn_on_host
import pytest
from cudnn_double import compile_c
from test_house import FRAMEWORKS

import rnnop
from rnnop import backends, flags
from rnnop.cli import devices, info, main
from rnnop.cpu import engine

DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags == 0 ? STATUS : 1; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int index) { *device = 10 + index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device == 10 ? "GPU X" : "GPU Y", (size_t)size);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)(device - 9) << 31;
    return 0;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = device == 10 ? 9 : which == 75 ? 12 : which == 76 ? 1 : -1;
    return 0;
}
"""


def driver(folder: Path, status: int, count: int) -> str:
    """Return the file of a driver with some GPUs."""
    source, library = folder / "driver.c", folder / f"cuda_{status}_{count}.so"
    source.write_text(DRIVER)
    compile_c(
        f"-DSTATUS={status}", f"-DCOUNT={count}", "-fvisibility=default", source, "-o", library
    )
    return str(library)


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def no_cudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder without cuDNN, which RNNOP_CUDNN_PATH names."""
    monkeypatch.setenv("RNNOP_CUDNN_PATH", str(tmp_path))
    return str(tmp_path)


def test_json(no_cudnn: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = found(capsys)
    assert result["rnnop"] == rnnop.__version__
    assert result["packages"]["numpy"].startswith("numpy 2.")
    assert set(result["backends"]) == set(backends.BACKENDS)
    assert result["backends"]["reference"] is None
    assert f"{no_cudnn!r}, a folder without" in result["cudnn"] == result["backends"]["cudnn"]
    assert set(result["flags"]) == set(flags.FLAGS)
    assert result["flags"]["RNNOP_CUDNN_PATH"] == {"value": no_cudnn, "from": "environment"}
    assert result["flags"]["RNNOP_BACKEND"] == {"value": "auto", "from": "default"}


def test_text(no_cudnn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.partition("  ")[0] for line in lines]
    assert [title for title in titles if not title.startswith("GPU")] == [
        *("rnnop", "python", "system", "processor", "installed", "not installed"),
        *("C engine", "cuDNN"),
        *(f"backend {name}" for name in backends.BACKENDS),
        *flags.FLAGS,
    ]
    assert f"RNNOP_CUDNN_PATH                  {no_cudnn} (environment)" in lines
    assert "backend cudnn                     no: see cuDNN" in lines


def test_the_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if not engine.available():
        pytest.skip("rnnop was installed without a C compiler")
    monkeypatch.setenv("RNNOP_NUM_THREADS", "3")
    monkeypatch.setenv("RNNOP_CPU_ISA", engine.available()[-1])
    told = found(capsys)["engine"]
    assert (told["chosen"], told["threads"]) == (engine.available()[-1], 3)
    assert told["runs_here"] == list(engine.available())
    assert set(told["runs_here"]) <= set(told["built"])
    monkeypatch.setattr(engine, "available", lambda: ())
    assert "no C engine" in found(capsys)["engine"]


def test_a_flag_that_is_refused_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RNNOP_CPU_ISA", "mmx")
    result = found(capsys)
    told = result["flags"]["RNNOP_CPU_ISA"]
    assert (told["value"], told["from"]) == ("mmx", "environment")
    assert "expected one of auto" in told["error"]
    if engine.available():
        assert "RNNOP_CPU_ISA is 'mmx'" in result["engine"]
    assert main(["info"]) == 0
    assert "RNNOP_CPU_ISA is 'mmx'" in capsys.readouterr().out


def test_cudnn_that_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = cudnn_on_host.use(monkeypatch)
    told = found(capsys)["cudnn"]
    assert (told["version"], told["found_by"]) == ("9.28.0", "RNNOP_CUDNN_PATH")
    assert told["path"] == str(double.folder / "libcudnn.so.9")
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"9.28.0 of {double.folder}/libcudnn.so.9, found by: RNNOP_CUDNN_PATH" in out
    assert "backend cudnn                     yes" in out


def test_gpus_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVER", driver(tmp_path, status=0, count=2))
    assert devices.devices() == [
        {"name": "GPU X", "capability": "9.9", "memory_gib": 2.0},
        {"name": "GPU Y", "capability": "12.1", "memory_gib": 4.0},
    ]
    lines = info.text(info.describe()).splitlines()
    assert "GPU 1                             GPU Y, compute capability 12.1, 4.0 GiB" in lines


@pytest.mark.parametrize(
    ("status", "count", "reason"), [(100, 0, "finds none (status 100)"), (0, 0, "none is visible")]
)
def test_a_driver_without_gpus(
    tmp_path: Path, status: int, count: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_DRIVER", driver(tmp_path, status, count))
    told = devices.devices()
    assert isinstance(told, str)
    assert reason in told


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVER", "libno_such_driver.so.1")
    reason = "no GPU: there is no NVIDIA driver (libno_such_driver.so.1 cannot be opened)"
    assert devices.devices() == reason
    assert reason in info.text(info.describe())


def test_no_framework_is_imported() -> None:
    code = f"""
import sys
from rnnop.cli import main
main(["info"])
print(*({{name.partition(".")[0] for name in sys.modules}} & set({FRAMEWORKS!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == ""
