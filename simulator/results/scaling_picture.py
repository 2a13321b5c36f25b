"""What does a picture over sizes and workers show? Each outcome's line, place and time, and the answer's crossovers.

The crossovers were searched by simulating further points; sentence, table and picture therefore show the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.findings.comparison import amount
from simulator.records.setting_text import labelled
from simulator.report.numbers.algorithm_crossovers import Axis, Crossing, ScalingPoint
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Settings along the axes of the picture; the remaining settings together name a point's line.
_AXES: Final[dict[str, Axis]] = {"collective.size": "nbytes", "cluster.world_size": "world_size"}


def scaling_points(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> tuple[ScalingPoint, ...]:
    """Return the points of a scaling picture from a sweep's outcomes: line, ranks, size and time of each.

    There is a line per combination of settings other than the picture's axes.
    """
    line_points = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        keys = [key for key in point.settings if key not in _AXES]
        scaled = _scaled(point, outcome, keys)
        line_points += [scaled] if scaled else []
    return tuple(line_points)


def _scaled(point: Point, outcome: PointOutcome, keys: Sequence[str]) -> ScalingPoint | None:
    """Return a point on the line named by the values of `keys`, or by the algorithm; None without a positive time."""
    spec, report = point.scenario.collective, outcome.report
    # Both axes are logarithmic, so a time of 0 has no place.
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = labelled({key: point.settings[key] for key in keys}) or report["algorithm"]
    # A fixed group of ranks on ever larger clusters is drawn at the cluster's size, not at the group's size.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.nbytes, report["time_s"], report["predicted_s"])


def marked_crossovers(scenario: Scenario, findings: Sequence[Mapping[str, Any]]) -> list[Crossing]:
    """Return the crossovers in an answer's findings (plain data), along array sizes and numbers of workers."""
    spec = scenario.collective
    if spec is None:
        return []
    defaults = {"collective.size": spec.nbytes, "cluster.world_size": scenario.cluster.world_size}
    marks = []
    for place in (crossing for finding in findings for crossing in finding.get("crossings", ())):
        along = _AXES.get(place["along"])
        # Crossings along other axes, or without a known time, have no place in the picture.
        if along is None or place["value"] is None:
            continue
        # The picture has two axes: the crossing is along one, and the value on the other is fixed.
        other = next(key for key in _AXES if key != place["along"])
        fixed = amount(place["fixed"].get(other, defaults[other])) or 0
        before, after = (_line(scenario, place[end], place["fixed"]) for end in ("before", "after"))
        marks.append(Crossing(before, after, along, fixed, place["at"], place["value"], leads=True, searched=True))
    return marks


def _line(scenario: Scenario, setting: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Return the name of a setting's line in the scaling picture: the setting in words, without the picture's axes."""
    settings = {**setting, **fixed}
    # The same rule as in `scaling_points`: the names must match the lines' names.
    keys = [key for key in (*scenario.compare, *scenario.sweep) if key in settings and key not in _AXES]
    return labelled({key: settings[key] for key in keys})
