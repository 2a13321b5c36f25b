"""Which residuals of measured runs determine the prediction intervals? Writes catalog/measured/residuals.csv.

A line for each timed run: ln(measured / simulated) for step time and peak memory, with every constant, and with the
source unseen (cross_validation.py); for step time also after calibration (after_calibration.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Final

from simulator.basics.csv_text import csv_text
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.report.numbers.prediction_intervals import Residual, Traits
from tools.validation.cross_validation import source_of

_HEAD: Final = """\
# Errors of measured runs, ln(measured / simulated): step time and peak memory, with every constant, and (unseen)
# without the constants fitted to the run's own source, and (calibrated) after a calibration of these to three other
# runs of the source. Written by `python -m tools.validation.training_page`; sources and rows: training.csv,
# training_cut.csv, fine_tuning.csv and recipes.csv.
source,framework,chip,eight_bit,cut,nodes,experts,time,unseen_time,memory,unseen_memory,calibrated_time
"""


def residuals(
    outcomes: Sequence[PlayedRow], unseen: Sequence[PlayedRow], calibrated: Mapping[int, PlayedRow]
) -> tuple[Residual, ...]:
    """Return the residuals of every timed run; `calibrated` has outcomes after calibration, by place in `outcomes`."""
    rows = enumerate(zip(outcomes, unseen, strict=True))
    return tuple(_residual(own, other, calibrated.get(place)) for place, (own, other) in rows if own.row.timed)


def _residual(own: PlayedRow, unseen: PlayedRow, calibrated: PlayedRow | None) -> Residual:
    row = own.row
    cut = row.parallelism.size > 1 or row.parallelism.ep > 1
    # `nodes` is True for several nodes: every machine in the tables has eight GPUs per node.
    traits = Traits(row.framework, row.chip, row.eight_bit, cut, row.gpus > 8, row.transformer.num_experts > 0)
    after = None if calibrated is None else _errors(calibrated)["time"]
    return Residual(source_of(row), traits, _errors(own), _errors(unseen), after)


def _errors(outcome: PlayedRow) -> dict[str, float]:
    row, found = outcome.row, {"time": log(outcome.row.step_time / outcome.step_time)}
    return found if row.peak is None or not row.memory_simulated else found | {"memory": log(row.peak / outcome.peak)}


def write_residuals(path: Path, found: Sequence[Residual]) -> None:
    """Write the table."""
    rows = []
    for one in found:
        traits = one.traits
        flags = (str(int(flag)) for flag in (traits.eight_bit, traits.cut, traits.nodes, traits.experts))
        # Four columns: time and memory, each with every constant and with the source unseen.
        numbers = (f"{part[name]:.4f}" if name in part else "" for name in ("time", "memory") for part in _both(one))
        after = "" if one.calibrated is None else f"{one.calibrated:.4f}"
        rows.append([one.source, traits.framework, traits.chip, *flags, *numbers, after])
    path.write_text(_HEAD + csv_text(rows), encoding="utf-8")


def _both(one: Residual) -> tuple[dict[str, float], dict[str, float]]:
    return one.own, one.unseen
