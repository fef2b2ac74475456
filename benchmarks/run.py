"""Run the tests of the CPU engine, and if they pass, the whole benchmark.

    python benchmarks/run.py [options of `python -m rnnop bench`]

The results go to `benchmarks/results/`, into a folder named after the machine.
"""

import subprocess
import sys
from pathlib import Path

from rnnop.cli import main
from rnnop.cli.bench.machine import slug

HERE = Path(__file__).resolve().parent
GATE = [HERE.parent / "tests" / name for name in ("test_cpu.py", "test_rssm_cpu.py")]

if __name__ == "__main__":
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-cov", *GATE], cwd=HERE.parent
    )
    if tested.returncode:
        sys.exit("benchmarks: the engine's tests fail here; nothing is measured")
    sys.exit(main(["bench", "--output", str(HERE / "results" / slug()), *sys.argv[1:]]))
