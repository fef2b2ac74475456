"""What is measured of `rnnop.rssm`: TorchRL's Gaussian model, three of its forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import rssm

Array = npt.NDArray[np.float32]

ACTOR_WIDTH = 200
ACTION_SIZE = 6

GROUPS = {
    "rssm": "RSSM",
    "rssm scale T": "RSSM: scaling with the number of steps",
    "rssm scale N": "RSSM: scaling with the batch size",
    "rssm scale H": "RSSM: scaling with the belief",
}
CURVES = ("rssm scale T", "rssm scale N", "rssm scale H")


@dataclass(frozen=True)
class RSSMCase:
    """One problem, and what is done with it; hidden layers and embeddings are as wide as beliefs.

    Attributes
    ----------
    group : str
        The table that it belongs to: a key of `GROUPS`, or 'memory'.
    work : str
        'forward', inference; 'training', forward and the gradients of all weights and inputs.
    form : str
        'rollout', 'observe' or 'imagine', with an actor of two layers.
    batch_size, num_steps, belief_size, state_size : int
        N, T, H and S.
    """

    group: str
    work: str
    form: str
    batch_size: int
    num_steps: int
    belief_size: int
    state_size: int

    @property
    def problem(self) -> str:
        """The problem, without the work, as a row of a table is called."""
        sizes = (self.batch_size, self.num_steps, self.belief_size, self.state_size)
        return f"{self.form} {','.join(map(str, sizes))}"

    @property
    def name(self) -> str:
        """The name that `--only` looks at."""
        prefix = "" if self.group.startswith("rssm") else "rssm "
        return f"{prefix}{self.group} {self.work} {self.problem}"

    @property
    def real_steps(self) -> int:
        """All of them."""
        return self.batch_size * self.num_steps

    @property
    def fill(self) -> float:
        """The share of the steps that is real: all."""
        return 1.0

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products; three times as many in training."""
        H, S, A = self.belief_size, self.state_size, ACTION_SIZE
        step = H * (S + A) + 6 * H * H + H * H + 2 * S * H
        if self.form == "observe":
            step += 2 * H * H + 2 * S * H
        if self.form == "imagine":
            step += ACTOR_WIDTH * (S + H + A)
        return self.real_steps * 2 * step * (3 if self.work == "training" else 1)

    @property
    def spec(self) -> rssm.RSSMSpec:
        """The model."""
        H = self.belief_size
        return rssm.RSSMSpec.of(
            "torchrl",
            state_size=self.state_size,
            belief_size=H,
            action_size=ACTION_SIZE,
            embed_size=H,
            hidden_size=H,
        )


@dataclass(frozen=True, eq=False)
class RSSMInputs:
    """The arrays of a case, float32 and time-major: the same numbers for everyone.

    Attributes
    ----------
    case : RSSMCase
        Whose they are.
    weights : RSSMWeights
        Of the model.
    arrays : dict of str to array
        'state' and 'belief' before the first step, 'noise', and 'actions' and 'embeds' where the
        form has them.
    actor : dict of str to array
        'w1', 'b1', 'w2' and 'b2' of action = tanh(w2 elu(w1 [state, belief] + b1) + b2).
    cotangents : dict of str to array
        One for every output.
    real : bool (T, N)
        True: there is no padding.
    """

    case: RSSMCase
    weights: rssm.RSSMWeights
    arrays: dict[str, Any]
    actor: dict[str, Array]
    cotangents: dict[str, Array]

    @property
    def real(self) -> npt.NDArray[np.bool_]:
        """See the class."""
        return np.ones((self.case.num_steps, self.case.batch_size), bool)


def draw(case: RSSMCase) -> RSSMInputs:
    """Draw the arrays of a case, the same at each call."""
    generator = np.random.default_rng(0)
    T, N, H, S = case.num_steps, case.batch_size, case.belief_size, case.state_size

    def normal(*shape: int) -> Array:
        return generator.standard_normal(shape, np.float32)

    def layer(rows: int, columns: int) -> Array:
        drawn: Array = normal(rows, columns) / np.float32(np.sqrt(columns))
        return drawn

    arrays: dict[str, Any] = {
        "state": normal(N, S),
        "belief": np.tanh(normal(N, H)),
        "noise": normal(T, N, S),
    }
    if case.form != "imagine":
        arrays["actions"] = normal(T, N, ACTION_SIZE)
    if case.form == "observe":
        arrays["embeds"] = normal(T, N, H)
    actor = {"w1": layer(ACTOR_WIDTH, S + H), "b1": normal(ACTOR_WIDTH)}
    actor |= {"w2": layer(ACTION_SIZE, ACTOR_WIDTH), "b2": normal(ACTION_SIZE)}
    prefixes = ("prior_", "posterior_") if case.form == "observe" else ("",)
    sizes: dict[str, int] = {
        f"{prefix}{name}": S for prefix in prefixes for name in ("mean", "std")
    }
    sizes |= {"state": S, "belief": H}
    if case.form == "imagine":
        sizes["action"] = ACTION_SIZE
    cotangents = {name: normal(T, N, size) for name, size in sizes.items()}
    weights = rssm.init_weights(case.spec, seed=0)
    return RSSMInputs(case, weights, arrays, actor, cotangents)


def gradients(grads: dict[str, Any]) -> dict[str, Any]:
    """Return gradients under names that no output has."""
    return {f"d{name}": array for name, array in grads.items()}


_SIZES = ((1, 50, 200, 30), (50, 50, 200, 30), (16, 64, 512, 32), (2500, 15, 200, 30))  # N,T,H,S
_WORKS = ("forward", "training")


def every() -> Iterator[RSSMCase]:
    """Yield all cases, group by group."""
    for work in _WORKS:
        for sizes in _SIZES:
            yield RSSMCase("rssm", work, "rollout", *sizes)
        yield RSSMCase("rssm", work, "observe", 1, 50, 200, 30)
        yield RSSMCase("rssm", work, "observe", 16, 64, 512, 32)
        yield RSSMCase("rssm", work, "imagine", 50, 15, 200, 30)
        yield RSSMCase("rssm", work, "imagine", 2500, 15, 200, 30)
    for work in _WORKS:
        for T in (16, 32, 64, 128):
            yield RSSMCase("rssm scale T", work, "rollout", 16, T, 200, 30)
        for N in (1, 4, 16, 64):
            yield RSSMCase("rssm scale N", work, "rollout", N, 50, 200, 30)
        for H in (64, 128, 256, 512):
            yield RSSMCase("rssm scale H", work, "rollout", 16, 50, H, 30)
    for form in ("rollout", "observe"):
        for work in _WORKS:
            yield RSSMCase("memory", work, form, 16, 64, 512, 32)
