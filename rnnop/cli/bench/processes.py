"""Fresh processes with a fixed number of threads.

Some pools of threads take their size once, when a process first uses them, and memory can only be
measured in a process that has not used much of it yet. So the measuring is done in processes that
begin with the right environment.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

from ...errors import RnnopError
from ...flags import settings

# Everyone who has threads here: rnnop, OpenMP (PyTorch), the BLAS of NumPy, and JAX.
_THREADS = (
    "RNNOP_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "PJRT_NPROC",
    "NPROC",
)


def run_in_fresh_process(
    threads: int, function: Callable[..., Iterator[Any]], *arguments: Any
) -> Iterator[Any]:
    """Yield what `function(*arguments)` yields, in a new process with that many threads.

    Raises
    ------
    RnnopError
        The process has ended with an error; its traceback is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    with environment(threads):
        process.start()
    sender.close()  # here, so that the end of the process is the end of the pipe
    try:
        while True:
            try:
                item = receiver.recv()
            except EOFError:
                break
            yield item
        process.join()
        if process.exitcode:
            raise RnnopError(
                f"the process that runs {function.__name__} has ended with {process.exitcode}"
            )
    finally:
        process.terminate()
        process.join()


def environment(threads: int) -> AbstractContextManager[None]:
    """Have the environment of a process of that many threads within the block."""
    return settings({**dict.fromkeys(_THREADS, str(threads)), "JAX_PLATFORMS": "cpu"})


def _send(sender: Connection, function: Callable[..., Iterator[Any]], arguments: Any) -> None:
    for item in function(*arguments):
        sender.send(item)
    sender.close()
