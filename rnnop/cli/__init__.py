"""The command line, `python -m rnnop COMMAND`.

A command is a module with the functions of `Command`, and one entry in `COMMANDS`. Its docstring
is its help.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from .._version import __version__
from ..errors import RnnopError
from . import bench, demo, info, selfcheck


class Command(Protocol):
    """What a module in the table must offer."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command; `--json` is there already."""

    def run(self, options: argparse.Namespace) -> None:
        """Run the command and print its result: for people, or as one JSON object."""


COMMANDS: dict[str, Command] = {
    "info": info,
    "selfcheck": selfcheck,
    "bench": bench,
    "demo": demo,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands after `python -m rnnop`; that of this process by default.
    """
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        command.run(options)
    except RnnopError as error:
        print(f"rnnop: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rnnop", description="Recurrent networks on plain arrays."
    )
    parser.add_argument("--version", action="version", version=f"rnnop {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary, _, rest = (command.__doc__ or "").partition("\n")
        one = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n{rest}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add_arguments(one)
        one.set_defaults(command=command)
    return parser
