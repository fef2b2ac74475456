"""The cell state of every step of an LSTM layer, which cuDNN keeps to itself.

It follows from what goes in and comes out: the recurrent input of a step is the output of the step
before it. So the gates of all steps are two matrix products, and one light scan is left:

    a_t = W x_t + b_ih + R y_{t-1} + b_hh        i, f, g = s(a_i), s(a_f), tanh(a_g)
    c_t = clip(f * c_{t-1} + i * g)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array, HostInts, in_float32, take_rows
from ..clips import Clip
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights


def of_layer(
    xp: Any,
    spec: RNNSpec,
    weights: RNNWeights,
    plan: RaggedPlan,
    x: Array,
    y: Array,
    h0: Array,
    c0: Array,
) -> Array:
    """Return the cell states (total, D*H) of a layer with the input x and the output y.

    All arguments are those of a network of a single layer: `x` (total, in), `y` (total, D*P), `h0`
    (D, S, P), `c0` (D, S, H).
    """
    clip = Clip(xp, spec.cell_clip, spec.cell_clip_nan)
    columns = []
    for k in range(spec.num_directions):
        flip = plan.flip if spec.runs_backward(k) else None
        own = y[:, k * spec.output_size : (k + 1) * spec.output_size]
        gates = _gates(
            xp, weights, k, plan, take_rows(xp, x, flip), take_rows(xp, own, flip), h0[k]
        )
        columns.append(take_rows(xp, _scan(xp, clip, plan, gates, c0[k]), flip))
    return xp.astype(xp.concat(columns, axis=1), y.dtype, copy=False)


def _gates(
    xp: Any, weights: RNNWeights, k: int, plan: RaggedPlan, x: Array, y: Array, h0: Array
) -> Array:
    """Return the pre-activations of all gates at all steps, (total, 4H), in float32 or wider."""
    before = xp.concat([h0, take_rows(xp, y, _rows_before(plan))], axis=0)
    a = (
        in_float32(xp, x) @ in_float32(xp, weights.w_ih[k]).T
        + in_float32(xp, before) @ in_float32(xp, weights.w_hh[k]).T
    )
    for bias in (weights.b_ih, weights.b_hh):
        if bias is not None:
            a = a + in_float32(xp, bias[k])
    return a


def _scan(xp: Any, clip: Clip, plan: RaggedPlan, gates: Array, c0: Array) -> Array:
    """Return the cell states (total, H)."""
    size = c0.shape[1]
    i, f, g = (gates[:, part * size : (part + 1) * size] for part in range(3))
    added = _sigmoid(xp, i) * xp.tanh(g)
    kept = _sigmoid(xp, f)
    c, states = in_float32(xp, c0), []
    for begin, count in zip(plan.offsets.tolist(), plan.batch_sizes.tolist(), strict=True):
        rows = slice(begin, begin + count)
        c = clip(kept[rows] * c[:count] + added[rows])
        states.append(c)
    return xp.concat(states, axis=0)


def _rows_before(plan: RaggedPlan) -> HostInts:
    """Return the packed position of the step before each, for all but the first steps."""
    count = int(plan.batch_sizes[0])
    step = np.repeat(np.arange(len(plan.batch_sizes)), plan.batch_sizes)
    return np.arange(count, plan.total) - plan.batch_sizes[step[count:] - 1]


def _sigmoid(xp: Any, x: Array) -> Array:
    return 0.5 * (1 + xp.tanh(0.5 * x))
