"""Torus: rings along every dimension of a grid with joined edges, in both directions at once, over all links of a GPU.

all_reduce, reduce_scatter and all_gather among N ranks on D dimensions of L_d ranks each. The array is cut into 2 D
*strands*, equal shares of every rank's part. A strand is added in rings along one dimension after the other; each such
*stage* works on the chunks that the stage before left to a rank. The strand is then gathered in the opposite order.
Strands 2 d and 2 d + 1 begin with dimension d, in opposite directions, and take the other dimensions in turn. With
equal sides of three or more ranks, each direction of each link therefore carries one strand at a time. An all_reduce
takes 2 times the sum of (L_d - 1) steps; one ring over all ranks takes 2 (N - 1).

Example: 2 dimensions of 2 ranks, ranks 0 1 in the first row and 2 3 in the second; chunk r is rank r's part. Transfers
of rank 0 in a reduce_scatter (ranks 1 and 2 do the same with their neighbours):

    strand 0    along columns    sends chunks 2 3 to rank 2, receives 0 1    along rows       sends 1, receives 0
    strand 2    along rows       sends chunks 1 3 to rank 1, receives 0 2    along columns    sends 2, receives 0

Strands 1 and 3 go in the other direction, which is the same among two ranks: they share its link.

References
----------
.. [1] Jain & Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010.
.. [2] Austin et al., "How to scale your model", 2025, section on TPU networking: collectives over several axes at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from simulator.basics.arrays import Ints
from simulator.cluster.builders.torus import dimensions, strides
from simulator.cluster.cluster import Cluster, Steps
from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    Flows,
    always,
    goes_round,
    least_volume,
)
from simulator.collectives.example import in_tori
from simulator.collectives.idle import AlikeRoutes, IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept

# A strand's stage: (dimension of its rings, starts, step, count). A step of a ring has a transfer, a *run*, for each of
# the starts: with the chunk of the rank at the start, and then of every `step`-th rank, `count` in all. These ranks
# differ in the dimensions of later stages alone.
_Stage = tuple[int, tuple[int, ...], int, int]


def sides_of_group(cluster: Cluster, group: Sequence[int]) -> tuple[int, ...]:
    """Return the side lengths of the part of a torus that a group fills, the dimension that varies slowest first.

    Empty unless the group spans whole dimensions, with ranks in row-major order.
    """
    # Apart from a storage, which carries no collective, the network has the ranks alone.
    storage = [vertex for vertex in cluster.graph if cluster.graph.nodes[vertex]["kind"] == "storage"]
    if len(cluster.graph) - len(storage) != cluster.world_size:
        return ()
    graph = cluster.graph.subgraph(cluster.ranks) if storage else cluster.graph
    lengths = cluster.remember(dimensions, lambda: dimensions(graph, cluster.ranks))
    rest, lengths_round, places = group[0], list[int](), [group[0]]
    for length, stride in zip(lengths, strides(lengths), strict=True):
        at, rest = divmod(rest, stride)
        if len(group) > 1 and at == 0 and group[0] + stride in group:
            lengths_round.append(length)
            places = [place + step * stride for place in places for step in range(length)]
    return tuple(lengths_round) if lengths_round and tuple(places) == tuple(group) else ()


def sides_of(request: CollectiveRequest) -> tuple[int, ...]:
    """Return the side lengths of a request's torus, the last varying fastest; a single ring if the request has none.

    Raises
    ------
    ValueError
        The sides do not have the request's number of ranks.
    """
    sides = request.sides or (request.world_size,)
    if prod(sides) != request.world_size:
        raise ValueError(f"sides {list(sides)} must have {request.world_size} ranks")
    return sides


def _stages(sides: Sequence[int], first: int) -> list[_Stage]:
    """Return a strand's stages when it adds, with dimension `first` first and the others in turn.

    In a cube, the ranks that differ in the first and third dimension are no single run:

    >>> _stages((4, 2), 0), _stages((3, 3, 3), 1)[0]
    ([(0, (0,), 1, 2), (1, (0,), 1, 1)], (1, (0, 9, 18), 1, 3))
    """
    order = [(first + i) % len(sides) for i in range(len(sides))]
    distances = strides(sides)
    stages = []
    for place, axis in enumerate(order):
        later = sorted(order[place + 1 :])
        # From the fastest dimension on, neighbouring dimensions form one run of equal distances.
        step, count = (distances[later[-1]], sides[later.pop()]) if later else (1, 1)
        while later and distances[later[-1]] == step * count:
            count *= sides[later.pop()]
        starts = np.zeros(1, np.int64)
        for dimension in later:
            starts = (starts[:, None] + np.arange(sides[dimension]) * distances[dimension]).ravel()
        stages.append((axis, tuple(starts.tolist()), step, count))
    return stages


def _strand(builder: ScheduleBuilder, sides: Sequence[int], number: int, *, adding: bool, gathering: bool) -> None:
    """Add a strand's rounds to a schedule: stages that add, and in the opposite order stages that gather.

    There are two strands for each dimension, one in each direction.
    """
    stages, n = _stages(sides, number // 2), prod(sides)
    phases = [(True, place) for place in range(len(stages))] * adding
    phases += [(False, place) for place in reversed(range(len(stages)))] * gathering
    most = max(len(starts) for _, starts, _, _ in stages)
    # Last transfers into each rank: those of the last adding stage, and of each gathering stage since.
    arrived: list[Ints] = []
    for reduce, place in phases:
        axis = stages[place][0]
        if sides[axis] == 1:
            continue
        # Sums and copies queue apart, and the runs of a transfer travel side by side.
        lane = ((number * len(stages) + place) * 2 + (not reduce)) * most
        earlier = [stage[0] for stage in stages[:place]]
        came = _rings(builder, sides, stages[place], earlier, number, lane * n, arrived, reduce=reduce)
        # Adds into a chunk wait for each other: waiting for the last is enough. Copies bring different parts.
        arrived = came if reduce else [*arrived, *came]


def _rings(
    builder: ScheduleBuilder, sides: Sequence[int], stage: _Stage, earlier: Sequence[int], number: int, channel: int,
    arrived: Sequence[Ints], *, reduce: bool,
) -> list[Ints]:  # fmt: skip
    """Add a stage's rings to a schedule; return the index of the last transfer into each rank, an array for each run.

    `reduce`: add, else copy; `number`: of the strand; `earlier`: dimensions of earlier stages; `channel`: the first
    FIFO to use; `arrived`: indices of transfers to wait for, arrays by rank.
    """
    axis, starts, step, count = stage
    n, length, runs, strands, distances = prod(sides), sides[axis], len(starts), 2 * len(sides), strides(sides)
    ranks, ahead = np.arange(n), 1 - 2 * (number % 2)
    at = ranks // distances[axis] % length
    # Ranks with the same places along all earlier dimensions carry chunks of the same ranks.
    fixed = np.zeros(n, np.int64)
    for dimension in earlier:
        fixed += ranks // distances[dimension] % sides[dimension] * distances[dimension]
    columns, column = np.unique(fixed, return_inverse=True)
    # Row i of the table: place i along the dimension. Columns: runs, and ranks by their earlier dimensions.
    across = (np.array(starts)[:, None] + columns).ravel()
    table = ((np.arange(length) * distances[axis])[:, None] + across).ravel() * strands + number
    # A chunk is added from the rank after its owner on, around the ring to the owner; it is copied from its owner.
    begins = (at - ahead) % length if reduce else at
    first = (begins * len(across) + column + np.arange(runs)[:, None] * len(columns)).ravel()
    run, src = np.repeat(np.arange(runs), n), np.tile(ranks, runs)
    dst = np.tile(ranks + ((at + ahead) % length - at) * distances[axis], runs)
    counts, adds = np.full(len(src), count), np.full(len(src), reduce)
    # An add also waits for what arrived before at its receiver, because it adds to the result.
    waits = [numbers[ends] for numbers in arrived for ends in ((src, dst) if reduce else (src,))]
    after = np.stack(waits, axis=1) if waits else np.full((len(src), 1), -1)
    came = np.full((runs, n), -1)
    for times in (1, length - 2):
        if times > 0:
            round_ = Round(src, dst, first, counts, adds, channel + run * n + src, after, step * strands)
            came[run, dst] = builder.send_round(round_, times, -ahead * len(across), table)
            # In step k a rank sends on what arrived in step k - 1.
            first, after = (first - ahead * len(across)) % len(table), came[run, src][:, None]
    return list(came)


def plan(request: CollectiveRequest) -> Schedule:
    """Return a schedule of 2 D strands, each with as many steps as the sum of (side - 1); twice for an all_reduce."""
    sides, n = sides_of(request), request.world_size
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    strands = 2 * len(sides)

    def parts() -> Iterator[Round | Repeat]:
        builder = ScheduleBuilder()
        for number in range(strands):
            _strand(builder, sides, number, adding=reducing, gathering=copying)
        return builder.parts()

    written = sum(
        2 * n * len(starts) * min(2, sides[axis] - 1)
        for first in range(len(sides))
        for axis, starts, _, _ in _stages(sides, first)
    )
    return Schedule(
        request.operation, "torus", n, 0, n * strands, ReductionOrder.IN_SEQUENCE, kept(parts), pieces=strands,
        rows=written * (reducing + copying),
    )  # fmt: skip


def about(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time on an idle network if chunks were equal [s]; None if links are unequal or shared.

    With unequal sides, strands wait for each other: the time is that of the slowest strand alone, or of the dimension
    whose links carry most, whichever is longer.
    """
    sides, strands = sides_of(request), 2 * len(sides_of(request))
    hop = _hop(request, network)
    if hop is None or min(sides) < 3:
        return None
    time = network.startup
    for itemsize in _phases(request, sizes):
        alone, carried = [0.0] * len(sides), [0.0] * len(sides)
        for first in range(len(sides)):
            part = request.elements / strands * itemsize
            for axis, *_ in _stages(sides, first):
                part /= sides[axis]
                alone[first] += (sides[axis] - 1) * (hop.latency + part / hop.rate(1))
                carried[axis] += (sides[axis] - 1) * part / hop.rate(1)
        time += max(*alone, *carried)
    return time


