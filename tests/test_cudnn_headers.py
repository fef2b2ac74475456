"""Our declarations of cuDNN against its headers: those installed, and facts kept of others."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cudnn_headers import CONSTANTS, ENUMS, NOT_INSTALLED, facts, installed

from rnnop.cudnn import enums, status
from rnnop.cudnn.prototypes import FIRST, V9, prototypes

GOLDEN = Path(__file__).parent / "golden"


def golden(version: str) -> dict[str, Any]:
    return dict(json.loads((GOLDEN / f"cudnn_{version}.json").read_text()))


@pytest.fixture(params=["8.9.7", "9.0.0", "9.28.0", "installed"])
def header(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param != "installed":
        return golden(request.param)
    folder = installed()
    if folder is None:
        pytest.skip(NOT_INSTALLED)
    return facts(folder / "include")


def test_the_facts_are_of_the_versions_served(header: dict[str, Any]) -> None:
    assert header["version"] >= FIRST
    assert len(header["functions"]) > 40


def test_every_function_is_there_in_its_versions_and_no_other(header: dict[str, Any]) -> None:
    served = {
        name
        for name, prototype in prototypes().items()
        if prototype.first <= header["version"] <= prototype.last
    }
    assert served == set(header["functions"])


def test_declarations_are_those_of_the_headers(header: dict[str, Any]) -> None:
    for name, declaration in header["functions"].items():
        assert prototypes()[name].c == declaration


# What a C type is in ctypes, in other words than those of the package.
NUMBERS = {
    "int": (ctypes.c_int, 4),
    "int32_t": (ctypes.c_int32, 4),
    "uint32_t": (ctypes.c_uint32, 4),
    "unsigned": (ctypes.c_uint, 4),
    "unsigned long long": (ctypes.c_ulonglong, 8),
    "size_t": (ctypes.c_size_t, 8),
    "float": (ctypes.c_float, 4),
    "double": (ctypes.c_double, 8),
    **dict.fromkeys((*ENUMS, "cudnnStatus_t"), (ctypes.c_int, 4)),
}
ADDRESSES = ("Handle_t", "Descriptor_t", "cudaStream_t", "Callback_t")
DEVICE = ("devSeqLengths",)


def type_of(argument: str) -> Any:
    """Return the type of ctypes for a parameter of a declaration."""
    words = re.findall(r"\w+|\*|\[\]", argument.replace("const ", ""))
    pointers = words.count("*") + words.count("[]")
    names = [word for word in words if word not in ("*", "[]")]
    base, name = " ".join(names[:-1]), names[-1]
    if name in DEVICE or (base == "void" and pointers == 1):
        return ctypes.c_void_p
    if base == "char":
        return ctypes.c_char_p
    if base == "void" or base.endswith(ADDRESSES):
        inner: Any = ctypes.c_void_p
        pointers -= base == "void"
    else:
        inner = NUMBERS[base][0]
    return ctypes.POINTER(inner) if pointers else inner


def arguments(declaration: str) -> Iterator[str]:
    inside = declaration.partition("(")[2].rstrip(")")
    yield from inside.split(", ") if inside != "void" else ()


def test_types_are_those_of_the_headers(header: dict[str, Any]) -> None:
    for name, declaration in header["functions"].items():
        wanted = tuple(map(type_of, arguments(declaration)))
        assert prototypes()[name].arguments == wanted, name


def test_sizes_of_types() -> None:
    assert all(ctypes.sizeof(value) == size for value, size in NUMBERS.values())


def test_results_are_those_of_the_headers(header: dict[str, Any]) -> None:
    others = {"size_t": ctypes.c_size_t, "void": None, "const char *": ctypes.c_char_p}
    for name, declaration in header["functions"].items():
        prototype = prototypes()[name]
        result = declaration.partition(name)[0].strip()
        assert prototype.returns_status == (result == "cudnnStatus_t"), name
        wanted = ctypes.c_int if prototype.returns_status else others[result]
        assert prototype.result is wanted, name


def test_calls_have_the_numbers_of_arguments_that_are_known() -> None:
    for name, count in {
        "cudnnSetRNNDescriptor_v8": 15,
        "cudnnRNNForward": 20,
        "cudnnRNNBackwardData_v8": 22,
        "cudnnRNNBackwardWeights_v8": 16,
    }.items():
        assert len(prototypes()[name].arguments) == count


# Enumerations


def test_constants_are_those_of_the_headers(header: dict[str, Any]) -> None:
    assert header["constants"] == CONSTANTS


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_are_those_of_the_headers(name: str, header: dict[str, Any]) -> None:
    members = header["enums"][name]
    ours = {member.name: member.value for member in ENUMS[name]}
    if name == "cudnnDataType_t":  # most of which no RNN takes
        members = {label: members[label] for label in ours}
    members.pop("CUDNN_RNN_ALGO_COUNT", None)
    assert ours == members


def test_every_dtype_has_its_number() -> None:
    assert {*enums.DATA_TYPES.values()} == {*enums.DataType}


def test_statuses_are_those_of_the_headers(header: dict[str, Any]) -> None:
    """Newer versions have more; other names for the same number do not count."""
    theirs = header["enums"]["cudnnStatus_t"]
    ours = status.Status if header["version"] >= V9 else status.Status8
    assert set(theirs.values()) <= {*ours}
    for member in ours:
        assert member.value not in theirs.values() or theirs[member.name] == member


def test_no_status_is_made_up() -> None:
    for ours, version in ((status.Status8, "8.9.7"), (status.Status, "9.28.0")):
        assert {*ours} == {*golden(version)["enums"]["cudnnStatus_t"].values()}
