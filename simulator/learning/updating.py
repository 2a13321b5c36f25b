"""The optimizer's step on a rank: unscale, look for overflows, take the norm, clip, update.

This is PyTorch's documented order for GradScaler. Every rank works on its own shard; overflow flags and norms are
exchanged by collectives.

References
----------
.. [1] Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks", ICML 2013: clipping.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.learning.exchange import collect, own_slice, spread
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Rank, Units
from simulator.numerics import compensated
from simulator.numerics.loss_scaling import unscaled
from simulator.numerics.optimizer import fresh, step

# PyTorch adds this number to a norm before dividing (torch/nn/utils/clip_grad.py).
_GUARD: Final = 1e-6


def check(setting: TrainingContext, rank: Rank) -> None:
    """Divide the rank's gradients by the loss scale, and record on the rank whether any element is infinite or NaN."""
    collect(setting, rank)
    for units, gradient in rank.summed.items():
        rank.summed[units] = unscaled(gradient, rank.scale.value, rank.parts[units].dtype)
    rank.overflowed = any(not np.isfinite(part).all() for part in rank.summed.values())


def norm(setting: TrainingContext, rank: Rank) -> None:
    """Store on the rank the sum of squares over the gradient shard; for float64 independently of the sharding."""
    collect(setting, rank)
    parts = _counted(setting, rank)
    # A clipped float64 step must have the same bits under every sharding, so the sum must not depend on its order.
    if setting.plan.step.precision.updated == "float64":
        rank.squares, rank.rest = compensated.squares(parts)
    else:
        rank.squares = squares(*parts)


def _counted(setting: TrainingContext, rank: Rank) -> list[Array]:
    """Return the rank's gradients by bucket, without elements that another rank of the copy counts in the norm."""
    # Only data parallelism: every shard counts as a whole, without masks.
    if setting.holders == setting.world_size and setting.plan.step.parallelism.ep == 1:
        return list(rank.summed.values())
    return [part[own_slice(setting, rank, units)] for units, part in rank.summed.items()]


def squares(*parts: Array) -> float:
    """Return the sum of squared elements over the arrays, added in float64, array after array."""
    return float(sum(float((part.astype(np.float64) ** 2).sum()) for part in parts))


def update(setting: TrainingContext, rank: Rank) -> None:
    """Update the rank's parameter shards by one optimizer step with clipped gradients, matrices with a rule of their
    own aside; do nothing if gradients overflowed.
    """
    if rank.overflowed:
        return
    for units in rank.summed:
        part, gradient = rank.parts[units], clipped_gradient(setting, rank, units)
        others = setting.layout(rank.number, units).others(setting.part_of(rank.number, units))
        if units not in rank.states:
            rank.states[units] = fresh(setting.rule, part[others])
        step(setting.rule, part[others], gradient[others], rank.states[units])
        # Unsharded: the working parameters follow at once. Sharded parameters are gathered by a collective.
        if setting.cut_of(units) == 1:
            spread(setting, rank, units, part)


def clipped_gradient(setting: TrainingContext, rank: Rank, units: Units) -> Array:
    """Return the rank's summed gradient of some units in the dtype of the update, brought down to the norm allowed."""
    dtype = rank.parts[units].dtype
    wide, factor = rank.summed[units].astype(dtype), clipped(setting.plan.step.keys.clip_norm, rank.squares)
    if factor is not None:
        wide *= dtype.type(factor)
    return wide


def clipped(most: float | None, squared: float) -> float | None:
    """Return the factor that brings a gradient with this sum of squares down to the norm `most` [1]_; None if no
    clipping is needed.

    >>> clipped(1.0, 0.25), round(clipped(1.0, 4.0), 5)
    (None, 0.5)
    """
    if most is None:
        return None
    factor = most / (float(np.sqrt(squared)) + _GUARD)
    return factor if factor < 1.0 else None
