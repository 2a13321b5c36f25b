"""The model of a collective library against formulas, and against measurements on links that it has not seen."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import yaml

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Plan, Task, plan
from simulator.collectives.point_to_point import point_to_point
from simulator.engine.events import execute
from simulator.records.transfers import write_out
from tools.validation.network_errors import errors_of_sweep

_ROOT = Path(__file__).parents[2]
_TABLE = _ROOT / "simulator" / "catalog" / "measured" / "library.csv"
GB = 1e9
GIB = 2**30


def planned(cluster: Cluster, operation: str, nbytes: int, algorithm: str = "auto") -> Plan:
    everyone = tuple(range(cluster.world_size))
    request = CollectiveRequest(operation, cluster.world_size, nbytes // 4)
    return plan(cluster, Task(request, algorithm, everyone, "float32"))


def seconds(cluster: Cluster, operation: str, nbytes: int, algorithm: str = "auto") -> float:
    return execute(planned(cluster, operation, nbytes, algorithm).program, cluster).end


def bus_bandwidth(topology: str | dict[str, Any], ranks: int, operation: str, nbytes: int) -> float:
    factor = (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks
    return factor * nbytes / seconds(build(topology, ranks), operation, nbytes) / GB


def shipped(name: str, **changes: Any) -> dict[str, Any]:
    """Return a shipped topology's keys without measured collectives, with changes; `options` are merged."""
    file = yaml.safe_load((_ROOT / "topologies" / f"{name}.yaml").read_text())
    file.pop("collectives", None)
    return {**file, **changes, "options": file["options"] | changes.get("options", {})}


def figures(kind: str, operation: str, column: str) -> list[float]:
    """Return a column's mean for each generation of links, by the csv module alone."""
    by_links: dict[str, list[float]] = {}
    with _TABLE.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if (row["kind"], row["operation"]) == (kind, operation) and row[column]:
                by_links.setdefault(row["links"], []).append(log(float(row[column])))
    return [exp(fmean(values)) for values in by_links.values()]


def mean(kind: str, operation: str, column: str) -> float:
    return exp(fmean(map(log, figures(kind, operation, column))))


def test_a_gather_over_a_switch_takes_the_time_of_the_formula() -> None:
    # Sixteen V100 of a DGX-2 on ports of 150 GB/s: a ring sends 15 sixteenths of the array through every port.
    n, nbytes, port, hop = 16, 256 * 2**20, 150 * GB, 2 * 0.5e-6
    startup, share, half_time, exponent = (
        mean("switch", "all_gather", column) for column in ("startup_us", "share", "half_time_us", "exponent")
    )
    cap = share * port
    rate = cap / (1.0 + (half_time * 1e-6 * cap / nbytes) ** exponent)
    # Its own part takes a rank a good third of the time of a part that it sends.
    own = mean("switch", "all_gather", "own_part")
    expected = startup * 1e-6 + (n - 1) * hop + (n - 1 + own) / n * nbytes / rate
    assert seconds(build("dgx2", n), "all_gather", nbytes, "ring") == pytest.approx(expected, rel=1e-9)


def test_generations_of_links_count_equally_however_many_machines_have_them() -> None:
    # NVLink 3 was measured on one machine, NVLink 4 and 5 on two each.
    assert len(figures("switch", "all_gather", "share")) == 3


def test_sums_over_nodes_start_as_on_measured_cards_with_a_step_for_each_node() -> None:
    # Two nodes: the sum crosses once there and once back, 4 us each by NCCL's own model of LL128.
    op = planned(build("dgx2", 32), "all_reduce", GIB, "blueconnect").ops[0]
    assert op.startup == pytest.approx(29.3e-6 + 2 * 4e-6)
    assert op.caps.across <= mean("card", "all_reduce", "share") * 100 / 8 * GB / 2


