"""Who is measured: rnnop and its peers, one file for each, imported only where it is installed.

MXNet is not among them: its last version does not run with NumPy 2, which rnnop needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Protocol, cast

import numpy.typing as npt

from ..cases import Inputs


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to do the work of a case.

    Attributes
    ----------
    name : str
        Of the peer, and of the way if it has several.
    call : callable
        Does the work and waits for it. The arrays are where the peer wants them before.
    outputs : callable
        Turns what `call` returns into arrays: 'y' (T, N, D*H), and of training the gradients under
        their names in rnnop: 'x', 'w_ih[0]' and so on. Of a stream: the last state, 'h' (1, 1, H).
    """

    name: str
    call: Callable[[], Any]
    outputs: Callable[[Any], Mapping[str, npt.NDArray[Any]]]


class Module(Protocol):
    """What the file of a peer must offer."""

    def contenders(self, inputs: Inputs, threads: int) -> list[Contender]:
        """Return the ways in which the peer can do the work of a case: none if it cannot.

        All that can be done once is done here: weights laid out, models compiled.
        """


@dataclass(frozen=True)
class Peer:
    """An entry of the table.

    Attributes
    ----------
    name : str
        As it calls itself.
    file : str
        The module of this package.
    packages : tuple of str
        What must be installed.
    extra : str
        The extra of rnnop that installs it.
    """

    name: str
    file: str
    packages: tuple[str, ...]
    extra: str

    @property
    def installed(self) -> bool:
        """Whether all its packages are there."""
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each of its packages."""
        return {package: version(package) for package in self.packages}

    def load(self) -> Module:
        """Import the file of the peer."""
        return cast(Module, importlib.import_module(f"{__name__}.{self.file}"))


PEERS = (
    Peer("PyTorch", "pytorch", ("torch",), "torch"),
    Peer("ONNX Runtime", "onnxruntime", ("onnx", "onnxruntime"), "onnx"),
    Peer("JAX", "jax", ("jax",), "jax"),
)

OURS = "rnnop"


def is_ours(name: str) -> bool:
    """Return whether a contender is rnnop, in one of its ways."""
    return name.startswith(OURS)
