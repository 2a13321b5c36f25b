"""Combinations of several axes of which short runs have some: values take turns, and long runs have all the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def in_turns(*axes: Sequence[Any], of: int = 3) -> list[Any]:
    """Return every combination of the axes' values, all but one of `of` as long tests.

    A combination is short if its places along the axes add up to a multiple of `of`. Of three axes or more, each value
    of an axis then meets each value of another one, as in a Latin square.
    """
    combinations = product(*(enumerate(axis) for axis in axes))
    return [
        pytest.param(*values, marks=[pytest.mark.long] * (sum(places) % of != 0))
        for places, values in (zip(*combination, strict=True) for combination in combinations)
    ]
