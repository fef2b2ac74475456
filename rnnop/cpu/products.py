"""What is left of the gradient when the recurrence is done: products over all real steps at once.

They belong to BLAS:

    dW = dgates' x      dR = dgates' h_before      dx = dgates W      db = sum of dgates

The gradients of the gates come as (total, 4, H) with the slots i f g o of an LSTM, and n r z n' of
a GRU, where n' is the gradient of R_n h + b_hn; (total, 1, H) of a plain RNN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..clips import Clip
from ..ragged import RaggedPlan
from ..spec import RNNSpec
from ..weights import RNNWeights

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Saved:
    """What the backward of one pseudo-layer needs; None for what its network does not have."""

    x: _Array  # (total, in)
    y: _Array  # (total, P), a view of the layer's output
    c: Any  # (total, H), likewise
    gates: Any  # (total, 4, H)
    pre: Any  # (total, slots, H)
    h_raw: Any  # (total, P)


def products(
    spec: RNNSpec,
    plan: RaggedPlan,
    weights: RNNWeights,
    k: int,
    run: Saved,
    dgates: _Array,
    dh_raw: _Array | None,
    h0: _Array,
    c0: Any,
) -> tuple[_Array, dict[str, _Array]]:
    """Return dx and the gradients of the weights of one pseudo-layer."""
    hidden = spec.hidden_size
    backward = spec.runs_backward(k % spec.num_directions)
    flat = dgates.reshape(plan.total, dgates.shape[1] * hidden)
    w_ih = weights.w_ih[k]
    gru = spec.mode == "gru"
    grads: dict[str, _Array] = {}
    if gru:
        # The slots of the input part are n, r, z; those of the recurrent part r, z, n'.
        dinput = flat[:, : 3 * hidden]
        w_ih = np.concatenate([w_ih[2 * hidden :], w_ih[: 2 * hidden]])
        grads["w_ih"] = _r_z_n(dinput.T @ run.x, hidden)
        sums = flat.sum(axis=0)
        db_ih, db_hh = _r_z_n(sums[: 3 * hidden], hidden), sums[hidden:]
    else:
        dinput = flat
        grads["w_ih"] = dinput.T @ run.x
        db_ih = db_hh = flat.sum(axis=0)
    if gru and not spec.reset_after:
        reset, new = flat[:, hidden : 3 * hidden], flat[:, :hidden]
        grads["w_hh"] = np.concatenate(
            [_times_before(reset, run.y, h0, plan, backward), new.T @ run.gates[:, 3]]
        )
        db_hh = db_ih.copy()
    else:
        recurrent = flat[:, hidden:] if gru else flat
        grads["w_hh"] = _times_before(recurrent, run.y, h0, plan, backward)
    if weights.b_ih is not None:
        grads["b_ih"] = db_ih
    if weights.b_hh is not None:
        grads["b_hh"] = db_hh if db_hh is not db_ih else db_ih.copy()
    if dh_raw is not None:
        gate_clip = Clip(np, spec.gate_clip)
        grads["w_hr"] = dh_raw.T @ (run.gates[:, 3] * np.tanh(gate_clip(run.c)))
    if spec.peephole:
        before = _before(run.c, c0, plan, backward)
        read = ((0, before), (1, before), (3, run.c))
        grads["peephole"] = np.stack([np.einsum("nh,nh->h", dgates[:, g], by) for g, by in read])
    return dinput @ w_ih, grads


def _r_z_n(n_r_z: _Array, hidden: int) -> _Array:
    """Bring rows in the order n, r, z into the order r, z, n."""
    return np.concatenate([n_r_z[hidden:], n_r_z[:hidden]])


def _before(states: _Array, initial: _Array, plan: RaggedPlan, backward: bool) -> _Array:
    """Return the state before each step, from those after each step and the initial ones."""
    first, index = plan.previous(backward)
    before = np.empty((plan.total, states.shape[1]), states.dtype)
    before[first] = initial
    rest = np.ones(plan.total, np.bool_)
    rest[first] = False
    before[rest] = states[index]
    return before


def _times_before(
    d: _Array, states: _Array, initial: _Array, plan: RaggedPlan, backward: bool
) -> _Array:
    """Return d' times the state before each step."""
    product: _Array
    if not plan.dense:
        product = d.T @ _before(states, initial, plan, backward)
        return product
    # In a dense batch the state before is the one a batch earlier, and nothing need be copied.
    count, end = plan.batch_size, plan.total - plan.batch_size
    later, earlier = slice(count, None), slice(None, end)
    if backward:
        product = d[earlier].T @ states[later] + d[end:].T @ initial
    else:
        product = d[later].T @ states[earlier] + d[:count].T @ initial
    return product
