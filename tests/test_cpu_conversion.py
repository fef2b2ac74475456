"""Float32 data through products of bfloat16, which RNNOP_TENSOR_OP_ALLOW_CONVERSION allows.

It needs no machine with the instruction. The engine's own source is compiled here with the dot
product spelled out, as Intel documents it; an engine of the machine's own is tested beside it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from agreement import Results, assert_right, results
from cases import CORE, TINY, WIDE, Call, Case, arrays_of, wide_cotangents, widened
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpu import CELLS, ISAS, bits, every, work
from test_cpu import results as arrays

import rnnop
from rnnop.cli import info
from rnnop.cli.selfcheck.cases import grid
from rnnop.cli.selfcheck.compare import check
from rnnop.cli.selfcheck.runners import Runner
from rnnop.cpu import engine
from rnnop.tolerances import TOLERANCES, error

Array = np.ndarray[Any, np.dtype[Any]]

CASES = [case for case in CORE + WIDE + TINY if "activations" not in case.features]
SWITCH = "RNNOP_TENSOR_OP_ALLOW_CONVERSION"
COMPILER = os.environ.get("CC", "cc")
KERNELS = Path(engine.__file__).parent / "kernels"
BUILDS = {"spelled16": ["-DVECTOR_BYTES=16"]}
if "avx2" in ISAS:
    BUILDS["spelled32"] = ["-DVECTOR_BYTES=32", "-mavx2", "-mfma"]
REAL = [isa for isa in ISAS if isa in ("avx512bf16", "neonbf16")]


@functools.cache
def compiled(build: str) -> engine.Engine:
    """Return an engine whose dot product of bfloat16 is spelled out."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"the engine needs a C compiler, and there is no {COMPILER!r}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{build}.so"
        flags = ["-std=c11", "-O1", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"]
        flags += ["-pthread", "-fPIC", "-shared", "-DSPELLED_BF16", *BUILDS[build]]
        sources = (KERNELS / name for name in ("engine.c", "threads.c"))
        subprocess.run([COMPILER, *flags, *sources, "-o", path], check=True)
        return engine.Engine(build, path)


@pytest.fixture(params=[*BUILDS, *REAL], name="build")
def use_build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have calls run on an engine that has the dot product, with the switch on."""
    name: str = request.param
    chosen = compiled(name) if name in BUILDS else engine.load(name)
    monkeypatch.setattr(engine, "engine", lambda: chosen)
    monkeypatch.setenv(SWITCH, "1")
    return name


# The reference with the same operands rounded, in float64


def rounded(array: Array) -> Array:
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float64)


class Rounding(np.ndarray):
    """Weights whose products with rows round both."""

    def __rmatmul__(self, rows: Any) -> Any:
        return rounded(rows) @ rounded(self)


class InputWeights(np.ndarray):
    """Weights of the input: the forward, which transposes them, rounds, and the backward not."""

    @property
    def T(self) -> Any:
        return np.asarray(self).T.view(Rounding)

    def __rmatmul__(self, rows: Any) -> Any:
        return np.asarray(rows) @ np.asarray(self)


def rounding_reference(call: Call, cotangents: dict[str, Any]) -> Results:
    """Return what the reference makes of a call, with products that round as the engine's do."""
    wide = widened(call)
    leaves = wide.leaves()
    for name, kind in (("w_ih", InputWeights), ("w_hh", Rounding), ("w_hr", Rounding)):
        if name in leaves:
            leaves[name] = [array.view(kind) for array in leaves[name]]
    return results(wide.with_leaves(leaves), wide_cotangents(cotangents), "reference")


# The product itself


def dot(x: Array, w: Array) -> Array:
    """Return x w' for float32 x (N, I) and w (H, I), number by number as VDPBF16PS adds them.

    A sum of float32 and a product of two bfloat16, both exact in float64, is rounded once.
    """
    pairs = [np.pad(rounded(each), ((0, 0), (0, each.shape[1] % 2))) for each in (x, w)]
    total = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, pairs[0].shape[1], 2):
        for k in (first + 1, first):
            terms = np.multiply.outer(pairs[0][:, k], pairs[1][:, k])
            total = (total.astype(np.float64) + terms).astype(np.float32)
    return total


