"""Chunks of unlike sizes round a ring, sums of runs, one link's books: short ways against the plain ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.chunks import run_elements
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.collectives.uneven import advance_uneven
from simulator.engine import events
from simulator.engine.compiled import engine
from simulator.program import Collective, Op, Program
from simulator.report.link_use import link_uses
from tests.playing import boxes, equal_boxes, planned, regular, star

TIMES = st.sampled_from([0.0, 1e-6, 3.3e-6, 1e-4, 2e-3])


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[float], list[float], list[float], list[float], int]:
    """Ends, latencies, bytes, rates, rounds; rates alike in half of all."""
    n = draw(st.integers(2, 11))

    def each(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=n, max_size=n))

    alike = draw(st.booleans())
    rate = st.sampled_from([1e9, 2.5e9, 1e10])
    rates = [draw(rate)] * n if alike else each(rate)
    large = draw(st.sampled_from([4004.0, 4e5]))
    return each(TIMES), each(TIMES), each(st.sampled_from([4000.0, large])), rates, draw(st.integers(1, 3 * n))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(rings())
def test_uneven_chunks_go_round_as_hop_by_hop(
    ring: tuple[list[float], list[float], list[float], list[float], int],
) -> None:
    ends, latencies, nbytes, rates, rounds = ring
    n, now = len(ends), list(ends)
    for k in range(rounds):
        now = [max(now[r - 1] + latencies[r], now[r]) + nbytes[(r - k) % n] / rates[r] for r in range(n)]
    found = advance_uneven(*(np.array([column]) for column in (ends, latencies, nbytes, rates)), rounds)
    assert found[0].tolist() == pytest.approx(now, rel=1e-12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_runs_of_chunks_are_added_up(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 25))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=k, max_size=k))
    run = st.tuples(st.integers(0, k - 1), st.integers(0, k + 2), st.integers(1, k + 1))
    runs = data.draw(st.lists(run, min_size=1, max_size=12))
    expected = [sum(sizes[(first + i * step) % k] for i in range(count)) for first, count, step in runs]
    assert run_elements(*(np.array(column) for column in zip(*runs, strict=True)), np.array(sizes)).tolist() == expected


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("cluster", "algorithm", "elements"),
    [(star(6), "ring", 1003), (boxes(12, 4), "multi_ring", 48 * 1003), (boxes(12, 4), "multi_ring", 1003)],
)
def test_the_busiest_link_alone_is_told_as_all_are(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, algorithm: str, elements: int, *, together: bool
) -> None:
    """Two collectives, one behind the other or on two streams, with books of all links and of one."""
    size = cluster.world_size
    made = planned(cluster, algorithm, Request("all_reduce", size, elements, boxes=equal_boxes(size, 4))).program
    ranks = []
    for own in made.ranks:
        first = next(op for op in own if isinstance(op, Collective))
        other = replace(first, name="other", stream="other" if together else first.stream)
        ranks.append((first, other))
    program = Program(tuple(ranks))
    expected = {use.name: use for use in link_uses(events.execute(program, cluster))}
    monkeypatch.setattr(engine, "_MOST_BOOKED", 0)
    (found,) = engine.execute(program, cluster).links
    assert found.nbytes == expected[found.name].nbytes
    assert found.busy == pytest.approx(expected[found.name].busy, rel=1e-9)
    assert found.nbytes / found.bandwidth == max(use.nbytes / use.bandwidth for use in expected.values())


def test_the_busiest_link_is_told_of_groups_that_take_it_by_unlike_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both send up, then down: over the link from 1 to 2 the first group sends late and the second one early."""
    cluster, request = regular("ring", 4), Request("all_reduce", 2, 4 * 10**6)
    ranks: list[tuple[Op, ...]] = [(), (), (), ()]
    for name, group in (("first", (0, 2)), ("second", (3, 1))):
        op = plan(cluster, Task(request, "tree", group)).ops[0]
        for rank in group:
            ranks[rank] = (replace(op, name=name),)
    program = Program(tuple(ranks))
    monkeypatch.setattr(engine, "_MOST_BOOKED", 0)
    (found,) = engine.execute(program, cluster).links
    expected = {use.name: use for use in link_uses(events.execute(program, cluster))}
    assert found.busy == pytest.approx(2 * 16e6 / 50e9, rel=1e-9)
    assert found.busy == pytest.approx(expected[found.name].busy, rel=1e-9)
