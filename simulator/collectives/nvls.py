"""NVLS: the switch adds up. Every GPU sends its array once and gets the sum once; only where a switch can reduce.

Like a vote counted at the desk instead of passed round the table. The g-th rank of a node asks the switch for the sum
of its part, then has the switch hand it to all, itself included: each GPU sends and receives S(1 + 1/N). Several nodes
add across, rank by rank in a ring, between the two. The array is cut into segments (`chunks`) that follow each other.

References
----------
.. [1] NVIDIA, "NVLink-network switch: NVLink SHARP", Hot Chips 34, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.collectives.algorithm import Algorithm, Auxiliary, Request
from simulator.collectives.example import at_switches
from simulator.collectives.hierarchical import Stages, equal_nodes, rows_of_rings
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept

# Segments that keep the filling of the pipeline (asking, adding, handing out) below a tenth of the time on 8 GPUs.
SEGMENTS = 8
# NCCL leaves it out where one GPU of a node takes part (src/transport/nvls.cc, ncclNvlsInit: gpuCount < 2); older
# versions for two as well, but what was measured over two is nearer to it than to a ring (docs/measured.md).
FEWEST = 2


def all_reduce(request: Request) -> Schedule:
    """Ask, add across where there are several nodes, hand out; segment behind segment."""
    nodes, cut, n = equal_nodes(request), segments(request), request.world_size

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        for segment in range(cut):
            stages.next_segment()
            _ask(stages, segment)
            if len(nodes) > 1:
                stages.across(3, segment, reduce=True)
                stages.across(3, segment, reduce=False)
            _hand_out(stages, segment)
        return stages.builder.parts()

    # Each set is asked for by all and brought to its owners, and handed out the other way.
    at_switch = 2 * len(nodes[0]) * (n + len(nodes))
    across = 2 * rows_of_rings(n, len(nodes)) if len(nodes) > 1 else 0
    rows = cut * (at_switch + across)
    return Schedule("all_reduce", "nvls", n, len(nodes), n * cut, ReductionOrder.ON_ARRIVAL, kept(parts), rows=rows)


def segments(request: Request) -> int:
    """How many segments follow each other: as asked, else 8, but no chunk empty."""
    return request.chunks or max(1, min(SEGMENTS, request.elements // request.world_size))


def _sets(stages: Stages, segment: int) -> list[tuple[int, int]]:
    return [(segment * stages.ranks + g, len(stages.nodes)) for g in range(stages.size)]


def _ask(stages: Stages, segment: int) -> None:
    """Every rank sends every set to its switch; the switch sends the sum of set g to the g-th rank."""
    n = stages.ranks
    for g, part in enumerate(_sets(stages, segment)):
        pushed = [
            [stages.builder.send(r, n + b, *part, reduce=True, channel=r) for r in node]
            for b, node in enumerate(stages.nodes)
        ]
        stages.builder.end_round()
        for b, (node, sent) in enumerate(zip(stages.nodes, pushed, strict=True)):
            stages.arrived[node[g]] = stages.builder.send(
                n + b, node[g], *part, reduce=False, channel=n + node[g], after=sent
            )
        stages.builder.end_round()


def _hand_out(stages: Stages, segment: int) -> None:
    """The g-th rank sends the sum of set g to its switch, which sends it to all ranks of the node."""
    n = stages.ranks
    ready = stages.arrived.tolist()
    for g, part in enumerate(_sets(stages, segment)):
        ups = [
            stages.builder.send(node[g], n + b, *part, reduce=False, channel=4 * n + node[g], after=[ready[node[g]]])
            for b, node in enumerate(stages.nodes)
        ]
        stages.builder.end_round()
        for b, (node, up) in enumerate(zip(stages.nodes, ups, strict=True)):
            for r in node:
                # The owner gets back what it may still be sending to other nodes.
                still_read = stages.sent[r] if r == node[g] and stages.sent[r] >= 0 else None
                stages.builder.send(n + b, r, *part, reduce=False, channel=5 * n + r, after=[up, still_read])
        stages.builder.end_round()


def volume(request: Request) -> int:
    """2 S(1 + 1/G) from and to each of N ranks at its switch, and 2(M-1) S across M nodes."""
    nodes = equal_nodes(request)
    m, n = len(nodes), request.world_size
    # Up: S from every rank, and S in all from a node's owners; down the same.
    return 2 * (n + m) * request.elements + 2 * (m - 1) * request.elements


def never(request: Request) -> bool:
    """The switch's own traffic is counted too, so it is more than the least between ranks."""
    return False


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce},
    volume=volume,
    minimal=never,
    options=("nodes", "chunks"),
    fewest_in_node=FEWEST,
    auxiliary=Auxiliary.SWITCHES,
    examples=at_switches,
)
