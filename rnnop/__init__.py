"""Recurrent networks on plain arrays: one call, any mask, gradients for all of it."""

from typing import TYPE_CHECKING, Any

from . import errors
from ._version import __version__
from .api import VJP, Explanation, RNNOutput, explain, prepack, rnn, rnn_vjp
from .errors import (
    BackendUnavailable,
    DTypeError,
    RnnopError,
    ShapeError,
    SpecError,
    UnsupportedError,
)
from .initialize import init_weights
from .packing import PackedSequence, pack, unpack
from .spec import Activation, RNNSpec
from .weights import PrepackedWeights, RNNGrads, RNNWeights

if TYPE_CHECKING:
    from . import layouts, rssm

__all__ = [
    "VJP",
    "Activation",
    "BackendUnavailable",
    "DTypeError",
    "Explanation",
    "PackedSequence",
    "PrepackedWeights",
    "RNNGrads",
    "RNNOutput",
    "RNNSpec",
    "RNNWeights",
    "RnnopError",
    "ShapeError",
    "SpecError",
    "UnsupportedError",
    "__version__",
    "errors",
    "explain",
    "init_weights",
    "layouts",
    "pack",
    "prepack",
    "rnn",
    "rnn_vjp",
    "rssm",
    "unpack",
]


def __getattr__(name: str) -> Any:
    """Import what most programs never ask for when it is first asked for."""
    if name in ("layouts", "rssm"):
        from importlib import import_module

        return import_module(f"rnnop.{name}")
    raise AttributeError(f"module 'rnnop' has no attribute {name!r}")
