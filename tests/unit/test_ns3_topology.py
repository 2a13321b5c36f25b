"""ns-3's and SimAI's texts of a topology as a machine: servers, switches, rates, and faults with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.importing.settings import Reason
from tests.machines import cluster, imported, kinds, path, rate, read, sample

SIMAI = sample("ns3/simai_2x4.txt")
NS3 = sample("ns3/two_switches.txt")


def written(folder: Path, text: str) -> str:
    (folder / "topology.txt").write_text(text, encoding="utf-8")
    return str(folder / "topology.txt")


def test_a_text_of_simai_has_its_servers_and_rails(tmp_path: Path) -> None:
    found = imported(SIMAI)
    assert (read(found)["GPU"], read(found)["GPUs"], read(found)["links"]) == ("h100_sxm", 8, 20)
    built = cluster(tmp_path, found)
    # Two NVSwitches, four leaf switches, a spine.
    assert kinds(built) == {"gpu": 8, "switch": 7}
    assert [len(node) for node in built.nodes] == [4, 4]
    assert path(built, "gpu0", "gpu3") == ["gpu0", "nvswitch8", "gpu3"]
    assert path(built, "gpu1", "gpu5") == ["gpu1", "switch11", "gpu5"]
    # 2880 Gb/s and 25 ns to the NVSwitch, 400 Gb/s to the leaf switch.
    assert (rate(built, "gpu0", "nvswitch8"), rate(built, "gpu0", "switch10")) == (360e9, 50e9)
    assert built.route("gpu0", "gpu3").latency == pytest.approx(2 * 25e-9)
    # GPUs do not forward: another rail of another server is reached over the spine.
    assert path(built, "gpu0", "gpu5") == ["gpu0", "switch10", "switch14", "switch11", "gpu5"]


def test_hosts_of_ns3_are_the_nodes_that_are_no_switches(tmp_path: Path) -> None:
    found = imported(NS3, gpu="a100_sxm_80gb")
    built = cluster(tmp_path, found)
    # Nodes 1 to 4; two parallel links of 100 Gb/s between the switches.
    assert path(built, "gpu0", "gpu2") == ["gpu0", "switch0", "switch5", "gpu2"]
    assert (rate(built, "gpu0", "switch0"), rate(built, "switch0", "switch5")) == (12.5e9, 25e9)
    assert read(found)["GPU"] == "a100_sxm_80gb"


def test_a_gpu_that_the_catalog_lacks_is_told(tmp_path: Path) -> None:
    text = Path(SIMAI).read_text(encoding="utf-8").replace("H100", "Z9000")
    (why,) = [one.why for one in imported(written(tmp_path, text)).notes.missing]
    assert why == "the catalog has no Z9000; --gpu changes it"


def test_lost_bytes_are_told(tmp_path: Path) -> None:
    ignored = imported(written(tmp_path, "3 1 2\n2\n0 2 100Gbps 1us 0.01\n1 2 100Gbps 1us 0\n")).notes.ignored
    assert [(one.setting.line, one.reason) for one in ignored] == [(3, Reason.NOT_MODELLED)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 1\n2\n0 2 1Gbps 1us 0\n", ":1: got '3 1'; must be nodes, switches and links"),
        ("3 1 1\n0 2 1Gbps 1us 0\n", ":2: got '0 2 1Gbps 1us 0'; must be the numbers of 1 switches"),
        ("3 1 1\n7\n0 2 1Gbps 1us 0\n", ":1: says 1 switches of 3 nodes, but 1 numbers follow, or one is no node"),
        ("4 1 1\n2 3\n0 2 1Gbps 1us 0\n", ":1: says 1 switches of 4 nodes, but 2 numbers follow"),
        ("3 1 2\n2\n0 2 1Gbps 1us 0\n", ":1: says 2 links, but 1 follow"),
        ("3 1 1\n2\n0 3 1Gbps 1us 0\n", ":3: got '0 3 1Gbps 1us 0'; must be two of 3 nodes"),
        ("3 1 1\n2\n0 0 1Gbps 1us 0\n", ":3: got '0 0 1Gbps 1us 0'; must be two of 3 nodes"),
        ("3 1 1\n2\n0 2 0Gbps 1us 0\n", ":3: got 0Gbps; must be more than 0"),
        ("3 1 2\n2\n0 2 1Gbps 1us 0\n1 2 fast 1us 0\n", ":4: got 'fast'; must be a number and a unit"),
        ("3 1 1\n2\n0 2 1Gbps 1us 0\n", "1 of 2 GPUs, such as gpu1, have no link to gpu0"),
        ("999999 1 1\n2\n0 2 1Gbps 1us 0\n", "take a smaller network"),
    ],
)
def test_a_faulty_text_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        imported(written(tmp_path, text))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
