"""Which of a machine's measured constants hold for a collective, and what replaces constants without a measurement?

A measured collective keeps its own constants; other operations, algorithms and groups get constants derived here from
the nearest measurement. docs/measured.md shows the derivation errors.

Without any measurement, the model of the library gives start-up and rates (`as_library`). Each flow then reaches the
library's share of what its GPUs' ports give it, if the flows of a round share them evenly. In a ring over an NVSwitch a
rank's flow has its port alone; in an exchange between eight ranks seven flows share the port.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Final

from simulator.basics.arrays import Ints
from simulator.basics.dtypes import find as find_dtype
from simulator.cluster.caps import spare_of_cards
from simulator.cluster.cluster import Cluster, MachineCollective, Steps
from simulator.cluster.library import SOURCE, own_share
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, Algorithm, Auxiliary, CollectiveRequest
from simulator.collectives.estimate import even_shares
from simulator.records.operation import Collective, RateCaps

# Ring step over the network, in NCCL's own model for its Simple protocol [s] (src/graph/tuning.cc, hwLat).
NETWORK_STEP: Final = 14e-6
# Nodes with more GPUs are racks. In a rack, the half size of sums in switches falls with the GPUs that take part (docs/
# measured.md: 4 of 72 GB200); over 2 and 4 of 8 H100, no smaller half size was measured.
_MOST_IN_A_BOX: Final = 8


def runs(cluster: Cluster, request: CollectiveRequest, group: tuple[int, ...]) -> MachineCollective | None:
    """Return the machine's measured constants for the requested operation in a group of ranks.

    The result is None if there is no measurement, or if nodes have too few ranks for the machine's algorithm.
    """
    machine = cluster.machine(request.operation, group)
    return machine if machine is not None and _fills_nodes(request, machine) else None


def constants(
    cluster: Cluster, request: CollectiveRequest, group: tuple[int, ...], algorithm: Algorithm
) -> MachineCollective | None:
    """Return the machine's constants (start-up, caps) for a request by an algorithm; None if the machine has none.

    Constants of the same algorithm come first, whatever their operation: a ring of gathers tells more about a ring of
    sums than sums in a switch do. Those of another are converted: the cap inside nodes by the ratio of the bandwidths
    that libraries reach with either algorithm, the start-up by the additional steps from node to node.
    """
    nearest = (cluster.machine(operation, group) for operation in _nearest(cluster, request, group))
    candidates = list(filter(None, (runs(cluster, request, group), *nearest)))
    if not candidates:
        return None

    def unlike(candidate: MachineCollective) -> tuple[bool, bool]:
        other = ALGORITHMS.find(candidate.algorithm)
        # In a node, all algorithms but sums in switches have the rates and steps of rings.
        unlike_ring = len(request.nodes) < 2 and other.share_of_ring != algorithm.share_of_ring
        return other is not algorithm, unlike_ring

    # Stable: among constants of one algorithm the nearest operation comes first.
    measured = min(candidates, key=unlike)
    reference, measured = ALGORITHMS.find(measured.algorithm), _in_a_rack(cluster, request, measured)
    if reference is algorithm:
        return measured
    # A machine with a measured `cross_step` already pays for each step between nodes (`MachineCollective.latency`).
    more = max(0.0, algorithm.steps(request).across - reference.steps(request).across)
    later = 0.0 if measured.cross_step else more * NETWORK_STEP
    share = algorithm.share_of_ring / reference.share_of_ring
    # The measured number of pieces belongs to the measured algorithm.
    return replace(measured, startup=measured.startup + later, rate_cap=measured.rate_cap * share, chunks=None)


def caps_of(
    cluster: Cluster,
    request: CollectiveRequest,
    group: tuple[int, ...],
    algorithm: Algorithm,
    machine: MachineCollective | None,
    nbytes: int,
) -> tuple[float, float]:
    """Return (inside, across): a rank's highest sending rates in its node and to other nodes [B/s]; inf if unknown.

    Constants over several nodes that were measured on another machine, and those over racks without a rate inside,
    reflect only the network. The rate inside is then also at most the rate of a group within one node (the lower of
    both counts). 16 B200 in two nodes were fitted without this bound.

    Parameters
    ----------
    algorithm : Algorithm
        Algorithm of the collective.
    machine : MachineCollective or None
        Constants of the machine for this algorithm, from `constants`.
    nbytes : int
        Size of the array [B].
    """
    if machine is None:
        return inf, inf
    factor = machine.factor(nbytes)
    sent = machine.share(request.operation, len(group)) if len(request.nodes) < 2 else 1.0
    inside, across = machine.rate_cap * factor * sent, machine.cross_rate_cap * factor
    in_node = cluster.in_node.get(request.operation)
    of_network = machine.borrowed or (machine.rate_cap == inf and (cluster.node_size or 0) > _MOST_IN_A_BOX)
    if in_node is not None and len(request.nodes) > 1 and of_network:
        share = algorithm.share_of_ring / ALGORITHMS.find(in_node.algorithm).share_of_ring
        share *= in_node.share(request.operation, max(map(len, request.nodes)))
        inside = min(inside, in_node.rate_cap * share * _in_a_rack(cluster, request, in_node).factor(nbytes))
    # Caps between nodes are fitted with every GPU of a node sending; fewer ranks per network card get a larger share.
    return inside, across if across == inf else across * spare_of_cards(cluster, group, machine.cross_rate_cap)


def _in_a_rack(cluster: Cluster, request: CollectiveRequest, machine: MachineCollective) -> MachineCollective:
    """Return constants for the GPUs of a rack that take part: each asks a switch for the sum of its part of the array,
    and fewer GPUs have larger parts.
    """
    size, parts = cluster.node_size or 0, max(map(len, request.nodes), default=request.world_size)
    if size <= _MOST_IN_A_BOX or ALGORITHMS.find(machine.algorithm).auxiliary is not Auxiliary.SWITCHES:
        return machine
    return replace(machine, half_size=machine.half_size * parts / size)


def source_of(cluster: Cluster, machine: MachineCollective | None) -> str:
    """Return the source of a machine's constants; empty without constants."""
    return "" if machine is None else machine.source or f"the topology file of {cluster.name}"


