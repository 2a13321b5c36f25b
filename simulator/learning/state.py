"""State of a rank while it trains, and the result of a step: records, filled by other modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.loss_scaling import Scale
from simulator.numerics.optimizer import OptimizerState

Parameters = dict[str, Array]
Units = tuple[str, ...]
Spoil = Callable[[int, str, Parameters, int], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step of real training."""

    loss: float  # mean over ranks and micro-batches
    norm: float  # norm of the gradient, unscaled and before clipping; infinite or NaN after an overflow
    scale: float  # loss scale in this step, on the first rank
    skipped: bool  # True if any rank skipped the update
    # Asynchronous servers: mean number of updates between reading a gradient's parameters and its own update
    staleness: float = 0.0
    ended: float = 0.0  # end of the step, from the start of the simulation [s]
    # Each rank's loss, mean over its micro-batches; NaN for a worker without a pass in this step
    by_rank: tuple[float, ...] = ()
    updates: int = 0  # updates by the optimizer up to the end of this step, without skipped steps


@dataclass(slots=True, eq=False)
class Rank:
    """State of a rank while it trains: parameters, gradients, optimizer states, saved tensors.

    Attributes
    ----------
    number : int
        The rank's number.
    scale : Scale
        Its loss scale; equal on all ranks unless ranks do not exchange overflows.
    working : dict of unit to parameters
        Parameters to compute with; under ZeRO-3 only gathered ones.
    parts : dict of units to array
        Its shard of the parameters by bucket, in the master weights' dtype.
    states : dict of units to OptimizerState
        Optimizer state of each shard.
    summed : dict of units to array
        Gradients summed over ranks: whole, or this rank's shard.
    scattered : dict of (units, micro-batch) to array
        Hybrid sharding: this rank's shard of gradients summed over its own copy's ranks; a single sum for all
        micro-batches if copies are summed once.
    gradients : dict of (unit, micro-batch) to gradients
        Its own gradients, not sent yet; a single sum for all micro-batches if they are sent together.
    tied : dict of (micro-batch, name) to array
        Gradients of another unit's parameters, to be picked up by that unit.
    caches : dict of (unit, micro-batch) to saved tensors
        Saved tensors for backward passes.
    rising, falling : dict of (unit, micro-batch) to array
        Inputs of units in the forward pass; gradients of units' outputs in the backward pass.
    left : dict of (unit, micro-batch) to arrays by name
        Arrays that the input half of a backward pass leaves for the weight half.
    momenta : dict of unit to array
        Muon: momentum of this rank's share of the unit's matrices.
    averages : dict of unit to array
        Muon: averaged gradients of the unit's matrices; this rank's share until shares are gathered.
    owned : dict of units to array
        Muon: packed whole matrices among these units that this rank owns: averages, then orthogonal updates.
    orthogonal : dict of unit to array
        Muon: orthogonal updates of this rank's share of the unit's matrices.
    squares : float
        Sum of squares of the gradient: first of its shard, after the exchange of the whole gradient.
    rest : float
        Remainder of its shard's squares beyond float64 (float64 parameters only).
    overflowed : bool
        True if its gradients overflowed, or after the exchange any rank's.
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
    momenta: dict[str, Array] = field(default_factory=dict)
    averages: dict[str, Array] = field(default_factory=dict)
    owned: dict[Units, Array] = field(default_factory=dict)
    orthogonal: dict[str, Array] = field(default_factory=dict)
    squares: float = 0.0
    rest: float = 0.0
    overflowed: bool = False

    def cached_bytes(self) -> int:
        """Return the bytes saved by the rank for backward passes [B]."""
        return nbytes_of(self.caches)


def nbytes_of(tensors: Any) -> int:
    """Return the total bytes of arrays nested in dicts and sequences [B].

    >>> nbytes_of({"m": np.zeros(4), "rest": [np.zeros(2, np.float32), None]})
    40
    """
    if tensors is None:
        return 0
    if isinstance(tensors, np.ndarray):
        return tensors.nbytes
    return sum(map(nbytes_of, tensors.values() if isinstance(tensors, dict) else tensors))
