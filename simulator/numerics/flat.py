"""Packs parameters or gradients of some units into one flat array, as collectives send them, and unpacks it.

Rule: this module decides the order and nothing else: unit after unit, tensor after tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.gpt import Gpt

Units = Mapping[str, Mapping[str, Array]]


def flat(gpt: Gpt, values: Units, units: Iterable[str], length: int | None = None) -> Array:
    """Pack into one array, with zeros at its end up to `length`."""
    packed = np.concatenate([values[unit][name].ravel() for unit in units for name in gpt.shapes(unit)])
    return packed if length is None else np.pad(packed, (0, length - len(packed)))


def unpacked(gpt: Gpt, array: Array, units: Sequence[str]) -> dict[str, dict[str, Array]]:
    """Unpack: views of the array, by unit and name."""
    by_unit: dict[str, dict[str, Array]] = {}
    at = 0
    for unit in units:
        by_unit[unit] = {}
        for name, shape in gpt.shapes(unit).items():
            size = prod(shape)
            by_unit[unit][name] = array[at : at + size].reshape(shape)
            at += size
    return by_unit
