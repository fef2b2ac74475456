"""Every environment variable that rnnop reads, in one table.

A variable is read at each call, so a change takes effect at once. A value outside its choices is
refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import SpecError

_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True)
class Flag:
    """One environment variable: its default, the values it takes, and what it does.

    `choices` is None for a whole number, and empty for any text, such as a path.
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
            ("auto", "cpu", "cudnn", "reference"),
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
            ("auto", "avx512bf16", "avx512", "avx2", "neonbf16", "neon", "generic"),
            "the instruction set of the CPU engine; auto for the best that the machine has",
        ),
        Flag(
            "RNNOP_CUDNN_PATH",
            "search",
            (),
            "the file libcudnn.so.9 or libcudnn.so.8, or its folder; search for the usual places",
        ),
        Flag(
            "RNNOP_ALLOW_TENSOR_CORE",
            "1",
            tuple(_BOOLEANS),
            "tensor cores for float16 and bfloat16 data",
        ),
        Flag(
            "RNNOP_TENSOR_OP_ALLOW_CONVERSION",
            "0",
            tuple(_BOOLEANS),
            "with RNNOP_ALLOW_TENSOR_CORE: cuDNN may round float32 and float64 data down for "
            "tensor cores, and the CPU engine float32 data to bfloat16 for its products",
        ),
        Flag(
            "RNNOP_ALLOW_TF32",
            "0",
            tuple(_BOOLEANS),
            "cuDNN may compute products of float32 data in TF32",
        ),
        Flag(
            "RNNOP_CUDNN_ALGO",
            "auto",
            (
                "auto",
                "standard",
                "persist_static",
                "persist_dynamic",
                "persist_static_small_h",
                "benchmark",
            ),
            "cuDNN's algorithm; benchmark times those that can run a problem, once, and keeps "
            "the fastest",
        ),
        Flag(
            "RNNOP_CUDNN_LAYOUT",
            "auto",
            ("auto", "padded", "packed"),
            "how cuDNN is given a ragged batch; auto is packed",
        ),
        Flag(
            "RNNOP_PLAN_CACHE",
            "64",
            None,
            "plans, each with its cuDNN descriptors, kept for every thread and device",
        ),
        Flag(
            "RNNOP_CUDA_GRAPHS",
            "1",
            tuple(_BOOLEANS),
            "the RSSM on a GPU captures its work in CUDA graphs",
        ),
        Flag(
            "RNNOP_CHECK",
            "0",
            tuple(_BOOLEANS),
            "fill fresh device memory with NaN and wait after each cuDNN call, to find bugs",
        ),
    )
}


# Variables of others, which say where their libraries are.
FOREIGN = ("CONDA_PREFIX", "CUDNN_PATH", "CUDNN_HOME", "CUDA_HOME", "CUDA_PATH")


def foreign(name: str) -> str | None:
    """Return the value of a variable of `FOREIGN`; None when it is unset or empty."""
    return os.environ.get(FOREIGN[FOREIGN.index(name)]) or None


def read(name: str) -> str:
    """Return the value of the variable `name`, or its default when it is unset.

    It is in lower case, unless any text will do.

    Raises
    ------
    SpecError
        The variable holds a value outside its choices.
    """
    flag = FLAGS[name]
    if _ENVIRONMENT.get(_KEYS[name]) is None:
        return flag.default
    raw = os.environ[name]
    if flag.choices == ():
        return raw.strip() or flag.default
    value = raw.strip().lower()
    right = value.isdecimal() if flag.choices is None else value in flag.choices
    if not right:
        choices = "a whole number" if flag.choices is None else f"one of {', '.join(flag.choices)}"
        raise SpecError(
            f"the environment variable {name} is {raw!r}; expected {choices}",
            f"Unset {name} for its default, {flag.default}",
        )
    return value


def raw(names: Iterable[str]) -> tuple[str | None, ...]:
    """Return variables as they are, unchecked."""
    return tuple(map(os.environ.get, names))


# os.environ encodes and decodes at each look-up: ten times the work of the look-up itself.
_ENVIRONMENT: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_KEYS = {name: getattr(os.environ, "encodekey", str)(name) for name in FLAGS}


def state(names: Iterable[str]) -> tuple[object, ...]:
    """Return what tells whether variables have changed; only to be compared."""
    return tuple([_ENVIRONMENT.get(_KEYS[name]) for name in names])


def integer(name: str) -> int:
    """Return the value of the numeric variable `name`."""
    return int(read(name))


def enabled(name: str) -> bool:
    """Return whether the on/off variable `name` is on."""
    return _BOOLEANS[read(name)]


@contextmanager
def settings(values: Mapping[str, str]) -> Iterator[None]:
    """Give variables other values for a while: for whoever compares settings, or starts others."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
