"""Programs played with one rank of each class: times as rank by rank, and one odd thing is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.compiled.prepared import CoreProgram, prepare
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective, Compute, Op
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule
from tests.engines import left_behind
from tests.programs import same_for_all

CLOSE = 1e-9


def reduced(program: Program, cluster: Cluster) -> CoreProgram:
    """What is played in place of a program, however few transfers it has."""
    return prepare(program, cluster, Jitter(), reduced_from=0)


def in_both_ways(program: Program, cluster: Cluster) -> None:
    """One rank of each class and every rank, beside events."""
    left = left_behind(events(program, cluster))
    for reduced_from in (0, 2**62):
        assert left.distance(left_behind(compiled(program, cluster, reduced_from=reduced_from))) <= CLOSE


def two_at_once(cluster: Cluster, *, elements: int) -> Program:
    """A ring over all ranks and rings over eighths of them, at once on two streams, behind a kernel."""
    ranks = cluster.world_size
    places: list[Op | tuple[Collective, ...]] = [Compute("kernel", 1e-5)]
    for number, size in enumerate((ranks, ranks // 8)):
        op = plan(
            cluster, Task(CollectiveRequest("all_reduce", size, elements), "ring", tuple(range(size)), "float32")
        ).ops[0]
        op = replace(op, stream=f"stream {number}", after=("kernel",))
        groups = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
        places.append(tuple(replace(op, name=f"{number} of {group[0]}", group=group) for group in groups))
    return same_for_all(ranks, places)


def test_ranks_that_fare_alike_are_played_once() -> None:
    """64 ranks on one switch, a ring over all beside eight over eighths: eight classes of ranks at most."""
    cluster = build("star_100g", 64)
    program = two_at_once(cluster, elements=64_000)
    prepared = reduced(program, cluster)
    # 2 x 63 rounds of a ring of 64, 2 x 7 of one of 8, and 8 different hops in each at most.
    assert prepared.quotient is not None
    assert len(prepared.quotient.first_rank) <= 8
    assert sum(own.rows.transfers for kind in prepared.kinds for own in kind.playables if own) <= 8 * (2 * 63 + 2 * 7)
    in_both_ways(program, cluster)
    logs = compiled(program, cluster, reduced_from=0).logs
    assert sum(len(log) for log in logs) == 64 * 2 * 63 + 64 * 2 * 7


def test_chunks_that_differ_by_an_element_are_not_reduced() -> None:
    cluster = build("star_100g", 16)
    program = two_at_once(cluster, elements=16_001)
    assert reduced(program, cluster).quotient is None
    in_both_ways(program, cluster)


def test_who_draws_noise_of_its_own_is_not_reduced() -> None:
    cluster = build("star_100g", 16)
    program = two_at_once(cluster, elements=16_000)
    assert prepare(program, cluster, Jitter(), reduced_from=0).quotient is not None
    for jitter in (Jitter(compute=0.1), Jitter(latency=0.1)):
        assert prepare(program, cluster, jitter, reduced_from=0).quotient is None


@pytest.mark.parametrize(
    "change",
    [
        {"link_factors": {"gpu5->switch0": 0.99}},
        {"link_factors": {"switch0->gpu9": 0.5}},
        {"stragglers": {11: 0.5}},
    ],
)
def test_one_odd_link_or_rank_is_noticed(change: dict[str, Any]) -> None:
    """A slower link, or a slower rank, and nobody fares like another any more: times are those of events."""
    cluster, plain = build("star_100g", 32, **change), build("star_100g", 32)
    program = two_at_once(cluster, elements=32_000)
    in_both_ways(program, cluster)
    even = compiled(two_at_once(plain, elements=32_000), plain, reduced_from=0)
    assert compiled(program, cluster, reduced_from=0).end > even.end * (1 + 1e-6)


def by_hand(size: int, rows: list[tuple[int, int, int, int, int]], elements: int) -> Schedule:
    """One round of transfers (from, to, chunks, channel, after which), of a group of that size."""
    src, dst, count, channel, after = np.array(rows).T
    none = np.zeros(len(rows), np.int64)
    one = Round(src, dst, none, count, none > 0, channel, after[:, None])
    return Schedule("send", "by hand", size, 0, elements, ReductionOrder.IN_SEQUENCE, lambda: iter([one]))


# Four send to two, whose ports are shared; of the two pairs each one has one fact that sets its halves apart.
ODD: dict[str, list[tuple[int, int, int, int, int]]] = {
    "nothing": [(0, 10, 4, 0, -1), (1, 10, 4, 1, -1), (2, 11, 1, 2, -1), (3, 11, 1, 3, -1)],
    "what is ahead on the channel": [(0, 10, 9, 0, -1), (1, 10, 4, 1, -1), (2, 11, 1, 0, -1), (3, 11, 1, 1, -1)],
    "what is waited for": [(0, 10, 9, 0, -1), (1, 10, 4, 1, -1), (2, 11, 1, 2, 0), (3, 11, 1, 3, 1)],
    "what is sent": [(0, 10, 4, 0, -1), (1, 10, 4, 1, -1), (2, 11, 2, 2, -1), (3, 11, 1, 3, -1)],
    "to whom": [(0, 10, 4, 0, -1), (1, 10, 4, 1, -1), (2, 11, 1, 2, -1), (3, 10, 1, 3, -1)],
}


@pytest.mark.parametrize("fact", ODD)
@pytest.mark.parametrize("slow", [None, "gpu1->switch0", "switch0->gpu11"])
def test_whatever_is_odd_is_told_apart(fact: str, slow: str | None) -> None:
    """Twelve ranks four times over, of which four send, and behind it groups whose times are given."""
    cluster = build("star_100g", 48, link_factors={slow: 0.3} if slow else {})
    ring = plan(cluster, Task(CollectiveRequest("all_reduce", 12, 1200), "ring", tuple(range(12)), "float32")).ops[0]
    schedule = by_hand(12, ODD[fact], 1200)
    sends, given = [], []
    for first in range(0, 48, 12):
        group = tuple(range(first, first + 12))
        sends.append(replace(ring, name=f"send {first}", group=group, schedule=schedule))
        given += [
            replace(ring, name=f"{kind} {first}", group=group[half : half + 6], duration=1e-6 + 1e-4 * half)
            for kind, half in (("first", 0), ("second", 6))
        ]
    program = same_for_all(48, [tuple(sends), tuple(given), Compute("after", 1e-6)])
    prepared = reduced(program, cluster)
    assert prepared.quotient is not None
    assert len(prepared.quotient.first_rank) <= (24 if slow else 12)
    in_both_ways(program, cluster)


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_reduced_and_followed_agree(block: int) -> None:
    """Random groups side by side and across, with and without reduction; a fair part of them is reduced."""
    cases = [side_by_side(seed) for seed in range(10 * block, 10 * block + 10)]
    for case in cases:
        in_both_ways(*case)
    assert sum(reduced(*case).quotient is not None for case in cases) >= 3


def side_by_side(seed: int) -> tuple[Program, Cluster]:
    """Groups side by side and groups across them, on two streams, with sizes that even out.

    In some a link is slow, or ranks come late by where they stand in their group.
    """
    generator = np.random.default_rng([77, seed])

    def pick(*values: Any) -> Any:
        return values[int(generator.integers(len(values)))]

    name = pick("star_100g", "h100_ethernet_100g", "dgx_h100", "torus_2d", "fat_tree_1024")
    ranks = 16 if name != "torus_2d" else 9
    size = pick(4, 8) if name != "torus_2d" else 3
    slow = pick([1.0], [1.0], [1.0, 0.5], list(1.0 / np.arange(1, size + 1)))
    facts: dict[str, Any] = {"stragglers": {rank: slow[rank % len(slow)] for rank in range(ranks)}}
    cluster = build(name, ranks, **facts)
    if generator.random() < 0.25:
        names = [cluster.router.link_name(link) for link in range(len(cluster.router.bandwidth))]
        cluster = build(name, ranks, link_factors={str(generator.choice(names)): pick(0.3, 0.9)}, **facts)
    beside = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
    across = [tuple(range(place, ranks, size)) for place in range(size)]
    elements, layers = ranks * size * int(generator.integers(10, 20_000)), int(generator.integers(1, 3))
    operations = pick("all_reduce", "all_gather"), pick("all_reduce", "reduce_scatter")
    algorithms = pick("ring", "direct", "halving_doubling", "chain"), pick("ring", "direct", "multi_ring")
    places: list[Op | tuple[Collective, ...]] = [Compute("late", 1e-6, stream=f"stream {layers % 2}")]
    for layer in range(layers):
        for number, groups in enumerate((beside, across)):
            made = [_planned(cluster, group, operations[number], algorithms[number], elements) for group in groups]
            label, stream = f"{number} in {layer} of", f"stream {number}"
            places.append(tuple(replace(op, name=f"{label} {op.group[0]}", stream=stream) for op in made))
    return same_for_all(ranks, places), cluster


def _planned(cluster: Cluster, group: tuple[int, ...], operation: Any, algorithm: str, elements: int) -> Collective:
    """Of one group; a ring where the algorithm asks for a power of two or does not do the operation."""
    try:
        return plan(cluster, Task(CollectiveRequest(operation, len(group), elements), algorithm, group, "float32")).ops[
            0
        ]
    except ValueError:
        return plan(cluster, Task(CollectiveRequest(operation, len(group), elements), "ring", group, "float32")).ops[0]
