"""Draws dropout's masks from a seed, so that a pass that runs again (checkpointing) sets the same numbers to 0.

Rule: a mask depends on its seed, its place and its shape alone, never on earlier draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.basics.arrays import Array


@dataclass(frozen=True, slots=True)
class Draw:
    """The random masks of one unit in one pass.

    Attributes
    ----------
    probability : float
        Probability that a number is set to 0; at least 0, below 1.
    seed : tuple of int
        What a mask depends on: run, step, rank, micro-batch, unit, place in the unit.

    Examples
    --------
    >>> once, again = (Draw(0.5, (7, 1)).mask((3, 4)) for _ in range(2))
    >>> bool((once == again).all())
    True
    """

    probability: float = 0.0
    seed: tuple[int, ...] = ()

    def at(self, place: int) -> Draw:
        """The draw for one place in the unit."""
        return replace(self, seed=(*self.seed, place))

    def mask(self, shape: tuple[int, ...]) -> Array | None:
        """Which numbers stay, as bool of one byte each; None where all of them do."""
        if not self.probability:
            return None
        return np.random.default_rng(self.seed).random(shape, np.float32) >= self.probability

    def factor(self, mask: Array, dtype: np.dtype[Any]) -> Array:
        """The factor of each number: 0, or 1 / (1 - probability), which preserves the mean."""
        grown: Array = mask * dtype.type(1.0 / (1.0 - self.probability))
        return grown


NO_DROPOUT = Draw()
