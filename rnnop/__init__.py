"""Recurrent networks on plain arrays: one call, any mask, gradients for all of it."""

from . import errors, layouts, rssm
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
