"""A parameter server's arithmetic: sums gradients in their order of arrival, or applies each gradient separately.

Float addition is not associative, so the order of arrival is part of the result.
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
    """A parameter server: parameters of several units, and their optimizer state."""

    parameters: Array  # in the master weights' dtype
    state: OptimizerState
    version: int = 0  # number of updates so far

    def update(self, rule: Rule, gradient: Array) -> None:
        """Apply a single optimizer step with this gradient to the server's parameters, and count the update."""
        step(rule, self.parameters, gradient.astype(self.parameters.dtype), self.state)
        self.version += 1


def added(arrived: Sequence[tuple[slice, Array]], length: int, dtype: npt.DTypeLike) -> Array:
    """Return the sum of pieces of gradients, added in arrival order; places without any piece are 0.

    Parameters
    ----------
    arrived : sequence of (slice, array)
        Place and values of each piece, in the order of arrival.
    length : int
        Elements of the sum.
    dtype : dtype
        Dtype of the sum.
    """
    total = np.zeros(length, dtype)
    filled = np.zeros(length, np.bool_)
    for place, piece in arrived:
        # The first piece at a place is copied: 0 + (-0.0) would lose the sign of a negative zero.
        total[place] = np.where(filled[place], total[place] + piece, piece)
        filled[place] = True
    return total
