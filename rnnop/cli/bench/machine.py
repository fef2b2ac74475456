"""The machine: what it is, and how much arithmetic it can do."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from ...cpu import engine

_PRODUCT = 1536  # rows and columns of the matrices that are multiplied
_PRODUCTS = 8


def describe() -> dict[str, Any]:
    """Return what a reader of the results should know about the machine."""
    return {
        "processor": processor(),
        "cores": engine.available_cores(),
        "memory_gib": _memory_gib(),
        "instruction_sets": list(engine.available()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def slug() -> str:
    """Return a name for a folder: the processor, its cores, its best instruction set."""
    best = next(iter(engine.available()), "none")
    text = f"{processor()} {engine.available_cores()} cores {best}".lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def processor() -> str:
    """Return the name of the processor, as the system has it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def busy_cores(seconds: float = 0.5) -> float | None:
    """Return how many cores others keep busy while this process sleeps; None if not known."""
    before = _processor_times()
    time.sleep(seconds)
    after = _processor_times()
    if before is None or after is None:
        return None
    idle, total = (late - early for early, late in zip(before, after, strict=True))
    return (os.cpu_count() or 1) * (1.0 - idle / max(total, 1))


def _processor_times() -> tuple[int, int] | None:
    """Return how long all cores were idle since the start of the system, and how long there were.

    In ticks, from Linux's /proc/stat: cpu user nice system idle iowait irq softirq steal ...
    """
    file = Path("/proc/stat")
    if not file.exists():
        return None
    ticks = [int(each) for each in file.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def blas() -> list[str]:
    """Return name, version, kernels and threads of every BLAS that is loaded."""
    from threadpoolctl import threadpool_info

    return [
        f"{each['internal_api']} {each['version']}, {each.get('architecture', 'unknown')} kernels, "
        f"{each['num_threads']} thread(s)"
        for each in threadpool_info()
        if each["user_api"] == "blas"
    ]


def peak() -> float:
    """Return the most float32 FLOP/s that a large matrix product reaches in this process.

    The fastest of a few products through `numpy.matmul`: the measured peak of multiply-adds that
    the results are held against. It is near what the processor can do, and never above it.
    """
    a, b = np.random.default_rng(0).standard_normal((2, _PRODUCT, _PRODUCT), np.float32)
    fastest = float("inf")
    for _ in range(_PRODUCTS):
        begin = time.perf_counter()
        a @ b
        fastest = min(fastest, time.perf_counter() - begin)
    return 2.0 * _PRODUCT**3 / fastest


def _memory_gib() -> float | None:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return round(size / 2**30, 1)
