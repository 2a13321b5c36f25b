"""Why is a setting slower than the best? The difference is divided among kernels, communication and idle time.

A step's parts add up to the step time, hence the parts' differences add up to the difference in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.basics.units import format_time
from simulator.findings.why import parts_of_step
from simulator.planner.search import PlayedSetting


@dataclass(frozen=True, slots=True)
class StepTimeDifference:
    """A setting's additional time per step compared with the best setting, divided among the parts of a step."""

    whole: float  # difference in step time [s]
    parts: dict[str, float]  # difference for each part of a step; they add up to `whole` [s]

    @property
    def text(self) -> str:
        """The part that grew most, in words; empty if no part is longer.

        >>> StepTimeDifference(0.4, {"compute": -0.012, "exposed communication": 0.412}).text
        '412 ms more exposed communication'
        """
        # Parts may also be shorter than the best setting's; only the largest increase is named.
        name = max(self.parts, key=lambda part: self.parts[part])
        return f"{format_time(self.parts[name])} more {name}" if self.parts[name] > 0 else ""


def step_difference(best: PlayedSetting, other: PlayedSetting) -> StepTimeDifference:
    """Return the step time of a setting minus the best setting's, in total and for each part of a step (kernels,
    communication, idle).
    """
    mine, its = parts_of_step(best.report), parts_of_step(other.report)
    return StepTimeDifference(other.step_time - best.step_time, {name: its[name] - mine[name] for name in mine})
