"""Bytes of model states on one rank: parameters, gradients, optimizer, by sharding.

Rule: what is held between steps, and what gradients and the optimizer's pass over them cost; no time.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 3.
.. [2] Ren et al., "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.basics.dtypes import find
from simulator.step.spec import State, TrainingStep, Updater

STATE_BYTES = 4  # optimizer states are float32 [B]


@dataclass(frozen=True, slots=True)
class States:
    """Model states of one rank.

    Attributes
    ----------
    parameters, optimizer : int
        Held all the time on the GPU [B]; the optimizer's with its master copy.
    update_read, update_written : float
        Memory traffic of the optimizer's step, on whichever side it runs [B].
    updated : int
        Parameters that this rank updates.
    copied : int
        Of `update_written`, the working copies beside master copies [B].
    on_host : int
        Held all the time in the host's memory [B].
    """

    parameters: int
    optimizer: int
    update_read: float
    update_written: float
    updated: int
    copied: int = 0
    on_host: int = 0


def shard(elements: int, ranks: int) -> int:
    """Elements of a rank's part, padded.

    Examples
    --------
    >>> shard(6, 3), shard(7, 3), shard(1, 4)
    (2, 3, 1)
    """
    return -(-elements // ranks)


def states(
    step: TrainingStep,
    shards: frozenset[State],
    updater: Updater,
    parts: Sequence[tuple[int, int]],
    resident: int = 0,
) -> States:
    """States of a rank that computes with so many parameters [1]_, of which `resident` stay whole on every rank.

    `parts` are parameters and the ranks over which they may be sharded: experts have ranks of their own. With
    offloading [2]_ the GPU keeps working parameters only. A parameter server's workers keep these too.
    """
    precision, sharded = step.precision, State.PARAMETERS in shards
    elements, own = sum(count for count, _ in parts), sum(shard(count, ranks) for count, ranks in parts)
    on_gpu = own if sharded else elements
    updated = {Updater.EVERY_RANK: elements, Updater.OWNERS: own, Updater.SERVERS: 0}[updater]
    p, g = find(precision.params).itemsize, find(precision.grads).itemsize
    master = 0 if precision.master is None else find(precision.master).itemsize
    numbers = step.optimizer.states * STATE_BYTES
    away = step.offload is not None
    # Where parameters are sharded the shard is the master copy, and is cast when it is gathered; not where that lies
    # elsewhere.
    alone = sharded and master > 0 and not away
    parameters = on_gpu * (master if alone else p) + resident * p
    kept = updated * (numbers + (0 if alone else master))
    read = updated * (g + numbers + (master or p))
    written = updated * (numbers + master + (0 if alone else p))
    copied = updated * p if master and not alone else 0
    if not away:
        return States(parameters, kept, read, written, updated, copied)
    copy = updated * (0 if master else p)
    return States(parameters, 0, read, written + copy, updated, copied, kept + copy + updated * g)
