"""The documentation: its examples run, and it names what there is."""

from __future__ import annotations

import doctest
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_house import ADAPTERS

import rnnop
from rnnop import errors, layouts, rssm
from rnnop.backends import BACKENDS
from rnnop.cpu import engine
from rnnop.flags import FLAGS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
FENCE = re.compile(r"^```(.*)$", re.MULTILINE)

every_page = pytest.mark.parametrize("page", PAGES)


def examples(text: str) -> str:
    """Return the text with nothing left but its pycon blocks, each line in its place."""
    lines, inside = [], False
    for line in text.splitlines():
        lines.append(line if inside and not line.startswith("```") else "")
        if line.startswith("```"):
            inside = line == "```pycon"
    return "\n".join(lines)


def run(name: str, text: str) -> tuple[int, str]:
    """Run the examples of a page in one namespace; return how many ran, and what failed."""
    test = doctest.DocTestParser().get_doctest(examples(text), {}, name, f"{name}.md", 0)
    # A long message or array may be broken over lines as the page needs it.
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    return runner.run(test, out=report.append).attempted, "".join(report)


def skip_unless(need: str) -> None:
    """Skip when what the examples of a page need is not here."""
    if need == "engine":
        if not engine.available():
            pytest.skip("rnnop was installed without a C compiler")
    else:
        pytest.importorskip(need)


@every_page
def test_examples_run(page: str) -> None:
    for need in re.findall(r"^% needs: (\w+)$", PAGES[page], re.MULTILINE):
        skip_unless(need)
    count, report = run(page, PAGES[page])
    assert not report, report
    assert count or page in ("api", "benchmarks", "how-it-is-built")


def test_a_wrong_example_is_found() -> None:
    good = "# Page\n\n```pycon\n>>> a = 1\n```\n\nText.\n\n```pycon\n>>> a + 1\n2\n```\n"
    assert run("good", good) == (2, "")
    count, report = run("bad", good.replace("\n2\n", "\n3\n"))
    assert count == 2
    assert 'File "bad.md", line 10' in report
    assert "NameError" in run("bad", good.replace(">>> a = 1", ">>> b = 1"))[1]


@every_page
def test_no_python_hides_in_a_block_that_is_not_run(page: str) -> None:
    opened = FENCE.findall(PAGES[page])[::2]
    assert set(FENCE.findall(PAGES[page])[1::2]) <= {""}
    assert all(name in ("pycon", "console", "text") or name.startswith("{") for name in opened)
    assert PAGES[page].count("\n>>> ") == examples(PAGES[page]).count("\n>>> ")


def test_every_public_name_is_listed() -> None:
    listed = set(
        re.findall(r"^\.\. auto(?:function|class|exception):: ([\w.]+)", PAGES["api"], re.M)
    )
    classes = {"errors", "layouts", "rssm", "__version__"}
    named = set(rnnop.__all__) - classes | set(layouts.__all__) | set(rssm.__all__)
    assert listed == named | {f"rnnop.errors.{errors.LibraryError.__name__}"}
    assert all(f"rnnop.{name}" in PAGES["api"] for name in classes)


@every_page
def test_names_are_there(page: str) -> None:
    text = PAGES[page]
    for path in re.findall(r"\brnnop(?:\.[A-Za-z_]\w*)+", text.replace("rnnop.git", "")):
        room = path.split(".")[1]
        if room not in ADAPTERS or find_spec(room):  # without its framework it cannot be imported
            pkgutil.resolve_name(path)
    assert set(re.findall(r"\bRNNOP_\w+", text)) <= set(FLAGS)


def test_the_backends_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["backends"], re.MULTILINE)
    assert rows == list(BACKENDS)


def test_files_are_there() -> None:
    root = DOCS.parent
    for text in PAGES.values():
        for path in re.findall(r"`((?:rnnop|tests)/[\w/.]+)`", text):
            assert (root / path).exists(), path
        for path in re.findall(r"`((?:\w+/)?\w+\.py|\w+/(?:\w+/)?)`", PAGES["how-it-is-built"]):
            assert (root / "rnnop" / path).exists(), path
