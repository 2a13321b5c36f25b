"""NVLS: each node's switch adds the GPUs' arrays and multicasts the sum; needs a switch that can reduce.

The g-th of a node's G ranks requests the sum of its part from the switch. Then the rank has the switch send this sum to
every rank of the node, itself included. Each GPU sends and receives S(1 + 1/G).

With several nodes, the g-th ranks add their sums level by level between the two stages, see
blueconnect.py. Like NCCL's NVLSTree, this takes 2 log2(nodes) steps from node to node. The array
is cut into segments (`chunks`) that follow each other.

The switch adds arrays in the order in which they arrive: on Hopper, two calls with equal inputs may differ by rounding
[2]_, while all ranks of a call receive equal sums.

Example: a node with ranks 0 and 1 and switch 2, a single segment with 2 sets.

    push        0 -> 2, 1 -> 2   set 0, then set 1    add
    sum         2 -> 0   set 0   2 -> 1   set 1       copy    each rank receives the sum of its set
    share       0 -> 2   set 0   1 -> 2   set 1       copy
    multicast   2 -> 0, 2 -> 1   set 0, then set 1    copy

References
----------
.. [1] NVIDIA, "NVLink-network switch: NVLink SHARP", Hot Chips 34, 2022.
.. [2] NVIDIA/nccl, issue 1497, answers of 2024-10-29 and 2024-11-06.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.cluster.cluster import Steps
from simulator.collectives.algorithm import Algorithm, Auxiliary, CollectiveRequest
from simulator.collectives.blueconnect import levels_across, pipelined, rows_of_levels, steps_across, there_and_back
from simulator.collectives.example import at_switches
from simulator.collectives.hierarchical import Segment, Stages, equal_nodes
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept

# Eight segments: filling the pipeline (request, add, multicast) takes less than a tenth of the time on 8 GPUs.
SEGMENTS = 8
# Queues per rank, or per rank at the node's switch: to the switch, from the switch with the sum, to
# other nodes, to the switch with the final sum, from the switch with the multicast.
_PUSH, _SUM, _ACROSS, _SHARE, _MULTICAST = range(5)
# NCCL's own factor on Hopper (src/graph/tuning.cc, nvlsEfficiency), used for every GPU; NCCL has 0.74 on Blackwell.
_SHARE_OF_RING = 0.85
# NCCL does not use NVLS if only one GPU of a node takes part (src/transport/nvls.cc, ncclNvlsInit: gpuCount < 2). Older
# versions do not use NVLS for two GPUs either, but times measured over two GPUs are closer to NVLS than to a ring
# (docs/measured.md).
FEWEST = 2
# In NCCL's own model, sums in the switch of a single node have 2 x 0.85 x 15/16 x 5/6 x 1/2 = 0.66 of a ring's rate B,
# over array bytes, and a ring over N GPUs has B N / (2 (N - 1)), which is 0.67 B for 4 and 0.63 B for 5 (tuning.cc).
_FEWEST_ALONE = 5


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-reduce: reduces at the nodes' switches, sums across nodes, then multicasts.

    The array's segments follow each other.
    """
    nodes, cut, n = equal_nodes(request), segments(request), request.world_size
    # Normally every rank pushes the sets in the same order, and the first set crosses to other nodes while the last set
    # is still added. With very few elements, such as a norm, the sets arrive at about the same time. Then each rank has
    # its own order: the ranks become equivalent, and the engines simulate one rank of the equivalence class.
    rotates = request.elements < 2 * n
    levels = levels_across(nodes)
    across = there_and_back(levels, reducing=True, copying=True)

    def parts() -> Iterator[Round | Repeat]:
        stages = Stages(nodes)
        of = [stages.segment(number) for number in range(cut)]
        for number, stage in pipelined(cut, 1 + len(across) + 1):
            if stage == 0:
                _ask(stages, of[number], rotates=rotates)
            elif stage <= len(across):
                level, reduce = across[stage - 1]
                stages.level(of[number], _ACROSS, level, reduce=reduce)
            else:
                _hand_out(stages, of[number], rotates=rotates)
        return stages.builder.parts()

    # For each set: every rank sends to its switch, every switch sends to the set's owner; the multicast mirrors both.
    at_switch = 2 * len(nodes[0]) * (n + len(nodes))
    rows = cut * (at_switch + 2 * rows_of_levels(n, levels))
    return Schedule("all_reduce", "nvls", n, len(nodes), n * cut, ReductionOrder.ON_ARRIVAL, kept(parts), rows=rows)


