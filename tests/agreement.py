"""A backend against the reference in float64: every output and every gradient of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cases import Array, Call, data_of, gradient_of, wide_cotangents, widened
from tolerances import assert_close

import rnnop

Results = dict[str, Array]
"""Outputs by their names, and gradients as dx, dw_ih, dh0 and so on."""


@dataclass(frozen=True)
class Family:
    """How NumPy arrays become those of a family, lying in memory as they do, and come back."""

    there: Callable[[Array], Any] = lambda array: array
    back: Callable[[Any], Array] = lambda array: array
    rnn_vjp: Callable[..., Any] = rnnop.rnn_vjp

    def call(self, call: Call) -> Call:
        """Return a call with the arrays of the family. How the steps lie stays on the host."""
        leaves = call.leaves().items()
        moved = call.with_leaves({name: [*map(self.there, each)] for name, each in leaves})
        masks = call.options.get("dropout_masks")
        if masks is not None:
            options = call.options | {"dropout_masks": [*map(self.there, masks)]}
            moved = replace(moved, options=options)
        return moved

    def cotangents(self, cotangents: dict[str, Any]) -> dict[str, Any]:
        """Return the cotangents as arrays of the family."""
        return {name: self.there(array) for name, array in cotangents.items()}

    def outputs(self, out: Any) -> Results:
        """Return every array of an RNNOutput, as NumPy's."""
        named = {name: data_of(getattr(out, name)) for name in out._fields}
        return {name: self.back(each) for name, each in named.items() if each is not None}

    def gradients(self, grads: Any) -> Results:
        """Return every gradient of an RNNGrads, as NumPy's.

        Those of one field of the weights are one vector: where the sum over all steps of a single
        small array nearly cancels, its own size says nothing about its accuracy.
        """
        data = {name: data_of(getattr(grads, name)) for name in ("x", "h0", "c0")}
        here = {name: None if each is None else self.back(each) for name, each in data.items()}
        grads = rnnop.RNNGrads(weights=grads.weights.map(self.back), **here)
        names = {name.partition("[")[0] for name, _ in grads.weights.named()}
        names |= {name for name, each in here.items() if each is not None}
        return {f"d{name}": gradient_of(grads, name) for name in sorted(names)}

    def results(self, call: Call, cotangents: dict[str, Any], backend: str) -> Results:
        """Return all that comes of a call and of its vjp."""
        mine = self.call(call)
        out, vjp = self.rnn_vjp(
            mine.x, mine.weights, mine.h0, mine.c0, **mine.options | {"backend": backend}
        )
        grads = vjp(**self.cotangents(cotangents))
        assert shapes(grads.weights) == shapes(mine.weights)
        return self.outputs(out) | self.gradients(grads)


def shapes(weights: rnnop.RNNWeights) -> list[tuple[str, tuple[int, ...]]]:
    """Return every array's name and shape."""
    return [(name, tuple(array.shape)) for name, array in weights.named()]


NUMPY = Family()
outputs_of, gradients_of, results = NUMPY.outputs, NUMPY.gradients, NUMPY.results


def reference(call: Call, cotangents: dict[str, Any]) -> Results:
    """Return what the reference makes of the same numbers in float64."""
    return results(widened(call), wide_cotangents(cotangents), "reference")


def assert_same(got: Results, wanted: Results, backend: str, dtype: str) -> None:
    """Fail unless all results are there, and equal within the tolerance of the backend."""
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert_close(name, got[name], array, backend, dtype)


def assert_right(
    call: Call,
    cotangents: dict[str, Any],
    backend: str,
    dtype: str,
    family: Family = NUMPY,
    tolerance: str | None = None,
) -> None:
    """Fail unless every output and gradient of a backend is the reference's.

    `tolerance` names the row of the table, that of the backend by default.
    """
    got = family.results(call, cotangents, backend)
    assert_same(got, reference(call, cotangents), tolerance or backend, dtype)
