"""Topology files in former words: a box is a node now, and files that say box are read as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.topology_file import load_topology

SHIPPED = Path(__file__).parents[2] / "topologies" / "dgx_h100.yaml"


def former(text: str) -> str:
    """The file as it was written before."""
    for today, before in (("builder: nodes", "builder: boxes"), ("nodes_per_leaf:", "boxes_per_leaf:")):
        assert today in text
        text = text.replace(today, before)
    return text.replace("    one_node:", "    one_box:").replace("    nodes:", "    boxes:")


def test_a_file_in_former_words_is_the_same_topology(tmp_path: Path) -> None:
    path = tmp_path / "dgx_h100.yaml"
    path.write_text(former(SHIPPED.read_text()))
    today, before = load_topology(SHIPPED), load_topology(path)
    for fact in ("builder", "options", "gpu", "collectives"):
        assert getattr(before, fact) == getattr(today, fact)
    assert build(path, 16).graph.edges == build(SHIPPED, 16).graph.edges


def test_a_fault_in_former_words_names_the_line_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(former(SHIPPED.read_text()).replace("boxes_per_leaf: 32", "boxes_per_leaf: many"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "many" in text)
    with pytest.raises(ScenarioError, match=f"mine.yaml:{line}:.*nodes_per_leaf: got 'many'"):
        load_topology(path)
