"""The stand-in for libcudnn itself: hand-worked numbers, torch.nn, finite differences, refusals."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cudnn_double.driver import (
    BATCH_MAJOR,
    BFLOAT16,
    DOUBLE,
    DOUBLE_BIAS,
    DTYPES,
    FLOAT,
    GATES,
    GRU,
    HALF,
    INFERENCE,
    INP_BIAS,
    LSTM,
    NO_BIAS,
    PACKED,
    PROTOTYPES,
    REC_BIAS,
    RELU,
    SEQ_MAJOR,
    TANH,
    TRAINING,
    Double,
    Problem,
    Session,
    Tensors,
    address,
    restore,
    space,
)

VERSIONS = ("9.28.0", "9.1.0", "8.9.7")


@pytest.fixture(scope="module")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Double]:
    made: dict[str, Double] = {}

    def get(version: str) -> Double:
        if version not in made:
            made[version] = Double(tmp_path_factory.mktemp(f"cudnn-{version}"), version)
        return made[version]

    return get


@pytest.fixture
def double(doubles: Callable[[str], Double]) -> Double:
    return doubles("9.28.0")


@pytest.fixture(params=VERSIONS)
def any_double(request: pytest.FixtureRequest, doubles: Callable[[str], Double]) -> Double:
    return doubles(request.param)


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CUDNN_DOUBLE_")]:
        monkeypatch.delenv(name)


def run(double: Double, problem: Problem, tensors: Tensors) -> dict[str, np.ndarray]:
    """Forward and both backward passes."""
    session = Session(double, problem)
    results = session.forward(tensors) | session.backward(tensors)
    session.close()
    return results


# ---- torch.nn ------------------------------------------------------------------------------------


def torch_module(problem: Problem) -> Any:
    nn = pytest.importorskip("torch.nn", reason="torch.nn is the oracle: pip install rnnop[torch]")
    options: dict[str, Any] = {
        "num_layers": problem.L,
        "bidirectional": problem.D == 2,
        "bias": problem.bias == DOUBLE_BIAS,
    }
    if problem.mode in (RELU, TANH):
        options["nonlinearity"] = "relu" if problem.mode == RELU else "tanh"
    if problem.P < problem.H:
        options["proj_size"] = problem.P
    kind = {LSTM: nn.LSTM, GRU: nn.GRU}.get(problem.mode, nn.RNN)
    return kind(problem.I, problem.H, **options).double()


def weight_space(module: Any) -> list[Any]:
    """Torch's parameters in the order of the weight space: all matrices, then all biases."""
    named = list(module.named_parameters())
    return [p for name, p in named if "bias" not in name] + [p for n, p in named if "bias" in n]


def torch_run(problem: Problem, tensors: Tensors) -> dict[str, np.ndarray]:
    module = torch_module(problem)
    import torch

    parameters = weight_space(module)
    split = np.split(tensors.weights, np.cumsum([p.numel() for p in parameters])[:-1])
    with torch.no_grad():
        for parameter, values in zip(parameters, split, strict=True):
            parameter.copy_(torch.from_numpy(values.copy()).reshape(parameter.shape))
    leaf = {
        name: torch.from_numpy(np.nan_to_num(getattr(tensors, name))).requires_grad_()
        for name in ("x", "hx", "cx")
    }
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        leaf["x"], torch.tensor(problem.lengths), enforce_sorted=False
    )
    state = (leaf["hx"], leaf["cx"]) if problem.mode == LSTM else leaf["hx"]
    y, last = module(packed, state)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=problem.T)
    hy, cy = last if problem.mode == LSTM else (last, None)
    loss = (y * torch.from_numpy(np.nan_to_num(tensors.dy))).sum()
    loss = loss + (hy * torch.from_numpy(tensors.dhy)).sum()
    if cy is not None:
        loss = loss + (cy * torch.from_numpy(tensors.dcy)).sum()
    loss.backward()
    results = {"y": y, "hy": hy, "dx": leaf["x"].grad, "dhx": leaf["hx"].grad}
    if cy is not None:
        results |= {"cy": cy, "dcx": leaf["cx"].grad}
    results["dw"] = torch.cat([p.grad.flatten() for p in parameters])
    return {name: value.detach().numpy() for name, value in results.items()}


def assert_same(
    got: dict[str, np.ndarray], wanted: dict[str, np.ndarray], problem: Problem, tolerance: float
) -> None:
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        rows = problem.valid if name in ("x", "y", "dx", "dy") else np.ones(value.shape, bool)
        np.testing.assert_allclose(
            value[rows].astype(float), wanted[name][rows], tolerance, tolerance, err_msg=name
        )


PROBLEMS = {
    f"{name}{'-bi' if D == 2 else ''}-L{L}-{shape}": Problem(
        mode, P=P, L=L, D=D, lengths=lengths, layout=layout
    )
    for name, mode, P in [
        ("relu", RELU, 4), ("tanh", TANH, 4), ("gru", GRU, 4), ("lstm", LSTM, 4), ("proj", LSTM, 3),
    ]
    for D in (1, 2)
    for L in (1, 3)
    for shape, layout, lengths in [
        ("equal", SEQ_MAJOR, (5, 5)),
        ("ragged", SEQ_MAJOR, (2, 5, 1, 4)),
        ("batch-major", BATCH_MAJOR, (3, 5, 4)),
        ("packed", PACKED, (5, 4, 4, 1)),
    ]
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_equals_torch(double: Double, problem: Problem) -> None:
    tensors = Tensors.random(problem)
    assert_same(run(double, problem, tensors), torch_run(problem, tensors), problem, 1e-11)


# ---- hand-worked numbers -------------------------------------------------------------------------


def scalar(double: Double, mode: int, weights: list[float], x: list[float], h: float, c: float):
    """One sequence, one input, one unit: y of each step, and c_n."""
    problem = Problem(mode, I=1, H=1, P=1, lengths=(len(x),))
    tensors = Tensors(
        np.array(x, float).reshape(-1, 1, 1),
        np.array(weights, float),
        np.full((1, 1, 1), float(h)),
        np.full((1, 1, 1), float(c)),
        *[None] * 3,
    )
    session = Session(double, problem)
    results = session.forward(tensors)
    session.close()
    return results["y"].ravel().tolist(), float(session.cy.item())


def test_relu_by_hand(double: Double) -> None:
    # W = 2, R = -1, biases 0.5 and 0.25: 2 - 3 + 0.75 < 0, then 4 - 0 + 0.75.
    y, _ = scalar(double, RELU, [2, -1, 0.5, 0.25], [1, 2], 3, 0)
    assert y == [0, 4.75]


def test_tanh_by_hand(double: Double) -> None:
    y, _ = scalar(double, TANH, [0, 0, math.log(2), 0], [5], 7, 0)
    assert y == pytest.approx([0.6], rel=1e-15)


def test_lstm_by_hand(double: Double) -> None:
    # Matrices are zero; i = f = o = 1/2 and the new cell value is 0.6: c = 1/2 + 0.3.
    biases = [0, 0, math.log(2), 0, 0, 0, 0, 0]
    y, c = scalar(double, LSTM, [0] * 8 + biases, [5], 7, 1)
    assert c == pytest.approx(0.8, rel=1e-15)
    assert y == pytest.approx([0.33201838513], rel=1e-10)


def test_gru_by_hand(double: Double) -> None:
    # r = 3/4, i = 1/4, h' = tanh(r ln(2) / (3/4)) = 0.6: h = 3/4 * 0.6 + 1/4 * 2.
    biases = [math.log(3), -math.log(3), 0, 0, 0, math.log(2) / 0.75]
    y, _ = scalar(double, GRU, [0] * 6 + biases, [5], 2, 0)
    assert y == pytest.approx([0.95], rel=1e-15)


# ---- what torch does not have --------------------------------------------------------------------


def split_weights(problem: Problem, flat: np.ndarray) -> list[np.ndarray]:
    shapes = list(problem.weight_shapes())
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@pytest.mark.parametrize("mode", [RELU, LSTM, GRU])
@pytest.mark.parametrize("bias", [NO_BIAS, INP_BIAS, REC_BIAS])
def test_bias_modes(double: Double, mode: int, bias: int) -> None:
    """An absent bias is a bias of zeros, and its gradient is absent."""
    problem = Problem(mode, L=2, bias=bias)
    tensors = Tensors.random(problem)
    both = replace(problem, bias=DOUBLE_BIAS)
    parts = split_weights(problem, tensors.weights)
    matrices = [part for part in parts if part.ndim == 2]
    given = [part for part in parts if part.ndim == 1]
    zeros = [np.zeros(GATES[mode] * problem.H)] * 2
    pairs = list(zip(given, zeros, strict=True)) if given else [(zeros[0], zeros[0])] * 2
    biases = [part for pair in pairs for part in (pair[::-1] if bias == REC_BIAS else pair)]
    full = replace(tensors, weights=np.concatenate([w.ravel() for w in matrices + biases]))
    got, wanted = run(double, problem, tensors), run(double, both, full)
    assert_same({**got, "dw": wanted["dw"]}, wanted, problem, 1e-13)
    dmatrices = split_weights(both, wanted["dw"])
    first = {NO_BIAS: [], INP_BIAS: [4, 6], REC_BIAS: [5, 7]}[bias]
    kept = [dmatrices[i] for i in [*range(4), *first]]
    np.testing.assert_allclose(got["dw"], np.concatenate([w.ravel() for w in kept]), 1e-12)


@pytest.mark.parametrize("mode", [TANH, LSTM, GRU])
def test_skipped_input(double: Double, mode: int) -> None:
    """SKIP_INPUT is a matrix of ones on the diagonal, for each gate, in the first layer."""
    problem = Problem(mode, I=4, L=2, D=2, lengths=(5, 2), skip=True)
    tensors = Tensors.random(problem)
    plain = replace(problem, skip=False)
    parts = iter(split_weights(problem, tensors.weights))
    identity = np.tile(np.eye(4), (GATES[mode], 1))
    full = []
    for index, _ in enumerate(plain.weight_shapes()):
        full.append(identity if index in (0, 2) else next(parts))
    wanted = run(double, plain, replace(tensors, weights=np.concatenate([w.ravel() for w in full])))
    dw = split_weights(plain, wanted["dw"])
    wanted["dw"] = np.concatenate([w.ravel() for i, w in enumerate(dw) if i not in (0, 2)])
    assert_same(run(double, problem, tensors), wanted, problem, 1e-12)


@pytest.mark.parametrize("problem", [PROBLEMS["lstm-L1-ragged"], PROBLEMS["gru-bi-L3-packed"]])
def test_null_states_are_zeros(double: Double, problem: Problem) -> None:
    tensors = Tensors.random(problem)
    zeros = {name: np.zeros_like(getattr(tensors, name)) for name in ("hx", "cx", "dhy", "dcy")}
    nulls = dict.fromkeys(zeros)
    got = run(double, problem, replace(tensors, **nulls))
    assert_same(got, run(double, problem, replace(tensors, **zeros)), problem, 0)


@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [(FLOAT, FLOAT, 1e-5), (HALF, FLOAT, 1e-2), (HALF, HALF, 1e-2), (BFLOAT16, FLOAT, 8e-2)],
)
@pytest.mark.parametrize("name", ["relu-L1-equal", "lstm-bi-L1-ragged", "gru-L3-packed"])
def test_narrow_types(
    double: Double, name: str, dtype: int, precision: int, tolerance: float
) -> None:
    problem = replace(PROBLEMS[name], dtype=dtype, precision=precision)
    tensors = Tensors.random(problem)
    wide = Tensors(**{key: value.astype(float) for key, value in vars(tensors).items()})
    wanted = run(double, replace(problem, dtype=DOUBLE, precision=DOUBLE), wide)
    got = run(double, problem, tensors)
    assert all(value.dtype == DTYPES[dtype] for value in got.values())
    assert_same(got, wanted, problem, tolerance)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT16])
