"""The update rule of an own optimizer: a function of a user's file that changes arrays in place.

The function treats each element separately, as the shipped rules do; then updating a shard gives the same bits as
updating every parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.basics.arrays import Array
from simulator.numerics.optimizer import OptimizerState
from simulator.numerics.schedule import RateSchedule


@dataclass(frozen=True, slots=True)
class UpdateConstants:
    """Constants of an update.

    Attributes
    ----------
    betas : (float, float)
        Decay factors of moving averages (`learning.betas`).
    momentum, eps, decay : float
        Values of `learning.momentum`, `learning.eps` and `learning.decay`.
    """

    step: int  # number of this update, from 1
    rate: float  # learning rate of this update, after warm-up and decay
    betas: tuple[float, float]
    momentum: float
    eps: float
    decay: float


# Changes parameters and states in place: update(parameters, gradient, states, constants).
OwnUpdate = Callable[[Array, Array, tuple[Array, ...], UpdateConstants], None]


@dataclass(frozen=True, slots=True)
class OwnRule:
    """The update of an own optimizer as a rule.

    Attributes
    ----------
    rate, betas, momentum, eps, decay
        As in UpdateConstants, before the schedule.
    """

    function: OwnUpdate  # see `OwnUpdate`
    moments: int  # number of states per parameter
    rate: float
    betas: tuple[float, float]
    momentum: float
    eps: float
    decay: float
    schedule: RateSchedule  # schedule of the learning rate

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and states in place by one step with this gradient."""
        # `step` has counted this update already; schedules count from 0.
        rate = self.rate * self.schedule.factor(state.steps - 1)
        constants = UpdateConstants(state.steps, rate, self.betas, self.momentum, self.eps, self.decay)
        self.function(parameters, gradient, tuple(state.moments), constants)
