"""Adam on flat arrays: momentum, variance and step count of whatever part of the parameters a rank has.

Rule: element by element, so that a shard of a step is the step of a shard, to the bit.

References
----------
.. [1] Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.numerics.arithmetic import Array


@dataclass(frozen=True, slots=True)
class Adam:
    """Its numbers [1]_."""

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8


@dataclass(slots=True)
class AdamState:
    """Momentum and variance of some parameters, and how many steps they have seen."""

    momentum: Array
    variance: Array
    steps: int = 0


def fresh(parameters: Array) -> AdamState:
    """The state before the first step."""
    return AdamState(np.zeros_like(parameters), np.zeros_like(parameters))


def step(adam: Adam, parameters: Array, gradient: Array, state: AdamState) -> None:
    """Update parameters and state in place, in the parameters' dtype, in PyTorch's order of operations."""
    state.steps += 1
    kind = parameters.dtype.type
    state.momentum += (gradient - state.momentum) * kind(1.0 - adam.first)
    state.variance *= kind(adam.second)
    state.variance += kind(1.0 - adam.second) * gradient * gradient
    correction = np.sqrt(1.0 - adam.second**state.steps)
    rate = adam.rate / (1.0 - adam.first**state.steps)
    denominator = np.sqrt(state.variance) / kind(correction) + kind(adam.epsilon)
    parameters -= kind(rate) * state.momentum / denominator
