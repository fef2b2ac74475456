"""Fresh weights, drawn from a seed as PyTorch, Keras or Flax would draw them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from . import validate
from .arrays import FLOATS
from .errors import SpecError, blame
from .spec import RNNSpec, check_bool, check_mode
from .weights import RNNWeights, expected_shapes

SCHEMES = ("pytorch", "keras", "flax")

_Matrix = npt.NDArray[np.float64]


def init_weights(
    mode: str,
    *,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    proj_size: int | None = None,
    peephole: bool = False,
    seed: int | None = None,
    dtype: Any = "float32",
    scheme: str = "pytorch",
) -> RNNWeights:
    """Draw the weights of a network as NumPy arrays.

    Parameters
    ----------
    mode : {'rnn_relu', 'rnn_tanh', 'gru', 'lstm'}
        The cell.
    input_size, hidden_size, num_layers : int
        I, H and L, each at least 1.
    bidirectional : bool
        Whether every layer has two directions.
    bias : bool
        Whether there are `b_ih` and `b_hh`.
    proj_size : int, optional
        P of an LSTM projection, 1..H.
    peephole : bool
        Whether an LSTM has peepholes.
    seed : int, optional
        The same seed gives the same weights. None draws new ones each time.
    dtype : str or dtype
        float64, float32, float16 or bfloat16.
    scheme : {'pytorch', 'keras', 'flax'}
        See Notes.

    Returns
    -------
    RNNWeights
        For another family, ``weights.map(torch.from_numpy)`` and the like.

    Raises
    ------
    SpecError
        A size, the mode, the dtype or the scheme is not one of those above.

    Notes
    -----
    * 'pytorch': everything uniform in -1/sqrt(H)..1/sqrt(H), as `torch.nn.LSTM` does.
    * 'keras': input and projection matrices Glorot uniform, the recurrent matrix of all gates
      orthogonal, biases 0 but 1 for the forget gate, as `keras.layers.LSTM` does.
    * 'flax': input and projection matrices LeCun normal (a normal cut at two standard deviations),
      the recurrent matrix of each gate orthogonal, biases 0, as `flax.linen.LSTMCell` does.

    Peepholes are uniform for 'pytorch' and 0 elsewhere. The schemes give the same distributions as
    those systems, not the same numbers.

    Examples
    --------
    >>> import rnnop
    >>> rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0)
    RNNWeights(1 layer, float32, 108 parameters)
      w_ih[0]      (12, 3)
      w_hh[0]      (12, 4)
      b_ih[0]      (12,)
      b_hh[0]      (12,)
    """
    with blame("init_weights"):
        check_mode(mode)
        for name, value in (
            ("bidirectional", bidirectional),
            ("bias", bias),
            ("peephole", peephole),
        ):
            check_bool(name, value)
        validate.choice("scheme", scheme, SCHEMES)
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, size in sizes.items():
            validate.size(name, size)
        if proj_size is not None:
            validate.size("proj_size", proj_size, most=hidden_size)
        for name, given in (("proj_size", proj_size is not None), ("peephole", peephole)):
            if given and mode != "lstm":
                raise SpecError(f"`{name}` is given with mode {mode!r}; only mode 'lstm' has it")
        number = float_dtype(dtype)
        spec = RNNSpec(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            proj_size=proj_size,
            bidirectional=bidirectional,
            bias="double" if bias else "none",
            peephole=peephole,
        )
        generator = np.random.default_rng(validate.seed(seed))
    drawn: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in expected_shapes(spec)}
    for k in range(spec.num_pseudo_layers):
        for name, shapes in expected_shapes(spec).items():
            array = _draw(generator, scheme, name, shapes[k], spec)
            drawn[name].append(array.astype(number))
    return RNNWeights.of_fields(drawn, bool(bidirectional))


def float_dtype(given: Any) -> np.dtype[Any]:
    """Return the NumPy dtype that a name or a dtype stands for, refusing what is no float."""
    try:
        name = np.dtype(ml_dtypes.bfloat16 if given == "bfloat16" else given).name
    except TypeError:
        name = repr(given)
    if given is None:  # which NumPy takes for float64
        name = "None"
    if name not in FLOATS:
        raise SpecError(f"`dtype` is {name}; expected one of {', '.join(FLOATS)}")
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return dtype


def _draw(
    generator: np.random.Generator, scheme: str, name: str, shape: tuple[int, ...], spec: RNNSpec
) -> _Matrix:
    """Draw one array of float64."""
    if scheme == "pytorch":
        bound = 1.0 / math.sqrt(spec.hidden_size)
        return generator.uniform(-bound, bound, shape)
    if name == "w_hh":
        if scheme == "keras":
            return _orthogonal(generator, shape)
        gate = (spec.hidden_size, shape[1])
        return np.concatenate([_orthogonal(generator, gate) for _ in range(spec.num_gates)])
    if name in ("w_ih", "w_hr"):
        rows, columns = shape
        if scheme == "keras":
            bound = math.sqrt(6.0 / (rows + columns))
            return generator.uniform(-bound, bound, shape)
        return truncated_normal(generator, shape) / math.sqrt(columns)
    array = np.zeros(shape)
    if scheme == "keras" and spec.mode == "lstm" and name == "b_ih":
        array[spec.hidden_size : 2 * spec.hidden_size] = 1.0  # the forget gate starts open
    return array


def _orthogonal(generator: np.random.Generator, shape: tuple[int, ...]) -> _Matrix:
    """Draw a matrix whose shorter side is orthonormal, uniform over all such matrices."""
    rows, columns = shape
    normal = generator.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diagonal(r))  # without it, the distribution depends on the QR at hand
    return np.ascontiguousarray(q if rows >= columns else q.T)


def truncated_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> _Matrix:
    """Draw normals cut at two standard deviations, scaled to variance 1."""
    drawn = generator.standard_normal(shape)
    while np.any(beyond := np.abs(drawn) > 2.0):
        drawn[beyond] = generator.standard_normal(np.count_nonzero(beyond))
    return drawn / 0.87962566103423978  # the standard deviation of the cut normal
