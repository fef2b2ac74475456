"""The same call again gives the same bits, on every backend that promises it (docs/backends.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CORE, DTYPES, FACTORS, Array, Call, Case, arrays_of, clash
from hypothesis import assume, given
from hypothesis import strategies as st
from rssm_cases import FORMS, SPECS, Inputs, cotangents_of, gradients_of, inputs_of

import rnnop
from rnnop.cpu import engine

needs_engine = pytest.mark.skipif(
    not engine.available(), reason="rnnop was installed without a C compiler"
)
both = pytest.mark.parametrize("backend", [pytest.param("cpu", marks=needs_engine), "reference"])
THREADS = (1, 2, 3)


def bits(arrays: Any) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case of the table, and any other of its kind."""
    chosen = {name: draw(st.sampled_from(values)) for name, values in FACTORS.items()}
    assume(not any(clash(*two) for two in itertools.combinations(chosen.items(), 2)))
    return Case(**chosen)


def elsewhere(array: Array, offset: int) -> Array:
    """Return an equal array some bytes further on in a memory of its own."""
    memory = np.empty(array.nbytes + offset, np.uint8)
    moved = memory[offset:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def moved(call: Call, offset: int) -> Call:
    """Return a call with every array of numbers at another address."""
    leaves = call.leaves().items()
    return call.with_leaves({name: [elsewhere(a, offset) for a in each] for name, each in leaves})


def run(call: Call, cotangents: dict[str, Any], backend: str) -> list[bytes]:
    try:
        out, vjp = call.rnn_vjp(backend=backend)
    except rnnop.UnsupportedError:
        assume(False)
    return bits(arrays_of(out)) + bits(arrays_of(vjp(**cotangents)))


@both
@given(case=cases(), dtype=st.sampled_from(sorted(DTYPES)), between=st.sampled_from(CORE[:20]))
def test_the_same_call_twice(case: Case, dtype: str, between: Case, backend: str) -> None:
    """Outputs and all gradients, with dropout from a seed too, whatever was called in between."""
    call = replace(case, stride="contiguous").call(dtype)
    cotangents = replace(case, stride="contiguous").cotangents(dtype)
    first = run(call, cotangents, backend)
    alone = bits(arrays_of(call.rnn(backend=backend)))
    assert alone == first[: len(alone)]
    between.call(dtype).rnn(backend="reference")
    for offset in (0, 64):
        assert run(moved(call, offset), cotangents, backend) == first


@needs_engine
@given(case=cases(), dtype=st.sampled_from(sorted(DTYPES)))
def test_any_number_of_threads(case: Case, dtype: str) -> None:
    call, cotangents = case.call(dtype), case.cotangents(dtype)
    found = []
    for _ in threads():
        found.append(run(call, cotangents, "cpu"))
        found.append(bits(arrays_of(call.rnn(backend="cpu"))))
    assert all(each == found[0] for each in found[::2])
    assert all(each == found[0][: len(each)] for each in found[1::2])


def threads() -> Iterator[int]:
    """Set one number of threads after another."""
    with pytest.MonkeyPatch.context() as patch:
        for number in THREADS:
            patch.setenv("RNNOP_NUM_THREADS", str(number))
            yield number


def rollout(inputs: Inputs, backend: str, seed: int | None) -> list[bytes]:
    noise: dict[str, Any] = {} if seed is None else {"noise": None, "seed": seed}
    try:
        out, vjp = inputs.run(vjp=True, backend=backend, **noise)
    except rnnop.UnsupportedError:
        assume(False)
    assert bits(inputs.run(backend=backend, **noise)) == bits(out)
    return bits(out) + bits(gradients_of(vjp(*cotangents_of(out))).values())


@st.composite
def models(draw: st.DrawFn) -> tuple[Inputs, int | None]:
    """A call of the RSSM in some dtype, and a seed, or None for noise that is given."""
    spec = SPECS[draw(st.sampled_from(sorted(SPECS)))]
    T, N = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    inputs = inputs_of(draw(st.sampled_from(FORMS)), spec, T, N, draw(st.integers(0, 99)))
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    inputs = replace(
        inputs,
        weights=inputs.weights.map(lambda array: array.astype(dtype)),
        arrays={name: array.astype(dtype) for name, array in inputs.arrays.items()},
        noise=inputs.noise.astype(dtype),
    )
    return inputs, draw(st.none() | st.integers(0, 2**40))


@both
@given(model=models())
def test_the_same_world_twice(model: tuple[Inputs, int | None], backend: str) -> None:
    inputs, seed = model
    first = rollout(inputs, backend, seed)
    apart = replace(
        inputs,
        weights=inputs.weights.map(lambda array: elsewhere(array, 64)),
        arrays={name: elsewhere(array, 64) for name, array in inputs.arrays.items()},
    )
    assert rollout(inputs, backend, seed) == first
    assert rollout(apart, backend, seed) == first


@needs_engine
@given(model=models())
def test_a_world_with_any_number_of_threads(model: tuple[Inputs, int | None]) -> None:
    found = [rollout(model[0], "cpu", model[1]) for _ in threads()]
    assert all(each == found[0] for each in found)
