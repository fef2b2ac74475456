"""Every bad argument that a user can make: refused by name, before any work is done.

Each row is what a call is given in place of good arguments, the error, its fact and its hint, word
for word: whoever changes a message reads it here as a user would.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import rnnop
from rnnop import DTypeError, ShapeError, SpecError, flags
from rnnop.backends import BACKENDS as TABLE
from rnnop.flags import FLAGS

Array = np.ndarray[Any, np.dtype[Any]]
Row = tuple[Any, ...]  # arguments, error, fact, and a hint where there is one


def given(**arguments: Any) -> dict[str, Any]:
    return arguments


def z(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def changed(weights: rnnop.RNNWeights, **arrays: Array) -> rnnop.RNNWeights:
    """Return weights with other arrays, named by field and pseudo-layer as in w_ih_0."""
    for name, array in arrays.items():
        field, k = name.rsplit("_", 1)
        entries = list(getattr(weights, field))
        entries[int(k)] = array
        weights = replace(weights, **{field: tuple(entries)})
    return weights


def matrix() -> Array:
    """Return a numpy.matrix, which warns that nobody should make one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix([[1.0]])


class Foreign(NamedTuple):
    """A packed sequence of another system."""

    data: Any
    batch_sizes: Any
    sorted_indices: Any
    unsorted_indices: Any


# Good arguments

X = np.zeros((5, 3, 4), np.float32)  # T, N, I
MASK = np.ones((5, 3), bool)
KEPT = np.ones((1, 5, 3, 6), bool)
GRU = rnnop.init_weights("gru", input_size=4, hidden_size=6, num_layers=2, seed=0)
LSTM = rnnop.init_weights("lstm", input_size=4, hidden_size=6, num_layers=2, seed=0)
SINGLE = rnnop.init_weights("gru", input_size=4, hidden_size=6, seed=0)
BOTH = rnnop.init_weights("gru", input_size=4, hidden_size=6, bidirectional=True, seed=0)
PROJECTED = rnnop.init_weights("lstm", input_size=4, hidden_size=6, proj_size=2, seed=0)
PACKED = rnnop.pack(X, [5, 2, 3])

OUT, VJP = rnnop.rnn_vjp(X, GRU, backend="reference")
Y = OUT.y
_, LSTM_VJP = rnnop.rnn_vjp(X, LSTM, mode="lstm", return_cell_states=True, backend="reference")
PACKED_OUT, PACKED_VJP = rnnop.rnn_vjp(PACKED, GRU, backend="reference")
PACKED_Y = PACKED_OUT.y

# What many messages have in common

BACKENDS = ", ".join(["auto", *TABLE])
ARRAY = "expected an array of NumPy, CuPy, PyTorch or JAX"
FLOATS = "expected one of float64, float32, float16, bfloat16"
FIRST = "Make it an array first, as with numpy.asarray(..., dtype='float32')"
CONVERT = "Convert it; x, weights and states share one dtype"
ONE_DTYPE = "expected one dtype for x, weights and states"
STATE = "(num_layers * num_directions, N, hidden_size)"
TWO = "Give the state and the cell state as two arguments, such as h0 and c0"
MODES = "expected one of rnn_relu, rnn_tanh, gru, lstm"
PLAIN = "`mode='rnn_tanh'` and `mode='rnn_relu'` are the plain RNNs"
MAKE = "Make them with rnnop.init_weights, or from another system's with rnnop.layouts"
TUPLE = "expected a tuple with one array for each pseudo-layer"
NEITHER = "expected neither mask, lengths nor batch_first"
KNOWS = "A packed sequence knows which steps are real"
NEVER_GROW = "expected positive numbers that never grow"
FOUR = "Of another's four fields it is made by rnnop.PackedSequence(*packed)"
SHARE = "It is the share of elements that are dropped between layers"
BOUNDS = "expected low <= high, neither of them NaN"
PAIR = "expected (low, high), or one number c for (-c, c)"
SYMMETRIC = "One number c stands for (-c, c) and may not be negative"
NAMES = (
    "expected one of Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, "
    "HardSigmoid, Elu, Softsign, Softplus"
)

# fmt: off

