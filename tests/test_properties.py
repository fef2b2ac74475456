"""What must hold for any network and any batch, whatever the numbers.

A network is any of the cells of cases.py in any stack; a batch is small, with steps masked anywhere
and episodes starting anywhere. Values and gradients are held to the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases import CELLS, STACKS, Case, arrays_of, data_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracle import segments
from tolerances import assert_close

import rnnop

Array = np.ndarray[Any, np.dtype[Any]]

FORWARD = [stack for stack, (_, both, reverse) in STACKS.items() if not both and not reverse]


@dataclass(frozen=True)
class Net:
    """A network and its options."""

    cell: str
    stack: str
    weights: rnnop.RNNWeights
    options: dict[str, Any]
    I: int
    H: int
    P: int

    @property
    def D(self) -> int:
        return self.weights.num_directions

    @property
    def L(self) -> int:
        return self.weights.num_layers

    @property
    def lstm(self) -> bool:
        return self.options["mode"] == "lstm"


def make_net(cell: str, stack: str = "2-both") -> Net:
    case = Case(cell, stack=stack)
    call = case.call()
    options = {n: call.options[n] for n in ("mode", "reverse", *CELLS[cell].options)}
    return Net(cell, stack, call.weights, options, case.I, case.H, case.P)


def nets(stacks: Sequence[str] = tuple(STACKS), cells: Sequence[str] = tuple(CELLS)) -> Any:
    return st.builds(make_net, st.sampled_from(list(cells)), st.sampled_from(list(stacks)))


@dataclass(frozen=True)
class Batch:
    """Which steps happen, and a seed for all numbers."""

    mask: Array
    resets: Array
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.mask.shape

    def draw(self, name: str, *shape: int) -> Array:
        return np.random.default_rng([self.seed, *name.encode()]).standard_normal(shape)


@st.composite
def batches(draw: st.DrawFn, resets: bool = True, rows: int = 1, steps: int = 0) -> Batch:
    shape = draw(st.integers(steps, 7)), draw(st.integers(rows, 4))
    mask = draw(hnp.arrays(bool, shape))
    cuts = draw(hnp.arrays(bool, shape)) if resets else np.zeros(shape, bool)
    return Batch(mask, cuts, draw(st.integers(0, 2**16)))


Results = dict[str, Array]  # y, h_n, c_n, dx, dh0, dc0 and the gradient of each weight


def arguments(net: Net, batch: Batch) -> dict[str, Array]:
    """Return x, the states and the cotangents of a batch, time-major."""
    T, N = batch.shape
    shapes = {
        "x": (T, N, net.I),
        "h0": (net.L * net.D, N, net.P),
        "c0": (net.L * net.D, N, net.H),
        "dy": (T, N, net.D * net.P),
        "dh_n": (net.L * net.D, N, net.P),
        "dc_n": (net.L * net.D, N, net.H),
    }
    return {
        name: batch.draw(name, *shape)
        for name, shape in shapes.items()
        if net.lstm or name not in ("c0", "dc_n")
    }


def run(net: Net, given: dict[str, Any], weights: Any = None, **options: Any) -> Results:
    """Run a network with its gradients."""
    out, vjp = rnnop.rnn_vjp(
        given["x"],
        net.weights if weights is None else weights,
        given.get("h0"),
        given.get("c0"),
        **net.options | {"backend": "reference"} | options,
    )
    grads = vjp(given["dy"], given.get("dh_n"), given.get("dc_n"))
    results = {
        "y": data_of(out.y),
        "h_n": out.h_n,
        "dx": data_of(grads.x),
        "dh0": grads.h0,
        **dict(grads.weights.named()),
    }
    return results | ({"c_n": out.c_n, "dc0": grads.c0} if net.lstm else {})


def rows_of(given: dict[str, Array], rows: Any) -> dict[str, Array]:
    """Return arguments or results of some rows: the axis N is the second of all of them."""
    return {name: array[:, rows] for name, array in given.items()}


ROWS = ("y", "h_n", "c_n", "dx", "dh0", "dc0")  # what belongs to a row; weights belong to all


def assert_same(got: Results, wanted: Results, names: Sequence[str] | None = None) -> None:
    for name in wanted if names is None else names:
        if name in wanted:
            assert_close(name, got[name], wanted[name], "reference", "float64")


def assert_identical(got: Results, wanted: Results) -> None:
    assert list(got) == list(wanted)
    for name in wanted:
        assert got[name].shape == wanted[name].shape, name
        assert got[name].tobytes() == wanted[name].tobytes(), name


def added(parts: Sequence[Results]) -> Results:
    """Return the sum of the gradients of weights."""
    return {name: sum(each[name] for each in parts) for name in parts[0] if "[" in name}


# Rows


@given(nets(), batches())
def test_a_row_in_a_batch_equals_the_row_alone(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    together = run(net, given, mask=batch.mask, resets=batch.resets)
    alone = [
        run(
            net,
            rows_of(given, [n]),
            mask=batch.mask[:, [n]],
            resets=batch.resets[:, [n]],
        )
        for n in range(batch.shape[1])
    ]
    for n, each in enumerate(alone):
        assert_same({name: together[name][:, [n]] for name in ROWS if name in each}, each, ROWS)
    assert_same(together, added(alone))


@given(nets(), batches())
def test_a_row_with_holes_equals_the_row_with_them_cut_out(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    together = run(net, given, mask=batch.mask, resets=batch.resets)
    parts = []
    for n in range(batch.shape[1]):
        real = np.flatnonzero(batch.mask[:, n])
        waiting = np.cumsum(batch.resets[:, n])[real]  # a reset waits for the next real step
        resets = np.diff(waiting, prepend=0) > 0
        row = rows_of(given, [n])
        dense = {**row, "x": row["x"][real], "dy": row["dy"][real]}
        parts.append(run(net, dense, resets=resets[:, None]))
        mine = {name: together[name][:, [n]] for name in ROWS if name in together}
        for name in ("y", "dx"):
            assert np.all(mine[name][~batch.mask[:, n]] == 0.0)
            mine[name] = mine[name][real]
        assert_same(mine, parts[-1], ROWS)
    assert_same(together, added(parts))


@given(nets(), batches(), st.randoms(use_true_random=False))
def test_rows_in_another_order(net: Net, batch: Batch, random: Any) -> None:
    order = list(range(batch.shape[1]))
    random.shuffle(order)
    given = arguments(net, batch)
    plain = run(net, given, mask=batch.mask, resets=batch.resets)
    moved = run(
        net, rows_of(given, order), mask=batch.mask[:, order], resets=batch.resets[:, order]
    )
    wanted = {name: plain[name][:, order] if name in ROWS else plain[name] for name in plain}
    assert_same(moved, wanted)


@given(nets(), batches())
def test_a_row_without_a_step_passes_its_state_and_its_gradient_through(
    net: Net, batch: Batch
) -> None:
    given = arguments(net, batch)
    mask = batch.mask.copy()
    mask[:, 0] = False
    results = rows_of(
        {
            name: array
            for name, array in run(net, given, mask=mask, resets=batch.resets).items()
            if name in ROWS
        },
        0,
    )
    assert np.all(results["y"] == 0.0)
    assert np.all(results["dx"] == 0.0)
    np.testing.assert_array_equal(results["h_n"], given["h0"][:, 0])
    np.testing.assert_array_equal(results["dh0"], given["dh_n"][:, 0])
    if net.lstm and "cell_clip" not in net.options:
        np.testing.assert_array_equal(results["c_n"], given["c0"][:, 0])
        np.testing.assert_array_equal(results["dc0"], given["dc_n"][:, 0])


# Padding


@given(nets(), batches(), st.data())
def test_more_masked_steps_of_nan_change_no_bit(
    net: Net, batch: Batch, data: st.DataObject
) -> None:
    """Wherever they are put in: at the end, at the start, in the middle."""
    T = batch.shape[0]
    new = data.draw(st.lists(st.integers(0, T), min_size=1, max_size=4).map(sorted))
    kept = np.delete(np.arange(T + len(new)), np.array(new) + np.arange(len(new)))
    given = arguments(net, batch)

    def longer(array: Array, filling: Any) -> Array:
        result = np.full((T + len(new), *array.shape[1:]), filling, array.dtype)
        result[kept] = array
        return result

    padded = given | {name: longer(given[name], np.nan) for name in ("x", "dy")}
    for hold in ("zero", "hold"):
        if hold == "hold":  # a cotangent of a step that shows another is not without effect
            padded["dy"] = longer(given["dy"], 0.0)
        plain = run(net, given, mask=batch.mask, resets=batch.resets, masked_output=hold)
        result = run(
            net,
            padded,
            mask=longer(batch.mask, False),
            resets=longer(batch.resets, False),
            masked_output=hold,
        )
        if hold == "zero":
            outside = np.setdiff1d(np.arange(T + len(new)), kept)
            assert np.all(result["y"][outside] == 0.0)
            assert np.all(result["dx"][outside] == 0.0)
        assert_identical(
            result | {name: result[name][kept] for name in ("y", "dx")},
            plain,
        )


@given(nets(), batches())
def test_what_lies_in_dropout_masks_at_masked_steps_has_no_effect(net: Net, batch: Batch) -> None:
    T, N = batch.shape
    given = arguments(net, batch)
    kept = batch.draw("kept", net.L - 1, T, N, net.D * net.P) > 0.0
    options: dict[str, Any] = {
        "mask": batch.mask,
        "resets": batch.resets,
        "training": True,
        "dropout": 0.5 * (net.L > 1),
    }
    plain = run(net, given, dropout_masks=list(kept), **options)
    other = run(net, given, dropout_masks=list(kept ^ ~batch.mask[:, :, None]), **options)
    assert_identical(other, plain)


@given(nets(), batches(resets=False), st.data())
def test_lengths_are_a_mask(net: Net, batch: Batch, data: st.DataObject) -> None:
    T, N = batch.shape
    lengths = data.draw(hnp.arrays(np.int64, N, elements=st.integers(0, T)))
    given = arguments(net, batch)
    by_lengths = run(net, given, lengths=lengths)
    by_mask = run(net, given, mask=np.arange(T)[:, None] < lengths)
    assert_identical(by_lengths, by_mask)
    if np.all(lengths == T):
        assert_identical(by_lengths, run(net, given))


# Time


@given(nets(FORWARD), batches(), st.data())
def test_a_sequence_in_two_chunks(net: Net, batch: Batch, data: st.DataObject) -> None:
    """The state carries over, and the gradient back; a reset has to stand at a real step."""
    cut = data.draw(st.integers(0, batch.shape[0]))
    given, resets = arguments(net, batch), batch.resets & batch.mask
    whole = run(net, given, mask=batch.mask, resets=resets)
    run_in_chunks(net, given, whole, batch.mask, resets, [slice(cut), slice(cut, None)])


@given(nets(["1-reverse", "2-reverse"]), batches(resets=False), st.data())
def test_a_sequence_in_two_chunks_backwards(net: Net, batch: Batch, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, batch.shape[0]))
    given = arguments(net, batch)
    whole = run(net, given, mask=batch.mask)
    chunks = [slice(cut, None), slice(cut)]
    run_in_chunks(net, given, whole, batch.mask, batch.resets, chunks)


def run_in_chunks(
    net: Net,
    given: dict[str, Array],
    whole: Results,
    mask: Array,
    resets: Array,
    chunks: list[slice],
) -> None:
    """Assert that two chunks, in the order in which they run, give what the whole gives."""
    first, second = (given | {name: given[name][chunk] for name in ("x", "dy")} for chunk in chunks)
    options = [{"mask": mask[chunk], "resets": resets[chunk]} for chunk in chunks]
    start = run(net, first, **options[0])
    second |= {"h0": start["h_n"]} | ({"c0": start["c_n"]} if net.lstm else {})
    end = run(net, second, **options[1])
    first |= {"dh_n": end["dh0"]} | ({"dc_n": end["dc0"]} if net.lstm else {})
    start = run(net, first, **options[0])
    for chunk, part in zip(chunks, (start, end), strict=True):
        for name in ("y", "dx"):
            assert_close(name, part[name], whole[name][chunk], "reference", "float64")
    assert_same(end, whole, ("h_n", "c_n"))
    assert_same(start, whole, ("dh0", "dc0"))
    assert_same(added([start, end]), {name: whole[name] for name in whole if "[" in name})


@given(nets(["1", "2", "3"]), batches(resets=False))
def test_reverse_is_forward_on_the_flipped_sequence(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    turned = given | {name: given[name][::-1] for name in ("x", "dy")}
    for hold in ("zero", "hold"):
        backward = run(net, given, mask=batch.mask, reverse=True, masked_output=hold)
        forward = run(net, turned, mask=batch.mask[::-1], masked_output=hold)
        assert_same(backward, forward | {name: forward[name][::-1] for name in ("y", "dx")})


@given(nets(), batches())
def test_resets_equal_segments_run_as_separate_rows(net: Net, batch: Batch) -> None:
    """With the states where they belong: into the first segment forward, the last backward."""
    given = arguments(net, batch)
    whole = run(net, given, mask=batch.mask, resets=batch.resets)
    found = segments(batch.mask, batch.resets)
    parts = []
    for row, times in found:
        mine = [other for other in found if other[0] == row]
        is_first = times == min(mine, key=lambda segment: segment[1])[1]
        is_last = times == max(mine, key=lambda segment: segment[1])[1]
        fresh = is_first and bool(np.any(batch.resets[: times[0] + 1, row]))
        alone = rows_of(given, [row])
        alone = {**alone, "x": alone["x"][times], "dy": alone["dy"][times]}
        backward = np.array([STACKS[net.stack][2] or k % net.D == 1 for k in range(net.L * net.D)])
        enters = np.where(backward, is_last, is_first and not fresh)
        leaves = np.where(backward, is_first, is_last)
        for names, kept in ((("h0", "c0"), enters), (("dh_n", "dc_n"), leaves)):
            for name in names:
                if name in alone:
                    alone[name] = np.where(kept[:, None, None], alone[name], 0.0)
        part = run(net, alone)
        parts.append(part)
        for name in ("y", "dx"):
            assert_close(name, part[name][:, 0], whole[name][times, row], "reference", "float64")
        for name, kept in (("h_n", leaves), ("c_n", leaves), ("dh0", enters), ("dc0", enters)):
            if name in part:
                got, wanted = part[name][kept, 0], whole[name][kept, row]
                assert_close(name, got, wanted, "reference", "float64")
    if parts:
        assert_same(added(parts), {name: whole[name] for name in whole if "[" in name})


@given(nets(["1", "2"]), batches(steps=1, resets=False))
def test_a_row_that_starts_with_a_reset_has_no_gradient_of_its_state(
    net: Net, batch: Batch
) -> None:
    given = arguments(net, batch)
    resets, mask = np.zeros(batch.shape, bool), batch.mask.copy()
    resets[0], mask[-1] = True, True
    result = run(net, given, mask=mask, resets=resets)
    assert np.all(result["dh0"] == 0.0)
    if net.lstm:
        assert np.all(result["dc0"] == 0.0)
    changed = given | {name: given[name] + 1.0 for name in ("h0", "c0") if name in given}
    assert_identical(run(net, changed, mask=mask, resets=resets), result)


@given(nets(), batches(steps=2, resets=False), st.data())
def test_a_reset_on_a_masked_step_acts_at_the_next_real_one(
    net: Net, batch: Batch, data: st.DataObject
) -> None:
    """And without effect where no real step follows."""
    T, N = batch.shape
    given = arguments(net, batch)
    at = data.draw(st.integers(0, T - 1))
    early, late = np.zeros((2, T, N), bool)
    mask = batch.mask.copy()
    mask[at] = False
    early[at] = True
    for n in range(N):
        later = np.flatnonzero(mask[at:, n])
        if len(later):
            late[at + later[0], n] = True
    assert_identical(
        run(net, given, mask=mask, resets=early), run(net, given, mask=mask, resets=late)
    )


# Layers and directions


def part_of(net: Net, layer: int | None = None, direction: int | None = None) -> Net:
    """Return one layer, or one direction of a single layer, as a network of its own."""
    D, weights = net.D, net.weights
    keep = [k for k in range(net.L * D) if layer in (None, k // D) and direction in (None, k % D)]
    fields = {}
    for name in ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "peephole"):
        entries = getattr(weights, name)
        fields[name] = None if entries is None else tuple(entries[k] for k in keep)
    options = dict(net.options)
    if direction is not None:
        options["reverse"] = direction == 1
        if "activations" in options:
            groups = len(options["activations"]) // 2
            options["activations"] = options["activations"][direction * groups :][:groups]
    both = weights.bidirectional and direction is None
    return replace(net, weights=rnnop.RNNWeights(**fields, bidirectional=both), options=options)


@given(nets(["2", "2-reverse", "2-both"]), batches())
def test_two_layers_are_two_networks(net: Net, batch: Batch) -> None:
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    given = arguments(net, batch)
    whole = run(net, given, **options)
    layers = []
    for layer in (0, 1):
        mine = slice(layer * net.D, (layer + 1) * net.D)
        names = [name for name in given if name not in ("x", "dy")]
        layers.append(given | {name: given[name][mine] for name in names})
    lower, upper = part_of(net, layer=0), part_of(net, layer=1)
    between = run(lower, layers[0] | {"dy": None}, **options)["y"]
    second = run(upper, layers[1] | {"x": between}, **options)
    first = run(lower, layers[0] | {"dy": second["dx"]}, **options)
    assert_same(second, whole, ("y",))
    assert_same(first, whole, ("dx",))
    for name in ("h_n", "c_n", "dh0", "dc0"):
        if name in whole:
            joined = np.concatenate([first[name], second[name]])
            assert_close(name, joined, whole[name], "reference", "float64")
    for name in first:
        if "[" in name:
            field, k = name[:-1].split("[")
            assert_same(first, whole, (name,))
            upper_name = f"{field}[{int(k) + net.D}]"
            assert_close(upper_name, second[name], whole[upper_name], "reference", "float64")


@given(nets(["1-both"]), batches())
def test_two_directions_are_two_networks(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    for hold in ("zero", "hold"):
        options: dict[str, Any] = {
            "mask": batch.mask,
            "resets": batch.resets,
            "masked_output": hold,
        }
        whole = run(net, given, **options)
        parts = []
        for direction in (0, 1):
            columns = slice(direction * net.P, (direction + 1) * net.P)
            mine = {name: given[name][[direction]] for name in given if name not in ("x", "dy")}
            mine |= {"x": given["x"], "dy": given["dy"][:, :, columns]}
            parts.append(run(part_of(net, direction=direction), mine, **options))
        forward, backward = parts
        joined = {"y": np.concatenate([forward["y"], backward["y"]], axis=2)}
        joined |= {"dx": forward["dx"] + backward["dx"]}
        for name in ("h_n", "c_n", "dh0", "dc0"):
            if name in whole:
                joined[name] = np.concatenate([forward[name], backward[name]])
        for name in forward:
            if "[" in name:
                joined |= {name: forward[name], name.replace("0", "1"): backward[name]}
        assert_same(joined, whole)


# Variants that come to the same


LSTMS = [name for name, cell in CELLS.items() if cell.mode == "lstm" and not cell.projection]


@given(nets(cells=LSTMS), batches())
def test_the_identity_as_projection(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    projections = (np.eye(net.H),) * (net.L * net.D)
    projected = replace(net, weights=replace(net.weights, w_hr=projections))
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    assert_same(run(projected, given, **options), run(net, given, **options))


@pytest.mark.parametrize("clip", ["cell_clip", "proj_clip", "gate_clip"])
@given(batch=batches(), stack=st.sampled_from(list(STACKS)))
@settings(max_examples=8)
def test_a_clip_without_bounds_is_none_and_a_narrow_one_is_felt(
    clip: str, batch: Batch, stack: str
) -> None:
    net = make_net("lstm_projection", stack)
    given = arguments(net, batch)
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    plain = run(net, given, **options)
    assert_identical(run(net, given, **{clip: (-np.inf, np.inf)}, **options), plain)
    assert_identical(run(net, given, **{clip: np.inf}, **options), plain)
    if batch.mask.any():
        assert np.any(run(net, given, **{clip: 1e-3}, **options)["y"] != plain["y"])


@given(nets(cells=["rnn_tanh", "rnn_relu", "lstm", "gru_reset_before"]), batches())
def test_two_biases_add_up(net: Net, batch: Batch) -> None:
    """Everywhere but in the n of a GRU with reset_after, where only the first two gates do."""
    given = arguments(net, batch)
    b_ih, b_hh = net.weights.b_ih, net.weights.b_hh
    assert b_ih is not None
    assert b_hh is not None
    total = tuple(one + other for one, other in zip(b_ih, b_hh, strict=True))
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    plain = run(net, given, **options)
    for single in ("b_ih", "b_hh"):
        weights = replace(net.weights, b_ih=None, b_hh=None)
        other = run(replace(net, weights=replace(weights, **{single: total})), given, **options)
        assert_same(other, plain, ROWS)
    for k in range(net.L * net.D):
        assert_close("b", plain[f"b_ih[{k}]"], plain[f"b_hh[{k}]"], "reference", "float64")


def test_two_biases_of_a_gru_differ_in_n() -> None:
    net = make_net("gru", "1")
    batch = Batch(np.ones((5, 2), bool), np.zeros((5, 2), bool), seed=1)
    grads = run(net, arguments(net, batch))
    two_gates = 2 * net.H
    assert_close(
        "b", grads["b_ih[0]"][:two_gates], grads["b_hh[0]"][:two_gates], "reference", "float64"
    )
    assert np.all(grads["b_ih[0]"][two_gates:] != grads["b_hh[0]"][two_gates:])


@given(nets(), batches())
def test_prepacked_weights_are_the_weights(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    packed = rnnop.prepack(net.weights, mode=net.options["mode"], backend="reference")
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    plain = run(net, given, **options)
    assert_identical(run(net, given, weights=packed, **options), plain)


@given(nets(), batches())
def test_the_vjp_can_be_called_again(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    out, vjp = rnnop.rnn_vjp(
        given["x"], net.weights, mask=batch.mask, **net.options, backend="reference"
    )
    first = vjp(given["dy"])
    out.y[...] = np.nan  # the output is the caller's: what was saved is elsewhere
    out.h_n[...] = np.nan
    vjp(2.0 * given["dy"])
    again = vjp(given["dy"])
    assert first.x.tobytes() == again.x.tobytes()
    for (_, one), (_, other) in zip(first.weights.named(), again.weights.named(), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm"])
def test_calls_with_the_same_weights_know_nothing_of_each_other(mode: str) -> None:
    """Each gives what it gives with weights that no call has seen."""
    net = make_net(mode, "2")
    x = np.random.default_rng(0).standard_normal((4, 4, net.I))
    changes: list[dict[str, Any]] = [
        {},
        {"batch_first": True},
        {"reverse": True},
        {"lengths": [4, 2, 0, 3]},
        {"masked_output": "hold"},
        {"gate_clip": 0.5},
        {"gate_clip": (-0.5, 1.0)},
        {"dropout": 0.5},
        {"dropout": 0.5, "training": True, "seed": 1},
        {"dropout": 0.5, "training": True, "seed": 2},
        {"mode": "rnn_relu"} if mode == "rnn_tanh" else {"cell_clip": 0.1},
        {"activations": ["Affine"] if mode == "rnn_tanh" else ["Sigmoid", "Affine", "Tanh"]},
        {"return_cell_states": True} if mode == "lstm" else {},
    ]
    single = net.weights.map(lambda array: array.astype(np.float32))
    shapes = [(4, 4), (3, 4), (4, 3)]
    for change in changes * 2:
        for T, N in shapes[:1] if "lengths" in change else shapes:
            for weights in (net.weights, single):
                data = x[:T, :N].astype(weights.w_ih[0].dtype)
                options = net.options | {"backend": "reference"} | change
                got = rnnop.rnn(data, weights, **options)
                wanted = rnnop.rnn(data, weights.map(np.copy), **options)
                for one, other in zip(arrays_of(got), arrays_of(wanted), strict=True):
                    assert one.tobytes() == other.tobytes(), change


# Layouts


@given(nets(), batches())
def test_batch_first_is_the_transpose(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    turned = given | {name: given[name].swapaxes(0, 1) for name in ("x", "dy")}
    for hold in ("zero", "hold"):
        rows_first = run(
            net,
            turned,
            mask=batch.mask.T,
            resets=batch.resets.T,
            batch_first=True,
            masked_output=hold,
        )
        plain = run(net, given, mask=batch.mask, resets=batch.resets, masked_output=hold)
        for name in ("y", "dx"):
            rows_first[name] = np.ascontiguousarray(rows_first[name].swapaxes(0, 1))
        assert_identical(rows_first, plain)


@given(nets(), batches(), st.data())
def test_packed_is_padded(net: Net, batch: Batch, data: st.DataObject) -> None:
    T, N = batch.shape
    lengths = data.draw(hnp.arrays(np.int64, N, elements=st.integers(0, T)))
    given = arguments(net, batch)
    padded = run(net, given, lengths=lengths, resets=batch.resets)
    packed = given | {name: rnnop.pack(given[name], lengths) for name in ("x", "dy")}
    result = run(net, packed, resets=batch.resets[: lengths.max(initial=0)])
    for name in ("y", "dx"):
        padded[name] = rnnop.pack(padded[name], lengths).data
    assert_identical(result, padded)


# Outputs


def filled(y: Array, mask: Array, backward: bool) -> Array:
    """Return y with the last real output before them at masked steps, by walking over it."""
    result = np.zeros_like(y)
    for n in range(y.shape[1]):
        shown = np.zeros(y.shape[2])
        for t in reversed(range(len(y))) if backward else range(len(y)):
            if mask[t, n]:
                shown = y[t, n]
            result[t, n] = shown
    return result


@given(nets(), batches())
def test_held_outputs(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    plain = run(net, given, **options)
    held = run(net, given, masked_output="hold", **options)
    for direction in range(net.D):
        columns = slice(direction * net.P, (direction + 1) * net.P)
        backward = STACKS[net.stack][2] or direction == 1
        wanted = filled(plain["y"][:, :, columns], batch.mask, backward)
        np.testing.assert_array_equal(held["y"][:, :, columns], wanted)
    for name in ("h_n", "c_n"):
        if name in plain:
            np.testing.assert_array_equal(held[name], plain[name])


@given(nets(), batches())
def test_gradients_of_held_outputs(net: Net, batch: Batch) -> None:
    """A cotangent at a held step counts towards the step that is shown there."""
    T, N = batch.shape
    given = arguments(net, batch)
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    held = run(net, given, masked_output="hold", **options)
    collected = np.zeros_like(given["dy"])
    for direction in range(net.D):
        columns = slice(direction * net.P, (direction + 1) * net.P)
        backward = STACKS[net.stack][2] or direction == 1
        for n in range(N):
            shown = None
            for t in reversed(range(T)) if backward else range(T):
                shown = t if batch.mask[t, n] else shown
                if shown is not None:
                    collected[shown, n, columns] += given["dy"][t, n, columns]
    wanted = run(net, given | {"dy": collected}, **options)
    assert_same(held, wanted, [name for name in held if name != "y"])


def test_a_long_hold_adds_up_in_more_than_half_precision() -> None:
    """4096 ones are 4096; in float16 the sum stops at 2048."""
    weights = rnnop.RNNWeights((np.ones((1, 1), np.float16),), (np.ones((1, 1), np.float16),))
    x, mask = np.ones((4096, 1, 1), np.float16), np.zeros((4096, 1), bool)
    mask[0] = True
    _, vjp = rnnop.rnn_vjp(
        x, weights, mode="rnn_relu", mask=mask, masked_output="hold", backend="reference"
    )
    assert vjp(np.ones_like(x)).x[0].item() == 4096.0


@given(nets(cells=LSTMS), batches())
def test_cell_states_of_every_step(net: Net, batch: Batch) -> None:
    """The last one of the forward direction is c_n, and 0 stands at masked steps, held or not."""
    given = arguments(net, batch)
    options: dict[str, Any] = {"mask": batch.mask, **net.options, "backend": "reference"}
    states = given["h0"], given["c0"]
    for hold in ("zero", "hold"):
        out = rnnop.rnn(
            given["x"],
            net.weights,
            *states,
            return_cell_states=True,
            masked_output=hold,
            **options,
        )
        assert np.all(out.c[~batch.mask] == 0.0)
        for direction in range(net.D):
            columns = slice(direction * net.H, (direction + 1) * net.H)
            backward = STACKS[net.stack][2] or direction == 1
            for n in range(batch.shape[1]):
                times = np.flatnonzero(batch.mask[:, n])
                if len(times):
                    final = out.c[times[0 if backward else -1], n, columns]
                    last = (net.L - 1) * net.D + direction
                    np.testing.assert_array_equal(final, out.c_n[last, n])


# Dropout


@given(nets(["2", "2-reverse", "2-both"]), batches())
def test_dropout_masks_are_taken_as_they_are(net: Net, batch: Batch) -> None:
    """Two layers with a mask between them are two networks with the mask between them."""
    T, N = batch.shape
    given = arguments(net, batch)
    kept = batch.draw("kept", T, N, net.D * net.P) > 0.0
    options: dict[str, Any] = {"mask": batch.mask, "resets": batch.resets}
    whole = run(net, given, training=True, dropout=0.25, dropout_masks=[kept], seed=3, **options)
    layers = [
        given | {n: given[n][k * net.D :][: net.D] for n in given if n not in ("x", "dy")}
        for k in (0, 1)
    ]
    lower, upper = part_of(net, layer=0), part_of(net, layer=1)
    between = run(lower, layers[0] | {"dy": None}, **options)["y"]
    dropped = np.where(kept, between / 0.75, 0.0)
    second = run(upper, layers[1] | {"x": dropped}, **options)
    dy = np.where(kept, second["dx"] / 0.75, 0.0)
    first = run(lower, layers[0] | {"dy": dy}, **options)
    assert_same(second, whole, ("y",))
    assert_same(first, whole, ("dx",))


DROPOUT: dict[str, Any] = {"dropout": 0.4, "training": True}
deep = nets(["2", "2-both", "3"])
smooth = nets(["2", "2-both", "3"], ["rnn_tanh", "gru", "lstm"])


@given(smooth, batches(steps=3, rows=2, resets=False))
def test_a_seed_makes_dropout_reproducible(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    first = run(net, given, seed=7, **DROPOUT)
    assert_identical(run(net, given, seed=7, **DROPOUT), first)
    assert np.any(run(net, given, seed=8, **DROPOUT)["y"] != first["y"])
    assert np.any(run(net, given, **DROPOUT)["y"] != run(net, given, **DROPOUT)["y"])


@given(deep, batches())
def test_dropout_acts_in_training_only(net: Net, batch: Batch) -> None:
    given = arguments(net, batch)
    T, N = batch.shape
    kept = np.zeros((net.L - 1, T, N, net.D * net.P), bool)
    plain = run(net, given, mask=batch.mask)
    for options in ({"dropout": 0.4, "seed": 7}, {"dropout": 0.4, "dropout_masks": kept}):
        assert_identical(run(net, given, mask=batch.mask, **options), plain)
    assert_identical(run(net, given, mask=batch.mask, training=True), plain)


@given(deep, batches(), st.integers(1, 3))
def test_steps_at_the_end_change_no_element_that_is_dropped(
    net: Net, batch: Batch, more: int
) -> None:
    given = arguments(net, batch)
    T, N = batch.shape
    longer = given | {
        name: np.concatenate([given[name], np.full((more, *given[name].shape[1:]), np.nan)])
        for name in ("x", "dy")
    }
    mask = np.concatenate([batch.mask, np.zeros((more, N), bool)])
    plain = run(net, given, mask=batch.mask, seed=7, **DROPOUT)
    padded = run(net, longer, mask=mask, seed=7, **DROPOUT)
    assert_identical(padded | {name: padded[name][:T] for name in ("y", "dx")}, plain)


@given(deep, batches(), st.data())
def test_what_is_dropped_does_not_depend_on_the_layout(
    net: Net, batch: Batch, data: st.DataObject
) -> None:
    T, N = batch.shape
    lengths = data.draw(hnp.arrays(np.int64, N, elements=st.integers(0, T)))
    given = arguments(net, batch)
    plain = run(net, given, lengths=lengths, seed=7, **DROPOUT)
    packed = given | {name: rnnop.pack(given[name], lengths) for name in ("x", "dy")}
    turned = given | {name: given[name].swapaxes(0, 1) for name in ("x", "dy")}
    by_rows = run(net, turned, lengths=lengths, batch_first=True, seed=7, **DROPOUT)
    by_packing = run(net, packed, seed=7, **DROPOUT)
    assert by_packing["y"].tobytes() == rnnop.pack(plain["y"], lengths).data.tobytes()
    assert by_packing["h_n"].tobytes() == plain["h_n"].tobytes()
    np.testing.assert_array_equal(by_rows["y"].swapaxes(0, 1), plain["y"])


def dropped(rate: float, seed: int | None, num_layers: int = 2, size: int = 20) -> Array:
    """Return ones after dropout between layers that do nothing else."""
    copy, nothing, ones = np.eye(size), np.zeros((size, size)), np.ones(size)
    weights = rnnop.RNNWeights(
        (nothing, *[copy] * (num_layers - 1)),
        (nothing,) * num_layers,
        (ones, *[np.zeros(size)] * (num_layers - 1)),
    )
    return rnnop.rnn(
        np.zeros((50, 20, size)),
        weights,
        mode="rnn_tanh",
        activations=["Affine"],
        dropout=rate,
        training=True,
        seed=seed,
        backend="reference",
    ).y


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_the_rest(rate: float) -> None:
    y = dropped(rate, seed=0)
    assert set(np.unique(y)) == {0.0, 1.0 / (1.0 - rate)}
    five_sigma = 5.0 * np.sqrt(rate * (1.0 - rate) / y.size)
    assert abs(np.mean(y == 0.0) - rate) < five_sigma
    for axis in (0, 1, 2):  # no step, row or unit is special
        others = tuple(other for other in range(3) if other != axis)
        shares = np.mean(y == 0.0, axis=others)
        size = y.size / len(shares)
        assert np.abs(shares - rate).max() < 5.0 * np.sqrt(rate * (1.0 - rate) / size)


def test_each_boundary_and_each_seed_drops_its_own() -> None:
    one, other = dropped(0.5, seed=0) > 0, dropped(0.5, seed=1) > 0
    both = dropped(0.5, seed=0, num_layers=3) > 0  # kept at both boundaries
    five_sigma = 5.0 * 0.5 / np.sqrt(one.size)
    assert abs(np.mean(one == other) - 0.5) < five_sigma
    assert abs(np.mean(both) - 0.25) < five_sigma
    assert np.all(one[both])  # the first boundary is the same in both
