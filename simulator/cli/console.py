"""How wide may lines be that a command prints, and what prints tables and sentences within that?

Rule: COLUMNS if it is set, also for files and pipes; else the terminal's width; else as wide as a line is. Nothing is
cut: what does not fit is folded at spaces, or stacked. Every table of the command line is printed from here.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.report.tables.layout import Column

# Of rich's tables where nobody says how wide they may be: in a file or a pipe, for which rich would assume 80 columns.
_WIDE: Final = 150
# Below this nothing can be laid out, so the terminal breaks lines itself.
_LEAST: Final = 20
_MOST_DIGITS: Final = 6


def width(stream: IO[str] | None = None) -> int | None:
    """Columns that a line may have: by COLUMNS, or the terminal behind the stream (stdout); None if neither says so."""
    columns = os.environ.get("COLUMNS", "").strip()
    if columns.isdecimal() and len(columns) <= _MOST_DIGITS and int(columns) > 0:
        return max(int(columns), _LEAST)
    try:
        found = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    except (OSError, ValueError):  # a file, a pipe, or what stands for stdout in a test
        return None
    return max(found, _LEAST) if found else None


def console(*, stderr: bool = False) -> Console:
    """A rich console that takes text as it is: brackets and colons of a question are no markup of rich's."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A terminal is asked by rich each time, for its window may change.
    wide = None if stream.isatty() else width(stream) or _WIDE
    return Console(stderr=stderr, markup=False, emoji=False, width=wide)


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, keys: Sequence[int] = (0,), indent: str = ""
) -> None:
    """Print rows below headings; see `simulator.report.tables.layout.laid_out`."""
    from simulator.report.tables.layout import laid_out

    for line in laid_out(columns, rows, width(), keys=keys, indent=indent):
        typer.echo(line)


def print_text(text: str, indent: str = "") -> None:
    """Print lines, each folded at spaces where it is too wide; what is folded goes on behind the indent."""
    wide = width()
    for line in text.split("\n"):
        if wide is not None and len(line) > wide:
            line = textwrap.fill(line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        # Named, stdout keeps its own letters; else click writes UTF-8 where the locale asks for ASCII.
        typer.echo(line, file=sys.stdout)
