"""What holds for every shipped topology, and for every builder."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.basics import registry
from simulator.cluster.build import build, facts
from simulator.cluster.builder import BUILDERS
from simulator.cluster.gpu_file import load_gpu
from simulator.testing import check_topology_builder
from simulator.testing import topology_laws as laws

NAMES = registry.names("topology")
SIZES = [1, 2, 3, 7, 8, 16, 20]


def sizes(name: str) -> list[int]:
    most = facts(name).max_ranks
    return [n for n in SIZES if most is None or n <= most]


def test_the_topologies_that_scenarios_rely_on_are_shipped() -> None:
    wanted = {
        "star_100g", "ring_nvlink", "fully_connected_nvlink", "pcie_workstation", "dgx_a100", "dgx_h100", "dgx_b200",
        "mi300x_box", "aws_p4de", "aws_p5", "fat_tree_1024", "leaf_spine_100g", "torus_3d", "torus_2d", "hypercube",
        "dragonfly", "mixed_links", "geforce_server", "pcie_server", "pcie_switch_server", "gh200", "mi325x_box",
        "dgx_b300", "dgx1_v100", "dgx2", "v100_nvlink_4", "hgx_a100_4", "hgx_h800", "rtx_pro_server",
        "gb200_nvl72", "gb300_nvl72", "hgx_a800", "mi355x_box", "mi250x_box", "gh200_4", "ethernet_tcp", "tpu_v5p",
        "tpu_v6e", "tpu_ironwood",
    }  # fmt: skip
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_of_ranks_is_connected_at_every_size(name: str) -> None:
    for n in sizes(name):
        laws.connects_every_pair(name, n)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_the_first_gpus_in_order(name: str) -> None:
    laws.numbers_its_gpus(name, sizes(name)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_nodes_hold_every_rank_once(name: str) -> None:
    for n in sizes(name):
        laws.fills_its_nodes(name, n)


@pytest.mark.parametrize("name", NAMES)
def test_vertices_and_links_carry_their_facts(name: str) -> None:
    laws.has_sound_parts(name, sizes(name)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_gpus_reach_their_host_where_there_is_one(name: str) -> None:
    laws.reaches_its_hosts(name, sizes(name)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_own_servers_are_reached_or_refused(name: str) -> None:
    laws.has_its_servers(name, 3)


@pytest.mark.parametrize("name", NAMES)
def test_more_ranks_than_a_fixed_topology_has_are_refused(name: str) -> None:
    laws.has_the_declared_number_of_gpus(name)


@pytest.mark.parametrize("name", NAMES)
def test_its_gpu_is_in_the_catalog_and_can_be_replaced(name: str) -> None:
    own = facts(name).gpu
    assert own is not None
    assert build(name, 2).gpus == (load_gpu(own),) * 2
    assert build(name, 2, gpu="l4").gpus[1].name == "l4"


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_survives_pickling(name: str) -> None:
    laws.survives_pickling(name, 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_machine_it_is_and_what_is_not_sure(name: str) -> None:
    comment = [line for line in registry.find("topology", name).read_text().splitlines() if line.startswith("#")]
    assert len(comment) >= 2
    assert any("sure" in line.lower() or "Not a machine" in line for line in comment)
    assert any("ource" in line or "Not a machine" in line for line in comment)


# Options of builders: a fixed number of ports, and required options that are no quantities, lists or counts.
OPTIONS: dict[str, dict[str, Any]] = {
    "fat_tree": {"bandwidth": "12.5 GB/s", "latency": "5 us", "k": 4},  # 16 ports
    "nodes": {
        "gpus": 4, "inside": "nvswitch", "link_bandwidth": "300 GB/s", "link_latency": "0.5 us", "hosts": 1,
        "pcie_bandwidth": "25 GB/s", "pcie_latency": "0.25 us", "nics": 4, "nic_bandwidth": "25 GB/s",
        "nic_latency": "1 us", "fabric": "rail",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS.names())
def test_a_user_gets_the_same_laws_from_a_single_function(name: str) -> None:
    checked = check_topology_builder(name, OPTIONS.get(name))
    assert checked.holds, "\n".join(checked.lines())


def test_every_builder_is_used_by_a_shipped_topology() -> None:
    used = {line.split()[1] for name in NAMES for line in registry.find("topology", name).read_text().splitlines()
            if line.startswith("builder:")}  # fmt: skip
    assert used == set(BUILDERS.names())


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_as_large_as_was_counted_before(name: str) -> None:
    for n in sizes(name):
        laws.has_as_many_parts_as_counted(name, n)
