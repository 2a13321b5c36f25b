"""How much HBM bandwidth does a collective in flight leave to its rank's kernels? Computed from links and GPU.

No constant is fitted: bytes that arrive over links pass HBM three times. Example: 8 ranks on 100 Gb/s links receive
12.5 GB/s each. Reads and writes take 37.5 of an A100's 2039 GB/s, and 1 - 37.5 / 2039 = 0.982 is left.
"""

from __future__ import annotations

from typing import Final

from simulator.cluster.cluster import Cluster

# Bytes that arrive are written to a buffer and read back, and a user's array is read or written: NCCL's author in
# NVIDIA/nccl#1428.
_PASSES: Final = 3
# An exchange through user buffers writes what arrives where kernels read it, and reads what it sends.
_PASSES_OF_USER_BUFFERS: Final = 2
# Memory controllers serve kernels too. The bound is a guess, reached only by GPUs with very slow memory.
_LEAST_LEFT: Final = 0.25


def hbm_left(cluster: Cluster) -> float:
    """Return the share of HBM bandwidth, in (0, 1], that a ring collective over every rank of a cluster leaves to
    kernels.

    >>> from simulator.cluster.build import build
    >>> round(hbm_left(build("star_100g", 8)), 3), hbm_left(build("star_100g", 1))
    (0.982, 1.0)
    """
    if cluster.world_size == 1:
        return 1.0
    slowest = min(cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size))
    return max(_LEAST_LEFT, 1.0 - _PASSES * arriving(cluster) / slowest)


def left_by_user_buffers(hbm_left: float) -> float:
    """Return the share of HBM bandwidth, 0 to 1, left to matmuls beside an exchange through Transformer Engine's user
    buffers, from the share left beside a ring all-gather of NCCL at the same rate of arriving bytes.

    >>> round(left_by_user_buffers(0.7), 3)
    0.8
    """
    return 1.0 - (1.0 - hbm_left) * _PASSES_OF_USER_BUFFERS / _PASSES


def arriving(cluster: Cluster) -> float:
    """Return the largest rate at which a ring over every rank of a cluster can deliver bytes to each rank [B/s].

    Bounded by the ports inside a node, by the node's network cards, and by the machine's measured cap.
    """
    # Nodes are alike: the first node, and the first pair of nodes, represent the others.
    rates = [_inside(cluster, node) for node in cluster.nodes[:1] if len(node) > 1]
    if len(cluster.nodes) > 1:
        rates.append(_across(cluster, *cluster.nodes[:2]))
    machine = cluster.collectives.get("all_gather")
    return min([*rates, machine.rate_cap]) if machine else min(rates)


def _inside(cluster: Cluster, node: tuple[int, ...]) -> float:
    """Return the bandwidth of the route between the first two ranks in a node [B/s]."""
    return cluster.route(cluster.ranks[node[0]], cluster.ranks[node[1]]).bandwidth


def _across(cluster: Cluster, node: tuple[int, ...], following: tuple[int, ...]) -> float:
    """Return the joint bandwidth from a node's ranks to the next node's [B/s]; a shared card counts once."""
    narrowest: dict[int, float] = {}
    bandwidth = cluster.router.bandwidth
    for rank, other in zip(node, following, strict=False):
        links = cluster.route(cluster.ranks[rank], cluster.ranks[other]).links
        # A network card shared by several ranks counts once.
        link = min(links, key=lambda number: (bandwidth[number], number))
        narrowest[link] = bandwidth[link]
    return sum(narrowest.values())
