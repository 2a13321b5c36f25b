"""The update rule of an own optimizer: a function of a user's file that changes arrays in place.

The function treats each element separately, as the shipped rules do; then updating a shard gives the same bits as
updating every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.basics.arrays import Array
from simulator.numerics.learning_rate import RateSchedule
from simulator.numerics.optimizer import OptimizerState
from simulator.step.optimizers.optimizer import OwnUpdate, UpdateConstants


@dataclass(frozen=True, slots=True)
class OwnRule:
    """The update of an own optimizer as a rule."""

    function: OwnUpdate  # see `OwnUpdate`
    moments: int  # number of states per parameter
    constants: UpdateConstants  # before the first update, with the rate before the schedule
    schedule: RateSchedule  # schedule of the learning rate

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and states in place by one step with this gradient."""
        # `step` has counted this update already; schedules count from 0.
        rate = self.constants.rate * self.schedule.factor(state.steps - 1)
        self.function(parameters, gradient, tuple(state.moments), replace(self.constants, step=state.steps, rate=rate))
