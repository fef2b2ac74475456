"""What the primitives ask of a call: its operands, what runs it, and which axes are rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from ..arrays import Array


class Call(Protocol):
    """All that is static of a call; it has a hash."""

    @property
    def function(self) -> str:
        """The public function that was called."""

    @property
    def num_operands(self) -> int:
        """How many arrays it takes; those that have a gradient come first."""

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The names of the cotangents, in the order of the results.

        Those of results that there are not are never given.
        """

    def shapes(self, avals: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the results, after all checks that need no values.

        Raises
        ------
        RnnopError
            As from the public function.
        """

    def quiet(self) -> Self:
        """Return the call without what was said when it was checked."""

    def run(self, leaves: Sequence[Array]) -> list[Array]:
        """Return the results, of operands of the family of a backend."""

    def run_vjp(self, leaves: Sequence[Array]) -> tuple[list[Array], Any]:
        """Return the results and what `pull` needs."""

    def kept(self, vjp: Any) -> Any:
        """Return what it holds in memory until the backward."""

    def pull(self, vjp: Any, cotangents: Mapping[str, Array]) -> list[Array]:
        """Return the gradients of the first operands, as many as have one."""

    # vmap

    @property
    def folds(self) -> bool:
        """Whether what is mapped may become rows of one call."""

    def rows(self) -> list[int]:
        """Return which axis of each operand is that of the rows, -1 where all rows share it."""

    def result_rows(self) -> list[int]:
        """Return which axis of each result is that of the rows."""
