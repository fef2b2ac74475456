"""The engine's pool of threads, by itself, under callers that come all at once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[1] / "rnnop" / "cpu" / "kernels"
SOURCES = [Path(__file__).parent / "engine_pool" / "pool.c", KERNELS / "threads.c"]

OPTIONS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{KERNELS}"]


def gcc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["gcc", *map(str, arguments)], capture_output=True, text=True)


def works(flag: str, folder: Path) -> bool:
    """Return whether gcc and the system run a program that is built with the flag."""
    source, program = folder / "nothing.c", folder / "nothing"
    source.write_text("int main(void) { return 0; }\n")
    built = gcc(flag, source, "-o", program).returncode == 0
    return built and subprocess.run([program], capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize(
    ("flag", "runs"), [("-O2", 20000), ("-fsanitize=thread", 5000)], ids=["plain", "sanitized"]
)
def test_every_part_is_done_once_and_barriers_hold(flag: str, runs: int, tmp_path: Path) -> None:
    if not works(flag, tmp_path):
        pytest.skip(f"gcc {flag} makes no program that runs here")
    program = tmp_path / "pool"
    built = gcc(*OPTIONS, flag, f"-DRUNS={runs}", *SOURCES, "-o", program)
    assert built.returncode == 0, built.stderr
    run = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stdout + run.stderr
