"""RSSMSpec: all that changes the mathematics of a model or the shape of a weight, frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from .. import validate
from ..errors import SpecError, blame
from ..spec import number

CELLS = ("gru", "gru_reset_before", "gru_layernorm", "block_gru")
LATENTS = ("gaussian", "categorical")
STD_RULES = ("biased_softplus", "max_softplus", "softplus", "sigmoid2")
ACTIVATIONS = ("elu", "relu", "silu")
NORMS = ("none", "layer", "rms")

# What each owner chose, beside sizes; the defaults of RSSMSpec are the module of pytorch/rl#366.
_V3 = {"latent": "categorical", "num_classes": 32, "activation": "silu"}
VARIANTS: dict[str, dict[str, Any]] = {
    "planet": {"cell": "gru_reset_before", "std": "softplus"},
    "dreamer_v1": {"std": "softplus"},
    "dreamer_v2": {
        "cell": "gru_layernorm",
        "latent": "categorical",
        "num_classes": 32,
        "std": "sigmoid2",
        "norm_eps": 1e-3,
    },
    "dreamer_v3": {
        **_V3,
        "cell": "block_gru",
        "num_blocks": 8,
        "norm": "rms",
        "norm_eps": 1e-4,
        "unimix": 0.01,
        "prior_layers": 2,
    },
    "torchrl": {"std": "max_softplus"},
    "torchrl_v3": _V3,
}


@dataclass(frozen=True)
class RSSMSpec:
    """A recurrent state-space model without its weights.

    The defaults are the module of pytorch/rl#366; `of` has those of others.

    Parameters
    ----------
    state_size : int
        S, of the stochastic state: of a categorical one, categoricals times classes.
    belief_size : int
        H, of the deterministic state.
    action_size : int
        A.
    embed_size : int
        E, of an embedded observation; 0 for a model without a posterior.
    hidden_size : int
        X, the width of every hidden layer and of what the GRU reads.
    cell : {'gru', 'gru_reset_before', 'gru_layernorm', 'block_gru'}
        The recurrent core: cuDNN's and PyTorch's GRU; the one with the reset before the product
        (PlaNet); Dreamer v2's with layer norm; Dreamer v3's in blocks.
    latent : {'gaussian', 'categorical'}
        What the state is drawn from.
    num_classes : int, optional
        K of a categorical latent; S / K categoricals. None with a Gaussian.
    unimix : float
        Share of the uniform distribution in the probabilities of a categorical, in [0, 1).
    std : {'biased_softplus', 'max_softplus', 'softplus', 'sigmoid2'}
        How the std of a Gaussian comes out of the last layer, see Notes.
    min_std : float
        Its bound or offset, finite and not negative.
    activation : {'elu', 'relu', 'silu'}
        Of every hidden layer.
    norm : {'none', 'layer', 'rms'}
        Between each hidden layer's product and its activation.
    posterior_norm : {'none', 'layer', 'rms'}, optional
        That of the posterior's hidden layers; None for `norm`.
    norm_eps : float
        Epsilon of every norm, that of 'gru_layernorm' too.
    num_blocks : int
        Blocks of 'block_gru'; they divide the belief.
    input_layers, dynamics_layers, prior_layers, posterior_layers : int
        Hidden layers before the GRU, within a block GRU, and of the two heads.

    Raises
    ------
    SpecError
        A choice is unknown, a number out of its range, or two of them contradict each other.

    Notes
    -----
    With x the second half of the last layer's output::

        biased_softplus   std = max(softplus(x + log(expm1(0.99))) + 0.01, min_std)
        max_softplus      std = max(softplus(x), min_std)
        softplus          std = softplus(x) + min_std
        sigmoid2          std = 2 sigmoid(x / 2) + min_std
    """

    state_size: int
    belief_size: int
    action_size: int
    embed_size: int = 0
    hidden_size: int = 200
    cell: str = "gru"
    latent: str = "gaussian"
    num_classes: int | None = None
    unimix: float = 0.0
    std: str = "biased_softplus"
    min_std: float = 0.1
    activation: str = "elu"
    norm: str = "none"
    posterior_norm: str | None = None
    norm_eps: float = 1e-3
    num_blocks: int = 1
    input_layers: int = 1
    dynamics_layers: int = 1
    prior_layers: int = 1
    posterior_layers: int = 1

    def __post_init__(self) -> None:
        with blame("RSSMSpec"):
            self._check_sizes()
            self._check_choices()
            self._check_numbers()
            self._check_latent()
            self._check_blocks()

    def _check_sizes(self) -> None:
        for field in fields(self):
            if field.name.endswith(("_size", "_layers", "_blocks")) and field.name != "embed_size":
                validate.size(field.name, getattr(self, field.name))
        if not validate.is_whole(self.embed_size) or self.embed_size < 0:
            raise SpecError(f"`embed_size` is {self.embed_size!r}; expected an integer, at least 0")
        if self.embed_size:
            validate.size("embed_size", self.embed_size)

    def _check_choices(self) -> None:
        validate.choice("cell", self.cell, CELLS)
        validate.choice("latent", self.latent, LATENTS)
        validate.choice("std", self.std, STD_RULES)
        validate.choice("activation", self.activation, ACTIVATIONS)
        validate.choice("norm", self.norm, NORMS)
        if self.posterior_norm is not None:
            validate.choice("posterior_norm", self.posterior_norm, NORMS)

    def _check_numbers(self) -> None:
        for name in ("min_std", "norm_eps"):
            value = number(name, getattr(self, name))
            if not math.isfinite(value) or value < 0.0:
                raise SpecError(f"`{name}` is {value}; expected a finite number, at least 0")
        if not 0.0 <= number("unimix", self.unimix) < 1.0:
            raise SpecError(f"`unimix` is {self.unimix}; expected a share, 0 <= unimix < 1")

    def _check_latent(self) -> None:
        if self.latent == "gaussian":
            if self.num_classes is not None or self.unimix:
                raise SpecError(
                    f"`num_classes` is {self.num_classes} and `unimix` is {self.unimix} with a "
                    "gaussian latent; only a categorical one has them"
                )
            return
        if self.num_classes is None:
            raise SpecError("`num_classes` is None with a categorical latent; expected an integer")
        validate.size("num_classes", self.num_classes)
        if self.state_size % self.num_classes:
            raise SpecError(
                f"`state_size` is {self.state_size}; expected a multiple of "
                f"num_classes = {self.num_classes}"
            )

    def _check_blocks(self) -> None:
        if self.cell != "block_gru":
            if self.num_blocks != 1 or self.dynamics_layers != 1:
                raise SpecError(
                    f"`num_blocks` is {self.num_blocks} and `dynamics_layers` is "
                    f"{self.dynamics_layers} with cell {self.cell!r}; only 'block_gru' has them"
                )
            return
        if self.belief_size % self.num_blocks:
            raise SpecError(
                f"`belief_size` is {self.belief_size}; expected a multiple of "
                f"num_blocks = {self.num_blocks}"
            )
        if self.input_layers != 1:
            raise SpecError(
                f"`input_layers` is {self.input_layers} with cell 'block_gru'; expected 1"
            )

    @classmethod
    def of(cls, variant: str, **sizes: Any) -> RSSMSpec:
        """Return the spec of an owner's model, with the fields that are given.

        Parameters
        ----------
        variant : {'planet', 'dreamer_v1', 'dreamer_v2', 'dreamer_v3', 'torchrl', 'torchrl_v3'}
            Whose choices to start from.
        **sizes
            Fields of the spec; they go before the owner's.

        Returns
        -------
        RSSMSpec
            The spec.

        Raises
        ------
        SpecError
            There is no such variant, or the fields make no spec.

        Examples
        --------
        >>> from rnnop import rssm
        >>> spec = rssm.RSSMSpec.of("planet", state_size=30, belief_size=200, action_size=6)
        >>> spec.cell, spec.std
        ('gru_reset_before', 'softplus')
        """
        with blame("RSSMSpec.of"):
            validate.choice("variant", variant, tuple(VARIANTS))
        return cls(**{**VARIANTS[variant], **sizes})

    @property
    def noise_size(self) -> int:
        """How many numbers draw one state: S normals, or one uniform for each categorical."""
        return self.state_size // (self.num_classes or 1)

    @property
    def head_size(self) -> int:
        """Outputs of a head: means and stds, or logits."""
        return 2 * self.state_size if self.latent == "gaussian" else self.state_size

    def norm_of(self, part: str) -> str:
        """Return the norm of the hidden layers of `part`, a field of the weights."""
        return self.posterior_norm or self.norm if part == "posterior" else self.norm

    def __str__(self) -> str:
        sizes = ("state_size", "belief_size", "action_size", "embed_size", "hidden_size")
        parts = [self.cell, self.latent]
        parts += [f"{name.removesuffix('_size')} {getattr(self, name)}" for name in sizes]
        usual = {field.name: field.default for field in fields(self)}
        parts += [
            f"{name}={getattr(self, name)}"
            for name in list(usual)[7:]
            if getattr(self, name) != usual[name]
        ]
        return f"rssm({', '.join(parts)})"
