"""Learning-rate schedules: the factor on the learning rate in each update (warm-up, then constant, linear or cosine).

The factor depends on the number of updates alone, counted by the optimizer: a step that was skipped because of an
overflow does not count [2]_.

References
----------
.. [1] Hugging Face transformers, optimization.py: get_constant_schedule_with_warmup, get_linear_schedule_with_warmup,
   get_cosine_schedule_with_warmup, for PyTorch's LambdaLR.
.. [2] Hugging Face accelerate, scheduler.py: AcceleratedScheduler.step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A learning-rate schedule: a linear warm-up followed by a constant, linear or cosine shape [1]_."""

    # Shape after the warm-up: the full rate to the end; a straight line to 0; half a cosine to 0.
    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0  # steps in which the factor rises from 0 in equal parts
    steps: int = 0  # steps of the whole training; linear and cosine schedules then reach 0
    # Updates in a step: the number of workers if a server applies each worker's gradient separately, else 1
    updates: int = 1

    def factor(self, update: int) -> float:
        """Return the factor on the learning rate in an update; updates count from 0.

        With t = update // updates: t / warmup while t < warmup; then 1 (constant), or, with the share s = (t - warmup)
        / (steps - warmup) of the rest, 1 - s (linear), or (1 + cos(pi s)) / 2 (cosine).

        >>> [RateSchedule("linear", 2, 6).factor(t) for t in range(6)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]
        """
        at = update // self.updates
        if at < self.warmup:
            return at / self.warmup
        if self.kind == "constant":
            return 1.0
        # Without the limit the cosine would rise again after more updates than planned.
        share = min((at - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return 1.0 - share if self.kind == "linear" else 0.5 * (1.0 + cos(pi * share))
