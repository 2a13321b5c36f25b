"""Hierarchical: reduce inside every node, then reduce and gather across nodes, then gather inside every node.

The slow links between nodes then carry only 1/G of the array for each of a node's G ranks. All three stages are rings.
With `chunks` the array is cut into segments that follow each other through the stages, so that links inside nodes and
across them carry data at once.

Chunk b G + g belongs to the g-th rank of node b; *set* g consists of the g-th rank's chunk of every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.basics.arrays import Ints
from simulator.cluster.cluster import Steps
from simulator.collectives import ring
from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume
from simulator.collectives.example import in_nodes
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def equal_nodes(request: Request) -> tuple[tuple[int, ...], ...]:
    """The request's nodes; raises ValueError unless they are all of one size and hold every rank once."""
    nodes = request.nodes or (tuple(range(request.world_size)),)
    if len({len(node) for node in nodes}) != 1:
        raise ValueError(f"nodes must be of one size, got sizes {[len(node) for node in nodes]}; give group_size")
    if sorted(place for node in nodes for place in node) != list(range(request.world_size)):
        raise ValueError("nodes must hold each rank of the group once")
    return nodes


@dataclass(slots=True)
class Stages:
    """Builds the rings of nodes of G ranks, stage by stage.

    `arrived` holds for each rank the last transfer into it in the current segment, `sent` the last one that a ring
    stage sends from it; -1 where there is none.

    Each stage has its own channel for each source rank, in which the stage's transfers queue.
    """

    nodes: tuple[tuple[int, ...], ...]
    builder: ScheduleBuilder = field(init=False)
    arrived: Ints = field(init=False)
    sent: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.builder = ScheduleBuilder(step=self.size)
        self.next_segment()

    @property
    def size(self) -> int:
        return len(self.nodes[0])

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.size

    def next_segment(self) -> None:
        self.arrived = np.full(self.ranks, -1)
        self.sent = np.full(self.ranks, -1)

    def inside(self, stage: int, segment: int, *, reduce: bool) -> None:
        """Add a ring inside every node that moves whole sets; set g ends (reduce) or begins (copy) at the g-th rank."""
        sets = segment * self.ranks + np.arange(self.size)
        part = np.broadcast_to(np.arange(self.size), (len(self.nodes), self.size))
        self._rings(np.array(self.nodes), part, sets, 1, len(self.nodes), stage, reduce=reduce)

    def across(self, stage: int, segment: int, *, reduce: bool) -> None:
        """Add rings through the g-th ranks of all nodes that move single chunks; chunk b ends or begins at node b."""
        chunks = segment * self.ranks + np.arange(self.ranks)
        part = np.arange(self.ranks).reshape(len(self.nodes), self.size)
        self._rings(np.array(self.nodes).T, part.T, chunks, self.size, 1, stage, reduce=reduce)

    def _rings(self, rings: Ints, part: Ints, table: Ints, apart: int, count: int, stage: int, *, reduce: bool) -> None:
        """Add rings that run at once, shape (rings, n); part p ends at place p (reduce) or begins there (copy).

        `part`, of the same shape, is the index in `table` of each part's first chunk; the index of the part at the next
        place of the ring is larger by `apart`. A part has `count` chunks.
        """
        n = rings.shape[1]
        src, dst = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
        counts, channel = np.full(len(src), count), stage * self.ranks + src
        adds, step = np.full(len(src), reduce), self.builder.step
        shift = 1 if reduce else 0
        # An add also waits for what the receiver got before this stage, because it adds to that. Only the first round
        # has to: later ones queue behind it on the same channel.
        before = [self.arrived[dst]] if reduce else []
        for k, times in ((0, 1), (1, n - 2)):
            if times < 1:
                continue
            first = np.roll(part, k + shift, axis=1).ravel()
            after = np.stack([self.arrived[src], *(before if k == 0 else [])], axis=1)
            numbers = self.builder.send_round(
                Round(src, dst, first, counts, adds, channel, after, step), times, -apart, table
            )
            self.sent[src] = numbers
            self.arrived[dst] = numbers


def rows_of_rings(ranks: int, size: int) -> int:
    """Rows of a stage of rings of `size` ranks: a round that waits for the stage before, and one that is repeated."""
    return ranks * (1 + (size > 2))


def segments(request: Request) -> int:
    """Number of segments: as requested, else 1 (only all_reduce may be cut)."""
    return request.chunks or 1


def all_reduce(request: Request) -> Schedule:
    """Reduce-scatter inside nodes, all-reduce across nodes, all-gather inside nodes."""
    return _schedule(request, segments(request))


def reduce_scatter(request: Request) -> Schedule:
    """Reduce-scatter inside nodes, then across nodes."""
    return _schedule(_in_order(request), 1)


def all_gather(request: Request) -> Schedule:
    """All-gather across nodes, then inside nodes."""
    return _schedule(_in_order(request), 1)


def _in_order(request: Request) -> Request:
    placed = tuple(place for node in equal_nodes(request) for place in node)
    if placed != tuple(range(request.world_size)):
        raise ValueError(f"hierarchical {request.operation} needs nodes of consecutive ranks, got {list(placed)}")
    if request.chunks not in (None, 1):
        raise ValueError(f"hierarchical {request.operation} is not cut into segments; leave `chunks` out")
    return request


def _schedule(request: Request, cut: int) -> Schedule:
    nodes = equal_nodes(request)
    if len(nodes) == 1 or len(nodes[0]) == 1:
        return replace(ring.ALGORITHM.plans[request.operation](as_ring(request)), algorithm="hierarchical")
    n, reducing, copying = request.world_size, request.operation != "all_gather", request.operation != "reduce_scatter"

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        for segment in range(cut):
            stages.next_segment()
            if reducing:
                stages.inside(0, segment, reduce=True)
                stages.across(1, segment, reduce=True)
            if copying:
                stages.across(1, segment, reduce=False)
                stages.inside(2, segment, reduce=False)
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
    nodes, times = max(1, len(request.nodes)), 2 if request.operation == "all_reduce" else 1
    return Steps(times * (-(-request.world_size // nodes) - 1), times * (nodes - 1))


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    options=("nodes", "chunks"),
    whole=("reduce_scatter", "all_gather"),
    examples=in_nodes,
    steps=steps,
)
