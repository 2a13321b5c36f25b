"""Planning: messages, groups, servers, switches, and what cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from simulator.basics import units
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, packed, plan
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario
from tests.playing import nodes, planned, regular, star, time_of

ALPHA, BETA = 10e-6, 12.5e9


def played(world_size: int = 8, **collective: Any) -> SimulatedRun:
    facts = {"operation": "all_reduce", "algorithm": "ring", **collective}
    cluster = {"topology": "star_100g", "world_size": world_size}
    return simulate(load_scenario({"name": "plan", "cluster": cluster, "collective": facts}))


def ring_time(nbytes: int, n: int = 8) -> float:
    return 2 * (n - 1) * (ALPHA + nbytes / n / BETA)


@pytest.mark.parametrize(
    ("tensors", "buffer", "first", "expected"),
    [
        ([4, 4, 9, 1, 1], 8, None, (8, 9, 2)),
        ([], 8, None, ()),
        ([8], 8, None, (8,)),
        ([20], 8, None, (20,)),
        ([20, 1], 8, None, (20, 1)),
        ([1] * 10, 4, None, (4, 4, 2)),
        ([1] * 10, 4, 1, (1, 4, 4, 1)),
        ([5, 5], 9, 2, (5, 5)),
        ([0, 0, 3], 4, None, (3,)),
        ([3, 2, 3, 2], 5, None, (5, 5)),
    ],
)
def test_tensors_are_packed_in_order(
    tensors: list[int], buffer: int, first: int | None, expected: tuple[int, ...]
) -> None:
    assert packed(tensors, buffer, first) == expected
    assert sum(packed(tensors, buffer, first)) == sum(tensors)


@pytest.mark.parametrize(("algorithm", "operation"), [("blueconnect", "reduce_scatter"), ("nvls", "all_reduce")])
def test_nodes_are_in_the_order_of_their_first_ranks(algorithm: str, operation: str) -> None:
    """Ranks 0 to 7 on the second node and 8 to 15 on the first take as long as the other way round."""
    times = []
    for placement in (range(16), [*range(8, 16), *range(8)]):
        cluster = {"topology": "dgx_h100", "world_size": 16, "placement": list(placement)}
        facts = {"operation": operation, "algorithm": algorithm, "size": "1 MiB"}
        run = simulate(load_scenario({"name": "plan", "cluster": cluster, "collective": facts}))
        assert run.report.wrong == 0
        times.append(run.report.time_s)
    assert times[1] == pytest.approx(times[0], rel=1e-12)


def test_unmerged_tensors_take_the_sum_of_their_single_times() -> None:
    run = played(tensors=["64 KiB", "1 MiB", "8 KiB"])
    expected = sum(ring_time(size) for size in (65_536, 2**20, 8192))
    assert run.report.time_s == pytest.approx(expected, rel=1e-9)
    assert run.report.predicted_s == pytest.approx(expected, rel=1e-9)
    assert run.report.wire_bytes == 2 * 7 * (65_536 + 2**20 + 8192)
    assert run.report.wrong == 0
    assert [len(result) for result in run.results or ()] == [(65_536 + 2**20 + 8192) // 4] * 8


def test_a_fusion_buffer_costs_its_cycle_once_and_changes_no_byte() -> None:
    tensors = ["64 KiB"] * 20
    apart = played(tensors=tensors)
    fused = played(tensors=tensors, fusion={"buffer": "512 KiB", "cycle": "2 ms"})
    # Eight, eight and four tensors.
    expected = 2e-3 + 2 * ring_time(8 * 65_536) + ring_time(4 * 65_536)
    assert fused.report.time_s == pytest.approx(expected, rel=1e-9)
    assert fused.report.predicted_s == pytest.approx(expected, rel=1e-9)
    assert fused.report.wire_bytes == apart.report.wire_bytes
    assert fused.report.transfers == 3 * 2 * 7 * 8
    assert fused.report.wrong == 0


def test_the_first_bucket_is_a_small_one() -> None:
    run = played(tensors=["512 KiB"] * 8, fusion={"buckets": "2 MiB"})
    # 1 MiB, then 2 MiB, then the last MiB.
    assert [log.nbytes.sum() for log in run.timeline.logs] == [14 * 2**20, 28 * 2**20, 14 * 2**20]
    assert run.report.time_s == pytest.approx(2 * ring_time(2**20) + ring_time(2 * 2**20), rel=1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "naive", "direct", "halving_doubling", "double_binary_tree"])
def test_messages_follow_each_other_only_when_all_ranks_have_ended(algorithm: str) -> None:
    # Trees let ranks go at different times; the next message waits for the last of them.
    n, sizes = 7, (7000, 70, 14_000)
    request = CollectiveRequest("all_reduce", n, sum(sizes))
    task = Task(request, algorithm, tuple(range(n)), messages=sizes, wait=1e-3)
    from simulator.engine.events import execute

    timeline = execute(plan(star(n), task).program, star(n))
    singles = sum(time_of(star(n), algorithm, CollectiveRequest("all_reduce", n, elements)) for elements in sizes)
    assert timeline.end == pytest.approx(1e-3 + singles, rel=1e-9)


def test_a_group_of_some_ranks_takes_the_time_of_as_many(eight_gpus: Cluster) -> None:
    for algorithm in ("ring", "tree", "direct", "naive", "halving_doubling"):
        request = CollectiveRequest("all_reduce", 3, 3000)
        assert time_of(eight_gpus, algorithm, request, group=(6, 1, 4)) == time_of(star(3), algorithm, request)
    run = played(group=[6, 1, 4], size="12 KiB", dtype="int64")
    assert run.report.wrong == 0
    assert len(run.results or ()) == 3
    assert {s.rank for s in run.timeline.spans} == {1, 4, 6}


def test_the_root_is_a_place_in_the_group() -> None:
    run = played(operation="broadcast", algorithm="tree", group=[6, 1, 4], root=2, size="12 KiB")
    first = run.timeline.logs[0]
    assert first.vertices[first.transfers.src[0]] == "gpu4"
    assert run.report.wrong == 0


def test_what_cannot_be_is_told_with_its_reason(eight_gpus: Cluster) -> None:
    request = CollectiveRequest("all_reduce", 8, 800)
    cases: list[tuple[Cluster, str, CollectiveRequest, str]] = [
        (eight_gpus, "chain", request, "got 'chain', which has no all_reduce; its operations are broadcast, reduce"),
        (eight_gpus, "nvls", request, "no switch of inline reduces"),
        (eight_gpus, "parameter_server", request, "has ports for 0 servers"),
        (
            eight_gpus,
            "hierarchical",
            replace(request, nodes=((0, 1, 2), (3, 4, 5, 6, 7))),
            r"nodes must be of one size, got sizes \[3, 5\]",
        ),
        (
            eight_gpus,
            "parameter_server",
            replace(request, servers=9, servers_on="workers"),
            "got 9 servers for 8 workers",
        ),
    ]
    for cluster, algorithm, wanted, told in cases:
        with pytest.raises(ScenarioError, match=told):
            planned(cluster, algorithm, wanted)
    with pytest.raises(UnknownNameError, match="did you mean 'ring'"):
        planned(eight_gpus, "rng", request)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"world_size": 1}, "at least 2 ranks"),
        ({"elements": -1}, "must not be negative"),
        ({"root": 4}, "root must be one of 0 .. 3"),
        ({"rank_order": (0, 1, 2, 2)}, "must hold each of 0 .. 3 once"),
        ({"chunks": 0}, "chunks must be at least 1"),
        ({"servers": 0}, "servers must be at least 1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(facts: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(CollectiveRequest("all_reduce", 4, 8), **facts)


def test_auto_takes_the_fastest_that_libraries_run_and_says_why(eight_gpus: Cluster) -> None:
    for elements in (8, 8 * 2**20):
        request = CollectiveRequest("all_reduce", 8, elements)
        made = planned(eight_gpus, "auto", request)
        # MPI's and NCCL's on a network without nodes; `naive` and `direct` would be faster for 8 elements.
        others = {a: planned(eight_gpus, a, request).predicted for a in ("ring", "tree", "halving_doubling")}
        assert made.predicted == min(others.values())
        assert made.algorithm == min(others, key=lambda name: (others[name], name))
        assert "shortest time by formula" in made.why


def test_auto_shows_the_times_that_it_compares() -> None:
    for cluster in (star(3), nodes(8, 4), regular("ring", 5)):
        made = planned(cluster, "auto", CollectiveRequest("all_reduce", cluster.world_size, 2**20))
        shown = re.findall(r"(\w+) (?:about )?([0-9.]+ [num]?s)", made.why.partition(" (about")[0])
        assert shown[0][0] == made.algorithm
        times = [units.parse(time, "time") for _, time in shown]
        assert times == sorted(times)


def test_auto_takes_rings_over_all_links_of_the_widest(tmp_path: Path) -> None:
    """Links of 50 GB/s form the ring 0, 2, 4, 1, 3, 5; links of 25 GB/s connect GPUs with adjacent numbers."""
    order = (0, 2, 4, 1, 3, 5)
    wide = {frozenset(pair) for pair in zip(order, (*order[1:], 0), strict=True)}
    cables = {**{frozenset((gpu, gpu + 1)): "25 GB/s" for gpu in range(5)}, **dict.fromkeys(wide, "50 GB/s")}
    links = [
        {"source": a, "target": b, "bandwidth": bandwidth, "latency": "0 s"}
        for cable, bandwidth in cables.items()
        for a, b in permutations(cable)
    ]
    nodes = [{"id": gpu, "kind": "gpu", "forwards": True} for gpu in range(6)]
    (tmp_path / "ring.json").write_text(json.dumps({"directed": True, "nodes": nodes, "links": links}))
    cluster = build({"graph": "ring.json", "gpu": "v100_sxm_32gb"}, 6, base=tmp_path)
    request = CollectiveRequest("all_gather", 6, 6 * 2**18)
    assert planned(cluster, "auto", request).algorithm == "multi_ring"
    # Five sixths of the 6 MiB cross each link of the ring; four rings share them, two in each direction.
    times = [time_of(cluster, name, request) for name in ("auto", "ring")]
    assert times == pytest.approx([5 * 2**20 / 100e9, 5 * 2**20 / 25e9], rel=1e-6)


def test_auto_takes_what_the_machine_runs() -> None:
    cluster = replace(star(4), collectives={"all_reduce": MachineCollective("tree", source="a table")})
    made = planned(cluster, "auto", CollectiveRequest("all_reduce", 4, 400))
    assert (made.algorithm, made.why) == ("tree", "inline runs tree (a table)")


def test_auto_without_any_form_takes_the_least_estimate_and_calls_it_so() -> None:
    cluster = regular("ring", 5)
    made = planned(cluster, "auto", CollectiveRequest("all_reduce", 3, 3 * 20), group=(0, 2, 1))
    assert made.predicted is None
    assert f"{made.algorithm} about " in made.why


def test_a_machines_own_number_of_pieces_is_taken_unless_the_user_says_otherwise() -> None:
    cluster = replace(nodes(4, 4), collectives={"all_reduce": MachineCollective("nvls", chunks=3)})

    def segments(nbytes: int, chunks: int | None = None) -> int:
        made = planned(cluster, "nvls", CollectiveRequest("all_reduce", 4, nbytes // 4, chunks=chunks))
        return made.program.collectives()["all_reduce"].schedule.chunks // 4

    # No piece is smaller than a buffer of 4 MiB.
    assert [segments(nbytes) for nbytes in (4096, 2**22, 2**23, 3 * 2**22, 2**26)] == [1, 1, 2, 3, 3]
    assert segments(4096, chunks=5) == 5


def test_the_peak_buffer_of_whoever_adds_in_rank_order() -> None:
    # Naive: rank 0 holds 7 arrays; direct: each rank holds 7 parts of an eighth. A ring buffers nothing.
    assert played(algorithm="naive", size="1 MiB").report.peak_buffer_bytes == 7 * 2**20
    assert played(algorithm="direct", size="1 MiB").report.peak_buffer_bytes == 7 * 2**20 // 8
    assert played(algorithm="ring", size="1 MiB").report.peak_buffer_bytes == 0


def test_a_simulation_of_many_points_is_refused() -> None:
    facts = {"operation": "all_reduce", "size": "1 KiB"}
    axes = {"collective.algorithm": ["ring", "tree"]}
    for axis in ("compare", "sweep"):
        scenario = load_scenario(
            {"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}, "collective": facts, axis: axes}
        )
        with pytest.raises(ScenarioError, match=f"has {axis}, and therefore several points"):
            simulate(scenario)


def test_payload_is_carried_while_arrays_are_small_or_when_asked() -> None:
    from simulator.scenario.payload import PAYLOAD_LIMIT

    assert PAYLOAD_LIMIT == 256 * 2**20
    assert played(2, size="1 MiB").results is not None
    assert played(2, size="129 MiB").report.wrong is None
    assert played(2, size="1 MiB", payload=False).results is None
    assert played(2, size="1 MiB", payload=False).report.max_abs_error is None


def test_a_ring_may_run_in_any_order(eight_gpus: Cluster) -> None:
    order = (3, 1, 4, 0, 5, 2, 6, 7)
    log = played(size="64 KiB", rank_order=list(order)).timeline.logs[0]
    pairs = set(zip(log.transfers.src.tolist(), log.transfers.dst.tolist(), strict=True))
    assert pairs == {(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)}


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_sizes_per_rank_are_those_of_the_largest_part(operation: str) -> None:
    report = played(7, operation=operation, size="4000 B").report
    part = -(-1000 // 7) * 4
    whole, shared = ("result_bytes_per_rank", "input_bytes_per_rank")
    if operation == "reduce_scatter":
        whole, shared = shared, whole
    assert (getattr(report, whole), getattr(report, shared)) == (4000, part)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    parted = ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather")
    factors = {"all_reduce": 2 * 7 / 8, "broadcast": 1.0, "reduce": 1.0} | dict.fromkeys(parted, 7 / 8)
    for operation, factor in factors.items():
        report = played(operation=operation, algorithm="direct", size="1 MiB").report
        assert report.algbw == pytest.approx(2**20 / report.time_s, rel=1e-12)
        assert report.busbw == pytest.approx(factor * 2**20 / report.time_s, rel=1e-12)
