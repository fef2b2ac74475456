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

from ..cases import AnyInputs
from ..rssm import RSSMInputs


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
        Of an RSSM: its outputs by their names, and gradients with a d before theirs.
    """

    name: str
    call: Callable[[], Any]
    outputs: Callable[[Any], Mapping[str, npt.NDArray[Any]]]


class Module(Protocol):
    """What the file of a peer must offer."""

    def contenders(self, inputs: Any, threads: int) -> list[Contender]:
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
    file : str or None
        The module of this package that runs a `Case`, if any.
    rssm : str or None
        Likewise an `RSSMCase`.
    packages : tuple of str
        What must be installed.
    install : str
        What pip is told to install.
    """

    name: str
    file: str | None
    rssm: str | None
    packages: tuple[str, ...]
    install: str

    @property
    def installed(self) -> bool:
        """Whether all its packages are there."""
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each of its packages."""
        return {package: version(package) for package in self.packages}

    def contenders(self, inputs: AnyInputs, threads: int) -> list[Contender]:
        """Return what the file for such a case returns; nothing without one."""
        file = self.rssm if isinstance(inputs, RSSMInputs) else self.file
        if file is None:
            return []
        module = cast(Module, importlib.import_module(f"{__name__}.{file}"))
        return module.contenders(inputs, threads)


PEERS = (
    Peer("PyTorch", "pytorch", None, ("torch",), "rnnop[torch]"),
    Peer("ONNX Runtime", "onnxruntime", None, ("onnx", "onnxruntime"), "rnnop[onnx]"),
    Peer("JAX", "jax", "rssm_jax", ("jax",), "rnnop[jax]"),
    Peer("TorchRL", None, "rssm_torchrl", ("torch", "torchrl"), "torchrl"),
)

OURS = "rnnop"
OURSELVES = Peer(OURS, "ours", "rssm_ours", (), "rnnop")


def is_ours(name: str) -> bool:
    """Return whether a contender is rnnop, in one of its ways."""
    return name.startswith(OURS)
