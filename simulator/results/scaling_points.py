"""Which points does a picture over sizes and workers show: each outcome's line, place and time?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.records.setting_text import labelled
from simulator.report.numbers.algorithm_crossovers import ScalingPoint
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Settings along the axes in a scaling picture; the remaining settings together name a point's line.
_PLACES: Final = ("cluster.world_size", "collective.size")


def scaling_points(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> tuple[ScalingPoint, ...]:
    """Return the points of a scaling picture from a sweep's outcomes: line, ranks, size and time of each.

    There is a line per combination of settings other than the picture's axes.
    """
    line_points = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        keys = [key for key in point.settings if key not in _PLACES]
        scaled = _scaled(point, outcome, keys)
        line_points += [scaled] if scaled else []
    return tuple(line_points)


def _scaled(point: Point, outcome: PointOutcome, keys: Sequence[str]) -> ScalingPoint | None:
    """Return a point on the line named by the values of `keys`, or by the algorithm; None without a positive time."""
    spec, report = point.scenario.collective, outcome.report
    # Both axes are logarithmic, so a time of 0 has no place.
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = _labels(point, keys) or report["algorithm"]
    # A fixed group of ranks on ever larger clusters is drawn at the cluster's size, not at the group's size.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.nbytes, report["time_s"], report["predicted_s"])


def _labels(point: Point, keys: Sequence[str]) -> str:
    return labelled({key: point.settings[key] for key in keys})