def test_rounds_to_nearest_even(double: Double, dtype: int) -> None:
    """y = relu(x + 1) for every positive x that a float32 adds to 1 exactly, and x = inf."""
    kind = DTYPES[dtype]
    every = np.arange(1 << 15, dtype=np.uint16).view(kind)
    with np.errstate(invalid="ignore"):
        value = every.astype(float)
    near = (value > 2.0**-9) & (value < 2.0**9)
    x = np.append(value[near if dtype == BFLOAT16 else np.isfinite(value)], np.inf).astype(kind)
    problem = Problem(
        RELU, I=64, H=64, P=64, lengths=(1,) * -(-x.size // 64), skip=True, bias=INP_BIAS,
        dtype=dtype, precision=FLOAT,
    )  # fmt: skip
    x = np.resize(x, (1, problem.N, 64))
    weights = np.concatenate([np.zeros(64 * 64), np.ones(64)]).astype(kind)
    session = Session(double, problem)
    y = session.forward(Tensors(x, weights, *[None] * 5))["y"]
    session.close()
    with np.errstate(over="ignore"):
        wanted = (x.astype(float) + 1).astype(np.float32 if dtype == BFLOAT16 else kind)
    np.testing.assert_array_equal(y, wanted.astype(kind))


# ---- the clip ------------------------------------------------------------------------------------


def loss(double: Double, problem: Problem, tensors: Tensors) -> float:
    session = Session(double, problem)
    results = session.forward(tensors)
    session.close()
    total = np.nansum(results["y"] * tensors.dy) + np.sum(results["hy"] * tensors.dhy)
    return float(total + (np.sum(results["cy"] * tensors.dcy) if "cy" in results else 0))


def assert_slopes(double: Double, problem: Problem, tensors: Tensors) -> None:
    """Every gradient along a random direction equals the central difference."""
    got = run(double, problem, tensors)
    rng = np.random.default_rng(3)
    for name, gradient in [("x", "dx"), ("weights", "dw"), ("hx", "dhx"), ("cx", "dcx")]:
        if gradient not in got:
            continue
        value = getattr(tensors, name)
        way = rng.normal(size=value.shape)
        step = 1e-6
        ahead, behind = (
            loss(double, problem, replace(tensors, **{name: value + sign * step * way}))
            for sign in (1, -1)
        )
        slope = np.nansum(np.where(np.isnan(value), 0, way * got[gradient]))
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("P", [4, 2])
def test_clip_gradients(double: Double, P: int) -> None:
    problem = Problem(P=P, L=2, D=2, lengths=(5, 2), clip=(-0.3, 0.4))
    tensors = Tensors.random(problem)
    assert_slopes(double, problem, tensors)
    plain = run(double, replace(problem, clip=None), tensors)
    assert not np.allclose(plain["hy"], run(double, problem, tensors)["hy"])


def test_clip_where_the_state_is_read(double: Double) -> None:
    """c_1 = f clip(c_0) + i g, never clipped; h_1 = o tanh(clip(c_1))."""
    problem = Problem(I=1, H=1, P=1, lengths=(1,), clip=(-0.5, 0.5))
    tensors = Tensors.random(problem)
    tensors.weights[:8] = 0
    tensors.weights[8:] = [40, 40, 40, 40, 0, 0, 0, 0]  # gates are 1
    tensors.cx[:] = 7
    session = Session(double, problem)
    results = session.forward(tensors)
    session.close()
    assert results["cy"].item() == 1.5
    assert results["hy"].item() == pytest.approx(math.tanh(0.5), rel=1e-15)


def test_clip_bounds_pass_through_float(double: Double) -> None:
    problem = Problem(I=1, H=1, P=1, lengths=(1,), clip=(-0.1, 0.1))
    tensors = Tensors.random(problem)
    tensors.weights[:] = 0
    tensors.weights[8:] = [-1000, 1000, 0, 1000, 0, 0, 0, 0]  # i = 0, f = o = 1
    tensors.cx[:] = 7
    session = Session(double, problem)
    assert session.forward(tensors)["cy"].item() == float(np.float32(0.1))
    session.close()


@pytest.mark.parametrize(("nan", "wanted"), [(1, math.nan), (0, -0.25)])
def test_clip_of_nan(double: Double, nan: int, wanted: float) -> None:
    problem = Problem(I=1, H=1, P=1, lengths=(1,), clip=(-0.25, 0.25), clip_nan=nan)
    tensors = Tensors.random(problem)
    tensors.weights[:] = 0
    tensors.weights[8:] = [-1000, 1000, 0, 1000, 0, 0, 0, 0]
    tensors.cx[:] = np.nan
    session = Session(double, problem)
    np.testing.assert_equal(session.forward(tensors)["cy"].item(), wanted)
    session.close()


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_gradients(double: Double) -> None:
    assert_slopes(double, (p := PROBLEMS["lstm-bi-L3-ragged"]), Tensors.random(p))
    for name in ("lstm-bi-L3-ragged", "gru-L3-packed", "tanh-bi-L3-batch-major"):
        problem = replace(PROBLEMS[name], dropout=0.4)
        tensors = Tensors.random(problem)
        assert_slopes(double, problem, tensors)
        plain = run(double, PROBLEMS[name], tensors)
        assert not np.allclose(plain["hy"], run(double, problem, tensors)["hy"])


def masks(session: Session) -> np.ndarray:
    """The factors of each unit: two layers, the second passes on what it reads."""
    problem = session.problem
    identity, zeros = np.eye(problem.H), np.zeros((problem.H, problem.H))
    weights = np.concatenate([w.ravel() for w in (identity, zeros) * 2])
    ones = np.where(problem.valid[..., None], np.ones(problem.I), np.nan)
    y = session.forward(Tensors(ones, weights, *[None] * 5))["y"]
    return y[problem.valid]


MASKED = Problem(RELU, I=50, H=50, P=50, L=2, lengths=(20, 9, 20), bias=NO_BIAS, dropout=0.25)


def test_dropout_masks(double: Double) -> None:
    session = Session(double, MASKED)
    drawn = masks(session)
    assert set(np.unique(drawn)) == {0, 1 / (1 - 0.25)}
    assert np.mean(drawn == 0) == pytest.approx(0.25, abs=0.03)
    again = masks(session)
    assert not np.array_equal(drawn, again)  # the states have moved on

    double("cudnnSetDropoutDescriptor", session.dropout, session.handle, 0.25,
           address(session.states), session.states.nbytes, session.seed)  # fmt: skip
    np.testing.assert_array_equal(masks(session), drawn)
    double("cudnnRestoreDropoutDescriptor", session.dropout, session.handle, 0.25,
           address(session.states), session.states.nbytes, 99)  # fmt: skip
    np.testing.assert_array_equal(masks(session), again)
    session.close()

    other = Session(double, MASKED, seed=8)
    assert not np.array_equal(masks(other), drawn)
    other.close()


def test_dropout_does_not_depend_on_layout(double: Double) -> None:
    ordered = replace(MASKED, lengths=(20, 15, 9))
    drawn = []
    for layout in (SEQ_MAJOR, PACKED, BATCH_MAJOR):
        session = Session(double, replace(ordered, layout=layout))
        drawn.append(masks(session))
        session.close()
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_no_dropout_in_inference_nor_after_the_last_layer(double: Double) -> None:
    session = Session(double, MASKED)
    tensors = Tensors.random(MASKED)
    plain = Session(double, replace(MASKED, dropout=0))
    wanted = plain.forward(tensors)
    assert_same(session.forward(tensors, INFERENCE), wanted, MASKED, 0)
    plain.close()
    session.close()
    single = replace(MASKED, L=1)
    tensors = Tensors.random(single)
    assert_same(
        run(double, single, tensors), run(double, replace(single, dropout=0), tensors), single, 0
    )


def test_dropout_needs_states(double: Double) -> None:
    session = Session(double, MASKED)
    set_dropout = ("cudnnSetDropoutDescriptor", session.dropout, session.handle)
    arguments = session.forward_arguments(Tensors.random(MASKED), TRAINING)
    double(*set_dropout, 0.25, None, 0, 1)
    assert double.status("cudnnRNNForward", *arguments) == double.BAD
    assert "states" in double.error()
    double(*set_dropout, 0.0, None, 0, 1)
    double("cudnnRNNForward", *arguments)
    states = address(session.states)
    assert double.status(*set_dropout, 0.25, states, 16, 1) == double.BAD
    assert double.status(*set_dropout, 1.5, states, session.states.nbytes, 1) == double.BAD
    session.close()


# ---- what is undefined is garbage ----------------------------------------------------------------


@pytest.mark.parametrize("layout", [SEQ_MAJOR, BATCH_MAJOR])
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_padding(double: Double, layout: int, dtype: int) -> None:
    problem = Problem(lengths=(2, 5, 1), layout=layout, dtype=dtype, precision=dtype, fill=2.5)
    tensors = Tensors.random(problem)
    got = run(double, problem, tensors)
    assert (got["y"][~problem.valid] == 2.5).all()
    assert np.isnan(got["dx"][~problem.valid]).all()
    unfilled = Session(double, replace(problem, fill=None))
    unfilled.forward_arguments(tensors, TRAINING)
    arguments = unfilled.forward_arguments(tensors, TRAINING)
    unfilled.y[...] = 0
    double("cudnnRNNForward", *arguments)
    y = restore(unfilled.y, problem)
    assert np.isnan(y[~problem.valid]).all()
    np.testing.assert_array_equal(y[problem.valid], got["y"][problem.valid])
    unfilled.close()


def test_reserve_space_serves_one_backward(double: Double) -> None:
    problem = PROBLEMS["lstm-L1-ragged"]
    tensors = Tensors.random(problem)
    session = Session(double, problem)
    session.forward(tensors)
    first = session.backward(tensors)
    assert not any(np.isnan(value[problem.valid] if name == "dx" else value).any()
                   for name, value in first.items())  # fmt: skip
    second = session.backward(tensors)
    assert all(np.isnan(value).all() for value in second.values())
    session.close()


def test_weights_before_data_are_garbage(double: Double) -> None:
    problem = PROBLEMS["gru-L1-equal"]
    tensors = Tensors.random(problem)
    session = Session(double, problem)
    session.forward(tensors)
    session.dw = np.zeros_like(tensors.weights)
    session.work = space(session.sizes(TRAINING)[0])
    double("cudnnRNNBackwardWeights_v8", *session.backward_weights_arguments(tensors))
    assert np.isnan(session.dw).all()
    session.close()


def test_weight_gradients_are_added(double: Double) -> None:
    problem = PROBLEMS["gru-L1-equal"]
    tensors = Tensors.random(problem)
    session = Session(double, problem)
    session.forward(tensors)
    dw = session.backward(tensors)["dw"].copy()
    double("cudnnRNNBackwardWeights_v8", *session.backward_weights_arguments(tensors))
    np.testing.assert_allclose(session.dw, 2 * dw, 1e-14)
    session.close()


@pytest.mark.parametrize("name", ["x", "y", "hx"])
def test_backward_reads_the_callers_buffers(double: Double, name: str) -> None:
    problem = PROBLEMS["gru-L1-equal"]
    tensors = Tensors.random(problem)
    wanted = run(double, problem, tensors)
    session = Session(double, problem)
    session.forward(tensors)
    if name == "hx":
        tensors = replace(tensors, hx=tensors.hx + 1)
    else:
        getattr(session, name)[...] += 1
    got = session.backward(tensors)
    assert not np.allclose(got["dw"], wanted["dw"])
    session.close()


def test_sequences_of_length_zero_give_garbage(double: Double) -> None:
    problem = Problem(lengths=(5, 0, 2))
    got = run(double, problem, Tensors.random(problem))
    assert all(np.isnan(value).all() for value in got.values())


def test_packed_unsorted_gives_garbage_where_it_is_accepted(
    doubles: Callable[[str], Double],
) -> None:
    problem = Problem(lengths=(2, 5), layout=PACKED)
    session = Session(doubles("8.9.7"), problem)
    assert np.isnan(session.forward(Tensors.random(problem))["hy"]).all()
    session.close()


# ---- spaces --------------------------------------------------------------------------------------


def sizes_of(double: Double, problem: Problem, mode: int = TRAINING) -> tuple[int, int]:
    session = Session(double, problem)
    sizes = session.sizes(mode)
    session.close()
    return sizes


def test_sizes_depend_on_everything(double: Double) -> None:
    base = Problem(lengths=(5, 3), L=2, aux=1)
    variants = [
        base,
        replace(base, lengths=(5, 2)),
        replace(base, lengths=(6, 3)),
        replace(base, lengths=(5, 3, 3)),
        replace(base, aux=0, layout=PACKED),
        replace(base, mode=GRU),
        replace(base, D=2),
        replace(base, P=3),
    ]
    for index in (0, 1):
        assert len({sizes_of(double, problem)[index] for problem in variants}) == len(variants)
    assert sizes_of(double, base, INFERENCE)[1] == 0
    by_length = [sizes_of(double, Problem(H=1, P=1, lengths=(T,))) for T in range(1, 20)]
    for sizes in zip(*by_length, strict=True):
        assert any(shorter > longer for shorter, longer in itertools.pairwise(sizes))


def test_workspace_is_asked_again_after_forward(double: Double) -> None:
    problem = PROBLEMS["lstm-L1-ragged"]
    session = Session(double, problem)
    before = session.sizes(TRAINING)
    seen = set()
    for _ in range(4):
        session.forward(Tensors.random(problem))
        work, reserve = session.sizes(TRAINING)
        assert reserve == before[1]
        seen.add(work)
    assert len(seen) == 4
    session.close()


FORWARD_SIZES = {"weights": 14, "work": 16, "reserve": 18}


@pytest.mark.parametrize("name", FORWARD_SIZES)
@pytest.mark.parametrize("how", ["small", "null"])
def test_spaces_are_checked(any_double: Double, name: str, how: str) -> None:
    problem = Problem()
    tensors = Tensors.random(problem)
    session = Session(any_double, problem)

    def refused(function: str, arguments: list[Any], place: int) -> None:
        arguments[place] = 8 if how == "small" else arguments[place]
        arguments[place + 1] = arguments[place + 1] if how == "small" else None
        assert any_double.status(function, *arguments) == any_double.BAD

    place = FORWARD_SIZES[name]
    refused("cudnnRNNForward", session.forward_arguments(tensors, TRAINING), place)
    session.forward(tensors)
    refused("cudnnRNNBackwardData_v8", session.backward_data_arguments(tensors), place + 2)
    session.backward(tensors)
    refused("cudnnRNNBackwardWeights_v8", session.backward_weights_arguments(tensors), place - 4)
    session.close()


# ---- the weight space ----------------------------------------------------------------------------


def item(session: Session, pseudo: int, item_id: int, weights: np.ndarray) -> list[Any]:
    """Offset in elements (None when absent) and dimensions, of the matrix and the bias."""
    double = session.double
    descs = [double.make("TensorDescriptor") for _ in range(2)]
    places = [ctypes.c_void_p() for _ in range(2)]
    double("cudnnGetRNNWeightParams", session.handle, session.rnn, pseudo, weights.nbytes,
           address(weights), item_id, descs[0], ctypes.byref(places[0]), descs[1],
           ctypes.byref(places[1]))  # fmt: skip
    found: list[Any] = []
    for desc, place in zip(descs, places, strict=True):
        dtype, dims = ctypes.c_int(), ctypes.c_int()
        shape, strides = (ctypes.c_int * 8)(), (ctypes.c_int * 8)()
        double("cudnnGetTensorNdDescriptor", desc, 8, ctypes.byref(dtype), ctypes.byref(dims),
               shape, strides)  # fmt: skip
        double("cudnnDestroyTensorDescriptor", desc)
        if dims.value == 0:
            assert place.value is None
            found.append(None)
            continue
        assert dtype.value == session.problem.dtype
        size = list(shape[: dims.value])
        assert list(strides[: dims.value]) == [size[1] * size[2], size[2], 1]
        found.append(((place.value - address(weights)) // weights.itemsize, size))
    return found


@pytest.mark.parametrize("bias", range(4))
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", ["tanh-L3-equal", "lstm-bi-L1-equal", "proj-bi-L3-equal"])
def test_weight_items(any_double: Double, name: str, bias: int, skip: bool) -> None:
    """Items follow each other without gaps: matrices by pseudo layer, then biases."""
    problem = replace(PROBLEMS[name], bias=bias, skip=skip, dtype=FLOAT, precision=FLOAT)
    session = Session(any_double, problem)
    total = sum(math.prod(shape) for shape in problem.weight_shapes())
    assert any_double.size("cudnnGetRNNWeightSpaceSize", session.handle, session.rnn) == total * 4
    weights = np.zeros(total, np.float32)
    gates, P, H = GATES[problem.mode], problem.P, problem.H
    matrices, biases = [], []
    for pseudo in range(problem.L * problem.D):
        for item_id in range(2 * gates + 1):
            matrix, vector = item(session, pseudo, item_id, weights)
            is_input, is_projection = item_id < gates, item_id == 2 * gates
            cols = problem.width(pseudo) if is_input else P
            absent = (skip and pseudo < problem.D) if is_input else is_projection and P == H
            assert (matrix is None) == absent
            if matrix:
                assert matrix[1] == ([1, P, H] if is_projection else [1, H, cols])
                matrices.append(matrix)
            wanted = (INP_BIAS, DOUBLE_BIAS) if is_input else (REC_BIAS, DOUBLE_BIAS)
            assert (vector is not None) == (bias in wanted and not is_projection)
            if vector:
                assert vector[1] == [1, H, 1]
                biases.append(vector)
    end = 0
    for offset, shape in matrices + biases:
        assert offset == end
        end += math.prod(shape)
    assert end == total
    session.close()


def test_weight_params_refuses(any_double: Double) -> None:
    double = any_double
    session = Session(double, Problem(D=2, L=2))
    weights = np.zeros(4096)
    desc = double.make("TensorDescriptor")
    place = ctypes.c_void_p()

    def status(pseudo: int = 0, size: int = 4096, base: int | None = 0, item_id: int = 0,
               matrix: bool = True, bias: bool = True) -> int:  # fmt: skip
        where = None if base is None else address(weights) + base
        pair = (desc, ctypes.byref(place)), (None, None)
        return double.status("cudnnGetRNNWeightParams", session.handle, session.rnn, pseudo, size,
                             where, item_id, *pair[not matrix], *pair[not bias])  # fmt: skip

    assert status() == 0
    assert [status(pseudo=p) for p in (-1, 4)] == [double.BAD] * 2
    assert [status(item_id=i) for i in (-1, 9)] == [double.BAD] * 2
    assert status(item_id=8) == 0
    assert status(base=4) == double.BAD
    v9_only = 0 if double.v9 else double.BAD
    assert status(base=None, item_id=1, bias=False) == v9_only
    if double.v9:
        assert place.value == 4 * 3 * 8  # an offset in bytes
    assert status(bias=False) == v9_only
    assert status(matrix=False) == v9_only
    assert status(size=0) == (double.BAD if double.v9 else 0)
    double("cudnnDestroyTensorDescriptor", desc)
    session.close()


@pytest.mark.parametrize(
    ("size", "layers", "wanted"), [(16384, 1, 18446744065120141312), (8192, 16, 4194304)]
)
def test_weight_size_overflows(double: Double, size: int, layers: int, wanted: int) -> None:
    problem = Problem(I=size, H=size, P=size, L=layers, dtype=FLOAT, precision=FLOAT)
    session = Session(double, problem)
    assert double.size("cudnnGetRNNWeightSpaceSize", session.handle, session.rnn) == wanted
    session.close()


# ---- refusals ------------------------------------------------------------------------------------

RNN_SETTINGS = {
    "algo": 0, "mode": LSTM, "bias": DOUBLE_BIAS, "direction": 0, "input": 0, "type": FLOAT,
    "precision": FLOAT, "math": 3, "I": 5, "H": 4, "P": 4, "L": 1, "dropout": None, "aux": 0,
}  # fmt: skip
RNN_REFUSALS: list[tuple[dict[str, int], str]] = [
    *[({name: value}, "BAD") for name in ("I", "H", "P", "L") for value in (0, -1)],
    *[({name: value}, "BAD") for name in ("algo", "mode", "bias", "math") for value in (-1, 4)],
    *[({name: value}, "BAD") for name in ("direction", "input") for value in (-1, 2)],
    *[({"aux": value}, "BAD") for value in (2, 3, 256)],
    ({"P": 5}, "UNSUPPORTED"),
    *[({"P": 3, "mode": mode}, "UNSUPPORTED") for mode in (RELU, TANH, GRU)],
    *[({"P": 3, "algo": algo}, "UNSUPPORTED") for algo in (1, 2, 3)],
    ({"P": 3, "direction": 1, "L": 3}, "OK"),
    *[({"bias": bias, "algo": 1}, "UNSUPPORTED") for bias in (0, 1, 3)],
    *[({"type": DOUBLE, "precision": DOUBLE, "algo": algo}, "UNSUPPORTED") for algo in (1, 3)],
    ({"type": DOUBLE, "precision": DOUBLE, "algo": 2}, "OK"),
    ({"type": HALF, "precision": HALF}, "OK"),
    *[({"type": HALF, "precision": HALF, "algo": a}, "UNSUPPORTED") for a in (1, 2, 3)],
    *[({"type": HALF, "precision": FLOAT, "algo": a}, "OK") for a in (0, 1, 2, 3)],
    *[({"type": t, "precision": p}, "UNSUPPORTED")
      for t, p in [(0, 1), (1, 0), (2, 1), (0, 2), (9, 9), (3, 0), (10, 10)]],
    ({"type": BFLOAT16, "precision": FLOAT}, "since 9.13"),
    ({"input": 1}, "OK"),
    ({"L": 1000, "I": 2**31 - 1, "H": 2**31 - 1, "P": 2**31 - 1}, "OK"),
]  # fmt: skip


def expected(double: Double, wanted: str, latest: bool) -> int:
    if wanted == "since 9.13":
        wanted = "OK" if latest else "UNSUPPORTED"
    return 0 if wanted == "OK" else int(getattr(double, wanted))


def read_rnn(double: Double, rnn: int) -> list[int | None]:
    values = [ctypes.c_int() for _ in range(12)]
    dropout, aux = ctypes.c_void_p(), ctypes.c_uint()
    double("cudnnGetRNNDescriptor_v8", rnn, *map(ctypes.byref, [*values, dropout, aux]))
    return [value.value for value in [*values, dropout, aux]]


def test_rnn_descriptor_refusals(any_double: Double, request: pytest.FixtureRequest) -> None:
    double = any_double
    latest = double.library.cudnnGetVersion() == 92800
    rnn = double.make("RNNDescriptor")
    assert double.status("cudnnGetRNNDescriptor_v8", rnn, *[None] * 14) == double.UNSET
    kept = [2, GRU, 2, 1, 1, HALF, FLOAT, 1, 11, 12, 12, 13, None, 1]
    for change, wanted in RNN_REFUSALS:
        double("cudnnSetRNNDescriptor_v8", rnn, *kept)
        double("cudnnRNNSetClip_v8", rnn, 1, 0, -2.0, 3.0)
        settings = [*(RNN_SETTINGS | change).values()]
        status = double.status("cudnnSetRNNDescriptor_v8", rnn, *settings)
        assert status == expected(double, wanted, latest), change
        assert read_rnn(double, rnn) == (settings if status == 0 else kept), change
        assert read_clip(double, rnn) == ((1, 0, -2, 3) if status else (0, 0, 0, 0)), change
    assert double.status("cudnnSetRNNDescriptor_v8", None, *kept) == double.BAD
    double("cudnnDestroyRNNDescriptor", rnn)


def read_clip(double: Double, rnn: int) -> tuple[int, int, float, float]:
    mode, nan, low, high = ctypes.c_int(), ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
    double("cudnnRNNGetClip_v8", rnn, *map(ctypes.byref, (mode, nan, low, high)))
    return mode.value, nan.value, low.value, high.value


def test_clip_refusals(any_double: Double) -> None:
    double = any_double
    rnn = double.make("RNNDescriptor")
    assert read_clip(double, rnn) == (0, 0, 0, 0)
    for low, high in [(1.0, 0.5), (math.nan, 1.0), (0.0, math.nan)]:
        assert double.status("cudnnRNNSetClip_v8", rnn, 0, 0, low, high) == double.BAD
    for clip in [(2, -1, 0.5, 0.5), (-1, 2, -math.inf, math.inf), (1, 0, -1.0, 1e300)]:
        double("cudnnRNNSetClip_v8", rnn, *clip)
        assert read_clip(double, rnn) == clip
    assert double.status("cudnnRNNSetClip_v8", rnn, 1, 0, 2.0, 1.0) == double.BAD
    assert read_clip(double, rnn) == (1, 0, -1, 1e300)
    assert double.status("cudnnRNNSetClip_v8", None, 1, 0, 0.0, 1.0) == double.BAD
    assert hasattr(double.library, "cudnnRNNSetClip_v9") == double.v9
    if double.v9:
        double("cudnnRNNSetClip_v9", rnn, 1, -4.0, 5.0)
        assert read_clip(double, rnn) == (1, 1, -4, 5)
    double("cudnnDestroyRNNDescriptor", rnn)


DATA_REFUSALS: list[tuple[tuple[int, ...], list[int], str]] = [
    # (type, layout, T, N, V), lengths, and what 9.28, 9.1 and 8.9.7 say
    *[((FLOAT, 0, *shape), [3, 2], "BAD BAD BAD")
      for shape in [(0, 2, 4), (-1, 2, 4), (3, 0, 4), (3, 2, 0)]],
    ((FLOAT, 3, 3, 2, 4), [3, 2], "BAD BAD BAD"),
    ((FLOAT, -1, 3, 2, 4), [3, 2], "BAD BAD BAD"),
    ((3, 0, 3, 2, 4), [3, 2], "UNSUPPORTED UNSUPPORTED UNSUPPORTED"),
    ((BFLOAT16, 0, 3, 2, 4), [3, 2], "OK UNSUPPORTED UNSUPPORTED"),
    ((FLOAT, 0, 65536, 2, 4), [3, 2], "UNSUPPORTED UNSUPPORTED UNSUPPORTED"),
    ((FLOAT, 0, 65535, 2, 4), [3, 2], "OK OK OK"),
    ((FLOAT, 0, 3, 2, 4), [4, 2], "BAD BAD BAD"),
    ((FLOAT, 0, 3, 2, 4), [3, -1], "BAD BAD BAD"),
    ((FLOAT, 0, 3, 2, 4), [1, 2], "OK OK OK"),
    ((FLOAT, 2, 3, 2, 4), [2, 2], "OK OK OK"),
    ((FLOAT, 0, 3, 2, 4), [0, 2], "OK UNSUPPORTED OK"),
    ((FLOAT, 2, 3, 2, 4), [0, 0], "OK UNSUPPORTED OK"),
    ((FLOAT, 1, 3, 2, 4), [2, 2], "BAD BAD BAD"),
    ((FLOAT, 1, 3, 2, 4), [2, 3], "BAD OK OK"),
    ((FLOAT, 1, 3, 2, 4), [3, 0], "BAD UNSUPPORTED OK"),
    ((FLOAT, 1, 3, 2, 4), [3, 3], "OK OK OK"),
]  # fmt: skip


def test_data_descriptor_refusals(any_double: Double) -> None:
    double = any_double
    column = {92800: 0, 90100: 1, 8907: 2}[double.library.cudnnGetVersion()]
    data = double.make("RNNDataDescriptor")
    for arguments, lengths, wanted in DATA_REFUSALS:
        status = double.status(
            "cudnnSetRNNDataDescriptor", data, *arguments, (ctypes.c_int * 2)(*lengths), None
        )
        assert status == expected(double, wanted.split()[column], False), (arguments, lengths)
    double("cudnnDestroyRNNDataDescriptor", data)


def test_data_descriptor_round_trip(any_double: Double) -> None:
    double = any_double
    data = double.make("RNNDataDescriptor")
    lengths = (ctypes.c_int * 3)(4, 1, 2)
    fill = ctypes.c_double(2.5)
    double("cudnnSetRNNDataDescriptor", data, DOUBLE, 2, 4, 3, 7, lengths, ctypes.byref(fill))
    lengths[:] = [0] * 3  # they were copied
    values = [ctypes.c_int() for _ in range(5)]
    read_fill = ctypes.c_double()
    get = ("cudnnGetRNNDataDescriptor", data, *map(ctypes.byref, values))
    for requested, wanted in [(2, [4, 1, -5, -5, -5]), (5, [4, 1, 2, 0, 0])]:
        read = (ctypes.c_int * 5)(*[-5] * 5)
        double(*get, requested, read, ctypes.byref(read_fill))
        assert list(read) == wanted
    assert [value.value for value in values] == [DOUBLE, 2, 4, 3, 7]
    assert read_fill.value == 2.5
    double(*get, 0, None, ctypes.byref(read_fill))
    assert double.status(*get, -1, None, ctypes.byref(read_fill)) == double.BAD
    assert double.status(*get, 0, None, None) == double.BAD
    double("cudnnDestroyRNNDataDescriptor", data)


TENSOR_REFUSALS: list[tuple[int, list[int], list[int], str]] = [
    (FLOAT, [2], [1], "BAD"),
    (FLOAT, [2, 0, 3], [3, 3, 1], "BAD"),
    (FLOAT, [2, 3, 4], [0, 4, 1], "BAD"),
    (FLOAT, [1, 3, 4], [0, 4, 1], "OK"),
    (FLOAT, [2, 3, 4], [-12, 4, 1], "OK"),
    (FLOAT, [1] * 9, [1] * 9, "UNSUPPORTED"),
    (FLOAT, [1] * 8, [1] * 8, "OK"),
    (FLOAT, [1 << 16, 1 << 15, 1], [1 << 15, 1, 1], "UNSUPPORTED"),
    (10, [2, 3, 4], [12, 4, 1], "BAD"),
    (-1, [2, 3, 4], [12, 4, 1], "BAD"),
    *[(dtype, [2, 3, 4], [12, 4, 1], "OK") for dtype in (0, 1, 2, 3, 4, 9)],
]


def test_tensor_refusals(any_double: Double) -> None:
    double = any_double
    tensor = double.make("TensorDescriptor")
    for dtype, size, stride, wanted in TENSOR_REFUSALS:
        ints = ctypes.c_int * len(size)
        status = double.status(
            "cudnnSetTensorNdDescriptor", tensor, dtype, len(size), ints(*size), ints(*stride)
        )
        assert status == expected(double, wanted, False), (dtype, size, stride)
    pair = ctypes.c_int * 2
    status = double.status("cudnnSetTensorNdDescriptor", tensor, 0, 2, pair(2, 3), pair(3, 1))
    assert status == (0 if double.v9 else double.BAD)
    ints = ctypes.c_int * 3
    double("cudnnSetTensorNdDescriptor", tensor, HALF, 3, ints(2, 3, 4), ints(12, 4, 1))
    assert double.size("cudnnGetTensorSizeInBytes", tensor) == 48
    double("cudnnDestroyTensorDescriptor", tensor)


HANDLE_FUNCTIONS = [
    "cudnnGetRNNWeightSpaceSize", "cudnnGetRNNTempSpaceSizes", "cudnnGetRNNWeightParams",
    "cudnnBuildRNNDynamic", "cudnnRNNForward", "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights_v8", "cudnnDropoutGetStatesSize", "cudnnSetDropoutDescriptor",
    "cudnnRestoreDropoutDescriptor", "cudnnGetDropoutDescriptor", "cudnnSetStream",
    "cudnnGetStream", "cudnnCreate", "cudnnCreateRNNDescriptor", "cudnnCreateRNNDataDescriptor",
    "cudnnCreateTensorDescriptor", "cudnnCreateDropoutDescriptor",
]  # fmt: skip


@pytest.mark.parametrize("function", HANDLE_FUNCTIONS)
def test_null_handle(any_double: Double, function: str) -> None:
    arguments = [None if letter == "p" else 0 for letter in PROTOTYPES[function]]
    assert any_double.status(function, *arguments) == any_double.BAD
    if any_double.v9:
        assert (any_double.error() != "") == (function != "cudnnSetStream")
        assert any_double.error() == ""  # reading clears it


def test_destroy_of_null_is_fine(any_double: Double) -> None:
    any_double("cudnnDestroy", None)
    for kind in ("Tensor", "Dropout", "RNN", "RNNData"):
        any_double(f"cudnnDestroy{kind}Descriptor", None)


# The arguments of cudnnRNNForward that a case of the table below replaces.
PLACES = {
    "fwdMode": 2, "xDesc": 4, "x": 5, "yDesc": 6, "y": 7, "hDesc": 8, "hx": 9, "hy": 10,
    "cDesc": 11, "cx": 12, "cy": 13,
}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (Problem(lengths=(5, 3), aux=0), "BAD"),
        (Problem(lengths=(5, 5), aux=0), "OK"),
        (Problem(layout=BATCH_MAJOR, aux=0), "BAD"),
        (Problem(layout=PACKED, lengths=(5, 3), aux=0), "OK"),
        (Problem(layout=PACKED, lengths=(5, 3), aux=1), "OK"),
        (Problem(skip=True), "BAD"),
        (Problem(skip=True, I=4), "OK"),
        (Problem(algo=2), "OK"),
        (Problem(algo=2, lengths=(5, 3)), "UNSUPPORTED"),
        (Problem(algo=1, dtype=FLOAT, precision=FLOAT), "OK"),
        (Problem(algo=3, dtype=FLOAT, precision=FLOAT, H=192, P=192), "OK"),
        (Problem(algo=3, dtype=FLOAT, precision=FLOAT, H=193, P=193), "UNSUPPORTED"),
        (Problem(TANH, algo=3, dtype=FLOAT, precision=FLOAT, H=384, P=384), "OK"),
        (Problem(TANH, algo=3, dtype=FLOAT, precision=FLOAT, H=385, P=385), "UNSUPPORTED"),
    ],
)
def test_forward_refuses_problems(any_double: Double, problem: Problem, wanted: str) -> None:
    session = Session(any_double, problem)
    arguments = session.forward_arguments(Tensors.random(problem), TRAINING)
    status = any_double.status("cudnnRNNForward", *arguments)
    assert status == expected(any_double, wanted, False)
    session.close()


@pytest.mark.parametrize("algo", [1, 2, 3])
def test_persistent_algorithms_give_the_same(double: Double, algo: int) -> None:
    problem = Problem(GRU, L=2, D=2, dtype=FLOAT, precision=FLOAT)
    tensors = Tensors.random(problem)
    got = run(double, replace(problem, algo=algo), tensors)
    assert_same(got, run(double, problem, tensors), problem, 0)


def test_dynamic_algorithm_is_built_for_a_batch(double: Double) -> None:
    problem = Problem(algo=2)
    session = Session(double, problem)
    double("cudnnBuildRNNDynamic", session.handle, session.rnn, problem.N + 1)
    arguments = session.forward_arguments(Tensors.random(problem), TRAINING)
    assert double.status("cudnnRNNForward", *arguments) == double.BAD
    session.close()


def test_forward_refuses_descriptors(any_double: Double) -> None:
    double, problem = any_double, Problem(P=3, L=2, lengths=(4, 4))
    session = Session(double, problem)
    tensors = Tensors.random(problem)
    other = {
        "T": Session(double, replace(problem, lengths=(5, 5))),
        "N": Session(double, replace(problem, lengths=(4, 4, 4))),
        "lengths": Session(double, replace(problem, lengths=(4, 3))),
        "layout": Session(double, replace(problem, layout=PACKED)),
        "type": Session(double, replace(problem, dtype=FLOAT, precision=FLOAT)),
        "width": Session(double, replace(problem, I=5, P=2)),
        "direction": Session(double, replace(problem, D=2)),
    }

    def status(**changes: Any) -> int:
        arguments = session.forward_arguments(tensors, TRAINING)
        for name, value in changes.items():
            arguments[PLACES[name]] = value
        return double.status("cudnnRNNForward", *arguments)

    assert status() == 0
    for name, wrong in other.items():
        if name != "direction":
            assert status(xDesc=wrong.x_desc) == double.BAD, name
        assert status(yDesc=wrong.y_desc) == double.BAD, name
    assert status(hDesc=None) == double.BAD
    assert status(hDesc=None, hx=None) == double.BAD
    assert status(hDesc=None, hx=None, hy=None) == 0
    assert status(cDesc=None, cy=None) == double.BAD
    assert status(cDesc=None, cx=None, cy=None) == 0
    assert status(hDesc=session.c_desc) == double.BAD
    assert status(cDesc=session.h_desc) == double.BAD
    assert status(hDesc=other["N"].h_desc) == double.BAD
    assert status(hDesc=other["direction"].h_desc) == double.BAD
    assert status(hDesc=other["type"].h_desc) == 0  # the type is not looked at
    four = double.make("TensorDescriptor")
    ints = ctypes.c_int * 4
    double("cudnnSetTensorNdDescriptor", four, DOUBLE, 4, ints(2, 2, 3, 1), ints(6, 3, 1, 1))
    assert status(hDesc=four) == 0
    double("cudnnSetTensorNdDescriptor", four, DOUBLE, 4, ints(2, 2, 3, 1), ints(8, 4, 1, 1))
    assert status(hDesc=four) == double.BAD
    double("cudnnDestroyTensorDescriptor", four)
    unset = double.make("RNNDescriptor")
    arguments = session.forward_arguments(tensors, TRAINING)
    arguments[1] = unset
    assert double.status("cudnnRNNForward", *arguments) == double.INTERNAL
    double("cudnnDestroyRNNDescriptor", unset)
    for wrong in [*other.values(), session]:
        wrong.close()


def test_backward_refusals(any_double: Double) -> None:
    double, problem = any_double, Problem()
    session, tensors = Session(double, problem), Tensors.random(problem)
    session.forward(tensors)
    data = session.backward_data_arguments(tensors)
    h_desc, c_desc, d_hx, d_cx = 8, 12, (10, 11), (14, 15)

    def status(**changes: Any) -> int:
        arguments = list(data)
        for place, value in changes.items():
            arguments[int(place[1:])] = value
        return double.status("cudnnRNNBackwardData_v8", *arguments)

    for desc, gradients in [(h_desc, d_hx), (c_desc, d_cx)]:
        assert status(**{f"_{desc}": None}) == double.BAD
        for gradient in gradients:
            assert status(**{f"_{desc}": None, f"_{gradient}": None}) == double.BAD
    # With no gradient of the states hx and cx are read although nothing describes them.
    changes = dict.fromkeys([f"_{place}" for place in (h_desc, c_desc, *d_hx, *d_cx)])
    assert status(**changes) == 0
    session.dw = np.zeros_like(tensors.weights)
    for mode, wanted in [(1, double.UNSUPPORTED), (2, double.BAD), (-1, double.BAD), (0, 0)]:
        arguments = session.backward_weights_arguments(tensors, mode)
        assert double.status("cudnnRNNBackwardWeights_v8", *arguments) == wanted
    arguments[6] = None
    assert double.status("cudnnRNNBackwardWeights_v8", *arguments) == double.BAD
    session.close()


def test_temp_space_refusals(any_double: Double) -> None:
    double = any_double
    session = Session(double, Problem())
    wrong = Session(double, Problem(I=9))
    narrow = Session(double, Problem(dtype=FLOAT, precision=FLOAT))
    work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
    for mode, desc in [(2, session.x_desc), (1, wrong.x_desc), (1, narrow.x_desc), (1, None)]:
        status = double.status("cudnnGetRNNTempSpaceSizes", session.handle, session.rnn, mode,
                               desc, ctypes.byref(work), ctypes.byref(reserve))  # fmt: skip
        assert status == double.BAD
    for each in (session, wrong, narrow):
        each.close()


def test_unset_descriptor_has_no_weights(any_double: Double) -> None:
    handle, rnn = any_double.make(""), any_double.make("RNNDescriptor")
    size = ctypes.c_size_t(7)
    status = any_double.status("cudnnGetRNNWeightSpaceSize", handle, rnn, ctypes.byref(size))
    assert (status, size.value) == ((0, 0) if any_double.v9 else (any_double.UNSET, 7))
    any_double("cudnnDestroyRNNDescriptor", rnn)
    any_double("cudnnDestroy", handle)


# ---- statuses and the log ------------------------------------------------------------------------


def test_error_strings(any_double: Double) -> None:
    name = any_double.library.cudnnGetErrorString
    assert name(0) == b"CUDNN_STATUS_SUCCESS"
    assert name(any_double.BAD) == b"CUDNN_STATUS_BAD_PARAM"
    assert name(any_double.UNSUPPORTED) == b"CUDNN_STATUS_NOT_SUPPORTED"
    assert name(any_double.FAILED) == b"CUDNN_STATUS_EXECUTION_FAILED"
    assert name(77) == b"CUDNN_UNKNOWN_STATUS"
    assert hasattr(any_double.library, "cudnnGetLastErrorString") == any_double.v9


def test_versions(any_double: Double) -> None:
    parts = []
    for which in range(3):
        value = ctypes.c_int()
        any_double("cudnnGetProperty", which, ctypes.byref(value))
        parts.append(value.value)
    thousands = 10000 if any_double.v9 else 1000
    number = parts[0] * thousands + parts[1] * 100 + parts[2]
    assert any_double.library.cudnnGetVersion() == number
    suffixes = ("Ops", "Adv", "Graph") if any_double.v9 else ("OpsInfer", "AdvInfer", "AdvTrain")
    for suffix in suffixes:
        assert getattr(any_double.library, f"cudnn{suffix}VersionCheck")() == 0


def test_last_error_belongs_to_its_thread_and_may_be_stale(double: Double) -> None:
    double.error()
    assert double.status("cudnnCreateRNNDescriptor", None) == double.BAD
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(double.error()))
    thread.start()
    thread.join()
    assert told == [""]
    rnn = double.make("RNNDescriptor")
    settings = [*(RNN_SETTINGS | {"algo": 9}).values()]
    assert double.status("cudnnSetRNNDescriptor_v8", rnn, *settings) == double.BAD
    assert double.error() == "!desc"  # the bad algorithm left no text of its own
    double("cudnnDestroyRNNDescriptor", rnn)


CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
)


def test_log_tells_why_something_is_not_supported(any_double: Double) -> None:
    double = any_double
    seen: list[tuple[int, int, bytes]] = []

    @CALLBACK
    def note(severity: int, data: int, debug: Any, message: int) -> None:
        seen.append((severity, debug[1], ctypes.string_at(message, 300)))

    rnn = double.make("RNNDescriptor")
    double("cudnnSetCallback", 1 << 2, None, note)
    settings = [*(RNN_SETTINGS | {"P": 5}).values()]
    assert double.status("cudnnSetRNNDescriptor_v8", rnn, *settings) == double.UNSUPPORTED
    assert double.status("cudnnSetRNNDescriptor_v8", None, *settings) == double.BAD  # an error
    double("cudnnSetCallback", 0, None, None)
    assert double.status("cudnnSetRNNDescriptor_v8", rnn, *settings) == double.UNSUPPORTED
    ((severity, status, message),) = seen
    assert (severity, status) == (2, double.UNSUPPORTED)
    strings = message[: message.index(b"\0\0")].split(b"\0")
    assert strings[-1].endswith(b"CUDNN_STATUS_NOT_SUPPORTED; Reason: projSize > hiddenSize")
    if double.v9:
        double.error()
    double("cudnnDestroyRNNDescriptor", rnn)


