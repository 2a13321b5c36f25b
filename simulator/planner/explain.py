"""Why does a setting lose against the best one: which parts of the difference are kernels, communication, idle time?

Rule: parts are those of a step, which add up to its time, so that parts of a difference add up to the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.basics.units import format_time
from simulator.findings.why import parts_of_step
from simulator.planner.search import Played


@dataclass(frozen=True, slots=True)
class Difference:
    """What a setting takes more than the best one.

    Attributes
    ----------
    whole : float
        [s]
    parts : dict of str to float
        By what it goes to; they add up to `whole` [s].
    """

    whole: float
    parts: dict[str, float]

    @property
    def text(self) -> str:
        """The largest part in words: '412 ms more exposed communication'; empty where nothing differs."""
        name = max(self.parts, key=lambda part: self.parts[part])
        return f"{format_time(self.parts[name])} more {name}" if self.parts[name] > 0 else ""


def against(best: Played, other: Played) -> Difference:
    """How the other differs from the best."""
    mine, its = parts_of_step(best.report), parts_of_step(other.report)
    return Difference(other.step_time - best.step_time, {name: its[name] - mine[name] for name in mine})
