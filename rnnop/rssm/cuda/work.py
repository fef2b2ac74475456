"""What a device is given to do: products of matrices, launches of kernels, and lists of them."""

from __future__ import annotations

from ctypes import addressof, byref, c_double, c_longlong, c_void_p
from dataclasses import dataclass, replace
from typing import Any

from ... import log
from ...errors import LibraryError
from .compiler import THREADS
from .device import Device, Owner, Reals

MOST_BLOCKS = 65_535
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


@dataclass(frozen=True)
class Matrix:
    """A matrix in device memory, row-major.

    Attributes
    ----------
    pointer : int
        Of the first element.
    rows, columns : int
        Of this matrix, `turned` or not.
    stride : int
        From one row in memory to the next, in elements.
    size : int
        Bytes of an element.
    turned : bool
        Whether it is the transpose of what lies in memory.
    blocks, gap : int
        How many matrices there are, and how many elements lie between their beginnings.
    """

    pointer: int
    rows: int
    columns: int
    stride: int
    size: int
    turned: bool = False
    blocks: int = 1
    gap: int = 0

    @property
    def T(self) -> Matrix:
        """The transpose."""
        return replace(self, rows=self.columns, columns=self.rows, turned=not self.turned)

    def cut(self, begin: int, end: int) -> Matrix:
        """Return some of the columns."""
        return replace(self, pointer=self.pointer + begin * self.size, columns=end - begin)

    def between(self, begin: int, end: int) -> Matrix:
        """Return some of the rows."""
        start = self.pointer + begin * self.stride * self.size
        return replace(self, pointer=start, rows=end - begin)

    def blocked(self, count: int) -> Matrix:
        """Return the columns as so many matrices side by side."""
        each = self.columns // count
        return replace(self, columns=each, blocks=count, gap=each)


Pointer = Matrix | int | None
"""What a kernel reads or writes: a matrix or an address, or nothing."""


class Product:
    """C = A B, or C = C + A B with `add`; of each block where there are several."""

    def __init__(self, dtype: str, c: Matrix, a: Matrix, b: Matrix, add: bool) -> None:
        real, letter = Reals[dtype], "D" if dtype == "float64" else "S"
        # cuBLAS goes by columns: what it takes our matrices for are their transposes.
        one, beta = real(1), real(1 if add else 0)
        ops, sizes = (int(b.turned), int(a.turned)), (c.columns, c.rows, a.columns)
        alone = c.blocks == 1
        self.name = f"cublas{letter}gemm{'_v2' if alone else 'StridedBatched'}"
        matrices = [
            (each.pointer, each.stride, *(() if alone else (each.gap,))) for each in (b, a, c)
        ]
        self.arguments: tuple[Any, ...] = (
            *(*ops, *sizes, byref(one), *matrices[0], *matrices[1], byref(beta), *matrices[2]),
            *(() if alone else (c.blocks,)),
        )

    def run(self, device: Device, stream: int) -> None:
        """Begin it on the stream that cuBLAS was set up for."""
        machine = device.machine
        getattr(machine.cublas, self.name)(machine.blas.pointer, *self.arguments)


class Launch:
    """A kernel: pointers (None for null) and whole numbers as they are, floats as doubles."""

    def __init__(
        self, function: int, count: int, arguments: tuple[int | float | None, ...]
    ) -> None:
        self._values = [
            c_double(each) if isinstance(each, float) else c_longlong(each or 0)
            for each in arguments
        ]
        self._pointers = (c_void_p * len(arguments))(*map(addressof, self._values))
        self.function, self.blocks = function, max(1, min(count, MOST_BLOCKS))

    def run(self, device: Device, stream: int) -> None:
        """Begin it on a stream."""
        device.driver.cuLaunchKernel(
            *(self.function, self.blocks, 1, 1, THREADS, 1, 1),
            *(0, stream, self._pointers, None),
        )


class Section:
    """Work in its order: as it is the first time, from the second on as a CUDA graph."""

    def __init__(self) -> None:
        self.work: list[Product | Launch] = []
        self.graph: Owner | None = None
        self.warm = self.refused = False

    def run(self, device: Device, workspace: int, tf32: bool, capture: bool) -> None:
        """Begin all of it on the caller's stream."""
        if capture and self.warm and self.graph is None and not self.refused:
            self._capture(device, workspace, tf32)
        if capture and self.graph is not None:
            device.driver.cuGraphLaunch(self.graph.pointer, device.stream)
        else:
            self._plain(device, device.stream, workspace, tf32)
        self.warm = True

    def _plain(self, device: Device, stream: int, workspace: int, tf32: bool) -> None:
        device.set_up(stream, workspace, tf32)
        for each in self.work:
            each.run(device, stream)

    def _capture(self, device: Device, workspace: int, tf32: bool) -> None:
        """Make the graph, or find out that there can be none."""
        driver, side = device.driver, device.machine.side.pointer
        graph, made = c_void_p(), c_void_p()
        try:
            driver.cuStreamBeginCapture_v2(side, _THREAD_LOCAL)
            try:
                self._plain(device, side, workspace, tf32)
            finally:
                driver.raw["cuStreamEndCapture"](side, byref(graph))
            driver.cuGraphInstantiateWithFlags(byref(made), graph, 0)
        except LibraryError as error:
            self.refused = True
            log.info(f"The RSSM runs without a CUDA graph: {error}")
            return
        finally:
            if graph.value:
                driver.raw["cuGraphDestroy"](graph)
        self.graph = Owner(made.value or 0, driver.raw["cuGraphExecDestroy"])
