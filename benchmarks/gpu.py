"""rnnop against torch.nn on one GPU, cuDNN's networks and world models: medians.

    python benchmarks/gpu.py [--output FOLDER] [--seconds 120] [--compiled]

Writes gpu.json and gpu.md. All take turns in each round, CUDA events time a turn, every result is
compared with the others' first, and TF32 is off for all. A turn repeats its call until it takes
some milliseconds, so that launches are counted as they queue up. `--compiled` gives torch.compile
the step of a world model too, which takes minutes more than the seconds. `--device cpu --seconds 5`
shows that it runs, and nothing more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rnnop
from rnnop import flags, rssm
from rnnop.layouts import from_pytorch

TURN = 0.01  # seconds that a turn takes at least
MOST_ROUNDS = 15
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AGREE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}

Call = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """A layer or a stack of them. `ragged` rows have lengths spread evenly over 1..T."""

    mode: str
    N: int
    T: int
    I: int
    H: int
    num_layers: int = 1
    bidirectional: bool = False
    ragged: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        parts = [self.mode, f"N={self.N} T={self.T} I={self.I} H={self.H}"]
        parts += [f"{self.num_layers} layers"] if self.num_layers > 1 else []
        parts += ["bidirectional"] if self.bidirectional else []
        parts += ["ragged"] if self.ragged else []
        return ", ".join([*parts, self.dtype])

    def contenders(self, device: str, compiled: bool) -> dict[str, dict[str, Call]]:
        return Contenders(self, device).all()

    @property
    def lengths(self) -> list[int]:
        spread = np.linspace(1, self.T, self.N).round().astype(int)
        return np.random.default_rng(0).permutation(spread).tolist()


@dataclass(frozen=True)
class WorldModel:
    """A rollout of the prior of Dreamer v1 with known actions: many small launches a step."""

    N: int
    T: int
    H: int = 200
    S: int = 30
    A: int = 6
    ragged: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"RSSM rollout, N={self.N} T={self.T} belief={self.H} state={self.S}, {self.dtype}"

    def contenders(self, device: str, compiled: bool) -> dict[str, dict[str, Call]]:
        return Rollouts(self, device, compiled).all()


def problems(device: str) -> Iterator[Problem | WorldModel]:
    """Yield the problems, those that tell most first."""
    if device == "cpu":
        yield Problem("gru", 3, 5, 4, 8, ragged=True)
        yield Problem("lstm", 2, 4, 3, 5)
        yield WorldModel(3, 4, H=8, S=5, A=2)
        return
    yield WorldModel(16, 64, H=512, S=32)
    yield WorldModel(50, 50)
    for mode in ("lstm", "gru"):
        yield Problem(mode, 1, 64, 64, 64)  # launches
        yield Problem(mode, 32, 64, 128, 128)
        yield Problem(mode, 64, 256, 512, 512)
        yield Problem(mode, 64, 256, 1024, 1024)
        yield Problem(mode, 32, 64, 128, 128, ragged=True)
        yield Problem(mode, 64, 256, 512, 512, ragged=True)
    yield Problem("lstm", 64, 256, 512, 512, num_layers=2, bidirectional=True)
    yield Problem("lstm", 64, 256, 512, 512, num_layers=2, bidirectional=True, ragged=True)
    for dtype in ("float16", "bfloat16"):
        for mode in ("lstm", "gru"):
            yield Problem(mode, 64, 256, 1024, 1024, dtype=dtype)
    yield Problem("lstm", 64, 256, 512, 512, ragged=True, dtype="float16")


class Contenders:
    """Every way to run a problem: by name, forward and training."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem = problem
        torch.manual_seed(0)
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[problem.mode]
        self.module = kind(
            problem.I, problem.H, problem.num_layers, bidirectional=problem.bidirectional
        ).to(device, DTYPES[problem.dtype])
        self.weights = from_pytorch(self.module).map(lambda each: each.detach())
        width = problem.H * (1 + problem.bidirectional)
        real = (
            torch.arange(problem.T)[:, None] < torch.tensor(problem.lengths)
            if problem.ragged
            else torch.ones(problem.T, problem.N, dtype=torch.bool)
        )
        self.x, self.dy = (
            (torch.randn(problem.T, problem.N, size) * real[:, :, None]).to(
                device, DTYPES[problem.dtype]
            )
            for size in (problem.I, width)
        )
        self.options: dict[str, Any] = {"mode": problem.mode}
        self.options["backend"] = "cudnn" if device == "cuda" else "auto"
        if problem.ragged:
            self.options["lengths"] = np.array(problem.lengths)

    def all(self) -> dict[str, dict[str, Call]]:
        """Return {pass: {name: call}}."""
        found: dict[str, dict[str, Call]] = {"forward": {}, "training": {}}
        prepacked = rnnop.prepack(
            self.weights, mode=self.problem.mode, backend=self.options["backend"]
        )
        for name, weights in (("rnnop", self.weights), ("rnnop, prepacked", prepacked)):
            found["forward"][name] = lambda weights=weights: self._forward(weights)
        found["training"]["rnnop"] = self._training
        if self.problem.ragged:
            padded = lambda call: lambda: with_flag("RNNOP_CUDNN_LAYOUT", "padded", call)  # noqa: E731
            found["forward"]["rnnop, padded"] = padded(lambda: self._forward(self.weights))
            found["training"]["rnnop, padded"] = padded(self._training)
            found["forward"]["torch.nn, packed"] = self._torch_packed
            found["training"]["torch.nn, packed"] = lambda: self._torch_training(True)
        else:
            fastest = lambda call: lambda: with_flag("RNNOP_CUDNN_ALGO", "benchmark", call)  # noqa: E731
            if self.options["backend"] == "cudnn":
                found["forward"]["rnnop, fastest algorithm"] = fastest(
                    lambda: self._forward(self.weights)
                )
                found["training"]["rnnop, fastest algorithm"] = fastest(self._training)
            found["forward"]["torch.nn"] = self._torch
            found["training"]["torch.nn"] = lambda: self._torch_training(False)
        return found

    def _forward(self, weights: Any) -> list[Any]:
        with torch.inference_mode():
            return [rnnop.rnn(self.x, weights, **self.options).y]

    def _training(self) -> list[Any]:
        out, vjp = rnnop.rnn_vjp(self.x, self.weights, **self.options)
        grads = vjp(self.dy)
        return [out.y, grads.x, grads.weights.w_ih[0], grads.weights.w_hh[0]]

    def _torch(self) -> list[Any]:
        with torch.inference_mode():
            return [self.module(self.x)[0]]

    def _torch_packed(self) -> list[Any]:
        with torch.inference_mode():
            return [self._packed(self.x)]

    def _packed(self, x: Any) -> Any:
        rnn = torch.nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, self.problem.lengths, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.module(packed)[0], total_length=self.problem.T)[0]

    def _torch_training(self, packed: bool) -> list[Any]:
        x = self.x.detach().requires_grad_()
        y = self._packed(x) if packed else self.module(x)[0]
        dx, *rest = torch.autograd.grad(y, [x, *self.module.parameters()], self.dy)
        return [y, dx, rest[0], rest[1]]


