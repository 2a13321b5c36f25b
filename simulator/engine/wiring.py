"""Wiring: which links each transfer of a program takes, and which of them two flows could ever meet on.

Rule: looks at the whole program before it is played, and leaves out of the fabric what cannot matter:
- a link that only one channel of one collective uses never has two flows, for a channel is a FIFO;
- a link that all flows that can be on it at once cannot fill, each at the rate that it has alone, holds nobody back;
- a link is never the bottleneck if all its users also use another one that is as narrow or narrower for each of them.
Routes keep all their links for the books; rates are taken over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.cluster.cluster import Cluster
from simulator.collectives.caps import rate_caps
from simulator.engine.path import Path
from simulator.program import Collective
from simulator.schedule import Transfers, chunk_sizes, transfer_elements, write_out

# Two reads and a write of HBM for each byte that is added to what is there.
_REDUCE_WEIGHT = 3.0
# Rounding of a sum of rates.
_FULL = 1.0 + 1e-12

_End = tuple[int | str, int | str]


@dataclass(frozen=True, slots=True)
class Wiring:
    """One collective laid on the fabric.

    Attributes
    ----------
    transfers : Transfers
    nbytes : float array, shape (t,)
        On the wire [B].
    route : int32 array, shape (t,)
        Row of `paths` and `links`.
    paths : tuple of Path
        With only the links on which flows can meet.
    links : tuple of tuple of int
        All links of the cluster on the way.
    vertices : tuple of str
        Of the participants.
    """

    transfers: Transfers
    nbytes: npt.NDArray[np.float64]
    route: npt.NDArray[np.int32]
    paths: tuple[Path, ...]
    links: tuple[tuple[int, ...], ...]
    vertices: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """A collective's routes before pruning: all links with weights, and the channels that take each route.

    Attributes
    ----------
    users : list of (int, int)
        By route: the lowest and the highest channel that takes it.
    flows : list of int
        By route: how many channels take it, so how many flows it can have at once.
    ends : list of (source, destination)
        By route: whose stream a flow belongs to, (rank, stream); of a switch or server (collective's name, its number).
    """

    transfers: Transfers
    route: npt.NDArray[np.int32]
    paths: list[Path]
    links: list[tuple[int, ...]]
    users: list[tuple[int, int]]
    flows: list[int]
    ends: list[tuple[_End, _End]]
    vertices: tuple[str, ...]


def capacities(cluster: Cluster) -> list[float]:
    """Every link's bandwidth, then every rank's HBM bandwidth [B/s]: the fabric's links by number."""
    hbm = [cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size)]
    return [float(b) for b in cluster.router.bandwidth] + hbm


def wire(cluster: Cluster, collectives: Sequence[Collective], capacity: Sequence[float]) -> list[Wiring]:
    """Lay every collective of a program on the fabric."""
    drafts = [_draft(cluster, op, capacity) for op in collectives]
    useful = _useful_links(drafts, capacity)
    return [
        Wiring(
            transfers=draft.transfers,
            nbytes=_nbytes(op, draft.transfers),
            route=draft.route,
            paths=tuple(_pruned(path, useful, capacity) for path in draft.paths),
            links=tuple(draft.links),
            vertices=draft.vertices,
        )
        for op, draft in zip(collectives, drafts, strict=True)
    ]


def _nbytes(op: Collective, transfers: Transfers) -> npt.NDArray[np.float64]:
    carried = transfer_elements(transfers, chunk_sizes(op.schedule, op.elements)).astype(np.float64)
    if op.itemsize == op.reduce_itemsize:
        return carried * op.itemsize
    return carried * np.where(transfers.reduce, op.reduce_itemsize, op.itemsize)


