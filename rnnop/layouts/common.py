"""What several layouts need."""

from __future__ import annotations

import dataclasses

from .. import arrays
from ..weights import RNNWeights


def both_biases_or_none(weights: RNNWeights) -> RNNWeights:
    """Return weights for an owner that knows no single bias: the other one is zeros."""
    given = weights.b_ih or weights.b_hh
    if given is None:
        return weights
    zeros_like = arrays.namespace(str(arrays.family(given[0]))).zeros_like
    zeros = tuple(zeros_like(bias) for bias in given)
    return dataclasses.replace(weights, b_ih=weights.b_ih or zeros, b_hh=weights.b_hh or zeros)
