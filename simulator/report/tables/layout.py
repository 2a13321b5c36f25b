"""How do columns stand within a width: side by side, folded at spaces, or in several tables below each other?

Rule: turns cells into lines and leaves none of them out. A cell is folded before a table is split, and no word is ever
broken: a word that is wider than a line makes that line wider.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

_GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and how what stands below it is written.

    Attributes
    ----------
    heading : str
        Folded at spaces where the width is short.
    left : bool
        Whether it is text, at the left of the column; figures stand at the right.
    folds : bool
        Whether cells may be folded at spaces too.
    """

    heading: str = ""
    left: bool = False
    folds: bool = False


def text_columns(*headings: str) -> list[Column]:
    """Columns of text that may be folded."""
    return [Column(heading, left=True, folds=True) for heading in headings]


def laid_out(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    keys: Sequence[int] = (0,),
    indent: str = "",
) -> list[str]:
    """Lay rows out below their headings.

    Parameters
    ----------
    columns : sequence of Column
        If no heading says anything there is no line of headings.
    rows : sequence of sequence of str
        A cell for each column.
    width : int or None
        Characters that a line may have; None for as many as it takes.
    keys : sequence of int
        Places of the columns that name a row: they are repeated where a table is split.
    indent : str
        Before every line.

    Examples
    --------
    >>> columns = [Column("link", left=True), Column("rate"), Column("what it is", left=True, folds=True)]
    >>> rows = [("pcie", "32 GB/s", "to the host and to cards"), ("nvlink", "450 GB/s", "")]
    >>> print("\\n".join(laid_out(columns, rows, 32)))
    link        rate  what it is
    pcie     32 GB/s  to the host
                      and to cards
    nvlink  450 GB/s
    >>> print("\\n".join(laid_out(columns[:2] + columns[1:2], [(*row[:2], row[1]) for row in rows], 17)))
    link        rate
    pcie     32 GB/s
    nvlink  450 GB/s
    <BLANKLINE>
    link        rate
    pcie     32 GB/s
    nvlink  450 GB/s
    """
    cells = [[column.heading for column in columns], *map(list, rows)]
    natural = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    least = [_least(column, rows, i, folds=column.folds) for i, column in enumerate(columns)]
    room = None if width is None else width - len(indent)
    lines: list[str] = []
    if room is None or _total(least) <= room:
        groups = [list(range(len(columns)))]
    else:
        # What is split need not be folded as well, but for a cell that is too wide for a table of its own.
        groups = list(_groups([_least(column, rows, i, folds=False) for i, column in enumerate(columns)], room, keys))
    for group in groups:
        widths = _shrunk([natural[i] for i in group], [least[i] for i in group], room)
        lines += [""] if lines else []
        for number, row in enumerate(cells):
            if number or any(column.heading for column in columns):
                for line in _lines([columns[i] for i in group], [row[i] for i in group], widths):
                    lines.append(f"{indent}{line}".rstrip())
    return lines


def _least(column: Column, rows: Sequence[Sequence[str]], place: int, *, folds: bool) -> int:
    """The least width of a column: that of its longest word, or of its widest cell where cells are not folded."""
    cells = [row[place] for row in rows]
    words = [word for cell in cells for word in cell.split()] if folds else cells
    return max(map(len, (*column.heading.split(), *words)), default=0)


def _groups(least: Sequence[int], room: int, keys: Sequence[int]) -> Iterator[list[int]]:
    """Columns that stand side by side; after the first group the keys stand before the others."""
    group: list[int] = []
    for i in range(len(least)):
        if set(group) - set(keys) and _total([least[j] for j in (*group, i)]) > room:
            yield group
            group = [key for key in keys if key < i]
        group.append(i)
    yield group


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shrunk(natural: Sequence[int], least: Sequence[int], room: int | None) -> list[int]:
    """Widths that fit: what is widest gives first, down to its least."""
    widths = list(natural)
    while room is not None and _total(widths) > room:
        able = [i for i, width in enumerate(widths) if width > least[i]]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    return widths


def _lines(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
        for cell, width in zip(cells, widths, strict=True)
    ]
    for pieces in zip_longest(*folded, fillvalue=""):
        placed = zip(columns, pieces, widths, strict=True)
        yield _GAP.join(piece.ljust(width) if column.left else piece.rjust(width) for column, piece, width in placed)
