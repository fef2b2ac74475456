"""DistributedDataParallel over gloo: two processes learn what one learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="there is nothing to adapt to: pip install rnnop[torch]"
)

if not torch.distributed.is_available():
    pytest.skip("this PyTorch was built without distributed", allow_module_level=True)

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp.py"

pytestmark = pytest.mark.slow


def train(processes: int, steps: int, folder: Path) -> tuple[str, dict[str, Any]]:
    """Run the example; return what it prints, and the parameters."""
    folder.mkdir()
    options = ["--processes", str(processes), "--steps", str(steps), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], check=True, capture_output=True, text=True
    )
    return done.stdout, torch.load(folder / "model.pt", weights_only=True)


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """From the same start, so the first step of gradient descent is the gradient."""
    _, start = train(1, 0, tmp_path / "start")
    _, alone = train(1, 1, tmp_path / "alone")
    _, shared = train(2, 1, tmp_path / "shared")
    for name, parameter in start.items():
        wanted = parameter - alone[name]
        assert wanted.abs().max() > 1e-4, name
        torch.testing.assert_close(parameter - shared[name], wanted, rtol=0, atol=3e-8)


def test_they_learn(tmp_path: Path) -> None:
    printed, _ = train(2, 60, tmp_path / "shared")
    share = float(printed.partition(": ")[2].partition(" %")[0])
    assert share > 60, printed
