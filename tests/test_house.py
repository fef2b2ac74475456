"""The house rules: what importing costs, who may import whom, and that the words are all there."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnop
from rnnop import backends, flags

ROOT = Path(rnnop.__file__).parent
FRAMEWORKS = (
    "torch",
    "jax",
    "jaxlib",
    "cupy",
    "onnx",
    "onnxruntime",
    "matplotlib",
    "tqdm",
    "scipy",
)
ADAPTERS = ("torch", "jax", "onnx")  # the only packages that may import a framework


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of every module of the package."""
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), file


# Importing

IMPORT = """
import sys, time
import numpy

def libraries():
    try:
        with open("/proc/self/maps") as maps:
            return {line.split()[-1] for line in maps if ".so" in line}
    except FileNotFoundError:  # not on Linux
        return set()

before = libraries()
start = time.process_time()
import rnnop
print(time.process_time() - start)
print(*(libraries() - before), sep="\\t")
print(*sys.modules, sep="\\t")
"""


def import_in_a_fresh_process() -> tuple[float, list[str], list[str]]:
    """Return the seconds that `import rnnop` takes after numpy, new libraries, and all modules."""
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True, env=environment
    )
    seconds, libraries, modules = done.stdout.split("\n")[:3]
    return float(seconds), libraries.split("\t"), modules.split("\t")


def test_importing_costs_little() -> None:
    """Under 0.1 s of work beyond numpy's own: the least of several runs."""
    assert min(import_in_a_fresh_process()[0] for _ in range(5)) < 0.1


def test_importing_loads_no_framework_and_no_library() -> None:
    """But for ml_dtypes, which is where NumPy's bfloat16 comes from."""
    _, libraries, modules = import_in_a_fresh_process()
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & set(FRAMEWORKS)
    python = str(Path(os.__file__).parent / "lib-dynload")
    foreign = [name for name in libraries if name and not name.startswith(python)]
    assert all("ml_dtypes" in name for name in foreign), foreign


# Who may import whom


