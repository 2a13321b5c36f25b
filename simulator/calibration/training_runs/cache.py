"""Which rows has this same simulator simulated already? An interrupted validation continues with the rest.

The cache is a file with a line of JSON for each row, written on completion. Incomplete lines, and lines from another
edition of the simulator, from other constants or from other topology files, do not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from simulator.basics import registry
from simulator.basics.edition import edition
from simulator.calibration.training_runs.playing import PlayedRow, each_played
from simulator.calibration.training_runs.rows import Changes, MeasuredRow
from simulator.step.framework import Framework

# Table, line, and a digest of row, constants and topologies: the same line of a user's table may say something else
# the next time.
_Key = tuple[str, int, str]


def play_on(
    rows: Sequence[MeasuredRow],
    constants: Mapping[str, Framework],
    jobs: int,
    advance: Callable[[], None] | None = None,
    path: Path | None = None,
    changes: Changes = (),
) -> tuple[PlayedRow, ...]:
    """Return the simulated outcomes of measured rows in order; rows missing in a cache file are simulated and added to
    it.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        Rows to simulate.
    constants : mapping of str to Framework
        Constants by framework.
    jobs : int
        Number of processes.
    advance : function, optional
        Called for each row, simulated or cached.
    path : Path, optional
        The file; by default every row is simulated, and nothing is written. Rows with a scenario are not kept.
    changes : Changes
        Changed constants of the GPUs.
    """

    def key(row: MeasuredRow) -> _Key:
        digest = sha256(repr((row, constants[row.framework], changes, _topologies())).encode()).hexdigest()
        return row.table, row.line, digest[:16]

    keys = [key(row) for row in rows]
    outcomes = {} if path is None else dict(_outcomes(path, dict(zip(keys, rows, strict=True))))
    missing = [row for row, row_key in zip(rows, keys, strict=True) if row_key not in outcomes]
    tell = advance or _nothing
    # Cached rows count as progress at once.
    for _ in outcomes:
        tell()
    for _, outcome in each_played(missing, constants, jobs, changes):
        outcomes[key(outcome.row)] = outcome
        # Files that a scenario names may change without a change of the row.
        if path is not None and outcome.row.scenario is None:
            _append(path, key(outcome.row), outcome)
        tell()
    return tuple(outcomes[row_key] for row_key in keys)


@cache
def _topologies() -> str:
    """Return a digest of the shipped topology files, which the edition of the simulator leaves out."""
    digest = sha256()
    for name in registry.names("topology"):
        digest.update(registry.find("topology", name).read_bytes())
    return digest.hexdigest()


def _nothing() -> None:
    """Do nothing; stands in for a missing `advance`."""


def _append(path: Path, key: _Key, outcome: PlayedRow) -> None:
    names = ("step_time", "peak", "capacity", "communication", "refused")
    # The edition identifies the simulator's code: any change makes old lines invalid.
    line = {"edition": edition(), "row": key, **{name: getattr(outcome, name) for name in names}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _outcomes(path: Path, rows: Mapping[_Key, MeasuredRow]) -> Iterator[tuple[_Key, PlayedRow]]:
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            key = tuple(line.pop("row"))
            if line.pop("edition") == edition() and key in rows:
                yield key, PlayedRow(rows[key], **line)
        # Incomplete or foreign lines are skipped, and their rows are simulated again.
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
