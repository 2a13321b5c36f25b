"""How well do three measured runs of a source predict the source's other runs?

A user with three runs of one cluster is in the position of a source of which three runs are known. For each source,
framework and chip with enough runs, the constants fitted to the source are removed (cross_validation.py), and three
runs calibrate what is left (own_framework.py). The three are taken at one sixth, one half and five sixths of the runs
in order of size: number of GPUs, then step time. Every other run is a prediction. Runs that their source calls
disturbed are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Final

from simulator.calibration.table import Table
from simulator.calibration.training_runs.cache import play_on
from simulator.calibration.training_runs.own_framework import calibrated
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow
from simulator.calibration.training_runs.summary import apart, errors
from simulator.report.numbers.prediction_intervals import Residual
from simulator.step.framework import Framework
from tools.validation.cross_validation import source_of, without

# Fewer runs than this leave too few to predict.
_LEAST: Final = 8


def play_calibrated(
    rows: Sequence[MeasuredRow], known: Mapping[str, Framework], jobs: int = 2, kept: Path | None = None
) -> dict[int, PlayedRow]:
    """Return the outcomes of measured runs predicted after calibration, by place in `rows`; the runs that calibrate,
    disturbed runs, runs that were not timed, and runs of small sources are missing.

    Rows in the file `kept` are not simulated again (`play_on`).
    """
    found: dict[int, PlayedRow] = {}
    groups: dict[tuple[str, str, str], list[int]] = {}
    disturbed = apart(rows)
    for place, row in enumerate(rows):
        if row.timed and place not in disturbed:
            groups.setdefault((source_of(row), row.framework, row.chip), []).append(place)
    for (source, name, _), places in groups.items():
        if len(places) < _LEAST:
            continue
        ordered = sorted(places, key=lambda place: (rows[place].gpus, rows[place].step_time))
        three = [ordered[len(ordered) * sixths // 6] for sixths in (1, 3, 5)]
        own = calibrated([rows[place] for place in three], without(source, known[name], known), jobs)
        rest = [place for place in places if place not in three]
        others = [rows[place] for place in rest]
        played = play_on(others, {name: own.framework}, jobs, path=kept)
        found |= dict(zip(rest, played, strict=True))
    return found


def calibration_table(residuals: Sequence[Residual]) -> Table:
    """Return a table with each source's errors of step time: source unseen, and after calibration to three runs."""
    rows = []
    known = [one for one in residuals if one.calibrated is not None]
    for source in dict.fromkeys(one.source for one in known):
        mine = [one for one in known if one.source == source]
        # Residuals are ln(measured / simulated); tables show simulated / measured - 1.
        before = errors(source, [exp(-one.unseen["time"]) - 1 for one in mine])
        after = errors(source, [exp(-(one.calibrated or 0.0)) - 1 for one in mine])
        shown = (f"{one:.1%}" for one in (before.median, before.most, after.median, after.most))
        rows.append((source, str(len(mine)), *shown))
    head = ("source", "runs", "unseen: median", "90 % below", "calibrated: median", "90 % below")
    return Table(
        "error of a step's time without the source, and after calibration to three of its runs", head, tuple(rows)
    )
