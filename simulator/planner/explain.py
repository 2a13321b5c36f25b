"""Why is a setting slower than the best one: how much of the difference are kernels, communication, idle time?

The parts of a step add up to the step time, so the differences of the parts add up to the difference of the times.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.basics.units import format_time
from simulator.findings.why import parts_of_step
from simulator.planner.search import PlayedSetting


@dataclass(frozen=True, slots=True)
class Difference:
    """How much longer a step takes with one setting than with the best one.

    Attributes
    ----------
    whole : float
        Difference of the step times [s].
    parts : dict of str to float
        Difference of each part of a step; the parts add up to `whole` [s].
    """

    whole: float
    parts: dict[str, float]

    @property
    def text(self) -> str:
        """The largest part in words, '412 ms more exposed communication'; empty if no part is longer."""
        name = max(self.parts, key=lambda part: self.parts[part])
        return f"{format_time(self.parts[name])} more {name}" if self.parts[name] > 0 else ""


def step_difference(best: PlayedSetting, other: PlayedSetting) -> Difference:
    """Return how much longer each part of a step takes with the other setting than with the best one."""
    mine, its = parts_of_step(best.report), parts_of_step(other.report)
    return Difference(other.step_time - best.step_time, {name: its[name] - mine[name] for name in mine})
