"""JAX arrays through `rnnop.rnn`: the numbers of NumPy's calls, under every transformation."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cases import CORE, DTYPES, Call, Case, arrays_of, data_of
from tolerances import assert_close

import rnnop

jax = pytest.importorskip("jax", reason="tests JAX arrays: pip install rnnop[jax]")

import jax.numpy as jnp  # noqa: E402

import rnnop.jax  # noqa: E402
from rnnop.jax import host  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]

T, N, I, H = 5, 3, 2, 4


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[host.Waiting]:
    """Return where a vjp waits for its backward; a test that leaves one there fails."""
    fresh = host.Waiting()
    monkeypatch.setattr(host, "WAITING", fresh)
    yield fresh
    assert len(fresh) == 0
    assert fresh.bytes == 0


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the shapes of x of every forward and backward that runs from now on."""
    found: list[tuple[Any, ...]] = []

    def watched(name: str) -> Callable[..., Any]:
        run = getattr(host, name)

        def watch(call: Any, leaves: Any, *others: Any) -> Any:
            found.append((name, leaves[0].shape))
            return run(call, leaves, *others)

        return watch

    for name in ("forward", "backward"):
        monkeypatch.setattr(host, name, watched(name))
    return found


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def weights(mode: str = "gru", **options: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights(mode, input_size=I, hidden_size=H, seed=0, **options).map(jnp.asarray)


def to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def assert_equal(got: Any, wanted: Any) -> None:
    """Fail unless two trees have the same arrays, to the bit."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_near(got: Any, wanted: Any, tolerance: float = 2e-6) -> None:
    """Fail unless two trees are equal but for the order of sums in float32."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape
        largest = np.abs(np.asarray(other)).max(initial=1e-30)
        assert np.abs(np.asarray(one) - np.asarray(other)).max(initial=0.0) <= tolerance * largest


# The cases of every backend


ARRAYS = ("mask", "lengths", "resets", "dropout_masks")


def in_jax(call: Call) -> Call:
    """Return a call with JAX arrays, but for the indices of a packed sequence."""
    options = dict(call.options)
    for name in ARRAYS:
        if name in options:
            options[name] = jax.tree.map(jnp.asarray, options[name])
    leaves = {name: [*map(jnp.asarray, arrays)] for name, arrays in call.leaves().items()}
    return dataclasses.replace(call.with_leaves(leaves), options=options)


def flat_results(out: rnnop.RNNOutput, grads: dict[str, list[Any]]) -> list[Any]:
    return arrays_of(out) + [array for name in sorted(grads) for array in grads[name]]


def numpy_results(call: Call, cotangents: dict[str, Any], **more: Any) -> list[Array]:
    """Return every output, and the gradient of every argument that is given.

    JAX's arrays are contiguous, so these are as well: NumPy's products depend on it.
    """
    leaves = call.leaves().items()
    call = call.with_leaves({name: [*map(np.ascontiguousarray, each)] for name, each in leaves})
    out, vjp = call.rnn_vjp(**more)
    grads = vjp(**cotangents)
    named = {"x": [data_of(grads.x)], "h0": [grads.h0], "c0": [grads.c0]}
    named |= {name: getattr(grads.weights, name) for name in call.leaves() if name not in named}
    return flat_results(out, {name: list(named[name]) for name in call.leaves()})


def jax_results(call: Call, cotangents: dict[str, Any], **more: Any) -> list[Any]:
    """Return the same by JAX's own means."""

    def outputs(leaves: Any) -> list[Any]:
        return arrays_of(call.with_leaves(leaves).rnn(**more))

    found, pullback = jax.vjp(outputs, call.leaves())
    given = dict(zip(("dy", "dh_n", "dc_n", "dc"), found, strict=False))
    (grads,) = pullback([data_of(cotangents[name]) for name in given])
    return flat_results(tuple(found), grads)


def every(step: int) -> list[Any]:
    """Return (case, dtype): all cases in float32, and one of `step` in each other dtype."""
    return [
        pytest.param(case, dtype, id=f"{case.id}-{dtype}")
        for dtype in DTYPES
        for case in CORE[:: 1 if dtype == "float32" else step]
    ]


@pytest.mark.parametrize(("case", "dtype"), every(7))
def test_eager_calls_give_numpys_results_to_the_bit(case: Case, dtype: str) -> None:
    call, cotangents = case.call(dtype, masked=np.nan), case.cotangents(dtype, masked=np.nan)
    wanted = numpy_results(call, cotangents)
    with jax.enable_x64(dtype == "float64"):
        found = jax_results(in_jax(call), jax.tree.map(jnp.asarray, cotangents))
        assert all(isinstance(array, jax.Array) for array in found)
        assert_equal(found, wanted)


@pytest.mark.parametrize(("case", "dtype"), every(7)[::11])
def test_compiled_calls_give_numpys_results_to_the_bit(case: Case, dtype: str) -> None:
    """All arrays are traced: x, weights, states, mask, lengths, resets and dropout masks."""
    call, cotangents = case.call(dtype, masked=np.nan), case.cotangents(dtype, masked=np.nan)
    wanted = numpy_results(call, cotangents)
    with jax.enable_x64(dtype == "float64"):
        there = in_jax(call)
        traced = {name: there.options[name] for name in ARRAYS if name in there.options}

        @jax.jit
        def results(leaves: Any, traced: Any, cotangents: Any) -> list[Any]:
            given = dataclasses.replace(there, options=there.options | traced)
            return jax_results(given.with_leaves(leaves), cotangents)

        found = results(there.leaves(), traced, jax.tree.map(jnp.asarray, cotangents))
        assert_equal(found, wanted)


# The reference in JAX's own operations


@pytest.mark.slow
@pytest.mark.parametrize("case", CORE[3::37], ids=lambda case: case.id)
def test_the_reference_runs_on_jax_arrays(case: Case) -> None:
    call, cotangents = case.call(masked=np.nan), case.cotangents(masked=np.nan)
    wanted = numpy_results(call, cotangents, backend="reference")
    with jax.enable_x64(True):
        there = in_jax(call)

        @jax.jit
        def results(leaves: Any, cotangents: Any) -> list[Any]:
            out, vjp = there.with_leaves(leaves).rnn_vjp(backend="reference")
            grads = vjp(**cotangents)
            named = {"x": [data_of(grads.x)], "h0": [grads.h0], "c0": [grads.c0]}
            fields = (name for name in leaves if name not in named)
            named |= {name: getattr(grads.weights, name) for name in fields}
            return flat_results(out, {name: list(named[name]) for name in leaves})

        found = results(there.leaves(), jax.tree.map(jnp.asarray, cotangents))
        for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_close(f"array {k}", np.asarray(one), other, "reference", "float64")


LENGTHS = np.array([T, 0, 2])


def loss(x: Any, w: rnnop.RNNWeights, h0: Any = None, lengths: Any = None, **more: Any) -> Any:
    """Return a number that every output and every step counts in."""
    out = rnnop.rnn(x, w, h0, lengths=lengths, **more)
    total = (jnp.cos(out.y) * out.y).sum() + jnp.sin(2 * out.h_n).sum()
    return total if out.c_n is None else total + (out.c_n**2).sum()


def test_jax_differentiates_the_reference_as_often_as_it_likes() -> None:
    x, w = jnp.asarray(random(2, 2, I)), weights()
    given = {"lengths": [2, 1]}
    one = jax.grad(loss, (0, 1))(x, w, backend="reference", **given)
    assert_near(jax.grad(loss, (0, 1))(x, w, **given), one)

    def of_gradient(x: Any) -> Any:
        return (jax.grad(loss)(x, w, backend="reference", **given) ** 2).sum()

    second = jax.jit(jax.grad(of_gradient))(x)
    moved = jnp.zeros_like(x).at[1, 0, 1].set(1e-2)
    wanted = (of_gradient(x + moved) - of_gradient(x - moved)) / 2e-2
    assert abs(second[1, 0, 1] - wanted) < 1e-3 * abs(wanted)


# Transformations


def arguments(mode: str = "gru") -> tuple[Any, rnnop.RNNWeights, Any]:
    w = weights(mode, num_layers=2, bidirectional=True)
    return jnp.asarray(random(T, N, I)), w, jnp.asarray(random(4, N, H, seed=1))


def numpy_gradients(x: Any, w: Any, h0: Any, **more: Any) -> Any:
    """Return the gradients of `loss` from the NumPy operator, and its cotangents from JAX."""
    x, w, h0 = to_numpy((x, w, h0))
    out, vjp = rnnop.rnn_vjp(x, w, h0, **more)
    present = {name: each for name, each in out._asdict().items() if each is not None}

    def of_outputs(outputs: Any) -> Any:
        total = (jnp.cos(outputs["y"]) * outputs["y"]).sum() + jnp.sin(2 * outputs["h_n"]).sum()
        return total + (outputs["c_n"] ** 2).sum() if "c_n" in outputs else total

    cotangents = to_numpy(jax.grad(of_outputs)(jax.tree.map(jnp.asarray, present)))
    grads = vjp(**{f"d{name}": each for name, each in cotangents.items()})
    return grads.x, grads.weights, grads.h0


@pytest.mark.parametrize("mode", ["gru", "lstm"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(mode: str, compiled: bool, runs: list[Any]) -> None:
    given = arguments(mode)
    wanted = numpy_gradients(*given, lengths=LENGTHS, mode=mode)
    taken = jax.value_and_grad(lambda *a: loss(*a, lengths=LENGTHS, mode=mode), (0, 1, 2))
    value, grads = (jax.jit(taken) if compiled else taken)(*given)
    assert_near(grads, wanted)
    assert [name for name, _ in runs] == ["forward", "backward"]
    assert_near(value, loss(*given, lengths=LENGTHS, mode=mode))


def test_a_gradient_of_some_arguments_only() -> None:
    given = arguments()
    wanted = numpy_gradients(*given)
    for k in range(3):
        assert_near(jax.jit(jax.grad(loss, k))(*given), wanted[k])
        assert_near(jax.grad(loss, k)(*given), wanted[k])


def test_a_gradient_of_one_output_only() -> None:
    x, w, h0 = arguments()
    _, vjp = rnnop.rnn_vjp(*to_numpy((x, w, h0)))
    ones = np.ones((4, N, H), np.float32)
    found = jax.jit(jax.grad(lambda x: rnnop.rnn(x, w, h0).h_n.sum()))(x)
    assert_near(found, vjp(None, ones).x)


STEPS = {
    "mask": random(T, N, seed=3) > 0,
    "lengths": LENGTHS,
    "resets": random(T, N, seed=4) > 0.5,
}


@pytest.mark.parametrize("name", STEPS)
def test_which_steps_happen_may_be_traced(name: str, runs: list[Any]) -> None:
    given = arguments()
    taken = jax.jit(lambda steps, *a: jax.grad(loss, (0, 1, 2))(*a, **{name: steps}))
    for steps in (STEPS[name], STEPS[name][::-1]):  # the same program
        wanted = numpy_gradients(*given, **{name: steps})
        assert_near(taken(jnp.asarray(steps), *given), wanted)
    assert taken._cache_size() == 1


def test_a_mapped_call_is_one_call_with_more_rows(runs: list[Any]) -> None:
    """Also its gradient, when that of the weights is the sum over all elements."""
    x, w, h0 = arguments()
    xs = jnp.stack([x, 2 * x, -x, x + 1])
    masks = jnp.asarray(random(4, T, N, seed=5) > -0.3)
    each = [numpy_gradients(x, w, h0, mask=np.asarray(m)) for x, m in zip(xs, masks, strict=True)]
    wanted = jax.tree.map(lambda *a: sum(a[1:], a[0]), *[grads[1:] for grads in each])

    def total(xs: Any, w: Any, h0: Any) -> Any:
        return jax.vmap(lambda x, mask: loss(x, w, h0, mask=mask))(xs, masks).sum()

    for taken in (jax.grad(total, (0, 1, 2)), jax.jit(jax.grad(total, (0, 1, 2)))):
        del runs[:]
        dxs, *others = taken(xs, w, h0)
        assert runs == [("forward", (T, 4 * N, I)), ("backward", (T, 4 * N, I))]
        assert_near(dxs, np.stack([grads[0] for grads in each]))
        assert_near(tuple(others), wanted)


def test_gradients_of_the_weights_for_every_element(runs: list[Any]) -> None:
    x, w, h0 = arguments()
    xs = jnp.stack([x, 2 * x, -x])
    each = [numpy_gradients(x, w, h0) for x in xs]
    wanted = jax.tree.map(lambda *a: np.stack(a), *each)
    taken = jax.vmap(jax.grad(loss, (0, 1, 2)), (0, None, None))
    assert_near(taken(xs, w, h0), wanted)
    assert_near(jax.jit(taken)(xs, w, h0), wanted)
    assert [name for name, _ in runs] == (["forward"] * 3 + ["backward"] * 3) * 2


def test_gradients_for_every_element_but_not_of_the_weights(runs: list[Any]) -> None:
    x, w, h0 = arguments()
    xs = jnp.stack([x, 2 * x, -x])
    wanted = np.stack([numpy_gradients(x, w, h0)[0] for x in xs])
    found = jax.jit(jax.vmap(jax.grad(loss), (0, None, None)))(xs, w, h0)
    assert_near(found, wanted)
    assert runs == [("forward", (T, 3 * N, I)), ("backward", (T, 3 * N, I))]


AXES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "rows": (1, {}, {}),
    "last": (3, {}, {}),
    "mask": (0, {"mask": 1}, {}),
    "lengths": (None, {"lengths": 0}, {}),
    "resets": (0, {"resets": 2}, {"masked_output": "hold"}),
    "dropout_masks": (0, {"dropout_masks": 1}, {"dropout": 0.5, "training": True}),
    "batch_first": (2, {"mask": 2}, {"batch_first": True}),
    "h0": (None, {"h0": 1}, {}),
}


@pytest.mark.parametrize("name", AXES)
def test_what_is_mapped_may_lie_anywhere(name: str, runs: list[Any]) -> None:
    B, axis, others, options = 3, *AXES[name]
    first = "batch_first" in options
    shapes = {
        "x": (N, T, I) if first else (T, N, I),
        "h0": (4, N, H),
        "mask": (N, T) if first else (T, N),
        "resets": (T, N),
        "lengths": (N,),
        "dropout_masks": (1, T, N, 2 * H),
    }
    w = weights(num_layers=2, bidirectional=True)
    axes = {"x": axis, **others}
    given: dict[str, Any] = {}
    for k, (key, at) in enumerate(axes.items()):
        drawn = random(B, *shapes[key], seed=k) if at is not None else random(*shapes[key], seed=k)
        if key in ("mask", "resets", "dropout_masks"):
            drawn = drawn > 0
        elif key == "lengths":
            drawn = np.clip(drawn * 2 + 2, 0, T).astype(np.int32)
        given[key] = drawn if at is None else np.moveaxis(drawn, 0, at)

    def call(given: dict[str, Any]) -> Any:
        return rnnop.rnn(weights=w, **given, **options)

    found = jax.vmap(call, (axes,))(jax.tree.map(jnp.asarray, given))
    assert len(runs) == 1
    for b in range(B):
        one = {
            key: value if axes[key] is None else np.take(value, b, axes[key])
            for key, value in given.items()
        }
        wanted = rnnop.rnn(weights=to_numpy(w), **one, **options)
        assert_near(jax.tree.map(lambda array, b=b: array[b], found), wanted)


def test_maps_may_stand_in_one_another(runs: list[Any]) -> None:
    _, w, h0 = arguments()
    xs = jnp.asarray(random(2, 3, T, N, I, seed=6))
    twice = jax.vmap(jax.vmap(lambda x: rnnop.rnn(x, w, h0).y))
    wanted = np.stack([[rnnop.rnn(*to_numpy((x, w, h0))).y for x in row] for row in xs])
    assert_near(jax.jit(twice)(xs), wanted)
    assert runs == [("forward", (T, 6 * N, I))]


@pytest.mark.parametrize("shape", [(0, N, I), (T, 0, I)])
def test_a_mapped_call_may_be_empty(shape: tuple[int, ...]) -> None:
    w = weights()
    xs = jnp.zeros((2, *shape))
    found, pullback = jax.vjp(lambda xs: jax.vmap(lambda x: rnnop.rnn(x, w).y)(xs), xs)
    assert found.shape == (2, *shape[:2], H)
    assert pullback(found)[0].shape == xs.shape


def test_mapped_weights_run_one_after_another(runs: list[Any]) -> None:
    """As those of an ensemble."""
    x, w, h0 = arguments()
    many = jax.tree.map(lambda array: jnp.stack([array, -array]), w)
    found = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), (None, 0, None)))(x, many, h0)
    each = [numpy_gradients(x, jax.tree.map(lambda a, k=k: a[k], many), h0)[:2] for k in range(2)]
    assert_near(found, jax.tree.map(lambda *a: np.stack(a), *each))
    assert runs == [("forward", (T, N, I))] * 2 + [("backward", (T, N, I))] * 2


