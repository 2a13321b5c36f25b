"""Damaged descriptions of machines: each is imported, or refused in one line; no other exception comes out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.importing.machines.machine_format import FORMATS
from tests.damaging import damaged
from tests.machines import SAMPLES, imported, sample

# Damaged files of each format, over its samples.
EACH = 500
FILES = {
    name: [str(path.relative_to(SAMPLES)) for path in sorted(SAMPLES.glob(pattern))]
    for name, pattern in (
        ("NCCL topology", "nccl_topology/*topo*.xml"),
        ("NCCL graph", "nccl_topology/*-graph.xml"),
        ("nvidia-smi topo -m", "nvidia_smi/*.txt"),
        ("Slurm topology.conf", "slurm/*.conf"),
        ("Slurm topology.yaml", "slurm/*.yaml"),
        ("ASTRA-sim network", "astra_sim/*.yml"),
        ("GML", "gml/*.gml"),
        ("ns-3 topology", "ns3/*.txt"),
        ("ASTRA-sim system", "astra_sim/[!s]*.json"),
    )
}
# A file that describes a machine, for formats that only add to one.
BESIDE = {
    "ASTRA-sim system": [sample("astra_sim/Ring_8npus.yml")],
    "NCCL graph": [sample("nccl_topology/azure_ncv4-topo.xml")],
}
# Options with which every sample of a format is imported.
OPTIONS: dict[str, dict[str, Any]] = {
    "NCCL topology": {"gpu": "h100_sxm", "cards": ()},
    "GML": {"node": "gh200"},
    "Slurm topology.conf": {"node": "gh200"},
    "Slurm topology.yaml": {"node": "gh200"},
}


def test_every_format_has_samples() -> None:
    assert set(FILES) == set(FORMATS.names())


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_imported_or_refused_in_one_line(tmp_path: Path, name: str, part: int) -> None:
    chance = random.Random(f"{name} {part}")
    for number in range(EACH // 2):
        source = sample(FILES[name][number % len(FILES[name])])
        path = tmp_path / Path(source).name
        path.write_bytes(damaged(Path(source).read_bytes(), chance))
        try:
            imported(*BESIDE.get(name, ()), str(path), **OPTIONS.get(name, {}))
        except ScenarioError as error:
            line = str(error)
            assert line.isprintable()
            assert len(line) < 2000


XML = '<system version="1"><cpu numaid="0">{}</cpu></system>'
GPU = '<pci busid="0000:01:00.0" class="0x030200"/>'
BOMBS = [
    (
        "deep.xml",
        XML.format("<pci busid='0000:01:00.0' class='0x060400'>" * 100),
        "nested too deeply; at most 40 levels",
    ),
    ("wide.xml", XML.format("<a/>" * 60_000), "has more than 50000 elements"),
    ("many.xml", XML.format(GPU * 2000), "has more than 1024 GPUs or network cards"),
    ("comments.xml", "<!--" * 1_000_000, "no known description"),
    ("large.xml", " " * (4 * 2**20 + 1), "must be at most 4 MiB"),
    (
        "entity.xml",
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "/etc/passwd">]><system/>',
        "no known description",
    ),
    ("inside.xml", XML.format("<!DOCTYPE a>"), "not valid XML"),
    ("encoding.xml", '<?xml version="1.0" encoding="x-none"?>' + XML.format(GPU), "not valid XML: unknown encoding"),
    ("names.conf", "SwitchName=a Nodes=n[0-99999999]", "stands for too many names; at most 100,000 in all"),
    ("product.conf", "SwitchName=a Nodes=n[0-999]m[0-999]", "stands for too many names"),
    (
        "twice.conf",
        "SwitchName=a Nodes=a[0-59999]\nSwitchName=b Nodes=b[0-59999]",
        "has 120,000 nodes; must have at most",
    ),
    ("nodes.conf", "SwitchName=a Nodes=n[0-9999]", "choose nodes with --node-list"),
    ("switches.conf", "SwitchName=a Switches=b[0-20000]", "got switch 'b0'"),
    ("list.conf", "SwitchName=a Nodes=" + "n," * 60_000, "must have at most 100000"),
    ("long.conf", "SwitchName=a Nodes=" + "n" * 3000, "names have at most 200 characters"),
    (
        "npus.yml",
        "topology: [Ring]\nnpus_count: [100001]\nbandwidth: [1]\nlatency: [1]",
        "whole number of 1 .. 100,000",
    ),
    (
        "cube.yml",
        "topology: [Ring, Ring]\nnpus_count: [999, 999]\nbandwidth: [1, 1]\nlatency: [1, 1]",
        "at most 100,000",
    ),
    (
        "mesh.yml",
        "topology: [FullyConnected]\nnpus_count: [9999]\nbandwidth: [1]\nlatency: [1]",
        "take fewer npus_count",
    ),
    ("switches.txt", "99999 99999 1\n" + "7\n" * 40_000 + "0 1 1Gbps 1us 0\n", "must be the numbers of 99999 switches"),
    ("program.xml", '<algo name="x"/>', "no known description of a machine"),
]


@pytest.mark.parametrize(("file", "text", "message"), BOMBS, ids=[bomb[0] for bomb in BOMBS])
def test_a_file_made_to_exhaust_the_machine_is_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=message) as caught:
        imported(str(path))
    assert len(str(caught.value).splitlines()) == 1
