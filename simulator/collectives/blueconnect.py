"""BlueConnect: reduce in rings inside every node, then across pairs of nodes, pairs of pairs, ...; then gather back.

The number of nodes is factorised into primes, and each prime factor f gives a level. On a level, rings of f
nodes add up the data that the level before left to every rank. Each level therefore sends less than the level before,
and the steps are few: 64 nodes are six levels of two, which take 12 steps; one ring through 64 nodes takes 126. A
network card carries as many bytes as in that ring. Only a number with a large prime factor, such as 62, takes many
steps: about twice the factor.

Example: 4 nodes with a single rank each give 2 levels with f = 2. Every rank begins with the whole array.

    level 0, add     0 <-> 1   2 <-> 3    half of the array each
    level 1, add     0 <-> 2   1 <-> 3    a quarter each
    level 1, copy    0 <-> 2   1 <-> 3    a quarter each
    level 0, copy    0 <-> 1   2 <-> 3    half of the array each

Communication libraries use a pair of binary trees between nodes, with as many steps and about as many bytes on each
card (NCCL's Tree and NVLSTree) [2]_. In trees hardly two nodes do the same; here every node does. The engine then
simulates one node of each equivalence class, which keeps the step of a large cluster feasible.

With `chunks` the array is cut into segments that follow each other from level to level. A rank serves its levels in
turn and sends the most advanced segment first: no segment waits for another segment's latencies. A rank sends
at most a single transfer at a time inside the node, and one to other nodes: a machine's caps are its ports' caps.

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
from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    always,
    least_volume,
    one_a_node,
    steps_in_stages,
)
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
    """Return the prime factors of a whole number in rising order; none for 1.

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
    """Return the ring levels between nodes, nearest nodes first: a level for each prime factor in the node count.

    Six nodes of 2 ranks: pairs of neighbouring nodes, then rings of three nodes that are two nodes apart.

    >>> levels_across([(2 * b, 2 * b + 1) for b in range(6)])
    [Level(size=2, apart=2), Level(size=3, apart=4)]
    """
    levels, stride = [], len(nodes[0])
    for factor in prime_factors(len(nodes)):
        levels.append(Level(factor, stride))
        stride *= factor
    return levels


def all_levels(nodes: Sequence[Sequence[int]]) -> list[Level]:
    """Return the levels of rings: inside nodes (if nodes have several ranks), then between nodes, nearest first.

    >>> all_levels([[0, 1], [2, 3], [4, 5], [6, 7]])
    [Level(size=2, apart=1), Level(size=2, apart=2), Level(size=2, apart=4)]
    """
    return [Level(len(nodes[0]), 1)] * (len(nodes[0]) > 1) + levels_across(nodes)


def pipelined(segments: int, stages: int) -> Iterator[tuple[int, int]]:
    """Yield (segment, stage) in pipeline order: each segment is a stage ahead of the next segment.

    >>> list(pipelined(2, 3))
    [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]
    """
    for turn in range(segments + stages - 1):
        # In turn t, segment s is at stage t - s. Lower segments are farther on their way, and go first.
        for segment in range(max(0, turn - stages + 1), min(segments, turn + 1)):
            yield segment, turn - segment


def there_and_back(levels: Sequence[Level], *, reducing: bool, copying: bool) -> list[tuple[Level, bool]]:
    """Return the levels in the order in which an array passes them, each with True for adding, False for copying.

    `reducing` includes the way there, which adds; `copying` includes the way back, which copies.
    """
    return [(level, True) for level in levels] * reducing + [(level, False) for level in reversed(levels)] * copying


def rows_of_levels(ranks: int, levels: Sequence[Level]) -> int:
    """Return how many schedule rows an array segment needs for every level's rings in one direction."""
    return sum(rows_of_rings(ranks, level.size) for level in levels)


def steps_across(nodes: int) -> int:
    """Return the number of ring steps from node to node for this node count, in one direction.

    >>> steps_across(64), steps_across(62)
    (6, 31)
    """
    return sum(factor - 1 for factor in prime_factors(nodes))


def _schedule(request: CollectiveRequest, cut: int) -> Schedule:
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
            # Two channels for each rank: 0 inside the node, 1 to other nodes. The levels between nodes share a channel,
            # because they share a port.
            stages.level(of[number], int(level.apart >= stages.size), level, reduce=reduce)
        return stages.builder.parts()

    rows = cut * (reducing + copying) * rows_of_levels(n, levels)
    return Schedule(request.operation, "blueconnect", n, 0, n * cut, ReductionOrder.IN_SEQUENCE, kept(parts), rows=rows)


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return BlueConnect's time on an idle network [s], for N | n and one segment; None if no formula is exact.

    A level of f ranks, to which the levels before left s bytes, takes (f - 1)(alpha + s / (f beta)) in each direction.
    """
    nodes = equal_nodes(request)
    if len(nodes) == 1:
        return ring.closed_form(as_ring(request), sizes, network)
    if request.elements % request.world_size or segments(request) != 1:
        return None
    time, elements = network.startup, request.elements
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    itemsizes = [sizes.reduced] * reducing + [sizes.copied] * copying
    for level in all_levels(nodes):
        hop = network.in_step(rings_of(nodes, level).tolist())
        if hop is None or (reducing and not network.hbm_bears(hop.rate(1))):
            return None
        elements //= level.size
        time += sum((level.size - 1) * (hop.latency + elements * itemsize / hop.rate(1)) for itemsize in itemsizes)
    return time


def steps(request: CollectiveRequest) -> Steps:
    """Return the step count on BlueConnect's longest way: the ring inside nodes, and the levels between nodes."""
    return steps_in_stages(request, steps_across(max(1, len(request.nodes))))


def stands_for_trees(request: CollectiveRequest) -> bool:
    """Return True if libraries run trees between nodes for this request; BlueConnect then represents trees.

    Trees run sums over nodes, and, since NCCL 2.23 (PAT), gathers over nodes with one rank each.
    """
    return len(request.nodes) > 1 and (one_a_node(request) or request.operation == "all_reduce")


ALGORITHM = Algorithm(
    summary="rings inside each node, then between pairs of nodes, pairs of pairs, ...; then back",
    plans=plans(_schedule),
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    in_libraries=stands_for_trees,
    stands_in=True,
    options=("nodes", "chunks"),
    whole=("reduce_scatter", "all_gather"),
    examples=in_nodes,
    steps=steps,
)
