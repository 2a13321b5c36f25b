"""A ring of unlike links and late ranks, against its recurrence in a few lines."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.engine.events import execute
from simulator.records.operation import Compute
from simulator.records.program import Program
from tests.playing import WIDE_GPU, parts, planned, regular, star, time_of
from tests.strategies import rewired

# Divisible by every number up to 16.
ELEMENTS = 720_720
S = 4.0 * ELEMENTS


def ring_recurrence(latencies: list[float], rates: list[float], chunks: list[float], starts: list[float]) -> float:
    """When an all-reduce ends: hop i from rank i to i + 1, chunk c bytes; latency never blocks the sender.

    In step k hop i carries the chunk that began at rank i - k. It enters when it has arrived (and both ranks have
    started) plus the hop's latency, but not before the hop's transfer of the step before has ended.
    """
    n = len(rates)
    ends = [0.0] * n
    for k in range(2 * (n - 1)):
        came = [ends[(i - 1) % n] if k else 0.0 for i in range(n)]
        free = ends if k else [-inf] * n
        both = [max(starts[i], starts[(i + 1) % n]) for i in range(n)]
        enters = [max(max(came[i], both[i]) + latencies[i], free[i]) for i in range(n)]
        ends = [enters[i] + chunks[(i - k - 1) % n] / rates[i] for i in range(n)]
    return max(ends)


def chunk_bytes(elements: int, n: int) -> list[float]:
    return [4.0 * len(range(elements)[part]) for part in parts(elements, n)]


@pytest.mark.parametrize("builder", ["ring", "star"])
@pytest.mark.parametrize("slow", [0, 2, 4])
def test_one_link_a_percent_slower_changes_the_ring_as_its_recurrence_says(builder: str, slow: int) -> None:
    n, bandwidth, alpha = 5, 50e9, 1e-6
    topology = {"builder": builder, "options": {"bandwidth": "50 GB/s", "latency": "1 us"}}
    name = f"gpu{slow}->gpu{(slow + 1) % n}" if builder == "ring" else f"gpu{slow}->switch0"
    cluster = build(topology, n, gpu=WIDE_GPU, link_factors={name: 0.99})
    latencies = [alpha if builder == "ring" else 2 * alpha] * n
    rates = [bandwidth * (0.99 if i == slow else 1.0) for i in range(n)]
    expected = ring_recurrence(latencies, rates, chunk_bytes(1_000_003, n), [0.0] * n)
    time = time_of(cluster, "ring", CollectiveRequest("all_reduce", n, 1_000_003))
    assert time == pytest.approx(expected, rel=1e-12)
    healthy = ring_recurrence(latencies, [bandwidth] * n, chunk_bytes(1_000_003, n), [0.0] * n)
    # Latency hides some of it: a chunk crosses the slow link at most twice, and does not queue there for long.
    assert 1 < time / healthy <= 1 / 0.99
    assert planned(cluster, "ring", CollectiveRequest("all_reduce", n, 1_000_003)).predicted is None


@st.composite
def unlike_rings(draw: st.DrawFn) -> tuple[list[float], list[float], list[float], int]:
    n = draw(st.integers(2, 9))
    latencies = draw(st.lists(st.sampled_from([0.0, 1e-7, 1e-6, 3.3e-6, 1e-4]), min_size=n, max_size=n))
    rates = draw(st.lists(st.floats(1e8, 1e11), min_size=n, max_size=n))
    starts = draw(st.lists(st.sampled_from([0.0, 0.0, 1e-6, 7e-5, 1e-3]), min_size=n, max_size=n))
    return latencies, rates, starts, draw(st.sampled_from([1, 2, 7, 1003, 100_000]))


@settings(max_examples=60, derandomize=True)
@given(unlike_rings())
def test_a_ring_of_unlike_links_and_late_ranks_follows_its_recurrence(
    case: tuple[list[float], list[float], list[float], int],
) -> None:
    latencies, rates, starts, elements = case
    n = len(rates)
    hops = {(f"gpu{i}", f"gpu{(i + 1) % n}"): (rates[i], latencies[i]) for i in range(n)}
    cluster = rewired(regular("ring", n), hops)
    made = planned(cluster, "ring", CollectiveRequest("all_reduce", n, elements))
    ranks = tuple((Compute("wait", starts[r]), *ops) for r, ops in enumerate(made.program.ranks))
    ranks = tuple((wait, replace(op, after=("wait",))) for wait, op in ranks)
    expected = ring_recurrence(latencies, rates, chunk_bytes(elements, n), starts)
    assert execute(Program(ranks), cluster).end == pytest.approx(expected, rel=1e-12)


def test_the_straggler_that_comes_late_delays_the_ring_by_its_delay() -> None:
    n, delay = 4, 1e-3
    made = planned(star(n), "ring", CollectiveRequest("all_reduce", n, ELEMENTS))
    ranks = [list(ops) for ops in made.program.ranks]
    ranks[2] = [Compute("late", delay), replace(ranks[2][0], after=("late",))]
    alone = time_of(star(n), "ring", CollectiveRequest("all_reduce", n, ELEMENTS))
    assert execute(Program(tuple(map(tuple, ranks))), star(n)).end == pytest.approx(alone + delay, rel=1e-9)
