"""One fault put into a schedule: whatever changes a result is found without a clock.

Whether a mutant changes the result is decided here by numbers alone: a replay with random integers (and, where the
order of adds matters, with float32), never by the rules of the proof.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from simulator.api.runs import simulate
from simulator.basics import dtypes
from simulator.basics.errors import ScenarioError, ScheduleError
from simulator.collectives.algorithm import ALGORITHMS, ROOTED, Algorithm, CollectiveRequest, always, least_volume
from simulator.collectives.payload import inputs
from simulator.collectives.payload.carry import Payload, carry
from simulator.collectives.payload.judge import Numbers, judge
from simulator.collectives.verify import verify
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers, write_out
from simulator.scenario.from_python import collective_scenario
from tests.playing import equal_nodes, request_options
from tests.replay import Row, columns_of, keeps_the_promise, rounds_of, rows_of, same_float_bits

PAIRS = [pytest.param(a, o, id=f"{a}-{o}") for a, o in ALGORITHMS.pairs()]


# -- mutations ---------------------------------------------------------------------------------------------------------


def dropped(rows: list[Row], schedule: Schedule, draw: random.Random) -> list[Row]:
    gone = draw.randrange(len(rows))
    kept = rows[:gone] + rows[gone + 1 :]
    return [replace(r, waits=tuple(w - (w > gone) for w in r.waits if w != gone)) for r in kept]


def doubled(rows: list[Row], schedule: Schedule, draw: random.Random) -> list[Row]:
    twice = draw.randrange(len(rows))
    copy = replace(rows[twice], waits=(*rows[twice].waits, twice))
    later = [replace(r, waits=tuple(w + (w > twice) for w in r.waits)) for r in rows[twice + 1 :]]
    return [*rows[: twice + 1], copy, *later]


def with_wrong_chunk(rows: list[Row], schedule: Schedule, draw: random.Random) -> list[Row]:
    at = draw.randrange(len(rows))
    moved = replace(rows[at], first=(rows[at].first + draw.randrange(1, max(2, schedule.chunks))) % schedule.chunks)
    return [*rows[:at], moved, *rows[at + 1 :]]


def with_wrong_target(rows: list[Row], schedule: Schedule, draw: random.Random) -> list[Row]:
    at = draw.randrange(len(rows))
    everybody = set(range(schedule.world_size + schedule.auxiliaries)) - {rows[at].src, rows[at].dst}
    if not everybody:
        return rows
    return [*rows[:at], replace(rows[at], dst=draw.choice(sorted(everybody))), *rows[at + 1 :]]


def flipped(rows: list[Row], schedule: Schedule, draw: random.Random) -> list[Row]:
    at = draw.randrange(len(rows))
    return [*rows[:at], replace(rows[at], reduce=not rows[at].reduce), *rows[at + 1 :]]


MUTATIONS = (dropped, doubled, with_wrong_chunk, with_wrong_target, flipped)


def options(algorithm: str, operation: str, n: int) -> dict[str, Any]:
    """Of the algorithm's examples one with nodes of several ranks, or with several servers, where it has any."""
    examples = list(ALGORITHMS.find(algorithm).examples(n))
    largest = max(examples, key=lambda one: (one.node_size or 0) % n + (one.servers or 0) % n)
    found = request_options(largest, n)
    if largest.node_size:
        found["nodes"] = equal_nodes(n, largest.node_size)
    takes = ALGORITHMS.find(algorithm)
    in_pieces = "chunks" in takes.options and operation not in takes.whole
    return found | ({"chunks": found.get("chunks") or 2} if in_pieces else {})


def schedules(algorithm: str, operation: str) -> list[Schedule]:
    found = []
    for n in (2, 3, 4, 5, 6):
        for root in {0, n - 1} if operation in ROOTED else {0}:
            request = CollectiveRequest(operation, n, 1000, root=root, **options(algorithm, operation, n))
            found.append(ALGORITHMS.find(algorithm).plans[operation](request))
    return found


def found_fault(schedule: Schedule, transfers: Transfers) -> bool:
    try:
        verify(schedule, transfers)
    except ScheduleError:
        return True
    return False


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_the_replay_agrees_that_the_schedule_is_right(algorithm: str, operation: str) -> None:
    for schedule in schedules(algorithm, operation):
        rows = rows_of(write_out(schedule))
        assert keeps_the_promise(schedule, rows, list(range(len(rows))), seed=1)
        assert not found_fault(schedule, columns_of(rows))


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 90), marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
@pytest.mark.one_of(3)
def test_a_mutant_that_changes_the_result_is_found(algorithm: str, operation: str, seeds: range, mutate: Any) -> None:
    harmful = 0
    for schedule in schedules(algorithm, operation):
        rows = rows_of(write_out(schedule))
        for seed in seeds:
            mutant = mutate(rows, schedule, random.Random(seed))
            if not keeps_the_promise(schedule, mutant, list(range(len(mutant))), seed):
                harmful += 1
                assert found_fault(schedule, columns_of(mutant)), (schedule.world_size, seed)
    # The same copy twice, or into a rank that is given it anyway, does no harm; nor is there a wrong chunk of one.
    if mutate is dropped:
        assert harmful > 0


