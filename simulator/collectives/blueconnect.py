"""BlueConnect: reduce in rings inside every node, then across pairs of nodes, pairs of pairs, ...; then gather back.

The number of nodes is taken apart into its prime factors. On each level rings of so many nodes add up what the level
before has left to every rank, so each step sends less than the one before, and there are few of them: 64 nodes are six
levels of two, 12 steps where one ring through all nodes takes 126. A card carries as many bytes as in that ring. Only a
number with a large prime factor, such as 62, takes many steps: twice that factor.

Communication libraries go across nodes by a pair of binary trees, with as many steps and about as many bytes on each
card (NCCL's Tree and NVLSTree) [2]_. In trees hardly two nodes are alike; here all are, so that the step of a large
cluster can be played for one node of each kind.

With `chunks` the array is cut into segments, which follow each other from level to level. A rank sends in turns what is
on each level, the segment that is farthest on its way first, so that no segment waits for another one's latencies, and
never more than one transfer at a time inside its node and one to other nodes: a machine's caps are those of its ports.

References
----------
.. [1] Cho, Finkler, Kung & Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
   hierarchy", MLSys 2019.
.. [2] S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4", NVIDIA developer blog, 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.cluster.cluster import Steps
from simulator.collectives import ring
from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume, one_a_node, steps_in_stages
from simulator.collectives.example import in_nodes
from simulator.collectives.hierarchical import (
    Level,
    Stages,
    as_ring,
    equal_nodes,
    plans,
    rings_of,
    rows_of_rings,
    segments,
)
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def prime_factors(number: int) -> list[int]:
    """Prime factors of a whole number, the smallest first; none of 1.

    Examples
    --------
    >>> prime_factors(48), prime_factors(1)
    ([2, 2, 2, 2, 3], [])
    """
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


def levels_across(nodes: Sequence[Sequence[int]]) -> list[Level]:
    """Levels between nodes, the nearest nodes first."""
    levels, apart = [], len(nodes[0])
    for factor in prime_factors(len(nodes)):
        levels.append(Level(factor, apart))
        apart *= factor
    return levels


def all_levels(nodes: Sequence[Sequence[int]]) -> list[Level]:
    """Levels inside nodes, where they have several ranks, and between them."""
    return [Level(len(nodes[0]), 1)] * (len(nodes[0]) > 1) + levels_across(nodes)


def pipelined(segments: int, stages: int) -> Iterator[tuple[int, int]]:
    """Segment and stage in the order of a pipeline in which each segment is one stage ahead of the next.

    Examples
    --------
    >>> list(pipelined(2, 3))
    [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]
    """
    for turn in range(segments + stages - 1):
        for segment in range(max(0, turn - stages + 1), min(segments, turn + 1)):
            yield segment, turn - segment


def there_and_back(levels: Sequence[Level], *, reducing: bool, copying: bool) -> list[tuple[Level, bool]]:
    """Levels in the order in which an array passes them, each with whether it adds there."""
    return [(level, True) for level in levels] * reducing + [(level, False) for level in reversed(levels)] * copying


def rows_of_levels(ranks: int, levels: Sequence[Level]) -> int:
    """Rows of a segment's rings in one direction."""
    return sum(rows_of_rings(ranks, level.size) for level in levels)


def steps_across(nodes: int) -> int:
    """Steps from node to node in one direction."""
    return sum(factor - 1 for factor in prime_factors(nodes))


def _schedule(request: Request, cut: int) -> Schedule:
    nodes, n = equal_nodes(request), request.world_size
    if len(nodes) == 1:
        return replace(ring.ALGORITHM.plans[request.operation](as_ring(request)), algorithm="blueconnect")
    levels = all_levels(nodes)
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    way = there_and_back(levels, reducing=reducing, copying=copying)

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        of = [stages.segment(number) for number in range(cut)]
        for number, stage in pipelined(cut, len(way)):
            level, reduce = way[stage]
            stages.level(of[number], int(level.apart >= stages.size), level, reduce=reduce)
        return stages.builder.parts()

    rows = cut * (reducing + copying) * rows_of_levels(n, levels)
    return Schedule(request.operation, "blueconnect", n, 0, n * cut, ReductionOrder.IN_SEQUENCE, kept(parts), rows=rows)


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """Levels of f ranks, each left with s bytes by the levels before: (f - 1)(alpha + s / (f beta)), and back the same.

    For N | n and one segment, where all hops of a level are alike and share links evenly.
    """
    nodes = equal_nodes(request)
    if len(nodes) == 1:
        return ring.closed_form(as_ring(request), sizes, network)
    if request.elements % request.world_size or segments(request) != 1:
        return None
    time, left = network.startup, request.elements
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    itemsizes = [sizes.reduced] * reducing + [sizes.copied] * copying
    for level in all_levels(nodes):
        hop = network.in_step(rings_of(nodes, level).tolist())
        if hop is None or (reducing and not network.hbm_bears(hop.rate(1))):
            return None
        left //= level.size
        time += sum((level.size - 1) * (hop.latency + left * itemsize / hop.rate(1)) for itemsize in itemsizes)
    return time


def steps(request: Request) -> Steps:
    """Of rings in every node, and of the levels between them."""
    return steps_in_stages(request, steps_across(max(1, len(request.nodes))))


def stands_for_trees(request: Request) -> bool:
    """Whether libraries run trees there: sums over nodes, and since NCCL 2.23 gathers of one rank a node (PAT)."""
    return one_a_node(request) or (request.operation == "all_reduce" and len(request.nodes) > 1)


ALGORITHM = Algorithm(
    plans=plans(_schedule),
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    in_libraries=stands_for_trees,
    options=("nodes", "chunks"),
    whole=("reduce_scatter", "all_gather"),
    examples=in_nodes,
    steps=steps,
)
