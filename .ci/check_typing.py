"""Fail if `mypy --strict` does not see rnnop's types in a program of somebody who installed it.

Usage: python .ci/check_typing.py

In an environment of its own, since mypy would look into the sources of an editable install.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
# With --strict, a comment that silences nothing is an error: so the mistake must be seen.
PROGRAM = """
from typing import assert_type

import numpy as np

import rnnop

x = np.ones((4, 2, 3), np.float32)
weights = rnnop.init_weights("gru", input_size=3, hidden_size=5, seed=0)
assert_type(weights, rnnop.RNNWeights)
assert_type(rnnop.rnn(x, weights), rnnop.RNNOutput)
out, vjp = rnnop.rnn_vjp(x, weights)
assert_type(out, rnnop.RNNOutput)
rnnop.rnn(x, weights, batch_first="yes")  # type: ignore[arg-type]
"""


def main() -> int:
    """Install rnnop, without its engine, beside a program; return mypy's exit status for it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv" / "bin" / "python"
        # From a copy, since setuptools would take what it left in the tree the next time.
        source = shutil.copytree(
            ROOT, home / "source", ignore=shutil.ignore_patterns(".*", "build")
        )
        without_engine = os.environ | {"CC": "false"}
        subprocess.run([python, "-m", "pip", "install", source], check=True, env=without_engine)
        (home / "program.py").write_text(PROGRAM)
        mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
        return subprocess.run([*mypy, "program.py"], cwd=home).returncode


if __name__ == "__main__":
    sys.exit(main())
