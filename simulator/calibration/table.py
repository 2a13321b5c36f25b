"""How are the tables of the validation written, for a terminal and for a page of the documentation?

Rule: words and figures only; the same table is written both ways.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from simulator.report.tables.layout import Column, laid_out


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; the first column is text, the others are figures unless they are text too."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, width: int | None = None) -> str:
        """Aligned with spaces, in lines of at most `width` characters; None for as many as it takes."""
        left = [i == 0 or heading.startswith("likely") for i, heading in enumerate(self.head)]
        columns = [Column(heading, left=at, folds=at) for heading, at in zip(self.head, left, strict=True)]
        title = self.title if width is None else textwrap.fill(self.title, width)
        return "\n".join([title, *laid_out(columns, self.rows, width, indent="  ")])

    def markdown(self) -> str:
        """With pipes, without the title."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)]) + "\n"
