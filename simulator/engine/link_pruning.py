"""Link pruning: which links could ever be a bottleneck of two flows; an engine need not watch the others.

Rule: looks at all routes of a program before it is played, and prunes a link that cannot change any rate:
- a link that only one channel of one collective uses never has two flows, for a channel is a FIFO;
- a link that all flows that can be on it at once cannot fill, each at the rate that it has alone, holds nobody back;
- a link is never the bottleneck if all its users also use another one that is as narrow or narrower for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.basics.tolerances import SUM_OF_RATES
from simulator.engine.routes import Routes


@dataclass(frozen=True, slots=True)
class PotentialFlows:
    """The flows that can be under way at once, of collectives that are alike in everything but their sizes.

    Attributes
    ----------
    routes : Routes
    low, high, flows : int array, shape (routes,)
        The lowest and the highest channel that takes each, and how many do: so many flows it can have at once.
    src, dst : int array, shape (routes,)
        Whose flows they are: ranks; below 0 servers and switches.
    stream : str
        Of the ranks.
    times : int
        How many such collectives there are.
    """

    routes: Routes
    low: Ints
    high: Ints
    flows: Ints
    src: Ints
    dst: Ints
    stream: str
    times: int


def prune_links(every: Sequence[PotentialFlows], capacity: Floats) -> list[Bools]:
    """For each link of each route whether it stays: whether flows can meet there and it can be their bottleneck."""
    contended = _shared(every, len(capacity)) & (_demands(every, len(capacity)) > capacity * (1.0 + SUM_OF_RATES))
    kept = contended.copy()
    # Two links may each rule the other; one of them must stay, so a link goes only while another that rules it is kept.
    for link, others in _ruled(every, contended, capacity):
        if kept[others].any():
            kept[link] = False
    return [kept[one.routes.link] for one in every]


def all_links(every: Sequence[PotentialFlows]) -> list[Bools]:
    """The same shape with nothing left out: slower, and true whatever `prune_links` takes for granted."""
    return [np.ones(len(one.routes.link), np.bool_) for one in every]


def _shared(every: Sequence[PotentialFlows], links: int) -> Bools:
    """Links that several channels take."""
    low, high = np.full(links, np.iinfo(np.int64).max), np.full(links, -1)
    base = 0
    for one in every:
        route, link = one.routes.route, one.routes.link
        np.minimum.at(low, link, base + one.low[route])
        np.maximum.at(high, link, base + one.high[route])
        base += int(one.high.max(initial=-1)) + 1
        if one.times > 1:
            # Two collectives of one stream follow each other at a rank, not at a server or a switch.
            np.maximum.at(high, link[((one.src < 0) | (one.dst < 0))[route]], base)
            base += 1
    return np.asarray(high > low)


def _demands(every: Sequence[PotentialFlows], links: int) -> Floats:
    """By link: the most that flows can ask of it at once [B/s].

    A rank's stream carries out one collective at a time, and a flow belongs to that of its source and to that of its
    destination: of either's collectives only the most demanding counts. A server or switch may be at all of its own.
    """
    least = np.full(links, np.inf)
    streams = {one.stream: number for number, one in enumerate(every)}
    for side in ("src", "dst"):
        keys: list[Ints] = [np.zeros(0, np.int64)]
        demands: list[Floats] = [np.zeros(0)]
        beyond = (max((int(getattr(one, side).max(initial=-1)) for one in every), default=-1) + 1) * len(every)
        ends = beyond + sum(int((-getattr(one, side)).max(initial=0)) for one in every) + 1
        for one in every:
            whose = getattr(one, side)
            rank = whose >= 0
            # Ranks by stream; behind them everybody else, each a number of its own.
            end = np.where(rank, whose * len(every) + streams[one.stream], beyond - 1 - whose)
            flow = one.flows * one.routes.rate * np.where(rank, 1, one.times)
            asked = flow[one.routes.route] * one.routes.weight
            key, place = np.unique(one.routes.link * ends + end[one.routes.route], return_inverse=True)
            keys.append(key)
            demands.append(np.bincount(place, asked, len(key)).astype(np.float64))
            beyond += int((-whose).max(initial=0))
        key, place = np.unique(np.concatenate(keys), return_inverse=True)
        most = np.zeros(len(key))
        np.maximum.at(most, place, np.concatenate(demands))
        least = np.minimum(least, np.bincount(key // ends, most, links))
    return least


def _ruled(every: Sequence[PotentialFlows], contended: Bools, capacity: Floats) -> Iterator[tuple[int, list[int]]]:
    """Links on which flows can meet that never are the bottleneck, from the highest on, and which others see to that.

    Another one does if all users take it too, and it is as narrow or narrower for each of them.
    """
    users = np.zeros(len(capacity), np.int64)
    pairs = [np.zeros(0, np.int64)]
    for one in every:
        rows = np.flatnonzero(contended[one.routes.link])
        route, link = one.routes.route[rows], one.routes.link[rows]
        narrow = one.routes.weight[rows] / capacity[link]
        users += np.bincount(link, minlength=len(users))
        for apart in range(1, int(np.bincount(route).max(initial=1))):
            same = np.flatnonzero(route[apart:] == route[:-apart])
            for ruled, ruling in ((same, same + apart), (same + apart, same)):
                narrower = narrow[ruling] >= narrow[ruled]
                pairs.append(link[ruled[narrower]] * len(capacity) + link[ruling[narrower]])
    pair, count = np.unique(np.concatenate(pairs), return_counts=True)
    others: dict[int, list[int]] = {}
    for key in pair[count == users[pair // len(capacity)]].tolist():
        others.setdefault(key // len(capacity), []).append(key % len(capacity))
    for own in sorted(others, reverse=True):
        yield own, others[own]
