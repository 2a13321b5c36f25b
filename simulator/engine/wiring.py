"""Wiring: which links each transfer of a program takes.

Rule: looks at rounds, never at transfers, which are written out for who asks for them. Routes keep all their links for
the books; rates are taken over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.chunks import chunk_sizes, run_elements, transfer_elements
from simulator.cluster.cluster import Cluster
from simulator.collectives.caps import rate_caps
from simulator.engine.path import Path
from simulator.engine.useful_links import End, Laid, pruned, useful_links
from simulator.program import Collective
from simulator.schedule import Repeat, Schedule, Transfers, write_out

# Two reads and a write of HBM for each byte that is added to what is there.
_REDUCE_WEIGHT = 3.0


@dataclass(frozen=True, slots=True)
class Part:
    """A round that is played so many times, and the route of each of its transfers, shape (t,): a row of `paths`."""

    repeat: Repeat
    route: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Wiring:
    """One collective laid on the fabric.

    Attributes
    ----------
    schedule : Schedule
    elements, itemsize, reduce_itemsize : int
        As the collective's.
    parts : tuple of Part
        Those with any transfers.
    paths : tuple of Path
        With only the links on which flows can meet.
    links : tuple of tuple of int
        All links of the cluster on the way, by path.
    vertices : tuple of str
        Of the participants.
    """

    schedule: Schedule
    elements: int
    itemsize: int
    reduce_itemsize: int
    parts: tuple[Part, ...]
    paths: tuple[Path, ...]
    links: tuple[tuple[int, ...], ...]
    vertices: tuple[str, ...]

    def __len__(self) -> int:
        """How many transfers there are; nothing is written out."""
        return sum(len(part.route) * part.repeat.times for part in self.parts)

    @cached_property
    def transfers(self) -> Transfers:
        """All of them, written out when first asked for."""
        return write_out(self.schedule)

    @cached_property
    def nbytes(self) -> npt.NDArray[np.float64]:
        """On the wire, shape (transfers,) [B]."""
        carried = transfer_elements(self.transfers, self.chunk_sizes).astype(np.float64)
        if self.itemsize == self.reduce_itemsize:
            return carried * self.itemsize
        return carried * np.where(self.transfers.reduce, self.reduce_itemsize, self.itemsize)

    @cached_property
    def chunk_sizes(self) -> npt.NDArray[np.int64]:
        """Elements of each chunk."""
        return chunk_sizes(self.schedule, self.elements)

    @cached_property
    def route(self) -> npt.NDArray[np.int32]:
        """Row of `paths` and `links`, shape (transfers,)."""
        return np.concatenate([np.zeros(0, np.int32), *(np.tile(p.route, p.repeat.times) for p in self.parts)])

    def carried(self, part: Part) -> Iterator[tuple[npt.NDArray[np.float64], int]]:
        """Bytes of each transfer of a round, shape (t,), and for how many rounds in a row they are just these [B]."""
        repeat = part.repeat
        width = np.where(repeat.round.reduce, self.reduce_itemsize, self.itemsize)
        if self.even:
            yield (repeat.round.count * (int(self.chunk_sizes[0]) * width)).astype(np.float64), repeat.times
            return
        # Chunks differ by an element: then every round is its own.
        for i in range(repeat.times):
            first = repeat.table[(repeat.round.first + i * repeat.moves) % len(repeat.table)]
            carried = run_elements(first, repeat.round.count, repeat.round.step, self.chunk_sizes)
            yield (carried * width).astype(np.float64), 1

    @cached_property
    def even(self) -> bool:
        """Whether all chunks are of one size."""
        return int(self.chunk_sizes.min()) == int(self.chunk_sizes.max())

    @cached_property
    def bytes_by_route(self) -> npt.NDArray[np.float64]:
        """What all transfers of each route carry [B]."""
        total = np.zeros(len(self.paths))
        for part in self.parts:
            for nbytes, times in self.carried(part):
                total += times * np.bincount(part.route, nbytes, len(self.paths))
        return total

    @cached_property
    def total_bytes(self) -> float:
        """On the wire, each transfer counted once [B]."""
        if "nbytes" in self.__dict__:
            return float(self.nbytes.sum())
        return sum(times * float(nbytes.sum()) for part in self.parts for nbytes, times in self.carried(part))

    @cached_property
    def latency(self) -> npt.NDArray[np.float64]:
        """By path [s]."""
        return np.array([path.latency for path in self.paths], np.float64)

    @cached_property
    def rate(self) -> npt.NDArray[np.float64]:
        """Of each path alone [B/s]."""
        return np.array([path.rate for path in self.paths], np.float64)

    @cached_property
    def meets(self) -> bool:
        """Whether any link is left on which flows can meet."""
        return any(path.links for path in self.paths)


# Collectives for which everything is alike but their sizes.
_Kind = tuple[int, tuple[int, ...], tuple[str, ...], str, float, float]


@dataclass(frozen=True, slots=True)
class _Draft:
    """The routes of collectives of one kind before pruning."""

    laid: Laid
    parts: tuple[Part, ...]
    links: tuple[tuple[int, ...], ...]
    vertices: tuple[str, ...]


def capacities(cluster: Cluster) -> list[float]:
    """Every link's bandwidth, then every rank's HBM bandwidth [B/s]: the fabric's links by number."""
    hbm = [cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size)]
    return [float(b) for b in cluster.router.bandwidth] + hbm


