"""A parameter server's numbers: gradients added as they arrive, or applied one by one; parameters for everybody.

Rule: float addition is not associative, so the order of arrival is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array
from simulator.numerics.optimizer import OptimizerState, Rule, step


@dataclass(slots=True)
class Server:
    """Parameters of some units, and their optimizer.

    Attributes
    ----------
    parameters : array
        As wide as the master copy.
    state : OptimizerState
    version : int
        How often they have been updated.
    """

    parameters: Array
    state: OptimizerState
    version: int = 0

    def update(self, rule: Rule, gradient: Array) -> None:
        """Take a step down a gradient."""
        step(rule, self.parameters, gradient.astype(self.parameters.dtype), self.state)
        self.version += 1


def added(arrived: Sequence[tuple[slice, Array]], length: int, dtype: npt.DTypeLike) -> Array:
    """Add pieces of gradients in their order; the first of a place is taken as it is, what is missing is 0."""
    total = np.zeros(length, dtype)
    there = np.zeros(length, np.bool_)
    for place, piece in arrived:
        total[place] = np.where(there[place], total[place] + piece, piece)
        there[place] = True
    return total
