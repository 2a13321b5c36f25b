"""How much HBM bandwidth a collective in flight leaves to the kernels of its rank.

Rule: worked out from the links and the GPU, with no fitted constant: what the links bring and take passes HBM too.
"""

from __future__ import annotations

from typing import Final

from simulator.cluster.cluster import Cluster

# What leaves a rank is read, what arrives is written; a reduction reads a third time.
_PASSES: Final = 2
# Nobody starves: memory controllers serve kernels too (a guess that only GPUs with very slow memory meet).
_LEAST_LEFT: Final = 0.25


def hbm_left(cluster: Cluster) -> float:
    """Share of HBM bandwidth, above 0, at most 1, while a ring passes through every rank.

    Examples
    --------
    >>> from simulator.cluster.build import build
    >>> round(hbm_left(build("star_100g", 8)), 3), hbm_left(build("star_100g", 1))
    (0.988, 1.0)
    """
    if cluster.world_size == 1:
        return 1.0
    slowest = min(cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size))
    return max(_LEAST_LEFT, 1.0 - _PASSES * arriving(cluster) / slowest)


def arriving(cluster: Cluster) -> float:
    """Most that a ring over all ranks brings to each of them [B/s]: by the ports inside a node and by its cards."""
    rates = [_inside(cluster, node) for node in cluster.nodes[:1] if len(node) > 1]
    if len(cluster.nodes) > 1:
        rates.append(_across(cluster, *cluster.nodes[:2]))
    machine = cluster.collectives.get("all_gather")
    return min([*rates, machine.rate_cap]) if machine else min(rates)


def _inside(cluster: Cluster, node: tuple[int, ...]) -> float:
    return cluster.route(cluster.ranks[node[0]], cluster.ranks[node[1]]).bandwidth


def _across(cluster: Cluster, node: tuple[int, ...], following: tuple[int, ...]) -> float:
    """All cards of a node together: each narrowest link once."""
    narrowest: dict[int, float] = {}
    bandwidth = cluster.router.bandwidth
    for rank, other in zip(node, following, strict=False):
        links = cluster.route(cluster.ranks[rank], cluster.ranks[other]).links
        link = min(links, key=lambda number: (bandwidth[number], number))
        narrowest[link] = bandwidth[link]
    return sum(narrowest.values())