def _hop(request: CollectiveRequest, network: IdleNetwork) -> AlikeRoutes | None:
    """Return the common route between neighbours; None if routes differ or share links."""
    ranks, links, sides = np.arange(request.world_size), Counter[tuple[int, int]](), sides_of(request)
    for length, stride in zip(sides, strides(sides), strict=True):
        at = ranks // stride % length
        for ahead in (1, -1):
            links.update(zip(ranks.tolist(), (ranks + ((at + ahead) % length - at) * stride).tolist(), strict=True))
    hops = network.undisturbed(links, reducing=request.operation != "all_gather")
    return None if hops is None or len(set(hops.values())) != 1 else next(iter(hops.values()))


def _phases(request: CollectiveRequest, sizes: ElementSizes) -> list[int]:
    """Return the size of an element in each phase: adding, gathering [B]."""
    adding, gathering = request.operation != "all_gather", request.operation != "reduce_scatter"
    return [sizes.reduced] * adding + [sizes.copied] * gathering


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time of strands that keep step on an idle network [s]; None if sides, links or chunks are unequal.

    With D sides of L ranks and n elements in the whole array, stage i = 1 .. D takes L - 1 steps, each a latency and
    the bytes of n / (2 D L^i) elements over the rate of a link; an all_reduce takes both phases.
    """
    sides = sides_of(request)
    keeps_step = len(set(sides)) == 1 and request.elements % (request.world_size * 2 * len(sides)) == 0
    return about(request, sizes, network) if keeps_step else None


def steps(request: CollectiveRequest) -> Steps:
    """Return the step count of a strand, all inside a node: a torus is not divided into nodes."""
    return Steps(sum(side - 1 for side in sides_of(request)) * (2 if request.operation == "all_reduce" else 1))


ALGORITHM = Algorithm(
    summary="rings along every dimension of a torus, in both directions at once",
    plans={"all_reduce": plan, "reduce_scatter": plan, "all_gather": plan},
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    about=about,
    # XLA on TPUs: collectives over several axes at once.
    in_libraries=goes_round,
    flows=lambda request: Flows(2 * len(sides_of(request))),
    examples=in_tori,
    steps=steps,
)
