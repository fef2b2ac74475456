"""The benchmark: what it measures, compares, counts and prints. Nothing here depends on speed."""

import argparse
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.cli import bench, main
from rnnop.cli.bench import (
    agreement,
    cases,
    figures,
    machine,
    memory,
    peers,
    plan,
    report,
    timing,
)
from rnnop.cli.bench.cases import FEW_FULL, UNIFORM, Case, Inputs, filled
from rnnop.cli.bench.measure import Measurement, Result, loaders, measure
from rnnop.cli.bench.memory import Footprint
from rnnop.cli.bench.peers import OURS, OURSELVES, PEERS, Contender, ours
from rnnop.cli.bench.processes import environment, run_in_fresh_process
from rnnop.cli.bench.results import Run, Setting
from rnnop.cli.bench.rssm import RSSMCase
from rnnop.cli.bench.timing import LEAST_ROUNDS, MOST_ROUNDS, Timing, interleave
from rnnop.cli.tables import Table
from rnnop.cpu import engine
from rnnop.errors import RnnopError

PNG = b"\x89PNG\r\n\x1a\n"
TINY = Case("dense", "forward", "gru", 2, 5, 3, 4)
TINY_TRAINING = Case("ragged", "training", "lstm", 4, 6, 3, 4, lengths=UNIFORM)


