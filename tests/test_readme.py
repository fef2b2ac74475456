"""What README.md says is true: its commands, its examples, its names, links, backends and flags."""

import importlib.util
import re
import unicodedata
from pathlib import Path

import pytest

import rnnop
from rnnop.backends import BACKENDS
from rnnop.flags import FLAGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

COMMANDS = {
    "demo": 'python -m venv .venv && .venv/bin/pip install -e ".[demo]" && '
    ".venv/bin/python -m rnnop demo",
    "test": 'python -m venv .venv && .venv/bin/pip install -e ".[test]" && '
    ".venv/bin/python -m pytest",
}
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """Return what stands under a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


def table(title: str) -> list[list[str]]:
    """Return the cells of the table in a section, without its heading."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name: str) -> None:
    blocks = re.findall(rf"^<!-- command: {name} -->\n```\w*\n(.*?)^```$", README, re.M | re.S)
    assert blocks == [COMMANDS[name] + "\n"]


def test_there_is_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number: int) -> None:
    exec(compile(EXAMPLES[number], f"README.md, example {number}", "exec"), {})


def test_names_exist() -> None:
    names = set(re.findall(r"\brnnop\.(\w+)", README))
    assert {"rnn", "rnn_vjp", "init_weights"} <= names
    for name in names - set(rnnop.__all__):
        assert importlib.util.find_spec(f"rnnop.{name}"), name


def test_files_exist() -> None:
    targets = set(re.findall(r"\]\(([^)#:]+)\)", README))
    assert {"LICENSE", "CHANGELOG.md"} <= targets
    assert [target for target in sorted(targets) if not (ROOT / target).is_file()] == []


def test_flags_exist() -> None:
    flags = set(re.findall(r"\bRNNOP_\w+", README))
    assert "RNNOP_BACKEND" in flags
    assert flags <= set(FLAGS)


def test_backends() -> None:
    rows = table("Backends")
    assert {row[1] for row in rows} <= {"here", "untried"}
    assert {row[0] for row in rows} == set(BACKENDS)


def test_comparison_is_a_full_table() -> None:
    rows = table("Beside other systems")
    assert {len(row) for row in rows} == {8}
    assert all(all(row) for row in rows)
    marks = set(re.findall("[¹²³⁴⁵⁶⁷⁸⁹]", str(rows)))
    notes = re.findall(r"^(\d)\. ", section("Beside other systems"), re.MULTILINE)
    assert sorted(unicodedata.digit(mark) for mark in marks) == [int(note) for note in notes]
