"""How long collectives take that share links with each other and with nothing else: the events engine plays just these.

Max-min fair shares change whenever a flow begins or ends, so they must be followed event by event. But operations
repeat in a program: whoever calls this keeps the answer and need not ask again for operations that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.basics.arrays import Floats
from simulator.cluster.cluster import Cluster
from simulator.engine.events import Placements, execute_part
from simulator.engine.jitter import Jitter
from simulator.records.program import Collective, Compute, Op, Program


@dataclass(frozen=True, slots=True)
class CoScheduledOp:
    """An SPMD operation that is solved together with others.

    Attributes
    ----------
    collectives : tuple of Collective
        Each process group's collective.
    ready : float array, shape (ranks,)
        When everything outside the co-scheduled operations that it waits for has ended, by rank [s].
    predecessors : tuple of int
        Which of the co-scheduled operations it waits for, rank by rank: their places in the list.
    """

    collectives: tuple[Collective, ...]
    ready: Floats
    predecessors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CoScheduledTimes:
    """When a co-scheduled operation took place.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        When each rank began and ended it [s].
    times : mapping of a collective's name to (enter, end)
        Of every transfer [s].
    """

    start: Floats
    done: Floats
    times: Mapping[str, tuple[Floats, Floats]]


def play_co_scheduled(
    ops: Sequence[CoScheduledOp], cluster: Cluster, jitter: Jitter, placements: Placements
) -> list[CoScheduledTimes]:
    """Play operations on an otherwise idle fabric.

    Parameters
    ----------
    ops : sequence of CoScheduledOp
    cluster : Cluster
    jitter : Jitter
        Of latencies; no kernels are played here.
    placements : Placements
        How each collective lies on the fabric in the whole program; latencies jitter by its number there.
    """
    ranks = len(ops[0].ready)
    lists: list[list[Op]] = [[] for _ in range(ranks)]
    names = [{rank: collective.name for collective in op.collectives for rank in collective.group} for op in ops]
    for number, op in enumerate(ops):
        # A ready time is played as a kernel on the host that takes just so long, on a stream of its own.
        wait = f"until {number}"
        for collective in op.collectives:
            for rank in collective.group:
                after = (wait, *(names[other][rank] for other in op.predecessors))
                lists[rank].append(Compute(wait, float(op.ready[rank]), stream=wait, on_gpu=False))
                lists[rank].append(replace(collective, stream=f"op {number}", after=after))
    of_latencies = Jitter(0.0, jitter.latency, jitter.seed)
    spans, logs = execute_part(Program(tuple(map(tuple, lists))), cluster, of_latencies, placements)
    starts, ends = (np.zeros((len(ops), ranks)) for _ in range(2))
    for span in spans:
        if span.stream.startswith("op "):
            number = int(span.stream.removeprefix("op "))
            starts[number, span.rank], ends[number, span.rank] = span.start, span.end
    times = [{own.name: logs[own.name] for own in op.collectives if own.duration is None} for op in ops]
    return [
        CoScheduledTimes(start, end, {name: (log.enter, log.end) for name, log in logged.items()})
        for start, end, logged in zip(starts, ends, times, strict=True)
    ]
