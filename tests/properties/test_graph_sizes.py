"""A builder counts its graph before it builds it: vertices and cables of drawn options are those of the graph."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simulator.cluster.builder import BUILDERS

LINK = {"bandwidth": 1e9, "latency": 1e-6}
COUNT = st.integers(1, 6)


def counted(name: str, options: dict[str, Any], world_size: int, servers: int = 0) -> None:
    own = BUILDERS.find(name)
    graph, size = own.build(options, world_size, servers), own.size(world_size, servers, **options)
    assert (len(graph), graph.number_of_edges()) == (size.vertices, 2 * size.cables)
    assert size.parts == len(graph) + graph.number_of_edges()


@given(ranks=st.integers(1, 40), servers=st.integers(0, 3), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_regular_graphs(ranks: int, servers: int, lengths: list[int]) -> None:
    counted("star", LINK, ranks, servers)
    counted("fat_tree", LINK, ranks, servers)
    for name in ("ring", "fully_connected", "hypercube"):
        counted(name, LINK, ranks)
    counted("torus", {"shape": lengths, **LINK}, 1)
    counted("hypercube", {"dimensions": len(lengths), **LINK}, 1)
    counted("fat_tree", {"k": 2 * lengths[0], **LINK}, 1)


@given(hosts=COUNT, routers=COUNT, global_links=COUNT, data=st.data())
def test_dragonflies(hosts: int, routers: int, global_links: int, data: st.DataObject) -> None:
    groups = data.draw(st.one_of(st.none(), st.integers(1, routers * global_links + 1)))
    options = {"hosts": hosts, "routers": routers, "global_links": global_links, "groups": groups, **LINK}
    counted("dragonfly", options, 1)


@given(
    ranks=st.integers(1, 60),
    gpus=st.integers(1, 8),
    inside=st.sampled_from(["nvswitch", "full_mesh", "mesh", "pcie"]),
    hosts=st.integers(1, 3),
    nodes_per_leaf=st.integers(1, 4),
    fabric=st.sampled_from(["rail", "leaf_spine"]),
    servers=st.integers(0, 3),
    spines=st.one_of(st.none(), st.integers(1, 4)),
    data=st.data(),
)
def test_nodes(
    ranks: int,
    gpus: int,
    inside: str,
    hosts: int,
    nodes_per_leaf: int,
    fabric: str,
    servers: int,
    spines: int | None,
    data: st.DataObject,
) -> None:
    inside = "pcie" if gpus == 1 and inside == "mesh" else inside
    tree = inside in ("mesh", "pcie")
    slots = data.draw(st.integers(0 if tree else 1, gpus))
    nics = data.draw(st.integers(1, min(gpus, slots or hosts) if tree else gpus))
    options = {
        "gpus": gpus, "inside": inside, "hosts": hosts, "pcie_switches": slots, "nics": nics, "fabric": fabric,
        "nodes_per_leaf": nodes_per_leaf, "spines": spines, "link_bandwidth": None if inside == "pcie" else 1e11,
        "pcie_bandwidth": 1e10, "pcie_latency": 1e-6, "nic_bandwidth": 1e10, "nic_latency": 1e-6,
    }  # fmt: skip
    if inside == "mesh":
        pairs = st.sets(st.sampled_from(list(combinations(range(gpus), 2))), min_size=1)
        options["links"] = [[*pair, 2] for pair in data.draw(pairs)]
    counted("nodes", options, ranks, servers if fabric == "leaf_spine" else 0)
