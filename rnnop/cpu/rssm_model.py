"""A model as the engine is told of it: the structures of kernels/engine.h, and the weights in them.

What belongs to one call, `rssm.py` adds.
"""

from __future__ import annotations

import math
from ctypes import Structure, byref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..rssm.mlp_actor import MLPActor
from ..rssm.weights import Layer, RSSMWeights
from . import engine as c
from .engine import pointer

# In the order of the enums of engine.h.
_CELLS = {"gru": 0, "gru_reset_before": 1, "gru_layernorm": 2, "block_gru": 3}
ACTIVATIONS = {"identity": 0, "elu": 1, "relu": 2, "silu": 3}
_NORMS = {"none": 0, "layer": 1, "rms": 2}
_STDS = {  # rule, shift of the argument of softplus, what is added to it
    "biased_softplus": (0, math.log(math.expm1(0.99)), 0.01),
    "max_softplus": (0, 0.0, 0.0),
    "softplus": (1, 0.0, 0.0),
    "sigmoid2": (2, 0.0, 0.0),
}


class Pointed:
    """Structures and the arrays that they point to, which live as long."""

    def __init__(self) -> None:
        self._alive: list[Any] = []

    def put(self, structure: Structure, **arrays: Any) -> None:
        """Let fields of a structure point to arrays; None is a null pointer."""
        for name, array in arrays.items():
            self._alive.append(array)
            setattr(structure, name, pointer(array))


class Model(Pointed):
    """Weights as the engine is told of them: for `observe`, or for the other forms.

    Attributes
    ----------
    told : Rssm
        All but the arrays and sizes of a call.
    layers : dict of str to array of struct Layer
        The layers by the fields of the weights, and 'gru' of the cell with layer norm.
    room : array or None
        What they are laid out in for the forward, once they are.
    """

    def __init__(self, weights: RSSMWeights, dtype: np.dtype[Any], *, observes: bool) -> None:
        super().__init__()
        self.weights, self.spec, self.dtype, self.observes = weights, weights.spec, dtype, observes
        self.room: npt.NDArray[Any] | None = None
        self.layers = self._layers()
        self.told = self._told()

    def _told(self) -> c.Rssm:
        spec, weights = self.spec, self.weights
        rule, shift, offset = _STDS[spec.std]
        told = c.Rssm(
            cell=_CELLS[spec.cell],
            classes=spec.num_classes or 0,
            std_rule=rule,
            std_shift=shift,
            std_offset=offset,
            min_std=spec.min_std,
            unimix=spec.unimix,
            norm_eps=spec.norm_eps,
            state=spec.state_size,
            belief=spec.belief_size,
            action=spec.action_size,
            embed=spec.embed_size if self.observes else 0,
            blocks=spec.num_blocks,
            threads=c.num_threads(),
        )
        point_to_layers(told, self.layers)
        if weights.gru is not None:
            gru = {name: ready(arrays[0], self.dtype) for name, arrays in weights.gru.fields()}
            self.put(told, **gru)
        self.put(
            told,
            initial_state=self._or_zeros(weights.initial_state, spec.state_size),
            initial_belief=self._or_zeros(weights.initial_belief, spec.belief_size),
        )
        return told

    def _or_zeros(self, array: Any, size: int) -> Any:
        return np.zeros(size, self.dtype) if array is None else ready(array, self.dtype)

    def _layers(self) -> dict[str, Any]:
        spec, weights = self.spec, self.weights
        found = {"prior": self._chain("prior", weights.prior)}
        if self.observes:
            known = spec.embed_size
            found["posterior"] = self._chain("posterior", weights.posterior, known=known)
        if spec.cell == "block_gru":
            return found | self._block_gru()
        found["inputs"] = self._chain("inputs", weights.inputs, back=spec.state_size)
        if spec.cell == "gru_layernorm":
            found["gru"] = (c.Layer * 1)()
            w = weights.gru.w_ih[0]  # type: ignore[union-attr]  # such a cell has one
            norm = Layer(w, None, weights.gru_scale, weights.gru_shift)
            describe_layer(self, found["gru"][0], norm, "layer", "identity", self.dtype)
        return found

    def _block_gru(self) -> dict[str, Any]:
        """Describe the layers of the features and those in blocks, which read a block each."""
        spec, weights = self.spec, self.weights
        inputs = self._chain("inputs", weights.inputs)
        inputs[2].back = 0  # it reads the action
        dynamics = self._chain("dynamics", weights.dynamics)
        dynamics[0].inputs = spec.belief_size // spec.num_blocks  # and features beside it
        return {"inputs": inputs, "dynamics": dynamics}

    def _chain(
        self, field: str, layers: tuple[Layer, ...], *, known: int = 0, back: int | None = None
    ) -> Any:
        """Describe the layers of a field of the weights; all but `inputs` end in one without norm.

        The first reads `known` columns beforehand; the loop wants the gradient of `back` columns.
        """
        spec, found = self.spec, (c.Layer * len(layers))()
        for k, layer in enumerate(layers):
            if field != "inputs" and k == len(layers) - 1:
                describe_layer(self, found[k], layer, "none", "identity", self.dtype)
            else:
                describe_layer(
                    self, found[k], layer, spec.norm_of(field), spec.activation, self.dtype
                )
        first = found[0]
        first.known, first.inputs = known, first.inputs - known
        first.back = first.inputs if back is None else back
        return found

    def lay_out(self, functions: c.Functions) -> None:
        """Lay the weights out for the forwards of many calls."""
        self.room = lay_out(self.told, functions, self.dtype, backward=False)


def actor_layers(owner: Pointed, actor: MLPActor, dtype: np.dtype[Any]) -> Any:
    """Describe the layers of an actor; their arrays live as long as the owner."""
    found = (c.Layer * len(actor.layers))()
    for k, layer in enumerate(actor.layers):
        last = k == len(actor.layers) - 1
        activation = "identity" if last else actor.activation
        describe_layer(owner, found[k], layer, "none", activation, dtype)
    return found


def describe_layer(
    owner: Pointed, to: c.Layer, layer: Layer, norm: str, activation: str, dtype: np.dtype[Any]
) -> None:
    """Describe one layer; its arrays live as long as the owner."""
    *_, to.inputs = layer.w.shape
    to.out = layer.w.size // to.inputs
    to.back, to.norm, to.activation = to.inputs, _NORMS[norm], ACTIVATIONS[activation]
    given = {name: ready(array, dtype) for name, array in layer._asdict().items()}
    owner.put(to, **given)


def ready(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as the engine reads it; None of None."""
    return None if array is None else np.ascontiguousarray(array, dtype)


def point_to_layers(told: c.Rssm, layers: dict[str, Any]) -> None:
    """Let the engine find the layers."""
    observes = "posterior" in layers
    found = {"inputs": layers["inputs"], "head": layers["posterior" if observes else "prior"]}
    if observes:
        found["prior"] = layers["prior"]
    for name in ("dynamics", "actor"):
        if name in layers:
            found[name] = layers[name]
    for name, array in found.items():
        setattr(told, name, array)
        setattr(told, f"num_{name}", len(array))
    if "gru" in layers:
        told.gru = layers["gru"]


def lay_out(
    told: c.Rssm, functions: c.Functions, dtype: np.dtype[Any], *, backward: bool
) -> npt.NDArray[Any]:
    """Lay weights out for the forward or the backward, and return the memory that they lie in."""
    room = c.aligned(functions.rssm_packed_size(byref(told), backward), dtype)
    functions.rssm_pack(byref(told), backward, pointer(room))
    return room
