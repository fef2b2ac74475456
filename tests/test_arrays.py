"""What rnnop knows of arrays that none of the larger tests reaches."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from rnnop import arrays

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
xp = arrays.namespace("torch")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Take tensors for tensors on a GPU, and list the indices that are sent there."""
    found: list[Any] = []

    def from_host(xp: Any, host: Any, like: Any) -> Any:
        found.append(host)
        return torch.from_numpy(host)

    monkeypatch.setattr(arrays, "_on_gpu", lambda array: True)
    monkeypatch.setattr(arrays, "from_host", from_host)
    return found


def test_an_index_is_sent_to_a_device_once_while_it_lives(sent: list[Any]) -> None:
    rows = torch.arange(6.0).reshape(3, 2)
    index = np.array([2, -1, 0])
    before = len(arrays._ON_DEVICE)
    for _ in range(3):
        got = arrays.take_rows(xp, rows, index)
        assert got.tolist() == [[4.0, 5.0], [0.0, 0.0], [0.0, 1.0]]
    assert len(sent) == 1
    assert arrays.take_rows(xp, rows[1:], index - 1).tolist()[0] == [4.0, 5.0]
    assert len(sent) == 2
    del index
    sent.clear()
    gc.collect()
    assert len(arrays._ON_DEVICE) == before


def test_an_index_without_misses_adds_no_row(sent: list[Any]) -> None:
    rows = torch.arange(4.0)[:, None]
    assert arrays.take_rows(xp, rows, np.array([3, 1])).ravel().tolist() == [3.0, 1.0]
    assert arrays.take_rows(xp, rows, np.array([], np.int64)).shape == (0, 1)


def test_a_copy_is_contiguous_and_shares_nothing() -> None:
    for array, space in ((np.arange(6.0), np), (torch.arange(6.0), xp)):
        turned = array.reshape(2, 3).T
        copy = arrays.copy(space, turned)
        assert copy.tolist() == turned.tolist()
        copy[...] = 0
        assert turned.tolist()[1] == [1.0, 4.0]
    assert copy.is_contiguous()
