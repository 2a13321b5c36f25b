"""Jitter: random factors on kernel times and transfer latencies.

Seeds are rank, operation and number (noise.py), therefore both engines draw equal factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats
from simulator.engine.noise import counted, factors
from simulator.records.operation import Collective

# Servers and switches draw under numbers that no rank has.
_BEHIND_RANKS: Final = 2**32


@dataclass(frozen=True, slots=True)
class Jitter:
    """Seeded random noise on kernel durations and on transfer latencies."""

    # `compute`, `latency`: Standard deviation of the factor's logarithm, on kernel times and on transfer latencies; 0
    # for no noise.
    compute: float = 0.0
    latency: float = 0.0
    seed: int = 0  # random seed


def latency_factors(jitter: Jitter, number: int, op: Collective, sources: npt.NDArray[Any]) -> Floats | None:
    """Return a random factor on the latency for each transfer in a collective; None without noise on latencies.

    A rank's n-th transfer has a separate factor, independent from the remaining transfers.

    Parameters
    ----------
    jitter : Jitter
        Size and seed of the noise.
    number : int
        Number of the collective among those whose transfers are simulated.
    op : Collective
        The collective.
    sources : int array, shape (t,)
        Participant that sends each transfer.
    """
    if not jitter.latency:
        return None
    # Participant to rank number; auxiliaries get numbers beyond any rank.
    ranks = np.array([*op.group, *range(_BEHIND_RANKS, _BEHIND_RANKS + len(op.auxiliaries))])[sources]
    return factors(jitter.latency, jitter.seed, ranks, number, counted(sources))


def kernel_factors(jitter: Jitter, ranks: npt.NDArray[Any], place: int) -> Floats:
    """Return, for each of the given ranks, the random factor on the duration of the kernel at index `place`."""
    return factors(jitter.compute, jitter.seed, ranks, place, np.zeros(len(ranks), np.int64))
