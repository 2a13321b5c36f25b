"""Small graphs of a user, each as a file: `simulator show` draws every vertex once, whatever joins them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.cli.commands.show import usual_ranks
from simulator.cluster.build import build, facts
from simulator.cluster.cluster import Cluster
from simulator.report.plots.layout import layout
from simulator.report.plots.topology import figure
from simulator.testing.looking import outside, texts

Pairs = Sequence[tuple[str, str]]


@dataclass
class Drawn:
    """Vertices and cables of a graph file."""

    vertices: list[dict[str, Any]] = field(default_factory=list)
    cables: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, kind: str = "switch", to: str | None = None, **facts: Any) -> str:
        """Add a vertex, with a cable where `to` names its other end."""
        self.vertices.append({"id": name, "kind": kind, **facts})
        if to is not None:
            self.cables.append((name, to))
        return name

    def cluster(self, folder: Path) -> Cluster:
        """The cluster that `simulator show` draws of this file."""
        edges = [{"source": a, "target": b, "bandwidth": "25 GB/s", "latency": "1 us"} for a, b in self.cables]
        path = folder / "graph.json"
        path.write_text(json.dumps({"directed": False, "nodes": self.vertices, "edges": edges}), encoding="utf-8")
        topology = {"graph": str(path), "gpu": "a100_sxm_80gb"}
        return build(topology, usual_ranks(facts(topology)))


def in_nodes(nodes: int, cables: Pairs, *, gpus: int = 2, named: bool = True, nics: bool = False) -> Drawn:
    """Nodes of GPUs at one switch each; cables join `s0`, `s1`, ..., or the NICs `c0`, `c1`, ... behind them."""
    drawn = Drawn()
    for node in range(nodes):
        switch = drawn.add(f"s{node}")
        if nics:
            drawn.add(f"c{node}", "nic", switch)
        for gpu in range(gpus):
            drawn.add(f"n{node}g{gpu}", "gpu", switch, **({"node": node} if named else {}))
    drawn.cables += cables
    return drawn


def ring(nodes: int, letter: str = "s") -> Pairs:
    return [(f"{letter}{i}", f"{letter}{(i + 1) % nodes}") for i in range(nodes if nodes > 2 else nodes - 1)]


def torus(rows: int, columns: int) -> Pairs:
    right = [(r * columns + c, r * columns + (c + 1) % columns) for r in range(rows) for c in range(columns)]
    down = [(r * columns + c, (r + 1) % rows * columns + c) for r in range(rows) for c in range(columns)]
    return [(f"s{a}", f"s{b}") for a, b in right + down]


def gpus_in_a_row(gpus: int) -> Drawn:
    drawn = Drawn()
    for gpu in range(gpus):
        drawn.add(f"g{gpu}", "gpu", f"g{gpu - 1}" if gpu else None, node=gpu // 2, forwards=True)
    return drawn


def with_a_core(drawn: Drawn, *ends: str) -> Drawn:
    drawn.add("core")
    drawn.cables += [(end, "core") for end in ends]
    return drawn


NAMED = {
    "two nodes joined by one cable": in_nodes(2, ring(2)),
    "two nodes of eight joined by one cable": in_nodes(2, ring(2), gpus=8),
    "two nodes that the file does not name": in_nodes(2, ring(2), named=False),
    "a ring of four switches": in_nodes(4, ring(4)),
    "a ring of six switches with a GPU each": in_nodes(6, ring(6), gpus=1),
    "four switches, each joined with each": in_nodes(4, list(combinations(["s0", "s1", "s2", "s3"], 2))),
    "joined by their NICs": in_nodes(2, ring(2, "c"), nics=True),
    "a ring of four NICs": in_nodes(4, ring(4, "c"), nics=True),
    "a torus of nine nodes": in_nodes(9, torus(3, 3), gpus=1),
    "a cable beside a core switch": with_a_core(in_nodes(3, [("s0", "s1")]), "s0", "s1", "s2"),
    "a core at GPUs, a cable at switches": with_a_core(in_nodes(2, ring(2)), "n0g0", "n1g0"),
    "GPUs in a row": gpus_in_a_row(4),
    "two GPUs": gpus_in_a_row(2),
    "one GPU": gpus_in_a_row(1),
    "a switch beside a row": with_a_core(gpus_in_a_row(4), "g0", "g3"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.one_of(3)
def test_every_vertex_of_a_small_graph_is_drawn(name: str, tmp_path: Path) -> None:
    cluster = NAMED[name].cluster(tmp_path)
    arranged = layout(cluster)
    assert (set(arranged.drawing.at), arranged.note) == (set(cluster.graph), "")
    assert len(set(arranged.drawing.at.values())) == len(cluster.graph)
    assert sorted(cluster.ranks) == sorted(v["id"] for v in NAMED[name].vertices if v["kind"] == "gpu")
    drawn = figure(cluster)
    assert outside(drawn, texts(drawn)) == []


def test_a_node_that_no_rank_uses_is_a_node_all_the_same(tmp_path: Path) -> None:
    """Its GPUs and its switch stood in the box of the nearest node with ranks, or above the network."""
    whole = in_nodes(4, ring(4)).cluster(tmp_path)
    part = build({"graph": str(tmp_path / "graph.json"), "gpu": "a100_sxm_80gb"}, 3)
    assert len(part.nodes) == 2
    assert layout(part).drawing.at == layout(whole).drawing.at
    assert figure(part).get_suptitle().startswith("Inline: 8 GPUs in 4 nodes, 4 switches")


@st.composite
def connected(draw: st.DrawFn) -> Drawn:
    """A random tree of switches, cards and hosts with GPUs anywhere, and random cables more."""
    drawn = Drawn()
    inner = draw(st.lists(st.sampled_from(["switch", "nic", "host"]), max_size=7))
    gpus = draw(st.integers(1, 12))
    nodes = draw(st.integers(0, 4))
    for number, kind in enumerate([*inner, *["gpu"] * gpus]):
        to = f"v{draw(st.integers(0, number - 1))}" if number else None
        of_node = {"node": draw(st.integers(0, nodes - 1))} if kind == "gpu" and nodes else {}
        drawn.add(f"v{number}", kind, to, forwards=True, **of_node)
    pairs = list(combinations([vertex["id"] for vertex in drawn.vertices], 2))
    more = draw(st.lists(st.sampled_from(pairs), max_size=8, unique=True)) if pairs else []
    drawn.cables += [pair for pair in more if pair not in drawn.cables and pair[::-1] not in drawn.cables]
    return drawn


@given(graph=connected())
@example(graph=NAMED["two nodes joined by one cable"])
@example(graph=in_nodes(40, ring(40)))
@example(graph=in_nodes(40, ring(40), named=False))
@example(graph=with_a_core(gpus_in_a_row(70), "g0", "g5"))
def test_any_connected_graph_is_drawn(graph: Drawn, tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = graph.cluster(tmp_path_factory.mktemp("graph"))
    arranged = layout(cluster)
    at = arranged.drawing.at
    assert set(at) <= set(cluster.graph)
    assert len(set(at.values())) == len(at)
    assert any(rank in at for rank in cluster.ranks)
    assert (len(at) == len(cluster.graph)) == (arranged.note == "")
    assert (arranged.note == "") == (not arranged.drawing.counts)
