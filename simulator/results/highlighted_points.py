"""Which points of a run get individual pictures: the best point, and the point compared with the best?

The points are the answer's own points, so that sentence, table and picture describe the same points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.run.outcome import PointOutcome
from simulator.scenario.records import Scenario

# The answer names its most important points first; at most this many get pictures.
_MOST: Final = 2


def highlighted_points(
    scenario: Scenario, outcomes: Sequence[PointOutcome], known: Sequence[int] | None = None
) -> list[int]:
    """Return the indices of the points that get individual pictures, rising; empty if every point failed.

    Parameters
    ----------
    outcomes : sequence of PointOutcome
        An outcome per point, in the points' order.
    known : sequence of int, optional
        Points in the answer, if the answer is known already.
    """
    spoken = answer(Comparison(scenario, list(outcomes))).spoken if known is None else known
    return sorted(place for place in spoken[:_MOST] if outcomes[place].report is not None)
