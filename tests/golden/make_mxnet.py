"""Write mxnet.npz: outputs and gradients of MXNet's fused RNN operator on a CPU.

MXNet 1.9.1 needs an old numpy, so this runs in an environment of its own:

    python3.9 -m venv mxnet-venv
    mxnet-venv/bin/pip install mxnet==1.9.1 "numpy==1.23.*"
    mxnet-venv/bin/python tests/golden/make_mxnet.py

One case is one call of ``mx.nd.RNN`` and its backward from random cotangents. ``parameters`` is
MXNet's flat vector: for kind in (weight, bias): for layer: for direction: for group in (i2h, h2h).
Gates are in the order r, z, n (gru) and i, f, g, o (lstm).

Nothing is written before a plain numpy computation, with gradients by complex steps, has confirmed
it. Two faults of the operator's native float64 code shape the cases:

* rnn_relu rounds each output to float32. Its numbers are therefore drawn from a grid so coarse
  that every output is a float32 without rounding, and the answers are exact in float64 too.
* rnn_relu and rnn_tanh take, in every layer but the first and the last, the layer's own output
  for its input when they form the gradient of i2h weights: ``dparameters`` of the cases with
  three layers is left out.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

# One thread, so that sums are always taken in one order. Float64 never takes the oneDNN path;
# the switch says so.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MXNET_USE_MKLDNN_RNN"] = "0"

import mxnet as mx
import numpy as np

Arrays = dict[str, np.ndarray]

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
SIZES = {1: (5, 3, 5, 7), 2: (5, 3, 5, 7), 3: (4, 2, 6, 4)}  # num_layers: (T, N, I, H)
INPUTS = ("x", "parameters", "h0", "c0")
OUTPUTS = ("y", "h_n", "c_n")
AGREEMENT = 1e-14  # largest error, as a share of the largest entry
FAULT = 1e-2  # a wrong gradient is far beyond this


class Case:
    """A problem: its sizes, and the flat vector cut into (w_ih, w_hh, b_ih, b_hh)."""

    def __init__(self, mode: str, num_layers: int, num_directions: int) -> None:
        self.mode, self.L, self.D = mode, num_layers, num_directions
        self.T, self.N, self.I, self.H = SIZES[num_layers]
        rows = GATES[mode] * self.H
        widths = [self.I] * self.D + [self.D * self.H] * (self.D * (self.L - 1))
        self.weight_shapes = [s for width in widths for s in ((rows, width), (rows, self.H))]
        self.bias_shapes = [(rows,)] * (2 * self.L * self.D)

    def __str__(self) -> str:
        layers = f"{self.L}layer{'s' if self.L > 1 else ''}"
        direction = "bi" if self.D == 2 else "uni"
        return f"{self.mode}-{layers}-{direction}-T{self.T}-N{self.N}-I{self.I}-H{self.H}"

    def draw(self, rng: np.random.Generator) -> Arrays:
        """Inputs and cotangents in [-1, 1]: halves for rnn_relu, otherwise 1/64."""
        step = 2 if self.mode == "rnn_relu" else 64

        def uniform(*shape: int) -> np.ndarray:
            return rng.integers(-step, step, shape, endpoint=True) / step

        state = (self.L * self.D, self.N, self.H)
        size = sum(int(np.prod(s)) for s in self.weight_shapes + self.bias_shapes)
        drawn = {
            "x": uniform(self.T, self.N, self.I),
            "parameters": uniform(size),
            "h0": uniform(*state),
            "dy": uniform(self.T, self.N, self.D * self.H),
            "dh_n": uniform(*state),
        }
        if self.mode == "lstm":
            drawn["c0"], drawn["dc_n"] = uniform(*state), uniform(*state)
        return drawn

    def split(self, parameters: np.ndarray) -> list[list[np.ndarray]]:
        """Cut the flat vector into one [w_ih, w_hh, b_ih, b_hh] for each pseudo-layer."""
        pieces, start = [], 0
        for shape in self.weight_shapes + self.bias_shapes:
            stop = start + int(np.prod(shape))
            pieces.append(parameters[start:stop].reshape(shape))
            start = stop
        weights, biases = pieces[: len(self.weight_shapes)], pieces[len(self.weight_shapes) :]
        return [weights[k : k + 2] + biases[k : k + 2] for k in range(0, len(weights), 2)]


def run_mxnet(case: Case, drawn: Arrays) -> Arrays:
    """Outputs and gradients of the fused operator."""
    names = [name for name in INPUTS if name in drawn]
    arguments = [mx.nd.array(drawn[name], dtype="float64") for name in names]
    for argument in arguments:
        argument.attach_grad()
    with mx.autograd.record():
        outputs = mx.nd.RNN(
            *arguments,
            mode=case.mode,
            state_size=case.H,
            num_layers=case.L,
            bidirectional=case.D == 2,
            state_outputs=True,
        )
    cotangents = [drawn["d" + name] for name in OUTPUTS if "d" + name in drawn]
    mx.autograd.backward(outputs, [mx.nd.array(c, dtype="float64") for c in cotangents])
    answers = {OUTPUTS[k]: output.asnumpy() for k, output in enumerate(outputs)}
    answers.update({"d" + names[k]: a.grad.asnumpy() for k, a in enumerate(arguments)})
    return answers


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def step(
    mode: str, a: np.ndarray, b: np.ndarray, h: np.ndarray, c: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """One step of a cell from a = W x + b_ih and b = R h + b_hh."""
    if mode == "rnn_relu":
        return np.where((a + b).real > 0, a + b, 0), None
    if mode == "rnn_tanh":
        return np.tanh(a + b), None
    if mode == "gru":
        (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3, -1), np.split(b, 3, -1)
        z = sigmoid(a_z + b_z)
        return (1 - z) * np.tanh(a_n + sigmoid(a_r + b_r) * b_n) + z * h, None
    i, f, g, o = np.split(a + b, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def run_numpy(case: Case, inputs: Arrays) -> Arrays:
    """Outputs by the equations, one step at a time."""
    y, finals, cell_finals = inputs["x"], [], []
    for layer in range(case.L):
        sides = []
        for direction in range(case.D):
            k = layer * case.D + direction
            w_ih, w_hh, b_ih, b_hh = case.split(inputs["parameters"])[k]
            h, c = inputs["h0"][k], inputs["c0"][k] if "c0" in inputs else None
            steps: list[np.ndarray] = []
            for x_t in y[::-1] if direction else y:
                h, c = step(case.mode, x_t @ w_ih.T + b_ih, h @ w_hh.T + b_hh, h, c)
                steps.append(h)
            sides.append(np.stack(steps[::-1] if direction else steps))
            finals.append(h)
            cell_finals.append(c)
        y = np.concatenate(sides, -1)
    outputs = {"y": y, "h_n": np.stack(finals)}
    if "c0" in inputs:
        outputs["c_n"] = np.stack(cell_finals)
    return outputs


def gradient(case: Case, drawn: Arrays, name: str) -> np.ndarray:
    """Gradient of sum(output * cotangent) by complex steps: exact to rounding."""
    result = np.empty(drawn[name].shape)
    for index in np.ndindex(result.shape):
        stepped = drawn[name].astype(complex)
        stepped[index] += 1e-30j
        outputs = run_numpy(case, {**drawn, name: stepped})
        result[index] = sum((o * drawn["d" + n]).sum().imag for n, o in outputs.items()) / 1e-30
    return result


def error(answer: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(answer - truth).max() / np.abs(truth).max())


def confirmed(case: Case, drawn: Arrays, answers: Arrays) -> Arrays:
    """The answers that may be written. Raises where one is not as this file says."""
    truth = run_numpy(case, drawn)
    truth.update({"d" + name: gradient(case, drawn, name) for name in INPUTS if name in drawn})
    faulty = {"dparameters"} if case.mode.startswith("rnn_") and case.L > 2 else set()
    errors = {name: error(answers[name], truth[name]) for name in truth}
    print(case, *(f"{name}={value:.0e}" for name, value in errors.items()), flush=True)
    for name, value in errors.items():
        as_expected = value > FAULT if name in faulty else value <= AGREEMENT
        if not as_expected:
            raise SystemExit(f"{case}: error of {name} is {value:.1e}")
    return {name: answers[name] for name in answers if name not in faulty}


def main() -> None:
    rng = np.random.default_rng(9543)
    meta = {
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "dtype": "float64",
        "MXNET_USE_MKLDNN_RNN": os.environ["MXNET_USE_MKLDNN_RNN"],
    }
    arrays = {"meta": np.array(json.dumps(meta))}
    for mode in GATES:
        for num_layers in SIZES:
            for num_directions in (1, 2):
                case = Case(mode, num_layers, num_directions)
                drawn = case.draw(rng)
                answers = confirmed(case, drawn, run_mxnet(case, drawn))
                arrays.update({f"{case}/{name}": a for name, a in {**drawn, **answers}.items()})
    np.savez_compressed(Path(__file__).with_name("mxnet.npz"), **arrays)


if __name__ == "__main__":
    main()
