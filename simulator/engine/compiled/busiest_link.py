"""Which link is the bottleneck, and how long it is busy, where there are too many transfers to book every link.

Bytes are counted by rounds, so no transfer is written out; times are looked up only for the flows on the busiest link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import added
from simulator.cluster.routing import Router
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.collective_solver import CollectiveTimes
from simulator.records.timeline import LinkUse

# A collective on its links, the origin of its times [s], and these times.
PlayedCollective = tuple[RoutedCollective, float, CollectiveTimes]


def busiest_link(collectives: Sequence[PlayedCollective], router: Router) -> tuple[LinkUse, ...]:
    """Use of the link whose bytes take longest at its bandwidth, the first of several; empty if none carries any."""
    nbytes = np.zeros(len(router.bandwidth))
    repetitions: dict[int, int] = {}
    routed_collectives = {id(routed): routed for routed, _, _ in collectives}
    for routed, _, _ in collectives:
        repetitions[id(routed)] = repetitions.get(id(routed), 0) + 1
    for number, routed in routed_collectives.items():
        routes = routed.routes
        carried = repetitions[number] * routed.traffic.bytes_by_route[routes.route]
        on_fabric = routes.link < len(nbytes)
        np.add.at(nbytes, routes.link[on_fabric], carried[on_fabric])
    link = int(np.argmax(nbytes / np.array(router.bandwidth)))
    if nbytes[link] == 0:
        return ()
    ways_over = {number: np.unique(w.routes.route[w.routes.link == link]) for number, w in routed_collectives.items()}
    using = [collective for collective in collectives if len(ways_over[id(collective[0])])]
    return (LinkUse(router.link_name(link), router.bandwidth[link], float(nbytes[link]), _busy(using, ways_over)),)


def _busy(collectives: Sequence[PlayedCollective], ways_over: Mapping[int, Ints]) -> float:
    """How long at least one flow is on the link, of collectives that cross it by these of their routes [s]."""
    # Process groups that share a solver share its times too, but not the routes by which they cross the link.
    total, known = 0.0, dict[tuple[int, int], tuple[Floats, Floats]]()
    for overlapping in _overlapping(collectives):
        seconds = _of_one_channel(overlapping[0], ways_over) if len(overlapping) == 1 else None
        if seconds is None:
            intervals = []
            for routed, origin, times in overlapping:
                key = id(routed), id(times)
                if key not in known:
                    known[key] = times.times_on(ways_over[id(routed)])
                enter, end = known[key]
                intervals.append((enter + origin, end + origin))
            seconds = _length_of_union(intervals)
        total += seconds
    return total


def _overlapping(collectives: Sequence[PlayedCollective]) -> Iterator[list[PlayedCollective]]:
    """Sets of collectives that may be in flight at one time, in order of time."""
    overlapping, until = list[PlayedCollective](), -math.inf
    for collective in sorted(collectives, key=lambda collective: collective[1]):
        _, origin, times = collective
        if origin >= until and overlapping:
            yield overlapping
            overlapping = []
        overlapping.append(collective)
        until = max(until, origin + float(times.done.max()))
    if overlapping:
        yield overlapping


def _of_one_channel(collective: PlayedCollective, ways_over: Mapping[int, Ints]) -> float | None:
    """How long a link is busy that one channel alone crosses [s]; None where several channels do.

    A channel is a FIFO, so its flows never overlap, and the sum of their durations is the answer. That needs each flow
    to have gone at its own rate, which is not sure where flows were followed one by one.
    """
    routed, _, times = collective
    routes = ways_over[id(routed)]
    low, high, _ = routed.traffic.channels
    if times.by_flow or len({*low[routes].tolist(), *high[routes].tolist()}) > 1:
        return None
    return float((routed.traffic.bytes_by_route[routes] / routed.routes.rate[routes]).sum())


def _length_of_union(intervals: Sequence[tuple[Floats, Floats]]) -> float:
    """How long at least one of many (enter, end) holds [s]."""
    enter, end = (np.concatenate([pair[side] for pair in intervals]) for side in (0, 1))
    order = np.argsort(enter, kind="stable")
    return float(added(enter[order], end[order], np.zeros(len(order), np.int64)).sum())
