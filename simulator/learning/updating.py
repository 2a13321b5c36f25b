"""The optimizer's step on one rank: unscale, look for overflows, take the norm, clip, update.

Rule: in this order, as PyTorch documents it for GradScaler; every rank on its own part, and what all must know travels.

References
----------
.. [1] Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks", ICML 2013: clipping.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.learning.exchange import collect, own_slice, spread
from simulator.learning.setting import Setting
from simulator.learning.state import Rank
from simulator.numerics import compensated
from simulator.numerics.optimizer import fresh, step
from simulator.numerics.scaling import unscaled

# PyTorch adds as much to a norm before it divides by it (torch/nn/utils/clip_grad.py).
_GUARD: Final = 1e-6


def check(setting: Setting, rank: Rank) -> None:
    """Divide by the loss's scale, and see whether anything is no finite number."""
    collect(setting, rank)
    for units, gradient in rank.summed.items():
        rank.summed[units] = unscaled(gradient, rank.scale.value, rank.parts[units].dtype)
    rank.overflowed = any(not np.isfinite(part).all() for part in rank.summed.values())


def norm(setting: Setting, rank: Rank) -> None:
    """Add up the squares of this rank's part, one unit after the other; for float64 in no order that shows."""
    collect(setting, rank)
    parts = _counted(setting, rank)
    if setting.plan.step.precision.updated == "float64":
        rank.squares, rank.rest = compensated.squares(parts)
    else:
        rank.squares = squares(*parts)


def _counted(setting: Setting, rank: Rank) -> list[Array]:
    """Its part of the gradient, without what another rank of the same copy of the model has too."""
    if setting.holders == setting.world_size and setting.plan.step.parallelism.experts.ranks == 1:
        return list(rank.summed.values())
    return [part[own_slice(setting, rank, units)] for units, part in rank.summed.items()]


def squares(*parts: Array) -> float:
    """Sum of squares in float64, part after part."""
    return float(sum(float((part.astype(np.float64) ** 2).sum()) for part in parts))


def update(setting: Setting, rank: Rank) -> None:
    """Step with this rank's part, unless there was an overflow."""
    if rank.overflowed:
        return
    factor = clipped(setting.plan.step.clip_norm, rank.squares)
    for units, gradient in rank.summed.items():
        part = rank.parts[units]
        if units not in rank.states:
            rank.states[units] = fresh(setting.rule, part)
        wide = gradient.astype(part.dtype)
        if factor is not None:
            wide *= part.dtype.type(factor)
        step(setting.rule, part, wide, rank.states[units])
        if setting.cut_of(units) == 1:
            spread(setting, rank, units, part)


def clipped(most: float | None, squared: float) -> float | None:
    """What a gradient is multiplied by so that its norm is at most so much; None where it stays [1]_.

    Examples
    --------
    >>> clipped(1.0, 0.25), round(clipped(1.0, 4.0), 5)
    (None, 0.5)
    """
    if most is None:
        return None
    factor = most / (float(np.sqrt(squared)) + _GUARD)
    return factor if factor < 1.0 else None
