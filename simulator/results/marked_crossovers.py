"""Which crossovers from the answer does a picture over sizes or workers mark?

The crossovers were searched by simulating further points; sentence, table and picture therefore show the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.findings.comparison import amount
from simulator.records.setting_text import labelled
from simulator.report.numbers.algorithm_crossovers import Axis, Crossing
from simulator.scenario.records import Scenario

_ALONG: Final[dict[str, Axis]] = {"collective.size": "nbytes", "cluster.world_size": "world_size"}


def marked_crossovers(scenario: Scenario, findings: Sequence[Mapping[str, Any]]) -> list[Crossing]:
    """Return the crossovers in an answer's findings (plain data), along array sizes and numbers of workers."""
    spec = scenario.collective
    if spec is None:
        return []
    defaults = {"collective.size": spec.nbytes, "cluster.world_size": scenario.cluster.world_size}
    marks = []
    for place in (crossing for finding in findings for crossing in finding.get("crossings", ())):
        along = _ALONG.get(place["along"])
        # Crossings along other axes, or without a known time, have no place in the picture.
        if along is None or place["value"] is None:
            continue
        # The picture has two axes: the crossing is along one, and the value on the other is fixed.
        other = next(key for key in _ALONG if key != place["along"])
        fixed = amount(place["fixed"].get(other, defaults[other])) or 0
        before, after = (_line(scenario, place[end], place["fixed"]) for end in ("before", "after"))
        marks.append(Crossing(before, after, along, fixed, place["at"], place["value"], leads=True, searched=True))
    return marks


def _line(scenario: Scenario, setting: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Return the name of a setting's line in the scaling picture: the setting in words, without the picture's axes."""
    settings = {**setting, **fixed}
    # The same rule as in `scaling_points`: the names must match the lines' names in the picture.
    keys = [key for key in (*scenario.compare, *scenario.sweep) if key in settings and key not in _ALONG]
    return labelled({key: settings[key] for key in keys})
