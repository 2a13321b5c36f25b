"""A parameter server's arithmetic: it adds gradients in their order of arrival, or applies each one by itself.

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
        In the master copy's dtype.
    state : OptimizerState
    version : int
        Number of updates so far.
    """

    parameters: Array
    state: OptimizerState
    version: int = 0

    def update(self, rule: Rule, gradient: Array) -> None:
        """Update the parameters by one optimizer step with this gradient."""
        step(rule, self.parameters, gradient.astype(self.parameters.dtype), self.state)
        self.version += 1


def added(arrived: Sequence[tuple[slice, Array]], length: int, dtype: npt.DTypeLike) -> Array:
    """Add pieces of gradients in their order; the first one at a place is copied, places without any are 0."""
    total = np.zeros(length, dtype)
    there = np.zeros(length, np.bool_)
    for place, piece in arrived:
        total[place] = np.where(there[place], total[place] + piece, piece)
        there[place] = True
    return total
