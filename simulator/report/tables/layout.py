"""How are columns laid out within a width: side by side, folded at spaces, or in several tables below each other?

Turns cells into lines without omitting any. Cells are folded before a table is split, and words are never broken: a
word wider than a line makes the line wider.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, TypeVar

_GAP: Final = "  "
_Heading = TypeVar("_Heading")


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: its heading, and the alignment and folding of its cells."""

    heading: str = ""  # folded at spaces if the width is short
    left: bool = False  # True for text, aligned left; figures are aligned right
    folds: bool = False  # True if cells may be folded at spaces too


def text_columns(*headings: str) -> list[Column]:
    """Return a left-aligned column with foldable cells for each heading."""
    return [Column(heading, left=True, folds=True) for heading in headings]


def filled_columns(
    headings: Sequence[_Heading], rows: Sequence[Sequence[str]]
) -> tuple[list[_Heading], list[list[str]]]:
    """Return headings and rows without the columns that are empty in every row; a table without rows keeps all columns.

    >>> filled_columns(["GPUs", "cost", "days"], [["8", "", "3"], ["16", "", ""]])
    (['GPUs', 'days'], [['8', '3'], ['16', '']])
    """
    filled = [place for place in range(len(headings)) if not rows or any(row[place] for row in rows)]
    return [headings[place] for place in filled], [[row[place] for place in filled] for row in rows]


def laid_out(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    keys: Sequence[int] = (0,),
    indent: str = "",
) -> list[str]:
    """Return the lines of a text table: rows below their headings, within a width.

    Parameters
    ----------
    columns : sequence of Column
        If every heading is empty, there is no line of headings.
    rows : sequence of sequence of str
        A cell for each column.
    width : int or None
        Characters of a line; None: unlimited.
    keys : sequence of int
        Indices of the columns that name a row; they are repeated if a table is split.
    indent : str
        Text before every line.

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
    # Folding is enough: keep a single table.
    if room is None or _total(least) <= room:
        groups = [list(range(len(columns)))]
    else:
        # A split table need not fold cells as well, except a cell too wide for its own table.
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
    """Return a column's smallest width [characters]: the longest word, or the widest cell if cells are not folded."""
    cells = [row[place] for row in rows]
    words = [word for cell in cells for word in cell.split()] if folds else cells
    return max(map(len, (*column.heading.split(), *words)), default=0)


def _groups(least: Sequence[int], room: int, keys: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of column indices that fit in `room` characters; later groups repeat the key columns."""
    group: list[int] = []
    for i in range(len(least)):
        # A group must hold at least one column besides the keys, however wide.
        if set(group) - set(keys) and _total([least[j] for j in (*group, i)]) > room:
            yield group
            group = [key for key in keys if key < i]
        group.append(i)
    yield group


def _total(widths: Sequence[int]) -> int:
    """Return the characters that columns of these widths take side by side, including the gaps."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shrunk(natural: Sequence[int], least: Sequence[int], room: int | None) -> list[int]:
    """Return column widths that fit in `room` characters: the widest column shrinks first, down to its least width."""
    widths = list(natural)
    while room is not None and _total(widths) > room:
        able = [i for i, width in enumerate(widths) if width > least[i]]
        # Every column is at its smallest width: the line stays too wide.
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    return widths


def _lines(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table row; a cell wider than its column is folded onto several lines."""
    folded = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
        for cell, width in zip(cells, widths, strict=True)
    ]
    # Cells with fewer lines are continued with empty ones.
    for pieces in zip_longest(*folded, fillvalue=""):
        placed = zip(columns, pieces, widths, strict=True)
        yield _GAP.join(piece.ljust(width) if column.left else piece.rjust(width) for column, piece, width in placed)
