"""Hierarchical: reduce inside every node, then reduce and gather across nodes, then gather inside every node.

The slow links between nodes then carry only 1/G of the array for each of a node's G ranks. Every stage consists of
rings. With `chunks` the array is cut into segments that follow each other through the stages, so that links inside
nodes and links between nodes carry data at the same time.

Chunk b G + g belongs to the g-th rank in node b. Set g contains the g-th rank's chunk from every node.

Example: an all_reduce over 2 nodes with 2 ranks each, with a single segment. Sets: chunks {0, 2} and {1, 3}.

      node 0       node 1          stage                   transfers
     0 <-> 1      2 <-> 3          inside, add             1 -> 0 and 3 -> 2: set 0;  0 -> 1 and 2 -> 3: set 1
     0 <-> 2      1 <-> 3          across, add             2 -> 0: chunk 0;  0 -> 2: chunk 2;  3 -> 1: 1;  1 -> 3: 3
     0 <-> 2      1 <-> 3          across, copy            the same chunks back
     0 <-> 1      2 <-> 3          inside, copy            0 -> 1 and 2 -> 3: set 0;  1 -> 0 and 3 -> 2: set 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from simulator.basics.arrays import Ints
from simulator.cluster.cluster import Steps
from simulator.collectives import ring
from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    Plan,
    always,
    least_volume,
    steps_in_stages,
)
from simulator.collectives.example import in_nodes
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def equal_nodes(request: CollectiveRequest) -> tuple[tuple[int, ...], ...]:
    """Return the request's nodes; raise ValueError unless they have equal size and contain every rank once."""
    nodes = nodes_of(request)
    if len({len(node) for node in nodes}) != 1:
        raise ValueError(f"nodes must be of one size, got sizes {[len(node) for node in nodes]}")
    return nodes


def nodes_of(request: CollectiveRequest) -> tuple[tuple[int, ...], ...]:
    """Return the request's nodes, a single one if it has none; raise ValueError unless they have every rank once."""
    nodes = request.nodes or (tuple(range(request.world_size)),)
    if sorted(place for node in nodes for place in node) != list(range(request.world_size)):
        raise ValueError("nodes must hold each rank of the group once")
    return nodes


class Level(NamedTuple):
    """A ring level: rings with `size` ranks, `apart` places from each other with ranks counted node after node.

    With 2 nodes of 2 ranks, rings inside nodes and rings between nodes:

    >>> rings_of([(0, 1), (2, 3)], Level(2, 1)).tolist(), rings_of([(0, 1), (2, 3)], Level(2, 2)).tolist()
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    """

    size: int
    apart: int


@dataclass(slots=True)
class Segment:
    """State of an array segment while the schedule is built."""

    number: int  # index of the segment in the array
    # Numbers of the last transfers into each rank: one array for the sums, and one for each copying stage since; -1
    # without a transfer; shape (ranks,).
    arrived: list[Ints]
    # For each stage of rings, the number of the last transfer from each rank; shape (ranks,).
    sent: list[Ints] = field(default_factory=list)


