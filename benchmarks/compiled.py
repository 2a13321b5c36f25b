"""The compiled engine against the events engine: a ring over unequal links, transfer by transfer."""

from __future__ import annotations

import time

from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events


def ring(ranks: int) -> tuple[float, float, float]:
    """Return the CPU times of both engines [s], and the relative difference between their ends."""
    # Multiplying by a prime spreads slow links over the ring.
    slower = {f"gpu{rank}->switch0": 0.5 + 0.5 * ((rank * 7919) % ranks) / ranks for rank in range(ranks)}
    cluster = build("star_100g", ranks, link_factors=slower)
    task = Task(CollectiveRequest("all_reduce", ranks, 4 * 2**20), "ring", tuple(range(ranks)), "float32")
    program = plan(cluster, task).program
    times, ends = [], []
    # The events engine takes seconds: a single run suffices.
    for execute, rounds in ((compiled, 3), (events, 1)):
        taken = []
        for _ in range(rounds):
            began = time.process_time()
            ends.append(execute(program, cluster).end)
            taken.append(time.process_time() - began)
        times.append(min(taken))
    return times[0], times[1], abs(ends[0] - ends[-1]) / ends[-1]
