"""A parameter server's numbers: gradients added as they arrive, one update, parameters for everybody.

Rule: float addition is not associative, so the order of arrival is part of the result. Like a till: what is paid in
first is counted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.numerics.arithmetic import Array
from simulator.numerics.optimizer import Adam, AdamState, fresh, step


@dataclass(slots=True)
class Server:
    """Parameters of some units, their optimizer, and what has arrived.

    Attributes
    ----------
    parameters : array
        As wide as the master copy.
    state : AdamState
    sum : array or None
        Of gradients since the last update.
    squares : float
        Of the last gradient that was applied, added up.
    """

    parameters: Array
    state: AdamState = field(init=False)
    sum: Array | None = None
    squares: float = 0.0

    def __post_init__(self) -> None:
        self.state = fresh(self.parameters)

    def add(self, arrived: Sequence[tuple[slice, Array]]) -> None:
        """Add pieces of gradients in their order; the first of a place is taken as it is."""
        total = np.zeros_like(arrived[0][1], shape=len(self.parameters))
        there = np.zeros(len(self.parameters), np.bool_)
        for place, piece in arrived:
            total[place] = np.where(there[place], total[place] + piece, piece)
            there[place] = True
        self.sum = total

    def update(self, adam: Adam) -> Array:
        """Take the sum as a gradient; the parameters after that.

        Raises
        ------
        ValueError
            Nothing has arrived since the last update.
        """
        if self.sum is None:
            raise ValueError("a server updates before gradients have arrived")
        self.squares = float((self.sum.astype(np.float64) ** 2).sum())
        step(adam, self.parameters, self.sum.astype(self.parameters.dtype), self.state)
        self.sum = None
        return self.parameters
