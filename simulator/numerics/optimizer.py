"""Optimizers (Adam, Lion, SGD): a step on a flat array of parameters, with moments and step count.

An optimizer treats each element separately, so updating only a shard gives the same bits as updating every parameter.

References
----------
.. [1] Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015.
.. [2] Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019.
.. [3] Chen et al., "Symbolic discovery of optimization algorithms", arXiv:2302.06675, algorithm 2: Lion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.learning_rate import RateSchedule

_STEADY = RateSchedule()


@dataclass(slots=True)
class OptimizerState:
    """An optimizer's moments for an array of parameters, and the number of steps taken."""

    moments: list[Array]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam, with moving averages of gradient and squared gradient [1]_.

    Attributes
    ----------
    rate, first, second, epsilon : float
        Learning rate, decay factors of both moving averages (betas), and eps.
    decay : float
        Weight decay, applied to the parameters and not to the gradient [2]_; 0 for none.
    schedule : RateSchedule
        Schedule of the learning rate.
    """

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    schedule: RateSchedule = _STEADY

    @property
    def moments(self) -> int:
        """Number of moments kept by Adam per parameter: 2."""
        return 2

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and moments in place by one Adam step with this gradient, in PyTorch's order of
        operations.
        """
        kind, (momentum, variance) = parameters.dtype.type, state.moments
        # `step` has counted this update already; schedules count from 0.
        scheduled = self.rate * self.schedule.factor(state.steps - 1)
        if self.decay:
            parameters *= kind(1.0 - scheduled * self.decay)
        momentum += (gradient - momentum) * kind(1.0 - self.first)
        variance *= kind(self.second)
        variance += kind(1.0 - self.second) * gradient * gradient
        # Both averages start at 0 and are too small at first; dividing by 1 - beta^t corrects the bias [1]_.
        correction = np.sqrt(1.0 - self.second**state.steps)
        rate = scheduled / (1.0 - self.first**state.steps)
        denominator = np.sqrt(variance) / kind(correction) + kind(self.epsilon)
        parameters -= kind(rate) * momentum / denominator


@dataclass(frozen=True, slots=True)
class Sgd:
    """Gradient descent as an optimizer; momentum adds earlier gradients with decreasing weight."""

    rate: float = 1e-3  # learning rate
    momentum: float = 0.0  # factor by which the sum of gradients shrinks in each step; 0 for no momentum
    decay: float = 0.0  # weight decay, added to the gradient like PyTorch's `weight_decay`
    schedule: RateSchedule = _STEADY  # schedule of the learning rate

    @property
    def moments(self) -> int:
        """Number of moments for each parameter: 1 with momentum, otherwise 0."""
        return 1 if self.momentum else 0

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and moments in place by one SGD step with this gradient, in PyTorch's order of
        operations.
        """
        kind = parameters.dtype.type
        if self.decay:
            gradient = gradient + kind(self.decay) * parameters
        if self.momentum:
            # PyTorch starts the sum with the whole first gradient; adding this gradient to zeros gives the same.
            state.moments[0] *= kind(self.momentum)
            state.moments[0] += gradient
            gradient = state.moments[0]
        parameters -= kind(self.rate * self.schedule.factor(state.steps - 1)) * gradient


@dataclass(frozen=True, slots=True)
class Lion:
    """Lion: every parameter moves by the learning rate, in the direction of a moving average's sign [3]_."""

    rate: float = 1e-3  # learning rate
    # `first`, `second`: Factors (betas) of the momentum in the average whose sign is taken, and in the next momentum.
    first: float = 0.9
    second: float = 0.99
    decay: float = 0.0  # weight decay, applied to the parameters and not to the gradient; 0 for none
    schedule: RateSchedule = _STEADY  # schedule of the learning rate

    @property
    def moments(self) -> int:
        """Number of moments kept by Lion per parameter: 1."""
        return 1

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and momentum in place by one Lion step with this gradient."""
        kind, (momentum,) = parameters.dtype.type, state.moments
        scheduled = self.rate * self.schedule.factor(state.steps - 1)
        if self.decay:
            parameters *= kind(1.0 - scheduled * self.decay)
        average = kind(self.first) * momentum + kind(1.0 - self.first) * gradient
        parameters -= kind(scheduled) * np.sign(average)
        momentum *= kind(self.second)
        momentum += kind(1.0 - self.second) * gradient


class Rule(Protocol):
    """An optimizer's step on arrays in which every element is treated separately."""

    @property
    def moments(self) -> int:
        """Number of moments per parameter."""

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters and moments in place by one step with this gradient."""


def fresh(rule: Rule, parameters: Array) -> OptimizerState:
    """Return an optimizer's state for an array of parameters before the first step: all moments 0."""
    return OptimizerState([np.zeros_like(parameters) for _ in range(rule.moments)])


def step(rule: Rule, parameters: Array, gradient: Array, state: OptimizerState) -> None:
    """Update parameters and state in place by one optimizer step with this gradient, in the parameters' dtype."""
    state.steps += 1
    rule.update(parameters, gradient, state)
