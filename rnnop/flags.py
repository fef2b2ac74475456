"""Every environment variable that rnnop reads, in one table.

A variable is read at each call, so a change takes effect at once. A value outside its choices is
refused by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import SpecError

_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True)
class Flag:
    """One environment variable: its default, the values it takes, and what it does.

    `choices` is None for a whole number.
    """

    name: str
    default: str
    choices: tuple[str, ...] | None
    meaning: str


FLAGS: dict[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag(
            "RNNOP_BACKEND",
            "auto",
            ("auto", "cpu", "reference"),
            "the backend of every call that does not name one",
        ),
        Flag(
            "RNNOP_LOG",
            "warning",
            ("debug", "info", "warning", "error", "critical"),
            "the level of the logger 'rnnop'",
        ),
        Flag(
            "RNNOP_REFERENCE_FLOAT64",
            "0",
            tuple(_BOOLEANS),
            "the reference computes NumPy float32 calls in float64 inside",
        ),
        Flag(
            "RNNOP_NUM_THREADS",
            "0",
            None,
            "threads of the CPU engine; 0 for the cores that the process may use",
        ),
        Flag(
            "RNNOP_CPU_ISA",
            "auto",
            ("auto", "avx512", "avx2", "neon", "generic"),
            "the instruction set of the CPU engine; auto for the best that the machine has",
        ),
    )
}


def read(name: str) -> str:
    """Return the value of the variable `name` in lower case, or its default when it is unset.

    Raises
    ------
    SpecError
        The variable holds a value outside its choices.
    """
    flag = FLAGS[name]
    raw = os.environ.get(name)
    if raw is None:
        return flag.default
    value = raw.strip().lower()
    right = value.isdecimal() if flag.choices is None else value in flag.choices
    if not right:
        choices = "a whole number" if flag.choices is None else f"one of {', '.join(flag.choices)}"
        raise SpecError(
            f"the environment variable {name} is {raw!r}; expected {choices}",
            f"Unset {name} for its default, {flag.default}",
        )
    return value


def integer(name: str) -> int:
    """Return the value of the numeric variable `name`."""
    return int(read(name))


def enabled(name: str) -> bool:
    """Return whether the on/off variable `name` is on."""
    return _BOOLEANS[read(name)]
