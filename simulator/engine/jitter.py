"""Jitter: the random factors on the times of kernels and the latencies of transfers.

Rule: seeded by who and what (noise.py), so that both engines draw the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats
from simulator.engine.noise import counted, factors
from simulator.records.operation import Collective

# Servers and switches draw their factors under numbers that no rank has.
_BEHIND_RANKS: Final = 2**32


@dataclass(frozen=True, slots=True)
class Jitter:
    """Standard deviations of the logarithm of a factor on kernels' times and on transfers' latencies; seeded."""

    compute: float = 0.0
    latency: float = 0.0
    seed: int = 0


def latency_factors(jitter: Jitter, number: int, op: Collective, sources: npt.NDArray[Any]) -> Floats | None:
    """Factors by transfer; a rank's n-th transfer has its own, whatever the others do. None without jitter.

    Parameters
    ----------
    jitter : Jitter
    number : int
        Of the collective among those that are played.
    op : Collective
    sources : int array, shape (t,)
        Each transfer's sender, as a participant.
    """
    if not jitter.latency:
        return None
    ranks = np.array([*op.group, *range(_BEHIND_RANKS, _BEHIND_RANKS + len(op.auxiliaries))])[sources]
    return factors(jitter.latency, jitter.seed, ranks, number, counted(sources))


def kernel_factors(jitter: Jitter, ranks: npt.NDArray[Any], place: int) -> Floats:
    """Factors by rank for kernels at one place of their programs."""
    return factors(jitter.compute, jitter.seed, ranks, place, np.zeros(len(ranks), np.int64))
