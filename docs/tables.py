"""The tables of the documentation that are made from the sources they describe."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import rnnop.tolerances
from rnnop.flags import FLAGS

_TOLERANCES = Path(rnnop.tolerances.__file__)


def flags() -> str:
    """Return every environment variable, as a table in Markdown."""
    return _table(
        ("variable", "default", "values", "meaning"),
        (
            (
                f"`{flag.name}`",
                f"`{flag.default}`",
                "a whole number"
                if flag.choices is None
                else ", ".join(f"`{choice}`" for choice in flag.choices)
                or "any text",
                flag.meaning,
            )
            for flag in FLAGS.values()
        ),
    )


def tolerances() -> str:
    """Return every tolerance of the tests, and what was measured, as such a table.

    Raises
    ------
    ValueError
        The file of tolerances is not written as this function reads it.
    """
    text = _TOLERANCES.read_text(encoding="utf-8")
    entries = re.findall(
        r'^    \("(\w+)", "(\w+)"\): (\S+),  # (.+)$', text, re.MULTILINE
    )
    count = len(re.findall(r'^    \("', text, re.MULTILINE))
    if not entries or len(entries) != count:
        raise ValueError(
            f"{_TOLERANCES.name}: {len(entries)} of {count} tolerances can be read"
        )
    return _table(
        ("backend", "dtype", "tolerance", "measured"),
        (
            (f"`{backend}`", dtype, tolerance, note)
            for backend, dtype, tolerance, note in entries
        ),
    )


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (header, ("---",) * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
