"""Unions of intervals: columns of many agree with pairs, and both with counting."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.basics.intervals import added, largest_so_far, length, outside, union


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


def merged(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals, one interval after the other."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(pairs):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("longest", [0.1, 3.0])
def test_a_union_and_its_length_equal_a_merge_in_a_loop_to_the_bit(count: int, longest: float) -> None:
    generator = np.random.default_rng(count)
    start = generator.uniform(0, 20, (2, count))
    first, second = (
        list(zip(own.tolist(), (own + generator.uniform(0, longest, count)).tolist(), strict=True)) for own in start
    )
    assert [tuple(pair) for pair in union(first).tolist()] == merged(first)
    covered = [sum(end - start for start, end in merged(pairs)) for pairs in (first, second, first + second)]
    assert length(first) == covered[0]
    assert outside(first, second) == covered[2] - covered[1]


def test_touching_intervals_are_one() -> None:
    assert union([(1.0, 2.0), (0.0, 1.0), (2.5, 3.0), (2.5, 2.75)]).tolist() == [[0.0, 2.0], [2.5, 3.0]]
