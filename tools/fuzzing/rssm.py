"""The world model: one call for every seed, right or wrong, and what must come of it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rnnop
from rnnop import rssm
from rnnop.tolerances import TOLERANCES

from . import judge
from .calls import DTYPES, NO_ARRAYS, NO_OPTIONS, Array, Draw, in_another_shape
from .judge import Fault, Results

FORMS = ("step", "rollout", "imagine", "observe")
WRONG_SPECS = (None, 0, -1, True, 1.5, 10**400, float("nan"), float("inf"), "x", b"gru", [], 7)


@dataclass(frozen=True)
class Call:
    """One call of the RSSM: its arguments by their names, and what is to be done with it."""

    form: str
    weights: Any
    given: dict[str, Any]
    dtype: str
    vjp: bool
    exact: bool
    wrong: str = ""
    refuse: bool = False

    def run(self, backend: str, vjp: bool = False, **changes: Any) -> Any:
        """Run it."""
        function = getattr(rssm, self.form + ("_vjp" if vjp else ""))
        given = self.given | changes
        if isinstance(given.get("actor"), Actor):
            given["actor"] = given["actor"].with_vjp if vjp else given["actor"].plain
        return function(self.weights, **given, backend=backend)

    def map(self, function: Callable[[Array], Array]) -> Call:
        """Return it with a function applied to every array of numbers."""
        given = {
            name: function(value) if isinstance(value, np.ndarray) and name != "is_first" else value
            for name, value in self.given.items()
        }
        return replace(self, weights=self.weights.map(function), given=given)


@dataclass(frozen=True)
class Actor:
    """action = tanh(P state + Q belief), with its own gradient; sometimes what no actor returns."""

    p: Array
    q: Array
    returns: Any = None
    blind: bool = False

    def plain(self, state: Array, belief: Array) -> Any:
        """Return the action."""
        if self.returns is not None:
            return self.returns
        wide = np.asarray(state, np.float64) @ self.p.T + np.asarray(belief, np.float64) @ self.q.T
        return np.tanh(wide).astype(state.dtype)

    def with_vjp(self, state: Array, belief: Array) -> Any:
        """Return the action and its vjp."""
        action = self.plain(state, belief)
        if self.returns is not None:
            return action, lambda d: (d, d)

        def vjp(daction: Array) -> tuple[Any, ...]:
            d = np.asarray(daction, np.float64) * (1 - np.asarray(action, np.float64) ** 2)
            if self.blind:
                return None, None
            return (d @ self.p).astype(state.dtype), (d @ self.q).astype(state.dtype)

        return action, vjp


def draw(seed: int) -> Call:
    """Return the call that follows from a seed.

    Raises
    ------
    RnnopError
        Its spec was made a wrong one.
    """
    d = Draw(seed)
    spec = rssm.RSSMSpec(**_fields(d))
    form = d.one(FORMS if spec.embed_size else FORMS[:3])
    T, N = (0 if d.chance(0.03) else min(d.size(), d.size()) for _ in range(2))
    T = 1 if form == "step" else max(T, 1) if form == "imagine" else T
    fresh = rssm.init_weights(spec, learned_initial=d.chance(0.4), dtype="float64", seed=seed)
    weights = fresh.map(lambda array: d.around(array))
    given: dict[str, Any] = {
        "state": d.array(N, spec.state_size) if d.chance(0.6) else None,
        "belief": d.array(N, spec.belief_size) if d.chance(0.6) or form == "imagine" else None,
    }
    first = form != "step" and d.chance(0.3)
    leading = (N,) if form == "step" else (N, T) if first else (T, N)
    if form == "imagine":
        p, q = (
            d.random.standard_normal((spec.action_size, n))
            for n in (spec.state_size, spec.belief_size)
        )
        given |= {"actor": Actor(0.2 * p, 0.2 * q, blind=d.chance(0.2)), "horizon": T}
    else:
        given["action" if form == "step" else "actions"] = d.array(*leading, spec.action_size)
    if form == "observe":
        given["embeds"] = d.array(*leading, spec.embed_size)
    if form in ("rollout", "observe") and d.chance(0.6):
        given["is_first"] = d.laid_out(d.random.random(leading) < d.one([0.1, 0.4, 1.0]))
    if d.chance(0.7):
        shape = (*leading, spec.noise_size)
        uniform = spec.latent == "categorical"
        noise = d.random.random(shape) * 0.999 if uniform else d.random.standard_normal(shape)
        given["noise"] = d.laid_out(noise.astype(DTYPES[d.dtype]))
    else:
        given["seed"] = int(d.random.integers(2**40))
    if first:
        given["batch_first"] = True
    call = Call(form, weights, given, d.dtype, d.chance(0.5), d.exact)
    return _wrong(d, call) if d.chance(0.25) else call


def _fields(d: Draw) -> dict[str, Any]:
    cell, latent = d.one(rssm.spec.CELLS), d.one(rssm.spec.LATENTS)
    classes, blocks = (d.one([1, 2, 3, 5]) if latent == "categorical" else None), 1
    fields: dict[str, Any] = {
        "state_size": d.size() * (classes or 1),
        "belief_size": d.size(),
        "action_size": d.size(),
        "embed_size": d.one([0, d.size(), d.size()]),
        "hidden_size": d.size(),
        "cell": cell,
        "latent": latent,
        "num_classes": classes,
        "unimix": d.one([0.0, 0.01, 0.5]) if classes else 0.0,
        "std": d.one(rssm.spec.STD_RULES),
        "min_std": d.one([0.1, 0.0, 0.5]),
        "activation": d.one(rssm.spec.ACTIVATIONS),
        "norm": d.one(rssm.spec.NORMS),
        "posterior_norm": d.one([None, *rssm.spec.NORMS]),
        "norm_eps": d.one([1e-3, 1e-4, 0.1]),
        "prior_layers": d.one([1, 1, 2]),
        "posterior_layers": d.one([1, 1, 3]),
    }
    if cell == "block_gru":
        blocks = d.one([1, 2, 3])
        fields |= {"num_blocks": blocks, "dynamics_layers": d.one([1, 2])}
        fields["belief_size"] *= blocks
    else:
        fields["input_layers"] = d.one([1, 1, 2])
    if d.chance(0.05):
        fields[d.one(list(fields))] = d.one(WRONG_SPECS)
    return fields


def _wrong(d: Draw, call: Call) -> Call:
    """Return the call with something changed: mostly it becomes a wrong one."""
    kind = d.one(["option", "array", "shape", "shape", "dtype", "weights", "actor", "name"])
    call = replace(call, exact=False, vjp=False, wrong=kind)
    given = dict(call.given)
    arrays = [n for n in given if isinstance(given[n], np.ndarray) and n != "is_first"]
    if kind == "name":
        given[d.one(["masks", "h0", "lengths", ""])] = 1
        return replace(call, given=given, refuse=True)
    if kind == "option":
        names = ["seed", "batch_first", "is_first", "horizon"]
        names = ["seed"] if call.form == "step" else names[:2] if call.form == "imagine" else names
        names = [*names[:2], "horizon"] if call.form == "imagine" else names[:3]
        given[d.one(names)] = d.one(NO_OPTIONS)
    elif kind == "actor" and call.form == "imagine":
        returns = [*NO_ARRAYS[1:], np.zeros((1, 1, 1), DTYPES[call.dtype]), (None, None)]
        given["actor"] = d.one([replace(given["actor"], returns=d.one(returns)), *NO_OPTIONS])
    elif kind == "weights":
        named = dict(call.weights.named())
        name = d.one(list(named))
        changed = in_another_shape(d, named[name]) if d.chance(0.5) else d.one(NO_ARRAYS)
        try:
            weights = rssm.RSSMWeights.of_arrays(call.weights.spec, named | {name: changed})
        except rnnop.RnnopError:
            weights = d.one(NO_ARRAYS)
        same = [getattr(each, "shape", None) for each in (changed, named[name])]
        return replace(call, weights=weights, refuse=changed is not None and same[0] != same[1])
    elif kind == "dtype" and arrays:
        name = d.one(arrays)
        others = [dtype for each, dtype in DTYPES.items() if each != call.dtype]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given[name] = given[name].astype(d.one([*others, np.int32, bool, object]))
        return replace(call, given=given, refuse=True)
    elif kind == "shape" and arrays:
        name = d.one(arrays)
        given[name] = in_another_shape(d, given[name])
    else:
        given[d.one(list(given))] = d.one(NO_ARRAYS)
    return replace(call, given=given)


def one(seed: int, tally: Counter[str]) -> None:
    """Make the call of a seed and judge it.

    Raises
    ------
    Fault
        Something came of it that must not.
    """
    try:
        call = draw(seed)
    except rnnop.SpecError:
        tally["no such spec"] += 1
        return
    results = judge.of_both(call, _outcome, _arrays(call), tally)
    if results is None:
        return
    got, _ = results
    if any(call.given.get(name) is not None for name in ("noise", "seed")):
        _compare_ways(call, got, tally)
    if call.exact:
        _compare(call, got, tally)


def _compare_ways(call: Call, got: Results, tally: Counter[str]) -> None:
    """Call again, and with one row alone, which must give the same bits."""
    again = _outcome(call, "cpu")
    if isinstance(again, Exception):
        raise Fault(f"the same call was refused: {again}") from again
    for name, array in got.items():
        if array.tobytes() != again[name].tobytes():
            raise Fault(f"{name} has other bits the second time")
    axis = 0 if call.form == "step" or call.given.get("batch_first") else 1
    rows = got["belief"].shape[axis]
    if call.wrong or not rows or "noise" not in call.given:
        return
    row = [len(got["belief"]) % rows]
    alone = {
        name: np.take(value, row, 0 if name in ("state", "belief") else axis)
        for name, value in call.given.items()
        if isinstance(value, np.ndarray)
    }
    tally["a row compared with itself alone"] += 1
    actor = {}
    if call.form == "imagine":  # NumPy's products round otherwise for one row: replay the actions
        played = iter(np.moveaxis(np.take(got["action"], row, axis), axis, 1))
        actor = {"actor": lambda state, belief: next(played)}
    other = _outputs(call.run("cpu", **alone, **actor))
    for name, array in got.items():
        if np.take(array, row, axis).tobytes() != other[name].tobytes():
            raise Fault(f"{name} of row {row[0]} has other bits than that of the row alone")


def _compare(call: Call, got: Results, tally: Counter[str]) -> None:
    """Compare with the reference in float64."""
    wide, dtype = call.map(lambda array: np.asarray(array, np.float64)), call.dtype
    grads: Results = {}
    if call.vjp:
        tally["compared with gradients"] += 1
        out, grads = _with_gradients(call, "cpu")
        for name, array in out.items():
            if array.tobytes() != got[name].tobytes():
                raise Fault(f"{name} of the vjp has other bits than that of the call")

    def all_of(call: Call) -> Results:
        if not grads:
            return _outputs(call.run("reference"))
        out, found = _with_gradients(call, "reference", dtype)
        return out | found

    def right(change: Callable[[Array], Array]) -> Results:
        return all_of(wide.map(change))

    wanted = right(lambda array: array)
    if call.weights.spec.latent == "categorical" and not np.array_equal(
        got["state"], wanted["state"]
    ):
        _must_be_a_tie(call, wanted)
        tally["another class was drawn, at a tie"] += 1
        return
    tally["compared"] += 1
    steps = max(1, got["belief"].size // got["belief"].shape[-1])
    judge.hold("cpu", dtype, got | grads, wanted, right, steps, lambda: all_of(call))


def _must_be_a_tie(call: Call, wanted: Results) -> None:
    """Refuse another class unless somewhere a cumulative probability is as good as the noise."""
    spec = call.weights.spec
    noise = call.given.get("noise")
    if noise is None:
        layout = [*wanted["belief"].shape[:-1]]
        order = layout[::-1] if call.given.get("batch_first") else layout
        order = [1, *order] if call.form == "step" else order
        noise = rssm.noise.draw(spec, call.given["seed"], *order)
        noise = noise[0] if call.form == "step" else noise
        noise = noise.swapaxes(0, 1) if call.given.get("batch_first") else noise
    logits = wanted["posterior_logits" if call.form == "observe" else "logits"]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = (1 - spec.unimix) * p / p.sum(-1, keepdims=True) + spec.unimix / logits.shape[-1]
    gap = np.abs(np.cumsum(p, -1)[..., :-1] - np.asarray(noise, np.float64)[..., None])
    if not gap.min(initial=1.0) < 10 * TOLERANCES["cpu", call.dtype]:
        raise Fault(f"another class was drawn, though none is nearer than {gap.min(initial=1.0)}")


def _outcome(call: Call, backend: str) -> Results | Exception:
    try:
        with np.errstate(all="ignore"):
            return _outputs(call.run(backend))
    except (rnnop.RnnopError, TypeError) as error:
        if not isinstance(error, rnnop.RnnopError) and call.wrong != "name":
            raise Fault(f"Python's own error: {error}") from error
        return error


def _outputs(out: Any) -> Results:
    named: Results = out._asdict()
    for name, array in named.items():
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            raise Fault(f"{name} is no plain contiguous array")
    return named


def _with_gradients(call: Call, backend: str, dtype: str | None = None) -> tuple[Results, Results]:
    out, vjp = call.run(backend, vjp=True)
    named = _outputs(out)
    grads = vjp(*judge.cotangents_of(named, dtype or call.dtype).values())
    found = {}
    for name in ("state", "belief", "actions", "embeds"):
        if getattr(grads, name) is not None:
            found[f"d{name} before" if name in ("state", "belief") else f"d{name}"] = getattr(
                grads, name
            )
    kinds: dict[str, list[Array]] = {}
    for name, array in grads.weights.named():
        kinds.setdefault(name.partition("[")[0].partition(".")[0], []).append(array.ravel())
    return named, found | {f"d{kind}": np.concatenate(each) for kind, each in kinds.items()}


def _arrays(call: Call) -> list[Array]:
    arrays = [each for each in call.given.values() if isinstance(each, np.ndarray)]
    if isinstance(call.weights, rssm.RSSMWeights):
        arrays += [array for _, array in call.weights.named()]
    return arrays
