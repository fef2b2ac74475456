"""Where the installed cuDNN is, and what its headers declare of the names that rnnop uses.

As a script it writes those facts, and nothing else of the headers, for versions that are not
installed where the tests run:

    pip download --no-deps nvidia-cudnn-cu12==8.9.7.29 && unzip -d wheel nvidia_cudnn_cu12-*.whl
    python tests/cudnn_headers.py wheel/nvidia/cudnn/include > tests/golden/cudnn_8.9.7.json
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

from rnnop.cudnn import enums
from rnnop.cudnn.prototypes import prototypes

ENUMS: dict[str, type[IntEnum]] = {
    f"cudnn{name}_t": value
    for name, value in vars(enums).items()
    if inspect.isclass(value) and issubclass(value, IntEnum) and value is not IntEnum
}
CONSTANTS = {name: value for name, value in vars(enums).items() if name.startswith("CUDNN_")}


NOT_INSTALLED = "nvidia-cudnn-cu12 is not installed"


def installed() -> Path | None:
    """Return the folder of NVIDIA's wheel, which holds `include` and `lib`, if it is installed."""
    if importlib.util.find_spec("nvidia") is None:
        return None
    spec = importlib.util.find_spec("nvidia.cudnn")
    places = [] if spec is None else spec.submodule_search_locations or []
    return next(map(Path, places), None)


def code(include: Path) -> str:
    """Return all headers without comments."""
    text = "\n".join(file.read_text() for file in sorted(include.glob("cudnn*.h")))
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def number(text: str, known: dict[str, int]) -> int:
    """Return the value of the few forms of constants there are."""
    text = re.sub(r"(?<=\d)U\b", "", text.strip().strip("()"))
    if text in known:
        return known[text]
    left, _, right = text.partition("<<")
    return int(left) << int(right or 0)


def defined(text: str) -> dict[str, int]:
    """Return every macro that is a number."""
    macros = re.findall(r"^#define (CUDNN_\w+) (\d+|\(1U << \d+\))\s*$", text, re.MULTILINE)
    return {name: number(value, {}) for name, value in macros}


def enumeration(text: str, name: str) -> dict[str, int]:
    """Return the members of one enumeration."""
    body = re.search(rf"typedef enum\s*{{([^{{}}]*)}}\s*{name}\s*;", text)
    assert body is not None, name
    members: dict[str, int] = {}
    for member in filter(str.strip, body[1].split(",")):
        label, _, value = member.replace("CUDNN_DEPRECATED_ENUM", "").partition("=")
        following = max(members.values(), default=-1) + 1
        members[label.strip()] = number(value, members) if value else following
    return members


def functions(text: str) -> dict[str, str]:
    """Return the declaration of every function in one line, without its semicolon."""
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b(CUDNN_DEPRECATED|extern)\b", "", text)
    text = " ".join(text.split())
    pattern = r"((?:const )?\w+ \**) ?CUDNNWINAPI (\w+)\(([^()]*)\);"
    return {
        name: f"{result}{name}({arguments.strip()})"
        for result, name, arguments in re.findall(pattern, text)
    }


def facts(include: Path) -> dict[str, Any]:
    """Return what is declared under the names that rnnop uses."""
    text = code(include)
    macros, declared = defined(text), functions(text)
    major, minor, patch = (macros[f"CUDNN_{part}"] for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    return {
        "version": major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch,
        "constants": {name: macros[name] for name in CONSTANTS},
        "enums": {name: enumeration(text, name) for name in (*ENUMS, "cudnnStatus_t")},
        "functions": {name: declared[name] for name in prototypes() if name in declared},
    }


if __name__ == "__main__":
    print(json.dumps(facts(Path(sys.argv[1])), indent=1))
