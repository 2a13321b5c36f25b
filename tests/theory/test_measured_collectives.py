"""The shipped machines against measured all-reduces: simulator/catalog/measured/collectives.csv, with its sources."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.cluster.topology_file import load_topology
from simulator.document import parse
from simulator.fit.check import left_out, machine_rows, shipped_rows
from simulator.fit.measured import measured_sweep, measured_sweeps
from simulator.fit.records import FitRow, constants, large
from simulator.fit.shipped import FITTED
from simulator.fit.words import section


def shipped(name: str) -> tuple[Cluster, MachineCollective]:
    held = measured_sweep(name)
    cluster = build(held.topology, held.sweep.world_size)
    return cluster, cluster.collectives["all_reduce"]


def off(rows: tuple[FitRow, ...]) -> float:
    return median(abs(row.simulated / row.measured - 1.0) for row in large(rows))


@pytest.mark.parametrize("name", FITTED)
def test_the_played_all_reduce_is_within_five_percent_of_the_measured(name: str) -> None:
    cluster, machine = shipped(name)
    rows = machine_rows(cluster, measured_sweep(name).sweep, machine)
    assert off(rows) <= 0.05
    assert abs(rows[-1].simulated / rows[-1].measured - 1.0) <= 0.05


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


def test_bus_bandwidths_that_no_ring_reaches_are_reached_by_the_machines_algorithm() -> None:
    """483 GB/s on links of 450 GB/s; 78 GB/s with cards of 50 GB/s a box."""
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
