"""RNNWeights as a pytree, so that JAX can jit, map and differentiate functions of them."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import jax

from ..weights import FIELDS, RNNWeights

_KEYS = [jax.tree_util.GetAttrKey(name) for name in FIELDS]
_fields = attrgetter(*FIELDS)


def _flatten(weights: RNNWeights) -> tuple[tuple[Any, ...], bool]:
    return _fields(weights), weights.bidirectional


def _flatten_with_keys(weights: RNNWeights) -> tuple[list[tuple[Any, Any]], bool]:
    return list(zip(_KEYS, _fields(weights), strict=True)), weights.bidirectional


def _unflatten(bidirectional: bool, fields: Any) -> RNNWeights:
    """Put weights together without a check: JAX also does so with what is no array."""
    weights = object.__new__(RNNWeights)
    vars(weights).update(zip(FIELDS, fields, strict=True), bidirectional=bidirectional)
    return weights


jax.tree_util.register_pytree_with_keys(RNNWeights, _flatten_with_keys, _unflatten, _flatten)
