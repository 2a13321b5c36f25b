"""Which points of a run are looked at closely, and how are their pictures called?

Rule: those that the scenario names, or those that the sentence at the end speaks of; what is left out is said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.sections import SECTIONS
from simulator.records.setting_text import label, setting_text
from simulator.results.spoken_of import spoken_of
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import points
from simulator.scenario.partial_settings import matching
from simulator.scenario.records import Scenario

# Characters of one setting in the name of a picture's file.
_LONGEST: Final = 60
# More points than these are looked at only if all are asked for: a sweep of hundreds would leave hundreds of pictures.
MOST_DRAWN: Final = 8


@dataclass(frozen=True, slots=True)
class PlottedPoints:
    """The points of which pictures of one point are drawn.

    Attributes
    ----------
    names : mapping of a point's place to a suffix
        For the names of its pictures' files; empty where nothing is compared.
    named : bool
        Whether the scenario names them.
    left_out : str
        One sentence on the points that are not drawn; empty where all are.
    beyond : tuple of str
        Suffixes of points that were wanted too, and are more than are drawn at once.
    """

    names: Mapping[int, str]
    named: bool
    left_out: str
    beyond: tuple[str, ...] = ()


def plotted_points(
    scenario: Scenario, outcomes: Sequence[PointOutcome], spoken: Sequence[int] | None = None
) -> PlottedPoints:
    """Choose the points; those that failed are left out.

    Parameters
    ----------
    scenario : Scenario
    outcomes : sequence of PointOutcome
    spoken : sequence of int, optional
        The points that the answer speaks of, where it has been worked out.
    """
    places = [place for place in _wanted(scenario, outcomes, spoken) if outcomes[place].report is not None]
    shown = places if scenario.plotted.points == "all" else places[:MOST_DRAWN]
    settings = [outcomes[place].settings for place in places]
    # What is compared tells points apart in any case, what is swept only where it differs among them.
    keys = [
        key
        for key in {**scenario.compare, **scenario.sweep}
        if key in scenario.compare or any(other[key] != settings[0][key] for other in settings)
    ]
    names = {place: _suffix(outcomes[place].settings, keys) for place in places}
    return PlottedPoints(
        names={place: names[place] for place in shown},
        named=scenario.plotted.points is not None,
        left_out=_left_out(len(shown), len(outcomes)),
        beyond=tuple(names[place] for place in places if place not in shown),
    )


def _wanted(scenario: Scenario, outcomes: Sequence[PointOutcome], spoken: Sequence[int] | None) -> Sequence[int]:
    named = scenario.plotted.points
    if named is None:
        return spoken_of(scenario, outcomes, spoken)
    if isinstance(named, str):
        return range(len(outcomes))
    all_points = points(scenario)
    return list(dict.fromkeys(place for wanted in named for place in matching(all_points, wanted)))


def _suffix(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return "".join(f"_{as_file_name(key, settings[key])}" for key in keys)


def as_file_name(key: str, value: Any) -> str:
    """A setting as people say it, its letters and digits alone; of a section with the names of its keys.

    Examples
    --------
    >>> as_file_name("training.sharding", {"strategy": "zero3", "shard_size": 8})
    'zero3-shard-size-8'
    >>> as_file_name("collective", {"algorithm": "parameter_server", "servers.count": 4})
    'parameter_server-4-servers'
    """
    words = re.findall(r"[\w.]+", label(key, value) if key in SECTIONS else setting_text(value))
    name = "-".join(words) or "none"
    # What is cut keeps a mark of its own, so that no picture takes the place of another.
    mark = hashlib.sha256(name.encode()).hexdigest()[:4]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 5]}-{mark}"


def _left_out(shown: int, there: int) -> str:
    if shown == there:
        return ""
    return (
        f"pictures of one point show {shown} of {there} points; `plots: {{points: all}}` draws all, "
        "`simulator plot RUN --kind KIND --point KEY=VALUE` another one"
    )
