"""Pictures of clusters: what is drawn, what is left out, and where it stands."""

from itertools import combinations

import pytest

from simulator.basics.natural_order import natural
from simulator.cluster import graph as graphs
from simulator.cluster.build import build
from simulator.cluster.builders.torus import dimensions
from simulator.cluster.cluster import Cluster, Gpu
from simulator.cluster.graph import Graph
from simulator.cluster.routing import Router
from simulator.report.plots import topology as plot_topology
from simulator.report.plots.blocks import Leaf, _groups, folded
from simulator.report.plots.layout import layout, places, selected

GPU = Gpu("plain", {}, 1, 1.0, 1, 0.0, 1.0)


def cluster(graph: Graph, per_node: int | None = None) -> Cluster:
    ranks = tuple(graphs.of_kind(graph, "gpu"))
    step = per_node or len(ranks)
    nodes = tuple(tuple(range(i, min(i + step, len(ranks)))) for i in range(0, len(ranks), step))
    return Cluster("test", graph, Router(graph, "test"), (GPU,) * len(ranks), ranks, nodes=nodes)


def star(gpus: int, bandwidth: float = 12.5e9) -> Graph:
    graph = graphs.empty()
    graphs.add_vertex(graph, "switch", "switch", forwards=True)
    for rank in range(gpus):
        graphs.add_vertex(graph, f"gpu{rank}", "gpu", forwards=False)
        graphs.add_cable(graph, f"gpu{rank}", "switch", bandwidth, 5e-6)
    return graph


def in_nodes(nodes: int, gpus: int = 8) -> Graph:
    """Nodes of GPUs on an NVSwitch and a NIC each, NICs on one leaf."""
    graph = graphs.empty()
    graphs.add_vertex(graph, "leaf", "switch", forwards=True)
    for node in range(nodes):
        graphs.add_vertex(graph, f"node{node}/nvswitch", "switch", forwards=False)
        graphs.add_vertex(graph, f"node{node}/nic", "nic", forwards=True)
        graphs.add_cable(graph, f"node{node}/nic", "leaf", 50e9, 2e-6)
        for gpu in range(gpus):
            name = graphs.add_vertex(graph, f"node{node}/gpu{gpu}", "gpu", forwards=False)
            graphs.add_cable(graph, name, f"node{node}/nvswitch", 450e9, 1e-6)
            graphs.add_cable(graph, name, f"node{node}/nic", 64e9, 1e-6)
    return graph


def test_the_title_counts_what_there_is_and_what_links_carry() -> None:
    assert plot_topology.finding(cluster(star(8))) == "test: 8 GPUs, 1 switch; every link 12.5 GB/s per direction"
    assert plot_topology.finding(cluster(in_nodes(2), 8)) == (
        "test: 16 GPUs in 2 nodes, 2 NICs, 3 switches; links of 50 GB/s to 450 GB/s per direction"
    )


@pytest.mark.parametrize("gpus", [2, 64])
def test_a_star_s_switch_stands_in_the_middle(gpus: int) -> None:
    import networkx as nx

    graph = star(gpus)
    kinds = {vertex: str(kind) for vertex, kind in graph.nodes(data="kind")}
    at = places(nx.Graph(graph), kinds, [f"gpu{i}" for i in range(gpus)])
    assert at["switch"] == (0.0, 0.0)
    assert all(x * x + y * y == pytest.approx(1.0) for vertex, (x, y) in at.items() if vertex != "switch")


def test_tiers_rise_from_the_gpus_to_the_network_and_nvswitches_stand_below() -> None:
    import networkx as nx

    graph = in_nodes(2)
    kinds = {vertex: str(kind) for vertex, kind in graph.nodes(data="kind")}
    at = places(nx.Graph(graph), kinds, [f"node{b}/gpu{i}" for b in range(2) for i in range(8)])
    heights = {name: at[name][1] for name in ("node0/nvswitch", "node0/gpu0", "node0/nic", "leaf")}
    assert heights == {"node0/nvswitch": -1.0, "node0/gpu0": 0.0, "node0/nic": 1.0, "leaf": 2.0}
    assert len(set(at.values())) == len(at)


def test_every_link_of_a_small_cluster_has_its_bandwidth_written_on_it() -> None:
    drawn = plot_topology.figure(cluster(star(8)))
    assert [text.get_text() for text in drawn.axes[0].texts].count("12.5 GB/s") == 8


def test_a_degraded_direction_is_told_apart() -> None:
    graph = star(2)
    graph["gpu0"]["switch"]["bandwidth"] = 5e9
    drawn = plot_topology.figure(cluster(graph))
    assert "12.5 GB/s / 5 GB/s" in {text.get_text() for text in drawn.axes[0].texts}


def test_of_many_nodes_two_are_drawn_in_boxes_and_the_others_counted() -> None:
    drawn = layout(cluster(in_nodes(100), 8))
    assert [box[4] for box in drawn.drawing.boxes] == ["node 0", "node 1"]
    assert [text for _, text in drawn.drawing.counts] == ["+98"]
    # Two nodes of ten vertices, and the leaf that joins them.
    assert drawn.note.startswith("+n: n more equal vertices; drawn: 21 of 1,001 vertices")
    figure = plot_topology.figure(cluster(in_nodes(100), 8))
    assert figure.legends[0].get_title().get_text() == drawn.note


def test_each_node_stands_in_its_box_and_boxes_do_not_touch() -> None:
    drawing = layout(cluster(in_nodes(3), 8)).drawing
    boxes = {label: (left, low, right, high) for left, low, right, high, label in drawing.boxes}
    for node, (left, low, right, high) in enumerate(boxes[f"node {n}"] for n in range(3)):
        own = [at for vertex, at in drawing.at.items() if vertex.startswith(f"node{node}/")]
        assert len(own) == 10
        assert all(left < x < right and low < y < high for x, y in own)
    assert boxes["node 0"][2] < boxes["node 1"][0]
    assert boxes["node 1"][2] < boxes["node 2"][0]