def wire(cluster: Cluster, collectives: Sequence[Collective], capacity: Sequence[float]) -> list[Wiring]:
    """Lay every collective of a program on the fabric; those that are alike share one wiring."""
    drafts: dict[_Kind, _Draft] = {}
    box_of = cluster.box_of()
    times = Counter(map(_kind, collectives))
    for op in collectives:
        kind = _kind(op)
        if kind not in drafts:
            drafts[kind] = _draft(cluster, op, capacity, box_of, times[kind])
    useful = useful_links([draft.laid for draft in drafts.values()], capacity)
    paths = {kind: tuple(pruned(path, useful, capacity) for path in draft.laid.paths) for kind, draft in drafts.items()}
    made: dict[tuple[_Kind, int, int, int], Wiring] = {}
    found = []
    for op in collectives:
        kind, sizes = _kind(op), (op.elements, op.itemsize, op.reduce_itemsize)
        if (kind, *sizes) not in made:
            draft = drafts[kind]
            made[kind, *sizes] = Wiring(op.schedule, *sizes, draft.parts, paths[kind], draft.links, draft.vertices)
        found.append(made[kind, *sizes])
    return found


def _kind(op: Collective) -> _Kind:
    return id(op.schedule), op.group, op.extras, op.stream, op.rate_cap, op.cross_rate_cap


def _draft(
    cluster: Cluster, op: Collective, capacity: Sequence[float], box_of: Mapping[int, int], times: int
) -> _Draft:
    vertices = tuple(cluster.ranks[rank] for rank in op.group) + op.extras
    n = len(vertices)
    repeats = list(op.schedule.repeats())
    keys = [(r.round.src * n + r.round.dst) * 2 + r.round.reduce for r in repeats]
    found, place = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
    route: npt.NDArray[np.int32] = place.astype(np.int32)
    cap_of = rate_caps(box_of, op)
    paths, links, ends = [], [], []
    whose: list[End] = [(rank, op.stream) for rank in op.group] + list(range(len(op.extras)))
    for row in found.tolist():
        (src, dst), reduce = divmod(row // 2, n), bool(row % 2)
        hbm = len(capacity) - cluster.world_size + op.group[dst] if reduce and dst < len(op.group) else None
        path, all_links = _path(cluster, vertices[src], vertices[dst], hbm, cap_of(src, dst), capacity)
        paths.append(path)
        links.append(all_links)
        ends.append((whose[src], whose[dst]))
    channel = np.concatenate([np.zeros(0, np.int64), *(r.round.channel for r in repeats)])
    users = _channels(route, channel, len(paths))
    cuts = np.cumsum([0, *(len(r.round) for r in repeats)])
    parts = tuple(Part(r, route[a:b]) for r, a, b in zip(repeats, cuts[:-1], cuts[1:], strict=True))
    return _Draft(Laid(paths, users, _flows(route, channel, users), ends, times), parts, tuple(links), vertices)


def _channels(route: npt.NDArray[np.int32], channel: npt.NDArray[np.int64], routes: int) -> list[tuple[int, int]]:
    """For each route the lowest and the highest channel that takes it."""
    low = np.full(routes, np.iinfo(np.int64).max)
    high = np.full(routes, -1)
    np.minimum.at(low, route, channel)
    np.maximum.at(high, route, channel)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _flows(route: npt.NDArray[np.int32], channel: npt.NDArray[np.int64], users: list[tuple[int, int]]) -> list[int]:
    """For each route how many channels take it; counted only where some have several."""
    if all(low == high for low, high in users):
        return [1] * len(users)
    channels = int(channel.max()) + 1
    taken = np.unique(route.astype(np.int64) * channels + channel) // channels
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
