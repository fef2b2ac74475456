"""The reference against the oracle and central differences, on every case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
from cases import (
    CELLS,
    CORE,
    DTYPES,
    FACTORS,
    TINY,
    WIDE,
    Call,
    Case,
    arrays_of,
    clash,
    data_of,
    flat,
    gradient_of,
    wide_cotangents,
    widened,
)
from differences import assert_gradient, assert_gradient_along
from tolerances import assert_close

Array = np.ndarray[Any, np.dtype[Any]]

HALVES = ("float16", "bfloat16")


def params(cases: Sequence[Case], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(case, id=case.id, marks=marks) for case in cases]


every_case = pytest.mark.parametrize(
    "case", params(CORE) + params(TINY) + params(WIDE, pytest.mark.slow)
)
core_case = pytest.mark.parametrize("case", params(CORE))
tiny_case = pytest.mark.parametrize("case", params(TINY))
small_case = pytest.mark.parametrize("case", params(CORE) + params(TINY))
wide_case = pytest.mark.parametrize("case", params(WIDE, pytest.mark.slow))


# Values


def expected(case: Case, call: Call) -> dict[str, Array | None]:
    """Return what the oracle makes of a call, in the caller's layout."""
    D, weights = case.D, call.weights
    options = dict(CELLS[case.cell].options)
    for name in ("cell_clip", "proj_clip", "gate_clip"):
        if isinstance(options.get(name), float):
            options[name] = (-options[name], options[name])
    if "cell_clip" in options:
        options["cell_clip"] = tuple(float(np.float32(bound)) for bound in options["cell_clip"])
    options.pop("activations", None)
    functions = call.options.get("activations")
    groups = len(oracle.USUAL[case.mode])

    def cell(k: int) -> oracle.Cell:
        arrays = {
            name: None if entries is None else np.array(entries[k], np.float64)
            for name in ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "peephole")
            for entries in (getattr(weights, name),)
        }
        none = np.zeros(len(weights.w_ih[k]))
        for name in ("b_ih", "b_hh"):
            arrays[name] = none if arrays[name] is None else arrays[name]
        own = None if functions is None else functions[k % D * groups :][:groups]
        return oracle.Cell(case.mode, **arrays, activations=own, **options)

    def state(given: Array | None, size: int) -> Array:
        zeros = np.zeros((case.L * D, case.N, size))
        return zeros if given is None else np.array(given, np.float64)

    y, h_n, c_n, c = oracle.run(
        case.to_time_major(np.array(data_of(call.x), np.float64)),
        [
            [(cell(layer * D + d), case.runs_backward(d)) for d in range(D)]
            for layer in range(case.L)
        ],
        state(call.h0, case.P),
        state(call.c0, case.H),
        case.mask,
        case.resets,
        case.kept,
        case.rate,
        case.hold,
    )
    return {
        "y": case.to_layout(y),
        "h_n": h_n,
        "c_n": c_n if case.mode == "lstm" else None,
        "c": case.to_layout(c) if case.cell_states else None,
    }


@every_case
def test_values_are_the_oracles(case: Case) -> None:
    call = case.call()
    out = call.rnn(backend="reference")
    for name, wanted in expected(case, call).items():
        got = data_of(getattr(out, name))
        if wanted is None:
            assert got is None
        else:
            assert_close(name, got, wanted, "reference", "float64")


def test_the_core_has_every_pair_of_choices() -> None:
    choices = [(name, value) for name, values in FACTORS.items() for value in values]
    for one, other in itertools.combinations(choices, 2):
        if one[0] != other[0] and not clash(one, other):
            assert any(
                getattr(case, one[0]) == one[1] and getattr(case, other[0]) == other[1]
                for case in CORE
            ), (one, other)


# Gradients


def scalar(
    call: Call, names: Sequence[str], cotangents: dict[str, Any]
) -> tuple[Callable[[Array], Array], Array]:
    """Return the number whose gradient the vjp must be: its terms as a function of a vector.

    The vector, returned too, is that of all entries of the arguments named.
    """
    arrays = [array for name in names for array in call.leaves()[name]]

    def f(vector: Array) -> Array:
        cuts = np.cumsum([array.size for array in arrays])[:-1]
        parts = iter(
            part.reshape(array.shape)
            for part, array in zip(np.split(vector, cuts), arrays, strict=True)
        )
        leaves = {name: [next(parts) for _ in call.leaves()[name]] for name in names}
        out = call.with_leaves(leaves).rnn(backend="reference")
        return flat([data_of(getattr(out, name[1:])) * each for name, each in cotangents.items()])

    return f, flat(arrays)


@small_case
def test_gradients_are_central_differences_along_a_direction(case: Case) -> None:
    """One argument after another."""
    call, cotangents = case.call(), case.cotangents()
    _, vjp = call.rnn_vjp(backend="reference")
    grads = vjp(**cotangents)
    shapes = {name: array.shape for name, array in call.weights.named()}
    assert {name: array.shape for name, array in grads.weights.named()} == shapes
    assert grads.weights.bidirectional == call.weights.bidirectional
    assert data_of(grads.x).shape == data_of(call.x).shape
    assert grads.h0.shape == (case.L * case.D, case.N, case.P)
    assert (grads.c0 is None) == (case.mode != "lstm")
    for name in call.leaves():
        f, at = scalar(call, [name], cotangents)
        direction = case.draw(f"direction of {name}", at.size)
        assert_gradient_along(name, gradient_of(grads, name), f, at, direction)


