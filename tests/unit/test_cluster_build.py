"""Clusters from names, files and mappings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.cluster.build import TopologyFacts, build, facts
from simulator.cluster.graph import of_kind
from simulator.cluster.topology_file import load_topology
from simulator.scenario.build_cluster import to_cluster
from simulator.scenario.records import ClusterSpec

STAR = {"builder": "star", "options": {"bandwidth": "10 GB/s", "latency": "1 us"}, "gpu": "l4"}
ONE_GPU = '{"nodes": [{"id": 1, "kind": "gpu"}], '


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_route_of_the_star_has_12_5_gb_a_second_and_10_us() -> None:
    route = build("star_100g", 4).route("gpu0", "gpu3")
    assert (len(route.links), route.latency, route.bandwidth) == (2, 10e-6, 12.5e9)


def test_an_inline_topology_builds_like_a_file() -> None:
    cluster = build(STAR, 3, servers=1)
    assert (cluster.name, cluster.ranks, cluster.servers) == ("inline", ("gpu0", "gpu1", "gpu2"), ("server0",))
    assert cluster.gpus[0].name == "l4"
    assert cluster.nodes == ((0, 1, 2),)
    assert cluster.speeds == (1.0, 1.0, 1.0)


def test_paths_are_read_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    write(tmp_path / "mine.yaml", "builder: ring\noptions: {bandwidth: 1 GB/s, latency: 1 us}\ngpu: my_gpu.yaml\n")
    write(
        tmp_path / "my_gpu.yaml",
        "vector_flops: {float32: 1 TFLOP/s}\nhbm_bytes: 1 GiB\nhbm_bandwidth: 1 GB/s\nsms: 4\nhost_bandwidth: 1 GB/s\n",
    )
    cluster = build("mine.yaml", 2, base=tmp_path)
    assert (cluster.name, cluster.gpus[0].name, cluster.gpus[0].hbm_bytes) == ("mine", "my_gpu", 2**30)


def test_stragglers_slow_their_own_rank() -> None:
    cluster = build(STAR, 3, stragglers={1: 0.5})
    assert cluster.speeds == (1.0, 0.5, 1.0)
    assert cluster.hbm_bandwidth(1) == cluster.hbm_bandwidth(0) / 2


def test_a_link_factor_slows_one_direction_of_one_link() -> None:
    cluster = build(STAR, 3, link_factors={"gpu1->switch0": 0.25})
    assert cluster.route("gpu1", "gpu0").bandwidth == 2.5e9
    assert cluster.route("gpu0", "gpu1").bandwidth == 10e9


@pytest.mark.parametrize(
    ("pattern", "slowed"),
    [
        ("gpu1->*", {"gpu1->switch0"}),
        ("*gpu1*", {"gpu1->switch0", "switch0->gpu1"}),
        ("switch0->gpu[!1]", {"switch0->gpu0", "switch0->gpu2"}),
        ("gpu?->switch0", {"gpu0->switch0", "gpu1->switch0", "gpu2->switch0"}),
    ],
)
def test_a_pattern_slows_every_link_that_it_matches(pattern: str, slowed: set[str]) -> None:
    edges = build(STAR, 3, link_factors={pattern: 0.25}).graph.edges(data="bandwidth")
    assert {f"{src}->{dst}": rate for src, dst, rate in edges if rate != 10e9} == dict.fromkeys(slowed, 2.5e9)


def test_a_link_of_two_patterns_has_both_factors() -> None:
    cluster = build(STAR, 3, link_factors={"gpu*->switch0": 0.5, "gpu1->switch0": 0.5})
    rates = {src: cluster.graph.edges[src, "switch0"]["bandwidth"] for src in cluster.ranks}
    assert rates == {"gpu0": 5e9, "gpu1": 2.5e9, "gpu2": 5e9}


def test_a_pattern_without_a_link_is_refused_with_the_command_that_lists_the_links() -> None:
    with pytest.raises(UnknownNameError, match=r"'nic\*'; .*`simulator show TOPOLOGY --links` lists all"):
        build(STAR, 4, link_factors={"nic*": 0.5})


def test_placement_gives_rank_r_its_gpu() -> None:
    cluster = build("dgx_a100", 3, placement=[9, 0, 8])
    assert cluster.ranks == ("gpu9", "gpu0", "gpu8")
    assert cluster.nodes == ((1,), (0, 2))
    assert cluster.hosts == ("host2", "host0", "host2")


def test_only_nodes_with_ranks_are_told() -> None:
    cluster = build("dgx_h100", 2, placement=[16, 17])
    assert cluster.nodes == ((0, 1),)
    assert cluster.reducing_switches == ("node2/nvswitch",)


def test_facts_are_known_without_building() -> None:
    assert facts("dgx_h100") == TopologyFacts("dgx_h100", None, False, True, 8, "h100_sxm", library=True)
    assert facts("torus_3d") == TopologyFacts("torus_3d", 512, False, False, None, "a100_sxm_80gb")
    assert facts("pcie_workstation") == TopologyFacts("pcie_workstation", 4, False, False, 4, "rtx_4090", library=True)
    assert facts(STAR | {"name": "mine"}) == TopologyFacts("mine", None, True, False, None, "l4", one_route=True)


def test_facts_import_neither_networkx_nor_numpy() -> None:
    script = (
        "import sys; from simulator.cluster.build import facts; facts('dgx_h100')\n"
        "print([m for m in ('networkx', 'numpy', 'matplotlib', 'pandas') if m in sys.modules])\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_the_seed_of_the_file_is_replaced_by_the_callers() -> None:
    hashed = {"builder": "fat_tree", "options": {"k": 8, "bandwidth": "1 GB/s", "latency": "1 us"}, "gpu": "l4"}
    pairs = [(f"gpu{i}", f"gpu{127 - i}") for i in range(60)]

    def routes(**extra: Any) -> list[Any]:
        cluster = build(hashed | extra.pop("file", {}), 128, **extra)
        return [cluster.route(*pair) for pair in pairs]

    assert routes(file={"ecmp": {"hash": 3}}) == routes(ecmp_seed=3)
    assert routes(file={"ecmp": {"hash": 3}}, ecmp_seed=4) == routes(ecmp_seed=4)
    assert routes() != routes(ecmp_seed=3)


def test_measured_collectives_are_chosen_by_the_number_of_nodes() -> None:
    file = {
        "builder": "nodes",
        "gpu": "l4",
        "options": {"gpus": 2, "inside": "pcie", "pcie_bandwidth": "1 GB/s", "pcie_latency": "1 us", "nics": 1,
                    "nic_bandwidth": "1 GB/s"},
        "collectives": {
            "all_reduce": {"one_node": {"algorithm": "nvls", "startup": "20 us", "rate_cap": "470 GB/s",
                                       "half_size": "8 MiB", "exponent": 0.5, "chunks": 8, "source": "here"},
                           "nodes": {"algorithm": "tree", "cross_rate_cap": "40 GB/s"}},
            "broadcast": {"one_node": {"algorithm": "chain"}},
        },
    }  # fmt: skip
    inside, across = build(file, 2).collectives, build(file, 3).collectives
    assert set(inside) == {"all_reduce", "broadcast"}
    found = inside["all_reduce"]
    assert (found.algorithm, found.startup, found.rate_cap, found.chunks) == ("nvls", 20e-6, 470e9, 8)
    assert found.factor(8 * 2**20) == 0.5
    assert {name: one.algorithm for name, one in across.items()} == {"all_reduce": "tree"}
    assert (across["all_reduce"].rate_cap, across["all_reduce"].cross_rate_cap) == (float("inf"), 40e9)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"world_size": 0}, "world_size: got 0; must be a whole number of at least 1"),
        ({"stragglers": {3: 0.5}}, "stragglers: got rank 3; must be from 0 to 2"),
        ({"stragglers": {1: 0.0}}, "stragglers.1: got 0.0; must be more than 0"),
        ({"link_factors": {"gpu0->switch0": -1.0}}, "link_factors.gpu0->switch0: got -1.0; must be more than 0"),
        ({"placement": [0, 1]}, "placement: got [0, 1]; must be 3 different GPU numbers from 0"),
        ({"placement": [0, 1, 1]}, "placement: got [0, 1, 1]; must be 3 different"),
        ({"placement": [0, 1, -2]}, "placement: got [0, 1, -2]; must be 3 different"),
        ({"topology": {"builder": "star"}}, "options.bandwidth: is missing"),
        ({"topology": {"builder": 3}}, "builder: got 3; must be text"),
        (
            {"topology": STAR | {"options": {"bandwidth": [], "latency": "1 us"}}},
            "options.bandwidth: got an empty list",
        ),
        ({"topology": {}}, "needs either builder or graph"),
        ({"topology": STAR | {"graph": "x.json"}}, "needs either builder or graph"),
        ({"topology": {"graph": "x.json", "options": {}}}, "options: need a builder; a graph has no options"),
        ({"topology": STAR | {"gpu": None}}, "has no GPU; give cluster.gpu"),
        ({"topology": STAR | {"options": [1]}}, "options: got [1]; must be a mapping"),
    ],
)
def test_what_cannot_be_built_is_told_in_one_line(how: dict[str, Any], message: str) -> None:
    arguments = {"topology": STAR, "world_size": 3} | how
    with pytest.raises(ScenarioError, match=re.escape(message)):
        build(**arguments)


@pytest.mark.parametrize(
    ("how", "meant"),
    [
        ({"topology": "star_10g"}, "did you mean 'star_100g'?"),
        ({"gpu": "a100_sxm_80g"}, "did you mean 'a100_sxm_80gb'?"),
        ({"link_factors": {"gpu0->swich0": 0.5}}, "did you mean 'gpu0->switch0'?"),
        ({"link_factors": {"gpu0-switch0": 0.5}}, "did you mean 'gpu0->switch0'?"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_right_one(how: dict[str, Any], meant: str) -> None:
    arguments = {"topology": STAR, "world_size": 3} | how
    with pytest.raises(UnknownNameError, match=re.escape(meant)):
        build(**arguments)


def test_all_faults_of_a_file_are_told_at_once_with_line_and_column(tmp_path: Path) -> None:
    path = write(
        tmp_path / "wrong.yaml",
        "builder: nodes\n"
        "bulder: x\n"
        "options:\n"
        "  gpus: 0\n"
        "  inside: nvswich\n"
        "  link_bandwith: 3 GB/s\n"
        "  pcie_bandwidth: 63\n"
        "  pcie_latency: 5 GB\n"
        "collectives:\n"
        "  allreduce: {}\n"
        "  broadcast: {one_node: {algorithm: chain, chunk: 3}}\n",
    )
    with pytest.raises(ScenarioError) as caught:
        load_topology(path)
    lines = [line.removeprefix(str(path)) for line in str(caught.value).splitlines()]
    starts = [
        ":2:1: bulder: unknown key; one of ",
        ":4:9: options.gpus: got 0; must be at least 1",
        ":5:11: options.inside: got 'nvswich'; one of full_mesh, mesh, nvswitch, pcie; did you mean 'nvswitch'?",
        ":6:3: options.link_bandwith: unknown key; ",
        ":7:19: options.pcie_bandwidth: got 63; must be text with a unit",
        ":8:17: options.pcie_latency: got '5 GB'; 'GB' measures bytes, not time",
        ":10:3: collectives.allreduce: got 'allreduce'; one of ",
        ":11:44: collectives.broadcast.one_node.chunk: unknown key; one of algorithm, chunks, ",
    ]
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert "did you mean 'builder'?" in lines[0]
    assert "did you mean 'link_bandwidth'?" in lines[3]
    assert "did you mean 'chunks'?" in lines[7]


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"list\.yaml:1:1: got \['a'\]; must be a mapping"):
        load_topology(write(tmp_path / "list.yaml", "[a]\n"))


def test_an_unknown_builder_is_answered_with_the_right_one(tmp_path: Path) -> None:
    path = write(tmp_path / "wrong.yaml", "# mine\nbuilder: hypercub\n")
    with pytest.raises(ScenarioError, match=r"wrong\.yaml:2:10: builder: got 'hypercub'; .*did you mean 'hypercube'"):
        load_topology(path)


def test_what_a_builder_refuses_is_told_at_its_options(tmp_path: Path) -> None:
    path = write(
        tmp_path / "odd.yaml", "builder: fat_tree\noptions: {k: 3, bandwidth: 1 GB/s, latency: 1 us}\ngpu: l4\n"
    )
    with pytest.raises(ScenarioError, match=r"odd\.yaml:2:10: options: got k 3; must be even and at least 2"):
        build(path, 2)


def two_nodes() -> nx.Graph:
    graph = nx.Graph()
    for i in range(4):
        graph.add_node(f"a{i}", kind="gpu", node=i // 2)
        graph.add_edge(f"a{i}", f"in{i // 2}", bandwidth="100 GB/s", latency="1 us")
    for node in range(2):
        graph.nodes[f"in{node}"].update(kind="switch", node=node, reduces=True)
        graph.add_edge(f"in{node}", "top", bandwidth=25e9, latency=2e-6)
    graph.add_node("top", kind="switch")
    graph.add_edge("s", "top", bandwidth="25 GB/s", latency="2 us")
    graph.nodes["s"]["kind"] = "server"
    return graph


@pytest.mark.parametrize("edges", ["edges", "links"])
def test_a_node_link_graph_is_a_topology(tmp_path: Path, edges: str) -> None:
    path = write(tmp_path / "two.json", json.dumps(nx.node_link_data(two_nodes(), edges=edges)))
    cluster = build(str(path), 4, gpu="l4", servers=1)
    assert cluster.ranks == ("a0", "a1", "a2", "a3")
    assert cluster.nodes == ((0, 1), (2, 3))
    assert cluster.reducing_switches == ("in0", "in1")
    assert cluster.servers == ("s",)
    route = cluster.route("a0", "a3")
    assert (route.latency, route.bandwidth, len(route.links)) == (pytest.approx(6e-6), 25e9, 4)
    assert facts(path) == TopologyFacts("two", 4, True, True, 2, None, library=True)
    with pytest.raises(ScenarioError, match="got 2 servers; has 1 vertices of kind 'server'"):
        build(path, 4, gpu="l4", servers=2)
    with pytest.raises(ScenarioError, match="got 5 ranks; has 4 GPUs"):
        build(path, 5, gpu="l4")


def test_a_graph_goes_to_graphml_and_json_and_comes_back(tmp_path: Path) -> None:
    made = build("dgx_a100", 16).graph
    plain = nx.DiGraph()
    plain.add_nodes_from(made.nodes(data=True))
    plain.add_edges_from(made.edges(data=True))
    nx.write_graphml(plain, tmp_path / "g.graphml")
    write(tmp_path / "g.json", json.dumps(nx.node_link_data(plain, edges="edges")))
    for name in ("g.graphml", "g.json"):
        again = build(tmp_path / name, 16, gpu="l4").graph
        assert list(again) == list(made)
        assert dict(again.nodes(data=True)) == dict(made.nodes(data=True))
        assert sorted(again.edges(data=True), key=str) == sorted(made.edges(data=True), key=str)


def test_a_topology_file_can_take_its_graph_from_another_file(tmp_path: Path) -> None:
    write(tmp_path / "two.json", json.dumps(nx.node_link_data(two_nodes(), edges="edges")))
    path = write(tmp_path / "mine.yaml", "graph: two.json\ngpu: l4\n")
    assert facts(path) == TopologyFacts("mine", 4, True, True, 2, "l4", library=True)
    assert build(path, 2).route("a0", "a1").bandwidth == 100e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"nodes": [', "x.json:1:12: not JSON"),
        ("[]", "not a node-link graph"),
        ('{"multigraph": true, "nodes": []}', "x.json:1:16: multigraph: got true; replace parallel edges"),
        ('{"nodes": [{"id": 1, "kind": "gpuu"}]}', "x.json:1:30: nodes.0.kind: got 'gpuu'; .*did you mean 'gpu'"),
        ('{"nodes": [{"kind": "gpu"}]}', "nodes.0: got .*must be a mapping with an id"),
        ('{"nodes": [{"id": 1, "kind": "gpu"}, {"id": 1, "kind": "gpu"}]}', "nodes.1.id: got 1, which occurs twice"),
        ('{"nodes": [{"id": 1, "kind": "gpu", "forwards": 1}]}', "forwards: got 1; must be true or false"),
        ('{"nodes": [{"id": 1, "kind": "switch"}]}', "nodes: has no vertex of kind 'gpu'"),
        ('{"nodes": [{"id": 1, "kind": "gpu"}], "edges": [3]}', "edges.0: got 3; must be a mapping"),
        (
            '{"nodes": [{"id": "g1", "kind": "gpu"}],\n "edges": [{"source": "g1", "target": "g"}]}',
            r"x.json:2:12: edges.0.bandwidth: is missing(.|\n)*x.json:2:39: edges.0.target: got 'g'; one of g1",
        ),
        (
            ONE_GPU + '"edges": [{"source": 1, "target": 1, "bandwidth": 0, "latency": -1}]}',
            r"bandwidth: got 0; must be more than 0(.|\n)*latency: got -1; must be text",
        ),
        (
            ONE_GPU + '"edges": [{"source": 1, "target": 1, "bandwidth": 1, "latency": 1}]}',
            "edges.0: connects '1' with itself",
        ),
    ],
)
def test_faults_of_a_graph_file_are_told_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        build(write(tmp_path / "x.json", text), 1, gpu="l4")


def test_broken_graphml_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"x\.graphml: not GraphML that can be read: ") as caught:
        build(write(tmp_path / "x.graphml", "<graphml><graph>"), 1, gpu="l4")
    assert "\n" not in str(caught.value)


def test_large_pods_are_built_and_routed() -> None:
    cluster = build("dgx_h100", 1024)
    assert len(of_kind(cluster.graph, "nic")) == 1024
    assert len(of_kind(cluster.graph, "host")) == 2 * 128
    leaves = [name for name in cluster.graph if name.startswith("leaf")]
    spines = [name for name in cluster.graph if name.startswith("spine")]
    assert (len(leaves), len(spines)) == (4 * 8, 16)  # DGX SuperPOD H100 reference architecture, four units


def test_an_option_of_the_builder_beside_options_is_told_to_be_moved(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", "builder: star\nbandwidth: 100 Gb/s\noptions: {latency: 5 us}\n")
    with pytest.raises(ScenarioError) as caught:
        load_topology(path)
    assert str(caught.value).splitlines() == [
        f"{path}:2:1: bandwidth: is an option of builder star; move it below options",
        f"{path}:3:10: options.bandwidth: is missing; give it",
    ]


def test_the_first_gpus_of_each_node_are_used() -> None:
    """In a rack of 72 GPUs, 64 run ranks; the others are idle, and ranks of two racks meet on cards alone."""
    cluster = {"topology": "gb200_nvl72", "world_size": 128, "placement": {"gpus_per_node": 64}}
    short = to_cluster(ClusterSpec.model_validate(cluster), Path())
    assert short.nodes == (tuple(range(64)), tuple(range(64, 128)))
    assert short.ranks == tuple(f"gpu{gpu}" for gpu in (*range(64), *range(72, 136)))
    written = to_cluster(ClusterSpec.model_validate(cluster | {"placement": [*range(64), *range(72, 136)]}), Path())
    assert (written.ranks, written.nodes) == (short.ranks, short.nodes)
