"""The journal of a sweep, points.jsonl: a line for each finished outcome, which allows --resume to continue the sweep.

A line is a single write at the end of the file. A killed process therefore leaves whole lines and at most a single
incomplete line, which does not count. Only one process at a time writes.

Example of a journal after a kill during the third write:

    {"index": 0, ...}
    {"index": 2, ...}
    {"index": 1, "repo
"""

from __future__ import annotations

import errno
import json
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import MOST_DATA, parse_json, read_bytes
from simulator.run.outcome import PointOutcome, read_outcome
from simulator.scenario.records import Point
from simulator.sweeps.outcome import NumberedPoint
from simulator.sweeps.report_reading import is_report

NAME: Final = "points.jsonl"


@contextmanager
def open_journal(folder: Path) -> Iterator[Callable[[PointOutcome], None]]:
    """Open the journal file of a run's folder while points are simulated; yield the function that appends an outcome.

    Raises
    ------
    ScenarioError
        Another process has the journal open.
    OSError
        The file cannot be written, or the disk is full.
    """
    path = folder / NAME
    # Without a buffer, every write is a single system call.
    with path.open("ab", buffering=0) as file:
        _claim(file, folder)
        if _cut_short(path):
            # An incomplete line stays and does not count. Without a line end, the next line would be lost with it.
            _append(file, b"\n")
        yield lambda outcome: _append(file, line(outcome))


def line(outcome: PointOutcome) -> bytes:
    r"""Return a point's outcome as a line (bytes) of the journal file.

    >>> line(PointOutcome(3, {"tp": 2}, None, None, "memory ran out"))
    b'{"index": 3, "settings": {"tp": 2}, "engine": null, "report": null, "error": "memory ran out"}\n'
    """
    return json.dumps({"index": outcome.index, **outcome.to_dict()}).encode() + b"\n"


def read_journal(folder: Path) -> dict[int, PointOutcome]:
    """Return {point index: outcome} from the journal of an interrupted run; the last line for an index counts."""
    outcomes: dict[int, PointOutcome] = {}
    path = folder / NAME
    if not path.is_file():
        return outcomes
    for text in read_bytes(path, most=MOST_DATA).split(b"\n"):
        try:
            point = parse_json(text.decode())
            index = operator.index(point["index"])
            outcomes[index] = read_outcome(index, point)
        except (ValueError, KeyError, TypeError):
            # Incomplete or foreign lines: their points are simulated again.
            continue
    return outcomes


def read_journal_of(folder: Path, numbered: Sequence[NumberedPoint]) -> dict[int, PointOutcome]:
    """Return {point index: outcome} from a run's journal, only for the given points with unchanged settings."""
    points = dict(numbered)
    return {
        index: replace(outcome, settings=points[index].settings)
        for index, outcome in read_journal(folder).items()
        if index in points and _is_of(outcome, points[index])
    }


def _is_of(outcome: PointOutcome, point: Point) -> bool:
    return outcome.error is not None or is_report(outcome.report, training=point.scenario.training is not None)


def _append(file: FileIO, text: bytes) -> None:
    # A full disk accepts only part of the line, without raising an error.
    if file.write(text) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.name))


def _cut_short(path: Path) -> bool:
    """Return True if a journal file's last line has no line end."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - 1))
        return file.read() not in (b"", b"\n")


def _claim(file: FileIO, folder: Path) -> None:
    """Lock an open journal file until it is closed; raise ScenarioError if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        # Not waiting: a second run should report the conflict at once.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ScenarioError(
            f"--out: another process writes to {folder}; wait until the process ends, or stop the process"
        ) from error
    except OSError:  # a file system without locks: continue without the lock
        return
