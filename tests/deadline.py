"""Ends a run of pytest in good time, with its report: `-p deadline --deadline=SECONDS`.

Whoever kills a run that takes too long kills its report too.
"""

from __future__ import annotations

import time

import pytest

_START = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deadline", type=float, default=None, help="seconds for the whole run")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_START] = time.monotonic()


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Once it is too late, run neither this test nor another."""
    seconds = item.config.getoption("--deadline")
    if seconds is None or time.monotonic() - item.config.stash[_START] < seconds:
        return None
    item.session.shouldstop = f"out of time after {seconds:g} s"
    return True