@wide_case
def test_gradients_of_wide_cases_are_central_differences_along_directions(case: Case) -> None:
    """All arguments at once."""
    call, cotangents = case.call(), case.cotangents()
    _, vjp = call.rnn_vjp(backend="reference")
    grads = vjp(**cotangents)
    names = list(call.leaves())
    f, at = scalar(call, names, cotangents)
    got = flat([gradient_of(grads, name) for name in names])
    for k in range(3):
        assert_gradient_along("all", got, f, at, case.draw(f"direction {k}", at.size))


@tiny_case
def test_gradients_are_central_differences_in_every_entry(case: Case) -> None:
    call, cotangents = case.call(), case.cotangents()
    _, vjp = call.rnn_vjp(backend="reference")
    grads = vjp(**cotangents)
    for name in call.leaves():
        assert_gradient(name, gradient_of(grads, name), *scalar(call, [name], cotangents))


@core_case
def test_a_state_left_out_stands_for_zeros(case: Case) -> None:
    call, cotangents = case.call(), case.cotangents()
    zeros = np.zeros((case.L * case.D, case.N, case.P)), np.zeros((case.L * case.D, case.N, case.H))
    given = replace(call, h0=zeros[0] if call.h0 is None else call.h0)
    if case.mode == "lstm" and call.c0 is None:
        given = replace(given, c0=zeros[1])
    results = []
    for each in (call, given):
        out, vjp = each.rnn_vjp(backend="reference")
        results.append(arrays_of(out) + arrays_of(vjp(**cotangents)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@tiny_case
def test_a_cotangent_left_out_stands_for_zeros(case: Case) -> None:
    _, vjp = case.call().rnn_vjp(backend="reference")
    cotangents = case.cotangents()
    for name in cotangents:
        alone = {**dict.fromkeys(cotangents), name: cotangents[name]}
        zeros = {each: np.zeros_like(value) for each, value in cotangents.items()}
        got, wanted = vjp(**alone), vjp(**zeros | {name: cotangents[name]})
        for one, other in zip(arrays_of(got), arrays_of(wanted), strict=True):
            np.testing.assert_array_equal(one, other)


# Dtypes, memory and what lies at masked steps


@core_case
def test_every_dtype_is_near_float64(case: Case) -> None:
    for dtype in ("float32", *HALVES):
        call, cotangents = case.call(dtype), case.cotangents(dtype)
        out, vjp = call.rnn_vjp(backend="reference")
        wide_out, wide_vjp = widened(call).rnn_vjp(backend="reference")
        for k, (got, wanted) in enumerate(zip(arrays_of(out), arrays_of(wide_out), strict=True)):
            assert_close(f"output {k}", got, wanted, "reference", dtype)
        grads, wide_grads = vjp(**cotangents), wide_vjp(**wide_cotangents(cotangents))
        for name in call.leaves():
            got, wanted = gradient_of(grads, name), gradient_of(wide_grads, name)
            assert_close(name, got, wanted, "reference", dtype)


@core_case
def test_float64_inside_rounds_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves always, float32 on request.

    Two things are rounded before: c0 to the cell clip, in its own dtype, and the cotangents that a
    held step adds up.
    """
    monkeypatch.setenv("RNNOP_REFERENCE_FLOAT64", "1")
    for dtype in ("float32", *HALVES):
        if dtype in HALVES and "cell_clip" in case.features:
            continue
        call, cotangents = case.call(dtype), case.cotangents(dtype)
        out, vjp = call.rnn_vjp(backend="reference")
        wide_out, wide_vjp = widened(call).rnn_vjp(backend="reference")
        got, wanted = arrays_of(out), arrays_of(wide_out)
        if not case.hold:
            got += arrays_of(vjp(**cotangents))
            wanted += arrays_of(wide_vjp(**wide_cotangents(cotangents)))
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype == DTYPES[dtype]
            np.testing.assert_array_equal(one, other.astype(DTYPES[dtype]))
        monkeypatch.delenv("RNNOP_REFERENCE_FLOAT64", raising=False)


@core_case
def test_results_are_fresh_and_contiguous_and_no_input_changes(case: Case) -> None:
    call, cotangents = case.call(), case.cotangents()
    given = arrays_of(call) + list(cotangents.values())
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    out, vjp = call.rnn_vjp(backend="reference")
    results = arrays_of(out) + arrays_of(vjp(**cotangents))
    assert [array.tobytes() for array in given] == before
    for k, array in enumerate(results):
        assert array.dtype == np.float64, k
        assert array.flags.c_contiguous, k
        assert array.flags.writeable, k
        for other in given + results[:k]:
            assert not np.may_share_memory(array, other), k


@core_case
def test_nothing_at_masked_steps_reaches_a_result(case: Case) -> None:
    def results(masked: float) -> list[Array]:
        out, vjp = case.call(masked=masked).rnn_vjp(backend="reference")
        return arrays_of(out) + arrays_of(vjp(**case.cotangents(masked=masked)))

    clean = results(0.0)
    for got, wanted in zip(results(np.nan), clean, strict=True):
        assert got.tobytes() == wanted.tobytes()
    out, vjp = case.call(masked=np.nan).rnn_vjp(backend="reference")
    dx = case.to_time_major(data_of(vjp(**case.cotangents(masked=np.nan)).x))
    assert np.all(dx[~case.mask] == 0.0)
    y = case.to_time_major(data_of(out.y))
    assert np.all(np.isfinite(y))
    if not case.hold:
        assert np.all(y[~case.mask] == 0.0)
