"""Dropout masks drawn from a seed: a recomputed pass sets the same numbers to 0.

A mask depends on its seed, its place and its shape alone, never on earlier draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.basics.arrays import Array


@dataclass(frozen=True, slots=True)
class Draw:
    """The random dropout masks of a unit (embedding, layer or head) in a single pass.

    >>> once, again = (Draw(0.5, (7, 1)).mask((3, 4)) for _ in range(2))
    >>> bool((once == again).all())
    True
    """

    probability: float = 0.0  # probability of setting a number to 0; at least 0, below 1
    seed: tuple[int, ...] = ()  # numbers that determine a mask: run, step, rank, micro-batch, unit, place in the unit

    def at(self, place: int) -> Draw:
        """Return the dropout draw for one of several masks in the unit; `place` is the mask's number."""
        return replace(self, seed=(*self.seed, place))

    def mask(self, shape: tuple[int, ...]) -> Array | None:
        """Return a bool mask of this shape that tells the numbers to keep (1 byte each), or None if dropout is off."""
        if not self.probability:
            return None
        # A new generator per mask: state carried over from earlier masks would make a recompute draw other numbers.
        return np.random.default_rng(self.seed).random(shape, np.float32) >= self.probability

    def factor(self, mask: Array, dtype: np.dtype[Any]) -> Array:
        """Return the factor of each number under a dropout mask: 0, or 1 / (1 - probability), which preserves
        the mean.
        """
        grown: Array = mask * dtype.type(1.0 / (1.0 - self.probability))
        return grown


NO_DROPOUT = Draw()
