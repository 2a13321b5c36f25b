"""Which of a machine's measured constants hold for a collective, and what stands for those that were not measured?

Rule: a machine's sections are facts; what is made of them for other operations, algorithms and groups is made here, and
docs/measured.md shows how far off that is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, Request

# What a step of a ring takes over the network, by NCCL's own model of its Simple protocol [s] (src/graph/tuning.cc,
# hwLat).
NETWORK_STEP: Final = 14e-6


def runs(cluster: Cluster, request: Request, group: tuple[int, ...]) -> MachineCollective | None:
    """What the machine runs for this operation among these ranks, as measured; None where it was not, or cannot run."""
    own = cluster.machine(request.operation, group)
    return own if own is not None and _fills_nodes(request, own) else None


def constants(cluster: Cluster, request: Request, group: tuple[int, ...], algorithm: str) -> MachineCollective | None:
    """The constants with which an algorithm carries out a request; None where the machine has none at all.

    Those of another algorithm are turned into this one's: its cap inside nodes by what libraries reach with either,
    its start-up by the further steps from node to node that it takes.
    """
    nearest = (cluster.machine(operation, group) for operation in _nearest(cluster, request, group))
    measured = runs(cluster, request, group) or next(filter(None, nearest), None)
    if measured is None or measured.algorithm == algorithm:
        return measured
    wanted, known = ALGORITHMS.find(algorithm), ALGORITHMS.find(measured.algorithm)
    more = max(0.0, wanted.steps(request).across - known.steps(request).across)
    later = 0.0 if measured.cross_step else more * NETWORK_STEP
    share = wanted.share_of_ring / known.share_of_ring
    return replace(measured, startup=measured.startup + later, rate_cap=measured.rate_cap * share, chunks=None)


def source_of(cluster: Cluster, machine: MachineCollective | None) -> str:
    """Where a machine's constants are from; empty where it has none."""
    return "" if machine is None else machine.source or f"the topology file of {cluster.name}"


def on_whole_nodes(cluster: Cluster, request: Request) -> bool:
    """Whether a group over several nodes has all ranks of each, as in the sweeps that machines are fitted to.

    Otherwise the same constants say which algorithm is the fastest; inside a node they hold for fewer ranks too.
    """
    return len(request.nodes) < 2 or {len(node) for node in request.nodes} == {len(node) for node in cluster.nodes}


def _nearest(cluster: Cluster, request: Request, group: tuple[int, ...]) -> tuple[str, ...]:
    """Operations whose constants stand for a request's, the nearest first.

    A ring's sum is a scatter and a gather, so gathers' constants hold for sums where a machine's sum cannot run. What
    every rank sends to every other takes no steps inside a node, so nothing of a ring; over nodes each step counts.
    """
    operation, alone = request.operation, len(request.nodes) < 2
    if cluster.machine(operation, group) is not None:
        return ("all_gather", operation)
    if operation in REDUCING or alone:
        return ("all_reduce", "all_gather")
    return ("all_gather", "all_reduce")


def _fills_nodes(request: Request, machine: MachineCollective) -> bool:
    """Whether enough ranks of every node take part for what the machine runs."""
    in_node = min(map(len, request.nodes), default=request.world_size)
    return in_node >= ALGORITHMS.find(machine.algorithm).fewest_in_node
