"""Fresh weights, drawn from a seed as PyTorch or Dreamer v3 draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import validate
from ..errors import DTypeError, blame
from ..initialize import float_dtype, truncated_normal
from ..spec import check_bool
from .spec import RSSMSpec
from .weights import RSSMWeights, expected_shapes

SCHEMES = ("pytorch", "dreamer_v3")


def init_weights(
    spec: RSSMSpec,
    *,
    learned_initial: bool = False,
    seed: int | None = None,
    dtype: Any = "float32",
    scheme: str = "pytorch",
) -> RSSMWeights:
    """Draw the weights of an RSSM as NumPy arrays.

    Parameters
    ----------
    spec : RSSMSpec
        The model.
    learned_initial : bool
        Whether there are `initial_state` and `initial_belief`, which begin at 0.
    seed : int, optional
        The same seed gives the same weights. None draws new ones each time.
    dtype : str or dtype
        float64, float32, float16 or bfloat16.
    scheme : {'pytorch', 'dreamer_v3'}
        See Notes.

    Returns
    -------
    RSSMWeights
        For another family, ``weights.map(torch.from_numpy)`` and the like.

    Raises
    ------
    DTypeError
        `spec` is no RSSMSpec.
    SpecError
        The seed, the dtype or the scheme is not one of those above.

    Notes
    -----
    * 'pytorch': a layer with n inputs uniform in -1/sqrt(n)..1/sqrt(n), a GRU in
      -1/sqrt(H)..1/sqrt(H), biases too, as `torch.nn.Linear` and `torch.nn.GRUCell` do.
    * 'dreamer_v3': matrices normal with variance 1/n, cut at two standard deviations, biases 0; n
      counts the inputs of all blocks.

    Norms begin as the identity. The schemes give the distributions of their owners, not the same
    numbers.

    Examples
    --------
    >>> from rnnop import rssm
    >>> spec = rssm.RSSMSpec(state_size=3, belief_size=8, action_size=2, hidden_size=6)
    >>> rssm.init_weights(spec, seed=0)
    RSSMWeights(float32, 516 parameters)
      rssm(gru, gaussian, state 3, belief 8, action 2, embed 0, hidden 6)
      inputs[0].w      (6, 5)
      inputs[0].b      (6,)
      prior[0].w       (6, 8)
      prior[0].b       (6,)
      prior[1].w       (6, 6)
      prior[1].b       (6,)
      gru.w_ih[0]      (24, 6)
      gru.w_hh[0]      (24, 8)
      gru.b_ih[0]      (24,)
      gru.b_hh[0]      (24,)
    """
    with blame("init_weights"):
        if not isinstance(spec, RSSMSpec):
            raise DTypeError(f"`spec` is {type(spec).__name__}; expected RSSMSpec")
        check_bool("learned_initial", learned_initial)
        validate.choice("scheme", scheme, SCHEMES)
        number = float_dtype(dtype)
        generator = np.random.default_rng(validate.seed(seed))
    drawn = {}
    fan_in = 1
    for name, (shape, _) in expected_shapes(spec).items():
        if name.startswith("initial") and not learned_initial:
            continue
        if name == "gru.b_hh[0]" and spec.cell == "gru_layernorm":
            continue  # its owner has one bias
        if len(shape) > 1:  # a bias comes after its matrix
            fan_in = shape[-1] * math.prod(shape[:-2])
        size = spec.belief_size if name.startswith("gru.") else fan_in
        drawn[name] = _draw(generator, scheme, name, shape, size).astype(number)
    return RSSMWeights.of_arrays(spec, drawn)


def _draw(
    generator: np.random.Generator, scheme: str, name: str, shape: tuple[int, ...], size: int
) -> npt.NDArray[np.float64]:
    """Draw one array of float64; `size` is the n of the schemes."""
    if name.endswith("scale"):
        return np.ones(shape)
    if name.endswith("shift") or name.startswith("initial"):
        return np.zeros(shape)
    if scheme == "pytorch":
        bound = 1.0 / math.sqrt(size)
        return generator.uniform(-bound, bound, shape)
    if len(shape) == 1:
        return np.zeros(shape)
    return truncated_normal(generator, shape) / math.sqrt(math.prod(shape[:-2]) * shape[-1])
