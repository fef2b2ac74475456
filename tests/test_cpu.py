"""The CPU engine against the float64 reference: every case, instruction set and dtype."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import pytest
from agreement import assert_right
from cases import (
    CORE,
    TINY,
    WIDE,
    Call,
    Case,
    arrays_of,
)

import rnnop
from rnnop.cpu import engine, products

Array = np.ndarray[Any, np.dtype[Any]]

ISAS = list(engine.available())
CASES = [case for case in CORE + WIDE + TINY if "activations" not in case.features]

if not ISAS:
    pytest.skip("rnnop was installed without a C compiler", allow_module_level=True)


def every(cases: list[Case]) -> Any:
    slow = {True: pytest.mark.slow, False: ()}
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.id, marks=slow[case in WIDE]) for case in cases]
    )


def results(call: Call, cotangents: dict[str, Any], backend: str) -> list[Array]:
    out, vjp = call.rnn_vjp(backend=backend)
    return arrays_of(out) + arrays_of(vjp(**cotangents))


def bits(arrays: list[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every(CASES)
def test_all_results_are_the_references(
    case: Case, dtype: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    assert_right(
        case.call(dtype, masked=np.nan), case.cotangents(dtype, masked=np.nan), "cpu", dtype
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every([case for case in CASES if case in CORE])
def test_halves_are_computed_in_float32(case: Case, dtype: str) -> None:
    assert_right(case.call(dtype), case.cotangents(dtype), "cpu", dtype)


@pytest.mark.parametrize("rows", [1, 3, 10])
@every([case for case in CASES if case in CORE])
def test_a_backward_may_go_in_stretches(
    case: Case, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LEAST_ROWS", rows)
    monkeypatch.setattr(products, "MOST_STRETCHES", 1000)
    assert_right(case.call("float64"), case.cotangents("float64"), "cpu", "float64")


@every(CASES)
def test_inference_gives_what_training_gives(case: Case) -> None:
    call = case.call("float32")
    assert bits(arrays_of(call.rnn(backend="cpu"))) == bits(
        arrays_of(call.rnn_vjp(backend="cpu")[0])
    )


@every([case for case in CASES if case in CORE])
def test_results_are_fresh_and_contiguous_and_no_input_changes(case: Case) -> None:
    call, cotangents = case.call("float32"), case.cotangents("float32")
    given = arrays_of(call) + list(cotangents.values())
    before = bits(given)
    for array in given:
        array.flags.writeable = False
    found = results(call, cotangents, "cpu")
    assert bits(given) == before
    for k, array in enumerate(found):
        assert array.flags.c_contiguous, k
        assert array.flags.writeable, k
        assert not any(np.may_share_memory(array, other) for other in given + found[:k]), k


@every([case for case in CASES if case in CORE])
def test_nothing_at_masked_steps_reaches_a_result(case: Case) -> None:
    found = [
        results(case.call("float32", masked=value), case.cotangents("float32", masked=value), "cpu")
        for value in (0.0, np.nan)
    ]
    assert bits(found[0]) == bits(found[1])


# Threads: rows are dealt out, or units shared, and neither may show.

CELLS: dict[str, dict[str, Any]] = {
    "gru": {"mode": "gru"},
    "gru_reset_before": {"mode": "gru", "reset_after": False},
    "lstm": {"mode": "lstm", "cell_clip": 0.5},
    "lstm_projection": {"mode": "lstm", "proj_clip": 0.3},
    "rnn_tanh": {"mode": "rnn_tanh"},
    "rnn_relu": {"mode": "rnn_relu"},
}


def work(cell: str, batch_size: int, hidden_size: int = 331) -> tuple[Call, dict[str, Any]]:
    """Return a call with enough work for threads, of unequal rows, and its cotangents."""
    random = np.random.default_rng(batch_size)
    options = CELLS[cell]
    projected = 0.6 if cell == "lstm_projection" else None
    weights = rnnop.init_weights(
        options["mode"],
        input_size=40,
        hidden_size=hidden_size,
        bidirectional=True,
        peephole=cell == "lstm",
        proj_size=None if projected is None else int(projected * hidden_size),
        seed=1,
    )
    lengths = random.integers(0, 24, batch_size, endpoint=True)
    lengths[0] = 24
    x = random.standard_normal((24, batch_size, 40), dtype=np.float32)
    call = Call(x, weights, None, None, {**options, "lengths": lengths})
    out = call.rnn(backend="cpu")
    dy = random.standard_normal(out.y.shape, dtype=np.float32)
    dh_n = random.standard_normal(out.h_n.shape, dtype=np.float32)
    return call, {"dy": dy, "dh_n": dh_n}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("cell", CELLS)
def test_results_do_not_depend_on_the_number_of_threads(
    cell: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, cotangents = work(cell, batch_size)
    found = []
    for threads in (1, 2, 3, 7, 2):
        monkeypatch.setenv("RNNOP_NUM_THREADS", str(threads))
        found.append(bits(results(call, cotangents, "cpu")))
    assert all(each == found[0] for each in found)
    assert_right(call, cotangents, "cpu", "float32")


@pytest.mark.parametrize("cell", CELLS)
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(cell: str) -> None:
    call, _ = work(cell, 9)
    whole = call.rnn(backend="cpu")
    for row, length in enumerate(call.options["lengths"]):
        options = {**call.options, "lengths": [length]}
        alone = rnnop.rnn(call.x[:, [row]], call.weights, backend="cpu", **options)
        assert whole.y[:, row].tobytes() == alone.y[:, 0].tobytes()
        assert whole.h_n[:, row].tobytes() == alone.h_n[:, 0].tobytes()


def test_python_threads_may_call_at_once() -> None:
    calls = [work(cell, 1 + k % 4) for k, cell in enumerate([*CELLS, *CELLS])]
    wanted = [bits(results(*each, "cpu")) for each in calls]
    found: list[Any] = [None] * len(calls)

    def run(k: int) -> None:
        for _ in range(5):
            found[k] = bits(results(*calls[k], "cpu"))
            if found[k] != wanted[k]:
                return

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert found == wanted


def _in_a_child(queue: Any) -> None:
    call, cotangents = work("lstm", 2)
    queue.put(bits(results(call, cotangents, "cpu")))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_NUM_THREADS", "2")
    call, cotangents = work("lstm", 2)
    wanted = bits(results(call, cotangents, "cpu"))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == wanted
    child.join(timeout=120)
    assert child.exitcode == 0
    assert bits(results(call, cotangents, "cpu")) == wanted


# Numbers that are not


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_tanh", "rnn_relu"])
def test_infinity_gives_the_limit_and_nan_stays_in_its_row(
    mode: str, dtype: Any, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    weights = rnnop.init_weights(mode, input_size=3, hidden_size=19, seed=0, dtype=dtype)
    x = np.random.default_rng(0).standard_normal((5, 6, 3)).astype(dtype)
    x[1, 1] = np.nan
    x[2, 2] = np.inf
    x[2, 3] = -np.inf
    x[0, 4] = 1e30
    call = Call(x, weights, None, None, {"mode": mode})
    got, wanted = call.rnn(backend="cpu"), call.rnn(backend="reference")
    for one, other in ((got.y, wanted.y), (got.h_n, wanted.h_n)):
        for row in (0, 2, 3, 4, 5):
            with np.errstate(invalid="ignore"):
                np.testing.assert_allclose(one[:, row], other[:, row], rtol=1e-4, atol=1e-6)
    assert np.isnan(got.y[1:, 1]).all()
    assert np.isfinite(got.y[0, 1]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 3), (np.float64, 3)])
def test_activations_are_right_to_a_few_units_in_the_last_place(
    dtype: Any, most: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tanh unit with weight 1 and no bias is tanh; a GRU with z = s(x), n = 1 gives s."""
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    grid = np.concatenate([np.linspace(-12, 12, 4001), np.geomspace(1e-12, 80, 500)])
    x = np.concatenate([grid, -grid]).astype(dtype).reshape(1, -1, 1)
    one, zero = np.ones((1, 1), dtype), np.zeros((1, 1), dtype)
    got = rnnop.rnn(x, rnnop.RNNWeights((one,), (zero,)), mode="rnn_tanh", backend="cpu").y
    wanted = np.tanh(x.astype(np.longdouble))
    units = np.abs(got - wanted) / np.spacing(np.abs(wanted).astype(dtype))
    assert units.max() <= most
    # h_0 = 1 and n = 0 give h_1 = z = s(x)
    w_ih = np.array([[0], [1], [0]], dtype)
    gru = rnnop.RNNWeights((w_ih,), (np.zeros((3, 1), dtype),))
    h0 = np.ones((1, x.shape[1], 1), dtype)
    got = rnnop.rnn(x, gru, h0, mode="gru", backend="cpu").y
    wanted = 1 / (1 + np.exp(-x.astype(np.longdouble)))
    units = np.abs(got - wanted) / np.spacing(np.abs(wanted).astype(dtype))
    assert units.max() <= most


