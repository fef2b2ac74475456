"""Call the operator in every way that chance finds, right and wrong, and judge what comes back.

    python tools/fuzz.py --calls 200000 --seed 0
    python tools/fuzz.py --calls 20000 --over torch      # or jax, or rssm

Each call follows from its seed alone. One that is right must give, on the backend `cpu`, the values
of the reference in float64 within the published tolerances, leave its arguments as they were, and
give the same bits the second time and with prepacked weights. One that is wrong must be refused by
an error of rnnop, or by Python's own TypeError, and by both backends with the same words. A row
must give what it gives alone with its masked steps cut out. Through PyTorch or JAX, values,
gradients and refusals must be those of NumPy. Whatever else happens is a fault: it is printed with
its seed, and ``--calls 1 --seed`` that number shows it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

# What is called: the module whose `one(seed, tally)` makes a call and judges it.
OVER = {"numpy": "judge", "torch": "through_torch", "jax": "through_jax", "rssm": "rssm"}
HANGS_AFTER = 300  # seconds for 100 calls, on a busy machine


@dataclass
class Tally:
    """What came of many calls."""

    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(calls: int, seed: int, over: str = "numpy", watch: bool = False) -> Tally:
    """Judge the calls of as many seeds, from `seed` on."""
    one = importlib.import_module(f"fuzzing.{OVER[over]}").one
    tally = Tally()
    warnings.filterwarnings("ignore", "dropout=.* has no effect", UserWarning)
    started = time.monotonic()
    for each in range(seed, seed + calls):
        if watch and each % 100 == 0:
            faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            one(each, tally.kinds)
        except Exception as error:  # whatever it is, it is a fault, and the others are to run
            frame = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            tally.faults.append(f"seed {each}: {type(error).__name__}: {error} ({where})")
            if watch:
                print(tally.faults[-1], flush=True)
        if watch and (each - seed) % 10_000 == 9_999:
            print(f"{each - seed + 1} calls, {time.monotonic() - started:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> int:
    """Run as many calls as asked for, and print what came of them."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first call; the others follow")
    parser.add_argument("--over", choices=OVER, default="numpy", help="what is called, and through")
    arguments = parser.parse_args()
    tally = fuzz(arguments.calls, arguments.seed, arguments.over, watch=True)
    print(f"{arguments.calls} calls, {len(tally.faults)} faults")
    for kind, count in tally.kinds.most_common():
        print(f"{count:8}  {kind}")
    return bool(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