# ---- crashes of cuDNN are aborts -----------------------------------------------------------------

SCRIPT = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def make(kind):
    made = ctypes.c_void_p()
    assert getattr(library, "cudnnCreate" + kind)(ctypes.byref(made)) == 0
    return made
"""
CRASHES = {
    "used after destroy": (
        "d = make('RNNDescriptor'); library.cudnnDestroyRNNDescriptor(d)\n"
        "library.cudnnRNNGetClip_v8(d, None, None, None, None)",
        "cudnnRNNGetClip_v8: a descriptor or handle that was destroyed before",
    ),
    "destroyed twice": (
        "d = make('TensorDescriptor')\nfor _ in range(2): library.cudnnDestroyTensorDescriptor(d)",
        "cudnnDestroyTensorDescriptor: a descriptor or handle that was destroyed before",
    ),
    "slot used again": (
        "d = make('TensorDescriptor'); library.cudnnDestroyTensorDescriptor(d)\n"
        "make('TensorDescriptor'); library.cudnnDestroyTensorDescriptor(d)",
        "destroyed before",
    ),
    "wrong kind": (
        "library.cudnnDestroyRNNDescriptor(make('TensorDescriptor'))",
        "cudnnDestroyRNNDescriptor: a descriptor of the wrong kind",
    ),
    "no descriptor": (
        "library.cudnnDestroy(ctypes.c_void_p(0x7f0011223344550))",
        "cudnnDestroy: not a descriptor of cuDNN",
    ),
    "half a pair": (
        "place = ctypes.c_void_p()\n"
        "library.cudnnGetRNNWeightParams(make(''), make('RNNDescriptor'), 0, ctypes.c_size_t(8),"
        " None, 0, None, ctypes.byref(place), None, None)",
        "cudnnGetRNNWeightParams: matrix_half",
    ),
    "unknown fault": (
        "import os; os.environ['CUDNN_DOUBLE_FAULT'] = 'no_such'\n"
        "d = make('RNNDescriptor'); set_rnn(d)\n"
        "place = ctypes.c_void_p()\n"
        "library.cudnnGetRNNWeightParams(make(''), d, 0, ctypes.c_size_t(8), None, 0,"
        " make('TensorDescriptor'), ctypes.byref(place), None, None)",
        "CUDNN_DOUBLE_FAULT: no such fault",
    ),
}


def run_script(double: Double, body: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT + (
        "def set_rnn(d):\n"
        f"    assert library.cudnnSetRNNDescriptor_v8(d, *{[*RNN_SETTINGS.values()]}) == 0\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script + body, double.library._name],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("body", "told"), CRASHES.values(), ids=CRASHES)
def test_crash_aborts_with_a_sentence(double: Double, body: str, told: str) -> None:
    done = run_script(double, body)
    assert done.returncode == -6, done.stderr
    assert f"{told}\n" in done.stderr


def test_old_versions_crash_without_lengths(doubles: Callable[[str], Double]) -> None:
    body = "library.cudnnSetRNNDataDescriptor(make('RNNDataDescriptor'), 0, 0, 1, 1, 1, None, None)"
    for version in ("8.9.7", "9.1.0"):
        done = run_script(doubles(version), body)
        assert done.returncode == -6
        assert "seqLengthArray == NULL" in done.stderr
    assert run_script(doubles("9.28.0"), body).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_handle_does_not_survive_a_fork(double: Double) -> None:
    body = """
