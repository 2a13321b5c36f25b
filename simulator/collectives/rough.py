"""Roughly how long a collective takes, at once for any number of ranks: enough to say what memory a step needs.

Rule: never reported as a time and never used to choose; no schedule, and the routes of one rank alone.

Each rank sends its share of the array, (N-1)/N of it, twice for an all-reduce, at the rate of its narrowest way: to
another rank of its node, or, by as many ports as the group has ranks in a node, to another node.
"""

from __future__ import annotations

from simulator.cluster.cluster import Cluster


def roughly(cluster: Cluster, operation: str, nbytes: float, group: tuple[int, ...]) -> float:
    """Time of a collective over an array of so many bytes [s].

    Parameters
    ----------
    cluster : Cluster
    operation : str
        Of the catalog, or "push" and "pull".
    nbytes : float
        Of the whole array [B].
    group : tuple of int
        Ranks.
    """
    machine = cluster.machine(operation, group) or cluster.machine("all_reduce", group)
    factor = machine.factor(nbytes) if machine else 1.0
    first, node_of = group[0], cluster.node_of()
    inside = [rank for rank in group if node_of.get(rank) == node_of.get(first)]
    away = next((rank for rank in group if node_of.get(rank) != node_of.get(first)), None)
    rates = []
    if len(inside) > 1:
        rates.append(_rate(cluster, first, inside[1], machine.rate_cap * factor if machine else float("inf")))
    if away is not None:
        cap = machine.cross_rate_cap * factor if machine else float("inf")
        rates.append(len(inside) * _rate(cluster, first, away, cap))
    sent = nbytes * (2 if operation == "all_reduce" else 1) * (len(group) - 1) / len(group)
    return (machine.startup if machine else 0.0) + (sent / min(rates) if rates else 0.0)


def _rate(cluster: Cluster, rank: int, other: int, cap: float) -> float:
    """Of a flow that is alone [B/s]."""
    return min(cluster.route(cluster.ranks[rank], cluster.ranks[other]).bandwidth, cap)
