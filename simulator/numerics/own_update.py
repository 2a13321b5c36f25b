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
    step : int
        Number of this update, from 1.
    rate : float
        Learning rate of this update, after warm-up and decay.
    betas : (float, float)
        Decay factors of moving averages (`learning.betas`).
    momentum, eps, decay : float
        Values of `learning.momentum`, `learning.eps` and `learning.decay`.
    """

    step: int
    rate: float
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
    function : callable
        See `OwnUpdate`.
    moments : int
        Number of states per parameter.
    rate, betas, momentum, eps, decay
        As in UpdateConstants, before the schedule.
    schedule : RateSchedule
        Schedule of the learning rate.
    """

    function: OwnUpdate
    moments: int
    rate: float
    betas: tuple[float, float]
    momentum: float
    eps: float
    decay: float
    schedule: RateSchedule

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and states in place by one step with this gradient."""
        # `step` has counted this update already; schedules count from 0.
        rate = self.rate * self.schedule.factor(state.steps - 1)
        constants = UpdateConstants(state.steps, rate, self.betas, self.momentum, self.eps, self.decay)
        self.function(parameters, gradient, tuple(state.moments), constants)