@pytest.mark.parametrize(
    ("topology", "ranks", "operation", "nbytes", "measured"),
    [
        # NVIDIA/nccl, issue 2218: 4 V100, two NVLink 2 between every two.
        ("v100_nvlink_4", 2, "all_gather", 256 * 2**20, 44.0),
        ("v100_nvlink_4", 4, "all_gather", 256 * 2**20, 129.0),
        # NVIDIA/nccl-tests, issue 251: two such nodes with two EDR cards each.
        ("v100_nvlink_4", 8, "all_reduce", GIB, 41.6),
        # NCCL's own plan of a DGX-1 (6 rings of 20 GB/s), and NVIDIA/nccl, issue 307: several of them.
        ("dgx1_v100", 8, "all_reduce", GIB, 120.0),
        ("dgx1_v100", 16, "all_reduce", GIB, 47.0),
        ("dgx1_v100", 32, "all_reduce", GIB, 47.0),
        # ml-engineering (S. Bekman): all-reduces over 2 and 8 MI300X.
        ("mi300x_box", 2, "all_reduce", GIB, 47.7),
        ("mi300x_box", 8, "all_reduce", GIB, 312.9),
    ],
)
def test_machines_without_a_sweep_reach_what_was_reported(
    topology: str, ranks: int, operation: str, nbytes: int, measured: float
) -> None:
    assert bus_bandwidth(topology, ranks, operation, nbytes) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    "sweep",
    ["8_a100", "8_b200", "16_b200", "nccl_8_a100_all_to_all", "nccl_8_b200_all_gather", "nccl_8_h100_all_gather"],
)
def test_sweeps_over_links_that_the_model_has_not_seen_are_near(sweep: str) -> None:
    found = [row for row in errors_of_sweep(sweep) if row.modelled]
    assert median(abs(exp(-row.error) - 1.0) for row in found[-2:]) <= 0.2
    rated = [row for row in errors_of_sweep(sweep) if not row.modelled]
    assert median(abs(row.error) for row in found) < 0.6 * median(abs(row.error) for row in rated)


def test_rings_and_trees_over_five_nodes_reach_what_was_reported() -> None:
    # NVIDIA/nccl, issue 1368: 5 x 8 H100, NCCL_ALGO=Ring 190 GB/s, Tree 150 GB/s; cards of 200 Gb/s, as Ring says.
    machine = shipped("gcp_a3_mega")
    for algorithm, reported in (("multi_ring", 190.0), ("double_binary_tree", 150.0)):
        took = seconds(build(machine, 40), "all_reduce", 4 * GIB, algorithm)
        assert 2 * 39 / 40 * 4 * GIB / took / GB == pytest.approx(reported, rel=0.15)


