"""Which points of a run do pictures of one point show: the best one, and what the answer holds it against?

Rule: the answer's own points, so that sentence, table and picture speak of the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.run.outcome import PointOutcome
from simulator.scenario.records import Scenario

# Of several points that the answer names, the most important ones, which it names first.
_MOST: Final = 2


def spoken_of(scenario: Scenario, outcomes: Sequence[PointOutcome], known: Sequence[int] | None = None) -> list[int]:
    """Places of the points, rising; empty where nothing could be played.

    Parameters
    ----------
    scenario : Scenario
    outcomes : sequence of PointOutcome
        One a point, in the order of the points.
    known : sequence of int, optional
        The points that the answer speaks of, where it has been worked out.
    """
    spoken = answer(Comparison(scenario, list(outcomes))).spoken if known is None else known
    return sorted(place for place in spoken[:_MOST] if outcomes[place].report is not None)
