"""Which links two flows could ever hold each other back on; all others need not be watched.

Rule: looks at all routes of a program before it is played:
- a link that only one channel of one collective uses never has two flows, for a channel is a FIFO;
- a link that all flows that can be on it at once cannot fill, each at the rate that it has alone, holds nobody back;
- a link is never the bottleneck if all its users also use another one that is as narrow or narrower for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.routes import Routes

# Rounding of a sum of rates.
_FULL = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Laid:
    """The routes of collectives that are alike in everything but their sizes.

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


def useful_links(every: Sequence[Laid], capacity: Floats) -> list[Bools]:
    """For each link of each route whether flows can meet there and it can be the bottleneck."""
    meeting = _shared(every, len(capacity)) & (_demands(every, len(capacity)) > capacity * _FULL)
    useful = meeting.copy()
    for link, others in _ruled(every, meeting, capacity):
        if useful[others].any():
            useful[link] = False
    return [useful[laid.routes.link] for laid in every]


def all_links(every: Sequence[Laid]) -> list[Bools]:
    """The same shape with nothing left out: slower, and true whatever `useful_links` takes for granted."""
    return [np.ones(len(laid.routes.link), np.bool_) for laid in every]


def _shared(every: Sequence[Laid], links: int) -> Bools:
    """Links that several channels take."""
    low, high = np.full(links, np.iinfo(np.int64).max), np.full(links, -1)
    base = 0
    for laid in every:
        route, link = laid.routes.route, laid.routes.link
        np.minimum.at(low, link, base + laid.low[route])
        np.maximum.at(high, link, base + laid.high[route])
        base += int(laid.high.max(initial=-1)) + 1
        if laid.times > 1:
            # Two collectives of one stream follow each other at a rank, not at a server or a switch.
            np.maximum.at(high, link[((laid.src < 0) | (laid.dst < 0))[route]], base)
            base += 1
    return np.asarray(high > low)


def _demands(every: Sequence[Laid], links: int) -> Floats:
    """By link: the most that flows can ask of it at once [B/s].

    A rank's stream carries out one collective at a time, and a flow belongs to that of its source and to that of its
    destination: of either's collectives only the most demanding counts. A server or switch may be at all of its own.
    """
    least = np.full(links, np.inf)
    streams = {laid.stream: number for number, laid in enumerate(every)}
    for side in ("src", "dst"):
        keys: list[Ints] = [np.zeros(0, np.int64)]
        demands: list[Floats] = [np.zeros(0)]
        beyond = (max((int(getattr(laid, side).max(initial=-1)) for laid in every), default=-1) + 1) * len(every)
        ends = beyond + sum(int((-getattr(laid, side)).max(initial=0)) for laid in every) + 1
        for laid in every:
            whose = getattr(laid, side)
            rank = whose >= 0
            # Ranks by stream; behind them everybody else, each a number of its own.
            end = np.where(rank, whose * len(every) + streams[laid.stream], beyond - 1 - whose)
            flow = laid.flows * laid.routes.rate * np.where(rank, 1, laid.times)
            asked = flow[laid.routes.route] * laid.routes.weight
            key, place = np.unique(laid.routes.link * ends + end[laid.routes.route], return_inverse=True)
            keys.append(key)
            demands.append(np.bincount(place, asked, len(key)).astype(np.float64))
            beyond += int((-whose).max(initial=0))
        key, place = np.unique(np.concatenate(keys), return_inverse=True)
        most = np.zeros(len(key))
        np.maximum.at(most, place, np.concatenate(demands))
        least = np.minimum(least, np.bincount(key // ends, most, links))
    return least


def _ruled(every: Sequence[Laid], meeting: Bools, capacity: Floats) -> Iterator[tuple[int, list[int]]]:
    """Links on which flows can meet that never are the bottleneck, from the highest on, and which others see to that.

    Another one does if all users take it too, and it is as narrow or narrower for each of them.
    """
    users = np.zeros(len(capacity), np.int64)
    pairs = [np.zeros(0, np.int64)]
    for laid in every:
        rows = np.flatnonzero(meeting[laid.routes.link])
        route, link = laid.routes.route[rows], laid.routes.link[rows]
        narrow = laid.routes.weight[rows] / capacity[link]
        users += np.bincount(link, minlength=len(users))
        for apart in range(1, int(np.bincount(route).max(initial=1))):
            same = np.flatnonzero(route[apart:] == route[:-apart])
            for one, other in ((same, same + apart), (same + apart, same)):
                ruled = narrow[other] >= narrow[one]
                pairs.append(link[one[ruled]] * len(capacity) + link[other[ruled]])
    pair, count = np.unique(np.concatenate(pairs), return_counts=True)
    others: dict[int, list[int]] = {}
    for key in pair[count == users[pair // len(capacity)]].tolist():
        others.setdefault(key // len(capacity), []).append(key % len(capacity))
    for own in sorted(others, reverse=True):
        yield own, others[own]
