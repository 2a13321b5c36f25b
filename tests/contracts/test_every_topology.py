"""What holds for every shipped topology, and for every builder."""

from __future__ import annotations

import pickle
from itertools import permutations

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.cluster import builder
from simulator.cluster.build import build, facts, graph_size
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.graph import of_kind

NAMES = registry.names("topology")
SIZES = [1, 2, 3, 7, 8, 16, 20]


def sizes(name: str) -> list[int]:
    most = facts(name).max_ranks
    return [n for n in SIZES if most is None or n <= most]


def test_the_topologies_that_scenarios_rely_on_are_shipped() -> None:
    wanted = {
        "star_100g", "ring_nvlink", "fully_connected_nvlink", "pcie_workstation", "dgx_a100", "dgx_h100", "dgx_b200",
        "mi300x_box", "aws_p4de", "aws_p5", "fat_tree_1024", "leaf_spine_100g", "torus_3d", "torus_2d", "hypercube",
        "dragonfly", "mixed_links", "geforce_server", "pcie_server", "pcie_switch_server", "gh200", "mi325x_box",
        "dgx_b300",
    }  # fmt: skip
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_of_ranks_is_connected_at_every_size(name: str) -> None:
    for n in sizes(name):
        cluster = build(name, n)
        assert cluster.world_size == n
        for src, dst in permutations(cluster.ranks, 2):
            route = cluster.route(src, dst)
            assert route.links
            assert route.latency > 0
            assert 0 < route.bandwidth < float("inf")


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_the_first_gpus_in_order(name: str) -> None:
    cluster = build(name, sizes(name)[-1])
    assert cluster.ranks == tuple(f"gpu{i}" for i in range(cluster.world_size))
    assert cluster.ranks == tuple(of_kind(cluster.graph, "gpu")[: cluster.world_size])


@pytest.mark.parametrize("name", NAMES)
def test_nodes_hold_every_rank_once(name: str) -> None:
    size = facts(name).node_size
    for n in sizes(name):
        cluster = build(name, n)
        assert sorted(rank for node in cluster.nodes for rank in node) == list(range(n))
        assert len(cluster.nodes) == (1 if size is None else -(-n // size))
        assert len(cluster.reducing_switches) == (len(cluster.nodes) if facts(name).in_switch_reduction else 0)
        for switch, node in zip(cluster.reducing_switches, cluster.nodes, strict=False):
            assert all(cluster.graph.has_edge(cluster.ranks[rank], switch) for rank in node)


@pytest.mark.parametrize("name", NAMES)
def test_vertices_and_links_carry_their_facts(name: str) -> None:
    graph = build(name, sizes(name)[-1]).graph
    for _, vertex in graph.nodes(data=True):
        assert vertex["kind"] in {"gpu", "nic", "switch", "host", "server"}
        assert isinstance(vertex["forwards"], bool)
    for src, dst, link in graph.edges(data=True):
        assert link["bandwidth"] > 0
        assert link["latency"] >= 0
        assert graph.has_edge(dst, src)


@pytest.mark.parametrize("name", NAMES)
def test_gpus_reach_their_host_where_there_is_one(name: str) -> None:
    cluster = build(name, sizes(name)[-1])
    for rank, host in zip(cluster.ranks, cluster.hosts, strict=False):
        assert cluster.graph.nodes[host]["kind"] == "host"
        assert cluster.route(rank, host).bandwidth <= cluster.gpus[0].host_bandwidth
        assert cluster.route(host, rank).links
    assert len(cluster.hosts) in (0, cluster.world_size)


@pytest.mark.parametrize("name", NAMES)
def test_own_servers_are_reached_or_refused(name: str) -> None:
    if facts(name).own_servers:
        cluster = build(name, 3, servers=2)
        assert cluster.servers == ("server0", "server1")
        for rank in cluster.ranks:
            for server in cluster.servers:
                assert cluster.route(rank, server).links
                assert cluster.route(server, rank).links
    else:
        with pytest.raises(ScenarioError, match="has no ports for separate servers"):
            build(name, 3, servers=2)


@pytest.mark.parametrize("name", NAMES)
def test_more_ranks_than_a_fixed_topology_has_are_refused(name: str) -> None:
    most = facts(name).max_ranks
    if most is None:
        assert build(name, 129).world_size == 129
    else:
        assert build(name, most).world_size == most
        with pytest.raises(ScenarioError, match=f"got {most + 1} ranks; has {most} GPUs"):
            build(name, most + 1)


@pytest.mark.parametrize("name", NAMES)
def test_its_gpu_is_in_the_catalog_and_can_be_replaced(name: str) -> None:
    own = facts(name).gpu
    assert own is not None
    assert build(name, 2).gpus == (load_gpu(own),) * 2
    assert build(name, 2, gpu="l4").gpus[1].name == "l4"


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_survives_pickling(name: str) -> None:
    cluster = build(name, 3)
    again = pickle.loads(pickle.dumps(cluster))
    assert again.ranks == cluster.ranks
    assert again.route("gpu0", "gpu2") == cluster.route("gpu0", "gpu2")


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_machine_it_is_and_what_is_not_sure(name: str) -> None:
    comment = [line for line in registry.find("topology", name).read_text().splitlines() if line.startswith("#")]
    assert len(comment) >= 2
    assert any("sure" in line.lower() or "Not a machine" in line for line in comment)
    assert any("ource" in line or "Not a machine" in line for line in comment)


@pytest.mark.parametrize("name", builder.names())
def test_every_builder_explains_its_options(name: str) -> None:
    found = builder.find(name)
    told = found.function.__doc__ or ""
    for option in found.options.model_fields:
        assert option in told


def test_every_builder_is_used_by_a_shipped_topology() -> None:
    used = {line.split()[1] for name in NAMES for line in registry.find("topology", name).read_text().splitlines()
            if line.startswith("builder:")}  # fmt: skip
    assert used == set(builder.names())


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_as_large_as_was_counted_before(name: str) -> None:
    for n in sizes(name):
        graph = build(name, n).graph
        assert graph_size(name, n).parts == len(graph) + graph.number_of_edges()