RNN_ROWS: list[Row] = [
    # x
    (given(x=None), DTypeError, f"`x` is NoneType; {ARRAY}"),
    (given(x=[[[1.0]]]), DTypeError, f"`x` is list; {ARRAY}", FIRST),
    (given(x=3.0), DTypeError, f"`x` is float; {ARRAY}", FIRST),
    (given(x="abc"), DTypeError, f"`x` is str; {ARRAY}"),
    (given(x=X[0]), ShapeError,
     "`x` has shape (3, 4); expected (T, N, input_size), three axes",
     "A single sequence is a batch of one: insert the axis N at position 1"),
    (given(x=X[0], batch_first=True), ShapeError,
     "`x` has shape (3, 4); expected (N, T, input_size), three axes",
     "A single sequence is a batch of one: insert the axis N at position 0"),
    (given(x=X[None]), ShapeError,
     "`x` has shape (1, 5, 3, 4); expected (T, N, input_size), three axes"),
    (given(x=X[..., :3]), ShapeError,
     "`x` has 3 features, its shape is (5, 3, 3); expected input_size = 4, as "
     "`weights.w_ih[0]` has it"),
    (given(x=X.astype(int)), DTypeError, f"`x` has dtype int64; {FLOATS}", CONVERT),
    (given(x=X.astype(complex)), DTypeError, f"`x` has dtype complex128; {FLOATS}", CONVERT),
    (given(x=X.astype(object)), DTypeError, f"`x` has dtype object; {FLOATS}", CONVERT),
    (given(x=X > 0), DTypeError, f"`x` has dtype bool; {FLOATS}", CONVERT),
    (given(x=np.ma.masked_array(X)), DTypeError,
     f"`x` is MaskedArray; {ARRAY}",
     "Give its data, and its mask (True where the step is real) as `mask`"),
    (given(x=matrix()), DTypeError, f"`x` is matrix; {ARRAY}"),
    (given(x=Foreign(*PACKED)), DTypeError,
     f"`x` is Foreign; {ARRAY}", "Make it rnnop's own: rnnop.PackedSequence(*x)"),
    (given(x=PACKED, mask=MASK), SpecError,
     f"`mask` is given with a PackedSequence; {NEITHER}", KNOWS),
    (given(x=PACKED, lengths=[5, 2, 3]), SpecError,
     f"`lengths` is given with a PackedSequence; {NEITHER}", KNOWS),
    (given(x=PACKED, batch_first=True), SpecError,
     f"`batch_first` is given with a PackedSequence; {NEITHER}", KNOWS),
    (given(x=PACKED, resets=MASK[:4]), ShapeError,
     "`resets` has shape (4, 3); expected (T, N) = (5, 3)"),
    (given(x=PACKED._replace(data=None)), DTypeError, f"`x.data` is NoneType; {ARRAY}"),
    (given(x=PACKED._replace(data=z(9, 4))), ShapeError,
     "`x.data` has shape (9, 4); expected sum(batch_sizes) = 10 rows"),
    (given(x=PACKED._replace(data=z(10, 4, 1))), ShapeError,
     "`x.data` has shape (10, 4, 1); expected (total, input_size), two axes"),
    (given(x=PACKED._replace(data=z(10, 3))), ShapeError,
     "`x` has 3 features, its shape is (10, 3); expected input_size = 4, as "
     "`weights.w_ih[0]` has it"),
    (given(x=PACKED._replace(batch_sizes=None)), DTypeError,
     "`x.batch_sizes` is NoneType, which NumPy reads as dtype object; expected numbers or "
     "booleans"),
    (given(x=PACKED._replace(batch_sizes=[3.0, 3.0])), DTypeError,
     "`x.batch_sizes` has dtype float64 and shape (2,); expected integers, one for each step"),
    (given(x=PACKED._replace(batch_sizes=[[3, 3]])), DTypeError,
     "`x.batch_sizes` has dtype int64 and shape (1, 2); expected integers, one for each step"),
    (given(x=PACKED._replace(batch_sizes=[3, 2, 0])), ShapeError,
     f"`x.batch_sizes` has 0 at step 2, after 2; {NEVER_GROW}"),
    (given(x=PACKED._replace(batch_sizes=[1, 2])), ShapeError,
     f"`x.batch_sizes` has 2 at step 1, after 1; {NEVER_GROW}"),
    (given(x=PACKED._replace(sorted_indices="abc")), DTypeError,
     "`x.sorted_indices` is str, which NumPy reads as dtype <U3; expected numbers or "
     "booleans"),
    (given(x=PACKED._replace(sorted_indices=[0.0, 2.0, 1.0])), DTypeError,
     "`x.sorted_indices` has dtype float64 and shape (3,); expected integers, one for each "
     "row"),
    (given(x=PACKED._replace(sorted_indices=[0, 1])), ShapeError,
     "`x.sorted_indices` has shape (2,) and is no permutation of N >= batch_sizes[0] = 3 "
     "rows; expected each of 0..N-1 once"),
    (given(x=PACKED._replace(sorted_indices=[0, 1, 1])), ShapeError,
     "`x.sorted_indices` has shape (3,) and is no permutation of N >= batch_sizes[0] = 3 "
     "rows; expected each of 0..N-1 once"),
    (given(x=PACKED._replace(unsorted_indices=[0, 1])), ShapeError,
     "`x.unsorted_indices` has shape (2,) and is not the inverse of sorted_indices, of shape "
     "(3,); expected argsort(sorted_indices), or None"),
    (given(x=PACKED._replace(unsorted_indices=[1, 0, 2])), ShapeError,
     "`x.unsorted_indices` has shape (3,) and is not the inverse of sorted_indices, of shape "
     "(3,); expected argsort(sorted_indices), or None"),
    # weights
    (given(weights=None), DTypeError, "`weights` is NoneType; expected RNNWeights", MAKE),
    (given(weights={}), DTypeError, "`weights` is dict; expected RNNWeights", MAKE),
    (given(weights=LSTM), ShapeError,
     "`weights.w_ih[0]` has 24 rows; expected num_gates * hidden_size = 3 * 6 = 18 in mode "
     "'gru'", "They look like weights for mode 'lstm'"),
    (given(weights=rnnop.init_weights("rnn_tanh", input_size=4, hidden_size=6)), ShapeError,
     "`weights.w_ih[0]` has 6 rows; expected num_gates * hidden_size = 3 * 6 = 18 in mode "
     "'gru'", "They look like weights for mode 'rnn_relu' or 'rnn_tanh'"),
    (given(weights=rnnop.prepack(LSTM, mode="lstm")), SpecError,
     "`weights` were prepacked for mode 'lstm'; expected mode 'gru'"),
    (given(weights=GRU.map(lambda array: array.astype(float))), DTypeError,
     f"`weights.w_ih[0]` has dtype float64 and `x` has dtype float32; {ONE_DTYPE}",
     "Convert one of them"),
    (given(weights=GRU.map(lambda array: array.astype(int))), DTypeError,
     f"`weights.w_ih[0]` has dtype int64; {FLOATS}", CONVERT),
    (given(weights=changed(GRU, w_ih_0=z(18))), ShapeError,
     "`weights.w_ih[0]` has shape (18,); expected two axes"),
    (given(weights=changed(GRU, w_hh_0=z(18))), ShapeError,
     "`weights.w_hh[0]` has shape (18,); expected two axes"),
    (given(weights=changed(GRU, w_hh_0=z(0, 0))), ShapeError,
     "`weights` have input_size 4, hidden_size 0; expected at least 1 of each"),
    (given(weights=changed(GRU, w_ih_0=z(17, 4))), ShapeError,
     "`weights.w_ih[0]` has shape (17, 4); expected (num_gates * hidden_size, input_size) = "
     "(18, 4)"),
    (given(weights=changed(GRU, w_ih_1=z(18, 4))), ShapeError,
     "`weights.w_ih[1]` has shape (18, 4); expected (num_gates * hidden_size, num_directions "
     "* hidden_size) = (18, 6)"),
    (given(weights=changed(GRU, w_hh_1=z(18, 5))), ShapeError,
     "`weights.w_hh[1]` has shape (18, 5); expected (num_gates * hidden_size, hidden_size) = "
     "(18, 6)"),
    (given(weights=changed(GRU, b_ih_1=z(17))), ShapeError,
     "`weights.b_ih[1]` has shape (17,); expected (num_gates * hidden_size,) = (18,)"),
    (given(weights=changed(GRU, b_hh_0=z(18, 1))), ShapeError,
     "`weights.b_hh[0]` has shape (18, 1); expected (num_gates * hidden_size,) = (18,)"),
    (given(weights=changed(GRU, b_hh_1=np.zeros(18))), DTypeError,
     f"`weights.b_hh[1]` has dtype float64 and `x` has dtype float32; {ONE_DTYPE}",
     "Convert one of them"),
    (given(weights=replace(GRU, w_hr=(z(6, 6), z(6, 6)))), SpecError,
     "`weights.w_hr` (projection) is given with mode 'gru'; it exists in mode 'lstm' only"),
    (given(weights=replace(GRU, peephole=(z(3, 6), z(3, 6)))), SpecError,
     "`weights.peephole` is given with mode 'gru'; it exists in mode 'lstm' only"),
    (given(mode="lstm", weights=replace(LSTM, peephole=(z(3, 6), z(6, 3)))), ShapeError,
     "`weights.peephole[1]` has shape (6, 3); expected (3, hidden_size) = (3, 6)"),
    (given(mode="lstm", weights=changed(PROJECTED, w_hr_0=z(2))), ShapeError,
     "`weights.w_hr[0]` has shape (2,); expected two axes"),
    (given(mode="lstm", weights=changed(PROJECTED, w_hr_0=z(7, 6))), ShapeError,
     "`weights.w_hr[0]` has shape (7, 6); expected (proj_size, hidden_size) with proj_size "
     "<= hidden_size"),
    (given(mode="lstm", weights=changed(PROJECTED, w_hr_0=z(0, 6))), ShapeError,
     "`weights` have input_size 4, hidden_size 6, proj_size 0; expected at least 1 of each"),
    (given(mode="lstm", weights=changed(PROJECTED, w_hh_0=z(24, 6))), ShapeError,
     "`weights.w_hh[0]` has shape (24, 6); expected (num_gates * hidden_size, proj_size) = "
     "(24, 2)"),
    # states
    (given(h0=[1.0]), DTypeError, f"`h0` is list; {ARRAY}", FIRST),
    (given(h0=(z(2, 3, 6), z(2, 3, 6))), DTypeError,
     "`h0` is a tuple of two; expected one array", TWO),
    (given(h0=z(3, 6)), ShapeError, f"`h0` has shape (3, 6); expected {STATE} = (2, 3, 6)"),
    (given(h0=z(2, 2, 6)), ShapeError, f"`h0` has shape (2, 2, 6); expected {STATE} = (2, 3, 6)"),
    (given(h0=z(2, 3, 6).astype(np.float16)), DTypeError,
     f"`h0` has dtype float16 and `x` has dtype float32; {ONE_DTYPE}", "Convert one of them"),
    (given(h0=np.zeros((2, 3, 6), int)), DTypeError, f"`h0` has dtype int64; {FLOATS}", CONVERT),
    (given(mode="lstm", weights=PROJECTED, h0=z(1, 3, 6)), ShapeError,
     "`h0` has shape (1, 3, 6); expected (num_layers * num_directions, N, proj_size) = (1, "
     "3, 2)"),
    (given(c0=z(2, 3, 6)), SpecError,
     "`c0` is given with mode 'gru'; only mode 'lstm' has a cell state"),
    (given(mode="lstm", weights=LSTM, c0=z(2, 3, 5)), ShapeError,
     f"`c0` has shape (2, 3, 5); expected {STATE} = (2, 3, 6)"),
    (given(mode="lstm", weights=LSTM, c0=z(2, 3, 6).astype(float)), DTypeError,
     f"`c0` has dtype float64 and `x` has dtype float32; {ONE_DTYPE}", "Convert one of them"),
    (given(mode="lstm", weights=LSTM, c0=0.0), DTypeError, f"`c0` is float; {ARRAY}", FIRST),
    # mode
    (given(mode="LSTM"), SpecError, f"`mode` is 'LSTM'; {MODES}", PLAIN),
    (given(mode="rnn"), SpecError, f"`mode` is 'rnn'; {MODES}", PLAIN),
    (given(mode=None), SpecError, f"`mode` is None; {MODES}", PLAIN),
    (given(mode=["gru"]), SpecError, f"`mode` is ['gru']; {MODES}", PLAIN),
    # steps
    (given(mask=MASK[:4]), ShapeError, "`mask` has shape (4, 3); expected (T, N) = (5, 3)"),
    (given(mask=MASK.T), ShapeError,
     "`mask` has shape (3, 5); expected (T, N) = (5, 3)",
     "It looks transposed; `batch_first` is False"),
    (given(mask=MASK, x=X.swapaxes(0, 1), batch_first=True), ShapeError,
     "`mask` has shape (5, 3); expected (N, T) = (3, 5)",
     "It looks transposed; `batch_first` is True"),
    (given(mask=MASK[..., None]), ShapeError,
     "`mask` has shape (5, 3, 1); expected (T, N) = (5, 3)"),
    (given(mask=MASK.astype(int)), DTypeError,
     "`mask` has dtype int64; expected bool, True where the step is real",
     "Compare it first, as with mask != 0"),
    (given(mask=MASK.astype(float)), DTypeError,
     "`mask` has dtype float64; expected bool, True where the step is real",
     "Compare it first, as with mask != 0"),
    (given(mask=True), ShapeError, "`mask` has shape (); expected (T, N) = (5, 3)"),
    (given(mask="abc"), DTypeError,
     "`mask` is str, which NumPy reads as dtype <U3; expected numbers or booleans"),
    (given(mask=object()), DTypeError,
     "`mask` is object, which NumPy reads as dtype object; expected numbers or booleans"),
    (given(mask=[[True], [True, False]]), DTypeError,
     "`mask` is list, which NumPy cannot read as an array; expected numbers or booleans, as "
     "many in every row"),
    (given(mask=MASK, lengths=[5, 2, 3]), SpecError,
     "`mask` and `lengths` are both given; expected one of them"),
    (given(lengths=[5, 2]), ShapeError, "`lengths` has shape (2,); expected (N,) = (3,)"),
    (given(lengths=[[5, 2, 3]]), ShapeError, "`lengths` has shape (1, 3); expected (N,) = (3,)"),
    (given(lengths=5), ShapeError, "`lengths` has shape (); expected (N,) = (3,)"),
    (given(lengths=[5, -1, 3]), ShapeError,
     "`lengths` has -1 at row 1; expected integers in 0..T = 0..5",
     "Count only the real steps of each row"),
    (given(lengths=[5, 2, 6]), ShapeError,
     "`lengths` has 6 at row 2; expected integers in 0..T = 0..5",
     "Count only the real steps of each row"),
    (given(lengths=[5.0, 2.0, 3.0]), DTypeError, "`lengths` has dtype float64; expected integers"),
    (given(lengths=[True, False, True]), DTypeError,
     "`lengths` has dtype bool; expected integers", "A boolean array of real steps is `mask`"),
    (given(lengths=[5, 2, None]), DTypeError,
     "`lengths` is list, which NumPy reads as dtype object; expected numbers or booleans"),
    (given(lengths=[5, [2], 3]), DTypeError,
     "`lengths` is list, which NumPy cannot read as an array; expected numbers or booleans, "
     "as many in every row"),
    (given(lengths="523"), DTypeError,
     "`lengths` is str, which NumPy reads as dtype <U3; expected numbers or booleans"),
    (given(lengths={5, 2, 3}), DTypeError,
     "`lengths` is set, which NumPy reads as dtype object; expected numbers or booleans"),
    (given(lengths=[2**70, 2, 3]), DTypeError,
     "`lengths` is list, which NumPy reads as dtype object; expected numbers or booleans"),
    (given(resets=MASK[:4]), ShapeError, "`resets` has shape (4, 3); expected (T, N) = (5, 3)"),
    (given(resets=MASK.T), ShapeError,
     "`resets` has shape (3, 5); expected (T, N) = (5, 3)",
     "It looks transposed; `batch_first` is False"),
    (given(resets=MASK.astype(int)), DTypeError,
     "`resets` has dtype int64; expected bool, True where an episode starts",
     "Compare it first, as with resets != 0"),
    (given(resets="abc"), DTypeError,
     "`resets` is str, which NumPy reads as dtype <U3; expected numbers or booleans"),
    (given(batch_first=1), SpecError, "`batch_first` is 1; expected True or False"),
    (given(batch_first=None), SpecError, "`batch_first` is None; expected True or False"),
    (given(reverse="yes"), SpecError, "`reverse` is 'yes'; expected True or False"),
    (given(reverse=True, weights=BOTH), SpecError,
     "`reverse` is True with bidirectional weights; expected a single direction",
     "A bidirectional network already runs both ways"),
    # dropout
    (given(dropout=-0.1), SpecError,
     "`dropout` is -0.1; expected a probability, 0 <= dropout < 1", SHARE),
    (given(dropout=1.0), SpecError,
     "`dropout` is 1.0; expected a probability, 0 <= dropout < 1", SHARE),
    (given(dropout=float("nan")), SpecError,
     "`dropout` is nan; expected a probability, 0 <= dropout < 1", SHARE),
    (given(dropout="0.5"), SpecError, "`dropout` is '0.5'; expected a real number"),
    (given(dropout=None), SpecError, "`dropout` is None; expected a real number"),
    (given(dropout=True), SpecError, "`dropout` is True; expected a real number"),
    (given(dropout=np.array(0.5)), SpecError, "`dropout` is array(0.5); expected a real number"),
    (given(dropout=10**400), SpecError, "`dropout` is too large; expected what a float64 can hold"),
    (given(training=1), SpecError, "`training` is 1; expected True or False"),
    (given(seed=-1), SpecError, "`seed` is -1; expected None or an integer >= 0"),
    (given(seed=1.5), SpecError, "`seed` is 1.5; expected None or an integer >= 0"),
    (given(seed=True), SpecError, "`seed` is True; expected None or an integer >= 0"),
    (given(seed="a"), SpecError, "`seed` is 'a'; expected None or an integer >= 0"),
    (given(dropout_masks=5), DTypeError,
     "`dropout_masks` is int; expected an array (num_layers - 1, T, N, num_directions * "
     "hidden_size) of bool"),
    (given(dropout_masks=np.array(True)), ShapeError,
     "`dropout_masks` has 0 masks; expected num_layers - 1 = 1"),
    (given(dropout_masks=[]), ShapeError,
     "`dropout_masks` has 0 masks; expected num_layers - 1 = 1"),
    (given(dropout_masks=KEPT[0]), ShapeError,
     "`dropout_masks` has 5 masks; expected num_layers - 1 = 1"),
    (given(weights=SINGLE, dropout_masks=KEPT), ShapeError,
     "`dropout_masks` has 1 masks; expected num_layers - 1 = 0"),
    (given(dropout_masks=[None]), DTypeError,
     "`dropout_masks[0]` is NoneType; expected a bool array, True where an element is kept"),
    (given(dropout_masks=KEPT.astype(int)), DTypeError,
     "`dropout_masks[0]` is int64; expected a bool array, True where an element is kept"),
    (given(dropout_masks=KEPT[:, :4]), ShapeError,
     "`dropout_masks[0]` has shape (4, 3, 6); expected (T, N, num_directions * hidden_size) "
     "= (5, 3, 6)"),
    (given(dropout_masks=KEPT, x=X.swapaxes(0, 1), batch_first=True), ShapeError,
     "`dropout_masks[0]` has shape (5, 3, 6); expected (N, T, num_directions * hidden_size) "
     "= (3, 5, 6)"),
    (given(dropout_masks=KEPT, x=PACKED), ShapeError,
     "`dropout_masks[0]` has shape (5, 3, 6); expected (total, num_directions * hidden_size) "
     "= (10, 6)"),
    # clips
    (given(mode="lstm", weights=LSTM, cell_clip=(1.0, -1.0)), SpecError,
     f"`cell_clip` is (1, -1); {BOUNDS}", SYMMETRIC),
    (given(mode="lstm", weights=LSTM, cell_clip=-2.0), SpecError,
     f"`cell_clip` is (2, -2); {BOUNDS}", SYMMETRIC),
    (given(mode="lstm", weights=LSTM, cell_clip=float("nan")), SpecError,
     f"`cell_clip` is (nan, nan); {BOUNDS}", SYMMETRIC),
    (given(mode="lstm", weights=LSTM, cell_clip=(0.0, float("nan"))), SpecError,
     f"`cell_clip` is (0, nan); {BOUNDS}", SYMMETRIC),
    (given(mode="lstm", weights=LSTM, cell_clip=(1, 2, 3)), SpecError,
     f"`cell_clip` has 3 values; {PAIR}"),
    (given(mode="lstm", weights=LSTM, cell_clip=()), SpecError,
     f"`cell_clip` has 0 values; {PAIR}"),
    (given(mode="lstm", weights=LSTM, cell_clip=(None, 1.0)), SpecError,
     "`cell_clip[0]` is None; expected a real number"),
    (given(mode="lstm", weights=LSTM, cell_clip="ab"), SpecError, f"`cell_clip` is 'ab'; {PAIR}"),
    (given(mode="lstm", weights=LSTM, cell_clip=True), SpecError, f"`cell_clip` is True; {PAIR}"),
    (given(mode="lstm", weights=LSTM, cell_clip=10**400), SpecError,
     "`cell_clip` is too large; expected what a float64 can hold"),
    (given(mode="lstm", weights=LSTM, cell_clip=np.ones((2, 2))), SpecError,
     "`cell_clip[0]` is array([1., 1.]); expected a real number"),
    (given(mode="lstm", weights=LSTM, cell_clip=np.array(1.0)), SpecError,
     f"`cell_clip` is array(1.); {PAIR}"),
    (given(cell_clip=1.0), SpecError,
     "`cell_clip` is given with mode 'gru'; it exists in mode 'lstm' only"),
    (given(mode="lstm", weights=LSTM, cell_clip_nan=True), SpecError,
     "`cell_clip_nan` is True and `cell_clip` is None; expected both",
     "A NaN state becomes the low bound of `cell_clip`"),
    (given(mode="lstm", weights=LSTM, cell_clip_nan=1), SpecError,
     "`cell_clip_nan` is 1; expected True or False"),
    (given(mode="lstm", weights=LSTM, proj_clip=1.0), SpecError,
     "`proj_clip` is given and the weights have no projection `w_hr`",
     "`proj_clip` bounds h after the projection; for the cell state use `cell_clip`"),
    (given(mode="lstm", weights=PROJECTED, proj_clip=(2, 1)), SpecError,
     f"`proj_clip` is (2, 1); {BOUNDS}", SYMMETRIC),
    (given(mode="lstm", weights=PROJECTED, proj_clip="a"), SpecError,
     f"`proj_clip` is 'a'; {PAIR}"),
    (given(gate_clip=(2, 1)), SpecError, f"`gate_clip` is (2, 1); {BOUNDS}", SYMMETRIC),
    (given(gate_clip=[1]), SpecError, f"`gate_clip` has 1 values; {PAIR}"),
    (given(gate_clip=1j), SpecError, f"`gate_clip` is 1j; {PAIR}"),
    # variants
    (given(reset_after="no"), SpecError, "`reset_after` is 'no'; expected True or False"),
    (given(mode="lstm", weights=LSTM, reset_after=False), SpecError,
     "`reset_after=False` is given with mode 'lstm'; it exists in mode 'gru' only"),
    (given(input_forget=True), SpecError,
     "`input_forget` is given with mode 'gru'; it exists in mode 'lstm' only"),
    (given(mode="lstm", weights=LSTM, input_forget=None), SpecError,
     "`input_forget` is None; expected True or False"),
    (given(activations="Tanh"), SpecError,
     "`activations` is 'Tanh'; expected a sequence of 2, for (f, g) of mode 'gru'"),
    (given(activations={"Tanh"}), SpecError,
     "`activations` is {'Tanh'}; expected a sequence of 2, for (f, g) of mode 'gru'"),
    (given(activations=["Tanh"]), SpecError,
     "`activations` has 1 entries; expected 2, for (f, g) of mode 'gru'"),
    (given(activations=["Tanh"] * 3, weights=BOTH), SpecError,
     "`activations` has 3 entries; expected 2, for (f, g) of mode 'gru', or 4 for each "
     "direction its own"),
    (given(activations=["Tanh", "tanh"]), SpecError, f"`activations` has 'tanh'; {NAMES}"),
    (given(activations=["Tanh", 3]), SpecError,
     "`activations` has the entry 3; expected a name, or a tuple (name, alpha) or (name, "
     "alpha, beta)"),
    (given(activations=["Tanh", ["Elu", 1.0]]), SpecError,
     "`activations` has the entry ['Elu', 1.0]; expected a name, or a tuple (name, alpha) or "
     "(name, alpha, beta)"),
    (given(activations=["Tanh", ("Elu", 1.0, 2.0, 3.0)]), SpecError,
     "`activations` has the entry ('Elu', 1.0, 2.0, 3.0); expected a name, or a tuple (name, "
     "alpha) or (name, alpha, beta)"),
    (given(activations=["Tanh", ("Elu", 1.0, 2.0)]), SpecError,
     "`activations` gives Elu beta=2.0; Elu has no parameter beta"),
    (given(activations=["Tanh", ("Elu", "1")]), SpecError,
     "`activations: alpha` is '1'; expected a real number"),
    # results
    (given(masked_output="repeat"), SpecError,
     "`masked_output` is 'repeat'; expected one of zero, hold"),
    (given(masked_output=None), SpecError, "`masked_output` is None; expected one of zero, hold"),
    (given(return_cell_states=True), SpecError,
     "`return_cell_states` is True with mode 'gru'; only mode 'lstm' has a cell state"),
    (given(return_cell_states="yes"), SpecError,
     "`return_cell_states` is 'yes'; expected True or False"),
    (given(backend="cuda"), SpecError, f"`backend` is 'cuda'; expected one of {BACKENDS}"),
    (given(backend=None), SpecError, f"`backend` is None; expected one of {BACKENDS}"),
    (given(backend=["reference"]), SpecError,
     f"`backend` is ['reference']; expected one of {BACKENDS}"),
]

