"""Say what rnnop finds on this machine, and what it would use.

The C engine, cuDNN and how it was found, GPUs, packages that rnnop can work with, the backends,
and every environment variable with its value and where that came from. What is not here is said
with its reason. No framework is imported. Paste the output into a bug report.

  python -m rnnop info
  python -m rnnop info --json

The exit status is 0, whatever is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from .. import backends, flags
from .._version import __version__
from ..cpu import engine
from ..cudnn import library as cudnn
from ..errors import RnnopError
from .bench.machine import processor
from .devices import devices

# By the name that is imported: CuPy has a distribution for each CUDA.
_MODULES = (
    *("numpy", "array_api_compat", "ml_dtypes", "cupy", "torch", "jax", "flax"),
    *("onnx", "onnxruntime", "tensordict", "torchrl"),
)
_COMPILER = re.compile(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options: `--json` is there already."""


def run(options: argparse.Namespace) -> None:
    """Find out and print."""
    found = describe()
    print(json.dumps(found) if options.json else text(found))


def describe() -> dict[str, Any]:
    """Return all of it, as `--json` prints it. A reason stands where something is missing."""
    return {
        "rnnop": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{processor()}, {engine.available_cores()} cores for this process",
        "packages": _packages(),
        "engine": _engine(),
        "cudnn": _cudnn(),
        "gpus": devices(),
        "backends": {name: backends.load(name).unavailable() for name in backends.BACKENDS},
        "flags": {name: _flag(name) for name in flags.FLAGS},
    }


def _packages() -> dict[str, str | None]:
    """Return the distribution and the version of each package; None where it is not installed."""
    owners = metadata.packages_distributions()
    return {
        module: ", ".join(f"{name} {metadata.version(name)}" for name in sorted({*owners[module]}))
        if module in owners
        else None
        for module in _MODULES
    }


def _engine() -> dict[str, Any] | str:
    """Return the instruction sets and what they were compiled with, or why there is no engine."""
    reason = engine.why_unavailable()
    if reason is not None:
        return reason
    try:
        chosen, threads = engine.engine(), engine.num_threads()
    except RnnopError as error:
        return str(error)
    built = engine.built()
    compiler = _COMPILER.search(built[chosen.isa].read_bytes())
    return {
        "chosen": chosen.isa,
        "threads": threads,
        "runs_here": list(engine.available()),
        "built": list(built),
        "compiler": compiler[0].decode() if compiler else None,
        "folder": str(built[chosen.isa].parent),
        "bfloat16": chosen.has_bf16,
    }


def _cudnn() -> dict[str, Any] | str:
    """Return what was found and how, or why there is no cuDNN."""
    reason = cudnn.missing()
    if reason is not None:
        return reason
    found = cudnn.library()
    return {
        "version": found.version_text,
        "path": str(found.path),
        "found_by": found.how,
        "companions": found.companions,
    }


def _flag(name: str) -> dict[str, str]:
    """Return the value of a flag and where it comes from; one that is refused, with the reason."""
    (raw,) = flags.raw([name])
    source = "default" if raw is None else "environment"
    try:
        return {"value": flags.read(name), "from": source}
    except RnnopError as error:
        return {"value": str(raw), "from": source, "error": str(error)}


def text(found: dict[str, Any]) -> str:
    """Return it for people: a line for each fact."""
    lines = list(_lines(found))
    width = max(len(title) for title, _ in lines)
    return "\n".join(f"{title:{width}}  {fact}".rstrip() for title, fact in lines)


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("rnnop", "python", "system", "processor"):
        yield name, found[name]
    packages = found["packages"]
    yield "installed", ", ".join(each for each in packages.values() if each)
    yield "not installed", ", ".join(name for name, each in packages.items() if each is None)
    yield "C engine", _fact(found["engine"], _ENGINE)
    yield "cuDNN", _fact(found["cudnn"], _CUDNN)
    gpus = found["gpus"]
    if isinstance(gpus, str):
        yield "GPU", gpus
    else:
        yield from ((f"GPU {number}", _fact(gpu, _GPU)) for number, gpu in enumerate(gpus))
    for name, reason in found["backends"].items():
        told = reason is not None and reason == found["cudnn"]
        yield f"backend {name}", "no: see cuDNN" if told else reason or "yes"
    for name, each in found["flags"].items():
        yield name, each.get("error") or f"{each['value']} ({each['from']})"


_ENGINE = (
    "{chosen}, threads: {threads}; runs here: {runs_here}; built: {built}; by {compiler}; "
    "dot product of bfloat16: {bfloat16}"
)
_CUDNN = "{version} of {path}, found by: {found_by}; companions: {companions}"
_GPU = "{name}, compute capability {capability}, {memory_gib} GiB"


def _fact(found: dict[str, Any] | str, pattern: str) -> str:
    """Return what was found, or the reason why it was not."""
    if isinstance(found, str):
        return found
    return pattern.format(**{name: _listed(value) for name, value in found.items()})


def _listed(value: Any) -> Any:
    """Return a value as it stands in a sentence."""
    if isinstance(value, dict):
        return ", ".join(f"{name} ({how or 'not found'})" for name, how in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "an unknown compiler" if value is None else value
