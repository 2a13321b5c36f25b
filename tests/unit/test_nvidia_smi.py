"""The matrix of nvidia-smi topo -m as a machine: parts, distances, NVLinks, and pasted or damaged text."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from tests.machines import assumed, cluster, imported, kinds, path, rate, read, sample

DGX = sample("nvidia_smi/topo_m_dgx_h100.txt")
BRIDGED = sample("nvidia_smi/topo_m_4gpu_pcie_bridge.txt")


def matrix_of(built: Cluster, links: int) -> str:
    """The matrix that nvidia-smi would print for the first node of a cluster with an NVSwitch.

    PIX: a switch in common. NODE: a socket in common. SYS: neither.
    """
    graph = built.graph
    gpus = [name for name in built.ranks if graph.nodes[name]["kind"] == "gpu"][:8]
    slot = {gpu: next(v for v in graph[gpu] if "/pcie" in v) for gpu in gpus}
    cards = {v: gpu for gpu in gpus for v in graph[slot[gpu]] if v.startswith("nic")}
    slot |= {card: slot[gpu] for card, gpu in cards.items()}
    host = {name: next(v for v in graph[at] if v.startswith("host")) for name, at in slot.items()}
    label = {name: f"GPU{i}" for i, name in enumerate(gpus)} | {name: f"NIC{i}" for i, name in enumerate(cards)}
    rows = ["\t" + "\t".join(label.values()) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for a in label:
        cells = [label[a]]
        for b in label:
            if a == b:
                cells.append(" X ")
            elif a in gpus and b in gpus:
                cells.append(f"NV{links}")
            else:
                cells.append("PIX" if slot[a] == slot[b] else "NODE" if host[a] == host[b] else "SYS")
        numa = host[a].removeprefix("host")
        rows.append("\t".join(cells) + (f"\t0-55\t{numa}\t\tN/A" if a in gpus else "\t\t\t\t"))
    return "\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def written(folder: Path, text: str) -> str:
    (folder / "topo.txt").write_text(text, encoding="utf-8")
    return str(folder / "topo.txt")


def test_the_matrix_of_a_shipped_dgx_gives_its_graph(tmp_path: Path) -> None:
    shipped = build("dgx_h100", 16)
    found = imported(written(tmp_path, matrix_of(shipped, 18)), nodes=2)
    ours = cluster(tmp_path, found, 16)
    assert set(ours.graph) == set(shipped.graph)
    assert set(ours.graph.edges) == set(shipped.graph.edges)
    for a, b in ours.graph.edges:
        assert ours.graph.edges[a, b] == shipped.graph.edges[a, b], (a, b)
    assert ours.gpus[0].name == shipped.gpus[0].name
    assert ours.reducing_switches == shipped.reducing_switches


def test_a_row_with_more_links_than_a_gpu_has_is_a_switch(tmp_path: Path) -> None:
    found = imported(DGX, nodes=2)
    assert (read(found)["GPUs"], read(found)["network cards"]) == (8, 8)
    assert read(found)["nearest network card"] == "PXB for 8 GPUs"
    built = cluster(tmp_path, found, 16)
    # 18 links of 25 GB/s, although each of 7 cells says NV18.
    assert rate(built, "gpu0", "node0/nvswitch") == 450e9
    assert path(built, "gpu0", "gpu7") == ["gpu0", "node0/nvswitch", "gpu7"]
    # Eight rails: card i of both nodes at leaf i.
    assert [path(built, f"nic{i}", f"nic{8 + i}")[1] for i in range(8)] == [f"leaf{i}" for i in range(8)]
    names = [built.graph.nodes[f"nic{i}"]["original_name"] for i in range(8)]
    assert names == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]
    # PXB: several bridges between a GPU and its card, none of them a host.
    for i in range(8):
        *_, card = route = path(built, f"gpu{i}", f"nic{i}")
        assert card == f"nic{i}"
        assert len(route) == 4
        assert not any(vertex.startswith("host") for vertex in route)


def test_bridged_pairs_are_direct_links(tmp_path: Path) -> None:
    found = imported(BRIDGED)
    built = cluster(tmp_path, found)
    assert kinds(built) == {"gpu": 4, "host": 2}
    # NV12 between 0 and 1, and 2 and 3: 12 x 25 GB/s; other pairs cross the sockets.
    assert rate(built, "gpu0", "gpu1") == rate(built, "gpu2", "gpu3") == 300e9
    assert built.route("gpu0", "gpu1").latency == 0.5e-6
    assert path(built, "gpu0", "gpu2") == ["gpu0", "host0", "host1", "gpu2"]
    assert assumed(found)["GPU"] == "a100_pcie_80gb"


def test_a_mesh_of_few_links_is_no_switch(tmp_path: Path) -> None:
    # HGX A100 with 4 GPUs: NV4 to each of 3 others are the 12 links of a GPU.
    names = [f"GPU{i}" for i in range(4)]
    rows = [" ".join(["", *names])]
    rows += [" ".join([a, *("X" if a == b else "NV4" for b in names)]) for a in names]
    found = imported(written(tmp_path, "\n".join(rows)))
    built = cluster(tmp_path, found)
    assert {rate(built, a, b) for a, b in product(built.ranks, repeat=2) if a != b} == {100e9}
    assert assumed(found)["GPU"] == "a100_sxm_80gb"


def test_the_links_of_the_users_gpu_decide_about_a_switch(tmp_path: Path) -> None:
    # NV6 between four GPUs: three times 6 links, of 18 of an H100, or of 6 of a V100 at an NVSwitch.
    names = [f"GPU{i}" for i in range(4)]
    rows = [" ".join(["", *names]), *(" ".join([a, *("X" if a == b else "NV6" for b in names)]) for a in names)]
    file = written(tmp_path, "\n".join(rows))
    assert rate(cluster(tmp_path, imported(file, gpu="h100_sxm")), "gpu0", "gpu1") == 6 * 25e9
    assert rate(cluster(tmp_path, imported(file, gpu="v100_sxm_32gb")), "gpu0", "node0/nvswitch") == 6 * 25e9


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\t", "    "), id="tabs lost"),
        pytest.param(lambda text: text.replace("\t", " "), id="one blank"),
        pytest.param(lambda text: "\x1b[4m" + text.replace("NUMA ID\n", "NUMA ID\x1b[0m\n", 1), id="codes"),
        pytest.param(lambda text: "\n".join(line.rstrip() for line in text.splitlines()), id="blanks cut"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="Windows"),
        pytest.param(lambda text: "$ nvidia-smi topo -m\n" + text, id="with the command"),
    ],
)  # fmt: skip
def test_text_from_a_terminal_is_the_same_machine(tmp_path: Path, change: object) -> None:
    assert callable(change)
    text = Path(DGX).read_text(encoding="utf-8")
    assert imported(written(tmp_path, change(text))).graph == imported(DGX).graph


def test_older_tools_name_cards_in_the_heading(tmp_path: Path) -> None:
    text = "\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nmlx5_0\tPHB\t X \t\n"
    built = cluster(tmp_path, imported(written(tmp_path, text), gpu="v100_sxm_32gb"))
    assert built.graph.nodes["nic0"]["original_name"] == "mlx5_0"
    assert path(built, "gpu0", "nic0") == ["gpu0", "host0", "nic0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\tGPU0\tGPU1\nGPU0\tX\tFAR\nGPU1\tSYS\tX\n", "topo.txt:2: GPU0: GPU1: got 'FAR'; one of NODE, NV#, PHB"),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tNV4\tX\n", "topo.txt:2: GPU0: GPU1: got SYS, but GPU1 and GPU0 have NV4"),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\n", "topo.txt: GPU1: has no row; give the whole matrix"),
        ("\tGPU0\tGPU1\nGPU0\tX\nGPU1\tSYS\tX\n", "topo.txt:2: GPU0: has 1 cells; must have one for each of 2 devices"),
        ("\tGPU0\tGPU1\nGPU0\tX\tX\nGPU1\tSYS\tX\n", "topo.txt:2: GPU0: GPU1: got X; X stands for the device itself"),
        ("\tGPU0\tNIC0\nGPU0\tX\tNV4\nNIC0\tNV4\tX\n", "topo.txt:2: GPU0: NIC0: got NV4; NVLinks join two GPUs"),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU0\tX\tSYS\n", "topo.txt:3: GPU0: has a second row; give one matrix"),
    ],
)
def test_a_faulty_matrix_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        imported(written(tmp_path, text))
    assert message in str(caught.value)


def square(cell_of: object, gpus: int, numa: object = None) -> str:
    """A matrix of GPUs alone: `cell_of` gives the cell of two GPUs, `numa` the NUMA node of a GPU."""
    assert callable(cell_of)
    names = [f"GPU{i}" for i in range(gpus)]
    rows = ["\t".join(["", *names, *(["NUMA Affinity"] if numa else [])])]
    for i, name in enumerate(names):
        cells = ["X" if i == j else cell_of(i, j) for j in range(gpus)]
        rows.append("\t".join([name, *cells, *([str(numa(i))] if callable(numa) else [])]))
    return "\n".join(rows) + "\n"


def test_islands_of_nvlink_have_a_switch_each(tmp_path: Path) -> None:
    # Two islands of four: NV18 inside, SYS between.
    text = square(lambda i, j: "NV18" if i // 4 == j // 4 else "SYS", 8, lambda i: i // 4)
    found = imported(written(tmp_path, text), socket_bandwidth=22e9)
    built = cluster(tmp_path, found)
    for i, j in product(range(8), repeat=2):
        if i // 4 == j // 4 and i != j:
            assert path(built, f"gpu{i}", f"gpu{j}") == [f"gpu{i}", f"node0/nvswitch{i // 4}", f"gpu{j}"]
        elif i != j:
            assert "host0" in path(built, f"gpu{i}", f"gpu{j}")
    assert rate(built, "gpu0", "node0/nvswitch0") == rate(built, "gpu7", "node0/nvswitch1") == 450e9
    # No switch reaches all GPUs of the node, so none can add their arrays.
    assert built.reducing_switches == ()
    assert assumed(found)["sums in the NVSwitch"] == "no"


def test_gpus_that_are_not_all_joined_have_no_common_switch(tmp_path: Path) -> None:
    # An island of four, and three GPUs in a row: the ends of the row have no link to each other.
    joined = {(4, 5), (5, 4), (5, 6), (6, 5)}
    text = square(lambda i, j: "NV18" if max(i, j) < 4 or (i, j) in joined else "SYS", 7, lambda i: i // 4)
    built = cluster(tmp_path, imported(written(tmp_path, text)))
    assert path(built, "gpu0", "gpu3") == ["gpu0", "node0/nvswitch", "gpu3"]
    assert path(built, "gpu4", "gpu5") == ["gpu4", "gpu5"]
    assert "host1" in path(built, "gpu4", "gpu6")


def test_a_ring_over_two_islands_is_bound_by_the_sockets(tmp_path: Path) -> None:
    text = square(lambda i, j: "NV18" if i // 4 == j // 4 else "SYS", 8, lambda i: i // 4)
    built = cluster(tmp_path, imported(written(tmp_path, text), socket_bandwidth=22e9))
    # Neighbours of a ring: two pairs cross the link between the sockets.
    bounds = [built.route(f"gpu{i}", f"gpu{(i + 1) % 8}").bandwidth for i in range(8)]
    assert bounds == [450e9, 450e9, 450e9, 22e9, 450e9, 450e9, 450e9, 22e9]


def test_numa_nodes_share_the_link_between_sockets(tmp_path: Path) -> None:
    # Four GPUs in four NUMA nodes: all that leaves a NUMA node passes one link of 16 GB/s.
    built = cluster(tmp_path, imported(written(tmp_path, square(lambda i, j: "SYS", 4)), socket_bandwidth=16e9))
    for host in range(4):
        away = [other for other in built.graph[f"host{host}"] if not other.startswith("gpu")]
        assert sum(rate(built, f"host{host}", other) for other in away) == 16e9
    assert built.route("gpu0", "gpu1").bandwidth == 16e9
    # Two NUMA nodes have the link itself between them, with the same latency.
    two = cluster(tmp_path, imported(written(tmp_path, square(lambda i, j: "SYS", 2)), socket_bandwidth=16e9))
    assert path(two, "gpu0", "gpu1") == ["gpu0", "host0", "host1", "gpu1"]
    assert built.route("gpu0", "gpu1").latency == two.route("gpu0", "gpu1").latency


@pytest.mark.parametrize(
    ("gpu", "generation"), [("v100_sxm_32gb", 3), ("a100_pcie_80gb", 4), ("h100_pcie", 5), ("rtx_5090", 5)]
)
def test_pcie_is_the_slot_of_the_gpu(tmp_path: Path, gpu: str, generation: int) -> None:
    # 16 lanes of 8 GT/s in generation 3, coded 128b/130b, twice as many in each further generation.
    lanes = 16 * 8e9 * 2 ** (generation - 3) * 128 / 130 / 8
    found = imported(written(tmp_path, square(lambda i, j: "PHB", 2)), gpu=gpu)
    assert rate(cluster(tmp_path, found), "gpu0", "host0") == pytest.approx(lanes, rel=1e-3)
    assert next(one.why for one in found.notes.missing if one.key == "PCIe bandwidth").startswith(
        f"the catalog's figure of {gpu}"
    )


def test_a_matrix_of_rocm_smi_is_refused_by_its_name(tmp_path: Path) -> None:
    # The form of rocm-smi --showtopo: weights, hops and kinds of links, each with a heading of GPUs.
    text = (
        "============================ ROCm System Management Interface ============================\n"
        "================================ Weight between two GPUs =================================\n"
        "       GPU0         GPU1\nGPU0   0            15\nGPU1   15           0\n"
        "=============================== Link Type between two GPUs ===============================\n"
        "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"
    )
    with pytest.raises(ScenarioError, match=r"topo.txt: rocm-smi --showtopo .* NCCL_TOPO_DUMP_FILE"):
        imported(written(tmp_path, text))


def test_the_note_counts_the_nodes_that_there_are(tmp_path: Path) -> None:
    found = imported(DGX, nodes=2)
    (why,) = [one.why for one in found.notes.missing if one.key == "network between nodes"]
    assert "card i of each of 2 nodes" in why
