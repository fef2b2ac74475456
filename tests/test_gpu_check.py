"""What checks rnnop on a GPU, as far as it runs without: the script and the benchmark."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cudnn_double
import pytest
from gpu_arrays import no_gpu_for

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "gpu_check.sh"


def benchmark() -> ModuleType:
    pytest.importorskip("torch", reason="the GPU benchmark needs PyTorch, which is not installed")
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_writes_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = benchmark()
    assert module.main(["--device", "cpu", "--seconds", "30", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["facts"]["rnnop"]
    who = {(row["pass"], row["who"], row["ragged"]) for row in results["rows"]}
    for wanted in (
        ("forward", "rnnop", True),
        ("forward", "torch.nn, packed", True),
        ("training", "rnnop, padded", True),
        ("forward", "rnnop, prepacked", False),
        ("training", "torch.nn", False),
        ("training", "torch.nn, in a loop", False),
    ):
        assert wanted in who
    assert not any("error" in row or "disagree" in row for row in results["rows"])
    assert all(row["quartile_1"] <= row["seconds"] <= row["quartile_3"] for row in results["rows"])
    assert (tmp_path / "gpu.md").read_text() == capsys.readouterr().out[:-1]


def test_the_benchmark_tells_who_disagrees() -> None:
    module = benchmark()
    one = module.torch.tensor([1.0, -4.0])
    assert module.disagreement({"a": [one], "b": [one]}) == 0
    assert module.disagreement({"a": [one], "b": [one], "c": [one + 1]}) == 0.25
    failed = {"pass": "forward", "problem": "p", "who": "rnnop", "error": "LibraryError: no"}
    odd = {"pass": "forward", "problem": "p", "who": "torch.nn", "seconds": 1.0, "disagree": 0.5}
    text = module.table({}, [failed, odd])
    assert "| p | rnnop | LibraryError: no | |" in text
    assert "| p | torch.nn | 1000.000, DISAGREES by 5.0e-01 | 1.00 times as fast |" in text


def test_without_a_gpu_the_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark()
    if module.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert module.main([]) == 1
    assert "torch finds no GPU" in capsys.readouterr().err


def check(out: Path, **more: str) -> tuple[str, str]:
    """Run the script, which fails without a GPU; return its summary and its log."""
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(out), **more}
    done = subprocess.run(
        ["bash", SCRIPT], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (1, "")
    return (out / "summary.txt").read_text(), (out / "log.txt").read_text()


@pytest.fixture
def no_gpu() -> None:
    if None in (no_gpu_for("torch"), no_gpu_for("cupy")):
        pytest.skip("there is a GPU")


@pytest.mark.slow
def test_without_a_gpu_the_script_says_so_and_fails(no_gpu: None, tmp_path: Path) -> None:
    summary, _ = check(tmp_path)
    assert "machine: exit status 0" in summary
    assert "nothing was run on a GPU: cuDNN: " in summary


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["hypothesis", "pytest"])
def test_the_script_goes_through_every_part(missing: str, no_gpu: None, tmp_path: Path) -> None:
    """With the stand-in for cuDNN, and without plugins: each part runs, and has nothing to do."""
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / f"{missing}.py").write_text(f"raise ImportError('no {missing}')")
    library, out = cudnn_double.build(tmp_path / "cudnn"), tmp_path / "out"
    summary, log = check(
        out,
        RNNOP_CUDNN_PATH=str(library),
        PYTHONPATH=str(absent),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    assert f"{missing} is missing: no {missing}" in log
    assert "cuDNN: <cuDNN 9.28.0 of " in log
    assert "selfcheck: exit status 1" in summary
    assert "rnnop: backend 'cudnn' cannot be checked here" in log
    if missing == "pytest":
        assert "0 experiments, 0 failed" in log
        assert "tests: pytest is missing; the self-check runs in full instead" in summary
    else:
        assert "settles: NO TEST RAN" in summary
        assert "tests: exit status 0" in summary
        assert "tests: NO TEST RAN" in summary
        assert re.search(r"6\d\d skipped", log)
    assert "benchmark: exit status 1" in summary
    assert "torch finds no GPU" in log
    assert len(list(out.iterdir())) <= 5  # few, and each says what it is


def test_a_run_ends_at_its_deadline_with_its_report(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import time\n"
        "def test_fails(): assert 1 == 2\n"
        "def test_takes_for_ever(): time.monotonic = lambda: 1e12\n"
        "def test_is_too_late(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "-q"]
    command += ["-p", "no:cacheprovider", "-p", "deadline", "--deadline=600", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "assert 1 == 2" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "out of time after 600 s" in done.stdout
