"""Parameters and gradients of some units as one array, as they travel: unit after unit, tensor after tensor.

Rule: an order and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.gpt import Gpt

Units = Mapping[str, Mapping[str, Array]]


def flat(gpt: Gpt, values: Units, units: Iterable[str], length: int | None = None) -> Array:
    """Pack, with zeros behind up to a length."""
    packed = np.concatenate([values[unit][name].ravel() for unit in units for name in gpt.shapes(unit)])
    return packed if length is None else np.pad(packed, (0, length - len(packed)))


def unpacked(gpt: Gpt, array: Array, units: Sequence[str]) -> dict[str, dict[str, Array]]:
    """Unpack: views of the array, by unit and name."""
    by_unit: dict[str, dict[str, Array]] = {}
    at = 0
    for unit in units:
        by_unit[unit] = {}
        for name, shape in gpt.shapes(unit).items():
            size = int(np.prod(shape))
            by_unit[unit][name] = array[at : at + size].reshape(shape)
            at += size
    return by_unit
