"""The calls: `step`, `rollout`, `imagine`, `observe`, and each with its vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from .. import arrays, frameworks
from ..arrays import Array
from ..errors import blame
from ..spec import check_bool
from . import shortcut
from .call import Call, make_call, plain_weights
from .mlp_actor import MLPActor
from .outputs import (
    CategoricalImagination,
    CategoricalObservation,
    CategoricalPrior,
    GaussianImagination,
    GaussianObservation,
    GaussianPrior,
)
from .weights import PrepackedRSSMWeights, RSSMGrads, RSSMWeights

Prior: TypeAlias = GaussianPrior | CategoricalPrior
Imagination: TypeAlias = GaussianImagination | CategoricalImagination
Observation: TypeAlias = GaussianObservation | CategoricalObservation


@dataclass(frozen=True, eq=False, repr=False)
class RSSMVJP:
    """The vector-Jacobian product of one call."""

    _call: Call
    _saved: Any

    def __call__(self, *cotangents: Array | None, **named: Array | None) -> RSSMGrads:
        """Return the gradients of the sum of every output times its cotangent.

        Parameters
        ----------
        *cotangents : array or None
            In the order of the outputs; None, and what is left out, stands for zeros.
        **named : array or None
            Or by name: `dstate` is the cotangent of the output `state`.

        Returns
        -------
        RSSMGrads
            Gradients of the weights and of every input.
        """
        call = self._call
        with blame("vjp", call.spec):
            given = call.cotangents(cotangents, named)
            return call.grads(call.backend.backward(call.problem, self._saved, given))


def order_of(batch_first: object) -> str:
    """Return how a caller with `batch_first` has time and rows, see `Layout`."""
    check_bool("batch_first", batch_first)
    return "batch_first" if batch_first else "time_first"


def direct(
    form: str,
    order: str,
    weights: Any,
    state: Any,
    belief: Any,
    noise: Any,
    seed: Any,
    backend: str,
    **rest: Any,
) -> Any:
    """Run a call as its arrays come, see `make_call`; one like it may have been here before."""
    key = shortcut.key(form, order, weights, backend, rest)
    found = None if key is None else weights.shortcuts.get(key)
    if found is not None:
        out = found(state, belief, noise, seed, rest["actions"], rest.get("embeds"))
        if out is not None:
            return out
    call = make_call(form, order, weights, state, belief, noise, seed, backend, **rest)
    steps, _ = call.backend.forward(call.problem, keep=False)
    if key is not None and key not in weights.shortcuts:
        shortcut.keep(key, weights, call)
    return call.outputs(steps)


def direct_vjp(*given: Any, **rest: Any) -> tuple[Any, RSSMVJP]:
    """Run a call as its arrays come, and return its vector-Jacobian product beside the output."""
    call = make_call(*given, **rest)
    steps, saved = call.backend.forward(call.problem, keep=True)
    return call.outputs(steps), RSSMVJP(call, saved)


def _by(name: str, weights: Any, backend: str) -> Callable[..., Any] | None:
    """Return a function of the adapter for calls with such weights, or None if they need none."""
    if not isinstance(weights, RSSMWeights | PrepackedRSSMWeights):
        return None
    weights = plain_weights(weights)
    with blame(spec=weights.spec):
        # The operator has no backend `cuda`.
        adapter = frameworks.adapter(weights.prior[0].w, "auto" if backend == "cuda" else backend)
    return None if adapter is None else cast(Callable[..., Any], getattr(adapter.rssm, name))


def _run(form: str, order: str, weights: Any, *given: Any, **rest: Any) -> Any:
    """Run a call; the arguments are those of `make_call`."""
    run = _by("run", weights, backend=given[-1])
    if run is None:
        return direct(form, order, weights, *given, **rest)
    return run(form, order, plain_weights(weights), *given, **rest)


def _run_vjp(form: str, order: str, weights: Any, *given: Any, **rest: Any) -> tuple[Any, RSSMVJP]:
    """Likewise, and return its vector-Jacobian product beside the output."""
    run = _by("run_vjp", weights, backend=given[-1])
    if run is None:
        return direct_vjp(form, order, weights, *given, **rest)
    if isinstance(rest.get("actor"), MLPActor):
        rest["actor"] = rest["actor"].with_vjp
    plain = plain_weights(weights)
    return cast(tuple[Any, RSSMVJP], run(form, order, plain, *given, **rest))


def step(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    action: Array,
    noise: Array | None = None,
    *,
    seed: int | None = None,
    backend: str = "auto",
) -> Prior:
    """Take one step of the prior: what comes after `action`, as far as the model knows.

    Parameters
    ----------
    weights : RSSMWeights or PrepackedRSSMWeights
        They also say which model it is, and every size.
    state : array (N, S) or None
        Stochastic state; None for the weights' initial one, or zeros.
    belief : array (N, H) or None
        Deterministic state, likewise.
    action : array (N, A)
        What is done from there.
    noise : array (N, S), or (N, S / K) of a categorical latent, optional
        Standard normals, or uniforms in [0, 1); drawn from `seed` by default.
    seed : int, optional
        Makes the drawn noise reproducible; not used beside `noise`. The same seed gives the same
        noise in every call: a loop over steps needs another each time.
    backend : {'auto', 'cpu', 'cuda', 'reference'}
        A backend that is named runs, or raises with the reason.

    Returns
    -------
    GaussianPrior or CategoricalPrior
        (mean, std, state, belief) or (logits, state, belief), without a time axis.

    Raises
    ------
    ShapeError
        An array has the wrong shape.
    DTypeError
        An argument has the wrong type, dtype, device or array family.
    SpecError
        An option is unknown or out of range.
    UnsupportedError
        The backend that was named cannot run the call.

    Notes
    -----
    With a GRU cell and a Gaussian latent (TorchRL's names; see docs/rssm.md for the others)::

        x = act(W_in [state, action] + b)
        belief = GRU(x, belief)
        mean, x = W_2 act(W_1 belief + b_1) + b_2
        std = rule(x);  state = mean + std * noise

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> out = rssm.step(weights, None, None, np.ones((4, 2), np.float32), seed=0)
    >>> out.mean.shape, out.std.shape, out.state.shape, out.belief.shape
    ((4, 3), (4, 3), (4, 3), (4, 8))
    """
    with blame("step"):
        out: Prior = _run(
            "rollout", "step", weights, state, belief, noise, seed, backend, actions=action
        )
        return out


def step_vjp(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    action: Array,
    noise: Array | None = None,
    *,
    seed: int | None = None,
    backend: str = "auto",
) -> tuple[Prior, RSSMVJP]:
    """Run `step`, and return its vector-Jacobian product beside the output.

    The arguments are those of `step`.

    Returns
    -------
    GaussianPrior or CategoricalPrior
        As from `step`.
    RSSMVJP
        ``vjp(dmean, dstd, dstate, dbelief)``, or ``vjp(dlogits, dstate, dbelief)``, each by
        position or by name, returns `RSSMGrads`. It may be called any number of times.
    """
    with blame("step_vjp"):
        return _run_vjp(
            "rollout", "step", weights, state, belief, noise, seed, backend, actions=action
        )


def rollout(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actions: Array,
    noise: Array | None = None,
    seed: int | None = None,
    is_first: Any = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> Prior:
    """Take T steps of the prior with known actions: each starts from the state of the one before.

    Parameters
    ----------
    weights : RSSMWeights or PrepackedRSSMWeights
        They also say which model it is, and every size.
    state : array (N, S) or None
        Stochastic state before the first step; None for the weights' initial one, or zeros.
    belief : array (N, H) or None
        Deterministic state, likewise.
    actions : array (T, N, A), or (N, T, A) with `batch_first`
        What is done at each step.
    noise : array (T, N, S), or (T, N, S / K) of a categorical latent, optional
        Standard normals, or uniforms in [0, 1); with `batch_first` the rows first. Drawn from
        `seed` by default.
    seed : int, optional
        Makes the drawn noise reproducible, whatever the layout; not used beside `noise`. The same
        seed gives the same noise in every call.
    is_first : bool (T, N), or (N, T) with `batch_first`, optional
        True where a new episode begins: there the row's state and belief are the initial ones, or
        zeros, and its action is zero.
    batch_first : bool
        Whether actions, noise, is_first and all results have the rows first.
    backend : {'auto', 'cpu', 'cuda', 'reference'}
        A backend that is named runs, or raises with the reason.

    Returns
    -------
    GaussianPrior or CategoricalPrior
        (mean, std, state, belief) or (logits, state, belief) of every step, fresh and
        C-contiguous.

    Raises
    ------
    RnnopError
        As from `step`.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> out = rssm.rollout(weights, None, None, np.ones((5, 4, 2), np.float32), seed=0)
    >>> out.mean.shape, out.belief.shape
    ((5, 4, 3), (5, 4, 8))
    """
    with blame("rollout"):
        order = order_of(batch_first)
        given = {"actions": actions, "is_first": is_first}
        out: Prior = _run("rollout", order, weights, state, belief, noise, seed, backend, **given)
        return out


def rollout_vjp(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actions: Array,
    noise: Array | None = None,
    seed: int | None = None,
    is_first: Any = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> tuple[Prior, RSSMVJP]:
    """Run `rollout`, and return its vector-Jacobian product beside the output.

    The arguments are those of `rollout`.

    Returns
    -------
    GaussianPrior or CategoricalPrior
        As from `rollout`.
    RSSMVJP
        As from `step_vjp`. Nothing flows across the begin of an episode.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> out, vjp = rssm.rollout_vjp(weights, None, None, np.ones((5, 4, 2), np.float32), seed=0)
    >>> grads = vjp(dstate=np.ones_like(out.state))
    >>> grads.actions.shape, grads.weights.prior[0].w.shape
    ((5, 4, 2), (8, 8))
    """
    with blame("rollout_vjp"):
        order = order_of(batch_first)
        given = {"actions": actions, "is_first": is_first}
        return _run_vjp("rollout", order, weights, state, belief, noise, seed, backend, **given)


def imagine(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actor: Callable[[Array, Array], Array],
    horizon: int,
    noise: Array | None = None,
    seed: int | None = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> Imagination:
    """Take steps of the prior with the actions of an actor, which sees where it is.

    Parameters
    ----------
    weights : RSSMWeights or PrepackedRSSMWeights
        They also say which model it is, and every size.
    state : array (N, S) or None
        Stochastic state before the first step; None for the weights' initial one, or zeros. Not
        None if `belief` is.
    belief : array (N, H) or None
        Deterministic state, likewise.
    actor : callable
        ``actor(state, belief)`` returns the action (N, A), of their family, dtype and device. It
        is called once a step, in order; it changes neither argument, and nobody changes what it
        returned. An `MLPActor` need not be called: the engine has it in its loop.
    horizon : int
        T, at least 1.
    noise : array (T, N, S), or (T, N, S / K) of a categorical latent, optional
        As of `rollout`.
    seed : int, optional
        As of `rollout`.
    batch_first : bool
        Whether noise and all results have the rows first.
    backend : {'auto', 'cpu', 'cuda', 'reference'}
        A backend that is named runs, or raises with the reason.

    Returns
    -------
    GaussianImagination or CategoricalImagination
        (mean, std, state, belief, action) or (logits, state, belief, action) of every step.

    Raises
    ------
    RnnopError
        As from `step`; also if the actor returns something else than an action.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> def actor(state, belief):
    ...     return np.tanh(belief[:, :2])
    >>> out = rssm.imagine(weights, None, np.zeros((4, 8), np.float32), actor, 15, seed=0)
    >>> out.state.shape, out.action.shape
    ((15, 4, 3), (15, 4, 2))
    """
    with blame("imagine"):
        order = order_of(batch_first)
        given = {"actor": actor, "horizon": horizon, "has_vjp": False}
        out: Imagination = _run(
            "imagine", order, weights, state, belief, noise, seed, backend, **given
        )
        return out


def imagine_vjp(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actor: Callable[[Array, Array], tuple[Array, Callable[..., Any]]],
    horizon: int,
    noise: Array | None = None,
    seed: int | None = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> tuple[Imagination, RSSMVJP]:
    r"""Run `imagine`, and return its vector-Jacobian product beside the output.

    The arguments are those of `imagine`, but for the actor, which brings its own vjp.

    Parameters
    ----------
    actor : callable
        ``actor(state, belief)`` returns (action, actor_vjp). ``actor_vjp(daction)`` returns
        (dstate, dbelief, \*dparameters): the gradients of its two arguments, either of them None
        for zeros, and as many more arrays as it likes, the gradients of its own parameters. An
        `MLPActor` is taken as it is.

    Returns
    -------
    GaussianImagination or CategoricalImagination
        As from `imagine`.
    RSSMVJP
        ``vjp(dmean, dstd, dstate, dbelief, daction)``, or with dlogits, as from `step_vjp`.
        ``grads.actor`` is the sum over all steps of the actor's own gradients.

    Notes
    -----
    An actor that returns None for dstate and dbelief takes them as constants, as Dreamer v3's does.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.init_weights(spec, dtype="float64", seed=0)
    >>> w = np.full((2, 8), 0.1)
    >>> def actor(state, belief):
    ...     action = np.tanh(belief @ w.T)
    ...     def actor_vjp(daction):
    ...         d = daction * (1 - action**2)
    ...         return None, d @ w, d.T @ belief
    ...     return action, actor_vjp
    >>> out, vjp = rssm.imagine_vjp(weights, None, np.zeros((4, 8)), actor, 15, seed=0)
    >>> vjp(dstate=np.ones_like(out.state)).actor[0].shape
    (2, 8)
    """
    with blame("imagine_vjp"):
        order = order_of(batch_first)
        given = {"actor": actor, "horizon": horizon, "has_vjp": True}
        return _run_vjp("imagine", order, weights, state, belief, noise, seed, backend, **given)


def observe(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actions: Array,
    embeds: Array,
    is_first: Any = None,
    noise: Array | None = None,
    seed: int | None = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> Observation:
    """Take T steps with known actions and observations: each starts from the posterior before it.

    Parameters
    ----------
    weights : RSSMWeights or PrepackedRSSMWeights
        They also say which model it is, and every size; it has a posterior.
    state : array (N, S) or None
        Stochastic state before the first step; None for the weights' initial one, or zeros.
    belief : array (N, H) or None
        Deterministic state, likewise.
    actions : array (T, N, A), or (N, T, A) with `batch_first`
        At each step the action that led to its observation, the *previous* action.
    embeds : array (T, N, E), or (N, T, E) with `batch_first`
        The embedded observation of each step.
    is_first : bool (T, N), or (N, T) with `batch_first`, optional
        As of `rollout`.
    noise : array (T, N, S), or (T, N, S / K) of a categorical latent, optional
        As of `rollout`; it draws the posterior's state.
    seed : int, optional
        As of `rollout`.
    batch_first : bool
        Whether actions, embeds, noise, is_first and all results have the rows first.
    backend : {'auto', 'cpu', 'cuda', 'reference'}
        A backend that is named runs, or raises with the reason.

    Returns
    -------
    GaussianObservation or CategoricalObservation
        (prior_mean, prior_std, posterior_mean, posterior_std, state, belief), or
        (prior_logits, posterior_logits, state, belief), of every step: all that a KL needs.

    Raises
    ------
    RnnopError
        As from `step`.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(
    ...     state_size=3, belief_size=8, action_size=2, embed_size=5, hidden_size=8
    ... )
    >>> weights = rssm.init_weights(spec, seed=0)
    >>> actions, embeds = np.ones((6, 4, 2), np.float32), np.ones((6, 4, 5), np.float32)
    >>> first = np.zeros((6, 4), bool)
    >>> first[0] = True
    >>> out = rssm.observe(weights, None, None, actions, embeds, first, seed=0)
    >>> out.prior_mean.shape, out.posterior_std.shape
    ((6, 4, 3), (6, 4, 3))
    """
    with blame("observe"):
        order = order_of(batch_first)
        given = {"actions": actions, "embeds": embeds, "is_first": is_first}
        out: Observation = _run(
            "observe", order, weights, state, belief, noise, seed, backend, **given
        )
        return out


def observe_vjp(
    weights: RSSMWeights | PrepackedRSSMWeights,
    state: Array | None,
    belief: Array | None,
    actions: Array,
    embeds: Array,
    is_first: Any = None,
    noise: Array | None = None,
    seed: int | None = None,
    *,
    batch_first: bool = False,
    backend: str = "auto",
) -> tuple[Observation, RSSMVJP]:
    """Run `observe`, and return its vector-Jacobian product beside the output.

    The arguments are those of `observe`.

    Returns
    -------
    GaussianObservation or CategoricalObservation
        As from `observe`.
    RSSMVJP
        ``vjp(dprior_mean, dprior_std, dposterior_mean, dposterior_std, dstate, dbelief)``, or
        ``vjp(dprior_logits, dposterior_logits, dstate, dbelief)``, as from `step_vjp`.
    """
    with blame("observe_vjp"):
        order = order_of(batch_first)
        given = {"actions": actions, "embeds": embeds, "is_first": is_first}
        return _run_vjp("observe", order, weights, state, belief, noise, seed, backend, **given)


def prepack(
    weights: RSSMWeights | PrepackedRSSMWeights, *, backend: str = "auto"
) -> PrepackedRSSMWeights:
    """Lay weights out for a backend once, for many calls without a gradient.

    Parameters
    ----------
    weights : RSSMWeights
        The weights.
    backend : {'auto', 'cpu', 'reference'}
        As of `step`. Another one may still be named in a call: it takes the weights as given.

    Returns
    -------
    PrepackedRSSMWeights
        Accepted wherever weights are. Later changes of the arrays may not be seen.

    Raises
    ------
    RnnopError
        As from `step`.

    Notes
    -----
    It is for a model that stays as it is: a control loop that calls `step` every few milliseconds,
    or a planner that unrolls many futures. Such calls like one before them also skip whatever that
    one found out. Where the weights change from call to call, as in training, there is nothing to
    gain. Nor is there with PyTorch's and JAX's arrays, which an operator brings to the engine.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=8)
    >>> weights = rssm.prepack(rssm.init_weights(spec, seed=0))
    >>> state, belief = np.zeros((1, 3), np.float32), np.zeros((1, 8), np.float32)
    >>> for k in range(3):
    ...     out = rssm.step(weights, state, belief, np.ones((1, 2), np.float32), seed=k)
    ...     state, belief = out.state, out.belief
    >>> belief.shape
    (1, 8)
    """
    with blame("prepack"):
        plain = plain_weights(weights)
        _, like = next(plain.named())
        xp = arrays.namespace(str(arrays.family(like)))
        actions = arrays.zeros(xp, (1, 1, plain.spec.action_size), like)
        call = make_call(
            "rollout", "time_first", plain, None, None, None, 0, backend, actions=actions
        )
        packed = PrepackedRSSMWeights(plain)
        call.backend.prepack(plain, packed.cache)
        return packed