VJP_ROWS: list[Row] = [
    (given(dy=[1.0]), DTypeError, f"`dy` is list; {ARRAY}", FIRST),
    (given(dy=Y[:4]), ShapeError, "`dy` has shape (4, 3, 6); expected the shape of y = (5, 3, 6)"),
    (given(dy=Y.astype(float)), DTypeError,
     f"`dy` has dtype float64 and `x` has dtype float32; {ONE_DTYPE}", "Convert one of them"),
    (given(dy=PACKED), ShapeError, "`dy` has shape (10, 4); expected the shape of y = (5, 3, 6)"),
    (given(dh_n=z(2, 3, 5)), ShapeError,
     f"`dh_n` has shape (2, 3, 5); expected {STATE} = (2, 3, 6)"),
    (given(dh_n=Y.astype(float)), DTypeError,
     f"`dh_n` has dtype float64 and `x` has dtype float32; {ONE_DTYPE}", "Convert one of them"),
    (given(dh_n=(z(2, 3, 6), z(2, 3, 6))), DTypeError,
     "`dh_n` is a tuple of two; expected one array", TWO),
    (given(dc_n=z(2, 3, 6)), SpecError,
     "`dc_n` is given with mode 'gru'; only mode 'lstm' has a cell state"),
    (given(dc=Y), SpecError,
     "`dc` is given, and rnn_vjp was called with return_cell_states=False; expected True"),
]

