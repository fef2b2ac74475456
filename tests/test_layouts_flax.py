"""The cells of flax.linen and flax.nnx as owners of their parameters: outputs and all gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop.layouts import from_flax, to_flax

jax = pytest.importorskip("jax", reason="Flax runs on JAX: pip install rnnop[jax]")
pytest.importorskip("flax", reason="Flax owns this layout: pip install flax")
from flax import linen, nnx  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
Tree = Any

# Largest error as a share of the largest entry, both sides in float64: measured at most 1.6e-15.
TOLERANCE = 1e-14

T, N, I, H = 4, 3, 3, 2
CELLS = {
    "LSTMCell": "lstm",
    "OptimizedLSTMCell": "lstm",
    "GRUCell": "gru",
    "SimpleCell": "rnn_tanh",
}


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def randomized(tree: Tree) -> Tree:
    """Replace every array by random numbers: fresh biases are zeros and would show nothing."""
    leaves, structure = jax.tree.flatten(tree)
    drawn = [jax.numpy.asarray(random(*leaf.shape, seed=k)) for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, drawn)


def linen_owner(name: str, bidirectional: bool) -> tuple[Tree, Callable[..., Any]]:
    """Return the parameters of each direction, and the outputs as a function of them."""

    def make() -> Any:
        cell = getattr(linen, name)(H, param_dtype=float)
        return linen.RNN(cell, time_major=True, return_carry=True)

    network = make()
    if bidirectional:
        network = linen.Bidirectional(make(), make(), time_major=True, return_carry=True)

    def variables(cells: Tree) -> Tree:
        if not bidirectional:
            return {"params": {"cell": cells[0]}}
        directions = zip(("forward_rnn", "backward_rnn"), cells, strict=True)
        return {"params": {direction: {"cell": cell} for direction, cell in directions}}

    made = network.init(jax.random.key(0), np.zeros((T, N, I)))["params"]
    directions = [made["forward_rnn"], made["backward_rnn"]] if bidirectional else [made]

    def run(x: Any, carries: Any, cells: Tree) -> Any:
        initial = carries if bidirectional else carries[0]
        final, y = network.apply(variables(cells), x, initial_carry=initial)
        return y, final if bidirectional else (final,)

    return [each["cell"] for each in directions], run


def nnx_owner(name: str, bidirectional: bool) -> tuple[Tree, Callable[..., Any]]:
    """Return the parameters of each direction, and the outputs as a function of them."""
    cells = [
        getattr(nnx, name)(I, H, dtype=float, param_dtype=float, rngs=nnx.Rngs(k))
        for k in range(1 + bidirectional)
    ]
    states = [nnx.state(cell, nnx.Param) for cell in cells]

    def run(x: Any, carries: Any, params: Tree) -> Any:
        networks = []
        for cell, state, values in zip(cells, states, params, strict=True):
            graph, _ = nnx.split(cell)
            full = nnx.clone(state)
            nnx.replace_by_pure_dict(full, values)
            networks.append(nnx.RNN(nnx.merge(graph, full), time_major=True, return_carry=True))
        if not bidirectional:
            final, y = networks[0](x, initial_carry=carries[0])
            return y, (final,)
        both = nnx.Bidirectional(*networks, time_major=True, return_carry=True)
        final, y = both(x, initial_carry=tuple(carries))
        return y, final

    return [nnx.to_pure_dict(state) for state in states], run


def assert_agrees(actual: Any, expected: Any, name: str) -> None:
    ours, theirs = np.asarray(actual), np.asarray(expected)
    assert ours.shape == theirs.shape, name
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max(), name


def assert_same_trees(actual: Tree, expected: Tree, name: str) -> None:
    ours, theirs = (dict(jax.tree.leaves_with_path(tree)) for tree in (actual, expected))
    assert ours.keys() == theirs.keys()
    for path, array in theirs.items():
        assert_agrees(ours[path], array, f"{name} {jax.tree_util.keystr(path)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bidirectional"),
    [*((name, False) for name in CELLS), ("GRUCell", True)],
    ids=[*CELLS, "GRUCell-bi"],
)
@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_cells(api: str, name: str, bidirectional: bool) -> None:
    mode = CELLS[name]
    x = random(T, N, I, seed=20)
    count = 2 if mode == "lstm" else 1
    with jax.enable_x64(True):
        cells, run = (linen_owner if api == "linen" else nnx_owner)(name, bidirectional)
        cells = [randomized(cell) for cell in cells]
        host = jax.tree.map(np.asarray, cells)
        # Flax's carry of an LSTM is (c, h).
        carries = [
            tuple(jax.numpy.asarray(random(N, H, seed=30 + k + 2 * d)) for k in range(count))
            if mode == "lstm"
            else jax.numpy.asarray(random(N, H, seed=30 + d))
            for d in range(len(cells))
        ]
        dy = random(T, N, len(cells) * H, seed=40)
        dfinals = jax.tree.map(lambda a: random(*a.shape, seed=50), tuple(carries))

        @jax.jit
        def outputs_and_gradients(*inputs: Any) -> Any:
            outputs, pullback = jax.vjp(run, *inputs)
            return outputs, pullback((jax.numpy.asarray(dy), dfinals))

        (y, finals), gradients = outputs_and_gradients(jax.numpy.asarray(x), carries, cells)
        dx, dcarries, dcells = gradients

    def states(tree: Tree) -> list[Array]:
        """Return h, and c of an LSTM, each (D, N, H)."""
        if mode != "lstm":
            return [np.stack([np.asarray(h) for h in tree])]
        return [np.stack([np.asarray(pair[k]) for pair in tree]) for k in (1, 0)]

    cell = f"{api}.{name}"
    weights = from_flax(*host, cell=cell)
    out, vjp = rnnop.rnn_vjp(x, weights, *states(carries), mode=mode, backend="reference")
    assert_agrees(out.y, y, "y")
    for k, final in enumerate(states(finals)):
        assert_agrees(out[1 + k], final, "final state")
    grads = vjp(dy, *states(dfinals))
    assert_agrees(grads.x, dx, "gradient of x")
    for k, wanted in enumerate(states(dcarries)):
        assert_agrees((grads.h0, grads.c0)[k], wanted, "gradient of a state")
    made = to_flax(grads.weights, cell=cell, gradients=True)
    assert_same_trees(list(made), dcells, "gradient of")

    back = to_flax(weights, cell=cell)
    assert jax.tree.structure(list(back)) == jax.tree.structure(host)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(host), strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_can_be_jitted_and_differentiated() -> None:
    """Gradients flow from the weights to a cell's own parameters, without to_flax."""
    cells, _ = linen_owner("GRUCell", bidirectional=False)
    params = randomized(cells[0])

    def total(tree: Tree) -> Any:
        weights = from_flax(tree, cell="linen.GRUCell")
        return sum((array**2).sum() for _, array in weights.named())

    gradient = jax.jit(jax.grad(total))(params)
    for one, array in zip(jax.tree.leaves(gradient), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(one, 2 * array)
