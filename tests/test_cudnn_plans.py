"""What lives on between calls, through the stand-in: plans, handles, streams, processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from agreement import assert_same, gradients_of, outputs_of, reference, results
from cases import Call, Case
from cudnn_on_host import Double

import rnnop
from rnnop.cudnn import descriptors, plan
from rnnop.errors import LibraryError

KINDS = ("handle", "rnn", "data", "tensor", "dropout")


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    gc.collect()  # the plans of other tests
    return cudnn_on_host.use(monkeypatch)


def alive(double: Double) -> dict[str, int]:
    return {kind: double.live(kind) for kind in KINDS}


def work(case: Case) -> tuple[Call, dict[str, Any]]:
    """Return the arguments of a call and of its vjp."""
    cotangents = case.cotangents()
    cotangents.pop("dc", None)
    return case.call(), cotangents


# Plans


def test_as_many_plans_are_kept_as_the_flag_says(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_PLAN_CACHE", "5")
    weights = rnnop.init_weights("gru", input_size=1, hidden_size=1, seed=0, dtype=np.float64)
    random, before = np.random.default_rng(0), alive(double)

    def one() -> None:
        T, N = random.integers(1, 9, 2)
        x = random.standard_normal((T, N, 1))
        lengths = random.integers(0, T, N, endpoint=True)
        out, vjp = rnnop.rnn_vjp(x, weights, lengths=lengths, backend="cudnn")
        vjp(out.y)

    for _ in range(100):
        one()
    tracemalloc.start()
    try:
        for _ in range(900):
            one()
            now = alive(double)
            assert now["rnn"] <= before["rnn"] + 5
            assert now["data"] <= before["data"] + 2 * 5
            assert now["tensor"] <= before["tensor"] + 2 * 5
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    monkeypatch.setenv("RNNOP_PLAN_CACHE", "0")  # one, while it runs
    one()
    assert double.live("rnn") == before["rnn"] + 1


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_calls(double: Double) -> None:
    """Other T and N each time: dense, prepacked, with lengths, with holes and episodes, dropout."""
    weights = rnnop.init_weights("lstm", input_size=2, hidden_size=3, num_layers=2, seed=0)
    packed = rnnop.prepack(weights, mode="lstm", backend="cudnn")
    random = np.random.default_rng(0)

    def one() -> None:
        T, N = random.integers(0, 20, 2)
        x = random.standard_normal((T, N, 2)).astype(np.float32)
        options: dict[str, Any] = {"mode": "lstm", "backend": "cudnn"}
        match random.integers(4):
            case 0:
                rnnop.rnn(x, packed, **options)
                return
            case 1:
                options["lengths"] = random.integers(0, T, N, endpoint=True)
            case 2:
                options["mask"], options["resets"] = random.random((2, T, N)) < 0.7
            case _:
                options |= {"dropout": 0.5, "training": True, "seed": int(random.integers(3))}
        out, vjp = rnnop.rnn_vjp(x, weights, **options)
        vjp(out.y)

    for _ in range(2000):
        one()
    before, objects = resident(), alive(double)
    for _ in range(8000):
        one()
    assert resident() - before < 2 << 20
    now = alive(double)
    assert all(now[kind] <= objects[kind] + 2 for kind in KINDS), (objects, now)


def test_a_plan_is_found_again_by_its_values(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(case: Case, dtype: str = "float32") -> int:
        before = double.calls("cudnnCreateRNNDescriptor")
        case.call(dtype).rnn(backend="cudnn")
        return double.calls("cudnnCreateRNNDescriptor") - before

    dense = Case("gru")
    assert [made(dense), made(dense)] == [1, 0]
    assert made(Case("gru", states="none", stride="sliced")) == 0
    assert made(dense, "float64") == 1
    assert made(Case("gru", sizes="t4n5i3h17")) == 1
    assert made(Case("lstm")) == made(Case("lstm_cell_clip")) == 1
    monkeypatch.setenv("RNNOP_ALLOW_TF32", "1")
    assert [made(dense), made(dense)] == [1, 0]
    monkeypatch.setenv("RNNOP_CUDNN_ALGO", "persist_static")
    assert [made(dense), made(dense)] == [1, 0]
    monkeypatch.delenv("RNNOP_CUDNN_ALGO")
    unequal = Case("gru", "lengths")
    assert [made(unequal), made(unequal)] == [1, 0]
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    assert [made(unequal), made(unequal), made(dense)] == [1, 0, 0]


def test_a_plan_says_what_it_is(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    case = Case("lstm_projection", "lengths", "2-both", sizes="t4n5i3h17")
    call = case.call("float16")
    call.rnn(backend="cudnn", cell_clip=(-0.5, 0.25))
    [[made]] = [plans.values() for plans in plan._plans.of.values()]
    settings, dropout = made.rnn.get()
    wanted = (0, 2, 2, 1, 0, 2, 0, 1, 3, 17, 9, 2, 1)  # half data, float32 arithmetic
    assert (tuple(settings), dropout) == (wanted, None)
    assert made.rnn.get_clip() == (1, -0.5, 0.25, 1)
    lengths = tuple(sorted(call.options["lengths"].tolist(), reverse=True))
    for data, width in ((made.x, 3), (made.y, 18)):
        assert data.get() == (2, 0, 4, width, lengths, bytes(8))
    for state, width in ((made.h, 9), (made.c, 17)):
        assert state.get() == (2, (4, 5, width), (5 * width, width, 1))


def test_nothing_is_destroyed_in_another_process() -> None:
    destroyed: list[int] = []
    for process in (os.getpid() + 1, os.getpid()):
        descriptors._destroy(destroyed.append, process, process)
    assert destroyed == [os.getpid()]


def test_a_plan_that_was_dropped_serves_its_vjp(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_PLAN_CACHE", "1")
    (call, cotangents), other = work(Case("lstm", "lengths", "2-both")), Case("gru").call()
    wanted = reference(call, cotangents)
    out, vjp = call.rnn_vjp(backend="cudnn")
    other.rnn(backend="cudnn")
    gc.collect()
    assert_same(outputs_of(out) | gradients_of(vjp(**cotangents)), wanted, "cudnn", "float64")


def test_sizes_are_asked_for_before_each_pass(double: Double) -> None:
    call, cotangents = work(Case("lstm", "lengths"))
    for _ in range(3):
        call.rnn(backend="cudnn")
        results(call, cotangents, "cudnn")
    assert double.calls("cudnnGetRNNTempSpaceSizes") == 3 * (1 + 2)


def test_a_pass_finds_a_workspace_that_has_grown_since(double: Double) -> None:
    """The stand-in wants another one after each forward, and refuses less."""
    call, cotangents = work(Case("gru", "lengths"))
    vjps = [call.rnn_vjp(backend="cudnn")[1] for _ in range(5)]
    for vjp in vjps:
        vjp(**cotangents)


# The layout of the weights


def test_the_layout_is_checked_once_for_each_network(double: Double) -> None:
    counts = []
    for cell in ("gru", "gru", "lstm", "lstm_projection", "gru", "lstm_projection"):
        for steps in ("dense", "lengths"):
            Case(cell, steps, "2-both").call().rnn(backend="cudnn")
        counts.append(double.calls("cudnnGetRNNWeightSpaceSize"))
    assert counts == [1, 1, 2, 3, 3, 3]
    # Matrices and biases of each gate, of 4 pseudo-layers; and the projection.
    assert double.calls("cudnnGetRNNWeightParams") == 4 * (6 + 8 + 9)


def test_another_layout_is_refused_at_first_use(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", "weight_layout")
    for _ in range(2):  # and at the second
        with pytest.raises(LibraryError) as caught:
            Case("gru").call().rnn(backend="cudnn")
        text = str(caught.value)
        assert "cudnnGetRNNWeightParams: an unknown layout (0): the place of linear layer 0" in text
        assert "please report this version" in text
        assert "cuDNN 9.28.0" in text
    assert double.calls("cudnnRNNForward") == 0
    monkeypatch.delenv("CUDNN_DOUBLE_FAULT")
    Case("gru").call().rnn(backend="cudnn")


# Streams and threads


def test_each_pass_runs_on_the_callers_stream(double: Double) -> None:
    call, cotangents = work(Case("gru"))
    for stream in (7, 9, 7):
        double.memory.current = stream
        _, vjp = call.rnn_vjp(backend="cudnn")
        assert double.number("last_stream") == stream
        double.memory.current = stream + 1
        vjp(**cotangents)
        assert double.number("last_stream") == stream + 1


def test_python_threads_may_call_at_once(double: Double) -> None:
    cases = [
        Case(cell, steps, stack, sizes="t11n1i4h6" if steps == "dense" else "t4n5i3h17")
        for cell in ("gru", "lstm", "rnn_tanh")
        for steps, stack in (("dense", "2-both"), ("lengths", "1"))
    ]
    calls = [work(case) for case in cases]
    wanted = [reference(*each) for each in calls]
    wrong: list[BaseException] = []
    handles = double.live("handle")
    start = threading.Barrier(4)

    def run() -> None:
        try:
            start.wait(60)
            for _ in range(5):
                for each, right in zip(calls, wanted, strict=True):
                    assert_same(results(*each, "cudnn"), right, "cudnn", "float64")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert not wrong
    assert double.number("foreign_threads") == 0
    gc.collect()
    assert double.live("handle") == handles  # each went with its thread


def test_a_vjp_may_run_in_another_thread(double: Double) -> None:
    """As it does under PyTorch."""
    call, cotangents = work(Case("lstm", "lengths", "2-both"))
    wanted = reference(call, cotangents)
    out, vjp = call.rnn_vjp(backend="cudnn")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(vjp(**cotangents)))
    thread.start()
    thread.join(timeout=120)
    got = outputs_of(out) | gradients_of(found[0])
    assert_same(got, wanted, "cudnn", "float64")
    assert double.number("foreign_threads") == 0


# Processes


def in_a_child(queue: Any) -> None:
    call, cotangents = work(Case("lstm", "lengths", "2", dropout="masks"))
    queue.put({name: array.tolist() for name, array in results(call, cotangents, "cudnn").items()})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own(double: Double) -> None:
    call, cotangents = work(Case("lstm", "lengths", "2", dropout="masks"))
    wanted = results(call, cotangents, "cudnn")
    seeded: dict[str, Any] = {"dropout": 0.5, "training": True, "seed": 1, "dropout_masks": None}
    drawn = call.rnn(backend="cudnn", **seeded).y
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(queue,))
    child.start()
    got = {name: np.array(values) for name, values in queue.get(timeout=120).items()}
    child.join(timeout=120)
    assert child.exitcode == 0
    assert {name: each.tobytes() for name, each in got.items()} == {
        name: each.tobytes() for name, each in wanted.items()
    }
    assert call.rnn(backend="cudnn", **seeded).y.tobytes() == drawn.tobytes()  # nor was it hurt


EXIT = """
import sys
sys.path.insert(0, sys.argv[1])
import pytest
import cudnn_on_host
from cases import Case

patch = pytest.MonkeyPatch()
double = cudnn_on_host.use(patch)
case = Case("lstm", "lengths", "2-both", dropout="seed")
call = case.call()
kept = [call.rnn_vjp(backend="cudnn")]
kept.append(Case("gru", "lengths").call().rnn(backend="cudnn"))
assert double.live("rnn") > 0 and double.live("handle") > 0
print("done")
"""


def test_the_interpreter_exits_quietly_with_plans_alive() -> None:
    command = [sys.executable, "-c", EXIT, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