def identity(x: Array, w: Array) -> Array:
    """Return x w' as the engine multiplies, and 0 for what is negative."""
    weights = rnnop.RNNWeights((w,), (np.zeros((len(w), len(w)), np.float32),))
    return rnnop.rnn(x[None], weights, mode="rnn_relu", backend="cpu").y[0]


@pytest.mark.parametrize("build", BUILDS)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_product_rounds_its_operands_and_adds_them_in_the_documented_order(
    build: str, data: st.DataObject
) -> None:
    rows, depth, columns = (data.draw(st.integers(1, most)) for most in (9, 150, 70))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = random.standard_normal((rows, depth), np.float32)
    w = random.standard_normal((columns, depth), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        chosen = compiled(build)
        patch.setattr(engine, "engine", lambda: chosen)
        patch.setenv(SWITCH, "1")
        got = identity(x, w)
    assert np.array_equal(got, np.maximum(dot(x, w), 0))


def test_operands_are_rounded_to_the_nearest_and_to_even(build: str) -> None:
    unit = np.float32(2) ** -7  # between two neighbours from 1 to 2 in bfloat16
    x = (1 + unit * np.array([0.49, 0.5, 0.51, 1.49, 1.5, 1.51], np.float32))[:, None]
    steps = np.array([0, 0, 1, 1, 2, 2], np.float32)
    assert np.array_equal(identity(x, np.ones((1, 1), np.float32))[:, 0], 1 + unit * steps)


def test_numbers_too_small_to_be_normal_are_zero(build: str) -> None:
    least = np.finfo(np.float32).tiny
    one = np.ones((1, 1), np.float32)
    found = [identity(np.full((1, 1), each, np.float32), one) for each in (least, least / 2)]
    assert found[0] == least
    assert found[1] == 0
    half = np.full((1, 1), 0.5, np.float32)
    assert identity(np.full((1, 1), least, np.float32), half) == 0
    most = np.finfo(np.float32).max  # nearer to what would follow than to the largest bfloat16
    assert identity(np.full((1, 1), most, np.float32), one) == np.inf


# Whole networks


@every(CASES)
def test_all_results_are_those_of_rounded_operands(case: Case, build: str) -> None:
    """The worst was 1.1e-3, where float32 and float64 round a state to different neighbours."""
    call, cotangents = case.call("float32"), case.cotangents("float32")
    got, wanted = results(call, cotangents, "cpu"), rounding_reference(call, cotangents)
    assert got.keys() == wanted.keys()
    for name, right in wanted.items():
        finite = np.isfinite(right)
        assert np.array_equal(np.isfinite(got[name]), finite), name
        pair = [np.where(finite, each, 0.0).astype(np.float64) for each in (got[name], right)]
        assert error(*pair, "float32") <= 4e-3, name


def smooth(case: Case) -> bool:
    """Say whether no gradient jumps: where one does, rounding may carry a sum across the edge."""
    return case.mode != "rnn_relu" and not any("clip" in name for name in case.features)


@every([case for case in CASES if smooth(case)])
def test_all_results_are_near_the_references(case: Case, build: str) -> None:
    call, cotangents = (
        case.call("float32", masked=np.nan),
        case.cotangents("float32", masked=np.nan),
    )
    assert_right(call, cotangents, "cpu", "float32", tolerance="cpu_bfloat16_products")


@every([case for case in CASES if case in CORE])
def test_inference_gives_what_training_gives(case: Case, build: str) -> None:
    call = case.call("float32")
    assert bits(arrays_of(call.rnn(backend="cpu"))) == bits(
        arrays_of(call.rnn_vjp(backend="cpu")[0])
    )


def bits_of(call: Call, cotangents: dict[str, Any]) -> list[bytes]:
    return bits(arrays(call, cotangents, "cpu"))


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("cell", CELLS)
def test_results_depend_neither_on_threads_nor_on_other_rows(
    cell: str, batch_size: int, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, cotangents = work(cell, batch_size, hidden_size=165)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setenv("RNNOP_NUM_THREADS", str(threads))
        found.append(bits_of(call, cotangents))
    assert all(each == found[0] for each in found)
    whole = call.rnn(backend="cpu")
    for row, length in enumerate(call.options["lengths"]):
        options = {**call.options, "lengths": [length]}
        alone = rnnop.rnn(call.x[:, [row]], call.weights, backend="cpu", **options)
        assert whole.y[:, row].tobytes() == alone.y[:, 0].tobytes()


@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_tanh", "rnn_relu"])
def test_infinity_gives_the_limit_and_nan_stays_in_its_row(mode: str, build: str) -> None:
    weights = rnnop.init_weights(mode, input_size=3, hidden_size=19, seed=0)
    x = np.random.default_rng(0).standard_normal((5, 6, 3), np.float32)
    x[1, 1] = np.array(0x7F800001, np.uint32).view(np.float32)  # its payload is cut off
    x[2, 2] = np.inf
    x[2, 3] = -np.inf
    x[0, 4] = 1e30
    options = {"mode": mode, "backend": "cpu"}
    got, wanted = rnnop.rnn(x, weights, **options), rnnop.rnn(x, weights, mode=mode)
    for row in (0, 2, 3, 4, 5):
        assert np.array_equal(np.isnan(got.y[:, row]), np.isnan(wanted.y[:, row]))
    assert np.isnan(got.y[1:, 1]).all()
    assert np.isfinite(got.y[0, 1]).all()


def test_the_selfcheck_compares_what_does_not_jump(build: str) -> None:
    runner = Runner("cpu", dtypes=("float32",))
    cases = [each for each in grid() if each.stack == "1 layer"]
    (found,) = check(cases, [runner], ["float32"], lambda _: None)
    assert found.tolerance == TOLERANCES["cpu_bfloat16_products", "float32"]
    assert not found.misses
    assert 0 < found.calls < len(cases)
    assert max(found.errors["y"]) > TOLERANCES["cpu", "float32"]


# The switch


def gru(dtype: Any = np.float32) -> tuple[Call, dict[str, Any]]:
    weights = rnnop.init_weights(
        "gru", input_size=5, hidden_size=21, num_layers=2, seed=3, dtype=dtype
    )
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(dtype)
    return Call(x, weights, None, None, {"mode": "gru"}), {"dy": np.ones((4, 3, 21), dtype)}


def test_the_switch_is_read_at_each_call(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, cotangents = gru()
    packed = rnnop.prepack(call.weights, mode="gru", backend="cpu")
    again = Call(call.x, packed, None, None, call.options)  # type: ignore[arg-type]
    found: dict[tuple[str, str], list[bytes]] = {}
    for allowed, cores in [("1", "1"), ("0", "1"), ("1", "0"), ("0", "0")] * 2:
        monkeypatch.setenv(SWITCH, allowed)
        monkeypatch.setenv("RNNOP_ALLOW_TENSOR_CORE", cores)
        here = bits_of(call, cotangents)
        assert bits_of(again, cotangents) == here
        for _ in range(3):
            assert again.rnn(backend="cpu").y.tobytes() == here[0]
        assert found.setdefault((allowed, cores), here) == here
        assert ("bfloat16 products" in str(rnnop.explain(call.x, call.weights))) == (
            allowed == cores == "1"
        )
    assert found["0", "1"] == found["1", "0"] == found["0", "0"]
    assert found["1", "1"] != found["0", "1"]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_data_is_not_rounded(dtype: Any, build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, cotangents = gru(dtype)
    allowed = bits_of(call, cotangents)
    monkeypatch.setenv(SWITCH, "0")
    assert bits_of(call, cotangents) == allowed


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in REAL])
def test_without_the_instruction_the_switch_does_nothing_and_it_is_said(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CPU_ISA", isa)
    call, cotangents = gru()
    strict = bits_of(call, cotangents)
    monkeypatch.setenv(SWITCH, "1")
    assert bits_of(call, cotangents) == strict
    assert "no bfloat16 products" in str(rnnop.explain(call.x, call.weights))
    assert info.describe()["engine"]["bfloat16"] is False
