"""How are the tables of the validation written, for a terminal and for a page of the documentation?

Rule: words and figures only; the same table is written both ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; the first column is text, the others are figures unless they are text too."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Aligned with spaces."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        left = [i == 0 or self.head[i].startswith("likely") for i in range(len(self.head))]
        aligned = [
            "  ".join(c.ljust(w) if at else c.rjust(w) for c, w, at in zip(line, widths, left, strict=True))
            for line in lines
        ]
        return "\n".join([self.title, *(f"  {line.rstrip()}" for line in aligned)])

    def markdown(self) -> str:
        """With pipes, without the title."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)]) + "\n"