def test_trees_over_nodes_put_as_much_on_a_card_as_their_links_say() -> None:
    # Two nodes: node 0 is the root of a tree, node 1 of the other. For each place, a node sends half up, and half down:
    # S in all over its cards, as in a ring over two nodes.
    links = Counter[tuple[int, int]]()
    request = CollectiveRequest("all_reduce", 6, 6 * 512, nodes=((0, 1, 2), (3, 4, 5)))
    transfers = write_out(ALGORITHMS.find("double_binary_tree").plans["all_reduce"](request))
    sizes = np.array([6 * 512 // (6 * 128)] * len(transfers))
    for src, dst, count in zip(transfers.src.tolist(), transfers.dst.tolist(), sizes.tolist(), strict=True):
        links[src, dst] += count
    assert {pair: count for pair, count in links.items() if pair[0] // 3 != pair[1] // 3} == {
        (0, 3): 1024, (3, 0): 1024, (1, 4): 1024, (4, 1): 1024, (2, 5): 1024, (5, 2): 1024,
    }  # fmt: skip


def test_without_the_library_links_have_their_rating() -> None:
    # One ring over ports of 150 GB/s, without start-up.
    rated = build(shipped("dgx2", library="none"), 16)
    expected = 15e-6 + 15 / 16 * GIB / (150 * GB)
    assert seconds(rated, "all_gather", GIB, "ring") == pytest.approx(expected, rel=1e-9)
    assert planned(rated, "all_gather", GIB, "ring").ops[0].caps.source == ""


def test_sockets_reach_half_of_the_line_rate() -> None:
    # 10 Gb/s: two ranks, a node each, exchange arrays of 1 GiB once in a gather.
    options = {"gpus": 1, "nics": 1, "nic_bandwidth": "10 Gb/s", "pcie_switches": 1, "in_switch_reduction": False}
    tcp, rdma = (build(shipped("dgx_h100", transport=name, options=options), 2) for name in ("tcp", "rdma"))
    times = [seconds(cluster, "all_gather", 2 * GIB, "ring") for cluster in (tcp, rdma)]
    assert times[0] == pytest.approx(GIB / (0.5 * 1.25 * GB), rel=0.02)
    assert times[0] / times[1] == pytest.approx(mean("card", "all_reduce", "share") / 0.5, rel=0.01)


def test_measured_collectives_take_the_place_of_the_model() -> None:
    # Of a machine measured in one node alone, groups over several nodes have the model.
    measured = {"all_gather": {"one_node": {"algorithm": "ring", "startup": "1 us", "rate_cap": "100 GB/s"}}}
    cluster = build(shipped("dgx2", collectives=measured), 32)
    assert cluster.modelled(tuple(range(16))) is None
    assert cluster.modelled(tuple(range(32))) is cluster.library
    assert build("dgx_h100", 16).modelled(tuple(range(16))) is None


def test_topologies_of_theory_have_no_library() -> None:
    assert build("star_100g", 4).library is None
    assert build("torus_2d", 4).library is None


def test_a_send_to_another_node_has_the_share_of_a_card() -> None:
    op = point_to_point(build("dgx2", 32), 2**28, "bfloat16", (0, 16))
    assert op.caps.across == pytest.approx(mean("card", "all_reduce", "share") * 12.5 * GB, rel=0.1)
    assert op.startup == pytest.approx(29.3e-6 + 4e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"library": "mpi"}, "library: got 'mpi'"),
        ({"library": "none", "transport": "tcp"}, "transport: has no effect with library: none"),
    ],
)
def test_wrong_keys_are_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        build(shipped("dgx2", **changes), 2)


def test_a_library_needs_nodes() -> None:
    star = yaml.safe_load((_ROOT / "topologies" / "star_100g.yaml").read_text())
    with pytest.raises(ScenarioError, match="library: needs nodes; the links of a star have their rating"):
        build({**star, "library": "nccl"}, 2)


_WIDER = [
    ("dgx2", 32, "link_bandwidth", "300 GB/s"),
    ("dgx2", 32, "nic_bandwidth", "200 Gb/s"),
    ("dgx2", 32, "nics", 16),
    ("v100_nvlink_4", 8, "link_bandwidth", "50 GB/s"),
    ("mi300x_box", 16, "link_bandwidth", "128 GB/s"),
    ("pcie_server", 8, "pcie_bandwidth", "63 GB/s"),
]


@pytest.mark.parametrize(("topology", "ranks", "option", "value"), _WIDER)
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_more_bandwidth_is_never_slower(topology: str, ranks: int, option: str, value: Any, operation: str) -> None:
    wider = shipped(topology, options={option: value})
    for nbytes in (2**16, 2**24, 2**30):
        assert seconds(build(wider, ranks), operation, nbytes) <= seconds(build(topology, ranks), operation, nbytes)


@pytest.mark.parametrize("topology", ["dgx2", "v100_nvlink_4", "mi300x_box", "h100_ethernet_100g"])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_a_group_in_a_node_is_never_slower_than_over_nodes(topology: str, operation: str) -> None:
    size = build(topology, 1).node_size or 0
    inside = build(topology, 4)
    across = build(topology, 4, placement=[0, 1, size, size + 1])
    for nbytes in (2**16, 2**24, 2**30):
        assert seconds(inside, operation, nbytes) <= seconds(across, operation, nbytes)


