"""Luck that depends on who and what, never on when it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engine.noise import counted, factors


def test_the_same_question_has_the_same_answer_in_any_company() -> None:
    ranks, numbers = np.arange(50), np.arange(50) * 7
    together = factors(0.2, 5, ranks, 3, numbers)
    for i in (0, 13, 49):
        assert factors(0.2, 5, ranks[i : i + 1], 3, numbers[i : i + 1])[0] == together[i]


@pytest.mark.parametrize("other", [{"seed": 6}, {"op": 4}, {"rank": 1}, {"number": 1}])
def test_seed_rank_operation_and_number_each_make_a_difference(other: dict[str, int]) -> None:
    facts = {"seed": 5, "op": 3, "rank": 0, "number": 0}

    def drawn(seed: int, op: int, rank: int, number: int) -> float:
        return float(factors(0.2, seed, np.array([rank]), op, np.array([number]))[0])

    assert drawn(**facts) != drawn(**(facts | other))


def test_no_spread_gives_ones() -> None:
    assert factors(0.0, 1, np.arange(3), 0, np.arange(3)).tolist() == [1.0, 1.0, 1.0]


def test_the_logarithms_are_normal() -> None:
    z = np.log(factors(0.5, 2, np.repeat(np.arange(100), 200), 0, np.tile(np.arange(200), 100))) / 0.5
    # 20,000 draws: mean, variance, skewness and kurtosis within 5 standard errors.
    count = len(z)
    assert abs(z.mean()) < 5 / np.sqrt(count)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / count)
    assert abs((z**3).mean()) < 5 * np.sqrt(15 / count)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / count)
    neighbours = float(np.mean(z[1:] * z[:-1]))
    assert abs(neighbours) < 5 / np.sqrt(count)


def test_entries_are_counted_by_source() -> None:
    assert counted(np.array([2, 2, 0, 2, 0, 1])).tolist() == [0, 1, 0, 2, 1, 0]
    assert counted(np.zeros(0, np.int64)).tolist() == []
