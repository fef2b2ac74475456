"""cuDNN against the reference: every case, dtype, layout and version, through the stand-in.

What is drawn from cuDNN's own generator is in test_cudnn_dropout.py; nothing else is left out.
"""

from __future__ import annotations

from typing import Any

import cudnn_on_host
import numpy as np
import pytest
from agreement import assert_right, assert_same, outputs_of, reference, results
from cases import CELLS, CORE, TINY, WIDE, Case, widened
from cudnn_on_host import Double

import rnnop
from rnnop.cudnn import pieces
from rnnop.tolerances import TOLERANCES, rms

NOT_IN_CUDNN = {
    "activations": "cuDNN has no custom `activations`",
    "reset_after": "cuDNN has no `reset_after=False`: its GRU applies r after the product",
    "peephole": "cuDNN has no `weights.peephole`",
    "proj_clip": "cuDNN has no `proj_clip`",
    "gate_clip": "cuDNN has no `gate_clip`",
    "input_forget": "cuDNN has no `input_forget`",
}


def reasons(case: Case) -> list[str]:
    """Return every reason for which cuDNN cannot run a case."""
    found = [reason for name, reason in NOT_IN_CUDNN.items() if name in case.features]
    if CELLS[case.cell].projection and case.P == case.H:
        found.append(f"cuDNN has no projection to hidden_size = {case.H} itself, only to less")
    return found


def draws(case: Case) -> bool:
    """Return whether cuDNN draws the dropout masks of a case."""
    return case.by_seed and not case.cell_states


RUN = [case for case in CORE + WIDE + TINY if not reasons(case) and not draws(case)]
FEW = [case for case in RUN if case not in WIDE]
REFUSED = [case for case in CORE + TINY if reasons(case)]
# A single unit of tanh: each gradient of a weight is one number, the sum of few that cancel.
SINGLE = [
    case
    for case in FEW
    if case.cell == "rnn_tanh" and case.H == case.I == case.L == 1 and case.mask.any()
]
HALVES = [case for case in FEW if "cell_clip" not in case.features and case not in SINGLE]
RAGGED = [
    case
    for case in FEW
    if case.steps not in ("dense", "lengths_full", "lengths_one", "resets_everywhere")
]
VERSIONS = ["8.9.7", "9.1.0", "9.10.2"]


def every(cases: list[Case]) -> Any:
    slow = {True: pytest.mark.slow, False: ()}
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.id, marks=slow[case in WIDE]) for case in cases]
    )


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return cudnn_on_host.use(monkeypatch)


