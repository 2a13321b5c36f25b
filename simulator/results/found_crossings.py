"""Where did the answer find that the lead changes, as a picture of times marks it?

Rule: the places that were searched for by playing, so that sentence, table and picture tell the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.findings.comparison import amount
from simulator.records.setting_text import labelled
from simulator.report.numbers.scaling import Axis, Crossing
from simulator.scenario.records import Scenario

_ALONG: Final[dict[str, Axis]] = {"collective.size": "nbytes", "cluster.world_size": "world_size"}


def found_crossings(scenario: Scenario, findings: Sequence[Mapping[str, Any]]) -> list[Crossing]:
    """Crossings of an answer's findings, as plain data; those along sizes and numbers of workers."""
    spec = scenario.collective
    if spec is None:
        return []
    own = {"collective.size": spec.nbytes, "cluster.world_size": scenario.cluster.world_size}
    found = []
    for one in (crossing for finding in findings for crossing in finding.get("crossings", ())):
        along = _ALONG.get(one["along"])
        if along is None or one["value"] is None:
            continue
        other = next(key for key in _ALONG if key != one["along"])
        fixed = amount(one["fixed"].get(other, own[other])) or 0
        before, after = (_line(scenario, one[end], one["fixed"]) for end in ("before", "after"))
        found.append(Crossing(before, after, along, fixed, one["at"], one["value"], leads=True, searched=True))
    return found


def _line(scenario: Scenario, setting: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """How the picture names a line: by all settings but its axes."""
    told = {**setting, **fixed}
    apart = [key for key in (*scenario.compare, *scenario.sweep) if key in told and key not in _ALONG]
    return labelled({key: told[key] for key in apart})
