"""Nodes of GPUs, and the network between them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.builders.nodes import nodes
from simulator.cluster.cluster import Cluster
from simulator.cluster.graph import Graph, of_kind
from simulator.cluster.routing import Router
from simulator.step.offload import copies

HGX: dict[str, Any] = {
    "gpus": 8, "inside": "nvswitch", "link_bandwidth": 300e9, "link_latency": 1e-6, "pcie_bandwidth": 32e9,
    "pcie_latency": 1e-7, "nics": 8, "nic_bandwidth": 25e9, "nic_latency": 1e-6,
}  # fmt: skip


def path(router: Router, src: str, dst: str) -> list[str]:
    return [router.vertices[router.targets[link]] for link in router.route(src, dst).links]


def names(cluster: Cluster, src: str, dst: str) -> list[str]:
    return path(cluster.router, src, dst)


def test_one_node_has_neither_cards_nor_network() -> None:
    graph = nodes(8, **HGX)
    assert of_kind(graph, "nic") == []
    assert not [name for name in graph if name.startswith(("leaf", "spine"))]
    assert graph.graph["nodes"] == (tuple(f"gpu{i}" for i in range(8)),)


def test_gpus_of_a_node_meet_at_its_switch() -> None:
    router = Router(nodes(16, **HGX))
    for a, b in ((0, 1), (0, 7), (9, 14)):
        assert path(router, f"gpu{a}", f"gpu{b}") == [f"node{a // 8}/nvswitch", f"gpu{b}"]


@pytest.mark.parametrize("pcie_switches", [8, 4, 2])
def test_equal_gpus_of_two_nodes_are_one_leaf_apart_on_rails(pcie_switches: int) -> None:
    router = Router(nodes(16, **HGX, pcie_switches=pcie_switches))
    port = "pcie" if pcie_switches == 8 else "port"
    for i in range(8):
        assert path(router, f"gpu{i}", f"gpu{i + 8}") == [
            f"node0/{port}{i}", f"nic{i}", f"leaf{i}", f"nic{i + 8}", f"node1/{port}{i}", f"gpu{i + 8}",
        ]  # fmt: skip


def test_other_rails_are_reached_over_a_spine() -> None:
    found = path(Router(nodes(16, **HGX)), "gpu7", "gpu8")
    assert [name.rstrip("0123456789") for name in found[1:6]] == ["nic", "leaf", "spine", "leaf", "nic"]
    assert (found[1], found[5]) == ("nic7", "nic8")


def test_two_gpus_share_a_card_where_there_are_half_as_many() -> None:
    cluster = build("aws_p4de", 16)
    used = [names(cluster, f"gpu{i}", "gpu8")[1] for i in range(8)]
    assert used == ["nic0", "nic0", "nic1", "nic1", "nic2", "nic2", "nic3", "nic3"]


def test_gpus_that_share_a_pcie_switch_share_its_way_to_the_host() -> None:
    cluster = build("dgx_a100", 8)
    ways = [names(cluster, f"gpu{i}", cluster.hosts[i]) for i in range(8)]
    assert ways[0] == ["node0/port0", "node0/pcie0", "host0"]
    assert ways[1] == ["node0/port1", "node0/pcie0", "host0"]
    assert [host for *_, host in ways] == ["host0"] * 4 + ["host1"] * 4


def test_a_mesh_node_joins_every_two_gpus_by_one_link() -> None:
    cluster = build("mi300x_box", 8)
    assert all(names(cluster, f"gpu{a}", f"gpu{b}") == [f"gpu{b}"] for a in range(8) for b in range(8) if a != b)
    assert cluster.route("gpu0", "gpu1").bandwidth == 64e9


# Four GPUs on two sockets, a PCIe switch and a card for two of them: two links between 0 and 1, one between 1 and 2.
MESH: dict[str, Any] = {
    "gpus": 4, "inside": "mesh", "link_bandwidth": 25e9, "link_latency": 1e-6, "links": [[0, 1, 2], [2, 1, 1]],
    "pcie_switches": 2, "pcie_bandwidth": 16e9, "pcie_latency": 1e-7, "socket_bandwidth": 10e9, "nics": 2,
    "nic_bandwidth": 12.5e9, "nic_latency": 1e-6,
}  # fmt: skip


def between_gpus(graph: Graph) -> dict[tuple[int, int], float]:
    """Return the bandwidth of each cable between two GPUs, by their numbers."""
    edges = graph.edges(data="bandwidth")
    return {(int(a[3:]), int(b[3:])): rate for a, b, rate in edges if a.startswith("gpu") and b.startswith("gpu")}


@pytest.mark.parametrize("fabric", ["rail", "leaf_spine"])
def test_a_mesh_has_the_links_that_are_given_and_pcie_between_other_gpus(fabric: str) -> None:
    graph = nodes(8, **MESH, fabric=fabric)
    cables = between_gpus(graph)
    assert cables[(0, 1)] == cables[(5, 4)] == 2 * 25e9
    assert cables[(1, 2)] == cables[(6, 5)] == 25e9
    assert len(cables) == 2 * 2 * 2
    router = Router(graph)
    assert path(router, "gpu0", "gpu1") == ["gpu1"]
    # No link: over PCIe and not over GPU 1, and not over the network.
    assert path(router, "gpu0", "gpu2") == ["node0/pcie0", "host0", "host1", "node0/pcie1", "gpu2"]
    assert router.route("gpu0", "gpu2").bandwidth == 10e9
    assert path(router, "gpu2", "gpu3") == ["node0/pcie1", "gpu3"]
    assert path(router, "gpu1", "gpu4") == ["node0/pcie0", "nic0", "leaf0", "nic2", "node1/pcie0", "gpu4"]


def test_a_dgx1_is_a_hybrid_cube_mesh() -> None:
    """Six links of every V100, and the pairs NV2 of nvidia-smi topo -m (microsoft/msccl, tests/test_topologies.py)."""
    graph = build("dgx1_v100", 8).graph
    lanes = {pair: bandwidth / 25e9 for pair, bandwidth in between_gpus(graph).items()}
    assert [sum(count for pair, count in lanes.items() if pair[0] == gpu) for gpu in range(8)] == [6] * 8
    double = {pair for pair, count in lanes.items() if count == 2 and pair[0] < pair[1]}
    assert double == {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    # The two halves are alike, and every GPU has a link to its like in the other half.
    assert all(lanes.get((a + 4, b + 4), 0) == lanes.get((a, b), 0) for a in range(4) for b in range(4))
    assert {(a, a + 4) for a in range(4)} <= lanes.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": None}, "inside mesh needs links, and no other inside has them"),
        ({"inside": "full_mesh"}, "inside mesh needs links, and no other inside has them"),
        ({"link_bandwidth": None}, "inside mesh needs link_bandwidth"),
        ({"links": [[0, 4, 1]]}, "got link [0, 4, 1]; places of 4 GPUs are 0 to 3"),
        ({"links": [[0, 1, 0]]}, "got link [0, 1, 0]; must be [a, b, count]: two places of GPUs, and the number of "),
        ({"links": [[1, 1, 2]]}, "got link [1, 1, 2]; must be [a, b, count]"),
        ({"links": [[0, 1]]}, "got link [0, 1]; must be [a, b, count]"),
        ({"links": [[0, 1, 1], [1, 0, 1]]}, "got link [1, 0, 1]; the pair has links already; write a pair once"),
        ({"nics": 3}, "got nics 3; inside mesh has room for 2 cards, one per switch"),
    ],
)
def test_meshes_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        nodes(**({"world_size": 8} | MESH | change))


def test_a_fault_in_a_mesh_of_a_file_is_one_line() -> None:
    options = MESH | {key: f"{MESH[key]} B/s" for key in MESH if key.endswith("bandwidth")}
    options |= {"link_latency": "1 us", "pcie_latency": "0.1 us", "nic_latency": "1 us"}
    for links, message in (([[0, 1, 1.5]], "options.links.0.2: got 1.5; must be a whole number"),
                           ([[0, 9, 1]], "options: got link [0, 9, 1]; places of 4 GPUs are 0 to 3")):  # fmt: skip
        with pytest.raises(ScenarioError, match=re.escape(message)) as error:
            build({"builder": "nodes", "options": options | {"links": links}, "gpu": "v100_sxm_16gb"}, 4)
        assert "\n" not in str(error.value)


def test_without_links_of_their_own_gpus_go_through_the_host() -> None:
    cluster = build("pcie_workstation", 4)
    assert names(cluster, "gpu0", "gpu3") == ["host0", "gpu3"]


def test_cards_without_peer_to_peer_cross_the_hosts_and_share_the_link_between_processors() -> None:
    cluster = build("geforce_server", 8)
    assert names(cluster, "gpu0", "gpu3") == ["host0", "gpu3"]
    assert names(cluster, "gpu0", "gpu4") == ["host0", "host1", "gpu4"]
    assert cluster.route("gpu0", "gpu4").bandwidth == 16e9


def test_peer_to_peer_stays_inside_a_pcie_switch() -> None:
    cluster = build("pcie_switch_server", 8)
    assert names(cluster, "gpu0", "gpu1") == ["node0/pcie0", "gpu1"]
    assert names(cluster, "gpu0", "gpu2") == ["node0/pcie0", "host0", "node0/pcie1", "gpu2"]


@pytest.mark.parametrize(
    ("topology", "rate"),
    [
        # All GPUs copy at once: two share an uplink of PCIe 5, or of PCIe 6 in a DGX B300.
        ("pcie_server", 0.82 * 31.5e9),
        ("pcie_switch_server", 63e9 / 2),
        ("dgx_b300", 126e9 / 2),
        ("gh200", 0.82 * 450e9),
    ],
)
def test_copies_to_the_host_have_the_rate_of_their_slot(topology: str, rate: float) -> None:
    assert copies(build(topology, 8), "to host").rate == pytest.approx(rate)


def test_a_tree_of_pcie_switches_reaches_other_sockets_over_the_socket_link() -> None:
    router = Router(nodes(8, gpus=8, inside="pcie", pcie_switches=4, pcie_bandwidth=32e9, pcie_latency=1e-7,
                          socket_bandwidth=16e9))  # fmt: skip
    assert path(router, "gpu0", "gpu1") == ["node0/pcie0", "gpu1"]
    assert path(router, "gpu0", "gpu2") == ["node0/pcie0", "host0", "node0/pcie1", "gpu2"]
    assert path(router, "gpu0", "gpu7") == ["node0/pcie0", "host0", "host1", "node0/pcie3", "gpu7"]
    assert router.route("gpu0", "gpu7").bandwidth == 16e9


def test_a_leaf_has_its_bandwidth_up_divided_by_the_oversubscription() -> None:
    graph = nodes(64, **HGX, fabric="leaf_spine", nodes_per_leaf=2, spines=4, oversubscription=2.0)
    up = [graph.edges["leaf0", spine]["bandwidth"] for spine in graph.successors("leaf0") if spine.startswith("spine")]
    assert len(up) == 4
    assert sum(up) == 2 * 8 * 25e9 / 2.0


def test_servers_of_their_own_hang_on_the_leaves_in_turn() -> None:
    graph = nodes(32, **HGX, fabric="leaf_spine", nodes_per_leaf=2, servers=3)
    assert [list(graph.successors(f"server{i}")) for i in range(3)] == [["leaf0"], ["leaf1"], ["leaf0"]]
    assert graph.edges["server0", "leaf0"]["bandwidth"] == 25e9


def test_one_node_and_a_server_have_a_network() -> None:
    cluster = build("leaf_spine_100g", 2, servers=1)
    assert names(cluster, "gpu0", "server0") == ["host0", "nic0", "leaf0", "server0"]


def test_spines_grow_with_the_leaves_as_in_a_superpod() -> None:
    """Leaves and spines for 1, 2, 3, 4 units of 32 nodes: DGX SuperPOD H100 reference architecture."""
    found = {}
    for units in (1, 2, 3, 4):
        graph = nodes(units * 32 * 8, **HGX)
        found[units] = tuple(sum(name.startswith(kind) for name in graph) for kind in ("leaf", "spine"))
    assert found == {1: (8, 4), 2: (16, 8), 3: (24, 16), 4: (32, 16)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link_bandwidth": None}, "inside nvswitch needs link_bandwidth"),
        ({"inside": "pcie"}, "inside pcie has no separate links between GPUs; omit link_bandwidth"),
        ({"inside": "full_mesh", "in_switch_reduction": True}, "in_switch_reduction needs inside nvswitch"),
        ({"pcie_switches": 9}, "got pcie_switches 9; must be at most gpus 8"),
        ({"pcie_switches": 0}, "got pcie_switches 0; inside nvswitch needs at least 1"),
        ({"nics": 32}, "got nics 32; must be at most gpus 8"),
        ({"nics": 0}, "more than one node needs nics"),
        ({"inside": "pcie", "link_bandwidth": None}, "got nics 8; inside pcie has room for 2"),
        ({"servers": 1}, "separate servers need fabric leaf_spine"),
        ({"nodes": 1}, "got world_size 16; 1 nodes of 8 GPUs have fewer GPUs"),
        ({"world_size": 0}, "got world_size 0; must be at least 1"),
    ],
)
def test_nodes_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        nodes(**({"world_size": 16} | HGX | change))
