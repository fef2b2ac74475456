"""Every failure of a cuDNN function, through the stand-in: what is said, and what goes on."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from agreement import assert_right, outputs_of, results
from cases import Call, Case
from cudnn_on_host import Double
from test_cudnn import check

import rnnop
from rnnop.cudnn import memory, status
from rnnop.errors import BackendUnavailable, LibraryError

CALLED = {  # in a call that has everything, with the statuses of cuDNN 9 and 8
    "cudnnCreateRNNDescriptor": (4003, 2),
    "cudnnSetRNNDescriptor_v8": (2000, 3),
    "cudnnRNNSetClip_v8": (2000, 3),
    "cudnnCreateRNNDataDescriptor": (4003, 2),
    "cudnnSetRNNDataDescriptor": (2000, 3),
    "cudnnCreateTensorDescriptor": (4003, 2),
    "cudnnSetTensorNdDescriptor": (2000, 3),
    "cudnnGetTensorNdDescriptor": (2000, 3),
    "cudnnDropoutGetStatesSize": (2000, 3),
    "cudnnCreateDropoutDescriptor": (4003, 2),
    "cudnnSetDropoutDescriptor": (5003, 8),
    "cudnnGetRNNWeightSpaceSize": (2000, 3),
    "cudnnGetRNNWeightParams": (2000, 3),
    "cudnnGetRNNTempSpaceSizes": (5003, 8),
    "cudnnRNNForward": (4000, 4),
    "cudnnRNNBackwardData_v8": (5000, 8),
    "cudnnRNNBackwardWeights_v8": (5002, 8),
}
NAMES = {
    2000: "CUDNN_STATUS_BAD_PARAM",
    4000: "CUDNN_STATUS_INTERNAL_ERROR",
    4003: "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    5000: "CUDNN_STATUS_EXECUTION_FAILED",
    5002: "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS",
    5003: "CUDNN_STATUS_EXECUTION_FAILED_CUDART",
    2: "CUDNN_STATUS_ALLOC_FAILED",
    3: "CUDNN_STATUS_BAD_PARAM",
    4: "CUDNN_STATUS_INTERNAL_ERROR",
    8: "CUDNN_STATUS_EXECUTION_FAILED",
}


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


def everything() -> tuple[Call, dict[str, Any]]:
    case = Case("lstm_cell_clip", "lengths", "2-both", dropout="seed")
    return case.call("float32"), case.cotangents("float32")


@pytest.mark.parametrize("function", CALLED)
@pytest.mark.parametrize("version", ["9.28.0", "8.9.7"])
def test_a_failure_tells_all_there_is(
    version: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = cudnn_on_host.use(monkeypatch, version)
    call, cotangents = everything()
    status = CALLED[function][version.startswith("8")]
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", f"{function}:{status}")
    with pytest.raises(LibraryError) as caught:
        results(call, cotangents, "cudnn")
    error = caught.value
    assert (error.function, error.status, error.name) == (function, status, NAMES[status])
    text = str(error)
    assert text.startswith(f"{function}: {NAMES[status]} ({status}): ")
    if version == "9.28.0":
        assert "cuDNN gives no reason" not in text
    steps = int(call.options["lengths"].sum())
    for part in (
        f"; cuDNN {version}; x ({steps}, 3) in float32, h0 (4, 3, 5), segments of up to 6 steps, ",
        "on device 0 of compute capability 9.0. ",
        "spec: lstm(3->5, 2 layers, bidirectional, cell_clip=(-0.3, 0.3), dropout=0.4).",
    ):
        assert part in text
    # And it is over once its cause is.
    monkeypatch.delenv("CUDNN_DOUBLE_FAIL")
    assert double.calls(function)
    check(Case("lstm_cell_clip", "lengths", "2-both"), "float32")


@pytest.mark.parametrize("function", ["cudnnRestoreDropoutDescriptor", "cudnnBuildRNNDynamic"])
def test_a_failure_of_what_is_called_seldom(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Case("gru", stack="2", dropout="seed").call("float32")
    call.rnn(backend="cudnn")
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "persist_dynamic")
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", f"{function}:3008")
    with pytest.raises(LibraryError, match=f"^{function}: .*PREREQUISITE_MISSING"):
        call.rnn(backend="cudnn")


@pytest.mark.parametrize("function", ["cudnnCreate", "cudnnSetStream"])
def test_a_failure_of_the_handle(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Case("gru").call()
    rnnop.explain(call.x, call.weights, backend="cudnn")  # there is a device
    from rnnop.cudnn import descriptors

    monkeypatch.setattr(descriptors, "_handles", descriptors._Handles())
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", f"{function}:4000")
    with pytest.raises(LibraryError) as caught:
        call.rnn(backend="cudnn")
    text = str(caught.value)
    assert text.startswith(f"{function}: CUDNN_STATUS_INTERNAL_ERROR (4000): ")
    assert "; cuDNN 9.28.0. spec: gru(3->5, 1 layer)." in text
    assert ("no memory left on it" in text) == (function == "cudnnCreate")


def test_without_a_device_it_says_so_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a library that nobody has asked yet: it is asked once."""
    monkeypatch.setenv("RNNOP_CUDNN_PATH", str(cudnn_on_host.compile_again(tmp_path)))
    monkeypatch.setenv("CUDNN_DOUBLE_NO_DEVICE", "1")
    call = Case("gru").call()
    with pytest.raises(BackendUnavailable) as caught:
        call.rnn(backend="cudnn")
    assert str(caught.value) == (
        "rnn: backend 'cudnn' cannot run here: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001): "
        "cudaGetDeviceCount(&count) != cudaSuccess; there is no NVIDIA driver, no GPU that this "
        "process may use, or no memory left on it; cuDNN 9.28.0. spec: gru(3->5, 1 layer). "
        "Asked for by backend='cudnn'."
    )
    told = rnnop.explain(call.x, call.weights)
    assert told.backend != "cudnn"
    assert "there is no NVIDIA driver" in told.refusals["cudnn"]


