"""Bytes of model states on one rank: parameters, gradients, optimizer, by sharding.

Rule: what is held between steps, and what gradients and the optimizer's pass over them cost; no time.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.dtypes import find
from simulator.training.spec import TrainingStep

_STATE = 4  # optimizer states are float32 [B]


@dataclass(frozen=True, slots=True)
class States:
    """Model states of one rank.

    Attributes
    ----------
    parameters, optimizer : int
        Held all the time [B]; the optimizer's with its master copy.
    update_read, update_written : float
        HBM traffic of the optimizer's step [B].
    updated : int
        Parameters that this rank updates.
    """

    parameters: int
    optimizer: int
    update_read: float
    update_written: float
    updated: int


def shard(elements: int, ranks: int) -> int:
    """Elements of a rank's part, padded."""
    return -(-elements // ranks)


def states(step: TrainingStep, elements: int, ranks: int) -> States:
    """States of a rank of a model with so many parameters [1]_."""
    strategy, precision = step.sharding.strategy, step.precision
    own = shard(elements, ranks)
    held = own if strategy == "zero3" else elements
    updated = elements if strategy == "ddp" else own
    p, g = find(precision.params).itemsize, find(precision.grads).itemsize
    master = 0 if precision.master is None else find(precision.master).itemsize
    numbers = step.optimizer.states * _STATE
    # In zero3 the parameters' shard is the master copy, and is cast when it is gathered.
    alone = strategy == "zero3" and master > 0
    parameters = held * (master if alone else p)
    read = updated * (g + numbers + (master or p))
    written = updated * (numbers + master + (0 if alone else p))
    return States(parameters, updated * (numbers + (0 if alone else master)), read, written, updated)
