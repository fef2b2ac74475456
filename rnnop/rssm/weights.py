"""RSSMWeights: the arrays of an RSSM by name, and what shape each must have.

Every matrix is (out, in), as torch's, and every gate is in the order r, z, n of our GRUs. Where a
layer reads two things side by side, they are the columns in the order of SPEC: [state, action],
[belief, embedding].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import arrays
from ..arrays import Array
from ..errors import DTypeError, ShapeError, blame
from ..validate import data_array, shaped_like
from ..weights import RNNWeights
from .spec import RSSMSpec


class Layer(NamedTuple):
    """One layer, y = activation(norm(W x + b)).

    Attributes
    ----------
    w : array (out, in)
        W; in a block GRU (num_blocks, out / num_blocks, in), of each block its own.
    b : array (out,) or None
        b; None for zeros.
    scale : array (out,) or None
        Factor of the norm; None where the layer has no norm.
    shift : array (out,) or None
        Term of a layer norm; None for zeros.
    """

    w: Array
    b: Array | None = None
    scale: Array | None = None
    shift: Array | None = None


LAYERS = ("inputs", "dynamics", "prior", "posterior")  # the fields that are tuples of layers
VECTORS = ("gru_scale", "gru_shift", "initial_state", "initial_belief")


@dataclass(frozen=True, eq=False, repr=False)
class RSSMWeights:
    """The weights of an RSSM: frozen; the arrays stay the caller's.

    Parameters
    ----------
    spec : RSSMSpec
        The model they belong to.
    inputs : tuple of Layer
        The hidden layers before the GRU; the first reads [state, action], (X, S + A). Of a block
        GRU the three that read the belief, the state and the action.
    prior : tuple of Layer
        The hidden layers of the prior, then its last one without norm and activation, to 2 S
        (means, then stds) or S (logits).
    posterior : tuple of Layer
        Likewise; its first layer reads [belief, embedding], (X, H + E). Empty without embeddings.
    gru : RNNWeights, optional
        One layer of a GRU from X to H; None with a block GRU. Of 'gru_layernorm' the rows are
        reset, update and candidate.
    gru_scale, gru_shift : array (3 H,), optional
        The layer norm within 'gru_layernorm'.
    dynamics : tuple of Layer
        Of a block GRU the hidden layers in blocks, then that of the gates. The first reads [belief
        of the block, features of belief, state and action], H / num_blocks + 3 X.
    initial_state : array (S,), optional
        What the state is where an episode begins; zeros by default.
    initial_belief : array (H,), optional
        Likewise the belief.

    Raises
    ------
    DTypeError
        A field is not what it should be, or the arrays differ in family, dtype or device.
    ShapeError
        An array is missing, has no place in such a model, or has the wrong shape.
    """

    spec: RSSMSpec
    inputs: tuple[Layer, ...]
    prior: tuple[Layer, ...]
    posterior: tuple[Layer, ...] = ()
    gru: RNNWeights | None = None
    gru_scale: Array | None = None
    gru_shift: Array | None = None
    dynamics: tuple[Layer, ...] = ()
    initial_state: Array | None = None
    initial_belief: Array | None = None

    def __post_init__(self) -> None:
        with blame("RSSMWeights"):
            if not isinstance(self.spec, RSSMSpec):
                raise DTypeError(f"`spec` is {type(self.spec).__name__}; expected RSSMSpec")
            with blame(spec=self.spec):
                self._check_fields()
                self._check_arrays()

    def _check_fields(self) -> None:
        for name in LAYERS:
            layers = getattr(self, name)
            if not isinstance(layers, tuple | list) or not all(
                isinstance(layer, tuple | list) and len(layer) == 4 for layer in layers
            ):
                raise DTypeError(f"`{name}` is {type(layers).__name__}; expected a tuple of Layer")
            object.__setattr__(self, name, tuple(Layer(*layer) for layer in layers))
        if self.gru is not None and not isinstance(self.gru, RNNWeights):
            raise DTypeError(f"`gru` is {type(self.gru).__name__}; expected RNNWeights")

    def _check_arrays(self) -> None:
        wanted, given = expected_shapes(self.spec), dict(self.named())
        for name in given:
            if name not in wanted:
                raise ShapeError(f"`{name}` is given; such a model has no place for it")
        missing = [name for name, (_, needed) in wanted.items() if needed and name not in given]
        if missing:
            raise ShapeError(
                f"`{missing[0]}` is missing; expected an array {wanted[missing[0]][0]}"
            )
        like = next(iter(given))
        first = data_array(like, given[like])
        for name, array in given.items():
            shaped_like(name, array, wanted[name][0], "the shape of such a model", first, like)

    def named(self) -> Iterator[tuple[str, Array]]:
        """Yield each array with its name, as 'prior[0].w' or 'gru.w_ih[0]'."""
        for part in LAYERS:
            for k, layer in enumerate(getattr(self, part)):
                for name, array in zip(Layer._fields, layer, strict=True):
                    if array is not None:
                        yield f"{part}[{k}].{name}", array
        if self.gru is not None:
            yield from ((f"gru.{name}", array) for name, array in self.gru.named())
        for name in VECTORS:
            if getattr(self, name) is not None:
                yield name, getattr(self, name)

    @classmethod
    def of_arrays(cls, spec: RSSMSpec, named: Mapping[str, Array]) -> RSSMWeights:
        """Make weights from arrays by the names of `named`; those that are missing are None."""
        fields: dict[str, Any] = {name: named.get(name) for name in VECTORS}
        for part in LAYERS:
            count = sum(name.startswith(f"{part}[") and name.endswith(".w") for name in named)
            fields[part] = tuple(
                Layer(*(named.get(f"{part}[{k}].{field}") for field in Layer._fields))
                for k in range(count)
            )
        gru = {
            name.removeprefix("gru.").partition("[")[0]: [array]
            for name, array in named.items()
            if name.startswith("gru.")
        }
        fields["gru"] = RNNWeights.of_fields(gru, bidirectional=False) if gru else None
        return cls(spec, **fields)

    def map(self, function: Callable[[Array], Array]) -> RSSMWeights:
        """Return weights with `function` applied to every array, such as `torch.from_numpy`."""
        changed = {name: function(array) for name, array in self.named()}
        return RSSMWeights.of_arrays(self.spec, changed)

    @property
    def num_parameters(self) -> int:
        """How many numbers all the arrays hold."""
        total = 0
        for _, array in self.named():
            size = 1
            for extent in array.shape:
                size *= int(extent)
            total += size
        return total

    def __repr__(self) -> str:
        first = next(array for _, array in self.named())
        head = f"RSSMWeights({arrays.dtype_name(first)}, {self.num_parameters:,} parameters)"
        lines = [head, f"  {self.spec}"]
        lines += [f"  {name:<16} {tuple(array.shape)}" for name, array in self.named()]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class PrepackedRSSMWeights:
    """Weights that were laid out for a backend once, see `rnnop.rssm.prepack`.

    Attributes
    ----------
    weights : RSSMWeights
        As they were given.
    cache : dict
        What a backend made of them, for it to find again.
    shortcuts : dict
        Calls with them that were made ready, see `rnnop.rssm.shortcut`.
    """

    weights: RSSMWeights
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)
    shortcuts: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def spec(self) -> RSSMSpec:
        """The model they belong to."""
        return self.weights.spec


class RSSMGrads(NamedTuple):
    """Gradients of a scalar with respect to the arrays of a call.

    Attributes
    ----------
    weights : RSSMWeights
        With the same fields and shapes as the weights of the call.
    state : array (N, S)
        Of the state before the first step, given or not.
    belief : array (N, H)
        Of the belief before the first step, given or not.
    actions : array like the actions, or None
        None of `imagine`, whose actions are the actor's.
    embeds : array like the embeddings, or None
        None unless of `observe`.
    actor : tuple of array, or None
        Of `imagine`: the sum over all steps of whatever the actor's own vjp returned beyond the
        gradients of state and belief.
    """

    weights: RSSMWeights
    state: Array
    belief: Array
    actions: Array | None = None
    embeds: Array | None = None
    actor: tuple[Array, ...] | None = None


Shapes = dict[str, tuple[tuple[int, ...], bool]]


def expected_shapes(spec: RSSMSpec) -> Shapes:
    """Return of every array that a model may have its shape, and whether it must be there."""
    S, H, A, X = spec.state_size, spec.belief_size, spec.action_size, spec.hidden_size
    shapes: Shapes = {}
    if spec.cell == "block_gru":
        for k, size in enumerate((H, S, A)):
            shapes |= _layer(f"inputs[{k}]", X, size, spec.norm)
        shapes |= _dynamics(spec)
    else:
        shapes |= _chain("inputs", spec, S + A, spec.input_layers)
        shapes |= _gru(spec)
    shapes |= _chain("prior", spec, H, spec.prior_layers)
    shapes |= _layer(f"prior[{spec.prior_layers}]", spec.head_size, X, "none")
    if spec.embed_size:
        shapes |= _chain("posterior", spec, H + spec.embed_size, spec.posterior_layers)
        shapes |= _layer(f"posterior[{spec.posterior_layers}]", spec.head_size, X, "none")
    return shapes | {"initial_state": ((S,), False), "initial_belief": ((H,), False)}


def _layer(name: str, rows: int, columns: int, norm: str) -> Shapes:
    shapes: Shapes = {f"{name}.w": ((rows, columns), True), f"{name}.b": ((rows,), False)}
    if norm != "none":
        shapes[f"{name}.scale"] = (rows,), True
    if norm == "layer":
        shapes[f"{name}.shift"] = (rows,), False
    return shapes


def _chain(part: str, spec: RSSMSpec, size: int, count: int) -> Shapes:
    """Hidden layers one after another, the first of which reads `size` numbers."""
    shapes: Shapes = {}
    for k in range(count):
        columns = spec.hidden_size if k else size
        shapes |= _layer(f"{part}[{k}]", spec.hidden_size, columns, spec.norm_of(part))
    return shapes


def _gru(spec: RSSMSpec) -> Shapes:
    H, rows = spec.belief_size, 3 * spec.belief_size
    normed = spec.cell == "gru_layernorm"
    shapes: Shapes = {
        "gru.w_ih[0]": ((rows, spec.hidden_size), True),
        "gru.w_hh[0]": ((rows, H), True),
        "gru.b_ih[0]": ((rows,), False),
        "gru.b_hh[0]": ((rows,), False),
    }
    if normed:
        shapes |= {"gru_scale": ((rows,), True), "gru_shift": ((rows,), False)}
    return shapes


def _dynamics(spec: RSSMSpec) -> Shapes:
    B, block = spec.num_blocks, spec.belief_size // spec.num_blocks
    shapes: Shapes = {}
    for k in range(spec.dynamics_layers + 1):
        last = k == spec.dynamics_layers
        rows = 3 * spec.belief_size if last else spec.belief_size
        columns = block if k else block + 3 * spec.hidden_size
        shapes |= _layer(f"dynamics[{k}]", rows, columns, "none" if last else spec.norm)
        shapes[f"dynamics[{k}].w"] = (B, rows // B, columns), True
    return shapes
