"""How are the validation's tables written, for a terminal and for a documentation page?

The same words and figures are written both ways.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from simulator.report.tables.layout import Column, laid_out


@dataclass(frozen=True, slots=True)
class Table:
    """A table with text cells with a title; the first column is text, most further columns are figures."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, width: int | None = None) -> str:
        r"""Return the table in aligned text lines with at most `width` characters each; without a width, lines may have
        any length.

        >>> Table("Runs", ("run", "error"), (("a", "1 %"),)).text()
        'Runs\n  run  error\n  a      1 %'
        """
        # "likely reason" and "group" are the only text columns besides the first.
        left = [i == 0 or heading.startswith(("likely", "group")) for i, heading in enumerate(self.head)]
        columns = [Column(heading, left=at, folds=at) for heading, at in zip(self.head, left, strict=True)]
        title = self.title if width is None else textwrap.fill(self.title, width)
        return "\n".join([title, *laid_out(columns, self.rows, width, indent="  ")])

    def markdown(self) -> str:
        """Return the table as a Markdown table, without the title."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)]) + "\n"
