"""On which machines, and with which options, is an algorithm checked? Stars, and nodes with switches that add.

The memory of the GPUs is so fast that links alone decide about times.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ROOTED, Algorithm, CollectiveRequest
from simulator.collectives.example import Example

# A memory bandwidth that never limits a time.
WIDE_GPU: Final = {
    "vector_flops": {"float32": "20 TFLOP/s"},
    "hbm_bytes": "80 GB",
    "hbm_bandwidth": "1000 TB/s",
    "sms": 100,
    "host_bandwidth": "32 GB/s",
}


@lru_cache(maxsize=256)
def star(world_size: int, servers: int = 0, latency: str = "5 us", bandwidth: str = "100 Gb/s") -> Cluster:
    """Return GPUs around a single switch, with memory that never limits a time."""
    topology = {"builder": "star", "options": {"bandwidth": bandwidth, "latency": latency}}
    return build(topology, world_size, gpu=WIDE_GPU, servers=servers)


@lru_cache(maxsize=256)
def nodes(world_size: int, size: int, nics: int | None = None) -> Cluster:
    """Return nodes of `size` GPUs on a switch that can add, joined by rails of 25 GB/s network cards; formulas hold,
    because links have their rating.
    """
    options = {
        "gpus": size,
        "inside": "nvswitch",
        "link_bandwidth": "300 GB/s",
        "link_latency": "0.5 us",
        "in_switch_reduction": True,
        "hosts": 1,
        "pcie_bandwidth": "63 GB/s",
        "pcie_latency": "0.25 us",
        "nics": size if nics is None else nics,
        "nic_bandwidth": "25 GB/s",
        "nic_latency": "1 us",
        "fabric": "rail",
    }
    return build({"builder": "nodes", "library": "none", "options": options}, world_size, gpu=WIDE_GPU)


def equal_nodes(world_size: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each node.

    >>> equal_nodes(4, 2)
    ((0, 1), (2, 3))
    """
    return tuple(tuple(range(start, start + size)) for start in range(0, world_size, size))


def request_options(example: Example, world_size: int) -> dict[str, Any]:
    """Return the fields of a request that an algorithm's example sets."""
    options: dict[str, Any] = {} if example.chunks is None else {"chunks": example.chunks}
    if example.servers is not None:
        options |= {"servers": example.servers, "servers_on": example.servers_on}
    if example.sides:
        options["sides"] = example.sides
    if example.given and example.node_size:
        options["nodes"] = equal_nodes(world_size, example.node_size)
    return options


def variants(algorithm: Algorithm, ranks: int) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """Yield the machines, and the options of a request, of the algorithm's own examples."""
    for example in algorithm.examples(ranks):
        servers = example.servers if example.servers_on == "own" else 0
        inside = example.node_size if example.node_size and not example.given else None
        yield nodes(ranks, inside) if inside else star(ranks, servers or 0), request_options(example, ranks)


def requests(
    algorithm: Algorithm, operation: str, ranks: int, elements: int
) -> Iterator[tuple[Cluster, CollectiveRequest]]:
    """Yield machine and request for each example of an algorithm, and for a first, middle and last root."""
    roots = sorted({0, ranks - 1, ranks // 2}) if operation in ROOTED else [0]
    for cluster, options in variants(algorithm, ranks):
        for root in roots:
            yield cluster, CollectiveRequest(operation, ranks, elements, root=root, **options)