def segments(request: CollectiveRequest) -> int:
    """Return the number of segments for the array: the requested number, else at most 8, without empty chunks."""
    return request.chunks or max(1, min(SEGMENTS, request.elements // request.world_size))


def _sets(stages: Stages, segment: Segment) -> list[tuple[int, int]]:
    """Return (first chunk, chunk count) for each set in a segment; set g belongs to each node's g-th rank."""
    return [(segment.number * stages.ranks + g, len(stages.nodes)) for g in range(stages.size)]


def _ask(stages: Stages, segment: Segment, *, rotates: bool) -> None:
    """Add to a segment's schedule pushes from every rank to its switch, and the sum of set g to the g-th rank."""
    n, sets = stages.ranks, _sets(stages, segment)
    pushed: list[list[list[int]]] = [[[] for _ in sets] for _ in stages.nodes]
    for turn in range(stages.size):
        for b, place, g in _by_turns(stages, turn, rotates=rotates):
            r = stages.nodes[b][place]
            pushed[b][g].append(stages.builder.send(r, n + b, *sets[g], reduce=True, channel=_PUSH * n + r))
        stages.builder.end_round()
    for b, node in enumerate(stages.nodes):
        for g, owner in enumerate(node):
            # The rings between nodes wait for this transfer: it brings the node's sum of set g to the set's owner.
            segment.arrived[0][owner] = stages.builder.send(
                n + b, owner, *sets[g], reduce=False, channel=_SUM * n + owner, after=pushed[b][g]
            )
    stages.builder.end_round()


def _hand_out(stages: Stages, segment: Segment, *, rotates: bool) -> None:
    """Add to a segment's schedule each set's way from its owner to the switch, and the multicast in the node."""
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
        for b, place, g in _by_turns(stages, turn, rotates=rotates):
            r = stages.nodes[b][place]
            # The multicast overwrites the owner's set, which may still be in transfer from the owner to another node.
            still_read = [sends[r] for sends in segment.sent] if place == g else []
            stages.builder.send(
                n + b, r, *sets[g], reduce=False, channel=_MULTICAST * n + r, after=[ups[b][g], *still_read]
            )
        stages.builder.end_round()


def _by_turns(stages: Stages, turn: int, *, rotates: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (node, place in node, set) for every rank in turn `turn`; if `rotates`, ranks begin with different sets."""
    for b in range(len(stages.nodes)):
        for place in range(stages.size):
            yield b, place, (place + 1 + turn) % stages.size if rotates else turn


def volume(request: CollectiveRequest) -> int:
    """Return the elements on the wire of an NVLS all-reduce: 2 (N + M) S at the switches, 2(M-1) S across M nodes."""
    nodes = equal_nodes(request)
    m, n = len(nodes), request.world_size
    # To the switches: S from every rank, plus S in total from the owners of a node's sets; from the switches the same.
    return 2 * (n + m) * request.elements + 2 * (m - 1) * request.elements


def never(request: CollectiveRequest) -> bool:
    """Return False: NVLS never sends the least volume, because transfers from switches count too."""
    return False


def steps(request: CollectiveRequest) -> Steps:
    """Return the step count on the longest way: to the switch and back, and twice the levels between nodes."""
    return Steps(2, 2 * steps_across(max(1, len(request.nodes))))


def _in_libraries(request: CollectiveRequest) -> bool:
    return min(map(len, request.nodes), default=0) >= (FEWEST if len(request.nodes) > 1 else _FEWEST_ALONE)


ALGORITHM = Algorithm(
    summary="the NVSwitch of each node adds the arrays and sends the sum to all GPUs of the node",
    plans={"all_reduce": all_reduce},
    volume=volume,
    minimal=never,
    options=("nodes", "chunks"),
    chooses_chunks=True,
    share_of_ring=_SHARE_OF_RING,
    fewest_in_node=FEWEST,
    in_libraries=_in_libraries,
    auxiliary=Auxiliary.SWITCHES,
    examples=at_switches,
    steps=steps,
)
