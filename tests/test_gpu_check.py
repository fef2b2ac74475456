"""What checks rnnop on a GPU, as far as it runs without: the script and the benchmark."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.mark.slow
def test_without_a_gpu_the_script_says_so_and_fails(tmp_path: Path) -> None:
    if None in (no_gpu_for("torch"), no_gpu_for("cupy")):
        pytest.skip("there is a GPU")
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["bash", SCRIPT], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert "machine: exit status 0" in summary
    assert "nothing was run on a GPU: cuDNN: " in summary
    assert done.stderr == ""
