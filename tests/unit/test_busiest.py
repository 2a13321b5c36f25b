"""The busiest link's time, told where transfers are too many for books of all links, against these books."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine import events
from simulator.engine.compiled import engine
from simulator.records.operation import Collective, Op
from simulator.records.program import Program
from simulator.report.numbers.link_use import link_uses
from tests.playing import equal_nodes, nodes, planned, regular, star


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("cluster", "algorithm", "elements"),
    [(star(6), "ring", 1003), (nodes(12, 4), "multi_ring", 48 * 1003), (nodes(12, 4), "multi_ring", 1003)],
)
def test_the_busiest_link_alone_is_told_as_all_are(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, algorithm: str, elements: int, *, together: bool
) -> None:
    """Two collectives, one behind the other or on two streams, with books of all links and of one."""
    size = cluster.world_size
    made = planned(
        cluster, algorithm, CollectiveRequest("all_reduce", size, elements, nodes=equal_nodes(size, 4))
    ).program
    ranks = []
    for own in made.ranks:
        first = next(op for op in own if isinstance(op, Collective))
        other = replace(first, name="other", stream="other" if together else first.stream)
        ranks.append((first, other))
    program = Program(tuple(ranks))
    expected = {use.name: use for use in link_uses(events.execute(program, cluster))}
    monkeypatch.setattr(engine, "_MAX_BOOKED_TRANSFERS", 0)
    (found,) = engine.execute(program, cluster).links
    assert found.nbytes == expected[found.name].nbytes
    assert found.busy == pytest.approx(expected[found.name].busy, rel=1e-9)
    assert found.nbytes / found.bandwidth == max(use.nbytes / use.bandwidth for use in expected.values())


def test_the_busiest_link_is_told_of_groups_that_take_it_by_unlike_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both send up, then down: over the link from 1 to 2 the first group sends late and the second one early."""
    cluster, request = regular("ring", 4), CollectiveRequest("all_reduce", 2, 4 * 10**6)
    ranks: list[tuple[Op, ...]] = [(), (), (), ()]
    for name, group in (("first", (0, 2)), ("second", (3, 1))):
        op = plan(cluster, Task(request, "tree", group)).ops[0]
        for rank in group:
            ranks[rank] = (replace(op, name=name),)
    program = Program(tuple(ranks))
    monkeypatch.setattr(engine, "_MAX_BOOKED_TRANSFERS", 0)
    (found,) = engine.execute(program, cluster).links
    expected = {use.name: use for use in link_uses(events.execute(program, cluster))}
    assert found.busy == pytest.approx(2 * 16e6 / 50e9, rel=1e-9)
    assert found.busy == pytest.approx(expected[found.name].busy, rel=1e-9)
