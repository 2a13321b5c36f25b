"""Operations that share links, played on classes of ranks: times as rank by rank, and one odd thing is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.engine.collective_routing import capacities, route_collectives
from simulator.engine.compiled import group_solver
from simulator.engine.compiled.co_scheduled import CoScheduledOp, play_co_scheduled
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.compiled.symmetry_reduction import ReducedProblem, reduce_by_symmetry
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.records.program import Compute, Op, Program
from simulator.records.schedule import Round, Schedule
from tests.engines import farthest

CLOSE = 1e-9


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[ReducedProblem | None]:
    """What was reduced by symmetry while a test ran; None where that was not worth it."""
    seen: list[ReducedProblem | None] = []

    def watched(*facts: Any) -> ReducedProblem | None:
        seen.append(reduce_by_symmetry(*facts))
        return seen[-1]

    monkeypatch.setattr(group_solver, "reduce_by_symmetry", watched)
    return seen


def two_at_once(cluster: Cluster, *, elements: int, late: int | None = None) -> Program:
    """A ring over all ranks and rings over eighths of them, at once on two streams; one rank may come late."""
    ranks = cluster.world_size
    sizes = ranks, ranks // 8
    lists: list[list[Op]] = [[] for _ in range(ranks)]
    for number, size in enumerate(sizes):
        for first in range(0, ranks, size):
            group = tuple(range(first, first + size))
            op = plan(cluster, Task(Request("all_reduce", size, elements), "ring", group, "float32")).ops[0]
            for rank in group:
                lists[rank].append(replace(op, name=f"{number} of {first}", stream=f"stream {number}"))
    if late is not None:
        lists[late].insert(0, Compute("late", 1e-5, stream="stream 0"))
        for rank in range(ranks):
            if rank != late:
                lists[rank].insert(0, Compute("late", 0.0, stream="stream 0"))
    return Program(tuple(map(tuple, lists)))


def test_ranks_that_fare_alike_are_played_once(reductions: list[ReducedProblem | None]) -> None:
    """64 ranks on one switch, a ring over all beside eight over eighths: eight classes of ranks at most."""
    cluster = build("star_100g", 64)
    program = two_at_once(cluster, elements=64_000)
    found = compiled(program, cluster)
    assert farthest(events(program, cluster), found) <= CLOSE
    # 2 x 63 rounds of a ring of 64, 2 x 7 of one of 8, and 8 different hops in each at most.
    whole = [one for one in reductions if one is not None]
    assert whole
    assert max(map(len, whole)) <= 8 * (2 * 63 + 2 * 7)
    assert sum(len(log) for log in found.logs) == 64 * 2 * 63 + 64 * 2 * 7


def test_chunks_that_differ_by_an_element_are_not_reduced(reductions: list[ReducedProblem | None]) -> None:
    cluster = build("star_100g", 16)
    program = two_at_once(cluster, elements=16_001)
    assert farthest(events(program, cluster), compiled(program, cluster)) <= CLOSE
    assert reductions
    assert not any(reductions)


@pytest.mark.parametrize(
    ("change", "late"),
    [({"link_factors": {"gpu5->switch0": 0.99}}, None), ({"link_factors": {"switch0->gpu9": 0.5}}, None), ({}, 11)],
)
def test_one_odd_link_or_rank_is_noticed(
    reductions: list[ReducedProblem | None], change: dict[str, Any], late: int | None
) -> None:
    """A slower link, or a rank that comes late, and nobody fares like another any more: times are those of events."""
    cluster = build("star_100g", 32, **change)
    program = two_at_once(cluster, elements=32_000, late=late)
    found = compiled(program, cluster)
    assert farthest(events(program, cluster), found) <= CLOSE
    plain = build("star_100g", 32)
    even = compiled(two_at_once(plain, elements=32_000), plain)
    assert found.end > even.end * (1 + 1e-6)
    assert reductions


def by_hand(size: int, rows: list[tuple[int, int, int, int, int]], elements: int) -> Schedule:
    """One round of transfers (from, to, chunks, channel, after which), of a group of that size."""
    src, dst, count, channel, after = np.array(rows).T
    none = np.zeros(len(rows), np.int64)
    one = Round(src, dst, none, count, none > 0, channel, after[:, None])
    return Schedule("send", "by hand", size, 0, elements, "in_sequence", lambda: iter([one]))


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
    ring = plan(cluster, Task(Request("all_reduce", 12, 1200), "ring", tuple(range(12)), "float32")).ops[0]
    schedule = by_hand(12, ODD[fact], 1200)
    sends, given = [], []
    for first in range(0, 48, 12):
        group = tuple(range(first, first + 12))
        sends.append(replace(ring, name=f"send {first}", group=group, schedule=schedule))
        given += [
            replace(ring, name=f"{kind} {first}", group=group[half : half + 6], duration=1e-6 + 1e-4 * half)
            for kind, half in (("first", 0), ("second", 6))
        ]
    ops = [CoScheduledOp(tuple(sends), np.zeros(48)), CoScheduledOp(tuple(given), np.zeros(48), (0,))]
    routed_collectives = dict(
        zip([op.name for op in sends], route_collectives(cluster, sends, capacities(cluster)), strict=True)
    )
    reduced = reduce_by_symmetry(
        ops,
        lambda op: (routed_collectives[op.name].traffic, routed_collectives[op.name].routes),
        np.array(capacities(cluster)),
        0.0,
        {},
    )
    assert reduced is not None
    placements = {name: (number, routed) for number, (name, routed) in enumerate(routed_collectives.items())}
    expected = play_co_scheduled(ops, cluster, Jitter(), placements)
    for one, other in zip(expected, reduced.solve(cluster), strict=True):
        np.testing.assert_allclose(other.start, one.start, rtol=1e-12)
        np.testing.assert_allclose(other.done, one.done, rtol=1e-12)
    groups = reduced.solve(cluster)[0].groups
    for op, found in zip(sends, groups, strict=True):
        assert found is not None
        for column, other in zip(expected[0].times[op.name], found[1].times(), strict=True):
            np.testing.assert_allclose(other, column, rtol=1e-12)


@pytest.mark.parametrize("block", range(4))
def test_reduced_and_followed_agree(
    block: int, reductions: list[ReducedProblem | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random groups side by side and across, with and without reduction; a fair part of them is reduced."""
    cases = [side_by_side(seed) for seed in range(10 * block, 10 * block + 10)]
    reduced = [compiled(*case) for case in cases]
    for case, found in zip(cases, reduced, strict=True):
        assert farthest(events(*case), found) <= CLOSE
    assert sum(one is not None for one in reductions) >= 3
    never: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(group_solver, "reduce_by_symmetry", never)
    for case, found in zip(cases, reduced, strict=True):
        assert farthest(compiled(*case), found) <= CLOSE


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
    cluster = build(name, ranks)
    if generator.random() < 0.25:
        names = [cluster.router.link_name(link) for link in range(len(cluster.router.bandwidth))]
        cluster = build(name, ranks, link_factors={str(generator.choice(names)): pick(0.3, 0.9)})
    late = pick([0.0], [0.0], [0.0, 2e-6], list(1e-6 * np.arange(size)))
    beside = [tuple(range(first, first + size)) for first in range(0, ranks, size)]
    across = [tuple(range(place, ranks, size)) for place in range(size)]
    elements, layers = ranks * size * int(generator.integers(10, 20_000)), int(generator.integers(1, 3))
    operations = pick("all_reduce", "all_gather"), pick("all_reduce", "reduce_scatter")
    algorithms = pick("ring", "direct", "halving_doubling", "chain"), pick("ring", "direct", "multi_ring")
    lists: list[list[Op]] = [
        [Compute("late", late[rank % len(late)], stream=f"stream {layers % 2}")] for rank in range(ranks)
    ]
    for layer in range(layers):
        for number, groups in enumerate((beside, across)):
            for group in groups:
                op = _planned(cluster, group, operations[number], algorithms[number], elements)
                for rank in group:
                    label, stream = f"{number} in {layer} of {group[0]}", f"stream {number}"
                    lists[rank].append(replace(op, name=label, stream=stream))
    return Program(tuple(map(tuple, lists))), cluster


def _planned(cluster: Cluster, group: tuple[int, ...], operation: Any, algorithm: str, elements: int) -> Any:
    """Of one group; a ring where the algorithm asks for a power of two or does not do the operation."""
    try:
        return plan(cluster, Task(Request(operation, len(group), elements), algorithm, group, "float32")).ops[0]
    except ValueError:
        return plan(cluster, Task(Request(operation, len(group), elements), "ring", group, "float32")).ops[0]
