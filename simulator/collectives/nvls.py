"""NVLS: each node's switch adds the GPUs' arrays and multicasts the sum; needs a switch that can reduce.

The g-th of a node's G ranks requests the sum of its part from the switch, then has the switch send it to all ranks of
the node, itself included: each GPU sends and receives S(1 + 1/G). With several nodes, the g-th ranks of all nodes add
their sums level by level between these two stages (blueconnect.py): in as many steps from node to node as NCCL's
NVLSTree takes, 2 log2 of the nodes. The array is cut into segments (`chunks`) that follow each other.

References
----------
.. [1] NVIDIA, "NVLink-network switch: NVLink SHARP", Hot Chips 34, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.cluster.cluster import Steps
from simulator.collectives.algorithm import Algorithm, Auxiliary, Request
from simulator.collectives.blueconnect import levels_across, pipelined, rows_of_levels, steps_across, there_and_back
from simulator.collectives.example import at_switches
from simulator.collectives.hierarchical import Segment, Stages, equal_nodes
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept

# With so many segments, filling the pipeline (request, add, multicast) takes less than a tenth of the time on 8 GPUs.
SEGMENTS = 8
# Queues of each rank, or of its node's switch for it: to the switch and from it, to other nodes, to the switch and from
# it again.
_PUSH, _SUM, _ACROSS, _SHARE, _MULTICAST = range(5)
# NCCL's own factor on Hopper (src/graph/tuning.cc, nvlsEfficiency), taken for all; it has 0.74 on Blackwell.
_SHARE_OF_RING = 0.85
# NCCL does not use NVLS where one GPU of a node takes part (src/transport/nvls.cc, ncclNvlsInit: gpuCount < 2); older
# versions do not for two either, but times measured over two are closer to NVLS than to a ring (docs/measured.md).
FEWEST = 2


def all_reduce(request: Request) -> Schedule:
    """Reduce at the switches, then across nodes if there are several, then multicast; segment after segment."""
    nodes, cut, n = equal_nodes(request), segments(request), request.world_size
    # Set after set, so that the first is on its way to other nodes while the last is added. Of a few numbers, such as a
    # norm, all arrive at about once: there each rank has an order of its own, and in the engines all ranks are alike.
    alike = request.elements < 2 * n
    levels = levels_across(nodes)
    across = there_and_back(levels, reducing=True, copying=True)

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        of = [stages.segment(number) for number in range(cut)]
        for number, stage in pipelined(cut, 1 + len(across) + 1):
            if stage == 0:
                _ask(stages, of[number], alike=alike)
            elif stage <= len(across):
                level, reduce = across[stage - 1]
                stages.level(of[number], _ACROSS, level, reduce=reduce)
            else:
                _hand_out(stages, of[number], alike=alike)
        return stages.builder.parts()

    # For each set every rank sends to its switch, and every switch to the set's owner; the multicast reverses both.
    at_switch = 2 * len(nodes[0]) * (n + len(nodes))
    rows = cut * (at_switch + 2 * rows_of_levels(n, levels))
    return Schedule("all_reduce", "nvls", n, len(nodes), n * cut, ReductionOrder.ON_ARRIVAL, kept(parts), rows=rows)


def segments(request: Request) -> int:
    """Number of segments: as requested, else up to 8, without empty chunks."""
    return request.chunks or max(1, min(SEGMENTS, request.elements // request.world_size))


def _sets(stages: Stages, segment: Segment) -> list[tuple[int, int]]:
    return [(segment.number * stages.ranks + g, len(stages.nodes)) for g in range(stages.size)]


def _ask(stages: Stages, segment: Segment, *, alike: bool) -> None:
    """Every rank sends every set to its switch; the switch sends the sum of set g to the g-th rank."""
    n, sets = stages.ranks, _sets(stages, segment)
    pushed: list[list[list[int]]] = [[[] for _ in sets] for _ in stages.nodes]
    for turn in range(stages.size):
        for b, place, g in _by_turns(stages, turn, alike=alike):
            r = stages.nodes[b][place]
            pushed[b][g].append(stages.builder.send(r, n + b, *sets[g], reduce=True, channel=_PUSH * n + r))
        stages.builder.end_round()
    for b, node in enumerate(stages.nodes):
        for g, owner in enumerate(node):
            segment.arrived[0][owner] = stages.builder.send(
                n + b, owner, *sets[g], reduce=False, channel=_SUM * n + owner, after=pushed[b][g]
            )
    stages.builder.end_round()


def _hand_out(stages: Stages, segment: Segment, *, alike: bool) -> None:
    """The g-th rank sends the sum of set g to its switch, which sends it to all ranks of the node."""
    n, sets = stages.ranks, _sets(stages, segment)
    ready = np.stack(segment.arrived, axis=1).tolist()
    ups = [
        [
            stages.builder.send(owner, n + b, *part, reduce=False, channel=_SHARE * n + owner, after=ready[owner])
            for owner, part in zip(node, sets, strict=True)
        ]
        for b, node in enumerate(stages.nodes)
    ]
    stages.builder.end_round()
    for turn in range(stages.size):
        for b, place, g in _by_turns(stages, turn, alike=alike):
            r = stages.nodes[b][place]
            # The multicast overwrites the owner's set, which the owner may still be sending to another node.
            still_read = [sent[r] for sent in segment.sent] if place == g else []
            stages.builder.send(
                n + b, r, *sets[g], reduce=False, channel=_MULTICAST * n + r, after=[ups[b][g], *still_read]
            )
        stages.builder.end_round()


def _by_turns(stages: Stages, turn: int, *, alike: bool) -> Iterator[tuple[int, int, int]]:
    """By node and place in it the set whose turn it is; if ranks are to be `alike`, each begins behind its own."""
    for b in range(len(stages.nodes)):
        for place in range(stages.size):
            yield b, place, (place + 1 + turn) % stages.size if alike else turn


def volume(request: Request) -> int:
    """2 S(1 + 1/G) between each of N ranks and its switch, and 2(M-1) S across M nodes."""
    nodes = equal_nodes(request)
    m, n = len(nodes), request.world_size
    # To the switches: S from every rank, and S in all from the owners of a node's sets; from the switches the same.
    return 2 * (n + m) * request.elements + 2 * (m - 1) * request.elements


def never(request: Request) -> bool:
    """False: the volume counts transfers from switches too, so it is more than the least between ranks."""
    return False


def steps(request: Request) -> Steps:
    """To the switch and back, and the levels between nodes."""
    return Steps(2, 2 * steps_across(max(1, len(request.nodes))))


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce},
    volume=volume,
    minimal=never,
    options=("nodes", "chunks"),
    share_of_ring=_SHARE_OF_RING,
    fewest_in_node=FEWEST,
    in_libraries=lambda request: min(map(len, request.nodes), default=0) >= FEWEST,
    auxiliary=Auxiliary.SWITCHES,
    examples=at_switches,
    steps=steps,
)
