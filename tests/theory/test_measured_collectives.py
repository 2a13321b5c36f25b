"""The shipped machines against measured all-reduces: simulator/catalog/measured/collectives.csv, with its sources."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from simulator.basics.document import parse
from simulator.calibration.machines.check import left_out, machine_rows, shipped_rows
from simulator.calibration.machines.fit_writing import section
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.records import FitRow, constants, large
from simulator.calibration.machines.solve import FREE, CapModel
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.cluster.topology_file import load_topology
from tools.validation.measured_collectives import measured_sweep, measured_sweeps
from tools.validation.over_nodes import BUSY, RACKS, OverNodes, over_nodes
from tools.validation.shipped_machines import EXCHANGE, FITTED, RINGS, ring_fading, sections


def shipped(name: str) -> tuple[Cluster, MachineCollective]:
    held = measured_sweep(name)
    cluster = build(held.topology, held.sweep.world_size)
    return cluster, cluster.collectives["all_reduce"]


def off(rows: tuple[FitRow, ...]) -> float:
    return median(abs(row.simulated / row.measured - 1.0) for row in large(rows))


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.one_of(3)
def test_the_played_all_reduce_is_within_five_percent_of_the_measured(name: str) -> None:
    cluster, machine = shipped(name)
    rows = machine_rows(cluster, measured_sweep(name).sweep, machine)
    assert off(rows) <= 0.05
    assert abs(rows[-1].simulated / rows[-1].measured - 1.0) <= 0.05


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_gathers_over_one_to_64_nodes_are_inside_their_bands(operation: str) -> None:
    rows = [row for row in over_nodes(BUSY) if row.operation == operation]
    assert [row.nodes for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    for row in rows:
        played = row.played()
        assert row.low <= played <= row.high
        assert row.nodes > 8 or abs(played / row.mean - 1.0) <= 0.25


@pytest.mark.parametrize(
    "row",
    [
        # Each simulation of twenty racks takes half a minute.
        pytest.param(
            row, id=f"{row.nodes} racks {row.nbytes >> 20} MiB", marks=pytest.mark.long if row.nodes > 2 else ()
        )
        for row in over_nodes(RACKS)
    ],
)
def test_a_sum_over_racks_is_within_ten_percent_of_the_measured(row: OverNodes) -> None:
    assert row.played() == pytest.approx(row.mean, rel=0.10)


@pytest.mark.parametrize(("size", "rate"), [(1, 80.48), (4, 146.27), (32, 422.62), (512, 618.74), (8192, 679.61)])
def test_a_sum_over_four_gpus_of_a_rack_has_the_half_size_of_four(size: int, rate: float) -> None:
    """Sizes in MiB and bus bandwidths in GB/s: Azure/AI-benchmarking-guide@2a370be6, ND_GB200_v6_results.md, ring."""
    row = OverNodes(RACKS, "all_reduce", 1, 4, size << 20, rate * 1e9, 0.0, 0.0, "")
    assert row.played() == pytest.approx(row.mean, rel=0.20)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((f"xla_8_h100_{operation}", 0.15) for operation in ("all_gather", "reduce_scatter")),
        *((f"xla_{n}_h100_all_to_all", 0.20) for n in (2, 4, 8)),
    ],
)
def test_a_sum_alone_tells_what_gathers_and_exchanges_take(name: str, most: float) -> None:
    """By NCCL's own factor of sums in switches, 0.85 of a ring's bandwidth on Hopper (src/graph/tuning.cc)."""
    held = measured_sweep(name)
    _, rows = shipped_rows(held.sweep, held.topology, operations=("all_reduce",))
    assert off(rows) <= most


@pytest.mark.parametrize("name", FITTED)
def test_a_machine_has_at_most_five_constants_and_a_source(name: str) -> None:
    _, machine = shipped(name)
    assert 2 <= len(constants(machine)) <= 5
    assert measured_sweep(name).sweep.source in machine.source


@pytest.mark.parametrize("name", ["8_a100", "8_h100"])
def test_sizes_that_the_fit_did_not_see_are_within_ten_percent(name: str) -> None:
    held = measured_sweep(name)
    _, between = left_out(held.sweep, held.topology, shipped(name)[1].algorithm)
    assert off(between) <= 0.10
    assert abs(between[-1].error) <= 0.05


@pytest.mark.parametrize("name", FITTED)
def test_what_is_asked_for_as_auto_is_what_the_machine_runs(name: str) -> None:
    held = measured_sweep(name)
    largest = replace(held.sweep, rows=held.sweep.rows[-1:])
    algorithm, rows = shipped_rows(largest, held.topology)
    assert algorithm == shipped(name)[1].algorithm
    assert abs(rows[-1].error) <= 0.05


@pytest.mark.parametrize("operation", RINGS)
def test_a_gather_and_a_reduce_scatter_are_within_five_percent_of_the_measured(operation: str) -> None:
    held = measured_sweep(RINGS[operation])
    algorithm, rows = shipped_rows(held.sweep, held.topology)
    assert algorithm == "ring"
    assert off(rows) <= 0.05
    assert abs(rows[-1].error) <= 0.05


def test_an_exchange_has_constants_of_its_own_within_ten_percent_of_the_measured() -> None:
    held = measured_sweep(EXCHANGE)
    algorithm, rows = shipped_rows(held.sweep, held.topology)
    assert algorithm == "direct"
    assert off(rows) <= 0.10
    assert abs(rows[-1].error) <= 0.05


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_exchange_over_fewer_gpus_was_not_fitted_and_is_within_twenty_percent(ranks: int) -> None:
    held = measured_sweep(EXCHANGE.replace("_8_", f"_{ranks}_"))
    _, rows = shipped_rows(held.sweep, held.topology)
    assert off(rows) <= 0.20


def lost(operation: str, fading: CapModel) -> float:
    held = measured_sweep(RINGS[operation])
    fit = fit_sweep(held.sweep, topology=held.topology, algorithm="ring", fading=fading)
    assert fit.machine.exponent == (fading.exponent or fit.machine.exponent)
    return fit.tried[0].loss


@pytest.mark.parametrize("operation", RINGS)
def test_a_fourth_constant_of_a_ring_explains_no_more_and_a_third_does(operation: str) -> None:
    two, three, four = (lost(operation, f) for f in (CapModel(allowed=False), ring_fading(None), FREE))
    assert three < 0.95 * two
    assert three < 1.1 * four


def test_a_reduce_scatter_needs_no_start_up_and_half_size_of_its_own() -> None:
    gather = build("dgx_h100", 8).collectives["all_gather"]
    shared, own = (lost("reduce_scatter", fading) for fading in (ring_fading(gather), ring_fading(None)))
    assert shared < 1.1 * own


@pytest.mark.parametrize("operation", RINGS)
def test_the_same_ring_over_four_gpus_was_not_fitted_and_is_within_fifteen_percent(operation: str) -> None:
    held = measured_sweep(RINGS[operation].replace("_8_", "_4_"))
    _, rows = shipped_rows(held.sweep, held.topology)
    assert off(rows) <= 0.15


@pytest.mark.parametrize("topology", ["dgx_a100", "dgx_h100", "dgx_b200", "aws_p4de", "aws_p5"])
@pytest.mark.parametrize("operation", RINGS)
def test_several_nodes_run_the_ring_of_one_and_pay_the_network_of_the_all_reduce(topology: str, operation: str) -> None:
    held = load_topology(topology).collectives
    one, nodes = held[operation].one_node, held[operation].nodes
    summed_one, summed = held["all_reduce"].one_node, held["all_reduce"].nodes
    assert None not in (one, nodes, summed_one, summed)
    assert nodes.startup == pytest.approx(one.startup + summed.startup - summed_one.startup, rel=1e-3)
    assert (nodes.rate_cap, nodes.half_size, nodes.exponent) == (one.rate_cap, one.half_size, one.exponent)
    assert nodes.algorithm == "multi_ring"
    assert one.algorithm == "ring"
    assert nodes.source.startswith("not measured here: ")


def test_every_shipped_section_is_made_from_the_fits_by_sweep() -> None:
    machines = {name: shipped(name)[1] for name in FITTED}
    for operation, name in RINGS.items():
        machines[name] = build("dgx_h100", 8).collectives[operation]
    machines[EXCHANGE] = build("dgx_h100", 8).collectives["all_to_all"]
    for topology, wanted in sections(machines).items():
        assert load_topology(topology).collectives == wanted


def test_bus_bandwidths_that_no_ring_reaches_are_reached_by_the_machines_algorithm() -> None:
    """483 GB/s on links of 450 GB/s; 78 GB/s with cards of 50 GB/s a node."""
    for name, links in (("8_h100", 450e9), ("p4de_16_a100", 50e9)):
        held = measured_sweep(name)
        cluster, machine = shipped(name)
        last = machine_rows(cluster, held.sweep, machine)[-1]
        n = held.sweep.world_size
        assert last.size / last.simulated * 2 * (n - 1) / n > links


def test_every_row_of_the_table_has_a_source_and_a_positive_time() -> None:
    for held in measured_sweeps().values():
        assert held.sweep.source
        assert all(size > 0 and time > 0 for size, time in held.sweep.rows)
        assert [size for size, _ in held.sweep.rows] == sorted({size for size, _ in held.sweep.rows})


def test_a_section_is_written_and_read_without_loss() -> None:
    star = {"builder": "star", "options": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    for topology in ("dgx_a100", "dgx_h100", "dgx_b200", "aws_p4de", "aws_p5"):
        held = load_topology(topology).collectives
        keys = parse(section(held)).data
        assert load_topology(star | keys).collectives == held
