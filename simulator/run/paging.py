"""How many bytes of a paged optimizer's states are on the host? As many as the GPU's memory lacks room for.

The states of bitsandbytes' paged optimizers are in CUDA's managed memory. They stay on the GPU while everything fits.
Otherwise pages leave for the host until the rest fits: the bytes missing at the peak of a step. Before each update all
pages return, and leave again afterwards (step/update.py).

Example: a step reserves 30 GB on a GPU of 24 GB, and 8 GB of them are states: 6 GB of states are on the host. A step of
34 GB does not fit, because only 8 GB can leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from simulator.cluster.cluster import Cluster
from simulator.step.plan import groups_of
from simulator.step.process_memory import process_memory
from simulator.step.spec import TrainingStep

# Segments of the allocator hold other blocks if less is allocated; repeat until the rest fits.
_ROUNDS: Final = 5


def with_pages(
    cluster: Cluster, step: TrainingStep, reserved: Callable[[TrainingStep], Sequence[int]], spare: float = 1.0
) -> TrainingStep:
    """Return a step whose paged optimizer has as many bytes on the host as the GPU lacks; other steps unchanged.

    Parameters
    ----------
    reserved : function (step) -> bytes
        Peak of the memory reserved by a rank of each pipeline stage [B].
    spare : float
        Factor on reserved bytes, for the error of estimated times.
    """
    if not step.optimizer.paged or step.paged_out:
        return step
    beside = process_memory(cluster.gpus[0], step, groups_of(step, cluster.world_size)).nbytes
    capacity = min(gpu.hbm_bytes for gpu in cluster.gpus) - beside
    paged = step
    for _ in range(_ROUNDS):
        missing = [max(0, int(spare * nbytes) - capacity) for nbytes in reserved(paged)]
        if not any(missing):
            break
        before = paged.paged_out or (0,) * len(missing)
        paged = replace(paged, paged_out=tuple(a + b for a, b in zip(before, missing, strict=True)))
    return paged
