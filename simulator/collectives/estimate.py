"""Estimates a collective's time if no closed form is exact, or bounds the time; never reported as a time.

There is no clock. Transfers in the same round are assumed to run at once and to share links evenly. The rule of
transfers then gives each transfer's start from the ends of the transfers before. No estimate is shorter than the time
that the busiest link needs for its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.cluster.caps import nodes_of, rate_caps, stays_inside
from simulator.cluster.cluster import Cluster
from simulator.cluster.library import Way
from simulator.records.chunks import timed_sizes, transfer_elements
from simulator.records.operation import Collective
from simulator.records.transfer_rule import enter, enters
from simulator.records.transfers import Transfers, write_out

# Maximum transfers in a schedule to be estimated; with more, the estimate would take seconds.
_MOST = 300_000
# In a round with more transfers, the first ranks' alone show how flows share links, of at least two large nodes.
_MOST_IN_A_ROUND = 2**14
_FEWEST_SENDERS = 32


class _Ways(NamedTuple):
    """Routes for t transfers as arrays with link numbers, concatenated."""

    link: Ints  # links on the route of the first transfer, then the second, and so on, shape (l,)
    start: Ints  # index in `link` at which each route begins; no route is empty; shape (t,)
    latency: Floats  # latency of each route [s], shape (t,)


def estimate(cluster: Cluster, op: Collective) -> float | None:
    """Return an estimate of a collective's time on an idle cluster [s]; None if there are too many transfers."""
    if op.schedule.has_more_than(_MOST):
        return None
    ends, busiest = _ends(cluster, op)
    return float(max(op.startup + busiest, ends.max(initial=op.startup)))


def apart(cluster: Cluster, op: Collective) -> float:
    """Return the estimated time between the first and the last rank's receipt of all data in a collective [s].

    With too many transfers, the result is the sum of the largest latency in each round: equal transfers in a round end
    at most this far apart.
    """
    if op.schedule.has_more_than(_MOST):
        rounds = (part.round for part in op.schedule.repeats())
        return sum(float(_ways(cluster, op, step.src, step.dst).latency.max(initial=0.0)) for step in rounds)
    ends, _ = _ends(cluster, op)
    # A rank that receives nothing, such as a broadcast's root, counts from the start-up on.
    received = np.full(len(op.group) + len(op.auxiliaries), op.startup)
    receivers = [np.tile(part.round.dst, part.times) for part in op.schedule.repeats()]
    np.maximum.at(received, np.concatenate(receivers) if receivers else np.zeros(0, int), ends)
    of_ranks = received[: len(op.group)]
    return float(of_ranks.max() - of_ranks.min())


class EvenShare(NamedTuple):
    """Rate of a collective's slowest flow [B/s], if flows divide each link evenly, and the most flows at once.

    Inside a node, these are flows of a GPU; between nodes, flows of a whole node.
    """

    rate: float
    flows: int


