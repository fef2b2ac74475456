"""How far a command has come, on stderr: a bar on a terminal, else a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
"""Tells that a step is done, and what of."""


@contextmanager
def progress(total: int, unit: str) -> Iterator[Progress]:
    """Give the function that shows each of `total` steps, one `unit` each, when it is done.

    Without tqdm a terminal gets lines too.
    """
    if sys.stderr.isatty() and find_spec("tqdm") is not None:
        from tqdm import tqdm

        with tqdm(total=total, unit=unit) as bar:

            def move(text: str) -> None:
                bar.set_postfix_str(text, refresh=False)
                bar.update()

            yield move
        return
    done = 0

    def print_line(text: str) -> None:
        nonlocal done
        done += 1
        print(f"{unit} {done:{len(str(total))}}/{total}  {text}", file=sys.stderr)

    yield print_line
