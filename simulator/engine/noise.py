"""Seeded noise: a factor exp(sigma z) from rank, operation and number, never from the order of the draws.

Counters go in, normals come out, without a running stream. Adding a rank or a transfer leaves every other factor
unchanged.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints

Unsigned = npt.NDArray[np.uint64]


# Equally likely parts of the normal distribution; inside a part, factors are interpolated linearly.
_PARTS: Final = 4096


@cache
def factor_table(sigma: float) -> Floats:
    """Return a table of exp(sigma z), z the standard normal quantile at i / 4096, for i = 0 .. 4096.

    A draw interpolates between two entries: 6 ns, where a logarithm, a cosine and an exponential take 40 ns. The
    outermost quantiles would be infinite; they are chosen to give z the exact mean in the outermost parts.
    """
    normal = NormalDist()
    inner = [normal.inv_cdf(i / _PARTS) for i in range(1, _PARTS)]
    # The mean of the lowest part is E(z | z < q) = -pdf(q) / cdf(q), and lies half-way between the part's two ends.
    least = -2.0 * normal.pdf(inner[0]) * _PARTS - inner[0]
    table: Floats = np.exp(sigma * np.array([least, *inner, -least]))
    # Cached and shared by callers.
    table.flags.writeable = False
    return table


def factors(sigma: float, seed: int, rank: npt.NDArray[Any], op: int, number: npt.NDArray[Any]) -> Floats:
    """Return random factors exp(sigma z), z standard normal, computed from the keys (seed, rank, op, number).

    Parameters
    ----------
    sigma : float
        Standard deviation of the factor's logarithm.
    seed, op : int
        Random seed, and number of the operation.
    rank, number : int arrays of equal shape
        Rank, and number of the draw.

    Examples
    --------
    >>> factors(0.0, 1, np.array([0, 1]), 0, np.array([5, 5]))
    array([1., 1.])
    """
    if sigma == 0.0:
        return np.ones(np.shape(number))
    state = _mixed(np.full(np.shape(number), seed, np.uint64))
    for key in (np.asarray(rank), np.full(np.shape(number), op), np.asarray(number)):
        # Each key is mixed in separately, so that (1, 2) and (2, 1) differ.
        state = _mixed(state ^ key.astype(np.uint64))
    table, part = factor_table(sigma), (state >> np.uint64(52)).astype(np.int64)
    inside = ((state >> np.uint64(12)) & np.uint64(2**40 - 1)).astype(np.float64) * 2.0**-40
    return np.asarray(table[part] + inside * (table[part + 1] - table[part]))


def counted(sources: npt.NDArray[Any]) -> Ints:
    """Return, for each entry, how often its value occurs before it.

    >>> counted(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(sources, kind="stable")
    in_order = sources[order]
    first = np.concatenate([[0], np.flatnonzero(in_order[1:] != in_order[:-1]) + 1]).astype(np.int64)
    lengths = np.diff(np.concatenate([first, [len(sources)]]))
    place = np.empty(len(sources), np.int64)
    place[order] = np.arange(len(sources)) - np.repeat(first, lengths)
    return place


def _mixed(state: Unsigned) -> Unsigned:
    """Return 64-bit integers hashed entry by entry with SplitMix64's finaliser (Steele, Lea & Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = state + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)
