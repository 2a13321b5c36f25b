"""One rank for all: where every rank does the same at the same time, one is played and stands for the others.

Rule: a transformation before the engine, and only where nothing tells ranks apart: equal GPUs, no jitter, one program.
A collective without a closed form is played once, alone, on the whole cluster, and that time stands for it wherever it
comes. Where ranks end it apart (boxes at unlike distances) it is taken to end with the last, as closed forms do; the
step is then that of the last rank, to within what lies between the first and the last end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.cluster.cluster import Cluster
from simulator.engine.events import execute
from simulator.program import Collective, Compute, Op, Program
from simulator.timeline import Timeline

NAME = "fold"
# Where ranks end their collectives farther apart than this share of a step, no rank can stand for all. Networks whose
# links are alike stay below it; one with a slowed link is off by several per cent (both seen, not proven).
_APART: Final = 0.02


def folded(cluster: Cluster, program: Program) -> Program | None:
    """The program of one rank with every collective's time, or None where one rank cannot stand for all."""
    alike = len(set(map(id, program.ranks))) == 1 and all(speed == 1.0 for speed in cluster.speeds)
    if not alike or len({gpu.name for gpu in cluster.gpus}) > 1 or len(program.ranks) != cluster.world_size:
        return None
    known: dict[tuple[int, int, int], tuple[float, float]] = {}
    ops: list[Op] = []
    apart = total = 0.0
    for op in program.ranks[0]:
        if not isinstance(op, Collective):
            ops.append(op)
            continue
        # Servers have links that several streams may want at once.
        if len(op.group) != cluster.world_size or op.stream != "communication":
            return None
        duration = op.duration
        if duration is None:
            key = (id(op.schedule), op.elements, op.itemsize)
            if key not in known:
                known[key] = _alone(cluster, op)
            first, duration = known[key]
            apart += duration - first
            total += duration
        ops.append(replace(op, group=(0,), extras=(), duration=duration))
    work = sum(op.duration for op in ops if isinstance(op, Compute))
    return None if apart > _APART * max(total, work) else Program((tuple(ops),))


def _alone(cluster: Cluster, op: Collective) -> tuple[float, float]:
    """When the first and the last rank end a collective that all begin together [s]."""
    timeline = execute(Program(((replace(op, after=()),),) * cluster.world_size), cluster)
    ends = [span.end for span in timeline.spans]
    return min(ends), max(ends)


def expanded(timeline: Timeline, ranks: int) -> Timeline:
    """The one rank's spans for every rank; its memory stands for theirs."""
    spans = tuple(replace(span, rank=rank) for rank in range(ranks) for span in timeline.spans)
    return replace(timeline, engine=NAME, spans=spans)
