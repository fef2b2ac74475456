"""Write tvm.npz: outputs of the numpy twin of TVM's topi LSTM.

The twin is one file of the apache-tvm wheel, and needs nothing but numpy:

    python3.11 -m venv tvm-venv
    tvm-venv/bin/pip install apache-tvm==0.27.0.post1 numpy==2.4.6
    tvm-venv/bin/python tests/golden/make_tvm.py

One case is one call of ``lstm_python`` in float64; each array is stored under the twin's own name
for it. ``hidden`` and ``cell`` are the states after every step, in the order the steps were taken:
with reverse=True the first of them belongs to the last input. The twin's peepholes are
(batch, hidden); every row of the batch gets the same one here, since a peephole is a weight.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np

T, B, I, H, P = 6, 3, 5, 7, 4

# name: (optional arrays, reverse, weight_layout)
BIASES, STATES = ("Bi", "Bh"), ("h_init", "c_init")
PEEPHOLES = ("p_i", "p_f", "p_o")
CASES = {
    "bare": ((), False, "IFGO"),
    "plain": (BIASES + STATES, False, "IFGO"),
    "projection": ((*BIASES, *STATES, "proj"), False, "IFGO"),
    "peepholes": (BIASES + STATES + PEEPHOLES, False, "IFGO"),
    "output-peephole": ((*BIASES, *STATES, "p_o"), False, "IFGO"),
    "reverse": (BIASES + STATES, True, "IFGO"),
    "layout-IOFG": (BIASES + STATES, False, "IOFG"),
    "layout-GOFI": (BIASES + STATES, False, "GOFI"),
    "assorted": ((*BIASES, *STATES, *PEEPHOLES, "proj"), True, "OIGF"),
}


def load_twin() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """The twin, from its own file: importing its package would ask for scipy and the runtime."""
    package = importlib.util.find_spec("tvm")
    if package is None or package.origin is None:
        raise SystemExit("apache-tvm is not installed here")
    path = Path(package.origin).parent / "topi" / "testing" / "lstm_python.py"
    spec = importlib.util.spec_from_file_location("lstm_python", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.lstm_python


def draw(rng: np.random.Generator, optional: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Inputs in [-1, 1], on a grid of 1/64."""
    out = P if "proj" in optional else H
    shapes = {
        "Xs": (T, B, I),
        "Wi": (4 * H, I),
        "Wh": (4 * H, out),
        "Bi": (4 * H,),
        "Bh": (4 * H,),
        "h_init": (B, out),
        "c_init": (B, H),
        "proj": (P, H),
        **dict.fromkeys(PEEPHOLES, (1, H)),
    }
    wanted = ("Xs", "Wi", "Wh", *optional)
    arrays = {name: rng.integers(-64, 64, shapes[name], endpoint=True) / 64 for name in wanted}
    return {n: a.repeat(B, axis=0) if n in PEEPHOLES else a for n, a in arrays.items()}


def main() -> None:
    lstm_python = load_twin()
    rng = np.random.default_rng(11531)
    meta = {
        "apache-tvm": importlib.metadata.version("apache-tvm"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "dtype": "float64",
        "cases": {n: {"reverse": r, "weight_layout": w} for n, (_, r, w) in CASES.items()},
    }
    stored = {"meta": np.array(json.dumps(meta))}
    for name, (optional, reverse, weight_layout) in CASES.items():
        arrays = draw(rng, optional)
        hidden, cell = lstm_python(**arrays, reverse=reverse, weight_layout=weight_layout)
        arrays |= {"hidden": hidden, "cell": cell}
        stored |= {f"{name}/{key}": array for key, array in arrays.items()}
    np.savez_compressed(Path(__file__).with_name("tvm.npz"), **stored)


if __name__ == "__main__":
    main()
