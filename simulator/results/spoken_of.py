"""Which points does the sentence at the end of a run speak of: the best one, and the first setting to hold it against?

Rule: both at one condition, the largest that was swept, so that nothing but what is compared differs between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.scenario.records import Scenario
from simulator.scenario.shape import adapter
from simulator.sweeps.outcome import PointOutcome


def spoken_of(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> tuple[int, ...]:
    """Places of the points, the first compared setting's first; empty where nothing could be played.

    Parameters
    ----------
    scenario : Scenario
    outcomes : sequence of PointOutcome
        One a point, in the order of the points.
    """
    known = [place for place, outcome in enumerate(outcomes) if outcome.report is not None]
    if not known:
        return ()
    conditions = [tuple(_sizes(scenario, outcome.settings)) for outcome in outcomes]
    largest = max(conditions[place] for place in known)
    here = [place for place in known if conditions[place] == largest]
    best = min(here, key=lambda place: _rank(outcomes[place].report or {}))
    return tuple(dict.fromkeys((here[0], best)))


def _sizes(scenario: Scenario, settings: Mapping[str, Any]) -> list[float]:
    """How large each swept setting of a point is: numbers and sizes by themselves, others by their place."""
    sizes: list[float] = []
    for key, values in scenario.sweep.items():
        read = [adapter(key).validate_python(value) for value in values]
        numbers = all(isinstance(value, int | float) for value in read)
        place = values.index(settings[key])
        sizes.append(float(read[place]) if numbers else float(place))
    return sizes


def _rank(report: Mapping[str, Any]) -> tuple[bool, float]:
    """Least for the best: what fits first, then the fastest."""
    if "time_s" in report:
        return False, report["time_s"]
    return not report["fits"], -report["tokens_per_s"]
