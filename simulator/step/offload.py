"""How long do copies between GPU and host take, and how fast do host processors update states (ZeRO-Offload [1]_)?

GPUs have separate copy engines, hence a copy slows no kernel, but shares PCIe links with other traffic. Strategies
decide what is copied.

References
----------
.. [1] Ren et al., "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC 2021.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from simulator.cluster.cluster import Cluster
from simulator.records.operation import Collective, ElementSizes, RateCaps
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule
from simulator.step.kernels.kernel_time import host_copy_share

CopyDirection = Literal["to host", "to device"]
# Pages of managed memory reach at best half of the PCIe bandwidth (bitsandbytes, docs/source/explanations/
# optimizers.mdx: "about 50% of the PCIe bandwidth as time in the best case").
PAGE_EFFICIENCY: Final = 0.5


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Rate of every rank's copies to or from its host."""

    latency: float  # latency of a copy [s]
    rate: float  # rate of each copy if every rank copies at once [B/s]
    cap: float  # rate of a copy without others [B/s]
    alike: bool  # whether every rank has equal rates
    efficiency: float  # share of the link's bandwidth that a copy reaches, 0 to 1

    def slowed(self, efficiency: float) -> CopyRate:
        """Return the rates at another share of the links' bandwidth."""
        share = efficiency / self.efficiency
        return replace(self, rate=share * self.rate, cap=share * self.cap, efficiency=efficiency)

    def seconds(self, nbytes: float) -> float:
        """Return the duration of an `nbytes`-byte copy begun by every rank together [s]."""
        return self.latency + nbytes / self.rate


def copies(cluster: Cluster, direction: CopyDirection) -> CopyRate:
    """Return latency and rates of copies between GPUs and hosts in a direction, over the cluster's PCIe links.

    If the topology has no hosts, each GPU has a slot of its own with the rate in the GPU's file.
    """
    # GPUs of a cluster are few different objects; the slowest decides.
    efficiency = min(host_copy_share(gpu) for gpu in {id(gpu): gpu for gpu in cluster.gpus}.values())
    if not cluster.hosts:
        cap = efficiency * min(gpu.host_bandwidth for gpu in cluster.gpus)
        return CopyRate(0.0, cap, cap, alike=True, efficiency=efficiency)
    routes = [cluster.route(*ends) for ends in _ends(cluster, direction)]
    # Ranks behind a PCIe switch share its link: divide by the number of users.
    users = Counter(link for route in routes for link in route.links)
    bandwidth = cluster.router.bandwidth
    caps = [efficiency * route.bandwidth for route in routes]
    rates = [
        min(cap, *(bandwidth[link] / users[link] for link in route.links))
        for cap, route in zip(caps, routes, strict=True)
    ]
    # Ranks copy together: the slowest decides.
    latency = max(route.latency for route in routes)
    uniform = len(set(rates)) == 1 and len({route.latency for route in routes}) == 1
    return CopyRate(latency, min(rates), min(caps), uniform, efficiency)


def meets_collectives(cluster: Cluster) -> bool:
    """Return True if a copy to or from a host and a message between ranks may share a link of the cluster.

    This happens if network cards or GPUs share a PCIe slot.
    """
    if not cluster.hosts:
        return False
    directions: tuple[CopyDirection, ...] = ("to host", "to device")
    links = {
        link for direction in directions for ends in _ends(cluster, direction) for link in cluster.route(*ends).links
    }
    ranks = cluster.ranks
    # A sample of routes: rank 0 to every rank, and every rank to its neighbour.
    pairs = [(0, j) for j in range(1, len(ranks))] + [(j, (j + 1) % len(ranks)) for j in range(len(ranks))]
    both = [pair for a, b in pairs if a != b for pair in ((a, b), (b, a))]
    return any(link in links for a, b in both for link in cluster.route(ranks[a], ranks[b]).links)


def _ends(cluster: Cluster, direction: CopyDirection) -> Iterator[tuple[str, str]]:
    """Yield the source and the target node name of each rank's copy in a direction: (rank, host) or (host, rank)."""
    for rank, host in zip(cluster.ranks, cluster.hosts, strict=True):
        yield (rank, host) if direction == "to host" else (host, rank)


def copy_operation(cluster: Cluster, nbytes: int, direction: CopyDirection, cap: float) -> Collective:
    """Return rank 0's copy of `nbytes` bytes to or from its host, as a transfer to simulate, at most at the rate `cap`
    [B/s].
    """

    def parts() -> Iterator[Round]:
        """Yield the only round of a copy's schedule: a single transfer."""
        zeros, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
        src, dst = (zeros, ones) if direction == "to host" else (ones, zeros)
        yield Round(src, dst, zeros, ones, zeros.astype(np.bool_), zeros, -ones[:, None])

    schedule = Schedule(f"copy {direction}", "copy", 1, 1, 1, ReductionOrder.IN_SEQUENCE, parts, rows=1)
    return Collective(
        name=f"copy {direction}",
        group=(0,),
        schedule=schedule,
        elements=nbytes,
        sizes=ElementSizes(1, 1),
        dtype="uint8",
        auxiliaries=(cluster.hosts[0],),
        caps=RateCaps(cap, cap),
        stream=f"copy {direction}",
        takes_sms=False,
    )


def host_rate(cluster: Cluster, of_node: float) -> float:
    """Return a rank's share of `of_node`, the rate at which a node's processors read and write memory [B/s]."""
    return of_node / max(len(node) for node in cluster.nodes) if cluster.hosts else of_node
