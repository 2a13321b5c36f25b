"""The link whose bytes take longest, where there are too many transfers to keep books of all links.

Rule: bytes are counted by rounds; times are looked up for the flows of that one link.
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

# A collective on its links, from when on, and what became of it.
PlayedCollective = tuple[RoutedCollective, float, CollectiveTimes]


def busiest_link(collectives: Sequence[PlayedCollective], router: Router) -> tuple[LinkUse, ...]:
    """The first of the links whose bytes take longest at their bandwidth; nothing where none carries any."""
    nbytes = np.zeros(len(router.bandwidth))
    times: dict[int, int] = {}
    routed_collectives = {id(routed): routed for routed, _, _ in collectives}
    for routed, _, _ in collectives:
        times[id(routed)] = times.get(id(routed), 0) + 1
    for number, routed in routed_collectives.items():
        routes = routed.routes
        carried = times[number] * routed.traffic.bytes_by_route[routes.route]
        there = routes.link < len(nbytes)
        np.add.at(nbytes, routes.link[there], carried[there])
    link = int(np.argmax(nbytes / np.array(router.bandwidth)))
    if nbytes[link] == 0:
        return ()
    over = {number: np.unique(w.routes.route[w.routes.link == link]) for number, w in routed_collectives.items()}
    taking = [collective for collective in collectives if len(over[id(collective[0])])]
    return (LinkUse(router.link_name(link), router.bandwidth[link], float(nbytes[link]), _busy(taking, over)),)


def _busy(collectives: Sequence[PlayedCollective], over: Mapping[int, Ints]) -> float:
    """How long at least one flow was on a link, of collectives that go over it by these of their routes [s]."""
    # Groups of one shape share what was played, though not the routes by which they take a link.
    total, known = 0.0, dict[tuple[int, int], tuple[Floats, Floats]]()
    for together in _overlapping(collectives):
        own = _of_one_channel(together[0], over) if len(together) == 1 else None
        if own is None:
            intervals = []
            for routed, zero, played in together:
                key = id(routed), id(played)
                if key not in known:
                    known[key] = played.on(over[id(routed)])
                intervals.append(_later(known[key], zero))
            own = _length(intervals)
        total += own
    return total


def _overlapping(collectives: Sequence[PlayedCollective]) -> Iterator[list[PlayedCollective]]:
    """Those that may be under route at one time, in order of time."""
    together, until = list[PlayedCollective](), -math.inf
    for collective in sorted(collectives, key=lambda collective: collective[1]):
        _, zero, played = collective
        if zero >= until and together:
            yield together
            together = []
        together.append(collective)
        until = max(until, zero + float(played.done.max()))
    if together:
        yield together


def _of_one_channel(collective: PlayedCollective, over: Mapping[int, Ints]) -> float | None:
    """Where one channel alone takes a link its flows follow each other, each at its own rate; None elsewhere [s]."""
    routed, _, played = collective
    routes = over[id(routed)]
    low, high, _ = routed.traffic.channels
    if played.by_flow or len({*low[routes].tolist(), *high[routes].tolist()}) > 1:
        return None
    return float((routed.traffic.bytes_by_route[routes] / routed.routes.rate[routes]).sum())


def _later(times: tuple[Floats, Floats], zero: float) -> tuple[Floats, Floats]:
    return times[0] + zero, times[1] + zero


def _length(intervals: Sequence[tuple[Floats, Floats]]) -> float:
    """Of the union [s]."""
    enter, end = (np.concatenate([pair[side] for pair in intervals]) for side in (0, 1))
    order = np.argsort(enter, kind="stable")
    return float(added(enter[order], end[order], np.zeros(len(order), np.int64)).sum())
