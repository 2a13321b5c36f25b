"""Which lines belong to each sweep in a file with several sweeps: several operations, numbers of ranks, or runs?

Each part is the whole text with foreign lines emptied. Faults therefore keep their line numbers::

    file                 part 0               part 1
    op,size,time         op,size,time         op,size,time
    all_reduce,1,2       all_reduce,1,2
    all_gather,1,3                            all_gather,1,3
"""

from __future__ import annotations

import csv
import re
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.report.tables.nccl_csv import is_remark, looks_like_csv
from simulator.report.tables.nccl_table import holds_rows

# Columns that separate the sweeps in a CSV file.
OPERATION: Final = ("op", "operation", "collective", "coll")
RANKS: Final = ("ranks", "world_size", "nranks", "num_ranks", "n_ranks", "gpus")
NODES: Final = ("nodes", "boxes", "hosts", "num_nodes", "nnodes")
_RUN: Final = ("sweep", "machine", "run")
# Last line of a run's table in nccl-tests.
_END: Final = re.compile(r"#\s*Avg bus bandwidth")
# More sweeps than anybody measures; the rows are probably something else.
_MOST: Final = 200


def parts(text: str, source: str) -> list[str]:
    r"""Return the text for each sweep in a log of nccl-tests, or in a CSV file.

    Raises
    ------
    ScenarioError
        More than 200 sweeps, or a row of a CSV file without valid cells.

    Examples
    --------
    >>> parts("operation,size,time\nall_reduce,8,1\nall_gather,8,1", "sweep.csv")
    ['operation,size,time\nall_reduce,8,1\n', 'operation,size,time\n\nall_gather,8,1']
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
    # The text behind a log's last run holds no rows and is dropped.
    return texts if count == 1 or looks_like_csv(text) else [part for part in texts if holds_rows(part)] or texts[:1]


def _of_runs(lines: list[str]) -> list[int | None]:
    """Return the number of the nccl-tests run for each line in a log."""
    owner, run = list[int | None](), 0
    for line in lines:
        # The last line of a table still belongs to its run.
        owner.append(run)
        run += _END.search(line) is not None
    return owner


def _of_rows(lines: list[str], source: str) -> list[int | None]:
    """Return the number of the sweep for each line in a CSV file; None for lines common to every sweep."""
    filled = [number for number, line in enumerate(lines) if not is_remark(line)]
    # The most frequent separator in the first line.
    dialect = max(",;\t", key=lines[filled[0]].count)
    try:
        rows = list(csv.reader([lines[number] for number in filled], delimiter=dialect))
    # An unclosed quote swallows every following line.
    except csv.Error as error:
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
        # Equal values in these columns mean the same sweep, wherever the rows stand.
        owner[number] = sweeps.setdefault(key, len(sweeps))
    return owner
