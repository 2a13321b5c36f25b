"""ASTRA-sim's network and system files as a machine: building blocks, units, and times that follow from them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.importing.settings import Reason
from tests.machines import assumed, cluster, imported, kinds, path, rate, read, sample
from tests.playing import assert_time, time_of

RING = sample("astra_sim/Ring_8npus.yml")
SYSTEM = sample("astra_sim/Ring_4chunks.json")
HGX = sample("astra_sim/HGX-H100-validated.yml")
GIB = 2**30


def network(folder: Path, topology: str, npus: str, bandwidth: str = "[1]", latency: str = "[1]") -> str:
    text = f"topology: {topology}\nnpus_count: {npus}\nbandwidth: {bandwidth}\nlatency: {latency}\n"
    (folder / "network.yml").write_text(text, encoding="utf-8")
    return str(folder / "network.yml")


def test_an_all_reduce_on_the_ring_takes_alpha_and_beta(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(RING, SYSTEM))
    # 1 MB over 8 NPUs: 2 (N - 1) steps of a latency of 500 ns and an eighth of the array at 50 GiB/s.
    expected = 2 * 7 * (500e-9 + 1e6 / 8 / (50 * GIB))
    request = CollectiveRequest("all_reduce", 8, 250_000)
    assert time_of(built, "ring", request) == pytest.approx(expected, rel=1e-9)


def test_the_ring_is_that_of_the_builder(tmp_path: Path) -> None:
    ours = cluster(tmp_path, imported(RING)).graph
    options = {"bandwidth": f"{50 * GIB} B/s", "latency": "500 ns"}
    theirs = build({"builder": "ring", "options": options}, 8, gpu="h100_sxm").graph
    assert set(ours.edges) == set(theirs.edges)
    for a, b in ours.edges:
        assert ours.edges[a, b] == pytest.approx(theirs.edges[a, b])


def test_a_switch_has_a_cable_in_each_direction(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(HGX))
    assert kinds(built) == {"gpu": 8, "switch": 1}
    assert rate(built, "gpu0", "dimension0/switch0") == 400 * GIB
    # Up and down have the latency of the file each.
    assert built.route("gpu0", "gpu7").latency == pytest.approx(2 * 936.25e-9)
    request = CollectiveRequest("all_reduce", 8, 2**20)
    assert_time(2 * 7 * (2 * 936.25e-9 + 2**22 / 8 / (400 * GIB)), built, "ring", request)


def test_dimension_0_counts_fastest(tmp_path: Path) -> None:
    file = network(tmp_path, "[Ring, FullyConnected, Switch]", "[4, 3, 2]", "[50, 25, 12.5]", "[500, 1000, 2000]")
    built = cluster(tmp_path, imported(file))
    # Rings 0-1-2-3, 4-5-6-7, ...; meshes of NPUs 4 apart; switches for NPUs 12 apart.
    direct = {(a, b) for a, b in built.graph.edges if a.startswith("gpu") and b.startswith("gpu")}
    expected = set()
    for a, b in product(range(24), repeat=2):
        ring = a // 4 == b // 4 and (a - b) % 4 in (1, 3)
        mesh = a % 4 == b % 4 and a // 12 == b // 12 and a != b
        expected |= {(f"gpu{a}", f"gpu{b}")} if ring or mesh else set()
    assert direct == expected
    assert (rate(built, "gpu0", "gpu1"), rate(built, "gpu0", "gpu8")) == (50 * GIB, 25 * GIB)
    assert path(built, "gpu3", "gpu15") == ["gpu3", "dimension2/switch3", "gpu15"]
    # Routes through several dimensions pass through NPUs.
    assert len(path(built, "gpu0", "gpu5")) == 3
    assert [len(node) for node in built.nodes] == [4] * 6


def old_network(folder: Path, **changes: object) -> str:
    """A network of ASTRA-sim 1.0, in the form of the README of its network model."""
    keys: dict[str, object] = {
        "topology-name": "Hierarchical", "dimensions-count": 3, "dimension-type": ["N", "N", "P"],
        "topologies-per-dim": ["Ring", "FullyConnected", "Switch"], "units-count": [4, 3, 2], "links-count": [4, 4, 1],
        "link-latency": [500, 400, 300], "link-bandwidth": [250, 25, 12.5], "nic-latency": [0, 10, 20],
        "router-latency": [0, 0, 60], "hbm-latency": [500, 500, 500],
    }  # fmt: skip
    (folder / "old.json").write_text(json.dumps(keys | {key.replace("_", "-"): v for key, v in changes.items()}))
    return str(folder / "old.json")


def test_a_network_of_version_1_is_that_of_version_2(tmp_path: Path) -> None:
    ours = cluster(tmp_path, imported(old_network(tmp_path))).graph
    # Two of four links to each neighbour, two to each of two others, one to the switch. A message passes two cards, and
    # a router between the two links of a switch: half of it, and a card, in front of each link.
    file = network(tmp_path, "[Ring, FullyConnected, Switch]", "[4, 3, 2]", "[500, 50, 12.5]", "[500, 420, 350]")
    theirs = cluster(tmp_path, imported(file)).graph
    assert set(ours.edges) == set(theirs.edges)
    for a, b in ours.edges:
        assert ours.edges[a, b] == pytest.approx(theirs.edges[a, b])
    ignored = {one.setting.key: one.reason for one in imported(old_network(tmp_path, x=1)).notes.ignored}
    idle = dict.fromkeys(("topology-name", "dimensions-count", "dimension-type"), Reason.NO_MEANING)
    assert ignored == {**idle, "hbm-latency": Reason.NOT_MODELLED, "x": Reason.UNKNOWN}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimensions_count": 2}, "dimensions-count: must be 3, as many as the lists have values"),
        ({"links_count": [3, 4, 1]}, "links-count.0: got 3; must be a multiple of 2 neighbours"),
        ({"links_count": [2, 2]}, "links-count: must be a list with a value for each dimension"),
        ({"nic_latency": [0]}, "nic-latency: must be a list with a value for each dimension"),
        ({"router_latency": [0, 0, -1]}, "router-latency.2: got '-1'; must be a number of at least 0"),
        ({"link_bandwidth": [0, 1, 1]}, "link-bandwidth.0: got '0'; must be a number of more than 0"),
    ],
)
def test_a_faulty_network_of_version_1_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(old_network(tmp_path, **changes))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_rings_have_no_double_cables(tmp_path: Path, count: int) -> None:
    built = cluster(tmp_path, imported(network(tmp_path, "[Ring]", f"[{count}]")))
    assert built.graph.number_of_edges() == {1: 0, 2: 2, 3: 6}[count]


def test_the_unit_of_bandwidth_is_told() -> None:
    found = imported(RING)
    assert assumed(found)["unit of the bandwidth"] == "GiB/s"
    assert read(found)["dimension 0"] == "Ring of 8, 53.69 GB/s, 500 ns"


def test_a_dimension_is_told_in_the_line_of_its_key(tmp_path: Path) -> None:
    """Also if the list itself stands further up, under an anchor."""
    file = tmp_path / "network.yml"
    file.write_text("blocks: &blocks [Switch]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]\ntopology: *blocks\n")
    found = imported(str(file)).notes
    assert {one.key: one.settings[0].line for one in found.understood} == {"dimension 0": 5}
    assert {one.setting.key: one.setting.line for one in found.ignored} == {"blocks": 1, "topology Switch": 5}


def test_every_setting_of_the_system_is_told() -> None:
    ignored = imported(RING, SYSTEM, gpu="a100_sxm_80gb").notes.ignored
    told = {one.setting.key: one for one in ignored}
    assert told["all-reduce-implementation"].why == "chosen in the scenario: algorithm ring"
    assert told["local-mem-bw"].why == "a100_sxm_80gb has 2039 GB/s; --gpu chooses another"
    assert told["peak-perf"].why == "a100_sxm_80gb has 312 TFLOP/s; --gpu chooses another"
    # No part of ASTRA-sim reads boost-mode.
    assert told["boost-mode"].reason is Reason.NO_MEANING
    assert all(one.reason is not Reason.UNKNOWN for one in ignored)
    assert imported(RING, sample("astra_sim/no_memory_expansion.json")).graph == imported(RING).graph


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([SYSTEM], "Ring_4chunks.json: ASTRA-sim system only adds to a machine; give the file that describes it"),
        ([RING, HGX], "describes a machine too; import each into a file of its own"),
        (
            [sample("astra_sim/sample_8nodes_1D.json")],
            "logical-dims: dimensions without links; give ns-3's physical topology",
        ),
    ],
)
def test_files_that_are_no_machine_are_refused(files: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(*files)


@pytest.mark.parametrize(
    ("topology", "npus", "bandwidth", "latency", "message"),
    [
        ("[Torus2D]", "[4]", "[1]", "[1]", "topology.0: got 'Torus2D'; one of FullyConnected, Ring, Switch"),
        ("[Ring]", "[4, 2]", "[1]", "[1]", "npus_count: must be a list with a value for each dimension"),
        ("Ring", "4", "1", "1", "topology: must be a list"),
        ("[Ring]", "[0]", "[1]", "[1]", "npus_count.0: got 0; must be a whole number of 1 .. 100,000"),
        ("[Ring]", "[4]", "[0]", "[1]", "bandwidth.0: got '0'; must be a number of more than 0"),
        ("[Ring]", "[4]", "[fast]", "[1]", "bandwidth.0: got 'fast'; must be a number"),
        ("[Ring]", "[4]", "[1]", "[-1]", "latency.0: got '-1'; must be a number of at least 0"),
        ("[Ring]", "[4]", "[1e300]", "[1]", "bandwidth.0: .* outside the range that can be simulated"),
    ],
)
def test_a_faulty_network_is_refused(
    tmp_path: Path, topology: str, npus: str, bandwidth: str, latency: str, message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(network(tmp_path, topology, npus, bandwidth, latency))


def test_a_memory_that_is_not_modelled_is_refused(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text('{"memory-type": "PER_NODE_MEMORY_EXPANSION"}', encoding="utf-8")
    with pytest.raises(
        ScenarioError, match=r"memory\.json:1: memory-type: got 'PER_NODE_MEMORY_EXPANSION'; only NO_MEM"
    ):
        imported(RING, str(tmp_path / "memory.json"))
