"""TorchRL: the state dicts of its RSSM modules.

Matrices are (out, in) on both sides and are handed on as they are; only names change:

    rnnop        RSSMPrior, RSSMPriorV3             block GRU of RSSMPriorV3
    inputs       action_state_projector             rnn.belief_projection, rnn.state_projection,
                                                    rnn.action_projection
    gru          rnn.weight_ih, ...                 -
    dynamics     -                                  rnn.hidden_layers, rnn.gates
    prior        rnn_to_prior_projector
    posterior    obs_rnn_to_post_projector of RSSMPosterior, RSSMPosteriorV3

The layers in blocks are (block, in, out) there and (block, out, in) here, and the gates of a block
stand in the order r, n, u there and r, u, n here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from .. import arrays, validate
from ..arrays import Array
from ..errors import DTypeError, ShapeError, SpecError, blame
from ..weights import RNNWeights
from .spec import RSSMSpec
from .weights import Layer, RSSMWeights

_PROJECTIONS = ("belief", "state", "action")
_GRU = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


class TorchRLWeights(NamedTuple):
    """The state dicts of a prior and a posterior.

    Attributes
    ----------
    prior : dict of str to array
        For RSSMPrior or RSSMPriorV3.
    posterior : dict of str to array, or None
        For RSSMPosterior or RSSMPosteriorV3; None of a model without one.
    """

    prior: dict[str, Array]
    posterior: dict[str, Array] | None


def from_torchrl(
    prior: Mapping[str, Array],
    posterior: Mapping[str, Array] | None = None,
    *,
    num_classes: int | None = None,
    unimix: float = 0.0,
    std: str = "max_softplus",
    min_std: float = 0.1,
    norm_eps: float = 1e-4,
) -> RSSMWeights:
    """Return the weights of TorchRL's RSSM modules.

    Parameters
    ----------
    prior : mapping of str to array
        State dict of an RSSMPrior or RSSMPriorV3, of any array family.
    posterior : mapping of str to array, optional
        State dict of its RSSMPosterior or RSSMPosteriorV3.
    num_classes : int, optional
        As of RSSMPriorV3; None for RSSMPrior, whose latent is Gaussian.
    unimix : float
        As of RSSMPriorV3.
    std : str
        The rule of RSSMPrior, see `RSSMSpec`: 'max_softplus' today, 'biased_softplus' at first.
    min_std : float
        Its `scale_lb`.
    norm_eps : float
        As of RSSMPriorV3.

    Returns
    -------
    RSSMWeights
        The same arrays where the layout is the same, else views or copies.

    Raises
    ------
    DTypeError
        A state dict is no mapping, or its entries are no arrays of one kind.
    SpecError
        A name is missing, or an option is none of those above.
    ShapeError
        The shapes do not fit one another.

    Notes
    -----
    The tensors of a state dict are detached. To differentiate with respect to the parameters of a
    module, give ``dict(module.named_parameters())``.
    """
    with blame("from_torchrl"):
        if num_classes is not None:
            validate.size("num_classes", num_classes)
        before = _Source("prior", prior)
        after = None if posterior is None else _Source("posterior", posterior)
        in_blocks = "rnn.gates.weight" in before.state
        head = before.layers("rnn_to_prior_projector")
        size = head[-1].w.shape[0]
        belief_size = head[0].w.shape[1]
        fields: dict[str, Any] = {
            "state_size": size if num_classes else size // 2,
            "belief_size": belief_size,
            "hidden_size": head[-1].w.shape[1],
            "latent": "categorical" if num_classes else "gaussian",
            "num_classes": num_classes,
            "unimix": unimix,
            "std": std,
            "min_std": min_std,
            "activation": "silu" if num_classes else "elu",
            "norm_eps": norm_eps,
            "prior_layers": len(head) - 1,
        }
        parts: dict[str, Any] = {"prior": head}
        if in_blocks:
            parts |= _read_blocks(before, fields)
        else:
            parts["inputs"] = before.layers("action_state_projector")
            gru = {ours: [before[f"rnn.{theirs}"]] for theirs, ours in _GRU.items()}
            parts["gru"] = RNNWeights.of_fields(gru, bidirectional=False)
            fields["action_size"] = parts["inputs"][0].w.shape[1] - fields["state_size"]
        if after is not None:
            head = after.layers("obs_rnn_to_post_projector")
            fields["embed_size"] = head[0].w.shape[1] - belief_size
            fields["posterior_layers"] = len(head) - 1
            fields["posterior_norm"] = "none" if head[0].scale is None else "rms"
            parts["posterior"] = head
        return RSSMWeights(RSSMSpec(**fields), **parts)


class _Source:
    """A state dict, whose missing names are refused."""

    def __init__(self, argument: str, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise DTypeError(
                f"`{argument}` is {type(state).__name__}; expected names and arrays, as in a state "
                "dict"
            )
        self.argument = argument
        # The first RSSMPrior had its head inside a NormalParamWrapper.
        self.state = {str(name).replace(".operator.", "."): state[name] for name in state}

    def __getitem__(self, name: str) -> Array:
        if name not in self.state:
            raise SpecError(f"`{self.argument}` has no {name!r}; expected a module of TorchRL's")
        return validate.data_array(f"{self.argument}[{name!r}]", self.state[name])

    def array(self, name: str, ndim: int) -> Array:
        """Return an entry that must have as many axes."""
        array = self[name]
        if array.ndim != ndim or 0 in array.shape:
            raise ShapeError(
                f"`{self.argument}[{name!r}]` has shape {tuple(array.shape)}; "
                f"expected {ndim} axes, none of them of size 0"
            )
        return array

    def layer(self, name: str, ndim: int) -> Layer:
        """Return a matrix of as many axes, with its bias."""
        return Layer(self.array(f"{name}.weight", ndim), self.array(f"{name}.bias", 1))

    def layers(self, prefix: str, ndim: int = 2) -> tuple[Layer, ...]:
        """Return the layers of an nn.Sequential: matrices, each with the norm after it."""
        pattern = re.compile(rf"{re.escape(prefix)}\.(0|[1-9][0-9]{{0,3}})\.weight")
        matches = [pattern.fullmatch(name) for name in self.state]
        found: list[Layer] = []
        last = -1  # place of the matrix whose norm may come next
        for k in sorted(int(match[1]) for match in matches if match):
            scale = self[f"{prefix}.{k}.weight"]
            if found and k == last + 1 and scale.ndim == 1:
                found[-1] = found[-1]._replace(scale=scale)
            else:
                found.append(self.layer(f"{prefix}.{k}", ndim))
                last = k
        if not found:
            raise SpecError(
                f"`{self.argument}` has no '{prefix}.0.weight'; expected a module of TorchRL's"
            )
        return tuple(found)


def _read_blocks(source: _Source, fields: dict[str, Any]) -> dict[str, Any]:
    """Return inputs and dynamics of a block GRU, and complete the fields of its spec."""
    inputs = tuple(source.layers(f"rnn.{name}_projection")[0] for name in _PROJECTIONS)
    hidden = source.layers("rnn.hidden_layers", ndim=3)
    bias = source.array("rnn.gates.bias", 1)
    gates = Layer(source.array("rnn.gates.weight", 3), bias)
    num_blocks, _, rows = gates.w.shape
    if rows % 3 or tuple(bias.shape) != (num_blocks * rows,):
        raise ShapeError(
            f"`prior['rnn.gates.weight']` has shape {tuple(gates.w.shape)} and its bias "
            f"{tuple(bias.shape)}; expected (num_blocks, in, 3 * out) and (num_blocks * 3 * out,)"
        )
    xp = arrays.namespace(str(arrays.family(gates.w)))
    fields |= {
        "cell": "block_gru",
        "norm": "rms",
        "action_size": inputs[2].w.shape[1],
        "num_blocks": num_blocks,
        "dynamics_layers": len(hidden),
    }
    turned = [layer._replace(w=_turned(xp, layer.w)) for layer in hidden]
    return {
        "inputs": inputs,
        "dynamics": (*turned, _swapped_gates(xp, gates._replace(w=_turned(xp, gates.w)))),
    }


def to_torchrl(weights: RSSMWeights) -> TorchRLWeights:
    """Return weights under the names of TorchRL's modules.

    Parameters
    ----------
    weights : RSSMWeights
        Of any array family.

    Returns
    -------
    TorchRLWeights
        State dicts of the prior and, if there is one, of the posterior. The same arrays where the
        layout is the same, else views or copies; biases that are missing are filled in as zeros.

    Raises
    ------
    DTypeError
        `weights` are not RSSMWeights.
    SpecError
        They are of a model that TorchRL does not have.
    """
    with blame("to_torchrl"):
        if not isinstance(weights, RSSMWeights):
            raise DTypeError(f"`weights` is {type(weights).__name__}; expected RSSMWeights")
        spec = weights.spec
        with blame(spec=spec):
            _refuse_what_torchrl_lacks(weights)
        xp = arrays.namespace(str(arrays.family(weights.prior[0].w)))
        prior: dict[str, Array] = {}
        if spec.cell == "block_gru":
            for name, layer in zip(_PROJECTIONS, weights.inputs, strict=True):
                prior |= _written(xp, f"rnn.{name}_projection", (layer,))
            *hidden, gates = weights.dynamics
            turned = tuple(layer._replace(w=_turned(xp, layer.w)) for layer in hidden)
            prior |= _written(xp, "rnn.hidden_layers", turned)
            gates = _swapped_gates(xp, gates)
            last = _written(xp, "rnn.gates", (gates._replace(w=_turned(xp, gates.w)),))
            prior |= {name.replace(".0.", "."): array for name, array in last.items()}
        else:
            gru: Any = weights.gru
            zeros = arrays.zeros(xp, (3 * spec.belief_size,), gru.w_ih[0])
            for theirs, ours in _GRU.items():
                entries = getattr(gru, ours)
                prior[f"rnn.{theirs}"] = zeros if entries is None else entries[0]
            prior |= _written(xp, "action_state_projector", weights.inputs)
        prior |= _written(xp, "rnn_to_prior_projector", weights.prior)
        posterior = _written(xp, "obs_rnn_to_post_projector", weights.posterior)
        return TorchRLWeights(prior, posterior or None)


def _refuse_what_torchrl_lacks(weights: RSSMWeights) -> None:
    spec = weights.spec
    activation = "elu" if spec.latent == "gaussian" else "silu"
    kinds = {"gru": ("none", 1), "block_gru": ("rms", spec.prior_layers)}
    has = (spec.cell in kinds, spec.activation == activation)
    norm, layers = kinds.get(spec.cell, ("none", 1))
    plain = spec.input_layers == 1 and spec.prior_layers == layers and spec.norm == norm
    if not all(has) or not plain or spec.norm_of("posterior") == "layer":
        raise SpecError(
            "`weights` are of a model that TorchRL does not have; expected cell 'gru' with one "
            "layer each and no norm, or 'block_gru' with norm 'rms'; activation 'elu' with a "
            "gaussian latent, 'silu' with a categorical one"
        )
    for name in ("initial_state", "initial_belief"):
        if getattr(weights, name) is not None:
            raise SpecError(f"`weights.{name}` is given; TorchRL's modules start from zeros")


def _written(xp: ModuleType, prefix: str, layers: tuple[Layer, ...]) -> dict[str, Array]:
    """Return layers as entries of an nn.Sequential, with activations between them."""
    state: dict[str, Array] = {}
    k = 0
    for layer in layers:
        rows = layer.w.shape[0] if layer.w.ndim == 2 else layer.w.shape[0] * layer.w.shape[2]
        state[f"{prefix}.{k}.weight"] = layer.w
        state[f"{prefix}.{k}.bias"] = (
            arrays.zeros(xp, (rows,), layer.w) if layer.b is None else layer.b
        )
        if layer.scale is not None:
            k += 1
            state[f"{prefix}.{k}.weight"] = layer.scale
        k += 2
    return state


def _turned(xp: ModuleType, w: Array) -> Array:
    """(block, in, out) <-> (block, out, in)."""
    return xp.permute_dims(w, (0, 2, 1))


def _swapped_gates(xp: ModuleType, layer: Layer) -> Layer:
    """Swap the last two of the three gates of each block: r, n, u <-> r, u, n."""
    count, rows, columns = layer.w.shape
    parts = xp.reshape(layer.w, (count, 3, rows // 3, columns))
    w = xp.reshape(xp.stack([parts[:, k] for k in (0, 2, 1)], axis=1), layer.w.shape)
    if layer.b is None:
        return Layer(w)
    cut = xp.reshape(layer.b, (count, 3, rows // 3))
    return Layer(w, xp.reshape(xp.stack([cut[:, k] for k in (0, 2, 1)], axis=1), layer.b.shape))
