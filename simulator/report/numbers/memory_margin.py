"""How much GPU memory must a step leave free for memory that is not modelled?

2 GiB: the CUDA context and libraries take 0.5 to 2 GiB, and NCCL adds its buffers (docs/explanation/modelled.md).
"""

from __future__ import annotations

from typing import Final

from simulator.basics.units import GIB, format_memory

# Largest amount of memory of a process beside its tensors: CUDA context, libraries, NCCL buffers [B].
UNMODELLED: Final = 2 * GIB


def tight_memory(needed: float, capacity: float) -> str:
    """Return a warning that a step fits, but leaves less than 2 GiB free; "" if it leaves more or does not fit.

    Parameters
    ----------
    needed, capacity : float
        Most bytes of the step's tensors and fragments, and bytes of the GPU.

    Examples
    --------
    >>> tight_memory(79.5 * 2**30, 80 * 2**30)[:32]
    'only 512 MiB of 80 GiB stay free'
    >>> tight_memory(70 * 2**30, 80 * 2**30)
    ''
    """
    free = capacity - needed
    if not 0 <= free < UNMODELLED:
        return ""
    return (
        f"only {format_memory(free)} of {format_memory(capacity)} stay free: the CUDA context, libraries and NCCL "
        "buffers (not modelled) need 0.5 to 2 GiB more"
    )
