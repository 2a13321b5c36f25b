"""Which link is the bottleneck, and how long is it busy, if booking every link would take too many transfers?

Bytes on each link are counted from the rounds before the simulation; the core then reports the flows on the busiest
link only.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import added
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.prepared import CoreProgram
from simulator.records.timeline import LinkUse


def busiest_link(prepared: CoreProgram) -> tuple[int, float] | None:
    """Return the link whose bytes take longest at the link's bandwidth, and these bytes; None if nothing is sent.

    Ties go to the lowest link number.
    """
    bandwidth = np.array(prepared.cluster.router.bandwidth)
    nbytes = np.zeros(len(bandwidth))
    times: Counter[int] = Counter()
    every: dict[int, RoutedCollective] = {}
    # A collective object may stand for many operations; count how often each is carried out.
    for count, kind in zip(prepared.program.lists.times, prepared.routed, strict=True):
        for routed in kind:
            if routed is not None:
                every[id(routed)] = routed
                times[id(routed)] += count
    for number, routed in every.items():
        carried = times[number] * routed.traffic.bytes_by_route[routed.routes.route]
        # Higher numbers are HBM, not links in the network.
        on_fabric = routed.routes.link < len(nbytes)
        np.add.at(nbytes, routed.routes.link[on_fabric], carried[on_fabric])
    link = int(np.argmax(nbytes / bandwidth)) if len(nbytes) else 0
    return (link, float(nbytes[link])) if len(nbytes) and nbytes[link] > 0 else None


def routes_over(prepared: CoreProgram, link: int) -> dict[tuple[int, int], Ints]:
    """Return the routes that cross a link, keyed by collective: (kind, simulated process group)."""
    over: dict[tuple[int, int], list[Ints]] = {}
    for kind, members in enumerate(prepared.routed):
        for member, routed in enumerate(members):
            routes = np.zeros(0, np.int64) if routed is None else routed.routes.route[routed.routes.link == link]
            representative = prepared.played_member(kind, member)
            playable = prepared.kinds[kind].playables[representative]
            if routed is None or playable is None or not len(routes):
                continue
            # Rows on these routes, translated to the simulated rows.
            on_routes = np.isin(np.concatenate([part.route_of for part in routed.traffic.parts]), routes)
            rows = np.unique(prepared.played_rows(kind, member, routed)[on_routes])
            over.setdefault((kind, representative), []).append(playable.route_of[rows])
    return {representative: np.unique(np.concatenate(routes)) for representative, routes in over.items()}


def link_use(prepared: CoreProgram, link: int, nbytes: float, flows: Floats) -> LinkUse:
    """Return a link's bandwidth, carried bytes and busy time [s], given its flows' pairs (enter, end) [s]."""
    order = np.argsort(flows[:, 0], kind="stable")
    enter, end = flows[order].T
    busy = float(added(enter, end, np.zeros(len(order), np.int64)).sum())
    router = prepared.cluster.router
    return LinkUse(router.link_name(link), router.bandwidth[link], nbytes, busy)
