"""What every test starts from: no RNNOP_* variable, and hypothesis without chance or clock."""

from __future__ import annotations

import os

import pytest

from rnnop import setups

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU need not have it: see tools/gpu_check.sh
    pass
else:
    settings.register_profile("rnnop", deadline=None, derandomize=True, max_examples=40)
    settings.load_profile("rnnop")
os.environ.setdefault("KERAS_BACKEND", "torch")


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the variables of whoever runs the tests out of the environment."""
    for name in [name for name in os.environ if name.startswith("RNNOP_")]:
        monkeypatch.delenv(name)


@pytest.fixture(params=["auto", "reference"])
def each_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_flags: None
) -> None:
    """Run a test with the fastest backend that there is here, and with the reference."""
    monkeypatch.setenv("RNNOP_BACKEND", request.param)


@pytest.fixture(autouse=True)
def no_setups() -> None:
    """Let no test find what another one, with another backend perhaps, has set up."""
    setups.forget()
