"""Where does one sweep end in a file that holds several: of several operations, numbers of ranks or runs?

Rule: each part is the whole text with the lines of the others emptied, so that a fault is told with its line's number.
"""

from __future__ import annotations

import csv
import re
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.report.tables.nccl_csv import is_remark, looks_like_csv
from simulator.report.tables.nccl_table import holds_rows

# Columns whose values tell sweeps in one CSV file apart.
OPERATION: Final = ("op", "operation", "collective", "coll")
RANKS: Final = ("ranks", "world_size", "nranks", "num_ranks", "n_ranks", "gpus")
NODES: Final = ("nodes", "boxes", "hosts", "num_nodes", "nnodes")
_RUN: Final = ("sweep", "machine", "run")
# The last line that nccl-tests prints of a run's table.
_END: Final = re.compile(r"#\s*Avg bus bandwidth")
# More sweeps than anybody measures of a machine are rather rows of another kind.
_MOST: Final = 200


def parts(text: str, source: str) -> list[str]:
    """The sweeps of a log of nccl-tests, or of a CSV file.

    Raises
    ------
    ScenarioError
        There are more than 200; or a row of a CSV file cannot be split into its cells.
    """
    lines = text.splitlines()
    owner = _of_rows(lines, source) if looks_like_csv(text) else _of_runs(lines)
    count = max((number for number in owner if number is not None), default=0) + 1
    if count > _MOST:
        raise ScenarioError(f"{source}: holds {count} sweeps; must be at most {_MOST}; is it the right file?")
    texts = [
        "\n".join(line if of in (None, number) else "" for line, of in zip(lines, owner, strict=True))
        for number in range(count)
    ]
    return texts if count == 1 or looks_like_csv(text) else [part for part in texts if holds_rows(part)] or texts[:1]


def _of_runs(lines: list[str]) -> list[int | None]:
    """The run of each line of a log."""
    owner, run = list[int | None](), 0
    for line in lines:
        owner.append(run)
        run += _END.search(line) is not None
    return owner


def _of_rows(lines: list[str], source: str) -> list[int | None]:
    """The sweep of each line of a CSV file; None for lines that belong to all of them."""
    filled = [number for number, line in enumerate(lines) if not is_remark(line)]
    dialect = max(",;\t", key=lines[filled[0]].count)
    try:
        rows = list(csv.reader([lines[number] for number in filled], delimiter=dialect))
    except csv.Error as error:  # quotes that are never closed make a cell of all that follows
        raise ScenarioError(f"{source}: {error}; check its quotes") from error
    names = [name.strip().lower() for name in rows[0]]
    columns = [
        next((names.index(name) for name in spellings if name in names), None)
        for spellings in (_RUN, OPERATION, RANKS, NODES)
    ]
    sweeps: dict[tuple[str, ...], int] = {}
    owner: list[int | None] = [None] * len(lines)
    for number, row in zip(filled[1:], rows[1:], strict=False):
        key = tuple(row[column].strip() for column in columns if column is not None and column < len(row))
        owner[number] = sweeps.setdefault(key, len(sweeps))
    return owner