LSTM_VJP_ROWS: list[Row] = [
    (given(dc_n=z(2, 3, 5)), ShapeError,
     f"`dc_n` has shape (2, 3, 5); expected {STATE} = (2, 3, 6)"),
    (given(dc_n=0.0), DTypeError, f"`dc_n` is float; {ARRAY}", FIRST),
    (given(dc=Y[:4]), ShapeError, "`dc` has shape (4, 3, 6); expected the shape of c = (5, 3, 6)"),
    (given(dc="abc"), DTypeError, f"`dc` is str; {ARRAY}"),
]

PACKED_VJP_ROWS: list[Row] = [
    (given(dy=Y), ShapeError, "`dy` has shape (5, 3, 6); expected the shape of y = (10, 6)"),
    (given(dy=PACKED_Y._replace(data=z(10, 5))), ShapeError,
     "`dy` has shape (10, 5); expected the shape of y = (10, 6)"),
    (given(dy=PACKED_Y._replace(batch_sizes=[3, 3, 2, 2])), ShapeError,
     "`dy.batch_sizes` differs from `x.batch_sizes`; expected the same steps"),
    (given(dy=PACKED_Y._replace(sorted_indices=[0, 1, 2], unsorted_indices=None)), ShapeError,
     "`dy.sorted_indices` differs from `x.sorted_indices`; expected the same steps"),
    (given(dy=PACKED_Y._replace(batch_sizes=[5, 6])), ShapeError,
     f"`dy.batch_sizes` has 6 at step 1, after 5; {NEVER_GROW}"),
]

