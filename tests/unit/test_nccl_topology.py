"""NCCL's topology XML as a machine: parts, distances, rates, links, and what the file cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Reason
from tests.machines import assumed, cluster, imported, kinds, path, rate, read, sample

# GPUs, network cards, NUMA nodes, bridges and pairs of GPUs with direct links, counted in the files by hand (grep).
COUNTS = {
    "aws_p4d-24xl-topo.xml": (8, 4, 2, 4, 0),
    "azure_ncv4-topo.xml": (4, 1, 4, 0, 0),
    "azure_ndv2-topo.xml": (8, 1, 2, 0, 0),
    "azure_ndv4-topo.xml": (8, 8, 4, 4, 0),
    "rccl_topo_4p_940.xml": (4, 4, 4, 0, 6),
    # Each of 8 GPUs has 6 links of the 7 to its peers: 8 x 6 / 2.
    "rccl_topo_8p6l.xml": (8, 1, 2, 8, 24),
    # Each GPU is below three bridges.
    "rccl_topo_8p_940.xml": (8, 8, 2, 24, 28),
    "rccl_topo_8p_pcie.xml": (8, 1, 1, 10, 0),
}
# GPUs that are not in the catalog: the user says which one is similar.
OPTIONS = {
    "rccl_topo_4p_940.xml": {"gpu": "mi300x"},
    "rccl_topo_8p6l.xml": {"gpu": "mi300x"},
    "rccl_topo_8p_pcie.xml": {"gpu": "mi300x"},
}


def xml(body: str, cpu: str = "") -> str:
    return f'<system version="1"><cpu numaid="0" {cpu}>{body}</cpu></system>'


def written(folder: Path, text: str) -> str:
    (folder / "topo.xml").write_text(text, encoding="utf-8")
    return str(folder / "topo.xml")


def pci(busid: str, kind: str, inside: str = "", speed: str = "16 GT/s", width: str = "16") -> str:
    return f'<pci busid="{busid}" class="{kind}" link_speed="{speed}" link_width="{width}">{inside}</pci>'


@pytest.mark.parametrize("name", COUNTS)
def test_a_sample_has_its_parts(tmp_path: Path, name: str) -> None:
    gpus, cards, numa, bridges, pairs = COUNTS[name]
    found = imported(sample(f"nccl_topology/{name}"), **OPTIONS.get(name, {}))
    told = read(found)
    assert (told["GPUs"], told.get("network cards", 0)) == (gpus, cards)
    assert (told["NUMA nodes"], told.get("PCIe bridges", 0)) == (numa, bridges)
    built = cluster(tmp_path, found)
    have = kinds(built)
    assert (have["gpu"], have["nic"], have["host"]) == (gpus, cards, numa)
    named = [vertex for vertex in built.graph if "/pcie" in vertex]
    assert len(named) == bridges
    direct = [(a, b) for a, b in built.graph.edges if a.startswith("gpu") and b.startswith("gpu")]
    assert len(direct) == 2 * pairs
    # Every GPU reaches every other GPU and every card.
    for gpu in built.ranks:
        assert all(path(built, gpu, other) for other in built.graph if other.startswith(("gpu", "nic")))


@pytest.mark.parametrize(
    ("name", "gpu", "message"),
    [
        ("aws_g5.48xl-topo.xml", None, "has no class, and may be a GPU or a network card; give --card BUSID"),
        ("rccl_topo_4p_940.xml", None, "GPU gcn 940 is no known GPU of the catalog; give --gpu"),
        ("rccl_topo_8p6l.xml", None, "GPU gcn 908 is no known GPU of the catalog; give --gpu"),
        ("rccl_topo_8p_pcie.xml", None, "GPU gcn 906 is no known GPU of the catalog; give --gpu"),
    ],
)
def test_a_sample_without_a_known_gpu_is_refused_with_the_option(name: str, gpu: str | None, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(sample(f"nccl_topology/{name}"), gpu=gpu)


def test_a_file_without_classes_needs_the_addresses_of_its_cards(tmp_path: Path) -> None:
    # The ninth device of g5.48xlarge, 15.0, is its network card.
    found = imported(sample("nccl_topology/aws_g5.48xl-topo.xml"), gpu="l4", cards=("0000:00:15.0",))
    assert kinds(cluster(tmp_path, found)) == {"gpu": 8, "host": 2, "nic": 1}
    none = imported(sample("nccl_topology/aws_g5.48xl-topo.xml"), gpu="l4", cards=())
    assert read(none)["GPUs"] == 9


def parts_at(name: str) -> list[tuple[int, int]]:
    """GPUs and cards at each bridge of a shipped file, from its text: a bridge is a pci that does not end its line."""
    counts: list[tuple[int, int]] = []
    for line in Path(sample(f"nccl_topology/{name}")).read_text(encoding="utf-8").splitlines():
        if 'class="0x060400"' in line:
            counts.append((0, 0))
        elif 'class="0x0302' in line:
            counts[-1] = (counts[-1][0] + 1, counts[-1][1])
        elif 'class="0x02' in line:
            counts[-1] = (counts[-1][0], counts[-1][1] + 1)
    return counts


def near(folder: Path, name: str) -> list[list[int]]:
    """Numbers of the cards of each GPU that share a bridge, from the graph: the bridge is behind a port, or next."""
    built = cluster(folder, imported(sample(f"nccl_topology/{name}"), gpu="a100_sxm_40gb"))
    bridges: dict[str, list[int]] = {}
    for vertex in built.graph:
        if vertex.startswith(("gpu", "nic")):
            ahead = [v for v in built.graph[vertex] if "/port" in v or "/pcie" in v]
            (bridge,) = {v if "/pcie" in v else next(w for w in built.graph[v] if "/pcie" in w) for v in ahead}
            bridges.setdefault(bridge, []).append(vertex.startswith("nic"))
    return sorted([several.count(False), several.count(True)] for several in bridges.values())


@pytest.mark.parametrize(
    ("name", "each"), [("azure_ndv4-topo.xml", (2, 2)), ("aws_p4d-24xl-topo.xml", (2, 1))], ids=["ndv4", "p4d"]
)
def test_a_bridge_has_the_gpus_and_cards_of_the_file(tmp_path: Path, name: str, each: tuple[int, int]) -> None:
    assert parts_at(name) == [each] * 4
    assert near(tmp_path, name) == [list(each)] * 4
    assert read(imported(sample(f"nccl_topology/{name}")))["nearest network card"] == "PIX for 8 GPUs"


def test_one_gpu_and_one_card_at_each_bridge(tmp_path: Path) -> None:
    # The form of ndv5: eight bridges, four at each NUMA node.
    bridges = "".join(
        pci(f"ffff:ff:0{i}.0", "0x060400", pci(f"000{i}:00:00.0", "0x030200") + pci(f"010{i}:00:00.0", "0x020700"))
        for i in range(8)
    )
    found = imported(written(tmp_path, xml(bridges)), gpu="h100_sxm")
    built = cluster(tmp_path, found)
    for i in range(8):
        assert path(built, f"gpu{i}", f"nic{i}") == [f"gpu{i}", f"node0/pcie{i}", f"nic{i}"]
    assert read(found)["nearest network card"] == "PIX for 8 GPUs"


def test_distances_are_those_of_the_tree(tmp_path: Path) -> None:
    # GPU 0: at the card's bridge. GPU 1: at a bridge below. GPU 2: elsewhere in the NUMA node. GPU 3: in another one.
    inner = pci("0000:02:00.0", "0x060400", pci("0000:03:00.0", "0x030200"))
    near_card = pci(
        "0000:01:00.0", "0x060400", pci("0000:01:01.0", "0x030200") + inner + pci("0000:01:02.0", "0x020700")
    )
    first = f'<cpu numaid="0">{near_card}{pci("0000:04:00.0", "0x030200")}</cpu>'
    text = f'<system version="1">{first}<cpu numaid="1">{pci("0000:80:00.0", "0x030200")}</cpu></system>'
    found = imported(written(tmp_path, text), gpu="l40s")
    assert read(found)["nearest network card"] == "PIX for 1 GPU, PXB for 1 GPU, PHB for 1 GPU, SYS for 1 GPU"
    built = cluster(tmp_path, found)
    hops = [len(path(built, f"gpu{i}", "nic0")) - 1 for i in range(4)]
    # gpu-bridge-nic; gpu-bridge-bridge-nic; gpu-host-bridge-nic; gpu-host-host-bridge-nic.
    assert hops == [2, 3, 3, 4]


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        # width x hundreds of Mb/s of a lane / 80 GB/s, as in NCCL's table.
        ("2.5 GT/s", "16", 16 * 15 / 80),
        ("5 GT/s", "16", 16 * 30 / 80),
        ("5.0 GT/s PCIe", "8", 8 * 30 / 80),
        ("8 GT/s", "16", 12),
        ("16 GT/s", "16", 24),
        ("16.0 GT/s PCIe", "16", 24),
        ("32.0 GT/s PCIe", "16", 48),
        ("64.0 GT/s PCIe", "16", 96),
        # Unknown speeds are the third generation, a width of 0 is 16.
        ("", "16", 12),
        ("fast", "8", 6),
        ("16 GT/s", "0", 24),
        ("", "", 12),
    ],
)
def test_pcie_is_as_fast_as_nccl_takes_it(tmp_path: Path, speed: str, width: str, expected: float) -> None:
    two = pci("0000:01:00.0", "0x030200", speed=speed, width=width) + pci("0000:02:00.0", "0x030200", "", speed, width)
    found = imported(written(tmp_path, xml(two)), gpu="l40s")
    assert rate(cluster(tmp_path, found), "gpu0", "host0") == expected * 1e9
    # A rate without a figure in the file is told as assumed.
    known = speed[:1].isdigit() and width not in ("", "0")
    assert ("PCIe bandwidth" in assumed(found)) == (not known)


def test_links_are_their_count_times_the_rate_of_the_gpu(tmp_path: Path) -> None:
    # MI300X: one xGMI link of 64 GB/s to each of 7 peers.
    built = cluster(tmp_path, imported(sample("nccl_topology/rccl_topo_8p_940.xml")))
    assert {rate(built, "gpu0", f"gpu{i}") for i in range(1, 8)} == {64e9}
    assert [gpu.name for gpu in built.gpus[:1]] == ["mi300x"]
    own = imported(sample("nccl_topology/rccl_topo_8p_940.xml"), link_bandwidth=50e9)
    assert rate(cluster(tmp_path, own), "gpu0", "gpu1") == 50e9


def test_cards_have_the_speed_of_the_file(tmp_path: Path) -> None:
    # speed is in Mb/s: 400,000 Mb/s are 50 GB/s.
    two = cluster(tmp_path, imported(sample("nccl_topology/rccl_topo_8p_940.xml"), nodes=2), 16)
    assert rate(two, "nic0", "leaf0") == 50e9
    # 200,000,000 would be 200 Tb/s: HPE's cards are written in Kb/s.
    found = imported(sample("nccl_topology/rccl_topo_4p_940.xml"), gpu="mi300x", nodes=2)
    assert rate(cluster(tmp_path, found, 8), "nic0", "leaf0") == 25e9
    assert assumed(found)["network card"] == "25 GB/s"


def dump(links: list[str], sm: str = "90") -> str:
    """GPUs at a host with nvlink elements."""
    gpus = "".join(
        pci(f"0000:0{i}:00.0", "0x030200", f'<gpu dev="{i}" sm="{sm}" rank="{i}" gdr="1">{link}</gpu>')
        for i, link in enumerate(links)
    )
    return xml(gpus)


SWITCH = '<nvlink target="{}" count="{}" tclass="{}"/>'


def test_links_to_switches_join_one_switch(tmp_path: Path) -> None:
    # 18 links over four chips; NCCL also writes an invisible chip as ffff:ff:ff with the class of a bridge.
    chips = [("0000:a0:00.0", 5), ("0000:a1:00.0", 4), ("0000:a2:00.0", 4), ("ffff:ff:ff.0", 5)]
    links = "".join(SWITCH.format(chip, count, "0x068000") for chip, count in chips)
    found = imported(written(tmp_path, dump([links] * 4)))
    assert assumed(found)["GPU"] == "h100_sxm"
    built = cluster(tmp_path, found)
    assert rate(built, "gpu0", "node0/nvswitch") == 18 * 25e9
    # Two hops by the switch; each GPU is at a port of its own, so that PCIe is not as near.
    assert path(built, "gpu0", "gpu3") == ["gpu0", "node0/nvswitch", "gpu3"]
    assert built.reducing_switches == ("node0/nvswitch",)


def test_links_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    itself = SWITCH.format("0000:00:00.0", 12, "0x030200")
    elsewhere = SWITCH.format("0000:77:00.0", 4, "0x030200")
    host = SWITCH.format("0000:88:00.0", 2, "0x068001")
    found = imported(written(tmp_path, dump([itself + elsewhere + host, ""])))
    told = [one.why for one in found.notes.ignored if one.reason is Reason.NOT_MODELLED]
    assert [why.partition(";")[0] for why in told] == [
        "leads to the GPU itself, as some virtual machines write it",
        "the target is no GPU of the file",
        "NVLink to the processor",
    ]
    built = cluster(tmp_path, found)
    assert path(built, "gpu0", "gpu1") == ["gpu0", "host0", "gpu1"]


def test_a_file_without_links_of_a_gpu_that_has_some_is_a_hint(tmp_path: Path) -> None:
    # The form of Amazon's file of p5: GPUs and cards as in a dump, and no nvlink.
    file = written(tmp_path, dump(["", ""]))
    found = imported(file)
    assert assumed(found)["links between GPUs"] == "nvswitch"
    assert rate(cluster(tmp_path, found), "gpu0", "node0/nvswitch") == 450e9
    # A PCIe card has no links to assume, and neither has a GPU that the user says is alone.
    for options in ({"gpu": "h100_pcie"}, {"inside": "pcie"}):
        assert kinds(cluster(tmp_path, imported(file, **options))) == {"gpu": 2, "host": 1}


def test_a_gpu_without_the_links_of_the_others_is_told(tmp_path: Path) -> None:
    link = SWITCH.format("fffffff:ff:ff.0", 18, "0x068000")
    found = imported(written(tmp_path, dump([link, link, "", link])))
    assert "NVLink: 1 of 4 GPUs have no link to the NVSwitch in the file" in found.notes.warnings
    built = cluster(tmp_path, found)
    assert path(built, "gpu0", "gpu1")[1] == "node0/nvswitch"
    assert "node0/nvswitch" not in path(built, "gpu0", "gpu2")


def test_a_gpu_of_grace_reaches_its_host_by_nvlink(tmp_path: Path) -> None:
    link = '<c2c bw="44712" count="10"/>'
    found = imported(written(tmp_path, dump([link, ""])), gpu="gh200_96gb")
    # MB/s x count.
    assert rate(cluster(tmp_path, found), "gpu0", "host0") == 44712e6 * 10


def test_gpus_and_cards_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    net = '<nic><net name="{}" dev="{}" speed="100000"/></nic>'
    body = pci("0000:01:00.0", "0x030200", '<gpu dev="1" sm="90"/>') + pci(
        "0000:02:00.0", "0x030200", '<gpu dev="0" sm="90"/>'
    )
    body += pci("0000:03:00.0", "0x020700", net.format("b", 1)) + pci("0000:04:00.0", "0x020700", net.format("a", 0))
    graph = cluster(tmp_path, imported(written(tmp_path, xml(body)))).graph
    assert [graph.nodes[name]["original_name"] for name in ("gpu0", "gpu1", "nic0", "nic1")] == [
        "0000:02:00.0", "0000:01:00.0", "a", "b",
    ]  # fmt: skip
    # Hints have no numbers: the PCI address counts.
    body = pci("0000:09:00.0", "0x030200") + pci("0000:01:00.0", "0x030200")
    graph = cluster(tmp_path, imported(written(tmp_path, xml(body)))).graph
    assert graph.nodes["gpu0"]["original_name"] == "0000:01:00.0"


def test_several_cards_of_a_gpu_are_one_card_with_their_total_rate(tmp_path: Path) -> None:
    # The form of p5: four cards of 100 Gb/s for each GPU.
    nets = "".join(pci(f"0000:0{i}:00.0", "0x020000", f'<nic><net name="e{i}" dev="{i}" speed="100000"/></nic>')
                   for i in range(2, 6))  # fmt: skip
    bridge = pci("0000:01:00.0", "0x060400", pci("0000:01:01.0", "0x030200", '<gpu dev="0" sm="90"/>') + nets)
    found = imported(written(tmp_path, xml(bridge)), nodes=2)
    built = cluster(tmp_path, found, 2)
    assert kinds(built)["nic"] == 2
    assert rate(built, "nic0", "leaf0") == 4 * 12.5e9
    assert assumed(found)["network cards"] == "1 for 4"


def test_a_gpu_keeps_to_its_own_card_between_nodes(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(sample("nccl_topology/azure_ndv4-topo.xml"), gpu="a100_sxm_40gb", nodes=2), 16)
    for i in range(8):
        for j in range(8, 16):
            sending, receiving = [vertex for vertex in path(built, f"gpu{i}", f"gpu{j}") if vertex.startswith("nic")]
            assert sending == f"nic{i}"
            # A GPU at the bridge of the card with the same number is as near by this card and the bridge.
            assert receiving == f"nic{j}" or i // 2 == (j - 8) // 2
    # Equal numbers are one leaf apart.
    assert path(built, "gpu2", "gpu10") == [
        "gpu2", "node0/port2", "nic2", "leaf2", "nic10", "node1/port2", "gpu10",
    ]  # fmt: skip


def test_cards_below_bridges_of_their_own_are_shared_out(tmp_path: Path) -> None:
    # The form of a DGX A100: below a bridge, two GPUs and two cards, each below a bridge of its own.
    def below(number: int, device: str) -> str:
        return pci(f"0000:{number}0:00.0", "0x060400", device)

    devices = [pci(f"0000:{i}1:00.0", "0x030200") for i in (1, 2)] + [
        pci(f"0000:{i}1:00.0", "0x020700") for i in (3, 4)
    ]
    inside = "".join(below(i, device) for i, device in enumerate(devices, 1))
    text = xml(pci("0000:90:00.0", "0x060400", inside))
    found = imported(written(tmp_path, text), gpu="a100_sxm_40gb", nodes=2)
    assert read(found)["nearest network card"] == "PXB for 2 GPUs"
    built = cluster(tmp_path, found, 4)
    for i in range(2):
        for j in range(2, 4):
            cards = [vertex for vertex in path(built, f"gpu{i}", f"gpu{j}") if vertex.startswith("nic")]
            assert cards[0] == f"nic{i}"
    assert path(built, "gpu0", "gpu1") == ["gpu0", "node0/nvswitch", "gpu1"]


def test_ports_of_several_gpus_are_no_bottleneck(tmp_path: Path) -> None:
    # Four GPUs and two cards directly at a processor: each GPU has its own link to it.
    body = "".join(pci(f"0000:0{i}:00.0", "0x030200") for i in range(4))
    body += "".join(pci(f"0000:0{i}:00.0", "0x020700") for i in range(4, 6))
    built = cluster(tmp_path, imported(written(tmp_path, xml(body)), gpu="l40s"))
    assert [path(built, f"gpu{i}", f"nic{i // 2}")[1] for i in range(4)] == [
        "node0/port0", "node0/port0", "node0/port1", "node0/port1",
    ]  # fmt: skip
    assert rate(built, "node0/port0", "host0") == 2 * rate(built, "gpu0", "node0/port0") == 2 * 24e9


def test_an_imported_dgx_has_the_graph_of_the_shipped_topology(tmp_path: Path) -> None:
    # dgx_h100 as NCCL would dump it: 8 bridges with a GPU and a card each, 18 links to NVSwitches, two processors.
    switch = SWITCH.format("0000:ff:00.0", 18, "0x068000")
    cpus = ""
    for numa in range(2):
        inside = "".join(
            pci(f"0000:{i}0:00.0", "0x060400",
                pci(f"0000:{i}1:00.0", "0x030200", f'<gpu dev="{i}" sm="90">{switch}</gpu>', "32.0 GT/s PCIe")
                + pci(f"0000:{i}2:00.0", "0x020700", f'<nic><net name="m{i}" dev="{i}" speed="400000"/></nic>'))
            for i in range(4 * numa, 4 * numa + 4)
        )  # fmt: skip
        cpus += f'<cpu numaid="{numa}" vendor="GenuineIntel" familyid="6" modelid="143">{inside}</cpu>'
    found = imported(written(tmp_path, f'<system version="1">{cpus}</system>'), nodes=2, pcie_bandwidth=63e9)
    ours, shipped = cluster(tmp_path, found, 16).graph, build("dgx_h100", 16).graph
    assert set(ours) == set(shipped)
    assert set(ours.edges) == set(shipped.edges)
    for a, b in ours.edges:
        assert ours.edges[a, b] == shipped.edges[a, b], (a, b)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<system version="3"/>', "version: got '3'; must be 1"),
        ('<system version="1"/>', "has no GPU"),
        ('<system version="1"><gpu/></system>', "got element 'gpu' inside system; must be cpu"),
        (
            '<system version="1"><cpu numaid="x"><pci busid="0000:01:00.0" class="0x0302"/></cpu></system>',
            "numaid: got 'x'; must be a whole number",
        ),
        (xml('<pci class="0x0302"/>'), "busid: got ''; must be a PCI address"),
        (xml(pci("0000:01:00.0", "0x030200", width="77")), "link_width: got 77; must be 0 .. 64"),
        (dump([SWITCH.format("0000:a0:00.0", "x", "0x068000")]), "count: got 'x'; must be a whole number"),
        ('<system version="1"><cpu numaid="0">', "not valid XML"),
        ('<!DOCTYPE system [<!ENTITY a "b">]><system version="1"/>', "no known description"),
        ('<system version="1"><!-- x --></system><system/>', "a second outermost element begins here"),
    ],
)
def test_a_faulty_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        imported(written(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / "topo.xml"))
    assert "\n" not in str(caught.value)


def test_unknown_attributes_are_named_with_their_line(tmp_path: Path) -> None:
    text = xml("\n" + pci("0000:01:00.0", "0x030200").replace("class", 'brand_new="1" class') + "\n<odd/>")
    ignored = imported(written(tmp_path, text)).notes.ignored
    unknown = {one.setting.key: one.setting.line for one in ignored if one.reason is Reason.UNKNOWN}
    assert unknown == {"pci brand_new": 2, "odd": 3}


def test_several_computers_with_one_nvswitch_are_one_node(tmp_path: Path) -> None:
    # The form of a dump over several hosts (multi-node NVLink): two computers with the same addresses.
    link = SWITCH.format("fffffff:ff:ff.0", 18, "0x068000")
    gpus = "".join(
        pci(f"000{i}:01:00.0", "0x030200", f'<gpu dev="{i}" sm="100">{link}<c2c bw="44712" count="5"/></gpu>')
        for i in range(2)
    )
    cpus = "".join(f'<cpu numaid="{i % 2}" host_hash="0x{i // 2}">{gpus if i % 2 else ""}</cpu>' for i in range(4))
    built = cluster(tmp_path, imported(written(tmp_path, f'<system version="1">{cpus}</system>'), gpu="gb200"))
    assert [len(node) for node in built.nodes] == [4]
    assert path(built, "gpu0", "gpu3") == ["gpu0", "node0/nvswitch", "gpu3"]
    # Processors of one computer are joined, and only these.
    assert built.graph.has_edge("host0", "host1")
    assert built.graph.has_edge("host2", "host3")
    assert not built.graph.has_edge("host0", "host2")


def test_a_gpu_may_be_written_in_other_words_or_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(imported(sample("nccl_topology/azure_ndv4-topo.xml"), gpu="A100 (80 GB)"))["GPU"] == "a100_sxm_80gb"
    monkeypatch.chdir(tmp_path)
    values = {"hbm_bytes": "1 GB", "hbm_bandwidth": "1 TB/s", "sms": "1", "host_bandwidth": "24 GB/s"}
    own = "".join(f"{key}: {{value: {value}, source: own}}\n" for key, value in values.items())
    own += "vector_flops: {float32: {value: 1 TFLOP/s, source: own}}\n"
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    found = imported(sample("nccl_topology/azure_ndv4-topo.xml"), gpu="own.yaml")
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    assert cluster(other, found).gpus[0].hbm_bandwidth == 1e12


def test_attributes_that_count_and_are_not_modelled_are_told() -> None:
    # The card of ncv4 has gdr="0": its data pass through the host's memory.
    ignored = imported(sample("nccl_topology/azure_ncv4-topo.xml")).notes.ignored
    told = {one.setting.key: one.setting.line for one in ignored if one.reason is Reason.NOT_MODELLED}
    assert told == {"net gdr": 9, "nvlink target": 5}


def test_an_option_without_effect_is_refused() -> None:
    with pytest.raises(ScenarioError, match="--oversubscription: has no effect on a single node"):
        imported(sample("nccl_topology/azure_ndv4-topo.xml"), oversubscription=2.0)
    with pytest.raises(ScenarioError, match="--node-list: has no effect on NCCL topology; omit it"):
        imported(sample("nccl_topology/azure_ndv4-topo.xml"), node_list="a[1-2]")
    assert MachineOptions().oversubscription == 1


def test_nodes_without_cards_stand_alone(tmp_path: Path) -> None:
    file = written(tmp_path, xml(pci("0000:01:00.0", "0x030200")))
    with pytest.raises(ScenarioError, match="--nodes: got 2; the file has no network card"):
        imported(file, nodes=2)


def test_a_machine_beyond_the_limit_of_graph_files_is_refused() -> None:
    with pytest.raises(ScenarioError, match="take fewer --nodes"):
        imported(sample("nccl_topology/azure_ndv4-topo.xml"), nodes=100_000)


@pytest.mark.parametrize("functions", [False, True], ids=["one device", "two functions"])
def test_ports_of_a_card_share_its_slot(tmp_path: Path, *, functions: bool) -> None:
    # A card with two ports of 400 Gb/s in a slot of generation 4: 24 GB/s by NCCL's table, less than either port.
    nets = [f'<net name="p{i}" dev="{i}" speed="400000"/>' for i in range(2)]
    if functions:
        ports = [pci(f"0000:03:00.{i}", "0x020700", f"<nic>{net}</nic>") for i, net in enumerate(nets)]
    else:
        ports = [pci("0000:03:00.0", "0x020700", f"<nic>{''.join(nets)}</nic>")]
    gpus = [pci(f"0000:0{i + 1}:00.0", "0x030200", f'<gpu dev="{i}" sm="80"/>') for i in range(2)]
    found = imported(written(tmp_path, xml("".join([*gpus, *ports]))), gpu="a100_pcie_80gb", nodes=2)
    graph = cluster(tmp_path, found, 4).graph
    cards = [name for name in graph if name.startswith("nic")]
    links = {at: facts["bandwidth"] for _, at, facts in graph.out_edges("nic0", data=True)}
    outward = sum(rate for at, rate in links.items() if "leaf" in at)
    assert (len(cards), sum(links.values()) - outward, outward) == (2, 24e9, 2 * 50e9)
    assert read(found)["network ports"] == "2 of 1 card, which share its PCIe slot"


def test_ports_that_nccl_has_fused_count_once(tmp_path: Path) -> None:
    # Two ports of 200 Gb/s, which NCCL has joined to a device of 400 Gb/s: net="0" says that nobody uses them alone.
    net = '<net name="{}" dev="{}" speed="{}" net="{}"/>'
    nets = net.format("p0", 0, 200000, 0) + net.format("p1", 1, 200000, 0) + net.format("p0+p1", 2, 400000, 1)
    body = pci("0000:01:00.0", "0x030200", '<gpu dev="0" sm="90"/>') + pci(
        "0000:03:00.0", "0x020700", f"<nic>{nets}</nic>"
    )
    found = imported(written(tmp_path, xml(body)), nodes=2)
    assert read(found)["network cards"] == 1
    assert rate(cluster(tmp_path, found, 2), "nic0", "leaf0") == 50e9


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        # NCCL's src/graph/topo.h and topo.cc, 2.31: Intel's family 6 from a model on, AMD by family, others by
        # architecture.
        ('vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('vendor="GenuineIntel" familyid="6" modelid="106"', 10),
        ('vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        # Granite Rapids (0xAD, 0xAE) and Sierra Forest (0xAF) are newer than Emerald Rapids (0xCF).
        ('vendor="GenuineIntel" familyid="6" modelid="172"', 22),
        *((f'vendor="GenuineIntel" familyid="6" modelid="{model}"', 40) for model in (0xAD, 0xAE, 0xAF)),
        ('vendor="GenuineIntel" familyid="6" modelid="176"', 22),
        # Another family has no models of its own in the rule.
        ('vendor="GenuineIntel" familyid="19" modelid="207"', 6),
        ('vendor="GenuineIntel" familyid="6" modelid="207"', 40),
        ('vendor="GenuineIntel" familyid="6" modelid="221"', 40),
        ('vendor="AuthenticAMD" familyid="23" modelid="49"', 16),
        ('vendor="AuthenticAMD" familyid="25" modelid="17"', 24),
        ('vendor="AuthenticAMD" familyid="26" modelid="2"', 32),
        # Dumps of earlier versions hold 16 x extended family + 15: 23, 25 and 26 are 8, 10 and 11.
        ('vendor="AuthenticAMD" familyid="143" modelid="49"', 16),
        ('vendor="AuthenticAMD" familyid="175" modelid="1"', 24),
        ('vendor="AuthenticAMD" familyid="191" modelid="2"', 32),
        ('arch="ppc64"', 32),
        ('arch="arm64"', 6),
    ],
)
def test_the_link_between_sockets_is_the_one_of_nccl(tmp_path: Path, cpu: str, expected: float) -> None:
    cpus = [f'<cpu numaid="{i}" {cpu}>{pci(f"000{i}:01:00.0", "0x030200")}</cpu>' for i in range(2)]
    found = imported(written(tmp_path, f'<system version="1">{"".join(cpus)}</system>'), gpu="l40s")
    assert rate(cluster(tmp_path, found), "host0", "host1") == expected * 1e9


def test_gpus_at_different_nvswitches_are_islands(tmp_path: Path) -> None:
    # GPUs 0 and 1 at two chips, GPUs 2 and 3 at two others.
    links = ["".join(SWITCH.format(f"0000:{i // 2}{chip}:00.0", 9, "0x068000") for chip in "ab") for i in range(4)]
    found = imported(written(tmp_path, dump(links)))
    built = cluster(tmp_path, found)
    assert path(built, "gpu0", "gpu1") == ["gpu0", "node0/nvswitch0", "gpu1"]
    assert path(built, "gpu2", "gpu3") == ["gpu2", "node0/nvswitch1", "gpu3"]
    assert "host0" in path(built, "gpu1", "gpu2")
    assert rate(built, "gpu0", "node0/nvswitch0") == 18 * 25e9
    assert assumed(found)["sums in the NVSwitch"] == "no"
