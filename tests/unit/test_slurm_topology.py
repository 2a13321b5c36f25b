"""Slurm's topology.conf and topology.yaml as a machine: hostlists, trees, blocks, rings, and rates from the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.importing.machines.hostlist import expand
from simulator.importing.settings import Reason
from tests.machines import assumed, cluster, imported, kinds, path, rate, read, sample

TREE = sample("slurm/topology_tree.conf")
BLOCKS = sample("slurm/topology_block.conf")
YAML = sample("slurm/topology.yaml")
# A card of dgx_h100 [B/s]; a node has eight.
CARD = 50e9


def written(folder: Path, text: str, name: str = "topology.conf") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("n[1,3-4],m", ["n1", "n3", "n4", "m"]),
        ("a[0-1]b[1-2]", ["a0b1", "a0b2", "a1b1", "a1b2"]),
        ("n[9-10]", ["n9", "n10"]),
    ],
)
def test_a_hostlist_stands_for_its_names(text: str, names: list[str]) -> None:
    assert list(expand(text, "here")) == names


@pytest.mark.parametrize(
    "text", ["n[1", "n]1[", "n[[1]]", "n[2-1]", "n[a]", "n[]", "a,,b", "a b", "", "n[1-2", "n/a", "a,"]
)
def test_a_wrong_hostlist_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^here: "):
        expand(text, "here")


def test_a_tree_has_its_nodes_and_switches(tmp_path: Path) -> None:
    found = imported(TREE)
    told = read(found)
    # The sample's comment: two pods of two leaf switches, eight nodes a leaf.
    assert told["nodes"] == 32
    assert [told[f"switches of level {level}"] for level in (1, 2, 3)] == [4, 2, 1]
    built = cluster(tmp_path, found)
    assert (len(built.ranks), len(built.nodes)) == (256, 32)
    # The inside of each node is that of dgx_h100, of which one node has:
    inside = kinds(build("dgx_h100", 8))
    assert kinds(built) == {
        "gpu": 32 * 8, "switch": 32 * inside["switch"] + 7, "host": 32 * inside["host"], "nic": 32 * 8,
    }  # fmt: skip
    # Third leaf of the file: gpu017 to 020 and 025 to 028; node gpu021 is below the fourth.
    assert path(built, "gpu017/nic0", "gpu028/nic0")[1:-1] == ["leaf3"]
    assert path(built, "gpu017/nic0", "gpu021/nic0")[1:-1] == ["leaf3", "pod2", "leaf4"]
    assert path(built, "gpu001/nic0", "gpu032/nic0")[1:-1] == ["leaf1", "pod1", "core", "pod2", "leaf4"]


def test_switches_send_up_what_comes_from_below(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(TREE))
    # 8 nodes of 8 cards below a leaf, 2 leaves below a pod.
    assert rate(built, "leaf1", "pod1") == 8 * 8 * CARD
    assert rate(built, "pod1", "core") == 2 * 8 * 8 * CARD
    half = cluster(tmp_path, imported(TREE, oversubscription=2.0))
    assert rate(half, "leaf1", "pod1") == 4 * 8 * CARD
    # Only leaf switches are oversubscribed: a pod sends on what it receives.
    assert rate(half, "pod1", "core") == 8 * 8 * CARD


def test_rates_of_levels_come_from_the_user(tmp_path: Path) -> None:
    found = imported(TREE, level_bandwidth={1: 1e12, 2: 3e12}, nic_bandwidth=25e9)
    built = cluster(tmp_path, found)
    assert rate(built, "leaf1", "pod1") == 1e12
    assert rate(built, "pod2", "core") == 3e12
    assert rate(built, "gpu001/nic0", "leaf1") == 25e9
    assert assumed(found)["up from each switch of level 1"] == "1 TB/s"
    with pytest.raises(
        ScenarioError, match="--level-bandwidth: got level 3; no switch of this level has a switch above"
    ):
        imported(TREE, level_bandwidth={3: 1e12})


def test_link_speed_is_no_rate_without_the_users_word() -> None:
    ignored = [one for one in imported(TREE).notes.ignored if one.reason is Reason.NOT_MODELLED]
    assert [one.setting.key for one in ignored] == ["LinkSpeed"]


def test_the_nodes_of_a_job_are_chosen_in_their_order(tmp_path: Path) -> None:
    found = imported(TREE, node_list="gpu[009,001-002]")
    built = cluster(tmp_path, found)
    names = [name for name in built.ranks if name.endswith("/gpu0")]
    assert names == ["gpu009/gpu0", "gpu001/gpu0", "gpu002/gpu0"]
    # The cables above are those of the whole cluster: eight nodes share them.
    assert rate(built, "leaf1", "pod1") == 8 * 8 * CARD
    assert "leaf3" not in built.graph
    with pytest.raises(ScenarioError, match="--node-list: got gpu099; one of"):
        imported(TREE, node_list="gpu099")


def test_rails_are_several_switches_of_a_node(tmp_path: Path) -> None:
    text = "".join(f"SwitchName=rail{i} Nodes=n[1-2]\n" for i in range(4))
    found = imported(written(tmp_path, text))
    built = cluster(tmp_path, found)
    assert assumed(found)["rails"] == 4
    for i in range(8):
        assert path(built, f"n1/gpu{i}", f"n2/gpu{i}")[2:-2] == [f"n1/nic{i}", f"rail{i % 4}", f"n2/nic{i}"]


def test_levels_may_be_missing(tmp_path: Path) -> None:
    # A leaf that is directly below the core, beside a pod.
    text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=pod Switches=a\nSwitchName=core Switches=pod,b\n"
    built = cluster(tmp_path, imported(written(tmp_path, text)))
    assert path(built, "n1/nic0", "n2/nic0")[1:-1] == ["a", "pod", "core", "b"]


def test_a_forest_is_refused(tmp_path: Path) -> None:
    text = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n"
    with pytest.raises(ScenarioError, match=r"16 of 32 GPUs, such as n3/gpu0, have no link to n1/gpu0"):
        imported(written(tmp_path, text))
    assert len(cluster(tmp_path, imported(str(tmp_path / "topology.conf"), node_list="n[3-4]")).ranks) == 16


def test_the_node_may_be_an_imported_machine(tmp_path: Path) -> None:
    node = imported(sample("nccl_topology/rccl_topo_8p_940.xml"))
    cluster(tmp_path, node)
    built = cluster(tmp_path, imported(TREE, node=str(tmp_path / "machine.yaml"), node_list="gpu[001-002]"))
    assert built.gpus[0].name == "mi300x"
    assert rate(built, "gpu001/gpu0", "gpu001/gpu7") == 64e9
    # The cards' speed in NCCL's file, 400,000 Mb/s.
    assert rate(built, "gpu001/nic3", "leaf1") == 50e9


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("star_100g", "--node: got star_100g, which has no nodes of GPUs"),
        ("geforce_server", "--node: geforce_server has no network card with a bandwidth"),
        ("dgx_h1000", "topology: got 'dgx_h1000'"),
    ],
)
def test_a_topology_without_usable_nodes_is_refused(node: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(TREE, node=node)


def test_the_measured_constants_of_the_node_are_kept(tmp_path: Path) -> None:
    ours, shipped = cluster(tmp_path, imported(TREE, node_list="gpu[001-002]")), build("dgx_h100", 16)
    assert ours.collectives == shipped.collectives
    assert len(ours.reducing_switches) == 2


def test_blocks_are_leaf_switches(tmp_path: Path) -> None:
    found = imported(BLOCKS, gpu="h200")
    assert (read(found)["nodes"], read(found)["blocks"]) == (72, "4 of 18 nodes")
    built = cluster(tmp_path, found)
    assert len(built.ranks) == 72 * 8
    assert path(built, "n001/nic0", "n019/nic0")[1:-1] == ["block1", "core", "block2"]
    # 16, 32 and 64 of 18 nodes a block are planned for jobs; that changes no cable.
    assert [one.setting.key for one in found.notes.ignored] == ["BlockSizes"]


def test_blocks_may_be_nvlink_domains(tmp_path: Path) -> None:
    found = imported(BLOCKS, node="gb200_nvl72", nvlink_blocks=True)
    assert (read(found)["nodes"], read(found)["blocks"]) == (72, "4 of 18 nodes")
    built = cluster(tmp_path, found)
    # 18 nodes of 4 GPUs share an NVSwitch.
    assert [len(node) for node in built.nodes] == [18 * 4] * 4
    assert path(built, "block1/gpu0", "block1/gpu71") == ["block1/gpu0", "block1/nvswitch", "block1/gpu71"]
    with pytest.raises(ScenarioError, match="block1: 18 nodes cannot share the 8 GPUs of an NVLink domain"):
        imported(BLOCKS, nvlink_blocks=True)
    with pytest.raises(ScenarioError, match=r"--nvlink-blocks: .* has no blocks"):
        imported(TREE, nvlink_blocks=True)


def test_a_ring_joins_neighbours(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(written(tmp_path, "RingName=r Nodes=n[1-5]\n")))
    assert path(built, "n1/nic0", "n3/nic0")[1:-1] == ["n1/ring", "n2/ring", "n3/ring"]
    assert path(built, "n1/nic0", "n5/nic0")[1:-1] == ["n1/ring", "n5/ring"]
    assert rate(built, "n1/ring", "n2/ring") == 8 * CARD


def test_yaml_has_several_topologies(tmp_path: Path) -> None:
    found = imported(YAML)
    assert (read(found)["topology"], read(found)["nodes"]) == ("fabric", 16)
    assert [one.setting.key for one in found.notes.ignored] == ["topology nvl"]
    built = cluster(tmp_path, found)
    assert path(built, "gpu001/nic0", "gpu016/nic0")[1:-1] == ["leaf1", "spine", "leaf2"]
    other = imported(YAML, section="nvl")
    assert (read(other)["nodes"], read(other)["blocks"]) == (8, "2 of 4 nodes")
    with pytest.raises(ScenarioError, match="--section: got 'x'; one of fabric, nvl"):
        imported(YAML, section="x")


def test_both_files_give_the_same_machine(tmp_path: Path) -> None:
    leaves = "SwitchName=leaf1 Nodes=gpu[001-008]\nSwitchName=leaf2 Nodes=gpu[009-016]\n"
    conf = f"{leaves}SwitchName=spine Switches=leaf[1-2]\n"
    assert imported(written(tmp_path, conf)).graph == imported(YAML).graph


@pytest.mark.parametrize(
    "text",
    [
        "switchname=a nodes=n[1-2]",
        'SwitchName="a" Nodes="n[1-2]"',
        "SwitchName=a \\\n  Nodes=n[1-2]",
        "# comment\n\n  SwitchName = a   Nodes = n[1-2] # leaf\n",
    ],
)
def test_lines_are_read_as_slurm_reads_them(tmp_path: Path, text: str) -> None:
    assert read(imported(written(tmp_path, text)))["nodes"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", ":2: a: occurs twice, first in .*:1"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", ":1: a: is below itself"),
        ("SwitchName=a Switches=b", ":1: a: got switch 'b'; one of a"),
        ("SwitchName=a Nodes=a", ":1: a: is a switch and a node; rename one"),
        ("SwitchName=a", ":1: a: has no switches or nodes"),
        ("SwitchName=a[1-2] Nodes=n1", "must be one name"),
        (
            "SwitchName=a Nodes=n1 Speed=1",
            ":1: unknown key speed beside switchname; one of level, linkspeed, nodes",
        ),
        ("SwitchName=a Nodes=n1 nodes=n2", ":1: nodes: occurs twice"),
        ("SwitchName=a Nodes=n1\nNodes=n2", ":2: got key nodes; one of"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "switches, blocks, rings and toruses exclude each other"),
        ("BlockSizes=4", "has no switch, block, ring or torus"),
        ("SwitchName=a Nodes=n1\nsomething", ":2: got 'something'; must be KEY=VALUE"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(written(tmp_path, text))


# 4 x 3 x 2 nodes: node n1 is at (0, 0, 0), n2 at (1, 0, 0), n5 at (0, 1, 0), n13 at (0, 0, 1).
TORUS = """\
- topology: a
  torus3d:
    toruses:
      - torus: t
        dims: {x: 4, y: 3, z: 2}
        nodes: n[1-24]
