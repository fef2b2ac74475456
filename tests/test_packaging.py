"""What a user installs: the sdist has all that a clone has, the wheel what runs and no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
USE = """
import numpy as np, rnnop
weights = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
for _ in range(2):
    y = rnnop.rnn(np.ones((4, 1, 2), np.float32), weights).y
print(rnnop.__file__, y.shape, rnnop.explain(np.ones((4, 1, 2), np.float32), weights).backend)
"""


def run(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments and further variables."""
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(kind: str, source: Path, folder: Path, **variables: str) -> Path:
    """Build an sdist or a wheel, as an installer asks setuptools to; return it."""
    run("-c", BUILD, f"build_{kind}", folder, cwd=source, **variables)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def files(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree without what git ignores."""
    folder = tmp_path_factory.mktemp("clone") / "rnnop"
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [Path(line).name for line in lines if line and not line.startswith("#")]
    return shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", *ignored))


@pytest.fixture(scope="module")
def sdist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of the sources."""
    return build("sdist", clone, tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


@pytest.mark.slow
def test_the_sdist_has_what_a_clone_has(clone: Path, unpacked: Path) -> None:
    made = {name for name in files(unpacked) | files(clone) if ".egg-info/" in name}
    assert files(unpacked) - made - {"PKG-INFO"} == files(clone) - made - {"PKG-INFO"}


@pytest.mark.slow
def test_without_a_compiler_it_installs_and_says_that_it_has_no_engine(
    unpacked: Path, tmp_path: Path
) -> None:
    wheel = build("wheel", unpacked, tmp_path, CC="no-such-compiler")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    wanted = {name for name in files(unpacked) if name.startswith("rnnop/")}
    wanted = {name for name in wanted if not name.startswith("rnnop/cpu/kernels/")}
    assert {name for name in files(tmp_path) if "dist-info" not in name} - {wheel.name} == wanted
    assert {"rnnop/py.typed", "rnnop/data/japanese_vowels.npz"} <= wanted
    done = run("-P", "-c", USE, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split()[0] == str(tmp_path / "rnnop" / "__init__.py")
    assert done.stdout.split()[-1] == "reference"
    assert done.stderr.count("no C engine") == 1
    assert "install it again with a C compiler" in done.stderr


@pytest.mark.slow
def test_one_wheel_with_the_engine_serves_every_python(unpacked: Path, tmp_path: Path) -> None:
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip(f"the engine needs a C compiler, and there is no {compiler!r}")
    unhurried = tmp_path / "unhurried"  # for the test: the compiler's own optimisation comes last
    unhurried.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0\n')
    unhurried.chmod(0o755)
    wheel = build("wheel", unpacked, tmp_path, CC=str(unhurried))
    assert "-py3-none-" in wheel.name
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    engines = sorted(path.name for path in (tmp_path / "rnnop").rglob("*.so"))
    assert engines in (
        ["engine_avx2.so", "engine_avx512.so", "engine_avx512bf16.so", "engine_generic.so"],
        ["engine_neon.so", "engine_neonbf16.so"],
        ["engine_generic.so"],
    )
    done = run("-P", "-c", USE, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split()[-1] == "cpu"
