"""Unions of intervals: columns of many agree with pairs, and both with counting."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.basics.intervals import added, largest_so_far, length


@pytest.mark.parametrize("seed", range(20))
def test_columns_pairs_and_counting_agree(seed: int) -> None:
    """Whole-numbered ends, so that every sum is exact: the union's length is how many unit steps anything covers."""
    generator = np.random.default_rng(seed)
    group = np.sort(generator.integers(0, 4, 30))
    start = generator.integers(0, 50, 30).astype(np.float64)
    order = np.lexsort((start, group))
    start = start[order]
    end = start + generator.integers(0, 9, 30)
    sums = np.bincount(group, added(start, end, group), 4).tolist()
    for number in range(4):
        pairs = [
            (a, b) for a, b, own in zip(start.tolist(), end.tolist(), group.tolist(), strict=True) if own == number
        ]
        covered = {step for a, b in pairs for step in range(int(a), int(b))}
        assert sums[number] == length(pairs) == len(covered)


def test_a_running_maximum_starts_afresh_at_each_group() -> None:
    found = largest_so_far(np.array([3.0, 1.0, 5.0, -2.0, -7.0, 0.5]), np.array([0, 0, 0, 2, 2, 2]))
    assert found.tolist() == [3.0, 3.0, 5.0, -2.0, -2.0, 0.5]
