"""Networks as GML, in the form of the Internet Topology Zoo; and formats that are named in their refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from tests.machines import assumed, cluster, imported, path, read

# A quarter of the equator apart; two parallel links, which the zoo does not declare; a foreign network.
ZOO = """graph [
  Network "Own"
  node [ id 0 label "New York" Longitude 0 Latitude 0 Internal 1 ]
  node [ id 1 label "Bern" Longitude 90 Latitude 0 Internal 1 ]
  node [ id 2 label "Bern" Internal 1 ]
  node [ id 3 label "Other" Internal 0 ]
  edge [ source 0 target 1 LinkSpeed "10" LinkSpeedUnits "G" LinkSpeedRaw 10000000000.0 ]
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 ]
  edge [ source 1 target 2 ]
  edge [ source 2 target 3 ]
]
"""


def written(folder: Path, text: str, name: str = "net.gml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_network_of_the_zoo_is_a_machine(tmp_path: Path) -> None:
    found = imported(written(tmp_path, ZOO))
    assert (read(found)["nodes"], read(found)["cables between nodes"]) == (3, 2)
    built = cluster(tmp_path, found, 24)
    ends = ("New_York/network", "Bern_1/network")
    # Two links of 10 Gb/s; a quarter of the Earth's circumference at two thirds of the speed of light.
    assert built.graph.edges[ends]["bandwidth"] == 2.5e9
    quarter = 2 * 3.141592653589793 * 6_371e3 / 4
    hop = built.graph.edges["Bern_1/network", "Bern_2/network"]["latency"]
    assert built.graph.edges[ends]["latency"] - hop == pytest.approx(quarter / 2e8)
    # Eight cards of 400 Gb/s of a DGX H100, because the file has no speed.
    assert built.graph.edges["Bern_1/network", "Bern_2/network"]["bandwidth"] == 8 * 50e9
    assert assumed(found)["between neighbours of a network"] == "400 GB/s"
    assert path(built, "New_York/nic0", "Bern_2/nic0")[1:4] == ["New_York/network", "Bern_1/network", "Bern_2/network"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph [ node [ id 0 ] node [ id 1 ] ]", "has no edge between two nodes"),
        ("graph [ node [ id 0 ] edge [ source 0 target 7 ] ]", "not GML"),
        ("graph [ node [ ] ]", "not GML"),
        ("graph [" * 5000, "not GML"),
        ("graph [\n node [ id 0 label ", "not GML"),
    ],
)
def test_a_faulty_gml_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        imported(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_topology_whose_graph_is_gml_says_how_to_import_it(tmp_path: Path) -> None:
    written(tmp_path, ZOO)
    (tmp_path / "machine.yaml").write_text("graph: net.gml\ngpu: h100_sxm\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"net.gml: GML has no GPUs; `simulator import-machine .*net.gml`"):
        build(tmp_path / "machine.yaml", 8)
