"""A table, as aligned text for a terminal and as Markdown for a file."""

from __future__ import annotations

from dataclasses import dataclass, field

_BOLD, _ORANGE, _PLAIN = "\x1b[1m", "\x1b[33m", "\x1b[0m"


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column is aligned left, the others right.

    Attributes
    ----------
    title : str
        What the table shows.
    header : list of str
        A name for each column.
    rows : list of list of str
        As many cells each.
    marked : set of int
        The rows to be pointed out.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    marked: set[int] = field(default_factory=set)

    def text(self, colour: bool) -> str:
        """Return lines for a terminal, with the marked rows in another colour or with a star."""
        columns = list(zip(self.header, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        lines = [self.title, self._aligned(self.header, widths)]
        for number, row in enumerate(self.rows):
            line = self._aligned(row, widths)
            if number in self.marked:
                line = f"{_ORANGE}{line}{_PLAIN}" if colour else f"{line} *"
            lines.append(line)
        if colour:
            lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return a heading and a table, with the names of the marked rows in bold."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        rows = [
            [f"**{first}**" if number in self.marked else first, *rest]
            for number, (first, *rest) in enumerate(self.rows)
        ]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, rule, *rows)]
        return "\n".join([f"## {self.title}", "", *lines])

    @staticmethod
    def _aligned(cells: list[str], widths: list[int]) -> str:
        first, *rest = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()
