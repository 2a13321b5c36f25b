"""Hypothesis strategies: small worlds, and collectives on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from simulator.cluster.cluster import Cluster
from simulator.cluster.routing import Router
from simulator.collectives.algorithm import ALGORITHMS, ROOTED, CollectiveRequest
from tests.playing import TOLD_NODES, divisors, equal_nodes, nodes, regular, star

world_sizes = st.integers(2, 9)


@dataclass(frozen=True, slots=True)
class Case:
    """A collective on a cluster."""

    cluster: Cluster
    algorithm: str
    request: CollectiveRequest


def rewired(cluster: Cluster, edges: dict[tuple[str, str], tuple[float, float]]) -> Cluster:
    """The same graph with other bandwidths and latencies."""
    graph = cluster.graph.copy()
    for (src, dst), (bandwidth, latency) in edges.items():
        graph.edges[src, dst].update(bandwidth=bandwidth, latency=latency)
    return replace(cluster, graph=graph, router=Router(graph, cluster.name))


@st.composite
def cases(draw: st.DrawFn, *, unlike: bool = True, elements: tuple[int, ...] = (1, 7, 100, 1003)) -> Case:
    """Any algorithm and operation on any small cluster that can run it, links alike or not."""
    algorithm, operation = draw(st.sampled_from(ALGORITHMS.pairs()))
    n = draw(world_sizes)
    size = draw(st.sampled_from(divisors(n)))
    servers = draw(st.integers(1, n))
    if algorithm == "nvls":
        cluster = nodes(n, size)
    else:
        flat = [star(n, servers), regular("ring", n), regular("fully_connected", n), nodes(n, size)]
        cluster = draw(st.sampled_from(flat))
    own = bool(cluster.servers) and draw(st.booleans())
    if unlike and draw(st.booleans()):
        cluster = draw(_unlike(cluster))
    request = CollectiveRequest(
        operation,
        n,
        draw(st.sampled_from(elements)),
        root=draw(st.integers(0, n - 1)) if operation in ROOTED else 0,
        rank_order=tuple(draw(st.permutations(range(n)))) if algorithm in ("ring", "chain") else (),
        chunks=draw(st.sampled_from([None, 1, 3])) if operation == "all_reduce" else None,
        servers=servers,
        servers_on="own" if own else "workers",
        nodes=equal_nodes(n, size) if algorithm in TOLD_NODES else (),
    )
    return Case(cluster, algorithm, request)


@st.composite
def _unlike(draw: st.DrawFn, cluster: Cluster) -> Cluster:
    """Every link with a bandwidth and a latency of its own."""
    factors = st.sampled_from([0.25, 0.5, 0.99, 1.0, 1.0, 3.0])
    latencies = st.sampled_from([0.0, 1e-7, 1e-6, 2.5e-5])
    edges = {
        (a, b): (facts["bandwidth"] * draw(factors), draw(latencies)) for a, b, facts in cluster.graph.edges(data=True)
    }
    return rewired(cluster, edges)