class Clock:
    """A time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        """Return a call that takes these times, again and again."""
        left: list[float] = []

        def run() -> None:
            left.extend([] if left else seconds)
            self.now += left.pop(0)
            self.log.append(name)

        return run

    def rest(self) -> None:
        self.log.append("rest")

    def interleave(self, seconds: float, **calls: Callable[[], None]) -> dict[str, Timing]:
        return interleave(calls, seconds, clock=self, processor_clock=self, rest=self.rest)


def test_quartiles() -> None:
    timing = Timing.of([5.0, 1.0, 2.0, 4.0, 3.0], cores=1.5)
    assert timing == Timing(median=3.0, lower=2.0, upper=4.0, calls=5, cores=1.5)
    assert timing.spread == pytest.approx(1 / 3)


def test_slow_calls_have_a_few_rounds_each_begun_by_another() -> None:
    clock = Clock()
    timings = clock.interleave(0.5, a=clock.call("a", 2.0), b=clock.call("b", 3.0, 4.0, 5.0))
    assert timings["a"] == Timing(2.0, 2.0, 2.0, LEAST_ROUNDS, 1.0)
    # One call more, the first, is to tell how long a call is: 3, then 4 5 3 4 5.
    assert timings["b"] == Timing(4.0, 4.0, 5.0, LEAST_ROUNDS, 1.0)
    turns = "".join(clock.log).replace("rest", " ").split()
    assert turns == ["ab", "a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]


def test_short_calls_fill_a_turn_whose_first_does_not_count() -> None:
    clock = Clock()
    first_of_a_turn = [0.1] + [0.002] * 5
    timings = clock.interleave(1e9, a=clock.call("a", 0.002, *first_of_a_turn * MOST_ROUNDS))
    assert (timings["a"].median, timings["a"].upper) == pytest.approx((0.002, 0.002))
    assert timings["a"].calls == 5 * MOST_ROUNDS
    assert clock.log.count("rest") == MOST_ROUNDS


def test_rounds_end_with_the_time() -> None:
    clock = Clock()
    assert clock.interleave(6.5, a=clock.call("a", 1.0))["a"].calls == 7


def test_cores_are_processor_time_over_time() -> None:
    clock = Clock()
    timings = interleave(
        {"a": clock.call("a", 1.0)},
        0.0,
        clock=clock,
        processor_clock=lambda: 1.75 * clock.now,
        rest=clock.rest,
    )
    assert timings["a"].cores == pytest.approx(1.75)


@pytest.mark.parametrize("on", [True, False])
def test_no_garbage_is_collected_in_between(on: bool) -> None:
    clock, seen = Clock(), set()
    inner = clock.call("a", 1.0)

    def call() -> None:
        seen.add(gc.isenabled())
        inner()

    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        clock.interleave(0.0, a=call)
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == {False}


@pytest.mark.parametrize(("spinning", "slices"), [(0, 1), (3, 4), (10**6, 20)])
def test_a_turn_waits_for_idle_threads(
    spinning: int, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    monkeypatch.setattr(timing.time, "process_time", lambda: 0.005 * min(len(slept), spinning))
    timing.wait_until_idle()
    assert len(slept) == slices


def test_lengths() -> None:
    lengths = UNIFORM.draw(100, 32)
    assert lengths.dtype == np.int64
    assert sorted(lengths) == np.linspace(1, 100, 32).round().tolist()
    assert list(lengths) != sorted(lengths)
    assert list(lengths) == list(UNIFORM.draw(100, 32))
    few = sorted(FEW_FULL.draw(100, 32))
    assert few[-3:] == [100, 100, 100]
    assert (few[0], few[-4]) == (1, 10)
    assert FEW_FULL.draw(5, 1).tolist() == [5]


@pytest.mark.parametrize("percent", [5, 10, 25, 50, 75, 100])
def test_fill(percent: int) -> None:
    case = Case("fill", "forward", "lstm", 32, 100, 256, 256, lengths=filled(percent))
    assert case.fill == pytest.approx(percent / 100, abs=0.006)


def test_flops() -> None:
    step = 2 * 3 * 4 * (3 + 4)
    assert TINY.flops == 2 * 5 * step
    ragged = Case("ragged", "forward", "gru", 3, 5, 3, 4, lengths=UNIFORM)
    assert sorted(ragged.draw_lengths().tolist()) == [1, 3, 5]
    assert ragged.real_steps == 9
    assert ragged.flops == 9 * step
    both = Case("ragged", "training", "lstm", 3, 5, 3, 4, True, UNIFORM)
    assert both.flops == 9 * 2 * 3 * (step // 3 * 4)


def test_inputs() -> None:
    case = Case("ragged", "training", "lstm", 4, 6, 3, 5, True, UNIFORM)
    inputs = cases.draw(case)
    assert (inputs.x.shape, inputs.dy.shape) == ((6, 4, 3), (6, 4, 10))
    assert inputs.x.dtype == inputs.dy.dtype == np.float32
    np.testing.assert_array_equal(inputs.real.sum(axis=0), inputs.lengths)
    for array in (inputs.x, inputs.dy):
        assert np.array_equal(array != 0, np.broadcast_to(inputs.real[:, :, None], array.shape))
    np.testing.assert_array_equal(inputs.x, cases.draw(case).x)
    turned = np.take_along_axis(inputs.x, inputs.reversal(), axis=0)
    for row, length in enumerate(inputs.lengths):
        np.testing.assert_array_equal(turned[:length, row], inputs.x[:length, row][::-1])
        np.testing.assert_array_equal(turned[length:, row], 0.0)


def test_the_grid_is_there() -> None:
    names = [case.name for case in cases.every()]
    assert len(set(names)) == len(names)
    sizes = ("1,80,512,256", "1,256,16,16", "8,100,128,128", "32,100,256,256", "64,50,512,1024")
    wanted = {f"dense {{}} {mode} {each}" for mode in ("LSTM", "GRU") for each in sizes}
    wanted |= {
        f"ragged {{}} {each}"
        for each in (
            "LSTM 32,100,256,256 uniform 1..T",
            "LSTM 64,200,128,128 uniform 1..T",
            "LSTM 32,100,256,256 bidirectional uniform 1..T",
            "GRU 32,100,256,256 uniform 1..T",
            "GRU 64,200,128,128 uniform 1..T",
            "LSTM 32,100,256,256 10 % full, rest 1..T/10",
            "GRU 32,100,256,256 10 % full, rest 1..T/10",
        )
    }
    for work in ("forward", "training"):
        assert {each.format(work) for each in wanted} <= set(names)
    assert "stream stream GRU 1,256,64,64" in names
    assert {case.group for case in cases.every()} == set(cases.GROUPS)


def test_matching() -> None:
    def found(pattern: str) -> list[str]:
        return [case.name for case in cases.matching(cases.every(), pattern)]

    assert found("") == [case.name for case in cases.every()]
    assert found("STREAM") == ["stream stream GRU 1,256,64,64"]
    assert len(found("dense*lstm")) == 10
    assert found("dense forward gru 1,256,16,16") == ["dense forward GRU 1,256,16,16"]
    assert found("abacus") == []


REAL = np.array([[True, True], [True, False]])
Y = np.array([[[1.0, 2.0], [3.0, -4.0]], [[0.5, 0.0], [0.0, 0.0]]])


def differing(index: Any, value: float) -> dict[str, Any]:
    y = Y.copy()
    y[index] = value
    return {"y": y}


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        ({"y": Y}, 0.0),
        (differing((0, 1, 0), 3.5), 0.5 / 4),
        (differing((1, 1, 0), 99.0), 0.0),  # in the padding
        (differing((1, 1, 0), np.nan), 0.0),
        (differing((1, 0, 0), np.nan), np.inf),
        (differing((1, 0, 0), np.inf), np.inf),
        ({"y": Y[:1]}, np.inf),
        ({"y": Y, "x": Y}, np.inf),
        ({}, np.inf),
    ],
    ids=["same", "off", "padding", "NaN padding", "NaN", "inf", "shape", "more", "none"],
)
def test_largest_difference(theirs: dict[str, Any], difference: float) -> None:
    assert agreement.largest_difference({"y": Y}, theirs, REAL) == pytest.approx(difference)


def test_a_gradient_counts_everywhere() -> None:
    ours, theirs = np.ones((2, 2, 1)), np.ones((2, 2, 1))
    theirs[1, 1] = 1.25
    assert agreement.largest_difference({"w_ih[0]": ours}, {"w_ih[0]": theirs}, REAL) == 0.25
    zeros = {"w_ih[0]": np.zeros(3)}
    assert agreement.largest_difference(zeros, zeros, REAL) == np.inf  # nothing was computed


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "wait_until_idle", lambda: None)


class FakePeer:
    """rnnop under another name, with a change to its outputs; counts its calls."""

    def __init__(self, name: str, change: Callable[[dict[str, Any]], Any] = dict) -> None:
        self.name, self.change, self.calls = name, change, 0

    def __call__(self, inputs: Inputs, threads: int) -> list[Contender]:
        contender = ours.contenders(inputs, threads)[0]

        def call() -> Any:
            self.calls += 1
            return contender.call()

        return [Contender(self.name, call, lambda out: self.change(contender.outputs(out)))]


def wrong(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda outputs: {**outputs, key: outputs[key] * np.float32(1.001)}


def measured(case: Case, *fakes: FakePeer) -> Measurement:
    return measure(case, 1, {**loaders([]), **{fake.name: fake for fake in fakes}}, 1e-6)


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize(
    ("case", "key"),
    [(TINY, "y"), (TINY_TRAINING, "y"), (TINY_TRAINING, "x"), (TINY_TRAINING, "b_hh[0]")],
    ids=["forward", "training-y", "training-x", "training-b_hh"],
)
def test_a_peer_that_disagrees_is_not_timed(case: Case, key: str) -> None:
    good, bad = FakePeer("good"), FakePeer("bad", wrong(key))
    result = measured(case, good, bad)
    assert bad.calls == 1
    assert result.results["bad"].timing is None
    assert result.results["bad"].difference == pytest.approx(1e-3, rel=0.01)
    assert list(result.failures) == ["bad"]
    assert result.failures["bad"].startswith("its outputs differ from rnnop's by 0.001 of")
    assert good.calls > LEAST_ROUNDS
    assert result.best_peer == "good"
    assert result.ratio() is not None
    for name in (OURS, "good"):
        assert result.results[name].difference == 0.0
        assert result.results[name].timing is not None


@pytest.mark.usefixtures("no_rest")
def test_a_peer_with_nan_is_not_timed_and_the_json_is_valid() -> None:
    def spoil(outputs: dict[str, Any]) -> dict[str, Any]:
        return {"y": outputs["y"] * np.float32(np.nan)}

    result = measured(TINY, FakePeer("bad", spoil))
    assert result.results["bad"].timing is None
    assert result.failures["bad"].startswith("its outputs differ from rnnop's by inf of")
    run = Run({}, {}, [], [Setting(1, 1e9, "cpu", [], None)], [result])
    json.dumps(run.to_json(), allow_nan=False)


@pytest.mark.usefixtures("no_rest")
def test_a_peer_that_raises_is_reported() -> None:
    def refuse(outputs: Any) -> Any:
        raise ValueError("no\n  such thing")

    result = measured(TINY, FakePeer("broken", refuse), FakePeer("good"))
    assert result.failures == {"broken": "ValueError: no such thing"}
    assert result.best_peer == "good"


def test_nothing_is_timed_when_rnnop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    good = FakePeer("good")
    monkeypatch.setenv("RNNOP_BACKEND", "abacus")
    result = measured(TINY, good)
    assert list(result.results) == [OURS]
    assert "RNNOP_BACKEND is 'abacus'" in result.failures[OURS]
    assert (good.calls, result.ratio(), result.flops_per_second) == (0, None, None)


def test_ratio_is_that_of_the_best_peer() -> None:
    def took(seconds: float) -> Result:
        return Result(Timing(seconds, seconds, seconds, 5, 1.0), 0.0)

    results = {
        OURS: took(2.0),
        f"{OURS}, prepacked": took(0.5),
        "slow": took(9.0),
        "fast": took(3.0),
        "wrong": Result(failure="wrong"),
    }
    measurement = Measurement(TINY, 1, results)
    assert measurement.best_peer == "fast"
    assert measurement.ratio() == 1.5
    assert measurement.ratio(f"{OURS}, prepacked") == 6.0
    assert measurement.flops_per_second == TINY.flops / 2.0


@pytest.mark.usefixtures("no_rest")
def test_the_peers_that_are_installed_agree() -> None:
    """Every way of every peer, on the problem that has most ways to go wrong."""
    here = loaders(peer for peer in PEERS if peer.installed)
    ways = set()
    for mode in ("lstm", "gru"):
        for work in ("forward", "training"):
            case = Case("ragged", work, mode, 4, 6, 3, 5, True, UNIFORM)
            result = measure(case, 1, here, 1e-6)
            assert result.failures == {}
            ways |= result.results.keys()
    streamed = measure(Case("stream", "stream", "gru", 1, 4, 3, 5), 1, here, 1e-6)
    assert streamed.failures == {}
    sequences = here.keys() - {"TorchRL"}
    assert streamed.results.keys() == sequences
    expected = {OURS, f"{OURS}, prepacked", *sequences}
    assert ways == expected | ({"PyTorch, packed"} if "PyTorch" in here else set())


@pytest.mark.slow
@pytest.mark.usefixtures("no_rest")
@pytest.mark.filterwarnings("ignore")  # of TorchRL and torch.compile, each of its own insides
@pytest.mark.parametrize("work", ["forward", "training"])
@pytest.mark.parametrize("form", ["rollout", "observe", "imagine"])
def test_the_peers_of_the_rssm_agree(form: str, work: str) -> None:
    here = loaders(peer for peer in PEERS if peer.installed)
    result = measure(RSSMCase("rssm", work, form, 3, 4, 8, 5), 1, here, 1e-6)
    assert result.failures == {}
    torchrl = {"TorchRL", "TorchRL, compiled"} if "TorchRL" in here else set()
    assert result.results.keys() == {OURS} | (here.keys() & {"JAX"}) | torchrl


def test_a_wrong_gradient_of_an_rssm_is_seen() -> None:
    case = RSSMCase("rssm", "training", "observe", 3, 4, 8, 5)
    inputs = cases.draw(case)
    ours = OURSELVES.contenders(inputs, 1)[0]
    outputs = ours.outputs(ours.call())
    arrays = {"dstate", "dbelief", "dactions", "dembeds", "dposterior[1].b", "dgru.w_hh[0]"}
    assert arrays | {"prior_mean", "posterior_std", "state", "belief"} <= outputs.keys()
    for name, array in outputs.items():
        off = {**outputs, name: array * 1.001}
        assert 1e-4 < agreement.largest_difference(outputs, off, inputs.real) < 2e-3


def test_flops_of_an_rssm() -> None:
    N, T, H, S, A = 3, 5, 8, 6, cases.rssm.ACTION_SIZE
    step = 2 * (H * (S + A) + 3 * H * (H + H) + H * H + 2 * S * H)

    def flops(form: str, work: str = "forward") -> int:
        return RSSMCase("rssm", work, form, N, T, H, S).flops

    assert flops("rollout") == N * T * step
    assert flops("rollout", "training") == 3 * N * T * step
    assert flops("observe") == N * T * (step + 2 * (H * 2 * H + 2 * S * H))
    width = cases.rssm.ACTOR_WIDTH
    assert flops("imagine") == N * T * (step + 2 * width * (S + H + A))


def tell(name: str) -> Iterator[Any]:
    yield os.environ[name]
    yield os.getpid()


def fail() -> Iterator[int]:
    yield 1
    raise ValueError("on purpose")


def test_a_fresh_process_begins_with_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    threads, process = run_in_fresh_process(3, tell, "OMP_NUM_THREADS")
    assert threads == "3"
    assert process != os.getpid()
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "5")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    before = dict(os.environ)
    with environment(2):
        assert os.environ["NPROC"] == os.environ["RNNOP_NUM_THREADS"] == "2"
        assert os.environ["JAX_PLATFORMS"] == "cpu"
    assert dict(os.environ) == before


def test_a_process_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    items = run_in_fresh_process(1, fail)
    assert next(items) == 1  # what came before the error is not lost
    with pytest.raises(RnnopError, match="the process that runs fail has ended with 1"):
        next(items)
    assert "on purpose" in capfd.readouterr().err


def test_memory_of_a_call() -> None:
    """A call that takes 40 MiB and returns 8 of them; measured in this process."""
    if not memory.measurable():
        assert sys.platform != "linux"
        return

    def load(inputs: Inputs, threads: int) -> list[Contender]:
        def call() -> Any:
            np.ones(32 << 17)
            return np.ones(8 << 17)

        return [Contender("greedy", call, lambda y: {"y": y})]

    (footprint,) = memory.footprint(TINY, 1, load, 0)
    assert footprint.contender == "greedy"
    assert footprint.results == 8 << 20
    assert 31 << 20 < footprint.peak < 45 << 20
    assert list(memory.contenders(TINY, 1, {"a": load, "b": load})) == [("a", 0), ("b", 0)]


TABLE = Table("Title", ["", "a", "b"], [["first", "1", "22"], ["2", "333", ""]], {1})


def test_table_text() -> None:
    assert TABLE.text(colour=False) == "\n".join(
        [
            "Title",
            "         a   b",
            "first    1  22",
            "2      333 *",
        ]
    )
    assert TABLE.text(colour=True) == "\n".join(
        [
            "\x1b[1mTitle\x1b[0m",
            "         a   b",
            "first    1  22",
            "\x1b[33m2      333\x1b[0m",
        ]
    )


def test_table_markdown() -> None:
    assert TABLE.markdown() == "\n".join(
        [
            "## Title",
            "",
            "|  | a | b |",
            "| --- | ---: | ---: |",
            "| first | 1 | 22 |",
            "| **2** | 333 |  |",
        ]
    )


def made_up() -> Run:
    """Return a run of every group, with a loss, a failure and a busy machine."""

    def took(milliseconds: float, cores: float = 1.0) -> Result:
        seconds = milliseconds / 1e3
        return Result(Timing(seconds, 0.9 * seconds, 1.1 * seconds, 9, cores), 1e-6)

    def results(mine: float, theirs: float) -> dict[str, Result]:
        return {OURS: took(mine), f"{OURS}, prepacked": took(mine), "PyTorch": took(theirs)}

    run = Run(machine.describe(), {"rnnop": rnnop.__version__}, missing=["JAX"])
    run.settings.append(Setting(1, 1e9, "cpu (avx2, 1 thread)", ["openblas"], busy_cores=0.7))
    for case in cases.every():
        if case.group != "memory":
            factor = 0.5 if case.name == "dense forward LSTM 1,256,16,16" else 2.0
            mine = 1.0 if case.work == "stream" else 1e3 * case.flops / 0.5e9
            run.measurements.append(Measurement(case, 1, results(mine, factor * mine)))
        else:
            for name, size in ((OURS, 3), ("PyTorch", 5)):
                run.footprints.append(Footprint(case, 1, name, size << 20, 1 << 20))
    run.measurements[0].results["ONNX Runtime"] = Result(None, 0.5, "it is wrong")
    run.measurements[1].results["JAX"] = took(1e9, cores=1.9)
    return run


def test_text_of_a_run() -> None:
    shown = report.text(made_up(), colour=False)
    lines = shown.splitlines()
    squeezed = [" ".join(line.split()) for line in lines]
    assert "Dense batches, forward, 1 thread 10 0.50 1.74 2.00 1 *" in squeezed
    assert "Ragged batches, training, 1 thread 7 2.00 2.00 2.00 0" in squeezed
    first = next(line for line in lines if line.startswith("LSTM 1,80,512,256"))
    assert " ".join(first.split()[2:]) == "252 ±10 % 252 ±10 % 503 ±10 % failed 2.00 0.5 50 %"
    large = next(line for line in lines if line.startswith("LSTM 32,100,256,256 "))
    assert large.split()[2] == "6711"
    lost = [line for line in lines if line.endswith("*")]
    assert [line.split()[0] for line in lost] == ["Dense", "LSTM"]
    stream = next(line for line in lines if line.startswith("GRU 1,256,64,64"))
    assert stream.split()[2:4] == ["3.91", "±10"]  # microseconds: 1 ms for 256 steps
    weighed = [line for line in lines if line.startswith("LSTM 32,100,256,256, training")]
    assert weighed[0].split()[-3:] == ["1.0", "3.0", "5.0"]
    for note in (
        "Not installed here: JAX.",
        "1 thread: others kept 0.7 cores busy before the first measurement: the figures are noisy.",
        "Not timed: dense forward LSTM 1,80,512,256, threads: 1: ONNX Runtime: it is wrong.",
        "dense forward LSTM 1,256,16,16: JAX kept 1.9 cores busy, with 1 thread.",
    ):
        assert note in lines


def test_a_quiet_run_has_no_complaints() -> None:
    run = Run(machine.describe(), {}, missing=[])
    run.settings.append(Setting(2, 1e9, "cpu", [], busy_cores=0.05))
    assert len(report.notes(run)) == 1
    assert report.tables(run) == []


def test_files_of_a_run(tmp_path: Path) -> None:
    run = made_up()
    bench.write(run, tmp_path / "new" / "folder")
    found = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    plots = ["ratios.png", "fill.png", "scaling.png", "rssm.png"]
    assert sorted(found) == sorted(["results.json", "results.md", *plots])
    for name in plots:
        content = found[name].read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 20_000  # an empty figure has a few thousand bytes
    page = found["results.md"].read_text()
    assert all(f"]({name})" in page for name in plots)
    assert "| **LSTM 1,256,16,16** | " in page
    assert str(tmp_path) not in page

    data = json.loads(found["results.json"].read_text())
    assert data["settings"][0]["peak"] == 1e9
    by_name = {each["name"]: each for each in data["measurements"]}
    lost = by_name["dense forward LSTM 1,256,16,16"]
    assert lost["ratio"] == pytest.approx(0.5)
    assert lost["best_peer"] == "PyTorch"
    assert lost["share_of_peak"] == pytest.approx(0.5)
    assert lost["case"]["hidden_size"] == 16
    assert lost["results"]["PyTorch"]["timing"]["calls"] == 9
    half = by_name["fill training LSTM 32,100,256,256 50 % real"]
    assert half["flops"] == half["real_steps"] * 3 * 2 * 4 * 256 * 512
    wrong = by_name["dense forward LSTM 1,80,512,256"]["results"]["ONNX Runtime"]
    assert wrong == {"timing": None, "difference": 0.5, "failure": "it is wrong"}
    assert data["footprints"][0]["peak"] == 3 << 20


def test_no_plot_without_figures(tmp_path: Path) -> None:
    assert figures.draw(Run({}, {}, []), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole on cases of a few steps, without peers, in processes as a user's run has them."""
    small = [TINY, TINY_TRAINING, Case("memory", "forward", "gru", 2, 5, 3, 4)]
    monkeypatch.setattr(cases, "quick", lambda: small)
    arguments = ["bench", "--quick", "--peers", "none", "--threads", "1", "--seconds", "1e-6"]
    assert main([*arguments, "--json", "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data == json.loads((tmp_path / "results.json").read_text())
    assert [each["name"] for each in data["measurements"]] == [TINY.name, TINY_TRAINING.name]
    for each in data["measurements"]:
        assert each["threads"] == 1
        assert each["ratio"] is None
        assert each["results"][OURS]["timing"]["median"] > 0
    assert data["settings"][0]["backend"].startswith(("cpu", "reference"))
    assert data["settings"][0]["peak"] > 0
    assert data["versions"] == {"rnnop": rnnop.__version__}
    if memory.measurable():
        names = [each["contender"] for each in data["footprints"]]
        assert names == [OURS, f"{OURS}, prepacked"]
    steps = [line for line in err.splitlines() if line.startswith("case 1/")]
    assert steps == [f"case 1/{2 + memory.measurable()}  {TINY.name}, 1 thread"]


def test_curves_and_memory_are_measured_on_the_most_threads_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(threads: int, function: Any, *arguments: Any) -> Iterator[Any]:
        started.append((threads, function.__name__))
        if function is plan._measurements:
            yield Setting(threads, 1e9, "cpu", [], None)
            yield from (Measurement(case, threads) for case in arguments[0])
        elif function is memory.contenders:
            yield from [(OURS, 0), (OURS, 1)]
        else:
            yield Footprint(arguments[0], threads, f"{OURS} {arguments[3]}", 2, 1)

    started: list[tuple[int, str]] = []
    told: list[str] = []
    monkeypatch.setattr(plan, "run_in_fresh_process", run)
    monkeypatch.setattr(plan, "measurable", lambda: True)
    curve = Case("scale T", "forward", "gru", 2, 5, 3, 4)
    weighed = Case("memory", "forward", "gru", 2, 5, 3, 4)
    wanted = plan.Plan([TINY, curve, weighed], [1, 2], [], 1.0)
    found = plan.collect(wanted, told.append)
    timed = [(each.threads, each.case) for each in found.measurements]
    assert timed == [(1, TINY), (2, TINY), (2, curve)]
    assert [each.threads for each in found.settings] == [1, 2]
    assert [(each.threads, each.contender) for each in found.footprints] == [
        (2, f"{OURS} 0"),
        (2, f"{OURS} 1"),
    ]
    assert len(told) == wanted.num_steps() == 4
    assert [threads for threads, _ in started] == [1, 2, 2, 2, 2]

    monkeypatch.setattr(plan, "measurable", lambda: False)
    assert wanted.num_steps() == 3
    assert plan.collect(wanted, told.append).footprints == []


@pytest.mark.parametrize("terminal", [True, False])
def test_command_as_text(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    def run(wanted: plan.Plan, progress: Callable[[str], None]) -> Run:
        assert wanted.num_steps() == 1
        progress("a case")
        found = made_up()
        del found.measurements[0].results["ONNX Runtime"]
        return found

    out, err = Stream(), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(bench, "collect", run)
    only = ["--only", "dense forward gru 1,256,16,16", "--threads", "1", "--peers", "none"]
    assert main(["bench", *only]) == 0
    assert "Dense batches, forward, 1 thread (ms)" in out.getvalue()
    assert ("\x1b[33mLSTM 1,256,16,16" in out.getvalue()) == terminal
    assert ("\x1b" in out.getvalue()) == terminal
    assert ("1/1  a case" in err.getvalue()) == (not terminal)
    assert "1/1" in err.getvalue()


def test_a_failure_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "collect", lambda wanted, progress: made_up())
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--peers", "none"])
    assert stop.value.code == 1
    assert "it is wrong" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--only", "dense training"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert main(["bench", "--list", "--only", "dense training", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == lines


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(arguments)


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.Peer, "installed", True)
    chosen = options("--threads", "4, 1,4", "--peers", "jax,PyTorch", "--seconds", "0.5")
    assert chosen.threads == [1, 4]
    assert [peer.name for peer in chosen.peers] == ["JAX", "PyTorch"]
    assert chosen.seconds == 0.5
    assert options("--peers", "none").peers == []
    assert options().peers is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--threads", "0"], "--threads: '0' is not one or more counts such as 1,2"),
        (["--threads", "1,,2"], "--threads: '1,,2' is not one or more counts such as 1,2"),
        (["--seconds", "0"], "--seconds: '0' is not a positive number of seconds"),
        (["--seconds", "inf"], "--seconds: 'inf' is not a positive number of seconds"),
        (["--seconds", "soon"], "--seconds: 'soon' is not a positive number of seconds"),
        (
            ["--peers", "abacus"],
            "--peers: 'abacus' is none of PyTorch, ONNX Runtime, JAX, TorchRL, none",
        ),
        (["--peers", "JAX"], '--peers: JAX is not installed: pip install "rnnop[jax]"'),
    ],
    ids=lambda value: "-".join(value)[2:] if isinstance(value, list) else "",
)
def test_wrong_options(
    arguments: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(peers.Peer, "installed", False)
    with pytest.raises(SystemExit) as stop:
        options(*arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {reason}")


def test_no_such_case() -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--only", "abacus"])
    assert stop.value.code == "rnnop: no case has 'abacus' in its name; see --list"


@pytest.mark.parametrize("package", ["tqdm", "threadpoolctl", "matplotlib"])
def test_missing_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--quick", "--output", str(tmp_path / "new")])
    assert stop.value.code == (
        f'rnnop: {package} is missing; install it with: pip install "rnnop[bench]"'
    )
    assert list(tmp_path.iterdir()) == []


def test_importing_the_command_imports_no_peer() -> None:
    (loaded,) = run_in_fresh_process(1, imported_with_the_command)
    assert loaded == []


def imported_with_the_command() -> Iterator[list[str]]:
    found = {"torch", "onnx", "onnxruntime", "jax", "matplotlib", "tqdm"} & sys.modules.keys()
    yield sorted(found)


def test_machine() -> None:
    about = machine.describe()
    assert about["processor"]
    assert about["cores"] == engine.available_cores() >= 1
    assert json.loads(json.dumps(about)) == about
    slug = machine.slug()
    assert slug == slug.lower()
    assert slug.replace("-", "").isalnum()
    assert not slug.startswith("-")


def test_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 cores, 200 ticks each while asleep: 100 + 500 idle of 800, so one quarter is busy."""
    times = iter([(1000, 5000), (1600, 5800)])
    monkeypatch.setattr(machine, "_processor_times", lambda: next(times))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    assert machine.busy_cores(0.0) == pytest.approx(1.0)
    monkeypatch.setattr(machine, "_processor_times", lambda: None)
    assert machine.busy_cores(0.0) is None
