"""A call as JAX sees it: operands, which may be traced, and everything else, which is static."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from .. import api, arrays, dropout, validate
from ..api import VJP
from ..arrays import Array
from ..errors import DTypeError, SpecError
from ..packing import PackedSequence, data_of
from ..weights import PrepackedWeights, RNNWeights


class Operands(NamedTuple):
    """The arrays of a call, in the order in which the primitives take them; None for none.

    The data of x, the weights, h0 and c0 come first: they are what has a gradient.
    """

    x: Any
    weights: Any
    h0: Any = None
    c0: Any = None
    mask: Any = None
    lengths: Any = None
    resets: Any = None
    dropout_masks: Any = None
    seed: Any = None


@dataclass(frozen=True)
class RNNCall:
    """What is static of a call of `rnnop.rnn`, see `calls.py`.

    Attributes
    ----------
    tree : PyTreeDef
        How the operands make `Operands`.
    steps : tuple or None
        The indices of a PackedSequence.
    prepacked : PrepackedWeights or None
        The weights as NumPy arrays, if they came prepacked.
    options : tuple of (name, value)
        All other arguments of `rnnop.rnn`.
    """

    tree: Any
    steps: tuple[tuple[int, ...] | None, ...] | None
    prepacked: PrepackedWeights | None
    options: tuple[tuple[str, Any], ...]

    @property
    def function(self) -> str:
        """The public function that was called."""
        return "rnn"

    @property
    def num_operands(self) -> int:
        """How many arrays it takes."""
        return int(self.tree.num_leaves)

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The names of the cotangents."""
        return "dy", "dh_n", "dc_n", "dc"

    def operands(self, leaves: Sequence[Any] | None = None) -> Operands:
        """Return the operands by name: `leaves`, or their numbers."""
        numbers = range(self.tree.num_leaves)
        operands: Operands = jax.tree_util.tree_unflatten(
            self.tree, numbers if leaves is None else leaves
        )
        return operands

    def arguments(self, leaves: Sequence[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of `rnnop.rnn`, with `leaves` of the family of a backend."""
        operands = self.operands(leaves)
        x, weights, h0, c0 = operands[:4]
        options = self._options.copy()
        for name in self._traced:
            options[name] = getattr(operands, name)
        if self.steps is not None:
            indices = [None if each is None else np.array(each, np.int64) for each in self.steps]
            x = PackedSequence(x, *indices)  # type: ignore[arg-type]
        if self.prepacked is not None and arrays.family(data_of(x)) == "numpy":
            weights = self.prepacked
        if operands.seed is not None:
            options["seed"] = arrays.to_host(operands.seed, "seed").item()
        return (x, weights, h0, c0), options

    @functools.cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options)

    @functools.cached_property
    def _traced(self) -> list[str]:
        """The names of the options that are operands."""
        given = self.operands()
        return [name for name in Operands._fields[4:] if getattr(given, name) is not None]

    @property
    def num_gradients(self) -> int:
        """How many operands have a gradient: the first ones."""
        return len(jax.tree_util.tree_leaves(self.operands()[:4]))

    @property
    def draws(self) -> bool:
        """Whether it draws dropout from a seed."""
        operands = self.operands()
        return draws(operands.weights, operands.dropout_masks, self._options)

    def quiet(self) -> RNNCall:
        """Return the call without what was said when it was checked."""
        if self.operands().weights.num_layers > 1:
            return self
        return replace(self, options=tuple(each for each in self.options if each[0] != "dropout"))

    def run(self, leaves: Sequence[Array]) -> list[Array]:
        """Return the results that are not None."""
        given, options = self.arguments(leaves)
        return _arrays(api.rnn.direct(*given, **options))  # type: ignore[attr-defined]

    def run_vjp(self, leaves: Sequence[Array]) -> tuple[list[Array], VJP]:
        """Return them, and the vjp."""
        given, options = self.arguments(leaves)
        output, vjp = api.rnn_vjp.direct(*given, **options)  # type: ignore[attr-defined]
        return _arrays(output), vjp

    def kept(self, vjp: VJP) -> Any:
        """Return what it holds in memory until the backward."""
        return vjp._result

    def pull(self, vjp: VJP, cotangents: Mapping[str, Array]) -> list[Array]:
        """Return the gradients of the first operands, as many as have one."""
        grads, given = vjp(**{"dy": None, **cotangents}), self.operands()
        leaves: list[Array] = jax.tree_util.tree_leaves(
            Operands(
                data_of(grads.x),
                grads.weights,
                None if given.h0 is None else grads.h0,
                None if given.c0 is None else grads.c0,
            )
        )
        return leaves

    @property
    def folds(self) -> bool:
        """Whether what is mapped may become rows of one call."""
        return not (self.steps or self.draws)

    def rows(self) -> list[int]:
        """Return which axis of each operand is that of the rows; of weights and the seed -1."""
        named = self.operands()
        steps = 0 if self._options.get("batch_first") else 1
        axes = Operands(
            x=steps,
            weights=-1,
            h0=_STATES,
            c0=_STATES,
            mask=steps,
            lengths=0,
            resets=steps,
            dropout_masks=steps if isinstance(named.dropout_masks, list | tuple) else 1 + steps,
            seed=-1,
        )
        return axis_of_each(named, axes)

    def result_rows(self) -> list[int]:
        """Return which axis of y, h_n, c_n and c is that of the rows."""
        steps = self.rows()[0]
        return [steps, _STATES, _STATES, steps]

    def shapes(self, avals: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the results, after all checks that need no values.

        Raises
        ------
        RnnopError
            As from `rnnop.rnn`.
        """
        return _shapes(self, tuple((aval.shape, aval.dtype) for aval in avals))


# Of h0 and c0, and of the final states
_STATES = 1


def _arrays(output: api.RNNOutput) -> list[Array]:
    return [data_of(each) for each in output if each is not None]


def axis_of_each(operands: Any, axes: Any) -> list[int]:
    """Return the axis of each leaf: those of `axes` are of the fields of the operands."""
    found: list[int] = []
    for operand, axis in zip(operands, axes, strict=True):
        found += [axis] * len(jax.tree_util.tree_leaves(operand))
    return found


@functools.lru_cache(maxsize=256)
def _shapes(call: RNNCall, avals: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    given, options = call.arguments([stand_in(*aval) for aval in avals])
    shapes: Any = api.shapes(*given, **options)
    return tuple(shape for shape in shapes if shape is not None)


def stand_in(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return a NumPy array of zeros that takes no room, for its shape and dtype."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def draws(weights: RNNWeights, dropout_masks: Any, options: dict[str, Any]) -> bool:
    """Return whether a call draws dropout from a seed."""
    acts = options.get("training") and options.get("dropout") and weights.num_layers > 1
    return bool(acts) and dropout_masks is None


def split(
    x: Any, weights: Any, h0: Any = None, c0: Any = None, **options: Any
) -> tuple[RNNCall, list[Array]]:
    """Cut the arguments of `rnnop.rnn` into what is static and the operands.

    Raises
    ------
    DTypeError
        The arrays are of several families, or the indices of a packed sequence are traced.
    SpecError
        A call that JAX transforms would draw dropout, and has no seed.
    """
    steps = None
    if isinstance(x, PackedSequence):
        steps = tuple(_indices(f"x.{name}", getattr(x, name)) for name in x._fields[1:])
    prepacked = None
    if isinstance(weights, PrepackedWeights):
        weights, prepacked = weights.weights, on_host(weights)
    plain = validate.weights_object(weights)
    given = {
        name: steps_array(name, options.pop(name, None)) for name in ("mask", "lengths", "resets")
    }
    masks, seed = options.pop("dropout_masks", None), options.pop("seed", None)
    options = {name: _static(name, value) for name, value in options.items()}
    operands = Operands(data_of(x), plain, h0, c0, **given, dropout_masks=masks)
    _one_family(operands)
    if seed is None and draws(plain, masks, options):
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(operands)):
            raise SpecError(
                "`seed` is None under a transformation of JAX; expected an integer",
                "It may be an array: traced, it can differ from call to call",
            )
        seed = dropout.fresh_seed()
    if isinstance(seed, jax.Array) and seed.dtype.kind in "iu" and seed.ndim == 0:
        operands = operands._replace(seed=seed)
    elif seed is not None:
        options["seed"] = validate.seed(seed)
    leaves, tree = jax.tree_util.tree_flatten(operands)
    return RNNCall(tree, steps, prepacked, tuple(sorted(options.items()))), leaves


def _one_family(operands: Operands) -> None:
    """Refuse what must be an array of the family of x and is not."""
    for name, value in _named(operands):
        family = arrays.family(value)
        if family not in (None, arrays.family(operands.x)):
            validate.same_place(name, value, operands.x)
        leaves = [] if family else jax.tree_util.tree_leaves(value)
        if any(arrays.family(leaf) is None for leaf in leaves):
            validate.data_array(name, value)


def _named(operands: Operands) -> Iterator[tuple[str, Any]]:
    weights: RNNWeights = operands.weights
    yield from ((f"weights.{name}", array) for name, array in weights.named())
    yield from (("h0", operands.h0), ("c0", operands.c0))
    masks = operands.dropout_masks
    if isinstance(masks, tuple | list):
        yield from ((f"dropout_masks[{k}]", mask) for k, mask in enumerate(masks))
    else:
        yield "dropout_masks", masks


def steps_array(name: str, value: Any) -> Array | None:
    """Return a mask, resets or lengths as an array, which may be of JAX."""
    if value is None or arrays.family(value) == "jax":
        return value
    host = arrays.to_host(value, name)
    if host.dtype.kind in "iu":  # what int32 cannot hold must not come out as another number
        host = np.clip(host, -1, np.iinfo(np.int32).max)
    if host.dtype == np.longdouble:  # JAX has none; it is refused for its kind
        host = host.astype(np.float64)
    return host


def _indices(name: str, value: Any) -> tuple[int, ...] | None:
    """Return indices of a packed sequence as something with a hash."""
    if value is None:
        return None
    if isinstance(value, jax.core.Tracer):
        raise DTypeError(
            f"`{name}` is traced by JAX; expected an array on the host",
            "Only the data of a packed sequence may be an argument of a transformed function",
        )
    return tuple(arrays.to_host(value, name).tolist())


def _static(name: str, value: Any) -> Any:
    """Return an option with tuples in place of lists and arrays: it must have a hash."""
    if isinstance(value, jax.Array):
        raise DTypeError(
            f"`{name}` is an array of JAX; expected a Python value",
            "An option is static: under jax.jit it cannot depend on an argument",
        )
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return tuple(_static(name, each) for each in value)
    return value


def on_host(prepacked: PrepackedWeights) -> PrepackedWeights:
    """Return prepacked weights as those of NumPy arrays, made once."""
    kept: PrepackedWeights | None = prepacked.cache.get("jax")
    if kept is None:
        arrays_of_numpy = prepacked.weights.map(np.asarray)
        kept = api.prepack.direct(  # type: ignore[attr-defined]
            arrays_of_numpy, mode=prepacked.mode, backend=prepacked.backend
        )
        prepacked.cache["jax"] = kept
    return kept