def even_shares(cluster: Cluster, op: Collective, at_once: Iterable[tuple[Ints, Ints]]) -> dict[Way | None, EvenShare]:
    """Return the even share of a collective's flows inside nodes, by way, and of flows between nodes under None.

    `at_once` yields sources and destinations of transfers that run at once, such as a round's. Inside a node, only the
    ports of the sending and the receiving GPU count, and not links in between, such as the uplink of a PCIe switch. Of
    many transfers at once, those of the first ranks stand for all, and the first sets for the rest.
    """
    ranks = len(op.group)
    nodes = nodes_of(cluster.node_of(), op.group, ranks + len(op.auxiliaries))
    bandwidth, by_pcie = np.array(cluster.router.bandwidth), cluster.remember(_pcie_links, lambda: _pcie_links(cluster))
    slowest, pairs_of_rounds = dict[Way | None, EvenShare](), set[bytes]()
    for senders, receivers in at_once:
        first = max(_FEWEST_SENDERS, ranks * _MOST_IN_A_ROUND // max(1, len(senders)))
        sent = senders < first if len(senders) > _MOST_IN_A_ROUND else slice(None)
        src, dst = senders[sent], receivers[sent]
        # Rounds of other pieces take the same routes.
        pairs = src.tobytes() + dst.tobytes()
        if not len(src) or pairs in pairs_of_rounds:
            continue
        pairs_of_rounds.add(pairs)
        ways = _ways(cluster, op, src, dst)
        rates, ends = _rates(ways, bandwidth), np.append(ways.start[1:], len(ways.link))
        ports, within = np.minimum(rates[ways.start], rates[ends - 1]), stays_inside(nodes[src], nodes[dst])
        pcie, cable = np.logical_or.reduceat(by_pcie[ways.link], ways.start), ends - ways.start == 1
        flows: dict[Way | None, tuple[Bools, Floats]] = {
            "pcie": (within & pcie, ports),
            "cable": (within & ~pcie & cable, ports),
            "switch": (within & ~pcie & ~cable, ports),
            None: (~within, np.minimum.reduceat(rates, ways.start)),
        }
        for way, (mask, shares) in flows.items():
            if mask.any():
                sources = (nodes[src[mask]],) if way is None else (src[mask & (src < ranks)], dst[mask & (dst < ranks)])
                count = max(int(np.bincount(source).max(initial=1)) for source in sources)
                rate, most = slowest.get(way, EvenShare(inf, 1))
                slowest[way] = EvenShare(min(rate, float(shares[mask].min())), max(most, count))
        if sum(map(len, pairs_of_rounds)) > _MOST * 2 * src.itemsize:
            break
    return slowest


def _pcie_links(cluster: Cluster) -> Bools:
    """Return which links of a cluster are PCIe, shape (links,): they end at a processor, a card, or a switch of these.

    An NVSwitch leads to GPUs, and to other NVSwitches, alone.
    """
    kind = cluster.graph.nodes
    tree = {name for name in kind if kind[name]["kind"] in ("host", "nic")}
    waiting = list(tree)
    while waiting:
        switches = {near for near in cluster.graph[waiting.pop()] if kind[near]["kind"] == "switch"} - tree
        tree |= switches
        waiting += switches
    names = (cluster.router.link_name(link).split("->") for link in range(len(cluster.router.bandwidth)))
    return np.array([src in tree or dst in tree for src, dst in names])


def _rates(ways: _Ways, bandwidth: Floats) -> Floats:
    """Return the rate of each transfer on each link of its route, if all share every link evenly, shape (l,) [B/s]."""
    return np.asarray(bandwidth[ways.link] / np.bincount(ways.link, minlength=len(bandwidth))[ways.link])


def _ends(cluster: Cluster, op: Collective) -> tuple[Floats, float]:
    """Return each transfer's estimated end [s], shape (t,), and the time of the busiest link for its bytes [s]."""
    transfers = write_out(op.schedule)
    nbytes = _carried(op, transfers)
    nodes = nodes_of(cluster.node_of(), op.group, len(op.group) + len(op.auxiliaries))
    bandwidth = np.array(cluster.router.bandwidth)
    load, ends, begin = np.zeros(len(bandwidth)), np.full(len(transfers), op.startup), 0
    for part in op.schedule.repeats():
        src, dst, size = part.round.src, part.round.dst, len(part.round)
        ways = _ways(cluster, op, src, dst)
        # Every flow on a link gets an equal share; a flow's rate is its smallest share, or its cap.
        shares = np.minimum.reduceat(_rates(ways, bandwidth), ways.start)
        rate = np.minimum(shares, rate_caps(nodes, src, dst, op.caps.inside, op.caps.across))
        volumes = nbytes[begin : begin + size * part.times].reshape(part.times, size)
        load += _load(ways, volumes, len(bandwidth))
        for turn in range(part.times):
            # In repetition `turn`, waits refer to transfers that are `turn` rounds later.
            waits = np.where(part.round.waits >= 0, part.round.waits + turn * size, -1)
            before = transfers.before_on_channel[begin : begin + size].astype(np.int64)
            _end(ends, begin, waits, before, ways.latency, volumes[turn] / rate, op.startup)
            begin += size
    return ends, float((load / bandwidth).max(initial=0.0))


def least(cluster: Cluster, op: Collective) -> float:
    """Return a lower bound on a collective's simulated time [s]: start-up plus the busiest link's time for its bytes.

    Waits and shared rates only add time, while every byte passes the links on its route, and routes are fixed by the
    cluster. With too many transfers, the bound is the start-up time alone.
    """
    if op.schedule.has_more_than(_MOST):
        return op.startup
    nbytes, bandwidth, begin = _carried(op, write_out(op.schedule)), np.array(cluster.router.bandwidth), 0
    load = np.zeros(len(bandwidth))
    for part in op.schedule.repeats():
        count = len(part.round) * part.times
        load += _load(_ways(cluster, op, part.round.src, part.round.dst), nbytes[begin : begin + count], len(bandwidth))
        begin += count
    return op.startup + float((load / bandwidth).max(initial=0.0))


def _carried(op: Collective, transfers: Transfers) -> Floats:
    """Return the bytes that each transfer carries, shape (t,) [B]."""
    carried = transfer_elements(transfers, timed_sizes(op.schedule, op.elements))
    return np.asarray(carried * np.where(transfers.reduce, op.sizes.reduced, op.sizes.copied))


def _load(ways: _Ways, nbytes: Floats, links: int) -> Floats:
    """Return the bytes [B] that a round's transfers put on each link, shape (links,); `ways` are the routes.

    `nbytes` has each transfer's bytes in each repetition; repetitions are summed.
    """
    volumes = nbytes.reshape(-1, len(ways.start)).sum(axis=0)
    hops = np.diff(np.append(ways.start, len(ways.link)))
    return np.bincount(ways.link, np.repeat(volumes, hops), links).astype(np.float64)


def _end(ends: Floats, begin: int, waits: Ints, before: Ints, latency: Floats, takes: Floats, startup: float) -> None:
    """Write the end times [s] for a round's transfers into `ends`, from index `begin` on.

    A transfer starts after the transfers in `waits`, after the previous transfer on the channel (`before`), and after
    the latency; the transfer then lasts `takes`.
    """
    if max(waits.max(initial=-1), before.max(initial=-1)) < begin:
        # Common case: no transfer waits within its own round, so the whole round is a few numpy calls.
        ready = np.where(waits >= 0, ends[waits], startup).max(axis=1, initial=startup)
        previous = np.where(before >= 0, ends[before], -np.inf)
        ends[begin : begin + len(takes)] = enters(ready, latency, previous) + takes
        return
    # Transfers with waits in the same round (chains, trees) are computed in schedule order, each by itself.
    rows = zip(waits.tolist(), before.tolist(), latency.tolist(), takes.tolist(), strict=True)
    for number, (awaited, behind, away, lasts) in enumerate(rows, begin):
        come = max((float(ends[other]) for other in awaited if other >= 0), default=startup)
        ends[number] = enter(come, away, float(ends[behind]) if behind >= 0 else -np.inf) + lasts


def _ways(cluster: Cluster, op: Collective, src: Ints, dst: Ints) -> _Ways:
    vertices = tuple(cluster.ranks[rank] for rank in op.group) + op.auxiliaries
    index = np.array([cluster.router.index[vertex] for vertex in vertices])
    table = cluster.router.routes(index[src], index[dst])
    return _Ways(table.link, np.searchsorted(table.route, np.arange(len(src))), table.latency)
