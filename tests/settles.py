"""What only a GPU can tell about cuDNN, as experiments that say what they settle.

    python -m settles

runs all but one on each framework with a GPU. The tests run all.

Each yields sentences, and fails where cuDNN does what rnnop does not allow for. They run on the
stand-in too, which shows that they can run; what it answers is what it was written to answer.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_size_t
from typing import Any

import numpy as np
from cases import Array
from cudnn_direct import PACKED, PADDED, UNTOUCHED, Direct, Lab, Problem
from differences import assert_gradient_along
from gpu_arrays import cupy_family, no_gpu_for, torch_family

import rnnop
from rnnop import layouts
from rnnop.cudnn import weightspace
from rnnop.cudnn.descriptors import DropoutDescriptor
from rnnop.cudnn.memory import FAMILIES
from rnnop.cudnn.status import name_of
from rnnop.spec import RNNSpec

ALONE = 7  # it may leave the GPU unusable for its process

Experiment = Callable[[Lab], Iterator[str]]
EXPERIMENTS: dict[int, Experiment] = {}

CELLS: dict[str, dict[str, Any]] = {
    "RELU": {"mode": "rnn_relu"},
    "TANH": {"mode": "rnn_tanh"},
    "GRU": {"mode": "gru"},
    "LSTM": {"mode": "lstm"},
    "LSTMP": {"mode": "lstm", "proj_size": 3},
}


def settles(number: int) -> Callable[[Experiment], Experiment]:
    def decorate(experiment: Experiment) -> Experiment:
        EXPERIMENTS[number] = experiment
        return experiment

    return decorate


def sentences(number: int, lab: Lab) -> list[str]:
    """Run an experiment, and return what it settles."""
    return [f"SETTLES {number}: {each}" for each in EXPERIMENTS[number](lab)]


def make_lab(name: str) -> Lab:
    """Return a lab on a GPU.

    Raises
    ------
    RuntimeError
        There is none for this framework.
    """
    reason = no_gpu_for(name)
    if reason is not None:
        raise RuntimeError(reason)
    module = importlib.import_module(name)
    family = cupy_family(module) if name == "cupy" else torch_family(module)
    return Lab(family, FAMILIES[name], scale=8)


def main() -> int:
    """Run the experiments and print what they settle; return 1 if one fails or none can run."""
    tried = failed = 0
    for name in ("cupy", "torch"):
        try:
            lab = make_lab(name)
        except RuntimeError as error:
            print(f"{name}: {error}")
            continue
        for number in EXPERIMENTS:
            if number == ALONE:
                continue
            tried += 1
            try:
                print(*sentences(number, lab), sep="\n")
            except (AssertionError, rnnop.RnnopError) as error:
                failed += 1
                print(f"{name}: experiment {number} FAILED: {error!r}")
    print(f"{tried} experiments, {failed} failed")
    return int(failed > 0 or tried == 0)


def close(got: Array, wanted: Array, most: float = 1e-12) -> bool:
    """Return whether two arrays are equal but for rounding."""
    size = float(np.max(np.abs(wanted), initial=1e-300))
    return got.shape == wanted.shape and bool(np.all(np.abs(got - wanted) <= most * size))


def wanted(problem: Problem, weights: Any = None, **more: Any) -> Any:
    """Return what the reference makes of a problem."""
    states = {"h0": problem.state("hx")}
    if problem.mode == "lstm":
        states["c0"] = problem.state("cx")
    return rnnop.rnn(
        np.nan_to_num(problem.inputs()),
        weights or problem.weights(),
        **states | more,
        mode=problem.mode,
        lengths=problem.lengths,
        backend="reference",
    )


def forward(lab: Lab, problem: Problem) -> tuple[Array, Array, Array]:
    with lab.device() as device:
        return Direct(lab, device, problem).forward(problem.state("hx"), problem.state("cx"))


def train(lab: Lab, problem: Problem, *, states: bool = True) -> list[Array]:
    """Return y, hy, cy, dx, dhx, dcx and the gradients of the weight space."""
    with lab.device() as device:
        direct = Direct(lab, device, problem)
        hx, cx, dhy, dcy = (
            problem.state(name) if states else None for name in ("hx", "cx", "dhy", "dcy")
        )
        outputs = direct.forward(hx, cx)
        gradients = direct.backward(np.nan_to_num(problem.output_cotangent()), dhy, dcy)
        status, dspace = direct.weight_gradients()
        assert status == 0
        return [*outputs, *gradients, dspace]


@settles(1)
def layout_of_the_weights(lab: Lab) -> Iterator[str]:
    count = 0
    with lab.device() as device:
        for cell in CELLS.values():
            for num_layers, bidirectional in ((1, False), (2, True), (3, False)):
                problem = Problem(**cell, num_layers=num_layers, bidirectional=bidirectional)
                direct = Direct(lab, device, problem)
                spec = RNNSpec.of(problem.weights(), mode=problem.mode)
                weightspace._verified.clear()
                address = lab.memory.pointer(direct.space)
                weightspace.verify(device.handle, direct.rnn, spec, address, 8)
                count += len(layouts.cudnn.linear_layers(spec))
    yield f"cuDNN lays out all {count} linear layers of 15 networks as rnnop does"


@settles(2)
def equations(lab: Lab) -> Iterator[str]:
    for name, cell in CELLS.items():
        for bias in ("none", "input", "double"):
            problem = Problem(**cell, bias=bias, num_layers=2, bidirectional=True)
            y, hy, cy = forward(lab, problem)
            out = wanted(problem)
            assert close(y[problem.real], out.y[problem.real]), (name, bias)
            assert close(hy, out.h_n), (name, bias)
            assert problem.mode != "lstm" or close(cy, out.c_n), (name, bias)
        yield f"{name} has the equations of rnnop with no bias, one and two"
    problem = Problem("gru", bias="recurrent")
    y, _, _ = forward(lab, problem)
    weights = problem.weights()
    assert weights.b_hh is not None
    rows = np.repeat([1.0, 1.0, 0.0], problem.hidden_size)
    outside = dataclasses.replace(
        weights,
        b_hh=tuple(b * rows for b in weights.b_hh),
        b_ih=tuple(b * (1 - rows) for b in weights.b_hh),
    )
    where = [
        word
        for word, each in (("inside", weights), ("outside", outside))
        if close(y[problem.real], wanted(problem, each).y[problem.real])
    ]
    assert len(where) == 1, where
    yield f"GRU with the recurrent bias only has that of the candidate {where[0]} the reset product"


@settles(3)
def clip(lab: Lab) -> Iterator[str]:
    low, high = -0.25, 0.1875  # float32 has both
    problem = Problem(clip=(low, high), lengths=(6, 6, 6))
    y, _, cy = forward(lab, problem)
    out = wanted(problem, cell_clip=(low, high))
    assert close(y, out.y), "the state is clipped elsewhere than where it is read"
    yield "the cell state is clipped where it is read, cx too"
    assert close(np.clip(cy, low, high), out.c_n)
    returned = "clipped" if close(cy, out.c_n) else "unclipped"
    yield f"cy is returned {returned}"
    assert returned == "unclipped", "then the gradient of c_n passes where it should not"
    dcy = np.ones_like(cy)
    with lab.device() as device:
        direct = Direct(lab, device, problem)
        direct.forward(problem.state("hx"), problem.state("cx"))
        zeros = np.zeros((problem.T, problem.N, problem.P))
        _, _, dcx = direct.backward(zeros, None, dcy)
    inside = (problem.state("cx") >= low) & (problem.state("cx") <= high)
    assert not dcx[~inside].any()
    yield "no gradient goes through a cx beyond the bounds"
    nan = Problem(clip=(low, high), lengths=(1,))
    for replaced in (False, True):
        with lab.device() as device:
            direct = Direct(lab, device, dataclasses.replace(nan, clip_nan=replaced))
            cx = nan.state("cx")
            cx[0, 0, 0] = np.nan
            y, _, _ = direct.forward(nan.state("hx"), cx)
        assert np.isnan(y).any() == (not replaced)
    yield "NOT_PROPAGATE_NAN turns a NaN state into a number, PROPAGATE_NAN keeps it"


@settles(4)
def padding(lab: Lab) -> Iterator[str]:
    for fill in (None, 0.0, 3.0):
        problem = Problem("gru", fill=fill, bidirectional=True)
        y, hy, *_ = found = train(lab, problem)
        out = wanted(problem)
        assert close(y[problem.real], out.y[problem.real])
        assert close(hy, out.h_n)
        yield f"padding of y with the fill value {fill}: {_told(y[~problem.real])}"
        yield f"padding of dx with the fill value {fill}: {_told(found[3][~problem.real])}"
        assert not np.isnan(found[3][problem.real]).any()
    yield "the backward direction starts at each sequence's own last step"


def _told(padding: Array) -> str:
    for value in (UNTOUCHED, 0.0, 3.0):
        if np.all(padding == value):
            return "untouched" if value == UNTOUCHED else f"all {value:g}"
    return "NaN" if np.all(np.isnan(padding)) else f"other values, such as {padding.ravel()[0]:g}"


@settles(5)
def states_that_are_not_given(lab: Lab) -> Iterator[str]:
    problem = Problem(num_layers=2)

    class Zeros(Problem):
        def state(self, name: str) -> Array:
            return 0.0 * super().state(name)

    without = train(lab, problem, states=False)
    with_zeros = train(lab, Zeros(num_layers=2))
    for name, one, other in zip(
        ("y", "hy", "cy", "dx", "dhx", "dcx", "dw"), without, with_zeros, strict=True
    ):
        if one.shape[:2] == (problem.T, problem.N):
            one, other = one[problem.real], other[problem.real]
        assert close(one, other), name
    yield "hx, cx, dhy and dcy NULL are zeros"


@settles(6)
def packed_and_padded(lab: Lab) -> Iterator[str]:
    problem = Problem(num_layers=2, bidirectional=True)
    padded = train(lab, problem)
    packed = train(lab, dataclasses.replace(problem, layout=PACKED))
    bits = True
    for one, other in zip(padded, packed, strict=True):
        if one.shape != other.shape:
            one = one[problem.real]
        assert close(one, other)
        bits &= one.tobytes() == other.tobytes()
    yield f"packed and padded agree, {'in every bit' if bits else 'but not in every bit'}"


@settles(7)
def zero_lengths(lab: Lab) -> Iterator[str]:
    """cuDNN is known to fail here, maybe for good: in a process of its own, on a GPU."""
    problem = Problem("gru", lengths=(4, 2, 0))
    try:
        y, *_ = train(lab, problem)
    except (rnnop.errors.LibraryError, AssertionError) as error:
        yield f"a zero length fails: {str(error)[:200]}"
        return
    kept = dataclasses.replace(problem, lengths=(4, 2))
    right = close(y[:, :2][kept.real], wanted(kept).y[kept.real])
    yield f"a zero length runs, and the other sequences are {'right' if right else 'WRONG'}"


@settles(8)
def no_lengths_on_the_device(lab: Lab) -> Iterator[str]:
    for layout in (PADDED, PACKED):
        problem = Problem("gru", layout=layout)
        y, hy, _ = forward(lab, problem)
        out = wanted(problem)
        rows = y[problem.real] if layout == PADDED else y
        assert close(rows, out.y[problem.real])
        assert close(hy, out.h_n)
    yield "devSeqLengths may be NULL with unequal lengths, padded and packed"


@settles(9)
def set_mode(lab: Lab) -> Iterator[str]:
    with lab.device() as device:
        direct = Direct(lab, device, Problem("gru"))
        direct.forward()
        direct.backward(np.nan_to_num(direct.problem.output_cotangent()))
        status, _ = direct.weight_gradients(mode=1)
        name = name_of(direct.library.version, status)
        yield f"CUDNN_WGRAD_MODE_SET returns {name} ({status})"


@settles(10)
def gradients(lab: Lab) -> Iterator[str]:
    there, back = lab.family.there, lab.family.back
    for name, cell in CELLS.items():
        problem = Problem(**cell, num_layers=2, bidirectional=True)
        states = {"h0": problem.state("hx")}
        if problem.mode == "lstm":
            states["c0"] = problem.state("cx")
        x, dy = np.nan_to_num(problem.inputs()), np.nan_to_num(problem.output_cotangent())
        options: dict[str, Any] = {
            "mode": problem.mode,
            "lengths": problem.lengths,
            "backend": "cudnn",
        }
        weights = problem.weights().map(there)
        given = {key: there(each) for key, each in states.items()}
        _, vjp = lab.family.rnn_vjp(there(x), weights, **given, **options)
        dx = back(vjp(there(dy)).x)

        def terms(
            at: Array,
            weights: Any = weights,
            given: Any = given,
            options: Any = options,
            dy: Array = dy,
        ) -> Array:
            out, _ = lab.family.rnn_vjp(there(at), weights, **given, **options)
            return back(out.y) * dy

        assert_gradient_along("dx", dx, terms, x, problem.drawn("direction", *x.shape))
        yield f"{name}: the gradient of x agrees with central differences"


@settles(11)
def determinism(lab: Lab) -> Iterator[str]:
    for name, cell in CELLS.items():
        size, lengths = 8 * lab.scale, tuple(range(5 * lab.scale, 0, -1))
        problem = Problem(
            **cell, num_layers=2, bidirectional=True, hidden_size=size, lengths=lengths
        )
        found = []
        for _ in range(10):
            found.append(b"".join(_real(problem, each).tobytes() for each in train(lab, problem)))
        same = len(set(found))
        yield f"{name}: 10 runs of forward and backward gave {same} different results in bits"


def _real(problem: Problem, array: Array) -> Array:
    """Return what is not padding."""
    return array[problem.real] if array.shape[:2] == (problem.T, problem.N) else array


@settles(12)
def dropout(lab: Lab) -> Iterator[str]:
    rate, problem = 0.3, Problem("rnn_relu", (20,) * 16, 32, 32, num_layers=2)
    eye, none = np.eye(32), np.zeros((32, 32))
    zeros = np.zeros(32)
    copying = rnnop.RNNWeights((eye,) * 2, (none,) * 2, (zeros,) * 2, (zeros,) * 2)
    with lab.device() as device:
        library, size = device.handle.library, c_size_t()
        library.cudnnDropoutGetStatesSize(device.handle.pointer, byref(size))
        like = lab.family.there(np.zeros(1))
        states = lab.memory.empty((size.value,), lab.memory.xp.uint8, like)
        place = device.memory.pointer(states), size.value
        yield f"the states of dropout have {size.value:,} bytes"

        class Ones(Problem):
            def inputs(self) -> Array:
                return np.ones((self.T, self.N, self.input_size))

            def weights(self) -> rnnop.RNNWeights:
                return copying

        ones = Ones(**dataclasses.asdict(problem))

        def drawn(how: str, seed: int) -> Array:
            descriptor = DropoutDescriptor(library)
            getattr(descriptor, how)(device.handle, rate, states, *place, seed)
            return Direct(lab, device, ones, descriptor).forward()[0]

        first, second = drawn("set", 1), drawn("restore", 1)
        share = float(np.mean(first == 0))
        assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / first.size)
        assert close(first[first != 0], np.full(np.count_nonzero(first), 1 / (1 - rate)), 1e-6)
        yield f"a share of {share:.4f} was dropped at p = {rate}, the rest scaled by 1 / (1 - p)"
        assert drawn("set", 1).tobytes() == first.tobytes()
        yield "setting the same seed again gives the same mask"
        goes_on = second.tobytes() != first.tobytes()
        yield f"Restore {'goes on with' if goes_on else 'starts again from'} the states"
        assert goes_on

        def microseconds(how: str) -> float:
            lab.memory.synchronize(0)
            start = time.perf_counter()
            for seed in range(20):
                descriptor = DropoutDescriptor(library)
                getattr(descriptor, how)(device.handle, rate, states, *place, seed)
            lab.memory.synchronize(0)
            return (time.perf_counter() - start) / 20 * 1e6

        times = {how: microseconds(how) for how in ("set", "restore")}
        yield f"seeding takes {times['set']:.0f} us, and Restore {times['restore']:.0f} us"


@settles(13)
def sizes_of_the_spaces(lab: Lab) -> Iterator[str]:
    with lab.device() as device:

        def sizes(**changed: Any) -> tuple[int, int]:
            problem = Problem(**{"hidden_size": 64, "lengths": (50,) * 8, **changed})
            return Direct(lab, device, problem).sizes()

        for what, changed in (
            ("as it is", {"padded_io": False}),
            ("with padded IO", {}),
            ("half the steps", {"padded_io": False, "lengths": (25,) * 8}),
            ("half the sequences", {"padded_io": False, "lengths": (50,) * 4}),
            ("unequal lengths, packed", {"layout": PACKED, "lengths": tuple(range(50, 42, -1))}),
        ):
            work, reserve = sizes(**changed)
            assert reserve > 0
            yield f"an LSTM 3->64 {what}: workspace {work:,} bytes, reserve {reserve:,}"


@settles(15)
def second_thread(lab: Lab) -> Iterator[str]:
    problem = Problem(num_layers=2)
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(train(lab, problem))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    [other] = found
    assert isinstance(other, list), other
    for one, two in zip(train(lab, problem), other, strict=True):
        assert close(_real(problem, one), _real(problem, two))
    yield "a second thread with a handle of its own gets the same results"


if __name__ == "__main__":
    sys.exit(main())
