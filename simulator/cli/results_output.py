"""Which results do `run` and `sweep` print? The answer, a small table, and the report's path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from simulator.cli.console import console as plain_console
from simulator.cli.console import print_text
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison
from simulator.report.tables.table import points_tables
from simulator.results.budget_table import budget_table
from simulator.results.drawn import DrawnPictures
from simulator.results.page.page import FILE
from simulator.results.small_table import SmallTable, small_tables
from simulator.sweeps.outcome_table import efficiency_note

if TYPE_CHECKING:
    from rich.table import Table

# Most rows printed of a full table; table.csv has every row.
_MOST_ROWS: Final = 200
# Most rows printed of a small table.
_MOST_SMALL: Final = 40


def print_results(compared: Comparison, answer: Answer, folder: Path, pictures: DrawnPictures, *, full: bool) -> None:
    """Print a run's answer, then its table, then a line with the paths of its files."""
    console, scenario = plain_console(), compared.scenario
    width = console.width
    print_text(scenario.question or scenario.name, "  ")
    points = f"; {len(compared.rows)} points" if len(compared.rows) > 1 else ""
    print_text(f"  {compared.setting_text}{points}", "    ")
    typer.echo()
    print_text(answer.text, "  ")
    typer.echo()
    # --table full: every column, from the outcomes themselves.
    if full:
        rows = [outcome.to_dict() for outcome in compared.outcomes[:_MOST_ROWS]]
        for table in points_tables(rows, width):
            console.print(table)
        if len(compared.rows) > _MOST_ROWS:
            typer.echo(f"{len(compared.rows) - _MOST_ROWS} more points: {folder / 'table.csv'}")
        if note := efficiency_note(compared.outcomes):
            print_text(note, "  ")
    else:
        for small in small_tables(compared, answer):
            for table in tables_within(small, width):
                console.print(table)
            if len(small.rows) > _MOST_SMALL:
                typer.echo(f"{len(small.rows) - _MOST_SMALL} more rows: {folder / 'table.csv'}")
    costs = budget_table(compared, answer)
    if costs is not None:
        for table in tables_within(costs, width):
            console.print(table)
        if len(costs.rows) > _MOST_SMALL:
            typer.echo(f"{len(costs.rows) - _MOST_SMALL} more rows: {folder / 'report.json'}")
    number = len(pictures.files)
    pictures_text = f", {number} picture{'s' if number != 1 else ''} in {folder / 'plots'}" if number else ""
    # With --no-report there is no page; name the directory instead.
    page = folder / FILE
    typer.echo(f"{'report' if page.is_file() else 'results'}: {page if page.is_file() else folder}{pictures_text}")
    for line in (*pictures.undrawn, *([pictures.left_out] if pictures.left_out else [])):
        typer.echo(line)


def print_traces(folder: Path, points: Sequence[int]) -> None:
    """Print the directories with the traces of a run's points (given by index), and where to open a trace."""
    lone = folder / "trace"
    places = [lone] if lone.is_dir() else [folder / "points" / f"{index:04d}" / "trace" for index in points]
    if places:
        further = f" to {places[-1]}" if len(places) > 1 else ""
        print_text(f"traces: {places[0]}{further}; each file opens in https://ui.perfetto.dev", "  ")


def tables_within(small: SmallTable, width: int) -> list[Table]:
    """Return a small table as rich tables within a width [characters].

    Columns that do not fit go into further tables.
    """
    from rich.table import Table

    heading = max(len(small.corner), *(len(name) for name, _ in small.rows)) + 4
    widths = [
        max(len(column), *(len(cells[i]) for _, cells in small.rows)) + 3 for i, column in enumerate(small.columns)
    ]
    tables, start = [], 0
    # Headings wider than half of the window are folded; cells stay whole.
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