def _draft(cluster: Cluster, op: Collective, capacity: Sequence[float]) -> _Draft:
    transfers = write_out(op.schedule)
    vertices = tuple(cluster.ranks[rank] for rank in op.group) + op.extras
    n = len(vertices)
    key = (transfers.src * np.int32(n) + transfers.dst) * np.int32(2) + transfers.reduce
    table = np.full(2 * n * n, -1, np.int32)
    table[key] = 0
    found = np.flatnonzero(table == 0)
    table[found] = np.arange(len(found), dtype=np.int32)
    route = table[key]
    cap_of = rate_caps(cluster, op)
    paths, links, ends = [], [], []
    whose: list[_End] = [(rank, op.stream) for rank in op.group] + [(op.name, extra) for extra in range(len(op.extras))]
    for row in found.tolist():
        (src, dst), reduce = divmod(row // 2, n), bool(row % 2)
        cap = cap_of(src, dst)
        hbm = len(capacity) - cluster.world_size + op.group[dst] if reduce and dst < len(op.group) else None
        path, all_links = _path(cluster, vertices[src], vertices[dst], hbm, cap, capacity)
        paths.append(path)
        links.append(all_links)
        ends.append((whose[src], whose[dst]))
    users = _channels(route, transfers, len(paths))
    return _Draft(transfers, route, paths, links, users, _flows(route, transfers, users), ends, vertices)


def _channels(route: npt.NDArray[np.int32], transfers: Transfers, routes: int) -> list[tuple[int, int]]:
    """For each route the lowest and the highest channel that takes it."""
    low = np.full(routes, np.iinfo(np.int32).max, np.int32)
    high = np.full(routes, -1, np.int32)
    np.minimum.at(low, route, transfers.channel)
    np.maximum.at(high, route, transfers.channel)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _flows(route: npt.NDArray[np.int32], transfers: Transfers, users: list[tuple[int, int]]) -> list[int]:
    """For each route how many channels take it; counted only where some have several."""
    if all(low == high for low, high in users):
        return [1] * len(users)
    channels = int(transfers.channel.max()) + 1
    taken = np.unique(route.astype(np.int64) * channels + transfers.channel) // channels
    counted: list[int] = np.bincount(taken, minlength=len(users)).tolist()
    return counted


def _path(
    cluster: Cluster, src: str, dst: str, hbm: int | None, cap: float, capacity: Sequence[float]
) -> tuple[Path, tuple[int, ...]]:
    route = cluster.route(src, dst)
    links, weights = route.links, (1.0,) * len(route.links)
    if hbm is not None:
        links, weights = (*links, hbm), (*weights, _REDUCE_WEIGHT)
    rate = min(capacity[link] / weight for link, weight in zip(links, weights, strict=True)) if links else cap
    return Path(links, weights, route.latency, min(rate, cap)), route.links


def _useful_links(drafts: list[_Draft], capacity: Sequence[float]) -> set[int]:
    """Links on which flows can meet and that can be the bottleneck."""
    users: dict[int, set[tuple[int, int]]] = {}
    takers: dict[int, list[tuple[Path, float]]] = {}
    for op, draft in enumerate(drafts):
        for path, (low, high) in zip(draft.paths, draft.users, strict=True):
            for link, weight in zip(path.links, path.weights, strict=True):
                users.setdefault(link, set()).update(((op, low), (op, high)))
                takers.setdefault(link, []).append((path, weight))
    held = _demands(drafts)
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


def _demands(drafts: list[_Draft]) -> dict[int, float]:
    """By link: the most that flows can ask of it at once [B/s].

    A rank's stream carries out one collective at a time, and a flow belongs to that of its source and to that of its
    destination: of either's collectives only the most demanding counts.
    """
    least: dict[int, float] = {}
    for end in (0, 1):
        asked: dict[tuple[int, _End], float] = {}
        for draft in drafts:
            mine: dict[tuple[int, _End], float] = {}
            for path, flows, ends in zip(draft.paths, draft.flows, draft.ends, strict=True):
                for link, weight in zip(path.links, path.weights, strict=True):
                    key = link, ends[end]
                    mine[key] = mine.get(key, 0.0) + flows * path.rate * weight
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


def _pruned(path: Path, useful: set[int], capacity: Sequence[float]) -> Path:
    """Leave out links on which nobody is met; where one of them was the narrowest, it bounds the flow like a cap."""
    kept = [(link, weight) for link, weight in zip(path.links, path.weights, strict=True) if link in useful]
    capped = any(path.rate < capacity[link] / weight for link, weight in kept)
    return Path(tuple(link for link, _ in kept), tuple(weight for _, weight in kept), path.latency, path.rate, capped)
