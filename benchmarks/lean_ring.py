"""The baseline for the events engine: a ring all-reduce in bare SimPy, without fabric, records and payload.

Every rank is a process; a transfer is a single timeout, set when it is sent. A transfer enters at max(ready + latency,
end of the sender's previous transfer). It is ready when the chunk to forward has arrived.
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
    """Bandwidth [B/s] and latency [s] of each rank's link to the next rank."""

    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]


def draw(world_size: int, seed: int = 1) -> Links:
    """Draw 12.5 GB/s, plus or minus a fifth, and 1 to 2 us."""
    source = random.Random(seed)
    bandwidth = tuple(12.5e9 * (0.8 + 0.4 * source.random()) for _ in range(world_size))
    latency = tuple(1e-6 * (1 + source.random()) for _ in range(world_size))
    return Links(bandwidth, latency)


def play(links: Links, nbytes: int) -> float:
    """Return the end of an all-reduce with `nbytes` on every rank [s]."""
    env = simpy.Environment()
    n = len(links.bandwidth)
    # Events of chunks not yet awaited, and the event that a waiting rank sleeps on.
    inbox: list[deque[simpy.Event]] = [deque() for _ in range(n)]
    sleeping: list[simpy.Event | None] = [None] * n

    def rank(r: int) -> Generator[simpy.Event, Any, None]:
        # `free` is the end of the sender's previous transfer: the link's next free moment.
        following, flow, free = (r + 1) % n, nbytes / n / links.bandwidth[r], 0.0
        for _ in range(2 * (n - 1)):
            free = max(env.now + links.latency[r], free) + flow
            arrival = env.timeout(free - env.now)
            # A receiver that waits already gets the event at once; otherwise the event waits in its inbox.
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
            # A processed event has no callbacks: the chunk has arrived before.
            if received.callbacks is not None:
                yield received

    for r in range(n):
        env.process(rank(r))
    env.run()
    return float(env.now)
