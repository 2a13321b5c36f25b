"""Which points of a run get their own pictures, and how are the picture files named?

The scenario may name the points; otherwise the points in the answer are drawn. The run reports how many points have no
pictures.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.sections import SECTIONS
from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.records.setting_text import label, setting_text
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import points
from simulator.scenario.partial_settings import matching
from simulator.scenario.records import Scenario

# Maximum characters of a setting in a picture's file name.
_LONGEST: Final = 60
# Maximum points with pictures, unless all are requested: a sweep over hundreds would leave hundreds of pictures.
MOST_DRAWN: Final = 8
# The answer names its most important points first; at most this many get pictures.
_MOST: Final = 2


@dataclass(frozen=True, slots=True)
class PlottedPoints:
    """Points that get pictures of their own."""

    # Suffix in the names of the point's picture files; empty if nothing is compared.
    names: Mapping[int, str]
    named: bool  # whether the scenario names the points
    left_out: str  # a sentence about points without pictures; empty if every point has pictures
    beyond: tuple[str, ...] = ()  # suffixes of further wanted points, beyond the maximum number of points


def plotted_points(
    scenario: Scenario, outcomes: Sequence[PointOutcome], spoken: Sequence[int] | None = None
) -> PlottedPoints:
    """Choose the points of a scenario that get their own pictures; failed points are omitted.

    Parameters
    ----------
    spoken : sequence of int, optional
        Points in the answer, if the answer is known already.
    """
    places = [place for place in _candidates(scenario, outcomes, spoken) if outcomes[place].report is not None]
    visible = places if scenario.plotted.points == "all" else places[:MOST_DRAWN]
    settings = [outcomes[place].settings for place in places]
    # Compared keys always distinguish points; swept keys are in the name only if their values differ.
    keys = [
        key
        for key in {**scenario.compare, **scenario.sweep}
        if key in scenario.compare or any(other[key] != settings[0][key] for other in settings)
    ]
    names = {place: _suffix(outcomes[place].settings, keys) for place in places}
    return PlottedPoints(
        names={place: names[place] for place in visible},
        named=scenario.plotted.points is not None,
        left_out=_left_out(len(visible), len(outcomes)),
        beyond=tuple(names[place] for place in places if place not in visible),
    )


def _candidates(scenario: Scenario, outcomes: Sequence[PointOutcome], spoken: Sequence[int] | None) -> Sequence[int]:
    selectors = scenario.plotted.points
    if selectors is None:
        return highlighted_points(scenario, outcomes, spoken)
    # The only string is "all".
    if isinstance(selectors, str):
        return range(len(outcomes))
    all_points = points(scenario)
    return list(dict.fromkeys(place for selector in selectors for place in matching(all_points, selector)))


def _suffix(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return "".join(f"_{as_file_name(key, settings[key])}" for key in keys)


def as_file_name(key: str, value: Any) -> str:
    """Return a setting in words, reduced to letters and digits; for a section, including key names.

    >>> as_file_name("training.sharding", {"strategy": "zero3", "shard_size": 8})
    'zero3-shard-size-8'
    >>> as_file_name("collective", {"algorithm": "parameter_server", "servers.count": 4})
    'parameter_server-4-servers'
    """
    words = re.findall(r"[\w.]+", label(key, value) if key in SECTIONS else setting_text(value))
    name = "-".join(words) or "none"
    # A shortened name gets a hash suffix: otherwise pictures could overwrite each other.
    mark = hashlib.sha256(name.encode()).hexdigest()[:4]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 5]}-{mark}"


def _left_out(count: int, total: int) -> str:
    if count == total:
        return ""
    return (
        f"drew {count} of {total} points; for more: `simulator plot RUN --kind KIND --point KEY=VALUE`, or "
        "`plots: {points: all}` in the scenario"
    )


def highlighted_points(
    scenario: Scenario, outcomes: Sequence[PointOutcome], answer_points: Sequence[int] | None = None
) -> list[int]:
    """Return the indices of the points that get individual pictures, rising; empty if every point failed.

    Parameters
    ----------
    outcomes : sequence of PointOutcome
        An outcome per point, in the points' order.
    answer_points : sequence of int, optional
        Points in the answer, if the answer is known already.
    """
    spoken = answer(Comparison(scenario, list(outcomes))).spoken if answer_points is None else answer_points
    return sorted(place for place in spoken[:_MOST] if outcomes[place].report is not None)
