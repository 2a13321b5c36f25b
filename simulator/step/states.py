"""How many bytes of parameters and optimizer states does a rank hold, depending on the sharding?

The module also counts the HBM traffic of the optimizer's update, but no time.

Example: Adam, bfloat16 with a float32 master copy, N ranks. An unsharded rank holds 2 bytes of parameters and 4 + 8
bytes of master copy and states per parameter. ZeRO-1 holds 2 + 12 / N, ZeRO-3 holds 12 / N, because its shard is the
master copy.

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


@dataclass(frozen=True, slots=True)
class States:
    """A rank's model states (parameters, gradients, optimizer) in bytes, and their update's traffic.

    Attributes
    ----------
    parameters, optimizer : int
        Bytes held permanently on the GPU; the master copy counts as optimizer [B].
    update_read, update_written : float
        Memory traffic of the optimizer's update, on GPU or host [B].
    updated : int
        Parameters updated by this rank.
    copied : int
        Part of `update_written` for working copies beside master copies [B].
    on_host : int
        Bytes held permanently in host memory [B].
    """

    parameters: int
    optimizer: int
    update_read: float
    update_written: float
    updated: int
    copied: int = 0
    on_host: int = 0


def shard(elements: int, ranks: int) -> int:
    """Return the number of elements in a rank's shard of `elements` elements over `ranks` ranks, rounded up.

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
    frozen: Sequence[tuple[int, int]] = (),
) -> States:
    """Return the bytes of a rank's model states and the traffic of their update, under the given sharding [1]_.

    With offloading [2]_, and for a parameter server's workers, the GPU holds only working parameters.

    Parameters
    ----------
    parts : sequence of (int, int)
        Numbers of trained parameters, each with the number of ranks over which they may be sharded; experts have ranks
        of their own.
    resident : int
        Parameters that stay whole on every rank.
    frozen : sequence of (int, int)
        Numbers of frozen parameters, in the same form: held in the parameters' dtype, without states.
    """
    precision, sharded = step.precision, State.PARAMETERS in shards
    elements, own = sum(count for count, _ in parts), sum(shard(count, ranks) for count, ranks in parts)
    on_gpu = own if sharded else elements
    updated = {Updater.EVERY_RANK: elements, Updater.OWNERS: own, Updater.SERVERS: 0}[updater]
    p, g = find(step.trained_dtype).itemsize, find(precision.grads).itemsize
    master = 0 if precision.master is None else find(precision.master).itemsize
    numbers = step.optimizer.states * step.optimizer.state_itemsize
    away = step.offload is not None
    # A shard of parameters is itself the master copy and is cast when gathered, unless the master copy lies on the
    # host.
    alone = sharded and master > 0 and not away
    held = sum(shard(count, ranks) if sharded else count for count, ranks in frozen)
    parameters = on_gpu * (master if alone else p) + resident * p + held * find(precision.params).itemsize
    kept = updated * (numbers + (0 if alone else master))
    read = updated * (g + numbers + (master or p))
    written = updated * (numbers + master + (0 if alone else p))
    copied = updated * p if master and not alone else 0
    if not away:
        return States(parameters, kept, read, written, updated, copied)
    # Without a master copy, the host needs its own copy of the working parameters.
    copy = updated * (0 if master else p)
    return States(parameters, 0, read, written + copy, updated, copied, kept + copy + updated * g)
