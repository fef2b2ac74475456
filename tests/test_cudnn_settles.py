"""The experiments that are meant for a GPU, on the stand-in: they run, and say what they settle."""

from __future__ import annotations

import cudnn_on_host
import pytest
import settles
from agreement import NUMPY
from cudnn_direct import Lab
from settles import EXPERIMENTS, sentences

from rnnop.errors import LibraryError


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(NUMPY, cudnn_on_host.use(monkeypatch).memory)


@pytest.mark.parametrize("number", EXPERIMENTS)
def test_an_experiment_runs(number: int, lab: Lab) -> None:
    found = sentences(number, lab)
    assert found
    assert all(each.startswith(f"SETTLES {number}: ") for each in found)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (2, "GRU with the recurrent bias only has that of the candidate inside the reset product"),
        (3, "cy is returned unclipped"),
        (4, "padding of y with the fill value None: NaN"),
        (4, "padding of y with the fill value 3.0: all 3"),
        (4, "padding of dx with the fill value 0.0: NaN"),
        (7, "a zero length runs, and the other sequences are WRONG"),
        (9, "CUDNN_WGRAD_MODE_SET returns CUDNN_STATUS_NOT_SUPPORTED (3000)"),
        (11, "GRU: 10 runs of forward and backward gave 1 different results in bits"),
        (12, "Restore goes on with the states"),
    ],
)
def test_what_the_stand_in_settles(number: int, sentence: str, lab: Lab) -> None:
    assert f"SETTLES {number}: {sentence}" in sentences(number, lab)


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1, "weight_layout"),
        (2, "gate_order"),
        (2, "recurrent_bias_ignored"),
        (2, "hx_ignored"),
        (3, "cy_clipped"),
        (4, "reverse_start"),
        (10, "dx_missing"),
        (12, "dropout_scale"),
    ],
)
def test_an_experiment_fails_where_cudnn_is_not_as_rnnop_needs_it(
    number: int, fault: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", fault)
    with pytest.raises((AssertionError, LibraryError)):
        sentences(number, lab)


def test_without_pytest_they_run_all_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(name: str) -> Lab:
        if name == "cupy":
            raise RuntimeError("needs a GPU and cupy, which is not installed")
        return lab

    monkeypatch.setattr(settles, "make_lab", make)
    assert settles.main() == 0
    out = capsys.readouterr().out
    count = len(EXPERIMENTS) - 1
    assert out.startswith("cupy: needs a GPU")
    assert out.endswith(f"{count} experiments, 0 failed\n")
    assert {int(each[8:].split(":")[0]) for each in out.splitlines() if each[:7] == "SETTLES"} == {
        *EXPERIMENTS
    } - {settles.ALONE}
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", "cy_clipped")
    assert settles.main() == 1
    assert "torch: experiment 3 FAILED: " in capsys.readouterr().out


def test_without_a_gpu_they_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settles, "no_gpu_for", lambda name: f"needs a GPU for {name}")
    assert settles.main() == 1
    assert capsys.readouterr().out == (
        "cupy: needs a GPU for cupy\ntorch: needs a GPU for torch\n0 experiments, 0 failed\n"
    )
