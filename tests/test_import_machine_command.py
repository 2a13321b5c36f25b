"""`simulator import-machine` on the command line: the files that it writes, its lists, its refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import Command, commands_in
from tests.machines import sample

SCENARIO = """\
# How long does an all-reduce take on the imported machine?
name: imported
cluster: {topology: machine.yaml, world_size: 8}
collective: {operation: all_reduce, size: 1 MiB, algorithm: ring}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    shutil.copy(sample("nccl_topology/azure_ndv4-topo.xml"), tmp_path / "ndv4.xml")
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_description_becomes_a_topology_and_its_graph(cli: Command, tmp_path: Path) -> None:
    answer = cli("import-machine", "ndv4.xml", "--gpu", "a100_sxm_40gb", "--output", "machine.yaml")
    assert answer.code == 0
    out = " ".join(answer.out.split())
    assert "ndv4.xml: read as NCCL topology" in out
    assert "machine.yaml and machine.graph.json: written; next: `simulator check machine.yaml`" in out
    checked = cli("check", "machine.yaml")
    assert checked.code == 0
    assert "at most 8 ranks; nodes of 8 GPUs" in checked.out
    (tmp_path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    assert cli("run", "scenario.yaml", "--out", "run").code == 0


def test_every_assumption_stands_in_the_list_and_in_the_file(cli: Command, tmp_path: Path) -> None:
    data = cli("import-machine", "ndv4.xml", "--json").data
    assert data["topology"] == "ndv4.yaml"
    assert data["graph"] == "ndv4.graph.json"
    parts = {one["part"]: one["assumed"] for one in data["missing"]}
    assert parts["GPU"] == "h100_sxm"
    text = (tmp_path / "ndv4.yaml").read_text(encoding="utf-8")
    for one in data["missing"]:
        assert f"#   {one['part']}: {one['assumed']} ({one['why']})\n" in text
    # The file says 16 GT/s; the assumed GPU has PCIe 5.
    assert len(data["warnings"]) == 1
    assert "--pcie-bandwidth changes it" in data["warnings"][0]
    assert {one["key"] for one in data["ignored"]} == {"cpu affinity", "cpu arch"}


def test_options_replace_what_would_be_assumed(cli: Command, tmp_path: Path) -> None:
    options = ("--gpu", "a100_sxm_40gb", "--nodes", "2", "--nic-bandwidth", "200 Gb/s", "--socket-bandwidth", "18 GB/s",
               "--pcie-bandwidth", "31.5 GB/s", "--link-bandwidth", "20 GB/s", "--oversubscription", "2")  # fmt: skip
    assert cli("import-machine", "ndv4.xml", *options, "--output", "machine.yaml").code == 0
    graph = json.loads((tmp_path / "machine.graph.json").read_text(encoding="utf-8"))
    rates = {(edge["source"], edge["target"]): edge["bandwidth"] for edge in graph["edges"]}
    assert rates[("gpu0", "node0/nvswitch")] == 12 * 20e9
    assert rates[("nic0", "leaf0")] == 200e9 / 8
    assert rates[("host0", "node0/sockets")] == 18e9
    assert rates[("gpu0", "node0/port0")] == 31.5e9
    # A full leaf of 32 nodes has 32 cards; half of their rate goes up, over all spines.
    spines = [edge for edge in rates if edge[0] == "leaf0" and edge[1].startswith("spine")]
    assert sum(rates[edge] for edge in spines) == pytest.approx(32 * 25e9 / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--inside", "ring"), "--inside: got 'ring'; one of full_mesh, nvswitch, pcie"),
        (("--nic-bandwidth", "fast"), "--nic-bandwidth: "),
        (("--pcie-bandwidth", "0 GB/s"), "--pcie-bandwidth: got '0 GB/s'; must be more than 0"),
        (("--gpu", "h1000"), "gpu: got 'h1000'"),
        (("--output", "machine.json"), "--output: got 'machine.json'; must end with .yaml"),
        (("small.yaml",), "small.yaml: no known description of a machine; read are"),
    ],
)
def test_a_fault_is_one_line(cli: Command, options: tuple[str, ...], message: str) -> None:
    answer = cli("import-machine", "ndv4.xml", *options)
    assert answer.code == 2
    (line,) = answer.faults
    assert message in line
    assert answer.out == ""


def test_no_file_is_overwritten(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "ndv4.graph.json").write_text("mine", encoding="utf-8")
    answer = cli("import-machine", "ndv4.xml")
    assert answer.code == 2
    assert "ndv4.graph.json: the file exists already" in answer.faults[0]
    assert (tmp_path / "ndv4.graph.json").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "ndv4.yaml").exists()
