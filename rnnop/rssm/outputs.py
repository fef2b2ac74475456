"""What the calls return, named tuples in the order of their owners."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays import Array


class GaussianPrior(NamedTuple):
    """What `step` and `rollout` return with a Gaussian latent.

    Attributes
    ----------
    mean, std : array (T, N, S)
        Of the prior, from which the state is drawn. (N, T, .) with `batch_first`, here and below;
        (N, .) from `step`.
    state : array (T, N, S)
        After each step: mean + std * noise.
    belief : array (T, N, H)
        After each step.
    """

    mean: Array
    std: Array
    state: Array
    belief: Array


class CategoricalPrior(NamedTuple):
    """What `step` and `rollout` return with a categorical latent.

    Attributes
    ----------
    logits : array (T, N, S / K, K)
        Of the prior, from which the state is drawn; `unimix` is not in them. (N, T, .) with
        `batch_first`, here and below; (N, .) from `step`.
    state : array (T, N, S)
        After each step: one-hot vectors side by side.
    belief : array (T, N, H)
        After each step.
    """

    logits: Array
    state: Array
    belief: Array


class GaussianImagination(NamedTuple):
    """What `imagine` returns with a Gaussian latent.

    Attributes
    ----------
    mean, std, state, belief : array
        As in `GaussianPrior`.
    action : array (T, N, A)
        What the actor did at each step, from the state and belief before it.
    """

    mean: Array
    std: Array
    state: Array
    belief: Array
    action: Array


class CategoricalImagination(NamedTuple):
    """What `imagine` returns with a categorical latent.

    Attributes
    ----------
    logits, state, belief : array
        As in `CategoricalPrior`.
    action : array (T, N, A)
        What the actor did at each step, from the state and belief before it.
    """

    logits: Array
    state: Array
    belief: Array
    action: Array


class GaussianObservation(NamedTuple):
    """What `observe` returns with a Gaussian latent.

    Attributes
    ----------
    prior_mean, prior_std : array (T, N, S)
        What the model expects before it sees the embedding. (N, T, .) with `batch_first`, here and
        below.
    posterior_mean, posterior_std : array (T, N, S)
        What it knows after it; the state is drawn from this.
    state : array (T, N, S)
        After each step.
    belief : array (T, N, H)
        After each step.
    """

    prior_mean: Array
    prior_std: Array
    posterior_mean: Array
    posterior_std: Array
    state: Array
    belief: Array


class CategoricalObservation(NamedTuple):
    """What `observe` returns with a categorical latent.

    Attributes
    ----------
    prior_logits : array (T, N, S / K, K)
        What the model expects before it sees the embedding. (N, T, .) with `batch_first`, here and
        below.
    posterior_logits : array (T, N, S / K, K)
        What it knows after it; the state is drawn from this.
    state : array (T, N, S)
        After each step: one-hot vectors side by side.
    belief : array (T, N, H)
        After each step.
    """

    prior_logits: Array
    posterior_logits: Array
    state: Array
    belief: Array


OUTPUTS: dict[tuple[str, str], Any] = {
    ("rollout", "gaussian"): GaussianPrior,
    ("rollout", "categorical"): CategoricalPrior,
    ("imagine", "gaussian"): GaussianImagination,
    ("imagine", "categorical"): CategoricalImagination,
    ("observe", "gaussian"): GaussianObservation,
    ("observe", "categorical"): CategoricalObservation,
}
