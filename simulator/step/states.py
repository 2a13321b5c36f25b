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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.basics.dtypes import find
from simulator.step.spec import State, TrainingStep, Updater


class Part(NamedTuple):
    """Trained parameters on a rank that are sharded over the same ranks.

    Attributes
    ----------
    elements, own : int
        Number of parameters before sharding, and in the rank's shard.
    matrices, own_matrices : int
        Those among them in matrices that have an update rule of their own (`Optimizer.of_matrices`).
    """

    elements: int
    own: int
    matrices: int = 0
    own_matrices: int = 0


@dataclass(frozen=True, slots=True)
class States:
    """A rank's model states (parameters, gradients, optimizer) in bytes, and their update's traffic.

    Attributes
    ----------
    parameters, optimizer : int
        Bytes held permanently on the GPU; the master copy counts as optimizer [B].
    update_read, update_written : float
        Memory traffic of a fused update, on GPU or host; matrices with a rule of their own aside [B].
    averaged, applied : int
        Elements of matrices with a rule of their own, whose gradients this rank averages, and to which this rank
        applies the result.
    """

    parameters: int
    optimizer: int
    update_read: float
    update_written: float
    updated: int  # parameters updated by this rank
    copied: int = 0  # part of `update_written` for working copies beside master copies [B]
    on_host: int = 0  # bytes held permanently in host memory [B]
    averaged: int = 0
    applied: int = 0
    # Bytes of the optimizer's states without the master copy, which a paged optimizer may move to the host [B]
    pageable: int = 0
    paged: int = 0  # part of `pageable` that is on the host between updates [B]

    def paged_out(self, nbytes: int) -> States:
        """Return the states with up to `nbytes` of their pageable bytes on the host instead of the GPU [B]."""
        moved = min(nbytes, self.pageable)
        return replace(self, optimizer=self.optimizer - moved, on_host=self.on_host + moved, paged=moved)


def shard(elements: int, ranks: int) -> int:
    """Return the number of elements in a rank's shard of `elements` elements over `ranks` ranks, rounded up.

    >>> shard(6, 3), shard(7, 3), shard(1, 4)
    (2, 3, 1)
    """
    return -(-elements // ranks)


def even_part(elements: int, ranks: int, matrices: int = 0) -> Part:
    """Return trained parameters, some of them in matrices, sharded evenly over ranks.

    >>> even_part(7, 3)
    Part(elements=7, own=3, matrices=0, own_matrices=0)
    """
    return Part(elements, shard(elements, ranks), matrices, shard(matrices, ranks))


def states(
    step: TrainingStep,
    shards: frozenset[State],
    updater: Updater,
    parts: Sequence[Part],
    resident: int = 0,
    frozen: Sequence[tuple[int, int]] = (),
) -> States:
    """Return the bytes of a rank's model states and the traffic of their update, under the given sharding [1]_.

    With offloading [2]_, and for a parameter server's workers, the GPU holds only working parameters. If the host keeps
    the states of a fraction of the parameters, the GPU holds the other states; frameworks that return master copies
    (`MemoryConstants.keeps_master`) hold all of these on the GPU.

    Parameters
    ----------
    resident : int
        Parameters that stay whole on every rank.
    frozen : sequence of (int, int)
        Numbers of frozen parameters, each with the number of ranks over which they may be sharded: held in the
        parameters' dtype, without states.
    """
    precision, sharded, optimizer = step.precision, State.PARAMETERS in shards, step.optimizer
    elements, share = sum(part.elements for part in parts), sum(part.own for part in parts)
    on_gpu = share if sharded else elements
    updated = {Updater.EVERY_RANK: elements, Updater.OWNERS: share, Updater.SERVERS: 0}[updater]
    p, g = find(step.trained_dtype).itemsize, find(precision.grads).itemsize
    master = 0 if precision.master is None else find(precision.master).itemsize
    averaged, applied, in_matrices = 0, 0, 0.0
    if optimizer.of_matrices is not None and updater is not Updater.SERVERS:
        # Owners of whole matrices keep their states, whoever applies the result.
        owned = updater is Updater.OWNERS or optimizer.owns_whole_tensors
        averaged = sum(part.own_matrices if owned else part.matrices for part in parts)
        applied = sum(part.own_matrices if updater is Updater.OWNERS else part.matrices for part in parts)
        in_matrices = averaged * optimizer.of_matrices.states * optimizer.state_itemsize
    rest, numbers = updated - applied, optimizer.states * optimizer.state_itemsize
    hosted = step.keys.offload.fraction if step.keys.offload.states else 0.0
    # Share of the master copy that lies on the GPU
    of_master = 1.0 if step.framework.memory.keeps_master else 1.0 - hosted
    # A shard of parameters is itself the master copy and is cast when gathered, as far as the master copy is not on the
    # host.
    is_master = sharded and master > 0 and of_master > 0
    fixed = sum(shard(count, ranks) if sharded else count for count, ranks in frozen)
    each = of_master * master + (1.0 - of_master) * p if is_master else p
    parameters = math.ceil(on_gpu * each) + resident * p + fixed * find(precision.params).itemsize
    pageable = math.ceil(rest * numbers + in_matrices)
    moved = math.ceil(hosted * pageable)
    state_bytes = pageable - moved + math.ceil(updated * (0.0 if is_master else of_master * master))
    read = rest * (g + numbers + (master or p))
    written = rest * (numbers + master + (0 if is_master else p))
    copied = updated * p if master and not is_master else 0
    if not hosted:
        return States(parameters, state_bytes, read, written, updated, copied, 0, averaged, applied, pageable)
    # Without a master copy, a host that updates everything writes its own copy besides what returns.
    copy = 0 if master or step.splits_update else updated * p
    # The host has a copy of each parameter that it updates.
    on_host = moved + math.ceil(hosted * updated * ((master or p) + g))
    return States(parameters, state_bytes, read, written + copy, updated, copied, on_host)
