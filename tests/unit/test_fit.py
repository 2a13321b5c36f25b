"""Fitting a machine to a sweep: what is read, what is found, what is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.calibration.machines import (
    Fit,
    SweepTimes,
    fit,
    fit_all,
    fit_sweep,
    fit_text,
    machine_text,
    read_sweep,
    read_sweeps,
    to_yaml,
)
from simulator.calibration.machines.records import FitRow
from simulator.calibration.machines.solve import Constants, Data, solve
from simulator.cluster.build import build
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.topology_file import load_topology
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute

SIZES = [2**power for power in range(10, 31, 2)]
GPU = "NVIDIA H100 80GB HBM3"
RANKS = "\n".join(
    f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on node{rank // 4} device {rank % 4} [0x0{rank % 4}] {GPU}"
    for rank in range(8)
)


def ring_time(size: float, n: int = 4) -> float:
    """A ring on a star at 100 GB/s: 2 (n - 1) (alpha + S / (n beta)), with a start-up of 20 us."""
    return 20e-6 + 2 * (n - 1) * (1e-6 + size / (n * 100e9))


def log(sizes: list[int], time: Callable[[float, int], float], *, ranks: str = RANKS, n: int = 8) -> str:
    """What an nccl-tests program would print."""
    lines = ["# ./build/all_reduce_perf -b 1K -e 1G", "# nThread 1 nGpus 1 minBytes 1024", "# Using devices", ranks]
    for size in sizes:
        us = time(size, n) * 1e6
        algbw = size / us / 1e3
        lines.append(f"{size:>13} {size // 4:>12} float sum -1 {us:.4f} {algbw:.2f} {algbw * 2 * (n - 1) / n:.2f} 0")
    return "\n".join(lines) + "\n"


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.txt"
    path.write_text(log(SIZES, ring_time, ranks="", n=4))
    return path


def known_machine() -> MachineCollective:
    return MachineCollective("ring", startup=30e-6, rate_cap=200e9, half_size=10e6, exponent=0.6)


def played_sweep(machine: MachineCollective, topology: str, n: int) -> SweepTimes:
    """Times that the engine itself gives for known constants."""
    cluster = replace(build(topology, n), collectives={"all_reduce": machine})
    rows = []
    for size in SIZES:
        task = Task(CollectiveRequest("all_reduce", n, size // 4), machine.algorithm, tuple(range(n)))
        rows.append((size, execute(plan(cluster, task).program, cluster).end))
    return SweepTimes("all_reduce", n, tuple(rows), source="a play")


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit_sweep(played_sweep(known_machine(), "dgx_a100", 8), topology="dgx_a100", algorithm="ring")


def test_constants_that_made_the_times_are_found_again(found: Fit) -> None:
    known = known_machine()
    assert found.machine.rate_cap == pytest.approx(known.rate_cap, rel=0.02)
    assert found.machine.startup == pytest.approx(known.startup, rel=0.05)
    assert found.median < 0.005
    assert abs(found.at_largest) < 0.005


def test_the_times_told_are_those_of_the_engine_with_the_written_constants(found: Fit, tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(to_yaml(found))
    cluster = build(str(path), 8)
    assert cluster.collectives["all_reduce"] == found.machine
    for row in found.rows[::4]:
        assert row.played
        planned = plan(cluster, Task(CollectiveRequest("all_reduce", 8, row.size // 4), "auto", tuple(range(8))))
        assert planned.algorithm == "ring"
        assert execute(planned.program, cluster).end == row.simulated


def test_no_more_than_five_constants_are_set(found: Fit) -> None:
    assert set(found.constants) <= {"startup", "rate_cap", "cross_rate_cap", "half_size", "exponent", "chunks"}
    assert len(found.constants) <= 5
    assert f"{len(found.constants)} constants: startup" in fit_text(found)


def test_the_same_sweep_gives_the_same_fit(found: Fit) -> None:
    again = fit_sweep(played_sweep(known_machine(), "dgx_a100", 8), topology="dgx_a100", algorithm="ring")
    assert again == found


def test_an_outlier_does_not_pull_the_fit(found: Fit) -> None:
    sweep = played_sweep(known_machine(), "dgx_a100", 8)
    rows = list(sweep.rows)
    rows[7] = (rows[7][0], rows[7][1] * 1.5)
    pulled = fit_sweep(replace(sweep, rows=tuple(rows)), topology="dgx_a100", algorithm="ring")
    assert pulled.machine.rate_cap == pytest.approx(found.machine.rate_cap, rel=0.05)
    assert pulled.worst.size == rows[7][0]
    assert pulled.median < 0.03


def test_ranks_hosts_and_gpu_are_read_from_the_rank_list(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(log(SIZES, ring_time))
    sweep = read_sweep(path)
    assert (sweep.operation, sweep.world_size, sweep.nodes) == ("all_reduce", 8, 2)
    assert sweep.gpu == GPU
    assert sweep.dtype == "float32"
    assert sweep.rows[0] == (1024, pytest.approx(ring_time(1024, 8), rel=1e-3))


def test_the_number_of_ranks_is_worked_out_from_the_ratio_of_bandwidths(sweep_file: Path) -> None:
    sweep = read_sweep(sweep_file)
    assert sweep.world_size == 4
    assert any("4 ranks, from busbw / algbw" in text for text in sweep.assumed)


def test_a_sweep_without_a_topology_is_played_on_links_from_the_sweep(sweep_file: Path, tmp_path: Path) -> None:
    done = fit(sweep_file)
    assert done.topology == "measured_star"
    assert done.median < 0.02
    assert any("times the need of the fastest row" in text for text in done.assumed)
    path = tmp_path / "machine.yaml"
    path.write_text(to_yaml(done))
    assert load_topology(path).collectives["all_reduce"].one_node == done.machine


def test_hosts_without_a_topology_become_nodes(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(log(SIZES[4:], ring_time))
    done = fit(path, algorithm="hierarchical")
    assert (done.topology, done.nodes, done.world_size) == ("measured_nodes", 2, 8)
    assert "cross_rate_cap" in done.constants
    assert abs(done.at_largest) < 0.05
    again = tmp_path / "machine.yaml"
    again.write_text(to_yaml(done))
    assert build(str(again), 8).collectives["all_reduce"] == done.machine


def test_two_sizes_give_a_start_up_and_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    rows = [f"{size},{ring_time(size)},4,all_reduce" for size in (2**10, 2**30)]
    path.write_text("\n".join(["size,time_s,ranks,op", *rows]))
    done = fit(path)
    assert set(done.constants) == {"startup", "rate_cap"}
    assert abs(done.at_largest) < 0.01


def test_another_operation_is_fitted_with_its_own_algorithms(tmp_path: Path) -> None:
    path = tmp_path / "a2a.csv"
    rows = [f"{size},{(15e-6 + 3 * size / (4 * 50e9)) * 1e6},4,alltoall" for size in SIZES]
    path.write_text("\n".join(["size,time_us,ranks,op", *rows]))
    done = fit(path)
    assert (done.operation, done.machine.algorithm) == ("all_to_all", "direct")
    assert done.median < 0.03


def test_a_topology_keeps_its_own_text_and_its_other_section(found: Fit) -> None:
    before = load_topology("dgx_a100")
    text = to_yaml(found)
    assert text.startswith("# NVIDIA DGX A100")
    assert text.count("collectives:") == 1
    nodes = before.collectives["all_reduce"].nodes
    assert nodes is None or f"algorithm: {nodes.algorithm}" in text


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("size,time\n8,1\n", {"world_size": 4, "operation": "all_reduce"}, "got 1 size with a time"),
        ("size,time\n8,1\n16,2\n", {"operation": "all_reduce"}, "give world_size"),
        ("size,time\n8,1\n16,2\n", {"world_size": 4}, "give operation: one of all_reduce"),
        (
            "size,time,ranks\n8,1,4\n9,1,4\n16,2,8\n17,2,8\n",
            {"operation": "all_reduce"},
            "holds 2 sweeps (all_reduce of 4",
        ),
        (f"size,time,op\n8,1,{'a' * 5000}\n16,2,b\n", {}, f"operation: got '{'a' * 40}...'; one of all_reduce"),
        ("size,time,ranks\n8,1,x\n16,2,x\n", {}, "ranks: got 'x'; must be a whole number"),
        ("size,time,op\n8,1,sendrecv\n16,2,sendrecv\n", {}, "operation: got 'sendrecv'; one of all_reduce"),
        ("size,time,ranks\n8,1,4\n16,2,4\n", {"world_size": 8}, "got 8; the file has 4"),
        ("size,time\n8,1\n16,2\n", {"world_size": 1}, "must be at least 2"),
        ("size,time\n8,1\n16,2\n", {"world_size": 10**9}, "must be at most 1000000"),
        ("size,time,ranks\n8,1,1000000000\n16,2,1000000000\n", {}, "ranks: got '1000000000'; must be a whole number"),
        ("size,time,ranks\n8,1,²\n16,2,²\n", {}, "ranks: got '²'; must be a whole number"),
        (
            "size,time,ranks,op,dtype\n8,1,2,all_reduce,floot32\n16,2,2,all_reduce,floot32\n",
            {},
            "dtype: got 'floot32'; one of bfloat16, float16, float32, float64, float8_e4m3fn, float8_e5m2, int32, "
            "int64, int8, uint8; did you mean 'float32'?",
        ),
        ("size,time\n8," + "1" * 200_000 + "\n", {}, "field larger than field limit"),
        ('size,time,op\n8,1,"x\n' + "1,1,x\n" * 30_000, {}, "field larger than field limit"),
        ("size_gib,time\n1e308,1\n16,2\n", {}, "size_gib: got '1e308'; outside the range of measured values"),
        ("size,time\n8,1e-36\n16,2\n", {}, "time: got '1e-36'; outside the range of measured values"),
        ("size,time,ranks,hosts,op\n8,1,5,2,all_reduce\n16,2,5,2,all_reduce\n", {}, "5 ranks on 2 hosts"),
    ],
)
def test_what_is_missing_or_wrong_is_told_in_one_line(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"sweep\.csv") as raised:
        fit(path, **options)  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_nodes_that_do_not_agree_with_the_topology_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(log(SIZES, ring_time))
    with pytest.raises(ScenarioError, match="8 ranks on 2 hosts, but dgx_h100 places these ranks in 1"):
        fit(path, topology="dgx_h100")


def test_an_algorithm_that_cannot_be_so_fast_is_refused(sweep_file: Path) -> None:
    with pytest.raises(ScenarioError, match=r"'tree', which cannot carry out all_reduce .* in the measured time"):
        fit(sweep_file, algorithm="tree")


def test_an_unknown_operation_gets_a_hint(sweep_file: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'all_reduce'"):
        fit(sweep_file, operation="allreduce")


def test_an_algorithm_without_the_operation_is_refused(sweep_file: Path) -> None:
    with pytest.raises(ScenarioError, match="got 'chain', which has no all_gather"):
        fit(sweep_file, algorithm="chain", operation="all_gather", world_size=4)


def test_solving_finds_the_constants_of_a_formula() -> None:
    sizes = np.array([float(2**power) for power in range(3, 35)])
    known = Constants(25e-6, 120e9, 6e6, 0.55)
    times = known.startup + sizes / known.caps(sizes)
    solved, loss = solve(Data(sizes, times, np.ones_like(sizes)), lambda size, cap: size / cap, 300e9)
    assert loss < 0.05
    assert solved.cap == pytest.approx(known.cap, rel=0.03)
    assert solved.startup == pytest.approx(known.startup, rel=0.03)


def test_a_small_array_is_not_cut_into_pieces() -> None:
    machine = MachineCollective("nvls", chunks=8)
    assert [machine.segments(size) for size in (8, 4 * 2**20, 9 * 2**20, 2**30)] == [1, 1, 2, 8]
    assert MachineCollective("nvls").segments(2**30) is None


def test_what_fits_into_a_packet_is_slowed_no_further() -> None:
    machine = MachineCollective("ring", half_size=1e6, exponent=0.5)
    assert machine.factor(8) == machine.factor(4096) == pytest.approx(1 / (1 + (1e6 / 4096) ** 0.5))
    assert machine.factor(1e6) == pytest.approx(0.5)


def test_an_error_is_simulated_over_measured_less_one() -> None:
    assert FitRow(1024, 2e-3, 1.5e-3).error == pytest.approx(-0.25)


def several(path: Path) -> Path:
    """A CSV file with sums and gathers of 8 ranks and sums of 4, as rings of known constants would take."""
    lines = ["op,ranks,nodes,size,busbw"]
    for operation, ranks, rounds in (("all_reduce", 8, 2), ("all_gather", 8, 1), ("all_reduce", 4, 2)):
        for size in (2**power for power in range(12, 31, 2)):
            moved = rounds * (ranks - 1) / ranks * size
            time = 20e-6 + rounds * (ranks - 1) * 1e-6 + moved / 200e9
            lines.append(f"{operation},{ranks},1,{size},{moved / time / 1e9:.6g}")
    path.write_text("\n".join(lines))
    return path


def test_several_sweeps_become_one_topology_file_and_what_they_do_not_tell_is_said(tmp_path: Path) -> None:
    path = several(tmp_path / "all.csv")
    found = fit_all([path], topology="dgx_a100")
    assert [(one.operation, one.world_size) for one in found.fits] == [("all_reduce", 8), ("all_gather", 8)]
    for one in found.fits:
        assert one.machine.rate_cap == pytest.approx(200e9, rel=0.02)
        assert one.machine.startup == pytest.approx(20e-6, rel=0.1)
    (check,) = found.checks
    assert check.sweep.startswith("all_reduce on 4 ranks")
    assert check.median < 0.02
    text = machine_text(found)
    assert "not determined: reduce_scatter in one node: the constants of the topology file remain" in text
    assert "not determined: all_to_all in one node: the constants of the topology file remain" in text
    assert f"simulated, but not fitted: all_reduce on 4 ranks, {path}: median |error| " in text
    written = tmp_path / "machine.yaml"
    written.write_text(to_yaml(*found.fits))
    for one in found.fits:
        assert load_topology(written).collectives[one.operation].one_node == one.machine
    # What was not measured stays as the topology had it.
    before = load_topology("dgx_a100").collectives
    assert load_topology(written).collectives["all_gather"].nodes == before["all_gather"].nodes


def test_the_time_of_the_own_part_comes_from_sweeps_on_fewer_ranks(tmp_path: Path) -> None:
    # A rank of n sends (n - 1) / n of a gathered array and handles its own 1 / n as if it were half as much.
    lines = ["op,ranks,nodes,size,time_us"]
    for ranks in (8, 4, 2):
        for size in (2**power for power in range(12, 31, 2)):
            time = 20e-6 + (ranks - 1) * 1e-6 + (ranks - 1 + 0.5) / ranks * size / 200e9
            lines.append(f"all_gather,{ranks},1,{size},{1e6 * time:.6g}")
    path = tmp_path / "gathers.csv"
    path.write_text("\n".join(lines))
    found = fit_all([path], topology="dgx_a100")
    machine = found.fits[0].machine
    assert machine.own_part == pytest.approx(0.5, abs=0.02)
    assert machine.rate_cap == pytest.approx(200e9, rel=0.02)
    assert [check.median < 0.03 for check in found.checks] == [True, True]
    assert "own_part: " in to_yaml(*found.fits)
    # Without a sweep on fewer ranks, nothing is known of it.
    path.write_text("\n".join([line for line in lines if not line.startswith(("all_gather,4", "all_gather,2"))]))
    assert fit_all([path], topology="dgx_a100").fits[0].machine.own_part == 0


def test_several_sweeps_need_a_topology_and_no_two_of_the_same(tmp_path: Path) -> None:
    path = several(tmp_path / "all.csv")
    with pytest.raises(ScenarioError, match=r"topology: missing; 3 sweeps \(all_gather of 8 ranks"):
        fit_all([path])
    with pytest.raises(ScenarioError, match="a second sweep of all_reduce over 8 ranks"):
        fit_all([path, path], topology="dgx_a100")


def test_runs_behind_each_other_in_one_log_are_read_as_several(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    first = log(SIZES, ring_time) + "# Avg bus bandwidth    : 100\n#\n"
    path.write_text(first + first.replace("all_reduce_perf", "all_gather_perf"))
    sweeps = read_sweeps(path)
    assert [sweep.operation for sweep in sweeps] == ["all_reduce", "all_gather"]
    assert sweeps[0].rows == sweeps[1].rows
    assert {sweep.nodes for sweep in sweeps} == {2}