class Rollouts:
    """Every way to run a world model: rnnop's, and a loop over torch.nn's own functions."""

    def __init__(self, model: WorldModel, device: str, compiled: bool) -> None:
        self.backend = "cuda" if device == "cuda" else "auto"
        self.steps: dict[str, Call] = {"torch.nn, in a loop": torch_step}
        if compiled:
            self.steps["torch.nn, compiled step"] = torch.compile(torch_step)
        sizes = {"state_size": model.S, "belief_size": model.H, "action_size": model.A}
        spec = rssm.RSSMSpec.of("dreamer_v1", **sizes, embed_size=0, hidden_size=model.H)
        drawn = rssm.init_weights(spec, seed=0)
        self.weights = drawn.map(lambda each: torch.from_numpy(each).to(device))
        random = np.random.default_rng(0)

        def tensor(*shape: int) -> Any:
            return torch.from_numpy(random.standard_normal(shape, np.float32)).to(device)

        self.state, self.belief = tensor(model.N, model.S), tensor(model.N, model.H)
        self.actions, self.noise, self.dstate = (
            tensor(model.T, model.N, size) for size in (model.A, model.S, model.S)
        )

    def all(self) -> dict[str, dict[str, Call]]:
        """Return {pass: {name: call}}."""
        found: dict[str, dict[str, Call]] = {}
        ours = {"forward": self._forward, "training": self._training}
        theirs = {"forward": self._torch, "training": self._torch_training}
        for what in ours:
            found[what] = {"rnnop": ours[what]}
            if self.backend == "cuda":
                found[what]["rnnop, no CUDA graph"] = lambda what=what: with_flag(
                    "RNNOP_CUDA_GRAPHS", "0", ours[what]
                )
            for name, step in self.steps.items():
                found[what][name] = lambda what=what, step=step: theirs[what](step)
        return found

    def _forward(self) -> list[Any]:
        with torch.inference_mode():
            out = rssm.rollout(*self._given, backend=self.backend)
        return [out.state, out.belief]

    def _training(self) -> list[Any]:
        out, vjp = rssm.rollout_vjp(*self._given, backend=self.backend)
        grads = vjp(dstate=self.dstate)
        return [out.state, out.belief, grads.actions, grads.weights.gru.w_hh[0]]

    @property
    def _given(self) -> tuple[Any, ...]:
        return self.weights, self.state, self.belief, self.actions, self.noise

    def _torch(self, step: Call) -> list[Any]:
        with torch.inference_mode():
            return self._unrolled(step, dict(self.weights.named()), self.actions)

    def _torch_training(self, step: Call) -> list[Any]:
        named = {name: each.detach().requires_grad_() for name, each in self.weights.named()}
        actions = self.actions.detach().requires_grad_()
        state, belief = self._unrolled(step, named, actions)
        wanted = [actions, named.pop("gru.w_hh[0]"), *named.values()]
        found = torch.autograd.grad(state, wanted, self.dstate)
        return [state, belief, *found[:2]]

    def _unrolled(self, step: Call, named: dict[str, Any], actions: Any) -> list[Any]:
        state, belief, states, beliefs = self.state, self.belief, [], []
        for action, noise in zip(actions, self.noise, strict=True):
            state, belief = step(named, state, belief, action, noise)
            states.append(state)
            beliefs.append(belief)
        return [torch.stack(states), torch.stack(beliefs)]


