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
from tools.validation.shipped_machines import (
    FITTED,
    GATHERS,
    RINGS,
    SWEPT,
    gather_fit,
    gather_sweeps,
    ring_fading,
    sections,
)


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


@pytest.mark.parametrize(("size", "rate"), [(1, 80.48), (4, 158.5), (32, 422.62), (512, 618.74), (8192, 679.61)])
def test_a_sum_over_four_gpus_of_a_rack_has_the_half_size_of_four(size: int, rate: float) -> None:
    """Sizes in MiB and bus bandwidths in GB/s: Azure/AI-benchmarking-guide@2a370be6, ND_GB200_v6_results.md, ring.

    At 4 MiB, ai-dynamo/aiconfigurator@095f58a5 has 172 GB/s, Azure 146: here is their geometric mean. They agree to 5 %
    at the other sizes that both have.
    """
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


@pytest.mark.parametrize("operation", GATHERS)
@pytest.mark.parametrize("topology", SWEPT)
def test_gathers_over_two_to_eight_gpus_of_a_node_have_one_fit(topology: str, operation: str) -> None:
    """From 1 MiB up, with a share for each GPU's own part; over PCIe, few GPUs get more than eight."""
    over_pcie = topology == "rtx_pro_server"
    for held in gather_sweeps(topology, operation):
        algorithm, rows = shipped_rows(held.sweep, held.topology)
        assert algorithm == GATHERS[operation]
        few = over_pcie and held.sweep.world_size < 8
        assert off(rows) <= (0.40 if few else 0.15 if over_pcie else 0.11)
        assert abs(rows[-1].error) <= (0.45 if few else 0.14)
        # Below 1 MiB the start-up and the steps count.
        assert median(abs(row.error) for row in rows if row not in large(rows)) <= (0.40 if over_pcie else 0.20)


@pytest.mark.parametrize("operation", GATHERS)
def test_another_tables_large_gathers_agree(operation: str) -> None:
    """OpenXLA's rows contain the launch, which counts little from 64 MiB up."""
    _, rows = shipped_rows(measured_sweep(f"xla_8_h100_{operation}").sweep, "dgx_h100")
    assert median(abs(row.error) for row in rows if row.size >= 2**26) <= 0.08


@pytest.mark.parametrize(
    ("ranks", "size", "rate"),
    [(2, 2**32, 370e9), (3, 2**32, 370e9), (4, 2**32, 370e9), (2, 2**29, 318e9), (4, 2**29, 350e9)],
)
def test_sums_over_few_gpus_run_the_ring_of_the_gathers(ranks: int, size: int, rate: float) -> None:
    """Bytes of the bus on 2, 3 and 4 of 8 H100: 4 GiB of NVIDIA/nccl issue 1455, 512 MiB of ai-dynamo/aiconfigurator.

    The first has equal rates, the second grows with the GPUs as its gathers do: the model is between the two.
    """
    sums = replace(measured_sweep("8_h100").sweep, rows=((size, 1.0),), world_size=ranks)
    algorithm, rows = shipped_rows(sums, "dgx_h100")
    assert algorithm == "ring"
    assert 2 * (ranks - 1) / ranks * size / rows[-1].simulated == pytest.approx(rate, rel=0.12)


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


def xla_ring(operation: str, fading: CapModel) -> MachineCollective:
    held = measured_sweep(RINGS[operation])
    return fit_sweep(held.sweep, topology=held.topology, algorithm="ring", fading=fading).machine


def test_a_reduce_scatter_needs_no_start_up_and_half_size_of_its_own() -> None:
    gather = xla_ring("all_gather", ring_fading(None))
    shared, own = (lost("reduce_scatter", fading) for fading in (ring_fading(gather), ring_fading(None)))
    assert shared < 1.1 * own


@pytest.mark.parametrize("topology", ["dgx_a100", "dgx_h100", "dgx_b200", "aws_p4de", "aws_p5"])
@pytest.mark.parametrize("operation", RINGS)
def test_several_nodes_run_rings_side_by_side(topology: str, operation: str) -> None:
    nodes = load_topology(topology).collectives[operation].nodes
    assert nodes is not None
    assert nodes.algorithm == "multi_ring"
    assert nodes.source.startswith("not measured here: ")


def test_every_shipped_section_is_made_from_the_fits() -> None:
    machines = {name: shipped(name)[1] for name in FITTED}
    gather = xla_ring("all_gather", ring_fading(None))
    fits = {"all_gather": gather, "reduce_scatter": xla_ring("reduce_scatter", ring_fading(gather))}
    given = {"all_gather": "", "reduce_scatter": ", start-up and half size as its all_gather's"}
    for operation, name in RINGS.items():
        source = f"fitted to 8 H100{given[operation]}: {measured_sweep(name).sweep.source}"
        machines[name] = replace(fits[operation], source=source)
    for topology, gpu in SWEPT.items():
        machines |= {f"{gpu} {operation}": gather_fit(topology, operation) for operation in GATHERS}
    for topology, wanted in sections(machines).items():
        assert load_topology(topology).collectives == wanted
    for topology in SWEPT:
        held = load_topology(topology).collectives
        assert {op: held[op].one_node for op in GATHERS} == {op: gather_fit(topology, op) for op in GATHERS}


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
