"""What a rank holds while it trains, and what a step of training tells.

Rule: records; who fills them is somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.numerics.arithmetic import Array
from simulator.numerics.optimizer import AdamState

Parameters = dict[str, Array]
Spoil = Callable[[int, str, Parameters], None]


@dataclass(frozen=True, slots=True)
class Told:
    """What a step of real training tells.

    Attributes
    ----------
    loss : float
        Mean over ranks and micro-batches.
    norm : float
        Of the gradient, unscaled; infinite or not a number after an overflow.
    scale : float
        Of the loss, in this step.
    skipped : bool
    """

    loss: float
    norm: float
    scale: float
    skipped: bool


@dataclass(slots=True, eq=False)
class Rank:
    """What one rank holds.

    Attributes
    ----------
    working : dict of unit to parameters
        As they are computed with; a sharded step has only what is gathered.
    parts : dict of units to array
        Its part of the parameters that it updates, by what is summed together: as wide as the master copy.
    states : dict of units or unit to AdamState
    summed : dict of units to array
        Gradients that all ranks have added up: whole, or this rank's part.
    scattered : dict of units to array
        This rank's part of gradients that its own group has added up, where there are several copies of the states.
    """

    working: dict[str, Parameters]
    parts: dict[tuple[str, ...], Array] = field(default_factory=dict)
    states: dict[tuple[str, ...], AdamState] = field(default_factory=dict)
    summed: dict[tuple[str, ...], Array] = field(default_factory=dict)
    scattered: dict[tuple[str, ...], Array] = field(default_factory=dict)
    gradients: dict[str, Parameters] = field(default_factory=dict)
    caches: dict[tuple[str, int], Any] = field(default_factory=dict)
    inputs: dict[tuple[str, int], Array] = field(default_factory=dict)
    flowing: dict[int, Array] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    overflowed: bool = False


def nbytes_of(kept: Any) -> int:
    """Bytes of all arrays in what is kept, however it is nested [B]."""
    return kept.nbytes if isinstance(kept, np.ndarray) else sum(nbytes_of(part) for part in kept)