def torch_step(
    named: dict[str, Any], state: Any, belief: Any, action: Any, noise: Any
) -> tuple[Any, Any]:
    """Take one step of Dreamer v1's prior, as anybody writes it with torch.nn."""
    function = torch.nn.functional
    gru = [named[f"gru.{name}[0]"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]

    def layer(name: str, x: Any) -> Any:
        return function.linear(x, named[f"{name}.w"], named[f"{name}.b"])

    x = function.elu(layer("inputs[0]", torch.cat([state, action], -1)))
    belief = torch.gru_cell(x, belief, *gru)
    head = layer("prior[1]", function.elu(layer("prior[0]", belief)))
    mean, raw = head.chunk(2, -1)
    return mean + (function.softplus(raw) + 0.1) * noise, belief


def with_flag(name: str, value: str, call: Call) -> Any:
    """Return what a call gives with an environment variable set."""
    with flags.settings({name: value}):
        return call()


class Clock:
    """Times calls on the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def seconds(self, call: Call, times: int) -> float:
        """Return the seconds that a call takes, run `times` times."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - start) / times
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / times


def disagreement(results: dict[str, list[Any]]) -> float:
    """Return by how much two contenders differ at most, as a share of the largest entry."""
    first, *others = ([one.detach().float() for one in each] for each in results.values())
    return max(
        (
            float((one - other).abs().max() / one.abs().max())
            for each in others
            for one, other in zip(first, each, strict=True)
        ),
        default=0.0,
    )


def measure(
    problem: Problem | WorldModel, device: str, seconds: float, compiled: bool
) -> list[dict[str, Any]]:
    """Return a row for each contender in each pass."""
    clock, rows = Clock(device), []
    for what, calls in problem.contenders(device, compiled).items():
        runs: dict[str, Call] = {}
        errors: dict[str, str] = {}
        results: dict[str, list[Any]] = {}
        for name, call in calls.items():
            try:
                results[name] = call()
                call()
                runs[name] = call
            except (rnnop.RnnopError, RuntimeError) as error:
                errors[name] = f"{type(error).__name__}: {error}"
        apart = disagreement(results) if results else 0.0
        results.clear()
        times = {
            name: max(1, int(TURN / max(clock.seconds(call, 2), 1e-6)))
            for name, call in runs.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in runs}
        names, deadline = list(runs), time.monotonic() + seconds / 2
        for turn in range(MOST_ROUNDS):
            if turn >= 3 and time.monotonic() > deadline:
                break
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken[name].append(clock.seconds(runs[name], times[name]))
        for name in calls:
            row = {"problem": str(problem), **asdict(problem), "pass": what, "who": name}
            row |= {"error": errors[name]} if name in errors else spread(taken[name])
            if apart > AGREE[problem.dtype]:
                row["disagree"] = apart
            rows.append(row)
    return rows


def spread(taken: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(taken, n=4)
    return {"seconds": median, "quartile_1": low, "quartile_3": high, "rounds": len(taken)}


def facts(device: str) -> dict[str, Any]:
    """Return what was measured on, and with."""
    found: dict[str, Any] = {
        "rnnop": rnnop.__version__,
        "torch": torch.__version__,
        "torch's cuDNN": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
    }
    if device == "cuda":
        from rnnop.cudnn.library import library

        properties = torch.cuda.get_device_properties(0)
        found["device"] = (
            f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        )
        found["cuda"], found["cuDNN"] = torch.version.cuda, str(library())
    return found


def table(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = ["# rnnop and torch.nn on one GPU", ""]
    lines += [f"* {name}: {value}" for name, value in facts.items()]
    for what in ("forward", "training"):
        lines += ["", f"## {what}", "", "| problem | who | ms | of torch.nn |", "|---|---|---|---|"]
        mine = [row for row in rows if row["pass"] == what]
        peers = {
            row["problem"]: row["seconds"]
            for row in mine
            if row["who"].startswith("torch") and "seconds" in row
        }
        for row in mine:
            if "error" in row:
                lines.append(f"| {row['problem']} | {row['who']} | {row['error'][:120]} | |")
                continue
            peer = peers.get(row["problem"])
            ratio = f"{peer / row['seconds']:.2f} times as fast" if peer else ""
            odd = f", DISAGREES by {row['disagree']:.1e}" if "disagree" in row else ""
            lines.append(
                f"| {row['problem']} | {row['who']} | {1000 * row['seconds']:.3f}{odd} | {ratio} |"
            )
    return "\n".join(lines) + "\n"


@contextmanager
def full_float32() -> Iterator[None]:
    """Turn TF32 off for torch, as it is for rnnop."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=120.0, help="for all problems together")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch finds no GPU", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    every, rows = list(problems(options.device)), []
    start = time.monotonic()
    told = facts(options.device)
    with full_float32():
        for number, problem in enumerate(every):
            left = options.seconds - (time.monotonic() - start)
            if left <= 0:
                print(f"no time left for {len(every) - number} problems", file=sys.stderr)
                break
            share = left / (len(every) - number)
            rows += measure(problem, options.device, share, options.compiled)
            results = {"facts": told, "rows": rows}
            (options.output / "gpu.json").write_text(json.dumps(results, indent=1))
            (options.output / "gpu.md").write_text(table(told, rows))
    print(table(told, rows))
    return int(any("error" in row or "disagree" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
