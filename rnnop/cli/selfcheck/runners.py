"""Who runs the grid: each backend of this machine, in each of the ways that it has."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ... import backends, flags
from ...arrays import FLOATS, LABELS
from ...cpu import engine
from ...cudnn import algo
from ...cudnn.enums import MathType
from ...cudnn.memory import FAMILIES
from ...tolerances import TOLERANCES

_HALVES = ("float16", "bfloat16")
_CONVERSION = "RNNOP_TENSOR_OP_ALLOW_CONVERSION"


@dataclass(frozen=True)
class Runner:
    """A backend, the family of the arrays it is given, and the flags that are set for it."""

    backend: str
    family: str = "numpy"
    settings: dict[str, str] = field(default_factory=dict)
    dtypes: Sequence[str] = FLOATS

    @property
    def name(self) -> str:
        """What it is called in a report."""
        arrays = [f"{LABELS[self.family]} arrays"] if self.backend == "cudnn" else []
        settings = (f"{name}={value}" for name, value in self.settings.items())
        return ", ".join([self.backend, *arrays, *settings])

    def tolerance(self, dtype: str) -> float:
        """Return the published tolerance for data of a dtype.

        Where a flag lets cuDNN round wider data down to 10 bits for its products, it is float16's.
        Where one lets the CPU engine round to bfloat16, there is a row for that.
        """
        if self.rounds(dtype):
            return TOLERANCES["cpu_bfloat16_products", dtype]
        with flags.settings(self.settings):
            strict = dtype in _HALVES or algo.math_type(dtype) is MathType.CUDNN_FMA_MATH
        coarse = self.backend == "cudnn" and not strict
        return TOLERANCES[self.backend, "float16" if coarse else dtype]

    def rounds(self, dtype: str) -> bool:
        """Return whether the CPU engine rounds data of a dtype to bfloat16 for its products."""
        with flags.settings(self.settings):
            return self.backend == "cpu" and engine.engine().rounds(dtype)

    def move(self, array: Any) -> Any:
        """Return a NumPy array as one of the family, on a GPU unless that is NumPy's."""
        return _FAMILIES[self.family][0](array)

    def back(self, array: Any) -> Any:
        """Return an array of the family as NumPy's."""
        return _FAMILIES[self.family][1](array)


def find_runners(wanted: Sequence[str], quick: bool = False) -> tuple[list[Runner], dict[str, str]]:
    """Return who can run here, and why the others cannot.

    Parameters
    ----------
    wanted : sequence of str
        Names of backends.
    quick : bool
        Whether to leave out ways that are not the default.
    """
    found: list[Runner] = []
    missing: dict[str, str] = {}
    for name in wanted:
        reason = backends.load(name).unavailable()
        mine = _RUNNERS[name](quick) if reason is None else []
        if not mine:
            missing[name] = reason or "neither CuPy nor PyTorch is here to hold arrays on the GPU"
        found += mine
    return found, missing


def _cpu(quick: bool) -> list[Runner]:
    """Return one for each instruction set, or that of RNNOP_CPU_ISA, and those that may round."""
    isas = engine.available() if flags.read("RNNOP_CPU_ISA") == "auto" else (engine.engine().isa,)
    found = [Runner("cpu", settings={"RNNOP_CPU_ISA": isa}) for isa in isas]
    found += [
        Runner("cpu", settings={"RNNOP_CPU_ISA": isa, _CONVERSION: "1"}, dtypes=("float32",))
        for isa in isas
        if engine.load(isa).has_bf16
    ]
    return found[:1] if quick else found


def _cudnn(quick: bool) -> list[Runner]:
    """Return one for each family of arrays, and on the first one for each other way."""
    families = [name for name, memory in FAMILIES.items() if _on_a_gpu(name)]
    found = [Runner("cudnn", family) for family in families]
    if quick or not found:
        return found
    return found + [
        Runner("cudnn", families[0], {name: value}, dtypes)
        for name, value, dtypes in _WAYS
        if flags.raw([name]) == (None,)  # who has set it gets nothing else
    ]


def _reference(quick: bool) -> list[Runner]:
    """Return it in all dtypes but its own, float64, where it would be compared with itself."""
    found = [Runner("reference", dtypes=FLOATS[1:])]
    wide = Runner("reference", settings={"RNNOP_REFERENCE_FLOAT64": "1"}, dtypes=("float32",))
    return found if quick else [*found, wide]


_RUNNERS = {"cpu": _cpu, "cudnn": _cudnn, "reference": _reference}

# The ways of cuDNN that are not the default, and the dtypes that they matter to.
_WAYS: list[tuple[str, str, Sequence[str]]] = [
    ("RNNOP_CUDNN_LAYOUT", "padded", FLOATS),
    *(("RNNOP_CUDNN_ALGO", name, FLOATS) for name in algo.ALGORITHMS if name != "standard"),
    ("RNNOP_ALLOW_TENSOR_CORE", "0", _HALVES),
    ("RNNOP_ALLOW_TF32", "1", ("float32",)),
    (_CONVERSION, "1", ("float64", "float32")),
]


# Families of arrays: how NumPy's become theirs, and come back. A framework is imported only where
# it is installed and cuDNN was found.


def _same(array: Any) -> Any:
    return array


def _to_cupy(array: Any) -> Any:
    return importlib.import_module("cupy").asarray(array)


def _from_cupy(array: Any) -> Any:
    return array.get()


def _to_torch(array: Any) -> Any:
    return importlib.import_module("rnnop.torch.host").to_tensor(array).to("cuda")


def _from_torch(array: Any) -> Any:
    return importlib.import_module("rnnop.torch.host").to_numpy(array.cpu())


_FAMILIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "numpy": (_same, _same),
    "cupy": (_to_cupy, _from_cupy),
    "torch": (_to_torch, _from_torch),
}


def _on_a_gpu(family: str) -> bool:
    """Return whether arrays of a family can be given to cuDNN here."""
    if family == "numpy":
        return FAMILIES["numpy"].missing(None) is None
    if find_spec(family) is None:
        return False
    return family != "torch" or bool(importlib.import_module("torch").cuda.is_available())
