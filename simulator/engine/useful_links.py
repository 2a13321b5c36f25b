"""Which links two flows could ever hold each other back on; all others need not be watched.

Rule: looks at all routes of a program before it is played:
- a link that only one channel of one collective uses never has two flows, for a channel is a FIFO;
- a link that all flows that can be on it at once cannot fill, each at the rate that it has alone, holds nobody back;
- a link is never the bottleneck if all its users also use another one that is as narrow or narrower for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.path import Path

# Rounding of a sum of rates.
_FULL = 1.0 + 1e-12

# A rank and its stream; a participant that is no rank by its number among those of its collective.
End = tuple[int, str] | int


@dataclass(frozen=True, slots=True)
class Laid:
    """The routes of collectives that are alike in everything but their sizes.

    Attributes
    ----------
    paths : sequence of Path
        All links with weights, one a route.
    users : sequence of (int, int)
        By route: the lowest and the highest channel that takes it.
    flows : sequence of int
        By route: how many channels take it, so how many flows it can have at once.
    ends : sequence of (source, destination)
        By route: whose stream a flow belongs to.
    times : int
        How many such collectives there are.
    """

    paths: Sequence[Path]
    users: Sequence[tuple[int, int]]
    flows: Sequence[int]
    ends: Sequence[tuple[End, End]]
    times: int


def useful_links(every: Sequence[Laid], capacity: Sequence[float]) -> set[int]:
    """Links on which flows can meet and that can be the bottleneck."""
    users: dict[int, set[tuple[int, int]]] = {}
    takers: dict[int, list[tuple[Path, float]]] = {}
    for number, laid in enumerate(every):
        for path, (low, high), ends in zip(laid.paths, laid.users, laid.ends, strict=True):
            taking = {(number, low), (number, high)}
            # Two collectives of one stream follow each other at a rank, not at a server or a switch.
            if laid.times > 1 and any(isinstance(end, int) for end in ends):
                taking.add((number, -1))
            for link, weight in zip(path.links, path.weights, strict=True):
                users.setdefault(link, set()).update(taking)
                takers.setdefault(link, []).append((path, weight))
    held = _demands(every)
    meeting = {
        link: takers[link]
        for link, channels in users.items()
        if len(channels) > 1 and held[link] > capacity[link] * _FULL
    }
    useful = set(meeting)
    for link in sorted(meeting, reverse=True):
        if any(
            _rules(other, link, meeting[link], capacity)
            for other in meeting[link][0][0].links
            if other in useful - {link}
        ):
            useful.discard(link)
    return useful


def _demands(every: Sequence[Laid]) -> dict[int, float]:
    """By link: the most that flows can ask of it at once [B/s].

    A rank's stream carries out one collective at a time, and a flow belongs to that of its source and to that of its
    destination: of either's collectives only the most demanding counts. A server or switch may be at all of its own.
    """
    least: dict[int, float] = {}
    for end in (0, 1):
        asked: dict[tuple[int, object], float] = {}
        for number, laid in enumerate(every):
            mine: dict[tuple[int, object], float] = {}
            for path, flows, ends in zip(laid.paths, laid.flows, laid.ends, strict=True):
                whose = ends[end]
                rank = not isinstance(whose, int)
                flow = flows * path.rate * (1 if rank else laid.times)
                for link, weight in zip(path.links, path.weights, strict=True):
                    key: tuple[int, object] = (link, whose if rank else (number, whose))
                    mine[key] = mine.get(key, 0.0) + flow * weight
            for key, demand in mine.items():
                asked[key] = max(demand, asked.get(key, 0.0))
        total: dict[int, float] = {}
        for (link, _), demand in asked.items():
            total[link] = total.get(link, 0.0) + demand
        least = {link: min(demand, least.get(link, demand)) for link, demand in total.items()}
    return least


def _rules(other: int, link: int, takers: list[tuple[Path, float]], capacity: Sequence[float]) -> bool:
    """Whether a link is as narrow or narrower than another for each of the other's users."""
    for path, weight in takers:
        if other not in path.links:
            return False
        if path.weights[path.links.index(other)] / capacity[other] < weight / capacity[link]:
            return False
    return True


def pruned(path: Path, useful: set[int], capacity: Sequence[float]) -> Path:
    """Leave out links on which nobody is met; where one of them was the narrowest, it bounds the flow like a cap."""
    kept = [(link, weight) for link, weight in zip(path.links, path.weights, strict=True) if link in useful]
    capped = any(path.rate < capacity[link] / weight for link, weight in kept)
    return Path(tuple(link for link, _ in kept), tuple(weight for _, weight in kept), path.latency, path.rate, capped)
