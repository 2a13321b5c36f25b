"""Estimates a collective's time where no closed form is exact; used to choose an algorithm, never reported as a time.

Rule: no clock. All transfers of a round are assumed to flow at once and to share links evenly; the rule of transfers
then gives each one's start from the ends of those that it waits for. No estimate is shorter than the time that the
busiest link needs for its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulator.cluster.cluster import Cluster
from simulator.collectives.caps import nodes_of, rate_caps
from simulator.records.chunks import timed_sizes, transfer_elements
from simulator.records.operation import Collective
from simulator.records.transfer_rule import enter
from simulator.records.transfers import write_out

# Most transfers of a schedule that is estimated; with more, the estimate itself would take seconds.
_MOST = 20_000


def estimate(cluster: Cluster, op: Collective) -> float | None:
    """Time from the start to the end of the last transfer [s]; None where there are too many transfers to estimate."""
    if op.schedule.has_more_than(_MOST):
        return None
    transfers = write_out(op.schedule)
    vertices = tuple(cluster.ranks[rank] for rank in op.group) + op.auxiliaries
    carried = transfer_elements(transfers, timed_sizes(op.schedule, op.elements))
    nbytes = (carried * np.where(transfers.reduce, op.reduce_itemsize, op.itemsize)).tolist()
    src, dst, before = transfers.src.tolist(), transfers.dst.tolist(), transfers.before_on_channel.tolist()
    routes = _routes(cluster, vertices, sorted(set(zip(src, dst, strict=True))))
    waits, bandwidth = transfers.waits_of(), cluster.router.bandwidth
    nodes = nodes_of(cluster.node_of(), op.group, len(vertices))
    caps = rate_caps(nodes, transfers.src, transfers.dst, op.rate_cap, op.cross_rate_cap).tolist()
    load: dict[int, float] = {}
    ends: list[float] = []
    for part in op.schedule.rounds():
        numbers = range(len(ends), len(ends) + len(part))
        users: dict[int, int] = {}
        for number in numbers:
            for link in routes[src[number], dst[number]][0]:
                users[link] = users.get(link, 0) + 1
                load[link] = load.get(link, 0.0) + nbytes[number]
        for number in numbers:
            links, latency = routes[src[number], dst[number]]
            rate = min([caps[number], *(bandwidth[link] / users[link] for link in links)])
            ready = max([ends[awaited] for awaited in waits[number]], default=op.startup)
            previous = ends[before[number]] if before[number] >= 0 else -math.inf
            ends.append(enter(ready, latency, previous) + nbytes[number] / rate)
    busiest = max((carried / bandwidth[link] for link, carried in load.items()), default=0.0)
    return max([op.startup + busiest, *ends])


def _routes(
    cluster: Cluster, vertices: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[list[int], float]]:
    """Links and latency by source and destination, as participants."""
    index = np.array([cluster.router.index[vertex] for vertex in vertices])
    table = cluster.router.routes(*index[np.array(pairs, np.int64).reshape(-1, 2)].T)
    cuts = np.searchsorted(table.route, np.arange(len(pairs) + 1))
    links, latency = table.link.tolist(), table.latency.tolist()
    return {pair: (links[cuts[i] : cuts[i + 1]], latency[i]) for i, pair in enumerate(pairs)}
