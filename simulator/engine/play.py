"""Which engine plays a program: the one that is asked for, or the first that can.

Rule: both give one answer; the compiled one gives it sooner, or says why it cannot. Where arrays are carried the events
engine plays: the order in which transfers end is theirs to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Literal

from simulator.cluster.cluster import Cluster
from simulator.engine import events
from simulator.engine.compiled import engine as compiled
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.jitter import Jitter
from simulator.engine.payload import Payload, carry_all
from simulator.errors import SimulationError
from simulator.program import Program
from simulator.timeline import Timeline

Engine = Literal["auto", "events", "compiled"]


def play(
    engine: Engine,
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    payloads: Mapping[str, Payload] | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
) -> Timeline:
    """Play a program; parameters and result are those of `events.execute`.

    Raises
    ------
    SimulationError
        As there; and where the compiled engine is asked for and cannot prove its answer.
    """
    by_events = partial(
        events.execute, program, cluster,
        jitter=jitter, payloads=payloads, limit_memory=limit_memory, allocator=allocator, keep=keep,
    )  # fmt: skip
    if engine == "events" or (engine == "auto" and payloads):
        return by_events()
    try:
        timeline = compiled.execute(
            program, cluster, jitter=jitter, limit_memory=limit_memory, allocator=allocator, keep=keep
        )
    except DeclinedError as error:
        if engine == "auto":
            return by_events()
        raise SimulationError(f"engine: the compiled engine declines: {error}; write engine: auto") from error
    if payloads:
        carry_all(program, timeline, payloads)
    return timeline
