"""One collective as arrays: step by step, every transfer of a step at once.

Rule: the rule of transfers (docs/design.md) as if nothing were shared but within flow groups; who could meet whom is
checked afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.tolerances import LOST_BY_ADDITION
from simulator.collectives.recurrence import advance
from simulator.collectives.uneven import advance_uneven
from simulator.engine.compiled.layout import Batch, Layout, PipelinedRing


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """What became of a collective, by slot of its layout.

    Attributes
    ----------
    enter, end : float array, shape (slots,)
        Of a lap's slots the enter of the first repetition and the end of the last [s].
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    flow_group : int array, shape (slots,)
        With whom a flow shares its links as it was solved; -1 for nobody.
    """

    enter: Floats
    end: Floats
    done: Floats
    flow_group: Ints


def play(layout: Layout, start: Floats) -> SlotTimes:
    """Play from when each rank has reached the operation and paid its start-up, shape (ranks,)."""
    slots = len(layout.src)
    # Servers and switches are always there, but nothing happens before the first rank has come.
    ranks, auxiliaries = layout.traffic.schedule.world_size, layout.traffic.schedule.auxiliaries
    began = np.concatenate([start, np.full(auxiliaries, start.min())])
    enter = np.maximum(began[layout.src], began[layout.dst])
    # What -1 stands for has ended long ago.
    end = np.full(slots + 1, -np.inf)
    flow_group, flow_groups = np.full(slots, -1), 0
    for step in layout.steps:
        if isinstance(step, PipelinedRing):
            _run_pipelined_ring(layout, step, enter, end)
            continue
        _run_batch(layout, step, enter, end)
        if step.flow_groups is not None:
            own = enter[step.first : step.last]
            together = step.flow_groups.entering_together(own)
            flow = step.flow_groups.flow[together]
            end[step.first + flow] = own[flow] + step.flow_groups.takes[together]
            flow_group[step.first + flow] = flow_groups + step.flow_groups.flow_group[together]
            flow_groups += len(step.flow_groups.flow)
    done = np.concatenate([start, np.full(auxiliaries, -np.inf)])
    np.maximum.at(done, layout.src, end[:-1])
    np.maximum.at(done, layout.dst, end[:-1])
    return SlotTimes(enter, end[:-1], _one_moment_if_rounding(done[:ranks], layout), flow_group)


def _one_moment_if_rounding(done: Floats, layout: Layout) -> Floats:
    """The same; one moment for all where they differ by no more than so many additions may lose."""
    additions = sum(part.repeat.times for part in layout.traffic.parts)
    last = done.max()
    return np.full(len(done), last) if last - done.min() <= additions * LOST_BY_ADDITION * last else done


def _run_batch(layout: Layout, batch: Batch, enter: Floats, end: Floats) -> None:
    part = slice(batch.first, batch.last)
    own = enter[part]
    if batch.gate is None:
        for slots in batch.after:
            np.maximum(own, end[slots], out=own)
    elif batch.after:
        np.maximum(own, np.max([end[slots] for slots in batch.after], axis=0)[batch.gate], out=own)
    own += layout.latency[part]
    if batch.before is not None:
        np.maximum(own, end[batch.before], out=own)
    np.add(own, batch.takes, out=end[part])


def _run_pipelined_ring(layout: Layout, ring: PipelinedRing, enter: Floats, end: Floats) -> None:
    """From the ends of the round before to those of the last repetition."""
    part, order = layout.traffic.parts[ring.part], ring.order
    length = ring.last - ring.first
    now = end[ring.first - length : ring.first][order]
    latency = layout.latency[ring.first : ring.last][order]
    rate = layout.routes.rate[part.route_of][order]
    enter[ring.first + order] = np.maximum(np.roll(now, 1, axis=1) + latency, now)
    nbytes = part.nbytes[order]
    if part.steady:
        now = advance(now, latency, nbytes / rate, part.repeat.times)
    else:
        now = advance_uneven(now, latency, nbytes, rate, part.repeat.times)
    end[ring.first + order] = now


def times_on_routes(layout: Layout, times: SlotTimes, routes: Ints) -> tuple[Floats, Floats]:
    """Enter and end of all transfers that take these routes, shape (k,) each [s]."""
    enters, ends = [np.zeros(0)], [np.zeros(0)]
    for step in layout.steps:
        mine = np.isin(layout.route_of[step.first : step.last], routes)
        if isinstance(step, Batch):
            enters.append(times.enter[step.first : step.last][mine])
            ends.append(times.end[step.first : step.last][mine])
        elif mine.any():
            for enter, end in _each_repetition(layout, step, times):
                enters.append(enter[mine])
                ends.append(end[mine])
    return np.concatenate(enters), np.concatenate(ends)


def _each_repetition(layout: Layout, ring: PipelinedRing, times: SlotTimes) -> Iterator[tuple[Floats, Floats]]:
    """Enter and end of every repetition's transfers, by row of the round."""
    part, order = layout.traffic.parts[ring.part], ring.order
    length = ring.last - ring.first
    behind = np.empty(length, np.int64)
    behind[order] = np.roll(order, 1, axis=1)
    end = times.end[ring.first - length : ring.first]
    latency, rate = layout.latency[ring.first : ring.last], layout.routes.rate[part.route_of]
    nbytes = part.nbytes
    for _ in range(part.repeat.times):
        enter = np.maximum(end[behind] + latency, end)
        end = enter + nbytes / rate
        yield enter, end
        nbytes = nbytes if part.steady else nbytes[behind]
