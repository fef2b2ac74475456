"""Noise from a seed: a counter-based stream for each step.

The stream of step t is that of Philox 4x64 keyed by (seed, t), read row by row. So the noise of a
step depends on nothing else: not on the layout or the dtype, and steps or rows that are added at
the end change nothing before them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dropout import fresh_seed
from .spec import RSSMSpec


def draw(spec: RSSMSpec, seed: int | None, num_steps: int, batch_size: int) -> npt.NDArray[Any]:
    """Return (T, N, S) normals for a Gaussian, (T, N, S / K) uniforms in [0, 1) else; float64.

    Without a seed, they are others each time.
    """
    if seed is None:
        seed = fresh_seed()
    noise = np.empty((num_steps, batch_size, spec.noise_size))
    for t in range(num_steps):
        stream = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, t])))
        if spec.latent == "gaussian":
            stream.standard_normal(out=noise[t])
        else:
            stream.random(out=noise[t])
    return noise
