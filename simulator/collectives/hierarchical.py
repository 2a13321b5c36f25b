"""Hierarchical: reduce inside every node, then reduce and gather across nodes, then gather inside every node.

The slow links between nodes then carry only 1/G of the array for each of a node's G ranks. All three stages are rings.
With `chunks` the array is cut into segments that follow each other through the stages, so that links inside nodes and
across them carry data at once.

Chunk b G + g belongs to the g-th rank of node b; *set* g consists of the g-th rank's chunk of every node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from simulator.basics.arrays import Ints
from simulator.cluster.cluster import Steps
from simulator.collectives import ring
from simulator.collectives.algorithm import Algorithm, Plan, Request, Sizes, always, least_volume, steps_in_stages
from simulator.collectives.example import in_nodes
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def equal_nodes(request: Request) -> tuple[tuple[int, ...], ...]:
    """The request's nodes; raises ValueError unless they are all of one size and hold every rank once."""
    nodes = request.nodes or (tuple(range(request.world_size)),)
    if len({len(node) for node in nodes}) != 1:
        raise ValueError(f"nodes must be of one size, got sizes {[len(node) for node in nodes]}")
    if sorted(place for node in nodes for place in node) != list(range(request.world_size)):
        raise ValueError("nodes must hold each rank of the group once")
    return nodes


class Level(NamedTuple):
    """Rings of `size` ranks that are `apart` places from each other, counted node after node."""

    size: int
    apart: int


@dataclass(slots=True)
class Segment:
    """What is on its way of one segment of the array.

    Attributes
    ----------
    number : int
    arrived : list of int array, shape (ranks,)
        The last transfers into what each rank has of it: one for the sums, and one for each stage that has copied
        since; -1 where there is none.
    sent : list of int array, shape (ranks,)
        For each stage of rings the last transfer from each rank.
    """

    number: int
    arrived: list[Ints]
    sent: list[Ints] = field(default_factory=list)


