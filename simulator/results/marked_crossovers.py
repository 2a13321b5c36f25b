"""Which crossovers from the answer does a picture over sizes or workers mark?

The crossovers were searched by simulating further points; sentence, table and picture therefore show the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.findings.comparison import amount
from simulator.records.setting_text import labelled
from simulator.report.numbers.scaling import Axis, Crossing
from simulator.scenario.records import Scenario

_ALONG: Final[dict[str, Axis]] = {"collective.size": "nbytes", "cluster.world_size": "world_size"}


def marked_crossovers(scenario: Scenario, findings: Sequence[Mapping[str, Any]]) -> list[Crossing]:
    """Return the crossovers in an answer's findings (plain data), along array sizes and numbers of workers."""
    spec = scenario.collective
    if spec is None:
        return []
    own = {"collective.size": spec.nbytes, "cluster.world_size": scenario.cluster.world_size}
    found = []
    for one in (crossing for finding in findings for crossing in finding.get("crossings", ())):
        along = _ALONG.get(one["along"])
        # Crossings along other axes, or without a known time, have no place in the picture.
        if along is None or one["value"] is None:
            continue
        # The picture has two axes: the crossing is along one, and the value on the other is fixed.
        other = next(key for key in _ALONG if key != one["along"])
        fixed = amount(one["fixed"].get(other, own[other])) or 0
        before, after = (_line(scenario, one[end], one["fixed"]) for end in ("before", "after"))
        found.append(Crossing(before, after, along, fixed, one["at"], one["value"], leads=True, searched=True))
    return found


def _line(scenario: Scenario, setting: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Return the name of a setting's line in the scaling picture: the setting in words, without the picture's axes."""
    told = {**setting, **fixed}
    # The same rule as in `scaling_points`: the names must match the lines' names in the picture.
    apart = [key for key in (*scenario.compare, *scenario.sweep) if key in told and key not in _ALONG]
    return labelled({key: told[key] for key in apart})
