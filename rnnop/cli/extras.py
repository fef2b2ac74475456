"""Optional packages of a command: there, or one sentence that says how to get them."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *packages: str) -> None:
    """End the process with one sentence unless the packages of an extra are installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SystemExit(
            f"rnnop: {' and '.join(missing)} is missing; install it with: "
            f'pip install "rnnop[{extra}]"'
        )
