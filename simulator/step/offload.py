"""How long copies between a GPU and its host take, and how fast its processors update states (ZeRO-Offload [1]_).

Rule: says how a copy is carried out and how long the processors take; strategies say who copies what. GPUs have copy
engines of their own, so a copy slows no kernel, but it shares PCIe links with whatever else crosses them.

References
----------
.. [1] Ren et al., "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC 2021.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from simulator.cluster.cluster import Cluster
from simulator.records.operation import Collective
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule

CopyDirection = Literal["to host", "to device"]
# Copies from and to an H200 over PCIe 5 x16 reach 55.1 and 55.4 of 63 GB/s (ml-engineering, S. Bekman).
COPY_EFFICIENCY: Final = 0.88


@dataclass(frozen=True, slots=True)
class CopyRate:
    """How every rank's copies to or from its host run.

    Attributes
    ----------
    latency : float
        [s]
    rate : float
        Of each, while all ranks copy at once [B/s].
    cap : float
        Of one that is alone [B/s].
    alike : bool
        Whether all ranks have the same.
    """

    latency: float
    rate: float
    cap: float
    alike: bool

    def seconds(self, nbytes: float) -> float:
        """Time of a copy that all ranks begin together [s]."""
        return self.latency + nbytes / self.rate


def copies(cluster: Cluster, direction: CopyDirection) -> CopyRate:
    """What a topology's PCIe gives; where it names no host, each GPU has a slot of its own, as its file says."""
    if not cluster.hosts:
        cap = COPY_EFFICIENCY * min(gpu.host_bandwidth for gpu in cluster.gpus)
        return CopyRate(0.0, cap, cap, alike=True)
    routes = [cluster.route(*ends) for ends in _ends(cluster, direction)]
    users = Counter(link for route in routes for link in route.links)
    bandwidth = cluster.router.bandwidth
    caps = [COPY_EFFICIENCY * route.bandwidth for route in routes]
    rates = [
        min(cap, *(bandwidth[link] / users[link] for link in route.links))
        for cap, route in zip(caps, routes, strict=True)
    ]
    latency = max(route.latency for route in routes)
    alike = len(set(rates)) == 1 and len({route.latency for route in routes}) == 1
    return CopyRate(latency, min(rates), min(caps), alike)


def meets_collectives(cluster: Cluster) -> bool:
    """Whether a copy and a message between ranks may share a link: where cards or GPUs hang on the same PCIe slot."""
    if not cluster.hosts:
        return False
    directions: tuple[CopyDirection, ...] = ("to host", "to device")
    taken = {
        link for direction in directions for ends in _ends(cluster, direction) for link in cluster.route(*ends).links
    }
    ranks = cluster.ranks
    pairs = [(0, j) for j in range(1, len(ranks))] + [(j, (j + 1) % len(ranks)) for j in range(len(ranks))]
    both = [pair for a, b in pairs if a != b for pair in ((a, b), (b, a))]
    return any(link in taken for a, b in both for link in cluster.route(ranks[a], ranks[b]).links)


def _ends(cluster: Cluster, direction: CopyDirection) -> Iterator[tuple[str, str]]:
    for rank, host in zip(cluster.ranks, cluster.hosts, strict=True):
        yield (rank, host) if direction == "to host" else (host, rank)


def copy_operation(cluster: Cluster, nbytes: int, direction: CopyDirection, cap: float) -> Collective:
    """Rank 0's copy as one transfer between it and its host, on the cluster's own links."""

    def parts() -> Iterator[Round]:
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        src, dst = (zero, one) if direction == "to host" else (one, zero)
        yield Round(src, dst, zero, one, zero.astype(np.bool_), zero, -one[:, None])

    schedule = Schedule(f"copy {direction}", "copy", 1, 1, 1, ReductionOrder.IN_SEQUENCE, parts, rows=1)
    return Collective(
        name=f"copy {direction}",
        group=(0,),
        schedule=schedule,
        elements=nbytes,
        itemsize=1,
        reduce_itemsize=1,
        dtype="uint8",
        auxiliaries=(cluster.hosts[0],),
        rate_cap=cap,
        cross_rate_cap=cap,
        stream=f"copy {direction}",
        takes_sms=False,
    )


def host_rate(cluster: Cluster, of_node: float) -> float:
    """A rank's part of what its node's processors read and write each second [B/s]."""
    return of_node / max(len(node) for node in cluster.nodes) if cluster.hosts else of_node