def check(case: Case, dtype: str = "float64") -> None:
    call, cotangents = case.call(dtype, masked=np.nan), case.cotangents(dtype, masked=np.nan)
    assert_right(call, cotangents, "cudnn", dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every(RUN)
def test_all_results_are_the_references(case: Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every(HALVES)
def test_halves(case: Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every(SINGLE)
def test_halves_of_a_single_unit(case: Case, dtype: str) -> None:
    """The backward has 1 - y * y of a rounded y: coarse near 1, and nothing averages it out.

    So the error is measured against what the rows add up to without their signs.
    """
    call, cotangents = case.call(dtype), case.cotangents(dtype)
    assert case.layout == "batch_first"

    def of_row(n: int) -> dict[str, Any]:
        alone = {name: np.zeros_like(array) for name, array in cotangents.items()}
        for name, array in cotangents.items():
            row = n if name == "dy" else (slice(None), n)
            alone[name][row] = array[row]
        return reference(call, alone)

    got, wanted = results(call, cotangents, "cudnn"), reference(call, cotangents)
    rows = [of_row(n) for n in range(case.N)]
    for name, array in wanted.items():
        size = np.sum([np.abs(row[name]) for row in rows], axis=0) if name[0] == "d" else array
        ratio = rms(got[name].astype(np.float64) - array) / rms(size)
        assert ratio <= TOLERANCES["cudnn", dtype], (name, ratio)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every([case for case in FEW if "cell_clip" in case.features])
def test_outputs_of_halves_with_a_clip(case: Case, dtype: str) -> None:
    """A final cell state comes rounded, maybe to the other side of a bound: so much for dc_n."""
    call = case.call(dtype, masked=np.nan)
    wanted = outputs_of(widened(call).rnn(backend="reference"))
    assert_same(outputs_of(call.rnn(backend="cudnn")), wanted, "cudnn", dtype)


@every(FEW)
def test_inference_gives_what_training_gives(case: Case, double: Double) -> None:
    call = case.call("float32")
    bits = [
        {name: array.tobytes() for name, array in outputs_of(out).items()}
        for out in (call.rnn(backend="cudnn"), call.rnn_vjp(backend="cudnn")[0])
    ]
    if case.dropout == "none":  # else the seed counts, and it does
        assert bits[0] == bits[1]


@pytest.mark.parametrize("version", VERSIONS)
@every([case for case in RUN if case in TINY])
def test_all_versions(case: Case, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn_on_host.use(monkeypatch, version)
    check(case)


@every(RAGGED)
def test_padded(case: Case, double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    check(case)


@pytest.mark.parametrize("version", VERSIONS)
@every([case for case in RAGGED if case in TINY])
def test_padded_in_all_versions(case: Case, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", "padded")
    cudnn_on_host.use(monkeypatch, version)
    check(case)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@every([case for case in RAGGED if case.layout != "packed"])
def test_masked_places_are_exactly_zero(
    case: Case, layout: str, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", layout)
    out, vjp = case.call(masked=np.nan).rnn_vjp(backend="cudnn")
    grads = vjp(**case.cotangents(masked=np.nan))
    masked = ~case.mask.T if case.layout == "batch_first" else ~case.mask
    assert not grads.x[masked].any()
    if not case.hold:
        assert not out.y[masked].any()


# More steps and more segments than one call takes


@pytest.mark.parametrize("stack", [{}, {"bidirectional": True}, {"reverse": True}])
def test_more_steps_than_one_call_takes(stack: dict[str, bool], double: Double) -> None:
    """One more than 65,535: equal to the last step on the state that all others have left."""
    T, options = pieces.MOST_STEPS + 1, {"mode": "gru", "backend": "cudnn"}
    both, reverse = stack.get("bidirectional", False), stack.get("reverse", False)
    weights = rnnop.init_weights(
        "gru", input_size=1, hidden_size=1, bidirectional=both, seed=0, dtype=np.float64
    )
    x = np.random.default_rng(0).standard_normal((T, 1, 1))
    out, vjp = rnnop.rnn_vjp(x, weights, **options, reverse=reverse)
    dy = np.zeros_like(out.y)
    dy[0] = dy[-1] = 1.0
    grads = vjp(dy)
    assert double.last("T") <= pieces.MOST_STEPS
    for direction in range(out.y.shape[2]):
        turned = reverse or direction == 1
        alone = weights.part(slice(direction, direction + 1), bidirectional=False)
        own = x[::-1] if turned else x
        first = rnnop.rnn(own[:-1], alone, **options)
        last = rnnop.rnn(own[-1:], alone, first.h_n, **options)
        y = out.y[:, :, direction : direction + 1]
        y = y[::-1] if turned else y
        np.testing.assert_array_equal(y[:-1], first.y)
        np.testing.assert_array_equal(y[-1:], last.y)
        np.testing.assert_array_equal(out.h_n[direction], last.h_n[0])
    step = 1e-6
    x_more, x_less = x.copy(), x.copy()
    x_more[-1] += step
    x_less[-1] -= step
    ahead, behind = (
        float((rnnop.rnn(each, weights, **options, reverse=reverse).y * dy).sum())
        for each in (x_more, x_less)
    )
    np.testing.assert_allclose(grads.x[-1].item(), (ahead - behind) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize(
    ("steps", "segments", "layout"),
    [(3, 100, "packed"), (2, 100, "padded"), (100, 1, "packed"), (2, 2, "packed")],
)
@every(FEW)
def test_in_pieces(
    case: Case,
    steps: int,
    segments: int,
    layout: str,
    double: Double,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RNNOP_CUDNN_LAYOUT", layout)
    monkeypatch.setenv("CUDNN_DOUBLE_MAX_BATCH", str(segments))
    monkeypatch.setattr(pieces, "MOST_STEPS", steps)
    check(case)
    assert double.last("T") <= steps
    assert double.last("N") <= segments


# What cuDNN has not


@every(REFUSED)
def test_what_cudnn_has_not_is_refused_by_name(case: Case, double: Double) -> None:
    for function in (case.call().rnn, case.call().rnn_vjp):
        with pytest.raises(rnnop.UnsupportedError) as caught:
            function(backend="cudnn")
        head, _, reason = caught.value.fact.partition(": ")
        assert head == "backend 'cudnn' cannot run this call"
        assert reason in reasons(case)
    assert double.calls("cudnnRNNForward") == double.calls("cudnnCreateRNNDescriptor") == 0
