"""What went wrong in other systems: each report's smallest input, and the right answer.

Reports that are about a GPU, a framework's own plumbing or the RSSM are not here.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from differences import assert_gradient
from tolerances import assert_close

import rnnop

Array = np.ndarray[Any, np.dtype[Any]]

MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
every_mode = pytest.mark.parametrize("mode", MODES)

rnn = functools.partial(rnnop.rnn, backend="reference")
rnn_vjp = functools.partial(rnnop.rnn_vjp, backend="reference")
assert_same = functools.partial(assert_close, backend="reference", dtype="float64")


def weights(mode: str, input_size: int, hidden_size: int, **more: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights(
        mode, input_size=input_size, hidden_size=hidden_size, seed=1, dtype="float64", **more
    )


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def states(w: rnnop.RNNWeights, mode: str, rows: int, size: int) -> list[Array]:
    """Return states that are not zero: h0, and c0 for an LSTM."""
    shape = len(w.w_ih), rows, size
    return [numbers(*shape, seed=5), numbers(*shape, seed=6)][: 2 if mode == "lstm" else 1]


# apache/mxnet#19323: on a CPU a bidirectional LSTM ran over the padding.
def test_lengths_were_ignored_by_the_backward_direction() -> None:
    w = weights("lstm", 1, 1, bidirectional=True)
    x = np.array([1.0, 2.0, 3.0])[:, None, None]
    short = rnn(x, w, mode="lstm", lengths=[3])
    padded = np.concatenate([x, np.zeros((2, 1, 1))])
    long = rnn(padded, w, mode="lstm", lengths=[3])
    assert np.array_equal(long.y[:3], short.y)
    assert np.all(long.y[3:] == 0.0)
    assert np.array_equal(long.h_n, short.h_n)
    assert np.array_equal(long.c_n, short.c_n)


# pytorch/pytorch#517, #1811, #3662: the backward direction started on the padding.
def test_a_palindrome_reads_the_same_both_ways() -> None:
    one = weights("gru", 5, 1)
    tied = rnnop.RNNWeights(
        *(getattr(one, name) * 2 for name in ("w_ih", "w_hh", "b_ih", "b_hh")),
        bidirectional=True,
    )
    embedding = numbers(6, 5)
    for tokens in ([2, 4, 2], [2, 4, 2, 0, 0]):
        y = rnn(embedding[tokens][:, None], tied, lengths=[3]).y[:3, 0]
        assert_same("y", y[:, 0], y[::-1, 1])


# microsoft/onnxruntime PR#1361: y beyond a row's length was whatever had been in memory.
@every_mode
def test_y_beyond_a_row_was_not_written(mode: str) -> None:
    w, x = weights(mode, 3, 4), numbers(2, 2, 3)
    for _ in range(3):
        stale = np.full((2, 2, 4), np.nan)
        del stale  # memory of the right size for y to be found in
        assert np.array_equal(rnn(x, w, mode=mode, lengths=[2, 1]).y[1, 1], np.zeros(4))


# onnxruntime PR#1660, PR#749; tensorflow/tensorflow#36139, #43103, #33148; jax-ml/jax#17966;
# onnx/onnx#1674: a row of length 0 was an error, or its state was undefined.
@every_mode
@pytest.mark.parametrize("lengths", [[3, 0], [0, 0]])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_without_steps(mode: str, lengths: list[int], bidirectional: bool) -> None:
    w = weights(mode, 3, 4, bidirectional=bidirectional)
    x, initial = numbers(3, 2, 3), states(w, mode, 2, 4)
    out, vjp = rnn_vjp(x, w, *initial, mode=mode, lengths=lengths)
    final = [numbers(*state.shape, seed=7 + k) for k, state in enumerate(initial)]
    grads = vjp(numbers(*out.y.shape), *final)
    gradients = [grads.h0, grads.c0][: len(initial)]
    for row in np.flatnonzero(np.array(lengths) == 0):
        assert np.all(out.y[:, row] == 0.0)
        assert np.all(grads.x[:, row] == 0.0)
        for end, start, dstart, dend in zip(
            (out.h_n, out.c_n), initial, gradients, final, strict=False
        ):
            assert np.array_equal(end[:, row], start[:, row])
            assert np.array_equal(dstart[:, row], dend[:, row])
    if lengths[0]:
        alone = rnn(x[:, :1], w, *(state[:, :1] for state in initial), mode=mode)
        assert_same("y", out.y[:, :1], alone.y)
        assert_same("h_n", out.h_n[:, :1], alone.h_n)


# pytorch/pytorch#50192: no step at all raised "stack expects a non-empty TensorList".
@every_mode
def test_no_steps_at_all(mode: str) -> None:
    w = weights(mode, 5, 6)
    x, initial = np.zeros((0, 10, 5)), states(w, mode, 10, 6)
    out, vjp = rnn_vjp(x, w, *initial, mode=mode)
    assert out.y.shape == (0, 10, 6)
    assert np.array_equal(out.h_n, initial[0])
    grads = vjp(out.y, initial[0])
    assert grads.x.shape == (0, 10, 5)
    assert np.array_equal(grads.h0, initial[0])
    assert all(np.all(array == 0.0) for _, array in grads.weights.named())


# pytorch/pytorch#12013; NVIDIA/cudnn-frontend#101: a batch of no rows.
@every_mode
def test_no_rows_at_all(mode: str) -> None:
    w = weights(mode, 5, 6)
    out, vjp = rnn_vjp(np.zeros((3, 0, 5)), w, mode=mode)
    assert out.y.shape == (3, 0, 6)
    assert out.h_n.shape == (1, 0, 6)
    grads = vjp(out.y)
    assert grads.x.shape == (3, 0, 5)
    shapes = [array.shape for _, array in w.named()]
    assert [array.shape for _, array in grads.weights.named()] == shapes
    assert all(np.all(array == 0.0) for _, array in grads.weights.named())


# pytorch/pytorch#43227, #103964: only int64 lengths were taken.
@pytest.mark.parametrize(
    "kind", [list, tuple, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]
)
def test_any_integers_are_lengths(kind: Any) -> None:
    w, x = weights("gru", 3, 4), numbers(4, 3, 3)
    lengths = kind([2, 4, 1]) if kind in (list, tuple) else np.array([2, 4, 1], kind)
    mask = np.arange(4)[:, None] < np.array([2, 4, 1])
    assert np.array_equal(rnn(x, w, lengths=lengths).y, rnn(x, w, mask=mask).y)


# pytorch/pytorch#133751: more than 65535 steps, refused with a text about contiguity.
@pytest.mark.slow
def test_more_than_65535_steps() -> None:
    w, x = weights("gru", 2, 3), numbers(65536, 1, 2)
    out = rnn(x, w)
    for cut in (10, 65535):
        rest = rnn(x[cut : cut + 10], w, out.y[None, cut - 1])
        assert_same("y", out.y[cut : cut + 10], rest.y)
    assert np.array_equal(out.h_n[0], out.y[-1])


# tensorflow/tensorflow#41630; mozilla/DeepSpeech#3088: what a first batch with equal lengths had
# set up was used for a second with other lengths.
def test_batches_of_other_lengths_one_after_another() -> None:
    w, x = weights("lstm", 3, 4), numbers(74, 2, 3)
    packed = rnnop.prepack(w, mode="lstm", backend="reference")
    for lengths in ([74, 74], [74, 60], [74, 74]):
        out = rnn(x, packed, mode="lstm", lengths=lengths)
        for row, length in enumerate(lengths):
            alone = rnn(x[:length, [row]], w, mode="lstm")
            assert_same("y", out.y[:length, [row]], alone.y)
            assert_same("c_n", out.c_n[:, [row]], alone.c_n)


# apache/mxnet#17479: layers were fused although the input was not as wide as the state.
@pytest.mark.parametrize("mode", ["lstm", "rnn_tanh", "rnn_relu"])
def test_two_layers_with_an_input_of_another_width(mode: str) -> None:
    w, x = weights(mode, 5, 10, num_layers=2), numbers(3, 1, 5)
    layers = [
        rnnop.RNNWeights(*(getattr(w, n)[k : k + 1] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
        for k in (0, 1)
    ]
    lower = rnn(x, layers[0], mode=mode)
    upper = rnn(lower.y, layers[1], mode=mode)
    out = rnn(x, w, mode=mode)
    assert_same("y", out.y, upper.y)
    assert_same("h_n", out.h_n, np.concatenate([lower.h_n, upper.h_n]))


# apache/mxnet#17818, #17898: the gradient of the recurrent bias was 0, or wrong, in stacked layers.
@every_mode
def test_gradients_of_every_bias_of_stacked_layers(mode: str) -> None:
    w, x = weights(mode, 4, 4, num_layers=2), numbers(3, 2, 4)
    out, vjp = rnn_vjp(x, w, mode=mode)
    dy = numbers(*out.y.shape, seed=1)
    grads = vjp(dy)
    for name in ("b_ih", "b_hh"):
        for k in (0, 1):

            def f(bias: Array, name: str = name, k: int = k) -> Array:
                fields = {n: list(getattr(w, n)) for n in ("w_ih", "w_hh", "b_ih", "b_hh")}
                fields[name][k] = bias
                return dy * rnn(x, rnnop.RNNWeights.of_fields(fields, False), mode=mode).y

            assert_gradient(f"{name}[{k}]", getattr(grads.weights, name)[k], f, getattr(w, name)[k])


# apache/mxnet#15268, #15278: the gradient of a call with lengths did not run.
# apache/mxnet#20524: lengths were taken for the cell state in modes that have none.
@every_mode
def test_gradients_of_a_call_with_lengths(mode: str) -> None:
    w, x = weights(mode, 3, 4), numbers(3, 2, 3)
    out, vjp = rnn_vjp(x, w, mode=mode, lengths=[3, 1])
    dy = numbers(*out.y.shape, seed=1)
    dx = vjp(dy).x
    assert np.all(dx[1:, 1] == 0.0)
    assert_gradient("x", dx, lambda x: dy * rnn(x, w, mode=mode, lengths=[3, 1]).y, x)


# pytorch/rl#3711: the final state was that of the padded end, not of the row's own.
def test_the_final_state_after_a_reset() -> None:
    w, x = weights("lstm", 2, 4), numbers(5, 1, 2)
    resets = np.zeros((5, 1), bool)
    resets[3] = True
    out = rnn(x, w, mode="lstm", resets=resets)
    first, second = rnn(x[:3], w, mode="lstm"), rnn(x[3:], w, mode="lstm")
    assert_same("h_n", out.h_n, second.h_n)
    assert_same("c_n", out.c_n, second.c_n)
    assert_same("y", out.y, np.concatenate([first.y, second.y]))


def large_state() -> tuple[rnnop.RNNWeights, Array, Array]:
    """Return an LSTM of which one step from c0 = 0.9 leaves c at 0.9: f = 1, i = 0."""
    b = np.array([-1e3, 1e3, 0.0, 0.3])
    w = rnnop.RNNWeights((np.zeros((4, 1)),), (np.zeros((4, 1)),), (b,))
    return w, np.zeros((1, 1, 1)), np.full((1, 1, 1), 0.9)


# microsoft/onnxruntime#27224: ONNX's clip was not applied to the argument of h(). It is not the
# clip of the cell state, which would bound c_n too.
def test_the_gate_clip_reaches_the_output_activation() -> None:
    w, x, c0 = large_state()
    o = 1.0 / (1.0 + np.exp(-0.3))
    i, f = (1.0 / (1.0 + np.exp(-bound)) for bound in (-0.5, 0.5))
    out = rnn(x, w, None, c0, mode="lstm", gate_clip=0.5)
    assert_same("c_n", out.c_n, np.full((1, 1, 1), f * 0.9 + i * 0.0))
    assert f * 0.9 > 0.5
    assert_same("y", out.y, np.full((1, 1, 1), o * np.tanh(0.5)))


# MXNet's own test of its clip looked at h, which is within 1 anyway, and passed whatever it did.
def test_a_clipped_state_shows_in_y_and_in_c_n() -> None:
    w, x = weights("lstm", 3, 4), 5.0 * numbers(5, 2, 3)
    plain = rnn(x, w, mode="lstm", return_cell_states=True)
    clipped = rnn(x, w, mode="lstm", cell_clip=0.3, return_cell_states=True)
    bound = float(np.float32(0.3))
    assert np.abs(plain.c).max() > bound
    assert np.abs(clipped.c).max() == bound
    assert np.abs(clipped.c_n).max() == bound
    assert np.abs(clipped.y - plain.y).max() > 0.01


# allenai/allennlp#862: the clip was done behind autograd's back.
def test_gradients_through_a_clipped_state() -> None:
    w, x = weights("lstm", 3, 4), 5.0 * numbers(5, 2, 3)
    out, vjp = rnn_vjp(x, w, mode="lstm", cell_clip=0.3)
    dy = numbers(*out.y.shape, seed=1)
    assert_gradient("x", vjp(dy).x, lambda x: dy * rnn(x, w, mode="lstm", cell_clip=0.3).y, x)
    w, x, c0 = large_state()
    for bound, slope in ((0.5, 0.0), (1.5, 1.0)):  # c_n is c0, cut or not
        _, vjp = rnn_vjp(x, w, None, c0, mode="lstm", cell_clip=bound)
        assert vjp(None, dc_n=np.ones((1, 1, 1))).c0.item() == slope


# tensorflow/tensorflow#6209; ragulpr/wtte-rnn#50: a NaN in the padding reached the gradients,
# as 0 * NaN.
@every_mode
def test_nan_in_the_padding(mode: str) -> None:
    w, x, lengths = weights(mode, 3, 4), numbers(3, 2, 3), [2, 3]
    dy = numbers(3, 2, 4, seed=1)
    x[2, 0] = dy[2, 0] = np.nan
    out, vjp = rnn_vjp(x, w, mode=mode, lengths=lengths)
    grads = vjp(dy)
    assert np.all(grads.x[2, 0] == 0.0)
    for array in (out.y, out.h_n, grads.x, grads.h0, *(a for _, a in grads.weights.named())):
        assert np.all(np.isfinite(array))


# tensorflow/tensorflow#40345; onnxruntime#4187; onnx/onnx#2881: in which order a reverse network
# puts its outputs, and what its final state is.
@every_mode
def test_reverse_outputs_stand_in_the_order_of_the_input(mode: str) -> None:
    w, x = weights(mode, 2, 3), numbers(3, 2, 2)
    out, forward = rnn(x, w, mode=mode, reverse=True), rnn(x[::-1], w, mode=mode)
    assert_same("y", out.y, forward.y[::-1])
    assert np.array_equal(out.h_n[0], out.y[0])


# pytorch/pytorch#345: arrays that do not lie contiguously gave wrong gradients or an odd error.
@every_mode
def test_arrays_that_are_views(mode: str) -> None:
    w = weights(mode, 3, 4)
    x, h0 = numbers(2, 5, 3).transpose(1, 0, 2), numbers(2, 2, 4)[::2]
    reversed_x = numbers(5, 2, 3)[::-1]
    for view in (x, reversed_x):
        out, vjp = rnn_vjp(view, w, h0, mode=mode)
        plain, plain_vjp = rnn_vjp(view.copy(), w, h0.copy(), mode=mode)
        assert np.array_equal(out.y, plain.y)
        dy = numbers(2, 5, 4, seed=1).transpose(1, 0, 2)
        assert np.array_equal(vjp(dy).x, plain_vjp(dy.copy()).x)


# onnxruntime 0550fa72: reverse brought the padding to the front, and plain RNNs had no lengths.
@every_mode
def test_reverse_with_lengths(mode: str) -> None:
    w, x = weights(mode, 2, 3), numbers(3, 2, 2)
    out = rnn(x, w, mode=mode, reverse=True, lengths=[1, 3])
    single = rnn(x[:1, :1], w, mode=mode)
    assert_same("h_n", out.h_n[:, :1], single.h_n)
    assert_same("y", out.y[:1, :1], single.y)
    assert np.all(out.y[1:, 0] == 0.0)


# jax.experimental.rnn, flax: the step before the first is the last, as index -1.
@every_mode
def test_the_state_of_a_row_without_steps_is_no_other_rows(mode: str) -> None:
    w, x = weights(mode, 2, 3), numbers(3, 1, 2)
    h0 = numbers(1, 1, 3, seed=1)
    assert np.array_equal(rnn(x, w, h0, mode=mode, lengths=[0]).h_n, h0)


# tensorflow/tensorflow#6466: dropout on a single layer did nothing and did not say so.
def test_dropout_on_a_single_layer_says_that_it_does_nothing() -> None:
    w, x = weights("gru", 3, 4), numbers(5, 2, 3)
    with pytest.warns(UserWarning, match="no effect on a single layer"):
        dropped = rnn(x, w, dropout=0.5, training=True, seed=0)
    assert np.array_equal(dropped.y, rnn(x, w).y)


# pytorch/pytorch#134637, #19913: threads waited for each other's dropout state, in inference too.
def test_threads_give_what_one_gives() -> None:
    w, x = weights("gru", 3, 8, num_layers=2), numbers(20, 4, 3)
    options: dict[str, Any] = {"dropout": 0.5, "training": True}
    wanted = [rnn(x, w, seed=seed, **options).y for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda k: rnn(x, w, seed=k % 4, **options).y, range(32)))
    for k, y in enumerate(got):
        assert np.array_equal(y, wanted[k % 4])


# tensorflow/tensorflow#51385; keras-team/keras#15140: half precision data with a state in float32.
def test_a_state_of_another_dtype_is_named() -> None:
    w = rnnop.init_weights("gru", input_size=3, hidden_size=4, dtype="float16")
    x, h0 = np.zeros((5, 2, 3), np.float16), np.zeros((1, 2, 4), np.float32)
    with pytest.raises(TypeError, match="`h0` has dtype float32 and `x` has dtype float16"):
        rnn(x, w, h0)


# pytorch/pytorch#175845: what error float16 has was nowhere written.
def test_float16_has_a_stated_tolerance() -> None:
    w, x = weights("lstm", 16, 16), numbers(20, 4, 16)
    half = w.map(lambda array: array.astype(np.float16))
    wide = half.map(lambda array: array.astype(np.float64))
    out = rnn(x.astype(np.float16), half, mode="lstm")
    exact = rnn(x.astype(np.float16).astype(np.float64), wide, mode="lstm")
    assert_close("y", out.y, exact.y, "reference", "float16")


# tensorflow/tensorflow#11570; pytorch/pytorch#139582: which sizes a projection changes.
def test_the_shapes_of_a_projection() -> None:
    w = weights("lstm", 5, 4, num_layers=2, bidirectional=True, proj_size=2)
    out = rnn(numbers(6, 3, 5), w, mode="lstm", return_cell_states=True)
    assert out.y.shape == (6, 3, 4)
    assert out.h_n.shape == (4, 3, 2)
    assert out.c_n.shape == (4, 3, 4)
    assert out.c.shape == (6, 3, 8)
    assert w.w_ih[2].shape == (16, 4)


def test_which_projections_there_are() -> None:
    assert weights("lstm", 5, 4, proj_size=4).w_hr is not None
    for size in (0, 5):
        with pytest.raises(
            ValueError, match=rf"`proj_size` is {size}; .* 1\.\.hidden_size = 1\.\.4"
        ):
            weights("lstm", 5, 4, proj_size=size)
    with pytest.raises(ValueError, match="`proj_size` is given with mode 'gru'"):
        weights("gru", 5, 4, proj_size=2)


# MXNet's CPU code wrote the projected state through a null pointer when no state was asked for.
def test_a_projection_without_states() -> None:
    w, x = weights("lstm", 3, 4, proj_size=2), numbers(5, 2, 3)
    zeros = np.zeros((1, 2, 2)), np.zeros((1, 2, 4))
    assert np.array_equal(rnn(x, w, mode="lstm").y, rnn(x, w, *zeros, mode="lstm").y)


# apache/tvm, topi.nn.lstm: a peephole for one gate without the others was ignored.
def test_peepholes_come_for_all_three_gates() -> None:
    w = weights("lstm", 3, 4)
    for rows in (1, 2, 4):
        peephole = (np.zeros((rows, 4)),)
        one = rnnop.RNNWeights(w.w_ih, w.w_hh, w.b_ih, w.b_hh, peephole=peephole)
        with pytest.raises(ValueError, match=r"`weights\.peephole\[0\]` .*\(3, hidden_size\)"):
            rnn(numbers(5, 2, 3), one, mode="lstm")


# apache/mxnet, test_lstmp: the fused projection was tested with all weights zero.
def test_the_projection_is_seen_by_the_next_step() -> None:
    w, x = weights("lstm", 5, 3, proj_size=2), numbers(11, 7, 5)
    out = rnn(x, w, mode="lstm")
    cut = rnn(x[:1], w, mode="lstm")
    rest = rnn(x[1:], w, cut.h_n, cut.c_n, mode="lstm")
    forgotten = rnn(x[1:], w, np.zeros_like(cut.h_n), cut.c_n, mode="lstm")
    assert_same("y", out.y, np.concatenate([cut.y, rest.y]))
    assert np.abs(out.y[1:] - forgotten.y).max() > 1e-3


# apache/mxnet, RNNParam: dropout of 1 passed when the operator was made and died when it ran.
def test_a_dropout_of_one_is_refused() -> None:
    w = weights("gru", 3, 4, num_layers=2)
    with pytest.raises(ValueError, match="0 <= dropout < 1"):
        rnnop.explain(numbers(5, 2, 3), w, dropout=1.0)


# apache/mxnet#16604: the seed of dropout was not honoured on a CPU.
def test_the_seed_of_dropout_is_honoured() -> None:
    w, x = weights("gru", 3, 8, num_layers=2), numbers(20, 4, 3)
    one, again, other = (rnn(x, w, dropout=0.5, training=True, seed=seed).y for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