def test_without_a_library_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_PATH", str(tmp_path))
    for dtype in ("float32", "bfloat16"):
        call = Case("gru").call(dtype)
        with pytest.raises(BackendUnavailable, match=r"a folder without libcudnn\.so\.9 or"):
            call.rnn(backend="cudnn")
        told = rnnop.explain(call.x, call.weights)
        assert "a folder without libcudnn.so.9 or" in told.refusals["cudnn"]


def test_what_other_threads_log_is_not_taken_for_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status._LOG, "_lines", [])
    status._LOG._read(1, None, None, 0)  # nobody asks, so the message is not even looked at
    assert status._LOG._lines == []


# Too many sequences for one call


def test_too_many_segments_are_halved_and_it_is_remembered(
    double: Double, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RNNOP_LOG", "info")
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", "3")
    case = Case("gru", "lengths", sizes="t5n18i31h64")
    with caplog.at_level(logging.INFO, "rnnop"):
        check(case)
    tried = double.calls("cudnnRNNForward")
    assert tried == 3 + 9  # of 18, of 9, of 4; then 9 groups of 2
    [line] = caplog.messages
    assert line.startswith("cudnnRNNForward: CUDNN_STATUS_EXECUTION_FAILED (5000): ")
    assert line.endswith("Groups of 2 segments do run")
    caplog.clear()
    check(case)
    assert double.calls("cudnnRNNForward") == tried + 9
    assert not caplog.messages


def test_where_one_segment_is_too_many_the_first_failure_is_told(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", "0")
    call = Case("gru", "lengths", sizes="t5n18i31h64").call()
    with pytest.raises(LibraryError, match=r"EXECUTION_FAILED .* on device 0 of") as caught:
        call.rnn(backend="cudnn")
    assert double.calls("cudnnRNNForward") == 5  # of 18, 9, 4, 2 and 1
    # The arrays of the call go with it: nothing waits for the garbage collector.
    x = np.array(call.x)
    gone = weakref.ref(x)
    gc.disable()
    try:
        del caught
        with pytest.raises(LibraryError):
            rnnop.rnn(x, call.weights, backend="cudnn", mode="gru")
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_what_the_device_refuses_is_told_with_its_reason(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_SM", "70")
    with pytest.raises(LibraryError) as caught:
        Case("gru").call("bfloat16").rnn(backend="cudnn")
    assert caught.value.name == "CUDNN_STATUS_NOT_SUPPORTED"
    assert "rnn->type == BFLOAT16 && capability() < 80" in str(caught.value)


# RNNOP_CHECK


def test_check_waits_for_each_pass(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("lstm", "lengths", "2-both")
    call, cotangents = case.call(), case.cotangents()
    results(call, cotangents, "cudnn")
    assert double.memory.waits == 0
    monkeypatch.setenv("RNNOP_CHECK", "1")
    results(call, cotangents, "cudnn")
    assert double.memory.waits == 3


def test_check_poisons_fresh_memory(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double.memory, "empty", lambda shape, dtype, like: np.zeros(shape, dtype))
    like = np.zeros(3)
    for dtype in ("float64", "float16"):
        assert not memory.fresh(double.memory, (2, 3), np.dtype(dtype), like).any()
    monkeypatch.setenv("RNNOP_CHECK", "1")
    for dtype in ("float64", "float16"):
        assert np.isnan(memory.fresh(double.memory, (2, 3), np.dtype(dtype), like)).all()
    assert (memory.room(double.memory, 7, like) == 255).all()
    case = Case("lstm", "lengths", "2-both")
    assert_right(case.call(), case.cotangents(), "cudnn", "float64")
    assert outputs_of(case.call().rnn(backend="cudnn"))
