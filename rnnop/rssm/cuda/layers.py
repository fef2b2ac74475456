"""Layers as work for a device: memory for all their rows, forward and backward, sums for weights.

A *span* is a step, or None for all steps at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .work import Matrix

if TYPE_CHECKING:
    from .model import Model

NORMS = {"none": 0, "layer": 1, "rms": 2}
ACTIVATIONS = {"identity": 0, "elu": 1, "relu": 2, "silu": 3}  # in the order of kernels.cu


class Rows:
    """Memory for the rows of all steps, or of one that each step uses again; or null pointers."""

    def __init__(self, whole: Matrix, batch_size: int, num_steps: int) -> None:
        self.all, self.batch_size, self.num_steps = whole, batch_size, num_steps

    def of(self, span: int | None) -> Matrix:
        """Return the rows of a span."""
        return self.all if span is None else self.between(span, span + 1)

    def between(self, begin: int, end: int) -> Matrix:
        """Return the rows of some steps."""
        if self.num_steps == 1:
            begin, end = 0, 1
        found = self.all.between(begin * self.batch_size, end * self.batch_size)
        return found if self.all.pointer else replace(found, pointer=0)

    def cut(self, begin: int, end: int) -> Rows:
        """Return some of the columns."""
        return Rows(self.all.cut(begin, end), self.batch_size, self.num_steps)


class Activated:
    """y = activation(norm(pre + bias)); `d` will be the gradient of pre, and of its bias."""

    def __init__(
        self, model: Model, name: str, bias: int | None, norm: str, kind: str, pre: Rows, y: Rows
    ) -> None:
        self.model, self.name = model, name
        self.pre, self.y, self.d = pre, y, model.kept_rows(pre.all.columns)
        self.vectors = bias, model.vector(f"{name}scale"), model.vector(f"{name}shift")
        self.kinds = (NORMS[norm], ACTIVATIONS[kind], model.spec.norm_eps)
        fields = () if norm == "none" else ("scale", "shift")
        self.of_norm = {field: model.kept_rows(pre.all.columns) for field in fields}

    def forward(self, span: int | None) -> Matrix:
        """Fill in y."""
        pre, y = self.pre.of(span), self.y.of(span)
        self.model.launch(
            *("activate", pre.rows, pre.pointer, *self.vectors, y.pointer, y.stride),
            *(pre.rows, pre.columns, *self.kinds),
        )
        return y

    def backward(self, span: int | None, dy: Matrix) -> Matrix:
        """Fill in d."""
        pre, d = self.pre.of(span), self.d.of(span)
        more: list[int | None] = [each.of(span).pointer for each in self.of_norm.values()]
        self.model.launch(
            *("activate_backward", pre.rows, pre.pointer, *self.vectors, dy.pointer, dy.stride),
            *(d.pointer, *(more or [None, None]), pre.rows, pre.columns, *self.kinds),
        )
        return d

    def sums(self) -> None:
        """Fill in the gradients of the norm."""
        for field, rows in self.of_norm.items():
            self.model.column_sums(f"{self.name}{field}", rows.all)


class Chain:
    """Layers one after another; with `last`, the last one has neither norm nor activation.

    The first may read `known` columns more: `part` makes their product, to which `forward` adds.

    Attributes
    ----------
    out : Rows
        Of the last layer: y, or what it is before its bias.
    d_out : Rows
        With `last`: the gradient of that.
    bias : int or None
        With `last`: its bias.
    """

    def __init__(
        self,
        model: Model,
        field: str,
        numbers: range,
        *,
        known: int = 0,
        last: bool = False,
        at_once: bool = False,
        y: Rows | None = None,
    ) -> None:
        self.model, self.names = model, [f"{field}[{k}]." for k in numbers]
        spec, hidden = model.spec, len(numbers) - last
        every = model.keep or at_once
        weights = [model.weight(f"{name}w") for name in self.names]
        self.split, width = weights[0].columns - known, weights[0].columns
        self.known = weights[0].cut(self.split, width)
        self.matrices = [weights[0].cut(0, self.split), *weights[1:]]
        self.pre = [
            model.rows(each.rows, every or (known > 0 and k == 0 and model.hoists))
            for k, each in enumerate(weights)
        ]
        self.y = [model.rows(each.rows, every) for each in weights[:hidden]]
        if y is not None:
            self.y[-1] = y
        self.activated = [
            Activated(
                *(model, self.names[k], model.vector(f"{self.names[k]}b"), spec.norm_of(field)),
                *(spec.activation, self.pre[k], self.y[k]),
            )
            for k in range(hidden)
        ]
        self.d = [each.d for each in self.activated]
        self.out, self.bias = self.y[-1] if not last else self.pre[-1], None
        if last:
            self.d_out = model.kept_rows(weights[-1].rows)
            self.d.append(self.d_out)
            self.bias = model.vector(f"{self.names[-1]}b")
        self.dy = [model.scratch(each.rows, at_once) for each in weights]

    def part(self, span: int | None, known: Matrix) -> None:
        """Begin the first layer with the product of the known columns."""
        self.model.product(self.pre[0].of(span), known, self.known.T)

    def forward(self, span: int | None, x: Matrix, add: bool = False) -> Matrix:
        """Return the rows of `out`, filled in from x, and from the part with `add`."""
        for k, matrix in enumerate(self.matrices):
            self.model.product(self.pre[k].of(span), x, matrix.T, add=add and k == 0)
            x = self.pre[k].of(span)
            if k < len(self.activated):
                x = self.activated[k].forward(span)
        return x

    def backward(self, span: int | None, dy: Matrix | None, to: Matrix, add: bool = False) -> None:
        """Fill in, or add to, the gradient of x, from that of y, or from d_out with `last`."""
        for k in reversed(range(len(self.matrices))):
            d = self.d[k].of(span)
            if k < len(self.activated) and dy is not None:
                self.activated[k].backward(span, dy)
            dy = self.dy[k - 1].of(span) if k else to
            self.model.product(dy, d, self.matrices[k], add=add and k == 0)

    def part_backward(self, span: int | None, to: Matrix) -> None:
        """Fill in the gradient of what the known columns read."""
        self.model.product(to, self.d[0].of(span), self.known)

    def sums(self, x: Matrix, known: Matrix | None = None) -> None:
        """Fill in the gradients of the weights, from all that the first layer has read."""
        for k, name in enumerate(self.names):
            gradient, d = self.model.gradient(f"{name}w"), self.d[k].all
            read = self.y[k - 1].all if k else x
            columns = self.matrices[k].columns
            self.model.product(gradient.cut(0, columns), d.T, read)
            if k == 0 and known is not None:
                self.model.product(gradient.cut(columns, gradient.columns), d.T, known)
            self.model.column_sums(f"{name}b", d)
        for each in self.activated:
            each.sums()
