"""What rnnop says beside its results: through the logger 'rnnop', at the level of RNNOP_LOG."""

from __future__ import annotations

import functools
import logging

from . import flags

_LOGGER = logging.getLogger("rnnop")


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning, the first time that it is given in this process."""
    _LOGGER.setLevel(flags.read("RNNOP_LOG").upper())
    _LOGGER.warning(text)


def info(text: str) -> None:
    """Log what a curious user may want to know."""
    _LOGGER.setLevel(flags.read("RNNOP_LOG").upper())
    _LOGGER.info(text)