def as_library(
    cluster: Cluster, op: Collective, steps: Steps, *, key: object = None, at_once: Iterable[tuple[Ints, Ints]] = ()
) -> Collective:
    """Return a collective with the library's start-up and rates; unchanged if the cluster has no model of a library.

    Parameters
    ----------
    op : Collective
        Without start-up and caps.
    steps : Steps
        Number of transfers, one after another, on its longest path.
    key : object, optional
        Key of a cache, equal for collectives whose transfers take the same routes; by default the schedule itself.
    at_once : iterable of (sources, destinations), optional
        Transfers that run at once; by default those of each round of the schedule.
    """
    library = cluster.modelled(op.group)
    if library is None:
        return op
    # The result holds the schedule whose id is in the key.
    schedule = op.schedule if key is None else None
    rounds = at_once or ((part.round.src, part.round.dst) for part in op.schedule.repeats())
    call = as_library, key or id(schedule), op.group
    shares, _ = cluster.remember(call, lambda: (even_shares(cluster, op, rounds), schedule), len(op.group))
    nbytes, operation = op.elements * find_dtype(op.dtype).itemsize, op.schedule.operation
    adds = any(vertex in cluster.reducing_switches for vertex in op.auxiliaries)
    uses = {
        way: library.between(operation) if way is None else library.within(operation, way, adds=adds) for way in shares
    }
    rates = {way: uses[way].rate(share.rate * share.flows, nbytes) / share.flows for way, share in shares.items()}
    across = rates.pop(None, inf)
    if across == inf:
        rates = {way: rate * own_share(operation, len(op.group), uses[way].own_part) for way, rate in rates.items()}
    startup = max((use.startup for way, use in uses.items() if way is not None), default=0.0)
    if across < inf:
        startup = uses[None].startup + steps.across * library.step
    # The slowest way inside a node holds back the others.
    caps = RateCaps(min(rates.values(), default=inf), across, SOURCE)
    return replace(op, startup=op.startup + startup, caps=caps)


def on_whole_nodes(cluster: Cluster, request: CollectiveRequest) -> bool:
    """Return True if the request's ranks fill a node, or several nodes, completely.

    The sweeps behind the machine's constants used whole nodes. For other groups the constants only serve to predict the
    fastest algorithm.
    """
    sizes = {len(node) for node in request.nodes} or {request.world_size}
    return sizes == {cluster.node_size or max(map(len, cluster.nodes), default=0)}


def _nearest(cluster: Cluster, request: CollectiveRequest, group: tuple[int, ...]) -> tuple[str, ...]:
    """Return the operations with measured constants that may replace the request's own, nearest first.

    A ring all-reduce is a reduce-scatter and a gather, so a gather's constants hold for sums that the machine's own
    algorithm cannot run. Inside a node, an exchange between every pair of ranks has no ring steps; over nodes each
    step counts.
    """
    operation, in_one_node = request.operation, len(request.nodes) < 2
    if cluster.machine(operation, group) is not None:
        return ("all_gather", operation)
    if operation in REDUCING or in_one_node:
        return ("all_reduce", "all_gather")
    return ("all_gather", "all_reduce")


def _fills_nodes(request: CollectiveRequest, machine: MachineCollective) -> bool:
    """Return True if the request has enough ranks in every node for the machine's algorithm."""
    in_node = min(map(len, request.nodes), default=request.world_size)
    return in_node >= ALGORITHMS.find(machine.algorithm).fewest_in_node
