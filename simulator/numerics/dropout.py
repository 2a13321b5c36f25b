"""Which numbers dropout leaves out: masks from a seed, so that a pass that is run again leaves out the same.

Rule: a mask depends on its seed, its place and its shape alone, never on what was drawn before it.
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
        Of being left out; at least 0, below 1.
    seed : tuple of int
        What a mask depends on: run, step, rank, micro-batch, unit, place in it.

    Examples
    --------
    >>> once, again = (Draw(0.5, (7, 1)).mask((3, 4)) for _ in range(2))
    >>> bool((once == again).all())
    True
    """

    probability: float = 0.0
    seed: tuple[int, ...] = ()

    def at(self, place: int) -> Draw:
        """The masks of one place in the unit."""
        return replace(self, seed=(*self.seed, place))

    def mask(self, shape: tuple[int, ...]) -> Array | None:
        """What is kept: bool, a byte each; None where all is."""
        if not self.probability:
            return None
        return np.random.default_rng(self.seed).random(shape, np.float32) >= self.probability

    def factor(self, mask: Array, dtype: np.dtype[Any]) -> Array:
        """What numbers are multiplied by: 0, or what keeps the mean as it was."""
        grown: Array = mask * dtype.type(1.0 / (1.0 - self.probability))
        return grown


NO_DROPOUT = Draw()