def built(name: str) -> Cluster:
    return build(name, 16)


@pytest.mark.parametrize(
    ("name", "lengths"), [("torus_2d", (16, 16)), ("torus_3d", (8, 8, 8)), ("hypercube", ()), ("ring_nvlink", ())]
)
def test_a_torus_is_found_by_its_links(name: str, lengths: tuple[int, ...]) -> None:
    import networkx as nx

    graph = nx.Graph(built(name).graph.to_undirected())
    assert dimensions(graph, sorted(graph, key=natural)) == lengths


def test_a_torus_is_drawn_as_a_grid_and_its_third_dimension_as_layers() -> None:
    flat = layout(built("torus_2d"))
    assert flat.shape == "grid"
    assert {(x, -y) for x, y in flat.drawing.at.values()} == {
        (float(x), float(y)) for x in range(16) for y in range(16)
    }
    deep = layout(built("torus_3d")).drawing.at
    assert len(set(deep.values())) == 512
    # GPU 1 is the next in its row, GPU 8 in its column, GPU 64 in the next layer beside it.
    assert [deep[f"gpu{n}"] for n in (0, 1, 8)] == [(0.0, 0.0), (1.0, 0.0), (0.0, -1.0)]
    assert deep["gpu64"] == (8 + 1.6, 0.0)


def test_a_fat_tree_stands_in_levels_with_two_pods() -> None:
    drawing = layout(built("fat_tree_1024")).drawing
    height = {name.rstrip("0123456789"): y for name, (_, y) in drawing.at.items()}
    assert height["gpu"] < height["edge"] < height["aggregation"] < height["core"]
    # 16 pods of 8 edge switches with 8 GPUs each below 64 cores, of which 2, 1, 2 and 12 are drawn.
    assert sorted(text for _, text in drawing.counts) == ["+14", "+52", "+6", "+6", "+7", "+7"]


def test_a_dragonfly_is_drawn_by_its_groups() -> None:
    drawing = layout(built("dragonfly")).drawing
    # 33 groups of 8 routers with 4 GPUs each, of which 2, 4 and 2 are drawn.
    assert sorted({text for _, text in drawing.counts}) == ["+2", "+31", "+4"]
    assert len(drawing.boxes) == 2


def test_groups_are_several_and_hold_every_switch() -> None:
    """Two triangles of switches on a cable are two groups; a switch beside them, or a triangle alone, makes none."""
    import networkx as nx

    one, other = ["a0", "a1", "a2"], ["b0", "b1", "b2"]
    graph = nx.Graph([*combinations(one, 2), *combinations(other, 2), ("a0", "b0"), ("b2", "c")])
    assert _groups(graph, [*one, *other]) == [one, other]
    assert _groups(graph, [*one, *other, "c"]) == []
    assert _groups(graph, one) == []


def test_a_switch_stands_above_the_highest_of_unlike_nodes() -> None:
    import networkx as nx

    leaves = {"low": Leaf({"gpu0": (0.0, 0.0)}), "high": Leaf({"gpu1": (0.0, 0.0), "nic": (0.0, 3.0)})}
    at = folded(nx.Graph([("low", "switch"), ("high", "switch")]), leaves).at
    assert at["switch"][1] > at["nic"][1] == 3.0


def test_of_a_node_larger_than_the_page_the_first_gpus_and_the_switch_are_drawn() -> None:
    chosen, _ = selected(cluster(star(1000)), 200)
    assert "switch" in chosen
    assert {"gpu0", "gpu1"} <= chosen
    assert len(chosen) <= 200


def test_a_kind_that_nobody_knows_is_drawn_all_the_same() -> None:
    graph = star(2)
    graph.nodes["switch"]["kind"] = "router"
    assert plot_topology.finding(cluster(graph)).startswith("test: 2 GPUs, 1 router;")
    plot_topology.figure(cluster(graph))


def mesh(gpus: int) -> Graph:
    """A ring with chords, of GPUs alone."""
    graph = graphs.empty()
    names = [graphs.add_vertex(graph, f"gpu{i}", "gpu", forwards=True) for i in range(gpus)]
    for i in range(gpus):
        for far in (1, 5):
            graphs.add_cable(graph, names[i], names[(i + far) % gpus], 1e9, 1e-6)
    return graph


def test_many_gpus_alone_stand_in_a_cloud_that_is_always_the_same() -> None:
    import networkx as nx

    graph = nx.Graph(mesh(32))
    at = [places(graph, dict.fromkeys(graph, "gpu"), list(graph)) for _ in range(2)]
    assert at[0] == at[1]
    assert len(set(at[0].values())) == 32


def test_a_link_within_a_tier_bows_round_those_between() -> None:
    straight = plot_topology._path_between((0.0, 0.0), (1.0, 0.0), True)
    bowed = plot_topology._path_between((0.0, 0.0), (4.0, 0.0), True)
    assert straight == [(0.0, 0.0), (1.0, 0.0)]
    assert bowed[0] == (0.0, 0.0)
    assert bowed[-1] == pytest.approx((4.0, 0.0))
    assert min(y for _, y in bowed) == pytest.approx(-0.11 * 4)


def test_a_link_that_goes_one_way_only_says_so() -> None:
    graph = star(2)
    graph.remove_edge("gpu0", "switch")
    drawn = plot_topology.figure(cluster(graph))
    assert "12.5 GB/s one way" in {text.get_text() for text in drawn.axes[0].texts}
