"""How wide may printed lines be, and which functions print tables and sentences within this width?

COLUMNS decides if set, also for files and pipes; otherwise the terminal's width; otherwise lines have any width. Text
is never cut: long text is folded at spaces, or stacked. This module prints every table on the command line.
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

# Width of rich tables in a file or pipe; rich itself would assume 80 columns.
_WIDE: Final = 150
# Below this width no layout is possible, and the terminal breaks lines itself.
_LEAST: Final = 20
# Longer digit strings in COLUMNS are ignored.
_MOST_DIGITS: Final = 6


def width(stream: IO[str] | None = None) -> int | None:
    """Return the characters per line, from COLUMNS or the terminal behind the stream (stdout); None if unknown."""
    columns = os.environ.get("COLUMNS", "").strip()
    if columns.isdecimal() and len(columns) <= _MOST_DIGITS and int(columns) > 0:
        return max(int(columns), _LEAST)
    try:
        terminal = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    # A file, a pipe, or a replacement for stdout in a test.
    except (OSError, ValueError):
        return None
    return max(terminal, _LEAST) if terminal else None


def console(*, stderr: bool = False) -> Console:
    """Return a rich console for stdout or stderr that prints text literally: brackets and colons are no markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # On a terminal, rich reads the width itself for each line, because the window may change.
    wide = None if stream.isatty() else width(stream) or _WIDE
    return Console(stderr=stderr, markup=False, emoji=False, width=wide)


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, keys: Sequence[int] = (0,), indent: str = ""
) -> None:
    """Print a table to stdout, with rows below headings, within the terminal's width."""
    from simulator.report.tables.layout import laid_out

    for line in laid_out(columns, rows, width(), keys=keys, indent=indent):
        typer.echo(line)


def print_text(text: str, indent: str = "", *, stderr: bool = False) -> None:
    """Print lines to stdout or stderr, folded at spaces if too long; continuation lines start with the indent."""
    stream = sys.stderr if stderr else sys.stdout
    wide = width(stream)
    for line in text.split("\n"):
        if wide is not None and len(line) > wide:
            line = textwrap.fill(line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        # With an explicit stream, its own encoding is used; click would write UTF-8 even if the locale is ASCII.
        typer.echo(line, file=stream)
