"""What a rank holds while it trains, and what comes of a step of training.

Rule: records; who fills them is somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.optimizer import OptimizerState
from simulator.numerics.scaling import Scale

Parameters = dict[str, Array]
Units = tuple[str, ...]
Spoil = Callable[[int, str, Parameters, int], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one step of real training.

    Attributes
    ----------
    loss : float
        Mean over ranks and micro-batches.
    norm : float
        Of the gradient, unscaled and before it is clipped; infinite or not a number after an overflow.
    scale : float
        Of the loss, in this step; on the first rank, where ranks keep one each.
    skipped : bool
        Whether any rank took no step.
    staleness : float
        Updates by others between a gradient's parameters and its own update, on average; with servers that do not wait.
    ended : float
        When it was over, from the start of what was played [s].
    by_rank : tuple of float
        Each rank's own loss, mean over its micro-batches; not a number for a worker that was at none in this step.
    updates : int
        Of the optimizer, up to the end of this step; what is skipped does not count.
    """

    loss: float
    norm: float
    scale: float
    skipped: bool
    staleness: float = 0.0
    ended: float = 0.0
    by_rank: tuple[float, ...] = ()
    updates: int = 0


@dataclass(slots=True, eq=False)
class Rank:
    """What one rank holds.

    Attributes
    ----------
    number : int
    scale : Scale
        Of its loss; the same on all ranks, unless they do not tell each other of overflows.
    working : dict of unit to parameters
        As they are computed with; a sharded step has only what is gathered.
    parts : dict of units to array
        Its part of the parameters that it updates, by what is summed together: as wide as the master copy.
    states : dict of units to OptimizerState
    summed : dict of units to array
        Gradients that all ranks have added up: whole, or this rank's part.
    scattered : dict of (units, micro-batch) to array
        This rank's part of gradients that its own group has added up, where there are several copies of the states;
        one sum for all micro-batches where copies are summed once.
    gradients : dict of (unit, micro-batch) to gradients
        Its own, not sent yet; one sum for all micro-batches where they are sent together.
    tied : dict of (micro-batch, name) to array
        Gradients of parameters of another unit, on their way to it.
    caches : dict of (unit, micro-batch) to what is kept for its backward pass
    rising, falling : dict of (unit, micro-batch) to array
        Inputs of units on the way up, gradients of their outputs on the way down.
    left : dict of (unit, micro-batch) to arrays by name
        What the first half of a backward pass leaves for the second.
    squares : float
        Of the gradient; its part's at first, then everybody's.
    rest : float
        What its part's squares leave over beyond float64, where parameters are that.
    overflowed : bool
    """

    number: int
    scale: Scale
    working: dict[str, Parameters]
    parts: dict[Units, Array] = field(default_factory=dict)
    states: dict[Units, OptimizerState] = field(default_factory=dict)
    summed: dict[Units, Array] = field(default_factory=dict)
    scattered: dict[tuple[Units, int], Array] = field(default_factory=dict)
    gradients: dict[tuple[str, int], Parameters] = field(default_factory=dict)
    tied: dict[tuple[int, str], Array] = field(default_factory=dict)
    caches: dict[tuple[str, int], Any] = field(default_factory=dict)
    rising: dict[tuple[str, int], Array] = field(default_factory=dict)
    falling: dict[tuple[str, int], Array] = field(default_factory=dict)
    left: dict[tuple[str, int], dict[str, Array]] = field(default_factory=dict)
    squares: float = 0.0
    rest: float = 0.0
    overflowed: bool = False

    def cached_bytes(self) -> int:
        """Bytes that it keeps for its backward passes [B]."""
        return nbytes_of(self.caches)


def nbytes_of(kept: Any) -> int:
    """Bytes of all arrays in what is kept, however it is nested [B]."""
    if kept is None:
        return 0
    if isinstance(kept, np.ndarray):
        return kept.nbytes
    return sum(map(nbytes_of, kept.values() if isinstance(kept, dict) else kept))
