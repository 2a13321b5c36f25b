"""Optimizers on flat arrays: the moments and the step count of whatever part of the parameters a rank has.

Rule: element by element, so that a shard of a step is the step of a shard, to the bit.

References
----------
.. [1] Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015.
.. [2] Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.schedule import RateSchedule

_STEADY = RateSchedule()


@dataclass(slots=True)
class OptimizerState:
    """Moments of some parameters, and how many steps they have seen."""

    moments: list[Array]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Adam:
    """Momentum and variance [1]_.

    Attributes
    ----------
    rate, first, second, epsilon : float
    decay : float
        Of the parameters themselves, beside the gradient [2]_; 0 for none.
    schedule : RateSchedule
        Of the rate.
    """

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    schedule: RateSchedule = _STEADY

    @property
    def moments(self) -> int:
        """Numbers kept for each parameter."""
        return 2

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """In place, in PyTorch's order of operations."""
        kind, (momentum, variance) = parameters.dtype.type, state.moments
        scheduled = self.rate * self.schedule.factor(state.steps - 1)
        if self.decay:
            parameters *= kind(1.0 - scheduled * self.decay)
        momentum += (gradient - momentum) * kind(1.0 - self.first)
        variance *= kind(self.second)
        variance += kind(1.0 - self.second) * gradient * gradient
        correction = np.sqrt(1.0 - self.second**state.steps)
        rate = scheduled / (1.0 - self.first**state.steps)
        denominator = np.sqrt(variance) / kind(correction) + kind(self.epsilon)
        parameters -= kind(rate) * momentum / denominator


@dataclass(frozen=True, slots=True)
class Sgd:
    """Down the gradient, or down its sum over steps, of which each counts less than the one after it.

    Attributes
    ----------
    rate : float
    momentum : float
        By which the sum shrinks each step; 0 for none.
    decay : float
        Of the parameters, as part of the gradient, which is PyTorch's `weight_decay`.
    schedule : RateSchedule
        Of the rate.
    """

    rate: float = 1e-3
    momentum: float = 0.0
    decay: float = 0.0
    schedule: RateSchedule = _STEADY

    @property
    def moments(self) -> int:
        """Numbers kept for each parameter."""
        return 1 if self.momentum else 0

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """In place, in PyTorch's order of operations."""
        kind = parameters.dtype.type
        if self.decay:
            gradient = gradient + kind(self.decay) * parameters
        if self.momentum:
            # The sum starts as the first gradient, not as a part of it; from zeros that is the same.
            state.moments[0] *= kind(self.momentum)
            state.moments[0] += gradient
            gradient = state.moments[0]
        parameters -= kind(self.rate * self.schedule.factor(state.steps - 1)) * gradient


Rule = Adam | Sgd


def fresh(rule: Rule, parameters: Array) -> OptimizerState:
    """The state before the first step."""
    return OptimizerState([np.zeros_like(parameters) for _ in range(rule.moments)])


def step(rule: Rule, parameters: Array, gradient: Array, state: OptimizerState) -> None:
    """Update parameters and state in place, in the parameters' dtype."""
    state.steps += 1
    rule.update(parameters, gradient, state)
