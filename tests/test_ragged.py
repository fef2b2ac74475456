"""The ragged plan: the picture of rnnop/ragged.py in numbers, and its rules on any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_api_compat import numpy as xp
from hypothesis import given
from hypothesis import strategies as st
from oracle import segments

from rnnop.ragged import RaggedPlan, batch_first_storage, invert, make_plan, packed_storage

Array = np.ndarray[Any, np.dtype[Any]]

#                                    a letter is a real step, . a masked one, | a reset before it
PICTURE = ["a b . c .", ". . . . .", ". d|e . f", "g h . i j"]
LETTERS = np.array([list(row[::2]) for row in PICTURE]).T  # (T, N)
MASK = LETTERS != "."
RESETS = np.array([[False] + [gap == "|" for gap in row[1::2]] for row in PICTURE]).T
PLAN = make_plan(5, 4, MASK, RESETS)
PACKED = "gaedhbficj"


def letters(index: Array) -> str:
    """Return what lies at packed positions, . for -1."""
    return "".join("." if k < 0 else PACKED[k] for k in np.ravel(index))


def test_picture_segments() -> None:
    assert PLAN.lengths.tolist() == [4, 3, 2, 1]  # g h i j, a b c, e f, d
    assert PLAN.rows.tolist() == [3, 0, 2, 2]
    assert PLAN.batch_sizes.tolist() == [4, 3, 2, 1]
    assert PLAN.offsets.tolist() == [0, 4, 7, 9]
    assert (PLAN.num_segments, PLAN.total, PLAN.dense) == (4, 10, False)


def test_picture_packed_order() -> None:
    assert PLAN.steps is not None
    assert "".join(LETTERS.ravel()[PLAN.steps]) == PACKED
    assert letters(PLAN.positions) == "".join(LETTERS.ravel())


def test_picture_states() -> None:
    """The forward direction enters d and leaves f in row 2, the backward one the reverse."""
    forward, backward = PLAN.enter
    assert forward.tolist() == [3, 0, -1, 2]
    assert backward.tolist() == [3, 0, 2, -1]
    forward, backward = PLAN.leave
    assert forward.tolist() == [1, -1, 2, 0]
    assert backward.tolist() == [1, -1, 3, 0]


def test_picture_flip() -> None:
    assert letters(PLAN.flip) == "jcfdibehag"
    assert letters(PLAN.flip[PLAN.flip]) == PACKED


def test_picture_held_outputs() -> None:
    assert letters(PLAN.held[False].reshape(5, 4).T) == "abbcc" + "....." + ".deef" + "ghhij"
    assert letters(PLAN.held[True].reshape(5, 4).T) == "abcc." + "....." + "ddeff" + "ghiij"


def test_picture_held_cotangents() -> None:
    """Each real step collects what the steps that show it were given."""
    powers = 2.0 ** np.arange(20)  # so that a sum tells its terms
    shown = {False: PLAN.held[False], True: PLAN.held[True]}
    for backward, index in shown.items():
        got = PLAN.gather_held(xp, powers[:, None], backward)[:, 0]
        wanted = [powers[index == k].sum() for k in range(10)]
        assert got.tolist() == wanted


def test_picture_gather_and_scatter() -> None:
    gather, scatter = PLAN.gather, PLAN.scatter
    assert gather is not None
    assert scatter is not None
    assert "".join(LETTERS.ravel()[gather]) == PACKED
    assert letters(scatter) == "".join(LETTERS.ravel())
    assert PLAN.storage_rows == 20


def test_picture_batch_first() -> None:
    plan = make_plan(5, 4, MASK, RESETS, batch_first_storage(5, 4))
    rows_first = LETTERS.T.ravel()
    assert "".join(rows_first[plan.gather]) == PACKED
    assert letters(plan.scatter) == "".join(rows_first)
    assert letters(plan.held[False]) == "abbcc" + "....." + ".deef" + "ghhij"
    powers = 2.0 ** np.arange(20)[:, None]
    time_major = PLAN.gather_held(xp, powers.reshape(4, 5).T.reshape(20, 1), True)
    assert plan.gather_held(xp, powers, True).tolist() == time_major.tolist()


def test_a_dense_batch_needs_no_index() -> None:
    plan = make_plan(3, 2)
    assert (plan.steps, plan.gather, plan.scatter, plan.dense) == (None, None, None, True)
    assert plan.batch_sizes.tolist() == [2, 2, 2]
    assert plan.positions.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert plan.flip.tolist() == [4, 5, 2, 3, 0, 1]
    full = make_plan(3, 2, np.ones((3, 2), bool), np.zeros((3, 2), bool))
    assert (full.steps, full.gather, full.dense) == (None, None, True)
    for name in ("lengths", "rows", "batch_sizes"):
        assert getattr(full, name).tolist() == getattr(plan, name).tolist()
    for one, other in zip(full.enter + full.leave, plan.enter + plan.leave, strict=True):
        assert one.tolist() == other.tolist()


def test_where_segments_are_the_rows_states_stay() -> None:
    """Each row one segment, sorted as they came: no state has to move."""
    assert make_plan(3, 2).states_stay
    assert make_plan(3, 2, np.array([[1, 1], [1, 1], [1, 0]], bool)).states_stay
    assert not make_plan(3, 2, np.array([[1, 1], [1, 1], [0, 1]], bool)).states_stay  # sorted
    assert not make_plan(2, 2, np.array([[1, 0], [1, 0]], bool)).states_stay  # one row has none
    assert not make_plan(2, 1, resets=np.array([[0], [1]], bool)).states_stay  # two segments
    assert not make_plan(2, 1, resets=np.array([[1], [0]], bool)).states_stay  # starts from zeros
    assert not PLAN.states_stay


def test_a_dense_batch_first_batch_is_only_gathered() -> None:
    plan = make_plan(3, 2, storage=batch_first_storage(3, 2))
    assert plan.dense
    assert plan.gather is not None
    assert plan.gather.tolist() == [0, 3, 1, 4, 2, 5]
    single = make_plan(3, 1, storage=batch_first_storage(3, 1))
    assert single.gather is None  # with one row the two layouts are the same


def test_as_many_steps_as_a_dense_batch_but_cut() -> None:
    plan = make_plan(2, 2, resets=np.array([[False, False], [True, True]]))
    assert not plan.dense
    assert plan.lengths.tolist() == [1, 1, 1, 1]


def test_resets() -> None:
    def cut(resets: list[int], mask: list[int]) -> tuple[list[int], int, int]:
        """Return lengths, and where the state enters forward and backward, of a single row."""
        column = np.array(mask, bool)[:, None]
        plan = make_plan(len(mask), 1, column, np.array(resets, bool)[:, None])
        return plan.lengths.tolist(), *(int(np.sum(enter >= 0)) for enter in plan.enter)

    assert cut([0, 0, 0, 0], [1, 1, 1, 1]) == ([4], 1, 1)
    assert cut([0, 0, 0, 1], [1, 1, 1, 1]) == ([3, 1], 1, 1)
    assert cut([1, 0, 0, 0], [1, 1, 1, 1]) == ([4], 0, 1)  # forward starts from zeros
    assert cut([0, 1, 0, 0], [1, 0, 0, 1]) == ([1, 1], 1, 1)  # on a masked step
    assert cut([0, 1, 1, 0], [1, 0, 0, 1]) == ([1, 1], 1, 1)  # twice, and once
    assert cut([1, 0, 0, 0], [0, 1, 1, 1]) == ([3], 0, 1)  # before the first real step
    assert cut([0, 0, 0, 1], [1, 1, 1, 0]) == ([3], 1, 1)  # with no real step after it
    assert cut([1, 1, 1, 1], [0, 0, 0, 0]) == ([], 0, 0)
    assert cut([1, 1, 1, 1], [1, 1, 1, 1]) == ([1, 1, 1, 1], 0, 1)


@pytest.mark.parametrize(("num_steps", "batch_size"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("given_mask", [False, True])
def test_no_steps_or_no_rows(num_steps: int, batch_size: int, given_mask: bool) -> None:
    mask = np.ones((num_steps, batch_size), bool) if given_mask else None
    plan = make_plan(num_steps, batch_size, mask)
    assert (plan.num_segments, plan.total) == (0, 0)
    assert plan.batch_sizes.tolist() == []
    assert plan.flip.tolist() == []
    assert plan.positions.shape == (num_steps, batch_size)
    assert [leave.tolist() for leave in plan.leave] == [[-1] * batch_size] * 2
    empty = np.zeros((0, 7))
    assert plan.gather_held(xp, empty, False).shape == (0, 7)


def test_invert() -> None:
    assert invert(np.array([2, -1, 0]), 4).tolist() == [2, -1, 0, -1]


def test_packed_storage() -> None:
    """Lengths 2, 4, 1, 0: the picture of rnnop/packing.py with an empty row."""
    storage = packed_storage(np.array([3, 2, 1, 1]), np.array([1, 0, 2, 3]))
    assert storage.T.tolist() == [[1, 4, -1, -1], [0, 3, 5, 6], [2, -1, -1, -1], [-1] * 4]
    assert packed_storage(np.zeros(0, int), np.arange(2)).shape == (0, 2)


def test_packed_data_comes_in_as_it_lies() -> None:
    storage = packed_storage(np.array([3, 2, 1, 1]), np.array([1, 0, 2]))
    plan = make_plan(4, 3, storage >= 0, storage=storage)
    assert (plan.gather, plan.scatter, plan.storage_rows) == (None, None, 7)
    assert plan.held[False].tolist() == list(range(7))


def test_packed_data_with_resets_is_gathered() -> None:
    storage = packed_storage(np.array([2, 2, 1]), np.array([1, 0]))
    resets = np.zeros((3, 2), bool)
    resets[1, 1] = True  # row 1, of three steps, becomes one step and two
    plan = make_plan(3, 2, storage >= 0, resets, storage)
    assert plan.lengths.tolist() == [2, 2, 1]
    assert plan.rows.tolist() == [0, 1, 1]
    assert plan.gather is not None
    assert plan.gather.tolist() == [1, 2, 0, 3, 4]
    powers = 2.0 ** np.arange(5)[:, None]
    assert plan.gather_held(xp, powers, False)[:, 0].tolist() == [2, 4, 1, 8, 16]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Array, Array, RaggedPlan]:
    shape = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    cells = st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    mask = np.array(draw(cells), bool).reshape(shape)
    resets = np.array(draw(cells), bool).reshape(shape)
    return mask, resets, make_plan(*shape, mask, resets)


@given(batches())
def test_any_batch(batch: tuple[Array, Array, RaggedPlan]) -> None:
    mask, resets, plan = batch
    wanted = segments(mask, resets)
    assert plan.rows.tolist() == [row for row, _ in wanted]
    assert plan.lengths.tolist() == [len(steps) for _, steps in wanted]
    steps = np.flatnonzero(mask) if plan.steps is None else plan.steps
    order = [
        t * mask.shape[1] + n
        for k in range(len(plan.batch_sizes))
        for n, times in wanted[: plan.batch_sizes[k]]
        for t in times[k : k + 1]
    ]
    assert steps.tolist() == order
    assert plan.flip[plan.flip].tolist() == list(range(plan.total))
    place = {each: k for k, each in enumerate(order)}
    turned = {
        place[t * mask.shape[1] + n]: place[back * mask.shape[1] + n]
        for n, times in wanted
        for t, back in zip(times, reversed(times), strict=True)
    }
    assert plan.flip.tolist() == [turned[k] for k in range(plan.total)]
