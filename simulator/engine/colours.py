"""Colours of colour refinement: 64-bit hashes of labels. Unequal colours prove that two labels differ.

A colour made from two others depends on both, in order with `mixed` and in any order with `summed`. Unlike labels can
get equal colours by chance: among a million colours in about one of ten million programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints

Colours = npt.NDArray[np.uint64]


def bits(values: Floats) -> Colours:
    """Colours of numbers: the bits of their float64, so that equal numbers have equal colours."""
    return np.ascontiguousarray(values, np.float64).view(np.uint64)


def different(colours: Colours) -> int:
    """How many different colours there are; a sort of bare numbers takes a tenth of `np.unique`."""
    return int(np.count_nonzero(np.diff(np.sort(colours)))) + (len(colours) > 0)


def summed(where: Ints, colours: Colours, size: int) -> Colours:
    """Sum, modulo 2^64, the colours that go to each of `size` places: a hash of a multiset, whatever the order."""
    sums = np.zeros(size, np.uint64)
    np.add.at(sums, where, colours)
    return sums


def mixed(one: npt.NDArray[Any], other: npt.NDArray[Any] | int) -> Colours:
    """Mix two colours into one, by the finalizer of splitmix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    state = one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = state + (np.asarray(other).astype(np.uint64) + np.uint64(0x632BE59BD9B4E019))
    # In place: there may be ten million.
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= np.uint64(0x94D049BB133111EB)
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state