PACK_ROWS: list[Row] = [
    (given(x=None), DTypeError, f"`x` is NoneType; {ARRAY}"),
    (given(x=X[0, 0]), ShapeError, "`x` has shape (4,); expected at least two axes, T and N"),
    (given(x=X[0, 0], batch_first=True), ShapeError,
     "`x` has shape (4,); expected at least two axes, N and T"),
    (given(x=X.astype(int)), DTypeError, f"`x` has dtype int64; {FLOATS}", CONVERT),
    (given(lengths=None), DTypeError,
     "`lengths` is NoneType, which NumPy reads as dtype object; expected numbers or booleans"),
    (given(lengths=[5, 2]), ShapeError, "`lengths` has shape (2,); expected (N,) = (3,)"),
    (given(lengths=[5, 2, 6]), ShapeError,
     "`lengths` has 6 at row 2; expected integers in 0..T = 0..5",
     "Count only the real steps of each row"),
    (given(lengths=[5.0, 2.0, 3.0]), DTypeError, "`lengths` has dtype float64; expected integers"),
    (given(batch_first=True), ShapeError, "`lengths` has shape (3,); expected (N,) = (5,)"),
    (given(batch_first=1), SpecError, "`batch_first` is 1; expected True or False"),
]

UNPACK_ROWS: list[Row] = [
    (given(packed=None), DTypeError, "`packed` is NoneType; expected a rnnop.PackedSequence", FOUR),
    (given(packed=X), DTypeError, "`packed` is ndarray; expected a rnnop.PackedSequence", FOUR),
    (given(packed=Foreign(*PACKED)), DTypeError,
     "`packed` is Foreign; expected a rnnop.PackedSequence", FOUR),
    (given(packed=PACKED._replace(data=z(9, 4))), ShapeError,
     "`packed.data` has shape (9, 4); expected sum(batch_sizes) = 10 rows"),
    (given(packed=PACKED._replace(batch_sizes=[1, 2])), ShapeError,
     f"`packed.batch_sizes` has 2 at step 1, after 1; {NEVER_GROW}"),
    (given(packed=PACKED._replace(sorted_indices=[1, 2, 3])), ShapeError,
     "`packed.sorted_indices` has shape (3,) and is no permutation of N >= batch_sizes[0] = "
     "3 rows; expected each of 0..N-1 once"),
    (given(batch_first="yes"), SpecError, "`batch_first` is 'yes'; expected True or False"),
    (given(total_length=4), ShapeError,
     "`total_length` is 4; expected at least the length of the longest row, 5"),
    (given(total_length=6.0), SpecError, "`total_length` is 6.0; expected an integer"),
    (given(padding_value=None), SpecError, "`padding_value` is None; expected a real number"),
    (given(padding_value="0"), SpecError, "`padding_value` is '0'; expected a real number"),
]

