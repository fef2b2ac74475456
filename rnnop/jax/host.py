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

from .. import api
from ..api import VJP, RNNOutput
from ..arrays import Array
from ..errors import RnnopError
from ..packing import data_of
from .call import Call

COTANGENTS = ("dy", "dh_n", "dc_n", "dc")
"""In the order of the results; those of results that there are not are never given."""

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
        self._vjps: OrderedDict[int, tuple[VJP, Any, int]] = OrderedDict()
        # Begun at random: a token from another process is not found.
        self._numbers = itertools.count(secrets.randbits(63) | 1)

    def put(self, vjp: VJP, key: Any) -> Array:
        """Keep `vjp`, and return its token. `key` tells the call and its shapes."""
        number, size = next(self._numbers) & (2**64 - 1), _bytes(vjp._result)
        with self._lock:
            self._vjps[number] = vjp, key, size
            self.bytes += size
            while self.bytes > self.most_bytes and len(self._vjps) > 1:
                self.bytes -= self._vjps.popitem(last=False)[1][2]
        return np.array([number], np.uint64).view(np.uint32)

    def take(self, token: Array, key: Any) -> VJP | None:
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
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(map(_bytes, value))
    if is_dataclass(value):
        return sum(_bytes(getattr(value, each.name)) for each in fields(value))
    return int(getattr(value, "nbytes", 0))


WAITING = Waiting()


def forward(call: Call, leaves: Sequence[Array], keep: bool) -> list[Array]:
    """Return the results of a call that are not None, and with `keep` a token."""
    if not keep:
        given, options = call.arguments(leaves)
        return _arrays(api.rnn.direct(*given, **options))  # type: ignore[attr-defined]
    output, vjp = _vjp(call, leaves)
    return [*_arrays(output), WAITING.put(vjp, _key(call, leaves))]


def _vjp(call: Call, leaves: Sequence[Array]) -> tuple[RNNOutput, VJP]:
    """Return what `rnnop.rnn_vjp` returns; the caller may never have heard of it."""
    given, options = call.arguments(leaves)
    found: tuple[RNNOutput, VJP]
    try:
        found = api.rnn_vjp.direct(*given, **options)  # type: ignore[attr-defined]
    except RnnopError as error:
        error.function = "rnn"
        raise
    return found


def _arrays(output: RNNOutput) -> list[Array]:
    return [data_of(each) for each in output if each is not None]


def backward(
    call: Call, leaves: Sequence[Array], token: Array, cotangents: dict[str, Array]
) -> list[Array]:
    """Return the gradients of the first operands, as many as have one."""
    vjp = WAITING.take(token, _key(call, leaves))
    if vjp is None:
        vjp = _vjp(call, leaves)[1]
    return call.gradients(vjp(**{"dy": None} | cotangents))


def _key(call: Call, leaves: Sequence[Array]) -> Any:
    return call, tuple(leaf.shape for leaf in leaves)
