"""RNNWeights and RSSMWeights as pytrees: JAX can jit, map and differentiate functions of them."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import jax

from ..rssm.weights import LAYERS, VECTORS, RSSMWeights
from ..weights import FIELDS, RNNWeights


def _register(kind: type, fields: tuple[str, ...], static: str) -> None:
    """Let `fields` of a class be its children, and one field what is static."""
    keys = [jax.tree_util.GetAttrKey(name) for name in fields]
    children = attrgetter(*fields)

    def flatten(weights: Any) -> tuple[tuple[Any, ...], Any]:
        return children(weights), getattr(weights, static)

    def flatten_with_keys(weights: Any) -> tuple[list[tuple[Any, Any]], Any]:
        return list(zip(keys, children(weights), strict=True)), getattr(weights, static)

    def unflatten(kept: Any, found: Any) -> Any:
        """Put weights together without a check: JAX also does so with what is no array."""
        weights: Any = object.__new__(kind)
        vars(weights).update(zip(fields, found, strict=True))
        vars(weights)[static] = kept
        return weights

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


_register(RNNWeights, FIELDS, "bidirectional")
_register(RSSMWeights, (*LAYERS, "gru", *VECTORS), "spec")