@dataclass(slots=True)
class Stages:
    """Builder for a schedule with ring stages over nodes with G ranks each.

    Transfers with the same source and `channel` queue in the same FIFO. Stages may share a channel.
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
        """Add a ring inside every node to a segment's schedule; set g ends (reduce) or begins (copy) at rank g."""
        self.level(segment, channel, Level(self.size, 1), reduce=reduce)

    def across(self, segment: Segment, channel: int, *, reduce: bool) -> None:
        """Add to a segment's schedule rings across nodes, through the g-th ranks; chunk b ends or begins at node b."""
        self.level(segment, channel, Level(len(self.nodes), self.size), reduce=reduce)

    def level(self, segment: Segment, channel: int, level: Level, *, reduce: bool) -> None:
        """Add the rings of a level to a segment's schedule, adding (`reduce`) or copying chunks, on FIFO `channel`.

        With ranks counted node after node, rank r ends (reduce) or begins (copy) with the chunks whose number equals r
        modulo size x stride.
        """
        size, stride = level
        # first[i, j]: first chunk of the part of place j in ring i. With 2 nodes of 2 ranks `first` is [[0, 1]] inside
        # nodes, where a part has 2 chunks (0, 2 or 1, 3), and [[0, 2], [1, 3]] between nodes, where a part is 1 chunk.
        first = np.arange(stride)[:, None] + stride * np.arange(size)
        part = np.broadcast_to(first, (self.ranks // (size * stride), stride, size)).reshape(-1, size)
        table = segment.number * self.ranks + np.arange(size * stride)
        self._rings(segment, rings_of(self.nodes, level), part, table, stride, channel, reduce=reduce)

    def _rings(
        self, segment: Segment, rings: Ints, part: Ints, table: Ints, stride: int, channel: int, *, reduce: bool
    ) -> None:
        """Add rings that run at once to a segment's schedule; `rings` has their ranks, shape (rings, n).

        Part p ends at place p of a ring (reduce) or begins there (copy). `part` has the shape of `rings` and holds the
        index in `table` of each part's first chunk. From one place of a ring to the next, this index grows by `stride`.
        A part consists of every len(table)-th chunk.
        """
        n, step = rings.shape[1], len(table)
        src, dst = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
        counts, queue = np.full(len(src), self.ranks // step), channel * self.ranks + src
        adds = np.full(len(src), reduce)
        # A reduce starts each part at the place after the part's owner; the part ends at the owner after n - 1
        # steps. A copy starts at the owner.
        shift = 1 if reduce else 0
        # An add also waits for the last transfers into its receiver before this stage, because it adds to their result.
        # Only the first round needs these waits: later rounds queue behind the first on the same channel.
        waits = [came[src] for came in segment.arrived] + [came[dst] for came in segment.arrived if reduce]
        sent, came = np.full((2, self.ranks), -1)
        # Two schedule rows: the first round waits for the stage before, the repeated round waits for its
        # predecessor. A ring with any length is two small records.
        for k, times in ((0, 1), (1, n - 2)):
            if times < 1:
                continue
            # In round k each place sends the part received in round k - 1.
            first = np.roll(part, k + shift, axis=1).ravel()
            after = np.stack(waits, axis=1)
            numbers = self.builder.send_round(
                Round(src, dst, first, counts, adds, queue, after, step), times, -stride, table
            )
            sent[src], came[dst] = numbers, numbers
            waits = [came[src]]
        segment.sent.append(sent)
        # Adds into a chunk wait for each other: waiting for the last is enough. Copies bring different parts.
        segment.arrived = [came] if reduce else [*segment.arrived, came]


def rings_of(nodes: Sequence[Sequence[int]], level: Level) -> Ints:
    """Return the ranks in a level's rings, in ring order, shape (rings, size), given each node's ranks."""
    return np.array(nodes).reshape(-1, level.size, level.apart).transpose(0, 2, 1).reshape(-1, level.size)


def rows_of_rings(ranks: int, size: int) -> int:
    """Return the number of schedule rows in a stage of rings of `size` ranks: a first round, and a repeated round.

    >>> rows_of_rings(8, 2), rows_of_rings(8, 4)
    (8, 16)
    """
    return ranks * (1 + (size > 2))


def segments(request: CollectiveRequest) -> int:
    """Return the number of segments for the array: the requested number, else 1 (only all_reduce may be cut)."""
    return request.chunks or 1


def plans(schedule: Callable[[CollectiveRequest, int], Schedule]) -> dict[str, Plan]:
    """Return an algorithm's planner for each operation, by operation, for algorithms over nodes.

    `schedule` plans a request with a given number of segments. all_reduce has a reduce-scatter phase and a gather
    phase; reduce_scatter and all_gather have a single phase.
    """
    return {
        "all_reduce": lambda request: schedule(request, segments(request)),
        "reduce_scatter": lambda request: schedule(in_order(request), 1),
        "all_gather": lambda request: schedule(in_order(request), 1),
    }


def in_order(request: CollectiveRequest) -> CollectiveRequest:
    """Return the request unchanged; raise ValueError for segments, or for nodes without consecutive ranks."""
    places = tuple(place for node in equal_nodes(request) for place in node)
    if places != tuple(range(request.world_size)):
        raise ValueError(f"{request.operation} needs nodes of consecutive ranks, got {list(places)}")
    if request.chunks not in (None, 1):
        raise ValueError(f"{request.operation} has no segments; omit `chunks`")
    return request


def _schedule(request: CollectiveRequest, cut: int) -> Schedule:
    nodes = equal_nodes(request)
    # With a single node, or a single rank in each node, only the ring inside or between nodes remains.
    if len(nodes) == 1 or len(nodes[0]) == 1:
        return replace(ring.ALGORITHM.plans[request.operation](as_ring(request)), algorithm="hierarchical")
    n, reducing, copying = request.world_size, request.operation != "all_gather", request.operation != "reduce_scatter"

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        # Channels: 0 for reduces inside nodes, 1 between nodes, 2 for copies inside nodes. Reduces and copies inside
        # nodes have separate FIFOs: otherwise the next segment's reduces would wait behind this segment's copies.
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


def as_ring(request: CollectiveRequest) -> CollectiveRequest:
    """Return the request as a single ring through every rank, node after node, without segments."""
    return replace(request, rank_order=tuple(place for node in nodes_of(request) for place in node), chunks=None)


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for a hierarchical collective on an idle network [s]; None if no formula is exact.

    For M nodes of G ranks, N | n, one segment: (G-1)(alpha1 + S/(G beta1)) + (M-1)(alpha2 + S/(G M beta2)), twice for
    all_reduce. Index 1 is inside nodes, index 2 between nodes; beta2 is the share of a rank in its network card.
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
    # Between nodes, the copying rounds continue the reducing rounds, so both count as one ring of twice the steps.
    # With unequal latencies this matters: the largest sum over 2(M-1) successive hops may be less than twice the
    # largest sum over M-1 hops.
    steps = (m - 1) * (reducing + copying)
    # A late chunk on the links between nodes would share them with the ring inside the node.
    if copying and not across.out_of_the_way(steps, inside.latency):
        return None
    time = network.startup + across.latency(steps)
    for itemsize in ([sizes.reduced] if reducing else []) + ([sizes.copied] if copying else []):
        time += (g - 1) * (inside.latency + m * chunk * itemsize / inside.rate(1))
        time += (m - 1) * chunk * itemsize / across.rate
    return time


def steps(request: CollectiveRequest) -> Steps:
    """Return the step count on the longest way: the rings inside nodes, and the ring between nodes."""
    return steps_in_stages(request, max(1, len(request.nodes)) - 1)


ALGORITHM = Algorithm(
    summary="rings inside each node, then between nodes, then inside each node",
    plans=plans(_schedule),
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    options=("nodes", "chunks"),
    whole=("reduce_scatter", "all_gather"),
    examples=in_nodes,
    steps=steps,
)
