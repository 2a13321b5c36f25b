"""Schedules as data: rounds, repeats, and columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.errors import SimulationError
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.records.chunks import chunk_sizes, split, transfer_elements
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule
from simulator.records.transfers import write_out
from tests.playing import NODED, equal_nodes


@given(st.integers(0, 10_000), st.integers(1, 200))
@settings(derandomize=True)
def test_a_cut_has_parts_that_differ_by_one_and_the_larger_first(elements: int, chunks: int) -> None:
    sizes = split(elements, chunks).tolist()
    assert sum(sizes) == elements
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] in (0, 1)
    assert sizes == [len(part) for part in np.array_split(np.arange(elements), chunks)]


def test_an_all_to_all_cuts_every_row_alike() -> None:
    schedule = ALGORITHMS.find("direct").plans["all_to_all"](CollectiveRequest("all_to_all", 3, 7))
    assert chunk_sizes(schedule, 7).tolist() == [3, 2, 2] * 3


@pytest.mark.parametrize(("algorithm", "operation"), ALGORITHMS.pairs())
def test_columns_are_the_rounds_written_one_below_the_other(algorithm: str, operation: str) -> None:
    nodes = equal_nodes(6, 3) if algorithm in NODED else ()
    schedule = ALGORITHMS.find(algorithm).plans[operation](
        CollectiveRequest(operation, 6, 1000, nodes=nodes, servers=2)
    )
    rounds, columns = list(schedule.rounds()), write_out(schedule)
    for name in ("src", "dst", "first", "count", "reduce", "channel"):
        assert getattr(columns, name).tolist() == np.concatenate([getattr(r, name) for r in rounds]).tolist()
    waits = [[w for w in row if w >= 0] for r in rounds for row in r.waits.tolist()]
    assert [sorted(w) for w in columns.waits_of()] == [sorted(w) for w in waits]
    last: dict[int, int] = {}
    for number, channel in enumerate(columns.channel.tolist()):
        assert columns.before_on_channel[number] == last.get(channel, -1)
        last[channel] = number
    assert all(awaited < waiter for waiter, row in enumerate(waits) for awaited in row)


@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_who_waits_for_the_same_shares_one_row(ranks: int) -> None:
    """Each rank hands out what all others brought: N - 1 transfers from each wait for N - 1, in N rows, not N (N-1)."""
    schedule = ALGORITHMS.find("direct").plans["all_reduce"](CollectiveRequest("all_reduce", ranks, 100))
    brought, handed = schedule.rounds()
    assert handed.after.shape == (ranks, ranks - 1)
    for src, waits in zip(handed.src.tolist(), handed.waits.tolist(), strict=True):
        assert waits == [number for number, dst in enumerate(brought.dst.tolist()) if dst == src]


def test_more_waits_than_memory_holds_are_refused_when_somebody_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 ranks: 5 x 4 transfers wait for 4 others each. The transfers themselves are told."""
    monkeypatch.setattr("simulator.records.transfers.MOST_PAIRS", 79)
    columns = write_out(ALGORITHMS.find("direct").plans["all_reduce"](CollectiveRequest("all_reduce", 5, 100)))
    assert len(columns) == 40
    with pytest.raises(SimulationError, match=r"direct over 5 ranks: transfers wait for 80 others .* fewer ranks"):
        columns.waits_of()


def a_round(channel: list[int], after: list[list[int]]) -> Round:
    t = len(channel)
    numbers = np.arange(t)
    return Round(
        numbers,
        numbers + 1,
        numbers % 3,
        np.ones(t, np.int64),
        np.zeros(t, np.bool_),
        np.array(channel),
        np.array(after),
    )


def test_a_repeated_round_moves_its_chunks_and_its_waits() -> None:
    table = np.array([0, 2, 1])

    def parts() -> Iterator[Round | Repeat]:
        yield a_round([0, 1], [[-1], [-1]])
        yield Repeat(a_round([0, 1], [[1], [0]]), 3, -1, table)

    schedule = Schedule("broadcast", "test", 9, 0, 3, ReductionOrder.IN_SEQUENCE, parts)
    columns = write_out(schedule)
    assert len(columns) == 8
    # Places 0 and 1 of the table, then one back each time.
    assert columns.first.tolist() == [0, 1, 0, 2, 1, 0, 2, 1]
    assert columns.waits_of() == [[], [], [1], [0], [3], [2], [5], [4]]
    assert columns.before_on_channel.tolist() == [-1, -1, 0, 1, 2, 3, 4, 5]
    assert [r.first.tolist() for r in schedule.rounds()] == [[0, 1], [0, 2], [1, 0], [2, 1]]


def test_a_channel_used_twice_in_a_round_is_still_one_queue() -> None:
    schedule = Schedule(
        "broadcast",
        "test",
        9,
        0,
        3,
        ReductionOrder.IN_SEQUENCE,
        lambda: iter([a_round([5, 5, 2, 5], [[-1]] * 4), a_round([2], [[-1]])]),
    )
    assert write_out(schedule).before_on_channel.tolist() == [-1, 0, -1, 1, 2]


def test_an_empty_schedule_has_empty_columns() -> None:
    columns = write_out(Schedule("broadcast", "test", 2, 0, 1, ReductionOrder.IN_SEQUENCE, lambda: iter(())))
    assert len(columns) == 0
    assert columns.waits_of() == []
    assert transfer_elements(columns, split(10, 1)).tolist() == []


def test_a_transfer_of_several_chunks_carries_their_elements_round_the_end() -> None:
    numbers = np.arange(3)
    ones = np.ones(3, np.int64)
    flags = np.zeros(3, np.bool_)
    # Of 5 chunks with 3, 3, 2, 2, 2 elements: 4, 0; 1, 2, 3; and in steps of 2: 3, 0, 2.
    one_by_one = Round(numbers[:2], numbers[:2] + 1, np.array([4, 1]), np.array([2, 3]), flags[:2], ones[:2],
                       np.full((2, 1), -1))  # fmt: skip
    in_twos = Round(numbers[:1], numbers[:1] + 1, np.array([3]), np.array([3]), flags[:1], ones[:1],
                    np.full((1, 1), -1), step=2)  # fmt: skip
    columns = write_out(
        Schedule("broadcast", "t", 9, 0, 5, ReductionOrder.IN_SEQUENCE, lambda: iter([one_by_one, in_twos]))
    )
    assert transfer_elements(columns, split(12, 5)).tolist() == [2 + 3, 3 + 2 + 2, 2 + 3 + 2]
