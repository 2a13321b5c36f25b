"""Trainings in copies that average their parameters every so many steps: DiLoCo, local SGD, streaming fragments.

Each copy sums gradients among its own ranks only. After `every` inner steps, the ranks that hold the same shard
average their parameters (the outer step) over the links between the copies. With fragments, a part of the parameters is
averaged at a time, evenly spread over the inner steps; with a delay, inner steps go on while an average is under way.

Only a part of the inner steps is simulated, long enough for an average to end; the others take the time of an inner
step without an average.

References
----------
.. [1] Douillard et al., "DiLoCo: distributed low-communication training of language models", arXiv:2311.08105.
.. [2] Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.units import format_time
from simulator.scenario.jobs_file import OuterSetting

# Inner steps that are simulated beside the delay, between two averages.
_SIMULATED: Final = 4


def simulated_steps(outer: OuterSetting) -> int:
    """Return how many of the inner steps between two averages are simulated.

    >>> simulated_steps(OuterSetting("chat", copies=2, every=500, fragments=1, delay=1, dtype="float32"))
    5
    """
    return min(outer.every // outer.fragments, outer.delay + _SIMULATED)


@dataclass(frozen=True, slots=True)
class OuterRound:
    """Time of a training in copies."""

    setting: OuterSetting  # how the copies average
    ranks: int  # GPUs of a copy
    inner: float  # time of an inner step without an average [s]
    window: float  # time of `simulated_steps` inner steps with an average [s]
    in_every_step: float  # time of a step that sums gradients over all copies [s]

    @property
    def step(self) -> float:
        """Mean time of an inner step, averages included [s].

        >>> setting = OuterSetting("chat", copies=2, every=10, fragments=1, delay=0, dtype="float32")
        >>> OuterRound(setting, ranks=8, inner=1.0, window=5.0, in_every_step=2.0).step
        1.1
        """
        between = self.setting.every // self.setting.fragments
        others = between - simulated_steps(self.setting)
        return (self.window + others * self.inner) / between

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences."""
        outer, cost = self.setting, self.step / self.inner - 1.0
        parts = "" if outer.fragments == 1 else f", in {outer.fragments} parts"
        ratio = self.in_every_step / self.step
        return (
            f"An inner step of {outer.name} takes {format_time(self.step)} in the mean: {outer.copies} copies average "
            f"their parameters every {outer.every} steps{parts}, which adds {100 * cost:.2g} % to "
            f"{format_time(self.inner)}.",
            f"Summing gradients over all copies in every step would take {format_time(self.in_every_step)} a step, "
            f"{ratio:.3g} times as long.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain data, times in seconds."""
        return {
            "copies": self.setting.copies,
            "every": self.setting.every,
            "fragments": self.setting.fragments,
            "delay": self.setting.delay,
            "inner_step_s": self.inner,
            "mean_step_s": self.step,
            "step_summed_over_copies_s": self.in_every_step,
        }


def window_time(step_ends: Sequence[Sequence[float]], steps: int) -> float:
    """Return the time of the second `steps` steps of the slowest copy, given when each step of each copy ends [s].

    The average that begins after the first `steps` steps ends within them.

    >>> window_time([[1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 3.0, 4.0]], 2)
    3.0
    """
    return max(ends[2 * steps - 1] - ends[steps - 1] for ends in step_ends)
