"""The baseline for the events engine: a ring all-reduce in bare SimPy. No fabric, no records, no payload.

Every rank is a process; a transfer is one timeout that is dated when it is sent. Rule of transfers: a transfer enters
at
max(ready + latency, end of the sender's previous one), and is ready when the chunk that it hands on has arrived.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy


@dataclass(frozen=True, slots=True)
class Links:
    """Rank r's link to the next rank: bandwidth [B/s] and latency [s]."""

    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]


def draw(world_size: int, seed: int = 1) -> Links:
    """12.5 GB/s give or take a fifth, and 1 to 2 us."""
    source = random.Random(seed)
    bandwidth = tuple(12.5e9 * (0.8 + 0.4 * source.random()) for _ in range(world_size))
    latency = tuple(1e-6 * (1 + source.random()) for _ in range(world_size))
    return Links(bandwidth, latency)


def play(links: Links, nbytes: int) -> float:
    """Finishing time [s] of an all-reduce of nbytes on every rank."""
    env = simpy.Environment()
    n = len(links.bandwidth)
    inbox: list[deque[simpy.Event]] = [deque() for _ in range(n)]
    sleeping: list[simpy.Event | None] = [None] * n

    def rank(r: int) -> Generator[simpy.Event, Any, None]:
        following, flow, free = (r + 1) % n, nbytes / n / links.bandwidth[r], 0.0
        for _ in range(2 * (n - 1)):
            free = max(env.now + links.latency[r], free) + flow
            arrival = env.timeout(free - env.now)
            sleeper = sleeping[following]
            if sleeper is None:
                inbox[following].append(arrival)
            else:
                sleeping[following] = None
                sleeper.succeed(arrival)
            if inbox[r]:
                received = inbox[r].popleft()
            else:
                wake = sleeping[r] = env.event()
                received = yield wake
            if received.callbacks is not None:
                yield received

    for r in range(n):
        env.process(rank(r))
    env.run()
    return float(env.now)
