"""Collectives that share links with each other and with nothing else, played by the events engine, and only these.

Rule: where shares change at every end there is no shorter route than to follow them; but whoever plays a program need
not follow them again for every operation that is alike.
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
    """A line of the program that takes part.

    Attributes
    ----------
    collectives : tuple of Collective
        Each group's operation.
    ready : float array, shape (ranks,)
        Before which no rank may begin it [s].
    predecessors : tuple of int
        Which other members it waits for, rank by rank.
    """

    collectives: tuple[Collective, ...]
    ready: Floats
    predecessors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CoScheduledTimes:
    """What became of a member.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        [s]
    times : mapping of a collective's name to (enter, end)
        Of every transfer [s].
    """

    start: Floats
    done: Floats
    times: Mapping[str, tuple[Floats, Floats]]


def play_co_scheduled(
    members: Sequence[CoScheduledOp],
    cluster: Cluster,
    jitter: Jitter,
    placements: Placements,
) -> list[CoScheduledTimes]:
    """Play members on an idle fabric.

    Parameters
    ----------
    members : sequence of CoScheduledOp
    cluster : Cluster
    jitter : Jitter
        On latencies; nothing is computed here.
    laid : Placements
        As in the whole program.
    """
    ranks = len(members[0].ready)
    lists: list[list[Op]] = [[] for _ in range(ranks)]
    names = [{rank: op.name for op in member.collectives for rank in op.group} for member in members]
    for number, member in enumerate(members):
        wait = f"until {number}"
        for op in member.collectives:
            for rank in op.group:
                after = (wait, *(names[other][rank] for other in member.predecessors))
                lists[rank].append(Compute(wait, float(member.ready[rank]), stream=wait, on_gpu=False))
                lists[rank].append(replace(op, stream=f"member {number}", after=after))
    jitter = Jitter(0.0, jitter.latency, jitter.seed)
    spans, logs = execute_part(Program(tuple(map(tuple, lists))), cluster, jitter, placements)
    starts, ends = (np.zeros((len(members), ranks)) for _ in range(2))
    for span in spans:
        if span.stream.startswith("member "):
            number = int(span.stream.removeprefix("member "))
            starts[number, span.rank], ends[number, span.rank] = span.start, span.end
    times = [{op.name: logs[op.name] for op in member.collectives if op.duration is None} for member in members]
    return [
        CoScheduledTimes(start, end, {name: (log.enter, log.end) for name, log in own.items()})
        for start, end, own in zip(starts, ends, times, strict=True)
    ]
