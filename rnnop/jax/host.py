"""Where a call of JAX reaches the operator: arrays of a backend's own family in and out.

JAX gives buffers that are only there while a callback runs, and wants results in buffers of its
own. Nothing here may call into JAX's arrays: a callback that does can wait for itself.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import RnnopError
from .calls import Call

TOKEN = ((2,), np.dtype(np.uint32))
"""Shape and dtype of a token: 64 bits, which JAX has as one number in its x64 mode only."""


class Waiting:
    """The vjp of forwards whose backward may come, by token.

    A token travels through JAX beside the results. JAX may run a forward and never its backward,
    run it twice, or merge two that are equal, so this only ever saves work: a backward that does
    not find its token runs the forward again. The oldest are given up beyond `most_bytes`.
    """

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._lock = threading.Lock()
        self._vjps: OrderedDict[int, tuple[Any, Any, int]] = OrderedDict()
        # Begun at random: a token from another process is not found.
        self._numbers = itertools.count(secrets.randbits(63) | 1)

    def put(self, vjp: Any, key: Any, size: int) -> Array:
        """Keep `vjp`, of `size` bytes; return its token. `key` tells the call and its shapes."""
        number = next(self._numbers) & (2**64 - 1)
        with self._lock:
            self._vjps[number] = vjp, key, size
            self.bytes += size
            while self.bytes > self.most_bytes and len(self._vjps) > 1:
                self.bytes -= self._vjps.popitem(last=False)[1][2]
        return np.array([number], np.uint64).view(np.uint32)

    def take(self, token: Array, key: Any) -> Any:
        """Forget what was kept under `token`, and return it if it is of such a call."""
        number = int(np.ascontiguousarray(token).view(np.uint64)[0])
        with self._lock:
            vjp, its_key, size = self._vjps.pop(number, (None, None, 0))
            self.bytes -= size
        return vjp if its_key == key else None

    def __len__(self) -> int:
        return len(self._vjps)


def _bytes(value: Any) -> int:
    """Return about how much memory the arrays hold that can be reached from `value`."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, tuple | list):
        return sum(map(_bytes, value))
    if is_dataclass(value):
        return sum(_bytes(getattr(value, each.name)) for each in fields(value))
    return 0


WAITING = Waiting()


def forward(call: Call, leaves: Sequence[Array], keep: bool) -> list[Array]:
    """Return the results of a call, and with `keep` a token."""
    if not keep:
        return call.run(leaves)
    results, vjp = _vjp(call, leaves)
    return [*results, WAITING.put(vjp, _key(call, leaves), _bytes(call.kept(vjp)))]


def _vjp(call: Call, leaves: Sequence[Array]) -> tuple[list[Array], Any]:
    """Run a call with its vjp, of which the caller may never have heard."""
    try:
        return call.run_vjp(leaves)
    except RnnopError as error:
        error.function = call.function
        raise


def backward(
    call: Call, leaves: Sequence[Array], token: Array, cotangents: dict[str, Array]
) -> list[Array]:
    """Return the gradients of the first operands, as many as have one."""
    vjp = WAITING.take(token, _key(call, leaves))
    if vjp is None:
        vjp = _vjp(call, leaves)[1]
    return call.pull(vjp, cotangents)


def _key(call: Call, leaves: Sequence[Array]) -> Any:
    return call, tuple(leaf.shape for leaf in leaves)