PREPACK_ROWS: list[Row] = [
    (given(weights=None), DTypeError, "`weights` is NoneType; expected RNNWeights", MAKE),
    (given(weights=LSTM), ShapeError,
     "`weights.w_ih[0]` has 24 rows; expected num_gates * hidden_size = 3 * 6 = 18 in mode "
     "'gru'", "They look like weights for mode 'lstm'"),
    (given(weights=changed(GRU, w_ih_1=z(18, 4))), ShapeError,
     "`weights.w_ih[1]` has shape (18, 4); expected (num_gates * hidden_size, num_directions "
     "* hidden_size) = (18, 6)"),
    (given(weights=changed(GRU, w_ih_1=np.zeros((18, 6)))), DTypeError,
     "`weights.w_ih[1]` has dtype float64 and `weights.w_ih[0]` has dtype float32; "
     f"{ONE_DTYPE}", "Convert one of them"),
    (given(weights=rnnop.prepack(LSTM, mode="lstm")), SpecError,
     "`weights` were prepacked for mode 'lstm'; expected mode 'gru'"),
    (given(mode="RNN"), SpecError, f"`mode` is 'RNN'; {MODES}", PLAIN),
    (given(backend="gpu"), SpecError, f"`backend` is 'gpu'; expected one of {BACKENDS}"),
]

