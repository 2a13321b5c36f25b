"""Routes that are found together are those that are found one by one."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics import registry
from simulator.basics.errors import NoRouteError
from simulator.cluster.build import build, facts
from simulator.cluster.builders.nodes import nodes
from simulator.cluster.route_table import RouteTable
from simulator.cluster.routing import Router


def together(router: Router, src: np.ndarray, dst: np.ndarray) -> RouteTable:
    table, lost = router._route_finder().table(src, dst)
    assert not len(lost)
    return table


def one_by_one(router: Router, src: np.ndarray, dst: np.ndarray) -> RouteTable:
    routes = [router.route(router.vertices[a], router.vertices[b]) for a, b in zip(src, dst, strict=True)]
    return RouteTable(
        np.repeat(np.arange(len(routes)), [len(route.links) for route in routes]),
        np.array([link for route in routes for link in route.links], np.int64),
        np.array([route.latency for route in routes]),
    )


def equal(one: RouteTable, other: RouteTable) -> bool:
    columns = ((one.route, other.route), (one.link, other.link), (one.latency, other.latency))
    return all(np.array_equal(a, b) for a, b in columns)


@pytest.mark.parametrize("seed", [None, 7], ids=["rule", "hash"])
@pytest.mark.parametrize("name", sorted(registry.names("topology")))
@pytest.mark.one_of(3)
def test_on_every_topology_links_and_latencies_are_the_same_to_the_bit(name: str, seed: int | None) -> None:
    most = facts(name).max_ranks or 40
    cluster = build(name, min(most, 40), gpu="h100_sxm", ecmp_seed=seed)
    ends = np.array([cluster.router.index[vertex] for vertex in cluster.ranks])
    src, dst = (each.ravel() for each in np.meshgrid(ends, ends, indexing="ij"))
    assert equal(together(cluster.router, src, dst), one_by_one(cluster.router, src, dst))


@settings(max_examples=60)
@given(st.data())
def test_on_drawn_graphs_too_where_some_vertices_let_nobody_through(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12), "vertices")
    edges = data.draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), min_size=1, max_size=60), "edges")
    graph: nx.DiGraph[str] = nx.DiGraph()
    for number in range(count):
        kind = data.draw(st.sampled_from(["switch", "host"]), f"v{number} kind")
        graph.add_node(f"v{number}", kind=kind, forwards=data.draw(st.booleans(), f"v{number} forwards"))
    for a, b in edges:
        if a != b:
            graph.add_edge(f"v{a}", f"v{b}", bandwidth=1.0, latency=data.draw(st.sampled_from([1e-6, 0.1, 1e9])))
    router = Router(graph, ecmp_seed=data.draw(st.sampled_from([None, 3])))
    src, dst = (each.ravel() for each in np.meshgrid(np.arange(count), np.arange(count), indexing="ij"))
    _, lost = router._route_finder().table(src, dst)
    for pair in range(count * count):
        ends = f"v{src[pair]}", f"v{dst[pair]}"
        if pair in lost:
            with pytest.raises(NoRouteError):
                router.route(*ends)
    there = np.setdiff1d(np.arange(count * count), lost)
    assert equal(together(router, src[there], dst[there]), one_by_one(router, src[there], dst[there]))


def test_a_pair_without_a_way_is_named() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((f"v{number}", {"kind": "gpu", "forwards": False}) for number in range(102))
    graph.add_edges_from((f"v{number}", "v100", {"bandwidth": 1.0, "latency": 0.0}) for number in range(100))
    router = Router(graph, "lone")
    src = np.concatenate([np.arange(100), [101]])
    with pytest.raises(NoRouteError, match="no route from v101 to v100 in topology 'lone'"):
        router.routes(src, np.full(101, 100))


@settings(max_examples=60)
@given(st.data())
def test_of_paths_that_are_as_short_one_with_the_fewest_hosts_is_taken(data: st.DataObject) -> None:
    """Against all shortest paths, one by one, as networkx lists them."""
    count = data.draw(st.integers(3, 9), "vertices")
    hosts = data.draw(st.sets(st.integers(0, count - 1)), "hosts")
    edges = data.draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), min_size=6, max_size=40), "edges")
    graph: nx.DiGraph[str] = nx.DiGraph()
    for number in range(count):
        graph.add_node(f"v{number}", kind="host" if number in hosts else "switch")
    graph.add_edges_from([(f"v{a}", f"v{b}") for a, b in edges if a != b], bandwidth=1.0, latency=1e-6)
    router = Router(graph)
    for source, target in [(a, b) for a in graph for b in graph if a != b and nx.has_path(graph, a, b)]:
        passed = [path[1:-1] for path in nx.all_shortest_paths(graph, source, target)]
        fewest = min(sum(int(v[1:]) in hosts for v in path) for path in passed)
        links = router.route(source, target).links
        own = [router.vertices[router.targets[link]] for link in links[:-1]]
        assert own in passed
        assert sum(int(v[1:]) in hosts for v in own) == fewest


def test_with_a_card_for_each_gpu_no_gpu_sends_through_a_host() -> None:
    router = build("dgx_h100", 64).router
    for target in range(1, 64):
        assert not any("host" in router.link_name(link) for link in router.route("gpu0", f"gpu{target}").links)


def test_a_path_with_few_hosts_in_its_middle_is_no_dead_end() -> None:
    """Two PCIe servers with a card per socket: gpu0 to gpu13 has paths over host1 and over host2, with 3 hosts each."""
    graph = nodes(
        16, gpus=8, inside="pcie", pcie_bandwidth=25e9, pcie_latency=5e-7, nics=2, nic_bandwidth=25e9, nic_latency=1e-6
    )  # fmt: skip
    src, dst = (each.ravel() for each in np.meshgrid(np.arange(16), np.arange(16), indexing="ij"))
    pairs = src != dst
    index = np.array([Router(graph).index[f"gpu{rank}"] for rank in range(16)])
    router, same = Router(graph), Router(graph)
    ends = index[src[pairs]], index[dst[pairs]]
    assert equal(together(router, *ends), one_by_one(same, *ends))
    links = router.route("gpu0", "gpu13").links
    own = [router.vertices[router.targets[link]] for link in links[:-1]]
    assert sum(vertex.startswith("host") for vertex in own) == 3
