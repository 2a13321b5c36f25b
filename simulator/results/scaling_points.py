"""Which points does a picture of times against size and workers show: each outcome with its line, place and time?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.records.setting_text import labelled
from simulator.report.numbers.scaling import ScalingPoint
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Settings along the axes of a scaling picture; all others together name the line that a point is on.
_PLACES: Final = ("cluster.world_size", "collective.size")


def scaling_points(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> tuple[ScalingPoint, ...]:
    """The outcomes as points of a scaling picture: a line for each combination of settings but world and array size."""
    shown = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        apart = [key for key in point.settings if key not in _PLACES]
        scaled = _scaled(point, outcome, apart)
        shown += [scaled] if scaled else []
    return tuple(shown)


def _scaled(point: Point, outcome: PointOutcome, apart: Sequence[str]) -> ScalingPoint | None:
    """An outcome as a point, named by these settings (by its algorithm without any); None where there is no time."""
    spec, report = point.scenario.collective, outcome.report
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = _labels(point, apart) or report["algorithm"]
    # A group of ranks that stays the same on ever larger clusters is drawn at the cluster's size, not at its own.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.nbytes, report["time_s"], report["predicted_s"])


def _labels(point: Point, keys: Sequence[str]) -> str:
    return labelled({key: point.settings[key] for key in keys})