def mutants(algorithm: str, operation: str, seeds: int) -> Iterator[tuple[Schedule, list[Row], int]]:
    """Yield schedules with one fault that changes the result when transfers end in their order."""
    for schedule in schedules(algorithm, operation):
        rows = rows_of(write_out(schedule))
        for mutate, seed in product(MUTATIONS, range(seeds)):
            mutant = mutate(rows, schedule, random.Random(seed))
            if not keeps_the_promise(schedule, mutant, list(range(len(mutant))), seed):
                yield schedule, mutant, seed


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
@pytest.mark.one_of(3)
def test_every_mutant_has_wrong_elements(algorithm: str, operation: str) -> None:
    dtype, found = dtypes.find("int64"), 0
    for schedule, mutant, seed in mutants(algorithm, operation, seeds=3):
        transfers, order = columns_of(mutant), np.arange(len(mutant))
        buffers = inputs.buffers(schedule, 1000, dtype, seed)
        drawn = inputs.drawn(schedule, 1000, buffers)
        carry(schedule, transfers, order, Payload(buffers, dtype, "sum", dtype.numpy))
        verdict = judge(schedule, transfers, order, Numbers(dtype, "sum", dtype.numpy), drawn, buffers)
        assert verdict.wrong > 0, (schedule.world_size, seed, mutant)
        found += 1
    assert found > 0


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_a_mutant_is_refused_before_it_is_simulated(algorithm: str, operation: str) -> None:
    refused = 0
    for schedule, mutant, _ in islice(mutants(algorithm, operation, seeds=1), 4):
        broken = replace(schedule, parts=lambda rows=mutant: iter(rounds_of(rows)), rows=len(mutant))
        own = Algorithm({operation: lambda request, broken=broken: broken}, volume=least_volume, minimal=always)
        scenario = collective_scenario(
            topology="star_100g", world_size=schedule.world_size, operation=operation, size="4000 B", dtype="float32",
            **({"root": schedule.root} if schedule.root else {}),
        )  # fmt: skip
        with pytest.raises(ScenarioError, match=f"does not carry out {operation}: .*(rank|transfer) [0-9]"):
            simulate(scenario, algorithm=own)
        refused += 1
    assert refused > 0


def early(rows: list[Row], number: int) -> list[int]:
    """An order in which a transfer ends as early as what it waits for, and its channel, allow."""
    known: set[int] = set()
    last: dict[int, int] = {}
    before = []
    for i, row in enumerate(rows):
        before.append(last.get(row.channel, -1))
        last[row.channel] = i
    open_ = [number]
    while open_:
        i = open_.pop()
        for j in (*rows[i].waits, before[i]):
            if j >= 0 and j not in known:
                known.add(j)
                open_.append(j)
    return [*sorted(known), number, *(i for i in range(len(rows)) if i != number and i not in known)]


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
@pytest.mark.one_of(3)
def test_a_wait_that_is_removed_and_was_needed_is_missed(algorithm: str, operation: str) -> None:
    needed = removed = 0
    for schedule in schedules(algorithm, operation):
        rows = rows_of(write_out(schedule))
        places = [(number, wait) for number, row in enumerate(rows) for wait in row.waits]
        random.Random(5).shuffle(places)
        for number, wait in places[:60]:
            removed += 1
            loose = replace(rows[number], waits=tuple(w for w in rows[number].waits if w != wait))
            mutant = [*rows[:number], loose, *rows[number + 1 :]]
            order, natural = early(mutant, number), list(range(len(rows)))
            harmful = not keeps_the_promise(schedule, mutant, order, seed=number)
            if schedule.reduction_order == ReductionOrder.IN_SEQUENCE:
                harmful |= not same_float_bits(schedule, mutant, order, natural, seed=number)
            if harmful:
                needed += 1
                assert found_fault(schedule, columns_of(mutant)), (schedule.world_size, number, wait)
    assert needed > 0 or removed == 0


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_every_declared_wait_is_needed_or_implied_by_the_channel(algorithm: str, operation: str) -> None:
    # No schedule waits for more than the proof asks for: a wait too many would only make it slower.
    for schedule in schedules(algorithm, operation):
        rows = rows_of(write_out(schedule))
        for number, row in enumerate(rows[:80]):
            for wait in row.waits:
                loose = replace(row, waits=tuple(w for w in row.waits if w != wait))
                mutant = columns_of([*rows[:number], loose, *rows[number + 1 :]])
                covered = (
                    wait
                    in early([*rows[:number], loose, *rows[number + 1 :]], number)[
                        : early([*rows[:number], loose, *rows[number + 1 :]], number).index(number)
                    ]
                )
                assert found_fault(schedule, mutant) or covered, (schedule.world_size, number, wait)


def test_faults_that_make_no_sense_are_schedule_errors_too() -> None:
    schedule = ALGORITHMS.find("ring").plans["all_reduce"](CollectiveRequest("all_reduce", 3, 30))
    rows = rows_of(write_out(schedule))
    nonsense = {
        "goes from participant 0 to 0": [replace(rows[0], dst=0), *rows[1:]],
        "goes from participant 0 to 7": [replace(rows[0], dst=7), *rows[1:]],
        "waits for transfer 5, which comes later": [replace(rows[0], waits=(5,)), *rows[1:]],
        "ends with ranks": rows[:-1],
        "ends with ": [],
    }
    for told, mutant in nonsense.items():
        with pytest.raises(ScheduleError, match=told):
            verify(schedule, columns_of(mutant))