@dataclass(slots=True)
class Stages:
    """Builds the rings of nodes of G ranks, stage by stage.

    Transfers of one stage and source queue in one `channel`; stages may share it.
    """

    nodes: tuple[tuple[int, ...], ...]
    builder: ScheduleBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = ScheduleBuilder(step=self.size)

    @property
    def size(self) -> int:
        return len(self.nodes[0])

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.size

    def segment(self, number: int) -> Segment:
        return Segment(number, [np.full(self.ranks, -1)])

    def inside(self, segment: Segment, channel: int, *, reduce: bool) -> None:
        """Add a ring inside every node that moves whole sets; set g ends (reduce) or begins (copy) at the g-th rank."""
        self.level(segment, channel, Level(self.size, 1), reduce=reduce)

    def across(self, segment: Segment, channel: int, *, reduce: bool) -> None:
        """Add rings through the g-th ranks of all nodes that move single chunks; chunk b ends or begins at node b."""
        self.level(segment, channel, Level(len(self.nodes), self.size), reduce=reduce)

    def level(self, segment: Segment, channel: int, level: Level, *, reduce: bool) -> None:
        """Add the rings of a level.

        With ranks counted node after node, rank r ends with (reduce) or begins with (copy) the chunks whose number is
        equal to r modulo size x apart.
        """
        size, apart = level
        first = np.arange(apart)[:, None] + apart * np.arange(size)
        part = np.broadcast_to(first, (self.ranks // (size * apart), apart, size)).reshape(-1, size)
        table = segment.number * self.ranks + np.arange(size * apart)
        self._rings(segment, rings_of(self.nodes, level), part, table, apart, channel, reduce=reduce)

    def _rings(
        self, segment: Segment, rings: Ints, part: Ints, table: Ints, apart: int, channel: int, *, reduce: bool
    ) -> None:
        """Add rings that run at once, shape (rings, n); part p ends at place p (reduce) or begins there (copy).

        `part`, of the same shape, is the index in `table` of each part's first chunk; the index of the part at the next
        place of the ring is larger by `apart`. A part's chunks are as far from each other as the table is long.
        """
        n, step = rings.shape[1], len(table)
        src, dst = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
        counts, queue = np.full(len(src), self.ranks // step), channel * self.ranks + src
        adds = np.full(len(src), reduce)
        shift = 1 if reduce else 0
        # An add also waits for what the receiver got before this stage, because it adds to that. Only the first round
        # has to: later ones queue behind it on the same channel.
        waits = [came[src] for came in segment.arrived] + [came[dst] for came in segment.arrived if reduce]
        sent, came = np.full((2, self.ranks), -1)
        for k, times in ((0, 1), (1, n - 2)):
            if times < 1:
                continue
            first = np.roll(part, k + shift, axis=1).ravel()
            after = np.stack(waits, axis=1)
            numbers = self.builder.send_round(
                Round(src, dst, first, counts, adds, queue, after, step), times, -apart, table
            )
            sent[src], came[dst] = numbers, numbers
            waits = [came[src]]
        segment.sent.append(sent)
        # Sums wait for each other, so the last one is enough; copies are of different parts.
        segment.arrived = [came] if reduce else [*segment.arrived, came]


def rings_of(nodes: Sequence[Sequence[int]], level: Level) -> Ints:
    """The ranks of a level's rings in their order, shape (rings, size)."""
    return np.array(nodes).reshape(-1, level.size, level.apart).transpose(0, 2, 1).reshape(-1, level.size)


def rows_of_rings(ranks: int, size: int) -> int:
    """Rows of a stage of rings of `size` ranks: a round that waits for the stage before, and one that is repeated."""
    return ranks * (1 + (size > 2))


def segments(request: Request) -> int:
    """Number of segments: as requested, else 1 (only all_reduce may be cut)."""
    return request.chunks or 1


def plans(schedule: Callable[[Request, int], Schedule]) -> dict[str, Plan]:
    """Operations of an algorithm over nodes, from what plans a request that is cut into so many segments.

    all_reduce reduces on the way and gathers on the way back, the others go one way each.
    """
    return {
        "all_reduce": lambda request: schedule(request, segments(request)),
        "reduce_scatter": lambda request: schedule(in_order(request), 1),
        "all_gather": lambda request: schedule(in_order(request), 1),
    }


def in_order(request: Request) -> Request:
    """The request of a gather or scatter; raises ValueError unless nodes are of consecutive ranks and it is whole."""
    placed = tuple(place for node in equal_nodes(request) for place in node)
    if placed != tuple(range(request.world_size)):
        raise ValueError(f"{request.operation} needs nodes of consecutive ranks, got {list(placed)}")
    if request.chunks not in (None, 1):
        raise ValueError(f"{request.operation} is not cut into segments; leave `chunks` out")
    return request


def _schedule(request: Request, cut: int) -> Schedule:
    nodes = equal_nodes(request)
    if len(nodes) == 1 or len(nodes[0]) == 1:
        return replace(ring.ALGORITHM.plans[request.operation](as_ring(request)), algorithm="hierarchical")
    n, reducing, copying = request.world_size, request.operation != "all_gather", request.operation != "reduce_scatter"

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        for segment in map(stages.segment, range(cut)):
            if reducing:
                stages.inside(segment, 0, reduce=True)
                stages.across(segment, 1, reduce=True)
            if copying:
                stages.across(segment, 1, reduce=False)
                stages.inside(segment, 2, reduce=False)
        return stages.builder.parts()

    rows = cut * (reducing + copying) * (rows_of_rings(n, len(nodes[0])) + rows_of_rings(n, len(nodes)))
    return Schedule(
        request.operation, "hierarchical", n, 0, n * cut, ReductionOrder.IN_SEQUENCE, kept(parts), rows=rows
    )


def as_ring(request: Request) -> Request:
    """The request for one ring through all ranks, node after node."""
    return replace(request, rank_order=tuple(place for node in equal_nodes(request) for place in node), chunks=None)


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """M nodes of G, N | n, one segment: (G-1)(alpha1 + S/(G beta1)) + (M-1)(alpha2 + S/(G M beta2)).

    all_reduce takes twice that. beta2 is a rank's share of its NIC.
    """
    nodes = equal_nodes(request)
    m, g, n = len(nodes), len(nodes[0]), request.world_size
    if m == 1 or g == 1:
        return ring.closed_form(as_ring(request), sizes, network)
    inside, across = network.inside(nodes), network.across(nodes)
    if inside is None or across is None or request.elements % n or segments(request) != 1:
        return None
    chunk = request.elements // n
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    if reducing and not network.hbm_bears(max(inside.rate(1), across.rate)):
        return None
    # Across nodes the copying rounds continue the reducing ones, so both count as one ring of twice the steps.
    steps = (m - 1) * (reducing + copying)
    if copying and not across.out_of_the_way(steps, inside.latency):
        return None
    time = network.startup + across.latency(steps)
    for itemsize in ([sizes.reduced] if reducing else []) + ([sizes.copied] if copying else []):
        time += (g - 1) * (inside.latency + m * chunk * itemsize / inside.rate(1))
        time += (m - 1) * chunk * itemsize / across.rate
    return time


def steps(request: Request) -> Steps:
    """Of rings in every node, and rings from node to node between them."""
    return steps_in_stages(request, max(1, len(request.nodes)) - 1)


ALGORITHM = Algorithm(
    plans=plans(_schedule),
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    options=("nodes", "chunks"),
    whole=("reduce_scatter", "all_gather"),
    examples=in_nodes,
    steps=steps,
)
