"""The journal of a sweep, points.jsonl: each outcome as a line when it is there, so that --resume can go on.

Rule: a line is one write at the end of the file, so a process that is killed leaves whole lines and at most one that
was cut short, which does not count. One process at a time writes.
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
    """Open a run's journal for as long as it plays; yields the function that appends an outcome.

    Raises
    ------
    ScenarioError
        Another process has it open.
    OSError
        The file cannot be written, or the disk is full.
    """
    path = folder / NAME
    with path.open("ab", buffering=0) as file:
        _claim(file, folder)
        if _cut_short(path):
            _append(
                file, b"\n"
            )  # the incomplete line stays and does not count; without its end the next line would be lost with it
        yield lambda outcome: _append(file, line(outcome))


def line(outcome: PointOutcome) -> bytes:
    """An outcome as a line of the file."""
    return json.dumps({"index": outcome.index, **outcome.to_dict()}).encode() + b"\n"


def read_journal(folder: Path) -> dict[int, PointOutcome]:
    """Points that an interrupted run has finished, by index."""
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
            continue
    return outcomes


def read_journal_of(folder: Path, numbered: Sequence[NumberedPoint]) -> dict[int, PointOutcome]:
    """Those of `read_journal` that are outcomes of these points."""
    points = dict(numbered)
    return {
        index: replace(outcome, settings=points[index].settings)
        for index, outcome in read_journal(folder).items()
        if index in points and _is_of(outcome, points[index])
    }


def _is_of(outcome: PointOutcome, point: Point) -> bool:
    return outcome.error is not None or is_report(outcome.report, training=point.scenario.training is not None)


def _append(file: FileIO, text: bytes) -> None:
    if file.write(text) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.name))


def _cut_short(path: Path) -> bool:
    """Whether the last line has no end."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - 1))
        return file.read() not in (b"", b"\n")


def _claim(file: FileIO, folder: Path) -> None:
    """Lock the file until it is closed or this process ends: two processes would play the same points."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ScenarioError(f"--out: another process is playing in {folder}; wait for it, or end it first") from error
    except OSError:  # a file system without locks
        return
