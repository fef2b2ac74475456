"""Compare every backend on this machine with the reference in float64.

The first thing to run on a new machine or a new GPU, and what to paste into a bug report. A grid of
small calls: all modes, dense batches, lengths with zeros, masks with holes, resets; one and two
layers and directions; projection, peepholes, clips; float64 to bfloat16. Masked steps hold NaN. The
backends get the same rounded numbers as the reference, and random cotangents on all outputs. The
CPU engine runs once with each instruction set that is here, cuDNN on CuPy, PyTorch and NumPy arrays
and in each of its layouts, algorithms and arithmetics. Dropout is left out: cuDNN draws its own.

The tables show the worst error of each output and of each gradient (with a d before its name): the
RMS of the difference over the RMS of the reference's result. The published tolerance stands below;
a row beyond it is marked. What a backend refuses, or why it is not here, is said below the tables.

  python -m rnnop selfcheck
  python -m rnnop selfcheck --backend cudnn --dtype float32 float16
  python -m rnnop selfcheck --json > selfcheck.json

It takes about half a minute on a CPU, --quick a few seconds. The exit status is 1 if a result
is beyond its tolerance, a call failed, or a backend named by --backend is not here.
"""

from __future__ import annotations

import argparse
import json
import sys

from ...arrays import FLOATS
from ...backends import BACKENDS
from ...errors import BackendUnavailable
from .. import info
from ..progress import progress
from . import report
from .cases import CELLS, grid
from .compare import check
from .runners import find_runners


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--backend",
        nargs="+",
        choices=BACKENDS,
        metavar="NAME",
        help=f"some of {', '.join(BACKENDS)}, which must be here; default: all that are",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=FLOATS,
        default=list(FLOATS),
        metavar="NAME",
        help=f"some of {', '.join(FLOATS)}; default: all",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two calls for each cell, the best instruction set and the default way only",
    )


def run(options: argparse.Namespace) -> None:
    """Compare and print."""
    found, missing = find_runners(options.backend or list(BACKENDS), options.quick)
    for name in options.backend or ():
        if name in missing:
            raise BackendUnavailable(f"backend {name!r} cannot be checked here: {missing[name]}")
    with progress(len(CELLS), "cell") as show:
        checks = check(grid(options.quick), found, options.dtype, show)
    if not any(each.calls or each.misses for each in checks):
        raise SystemExit("rnnop: nothing was compared: every call was refused, or is the reference")
    about = info.describe()
    if options.json:
        print(json.dumps({"info": about, **report.to_json(checks, missing)}))
    else:
        print(info.text(about), report.text(checks, missing, sys.stdout.isatty()), sep="\n\n")
    if any(each.misses for each in checks):
        raise SystemExit(1)
