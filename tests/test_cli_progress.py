"""Progress: a bar on a terminal, lines elsewhere and without tqdm."""

from __future__ import annotations

import io
import sys

import pytest

from rnnop.cli import progress as module
from rnnop.cli.progress import progress


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(("terminal", "tqdm"), [(True, True), (True, False), (False, True)])
def test_a_bar_only_on_a_terminal_with_tqdm(
    terminal: bool, tqdm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    if not tqdm:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    with progress(12, "case") as show:
        for number in range(12):
            show(f"text {number}")
    lines = [f"case {number + 1:2}/12  text {number}" for number in range(12)]
    if terminal and tqdm:
        assert "12/12" in stream.getvalue()
        assert lines[0] not in stream.getvalue()
    else:
        assert stream.getvalue().splitlines() == lines
