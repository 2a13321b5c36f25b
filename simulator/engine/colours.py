"""Colours for colour refinement: 64-bit hashes.

Unequal colours prove that two labels differ. `mixed` combines two colours in order, `summed` any number without order.
Different labels get equal colours by chance in about one program in ten million, at a million colours each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints

Colours = npt.NDArray[np.uint64]


def bits(values: Floats) -> Colours:
    """Return the bits of each float64 as uint64 colours: equal numbers get equal colours."""
    return np.ascontiguousarray(values, np.float64).view(np.uint64)


def different(colours: Colours) -> int:
    """Return the number of distinct colours in an array with 64-bit hashes.

    Sorting bare numbers takes a tenth of the time that `np.unique` needs.
    """
    return int(np.count_nonzero(np.diff(np.sort(colours)))) + (len(colours) > 0)


def summed(where: Ints, colours: Colours, size: int) -> Colours:
    """Return, for each index below `size`, the sum modulo 2^64 over the colours with this index in `where`.

    The sum hashes a multiset of colours, independent of order.

    >>> summed(np.array([0, 2, 0]), np.array([5, 7, 6], np.uint64), 3).tolist()
    [11, 0, 7]
    """
    # Unsigned integers wrap modulo 2^64 without a warning.
    sums = np.zeros(size, np.uint64)
    np.add.at(sums, where, colours)
    return sums


def mixed(colours: npt.NDArray[Any], other: npt.NDArray[Any] | int) -> Colours:
    """Hash two arrays of 64-bit colours into one, entry by entry, with SplitMix64's finaliser.

    The finaliser is from Steele, Lea & Flood, OOPSLA 2014.

    >>> mixed(np.array([1]), 2) == mixed(np.array([2]), 1)
    array([False])
    """
    # Unequal multipliers and addends make the result depend on the order of the two colours.
    state = colours.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = state + (np.asarray(other).astype(np.uint64) + np.uint64(0x632BE59BD9B4E019))
    # Work in place: a large program has ten million colours.
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= np.uint64(0x94D049BB133111EB)
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state
