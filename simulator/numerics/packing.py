"""Packs parameters or gradients of several units into a flat array for collectives, and unpacks such arrays.

This module decides only the order: unit after unit, tensor after tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.gpt import Gpt

Units = Mapping[str, Mapping[str, Array]]


def pack(gpt: Gpt, values: Units, units: Iterable[str], length: int | None = None) -> Array:
    """Return the tensors of `units` packed into a single flat array, padded with zeros up to `length`."""
    packed = np.concatenate([values[unit][name].ravel() for unit in units for name in gpt.shapes(unit)])
    return packed if length is None else np.pad(packed, (0, length - len(packed)))


def unpack(gpt: Gpt, array: Array, units: Sequence[str]) -> dict[str, dict[str, Array]]:
    """Return views of a flat array as the tensors of `units`, by unit and name; padding at the end is ignored."""
    by_unit: dict[str, dict[str, Array]] = {}
    at = 0
    for unit in units:
        by_unit[unit] = {}
        for name, shape in gpt.shapes(unit).items():
            size = prod(shape)
            by_unit[unit][name] = array[at : at + size].reshape(shape)
            at += size
    return by_unit
