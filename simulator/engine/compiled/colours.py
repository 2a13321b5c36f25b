"""Colours: 64-bit hashes, of which equal ones stand for what has not been told apart yet.

Rule: what two colours are made of shows in the third, in order for `mixed`, in whatever order for `summed`. Among a
million colours two that are unlike are equal once in some ten million programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints

Colours = npt.NDArray[np.uint64]


def bits(values: Floats) -> Colours:
    """The colours of numbers: equal for equal ones."""
    return np.ascontiguousarray(values, np.float64).view(np.uint64)


def summed(where: Ints, colours: Colours, size: int) -> Colours:
    """The sum of all colours at each place: the same in whichever order they come."""
    found = np.zeros(size, np.uint64)
    np.add.at(found, where, colours)
    return found


def mixed(one: npt.NDArray[Any], other: npt.NDArray[Any] | int) -> Colours:
    """A colour from two, by the finalizer of splitmix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    found = one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found += np.asarray(other).astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))
