"""Which rows have been played already, by this very simulator, so that an interrupted validation can go on?

Rule: a line of JSON for each played row, written when it is there; lines of other editions, and cut ones, do not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from simulator.basics.edition import edition
from simulator.calibration.training_runs.playing import PlayedRow, each_played
from simulator.calibration.training_runs.rows import MeasuredRow
from simulator.step.framework import Framework

_Key = tuple[str, int]


def play_on(
    rows: Sequence[MeasuredRow],
    known: Mapping[str, Framework],
    jobs: int,
    advance: Callable[[], None] | None = None,
    kept: Path | None = None,
) -> tuple[PlayedRow, ...]:
    """Play the rows that a file has not, add them to it, and give all of them in their order.

    Parameters
    ----------
    rows : sequence of MeasuredRow
    known : mapping of str to Framework
    jobs : int
        Processes.
    advance : function, optional
        Called for each row, played or kept.
    kept : Path, optional
        The file; without it all rows are played, and nothing is written.
    """
    found = {} if kept is None else _read(kept, rows)
    left = [row for row in rows if _key(row) not in found]
    tell = advance or _nothing
    for _ in found:
        tell()
    for outcome in each_played(left, known, jobs):
        found[_key(outcome.row)] = outcome
        if kept is not None:
            _append(kept, outcome)
        tell()
    return tuple(found[_key(row)] for row in rows)


def _nothing() -> None:
    """Tell nobody."""


def _key(row: MeasuredRow) -> _Key:
    return row.table, row.line


def _append(path: Path, outcome: PlayedRow) -> None:
    names = ("step_time", "peak", "capacity", "communication", "refused")
    line = {"edition": edition(), "row": _key(outcome.row), **{name: getattr(outcome, name) for name in names}}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _read(path: Path, rows: Sequence[MeasuredRow]) -> dict[_Key, PlayedRow]:
    by_key = {_key(row): row for row in rows}
    return {_key(outcome.row): outcome for outcome in _outcomes(path, by_key)}


def _outcomes(path: Path, rows: Mapping[_Key, MeasuredRow]) -> Iterator[PlayedRow]:
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            table, number = line.pop("row")
            if line.pop("edition") == edition() and (table, number) in rows:
                yield PlayedRow(rows[table, number], **line)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