def test_mapped_packed_data_runs_one_after_another() -> None:
    x, w, h0 = arguments()
    packed = rnnop.pack(x, LENGTHS)
    datas = jnp.stack([packed.data, 2 * packed.data])

    def call(data: Any) -> Any:
        return rnnop.rnn(packed._replace(data=data), w, h0).y.data

    found = jax.jit(jax.vmap(call))(datas)
    indices = map(np.asarray, packed[1:])
    numpy_packed = rnnop.PackedSequence(np.asarray(packed.data), *indices)
    for k in range(2):
        one = numpy_packed._replace(data=np.asarray(datas[k]))
        assert_near(found[k], rnnop.rnn(one, to_numpy(w), np.asarray(h0)).y.data)


def test_each_element_draws_the_dropout_that_it_draws_alone() -> None:
    x, w, h0 = arguments()
    xs, seeds = jnp.stack([x, x, 2 * x]), jnp.array([3, 4, 3])

    def call(x: Any, seed: Any) -> Any:
        return rnnop.rnn(x, w, h0, dropout=0.5, training=True, seed=seed).y

    found = jax.jit(jax.vmap(call))(xs, seeds)
    for k, seed in enumerate((3, 4, 3)):
        one = to_numpy((xs[k], w, h0))
        assert_equal(found[k], rnnop.rnn(*one, dropout=0.5, training=True, seed=seed).y)


