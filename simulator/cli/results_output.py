"""What do `run` and `sweep` print when all is played: the answer, a small table, and where the report lies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from simulator.cli.console import console as plain_console
from simulator.cli.console import print_text
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison
from simulator.report.tables.table import points_tables
from simulator.results.drawn import Pictures
from simulator.results.page.page import FILE
from simulator.results.small_table import SmallTable, small_tables

if TYPE_CHECKING:
    from rich.table import Table

# Rows of a full table; table.csv has them all.
_MOST_ROWS: Final = 200
# Rows of a small one.
_MOST_SMALL: Final = 40


def print_results(compared: Comparison, answer: Answer, folder: Path, pictures: Pictures, *, full: bool) -> None:
    """Print the answer first, then the table, then one line that says where everything is."""
    console, scenario = plain_console(), compared.scenario
    width = console.width
    print_text(scenario.question or scenario.name, "  ")
    points = f"; {len(compared.rows)} points" if len(compared.rows) > 1 else ""
    print_text(f"  {compared.setting_text}{points}", "    ")
    typer.echo()
    print_text(answer.text, "  ")
    typer.echo()
    if full:
        shown = [outcome.to_dict() for outcome in compared.outcomes[:_MOST_ROWS]]
        for table in points_tables(shown, width):
            console.print(table)
        if len(compared.rows) > _MOST_ROWS:
            typer.echo(f"{len(compared.rows) - _MOST_ROWS} more points: {folder / 'table.csv'}")
    else:
        for small in small_tables(compared, answer):
            for table in tables_within(small, width):
                console.print(table)
            if len(small.rows) > _MOST_SMALL:
                typer.echo(f"{len(small.rows) - _MOST_SMALL} more rows: {folder / 'table.csv'}")
    number = len(pictures.files)
    drawn = f", {number} picture{'s' if number != 1 else ''} in {folder / 'plots'}" if number else ""
    page = folder / FILE
    typer.echo(f"{'report' if page.is_file() else 'results'}: {page if page.is_file() else folder}{drawn}")
    for line in (*pictures.undrawn, *([pictures.left_out] if pictures.left_out else [])):
        typer.echo(line)


def tables_within(small: SmallTable, width: int) -> list[Table]:
    """A small table as rich tables that fit into a width: columns that do not fit stand in a further one below."""
    from rich.table import Table

    heading = max(len(small.corner), *(len(name) for name, _ in small.rows)) + 4
    widths = [
        max(len(column), *(len(cells[i]) for _, cells in small.rows)) + 3 for i, column in enumerate(small.columns)
    ]
    tables, start = [], 0
    # A heading wider than half of the window is folded, so that the cells stay whole.
    room = width - min(heading, width // 2)
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        table = Table(title=small.title if not start else None, title_justify="left", header_style="bold")
        table.add_column(small.corner, overflow="fold", max_width=max(10, min(heading, width // 2) - 4))
        for column in small.columns[start:stop]:
            table.add_column(column, justify="right", overflow="fold")
        for name, cells in small.rows[:_MOST_SMALL]:
            table.add_row(name, *cells[start:stop])
        tables.append(table)
        start = stop
    return tables
