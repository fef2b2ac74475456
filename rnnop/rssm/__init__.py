"""Recurrent state-space models: step, rollout, imagination, observation, and their gradients.

Read `loop.py` for the loop over time, `transition.py` for one step of it, `cells.py`,
`layers.py` and `latent.py` for its parts.
"""

from .api import (
    RSSMVJP,
    imagine,
    imagine_vjp,
    observe,
    observe_vjp,
    prepack,
    rollout,
    rollout_vjp,
    step,
    step_vjp,
)
from .explain import RSSMExplanation, explain
from .initialize import init_weights
from .mlp_actor import MLPActor
from .outputs import (
    CategoricalImagination,
    CategoricalObservation,
    CategoricalPrior,
    GaussianImagination,
    GaussianObservation,
    GaussianPrior,
)
from .spec import RSSMSpec
from .torchrl import TorchRLWeights, from_torchrl, to_torchrl
from .weights import Layer, PrepackedRSSMWeights, RSSMGrads, RSSMWeights

__all__ = [
    "RSSMVJP",
    "CategoricalImagination",
    "CategoricalObservation",
    "CategoricalPrior",
    "GaussianImagination",
    "GaussianObservation",
    "GaussianPrior",
    "Layer",
    "MLPActor",
    "PrepackedRSSMWeights",
    "RSSMExplanation",
    "RSSMGrads",
    "RSSMSpec",
    "RSSMWeights",
    "TorchRLWeights",
    "explain",
    "from_torchrl",
    "imagine",
    "imagine_vjp",
    "init_weights",
    "observe",
    "observe_vjp",
    "prepack",
    "rollout",
    "rollout_vjp",
    "step",
    "step_vjp",
    "to_torchrl",
]