"""
REGIONS = """\
- topology: a
  torus3d:
    toruses:
      - torus: t
        dims: {x: 4, y: 1, z: 1}
        regions:
          - {anchor: {x: 2, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: "b[1-2]"}
          - {anchor: {x: 0, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: "a[1-2]"}
        placements: [{dims: {x: 2, y: 1, z: 1}}]
"""


def test_a_torus_joins_neighbours_along_three_axes(tmp_path: Path) -> None:
    """Rows of 4 and of 3 are circles, with a cable for each node; rows of 2 have one cable: 24 + 24 + 12 cables."""
    found = imported(written(tmp_path, TORUS, "topology.yaml"))
    assert (read(found)["nodes"], read(found)["toruses"]) == (24, "4 x 3 x 2")
    built = cluster(tmp_path, found)
    cables = [(a, b) for a, b in built.graph.edges if a.endswith("/torus") and b.endswith("/torus")]
    assert len(cables) == 2 * (24 + 24 + 12)
    # From (0, 0, 0) to (3, 2, 1), each axis takes one step, because the first and the last are neighbours.
    assert len(path(built, "n1/nic0", "n24/nic0")[1:-1]) == 4
    assert path(built, "n1/nic0", "n3/nic0")[1:-1] in (
        ["n1/torus", "n2/torus", "n3/torus"],
        ["n1/torus", "n4/torus", "n3/torus"],
    )
    assert rate(built, "n1/torus", "n13/torus") == 8 * CARD


def test_chosen_nodes_of_a_torus_keep_the_switches_between_them(tmp_path: Path) -> None:
    built = cluster(tmp_path, imported(written(tmp_path, TORUS, "topology.yaml"), node_list="n1,n3"))
    assert len(built.ranks) == 16
    assert len(path(built, "n1/nic0", "n3/nic0")[1:-1]) == 3


def test_regions_of_a_torus_have_their_anchors(tmp_path: Path) -> None:
    found = imported(written(tmp_path, REGIONS, "topology.yaml"))
    assert [one.setting.key for one in found.notes.ignored] == ["placements"]
    built = cluster(tmp_path, found)
    assert path(built, "a2/nic0", "b1/nic0")[1:-1] == ["a2/torus", "b1/torus"]
    assert path(built, "a1/nic0", "b2/nic0")[1:-1] == ["a1/torus", "b2/torus"]
    wrong = REGIONS.replace("x: 0, y: 0, z: 0", "x: 1, y: 0, z: 0")
    with pytest.raises(ScenarioError, match=r"regions\.1: has a node at \(2, 0, 0\), where b1 is"):
        imported(written(tmp_path, wrong, "topology.yaml"))
    wrong = REGIONS.replace("x: 2, y: 0, z: 0", "x: 3, y: 0, z: 0")
    with pytest.raises(ScenarioError, match=r"regions\.0: has a node at \(4, 0, 0\), outside the torus"):
        imported(written(tmp_path, wrong, "topology.yaml"))


def test_a_flat_topology_is_one_switch_above_the_given_nodes(tmp_path: Path) -> None:
    found = imported(written(tmp_path, "- topology: a\n  flat: true\n", "topology.yaml"), node_list="n[1-3]")
    assert (read(found)["nodes"], assumed(found)["network of a flat topology"]) == (3, "one switch")
    built = cluster(tmp_path, found)
    assert path(built, "n1/nic0", "n3/nic0")[1:-1] == ["switch"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- topology: a\n  torus3d: {}\n", "0.torus3d.toruses: must be a list"),
        (TORUS.replace("x: 4", "x: 3"), "nodes: has 24 nodes; must have 18, as dims say"),
        (TORUS.replace("x: 4", "x: 0"), r"dims: must have x, y and z, each a whole number of 1 \.\. 65,535"),
        (TORUS.replace("x: 4, ", ""), "dims: must have x, y and z"),
        (TORUS.replace("n[1-24]", "n[1-23],n1"), "node n1 has two places in a torus"),
        (TORUS + "        regions: []\n", "must have either nodes or regions"),
        ("- topology: a\n  flat: true\n", r"0\.flat: names no nodes; give them with --node-list"),
        ("- topology: a\n  flat: 1\n", r"0\.flat: must be true"),
        ("- topology: a\n  tree: {switches: []}\n  block: {}\n", "must have one of tree, block, ring, torus3d, flat"),
        ("- topology: a\n  tree: {switches: [{switch: s}]}\n", "must have children or nodes"),
        ("- topology: a\n  tree: {switches: [{switch: s, nodes: [1]}]}\n", "must be a hostlist"),
        ("- topology: a\n  tree: {switches: [{switch: s, node: n1}]}\n", "unknown key; one of children, nodes, switch"),
        ("- topology: [a]\n  tree: {}\n", "must be a name of letters"),
        ("- topology: a\n  tree: {switches: {}}\n", "must be a list"),
        ("topology: a\ntree: {}\n", "must be a list of topologies"),
    ],
)
def test_a_faulty_entry_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(written(tmp_path, text, "topology.yaml"))


def test_the_answer_of_scontrol_is_the_tree_of_the_file(tmp_path: Path) -> None:
    # `scontrol show topology` has levels, and repeats at each switch the nodes of all switches below.
    conf = "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=top Switches=s[0-1]\n"
    shown = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]\n"
    )
    graphs = []
    swapped = "\n".join(reversed(shown.splitlines()))
    for name, text in (("topology.conf", conf), ("scontrol.txt", shown), ("swapped.txt", swapped)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        graphs.append(cluster(tmp_path, imported(str(tmp_path / name)), 32).graph)
    assert set(graphs[0].edges) == set(graphs[1].edges) == set(graphs[2].edges)
    assert all(graphs[0].edges[edge] == graphs[1].edges[edge] for edge in graphs[0].edges)
    (tmp_path / "blocks.txt").write_text(
        "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[2-3] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[0-3] BlockSize=4\n"
    )
    found = imported(str(tmp_path / "blocks.txt"))
    assert read(found)["blocks"] == "2 of 2 nodes"
