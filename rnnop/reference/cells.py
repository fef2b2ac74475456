"""The cells: one step beside its gradient, as plain array code.

A cell holds the recurrent weights of one pseudo-layer. Its `step` takes

    a      (n, G*H)  the input part of the gates, W x_t + b_i, computed for all steps beforehand
    state  (h,) or (h, c), the state before the step: h (n, P), c (n, H)

and returns the state after it and what `step_backward` needs again. `step_backward` takes that and
the gradient of the state after the step, and returns the gradients of `a`, of the state before it,
and of the weights.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol, TypeAlias

from ..arrays import Array
from ..clips import Clip
from ..spec import RNNSpec
from ..weights import RNNWeights
from .activations import Gate

State: TypeAlias = tuple[Array, ...]
WeightGrads: TypeAlias = dict[str, Array]


class Cell(Protocol):
    """What `sequence.py` needs of a cell."""

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """Return (state after, saved)."""

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """Return (da, gradient of the state before, gradients of the weights)."""


def make_cell(spec: RNNSpec, weights: RNNWeights, k: int, xp: ModuleType) -> Cell:
    """Return the cell of pseudo-layer number `k`."""
    if spec.mode == "lstm":
        return LSTMCell(spec, weights, k, xp)
    if spec.mode != "gru":
        return RNNCell(spec, weights, k, xp)
    return (GRUCell if spec.reset_after else GRUResetBeforeCell)(spec, weights, k, xp)


class _Recurrent:
    """R and b_h of one pseudo-layer, and its gates."""

    def __init__(self, spec: RNNSpec, weights: RNNWeights, k: int, xp: ModuleType) -> None:
        self.xp = xp
        self.size = spec.hidden_size
        self.w_hh = weights.w_hh[k]
        self.b_hh = None if weights.b_hh is None else weights.b_hh[k]
        clip = Clip(xp, spec.gate_clip)
        activations = spec.activations[k % spec.num_directions]
        self.gates = [Gate(xp, activation, clip) for activation in activations]

    def split(self, gates: Array) -> list[Array]:
        """Cut (n, G*H) into G arrays of (n, H)."""
        return [
            gates[:, begin : begin + self.size] for begin in range(0, gates.shape[1], self.size)
        ]

    def product(self, h: Array) -> Array:
        """Return R h + b_h."""
        product = h @ self.w_hh.T
        return product if self.b_hh is None else product + self.b_hh

    def product_backward(self, h: Array, d: Array) -> tuple[Array, WeightGrads]:
        """Return the gradients of h, and of R and b_h, from `d`, that of R h + b_h."""
        grads = {"w_hh": d.T @ h}
        if self.b_hh is not None:
            grads["b_hh"] = self.xp.sum(d, axis=0)
        return d @ self.w_hh, grads


class RNNCell(_Recurrent):
    """h_t = act(a + R h + b_h)."""

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """See the equation of the class."""
        (h,) = state
        (act,) = self.gates
        pre = a + self.product(h)
        h_new = act(pre)
        return (h_new,), (h, pre, h_new)

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """See `Cell`."""
        h, pre, h_new = saved
        (act,) = self.gates
        da = act.backward(pre, h_new, dstate[0])
        dh, grads = self.product_backward(h, da)
        return da, (dh,), grads


class GRUCell(_Recurrent):
    """The GRU that applies r after the product (cuDNN, PyTorch).

    r = s(a_r + R_r h + b_hr);  z = s(a_z + R_z h + b_hz)
    n = tanh(a_n + r * (R_n h + b_hn));  h_t = (1 - z) * n + z * h
    """

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """See the equations of the class."""
        (h,) = state
        f, g = self.gates
        a_r, a_z, a_n = self.split(a)
        q_r, q_z, q_n = self.split(self.product(h))
        pre_r, pre_z = a_r + q_r, a_z + q_z
        r, z = f(pre_r), f(pre_z)
        pre_n = a_n + r * q_n
        n = g(pre_n)
        return ((1 - z) * n + z * h,), (h, pre_r, r, pre_z, z, pre_n, n, q_n)

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """See `Cell`."""
        h, pre_r, r, pre_z, z, pre_n, n, q_n = saved
        f, g = self.gates
        (dh_t,) = dstate
        d_n = g.backward(pre_n, n, dh_t * (1 - z))
        d_r = f.backward(pre_r, r, d_n * q_n)
        d_z = f.backward(pre_z, z, dh_t * (h - n))
        dh, grads = self.product_backward(h, self.xp.concat([d_r, d_z, d_n * r], axis=1))
        return self.xp.concat([d_r, d_z, d_n], axis=1), (dh + dh_t * z,), grads


class GRUResetBeforeCell(_Recurrent):
    """The GRU that applies r before the product (ONNX's default, PlaNet).

    r and z as in `GRUCell`;  n = tanh(a_n + R_n (r * h) + b_hn);  h_t = (1 - z) * n + z * h
    """

    def __init__(self, spec: RNNSpec, weights: RNNWeights, k: int, xp: ModuleType) -> None:
        super().__init__(spec, weights, k, xp)
        cut = 2 * self.size
        self.r_and_z, self.n = _Slice(self, slice(cut)), _Slice(self, slice(cut, None))

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """See the equations of the class."""
        (h,) = state
        f, g = self.gates
        a_r, a_z, a_n = self.split(a)
        q_r, q_z = self.split(self.r_and_z.product(h))
        pre_r, pre_z = a_r + q_r, a_z + q_z
        r, z = f(pre_r), f(pre_z)
        pre_n = a_n + self.n.product(r * h)
        n = g(pre_n)
        return ((1 - z) * n + z * h,), (h, pre_r, r, pre_z, z, pre_n, n)

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """See `Cell`."""
        h, pre_r, r, pre_z, z, pre_n, n = saved
        f, g = self.gates
        (dh_t,) = dstate
        d_n = g.backward(pre_n, n, dh_t * (1 - z))
        d_rh, grads_n = self.n.product_backward(r * h, d_n)
        d_r = f.backward(pre_r, r, d_rh * h)
        d_z = f.backward(pre_z, z, dh_t * (h - n))
        dh, grads_rz = self.r_and_z.product_backward(h, self.xp.concat([d_r, d_z], axis=1))
        grads = {name: self.xp.concat([grads_rz[name], grads_n[name]], axis=0) for name in grads_n}
        da = self.xp.concat([d_r, d_z, d_n], axis=1)
        return da, (dh + d_rh * r + dh_t * z,), grads


class _Slice(_Recurrent):
    """The rows of some gates of a recurrent weight, as one of its own."""

    def __init__(self, whole: _Recurrent, rows: slice) -> None:
        self.xp = whole.xp
        self.size = whole.size
        self.w_hh = whole.w_hh[rows]
        self.b_hh = None if whole.b_hh is None else whole.b_hh[rows]


class LSTMCell(_Recurrent):
    """The LSTM with peepholes p, clips and a projection; c is always within the cell clip.

    i = s(a_i + R_i h + b_hi + p_i * c);  f = s(... + p_f * c);  g = tanh(...)
    c_t = clip(f * c + i * g);  o = s(... + p_o * c_t)
    m = o * tanh(c_t);  h_t = m, or proj_clip(W_hr m)

    Every reader of the cell state sees it clipped, so it is kept clipped. `input_forget` sets
    f = 1 - i.
    """

    def __init__(self, spec: RNNSpec, weights: RNNWeights, k: int, xp: ModuleType) -> None:
        super().__init__(spec, weights, k, xp)
        self.coupled = spec.input_forget
        self.cell_clip = Clip(xp, spec.cell_clip, spec.cell_clip_nan)
        self.proj_clip = Clip(xp, spec.proj_clip)
        self.w_hr = None if weights.w_hr is None else weights.w_hr[k]
        self.peephole = None if weights.peephole is None else weights.peephole[k]

    def step(self, a: Array, state: State) -> tuple[State, Any]:
        """See the equations of the class."""
        h, c = state
        act, act_g, act_c = self.gates
        pre_i, pre_f, pre_g, pre_o = self.split(a + self.product(h))
        if self.peephole is not None:
            pre_i = pre_i + self.peephole[0] * c
            pre_f = pre_f + self.peephole[1] * c
        i, g = act(pre_i), act_g(pre_g)
        f = 1 - i if self.coupled else act(pre_f)
        c_raw = f * c + i * g
        c_new = self.cell_clip(c_raw)
        if self.peephole is not None:
            pre_o = pre_o + self.peephole[2] * c_new
        o = act(pre_o)
        s = act_c(c_new)
        m = o * s
        h_raw = m if self.w_hr is None else m @ self.w_hr.T
        pre, gates = (pre_i, pre_f, pre_g, pre_o), (i, f, g, o)
        return (self.proj_clip(h_raw), c_new), (h, c, pre, gates, c_raw, c_new, s, m, h_raw)

    def step_backward(self, saved: Any, dstate: State) -> tuple[Array, State, WeightGrads]:
        """See `Cell`."""
        h, c, (pre_i, pre_f, pre_g, pre_o), (i, f, g, o), c_raw, c_new, s, m, h_raw = saved
        act, act_g, act_c = self.gates
        xp = self.xp
        dm, dc_new = dstate
        grads: WeightGrads = {}
        if self.w_hr is not None:
            d_raw = self.proj_clip.backward(h_raw, dm)
            grads["w_hr"] = d_raw.T @ m
            dm = d_raw @ self.w_hr
        d_o = act.backward(pre_o, o, dm * s)
        dc_new = dc_new + act_c.backward(c_new, s, dm * o)
        if self.peephole is not None:
            dc_new = dc_new + self.peephole[2] * d_o
        dc_raw = self.cell_clip.backward(c_raw, dc_new)
        d_g = act_g.backward(pre_g, g, dc_raw * i)
        if self.coupled:
            d_i, d_f = act.backward(pre_i, i, dc_raw * (g - c)), xp.zeros_like(dc_raw)
        else:
            d_i = act.backward(pre_i, i, dc_raw * g)
            d_f = act.backward(pre_f, f, dc_raw * c)
        dc = dc_raw * f
        if self.peephole is not None:
            dc = dc + self.peephole[0] * d_i + self.peephole[1] * d_f
            read = ((d_i, c), (d_f, c), (d_o, c_new))
            grads["peephole"] = xp.stack([xp.sum(d * by, axis=0) for d, by in read])
        da = xp.concat([d_i, d_f, d_g, d_o], axis=1)
        dh, product_grads = self.product_backward(h, da)
        return da, (dh, dc), grads | product_grads