# Weights laid out beforehand, and refusals


@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_tanh"])
def test_prepacked_weights_give_the_same_bits(mode: str) -> None:
    weights = rnnop.init_weights(
        mode, input_size=5, hidden_size=21, num_layers=2, bidirectional=True, seed=3
    )
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    packed = rnnop.prepack(weights, mode=mode, backend="cpu")
    plain = Call(x, weights, None, None, {"mode": mode})
    again = Call(x, packed, None, None, {"mode": mode})  # type: ignore[arg-type]
    dy = np.ones((4, 3, 42), np.float32)
    for _ in range(2):
        assert bits(results(plain, {"dy": dy}, "cpu")) == bits(results(again, {"dy": dy}, "cpu"))
    if mode == "gru":
        before = [call.rnn(backend="cpu", reset_after=False).y for call in (plain, again)]
        assert before[0].tobytes() == before[1].tobytes()


def test_what_the_engine_cannot_do_is_said() -> None:
    weights = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    x = np.zeros((2, 1, 2), np.float32)
    with pytest.raises(
        rnnop.UnsupportedError, match="'cpu' cannot run this call: it has no custom"
    ):
        rnnop.rnn(x, weights, backend="cpu", activations=("HardSigmoid", "Tanh"))
    assert rnnop.explain(x, weights, activations=("HardSigmoid", "Tanh")).backend == "reference"
    told = rnnop.explain(x, weights)
    assert told.backend == "cpu"
    assert f"cpu ({ISAS[0]}, " in str(told)


def test_an_instruction_set_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    x = np.zeros((2, 1, 2), np.float32)
    missing = next(isa for isa in ("neon", "avx2") if isa not in ISAS)
    monkeypatch.setenv("RNNOP_CPU_ISA", missing)
    with pytest.raises(rnnop.BackendUnavailable, match=f"RNNOP_CPU_ISA is '{missing}'"):
        rnnop.rnn(x, weights, backend="cpu")


def test_without_an_engine_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "available", tuple)
    weights = rnnop.init_weights("gru", input_size=2, hidden_size=3, seed=0)
    x = np.zeros((2, 1, 2), np.float32)
    rnnop.log.warn_once.cache_clear()
    for _ in range(3):
        assert rnnop.explain(x, weights).backend == "reference"
    assert [record.getMessage().count("no C engine") for record in caplog.records] == [1]
    with pytest.raises(rnnop.BackendUnavailable, match="'cpu' cannot run here: no C engine"):
        rnnop.rnn(x, weights, backend="cpu")
