"""Each mistake that the stand-in makes on demand is noticed: or agreeing with it means little."""

from __future__ import annotations

import re

import cudnn_double
import cudnn_on_host
import pytest
from cases import Case
from cudnn_on_host import Double
from test_cudnn import check
from test_cudnn_dropout import (
    test_as_many_are_dropped_as_the_rate_says_and_the_others_scaled as check_dropout,
)

from rnnop.errors import LibraryError

SWITCHES = (cudnn_double.SOURCES / "switches.c").read_text()
FAULTS = re.findall(r'"(\w+)",', SWITCHES[: SWITCHES.index("bool fault")])

NOTICED_BY = {
    "gate_order": Case("lstm"),
    "weight_layout": Case("gru"),
    "recurrent_bias_ignored": Case("gru"),
    "reset_before": Case("gru"),
    "hx_ignored": Case("rnn_tanh"),
    "reverse_start": Case("lstm", "lengths", "1-both"),
    "cy_clipped": Case("lstm_cell_clip"),
    "dx_missing": Case("gru"),
    "dcy_ignored": Case("lstm"),
    "dw_wrong_step": Case("rnn_tanh"),
}


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    return cudnn_on_host.use(monkeypatch)


def test_every_fault_is_here() -> None:
    assert {*NOTICED_BY, "dropout_scale", "padding_fill"} == set(FAULTS)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "padding_fill"])
def test_a_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "RMS error|entries are NaN|unknown layout|Not equal to tolerance"

    def look() -> None:
        if fault == "dropout_scale":
            check_dropout(0.5)
        else:
            check(NOTICED_BY[fault])

    look()
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", fault)
    with pytest.raises((AssertionError, LibraryError), match=wrong):
        look()


def test_what_lies_in_the_padding_is_read_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", "padding_fill")
    check(Case("lstm", "lengths", "2-both"))
    check(Case("gru", "lengths_zero", "2-both", hold=True))
