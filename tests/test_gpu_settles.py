"""Section by section, what only a GPU can tell about cuDNN: `pytest -m gpu` prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cudnn_direct import Lab
from settles import ALONE, EXPERIMENTS, make_lab, sentences

from rnnop.cudnn.library import library
from rnnop.cudnn.memory import FAMILIES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["cupy", "torch"])
def lab(request: pytest.FixtureRequest) -> Lab:
    try:
        return make_lab(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))


def test_what_it_runs_on(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    major, minor = lab.memory.capability(0)
    with capsys.disabled():
        print(f"\nSETTLES 0: {library()} on compute capability {major}.{minor}")


@pytest.mark.parametrize("number", [number for number in EXPERIMENTS if number != ALONE])
def test_experiments(number: int, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    found = sentences(number, lab)
    with capsys.disabled():
        print("", *found, sep="\n")


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from settles import make_lab, sentences
print(*sentences(int(sys.argv[2]), make_lab(sys.argv[3])), sep="\\n")
"""


def test_zero_lengths(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever comes of it, rnnop never sends one."""
    name = "cupy" if lab.memory is FAMILIES["cupy"] else "torch"
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(ALONE), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    told = done.stdout.strip() or f"SETTLES {ALONE}: the process ends with {done.returncode}"
    with capsys.disabled():
        print(f"\n{told}")