@pytest.mark.parametrize("time", [2.0])
def test_a_network_time_stretches_the_model(time: float) -> None:
    for nbytes in (2**16, 2**30):
        short, long = (
            seconds(build("dgx2", 32, network_time=factor), "all_reduce", nbytes, "blueconnect")
            for factor in (1.0, time)
        )
        assert long == pytest.approx(time * short, rel=1e-6)


def test_the_table_has_a_source_for_every_row() -> None:
    with _TABLE.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert all(row["source"] and row["share"] and row["links"] for row in rows)


def test_the_model_knows_nothing_of_links_left_out() -> None:
    library = build("dgx_h100", 8).library
    assert library is not None
    others = figures("switch", "all_gather", "share")
    without = replace(library, without="NVLink 4").within("all_gather", "switch").share
    assert without == pytest.approx(exp(fmean(map(log, [others[0], others[2]]))))


def test_shares_of_measured_switches_are_those_of_the_shipped_machines() -> None:
    with _TABLE.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for name in ("dgx_a100", "dgx_h100", "dgx_h200", "dgx_b200", "gb200_nvl72"):
        cluster = build(name, 2)
        port = cluster.gpus[0].scale_up_bandwidth
        for operation in ("all_gather", "reduce_scatter", "all_to_all"):
            own = cluster.collectives[operation]
            (row,) = (
                row for row in rows if row["source"] == own.source.split("; ")[-1] and row["operation"] == operation
            )
            held = [float(row[column]) for column in ("startup_us", "share", "half_time_us", "exponent")]
            fitted = [1e6 * own.startup, own.rate_cap / port, 1e6 * own.half_size / own.rate_cap, own.exponent]
            assert held == pytest.approx(fitted, rel=2e-2)


def test_a_scenarios_transport_replaces_what_was_measured_over_nodes() -> None:
    scenario = {
        "name": "sockets",
        "cluster": {"topology": "dgx_a100", "world_size": 16},
        "collective": {"operation": "all_gather", "size": "1 GiB", "algorithm": "multi_ring"},
    }
    measured = simulate(scenario).report
    tcp = simulate(scenario | {"cluster": {**scenario["cluster"], "transport": "tcp"}}).report
    # Eight cards of 25 GB/s take 15 sixteenths of the array at half of their rate.
    assert tcp.time_s == pytest.approx(15 / 16 * GIB / (8 * 12.5 * GB), rel=0.1)
    assert tcp.time_s > 1.7 * measured.time_s
    assert str(tcp.constants).startswith("library model")
    assert not str(measured.constants).startswith("library model")


def test_a_transport_needs_nodes() -> None:
    scenario = {
        "name": "sockets",
        "cluster": {"topology": "star_100g", "world_size": 4, "transport": "tcp"},
        "collective": {"operation": "all_gather", "size": "1 GiB"},
    }
    with pytest.raises(ScenarioError, match=r"cluster\.transport: got 'tcp'; topology star_100g has no model"):
        simulate(scenario)


def test_the_shares_on_the_page_are_those_of_the_model() -> None:
    page = " ".join((_ROOT / "docs" / "topologies.md").read_text().split())
    library = build("dgx2", 32).library
    amd = build("mi300x_box", 8).library
    assert library is not None
    assert amd is not None
    shares = (
        library.within("all_gather", "switch"),
        library.within("all_gather", "cable"),
        amd.within("all_gather", "cable"),
        library.within("all_gather", "pcie"),
        library.between("all_reduce"),
    )
    words = (
        "of NVLink ports at an NVSwitch",
        "of NVLink between two GPUs",
        "of Infinity Fabric",
        "of PCIe",
        "of InfiniBand",
    )
    for use, where in zip(shares, words, strict=True):
        assert f"{use.share:.0%} {where}".replace("%", " %") in page, (use.share, where)
