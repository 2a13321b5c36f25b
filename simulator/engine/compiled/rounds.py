"""When each transfer of one collective enters and ends: step by step of its layout, all transfers of a step at once.

The rule of transfers (docs/design.md): a transfer enters at max(ready + latency, end of the previous one on its
channel), where it is ready when all that it waits for has ended, and ends when its bytes are through. Flows are taken
to share no link, except inside flow groups that enter together; whether this holds is checked afterwards
(`contention`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.tolerances import LOST_BY_ADDITION
from simulator.collectives.recurrence import advance
from simulator.collectives.uneven import advance_uneven
from simulator.engine.compiled.layout import Layout, PipelinedRing, TransferBatch


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Times of a collective by slot of its layout.

    Attributes
    ----------
    enter, end : float array, shape (slots,)
        Of a pipelined ring's slots the enter of the first repetition and the end of the last [s].
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    flow_group : int array, shape (slots,)
        Equal for flows whose shares were solved together; -1 for those that were taken to be alone.
    """

    enter: Floats
    end: Floats
    done: Floats
    flow_group: Ints


def play(layout: Layout, start: Floats) -> SlotTimes:
    """Play from when each rank has reached the collective and paid its start-up, shape (ranks of the group,) [s]."""
    slots = len(layout.src)
    # Servers and switches are always there, but nothing happens before the first rank has come.
    ranks, auxiliary = layout.traffic.schedule.world_size, layout.traffic.schedule.auxiliaries
    present = np.concatenate([start, np.full(auxiliary, start.min())])
    enter = np.maximum(present[layout.src], present[layout.dst])
    # One slot more, which index -1 finds: who waits for nothing waits for what ended long ago.
    end = np.full(slots + 1, -np.inf)
    flow_group, flow_groups = np.full(slots, -1), 0
    for step in layout.steps:
        if isinstance(step, PipelinedRing):
            _play_ring(layout, step, enter, end)
            continue
        _play_batch(layout, step, enter, end)
        if step.flow_groups is not None:
            # Flows of groups that do not enter together keep the duration that they have alone. The check for
            # contention then finds them, and the events engine solves the collective.
            own = enter[step.first : step.last]
            together = step.flow_groups.entering_together(own)
            flow = step.flow_groups.flow[together]
            end[step.first + flow] = own[flow] + step.flow_groups.duration[together]
            flow_group[step.first + flow] = flow_groups + step.flow_groups.flow_group[together]
            flow_groups += len(step.flow_groups.flow)
    done = np.concatenate([start, np.full(auxiliary, -np.inf)])
    np.maximum.at(done, layout.src, end[:-1])
    np.maximum.at(done, layout.dst, end[:-1])
    return SlotTimes(enter, end[:-1], _without_rounding(done[:ranks], layout), flow_group)


def _without_rounding(done: Floats, layout: Layout) -> Floats:
    """The latest time for all ranks, if they differ by no more than the additions that led there may round off.

    Ranks that keep step then end at one time to the bit, so that one number goes on standing for all of them.
    """
    additions = sum(part.repeat.times for part in layout.traffic.parts)
    last = done.max()
    return np.full(len(done), last) if last - done.min() <= additions * LOST_BY_ADDITION * last else done


def _play_batch(layout: Layout, batch: TransferBatch, enter: Floats, end: Floats) -> None:
    """Write enter and end of a batch's slots; `enter` holds when both ends of a transfer are there."""
    slots = slice(batch.first, batch.last)
    own = enter[slots]
    if batch.gate is None:
        for awaited in batch.after:
            np.maximum(own, end[awaited], out=own)
    elif batch.after:
        np.maximum(own, np.max([end[awaited] for awaited in batch.after], axis=0)[batch.gate], out=own)
    # Latency runs while the channel may still be busy, so it does not block the sender.
    own += layout.latency[slots]
    if batch.previous is not None:
        np.maximum(own, end[batch.previous], out=own)
    np.add(own, batch.duration, out=end[slots])


def _play_ring(layout: Layout, ring: PipelinedRing, enter: Floats, end: Floats) -> None:
    """Go from the ends of the round before to those of the last repetition, by a recurrence."""
    part, order = layout.traffic.parts[ring.part], ring.order
    length = ring.last - ring.first
    now = end[ring.first - length : ring.first][order]
    latency = layout.latency[ring.first : ring.last][order]
    rate = layout.routes.rate[part.route_of][order]
    # A hop waits for its predecessor on the ring and for its own last transfer, which is ahead of it on its channel.
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
        if isinstance(step, TransferBatch):
            enters.append(times.enter[step.first : step.last][mine])
            ends.append(times.end[step.first : step.last][mine])
        elif mine.any():
            for enter, end in _repetitions(layout, step, times):
                enters.append(enter[mine])
                ends.append(end[mine])
    return np.concatenate(enters), np.concatenate(ends)


def _repetitions(layout: Layout, ring: PipelinedRing, times: SlotTimes) -> Iterator[tuple[Floats, Floats]]:
    """Enter and end of each repetition's transfers, by row of the round: what the recurrence jumps over."""
    part, order = layout.traffic.parts[ring.part], ring.order
    length = ring.last - ring.first
    predecessor = np.empty(length, np.int64)
    predecessor[order] = np.roll(order, 1, axis=1)
    end = times.end[ring.first - length : ring.first]
    latency, rate = layout.latency[ring.first : ring.last], layout.routes.rate[part.route_of]
    nbytes = part.nbytes
    for _ in range(part.repeat.times):
        enter = np.maximum(end[predecessor] + latency, end)
        end = enter + nbytes / rate
        yield enter, end
        nbytes = nbytes if part.steady else nbytes[predecessor]