def test_a_seed_may_be_traced() -> None:
    given = arguments()
    options = {"dropout": 0.5, "training": True}
    taken = jax.jit(lambda seed, *a: jax.grad(loss, (0, 1, 2))(*a, seed=seed, **options))
    for seed in (1, 2):
        assert_near(taken(seed, *given), numpy_gradients(*given, seed=seed, **options))
    assert taken._cache_size() == 1
    assert_equal(
        rnnop.rnn(*given, seed=jnp.array(5), **options), rnnop.rnn(*given, seed=5, **options)
    )
    one, other = (rnnop.rnn(*given, **options).y for _ in range(2))
    assert not np.array_equal(one, other)


def test_a_jacobian(runs: list[Any]) -> None:
    x, w, h0 = arguments()
    found = jax.jacrev(lambda x: rnnop.rnn(x, w, h0).h_n[0, 0])(x)
    _, vjp = rnnop.rnn_vjp(*to_numpy((x, w, h0)))
    for k in range(H):
        unit = np.zeros((4, N, H), np.float32)
        unit[0, 0, k] = 1
        assert_near(found[k], vjp(None, unit).x)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_inside_scan_and_cond(checkpoint: bool) -> None:
    """JAX's buffers are used again in every step, so what is kept must not lie in them."""
    x, w, h0 = arguments()
    xs = jnp.stack([x, 2 * x, -x])

    def by_scan(xs: Any, w: Any, h0: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            out = (jax.checkpoint(rnnop.rnn) if checkpoint else rnnop.rnn)(x, w, h)
            h = jax.lax.cond(
                out.y.sum() > -1e9, lambda: out.h_n, lambda: 2 * rnnop.rnn(x, w, h).h_n
            )
            return h, out.y

        h, ys = jax.lax.scan(step, h0, xs)
        return (ys**2).sum() + h.sum()

    def unrolled(xs: Any, w: Any, h0: Any) -> Any:
        total = 0.0
        for x in xs:
            out = rnnop.rnn(x, w, h0)
            total, h0 = total + (out.y**2).sum(), out.h_n
        return total + h0.sum()

    wanted = jax.jit(jax.grad(unrolled, (0, 1, 2)))(xs, w, h0)
    assert_near(jax.jit(jax.grad(by_scan, (0, 1, 2)))(xs, w, h0), wanted, 1e-5)


TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np, rnnop, rnnop.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from rnnop.jax import host

def near(got, wanted):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= 2e-6 * np.abs(other).max()

def loss(x, w, lengths):
    out = rnnop.rnn(x, w, mode="lstm", lengths=lengths)
    return (out.y**2).sum() + jnp.sin(out.c_n).sum()

random = np.random.default_rng(0)
one, two = jax.devices()
mesh = Mesh([one, two], ("rows",))
made = rnnop.init_weights(
    "lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True, seed=0
)
x, w, lengths = jnp.asarray(random.standard_normal((5, 4, 3), np.float32)), None, [5, 2, 0, 3]
w = made.map(jnp.asarray)
wanted = jax.grad(loss, (0, 1))(x, w, lengths)
lengths = jnp.array(lengths)
specs = (P(None, "rows"), P(), P("rows"))

for check in (True, False):
    whole = jax.shard_map(
        lambda *a: jax.lax.psum(loss(*a), "rows"),
        mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check,
    )
    near(jax.grad(whole, (0, 1))(x, w, lengths), wanted)
    near(jax.jit(jax.grad(whole, (0, 1)))(x, w, lengths), wanted)

    def inside(*a):
        dx, dw = jax.grad(loss, (0, 1))(*a)
        return dx, dw if check else jax.lax.psum(dw, "rows")

    parts = jax.shard_map(
        inside, mesh=mesh, in_specs=specs, out_specs=specs[:2], check_vma=check
    )
    near(jax.jit(parts)(x, w, lengths), wanted)

spread = jax.device_put(x, NamedSharding(mesh, P(None, "rows")))
near(jax.jit(jax.grad(loss, (0, 1)))(spread, w, lengths), wanted)
near(jax.grad(loss, (0, 1))(spread, w, lengths), wanted)
assert len(host.WAITING) == 0

out = rnnop.rnn(*jax.device_put((x, w), two), mode="lstm")
assert out.y.devices() == {two} and out.y.committed
assert not rnnop.rnn(x, w, mode="lstm").y.committed
try:
    rnnop.rnn(jax.device_put(x, one), jax.device_put(w, two), mode="lstm")
except ValueError as error:
    assert "device" in str(error)
else:
    raise AssertionError
"""


def in_a_process(script: str, **environment: str) -> None:
    """Run a script with its own JAX, and fail if it fails."""
    kept = {name: value for name, value in os.environ.items() if "COV" not in name}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=kept | {"JAX_PLATFORMS": "cpu"} | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_two_devices() -> None:
    in_a_process(TWO_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2")


# The vjps that wait for their backward


def test_a_forward_without_its_backward_keeps_little(waiting: host.Waiting) -> None:
    given = arguments()
    jax.vjp(rnnop.rnn, *given)
    one = waiting.bytes
    assert len(waiting) == 1
    assert one > 0
    waiting.most_bytes = 3 * one + one // 2
    pullbacks = [jax.vjp(rnnop.rnn, *given) for _ in range(5)]
    assert len(waiting) == 3
    assert waiting.bytes == 3 * one
    # Those that were given up run their forward again.
    wanted = None
    for out, pullback in pullbacks:
        grads = pullback(out)
        wanted = grads if wanted is None else wanted
        assert_equal(grads, wanted)


def test_the_newest_is_kept_however_large(waiting: host.Waiting, runs: list[Any]) -> None:
    waiting.most_bytes = 1
    for _ in range(2):
        jax.grad(loss)(*arguments())
    assert len(runs) == 4


def test_a_pullback_may_be_called_again() -> None:
    given = arguments()
    out, pullback = jax.vjp(rnnop.rnn, *given)
    assert_equal(pullback(out), pullback(out))


def test_equal_calls_may_become_one() -> None:
    """XLA may run a call once for two of the same operands: then both have the same token."""
    given = arguments()

    def twice(*given: Any) -> Any:
        return loss(*given) + 2 * loss(*given)

    wanted = jax.tree.map(lambda array: 3 * array, numpy_gradients(*given))
    assert_near(jax.jit(jax.grad(twice, (0, 1, 2)))(*given), wanted)


def test_nothing_is_kept_where_no_backward_can_come(waiting: host.Waiting) -> None:
    given = arguments()
    jax.block_until_ready(jax.jit(lambda *a: jax.vjp(rnnop.rnn, *a)[0])(*given))
    jax.block_until_ready(jax.jit(rnnop.rnn)(*given))
    rnnop.rnn(*given)
    assert len(waiting) == 0


def test_a_token_is_only_good_for_its_own_call(waiting: host.Waiting) -> None:
    x, w, h0 = arguments()
    call, leaves = rnnop.jax.call.split(x, w, h0)
    arrays = [np.asarray(leaf) for leaf in leaves]
    token = host.forward(call, arrays, keep=True)[-1]
    other = [arrays[0][:-1], *arrays[1:]]
    dy = random(T - 1, N, 2 * H, seed=9)
    found = host.backward(call, other, token, {"dy": dy})
    _, vjp = rnnop.rnn_vjp(*to_numpy((x[:-1], w, h0)))
    assert_equal(found[0], vjp(dy).x)
    strange = np.array([7], np.uint64).view(np.uint32)
    assert_equal(host.backward(call, other, strange, {"dy": dy})[0], vjp(dy).x)


# The other public functions


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_rnn_vjp(mode: str, compiled: bool) -> None:
    """With the gradients of states that were not given, as on NumPy arrays."""
    x, w, _ = arguments(mode)
    x = x.swapaxes(0, 1)
    options = {"mode": mode, "batch_first": True, "lengths": LENGTHS}

    def results(x: Any, w: Any, dy: Any, dh_n: Any) -> Any:
        out, vjp = rnnop.rnn_vjp(x, w, **options)
        return out, vjp(dy, dh_n)

    dy, dh_n = random(N, T, 2 * H, seed=5), random(4, N, H, seed=6)
    wanted = results(*to_numpy((x, w)), dy, dh_n)
    found = (jax.jit(results) if compiled else results)(x, w, jnp.asarray(dy), jnp.asarray(dh_n))
    assert isinstance(found[1], rnnop.RNNGrads)
    assert_equal(found, wanted)


def test_rnn_vjp_of_a_packed_sequence() -> None:
    x, w, h0 = arguments()
    packed = rnnop.pack(x, LENGTHS)
    out, vjp = rnnop.rnn_vjp(packed, w, h0)
    host_x = rnnop.PackedSequence(*(np.asarray(each) for each in packed))
    wanted, wanted_vjp = rnnop.rnn_vjp(host_x, *to_numpy((w, h0)))
    assert isinstance(out.y, rnnop.PackedSequence)
    assert_equal(out.y.data, wanted.y.data)
    assert_equal(vjp(out.y).x.data, wanted_vjp(wanted.y).x.data)
    assert_equal(vjp(out.y.data).weights, wanted_vjp(wanted.y.data).weights)
    other = packed._replace(batch_sizes=packed.batch_sizes[::-1].copy())
    with pytest.raises(rnnop.ShapeError, match=r"^vjp: `dy.batch_sizes`"):
        vjp(other._replace(data=out.y.data))


def test_cotangents_are_checked() -> None:
    x, w, h0 = arguments()
    out, vjp = rnnop.rnn_vjp(x, w, h0)
    with pytest.raises(rnnop.ShapeError, match=r"^vjp: `dy` has shape"):
        vjp(out.y[1:])
    with pytest.raises(rnnop.DTypeError, match=r"^vjp: `dh_n` is a NumPy array"):
        vjp(None, np.asarray(out.h_n))
    with pytest.raises(rnnop.SpecError, match=r"^vjp: `dc` is given"):
        vjp(None, dc=out.y)
    with pytest.raises(rnnop.ShapeError, match="`dy` has shape"):
        jax.jit(lambda x, dy: rnnop.rnn_vjp(x, w, h0)[1](dy).x)(x, out.y[1:])


def test_explain() -> None:
    x, w, h0 = arguments()
    wanted = rnnop.explain(*to_numpy((x, w, h0)), lengths=LENGTHS)
    assert rnnop.explain(x, w, h0, lengths=jnp.asarray(LENGTHS)) == wanted
    found = []
    jax.jit(lambda x: (found.append(rnnop.explain(x, w, h0)), x)[1])(x)
    assert found == [rnnop.explain(*to_numpy((x, w, h0)))]


def test_prepacked_weights() -> None:
    x, w, h0 = arguments()
    packed = rnnop.prepack(w)
    assert packed.weights is w
    wanted = rnnop.rnn(*to_numpy((x, w, h0)))
    assert_equal(rnnop.rnn(x, packed, h0), wanted)
    assert_equal(jax.jit(lambda x, h0: rnnop.rnn(x, packed, h0))(x, h0), wanted)
    found = jax.grad(lambda x: loss(x, packed, h0))(x)
    assert_near(found, numpy_gradients(x, w, h0)[0])
    with pytest.raises(rnnop.SpecError, match="prepacked for mode 'gru'"):
        rnnop.rnn(x, packed, h0, mode="lstm")
    with pytest.raises(rnnop.DTypeError, match=r"^prepack: `weights.w_ih\[0\]` is traced by JAX"):
        jax.jit(rnnop.prepack)(w)


def test_the_signatures_are_those_of_rnnop() -> None:
    for name in ("rnn", "rnn_vjp", "explain", "prepack"):
        mine, theirs = getattr(rnnop.jax, name), getattr(rnnop, name)
        assert inspect.signature(mine) == inspect.signature(theirs), name
        assert mine is not theirs
    assert inspect.signature(rnnop.jax.VJP.__call__) == inspect.signature(rnnop.VJP.__call__)
    mine = inspect.signature(inspect.unwrap(rnnop.jax.VJP.__call__)).parameters
    with pytest.raises(TypeError, match="unexpected keyword argument 'maks'"):
        rnnop.rnn(*arguments(), maks=None)


def test_weights_are_a_pytree() -> None:
    w = arguments("lstm")[1]
    leaves, tree = jax.tree.flatten(w)
    assert [id(leaf) for leaf in leaves] == [id(array) for _, array in w.named()]
    again = jax.tree.unflatten(tree, leaves)
    assert again.bidirectional
    assert [name for name, _ in again.named()] == [name for name, _ in w.named()]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(w)]
    assert paths == [f".{name}" for name, _ in w.named()]
    assert jax.tree.map(lambda _: None, w).w_ih == (None,) * 4


def test_new_weights_of_the_same_shapes_are_found_ready() -> None:
    """So a compiled call of few steps costs no more than it must."""
    x, w = random(1, 1, I), to_numpy(weights())
    prepared = {id(rnnop.api._prepare(x, w).setup)}
    prepared |= {id(rnnop.api._prepare(x, w.map(np.copy)).setup) for _ in range(3)}
    assert len(prepared) == 1
    single = rnnop.RNNWeights(w.w_ih, w.w_hh, w.b_ih)
    assert id(rnnop.api._prepare(x, single).setup) not in prepared


# dtypes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_result_has_the_dtype_of_the_arguments(dtype: str) -> None:
    x, w, h0 = jax.tree.map(lambda array: array.astype(dtype), arguments())
    for out in (rnnop.rnn(x, w, h0), jax.jit(rnnop.rnn)(x, w, h0)):
        assert out.y.dtype == out.h_n.dtype == dtype
    grads = jax.jit(jax.grad(loss, (0, 1, 2)))(x, w, h0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {dtype}
    with jax.enable_x64(True), pytest.raises(rnnop.DTypeError, match="`h0` has dtype float64"):
        rnnop.rnn(x, w, h0.astype("float64"))


def test_lengths_that_int32_cannot_hold_do_not_come_out_as_others() -> None:
    x, w, h0 = arguments()
    with pytest.raises(rnnop.ShapeError, match="`lengths` has"):
        rnnop.rnn(x, w, h0, lengths=[2**32 + 1] * N)
    with pytest.raises(Exception, match="`lengths` has"):
        jax.block_until_ready(jax.jit(lambda x: rnnop.rnn(x, w, h0, lengths=[2**32] * N))(x))


# Errors


def test_shapes_and_options_are_checked_while_jax_traces() -> None:
    x, w, h0 = arguments()
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (rnnop.ShapeError, "`x` has 3 features", {"x": jnp.zeros((T, N, 3))}),
        (rnnop.ShapeError, "`x` has shape", {"x": x[0]}),
        (rnnop.ShapeError, "`h0` has shape", {"h0": h0[1:]}),
        (rnnop.ShapeError, "`mask` has shape", {"mask": jnp.ones((T, N + 1), bool)}),
        (rnnop.DTypeError, "`mask` has dtype", {"mask": jnp.ones((T, N))}),
        (rnnop.ShapeError, "`lengths` has shape", {"lengths": jnp.ones(N + 1, int)}),
        (rnnop.DTypeError, "`lengths` has dtype", {"lengths": jnp.ones(N)}),
        (rnnop.SpecError, "`mode` is 'gur'", {"mode": "gur"}),
        (rnnop.ShapeError, "They look like weights for mode 'gru'", {"mode": "lstm"}),
        (rnnop.SpecError, "`dropout` is 1.5", {"dropout": 1.5}),
        (rnnop.SpecError, "`seed` is", {"seed": jnp.ones(2, int)}),
        (
            rnnop.DTypeError,
            "`dropout` is an array of JAX",
            {"dropout": jnp.ones(()), "training": True},
        ),
        (rnnop.DTypeError, "`cell_clip` is an array of JAX", {"cell_clip": (0, jnp.ones(()))}),
        (rnnop.SpecError, "`backend` is 'gpu'", {"backend": "gpu"}),
        (rnnop.DTypeError, "`h0` is a tuple of two", {"h0": (h0, h0)}),
    ]
    for kind, text, changed in wrong:
        given = {"x": x, "h0": h0, **changed}
        static = {
            name: given.pop(name) for name in ("mode", "backend", "training") if name in given
        }
        if isinstance(given.get("dropout"), float):
            static["dropout"] = given.pop("dropout")
        with pytest.raises(kind, match=rf"^rnn: .*{text}"):
            jax.jit(lambda given, static=static: rnnop.rnn(weights=w, **given, **static))(given)
        with pytest.raises(kind, match=rf"^rnn: .*{text}"):
            rnnop.rnn(weights=w, **given, **static)
        if "seed" not in changed and not isinstance(given["h0"], tuple):
            rnn = functools.partial(rnnop.rnn, weights=w, **static)
            with pytest.raises(kind, match=rf"^rnn: .*{text}"):
                jax.vjp(lambda h0, given=given, rnn=rnn: rnn(**given | {"h0": h0}), given["h0"])


def test_values_are_checked_where_the_call_runs() -> None:
    x, w, h0 = arguments()
    compiled = jax.jit(lambda lengths: rnnop.rnn(x, w, h0, lengths=lengths).y)
    with pytest.raises(Exception, match="ShapeError: rnn: `lengths` has 9 at row 1; expected"):
        compiled(jnp.array([0, 9, 1])).block_until_ready()
    with pytest.raises(rnnop.ShapeError, match=r"^rnn: `lengths` has 9 at row 1; expected"):
        jax.grad(loss)(x, w, h0, jnp.array([0, 9, 1]))


def test_families_are_not_mixed() -> None:
    x, w, h0 = arguments()
    one = "is a NumPy array and `x` is a JAX array"
    for wrong in (
        lambda x: rnnop.rnn(x, to_numpy(w)),
        lambda x: rnnop.rnn(x, w, to_numpy(h0)),
        lambda x: rnnop.rnn(x, w, dropout_masks=[np.ones((T, N, 2 * H), bool)]),
    ):
        for call in (wrong, jax.jit(wrong), jax.grad(lambda x, f=wrong: f(x).y.sum())):
            with pytest.raises(rnnop.DTypeError, match=one):
                call(x)
    with pytest.raises(rnnop.DTypeError, match="is a JAX array and `x` is a NumPy array"):
        rnnop.rnn(np.asarray(x), w)


def test_dropout_under_a_transformation_needs_a_seed() -> None:
    x, w, h0 = arguments()

    def run(x: Any) -> Any:
        return loss(x, w, h0, dropout=0.5, training=True)

    for call in (jax.jit(run), jax.grad(run), lambda x: jax.vmap(run)(x[None])):
        with pytest.raises(rnnop.SpecError, match=r"^rnn: `seed` is None under a transformation"):
            call(x)


def test_dropout_on_a_single_layer_is_warned_of_once_and_not_in_the_program() -> None:
    x, w = jnp.asarray(random(T, N, I)), weights()
    compiled = jax.jit(lambda x: rnnop.rnn(x, w, dropout=0.5, training=True))
    with pytest.warns(UserWarning, match="no effect on a single layer") as caught:
        first = compiled(x)
    assert [each.filename for each in caught] == [__file__]
    assert_equal(compiled(x), first)
    assert_equal(first, rnnop.rnn(*to_numpy((x, w))))
    with pytest.warns(UserWarning, match="no effect on a single layer") as caught:
        rnnop.rnn(x, w, dropout=0.5, training=True)
    assert [each.filename for each in caught] == [__file__]


def test_traced_indices_of_a_packed_sequence_are_refused() -> None:
    x, w, h0 = arguments()
    with pytest.raises(rnnop.DTypeError, match=r"^rnn: `x\.batch_sizes` is traced by JAX"):
        jax.jit(rnnop.rnn)(rnnop.pack(x, LENGTHS), w, h0)


def test_other_derivatives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WAITING", host.Waiting())  # some backwards never come
    x, w, h0 = arguments()
    way_out = "backend='reference' has it"

    def total(x: Any) -> Any:
        return loss(x, w, h0)

    def of_gradient(x: Any) -> Any:
        return jax.grad(total)(x).sum()

    for call in (jax.grad(of_gradient), jax.jit(jax.grad(of_gradient)), jax.hessian(total)):
        with pytest.raises(rnnop.UnsupportedError, match=f"derivative.*{way_out}"):
            call(x)
    for call in (jax.jacfwd(total), lambda x: jax.jvp(jax.jit(total), (x,), (x,))):
        with pytest.raises(rnnop.UnsupportedError, match=f"forward-mode.*{way_out}"):
            call(x)
    with pytest.raises(rnnop.UnsupportedError, match="forward-mode"):
        jax.jit(lambda x: jax.jvp(total, (x,), (x,)))(x)


def test_other_platforms_are_refused() -> None:
    x, w, h0 = arguments()
    traced = jax.jit(rnnop.rnn).trace(x, w, h0)
    with pytest.raises(rnnop.UnsupportedError, match="compiled for tpu; expected one of cpu, cuda"):
        traced.lower(lowering_platforms=("tpu",))


def test_a_gpu_program_has_the_callback_too() -> None:
    """All that can be seen of it without a GPU."""
    traced = jax.jit(jax.grad(loss)).trace(*arguments())
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla_buffer_python_gpu_callback") == 2


def test_an_old_jax_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version__", "0.7.2")
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    with pytest.raises(rnnop.BackendUnavailable, match=r"JAX 0\.7\.2 are given; expected JAX 0\.8"):
        importlib.reload(rnnop.jax)


# JAX's own network


@pytest.mark.parametrize(("num_layers", "bidirectional"), [(1, False), (2, True)])
def test_the_lstm_of_jax_experimental_rnn(num_layers: int, bidirectional: bool) -> None:
    """The same values, and gradients of everything, its own flat weights among it."""
    owner = pytest.importorskip("jax.experimental.rnn", reason="this jax has no such network")
    sizes = (I, H, num_layers, bidirectional)
    states = num_layers * (1 + bidirectional)
    with jax.enable_x64(True):
        x, h0, c0 = (
            jnp.asarray(random(*shape, seed=k, dtype="float64"))
            for k, shape in enumerate([(N, T, I), (states, N, H), (states, N, H)])
        )
        flat = jnp.asarray(random(owner.get_num_params_in_lstm(*sizes), seed=3, dtype="float64"))
        lengths = jnp.array([T, 1, 3], "int32")

        def theirs(x: Any, h0: Any, c0: Any, flat: Any) -> Any:
            parts = owner.unpack_lstm_weights(flat, *sizes)
            return owner.lstm_ref(x, h0, c0, *parts, lengths, I, H, num_layers, 0.0, bidirectional)

        def ours(x: Any, h0: Any, c0: Any, flat: Any) -> Any:
            names = ("input_size", "hidden_size", "num_layers", "bidirectional")
            w = rnnop.layouts.from_jax(flat, **dict(zip(names, sizes, strict=True)))
            out = rnnop.rnn(x, w, h0, c0, mode="lstm", lengths=lengths, batch_first=True)
            return out[:3]

        def results(run: Any) -> Any:
            @jax.jit
            def both(*given: Any) -> Any:
                out, pullback = jax.vjp(run, *given)
                out = tuple(out)
                return out, pullback(jax.tree.map(jnp.cos, out))

            return both(x, h0, c0, flat)

        assert_near(results(ours), results(theirs), 1e-14)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"h0": "x"}, "`h0` is str; expected an array"),
        ({"h0": ["x"]}, "`h0` is list; expected an array"),
        ({"dropout_masks": "x"}, "`dropout_masks` is str; expected an array"),
        ({"dropout_masks": ["x"]}, r"`dropout_masks\[0\]` is str; expected an array"),
        ({"mask": np.zeros((T, N), np.longdouble)}, "`mask` has dtype float[0-9]+; expected bool"),
    ],
)
def test_what_jax_does_not_have_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    x, w = jnp.asarray(random(T, N, I)), weights()
    for function in (rnnop.rnn, rnnop.rnn_vjp):
        with pytest.raises(rnnop.RnnopError, match=f"^{function.__name__}: {message}"):
            function(x, w, **wrong)
