"""Approximates a collective's time, at once for any number of ranks: enough to predict a step's memory.

The result is never reported as a time and never used for a choice. No schedule is needed, and only a single
rank's routes.

Each rank sends (N-1)/N of the array, twice for an all_reduce. Two rates limit the time, and the smaller counts: a flow
to another rank in the node; flows to another node, over as many ports as the group has ranks in the node.
"""

from __future__ import annotations

from simulator.cluster.cluster import Cluster


def estimated_time(cluster: Cluster, operation: str, nbytes: float, group: tuple[int, ...]) -> float:
    """Return a collective's approximate time [s].

    Parameters
    ----------
    operation : str
        An operation in the catalog, or "push" or "pull".
    nbytes : float
        Size of the whole array [B].
    group : tuple of int
        Ranks that take part.
    """
    machine = cluster.machine(operation, group) or cluster.machine("all_reduce", group)
    factor = machine.factor(nbytes) if machine else 1.0
    # The first rank stands for every rank: at most two routes are looked up, to a rank in its node and to another node.
    first, node_of = group[0], cluster.node_of()
    inside = [rank for rank in group if node_of.get(rank) == node_of.get(first)]
    away = next((rank for rank in group if node_of.get(rank) != node_of.get(first)), None)
    rates = []
    if len(inside) > 1:
        rates.append(_rate(cluster, first, inside[1], machine.rate_cap * factor if machine else float("inf")))
    if away is not None:
        cap = machine.cross_rate_cap * factor if machine else float("inf")
        rates.append(len(inside) * _rate(cluster, first, away, cap))
    # The volume of a ring, whatever algorithm will run.
    volume = nbytes * (2 if operation == "all_reduce" else 1) * (len(group) - 1) / len(group)
    return (machine.startup if machine else 0.0) + (volume / min(rates) if rates else 0.0)


def _rate(cluster: Cluster, rank: int, other: int, cap: float) -> float:
    """Return the rate for a flow alone on the route between two ranks, at most `cap` [B/s]."""
    return min(cluster.route(cluster.ranks[rank], cluster.ranks[other]).bandwidth, cap)
