"""The rule of transfers: loops that write it out for speed are held to its one expression, to the bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest

from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.recurrence import by_rounds
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter, latency_factors
from simulator.records.operation import Compute
from simulator.records.program import Program
from simulator.records.transfer_rule import enter, enters
from tests.playing import regular


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_the_events_engine_enters_every_transfer_as_the_rule_says(sigma: float) -> None:
    """On links of its own a transfer takes bytes / rate, so its end tells when it entered. Ranks come late."""
    cluster = regular("fully_connected", 5)
    op = plan(cluster, Task(CollectiveRequest("all_reduce", 5, 1003), "ring", tuple(range(5)))).ops[0]
    late = tuple((Compute("late", 1e-6 * rank**2), replace(op, after=("late",))) for rank in range(5))
    jitter = Jitter(0.0, sigma, 7)
    (log,) = execute(Program(late), cluster, jitter=jitter).logs
    drawn = latency_factors(jitter, 0, op, log.transfers.src)
    factors = np.ones(len(log)) if drawn is None else drawn
    rate = cluster.router.bandwidth[0]
    waits = log.transfers.waits_of()
    assert log.end.tolist() == (log.enter + log.nbytes / rate).tolist()
    for number, before in enumerate(log.transfers.before_on_channel.tolist()):
        ready = max([1e-6 * log.transfers.src[number] ** 2, 1e-6 * log.transfers.dst[number] ** 2,
                     *(log.end[other] for other in waits[number])])  # fmt: skip
        previous = log.end[before] if before >= 0 else -np.inf
        (link,) = log.routes[log.route_of[number]]
        assert log.enter[number] == enter(ready, cluster.router.latency[link] * factors[number], previous)


def test_rounds_of_a_ring_follow_the_rule() -> None:
    generator = np.random.default_rng(3)
    end, latency, takes = generator.random((3, 9))
    expected = end
    for _ in range(20):
        expected = enters(np.roll(expected, 1), latency, expected) + takes
    assert by_rounds(end, latency, repeat(takes, 20)).tolist() == expected.tolist()