INIT_WEIGHTS_ROWS: list[Row] = [
    (given(mode="LSTM"), SpecError, f"`mode` is 'LSTM'; {MODES}", PLAIN),
    (given(input_size=0), SpecError, "`input_size` is 0; expected an integer, at least 1"),
    (given(input_size=1.5), SpecError, "`input_size` is 1.5; expected an integer, at least 1"),
    (given(input_size=True), SpecError, "`input_size` is True; expected an integer, at least 1"),
    (given(hidden_size=-2), SpecError, "`hidden_size` is -2; expected an integer, at least 1"),
    (given(hidden_size=None), SpecError, "`hidden_size` is None; expected an integer, at least 1"),
    (given(num_layers=0), SpecError, "`num_layers` is 0; expected an integer, at least 1"),
    (given(num_layers="2"), SpecError, "`num_layers` is '2'; expected an integer, at least 1"),
    (given(bidirectional=1), SpecError, "`bidirectional` is 1; expected True or False"),
    (given(bias=None), SpecError, "`bias` is None; expected True or False"),
    (given(proj_size=5), SpecError, "`proj_size` is 5; expected an integer, 1..hidden_size = 1..4"),
    (given(proj_size=0), SpecError, "`proj_size` is 0; expected an integer, 1..hidden_size = 1..4"),
    (given(proj_size=2.0), SpecError,
     "`proj_size` is 2.0; expected an integer, 1..hidden_size = 1..4"),
    (given(mode="gru", proj_size=2), SpecError,
     "`proj_size` is given with mode 'gru'; only mode 'lstm' has it"),
    (given(peephole="yes"), SpecError, "`peephole` is 'yes'; expected True or False"),
    (given(mode="gru", peephole=True), SpecError,
     "`peephole` is given with mode 'gru'; only mode 'lstm' has it"),
    (given(seed=-1), SpecError, "`seed` is -1; expected None or an integer >= 0"),
    (given(seed="a"), SpecError, "`seed` is 'a'; expected None or an integer >= 0"),
    (given(dtype="int32"), SpecError, f"`dtype` is int32; {FLOATS}"),
    (given(dtype="foo"), SpecError, f"`dtype` is 'foo'; {FLOATS}"),
    (given(dtype=None), SpecError, f"`dtype` is None; {FLOATS}"),
    (given(scheme="torch"), SpecError, "`scheme` is 'torch'; expected one of pytorch, keras, flax"),
    (given(scheme=None), SpecError, "`scheme` is None; expected one of pytorch, keras, flax"),
]

RNNWEIGHTS_ROWS: list[Row] = [
    (given(w_ih=None), DTypeError,
     f"`weights.w_ih` is NoneType; {TUPLE}", "A single layer is w_ih=(array,)"),
    (given(w_ih=z(3, 3)), DTypeError,
     f"`weights.w_ih` is ndarray; {TUPLE}", "A single layer is w_ih=(array,)"),
    (given(w_ih=[None]), DTypeError, f"`weights.w_ih[0]` is NoneType; {ARRAY}"),
    (given(w_ih=[[[1.0]]]), DTypeError, f"`weights.w_ih[0]` is list; {ARRAY}"),
    (given(w_ih=(matrix(),)), DTypeError, f"`weights.w_ih[0]` is matrix; {ARRAY}"),
    (given(w_ih=(z(3, 3), z(3, 3))), ShapeError,
     "`weights.w_hh` has 1 arrays; expected 2, as in `w_ih`"),
    (given(w_ih=(), w_hh=()), ShapeError,
     "`weights.w_ih` has 0 arrays; expected num_layers * num_directions, with num_directions "
     "= 1"),
    (given(b_ih=z(3)), DTypeError,
     f"`weights.b_ih` is ndarray; {TUPLE}", "A single layer is b_ih=(array,)"),
    (given(b_hh=()), ShapeError, "`weights.b_hh` has 0 arrays; expected 1, as in `w_ih`"),
    (given(w_hr="abc"), DTypeError,
     f"`weights.w_hr` is str; {TUPLE}", "A single layer is w_hr=(array,)"),
    (given(peephole=(1.0,)), DTypeError, f"`weights.peephole[0]` is float; {ARRAY}"),
    (given(bidirectional=True), ShapeError,
     "`weights.w_ih` has 1 arrays; expected num_layers * num_directions, with num_directions "
     "= 2"),
    (given(bidirectional=1), SpecError, "`weights.bidirectional` is 1; expected True or False"),
]

ACTIVATION_ROWS: list[Row] = [
    (given(name="elu"), SpecError, f"`activations` has 'elu'; {NAMES}"),
    (given(name=None), SpecError, f"`activations` has None; {NAMES}"),
    (given(name=["Elu"]), SpecError, f"`activations` has ['Elu']; {NAMES}"),
    (given(name="Tanh", alpha=1.0), SpecError,
     "`activations` gives Tanh alpha=1.0; Tanh has no parameter alpha"),
    (given(beta=1.0), SpecError, "`activations` gives Elu beta=1.0; Elu has no parameter beta"),
    (given(alpha="1"), SpecError, "`activations: alpha` is '1'; expected a real number"),
    (given(alpha=True), SpecError, "`activations: alpha` is True; expected a real number"),
]
# fmt: on