def imports(name: str, file: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    found = set()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(("name", "file"), [pytest.param(*each, id=each[0]) for each in sources()])
def test_who_imports_whom(name: str, file: Path) -> None:
    mine = name.split(".")[1:2]
    taken = imports(name, file)
    rooms = [each.removeprefix("rnnop.") for each in backends.BACKENDS.values()]
    if mine and mine[0] in rooms:  # a backend knows neither the operator nor another backend
        for other in ("api", *(room for room in rooms if room != mine[0])):
            assert not {each for each in taken if f"{each}.".startswith(f"rnnop.{other}.")}
    if not mine or mine[0] not in (*ADAPTERS, "cli", "__main__"):
        roots = {each.partition(".")[0] for each in taken}
        assert not roots & set(FRAMEWORKS)


# Documentation


def test_every_example_in_a_docstring_runs() -> None:
    examples: dict[str, int] = {}
    for name, _ in sources():
        if f"{name}.".split(".")[1] in (*ADAPTERS, "__main__"):
            continue
        for test in doctest.DocTestFinder().find(importlib.import_module(name)):
            if test.examples:
                report: list[str] = []
                result = doctest.DocTestRunner().run(test, out=report.append)
                assert result.failed == 0, "".join(report)
                examples[test.name] = len(test.examples)
    for name in ("api.rnn", "api.rnn_vjp", "packing.pack", "initialize.init_weights"):
        assert examples[f"rnnop.{name}"] > 0


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public function and class with its name."""
    for module in (rnnop, rnnop.layouts):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isroutine(value) or inspect.isclass(value):
                yield f"{module.__name__}.{name}", value


def section(text: str, title: str) -> list[str] | None:
    """Return the names that a section of a numpydoc docstring lists, or None without it."""
    match = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", text, re.M | re.S)
    if match is None:
        return None
    heads = re.findall(r"^(\S[^:\n]*?)(?: :.*)?$", match[1], re.M)
    return [name for head in heads for name in head.split(", ")]


@pytest.mark.parametrize(("name", "value"), [pytest.param(*each, id=each[0]) for each in public()])
def test_docstrings(name: str, value: Any) -> None:
    """A first line that is a sentence, and a section with every parameter or attribute."""
    text = inspect.getdoc(value)
    assert text is not None
    assert re.match(r"[A-Z].*[.:]$", text.partition("\n")[0])
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return
        if hasattr(value, "_fields"):
            fields = list(value._fields)
        else:
            fields = [each.name for each in dataclasses.fields(value) if each.name[0] != "_"]
        listed = (section(text, "Parameters") or []) + (section(text, "Attributes") or [])
        assert sorted(listed) == sorted(fields)  # related ones may share a line
        for method, function in vars(value).items():
            if callable(function) and not method.startswith("_"):
                assert function.__doc__
        return
    if "The arguments are those of `rnn`." not in text:
        assert section(text, "Parameters") == list(inspect.signature(value).parameters)
    assert section(text, "Returns")


def test_the_signature_is_that_of_the_specification() -> None:
    wanted = (
        "(x, weights, h0=None, c0=None, *, mode='gru', mask=None, lengths=None, resets=None, "
        "batch_first=False, reverse=False, dropout=0.0, training=False, seed=None, "
        "dropout_masks=None, cell_clip=None, cell_clip_nan=False, proj_clip=None, gate_clip=None, "
        "reset_after=True, activations=None, input_forget=False, masked_output='zero', "
        "return_cell_states=False, backend='auto')"
    )
    for function in (rnnop.rnn, rnnop.rnn_vjp, rnnop.explain):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        assert str(inspect.Signature(bare)) == wanted
        assert function.__module__ == "rnnop.api"


# Flags


def test_every_flag_is_read_and_none_behind_the_tables_back() -> None:
    texts = {name: file.read_text() for name, file in sources() if name != "rnnop.flags"}
    together = "\n".join(texts.values())
    for name in flags.FLAGS:
        assert re.search(rf'flags\.(read|enabled|integer)\("{name}"\)', together), name
    named = set(re.findall(r"\bRNNOP_[A-Z0-9_]+", together))
    assert named <= set(flags.FLAGS)
    for name, text in texts.items():
        if name != "rnnop.cli.bench.processes":  # which makes the environment of others
            assert not re.search(r"\b(os\.environ|getenv)\b", text), name


def test_every_variable_of_others_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [file.read_text() for name, file in sources() if name != "rnnop.flags"]
    for name in flags.FOREIGN:
        assert any(f'"{name}"' in text for text in texts), name
        monkeypatch.setenv(name, "/a/Folder")
        assert flags.foreign(name) == "/a/Folder"
        monkeypatch.setenv(name, "")
        assert flags.foreign(name) is None
    with pytest.raises(ValueError, match="tuple"):
        flags.foreign("HOME")


@pytest.mark.parametrize("flag", flags.FLAGS.values(), ids=lambda flag: flag.name)
def test_flags(flag: flags.Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flag.meaning
    assert flags.read(flag.name) == flag.default
    for choice in ("7",) if flag.choices is None else flag.choices:
        monkeypatch.setenv(flag.name, f" {choice.upper()} ")
        assert flags.read(flag.name) == choice
    if flag.choices == ():
        for text in ("/a/Folder", flag.default):
            monkeypatch.setenv(flag.name, f" {text} ")
            assert flags.read(flag.name) == text
        monkeypatch.setenv(flag.name, " ")
        assert flags.read(flag.name) == flag.default
    if flag.choices is None:
        assert flags.integer(flag.name) == 7
    elif set(flag.choices) == {"0", "1", "false", "true"}:
        for text, value in {"0": False, "1": True, "False": False, "TRUE": True}.items():
            monkeypatch.setenv(flag.name, text)
            assert flags.enabled(flag.name) is value


X = np.ones((2, 1, 3), np.float32)
W = rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0)


def test_flags_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "float32 arithmetic" in str(rnnop.explain(X, W, backend="reference"))
    monkeypatch.setenv("RNNOP_REFERENCE_FLOAT64", "1")
    assert "float64 arithmetic" in str(rnnop.explain(X, W, backend="reference"))
    monkeypatch.setenv("RNNOP_REFERENCE_FLOAT64", "0")
    assert "float32 arithmetic" in str(rnnop.explain(X, W, backend="reference"))
    monkeypatch.setenv("RNNOP_BACKEND", "reference")
    assert rnnop.explain(X, W).backend == "reference"


def test_a_backend_that_is_named_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RNNOP_BACKEND", "cpu")
    assert rnnop.explain(X, W, backend="reference").backend == "reference"


# Backends


@pytest.mark.parametrize("name", backends.BACKENDS)
def test_every_backend_has_the_same_functions(name: str) -> None:
    module = backends.load(name)
    wanted = {
        method: list(inspect.signature(function).parameters)[1:]
        for method, function in vars(backends.Backend).items()
        if not method.startswith("_") and callable(function)
    }
    assert {"supports", "forward", "backward"} <= set(wanted)
    for method, parameters in wanted.items():
        assert list(inspect.signature(getattr(module, method)).parameters) == parameters, method


def test_the_reference_comes_last_and_runs_everything() -> None:
    assert list(backends.BACKENDS)[-1] == "reference"
    explanation = rnnop.explain(X, W, mode="gru", activations=["Elu", "Softsign"], gate_clip=3.0)
    assert "reference" not in explanation.refusals
    assert explanation.backend not in explanation.refusals


def test_the_choices_of_the_flag_are_the_backends() -> None:
    choices = flags.FLAGS["RNNOP_BACKEND"].choices
    assert choices is not None
    assert set(choices) == {"auto", *backends.BACKENDS}


# explain


def test_explain_tells_how_a_call_would_run() -> None:
    dense = rnnop.explain(X, W, backend="reference")
    assert (dense.backend, dense.layout) == ("reference", "dense, T=2 N=1")
    assert dense.precision == "float32 data, float32 arithmetic"
    assert dense.spec == rnnop.RNNSpec.of(W, mode="gru")
    lines = str(dense).splitlines()
    assert lines[:4] == [
        "network    gru(3->4, 1 layer)",
        "backend    reference",
        "layout     dense, T=2 N=1",
        "precision  float32 data, float32 arithmetic",
    ]
    x = np.ones((4, 3, 3), np.float16)
    half = W.map(lambda array: array.astype(np.float16))
    ragged = rnnop.explain(x, half, lengths=[2, 0, 3], backend="reference")
    assert (
        ragged.layout == "packed, 2 segments of up to 3 steps; 5 of T*N = 4*3 = 12 steps are real"
    )
    assert ragged.precision == "float16 data, float64 arithmetic"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "gru"}, "gru(3->4, 1 layer)"),
        ({"mode": "gru", "reset_after": False}, "gru(3->4, 1 layer, reset_after=False)"),
        ({"mode": "gru", "reverse": True}, "gru(3->4, 1 layer, reverse)"),
        (
            {"mode": "gru", "activations": ["Sigmoid", ("Elu", 0.5)]},
            "gru(3->4, 1 layer, activations Sigmoid+Elu(0.5))",
        ),
        ({"mode": "gru", "gate_clip": (-1, 2.5)}, "gru(3->4, 1 layer, gate_clip=(-1, 2.5))"),
    ],
)
def test_the_text_of_a_network(options: dict[str, Any], text: str) -> None:
    assert str(rnnop.RNNSpec.of(W, **options)) == text


def test_the_text_of_a_large_network() -> None:
    w = rnnop.init_weights(
        "lstm",
        input_size=3,
        hidden_size=4,
        num_layers=2,
        bidirectional=True,
        bias=False,
        proj_size=2,
        peephole=True,
    )
    spec = rnnop.RNNSpec.of(
        w,
        mode="lstm",
        dropout=0.5,
        training=True,
        cell_clip=3.0,
        cell_clip_nan=True,
        proj_clip=2.0,
        input_forget=True,
    )
    assert str(spec) == (
        "lstm(3->4, proj 2, 2 layers, bidirectional, peephole, bias none, input_forget, "
        "cell_clip=(-3, 3), proj_clip=(-2, 2), cell_clip_nan, dropout=0.5)"
    )


# Weights


def test_weights_cannot_be_changed_by_accident() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        W.w_ih = ()  # type: ignore[misc]
    assert rnnop.RNNWeights([W.w_ih[0]], [W.w_hh[0]]).w_ih == (W.w_ih[0],)


def test_weights_show_themselves() -> None:
    w = rnnop.init_weights(
        "lstm", input_size=3, hidden_size=40, num_layers=2, bidirectional=True, seed=0
    )
    lines = repr(w).splitlines()
    assert lines[0] == "RNNWeights(2 layers, bidirectional, float32, 53,440 parameters)"
    assert lines[1].split(maxsplit=1) == ["w_ih[0]", "(160, 3)"]
    assert len(lines) == 1 + 4 * 4
    assert w.num_parameters == sum(array.size for _, array in w.named()) == 53_440
    doubled = w.map(lambda array: 2 * array)
    assert doubled.bidirectional
    for (name, one), (other_name, other) in zip(w.named(), doubled.named(), strict=True):
        assert name == other_name
        np.testing.assert_array_equal(2 * one, other)