import os
handle = make("")
child = os.fork()
if child == 0:
    os._exit(library.cudnnSetStream(handle, None) == 5003 == library.cudnnDestroy(handle))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert library.cudnnDestroy(handle) == 0
"""
    done = run_script(double, body)
    assert done.returncode == 0, done.stderr


# ---- switches and hooks --------------------------------------------------------------------------


FAULTS: dict[str, tuple[Problem, set[str]]] = {
    "gate_order": (Problem(GRU), {"y", "dx", "dw"}),
    "weight_layout": (Problem(LSTM), {"y", "dx", "dw"}),
    "recurrent_bias_ignored": (Problem(TANH), {"y", "dx", "dw"}),
    "reset_before": (Problem(GRU), {"y", "dx"}),
    "hx_ignored": (Problem(RELU), {"y", "hy"}),
    "reverse_start": (Problem(LSTM, D=2, lengths=(5, 2)), {"y", "hy"}),
    "padding_fill": (Problem(LSTM, lengths=(5, 2)), {"padding"}),
    "cy_clipped": (Problem(LSTM, clip=(-0.1, 0.1)), {"cy"}),
    "dropout_scale": (Problem(LSTM, L=2, dropout=0.5), {"y", "dx"}),
    "dx_missing": (Problem(LSTM), {"dx"}),
    "dcy_ignored": (Problem(LSTM), {"dx", "dcx", "dw"}),
    "dw_wrong_step": (Problem(GRU), {"dw"}),
}


def run_with_padding(double: Double, problem: Problem, tensors: Tensors) -> dict[str, np.ndarray]:
    got = run(double, problem, tensors)
    got["padding"] = got["y"][~problem.valid]
    got["y"], got["dx"] = got["y"][problem.valid], got["dx"][problem.valid]
    return got


@pytest.mark.parametrize("name", FAULTS)
def test_fault_changes_numbers(double: Double, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, wrong = FAULTS[name]
    tensors = Tensors.random(problem)
    right = run_with_padding(double, problem, tensors)
    monkeypatch.setenv("CUDNN_DOUBLE_FAULT", name)
    got = run_with_padding(double, problem, tensors)
    for result in wrong:
        assert not np.allclose(got[result], right[result], 1e-3, 1e-3), result
    if name in ("padding_fill", "cy_clipped", "dw_wrong_step", "dx_missing"):
        for result in right.keys() - wrong:
            np.testing.assert_array_equal(got[result], right[result], result)


def test_every_fault_is_tried() -> None:
    source = (Path(__file__).parent / "cudnn_double" / "switches.c").read_text()
    table = source[source.index("FAULTS[] = {") : source.index("};")]
    assert set(re.findall(r'^    "(\w+)",', table, re.MULTILINE)) == FAULTS.keys()


def test_large_batches_fail(any_double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(lengths=(3,) * 5)
    tensors = Tensors.random(problem)
    session = Session(any_double, problem)
    session.forward(tensors)
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", "4")
    arguments = session.forward_arguments(tensors, TRAINING)
    assert any_double.status("cudnnRNNForward", *arguments) == any_double.FAILED
    assert np.isnan(session.y).all()
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", "5")
    session.forward(tensors)
    session.close()


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (60, Problem(algo=2)),
        (53, Problem(dtype=HALF, precision=HALF)),
        (80, Problem(dtype=BFLOAT16, precision=FLOAT)),
    ],
)
def test_capability(
    double: Double, limit: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, tensors = Session(double, problem), Tensors.random(problem)
    for capability, wanted in [(limit - 1, double.UNSUPPORTED), (limit, 0)]:
        monkeypatch.setenv("CUDNN_DOUBLE_SM", str(capability))
        arguments = session.forward_arguments(tensors, INFERENCE)
        assert double.status("cudnnRNNForward", *arguments) == wanted
    session.close()


def test_asked_failures(any_double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_DOUBLE_FAIL", "cudnnCreate:4")
    made = ctypes.c_void_p()
    assert any_double.status("cudnnCreate", ctypes.byref(made)) == 4
    any_double("cudnnDestroyRNNDescriptor", any_double.make("RNNDescriptor"))
    monkeypatch.delenv("CUDNN_DOUBLE_FAIL")
    monkeypatch.setenv("CUDNN_DOUBLE_NO_DEVICE", "1")
    assert any_double.status("cudnnCreate", ctypes.byref(made)) == any_double.UNSET
    assert made.value is None
    if any_double.v9:
        assert any_double.error() == "cudaGetDeviceCount(&count) != cudaSuccess"


def test_hooks(double: Double) -> None:
    library = double.library
    alive = double.live()
    library.cudnn_double_reset()
    problem = Problem(GRU, I=6, H=7, P=7, L=2, lengths=(4, 2, 1), layout=BATCH_MAJOR)
    session = Session(double, problem)
    assert double.live() == [now + more for now, more in zip(alive, (1, 1, 2, 2, 1), strict=True)]
    double("cudnnSetStream", session.handle, 0x1234)
    stream = ctypes.c_void_p()
    double("cudnnGetStream", session.handle, ctypes.byref(stream))
    assert stream.value == 0x1234
    session.forward(Tensors.random(problem))
    assert library.cudnn_double_last_stream() == 0x1234
    assert library.cudnn_double_calls(b"cudnnRNNForward") == 1
    assert library.cudnn_double_calls(b"cudnnRNNBackwardData_v8") == 0
    wanted = {
        "mode": GRU, "math": 3, "algo": 0, "layout": BATCH_MAJOR, "aux": 1, "type": DOUBLE,
        "T": 4, "N": 3, "I": 6, "H": 7, "P": 7, "L": 2, "bias": DOUBLE_BIAS, "input": 0,
    }  # fmt: skip
    assert {name: library.cudnn_double_last(name.encode()) for name in wanted} == wanted
    assert library.cudnn_double_peak_workspace() == session.work.nbytes
    assert library.cudnn_double_foreign_threads() == 0
    thread = threading.Thread(target=double, args=("cudnnSetStream", session.handle, None))
    thread.start()
    thread.join()
    assert library.cudnn_double_foreign_threads() == 1
    session.close()
    assert double.live() == alive


def test_folders_hold_states_of_their_own(double: Double, tmp_path: Path) -> None:
    other = Double(tmp_path, "9.28.0")
    kept = other.make("RNNDescriptor")
    assert other.live() == [0, 1, 0, 0, 0]
    names = {path.name for path in tmp_path.iterdir()}
    assert {"libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9"} < names
    part = ctypes.CDLL(str(tmp_path / "libcudnn_adv.so.9"))
    assert part.cudnn_double_live(b"rnn") == 1
    other("cudnnDestroyRNNDescriptor", kept)