CALLS: dict[str, tuple[str, Callable[..., Any], dict[str, Any], list[Row]]] = {
    "rnn": ("rnn", rnnop.rnn, given(x=X, weights=GRU, backend="reference"), RNN_ROWS),
    "vjp": ("vjp", VJP, given(dy=Y), VJP_ROWS),
    "vjp of an LSTM": ("vjp", LSTM_VJP, given(dy=Y), LSTM_VJP_ROWS),
    "vjp of a packed call": ("vjp", PACKED_VJP, given(dy=PACKED_Y), PACKED_VJP_ROWS),
    "pack": ("pack", rnnop.pack, given(x=X, lengths=[5, 2, 3]), PACK_ROWS),
    "unpack": ("unpack", rnnop.unpack, given(packed=PACKED), UNPACK_ROWS),
    "prepack": ("prepack", rnnop.prepack, given(weights=GRU), PREPACK_ROWS),
    "init_weights": (
        "init_weights",
        rnnop.init_weights,
        given(mode="lstm", input_size=3, hidden_size=4),
        INIT_WEIGHTS_ROWS,
    ),
    "RNNWeights": (
        "",
        rnnop.RNNWeights,
        given(w_ih=(z(3, 3),), w_hh=(z(3, 3),)),
        RNNWEIGHTS_ROWS,
    ),
    "Activation": ("", rnnop.Activation, given(name="Elu"), ACTIVATION_ROWS),
}


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a backend is run."""

    def refuse(*_: Any) -> None:
        pytest.fail("a backend was run")

    for name in TABLE:
        for function in ("forward", "backward"):
            monkeypatch.setattr(f"{TABLE[name]}.{function}", refuse)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("call", "row"),
    [
        pytest.param(call, row, id=f"{call}-{k}-{'-'.join(row[0])}")
        for call, (*_, rows) in CALLS.items()
        for k, row in enumerate(rows)
    ],
)
def test_refusals(call: str, row: Row) -> None:
    name, function, good, _ = CALLS[call]
    arguments, kind, fact, *rest = row
    hint = rest[0] if rest else None
    with pytest.raises(rnnop.RnnopError) as caught:
        function(**good | arguments)
    error = caught.value
    assert type(error) is kind
    assert (error.fact, error.hint) == (fact, hint)
    spec = [f"spec: {error.spec}"] if error.spec else []
    named = f"{name}: {fact}" if name else fact
    assert str(error) == ". ".join([named, *spec, *rest]) + "."


@pytest.mark.parametrize("call", CALLS)
def test_the_good_arguments_are_good(call: str) -> None:
    _, function, good, _ = CALLS[call]
    function(**good)


BOOLEANS = ["batch_first", "reverse", "training", "cell_clip_nan", "reset_after", "input_forget"]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", [*BOOLEANS, "return_cell_states"])
@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_options_that_are_on_or_off(name: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"^rnn: `{name}` is {value!r}; expected True or False.$"):
        rnnop.rnn(X, GRU, **{name: value})
    for numpy_bool in (np.True_, np.False_):
        if name in ("batch_first", "training"):
            rnnop.explain(X, GRU, **{name: numpy_bool})


def test_errors_can_be_caught_as_pythons_own() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(SpecError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(rnnop.UnsupportedError, NotImplementedError)
    assert issubclass(rnnop.BackendUnavailable, RuntimeError)
    for kind in (
        ShapeError,
        SpecError,
        DTypeError,
        rnnop.UnsupportedError,
        rnnop.BackendUnavailable,
    ):
        assert issubclass(kind, rnnop.RnnopError)


@pytest.mark.parametrize("function", [rnnop.rnn_vjp, rnnop.explain])
def test_every_function_names_itself(function: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError, match=f"^{function.__name__}: `lengths` has shape"):
        function(X, GRU, lengths=[1])


def test_the_network_is_told_where_it_is_known() -> None:
    with pytest.raises(ShapeError, match=r"\. spec: gru\(4->6, 2 layers\)\.$"):
        rnnop.rnn(X, GRU, lengths=[1])
    spec = r"spec: lstm\(4->6, proj 2, 1 layer, cell_clip=\(-3, 3\)\)\.$"
    with pytest.raises(ShapeError, match=spec):
        rnnop.rnn(X, PROJECTED, mode="lstm", cell_clip=3, lengths=[1])


@pytest.mark.parametrize("function", [rnnop.rnn, rnnop.rnn_vjp, rnnop.explain])
def test_python_names_the_public_function(function: Callable[..., Any]) -> None:
    name = function.__name__
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'maks'"):
        function(X, GRU, maks=MASK)
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 required positional argument"):
        function(X)


@pytest.mark.parametrize("function", [rnnop.rnn, rnnop.rnn_vjp, rnnop.explain])
def test_dropout_on_one_layer_warns_at_the_callers_line(function: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match=r"^dropout=0\.5 has no effect on a") as caught:
        function(X, SINGLE, dropout=0.5, training=True)
    assert [each.filename for each in caught] == [__file__]


# Environment variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (flag.name, value)
        for flag in FLAGS.values()
        for value in ("", "maybe", "-1", "2.5")
        if flag.name != "RNNOP_CUDNN_PATH"
    ],
)
def test_flags(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    choices = FLAGS[name].choices
    expected = "a whole number" if choices is None else f"one of {', '.join(choices)}"
    wanted = f"the environment variable {name} is {value!r}; expected {expected}"
    with pytest.raises(SpecError) as caught:
        flags.read(name)
    assert caught.value.fact == wanted
    assert caught.value.hint == f"Unset {name} for its default, {FLAGS[name].default}"


@pytest.mark.usefixtures("no_work")
def test_a_wrong_backend_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_BACKEND", "cuda")
    with pytest.raises(
        SpecError, match=r"^rnn: the environment variable RNNOP_BACKEND is 'cuda'; "
    ):
        rnnop.rnn(X, GRU)


def test_a_wrong_flag_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNOP_REFERENCE_FLOAT64", "maybe")
    with pytest.raises(SpecError, match=r"^rnn: the environment variable RNNOP_REFERENCE_FLOAT64"):
        rnnop.rnn(X, GRU, backend="reference")


# Backends


def test_a_backend_that_is_named_runs_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnnop.reference.supports", lambda problem: "it is a Monday")
    with pytest.raises(rnnop.UnsupportedError) as caught:
        rnnop.rnn(X, GRU, backend="reference")
    assert str(caught.value) == (
        "rnn: backend 'reference' cannot run this call: it is a Monday. "
        "spec: gru(4->6, 2 layers). Asked for by backend='reference'."
    )
    monkeypatch.setenv("RNNOP_BACKEND", "reference")
    with pytest.raises(rnnop.UnsupportedError, match=r"Asked for by RNNOP_BACKEND=reference\.$"):
        rnnop.rnn(X, GRU)


def test_a_failure_inside_says_nothing_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that are not rnnop's go through as they are."""

    def broken(*_: Any) -> None:
        raise MemoryError("not enough")

    monkeypatch.setattr("rnnop.reference.forward", broken)
    with pytest.raises(MemoryError, match=r"^not enough$"):
        rnnop.rnn(X, GRU, backend="reference")
